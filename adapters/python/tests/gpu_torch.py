"""Collectives of torch's CUDA tensors against those of torch.distributed. Needs a GPU for each rank:

torchrun --nproc-per-node 2 adapters/python/tests/gpu_torch.py
"""

import gc
import os
import statistics
import time

import torch
import torch.distributed as dist

import nccl_collectives as nc

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int32, torch.int64, torch.uint8, torch.int8]
OPERATORS = {"sum": dist.ReduceOp.SUM, "avg": dist.ReduceOp.AVG, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


def refused(kind, call, *words):
    try:
        call()
    except kind as error:
        for word in words:
            assert word in str(error), f"'{word}' is not in: {error}"
        return
    raise AssertionError(f"no {kind.__name__}")


def numbers(count, kind, rank):
    """Small integers, of which all sums are exact in every type."""
    return ((torch.arange(count, device="cuda") * (rank + 3)) % 11).to(kind)


def all_reduce(group):
    for kind in FLOATS + INTEGERS:
        for name in ["sum", "max", "min"] + (["avg"] if kind in FLOATS else []):
            for count in (1, 1000, 1 << 20):
                tensor = numbers(count, kind, group.rank)
                expected, address = tensor.clone(), tensor.data_ptr()
                assert group.all_reduce(tensor, name) is None
                dist.all_reduce(expected, OPERATORS[name])
                assert tensor.data_ptr() == address, "the tensor is where it was"
                assert torch.equal(tensor, expected), f"{kind} {name} of {count}"


def other_collectives(group):
    tensor = torch.full((5, 7), float(group.rank), device="cuda", requires_grad=True)
    group.broadcast(tensor, root=1)
    assert tensor.requires_grad and torch.equal(tensor, torch.ones_like(tensor))

    part = numbers(100, torch.float32, group.rank)
    whole = torch.empty(100 * group.size, device="cuda")
    expected = torch.empty_like(whole)
    group.all_gather(part, whole)
    dist.all_gather_into_tensor(expected, part)
    assert torch.equal(whole, expected)

    whole = numbers(100 * group.size, torch.float32, group.rank)
    part, expected = torch.empty(100, device="cuda"), torch.empty(100, device="cuda")
    group.reduce_scatter(whole, part, "sum")
    dist.reduce_scatter_tensor(expected, whole)
    assert torch.equal(part, expected)

    many = [numbers(count, torch.bfloat16, group.rank) for count in (3, 1000, 70_000)]
    expected = [tensor.clone() for tensor in many]
    group.all_reduce_list(many, "avg")
    for tensor, other in zip(many, expected):
        dist.all_reduce(other, dist.ReduceOp.AVG)
        assert torch.equal(tensor, other)


def order_with_streams(group):
    """The operation waits for what is queued on the current stream, and what is queued afterwards waits for it."""
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        for async_op in (False, True):
            with torch.cuda.stream(stream):
                tensor = torch.zeros(1 << 20, device="cuda")
                torch.cuda._sleep(200_000_000)
                tensor.add_(group.rank + 1)
                work = group.all_reduce(tensor, "sum", async_op=async_op)
                if async_op:
                    work.wait()
                result = tensor * 2
            stream.synchronize()
            total = group.size * (group.size + 1) // 2
            assert torch.equal(result, torch.full_like(result, 2.0 * total))


def tensors_that_the_program_drops(group):
    for _ in range(20):
        tensor = torch.full((1 << 22,), 1.0, device="cuda")
        work = group.all_reduce(tensor, "sum", async_op=True)
        del tensor, work
        gc.collect()
        # Would take the memory of the tensor, if that was free too early.
        other = torch.full((1 << 22,), 5.0, device="cuda")
        assert torch.equal(other, torch.full_like(other, 5.0))
    torch.cuda.synchronize()


def refusals(group):
    square = torch.zeros(8, 8, device="cuda")
    refused(ValueError, lambda: group.all_reduce(square.t()[:, :3]), "not contiguous")
    refused(ValueError, lambda: group.all_reduce(torch.zeros(3)), "host memory")
    refused(TypeError, lambda: group.all_reduce(square.to(torch.complex64)), "complex64")
    other = (torch.cuda.current_device() + 1) % torch.cuda.device_count()
    if other != torch.cuda.current_device():
        refused(ValueError, lambda: group.all_reduce(torch.zeros(3, device=f"cuda:{other}")), "device")
    group.barrier()


def tensors_after_a_failure(job, group):
    """Memory of a tensor that the program drops after a failure is not written any more, though NCCL's kernel still runs then. Ends the job."""
    count = 1 << 31
    tensor = torch.full((count,), 1.0, device="cuda")
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    work = group.all_reduce(tensor, "sum", async_op=True)
    if group.rank == 0:
        job.fail("on purpose")
    refused(nc.RankFailed, lambda: work.wait(block=True), "on purpose")
    address = tensor.data_ptr()
    del tensor, work
    other = torch.full((count,), 5.0, device="cuda")
    assert other.data_ptr() == address, "torch has another place for it"
    assert (other == 5).all().item()
    dist.barrier()
    torch.cuda.synchronize()


def times(group):
    for count in (1 << 10, 1 << 20, 1 << 26):
        tensor = torch.zeros(count, device="cuda")
        calls = {"nccl_collectives": lambda: group.all_reduce(tensor), "torch": lambda: dist.all_reduce(tensor)}
        for name, call in calls.items():
            samples = []
            for _ in range(25):
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                torch.cuda.synchronize()
                dist.barrier()
                start.record()
                call()
                end.record()
                torch.cuda.synchronize()
                samples.append(start.elapsed_time(end) * 1000)
            if group.rank == 0:
                print(f"all_reduce of {4 * count} bytes, {name}: {statistics.median(samples[5:]):.1f} us")
    tensor = torch.zeros(1 << 10, device="cuda")
    calls = {"nccl_collectives": lambda: group.all_reduce(tensor), "torch": lambda: dist.all_reduce(tensor)}
    for name, call in calls.items():
        samples = []
        for _ in range(10):
            torch.cuda.synchronize()
            dist.barrier()
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(100):
                call()
            samples.append((time.perf_counter() - start) * 1e4)
        if group.rank == 0:
            print(f"the host's time of one of 100 all_reduces, {name}: {statistics.median(samples[2:]):.1f} us")


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    with nc.init() as job:
        group = job.group("gpu")
        assert (group.rank, group.size) == (dist.get_rank(), dist.get_world_size())
        for check in (
            all_reduce,
            other_collectives,
            order_with_streams,
            tensors_that_the_program_drops,
            refusals,
            times,
        ):
            check(group)
            torch.cuda.synchronize()
            if group.rank == 0:
                print(f"{check.__name__}: ok", flush=True)
        tensors_after_a_failure(job, group)
        if group.rank == 0:
            print("tensors_after_a_failure: ok", flush=True)
    dist.destroy_process_group()


main()
