"""Networks of the user's in the formats of other programs, and networks of transformers from its folders."""
import contextlib
import copy
import importlib.util
import inspect
import io
import linecache
import logging
import pathlib
import re
import sys
import traceback
import warnings

from .faults import Fault
from .models import outputs_of
from .torch_import import torch
from .user_modules import FOLDERS

MOST_ONNX_BYTES = 1536 << 20  # with more, the exporter puts weights into a second file
# Packages that a format needs besides torch, which names some of them as its own.
NEEDED = {"pt2": ("sympy",), "onnx": ("sympy", "onnx", "onnxscript")}


def base_of_transformers(module):
    """The class of transformers that a module is of, or None. The user's own class may derive from it."""
    classes = [kind for kind in type(module).__mro__ if kind.__module__.startswith("transformers.") and hasattr(module, "config")]
    return classes[0] if any(kind.__name__ == "PreTrainedModel" for kind in classes) else None


def save_pretrained(network, folder, max_shard_bytes):
    """Writes the files of a module of transformers, weights included, and returns True. Of another module only its configuration, if it has one."""
    module = network.module
    if base_of_transformers(module) is None:
        config = getattr(module, "config", None)
        if hasattr(config, "save_pretrained"):
            config.save_pretrained(folder)
        return False
    quiet_transformers()
    module.save_pretrained(folder, max_shard_size=max_shard_bytes)
    return True


def read_pretrained(network, folder):
    """{name in the module: tensor} of a folder, for a module of transformers, which renames and joins what files hold. None for another one.
    A tensor of another shape is on the device meta: its shape is all that is needed of it."""
    base = base_of_transformers(network.module)
    if base is None:
        return None
    quiet_transformers()
    loaded, found = base.from_pretrained(folder, config=copy.deepcopy(network.module.config), dtype=torch.float32, local_files_only=True,
                                         ignore_mismatched_sizes=True, output_loading_info=True)
    state = {name: tensor for name, tensor in loaded.state_dict().items() if name not in found["missing_keys"]}
    state.update((name, torch.empty(shape, device="meta")) for name, shape, _ in found["mismatched_keys"])
    return state


def quiet_transformers():
    import transformers
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()  # Lockstep says what is missing


def export_program(network, path, form, inputs, facts):
    """Writes the network as `form`, pt2 or onnx, as torch.export traces it: in evaluation, for any number of samples. `inputs` is an example
    of two samples. Outputs in an ONNX file are `logits`, `output_1` and so on."""
    lacking = [name for name in NEEDED[form] if importlib.util.find_spec(name) is None]
    if lacking:
        raise Fault(f"--format {form} of a network in Python needs {' and '.join(lacking)}, which {sys.executable} does not have: "
                    f"pip install {' '.join(lacking)}")
    num_bytes = sum(tensor.nbytes for tensor in network.module.state_dict().values())
    if form == "onnx" and num_bytes > MOST_ONNX_BYTES:
        raise Fault(f"an ONNX file of a network in Python holds at most {MOST_ONNX_BYTES} bytes of tensors, this one has {num_bytes}: use --format pt2")
    logged = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # torch.export and the ONNX exporter log and print graphs and progress
    try:
        with torch.no_grad(), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            program = traced(network.module, inputs)
            if form == "onnx":
                outputs = ["logits", *(f"output_{i}" for i in range(1, len(program.graph_signature.user_outputs)))]
                written = torch.onnx.export(program, input_names=["inputs"], output_names=outputs, external_data=False, verbose=False)
                written.model.metadata_props.update(facts)
                written.save(path, external_data=False)
            else:
                with open(path, "wb") as file:  # by name it would need the ending .pt2
                    torch.export.save(program, file, extra_files=facts)
    except Exception as fault:
        fault = fault_of_three(network.module, inputs) or fault
        file, line, reason = place_and_reason(fault, network.module)
        raise Fault(f"{file}:{line}: {type(fault).__name__}: {reason}: --format {form} needs a forward that torch.export traces; "
                    "no branch or size may depend on values of tensors (torch.where, torch.cond), none on the number of samples\n"
                    f"    {linecache.getline(file, line).strip()}") from fault
    finally:
        logging.disable(logged)


def traced(module, inputs):
    buffers = {name: tensor.clone() for name, tensor in module.named_buffers()}  # those of a forward that writes its buffers
    returned = torch.func.functional_call(module, buffers, (inputs,))
    # Not any program can read classes of a library, such as transformers' outputs and caches.
    if not all(isinstance(part, torch.Tensor) for part in (returned if type(returned) in (tuple, list) else [returned])):
        module = Outputs(module)
    return torch.export.export(module, (inputs,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))


class Outputs(torch.nn.Module):
    """A module that returns the outputs among what another one does."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, inputs):
        return outputs_of(self.module(inputs))


def fault_of_three(module, inputs):
    """What the module itself raises for three samples, or None. Where it does, torch.export says only that the number became a constant."""
    try:
        module(torch.cat([inputs, inputs[:1]]))
    except Exception as fault:
        return fault
    return None


def place_and_reason(fault, module):
    """File and number of the innermost line of the user's code that a fault, its causes or their texts name, else of forward. The reason is the first
    line of the first cause; the others are graphs and advice on reports."""
    chain = [fault]  # the first cause first
    while chain[0].__cause__ is not None:
        chain.insert(0, chain[0].__cause__)
    reason = next((line for line in str(chain[0]).splitlines() if line.strip()), "no message").partition(" (unhinted:")[0].strip().rstrip(".:;")
    for one in chain:
        places = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(one.__traceback__)]
        places += re.findall(r'File "([^"]+)", line (\d+)', str(one))
        own = [(file, int(line)) for file, line in places
               if "site-packages" not in file and any(pathlib.Path(file).is_relative_to(folder) for folder in FOLDERS)]
        if own:
            return *own[-1], reason
    return inspect.getsourcefile(type(module)), inspect.getsourcelines(type(module).forward)[1], reason
