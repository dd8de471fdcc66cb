"""The form of Accelerate's examples: torchrun ... accelerate_loop.py BACKEND FOLDER

On CPUs, Accelerate takes gloo unless a process group exists, so the script creates one before.
"""
import sys

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lockstep  # noqa: F401, which registers the backend


def make_loader(num_samples, shuffle):
    data = TensorDataset(torch.randn(num_samples, 20), torch.randint(0, 3, (num_samples,)))
    return DataLoader(data, batch_size=8, shuffle=shuffle)


def train(accelerator, model, optimizer, scheduler, loader):
    model.train()
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        print(f"loss {accelerator.reduce(loss.detach(), reduction='mean').item()!r}")


def evaluate(accelerator, model, loader):
    model.eval()
    outputs, targets = [], []
    for batch in loader:
        with torch.no_grad():
            found = accelerator.gather_for_metrics((model(batch[0]), batch[1]))
        outputs.append(found[0])
        targets.append(found[1])
    print(f"loss {F.cross_entropy(torch.cat(outputs), torch.cat(targets)).item()!r} of {len(torch.cat(targets))} samples")


def main(backend, folder):
    torch.distributed.init_process_group(backend)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    set_seed(42)
    model = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=20)
    loaders = make_loader(96, shuffle=True), make_loader(30, shuffle=False)
    model, optimizer, scheduler, train_loader, eval_loader = accelerator.prepare(model, optimizer, scheduler, *loaders)
    for epoch in range(2):
        train(accelerator, model, optimizer, scheduler, train_loader)
        evaluate(accelerator, model, eval_loader)
        accelerator.save_state(f"{folder}/epoch_{epoch}")
    accelerator.load_state(f"{folder}/epoch_0")
    train(accelerator, model, optimizer, scheduler, train_loader)
    accelerator.end_training()


if __name__ == "__main__":
    main(*sys.argv[1:])
