"""Training steps of a random model with transformers and torch.compile, for compare.

    compare_peer.py CONFIG.json ROWS LENGTH STEPS model|layers|nothing

Prints the median milliseconds of a step, the peak of GPU memory in GiB, and the seconds from the
start of this program to the end of the first step.
"""

import statistics
import sys
import time

start = time.perf_counter()

import torch
from transformers import AutoConfig, AutoModelForCausalLM

rows, length, steps = (int(v) for v in sys.argv[2:5])
config = AutoConfig.from_pretrained(sys.argv[1])
if config.model_type == "qwen3_moe":
    config._experts_implementation = "grouped_mm"
torch.manual_seed(0)
with torch.device("cuda"):
    model = AutoModelForCausalLM.from_config(
        config, dtype=torch.bfloat16, attn_implementation="sdpa"
    )
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
compiled = model
if sys.argv[5] == "layers":
    for layer in model.model.layers:
        layer.compile()
    model.loss_function = torch.compile(model.loss_function)
elif sys.argv[5] == "model":
    compiled = torch.compile(model)
times = []
for step in range(steps):
    ids = torch.randint(config.vocab_size, (rows, length), device="cuda")
    torch.cuda.synchronize()
    begin = time.perf_counter()
    loss = compiled(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    times.append(time.perf_counter() - begin)
    if step == 0:
        first = time.perf_counter() - start
print(
    statistics.median(times[3:]) * 1e3, torch.cuda.max_memory_allocated() / 2**30, first
)
