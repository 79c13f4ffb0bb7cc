#!/usr/bin/env python3
"""Golden vectors of the families: tiny models of transformers, their losses, gradients, training.

    python make_families.py [CASE...]      # writes families/CASE beside this file; without one all
    python make_families.py --class Glm4 DIR [KEY=VALUE...]    # a new case, in DIR

Cases of families that are plugins, such as seed_oss, are in plugins/CASE.  The second line is for a
family in the making: its class without ForCausalLM, and what its configuration has beside DENSE, in
JSON: head_dim=8 tie_word_embeddings=true.  d9d-map certify --golden DIR compares with it; with a
DIR of families/ or plugins/ it is one of the cases.

Each case is a checkpoint as transformers saves it (weights are bfloat16 numbers), with

    case.json            what made it: class, seed, configuration
    golden.safetensors   input_ids, labels [3, S]; logits [3, S, V], token_losses [3, S];
                         grad.NAME: gradients of the mean loss of all targets, names of the files;
                         float32_apart [1]: how far transformers' own float32 is from them
    train.jsonl          the rows as samples
    train.json           losses and gradient norms of ten AdamW steps over all rows
    logprobs.jsonl       of plugins: the log-probability of each target of the rows
    generate.jsonl       the greedy continuation of the first tokens of each row

All are computed in float64 with transformers' modules, some of which cast to float32 inside.
Transformers in float32 runs beside it and must agree.
"""
import json
import math
import re
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers as T
from transformers.utils import logging
from safetensors.torch import load_file, save_file

HERE = Path(__file__).resolve().parent
IGNORE, STEPS, ROWS, NEW = -100, 10, 3, 6
ADAMW = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
DENSE = dict(vocab_size=53, hidden_size=24, intermediate_size=28, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
             bos_token_id=None, eos_token_id=0, pad_token_id=None)


def read_cases(folder):
    """What made each case of the folder: {"class", "seed", "config"}, and "left_out": a field of
    config.json that is absent, where transformers' default counts."""
    return {f.parent.name: json.loads(f.read_text()) for f in sorted((HERE / folder).glob("*/case.json"))}


FAMILIES, PLUGINS = read_cases("families"), read_cases("plugins")
CASES = {name: (c["class"], c["config"]) for name, c in {**FAMILIES, **PLUGINS}.items()}
CONFIGS = {"Gemma3": "Gemma3Text", "Qwen3_5": "Qwen3_5Text", "Qwen3_5Moe": "Qwen3_5MoeText"}  # of text alone


def dump(path, value):
    path.write_text(json.dumps(value, indent=1) + "\n")


def digits(x):
    return float(f"{x:.10g}")


def class_name(kind):
    return kind + ("LMHeadModel" if kind == "GPT2" else "ForCausalLM")


def build(kind, config, exact=False, name=None):
    """transformers' model; exact: with its casts to float32 made casts to float64."""
    name = name or class_name(kind)
    module = sys.modules[getattr(T, name).__module__]
    names = dict(vars(module))
    if exact:
        source = Path(module.__file__).read_text()
        source = re.sub(r"torch\.float(32)?\b", "torch.float64", source).replace(".float()", ".double()")
        exec(compile(source, module.__file__, "exec"), names)
    model = names[name](config)
    if hasattr(config, "swiglu_limit"):  # transformers' experts have gpt-oss's own limit
        for m in model.modules():
            if hasattr(m, "limit"):
                m.limit = config.swiglu_limit
    return (model.double() if exact else model).eval()


def draw_weights(model, seed):
    """bfloat16 numbers, of a size that gives sharp logits and well separated experts."""
    g = torch.Generator().manual_seed(seed)
    out = {}
    for name, p in list(model.named_parameters()) + list(model.named_buffers()):
        if name.endswith(("inv_freq", "embed_scale")) or name in out:
            continue
        z = torch.randn(p.shape, generator=g, dtype=torch.float64)
        if name.endswith("e_score_correction_bias"):
            w = 0.1 * z
        elif p.ndim == 1:
            ones = bool((p == 1).all())
            w = (1 if ones else 0) + 0.25 * z
        elif name.endswith(("gate.weight", "router.weight")):
            w = 2.0 / math.sqrt(p.shape[-1]) * z
        elif "embed" in name or "wte" in name:
            w = 0.7 * z
        else:
            w = 1.2 / math.sqrt(p.shape[-1]) * z
        out[name] = w.to(torch.bfloat16).to(torch.float64)
    return out


