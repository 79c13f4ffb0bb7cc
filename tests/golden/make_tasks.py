#!/usr/bin/env python3
"""Golden vectors of tasks over whole texts: classes, pooled and hidden states, ten steps of training.

    python make_tasks.py      # writes tasks/ beside this file

Each directory is a checkpoint as save_pretrained of ...ForSequenceClassification writes it, and

    texts.jsonl     ids and the class as the label of the last token, as d9d-shard takes them
    values.jsonl    for each text "prediction": the probabilities of its classes; "last", "mean",
                    "cls": last_hidden_state, pooled; "states": [layers + 1][hidden], means of what
                    comes out of the embedding and of each layer, before the final norm
    steps.jsonl     loss and norm of AdamW steps of 4 texts each, in their order
    pairs.jsonl     the same of InfoNCE over pairs of neighbours, 8 texts a step in parts of 4, of
                    the mean hidden state and with temperature 0.1
    adapter/        LoRA factors and another head ("modules_to_save") as peft writes them, and
    adapter.jsonl   the probabilities with these

all computed in float64.
"""
import copy
import json
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import (Qwen3Config, Qwen3ForSequenceClassification, Qwen3MoeConfig,
                          Qwen3MoeForSequenceClassification)

OUT = Path(__file__).resolve().parent / "tasks"
LENGTHS = [9, 17, 6, 12, 1, 5, 11, 14, 3, 8, 20, 7, 2, 10, 13, 4]
SMALL = dict(vocab_size=61, hidden_size=16, intermediate_size=24, num_hidden_layers=4,
             num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_labels=3,
             max_position_embeddings=64, rope_theta=1e4, initializer_range=0.2, dtype="float32",
             pad_token_id=0)
MOE = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=12, norm_topk_prob=True,
           decoder_sparse_step=1, mlp_only_layers=[])
POOL = {"last": lambda h: h[-1], "mean": lambda h: h.mean(0), "cls": lambda h: h[0]}


def numbers(t):
    return [float(f"{v:.9g}") for v in t.tolist()]


def values(model, ids):
    heard = []
    hooks = [m.register_forward_hook(lambda _m, _i, o: heard.append(
        (o[0] if isinstance(o, tuple) else o)[0] if o[0].dim() > 2 or isinstance(o, tuple) else o[0]))
             for m in [model.model.embed_tokens, *model.model.layers]]
    with torch.no_grad():
        last = model.model(torch.tensor([ids])).last_hidden_state[0]
        probs = model(torch.tensor([ids])).logits[0].softmax(-1)
    for h in hooks:
        h.remove()
    heard = heard[:len(model.model.layers) + 1]
    assert all(h.shape == last.shape for h in heard)
    return {"prediction": numbers(probs), **{k: numbers(f(last)) for k, f in POOL.items()},
            "states": [numbers(h.mean(0)) for h in heard]}


def train(model, texts):
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.999), eps=1e-8,
                            weight_decay=0.1)
    for step in range(10):
        batch = [texts[(4 * step + i) % len(texts)] for i in range(4)]
        opt.zero_grad()
        loss = sum(torch.nn.functional.cross_entropy(model(torch.tensor([ids])).logits,
                                                     torch.tensor([c])) for ids, c in batch) / 4
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        yield {"loss": float(loss), "grad_norm": float(norm)}


def info_nce(model, batch):
    rows = [model.model(torch.tensor([ids])).last_hidden_state[0].mean(0) for ids, _ in batch]
    e = torch.nn.functional.normalize(torch.stack(rows), dim=-1)
    scores = e[0::2] @ e[1::2].T / 0.1
    return torch.nn.functional.cross_entropy(scores, torch.arange(len(scores)), reduction="sum")


def pair(model, texts):
    params = list(model.model.parameters())
    opt = torch.optim.AdamW(params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)
    for step in range(6):
        batch = [texts[(8 * step + i) % len(texts)] for i in range(8)]
        opt.zero_grad()
        loss = (info_nce(model, batch[:4]) + info_nce(model, batch[4:])) / 4
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        yield {"loss": float(loss), "grad_norm": float(norm)}


def adapt(model, texts, out):
    tuned = get_peft_model(model, LoraConfig(r=3, lora_alpha=6, task_type="SEQ_CLS",
                                             target_modules=["q_proj", "v_proj"]))
    for key, p in tuned.named_parameters():
        if p.requires_grad:
            p.data.normal_(0, 0.2)
    tuned = tuned.float()
    tuned.save_pretrained(out / "adapter")
    (out / "adapter" / "README.md").unlink(missing_ok=True)
    tuned = tuned.double().eval()
    with open(out / "adapter.jsonl", "w") as f, torch.no_grad():
        for ids, _ in texts:
            probs = tuned(torch.tensor([ids])).logits[0].softmax(-1)
            print(json.dumps({"prediction": numbers(probs)}), file=f)


def make(name, seed, model):
    out = OUT / name
    torch.manual_seed(seed)
    for key, p in model.named_parameters():
        p.data.uniform_(0.5, 1.5) if key.endswith("norm.weight") else p.data.normal_(0, 0.2)
    model.save_pretrained(out)
    model.set_experts_implementation("eager")
    model = model.double().eval()
    texts = [(torch.randint(1, SMALL["vocab_size"], (n,)).tolist(), i % 3)
             for i, n in enumerate(LENGTHS)]
    with open(out / "texts.jsonl", "w") as f:
        for ids, c in texts:
            print(json.dumps({"input_ids": ids, "labels": [-100] * (len(ids) - 1) + [c]}), file=f)
    with open(out / "values.jsonl", "w") as f:
        for ids, _ in texts:
            print(json.dumps(values(model, ids)), file=f)
    with open(out / "pairs.jsonl", "w") as f:
        for line in pair(copy.deepcopy(model), texts):
            print(json.dumps(line), file=f)
    if name == "dense":
        adapt(copy.deepcopy(model), texts, out)
    with open(out / "steps.jsonl", "w") as f:
        for line in train(model, texts):
            print(json.dumps(line), file=f)


make("dense", 1, Qwen3ForSequenceClassification(Qwen3Config(**SMALL)))
make("moe", 2, Qwen3MoeForSequenceClassification(Qwen3MoeConfig(**SMALL, **MOE)))
