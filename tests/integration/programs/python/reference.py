"""The same training in plain PyTorch: reference.py FOLDER_OF_GLUE STEPS BATCH RATE -> losses, one a line."""
import pathlib
import sys

sys.path.append(sys.argv[1])
from lockstep_glue.torch_import import torch  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import nets  # noqa: E402
import sets  # noqa: E402

torch.set_num_threads(1)
torch.manual_seed(17)
num_steps, batch, rate = int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
net, data = nets.Plain(), sets.Points()
at = 0
for _ in range(num_steps):
    at = 0 if at >= len(data) else at
    rows = range(at, min(at + batch, len(data)))
    at += batch
    inputs = torch.stack([data[i][0] for i in rows])
    targets = torch.stack([data[i][1] for i in rows])
    net.zero_grad()
    loss = torch.nn.functional.cross_entropy(net(inputs), targets)
    loss.backward()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter -= rate * parameter.grad
    print(repr(loss.item()))
