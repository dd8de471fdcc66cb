"""programs_of_nets.py FILES.py NETWORK WEIGHTS.safetensors PROGRAM.pt2 GRAPH.onnx: runs both exports, in plain PyTorch and onnxruntime, and the
network itself in PyTorch on the same inputs, with other numbers of samples than the one that was traced. Prints the largest differences and facts."""
import importlib.util
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "support"))
from cpu_torch import torch  # noqa: E402

import onnxruntime  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

path, name, weights, program_file, graph_file = sys.argv[1:]
spec = importlib.util.spec_from_file_location("files", path)
files = importlib.util.module_from_spec(spec)
spec.loader.exec_module(files)
network = getattr(files, name)()
missing, unexpected = network.load_state_dict(load_file(weights), strict=False)
names = {name for name, _ in network.named_parameters()}
assert not unexpected and not names & set(missing), (missing, unexpected)  # tied weights have one name in the file
network.eval()
facts = {"step": "", "source": "", "producer": ""}
program = torch.export.load(program_file, extra_files=facts).module()
session = onnxruntime.InferenceSession(graph_file, providers=["CPUExecutionProvider"])
argument, = session.get_inputs()
torch.manual_seed(1)
differences = {"pt2": 0.0, "onnx": 0.0}
for samples in (1, 3, 8):
    shape = [samples, *argument.shape[1:]]
    inputs = torch.randint(30, shape) if argument.type == "tensor(int64)" else torch.rand(shape)
    with torch.no_grad():
        expected, traced = network(inputs), program(inputs)
    graph = torch.from_numpy(session.run(["logits"], {"inputs": inputs.numpy()})[0])
    assert expected.abs().max() > 1e-3
    for form, outputs in (("pt2", traced), ("onnx", graph)):
        assert outputs.shape == expected.shape
        differences[form] = max(differences[form], (outputs - expected).abs().max().item())
print(json.dumps({"differences": differences, "pt2": facts, "onnx": session.get_modelmeta().custom_metadata_map}))
