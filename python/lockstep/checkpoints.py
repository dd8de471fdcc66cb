"""Checkpoints of a loop of one's own: lockstep.save(model, folder) and lockstep.restore(model, folder).

The files are TensorFlow's, like those of lockstepd: `lockstep ckpt show FOLDER` lists them, lockstep.load_state_dict() reads the weights.
They hold weights, buffers, the optimizer, masks, the step, the sampler's position, and the random generators of each rank.
"""
import base64
import contextlib
import dataclasses
import functools
import json
import random
import sys

import torch

from .data_parallel import call, plain_name
from .programs import EXIT_CONFIG, Error

EXIT_IO = 74
EXITS_OF_PEERS = (69, 79)  # one is lost, one is late
TEXTS = ("_lockstep/torch/optimizer", "_lockstep/torch/random", "_lockstep/torch/extra")


@dataclasses.dataclass
class Restored:
    """What restore() found."""
    step: int
    epoch: int  # of the sampler; 0 without one
    prefix: str  # of the checkpoint, such as saves/model.ckpt-690
    extra: object = None  # as given to save()


@contextlib.contextmanager
def of_all_ranks(function):
    """Adds to an error of a lost or late rank what its commonest cause is."""
    try:
        yield
    except Error as fault:
        if fault.exit_code in EXITS_OF_PEERS:
            raise Error(f"{fault}. Call {function}() on all ranks, not on one", fault.exit_code) from None
        raise


def slashed(name):
    return plain_name(name).replace(".", "/")


def weights_of(model):
    """{key: tensor} of trained and frozen parameters, and of the buffers that state_dict() has; tied ones once."""
    module = model.module
    entries = {f"model/{slashed(name)}": parameter for name, parameter in module.named_parameters()}
    saved = module.state_dict(keep_vars=True)
    entries.update({f"model/{slashed(name)}": buffer for name, buffer in module.named_buffers() if name in saved})
    return entries


def moments_of(model):
    """{key: tensor} of the optimizer's state; refuses what no checkpoint can hold."""
    entries = {}
    optimizer = model.optimizer
    for name, parameter in model.module.named_parameters():
        for slot, value in sorted(optimizer.state.get(parameter, {}).items()):
            if isinstance(value, torch.Tensor):
                entries[f"optimizer/{slashed(name)}/{slot}"] = value
            elif value is not None:
                raise Error(f"[checkpoint] {type(optimizer).__name__} keeps {slot} of {name} as {type(value).__name__}, and checkpoints hold "
                            "tensors: save with another optimizer, or by torch.save", EXIT_CONFIG)
    return entries


def position_of(model):
    """{key: tensor} of the sampler's position."""
    if model.sampler is None:
        return {}
    epoch, taken = model.sampler.position()
    return {"_lockstep/sampler/epoch": torch.tensor(epoch), "_lockstep/sampler/position": torch.tensor(taken)}


def plain(value):
    return float(value) if isinstance(value, torch.Tensor) else value


def optimizer_text(model):
    optimizer = model.optimizer
    groups = [{key: plain(value) for key, value in group.items() if key not in ("params", "param_names")} for group in optimizer.param_groups]
    return as_json({"type": type(optimizer).__name__, "groups": groups, "by_engine": model.engine_updates}, "the optimizer's param_groups")


def as_json(value, what):
    try:
        return json.dumps(value, sort_keys=True)
    except (TypeError, ValueError) as fault:
        raise Error(f"[checkpoint] {what} cannot be written as JSON: {fault}", EXIT_CONFIG) from None


def generators_text():
    """The state of this rank's random generators."""
    numbers = {"torch": base64.b64encode(torch.get_rng_state().numpy().tobytes()).decode(), "random": random.getstate()}
    if "numpy" in sys.modules:
        name, keys, *rest = sys.modules["numpy"].random.get_state()
        numbers["numpy"] = [name, keys.tolist(), *rest]
    return json.dumps(numbers)


def set_generators(texts, rank):
    """Restores this rank's generators. At another number of ranks, ranks beyond it start from others of a rank that there was."""
    numbers = json.loads(texts[rank % len(texts)])
    torch.set_rng_state(torch.frombuffer(bytearray(base64.b64decode(numbers["torch"])), dtype=torch.uint8))
    version, keys, gauss = numbers["random"]
    random.setstate((version, tuple(keys), gauss))
    if "numpy" in numbers and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(tuple(numbers["numpy"]))
    if rank >= len(texts):
        torch.manual_seed(torch.initial_seed() + rank)
        random.seed(torch.initial_seed())


