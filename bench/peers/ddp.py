"""PyTorch's DistributedDataParallel over gloo, on the CPU, one rank: the peer of lockstepd. LOCKSTEP_BENCH_DEVICE=cuda: over NCCL,
rank r on GPU r, with batches in page-locked memory before the first step. LOCKSTEP_BENCH_BACKEND: another backend of torch.distributed.

Trains on Lockstep's data, in its order and from its weights (same_start.py), with SGD and momentum or with AdamW. RANK,
WORLD_SIZE, MASTER_ADDR and MASTER_PORT are those of PyTorch; LOCKSTEP_TORCH is the folder `torch` of the wheel.

Every line of standard input is a JSON object, the same on all ranks, and requests one training from the start (Request has its
keys); the answer is a line with the seconds of each step and the loss of each step (mean over ranks). `mode` is one of
  default   DistributedDataParallel and SGD with default options
  tuned     static_graph, gradients as views of the buckets, no buffers sent, fused SGD, denormals as 0, and bucket_cap_mb if it
            is given (the starter also sets malloc's thresholds)
  fp16      tuned, and gradients are sent as float16 (PyTorch's fp16_compress_hook)
  zero      tuned, with PyTorch's ZeroRedundancyOptimizer: each rank keeps and updates a part of the optimizer's state
  graphed   on a GPU: tuned, and from the 12th step on the whole step, update included, is one CUDA graph, made as in PyTorch's
            documentation of DistributedDataParallel ("CUDA Graphs")
  packed    no DistributedDataParallel: the gradients of kept weights are gathered into one tensor, reduced, copied back
  loop      tuned, with lockstep.DataParallel in place of DistributedDataParallel, and a recipe if it is given
  fsdp      FSDP2: fully_shard of each block of a Gpt and of the whole
  alone     tuned, without DistributedDataParallel: each rank trains by itself
  raw       tuned; a save only copies, writes and syncs bytes
With `save`, a folder, a checkpoint of weights and momentum begins before step `warm`: by lockstep.save in mode loop, else by DCP's async_save. The
last step then includes the wait for it. With a sparsity each layer's smallest weights are pruned at the start (the first of equal ones) and stay zero.
"""
import contextlib
import dataclasses
import functools
import gc
import json
import os
import pathlib
import sys
import threading
import time

import numpy as np

DEVICE = os.environ.get("LOCKSTEP_BENCH_DEVICE", "cpu")
if DEVICE == "cuda":
    import torch
else:
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/support"))
    from cpu_torch import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import backends
import networks
import same_start

F = torch.nn.functional


@dataclasses.dataclass
class Request:
    mode: str
    samples: int
    batch: int  # samples of each rank
    steps: int
    weights: str  # a safetensors file
    network: str  # a class of networks.py
    arguments: dict  # of the class
    shape: tuple = ()  # of one input of random data
    classes: int = 10
    tokens: str = ""  # a file of uint16 instead, cut into windows of `context`, of which each token is the next one's input
    context: int = 0
    keywords: tuple = ()  # of inputs and targets: the network takes both and returns its loss, as those of transformers do
    seed: int = 17  # of the order
    learning_rate: float = 0.01
    momentum: float = 0.9
    optimizer: str = "momentum"  # or adamw, muon, without decay of weights
    precision: str = "fp32"  # or bf16: autocast
    warm: int = 0  # steps before the first that counts; a GPU has done them then
    sparsity: float = 0
    bucket_mb: float | None = None  # None: DDP's own, 1 MB for the first bucket and 25 for the others
    exchanges: bool = True  # False: each rank keeps its own gradients
    recipe: str = ""  # a file
    engine_update: object = None  # of lockstep.DataParallel
    save: str = ""
    save_option: bool = False  # DCP: its DefaultStager copies in a thread; lockstep.save: steady=True


def keep_bucket(_state, bucket):
    """In place of an all-reduce: what the rest of DDP's step takes is the limit of every backend."""
    kept = torch.futures.Future()
    kept.set_result(bucket.buffer())
    return kept


