#!/usr/bin/env python3
"""The loop of measurements/compare with PyTorch's DistributedDataParallel over gloo: the same network, batch and numbers of steps.

    OMP_NUM_THREADS=1 python3 -m torch.distributed.run --standalone --nproc-per-node 2 measurements/tools/train_ddp_cpu.py

What a user writes to average gradients is between "# begin" and "# end".
"""

import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def network(inputs, width, layers, outputs):
    sizes = [inputs] + [width] * (layers - 1) + [outputs]
    modules = []
    for layer in range(layers):
        modules += [torch.nn.ReLU()] if layer > 0 else []
        modules += [torch.nn.Linear(sizes[layer], sizes[layer + 1])]
    return torch.nn.Sequential(*modules)


def main():
    parser = argparse.ArgumentParser()
    defaults = {"inputs": 256, "outputs": 10, "width": 1024, "layers": 3, "batch": 64, "steps": 10, "rounds": 7}
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(int(os.environ["RANK"]))
    inputs = torch.rand(arguments.batch, arguments.inputs) * 2 - 1
    targets = torch.rand(arguments.batch, arguments.outputs) * 0.1
    model, alone = (network(arguments.inputs, arguments.width, arguments.layers, arguments.outputs) for _ in range(2))

    # begin
    dist.init_process_group("gloo")
    averaged = DistributedDataParallel(model, gradient_as_bucket_view=True)
    # end
    trained = []
    for module in (alone, averaged):
        trained.append((module, torch.optim.SGD(module.parameters(), lr=0.01)))

    def step(module, optimizer):
        # Without this, gradients of DDP's buckets would be allocated anew in each step.
        optimizer.zero_grad(set_to_none=module is alone)
        torch.nn.functional.mse_loss(module(inputs), targets).backward()
        optimizer.step()

    def largest(value):
        value = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(value, op=dist.ReduceOp.MAX)
        return value.item()

    times = [[], []]
    for round in range(arguments.rounds + 1):
        for (module, optimizer), measured in zip(trained, times):
            largest(0.0)
            start = time.perf_counter()
            for _ in range(arguments.steps):
                step(module, optimizer)
            slowest = largest(time.perf_counter() - start)
            # The first round warms up.
            if round > 0:
                measured.append(slowest * 1e3 / arguments.steps)

    parameters = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    gathered = [torch.empty_like(parameters) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, parameters)
    if not all(torch.equal(parameters, other) for other in gathered):
        raise SystemExit("pytorch_ddp: the parameters of the ranks differ at the end")
    if dist.get_rank() == 0:
        without, with_averages = (statistics.median(each) for each in times)
        share = (with_averages - without) / with_averages * 100
        print(f"pytorch_ddp ranks {dist.get_world_size()} ms {with_averages:.3f} alone {without:.3f} share {share:.1f} parameters equal")
        print(f"# PyTorch {torch.__version__}")
    dist.destroy_process_group()


main()
