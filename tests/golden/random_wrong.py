#!/usr/bin/env python3
"""Wrong configurations drawn at random: one field of a valid one is changed or added.

    random_wrong.py [--family KIND]... [--count N] [--seed S] [--out DIR] [--bin DIR]

d9d-map describes and plans each.  It may end in no other way than by its own words, and a field that
it refuses is in the sentence.  What it takes, transformers must take too, and make a model of it:
what it does not is printed.  Exits with 1 if anything is.
"""
import json
import sys
from pathlib import Path

import torch
import transformers as T
from transformers.utils import logging

from make_families import CONFIGS, build
from random_families import FAMILIES, FULL, ROOT, Draw, config_of, draw, run
from random_options import options

# What transformers checks and changes no number of a model, or does not use at all.
HARMLESS = {"use_cache", "initializer_range", "bos_token_id", "eos_token_id", "pad_token_id", "dtype",
            "architectures", "transformers_version", "pretraining_tp", "output_router_logits",
            "router_aux_loss_coef", "model_type", "id2label", "label2id", "cls_token_id", "sep_token_id"}
OTHER = {int: ["7", 2.5, [3], {}, True], bool: [3, "yes", [], 0.5], float: ["0.5", [1.0], {}, True],
         str: [7, ["silu"], {}, "no such word"], list: [5, "full_attention", {}, [None], [{}]],
         dict: [5, "default", [1]]}
FAR = {int: [0, -1, 2**31, 2**40, 2**62], float: [-1.0, 1e300, -1e300, 1e-300]}


def fields_of(doc):
    return [k for k in doc if k not in HARMLESS]


def retyped(r, doc):
    k = r.choice([k for k in fields_of(doc) if doc[k] is not None])
    doc[k] = r.choice(OTHER[type(doc[k])])
    return k


def far(r, doc):
    k = r.choice([k for k in fields_of(doc) if type(doc[k]) in FAR])
    doc[k] = r.choice(FAR[type(doc[k])])
    return k


def unknown(r, doc):
    k = r.choice(["no_such_field", "hidden_sizes", "alibi", "sliding_window_sizes"])
    doc[k] = r.choice([1, True, "x", [1, 2], {"a": 1}, 0.5])
    return k


def rope(r, doc):
    p = doc.get("rope_parameters") or doc.setdefault("rope_parameters", {"rope_type": "default"})
    p = p.get(FULL, p)
    k = r.choice(list(p) + ["rope_type", "factor", "no_such_member"])
    p[k] = r.choice([-1, 0, "x", [], {}, True, 1e300, "yarn", "longrope", "llama3", "linear"])
    return k


def missing(r, doc):
    k = r.choice(fields_of(doc))
    del doc[k]
    return k


def listed(r, doc):
    """A list of another length, or with another element."""
    names = [k for k in fields_of(doc) if isinstance(doc[k], list)]
    if not names:
        return retyped(r, doc)
    k = r.choice(names)
    doc[k] = r.choice([doc[k] + doc[k][:1], doc[k][:-1], doc[k][:-1] + ["no such word"],
                       doc[k] * 300, doc[k][:-1] + [-1], doc[k][:-1] + [10**6]])
    return k


def sizes(r, doc):
    """A count that the others do not fit."""
    names = [k for k in fields_of(doc) if type(doc[k]) is int and
             any(w in k for w in ("head", "num_", "n_", "group", "rank", "size", "window", "positions", "topk"))]
    k = r.choice(names)
    doc[k] = max(1, doc[k] + r.choice([-3, -1, 1, 2, 5, 7]))
    return k


CHANGES = [retyped, retyped, far, far, unknown, rope, rope, missing, listed, sizes, sizes, sizes]


def there(kind, doc):
    """What transformers says of it: None if it makes a model and runs it."""
    try:
        config = config_of(kind, doc)
        config._attn_implementation = config._experts_implementation = "eager"
        if any(type(v) is int and v > 100000 for k, v in config.to_dict().items() if k not in HARMLESS):
            return None  # too large to try
        model = build(kind, config, name="ModernBertModel" if kind == "ModernBert" else None)
        with torch.no_grad():
            model(input_ids=torch.tensor([[1, 2, 3, 4, 5]]) % config.vocab_size, **({} if kind == "ModernBert" else {"use_cache": False}))
    except Exception as e:
        return f"{type(e).__name__}: {str(e)[:160]!r}"
    return None


def one(kind, seed, out, bin):
    r = Draw(f"wrong {kind} {seed}")
    config = config_of(kind, draw(kind, r))
    doc = json.loads(config.to_json_string())
    doc["model_type"] = type(config).model_type
    before = json.loads(json.dumps(doc))
    change = r.choice(CHANGES)
    field = change(r, doc)
    case = out / f"{kind}-{seed}"
    case.mkdir(parents=True, exist_ok=True)
    path = case / "config.json"
    path.write_text(json.dumps(doc, indent=1))
    said = f"{kind} {seed}: {change.__name__} {field}: {json.dumps(before.get(field))[:60]} -> {json.dumps(doc.get(field))[:60]}"
    described, text = run(bin / "d9d-map", "describe", case)
    planned, plan = run(bin / "d9d-map", "plan", "-q", "-m", path)
    if described not in (0, 1, 2) or planned not in (0, 1, 2) or "runtime error" in text + plan:
        print(f"{said}: CRASH: {described} {planned} {(text + plan)[-1500:]}", flush=True)
        return False
    lines = [l for l in plan.splitlines() if l.startswith("d9d-map: ")]
    if planned != 0:
        if len(lines) != 1 or not (field in lines[0] or "rope_" in field or "rotary" in lines[0]):
            print(f"{said}: the field is not in: {plan[:300]}", flush=True)
            return False
        return True
    away = there(kind, doc)
    if away is None:
        return True
    print(f"{said}: taken; transformers: {away}", flush=True)
    return False


def main():
    p = options(40, "random-wrong", FAMILIES)
    p.add_argument("--bin", type=Path, default=ROOT / "build/bin")
    a = p.parse_args()
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    done = [one(k, s, a.out.resolve(), a.bin.resolve())
            for k in a.family or FAMILIES for s in range(a.seed, a.seed + a.count)]
    print(f"{len(done)} configurations, {done.count(False)} to look at")
    sys.exit(False in done)


if __name__ == "__main__":
    main()
