#!/usr/bin/env python3
"""Counts how often nccl-bench pairs names the right slow part, on simulated hosts with shaped links.

    measurements/tools/slow_parts.py --nccl-bench PROGRAM --json FOLDER > table.md

A host is a network and a UTS namespace with a link to a bridge, whose rate tbf limits. Each host runs --ranks ranks in host
memory over TCP. A trial slows a part, runs nccl-bench pairs once, and compares the named parts with the slowed one:

    none        nothing is slowed: nobody may be named
    host5       a host's link, by 5 %
    host3       a host's link, by 3 %
    two-hosts   two hosts' links, by 5 %
    edge        the connection of two hosts, by 10 %: a link of its own
    busy-rank   a rank that shares a processor with busy loops (--per rank): it must be named if it is slow

The limit of nccl-bench pairs is 1.5 %, since a link 3 % slower gives about 2 %: unshaped time is part of each transfer. The
kinds of trials take turns. --rate must be so low that the processors do not limit the transfers. Needs root, iproute2
and Python 3.8. The namespaces are removed at the end, also after a signal.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

KINDS = ["none", "host5", "host3", "two-hosts", "edge", "busy-rank"]
# Exit codes of nccl-bench pairs with a report.
REPORTED = {0, 1, 3}


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, words))}: {done.stderr.strip()}")


class Network:
    """Namespaces connected by a bridge in a namespace of its own, so that nothing outside of them changes."""

    def __init__(self, hosts, rate):
        self.prefix, self.rate = f"pairs{os.getpid()}-", rate
        self.names = [f"{self.prefix}{host}" for host in range(hosts)]
        self.bridge = f"{self.prefix}bridge"

    def __enter__(self):
        try:
            run("ip", "netns", "add", self.bridge)
            for bridge in ("br0", "br1"):
                run("ip", "-n", self.bridge, "link", "add", "name", bridge, "type", "bridge")
                run("ip", "-n", self.bridge, "link", "set", bridge, "up")
            for host, name in enumerate(self.names):
                run("ip", "netns", "add", name)
                run("ip", "-n", name, "link", "add", "name", "e0", "type", "veth", "peer", "name", f"p{host}", "netns", self.bridge)
                run("ip", "-n", self.bridge, "link", "set", f"p{host}", "master", "br0", "up")
                run("ip", "-n", name, "address", "add", f"{self.address(host)}/24", "dev", "e0")
                run("ip", "-n", name, "link", "set", "e0", "up")
                run("ip", "-n", name, "link", "set", "lo", "up")
                # The processes meet over a network of their own, so that their messages do not load the links.
                run("ip", "-n", name, "link", "add", "name", "m0", "type", "veth", "peer", "name", f"q{host}", "netns", self.bridge)
                run("ip", "-n", self.bridge, "link", "set", f"q{host}", "master", "br1", "up")
                run("ip", "-n", name, "address", "add", f"{self.meeting(host)}/24", "dev", "m0")
                run("ip", "-n", name, "link", "set", "m0", "up")
                self.shape(host, 0)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in [*self.names, self.bridge]:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL, check=False)

    @staticmethod
    def address(host):
        return f"10.79.0.{host + 1}"

    @staticmethod
    def meeting(host):
        return f"10.80.0.{host + 1}"

    def shape(self, host, slow, device="e0"):
        """Limits what a host sends to the rate, less a share. The burst covers late timers of a busy machine."""
        bits = int(self.rate * 1e6 * (1 - slow))
        run("tc", "-n", self.names[host], "qdisc", "replace", "dev", device, "root", "tbf", "rate", f"{bits}bit", "burst",
            "16kb", "latency", "200ms")

    def add_edge(self, one, other, slow):
        """Gives the connection of two hosts a link of its own. It replaces their way over the bridge."""
        for end in (0, 1):
            host = (one, other)[end]
            if end == 0:
                run("ip", "-n", self.names[one], "link", "add", "name", "e1", "type", "veth", "peer", "name", "e1", "netns",
                    self.names[other])
        for host, peer in ((one, other), (other, one)):
            run("ip", "-n", self.names[host], "link", "set", "e1", "up")
            self.shape(host, slow, "e1")
            run("ip", "-n", self.names[host], "route", "add", f"{self.address(peer)}/32", "dev", "e1", "src",
                self.address(host))

    def remove_edge(self, one):
        run("ip", "-n", self.names[one], "link", "del", "e1")


def start_ranks(options, network, per, output, bound):
    """Starts nccl-bench pairs on all hosts. Returns its exit code and what it printed."""
    ranks, processes = options.hosts * options.ranks, []
    for rank in range(ranks):
        host = rank // options.ranks
        environment = {
            **os.environ, "NCCL_BENCH_RANK": str(rank), "NCCL_BENCH_SIZE": str(ranks), "HOST_NAME": f"node{host}",
            "NCCL_BENCH_ADDR": f"{network.meeting(0)}:29500", "FI_TCP_IFACE": "e0",
            # The name of the provider in libfabric 1.17.
            "FI_NET_IFACE": "e0", "NCCL_HOSTID": f"node{host}",
        }
        command = ["ip", "netns", "exec", network.names[host], "unshare", "--uts", "sh", "-c",
                   'hostname "$HOST_NAME"; exec "$@"', "sh", *(["taskset", "-c", bound[rank]] if rank in bound else []),
                   options.nccl_bench, "pairs", "--backend", "fabric", "--per", per, "-b",
                   options.bytes, "--seconds", str(options.seconds), "--repeats", str(options.repeats), "--rounds", str(options.rounds), "--limit", options.limit,
                   "-T", "60"]
        if rank == 0:
            command += ["--output", str(output), "--force"]
        where = None if rank == 0 else subprocess.DEVNULL
        processes.append(subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, text=True,
                                          stdout=subprocess.PIPE if where is None else where,
                                          stderr=subprocess.PIPE if where is None else where,
                                          preexec_fn=lambda: os.nice(options.nice)))
    try:
        out, error = processes[0].communicate(timeout=options.longest)
        for process in processes[1:]:
            process.wait(timeout=options.longest)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    return processes[0].returncode, out, error


def named_parts(output):
    """The parts that were named, as hosts, ranks and edges, and those that were seen once."""
    found = json.loads(output.read_text())
    labels = [unit["label"] for unit in found["units"]]

    def name(part):
        return labels[part["node"]] if "node" in part else "-".join(labels[end] for end in part["edge"])

    once = [name(suspect["part"]) for suspect in found["conclusion"]["seen_once"]]
    return found, sorted(name(suspect["part"]) for suspect in found["conclusion"]["slow"]), once


def trial(options, network, kind, number):
    """Makes one trial. Returns its result."""
    chance = random.Random(f"{options.seed} {kind} {number}")
    hosts = chance.sample(range(options.hosts), 2)
    expected, per, bound, loops = [], "host", {}, []
    output = Path(options.json) / f"{kind}-{number}.json"
    try:
        if kind in ("host5", "host3", "two-hosts"):
            slowed = hosts if kind == "two-hosts" else hosts[:1]
            expected = sorted(f"node{host}" for host in slowed)
            for host in slowed:
                network.shape(host, 0.03 if kind == "host3" else 0.05)
        elif kind == "edge":
            network.add_edge(*sorted(hosts), 0.1)
            expected = ["-".join(f"node{host}" for host in sorted(hosts))]
        elif kind == "busy-rank":
            victim, last = chance.randrange(options.hosts * options.ranks), os.cpu_count() - 1
            expected, per = [str(victim)], "rank"
            others = f"0-{last - 1}" if last > 1 else "0"
            bound = {rank: str(last) if rank == victim else others for rank in range(options.hosts * options.ranks)}
            loops = [subprocess.Popen(["taskset", "-c", str(last), "sh", "-c", "while :; do :; done"],
                                      preexec_fn=lambda: os.nice(options.nice))
                     for _ in range(options.loops)]
        output.unlink(missing_ok=True)
        begun = time.monotonic()
        code, out, error = start_ranks(options, network, per, output, bound)
        seconds = time.monotonic() - begun
        if code not in REPORTED or not output.exists():
            raise RuntimeError(f"{kind} {number}: exit code {code}\n{out}{error}")
        found, named, once = named_parts(output)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
        if kind == "edge":
            network.remove_edge(min(hosts))
        for host in hosts:
            network.shape(host, 0)
    result = {"kind": kind, "number": number, "expected": expected, "named": named, "once": once, "code": code,
              "seconds": seconds, "noise": found["conclusion"]["noise"], "verdict": found["conclusion"]["verdict"]}
    print(f"{kind} {number}: slowed {expected}, named {named}, once {once}, {found['conclusion']['verdict']}, noise "
          f"{100 * (result['noise'] or 0):.2f} %, {seconds:.1f} s", file=sys.stderr)
    return result


def report(options, results):
    print(f"{options.hosts} hosts with {options.ranks} ranks each, {options.rate:g} Mbit/s, {options.bytes} bytes, "
          f"{options.rounds} rounds\n")
    print("| slowed | trials | right | innocent named | nobody named | of these: no conclusion | noise | seconds |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for kind in options.only:
        own = [result for result in results if result["kind"] == kind]
        if not own:
            continue
        right = sum(result["named"] == result["expected"] for result in own)
        innocent = sum(bool(set(result["named"]) - set(result["expected"])) for result in own)
        nobody = [result for result in own if not result["named"]]
        unsure = sum(result["verdict"] == "cannot_tell" for result in nobody)
        middle = sorted(own, key=lambda result: result["noise"] or 0)[len(own) // 2]["noise"] or 0
        seconds = sum(result["seconds"] for result in own) / len(own)
        print(f"| {kind} | {len(own)} | {right} | {innocent} | {len(nobody)} | {unsure} | {100 * middle:.2f} % | {seconds:.1f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nccl-bench", required=True, metavar="PROGRAM")
    parser.add_argument("--json", required=True, metavar="FOLDER", help="where nccl-bench's files go, one for each trial")
    parser.add_argument("--trials", type=int, default=5, metavar="COUNT", help="of each kind")
    parser.add_argument("--hosts", type=int, default=8, metavar="COUNT")
    parser.add_argument("--ranks", type=int, default=2, metavar="COUNT", help="on each host")
    parser.add_argument("--rate", type=float, default=50.0, metavar="MBIT", help="of each host's link")
    parser.add_argument("--bytes", default="128K", metavar="SIZE")
    parser.add_argument("--seconds", type=float, default=1.0, metavar="SECONDS", help="of a round")
    parser.add_argument("--repeats", type=int, default=5, metavar="COUNT", help="of a pair in a round")
    parser.add_argument("--rounds", type=int, default=7, metavar="COUNT")
    parser.add_argument("--loops", type=int, default=4, metavar="COUNT", help="busy loops beside a busy rank")
    parser.add_argument("--nice", type=int, default=0, metavar="NUMBER", help="priority of the ranks: below 0 on a busy machine")
    parser.add_argument("--limit", default="1.5%", metavar="PERCENT", help="of nccl-bench pairs")
    parser.add_argument("--longest", type=float, default=120, metavar="SECONDS", help="of a trial")
    parser.add_argument("--seed", type=int, default=1, metavar="NUMBER", help="chooses the slowed parts")
    parser.add_argument("--only", default=",".join(KINDS), metavar="LIST", help="kinds of trials")
    options = parser.parse_args()
    options.only = options.only.split(",")
    if unknown := [kind for kind in options.only if kind not in KINDS]:
        parser.error(f"--only: {', '.join(unknown)}: kinds are {', '.join(KINDS)}")
    Path(options.json).mkdir(parents=True, exist_ok=True)
    # So that the namespaces are removed.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    results = []
    try:
        with Network(options.hosts, options.rate) as network:
            for number in range(options.trials):
                results += [trial(options, network, kind, number) for kind in options.only]
    except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
        print(f"error: {error}", file=sys.stderr)
    finally:
        report(options, results)
        (Path(options.json) / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    return 0 if len(results) == options.trials * len(options.only) else 1


if __name__ == "__main__":
    sys.exit(main())
