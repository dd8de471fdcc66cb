"""A training loop of a user's: train(request) on each rank of a process group.

The request is a map with the keys of DEFAULTS. `wrapper` is ddp (the oracle: DistributedDataParallel over gloo), lockstep, or none.
Returns a map: the loss of each step, a digest of the weights, and what the case asks for.
"""
import contextlib
import hashlib
import pathlib

from cpu_torch import torch
import patience
import torch._dynamo  # noqa: F401, which each optimizer imports: once, before ranks are forked

distributed, nn, F = torch.distributed, torch.nn, torch.nn.functional
DEFAULTS = {"wrapper": "lockstep", "network": "plain", "optimizer": "momentum", "steps": 8, "batch": 6, "micro_batches": 1, "to_none": True,
            "clip": None, "recipe": None, "precision": "fp32", "save": None, "save_at": None, "restore": None, "samples": 48, "inf_at": None,
            "mistake": None, "engine_update": None, "steps_per_epoch": 4, "sums_averages": False, "timeout": 20, "until": None, "views": 1}


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(10, 32), nn.Linear(32, 4)

    def forward(self, x):
        return self.second(F.relu(self.first(x)))


class Unused(Plain):
    """The third layer is used on odd ranks only, the fourth nowhere."""

    def __init__(self):
        super().__init__()
        self.third, self.fourth = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        y = super().forward(x)
        return self.third(y) if distributed.get_rank() % 2 else y


class Normed(Plain):
    def __init__(self):
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(32), nn.Dropout(0.2)

    def forward(self, x):
        return self.second(self.drop(self.norm(self.first(x))))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(10, 10), nn.Linear(10, 10)
        self.last.weight = self.first.weight

    def forward(self, x):
        return self.last(F.relu(self.first(x)))


NETWORKS = {"plain": Plain, "unused": Unused, "normed": Normed, "tied": Tied}
OPTIMIZERS = {"sgd": lambda p: torch.optim.SGD(p, lr=0.1), "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-3),
              "adamw": lambda p: torch.optim.AdamW(p, lr=0.01), "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05)}


def digest(tensors):
    sha = hashlib.sha256()
    for tensor in tensors:
        sha.update(tensor.detach().contiguous().numpy().tobytes())
    return sha.hexdigest()


def wrap(case, network, optimizer, sampler):
    if case["wrapper"] == "ddp":
        return nn.parallel.DistributedDataParallel(network, find_unused_parameters=case["network"] == "unused")
    import lockstep
    return lockstep.DataParallel(network, optimizer, recipe=case["recipe"], steps_per_epoch=case["steps_per_epoch"], sampler=sampler, timeout=case["timeout"],
                                 engine_update=case["engine_update"])


def batches(case, sampler):
    """Endless (inputs, targets) of this rank: of the sampler, or equal shares of each global batch in order."""
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(case["samples"], 10, generator=generator)
    targets = torch.randint(0, 4, (case["samples"],), generator=generator)
    data = torch.utils.data.TensorDataset(inputs, targets)
    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    epoch = sampler.epoch if sampler is not None else 0
    while True:
        if sampler is not None:
            sampler.set_epoch(epoch)
            yield from torch.utils.data.DataLoader(data, batch_size=sampler.batch_size, sampler=sampler)
        else:
            share = case["batch"] // world_size
            for begin in range(rank * share, case["samples"], case["batch"]):
                yield inputs[begin:begin + share], targets[begin:begin + share]
        epoch += 1


def make_mistake(case, step, model, network):
    if step != 2:
        return
    if case["mistake"] == "added":
        network.first.more = nn.Parameter(torch.ones(1))
    if case["mistake"] == "assigned":
        network.load_state_dict(network.state_dict(), assign=True)
    if case["mistake"] == "data":
        network.first.weight.data = network.first.weight.detach().clone()
    if case["mistake"] == "double":
        network.first.double()
    if case["mistake"] == "group":
        model.optimizer.add_param_group({"params": [torch.ones(1, requires_grad=True)]})
    if case["mistake"] == "hang" and distributed.get_rank() == 1:
        patience.wait_for(pathlib.Path(case["until"]).exists, "the others' end")
    if case["mistake"] == "save" and distributed.get_rank() == 0:
        import lockstep
        lockstep.save(model, case["save"])
    if case["mistake"] == "inner":
        model.forward = network.forward
    if case["mistake"] == "raise" and distributed.get_rank() == 1:
        raise RuntimeError("an error of rank 1 alone")


def train(request):
    case = {**DEFAULTS, **request}
    torch.manual_seed(3)
    network = NETWORKS[case["network"]]()
    optimizer = OPTIMIZERS[case["optimizer"]](network.parameters())
    sampler = None
    if case["save"] or case["restore"] or case["samples"] % case["batch"]:
        import lockstep
        sampler = lockstep.DistributedSampler(range(case["samples"]), case["batch"], seed=7)
    model = wrap(case, network, optimizer, sampler)
    found = None
    if case["restore"]:
        import lockstep
        found = lockstep.restore(model, case["restore"])
    feed, losses = batches(case, sampler), []
    for step in range(found.step if found else 0, case["steps"]):
        make_mistake(case, step, model, network)
        optimizer.zero_grad(set_to_none=case["to_none"])
        total = 0.0
        for micro in range(case["micro_batches"]):
            x, y = next(feed)
            is_last = micro + 1 == case["micro_batches"]
            with contextlib.nullcontext() if is_last or case["sums_averages"] else model.no_sync(), torch.autocast("cpu", torch.bfloat16, enabled=case["precision"] == "bf16"):
                views = [model(x) for _ in range(case["views"])]  # several forward passes of a batch before its backward()
                loss = F.cross_entropy(sum(views).float() / case["views"], y) / case["micro_batches"]
                if step == case["inf_at"]:
                    loss = loss * float("inf")
                loss.backward()
            total += loss.item()
        if case["clip"]:
            nn.utils.clip_grad_norm_(network.parameters(), case["clip"])
        optimizer.step()
        mean = torch.tensor(total, dtype=torch.float64)
        distributed.all_reduce(mean)
        losses.append(mean.item() / distributed.get_world_size())
        if step + 1 == case["save_at"]:
            import lockstep
            lockstep.save(model, case["save"], wait=True)
    if case["wrapper"] == "lockstep" and case["recipe"]:
        model.finish()
    weights = [tensor.flatten().tolist() for tensor in network.state_dict().values() if tensor.is_floating_point()]
    grads = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
    return {"losses": losses, "grads": torch.cat([grad.flatten() for grad in grads]).tolist() if grads else [],
             "digest": digest(network.parameters()), "buffers": digest(network.buffers()),
            "weights": sum(weights, []), "lr": optimizer.param_groups[0]["lr"],
            "zeros": (network.first.weight == 0).float().mean().item(),
            "state_of_zeros": max([slot[network.first.weight == 0].abs().max().item() for slot in optimizer.state[network.first.weight].values()
                                   if slot.shape == network.first.weight.shape and (network.first.weight == 0).any()], default=0.0)}