def mask_of(weight, sparsity):
    """1 where kept. Sparsity s of n prunes round(s n) weights; of equal magnitudes the first go first."""
    num_pruned = int(sparsity * weight.numel() + 0.5)
    smallest_first = torch.sort(weight.abs().flatten(), stable=True).indices
    return torch.ones(weight.numel()).index_fill_(0, smallest_first[:num_pruned], 0).view_as(weight)


class Ddp:
    """A step with DistributedDataParallel; weights are masked again after each, since its momentum has no masks."""
    staged = None  # completion of the copy of a save

    def __init__(self, network, masks, options):
        self.options = options
        self.autocast = torch.autocast(DEVICE, torch.bfloat16, enabled=options.precision == "bf16")
        self.network, self.optimizer = self.wrap(network, options)
        self.save_group = dist.new_group(backend="gloo") if options.save else None  # async_save talks while training does
        self.masked = [] if options.recipe else [(weight, masks[name]) for name, weight in network.named_parameters() if name in masks]

    def wrap(self, network, options):
        tuned = options.mode != "default"
        wrapped = DistributedDataParallel(network, static_graph=tuned, gradient_as_bucket_view=tuned, broadcast_buffers=not tuned,
                                          bucket_cap_mb=options.bucket_mb)
        if options.mode == "fp16":
            wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
        if not options.exchanges:
            wrapped.register_comm_hook(None, keep_bucket)
        return wrapped, make_optimizer(network, options, fused=tuned)

    def begin_save(self, folder):
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
        from torch.distributed.checkpoint.state_dict import get_state_dict
        model, optimizer = get_state_dict(self.network, self.optimizer)
        # Without a GPU the stager refuses pinned memory and copies that do not block.
        stager = DefaultStager(StagingOptions(use_pinned_memory=False, use_shared_memory=False, use_async_staging=True,
                                              use_non_blocking_copy=False)) if self.options.save_option else None
        begun = dcp.async_save({"model": model, "optimizer": optimizer}, storage_writer=dcp.FileSystemWriter(folder), async_stager=stager,
                               process_group=self.save_group)
        self.staged, self.saved = (begun.staging_completion, begun.upload_completion) if stager else (None, begun)

    def end_save(self):
        self.saved.result()

    def loss_of(self, inputs, targets):
        with self.autocast:
            if self.options.keywords:
                return self.network(**dict(zip(self.options.keywords, (inputs, targets)))).loss
            outputs = self.network(inputs)
        return mean_loss(outputs.float(), targets)

    def step(self, inputs, targets):
        self.optimizer.zero_grad()
        loss = self.loss_of(inputs, targets)
        loss.backward()
        if self.staged is not None:
            self.staged.result()  # the update changes what is copied
            self.staged = None
        self.optimizer.step()
        with torch.no_grad():
            for weight, mask in self.masked:
                weight.mul_(mask)
        return loss.detach()


class RawSave(Ddp):
    """A step whose save copies this rank's part of the weights and momentum, and writes and syncs it in a thread, without any format."""

    def begin_save(self, folder):
        state = [*self.network.parameters(), *(values["momentum_buffer"] for values in self.optimizer.state.values())]
        copies = [tensor.detach().clone() for tensor in state[dist.get_rank()::dist.get_world_size()]]
        path = pathlib.Path(folder, f"part{dist.get_rank()}")
        path.parent.mkdir(parents=True, exist_ok=True)
        self.saving = threading.Thread(target=self.write, args=(path, copies))
        self.saving.start()

    @staticmethod
    def write(path, copies):
        with path.open("wb", buffering=0) as file:
            for values in copies:
                left = memoryview(values.numpy()).cast("B")
                while left:
                    left = left[file.write(left):]
            os.fsync(file.fileno())

    def end_save(self):
        self.saving.join()


