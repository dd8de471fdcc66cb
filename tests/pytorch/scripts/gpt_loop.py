"""The form of nanoGPT's loop: torchrun ... gpt_loop.py BACKEND FOLDER

Accumulation by require_backward_sync, gradient clipping, a cosine schedule with warm-up, and random batches of a token array.
"""
import contextlib
import math
import os
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP

import lockstep  # noqa: F401, which registers the backend

vocabulary, block_size, width, heads, layers = 64, 32, 48, 4, 2
batch_size, gradient_accumulation_steps = 4, 4
max_iters, warmup_iters, eval_interval, eval_iters = 8, 2, 4, 2
learning_rate, min_lr, weight_decay, grad_clip = 1e-2, 1e-3, 0.1, 1.0


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(block_size, width)
        self.blocks = nn.ModuleList([nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True,
                                                                norm_first=True) for _ in range(layers)])
        self.ln_f, self.lm_head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(idx.shape[1])
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        logits = self.lm_head(self.ln_f(x))
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def configure_optimizers(self):
        decayed = [p for p in self.parameters() if p.dim() >= 2]
        others = [p for p in self.parameters() if p.dim() < 2]
        return torch.optim.AdamW([{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}],
                                 lr=learning_rate, betas=(0.9, 0.95))


def get_batch(data):
    starts = torch.randint(len(data) - block_size, (batch_size,))
    return (torch.stack([data[i:i + block_size] for i in starts]), torch.stack([data[i + 1:i + 1 + block_size] for i in starts]))


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    progress = (it - warmup_iters) / (max_iters - warmup_iters)
    return min_lr + 0.5 * (1 + math.cos(math.pi * progress)) * (learning_rate - min_lr)


@torch.no_grad()
def estimate_loss(model, data):
    model.eval()
    losses = [model(*get_batch(data))[1].item() for _ in range(eval_iters)]
    model.train()
    return sum(losses) / eval_iters


def main(backend, _folder, dtype="float32"):
    global gradient_accumulation_steps
    ddp = int(os.environ.get("RANK", -1)) != -1
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if ddp:
        init_process_group(backend=backend)
        assert gradient_accumulation_steps % world_size == 0
        gradient_accumulation_steps //= world_size
    torch.manual_seed(1337)
    data = torch.randint(0, vocabulary, (1000,)).cumsum(0) % vocabulary
    raw_model = GPT()
    torch.manual_seed(1337 + rank)
    optimizer = raw_model.configure_optimizers()
    model = DDP(raw_model) if ddp else raw_model
    ctx = contextlib.nullcontext() if dtype == "float32" else torch.autocast("cpu", getattr(torch, dtype))
    for it in range(max_iters):
        for group in optimizer.param_groups:
            group["lr"] = get_lr(it)
        if it % eval_interval == 0 and rank == 0:
            print(f"loss {estimate_loss(raw_model, data)!r} of the estimate")
        for micro_step in range(gradient_accumulation_steps):
            if ddp:
                model.require_backward_sync = micro_step == gradient_accumulation_steps - 1
            with ctx:
                _, loss = model(*get_batch(data))
            (loss / gradient_accumulation_steps).backward()
            print(f"loss {loss.item()!r}")
        nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    if ddp:
        destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
