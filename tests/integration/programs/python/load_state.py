"""load_state.py FOLDER_OF_GLUE FILE.safetensors: loads it into the class and prints the loss over all points."""
import json
import pathlib
import struct
import sys

sys.path.append(sys.argv[1])
from lockstep_glue.torch_import import torch  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import nets  # noqa: E402
import sets  # noqa: E402

data = pathlib.Path(sys.argv[2]).read_bytes()
end = 8 + struct.unpack("<Q", data[:8])[0]
state = {}
for name, entry in json.loads(data[8:end]).items():
    if name == "__metadata__":
        continue
    dtype = {"F32": torch.float32, "I64": torch.int64}[entry["dtype"]]
    begin, stop = entry["data_offsets"]
    state[name] = torch.frombuffer(bytearray(data[end + begin:end + stop]), dtype=dtype).view(entry["shape"])
net = getattr(nets, sys.argv[3])()
missing, unexpected = net.load_state_dict(state, strict=False)
print(json.dumps({"missing": missing, "unexpected": unexpected}))
points = sets.Points()
net.eval()
print(repr(torch.nn.functional.cross_entropy(net(points.inputs), points.labels).item()))
