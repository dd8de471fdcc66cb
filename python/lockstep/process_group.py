"""The backend "lockstep" of torch.distributed (docs/ddp.md). Importing lockstep registers the name. The first group loads the library, so that a
program without such a group pays nothing. Nothing of torch is replaced."""
import sys

from .programs import PACKAGE, torch_folder

LIBRARY = PACKAGE / "lib/lockstep/lockstep_pytorch.so"
NAME = "lockstep"


def register():
    """Makes the name known to the torch of this process. Does nothing if torch has no torch.distributed."""
    from torch import distributed
    if distributed.is_available() and NAME not in distributed.Backend.backend_list:
        distributed.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu"])


def autoload():
    """Entry point of the group `torch.backends`, which `import torch` calls. `import torch` continues after any failure."""
    try:
        register()
    except Exception as fault:
        print(f"lockstep: torch.distributed has no backend '{NAME}': {fault}", file=sys.stderr)


def load():
    """Loads the library. Error: another release of torch than the library links."""
    import torch
    if not hasattr(torch.ops.lockstep, "make_group"):
        torch_folder()
        torch.ops.load_library(str(LIBRARY))


def create(options, _backend_options=None):
    """Creates this rank's backend of a new group; torch.distributed calls it on each rank of the group."""
    load()
    import torch
    from torch._C._distributed_c10d import ProcessGroup, ProcessGroupGloo
    store, rank, size = options.store, options.group_rank, options.group_size
    gloo = ProcessGroup(store, rank, size)
    gloo._register_backend(torch.device("cpu"), ProcessGroup.BackendType.GLOO, ProcessGroupGloo(store, rank, size, timeout=options.timeout))
    gloo._set_default_backend(ProcessGroup.BackendType.GLOO)
    ranks = options.global_ranks_in_group or range(size)
    group = torch.ops.lockstep.make_group(gloo.boxed(), list(ranks), options.timeout.total_seconds())
    return ProcessGroup.unbox(group)._get_backend(torch.device("cpu"))
