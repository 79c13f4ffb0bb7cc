"""Training steps of a random model with transformers under FSDP2, for ranks; by torchrun.

    ranks_peer.py CONFIG.json ROWS LENGTH STEPS eager|compiled|checkpointed|tensor

ROWS a rank; each layer is a unit, and compiled, or its activations are computed again, or not.
tensor: no FSDP2, but products in parts over all ranks (DTensor), compiled, and a micro-batch of
ROWS a step for each rank, which all share.  Rank 0 prints the median milliseconds of a step and the peak of GPU memory in GiB.
"""

import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from transformers import AutoConfig, AutoModelForCausalLM

rows, length, steps = (int(v) for v in sys.argv[2:5])
how = sys.argv[5]
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
config = AutoConfig.from_pretrained(sys.argv[1])
if config.model_type == "qwen3_moe":
    config._experts_implementation = "grouped_mm"
with torch.device("meta"):
    model = AutoModelForCausalLM.from_config(
        config, dtype=torch.bfloat16, attn_implementation="sdpa"
    )
if how == "checkpointed":
    model.gradient_checkpointing_enable({"use_reentrant": False})
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
cut = {
    f"{block}.{name}_proj": style
    for block, names, style in (
        ("self_attn", "qkv", ColwiseParallel()),
        ("self_attn", "o", RowwiseParallel()),
        ("mlp", ("gate", "up"), ColwiseParallel()),
        ("mlp", ("down",), RowwiseParallel()),
    )
    for name in names
}
if how == "tensor":
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    head = ColwiseParallel(output_layouts=Replicate())
    parallelize_module(model, mesh, {"lm_head": head})
for layer in model.model.layers:
    if how == "tensor":
        parallelize_module(layer, mesh, cut)
    if how in ("compiled", "tensor"):
        layer.compile()
    if how != "tensor":
        fully_shard(layer, mp_policy=policy)
if how in ("compiled", "tensor"):
    model.loss_function = torch.compile(model.loss_function)
if how != "tensor":
    fully_shard(model, mp_policy=policy)
model.to_empty(device=device)
torch.manual_seed(0)
with torch.no_grad():
    for p in model.parameters():
        p.fill_(1.0) if p.ndim == 1 else p.normal_(
            0.0, config.initializer_range
        )
# Its buffers are in no checkpoint, and empty now.
model.model.rotary_emb = type(model.model.rotary_emb)(config).to(device)
model.train()
# One optimizer takes no two kinds of parameters.
kinds = [
    [p for p in model.parameters() if isinstance(p, DTensor) == kind]
    for kind in (True, False)
]
optimizers = [torch.optim.AdamW(k, lr=1e-4, fused=True) for k in kinds if k]
times = []
for step in range(steps):
    micros = [
        torch.randint(config.vocab_size, (rows, length), device=device)
        for _ in range(dist.get_world_size() if how == "tensor" else 1)
    ]
    torch.cuda.synchronize()
    dist.barrier()
    begin = time.perf_counter()
    for ids in micros:
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    times.append(time.perf_counter() - begin)
if dist.get_rank() == 0:
    print(
        statistics.median(times[3:]) * 1e3, torch.cuda.max_memory_allocated() / 2**30
    )
    print([round(t, 3) for t in times], loss.item(), file=sys.stderr)
dist.destroy_process_group()
