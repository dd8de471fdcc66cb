"""Contests of bench/sync between two hosts with a link between them."""
import dataclasses

import runs
from contests import Row, over
from local_contests import ALONE, LARGE_MIB, MLP, WIDE, AllreduceContest
from step_contest import UNHIDDEN, StepContest, alone_at_once

PLACES = ((1, 1), (0.5, 1), (2.5, 1), (1, 2))  # Gbit/s and ranks on each of the two hosts
PROTOCOL_SHARE = 1448 / 1514  # of a link's rate is left for data: MTU 1500, IPv4, TCP with time stamps

FEW = {"peer_steps": 8, "peer_warm": 2}
DENSE_64 = dataclasses.replace(MLP, name="mlp64", batch=64, warm=15, steps=23, **FEW)
DENSE_128 = dataclasses.replace(WIDE, name="wide128", batch=128, warm=15, steps=23, **FEW)
SPARSE_90 = dataclasses.replace(MLP, sparsity=0.9, warm=30, steps=60, **FEW)
SPARSE_99 = dataclasses.replace(SPARSE_90, sparsity=0.99)
RESNET = runs.Job("resnet", 8, network="ResNet18", model="{type: resnet18, stem: cifar}", shape=(3, 32, 32), samples=128, steps=36, warm=16,
                  peer_steps=23, peer_warm=3)
GPT = runs.Job("gpt", 8, network="Gpt", arguments='{"vocabulary": 512, "context": 64, "layers": 4, "heads": 4, "width": 256}',
               model="{type: gpt, layers: 4, heads: 4, width: 256}", context=64, num_classes=512, samples=480, optimizer="adamw",
               learning_rate=1e-3, steps=46, warm=20, peer_steps=25, peer_warm=5)
SPARSE_WIDE = dataclasses.replace(WIDE, warm=30, steps=50, peer_steps=20, peer_warm=5)


def wire_s(num_bytes, gbit):
    """The least time for so many bytes in one direction of the link."""
    return 8 * num_bytes / (1e9 * gbit * PROTOCOL_SHARE)


def gradient_bytes(job):
    return 4 * sum((a + 1) * b for a, b in zip(job.widths, job.widths[1:]))


def link_contests(build, link):
    if link.world_size > 2:
        return contests_of_four(build, link)
    return contests_at_1_gbit(build, link) if link.gbit == 1 else contests_of_wide(build, link)


def contests_of_four(build, link):
    """Two ranks on each host. A ring of four sends 1.5 times the gradients over the link, sums by host once: so 1.5 without compute. All four compute on
    this machine's cores: the limit is what four that send nothing take, or the wire."""
    def contest(name, job, goal, mode="tuned", peer="DDP tuned"):
        wire = wire_s(gradient_bytes(job) * (1 - job.sparsity), link.gbit)
        least = f"max(four alone, wire of {1e3 * wire:.0f} ms)"
        return StepContest(f"{name}: wide, batch 16, 4 ranks on {link.name}", build, job, link, [mode],
                           [over(peer, goal),
                            Row(f"step / {least}", lambda times: times["ours"] / max(times["four alone"], wire)),
                            Row(f"{peer} / {least}: the limit", lambda times: times[peer] / max(times["four alone"], wire))],
                           {"four alone": alone_at_once(4)})
    dense = dataclasses.replace(WIDE, warm=15, steps=23, **FEW)
    return [contest("link-4-dense", dense, 1.3), contest("link-4-90", dataclasses.replace(SPARSE_WIDE, sparsity=0.9), 6),
            contest("link-4-sharded", dataclasses.replace(dense, shard_optimizer=True), 2, "zero", "DDP with ZeRO")]


def against_ddp(name, build, job, link):
    return StepContest(name, build, job, link, ["tuned"], [over("DDP tuned", 1)])


def contests_at_1_gbit(build, link):
    wire = wire_s(gradient_bytes(DENSE_64), link.gbit)
    return [
        AllreduceContest(
            f"link-dense: all-reduce of {LARGE_MIB} MiB, {link.name}", build, link,
            [Row(f"of what TCP can carry ({PROTOCOL_SHARE * 100:.1f} % of the rate)",
                 lambda times: 100 * wire_s(LARGE_MIB * 2**20, link.gbit) / times["ours"], 97, unit="%"),
             over("gloo"), over("MPI_Allreduce")], gloo_calls=3),
        StepContest(f"link-90: mlp, 90 % pruned, {link.name}", build, SPARSE_90, link, ["default", "tuned", "fp16", "packed"],
                    [over("DDP default", 6), over("DDP tuned", 6), over("DDP fp16", 4), over("Python packed", 1.4)]),
        StepContest(f"link-99: mlp, 99 % pruned, {link.name}", build, SPARSE_99, link, ["default", "tuned", "packed"],
                    [over("DDP default", 12), over("DDP tuned", 12), over("Python packed", 1)]),
        against_ddp(f"link-gpt: 4 layers of 256, batch 8, adamw, {link.name}", build, GPT, link),
        StepContest(f"link-overlap: mlp, batch 64, {link.name}; the wire takes {1e3 * wire:.0f} ms", build, DENSE_64, link,
                    ["tuned"],
                    [Row("step / max(compute, wire)", lambda times: times["ours"] / max(times["ours alone"], wire), 1.08,
                         at_most=True),
                     Row("(wire + unhidden) / wire: the limit", lambda times: (wire + times[UNHIDDEN]) / wire),
                     over("DDP tuned", 1)], ALONE)]


def contests_of_wide(build, link):
    wire = wire_s(gradient_bytes(DENSE_128), link.gbit)
    def sparse(sparsity):
        job = dataclasses.replace(SPARSE_WIDE, sparsity=sparsity)
        least = wire_s(gradient_bytes(job) * (1 - sparsity), link.gbit)
        goal = 1.25 if (sparsity, link.gbit) == (0.7, 0.5) else 1
        return StepContest(f"link-{100 * sparsity:.0f}: wide, batch 16, {100 * sparsity:.0f} % pruned, {link.name}", build, job, link, ["packed"],
                           [over("Python packed", goal),
                            Row(f"Python packed / wire of {1e3 * least:.0f} ms: the limit", lambda times: times["Python packed"] / least)])

    def tcp_alone(_build, job, _bucket_mb):
        return runs.Steps(runs.plain_tcp(link, gradient_bytes(job)), [])

    def limit(times):
        """A lower bound of a step: compute that cannot overlap with communication, and the time of plain TCP."""
        return times["TCP alone"] + times[UNHIDDEN]

    dense = StepContest(f"link-wide: wide, batch 128, dense, {link.name}; the wire takes {1e3 * wire:.0f} ms", build, DENSE_128,
                        link, ["default", "tuned"],
                        [over("DDP default", 1), over("DDP tuned", 1.15 if link.gbit == 2.5 else 1.02),
                         Row("DDP tuned / (TCP alone + unhidden): the limit", lambda times: times["DDP tuned"] / limit(times)),
                         Row("step / max(compute, wire)", lambda times: times["ours"] / max(times["ours alone"], wire), 1.05, at_most=True),
                         Row("(TCP alone + unhidden) / max(compute, wire): the limit", lambda times: limit(times) / max(times["ours alone"], wire))],
                        {**ALONE, "TCP alone": tcp_alone}, keep_25=True)
    mixed = [against_ddp(f"link-resnet18: 32 pixels, batch 8, {link.name}", build, RESNET, link)] if link.gbit == 2.5 else []
    return [sparse(0.7), sparse(0.95), dense, *mixed]