class Loop(Ddp):
    """A step with lockstep.DataParallel, whose recipe keeps the masks."""

    def wrap(self, network, options):
        import lockstep
        optimizer = make_optimizer(network, options, fused=True)
        steps_per_epoch = options.samples // (options.batch * dist.get_world_size())
        return lockstep.DataParallel(network, optimizer, options.recipe or None, steps_per_epoch=steps_per_epoch, broadcast_buffers=False,
                                     engine_update=options.engine_update), optimizer

    def begin_save(self, folder):
        import lockstep
        lockstep.save(self.network, folder, steady=self.options.save_option)

    def end_save(self):
        import lockstep
        lockstep.wait_for_save(self.network)


class Alone(Ddp):
    """A step of one process, which no wrapper of a module can undercut."""

    def wrap(self, network, options):
        return network, make_optimizer(network, options, fused=True)


class Fsdp(Ddp):
    """A step of a Gpt with FSDP2."""

    def wrap(self, network, options):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for block in network.transformer["h"]:
            fully_shard(block, mesh=mesh)
        return fully_shard(network, mesh=mesh), make_optimizer(network, options, fused=False)


class Graphed:
    """Ddp's step as one CUDA graph, once DDP has done the 11 that PyTorch asks for on a stream beside."""
    NUM_EAGER = 11

    def __init__(self, network, masks, options):
        if options.warm <= self.NUM_EAGER + 1:
            raise ValueError(f"'warm' must be more than {self.NUM_EAGER + 1}, or steps before the recording would count, and it")
        self.num_steps, self.graph = 0, torch.cuda.CUDAGraph()
        self.beside = torch.cuda.Stream()
        with self.on_stream():
            self.ddp = Ddp(network, masks, options)

    @contextlib.contextmanager
    def on_stream(self):
        self.beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.beside):
            yield
        torch.cuda.current_stream().wait_stream(self.beside)

    def step(self, inputs, targets):
        self.num_steps += 1
        if self.num_steps <= self.NUM_EAGER:
            with self.on_stream():
                return self.ddp.step(inputs.to(DEVICE), targets.to(DEVICE))
        if self.num_steps == self.NUM_EAGER + 1:
            self.inputs, self.targets = inputs.to(DEVICE), targets.to(DEVICE)
            with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
                self.loss = self.ddp.step(self.inputs, self.targets)
        self.inputs.copy_(inputs, non_blocking=True)
        self.targets.copy_(targets, non_blocking=True)
        self.graph.replay()
        return self.loss.clone()


class Packed:
    """A hand-written step for fixed masks: only kept gradients are sent, in one all-reduce after backward.
    Gradients of pruned weights stay zero, therefore momentum and weights do, too."""

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
        loss = mean_loss(self.network(inputs), targets)
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


STEPPERS = {"packed": Packed, "graphed": Graphed, "loop": Loop, "fsdp": Fsdp, "alone": Alone, "raw": RawSave}


def mean_loss(outputs, targets):
    """Mean loss of [B, classes] and [B], or, for tokens, of [B, T, vocabulary] and [B, T]."""
    return F.cross_entropy(outputs.flatten(0, -2), targets.flatten())


class MuonAndAdamW:
    """torch.optim.Muon for weights of linear layers but the last, AdamW for all else."""

    def __init__(self, network, learning_rate, fused):
        matrices = [module.weight for module in network.modules() if isinstance(module, torch.nn.Linear)][:-1]
        others = [one for one in network.parameters() if not any(one is matrix for matrix in matrices)]
        self.optimizers = [torch.optim.Muon(matrices, lr=learning_rate, weight_decay=0),
                           torch.optim.AdamW(others, lr=learning_rate, weight_decay=0, fused=fused)]

    def zero_grad(self):
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def step(self):
        for optimizer in self.optimizers:
            optimizer.step()


