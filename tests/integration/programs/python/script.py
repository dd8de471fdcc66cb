"""script.py FOLDER_OF_GLUE save CLASS FILE: the class as TorchScript; script.py FOLDER_OF_GLUE run FILE: its outputs for digits
of ones to four, evaluation, as JSON."""
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
else:
    net = torch.jit.load(sys.argv[3])
    inputs = torch.arange(4.0).view(4, 1, 1, 1) / 4 * torch.ones(4, 1, 8, 8)
    print(json.dumps({"training": net.training, "outputs": net(inputs).tolist(),
                      "zeros": sum(int((p == 0).sum()) for p in net.parameters() if p.dim() > 1),
                      "weights": {name: tensor.flatten().tolist() for name, tensor in net.state_dict().items()}}))
