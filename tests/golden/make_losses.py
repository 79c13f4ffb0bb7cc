#!/usr/bin/env python3
"""Golden values of soft labels and of several heads, by torch on transformers' hidden states.

    python make_losses.py      # writes losses/ beside this file

Documents with fields, heads that begin as given matrices, and for each task the loss and gradient norm of one
step over all documents.  The model is dense_untied.
"""
import json
import sys
from pathlib import Path

here = Path(__file__).resolve().parent
sys.path.pop(0)  # the folder peft/ beside this file is no package

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

torch.manual_seed(3)
torch.set_num_threads(1)
out = here / "losses"
out.mkdir(exist_ok=True)
V, H, K = 211, 40, 4


def documents(n):
    g = torch.Generator().manual_seed(5)

    def draw(*shape):
        return (torch.rand(*shape, generator=g) * 1000).round() / 1000

    def ints(low, high, *shape):
        return torch.randint(low, high, shape, generator=g).tolist()

    for _ in range(n):
        t = ints(3, 12, 1)[0]
        top = torch.stack([torch.randperm(V, generator=g)[:K] for _ in range(t)])
        top[:, K - 1] = -1
        yield {"input_ids": ints(0, V, t), "top": top.tolist(), "probs": (draw(t, K) / 3).tolist(),
               "weight": (2 * draw(t)).tolist(), "tags": ints(-1, 4, t), "topic": ints(-1, 3, 1)[0],
               "score": (3 * draw(2)).tolist(), "flags": [float(x) for x in ints(0, 2, 2)]}


rows = list(documents(8))
(out / "documents.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
fields = [{"name": "top", "per": "target", "dtype": "I32", "shape": [K]},
          {"name": "probs", "per": "target", "shape": [K]}, {"name": "weight", "per": "target"},
          {"name": "tags", "per": "token", "dtype": "I32"}, {"name": "topic", "dtype": "I32"},
          {"name": "score", "shape": [2]}, {"name": "flags", "shape": [2]}]
(out / "fields.json").write_text(json.dumps({"fields": fields}, indent=1) + "\n")

sizes = {"topic": 3, "tags": 4, "score": 2, "flags": 2}
heads = {f"heads.{k}.weight": 0.1 * torch.randn(n, H) for k, n in sizes.items()}
heads["heads.tags.bias"] = 0.1 * torch.randn(4)
source = here / "dense_untied"
save_file({**load_file(source / "model.safetensors"), **heads}, out / "model.safetensors")
(out / "config.json").write_text((source / "config.json").read_text())


def soft(model, e, w, weighed):
    total, n = 0, 0
    for r in rows:
        z = model(torch.tensor([r["input_ids"]])).logits[0, :-1]
        q = torch.zeros(len(z), V)
        for t in range(len(z)):
            for i, p in zip(r["top"][t + 1], r["probs"][t + 1]):
                if i >= 0:
                    q[t, i] += p
        target = (1 - w) * F.one_hot(torch.tensor(r["input_ids"][1:]), V) + w * q
        losses = F.cross_entropy(z, target, reduction="none", label_smoothing=e)
        total = total + (losses * torch.tensor(r["weight"][1:]) if weighed else losses).sum()
        n += len(z)
    return total / n


def several(model, p):
    sums = {k: 0 for k in ["text", *sizes]}
    n = dict.fromkeys(sums, 0)

    def add(k, x, count):
        sums[k] = sums[k] + x
        n[k] += count

    for r in rows:
        ids = torch.tensor([r["input_ids"]])
        h = model.model(ids).last_hidden_state[0]
        add("text", F.cross_entropy(model.lm_head(h)[:-1], ids[0, 1:], reduction="sum"), len(h) - 1)
        tags = torch.tensor(r["tags"])
        z = h @ p["heads.tags.weight"].T + p["heads.tags.bias"]
        add("tags", F.cross_entropy(z, tags, reduction="sum", ignore_index=-1), int((tags >= 0).sum()))
        z = {k: p[f"heads.{k}.weight"] @ h[-1] for k in ("topic", "score", "flags")}
        if r["topic"] >= 0:
            add("topic", F.cross_entropy(z["topic"], torch.tensor(r["topic"]), label_smoothing=0.1), 1)
        add("score", F.mse_loss(z["score"], torch.tensor(r["score"])), 1)
        add("flags", F.binary_cross_entropy_with_logits(z["flags"], torch.tensor(r["flags"])), 1)
    weights = {"text": 1, "topic": 0.5, "tags": 0.25, "score": 2, "flags": 1}
    return sum(w * sums[k] / n[k] for k, w in weights.items())


def case(name, task, loss):
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    p = {k: v.clone().requires_grad_() for k, v in heads.items()}
    value = loss(model, p)
    value.backward()
    grads = [x.grad for x in [*model.parameters(), *p.values()] if x.grad is not None]
    norm = torch.sqrt(sum((g.double() ** 2).sum() for g in grads)).item()
    return {"name": name, "task": task, "loss": value.item(), "grad_norm": norm}


labels = {"name": "causal_lm", "soft_labels": "probs", "soft_ids": "top"}
cases = [
    case("soft", labels, lambda m, p: soft(m, 0.0, 1.0, False)),
    case("mixed", {**labels, "soft_weight": 0.7, "label_smoothing": 0.2, "loss_weights": "weight"},
         lambda m, p: soft(m, 0.2, 0.7, True)),
    case("smooth", {"name": "causal_lm", "label_smoothing": 0.1}, lambda m, p: soft(m, 0.1, 0.0, False)),
    case("heads", {"name": "heads", "heads": [
        {"name": "text", "kind": "causal_lm"},
        {"name": "topic", "kind": "classification", "outputs": 3, "label": "topic", "weight": 0.5,
         "label_smoothing": 0.1},
        {"name": "tags", "kind": "token_classification", "outputs": 4, "label": "tags", "weight": 0.25, "bias": True},
        {"name": "score", "kind": "regression", "outputs": 2, "label": "score", "weight": 2},
        {"name": "flags", "kind": "classification", "outputs": 2, "label": "flags", "loss": "bce"}]}, several),
]
(out / "cases.jsonl").write_text("".join(json.dumps(c) + "\n" for c in cases))
