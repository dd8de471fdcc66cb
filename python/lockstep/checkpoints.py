"""Checkpoints of a loop of one's own: lockstep.save(model, folder) and lockstep.restore(model, folder). The files are TensorFlow's, like those of
lockstepd: `lockstep ckpt show FOLDER` lists them, lockstep.load_state_dict() reads the weights (docs/loop.md)."""
import base64
import contextlib
import dataclasses
import functools
import json
import random
import re
import sys

import torch

from .calls import call
from .data_parallel import plain_name
from .optimizers import set_value
from .programs import Error

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


def weights_of(model):
    """{key: tensor} of trained and frozen parameters, and of the buffers that state_dict() has; tied ones once."""
    saved = model.module.state_dict(keep_vars=True)
    tensors = [*model.module.named_parameters(), *(entry for entry in model.module.named_buffers() if entry[0] in saved)]
    return {f"model/{plain_name(name).replace('.', '/')}": tensor for name, tensor in tensors}


def moments_of(model):
    """{key: tensor} of the optimizer's state; refuses what no checkpoint can hold."""
    entries = {}
    for name, parameter in model.module.named_parameters():
        for slot, value in sorted(model.optimizers.state_of(parameter).items()):
            if isinstance(value, torch.Tensor):
                entries[f"optimizer/{plain_name(name).replace('.', '/')}/{slot}"] = value
            elif value is not None:
                raise Error(f"[checkpoint] {model.optimizers.type} keeps {slot} of {name} as {type(value).__name__}, and checkpoints hold "
                            "tensors: save with another optimizer, or by torch.save")
    return entries


def as_json(value, what):
    try:
        return json.dumps(value, sort_keys=True)
    except (TypeError, ValueError) as fault:
        raise Error(f"[checkpoint] {what} cannot be written as JSON: {fault}") from None


def generators_text():
    """The state of this rank's random generators."""
    numbers = {"torch": base64.b64encode(bytes(torch.get_rng_state().tolist())).decode(), "random": random.getstate()}
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


def text_of(place):
    """A folder or prefix as text."""
    text = str(place)
    if not isinstance(place, str) and re.match("(s3|gs):/(?!/)", text):
        raise Error(f"[checkpoint] {text}: pathlib has removed a slash from the address of a store; pass it as a str")
    return text


@of_all_ranks("lockstep.save")
def save(model, folder, *, extra=None, keep=5, steady=False, wait=False):
    """Begins a checkpoint FOLDER/model.ckpt-<step> and returns its step; it is written while training continues. All ranks call it between two steps.
    A folder may be in an object store: s3://BUCKET/FOLDER or gs://BUCKET/FOLDER.

    extra: a value that JSON can hold, equal on all ranks. keep: number of checkpoints that stay, -1: all. steady: parameters change only in
    optimizer.step(), which then waits for their copy. wait: return when it is committed. Error: it failed (with wait), or an earlier one lost a rank.
    """
    call("loop_broadcast", model.loop, list(model.module.buffers()))
    weights = weights_of(model)
    trained = {key: tensor for key, tensor in weights.items() if steady and isinstance(tensor, torch.nn.Parameter)}
    entries = {**trained, **weights, **moments_of(model)}
    if model.sampler is not None:
        entries.update(model.sampler.position())
    generators = call("loop_gather_texts", model.loop, generators_text())
    groups = [{key: float(value) if isinstance(value, torch.Tensor) else value for key, value in group.items() if key not in ("params", "param_names")}
              for group in model.optimizers.param_groups]
    optimizer = {"type": model.optimizers.type, "groups": groups, "by_engine": model.optimizers.engine_updates}
    texts = [as_json(optimizer, "the optimizer's param_groups"), json.dumps(generators), as_json(extra, "extra")]
    call("loop_save", model.loop, text_of(folder), keep, list(entries), list(entries.values()), len(trained), list(TEXTS), texts)
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
    """Continues from the newest checkpoint of a folder, or from that of a prefix, at any number of ranks. None: the folder has none. All ranks call it
    before the first forward pass, or between two steps. Error: another model, optimizer or recipe, damage."""
    filled = [] if model.optimizers.engine_updates else model.optimizers.fill_state()
    weights, position = weights_of(model), {} if model.sampler is None else model.sampler.position()
    entries = {**weights, **position, **moments_of(model)}
    prefix, texts = call("loop_restore", model.loop, text_of(source), list(entries), list(entries.values()), len(weights), list(TEXTS), accept_recipe_change)
    if not prefix:
        for optimizer in filled:
            optimizer.state.clear()
        return None
    optimizer, generators, extra = (json.loads(text) if text else None for text in texts)
    if optimizer is not None:
        set_groups(model, optimizer, prefix)
    sampler = model.sampler
    if sampler is not None:
        sampler.go_to(*map(int, position.values()))
    if generators:
        set_generators(generators, model.rank)
        # Within an epoch, the loop's DataLoader drew its seed before the checkpoint. One that begins an epoch draws as it did.
        if sampler is not None and sampler.first_batch > 0:
            sampler.before_first = functools.partial(set_generators, generators, model.rank)
    model.optimizers.step = int(call("loop_facts", model.loop)[0])
    model.optimizers.written.clear()
    return Restored(model.step, sampler.epoch if sampler is not None else 0, prefix, extra)


def set_groups(model, saved, prefix):
    """Takes over the parameter groups of a checkpoint. The engine's moments are none of torch's: each counts its steps in its own way."""
    if saved["by_engine"] != model.optimizers.engine_updates:
        raise Error(f"[resume] {prefix} was saved with updates by {'the engine' if saved['by_engine'] else 'torch.optim'}: wrap the module with "
                    f"engine_update={saved['by_engine']}")
    kind, groups = model.optimizers.type, model.optimizers.param_groups
    if saved["type"] != kind or len(saved["groups"]) != len(groups):
        raise Error(f"[resume] {prefix} has {saved['type']} with {len(saved['groups'])} parameter groups, this loop {kind} with {len(groups)}")
    for group, values in zip(groups, saved["groups"]):
        for key, value in values.items():
            set_value(group, key, tuple(value) if isinstance(value, list) else value)
