#!/usr/bin/env python3
"""Has the programs that read nccl-tests' output read nccl-bench's, and checks what each concludes.

It fetches nothing and contains nothing of theirs: each is run from a checkout that its option or variable names, and
left out, with a line that says so, where none is named.

    python3 nccl-bench/tests/parsers/run.py --program target/debug/nccl-bench --cloudai ~/cloudai

| option         | variable             | repository                            |
| -------------- | -------------------- | ------------------------------------- |
| --superbench   | PARSERS_SUPERBENCH   | microsoft/superbenchmark              |
| --aws          | PARSERS_AWS          | aws-samples/awsome-distributed-training |
| --nccl-tests   | PARSERS_NCCL_TESTS   | NVIDIA/nccl-tests                     |
| --cloudai      | PARSERS_CLOUDAI      | NVIDIA/cloudai                        |
| --azure        | PARSERS_AZURE        | Azure/azurehpc-health-checks          |

Of frameworks around a parser, only the names that its file imports are stood in for. Exit codes: 0 all conclude what they
should; 1 one does not; 2 nothing was run.
"""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
REPOSITORIES = ["superbench", "aws", "nccl-tests", "cloudai", "azure"]
LIMIT_SECONDS = 300

# Long enough that the mean bus bandwidth is no number such as 1e-06, which bc does not read.
COMMAND = "allreduce --backend fabric -t 2 -b 64K -e 1M -f 2 -n 2 -w 1"
ROWS = 5
# What each run asks for beyond that, and the exit code that it has to have.
RUNS = {
    "good": ([], 0),
    "unverified": (["-c", "0"], 0),
    "wrong": (["--inject-fault", "1:0"], 7),
    "interrupted": (["-N", "0"], 128 + signal.SIGINT),
}

# What each parser has to conclude of each run. A parser that has no notion of success has to see what is there.
EXPECTED = {
    "superbench": {
        "good": "success, 5 sizes",
        "unverified": "success, 5 sizes",
        "wrong": "failure",
        "interrupted": "failure",
    },
    # Without the exit code, which SuperBench looks at first. It does not read #wrong.
    "superbench (text)": {
        "good": "success, 5 sizes",
        "unverified": "success, 5 sizes",
        "wrong": "success, 5 sizes",
        "interrupted": "failure",
    },
    # It takes N/A for no error, and says of a run that has not ended only that it has no average.
    "aws": {
        "good": "5 rows, 0 errors, average",
        "unverified": "5 rows, 0 errors, average",
        "wrong": "5 rows, 10 errors, average",
        "interrupted": "some rows, 0 errors, no average",
    },
    "nccl-tests": {
        "good": "5 rows, consistent",
        "unverified": "5 rows, consistent",
        "wrong": "5 rows, consistent",
        "interrupted": "some rows, consistent",
    },
    "cloudai": {
        "good": "success, 5 rows",
        "unverified": "success, 5 rows",
        "wrong": "failure, 5 rows",
        "interrupted": "failure, some rows",
    },
    "azure": {"good": "passed", "unverified": "passed", "wrong": "failed", "interrupted": "failed"},
    # NHC can be told to go on after a check that has failed, and then the exit code is forgotten.
    "azure (goes on)": {"good": "passed", "unverified": "passed", "wrong": "failed", "interrupted": "failed"},
}


class Run:
    """What the program said, and the JSON that it wrote, with the times of single iterations."""

    def __init__(self, program, folder, name):
        more, code = RUNS[name]
        self.name, self.text = name, folder / f"{name}.txt"
        self.code = start(program, [*COMMAND.split(), *more], self.text, name == "interrupted")
        self.json = folder / f"{name}.json"
        timed = [*COMMAND.split(), *more, "-I", "1", "-J", str(self.json)]
        also = start(program, timed, folder / f"{name}-iterations.txt", name == "interrupted")
        if (self.code, also) != (code, code):
            raise SystemExit(f"{name}: exit codes {self.code} and {also} instead of {code}; see {self.text}")


