#!/usr/bin/env python3
"""Golden vectors of generation: what transformers goes on with, greedily, from unequal prompts.

    python make_generate.py        # writes CASE/generate.jsonl beside this file

Each prompt is generated from alone, 64 tokens, no token stops it.  Prompts after which two tokens,
or two experts, are so close that rounding might choose are drawn again.
"""
import json
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from make_models import Margins, draw_sequence

HERE = Path(__file__).resolve().parent
CASES = ["dense_untied", "dense_tied", "dense_mha", "dense_mqa_s1", "moe", "moe_no_renorm",
         "moe_mixed_tied", "dense_window", "moe_window"]
LENGTHS = [1, 9, 3, 26, 5, 14, 2]
TOKENS = 64
MARGIN = 1e-4  # least distance between the best two logits


def greedy(model, prompt):
    """The tokens, and by how much the closest of them was chosen."""
    ids = torch.tensor([prompt])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=TOKENS,
                         eos_token_id=None, pad_token_id=0, output_logits=True,
                         return_dict_in_generate=True)
    best = torch.stack(out.logits)[:, 0].topk(2).values
    return out.sequences[0, len(prompt):].tolist(), (best[:, 0] - best[:, 1]).min().item()


def case(name, seed):
    model = AutoModelForCausalLM.from_pretrained(HERE / name, dtype=torch.float32,
                                                 experts_implementation="eager")
    model.eval()
    margins = Margins(model)
    rng = np.random.Generator(np.random.PCG64(100 + seed))
    lines = []
    while len(lines) < len(LENGTHS):
        prompt = draw_sequence(rng, model.config.vocab_size, LENGTHS[len(lines)])[:-1]
        tokens, apart = greedy(model, prompt)
        if apart < MARGIN or margins.take() < MARGIN / 10:
            continue
        lines.append(json.dumps({"input_ids": prompt, "tokens": tokens}) + "\n")
    (HERE / name / "generate.jsonl").write_text("".join(lines))
    print(name, len({t for line in lines for t in json.loads(line)["tokens"]}), "tokens")


def main():
    torch.set_num_threads(1)
    for seed, name in enumerate(CASES):
        case(name, seed)


if __name__ == "__main__":
    main()
