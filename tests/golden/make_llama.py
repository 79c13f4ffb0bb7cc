#!/usr/bin/env python3
"""Golden vectors of examples/plugins/plain_llama.c: tiny models and their log-probabilities.

    python make_llama.py [NAME...]      # writes NAME/ beside this file; without a name all

llama is plain; llama3 has the scaled rotary embedding of Llama 3.1, with rows beyond the positions
that it was scaled from; mistral has a window, and heads that are no share of the features.
logprobs.jsonl has for every sequence of tokens.jsonl the log-probability of each next token,
computed in float64.
"""
import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig

HERE = Path(__file__).resolve().parent
SIZES = dict(vocab_size=97, hidden_size=32, intermediate_size=44, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
             rms_norm_eps=1e-5, tie_word_embeddings=False, initializer_range=0.2)
CASES = {
    "llama": (LlamaConfig(**SIZES, rope_theta=5e4), [9, 17, 6, 12, 21, 5, 11, 14]),
    "llama3": (LlamaConfig(**SIZES, rope_parameters={
        "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 16}), [9, 40, 6, 33]),
    "mistral": (MistralConfig(**SIZES, head_dim=6, sliding_window=7), [9, 40, 6, 33]),
}


def make(name):
    config, lengths = CASES[name]
    out = HERE / name
    torch.manual_seed(8)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    for key, p in model.named_parameters():
        if key.endswith("norm.weight"):
            p.data.uniform_(0.5, 1.5)
    model.save_pretrained(out)
    (out / "generation_config.json").unlink(missing_ok=True)
    model = model.double().eval()
    with open(out / "tokens.jsonl", "w") as tokens, open(out / "logprobs.jsonl", "w") as file:
        for n in lengths:
            ids = torch.randint(0, config.vocab_size, (1, n))
            with torch.no_grad():
                logits = model(ids).logits.log_softmax(-1)
            values = logits[0, :-1].gather(1, ids[0, 1:, None])[:, 0]
            print(json.dumps({"input_ids": ids[0].tolist()}), file=tokens)
            print(json.dumps({"logprobs": values.tolist()}), file=file)


for case in sys.argv[1:] or CASES:
    make(case)