def fill(model, weights):
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    with torch.no_grad():
        for k, v in weights.items():
            state[k].copy_(v)
    return model


def has_prefix(config):
    return getattr(config, "attention_mask", None) == "prefix"


def rows(config, length, seed):
    g = torch.Generator().manual_seed(1000 + seed)
    t = torch.randint(1, config.vocab_size, (ROWS, length + 1), generator=g)
    labels = t[:, 1:].clone()
    if has_prefix(config):  # prompts of 7, 1 and 11 tokens
        labels[0, :6] = labels[2, :10] = labels[1, 5] = IGNORE
    else:
        labels[0, 3] = labels[1, :2] = IGNORE
    return t[:, :-1].clone(), labels


def prompts(labels):
    """Tokens before the first target, whose position is the last of them."""
    return (labels != IGNORE).int().argmax(-1) + 1


def prefix_masks(model, prefix, length):
    """A mask [B, 1, S, S] to be added to scores, for each type of layers: the tokens of a prefix see
    each other, in sliding layers those less than a window apart."""
    i, j = torch.arange(length)[:, None], torch.arange(length)[None, :]
    seen = (j <= i) | (j < prefix[:, None, None])
    near = (i - j).abs() < (getattr(model.config, "sliding_window", None) or length)
    out = {}
    for layers, s in ("full_attention", seen), ("sliding_attention", seen & near):
        out[layers] = torch.zeros(s.shape, dtype=model.dtype).masked_fill(
            ~s, torch.finfo(model.dtype).min)[:, None]
    return out if getattr(model.config, "layer_types", None) else out["full_attention"]


def logits_of(model, ids, prefix):
    masks = {"attention_mask": prefix_masks(model, prefix, ids.shape[1])} if has_prefix(model.config) else {}
    return model(input_ids=ids, use_cache=False, **masks).logits


def continue_greedily(model, ids, new):
    prefix = torch.full((len(ids),), ids.shape[1])
    for _ in range(new):
        ids = torch.cat([ids, logits_of(model, ids, prefix)[:, -1].argmax(-1, keepdim=True)], 1)
    return ids


def losses(model, ids, labels):
    logits = logits_of(model, ids, prompts(labels))
    token = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE,
                            reduction="none").view(labels.shape)
    return logits, token, token.sum() / (labels != IGNORE).sum()


def to_files(model, tensors, folder):
    """The tensors under the names and in the forms of the files: saved as the model's weights."""
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    keep = {k: v.detach().clone() for k, v in state.items()}
    with torch.no_grad():
        for k in state:
            if k in tensors:
                state[k].copy_(tensors[k])
    model.save_pretrained(folder)
    out = {}
    for f in sorted(folder.glob("*.safetensors")):
        out.update(load_file(f))
        f.unlink()
    for f in folder.iterdir():
        f.unlink()
    folder.rmdir()
    with torch.no_grad():
        for k in state:
            state[k].copy_(keep[k])
    return out


def train(model, ids, labels, losses=losses):
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], foreach=False, **ADAMW)
    log = []
    for step in range(1, STEPS + 1):
        opt.zero_grad(set_to_none=False)
        _, _, loss = losses(model, ids, labels)
        loss.backward()
        for p in model.parameters():
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        log.append({"step": step, "loss": digits(loss.item()), "grad_norm": digits(norm.item())})
    return log


