"""reference_ignored.py FOLDER_OF_GLUE STEPS BATCH RATE: the losses of PyTorch's own loop on Ignored, a line each, then loss and accuracy."""
import pathlib
import sys

sys.path.append(sys.argv[1])
from lockstep_glue.torch_import import torch  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import nets  # noqa: E402
import sets  # noqa: E402

steps, batch, rate = int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
torch.manual_seed(17)
net, data = nets.Plain(), sets.Ignored()
begin = 0
for _ in range(steps):
    end = min(begin + batch, len(data))
    loss = torch.nn.functional.cross_entropy(net(data.inputs[begin:end]), data.labels[begin:end])
    net.zero_grad()
    loss.backward()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter -= rate * parameter.grad
    print(loss.item())
    begin = end % len(data)
counted = data.labels != -100
with torch.no_grad():
    outputs = net(data.inputs)
    print(torch.nn.functional.cross_entropy(outputs, data.labels).item(), (outputs.argmax(1)[counted] == data.labels[counted]).float().mean().item())
