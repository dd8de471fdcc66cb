"""PyTorch's DistributedDataParallel over gloo, on the CPU, one rank: the peer of lockstepd.

Trains on the data, in the order and from the weights that Lockstep has (same_start.py), with SGD and momentum. RANK,
WORLD_SIZE, MASTER_ADDR and MASTER_PORT say who and where; LOCKSTEP_TORCH is the folder `torch` of the wheel.

  --mode default   DistributedDataParallel and SGD as they come
  --mode tuned     static_graph, gradients as views of the buckets, fused SGD, denormals as 0 (the starter also sets malloc's thresholds)
  --mode fp16      tuned, and gradients travel as float16 (PyTorch's fp16_compress_hook)
  --mode packed    no DistributedDataParallel: the gradients of kept weights are gathered into one tensor, reduced, put back
With --sparsity each layer's smallest weights are pruned at the start (the first of equal ones) and stay zero.

Rank 0 writes a JSON object to --out: seconds of each step, loss of each step (mean over ranks).
"""
import argparse
import json
import os
import pathlib
import sys
import time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/support"))
from cpu_torch import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import networks
import same_start

F = torch.nn.functional


def read_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=("default", "tuned", "fp16", "packed"), default="default")
    parser.add_argument("--network", choices=("mlp", "cnn"), default="mlp")
    parser.add_argument("--widths", type=lambda text: [int(width) for width in text.split(",")], default=[784, 32, 10])
    parser.add_argument("--activation", choices=networks.ACTIVATIONS, default="relu")
    parser.add_argument("--shape", type=lambda text: [int(extent) for extent in text.split(",")], help="of one input")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--samples", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True, help="samples of each rank")
    parser.add_argument("--seed", type=int, default=17, help="of the order")
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--sparsity", type=float, default=0)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--weights", required=True, help="safetensors")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    return parser.parse_args()


def mask_of(weight, sparsity):
    """1 where kept. Sparsity s of n prunes round(s n) weights; of equal magnitudes the first go first."""
    num_pruned = int(sparsity * weight.numel() + 0.5)
    smallest_first = torch.sort(weight.abs().flatten(), stable=True).indices
    return torch.ones(weight.numel()).index_fill_(0, smallest_first[:num_pruned], 0).view_as(weight)


class Ddp:
    """How DistributedDataParallel takes a step; weights are masked again after each, as its momentum knows no masks."""

    def __init__(self, network, masks, options):
        tuned = options.mode != "default"
        self.network = DistributedDataParallel(network, static_graph=tuned, gradient_as_bucket_view=tuned)
        if options.mode == "fp16":
            self.network.register_comm_hook(None, default_hooks.fp16_compress_hook)
        self.optimizer = make_optimizer(network, options, fused=tuned)
        self.masked = [(weight, masks[name]) for name, weight in network.named_parameters() if name in masks]

    def step(self, inputs, targets):
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.network(inputs), targets)
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            for weight, mask in self.masked:
                weight.mul_(mask)
        return loss.detach()


class Packed:
    """What one would write by hand for fixed masks: only kept gradients travel, in one all-reduce after backward.
    Gradients of pruned weights stay zero, so momentum and weights do."""

    def __init__(self, network, masks, options):
        self.network = network
        self.optimizer = make_optimizer(network, options, fused=True)
        parameters = list(network.named_parameters())
        self.grads = [torch.zeros_like(weight) for _, weight in parameters]
        self.weights = [weight for _, weight in parameters]
        self.kept = [masks[name].flatten().nonzero().flatten() if name in masks else torch.arange(weight.numel())
                     for name, weight in parameters]
        self.buffer = torch.empty(sum(len(kept) for kept in self.kept))
        self.parts = self.buffer.split([len(kept) for kept in self.kept])

    def step(self, inputs, targets):
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.network(inputs), targets)
        loss.backward()
        with torch.no_grad():
            for weight, kept, part in zip(self.weights, self.kept, self.parts):
                torch.index_select(weight.grad.view(-1), 0, kept, out=part)
            dist.all_reduce(self.buffer)
            self.buffer.div_(dist.get_world_size())
            for weight, grad, kept, part in zip(self.weights, self.grads, self.kept, self.parts):
                grad.view(-1).index_copy_(0, kept, part)  # where nothing is kept it stays zero
                weight.grad = grad
        self.optimizer.step()
        return loss.detach()


def make_optimizer(network, options, fused):
    return torch.optim.SGD(network.parameters(), lr=options.learning_rate, momentum=options.momentum,
                           **({"fused": True} if fused else {}))


def start(options):
    """The network and its masks as they are before the first step."""
    network = networks.make_network(options.network, options.widths, options.activation, options.classes)
    tensors = same_start.read_safetensors(options.weights)
    network.load_state_dict({name: torch.from_numpy(values) for name, values in tensors.items()})
    masks = {}
    if options.sparsity:
        with torch.no_grad():
            masks = {name: mask_of(weight, options.sparsity) for name, weight in network.named_parameters() if weight.dim() > 1}
            for name, weight in network.named_parameters():
                weight.mul_(masks.get(name, 1))
    return network, masks


def train(options):
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    shape = options.shape or [options.widths[0]]
    inputs, targets = map(torch.from_numpy, same_start.random_dataset(shape, options.classes, options.samples))
    batches = same_start.batches_of_rank(options.samples, options.batch, rank, num_ranks, options.seed, options.steps)
    batches = [torch.from_numpy(np.ascontiguousarray(batch)) for batch in batches]
    if options.mode != "default":
        torch.set_flush_denormal(True)
    stepper = (Packed if options.mode == "packed" else Ddp)(*start(options), options)
    losses, marks = [], []
    dist.barrier()
    for batch in batches:
        marks.append(time.perf_counter())
        losses.append(stepper.step(inputs[batch], targets[batch]))
    marks.append(time.perf_counter())
    losses = torch.stack(losses).double()
    dist.all_reduce(losses)
    return [b - a for a, b in zip(marks, marks[1:])], (losses / num_ranks).tolist()


def main():
    options = read_options()
    dist.init_process_group("gloo")
    seconds, losses = train(options)
    if dist.get_rank() == 0:
        options.out.write_text(json.dumps({"seconds": seconds, "losses": losses}))
    dist.barrier()
    os._exit(0)  # the orderly way out aborts now and then: a thread of gloo's is still there


if __name__ == "__main__":
    main()
