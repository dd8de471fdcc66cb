"""script.py FOLDER_OF_GLUE save CLASS FILE: the class as TorchScript.
script.py FOLDER_OF_GLUE state FILE: its state_dict as JSON.
script.py FOLDER_OF_GLUE run FILE CLASS DIGITS.csv: what it and the class with its weights give for the digits' test split, as
JSON."""
import csv
import json
import pathlib
import sys

sys.path.append(sys.argv[1])
from lockstep_glue.torch_import import torch  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import nets  # noqa: E402

if sys.argv[2] == "save":
    torch.manual_seed(5)
    torch.jit.script(getattr(nets, sys.argv[3])()).save(sys.argv[4])
elif sys.argv[2] == "state":
    print(json.dumps({name: tensor.flatten().tolist() for name, tensor in torch.jit.load(sys.argv[3]).state_dict().items()}))
else:
    net = torch.jit.load(sys.argv[3])
    own = getattr(nets, sys.argv[4])().eval()
    own.load_state_dict(net.state_dict())
    with open(sys.argv[5]) as file:
        rows = torch.tensor([[float(field) for field in row] for row in csv.reader(file)])[4::5]
    inputs, classes = rows[:, :64].view(-1, 1, 8, 8) / 16, rows[:, 64].long()
    with torch.no_grad():
        outputs = net(inputs)
        difference = (outputs - own(inputs)).abs().max().item()
    matrix = torch.zeros(10, 10, dtype=torch.int64)
    for of, chosen in zip(classes, outputs.argmax(1)):
        matrix[of, chosen] += 1
    print(json.dumps({"training": net.training, "difference": difference, "confusion_matrix": matrix.tolist(),
                      "loss": torch.nn.functional.cross_entropy(outputs.double(), classes).item(),
                      "zeros": sum(int((p == 0).sum()) for p in net.parameters() if p.dim() > 1),
                      "weights": {name: tensor.flatten().tolist() for name, tensor in net.state_dict().items()}}))