def dump_case(folder, kind, config, seed, length, prompt, new, change=lambda weights: None):
    """The checkpoint, golden.safetensors, generate.jsonl and train.jsonl, and what made them: rows,
    labels, losses of the targets, the model in float64, and how far float32 is from it."""
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    config.architectures = [class_name(kind)]
    folder.mkdir(parents=True, exist_ok=True)
    ids, labels = rows(config, length, seed)
    model = build(kind, config)
    weights = draw_weights(model, seed)
    change(weights)
    fill(model, weights)
    model.tie_weights()
    plain_logits, _, plain = losses(model, ids, labels)
    plain.backward()
    plain_grads = {k: p.grad.double() for k, p in model.named_parameters() if p.grad is not None}
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    exact = fill(build(kind, config, True), weights)
    exact.tie_weights()
    logits, token, loss = losses(exact, ids, labels)
    apart = ((plain_logits - logits).norm() / logits.norm()).item()
    loss.backward()
    grads = {k: torch.zeros_like(p) if p.grad is None else p.grad for k, p in exact.named_parameters()}
    # What is zero by mathematics, such as the router's part in the weight of a single expert.
    total = math.sqrt(sum(g.norm().item() ** 2 for g in grads.values()))
    for g in grads.values():
        if g.norm().item() < 1e-7 * total:
            g.zero_()
    grads.update({k: torch.zeros_like(b) for k, b in exact.named_buffers()})
    apart = max([apart] + [((plain_grads[k] - g).norm() / g.norm()).item()
                           for k, g in grads.items() if k in plain_grads and g.norm() > 0])
    files = to_files(exact, grads, folder / "tmp")
    names = load_file(folder / "model.safetensors").keys()
    out = {"grad." + k: files[k].float().contiguous() for k in files if k in names}
    out.update(input_ids=ids.int(), labels=labels.int(), logits=logits.detach().float(),
               token_losses=token.detach().float(), float32_apart=torch.tensor([apart]))
    save_file(out, folder / "golden.safetensors", metadata={"format": "pt"})
    with torch.no_grad():
        text = continue_greedily(exact, ids[:, :prompt], new) if has_prefix(config) else exact.generate(
            ids[:, :prompt], max_new_tokens=new, do_sample=False, use_cache=False,
            eos_token_id=None, pad_token_id=0)
    (folder / "generate.jsonl").write_text("".join(json.dumps(
        {"input_ids": t[:prompt], "tokens": t[prompt:]}) + "\n" for t in text.tolist()))
    (folder / "train.jsonl").write_text("".join(json.dumps(
        {"input_ids": i, "labels": l}) + "\n" for i, l in zip(ids.tolist(), labels.tolist())))
    return ids, labels, token.detach(), exact, apart


def make(folder, case, seed, plugin):
    kind = case["class"]
    config = getattr(T, CONFIGS.get(kind, kind) + "Config")(**case["config"])
    ids, labels, token, exact, apart = dump_case(folder, kind, config, seed, 13, 4, NEW)
    if "left_out" in case:
        doc = json.loads((folder / "config.json").read_text())
        del doc[case["left_out"]]
        (folder / "config.json").write_text(json.dumps(doc, indent=2, sort_keys=True) + "\n")
    if plugin:
        (folder / "logprobs.jsonl").write_text("".join(json.dumps(
            {"logprobs": [-digits(x) for x, y in zip(t, l) if y != IGNORE]}) + "\n"
            for t, l in zip(token.tolist(), labels.tolist())))
    dump(folder / "train.json", train(exact, ids, labels))
    loss = token.sum().item() / (labels != IGNORE).sum().item()
    print(f"{folder.name:18} loss {loss:.4f}  float32 apart {apart:.1e}", flush=True)
    return apart < 2e-5


def make_until_sharp(folder, case, plugin):
    seed = case["seed"]
    while not make(folder, case, seed, plugin):  # it amplifies rounding, and so tells little
        seed += 100


def make_new(kind, folder, *more):
    config = {**DENSE, **{k: json.loads(v) for k, v in (m.split("=", 1) for m in more)}}
    case = {"class": kind, "seed": 0, "config": config}
    make_until_sharp(Path(folder), case, True)
    dump(Path(folder) / "case.json", case)


def make_listed(names):
    for name, case in FAMILIES.items():
        if not names or name in names:
            make_until_sharp(HERE / "families" / name, case, False)
    for name, case in PLUGINS.items():
        if not names or name in names:
            make_until_sharp(HERE / "plugins" / name, case, True)


def main():
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    args = sys.argv[1:]
    if args[:1] == ["--class"]:
        make_new(*args[1:])
    else:
        make_listed(args)


if __name__ == "__main__":
    main()
