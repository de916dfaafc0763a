#!/usr/bin/env python3
"""Compares hierarchical with flat algorithms on the simulated hosts of shaped_network.

    measurements/tools/shaped_collectives.py --nccl-bench PROGRAM --shaped-network PROGRAM --json FOLDER > table.md

Every host runs --ranks processes. Each round measures each collective with the algorithm that nccl-bench selects, with each
flat algorithm and with each hierarchical one, one start of nccl-bench each. Every size is verified. The table has medians
over the rounds in microseconds. With --until-seconds no start begins after that time; measurements whose files are already
in FOLDER are not repeated.

Needs root, as shaped_network does, two processors for each host and one for each rank (ranks are bound when there are
enough), and Python 3.8.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

LONG, SHORT = ["--segment", "1M", "--in-flight", "3"], ["--segment", "256K", "--in-flight", "3"]
FLAT = {
    "all_reduce": {"recursive-doubling": [], "rabenseifner": [], "pairwise": LONG, "ring": LONG},
    "all_gather": {"recursive-doubling": [], "bruck": [], "direct": SHORT, "ring": SHORT},
    "reduce_scatter": {"recursive-halving": [], "pairwise": SHORT, "ring": SHORT},
    "broadcast": {"binomial": LONG, "ring": LONG},
    "reduce": {"binomial": LONG, "pairwise": LONG},
    "all_to_all": {"bruck": [], "direct": SHORT, "pairwise": SHORT},
    "gather": {"binomial": [], "direct": LONG},
    "scatter": {"binomial": [], "direct": LONG},
}
BETWEEN = {
    "all_reduce": {"direct": [], "recursive-doubling": [], "pairwise": LONG, "rabenseifner": LONG, "ring": LONG},
    "all_gather": {"direct": SHORT, "bruck": [], "ring": SHORT},
    "reduce_scatter": {"pairwise": SHORT, "recursive-halving": [], "ring": SHORT},
    "broadcast": {"binomial": LONG, "ring": LONG},
    "reduce": {"binomial": LONG, "pairwise": LONG},
    "all_to_all": {"direct": SHORT, "bruck": SHORT},
    "gather": {"direct": SHORT, "binomial": SHORT},
    "scatter": {"direct": SHORT, "binomial": SHORT},
}
TABLE = "table"
# What every host runs: its ranks, each bound to a processor of its own from FIRST on, if there is one.
HOST = """
export NCCL_BENCH_SIZE=$((SHAPED_HOSTS * RANKS)) NCCL_BENCH_ADDR=$SHAPED_FIRST:29500
local=0
while [ $local -lt $RANKS ]; do
    rank=$((SHAPED_HOST * RANKS + local))
    if [ -n "$FIRST" ]; then bind="taskset -c $((FIRST + rank))"; else bind=; fi
    NCCL_BENCH_RANK=$rank $bind "$@" &
    processes="$processes $!" local=$((local + 1))
