"""odd_nets.Branches in plain PyTorch: reference_branches.py FOLDER_OF_GLUE STEPS BATCH momentum|adamw -> losses, one a line."""
import pathlib
import sys

sys.path.append(sys.argv[1])
from lockstep_glue.torch_import import torch  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import odd_nets  # noqa: E402
import sets  # noqa: E402

torch.set_num_threads(1)
torch.manual_seed(17)
num_steps, batch = int(sys.argv[2]), int(sys.argv[3])
net, data = odd_nets.Branches(), sets.Points()
groups = [{"params": [p for n, p in net.named_parameters() if n.endswith("weight")], "weight_decay": 0.1},
          {"params": [p for n, p in net.named_parameters() if n.endswith("bias")], "weight_decay": 0}]
optimizer = torch.optim.AdamW(groups, lr=0.05) if sys.argv[4] == "adamw" else torch.optim.SGD(groups, lr=0.2, momentum=0.9)
at = 0
for _ in range(num_steps):
    at = 0 if at >= len(data) else at
    rows = range(at, min(at + batch, len(data)))
    at += batch
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(net(torch.stack([data[i][0] for i in rows])), torch.stack([data[i][1] for i in rows]))
    loss.backward()
    optimizer.step()
    print(repr(loss.item()))
