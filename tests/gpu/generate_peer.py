"""Decode speed of one random model with transformers: a static cache, and the step compiled.

    generate_peer.py CONFIG.json READY [SEQUENCES ...]

Everything is compiled first; then the file READY is made, and steps are timed when a line comes from
standard input.  Prints "decode SEQUENCES MILLISECONDS" a line, of a step of all sequences.
"""

import sys
import time

import torch
from transformers import AutoConfig, AutoModelForCausalLM, StoppingCriteria, StoppingCriteriaList

config_path, ready, *sequences = sys.argv[1:]
WARM_UP, STEPS, PROMPT = 32, 160, 64


class Clock(StoppingCriteria):
    """When each token is there."""

    def __init__(self):
        self.at = []

    def __call__(self, ids, scores, **_):
        torch.cuda.synchronize()
        self.at.append(time.perf_counter())
        return torch.zeros(ids.shape[0], dtype=torch.bool, device=ids.device)


def generate(model, rows):
    clock = Clock()
    ids = torch.arange(rows * PROMPT, device="cuda").view(rows, PROMPT) * 7919 % model.config.vocab_size
    model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=WARM_UP + STEPS,
        do_sample=False,
        cache_implementation="static",
        eos_token_id=None,
        pad_token_id=0,
        stopping_criteria=StoppingCriteriaList([clock]),
    )
    return (clock.at[WARM_UP + STEPS - 1] - clock.at[WARM_UP - 1]) / STEPS * 1e3


config = AutoConfig.from_pretrained(config_path)
config.use_cache = True
torch.set_default_device("cuda")
model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
torch.set_default_device("cpu")
rows = [int(n) for n in sequences or (1, 8)]
with torch.no_grad():
    for n in rows:
        generate(model, n)
    open(ready, "w").close()
    sys.stdin.readline()
    for n in rows:
        print("decode", n, min(generate(model, n) for _ in range(2)), flush=True)
