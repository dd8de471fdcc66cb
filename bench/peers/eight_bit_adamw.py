"""The side of bitsandbytes in bench/moments: prints "result MS", the median of 5 steps. 20 M weights in 32 tensors."""
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/support"))
from cpu_torch import torch
from bitsandbytes.optim import AdamW8bit

torch.set_num_threads(1)
parameters = [torch.nn.Parameter(torch.randn(625, 1000)) for _ in range(32)]
for parameter in parameters:
    parameter.grad = torch.randn_like(parameter)
optimizer = AdamW8bit(parameters, lr=0.001)
optimizer.step()
times_ms = []
for _ in range(5):
    start = time.perf_counter()
    optimizer.step()
    times_ms.append(1000 * (time.perf_counter() - start))
print("result", statistics.median(times_ms))
