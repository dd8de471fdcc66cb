"""Networks of the user's in the formats of other programs, and networks of transformers from its folders."""
import copy

from .torch_import import torch


def base_of_transformers(module):
    """The class of transformers that a module is of, or None. The user's own class may derive from it."""
    if not hasattr(module, "config"):
        return None
    classes = [kind for kind in type(module).__mro__ if kind.__module__.startswith("transformers.")]
    return classes[0] if any(kind.__name__ == "PreTrainedModel" for kind in classes) else None


def save_pretrained(network, folder, max_shard_bytes):
    """Writes the files of a module of transformers, weights included, and returns True. Of another module only its configuration is
    written, if it has one."""
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
