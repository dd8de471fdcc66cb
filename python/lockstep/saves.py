"""The saves of a run: which is the newest, and its weights as tensors."""
import json
import pathlib
import struct
import tempfile

from .programs import Error, call_tool

EXIT_INPUT_MISSING = 66


def folder_of_saves(path):
    """`path` may be a run's folder, which holds `checkpoints`, or that folder itself."""
    inner = pathlib.Path(path) / "checkpoints"
    return inner if inner.is_dir() else pathlib.Path(path)


def latest_checkpoint(folder):
    """The prefix of the newest complete save of a run, or of a folder of saves, such as runs/digits/checkpoints/model.ckpt-690. Error: there is none,
    or none is whole; the message names each defect."""
    return call_tool("ckpt", "latest", folder_of_saves(folder)).strip()


def find_save(path, step):
    """What the tool is asked for: the folder, whose newest whole save it takes, or the save of that step."""
    folder = folder_of_saves(path)
    if step is None:
        return folder
    saves = {index.stem.rpartition("-")[2]: index.with_suffix("") for index in folder.glob("*.index")}
    if str(step) not in saves:
        steps = ", ".join(sorted(filter(str.isdigit, saves), key=int)) or "none"
        raise Error(f"[checkpoint] {folder}: no checkpoint of step {step}; steps saved: {steps}", EXIT_INPUT_MISSING)
    return saves[str(step)]


def load_state_dict(path, step=None, network=None):
    """A save's weights and buffers: {name in the network: tensor on the CPU}, as `load_state_dict` of a torch.nn.Module takes them.

    path: a run's folder, the folder of its saves (either: the newest whole save), or a save's prefix. step: that save of the folder. network: a
    module with tied weights, of which a save holds one name; the others are added. Pruned weights are 0. A layer trained for int8 has its scales
    beside its weight (docs/quantization.md). Error: no such save, damage (each checksum is verified), another torch.
    """
    with tempfile.TemporaryDirectory(prefix="lockstep-") as scratch:
        file = pathlib.Path(scratch) / "weights.safetensors"
        call_tool("ckpt", "export", find_save(path, step), "--format", "safetensors", "-o", file)
        state = read_safetensors(file)
    if network is not None:
        tensors = network.state_dict(keep_vars=True)
        saved = {id(tensor): state[name] for name, tensor in tensors.items() if name in state}
        state.update({name: saved[id(tensor)] for name, tensor in tensors.items() if name not in state and id(tensor) in saved})
    return state


def read_safetensors(file):
    """The tensors of a file that the tool wrote: 8 bytes with the length of a JSON header, the header, the values."""
    import torch
    dtypes = {"F32": torch.float32, "F64": torch.float64, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
              "I32": torch.int32, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool}
    with open(file, "rb") as stream:
        header = json.loads(stream.read(struct.unpack("<Q", stream.read(8))[0]))
        begin = stream.tell()
    values = torch.from_file(str(file), size=file.stat().st_size, dtype=torch.uint8)[begin:]
    header.pop("__metadata__", None)
    # A copy of each, which is aligned as its type wants and stays when the file is gone.
    return {name: values[slice(*entry["data_offsets"])].clone().view(dtypes[entry["dtype"]]).view(entry["shape"]) for name, entry in header.items()}
