"""Training steps of a random model with transformers' layers under torch.distributed.pipelining, for
ranks; by torchrun.

    pipelines_peer.py CONFIG.json ROWS LENGTH MICROS STEPS SCHEDULE[:STAGES]...

ROWS of each of MICROS micro-batches.  Rank 0 prints a line a schedule: its name as given, the median
milliseconds of a step, the peak of GPU memory in GiB.  Layers are not compiled: what splits a
backward in halves looks into the graph of single operations.
"""

import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules
from transformers import AutoConfig
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3DecoderLayer,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
)

kinds = {
    "gpipe": schedules.ScheduleGPipe,
    "1f1b": schedules.Schedule1F1B,
    "1f1b:2": schedules.ScheduleInterleaved1F1B,
    "looped_bfs:2": schedules.ScheduleLoopedBFS,
    "1f1b:2:zero_bubble": schedules.ScheduleInterleavedZeroBubble,
    "zero_bubble_v": schedules.ScheduleZBVZeroBubble,
    "dual_pipe_v": schedules.ScheduleDualPipeV,
}
in_a_v = ("zero_bubble_v", "dual_pipe_v")


class Stage(nn.Module):
    def __init__(self, config, index, count):
        super().__init__()
        n = config.num_hidden_layers
        first, end = index * n // count, (index + 1) * n // count
        self.embed = (
            nn.Embedding(config.vocab_size, config.hidden_size) if index == 0 else None
        )
        self.layers = nn.ModuleList(
            Qwen3DecoderLayer(config, i) for i in range(first, end)
        )
        self.rotary = Qwen3RotaryEmbedding(config)
        last = index == count - 1
        self.norm = (
            Qwen3RMSNorm(config.hidden_size, config.rms_norm_eps) if last else None
        )
        self.head = (
            nn.Linear(config.hidden_size, config.vocab_size, bias=False)
            if last
            else None
        )

    def forward(self, x):
        if self.embed is not None:
            x = self.embed(x)
        positions = torch.arange(x.shape[1], device=x.device)[None]
        rope = self.rotary(x, positions)
        for layer in self.layers:
            x = layer(x, attention_mask=None, position_embeddings=rope)
            x = x[0] if isinstance(x, tuple) else x
        return x if self.head is None else self.head(self.norm(x))


def loss_of(logits, labels):
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


rows, length, micros, steps = (int(v) for v in sys.argv[2:6])
gpu = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else "cpu"
if gpu:
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
else:
    dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
config = AutoConfig.from_pretrained(sys.argv[1])
config._attn_implementation = "sdpa"


def indices_of(name):
    """The stages of this rank."""
    if name in in_a_v:
        return [rank, 2 * ranks - 1 - rank]
    return [rank, ranks + rank] if ":2" in name else [rank]


def shapes_of(index, count):
    """What goes in and comes out: else it is sent around, which fails within a rank."""
    ids = torch.empty(rows, length, dtype=torch.int64, device="meta")
    hidden = torch.empty(
        rows, length, config.hidden_size, dtype=torch.bfloat16, device="meta"
    )
    logits = torch.empty(
        rows, length, config.vocab_size, dtype=torch.bfloat16, device="meta"
    )
    return ids if index == 0 else hidden, logits if index == count - 1 else hidden


def stages_of(name):
    indices = indices_of(name)
    count = len(indices) * ranks
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        modules = [Stage(config, i, count) for i in indices]
    torch.set_default_dtype(torch.float32)
    stages = [
        PipelineStage(m, i, count, device, *shapes_of(i, count))
        for m, i in zip(modules, indices)
    ]
    for s in stages if name in in_a_v else ():
        s._get_init_p2p_neighbors_ops = list  # of a rank to itself, which gloo has not
    return modules, stages


def train(name):
    torch.manual_seed(rank)
    modules, stages = stages_of(name)
    given = stages[0] if len(stages) == 1 else stages
    schedule = kinds[name](given, micros, loss_fn=loss_of)
    parameters = [p for m in modules for p in m.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=gpu)
    last = any(s.is_last for s in stages)
    first = any(s.is_first for s in stages)
    times = []
    for _ in range(steps):
        ids = torch.randint(config.vocab_size, (rows * micros, length), device=device)
        if gpu:
            torch.cuda.synchronize()
        dist.barrier()
        begin = time.perf_counter()
        args = (ids,) if first else ()
        schedule.step(*args, **({"target": ids} if last else {}))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if gpu:
            torch.cuda.synchronize()
        dist.barrier()
        times.append(time.perf_counter() - begin)
    return times


for name in sys.argv[6:]:
    if gpu:
        torch.cuda.reset_peak_memory_stats()
    times = train(name)
    gib = torch.cuda.max_memory_allocated() / 2**30 if gpu else 0
    if rank == 0:
        print(name, statistics.median(times[3:]) * 1e3, gib, flush=True)
        print(name, [round(t, 3) for t in times], file=sys.stderr, flush=True)
dist.destroy_process_group()
