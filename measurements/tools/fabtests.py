#!/usr/bin/env python3
"""Compares `nccl-bench fabric` with fabtests' programs, in turn on two processors of this machine.

    measurements/tools/fabtests.py --fabtests FOLDER --nccl-bench PROGRAM --json rounds.json > table.md

FOLDER has fi_rdm_pingpong, fi_rdm_tagged_pingpong, fi_rdm_tagged_bw and fi_rma_bw, built against the libfabric that both
sides use (--library). Each round starts nccl-bench, then fabtests, for each test, provider and size, with the same number of
transfers, warm-up transfers and window. Both report the mean time of a transfer. The table has the best of all rounds, the
JSON file has each round. As in fi_rma_bw, RMA runs in both directions and the clock stops when the local operations are
complete. fabtests polls without a pause; nccl-bench's `bw` pauses between two polls (--pause).

Needs Python 3.8 and nothing else.
"""

import argparse
import itertools
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TESTS = {
    "pingpong": (["pingpong", "--messages", "plain"], "fi_rdm_pingpong", []),
    "tagged pingpong": (["pingpong"], "fi_rdm_tagged_pingpong", []),
    "tagged bw": (["bw"], "fi_rdm_tagged_bw", []),
    "rma write": (["rma", "--both-ways", "--until", "completed"], "fi_rma_bw", ["-o", "write"]),
    "rma read": (["rma", "--both-ways", "--read"], "fi_rma_bw", ["-o", "read"]),
}
PATIENCE = 60
UNITS = {"K": 1 << 10, "M": 1 << 20}


def size(text):
    text = text.strip()
    return int(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else int(text)


def label(number):
    for unit, factor in reversed(UNITS.items()):
        if number % factor == 0:
            return f"{number // factor}{unit}"
    return str(number)


def plan(number):
    """Transfers, and how many in flight: fabtests fills memory for a window before it begins."""
    if number <= 8 << 10:
        return 5000, 64
    if number <= 256 << 10:
        return 500, 64
    return 32, 16


def groups(sizes):
    """Lists of sizes that one start of nccl-bench can go through: of one plan, and a factor apart."""
    parts = []
    for number in sorted(sizes):
        part = parts[-1] if parts else []
        fits = part and plan(part[0]) == plan(number) and number % part[-1] == 0 and number > part[-1]
        if fits and (len(part) == 1 or part[1] * part[-1] == part[0] * number):
            part.append(number)
        else:
            parts.append([number])
    return parts


class Programs:
    def __init__(self, options):
        self.options = options
        self.environment = dict(os.environ)
        if options.library:
            library = Path(options.library).resolve()
            self.environment["FABRIC_LIBRARY"] = str(library)
            others = self.environment.get("LD_LIBRARY_PATH")
            self.environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [str(library.parent), others]))
        self.numbers = itertools.count()
        self.library = None

    def start(self, processor, command):
        command = ["taskset", "-c", str(processor), *map(str, command)]
        return subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)

    def pair(self, one, other, ready):
        """What both print: `one` is started first, `other` when `ready`."""
        processes = [self.start(self.options.processors[0], one)]
        try:
            end = time.monotonic() + PATIENCE
            while not ready() and processes[0].poll() is None and time.monotonic() < end:
                time.sleep(0.005)
            processes.append(self.start(self.options.processors[1], other))
            outputs = [process.communicate(timeout=PATIENCE) for process in reversed(processes)]
        except subprocess.TimeoutExpired:
            outputs = None
        finally:
            for process in processes:
                process.kill()
                process.wait()
        codes = [process.returncode for process in processes]
        if outputs is None or any(codes):
            texts = [" ".join(map(str, one)), " ".join(map(str, other)), f"exit codes {codes}"]
            texts += [text.strip() for output in outputs or [] for text in output if text.strip()]
            raise RuntimeError("\n  ".join(texts))
        return outputs[1][0], outputs[0][0]

    def ours(self, test, provider, sizes):
        """Microseconds of a transfer by size, and libfabric's name of the provider."""
        transfers, window = plan(sizes[0])
        factor = sizes[1] // sizes[0] if len(sizes) > 1 else 2
        port = self.port()
        command = [self.options.nccl_bench, "fabric", *TESTS[test][0], "-p", provider, "-b", sizes[0], "-e", sizes[-1],
                   "-f", factor, "-n", transfers, "-w", 1, "--rounds", 1, "-c", 0]
        if "pingpong" not in test:
            command += ["--window", window]
        address = f"127.0.0.1:{port}"
        # The rank that connects tries until the other one listens.
        with tempfile.TemporaryDirectory() as folder:
            results = Path(folder) / "run.json"
            self.pair(command + ["--listen", address, "--output", results], command + ["--connect", address], lambda: True)
            run = json.loads(results.read_text())
        found = run["provenance"]
        self.library = f"libfabric {found['library_version']} from {found['library_path']}"
        return {row["bytes"]: row["time_us"] for row in run["measurements"]}, found["transport"]

    def theirs(self, test, provider, number):
        transfers, window = plan(number)
        _, program, arguments = TESTS[test]
        # What was injected before the clock starts may still be in memory then: a window of that is little.
        before = window if test == "rma write" else transfers
        command = [Path(self.options.fabtests) / program, "-p", provider, "-m", "-S", number, "-I", transfers, "-w",
                   before, "-W", 1 if "pingpong" in test else window, *arguments]
        if provider == "shm":
            name = f"fabtests-{os.getpid()}-{next(self.numbers)}"
            one, other = ["-s", name], ["-s", name + "-client", name]
            folder = Path("/dev/shm")
            ready = lambda: any(file.name.startswith(name) for file in folder.iterdir())
        else:
            port = self.port()
            one, other = ["-s", "127.0.0.1", "-B", port], ["-P", port, "127.0.0.1"]
            ready = lambda: listens(port)
        _, text = self.pair(command + one, command + other, ready)
        for line in text.splitlines():
            if "usec/xfer" in line:
                return float(line.split("usec/xfer:")[1].split(",")[0].strip(" }"))
        raise RuntimeError(f"no time in what {program} printed: {text}")

    def port(self):
        return 20000 + (os.getpid() * 97 + next(self.numbers)) % 10000


