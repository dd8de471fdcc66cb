"""Folders of save_pretrained() in the hands of transformers.

pretrained.py write FOLDER NETWORK SHARD_BYTES: writes a network of pretrained_nets.py with weights of its own.
pretrained.py read FOLDER CLASS: opens the folder with a class of transformers; what the file lacks is an error.
Both print the SHA-256 of each tensor's bytes by name.
"""
import hashlib
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "support"))
from cpu_torch import torch  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import pretrained_nets  # noqa: E402
import transformers  # noqa: E402


def write(folder, name, shard_bytes):
    torch.manual_seed(9)
    network = getattr(pretrained_nets, name)()
    with torch.no_grad():
        for parameter in network.parameters():  # ones and zeros too
            parameter.add_(torch.rand_like(parameter))
    network.save_pretrained(folder, max_shard_size=int(shard_bytes))
    return network


def read(folder, name):
    network, found = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
    assert not any(found[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys")), found
    return network


network = {"write": write, "read": read}[sys.argv[1]](*sys.argv[2:])
print(json.dumps({name: hashlib.sha256(bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist())).hexdigest()
                  for name, tensor in network.state_dict().items()}))