def start(program, arguments, output, interrupt):
    """Runs the program, with SIGINT after some rows if it is to be interrupted."""
    environment = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "FABRIC_LIBRARY") if name in os.environ}
    environment["LC_ALL"] = "C.UTF-8"
    with subprocess.Popen([program, *arguments], stdout=subprocess.PIPE, text=True, env=environment) as running:
        rows = 0
        with output.open("w") as file:
            for line in running.stdout:
                file.write(line)
                rows += line[:1] == " "
                if interrupt and rows == 2 * ROWS:
                    running.send_signal(signal.SIGINT)
                    interrupt = False
        code = running.wait(LIMIT_SECONDS)
    return 128 - code if code < 0 else code


def counted(rows, run):
    """A number of rows; an interrupted run has some."""
    return "some" if run.name == "interrupted" and rows > 0 else str(rows)


def apart(script, *arguments):
    """What a script of this folder prints as JSON in a process of its own: the parsers' names collide."""
    done = subprocess.run(
        [sys.executable, "-B", str(HERE / script), *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=LIMIT_SECONDS,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def superbench(checkout, run, by_code=True):
    found = apart("superbench.py", checkout, run.text, run.code if by_code else 0)
    return f"success, {found['sizes']} sizes" if found["success"] else "failure"


def aws(checkout, run):
    found = apart("aws.py", checkout, run.text)
    average = "average" if found["average"] is not None else "no average"
    return f"{counted(found['rows'], run)} rows, {found['errors']} errors, {average}"


def nccl_tests(checkout, run):
    tool = pathlib.Path(checkout) / "tools" / "analyze_perf_json.py"
    done = subprocess.run(
        [sys.executable, "-B", str(tool), str(run.json), "--all"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        return done.stdout.strip().splitlines()[-1]
    fields = dict(line.strip().split(":", 1) for line in done.stdout.splitlines() if ":" in line)
    rows = int(fields["Results"])
    consistent = next(line for line in done.stdout.splitlines() if line.startswith("Consistency"))
    # One process has no times by process to compare with.
    right = consistent.endswith((": PASS", ": N/A (no process rows)"))
    return f"{counted(rows, run)} rows, {'consistent' if right else consistent}"


def cloudai(checkout, run):
    found = apart("cloudai.py", checkout, run.text)
    return f"{'success' if found['success'] else 'failure'}, {counted(found['rows'], run)} rows"


def azure(checkout, run, goes_on=False):
    done = subprocess.run(
        ["bash", str(HERE / "azure.sh"), checkout, str(run.text), str(run.code), "1" if goes_on else "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    conclusions = [line for line in done.stdout.splitlines() if line in ("passed", "failed")]
    # One that goes on can say both: what failed stays failed.
    return "failed" if "failed" in conclusions else (conclusions or ["nothing"])[0]


PARSERS = {
    "superbench": [("superbench", superbench), ("superbench (text)", lambda *of: superbench(*of, by_code=False))],
    "aws": [("aws", aws)],
    "nccl-tests": [("nccl-tests", nccl_tests)],
    "cloudai": [("cloudai", cloudai)],
    "azure": [("azure", azure), ("azure (goes on)", lambda *of: azure(*of, goes_on=True))],
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="nccl-bench", help="nccl-bench [default: from PATH]")
    for name in REPOSITORIES:
        variable = "PARSERS_" + name.upper().replace("-", "_")
        parser.add_argument(f"--{name}", metavar="CHECKOUT", default=os.environ.get(variable))
    options = vars(parser.parse_args())
    checkouts = {name: options[name.replace("-", "_")] for name in REPOSITORIES}
    for name, checkout in checkouts.items():
        if checkout is None:
            print(f"SKIPPED: {name}: no checkout is named (--{name})")
        elif not pathlib.Path(checkout).is_dir():
            raise SystemExit(f"--{name} {checkout}: no such folder")
    there = {name: checkout for name, checkout in checkouts.items() if checkout is not None}
    if not there:
        print("nothing was run")
        return 2
    program = options["program"]
    program = str(pathlib.Path(program).resolve()) if "/" in program else program
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        runs = [Run(program, pathlib.Path(folder), name) for name in RUNS]
        for name, checkout in there.items():
            for title, conclude in PARSERS[name]:
                for run in runs:
                    found, expected = conclude(checkout, run), EXPECTED[title][run.name]
                    wrong += found != expected
                    verdict = "ok" if found == expected else f"WRONG, expected: {expected}"
                    print(f"{title:<18} {run.name:<12} {found:<32} {verdict}", flush=True)
    print(f"{wrong} wrong conclusions")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