def listens(port):
    """Whether somebody does, without being its first guest."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    fields = (line.split() for line in lines)
    return any(field[3] == "0A" and int(field[1].split(":")[1], 16) == port for field in fields)


def processor_name():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def mean(ratios):
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def report(options, results, library):
    print(f"Best of {options.rounds} rounds, microseconds of a transfer; {library}; {processor_name()}, processors "
          f"{options.processors[0]} and {options.processors[1]}.\n")
    best = {key: {side: min(times) for side, times in rounds.items()} for key, rounds in results.items()}
    ratios = {key: times["nccl-bench"] / times["fabtests"] for key, times in best.items()}
    print("| test | provider | geometric mean of the ratios | largest | at |\n|---|---|---:|---:|---:|")
    for test, provider in dict.fromkeys(key[:2] for key in ratios):
        those = {key[2]: ratio for key, ratio in ratios.items() if key[:2] == (test, provider)}
        worst = max(those, key=those.get)
        print(f"| {test} | {provider} | {mean(those.values()):.3f} | {those[worst]:.3f} | {label(worst)} |")
    print("\n| test | provider | size | fabtests | nccl-bench | ratio |\n|---|---|---:|---:|---:|---:|")
    for (test, provider, number), times in best.items():
        ratio = ratios[test, provider, number]
        print(f"| {test} | {provider} | {label(number)} | {times['fabtests']:.3f} | {times['nccl-bench']:.3f} | {ratio:.3f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fabtests", required=True, metavar="FOLDER", help="where fabtests' programs are")
    parser.add_argument("--nccl-bench", required=True, metavar="PROGRAM", help="an optimised nccl-bench")
    parser.add_argument("--library", metavar="FILE", help="the libfabric.so.1 of both sides [default: the system's]")
    parser.add_argument("--rounds", type=int, default=7, metavar="COUNT")
    parser.add_argument("--processors", default="0,1", metavar="A,B", help="where the two ranks run")
    parser.add_argument("--providers", default="tcp,shm", metavar="LIST")
    parser.add_argument("--tests", default=",".join(TESTS), metavar="LIST")
    parser.add_argument("--sizes", default="8,64,512,4K,32K,256K,2M,16M", metavar="LIST")
    parser.add_argument("--json", metavar="FILE", help="all rounds")
    options = parser.parse_args()
    try:
        options.processors = [int(number) for number in options.processors.split(",")]
        sizes = sorted({size(text) for text in options.sizes.split(",")})
    except (ValueError, KeyError) as error:
        parser.error(f"--processors or --sizes: {error}")
    tests, providers = options.tests.split(","), options.providers.split(",")
    unknown = [test for test in tests if test not in TESTS]
    if unknown or len(options.processors) != 2 or options.rounds < 1 or sizes[0] < 1:
        parser.error(f"tests are {', '.join(TESTS)}; two processors, a round or more and sizes from 1 on are needed")

    programs = Programs(options)
    results = {(test, provider, number): {"nccl-bench": [], "fabtests": []}
               for test in tests for provider in providers for number in sizes}
    begin = time.monotonic()
    try:
        for done in range(options.rounds):
            for test, provider in itertools.product(tests, providers):
                for part in groups(sizes):
                    times, name = programs.ours(test, provider, part)
                    for number in part:
                        results[test, provider, number]["nccl-bench"].append(times[number])
                        results[test, provider, number]["fabtests"].append(programs.theirs(test, name, number))
            print(f"round {done + 1} of {options.rounds}: {time.monotonic() - begin:.0f} s", file=sys.stderr)
    except (OSError, RuntimeError) as error:
        sys.exit(f"error: {error}")
    report(options, results, programs.library)
    if options.json:
        rounds = [{"test": test, "provider": provider, "bytes": number, "transfers": plan(number)[0],
                   "window": None if "pingpong" in test else plan(number)[1], "us": times}
                  for (test, provider, number), times in results.items()]
        machine = {"processor": processor_name(), "kernel": platform.release(), "load": os.getloadavg(),
                   "processors": options.processors}
        document = {"command": sys.argv, "library": programs.library, "machine": machine, "rounds": rounds}
        Path(options.json).write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
