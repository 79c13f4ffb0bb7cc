#!/usr/bin/env python3
"""Golden vectors of the models: tiny Qwen3 checkpoints and what transformers computes with them.

    python make_models.py [CASE...]      # writes the directories beside this file

The values are computed in float64 with transformers' own modules (its float32 casts taken out, see
`Exact`) and rounded to float32 at the end; plain float32 transformers and torch.optim.AdamW run
beside them and must agree, or nothing is written. README.md describes the files.
"""
import json
import math
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3MoeConfig
from transformers import Qwen3ForCausalLM, Qwen3MoeForCausalLM

HERE = Path(__file__).resolve().parent
IGNORE = -100
STEPS, GLOBAL_BATCH = 20, 4
ADAMW = {"lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}
MAX_NORM = 1.0
MARGIN = 1e-4          # least distance between the last chosen and the first rejected expert

# One row a model.  `rows`: sequences of the batch as (first position, stride, ignored labels);
# "all" ignores the whole row.  `lengths` of the training sequences, drawn in a cycle.
COMMON = dict(rms_norm_eps=1e-6, tie_word_embeddings=False, rope_theta=1e6)
MODELS = {
    "dense_untied": dict(
        seed=1, seq=13, rows=[(0, 1, [0, 5]), (7, 1, [12]), (0, 1, [])],
        lengths=[9, 17, 6, 12, 23, 5, 11],
        config=dict(vocab_size=211, hidden_size=40, intermediate_size=56, num_hidden_layers=3,
                    num_attention_heads=6, num_key_value_heads=2, head_dim=16)),
    "dense_tied": dict(
        seed=2, seq=19, rows=[(0, 1, [3, 4, 18]), (5, 2, []), (0, 1, "all")],
        lengths=[7, 14, 1, 10, 19],
        config=dict(vocab_size=173, hidden_size=36, intermediate_size=50, num_hidden_layers=2,
                    num_attention_heads=4, num_key_value_heads=2, head_dim=14,
                    tie_word_embeddings=True, rope_theta=1e4, rms_norm_eps=1e-5)),
    "dense_mha": dict(       # as many key-value heads as query heads, a sequence over any tile
        seed=3, seq=131, rows=[(0, 1, [17, 64, 130])],
        lengths=[67, 3, 33, 129, 21],
        config=dict(vocab_size=107, hidden_size=48, intermediate_size=30, num_hidden_layers=2,
                    num_attention_heads=3, num_key_value_heads=3, head_dim=16)),
    "dense_mqa_s1": dict(    # one key-value head; every sequence is one token long
        seed=4, seq=1, rows=[(0, 1, []), (3, 1, []), (0, 1, "all"), (0, 1, [])],
        lengths=[1],
        config=dict(vocab_size=101, hidden_size=24, intermediate_size=34, num_hidden_layers=2,
                    num_attention_heads=3, num_key_value_heads=1, head_dim=10)),
    "dense_yarn": dict(      # rows beyond the positions that it is said to be trained on
        seed=8, seq=41, rows=[(0, 1, [0, 40]), (100, 3, [])],
        lengths=[40, 9, 57, 23],
        config=dict(vocab_size=83, hidden_size=32, intermediate_size=36, num_hidden_layers=2,
                    num_attention_heads=4, num_key_value_heads=2, head_dim=16, rope_theta=1e4,
                    rope_scaling=dict(rope_type="yarn", factor=4.0, beta_fast=4.0,
                                      original_max_position_embeddings=128))),
    "dense_window": dict(    # a window in the layers behind the first, over rows and strides
        seed=9, seq=23, rows=[(0, 1, [0, 22]), (40, 2, []), (0, 1, [7])],
        lengths=[22, 4, 31, 9, 5],
        config=dict(vocab_size=89, hidden_size=32, intermediate_size=36, num_hidden_layers=3,
                    num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                    use_sliding_window=True, sliding_window=5, max_window_layers=1)),
    "moe": dict(
        seed=5, seq=15, rows=[(0, 1, [2, 9]), (4, 1, []), (0, 1, [14])],
        lengths=[8, 13, 5, 10, 1, 16],
        config=dict(vocab_size=157, hidden_size=32, intermediate_size=44, num_hidden_layers=2,
                    num_attention_heads=4, num_key_value_heads=2, head_dim=12,
                    moe_intermediate_size=20, num_experts=8, num_experts_per_tok=3,
                    norm_topk_prob=True)),
    "moe_no_renorm": dict(   # norm_topk_prob false: the chosen probabilities as they are
        seed=6, seq=11, rows=[(0, 1, [1]), (0, 1, [])],
        lengths=[8, 5, 11, 3],
        config=dict(vocab_size=97, hidden_size=24, intermediate_size=44, num_hidden_layers=2,
                    num_attention_heads=2, num_key_value_heads=1, head_dim=12,
                    moe_intermediate_size=14, num_experts=5, num_experts_per_tok=2,
                    norm_topk_prob=False)),
    "moe_window": dict(      # a window in every layer
        seed=10, seq=17, rows=[(0, 1, [4]), (9, 1, [])],
        lengths=[16, 7, 21, 3],
        config=dict(vocab_size=97, hidden_size=24, intermediate_size=44, num_hidden_layers=2,
                    num_attention_heads=4, num_key_value_heads=2, head_dim=8,
                    moe_intermediate_size=14, num_experts=6, num_experts_per_tok=2,
                    norm_topk_prob=True, use_sliding_window=True, sliding_window=4)),
    "moe_mixed_tied": dict(  # layers 0 and 2 dense by the step, 1 by the list, 3 MoE
        seed=7, seq=14, rows=[(0, 1, [6]), (0, 3, [0])],
        lengths=[9, 6, 12, 7],
        config=dict(vocab_size=139, hidden_size=28, intermediate_size=38, num_hidden_layers=4,
                    num_attention_heads=4, num_key_value_heads=1, head_dim=8,
                    moe_intermediate_size=18, num_experts=6, num_experts_per_tok=3,
                    norm_topk_prob=True, decoder_sparse_step=2, mlp_only_layers=[1],
                    tie_word_embeddings=True)),
}

# Other checkpoints of the same weights.  layout: how experts are stored; style: generation of
# config.json; shards: number of files; dtype of the stored tensors.
CHECKPOINTS = {
    "dense_untied": dict(model="dense_untied", style=4),
    "dense_untied_bf16": dict(model="dense_untied", style=5, dtype=torch.bfloat16),
    "dense_tied": dict(model="dense_tied", style=5),
    "dense_mha": dict(model="dense_mha", style=4),
    "dense_mqa_s1": dict(model="dense_mqa_s1", style=5),
    "dense_yarn": dict(model="dense_yarn", style=4),
    "dense_window": dict(model="dense_window", style=4),
    "dense_window_types": dict(model="dense_window", style=5, dtype=torch.bfloat16),
    "moe": dict(model="moe", style=4, layout="per-expert"),
    "moe_fused": dict(model="moe", style=5, layout="fused"),
    "moe_sharded": dict(model="moe", style=5, layout="per-expert", shards=3),
    "moe_no_renorm": dict(model="moe_no_renorm", style=5, layout="per-expert"),
    "moe_window": dict(model="moe_window", style=5, layout="fused"),
    "moe_mixed_tied": dict(model="moe_mixed_tied", style=4, layout="fused"),
}


def dump(path, value):
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def digits(x):
    """Ten digits: more than float32 has, fewer than another processor may change."""
    return float(f"{x:.10g}")


def is_moe(cfg):
    return "num_experts" in cfg


# ---- configurations -------------------------------------------------------------------------

def hf_config(cfg):
    """The configuration object of transformers for one row of MODELS."""
    cfg = {**COMMON, **cfg}
    theta, scaling = cfg.pop("rope_theta"), cfg.pop("rope_scaling", {})
    kind = Qwen3MoeConfig if is_moe(cfg) else Qwen3Config
    return kind(**cfg, rope_parameters={"rope_type": "default", "rope_theta": theta, **scaling},
                max_position_embeddings=512, bos_token_id=None, eos_token_id=0)


def config_json(cfg, style):
    """config.json of a checkpoint as transformers 5 or transformers 4 (style) writes it."""
    obj = hf_config(cfg)
    obj.architectures = ["Qwen3MoeForCausalLM" if is_moe(cfg) else "Qwen3ForCausalLM"]
    out = json.loads(obj.to_json_string(use_diff=False))
    for key in ("_name_or_path", "chunk_size_feed_forward", "is_encoder_decoder", "id2label",
                "label2id", "output_attentions", "output_hidden_states", "problem_type",
                "return_dict"):
        out.pop(key, None)
    out["dtype"] = "float32"
    if style == 5:
        return out
    rope = out.pop("rope_parameters")
    theta = rope.pop("rope_theta")
    out.update(rope_theta=theta, rope_scaling=None if rope["rope_type"] == "default" else rope,
               torch_dtype=out.pop("dtype"),
               transformers_version="4.51.0")
    if is_moe(cfg):
        out["num_experts"] = out.pop("num_local_experts")
    else:
        out.pop("layer_types")
    return dict(sorted(out.items()))


# ---- weights --------------------------------------------------------------------------------

def draw_weights(model, rng):
    """Weights of every parameter, of a size that gives sharp logits and well separated experts.
    Each is a bfloat16 number, so that a bfloat16 copy of the checkpoint is the same model."""
    out = {}
    for name, p in model.named_parameters():
        z = rng.standard_normal(p.shape)
        if name.endswith("norm.weight"):
            w = 1 + 0.25 * z
        elif "embed_tokens" in name:
            w = (0.35 if model.config.tie_word_embeddings else 1.0) * z
        elif name.endswith("mlp.gate.weight"):
            w = 2.0 / math.sqrt(p.shape[-1]) * z
        else:
            w = 1.2 / math.sqrt(p.shape[-1]) * z
        out[name] = torch.from_numpy(w).to(torch.bfloat16).to(torch.float32)
    return out


def split_experts(tensors):
    """Fused expert tensors to one tensor an expert and projection, everything else as it is."""
    out = {}
    for name, t in tensors.items():
        if name.endswith("experts.gate_up_proj"):
            stem, inter = name[:-len("gate_up_proj")], t.shape[1] // 2
            for e in range(t.shape[0]):
                out[f"{stem}{e}.gate_proj.weight"] = t[e, :inter].clone()
                out[f"{stem}{e}.up_proj.weight"] = t[e, inter:].clone()
        elif name.endswith("experts.down_proj"):
            stem = name[:-len("down_proj")]
            for e in range(t.shape[0]):
                out[f"{stem}{e}.down_proj.weight"] = t[e].clone()
        else:
            out[name] = t
    return out


def write_checkpoint(folder, row, weights, generation):
    cfg = MODELS[row["model"]]["config"]
    tensors = split_experts(weights) if row.get("layout") == "per-expert" else weights
    tensors = {k: v.to(row.get("dtype", torch.float32)).contiguous() for k, v in tensors.items()}
    config = config_json(cfg, row["style"])
    if row.get("dtype") is torch.bfloat16:
        config["dtype"] = "bfloat16"
    dump(folder / "config.json", config)
    dump(folder / "generation_config.json", generation)
    shards = row.get("shards", 1)
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    # Uneven shards that part the experts of a layer.
    names, weight_map = list(tensors), {}
    cuts = [0, len(names) // 5, len(names) // 2 + 3, len(names)]
    for i in range(shards):
        part = {k: tensors[k] for k in names[cuts[i]:cuts[i + 1]]}
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        save_file(part, folder / file, metadata={"format": "pt"})
        weight_map.update({k: file for k in part})
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    dump(folder / "model.safetensors.index.json",
         {"metadata": {"total_parameters": sum(t.numel() for t in tensors.values()),
                       "total_size": total},
          "weight_map": dict(sorted(weight_map.items()))})


# ---- the model in float64 -------------------------------------------------------------------

class Exact:
    """Takes the casts to float32 out of a transformers model, so that .double() means it."""

    @staticmethod
    def norm(m):
        def forward(x):
            return m.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + m.variance_epsilon)
        return forward

    @staticmethod
    def router(m):
        def forward(x):
            logits = F.linear(x.reshape(-1, m.hidden_dim), m.weight)
            value, index = torch.topk(torch.softmax(logits, -1), m.top_k, dim=-1)
            if m.norm_topk_prob:
                value = value / value.sum(-1, keepdim=True)
            return logits, value, index
        return forward

    @staticmethod
    def rope(m):
        def forward(x, position_ids):
            dim = m.config.head_dim
            theta = m.config.rope_parameters["rope_theta"]
            inv = theta ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)
            inv, scale = Exact.yarn(m.config.rope_parameters, theta, dim, inv)
            angle = position_ids[..., None].double() * inv
            angle = torch.cat((angle, angle), -1)
            return scale * angle.cos(), scale * angle.sin()
        return forward

    @staticmethod
    def yarn(rope, theta, dim, inv):
        if rope["rope_type"] == "default":
            return inv, 1.0
        pair = [dim * math.log(rope["original_max_position_embeddings"] / (turns * 2 * math.pi)) / (2 * math.log(theta))
                for turns in (rope["beta_fast"], rope.get("beta_slow") or 1.0)]
        low, high = max(math.floor(pair[0]), 0), min(math.ceil(pair[1]), dim - 1)
        ramp = ((torch.arange(dim // 2, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
        return inv * (1 - ramp) + inv / rope["factor"] * ramp, 0.1 * math.log(rope["factor"]) + 1.0

    @classmethod
    def apply(cls, model):
        for m in model.double().modules():
            kind = type(m).__name__
            if kind.endswith("RMSNorm"):
                m.forward = cls.norm(m)
            elif kind.endswith("TopKRouter"):
                m.forward = cls.router(m)
            elif kind.endswith("RotaryEmbedding"):
                m.forward = cls.rope(m)
        return model


def build(cfg, weights, exact):
    config = hf_config(cfg)
    config._attn_implementation = "sdpa"
    config._experts_implementation = "eager"
    model = (Qwen3MoeForCausalLM if is_moe(cfg) else Qwen3ForCausalLM)(config)
    missing = model.load_state_dict(weights, strict=False)
    assert not missing.unexpected_keys
    assert set(missing.missing_keys) <= {"lm_head.weight"}
    model.tie_weights()
    model.eval()
    return Exact.apply(model) if exact else model


def forward(model, ids, positions):
    # A mask of ones keeps transformers from reading strided positions as packed documents.
    return model(input_ids=ids, position_ids=positions, attention_mask=torch.ones_like(ids),
                 use_cache=False).logits


def losses_of(logits, labels):
    flat = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE,
                           reduction="none")
    return flat.view(labels.shape)


class Margins:
    """Least distance, over tokens and layers, of the probabilities that decide the experts."""

    def __init__(self, model):
        self.least = math.inf
        for m in model.modules():
            if type(m).__name__.endswith("TopKRouter"):
                m.register_forward_hook(self.see)

    def see(self, module, _, output):
        p = torch.softmax(output[0], -1).sort(-1, descending=True).values
        self.least = min(self.least, (p[:, module.top_k - 1] - p[:, module.top_k]).min().item())

    def take(self):
        least, self.least = self.least, math.inf
        return least


# ---- batches --------------------------------------------------------------------------------

def draw_sequence(rng, vocab, n):
    """n + 1 tokens of a noisy affine walk: something that training can learn."""
    t = [int(rng.integers(vocab))]
    for _ in range(n):
        noise = rng.random() < 0.3
        t.append(int(rng.integers(vocab)) if noise else (5 * t[-1] + 3) % vocab)
    return t


def draw_batch(spec, rng):
    seq, vocab = spec["seq"], spec["config"]["vocab_size"]
    ids, labels, positions = [], [], []
    for first, stride, ignored in spec["rows"]:
        t = draw_sequence(rng, vocab, seq)
        target = t[1:]
        for i in range(seq) if ignored == "all" else ignored:
            target[i] = IGNORE
        ids.append(t[:-1])
        labels.append(target)
        positions.append([first + stride * i for i in range(seq)])
    return {"input_ids": torch.tensor(ids), "labels": torch.tensor(labels),
            "position_ids": torch.tensor(positions)}


def draw_samples(spec, rng, first):
    """The GLOBAL_BATCH samples of a step; every fifth has its prompt ignored."""
    out = []
    for k in range(first, first + GLOBAL_BATCH):
        n = spec["lengths"][k % len(spec["lengths"])]
        t = draw_sequence(rng, spec["config"]["vocab_size"], n)
        target = t[1:]
        if k % 5 == 4:
            target[:n // 3] = [IGNORE] * (n // 3)
        out.append({"input_ids": t[:-1], "labels": target})
    return out


# ---- one batch: logits, loss, gradients -----------------------------------------------------

def run_batch(model, batch):
    model.zero_grad(set_to_none=True)
    logits = forward(model, batch["input_ids"], batch["position_ids"])
    token = losses_of(logits, batch["labels"])
    loss = token.sum() / (batch["labels"] != IGNORE).sum()
    loss.backward()
    out = {"logits": logits.detach(), "token_losses": token.detach(), "loss": loss.detach()}
    grads = {name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
             for name, p in model.named_parameters()}
    # What is zero by mathematics (queries and keys of one-token sequences) is stored as zero.
    total = math.sqrt(sum(g.norm().item() ** 2 for g in grads.values()))
    for g in grads.values():
        if g.norm().item() < 1e-9 * total and g.dtype is torch.float64:
            g.zero_()
    return out, grads


def distance(a, b):
    """Relative L2 distance of two dictionaries' worst tensor.  Where the first has a zero, the
    size of all its tensors together is the measure."""
    total = math.sqrt(sum(v.double().norm().item() ** 2 for v in a.values()))
    return max((v.double() - b[k].double()).norm().item() / (v.double().norm().item() or total)
               for k, v in a.items())


# ---- training -------------------------------------------------------------------------------

def train_step(model, optimizer, samples):
    """Mean loss over the target tokens of the whole global batch, clipping, AdamW."""
    optimizer.zero_grad(set_to_none=False)
    targets = sum(t != IGNORE for s in samples for t in s["labels"])
    total = 0.0
    for s in samples:
        ids = torch.tensor([s["input_ids"]])
        positions = torch.arange(ids.shape[1])[None]
        token = losses_of(forward(model, ids, positions), torch.tensor([s["labels"]]))
        part = token.sum() / targets
        part.backward()
        total += part.item()
    # A parameter that no sample reached (an idle expert) has a gradient of zeros.
    for p in model.parameters():
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM).item()
    optimizer.step()
    return total, norm, targets


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=ADAMW["lr"], betas=tuple(ADAMW["betas"]),
                             eps=ADAMW["eps"], weight_decay=ADAMW["weight_decay"], foreach=False)


def token_losses(model, samples):
    with torch.no_grad():
        out = []
        for s in samples:
            ids = torch.tensor([s["input_ids"]])
            token = losses_of(forward(model, ids, torch.arange(ids.shape[1])[None]),
                              torch.tensor([s["labels"]]))
            out.append([digits(v) for v, t in zip(token[0].tolist(), s["labels"]) if t != IGNORE])
        return out


def run_training(spec, weights, rng):
    """Trains in float64 and float32 side by side over the same samples.  Samples that leave an
    expert's choice to rounding, now or with the first weights, are drawn again."""
    cfg = spec["config"]
    exact, plain = build(cfg, weights, True), build(cfg, weights, False)
    start = build(cfg, weights, True)
    margins = [Margins(exact), Margins(start)]
    opt64, opt32 = adamw(exact), adamw(plain)
    samples, log, first, worst = [], [], [], 0.0
    for step in range(1, STEPS + 1):
        while True:
            part = draw_samples(spec, rng, len(samples))
            token_losses(exact, part)
            part_first = token_losses(start, part)
            if min([m.take() for m in margins]) >= MARGIN:
                break
        samples += part
        first += part_first
        loss, norm, targets = train_step(exact, opt64, part)
        loss32, norm32, _ = train_step(plain, opt32, part)
        worst = max(worst, abs(loss - loss32) / loss, abs(norm - norm32) / norm)
        log.append({"step": step, "loss": digits(loss), "grad_norm": digits(norm),
                    "targets": targets})
    final = {k: p.detach().float() for k, p in exact.named_parameters()}
    final32 = {k: p.detach() for k, p in plain.named_parameters()}
    return samples, log, first, final, worst, distance(final, final32)


# Written in full after training; the others by their norms.  One-token sequences give queries and
# keys no gradient, and Adam makes of its rounding what it likes: those are left out there.
IDLE_S1 = ("q_norm.weight", "k_norm.weight", "q_proj.weight", "k_proj.weight")
KEEP = ("model.norm.weight", "self_attn.q_norm.weight", "self_attn.k_proj.weight",
        "mlp.gate.weight", "mlp.experts.0.up_proj.weight", "lm_head.weight")


def write_training(folder, spec, weights, rng):
    samples, log, first, final, worst, apart = run_training(spec, weights, rng)
    idle = IDLE_S1 if spec["lengths"] == [1] else ()
    names = {k: v for k, v in split_experts(final).items() if not (idle and k.endswith(idle))}
    (folder / "train.jsonl").write_text("".join(json.dumps(s) + "\n" for s in samples))
    (folder / "train.json").write_text(json.dumps({
        "optimizer": {"name": "adamw", **ADAMW}, "max_norm": MAX_NORM,
        "global_batch_size": GLOBAL_BATCH, "steps": log,
        "final_norms": {k: digits(v.double().norm().item()) for k, v in sorted(names.items())},
        "initial_losses": first}, indent=None, separators=(", ", ": ")).replace(
            '{"step"', '\n {"step"').replace(', "final_norms"', ',\n "final_norms"').replace(
            ', "initial_losses"', ',\n "initial_losses"').replace(", \n", ",\n") + "\n")
    kept = {k: v.contiguous() for k, v in names.items() if k.endswith(KEEP)}
    save_file(kept, folder / "final.safetensors", metadata={"format": "pt"})
    return worst, apart


# ---- a case ---------------------------------------------------------------------------------

def find_batch(spec, weights, rng):
    model = build(spec["config"], weights, True)
    margins = Margins(model)
    while True:
        batch = draw_batch(spec, rng)
        with torch.no_grad():
            forward(model, batch["input_ids"], batch["position_ids"])
        if margins.take() >= MARGIN:
            return batch, model


def check_checkpoint(folder, weights, batch, golden):
    """The directory as transformers reads it gives the golden logits."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                 experts_implementation="eager")
    state = model.state_dict()
    assert all(torch.equal(state[k], v) for k, v in weights.items()), folder
    with torch.no_grad():
        logits = forward(model, batch["input_ids"], batch["position_ids"])
    assert distance({"logits": golden["logits"]}, {"logits": logits}) < 3e-6, folder


def make(name):
    spec = MODELS[name]
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    rng = np.random.Generator(np.random.PCG64(spec["seed"]))
    config = hf_config(spec["config"])
    shape = (Qwen3MoeForCausalLM if is_moe(spec["config"]) else Qwen3ForCausalLM)(config)
    weights = draw_weights(shape, rng)

    batch, exact = find_batch(spec, weights, rng)
    golden, grads = run_batch(exact, batch)
    golden32, grads32 = run_batch(build(spec["config"], weights, False), batch)
    apart = {"logits": distance({"": golden["logits"]}, {"": golden32["logits"]}),
             "loss": distance({"": golden["loss"]}, {"": golden32["loss"]}),
             "gradients": distance(grads, grads32)}
    golden = {k: v.float().contiguous() for k, v in golden.items()}
    if is_moe(spec["config"]):
        grads = {**grads, **split_experts(grads)}
    grads = {k: v.float().contiguous() for k, v in grads.items()}

    generation = {"_from_model_config": True, "eos_token_id": 0, "transformers_version": "5.17.0"}
    for case, row in CHECKPOINTS.items():
        if row["model"] == name:
            (HERE / case).mkdir(exist_ok=True)
            write_checkpoint(HERE / case, row, weights, generation)
            check_checkpoint(HERE / case, weights, batch, golden)
    save_file(batch, folder / "batch.safetensors", metadata={"format": "pt"})
    save_file({**golden, **grads}, folder / "golden.safetensors", metadata={"format": "pt"})
    apart["training"], apart["weights"] = write_training(folder, spec, weights, rng)
    print(f"{name:16} loss {golden['loss'].item():.4f}  float32 apart: " +
          "  ".join(f"{k} {v:.1e}" for k, v in apart.items()))
    assert apart["logits"] < 3e-6 and apart["gradients"] < 5e-6 and apart["training"] < 3e-5


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for name in sys.argv[1:] or MODELS:
        make(name)
    dump(HERE / "cases.json", [{"checkpoint": case, "golden": row["model"]}
                               for case, row in CHECKPOINTS.items()])


if __name__ == "__main__":
    main()
