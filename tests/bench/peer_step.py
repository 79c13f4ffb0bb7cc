"""The same training steps with transformers on PyTorch eager: a line "loss milliseconds" a step.

Run by step.sh; needs torch and transformers.
"""

import argparse
import json
import time

import torch
from transformers import AutoModelForCausalLM

args = argparse.ArgumentParser()
args.add_argument("--model", required=True)
args.add_argument("--tokens", required=True)
args.add_argument("--rows", type=int, required=True)
args.add_argument("--threads", type=int, required=True)
args = args.parse_args()

torch.set_num_threads(args.threads)
with open(args.tokens, encoding="utf-8") as f:
    samples = [json.loads(line)["input_ids"] for line in f]
tokens = torch.tensor(samples)
model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
model.train()
optimizer = torch.optim.AdamW(
    model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1
)

for first in range(0, len(tokens), args.rows):
    batch = tokens[first : first + args.rows]
    start = time.perf_counter()
    optimizer.zero_grad(set_to_none=True)
    logits = model(input_ids=batch[:, :-1], use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]).float(), batch[:, 1:].reshape(-1)
    )
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    value = loss.item()
    print(value, (time.perf_counter() - start) * 1e3, flush=True)