def make_optimizer(network, options, fused):
    if options.mode == "zero":
        if options.optimizer != "momentum":
            raise ValueError(f"mode zero trains with momentum, not with {options.optimizer}")
        return ZeroRedundancyOptimizer(network.parameters(), torch.optim.SGD, parameters_as_bucket_view=True,
                                       lr=options.learning_rate, momentum=options.momentum, fused=True)
    if options.optimizer == "adamw":
        return torch.optim.AdamW(network.parameters(), lr=options.learning_rate, weight_decay=0, fused=fused,
                                 capturable=options.mode == "graphed")
    if options.optimizer == "muon":
        return MuonAndAdamW(network, options.learning_rate, fused)
    return torch.optim.SGD(network.parameters(), lr=options.learning_rate, momentum=options.momentum,
                           **({"fused": True} if fused else {}))


def start(options):
    """The network and its masks as they are before the first step."""
    network = getattr(networks, options.network)(**options.arguments)
    tensors = same_start.read_safetensors(options.weights)
    missing, unknown = network.load_state_dict({name: torch.from_numpy(values) for name, values in tensors.items()}, strict=False)
    tied = {"lm_head.weight", "cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}  # to what a save holds under its first name
    if unknown or not all(name in tied or name.endswith("num_batches_tracked") for name in missing):
        raise ValueError(f"{options.weights}: missing are {missing}, not known {unknown}")
    masks = {}
    if options.sparsity:
        with torch.no_grad():
            masks = {name: mask_of(weight, options.sparsity) for name, weight in network.named_parameters() if weight.dim() > 1}
            for name, weight in network.named_parameters():
                weight.mul_(masks.get(name, 1))
    return network.to(DEVICE), {name: mask.to(DEVICE) for name, mask in masks.items()}


@functools.cache
def random_data(shape, num_classes, num_samples):
    return tuple(map(torch.from_numpy, same_start.random_dataset(shape, num_classes, num_samples)))


@functools.cache
def token_data(path, context):
    """Inputs and targets [S, context]."""
    tokens = torch.from_numpy(np.fromfile(path, np.uint16).astype(np.int64))
    num_windows = (len(tokens) - 1) // context
    return tokens[:num_windows * context].view(-1, context), tokens[1:num_windows * context + 1].view(-1, context)


def train(options):
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    inputs, targets = (token_data(options.tokens, options.context) if options.tokens
                       else random_data(tuple(options.shape), options.classes, options.samples))
    batches = same_start.batches_of_rank(options.samples, options.batch, rank, num_ranks, options.seed, options.steps)
    batches = [torch.from_numpy(np.ascontiguousarray(batch)) for batch in batches]
    torch.set_flush_denormal(options.mode != "default")
    stepper = STEPPERS.get(options.mode, Ddp)(*start(options), options)
    losses, marks = [], []
    on_gpu = DEVICE == "cuda"
    if on_gpu:
        batches = [(inputs[batch].pin_memory(), targets[batch].pin_memory()) for batch in batches]
    dist.barrier()
    for step, batch in enumerate(batches):
        if on_gpu and step == options.warm:
            torch.cuda.synchronize()
        marks.append(time.perf_counter())
        if options.save and step == options.warm:
            stepper.begin_save(options.save)
        shares = batch if on_gpu else (inputs[batch], targets[batch])
        if on_gpu and options.mode != "graphed":
            shares = [share.to(DEVICE, non_blocking=True) for share in batch]
        losses.append(stepper.step(*shares))
    if on_gpu:
        torch.cuda.synchronize()
    if options.save:
        stepper.end_save()
    marks.append(time.perf_counter())
    losses = torch.stack(losses).double()
    dist.all_reduce(losses)
    return [b - a for a, b in zip(marks, marks[1:])], (losses / num_ranks).tolist()


def main():
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["RANK"]) % torch.cuda.device_count())
    backends.init("nccl" if DEVICE == "cuda" else "gloo")
    for line in sys.stdin:
        seconds, losses = train(Request(**json.loads(line)))
        gc.collect()  # the network before the next one
        print(json.dumps({"seconds": seconds, "losses": losses}), flush=True)
    os._exit(0)  # the orderly way out aborts now and then: a thread of gloo's is still there


if __name__ == "__main__":
    main()
