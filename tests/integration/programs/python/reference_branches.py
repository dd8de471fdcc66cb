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


def adamw(parameter, state, decay):
    """torch.optim.AdamW, which needs modules that are not here."""
    step = state["step"] = state.get("step", 0) + 1
    parameter.mul_(1 - 0.05 * decay)
    for name, beta, value in (("m", 0.9, parameter.grad), ("v", 0.999, parameter.grad ** 2)):
        state[name] = beta * state.get(name, torch.zeros_like(parameter)) + (1 - beta) * value
    parameter -= 0.05 * state["m"] / (1 - 0.9 ** step) / ((state["v"] / (1 - 0.999 ** step)).sqrt() + 1e-8)


def momentum(parameter, state, decay):
    """torch.optim.SGD."""
    state["m"] = 0.9 * state.get("m", torch.zeros_like(parameter)) + parameter.grad + decay * parameter
    parameter -= 0.2 * state["m"]


update, states = {"adamw": adamw, "momentum": momentum}[sys.argv[4]], {name: {} for name, _ in net.named_parameters()}
at = 0
for _ in range(num_steps):
    at = 0 if at >= len(data) else at
    rows = range(at, min(at + batch, len(data)))
    at += batch
    net.zero_grad()  # to None
    loss = torch.nn.functional.cross_entropy(net(torch.stack([data[i][0] for i in rows])), torch.stack([data[i][1] for i in rows]))
    loss.backward()
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if parameter.grad is not None:
                update(parameter, states[name], 0.1 if name.endswith("weight") else 0)
    print(repr(loss.item()))
