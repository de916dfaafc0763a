"""SuperBench's nccl-bw benchmark on a text and an exit code: CHECKOUT TEXT CODE. Prints JSON."""

import importlib.util
import json
import logging
import pathlib
import sys
import types


class Anything:
    """Stands in for what the framework around the benchmark brings: enumerations, the registry, its base class."""

    def __init__(self, *arguments, **named):
        pass

    def __getattr__(self, name):
        return Anything()

    def __call__(self, *arguments, **named):
        return Anything()


class Framework:
    """The base class of SuperBench's benchmarks, as far as running a command goes."""

    def __init__(self, name, parameters=""):
        self._name, self._curr_run_index = name, 0


def module(name, **contents):
    made = types.ModuleType(name)
    made.__dict__.update(contents)
    sys.modules[name] = made
    return made


def load(name, path):
    specification = importlib.util.spec_from_file_location(name, path)
    loaded = importlib.util.module_from_spec(specification)
    sys.modules[name] = loaded
    specification.loader.exec_module(loaded)
    return loaded


class Results:
    """What the benchmark reports."""

    def __init__(self):
        self.values = {}

    def add_result(self, name, value):
        self.values[name] = value

    def add_raw_data(self, *_):
        pass

    def set_return_code(self, _):
        pass


def main():
    checkout, text, code = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])
    output = types.SimpleNamespace(returncode=code, stdout=text.read_text())
    logger = logging.getLogger("superbench")
    logger.disabled = True
    module("superbench")
    module("superbench.common")
    module("superbench.common.utils", logger=logger, run_command=lambda *_, **__: output)
    enumerations = {name: Anything() for name in ("BenchmarkRegistry", "BenchmarkType", "Platform", "ReturnCode")}
    module("superbench.benchmarks", **enumerations)
    module("superbench.benchmarks.base", Benchmark=Framework)
    micro = checkout / "superbench" / "benchmarks" / "micro_benchmarks"
    base = load("superbench.benchmarks.micro_base", micro / "micro_base.py")
    module("superbench.benchmarks.micro_benchmarks", MicroBenchmarkWithInvoke=base.MicroBenchmarkWithInvoke)
    benchmark = load("nccl_bw", micro / "cuda_nccl_bw_performance.py").CudaNcclBwBenchmark("nccl-bw")
    benchmark._result, benchmark._commands = Results(), ["all_reduce_perf"]
    benchmark._args = types.SimpleNamespace(
        operation="allreduce",
        in_place=False,
        log_raw_data=False,
        log_flushing=False,
        bin_dir=None,
        tolerant_fail=False,
    )
    success = benchmark._benchmark()
    sizes = [name for name in benchmark._result.values if name.endswith("_busbw")]
    print(json.dumps({"success": success, "sizes": len(sizes)}))


main()
