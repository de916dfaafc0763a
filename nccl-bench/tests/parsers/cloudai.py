"""CloudAI's status check of nccl-tests, and its table, on a text: CHECKOUT TEXT. Prints JSON."""

import importlib.util
import json
import pathlib
import shutil
import sys
import tempfile
import types


class Base:
    """Stands in for the framework's base classes."""


class Status(types.SimpleNamespace):
    """What a status check returns."""


def module(name, path=(), **contents):
    made = types.ModuleType(name)
    made.__path__ = [str(folder) for folder in path]
    made.__dict__.update(contents)
    sys.modules[name] = made


def load(name, path):
    specification = importlib.util.spec_from_file_location(name, path)
    loaded = importlib.util.module_from_spec(specification)
    sys.modules[name] = loaded
    specification.loader.exec_module(loaded)
    return loaded


def main():
    workload = pathlib.Path(sys.argv[1]) / "src" / "cloudai" / "workloads" / "nccl_test"
    names = ["DockerImage", "Installable", "TestRun", "System", "ReportGenerationStrategy", "MetricValue"]
    module("cloudai")
    module("cloudai.core", JobStatusResult=Status, METRIC_ERROR=None, **{name: Base for name in names})
    module("cloudai.models")
    module("cloudai.models.workload", CmdArgs=Base, TestDefinition=Base)
    module("cloudai.report_generator")
    module("cloudai.report_generator.tool")
    module("cloudai.report_generator.tool.bokeh_report_tool", BokehReportTool=Base)
    module("cloudai.report_generator.tool.csv_report_tool", CSVReportTool=Base)
    module("cloudai.report_generator.util", add_human_readable_sizes=None)
    module("cloudai.util")
    module("cloudai.util.lazy_imports", lazy=None)
    module("nccl_test", [workload])
    definition = load("nccl_test.nccl", workload / "nccl.py").NCCLTestDefinition()
    table = load("nccl_test.table", workload / "performance_report_generation_strategy.py")
    with tempfile.TemporaryDirectory() as folder:
        stdout = pathlib.Path(folder) / "stdout.txt"
        shutil.copyfile(sys.argv[2], stdout)
        status = definition.was_run_successful(types.SimpleNamespace(output_path=stdout.parent))
        rows, *_ = table.extract_nccl_data(stdout)
    print(json.dumps({"success": status.is_successful, "rows": len(rows)}))


main()