done
code=0
for process in $processes; do wait $process || code=$?; done
exit $code
"""


def plans(collective):
    """Names of plans, and the arguments that ask for them."""
    yield TABLE, []
    for algorithm, arguments in FLAT[collective].items():
        yield algorithm, ["--algo", algorithm, *arguments]
    for algorithm, arguments in BETWEEN[collective].items():
        yield f"hierarchical, {algorithm}", ["--algo", "hierarchical", "--between", algorithm, *arguments]


def measure(options, collective, arguments, output):
    processors, ranks = os.cpu_count(), options.hosts * options.ranks
    environment = {**os.environ, "RANKS": str(options.ranks), "FIRST": ""}
    command = [options.shaped_network, "--hosts", options.hosts, "--gbits", options.gbits, "--delay", options.delay]
    if processors >= 2 * options.hosts + ranks:
        environment["FIRST"] = str(2 * options.hosts)
        command = ["taskset", "-c", f"0-{2 * options.hosts - 1}", *command]
    if options.sleep:
        command.append("--sleep")
    command += ["--", "sh", "-c", HOST, "sh", options.nccl_bench, collective, "--backend", "fabric", "-b", options.min,
                "-e", options.max, "-f", 4, "-n", 20, "-w", 3, "--budget", 0.4, "-T", 60, *arguments, "--output", output]
    done = subprocess.run([str(word) for word in command], env=environment, stdin=subprocess.DEVNULL,
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        # Wrong data is an exit code, too.
        raise RuntimeError(f"{collective} {' '.join(arguments)}: exit code {done.returncode}\n{done.stderr.strip()}")


def times(output):
    """Microseconds by size. Sizes that are too small for an element per rank have no bytes."""
    rows = json.loads(output.read_text())["measurements"]
    return {row["bytes"]: row["time_us"] for row in rows if row["placement"] == "out_of_place" and row["bytes"]}


def label(number):
    for unit, factor in (("M", 1 << 20), ("K", 1 << 10)):
        if number % factor == 0:
            return f"{number // factor}{unit}"
    return str(number)


def cell(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def report(options, results):
    print(f"{options.hosts} hosts with {options.ranks} ranks each, {options.gbits:g} Gbit/s, {options.delay:g} us; medians of up to "
          f"{options.rounds} rounds, microseconds.")
    for collective in options.only:
        medians = {plan: {number: statistics.median(rounds) for number, rounds in sizes.items()}
                   for (of, plan), sizes in results.items() if of == collective}
        if len(medians) < 2:
            continue
        sizes = sorted(set.intersection(*(set(those) for those in medians.values())))
        print(f"\n| {collective} | " + " | ".join(map(label, sizes)) + " |\n|---|" + "---:|" * len(sizes))
        for plan, those in medians.items():
            print(f"| {plan} | " + " | ".join(cell(those[number]) for number in sizes) + " |")
        best = lambda plans: {number: min(medians[plan][number] for plan in plans) for number in sizes}
        flat = best([plan for plan in medians if plan in FLAT[collective]])
        two_levels = best([plan for plan in medians if plan.startswith("hierarchical")])
        for name, those in (("best hierarchical / best flat", two_levels), ("table / best flat", medians[TABLE])):
            print(f"| *{name}* | " + " | ".join(f"{those[number] / flat[number]:.2f}" for number in sizes) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nccl-bench", required=True, metavar="PROGRAM", help="an optimised nccl-bench")
    parser.add_argument("--shaped-network", required=True, metavar="PROGRAM", help="the example shaped_network")
    parser.add_argument("--json", required=True, metavar="FOLDER", help="where nccl-bench's files go, one for each start")
    parser.add_argument("--hosts", type=int, default=4, metavar="COUNT")
    parser.add_argument("--ranks", type=int, default=2, metavar="COUNT", help="on each host")
    parser.add_argument("--gbits", type=float, default=25.0, metavar="RATE")
    parser.add_argument("--delay", type=float, default=50.0, metavar="MICROSECONDS")
    parser.add_argument("--sleep", action="store_true", help="shaped_network's: for few processors")
    parser.add_argument("--rounds", type=int, default=3, metavar="COUNT")
    parser.add_argument("--min", default="8", metavar="SIZE")
    parser.add_argument("--max", default="32M", metavar="SIZE")
    parser.add_argument("--only", default=",".join(FLAT), metavar="LIST", help="collectives")
    parser.add_argument("--until-seconds", type=float, default=float("inf"), metavar="SECONDS")
    options = parser.parse_args()
    options.only = options.only.split(",")
    if unknown := [name for name in options.only if name not in FLAT]:
        parser.error(f"--only: {', '.join(unknown)}: collectives are {', '.join(FLAT)}")
    folder = Path(options.json)
    folder.mkdir(parents=True, exist_ok=True)

    results, begin = {}, time.monotonic()
    starts = [(number, collective, *plan) for number in range(options.rounds) for collective in options.only
              for plan in plans(collective)]
    for done, (number, collective, plan, arguments) in enumerate(starts):
        output = folder / f"{collective}-{plan.replace(', ', '-')}-{number + 1}.json"
        seconds = time.monotonic() - begin
        try:
            if not output.exists():
                if seconds > options.until_seconds:
                    print(f"stopped after {done} of {len(starts)} starts", file=sys.stderr)
                    break
                print(f"{seconds:.0f} s: {done + 1} of {len(starts)}: {collective}, {plan}", file=sys.stderr)
                measure(options, collective, arguments, output)
            for size, time_us in times(output).items():
                results.setdefault((collective, plan), {}).setdefault(size, []).append(time_us)
        except (OSError, RuntimeError) as error:
            sys.exit(f"error: {error}")
    report(options, results)


if __name__ == "__main__":
    main()
