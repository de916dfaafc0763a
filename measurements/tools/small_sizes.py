#!/usr/bin/env python3
"""Compares nccl-bench with nccl-tests where the host bounds the time: at size 0, where NCCL returns at once, and from 8 B to
8 KiB. Prints a table in Markdown.

    measurements/tools/small_sizes.py RESULTS --nccl-bench PROGRAM --nccl-tests FOLDER > table.md

Both programs are started in turn with the same arguments, a process per GPU under mpirun (--threads: one process with a
thread per GPU), and each is the first in half of the starts. A size is that of nccl-tests: the bytes of the larger buffer.
RESULTS gets the output of each start, and is read again with --only-table.

    --gpus N         number of GPUs (default: all)
    --starts N       starts of each program (default: 8)
    --collectives L  separated by commas (default: all but alltoallv and hypercube)
    --cores N        cores that each process is bound to; 0: not bound (default: 4)
    --iterations N   operations of a timed loop (default: 20)

The table has the medians of the starts, ours and theirs, in microseconds, and their ratio: below 1, nccl-bench is faster.
Needs Python 3.8, Open MPI, and nccl-tests built with MPI=1 (not for --threads).
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path

PROGRAMS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "alltoall": "alltoall",
    "gather": "gather",
    "scatter": "scatter",
    "sendrecv": "sendrecv",
}
# 2 bytes are no float, so that every collective has size 0 (nccl-tests does not end with -b 0).
SMALLEST, LARGEST = 2, 8192
PLACEMENTS = ["out_of_place", "in_place"]
OURS, THEIRS = "nccl-bench", "nccl-tests"


def arguments():
    parser = argparse.ArgumentParser(usage=__doc__, add_help=False)
    parser.add_argument("results", type=Path)
    parser.add_argument("--nccl-bench", type=Path)
    parser.add_argument("--nccl-tests", type=Path)
    parser.add_argument("--gpus", type=int)
    parser.add_argument("--starts", type=int, default=8)
    parser.add_argument("--collectives", default=",".join(PROGRAMS))
    parser.add_argument("--cores", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--threads", action="store_true")
    parser.add_argument("--only-table", action="store_true")
    options = parser.parse_args()
    options.collectives = options.collectives.split(",")
    if not options.only_table and not (options.nccl_bench and options.nccl_tests):
        parser.error("--nccl-bench and --nccl-tests are needed")
    return options


def gpus():
    listed = subprocess.run(["nvidia-smi", "--list-gpus"], check=True, capture_output=True, text=True).stdout
    return len(listed.splitlines())


def launcher(options):
    """The command that starts a process per GPU, with this process's settings of NCCL."""
    if options.threads:
        return []
    binding = ["--map-by", f"slot:PE={options.cores}", "--bind-to", "core"] if options.cores else ["--bind-to", "none"]
    names = [name for name in os.environ if name.startswith("NCCL") or name == "LD_LIBRARY_PATH"]
    passed = [word for name in names for word in ("-x", name)]
    return ["mpirun", "-np", str(options.gpus), *binding, *passed]


def start(options, program, collective, number):
    """Starts one program. Its output is kept when it fails."""
    file = output(options, program, collective, number)
    binary = (
        [options.nccl_bench, collective]
        if program == OURS
        else [options.nccl_tests / f"{PROGRAMS[collective]}_perf"]
    )
    sizes = ["-b", str(SMALLEST), "-e", str(LARGEST), "-f", "2", "-w", "5", "-n", str(options.iterations)]
    threads = ["-t" if program == THEIRS else "-g", str(options.gpus)] if options.threads else ["-g", "1"]
    file.unlink(missing_ok=True)
    with open(file.with_suffix(".txt"), "w") as text:
        command = [*launcher(options), *map(str, binary), *sizes, *threads, "-J", str(file)]
        done = subprocess.run(command, stdout=text, stderr=subprocess.STDOUT)
    if done.returncode != 0 or not file.exists():
        sys.exit(f"{' '.join(command)} failed ({done.returncode}): see {file.with_suffix('.txt')}")


def output(options, program, collective, number):
    return options.results / f"{collective}-{program}-{number}.json"


def measure(options):
    options.results.mkdir(parents=True, exist_ok=True)
    options.gpus = options.gpus or gpus()
    # As root, and with more processes than slots.
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    for number in range(options.starts):
        order = [OURS, THEIRS] if number % 2 == 0 else [THEIRS, OURS]
        for collective in options.collectives:
            for program in order:
                start(options, program, collective, number)
        print(f"{number + 1} of {options.starts} starts", file=sys.stderr)


def times(file):
    """Microseconds of an operation by size and placement. Several requested sizes can become one, as 0: their median."""
    with open(file) as text:
        rows = json.load(text)["results"]
    found = {}
    for row in rows:
        for placement in PLACEMENTS:
            if row["size"] == 0 or 8 <= row["size"] <= LARGEST:
                found.setdefault((row["size"], placement), []).append(float(row[placement]["time"]))
    return {key: statistics.median(values) for key, values in found.items()}


def medians(options, program, collective):
    """Medians of the starts."""
    all_starts = [times(output(options, program, collective, number)) for number in range(options.starts)]
    return {key: statistics.median(start[key] for start in all_starts) for key in all_starts[0]}


def geometric_mean(ratios):
    return math.exp(statistics.mean(map(math.log, ratios)))


def summary(title, ratios):
    above = sum(ratio > 1 for ratio in ratios)
    print(f"- {title}: geometric mean {geometric_mean(ratios):.3f}, {above} of {len(ratios)} above 1, "
          f"largest {max(ratios):.3f}")


def table(options):
    print("| collective | size | out of place: ours | theirs | ratio | in place: ours | theirs | ratio |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    empty, small, by_collective = [], [], {}
    for collective in options.collectives:
        ours, theirs = (medians(options, program, collective) for program in (OURS, THEIRS))
        for size in sorted({size for size, _ in ours}):
            cells = []
            for placement in PLACEMENTS:
                one, other = ours[size, placement], theirs[size, placement]
                ratio = one / other
                cells += [f"{one:.3f}", f"{other:.3f}", f"**{ratio:.3f}**" if ratio > 1 else f"{ratio:.3f}"]
                (small if size else empty).append(ratio)
                by_collective.setdefault(collective, []).append(ratio)
            print(f"| {collective} | {size} | {' | '.join(cells)} |")
    print()
    summary("size 0", empty)
    summary(f"8 B to {LARGEST >> 10} KiB", small)
    for collective, ratios in by_collective.items():
        summary(f"{collective}, all sizes", ratios)


def main():
    options = arguments()
    if not options.only_table:
        measure(options)
    table(options)


if __name__ == "__main__":
    main()
