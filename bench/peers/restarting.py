"""The peer of `lockstep run`: the same small network under torchrun, which restarts it when a rank is lost.

    restarting.py launch FOLDER [--max-restarts N]     torchrun with 2 ranks of `restarting.py train FOLDER`

Rank 0 appends a line to FOLDER/steps for each step that has ended, and saves every 20th; a restarted world goes on from there.
LOCKSTEP_TORCH is the folder `torch` of the wheel.
"""
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/support"))
from cpu_torch import torch

RANKS, SAVE_EVERY, BATCH = 2, 20, 32


def launch(folder, restarts):
    from torch.distributed import run
    run.main(["--standalone", f"--nproc-per-node={RANKS}", f"--max-restarts={restarts}", __file__, "train", folder])


def network():
    nn = torch.nn
    return nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10))  # 26,000 weights, as digits_net


def train(folder):
    import torch.distributed as dist
    dist.init_process_group("gloo")
    rank, folder = dist.get_rank(), pathlib.Path(folder)
    torch.set_num_threads(1)
    torch.manual_seed(17)
    model = network()
    save, step = folder / "save.pt", 0
    if save.exists():
        state = torch.load(save)
        model.load_state_dict(state["model"])
        step = state["step"]
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.01, momentum=0.9)
    (folder / f"rank{rank}.pid").write_text(str(os.getpid()))
    inputs, targets = torch.randn(BATCH, 1, 8, 8), torch.randint(10, (BATCH,))
    with open(folder / "steps", "a", encoding="ascii") as steps:
        while True:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(parallel(inputs), targets).backward()
            optimizer.step()
            step += 1
            if rank == 0:
                if step % SAVE_EVERY == 0:
                    torch.save({"model": model.state_dict(), "step": step}, folder / "save.tmp")
                    os.replace(folder / "save.tmp", save)
                steps.write(f"{step}\n")
                steps.flush()


if __name__ == "__main__":
    if sys.argv[1] == "launch":
        launch(sys.argv[2], sys.argv[3])
    else:
        train(sys.argv[2])
