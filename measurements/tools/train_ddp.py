#!/usr/bin/env python3
"""The loops of examples/train_gpu.rs with PyTorch's DistributedDataParallel: the same model, batch and numbers of steps.

    torchrun --nproc-per-node 2 measurements/tools/train_ddp.py --width 4096 --layers 8 --batch 4096
"""

import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel


def main():
    parser = argparse.ArgumentParser()
    for name, default in (("width", 2048), ("layers", 8), ("batch", 2048), ("steps", 10), ("rounds", 7)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--bf16", action="store_true")
    arguments = parser.parse_args()
    width, layers, batch = arguments.width, arguments.layers, arguments.batch

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.backends.cuda.matmul.allow_tf32 = True
    dist.init_process_group("nccl", device_id=device)
    rank = dist.get_rank()

    torch.manual_seed(0)
    modules = []
    for layer in range(layers):
        modules += [torch.nn.Linear(width, width, bias=False)] + ([torch.nn.ReLU()] if layer < layers - 1 else [])
    model = torch.nn.Sequential(*modules).to(device)
    parallel = DistributedDataParallel(model, device_ids=[device.index], gradient_as_bucket_view=True)
    if arguments.bf16:
        parallel.register_comm_hook(None, default_hooks.bf16_compress_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=True)
    torch.manual_seed(100 + rank)
    inputs, target = torch.rand(batch, width, device=device) * 2 - 1, torch.rand(batch, width, device=device) * 0.1

    def step(mode):
        optimizer.zero_grad(set_to_none=mode != "overlap")
        if mode == "overlap":
            torch.nn.functional.mse_loss(parallel(inputs), target).backward()
        else:
            torch.nn.functional.mse_loss(model(inputs), target).backward()
        if mode == "after":
            gradients = [parameter.grad for parameter in model.parameters()]
            with dist._coalescing_manager(device=device):
                for gradient in gradients:
                    dist.all_reduce(gradient, op=dist.ReduceOp.AVG)
        optimizer.step()

    def measure(mode):
        torch.cuda.synchronize()
        dist.barrier()
        start = time.perf_counter()
        for _ in range(arguments.steps):
            step(mode)
        torch.cuda.synchronize()
        slowest = torch.tensor([(time.perf_counter() - start) * 1e3 / arguments.steps], device=device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        return slowest.item()

    modes = ("none", "after", "overlap")
    for mode in modes:
        for _ in range(3):
            step(mode)
    times = {mode: [] for mode in modes}
    for _ in range(arguments.rounds):
        for mode in modes:
            times[mode].append(measure(mode))
    if rank == 0:
        print(f"PyTorch {torch.__version__}, NCCL {torch.cuda.nccl.version()}, {dist.get_world_size()} ranks")
        none = statistics.median(times["none"])
        for mode in modes:
            median = statistics.median(times[mode])
            print(f"{mode:<8} {median:8.3f} ms per step, {(median - none) / median * 100:5.1f} % of it exposed communication")
    dist.destroy_process_group()


main()
