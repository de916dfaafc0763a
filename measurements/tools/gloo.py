#!/usr/bin/env python3
"""Measures Gloo's collectives through PyTorch on this machine, with the sizes and batches of host_collectives.

    gloo.py --ranks 4 --output gloo.json

Gloo supports TCP only. Each rank is a process, not bound to a core, since Gloo starts threads of its own.
"""

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

COLLECTIVES = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"]


def element(rank, indices):
    return ((indices * 7 + rank * 3) % 61 - 30).to(torch.float32)


def buffers(collective, size, rank, ranks):
    """What is sent, where results go, and what they must be."""
    count = max(size // 4, 1)
    block = -(-count // ranks)
    index = torch.arange(max(count, block * ranks) * ranks)
    everybody = range(ranks)
    if collective == "all_reduce":
        return element(rank, index[:count]), None, sum(element(r, index[:count]) for r in everybody)
    if collective == "broadcast":
        return element(rank, index[:count]), None, element(0, index[:count])
    if collective == "all_gather":
        expected = torch.cat([element(r, index[:count]) for r in everybody])
        return element(rank, index[:count]), torch.empty(count * ranks), expected
    send = element(rank, index[: block * ranks])
    mine = slice(rank * block, (rank + 1) * block)
    if collective == "reduce_scatter":
        return send, torch.empty(block), sum(element(r, index[: block * ranks])[mine] for r in everybody)
    expected = torch.cat([element(r, index[: block * ranks])[mine] for r in everybody])
    return send, torch.empty(block * ranks), expected


def operate(collective, send, receive):
    if collective == "all_reduce":
        dist.all_reduce(send)
    elif collective == "broadcast":
        dist.broadcast(send, 0)
    elif collective == "all_gather":
        dist.all_gather_into_tensor(receive, send)
    elif collective == "reduce_scatter":
        dist.reduce_scatter_tensor(receive, send)
    else:
        dist.all_to_all_single(receive, send)


def slowest(seconds):
    tensor = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return tensor.item()


def batch(collective, send, receive, operations):
    # The vector that all_reduce sums grows with each operation: time does not depend on values, but on infinities it may.
    if collective == "all_reduce":
        send.zero_()
    dist.barrier()
    start = time.perf_counter()
    for _ in range(operations):
        operate(collective, send, receive)
    return slowest(time.perf_counter() - start) / operations


def measure(collective, size, rank, ranks, arguments):
    send, receive, expected = buffers(collective, size, rank, ranks)
    operate(collective, send, receive)
    got = send if receive is None else receive
    wrong = slowest(float((got != expected).sum()))
    if wrong:
        raise SystemExit(f"{collective} of {size} bytes: {wrong} wrong")
    once = batch(collective, send, receive, 3)
    operations = int(min(max(arguments.batch / 1e3 / once, 1), 10_000))
    operations = int(slowest(operations))
    return [batch(collective, send, receive, operations) * 1e6 for _ in range(arguments.rounds)]


def sizes(collective, ranks, arguments):
    largest = arguments.max // ranks if collective == "all_gather" else arguments.max
    size = arguments.min
    while size < largest:
        yield size
        size *= arguments.factor
    yield largest


def run(rank, arguments):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=arguments.ranks)
    results = []
    for collective in arguments.only:
        for size in sizes(collective, arguments.ranks, arguments):
            try:
                times = measure(collective, size, rank, arguments.ranks, arguments)
            except (RuntimeError, NotImplementedError) as error:
                if rank == 0:
                    print(f"{collective}: {error}", flush=True)
                break
            if rank == 0:
                print(f"{collective:<14}{size:>12}{min(times):>12.2f}{sorted(times)[len(times) // 2]:>12.2f}", flush=True)
                results.append({"collective": collective, "bytes": size, "gloo_us": times})
    if rank == 0 and arguments.output:
        with open(arguments.output, "w") as file:
            json.dump({"ranks": arguments.ranks, "torch": torch.__version__, "results": results}, file, indent=1)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--min", type=int, default=8)
    parser.add_argument("--max", type=int, default=64 << 20)
    parser.add_argument("--factor", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batch", type=float, default=4.0, help="about how long a batch takes, in milliseconds")
    parser.add_argument("--only", type=lambda text: text.split(","), default=COLLECTIVES)
    parser.add_argument("--output")
    arguments = parser.parse_args()
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29531")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    processes.spawn(run, (arguments,), nprocs=arguments.ranks)


if __name__ == "__main__":
    main()
