"""What Lockstep's workers do in Python: load a user's network and data set, call them, describe what they raise.

C++ calls the functions below (python/host.h); users import nothing from here. Workers that read samples
(`num_workers`) import this file by its name, so it does nothing when it is imported but import torch.
"""
import ctypes
import hashlib
import importlib.util
import json
import math
import os
import pathlib
import random
import sys
import threading
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
LAYERS = ("Linear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "Bilinear")
UNDECAYED = ("Norm", "Embedding")  # in a module's class name


def import_torch():
    """A wheel's torch wants CUDA libraries of gigabytes to be there, of which a CPU run calls nothing. Where the
    wheel stands without them (tools/setup), empty libraries of their names take their place."""
    stand_ins = HERE / "stand_ins"
    spec = importlib.util.find_spec("torch")
    needed = sorted(stand_ins.glob("*.so.*")) if stand_ins.is_dir() else []
    wheels = pathlib.Path(spec.origin).parents[1] / "nvidia"
    is_slim = wheels.is_dir() and not any(wheels.glob("*/lib/libcublas.so.*")) and not any(wheels.glob("cublas/lib/*"))
    if is_slim:
        for library in needed:
            if not any(wheels.glob("*/lib/" + library.name)):
                try:
                    ctypes.CDLL(library.name)  # the system's own
                except OSError:
                    ctypes.CDLL(str(library))
    flags = sys.getdlopenflags()
    if is_slim:
        sys.setdlopenflags(flags & ~os.RTLD_NOW | os.RTLD_LAZY)
    try:
        import torch
    finally:
        sys.setdlopenflags(flags)
    return torch


torch = import_torch()


class Fault(Exception):
    """A mistake of the user's that needs no traceback: its text says what and where."""


def describe_fault(kind, fault, trace):
    if isinstance(fault, Fault):
        return str(fault)
    lines = [line.rstrip() for line in traceback.format_exception(kind, fault, trace)]
    head = f"{kind.__name__}: {fault}"
    if isinstance(fault, SyntaxError):
        return f"{fault.filename}:{fault.lineno}: {head}"
    frames = [f for f in traceback.extract_tb(trace) if pathlib.Path(f.filename).parent != HERE]
    own = [f for f in frames if "site-packages" not in f.filename and not f.filename.startswith("<")] or frames
    place = f"{own[-1].filename}:{own[-1].lineno}: " if own else ""
    return place + head + "\n" + "\n".join(lines)


def load_class(path, name, what):
    """`name` in the file `path`, whose folder is importable from then on."""
    file = pathlib.Path(path)
    if not file.is_file():
        raise Fault(f"{path}: no such file, which '{what}.path' names")
    folder = str(file.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module_name = file.stem
    module = sys.modules.get(module_name)
    if module is None or pathlib.Path(getattr(module, "__file__", None) or "/").resolve() != file.resolve():
        spec = importlib.util.spec_from_file_location(module_name, file)
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        spec.loader.exec_module(module)
    if not hasattr(module, name):
        import difflib
        there = [n for n in vars(module) if not n.startswith("_")]
        near = difflib.get_close_matches(name, there, n=3) or there[:8]
        raise Fault(f"{path}: has no '{name}', which '{what}.name' asks for; it has {', '.join(near) or 'nothing'}")
    return getattr(module, name)


def flush():
    sys.stdout.flush()
    sys.stderr.flush()


# --- networks ---------------------------------------------------------------------------------------------------------


def seed_all(seed):
    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


def make_model(path, name, args, seed, input_shape, is_tokens):
    """The network, built from `seed` alone, so that all ranks build the same."""
    seed_all(seed)
    made = load_class(path, name, "model")
    model = made(**json.loads(args))
    if not isinstance(model, torch.nn.Module):
        raise Fault(f"{path}: {name}(...) gives {type(model).__name__}, not a torch.nn.Module")
    build_lazy_parameters(model, input_shape, is_tokens)
    require_float32(model, path)
    model.train()
    return model


def build_lazy_parameters(model, input_shape, is_tokens):
    lazy = torch.nn.parameter.UninitializedTensorMixin
    if not any(isinstance(p, lazy) for p in [*model.parameters(), *model.buffers()]):
        return
    model.eval()
    with torch.no_grad():
        model(torch.zeros([2, *input_shape], dtype=torch.int64 if is_tokens else torch.float32))


def require_float32(model, path):
    for name, parameter in model.named_parameters():
        if parameter.dtype != torch.float32:
            raise Fault(f"{path}: parameter {name} is {parameter.dtype}: weights are float32 here; "
                        "`train.precision` of the run file says in which type layers compute")
        if parameter.device.type != "cpu":
            raise Fault(f"{path}: parameter {name} is on {parameter.device}: build the network on the CPU, "
                        "Lockstep moves it to the device of the run")


def owner_of(model, parameter_name):
    return model.get_submodule(parameter_name.rpartition(".")[0])


def parameters_of(model):
    """[name, tensor, prunable, decayed] of each that is trained, in the module's order; tied ones once."""
    rows = []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        kind = type(owner_of(model, name)).__name__
        is_weight = parameter.dim() >= 2 and name.rpartition(".")[2] != "bias"
        prunable = is_weight and any(kind == layer or kind.endswith(layer) for layer in LAYERS)
        decayed = is_weight and not any(word in kind for word in UNDECAYED)
        rows.append([name, parameter, prunable, decayed])
    return rows


def buffers_of(model):
    """[name, tensor, whether forward moves it] of all that a save must hold beside the trained parameters. Looked up anew at each call: code
    may have put another tensor in a buffer's place."""
    kept = set(model.state_dict().keys())
    rows = [[name, p.detach(), False] for name, p in model.named_parameters() if not p.requires_grad]
    return rows + [[name, tensor, True] for name, tensor in model.named_buffers() if name in kept]


def unlike_parameters(model, tensors):
    """The name of the first parameter that is no longer one of `tensors`, or None."""
    now = [p for _, p in model.named_parameters() if p.requires_grad]
    names = [n for n, p in model.named_parameters() if p.requires_grad]
    if len(now) != len(tensors):
        return "the number of parameters"
    for name, a, b in zip(names, now, tensors):
        if a.data_ptr() != b.data_ptr():
            return name
    return None


def move_buffers(model, device):
    for module in model.modules():
        for name, tensor in module._buffers.items():
            if tensor is not None:
                module._buffers[name] = tensor.to(device)


def set_training(model, training):
    model.train(training)


def forward(model, inputs):
    outputs = model(inputs)
    if isinstance(outputs, (tuple, list)) and outputs and isinstance(outputs[0], torch.Tensor):
        outputs = outputs[0]  # (logits, loss), as many networks return
    if not isinstance(outputs, torch.Tensor):
        raise Fault(f"{type(model).__name__}.forward returns {type(outputs).__name__}, not a tensor")
    return outputs


def own_loss(model, inputs, targets):
    """The module's loss, a mean over the samples: what forward(inputs, targets) returns, or the last of what it does."""
    loss = model(inputs, targets)
    if isinstance(loss, (tuple, list)) and loss:
        loss = loss[-1]
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise Fault(f"{type(model).__name__}.forward(inputs, targets) must return its loss, one number as a tensor "
                    f"(or a tuple whose last is that), not {type(loss).__name__}")
    return loss.reshape(())


# --- data sets --------------------------------------------------------------------------------------------------------


class DataSet:
    """A user's data set with what Lockstep needs to know of it."""

    def __init__(self, path, name, args, targets, classes, seed, what):
        seed_all(seed)
        self.source = (path, name, args, what)
        self.items = load_class(path, name, what)(**json.loads(args))
        self.path, self.name, self.seed = path, name, seed
        for method in ("__len__", "__getitem__"):
            if not hasattr(self.items, method):
                raise Fault(f"{path}: {name} has no {method}: a data set here is read by index")
        self.length = len(self.items)
        if self.length < 1:
            raise Fault(f"{path}: {name} holds {self.length} samples")
        inputs, target = self.sample(0, 0)
        self.target_kind = targets if targets != "auto" else kind_of(inputs, target)
        self.input_shape, self.input_dtype = list(inputs.shape), inputs.dtype
        self.target_shape = list(self.as_target(target).shape)
        self.num_classes = self.count_classes(classes)

    def count_classes(self, classes):
        if classes > 0:
            return classes
        if self.target_kind == "soft":
            return self.target_shape[0]
        if self.target_kind == "values":
            return math.prod(self.target_shape)
        for name in ("num_classes", "vocab_size"):
            if isinstance(getattr(self.items, name, None), int):
                return getattr(self.items, name)
        if hasattr(self.items, "classes"):
            return len(self.items.classes)
        raise Fault(f"{self.path}: {self.name} does not say how many classes there are: write `classes:` beside its "
                    "name, or give it an attribute num_classes")

    def seed_sample(self, epoch, index):
        """Randomness of a sample: of (seed, epoch, index), whoever reads it."""
        mixed = int.from_bytes(hashlib.blake2b(f"{self.seed},{epoch},{index}".encode(), digest_size=8).digest(), "little")
        random.seed(mixed)
        torch.default_generator.manual_seed(mixed & (2**63 - 1))
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(mixed % 2**32)

    def sample(self, index, epoch):
        self.seed_sample(epoch, index)
        item = self.items[index]
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            raise Fault(f"{self.path}: sample {index} of {self.name} is {type(item).__name__}, not (input, target)")
        return as_input(item[0]), item[1]

    def as_target(self, target):
        dtype = torch.int64 if self.target_kind in ("class", "tokens") else torch.float32
        return torch.as_tensor(target).to(dtype)

    def checked(self, index, inputs, target):
        if list(inputs.shape) != self.input_shape or inputs.dtype != self.input_dtype:
            raise Fault(f"{self.path}: sample {index} of {self.name} has inputs {list(inputs.shape)} {inputs.dtype}, "
                        f"sample 0 has {self.input_shape} {self.input_dtype}")
        target = self.as_target(target)
        if list(target.shape) != self.target_shape:
            raise Fault(f"{self.path}: the target of sample {index} of {self.name} is {list(target.shape)}, "
                        f"of sample 0 {self.target_shape}")
        if self.target_kind in ("class", "tokens") and target.numel() and not (
                0 <= int(target.min()) and int(target.max()) < self.num_classes):
            raise Fault(f"{self.path}: the target of sample {index} of {self.name} is "
                        f"{target.tolist() if target.numel() < 5 else int(target.max())}, there are {self.num_classes} classes")
        return inputs, target

    def read(self, indices, epoch):
        pairs = []
        for index in indices:
            try:
                pairs.append(self.checked(index, *self.sample(index, epoch)))
            except Fault:
                raise
            except Exception as fault:
                if isinstance(fault, IndexError) and len(self.items) <= index:
                    raise Fault(f"{self.path}: {self.name} has {len(self.items)} samples now, it had {self.length}") from fault
                raise type_with_place(fault, f"sample {index} of {self.name}") from fault
        if not pairs:
            target_dtype = torch.int64 if self.target_kind in ("class", "tokens") else torch.float32
            return torch.empty([0, *self.input_shape], dtype=self.input_dtype), torch.empty([0, *self.target_shape], dtype=target_dtype)
        return torch.stack([p[0] for p in pairs]), torch.stack([p[1] for p in pairs])

    def digest(self):
        """Of class, file, arguments, length, the user's `version`, and 64 spread samples."""
        path, name, args, _ = self.source
        digest = hashlib.sha256(json.dumps([name, args, self.length, str(getattr(self.items, "version", ""))]).encode())
        digest.update(pathlib.Path(path).read_bytes())
        for i in sorted({k * (self.length - 1) // 63 for k in range(64)}):
            inputs, target = self.checked(i, *self.sample(i, 0))
            for tensor in (inputs, target):
                digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if has_numpy() else bytes(
                    tensor.contiguous().view(-1).view(torch.uint8).tolist()))
        return digest.hexdigest()


def has_numpy():
    return importlib.util.find_spec("numpy") is not None


def type_with_place(fault, place):
    text = "".join(traceback.format_exception(type(fault), fault, fault.__traceback__))
    frames = traceback.extract_tb(fault.__traceback__)
    own = [f for f in frames if pathlib.Path(f.filename).parent != HERE] or frames
    return Fault(f"{own[-1].filename}:{own[-1].lineno}: {place}: {type(fault).__name__}: {fault}\n{text.rstrip()}")


def as_input(value):
    """Tensors as they are, in float32 or int64; pictures (PIL, uint8 arrays of rows, columns, channels) in 0 to 1, channels
    first."""
    if type(value).__module__.startswith("PIL"):
        import numpy
        value = numpy.asarray(value)
    if not isinstance(value, torch.Tensor):
        is_picture = getattr(value, "dtype", None) == "uint8" and getattr(value, "ndim", 0) in (2, 3)
        value = torch.as_tensor(value)
        if is_picture:
            value = value.unsqueeze(2) if value.dim() == 2 else value
            value = value.permute(2, 0, 1)
    if value.dtype == torch.uint8:
        return value.to(torch.float32).div_(255)
    return value.to(torch.float32) if value.is_floating_point() or value.dtype == torch.bool else value.to(torch.int64)


def kind_of(inputs, target):
    """class, soft, values or tokens, by the look of the first sample."""
    tensor = torch.as_tensor(target)
    if tensor.is_floating_point():
        return "values"
    return "class" if tensor.dim() == 0 else "tokens"


def make_dataset(path, name, args, targets, classes, seed, what):
    data = DataSet(path, name, args, targets, classes, seed, what)
    is_tokens = data.input_dtype == torch.int64
    return [data, data.length, data.input_shape, is_tokens, data.target_kind, data.num_classes, data.target_shape]


def read_samples(data, indices, epoch):
    return list(data.read(indices.tolist(), epoch))


def digest(data):
    return data.digest()


# --- workers that read samples -----------------------------------------------------------------------------------------

worker_data = None


def start_workers(data, num_workers):
    """Processes that read whole batches; spawned, as a process of MPI must not be forked."""
    import concurrent.futures
    import multiprocessing
    path, name, args, what = data.source
    begin = (os.getpid(), list(sys.path), path, name, args, data.target_kind, data.num_classes, data.seed, what)
    return concurrent.futures.ProcessPoolExecutor(num_workers, multiprocessing.get_context("spawn"), begin_worker, begin)


def begin_worker(parent, path_list, path, name, args, targets, classes, seed, what):
    global worker_data
    threading.Thread(target=end_with, args=(parent,), daemon=True).start()
    for folder in path_list:
        if folder not in sys.path:
            sys.path.append(folder)
    torch.set_num_threads(1)
    worker_data = DataSet(path, name, args, targets, classes, seed, what)


def end_with(parent):
    """A worker whose rank was killed ends too."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def read_in_worker(indices, epoch):
    """Bytes, not tensors: these would go through shared memory, of which a container may have little."""
    try:
        return [(t.numpy() if has_numpy() else t) for t in worker_data.read(indices, epoch)]
    except Fault as fault:
        return str(fault)


def read_samples_by_worker(pool, indices, epoch):
    from concurrent.futures.process import BrokenProcessPool
    try:
        parts = pool.submit(read_in_worker, indices.tolist(), epoch).result()
    except BrokenProcessPool as fault:
        raise Fault("a worker of the data set ended (killed, or its start failed: see above); start the run again, it goes "
                    "on from its last save") from fault
    if isinstance(parts, str):
        raise Fault(parts)
    return [torch.as_tensor(part) for part in parts]


def end_workers(pool):
    pool.shutdown(wait=True, cancel_futures=True)
