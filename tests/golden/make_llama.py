#!/usr/bin/env python3
"""Golden vectors of examples/plugins/llama.c: a tiny Llama and its log-probabilities.

    python make_llama.py      # writes llama/ beside this file

logprobs.jsonl has for every sequence of tokens.jsonl the log-probability of each next token,
computed in float64.
"""
import json
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

OUT = Path(__file__).resolve().parent / "llama"
LENGTHS = [9, 17, 6, 12, 21, 5, 11, 14]

torch.manual_seed(8)
config = LlamaConfig(vocab_size=97, hidden_size=32, intermediate_size=44, num_hidden_layers=2,
                     num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                     rope_theta=5e4, rms_norm_eps=1e-5, tie_word_embeddings=False,
                     initializer_range=0.2)
model = LlamaForCausalLM(config)
for name, p in model.named_parameters():
    if name.endswith("norm.weight"):
        p.data.uniform_(0.5, 1.5)
model.save_pretrained(OUT)
model = model.double().eval()
with open(OUT / "tokens.jsonl", "w") as tokens, open(OUT / "logprobs.jsonl", "w") as out:
    for n in LENGTHS:
        ids = torch.randint(0, config.vocab_size, (1, n))
        with torch.no_grad():
            logits = model(ids).logits.log_softmax(-1)
        values = logits[0, :-1].gather(1, ids[0, 1:, None])[:, 0]
        print(json.dumps({"input_ids": ids[0].tolist()}), file=tokens)
        print(json.dumps({"logprobs": values.tolist()}), file=out)
