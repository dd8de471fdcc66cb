"""hf_reference.py FOLDER_OF_GLUE JSON -> losses of plain PyTorch's loop on whole batches, one a line; last the mean loss of all samples.

JSON: net, net_args, set, set_args, steps, batch, rate. The loss is the network's own.
"""
import json
import pathlib
import sys

sys.path.append(sys.argv[1])
from lockstep_glue.torch_import import torch  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import hf_nets  # noqa: E402
import hf_sets  # noqa: E402

job = json.loads(sys.argv[2])
torch.set_num_threads(1)
torch.manual_seed(17)
net = getattr(hf_nets, job["net"])(**job["net_args"])
net.train()
data = getattr(hf_sets, job["set"])(**job["set_args"])


def batch_of(begin, end):
    samples = list(data) if data.__getitem__ is None else [data[i] for i in range(begin, end)]
    samples = samples[begin:end] if data.__getitem__ is None else samples
    if hasattr(data, "collate_fn"):
        return data.collate_fn(samples)
    if isinstance(samples[0], hf_sets.Sample):
        samples = [{key: value for key, value in vars(sample).items() if value is not None} for sample in samples]
    return torch.utils.data.default_collate(samples)


def loss_of(batch):
    returned = net(**batch) if isinstance(batch, dict) else net(*batch)
    return returned[0]  # transformers' own order: the loss first


begin = 0
for _ in range(job["steps"]):
    end = min(begin + job["batch"], len(data))
    net.zero_grad()
    loss = loss_of(batch_of(begin, end))
    loss.backward()
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.grad is not None:
                parameter -= job["rate"] * parameter.grad
    print(repr(loss.item()))
    begin = end % len(data)
net.eval()
with torch.no_grad():
    print(repr(loss_of(batch_of(0, len(data))).item()))
