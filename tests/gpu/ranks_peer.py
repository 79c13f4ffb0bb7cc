"""Training steps of a random model with transformers under FSDP2, for ranks; by torchrun.

    ranks_peer.py CONFIG.json ROWS LENGTH STEPS eager|compiled|checkpointed

ROWS a rank; each layer is a unit, and compiled, or its activations are computed again, or not.
Rank 0 prints the median milliseconds of a step and the peak of GPU memory in GiB.
"""

import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
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
for layer in model.model.layers:
    if how == "compiled":
        layer.compile()
    fully_shard(layer, mp_policy=policy)
if how == "compiled":
    model.loss_function = torch.compile(model.loss_function)
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
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
times = []
for step in range(steps):
    ids = torch.randint(config.vocab_size, (rows, length), device=device)
    torch.cuda.synchronize()
    dist.barrier()
    begin = time.perf_counter()
    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
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