@of_all_ranks("lockstep.save")
def save(model, folder, *, extra=None, keep=5, steady=False, wait=False):
    """Begins a checkpoint FOLDER/model.ckpt-<step> and returns its step; it is written while training continues.

    All ranks call it between two steps. extra: a value that JSON can hold, equal on all ranks. keep: number of checkpoints that stay, -1: all.
    steady: parameters change only in optimizer.step(), which then waits for their copy, instead of save(). wait: return when it is
    committed. Error: it failed (with wait), or an earlier one lost a rank.
    """
    if model.buffers_now():
        call("loop_broadcast", model.loop, model.buffers_now())
    weights = weights_of(model)
    trained = {key: tensor for key, tensor in weights.items() if steady and isinstance(tensor, torch.nn.Parameter)}
    entries = {**trained, **weights, **moments_of(model), **position_of(model)}
    generators = call("loop_gather_texts", model.loop, generators_text())
    texts = [optimizer_text(model), json.dumps(generators), as_json(extra, "extra")]
    call("loop_save", model.loop, str(folder), keep, list(entries), list(entries.values()), len(trained), list(TEXTS), texts)
    if wait:
        wait_for_save(model)
    return model.step


def wait_for_save(model):
    """Waits for the checkpoint in progress. Returns its prefix, empty if there was none. Error: it failed."""
    prefix, fault, code = call("loop_saved", model.loop)
    if fault:
        raise Error(f"[checkpoint] {fault}", code or EXIT_IO)
    return prefix


@of_all_ranks("lockstep.restore")
def restore(model, source, *, accept_recipe_change=False):
    """Continues from the newest checkpoint of a folder, or from that of a prefix, at any number of ranks. None: the folder has none.

    Call it on all ranks before the first forward pass, or between two steps. Error: another model, optimizer or recipe, damage.
    """
    was_empty = not model.optimizer.state
    if not model.engine_updates:
        fill_state(model)
    weights, moments, position = weights_of(model), moments_of(model), position_of(model)
    entries = {**weights, **position, **moments}
    prefix, texts = call("loop_restore", model.loop, str(source), list(entries), list(entries.values()), len(weights), list(TEXTS),
                         accept_recipe_change)
    if not prefix:
        if was_empty:
            model.optimizer.state.clear()
        return None
    optimizer, generators, extra = (json.loads(text) if text else None for text in texts)
    require_same_updates(model, optimizer, prefix)
    set_groups(model.optimizer, optimizer, prefix)
    epoch, taken = (int(value) for value in position.values()) if position else (0, 0)
    if model.sampler is not None:
        model.sampler.go_to(epoch, taken)
    if generators:
        set_generators(generators, model.rank)
        # Within an epoch, the loop's DataLoader drew its seed before the checkpoint. One that begins an epoch draws as it did.
        if model.sampler is not None and model.sampler.first_batch > 0:
            model.sampler.before_first = functools.partial(set_generators, generators, model.rank)
    model.note_restored()
    return Restored(step=model.step, epoch=model.sampler.epoch if model.sampler is not None else 0, prefix=prefix, extra=extra)


def require_same_updates(model, saved, prefix):
    """The engine's moments are none of torch's: each counts its steps in its own way."""
    if saved is not None and saved["by_engine"] != model.engine_updates:
        raise Error(f"[resume] {prefix} was saved with updates by {'the engine' if saved['by_engine'] else 'torch.optim'}: wrap the module with "
                    f"engine_update={saved['by_engine']}", EXIT_CONFIG)


def set_groups(optimizer, saved, prefix):
    if saved is None:
        return
    now = type(optimizer).__name__
    if saved["type"] != now or len(saved["groups"]) != len(optimizer.param_groups):
        raise Error(f"[resume] {prefix} has {saved['type']} with {len(saved['groups'])} parameter groups, this loop {now} with "
                    f"{len(optimizer.param_groups)}", EXIT_CONFIG)
    for group, values in zip(optimizer.param_groups, saved["groups"]):
        for key, value in values.items():
            if isinstance(group.get(key), torch.Tensor):
                group[key].fill_(value)
            else:
                group[key] = tuple(value) if isinstance(value, list) else value


def fill_state(model):
    """Creates the state that the optimizer creates at its first step, by a step without rates and gradients. Values follow from the restore."""
    optimizer = model.optimizer
    if optimizer.state:
        return
    # As torch.distributed.checkpoint does for its own restores.
    rates = [plain(group.get("lr", 0.0)) for group in optimizer.param_groups]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    with model.hooks_paused(), torch.no_grad():
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        set_rates(optimizer, [0.0] * len(rates))
        try:
            optimizer.step()
        except TypeError as fault:
            raise Error(f"[resume] {type(optimizer).__name__} cannot be restored: {fault}", EXIT_CONFIG) from None
        set_rates(optimizer, rates)
        for parameter in parameters:
            parameter.grad = None


def set_rates(optimizer, rates):
    for group, rate in zip(optimizer.param_groups, rates):
        if isinstance(group.get("lr"), torch.Tensor):
            group["lr"].fill_(rate)
        elif "lr" in group:
            group["lr"] = rate
