#!/usr/bin/env python3
"""Configurations drawn at random, in every family, against transformers.

    random_families.py [--family KIND]... [--count N] [--seed S] [--out DIR] [--build DIR]
                       [--train] [--reshard] [--adapt]

Each is a tiny model as make_families.py writes them, in DIR/KIND-SEED, which `make` built programs
then read: logits, losses and gradients by test_golden_families, the suite's layout and back by
d9d-map, greedy generation with a cache by d9d-infer.  Of decoders besides, by d9d-train:

    --train    ten steps of AdamW, against those of transformers in float64
    --reshard  three steps on a mesh and three that resume on another, against six on one rank
    --adapt    three steps of LoRA, whose adapter peft loads, against the export

One line for each: what was drawn, and the
largest relative distance, or what the programs say.  A config.json is as transformers saves it, or
as it was drawn: with few fields, of either generation of names.  Exits with 1 if any differs.
"""
import contextlib
import io
import json
import math
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import torch
import transformers as T
from transformers.utils import logging

from make_encoders import dump_encoder
from check_adapter import check
from make_families import CONFIGS, HERE, class_name, dump_case, train
from random_options import options

ROOT = HERE.parent.parent
ACTS = ["silu", "swish", "gelu", "gelu_pytorch_tanh", "gelu_new", "gelu_fast"]
FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"
MAX = 64  # positions


class Draw(random.Random):
    def maybe(self, share=0.5):
        return self.random() < share

    def even(self, low, high):
        return 2 * self.randint(low // 2, high // 2)

    def some(self, share=0.5, **of):
        """Some of these fields."""
        return {k: v for k, v in of.items() if self.maybe(share)}

    def divisor(self, n):
        return self.choice([d for d in range(1, n + 1) if n % d == 0])

    def types(self, layers, *words):
        return [self.choice(words) for _ in range(layers)]

    def eps(self):
        return self.choice([1e-8, 1e-6, 1e-5, 1e-3])

    def theta(self):
        return self.choice([20.0, 500.0, 10000, 1e6])


def base(r, head_dim=True, kv=True, share=False):
    """What every decoder has; without head_dim a head is a share of hidden_size."""
    heads = r.randint(1, 6)
    hidden = 8 * r.randint(2, 12)
    if share or not head_dim:
        heads = r.choice([h for h in range(1, 9) if hidden % (2 * h) == 0])
    c = dict(vocab_size=2 * r.randint(15, 70) + 1, hidden_size=hidden,
             intermediate_size=r.randint(5, 70), num_hidden_layers=r.randint(1, 4),
             num_attention_heads=heads, max_position_embeddings=MAX, bos_token_id=None,
             eos_token_id=0, pad_token_id=r.choice([None, r.randint(0, 30)]), tie_word_embeddings=r.maybe(),
             initializer_range=r.choice([0.02, 0.1]))
    if kv:
        c["num_key_value_heads"] = r.divisor(heads)
    if head_dim and (hidden % (2 * heads) != 0 or r.maybe(0.7)):
        c["head_dim"] = r.even(2, 24)
    return c


def width(c):
    return c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]


def rope(r, kinds, dim, layered=False):
    kind = r.choice(kinds)
    p = dict(rope_type=kind, rope_theta=r.theta())
    if kind in ("linear", "dynamic", "yarn", "llama3"):
        p["factor"] = r.choice([1.0, 1.5, 4, 8.0, 40])
    if kind in ("yarn", "llama3"):
        p["original_max_position_embeddings"] = r.choice([4, 8, 16, 64])
    if kind == "yarn":
        p.update(r.some(beta_fast=r.choice([32, 8.0]), beta_slow=r.choice([1, 0.5])))
        p.update(r.some(0.3, attention_factor=r.choice([0.8, 1.3])))
        p.update(r.some(0.4, mscale=r.choice([1.0, 0.707]), mscale_all_dim=r.choice([1.0, 0.8])))
        if not layered:
            p.update(r.some(truncate=r.maybe()))
    if kind == "llama3":
        p.update(low_freq_factor=r.choice([0.5, 1.0]), high_freq_factor=r.choice([2.0, 4]))
    if kind == "longrope":
        p["original_max_position_embeddings"] = r.choice([2, 3, MAX])
        for k in ("short_factor", "long_factor"):
            p[k] = [round(1 + r.random() * (1 if k == "short_factor" else 6), 3) for _ in range(dim // 2)]
        p.update(r.some(0.3, factor=r.choice([2.0, 9])), **r.some(0.3, attention_factor=1.3))
    return p


BY_LAYERS = ["default", "linear", "yarn", "llama3"]  # transformers fails at the others
SCALED = ["default", "default", "linear", "dynamic", "yarn", "llama3", "longrope"]


def with_rope(r, c, kinds=SCALED, dim=None, **more):
    """rope_parameters, or none where the defaults are drawn."""
    if dim is None:
        dim = width(c)
    if dim < 4:
        kinds = [k for k in kinds if k != "dynamic"]
    p = rope(r, kinds, dim)
    p.update(more)
    if p["rope_type"] != "default" or more or r.maybe(0.8):
        c["rope_parameters"] = p
    return c


def partial(r, c, kinds=SCALED, must=True):
    """A share of the head that leaves pairs."""
    shares = [s for s in (0.25, 0.4, 0.5, 0.75, 1.0)
              if int(width(c) * s) >= 2 and int(width(c) * s) % 2 == 0]
    if not shares:
        c["head_dim"], shares = 16, [0.25, 0.5, 0.75, 1.0]
    share = r.choice(shares)
    return with_rope(r, c, kinds, int(width(c) * share), partial_rotary_factor=share)


def window(r, c, share=0.7):
    c["sliding_window"] = r.randint(1, 14) if r.maybe(share) else None
    return c


def experts(r, c, count, per_token, most=9):
    n = r.randint(1, most)
    c[count] = n
    c[per_token] = r.randint(1, n)
    return c


def groups(r, c, per_group=2):
    g = r.randint(1, 4)
    each = r.randint(per_group, 4)
    top = r.randint(1, g)
    c.update(n_routed_experts=g * each, n_group=g, topk_group=top,
             num_experts_per_tok=r.randint(1, top * each), moe_intermediate_size=r.randint(3, 20),
             n_shared_experts=r.randint(1, 2), first_k_dense_replace=r.randint(0, c["num_hidden_layers"]),
             routed_scaling_factor=r.choice([1.0, 2.5, 0.7]))
    return c


# --- families --------------------------------------------------------------------------------

def llama(r):
    c = base(r, share=True)  # which transformers asks for
    c.update(rms_norm_eps=r.eps(), **r.some(attention_bias=True, mlp_bias=True, hidden_act=r.choice(ACTS)))
    return with_rope(r, c)


def mistral(r, must=False):
    c = {**base(r), "rms_norm_eps": r.eps()}
    if must:  # transformers has no head size of its own where RoPE is scaled
        c.setdefault("head_dim", 16)
    return window(r, with_rope(r, c))


def ministral(r):
    c = {**mistral(r, True), "sliding_window": r.randint(1, 14)}
    if r.maybe():
        c["layer_types"] = r.types(c["num_hidden_layers"], FULL, SLIDING)
    return c


def ministral3(r):
    c = window(r, base(r), 0.5)
    c["head_dim"] = r.even(2, 24)
    p = rope(r, ["yarn", "llama3"], c["head_dim"])
    c["rope_parameters"] = dict(p, llama_4_scaling_beta=r.choice([0.1, 0.5]))
    return {**c, "rms_norm_eps": r.eps()}


def mixtral(r):
    return experts(r, mistral(r, True), "num_local_experts", "num_experts_per_tok")


def smollm3(r):
    c = base(r, head_dim=False)
    layers = c["num_hidden_layers"]
    c.update(rms_norm_eps=r.eps(), **r.some(attention_bias=True, mlp_bias=True))
    c.update(r.some(0.4, no_rope_layers=r.types(layers, 0, 1)), no_rope_layer_interval=r.randint(1, 4))
    if r.maybe(0.4):
        c.update(use_sliding_window=True, sliding_window=r.randint(1, 14),
                 **r.some(layer_types=r.types(layers, FULL, SLIDING)))
    return with_rope(r, c)


def phi3(r):
    c = window(r, base(r, head_dim=False), 0.5)
    shares = [s for s in (0.25, 0.5, 0.75, 1.0) if int(width(c) * s) % 2 == 0 and int(width(c) * s) >= 2]
    share = r.choice(shares)
    p = rope(r, ["default", "longrope"], int(width(c) * share))
    if "original_max_position_embeddings" in p:
        c["original_max_position_embeddings"] = p.pop("original_max_position_embeddings")
    p["partial_rotary_factor"] = share
    return {**c, "rope_parameters": p, "rms_norm_eps": r.eps()}


def qwen_windows(r, c):
    layers = c["num_hidden_layers"]
    if r.maybe():
        c.update(use_sliding_window=True, sliding_window=r.randint(1, 14),
                 max_window_layers=r.randint(0, layers))
        c.update(r.some(0.4, layer_types=r.types(layers, FULL, SLIDING)))
    return c


def qwen2(r):
    return qwen_windows(r, with_rope(r, {**base(r, head_dim=False), "rms_norm_eps": r.eps()}))


def qwen3(r):
    c = base(r)
    c.update(head_dim=r.even(2, 24), rms_norm_eps=r.eps(), **r.some(0.4, attention_bias=True))
    return qwen_windows(r, with_rope(r, c))


def qwen_moe(r, c):
    layers = c["num_hidden_layers"]
    c.update(moe_intermediate_size=r.randint(3, 20), norm_topk_prob=r.maybe())
    c.update(r.some(0.3, decoder_sparse_step=r.randint(1, 3), mlp_only_layers=r.sample(range(layers), 1)))
    return experts(r, c, "num_experts", "num_experts_per_tok")


def qwen2_moe(r):
    c = qwen_moe(r, qwen2(r))
    return {**c, "shared_expert_intermediate_size": r.randint(3, 20), **r.some(0.3, qkv_bias=False)}


def qwen3_moe(r):
    c = qwen3(r)
    c.pop("layer_types", None), c.pop("max_window_layers", None)
    return qwen_moe(r, c)


def delta(r, c):
    key = r.randint(1, 3)
    c.update(linear_num_key_heads=key, linear_num_value_heads=key * r.randint(1, 3),
             linear_key_head_dim=r.randint(2, 10), linear_value_head_dim=r.randint(2, 10),
             linear_conv_kernel_dim=r.randint(1, 5))
    if r.maybe(0.7):
        c["layer_types"] = r.types(c["num_hidden_layers"], FULL, LINEAR)
    else:
        c["full_attention_interval"] = r.randint(1, 3)
    c.update(r.some(0.3, attention_bias=True))
    return c


def qwen3_next(r):
    c = delta(r, {**base(r), "head_dim": r.choice([8, 16, 24]), "rms_norm_eps": r.eps()})
    c["shared_expert_intermediate_size"] = r.randint(3, 20)
    return qwen_moe(r, partial(r, c))


def qwen3_5(r):
    c = delta(r, {**base(r), "head_dim": r.choice([8, 16, 24]), "rms_norm_eps": r.eps()})
    partial(r, c, ["default", "default", "yarn", "linear"])
    p = c["rope_parameters"]
    half = int(c["head_dim"] * p["partial_rotary_factor"]) // 2
    at = r.randint(0, half)
    return {**c, "rope_parameters": {**p, "mrope_interleaved": True,
                                     "mrope_section": [half - at // 2 * 2, at // 2, at // 2]}}


def qwen3_5_moe(r):
    c = experts(r, qwen3_5(r), "num_experts", "num_experts_per_tok")
    c.pop("intermediate_size")
    return {**c, "moe_intermediate_size": r.randint(3, 20), "shared_expert_intermediate_size": r.randint(3, 20)}


def glm4_moe(r):
    c = groups(r, partial(r, {**base(r), "rms_norm_eps": r.eps()}))
    return {**c, "norm_topk_prob": r.maybe(), **r.some(attention_bias=True, use_qk_norm=True)}


def gpt_oss(r):
    c = base(r)
    c.update(head_dim=r.even(2, 24), sliding_window=r.randint(1, 14), rms_norm_eps=r.eps(),
             attention_bias=r.maybe(0.7), swiglu_limit=r.choice([0.75, 1.0, 7.0]))
    c.update(r.some(layer_types=r.types(c["num_hidden_layers"], FULL, SLIDING)))
    experts(r, c, "num_local_experts", "num_experts_per_tok")
    c["rope_parameters"] = rope(r, SCALED if c["head_dim"] > 2 else ["default", "yarn"], c["head_dim"])
    return c


def deepseek(r, kinds=SCALED):
    c = base(r, kv=False, share=True)
    c.pop("head_dim", None)
    c.update(num_key_value_heads=c["num_attention_heads"], q_lora_rank=r.choice([None, 5, 8]),
             kv_lora_rank=r.randint(3, 9), qk_nope_head_dim=r.randint(1, 9),
             qk_rope_head_dim=r.even(2, 8), v_head_dim=r.randint(1, 9), rms_norm_eps=r.eps(),
             **r.some(0.3, attention_bias=True))
    return groups(r, with_rope(r, c, dim=c["qk_rope_head_dim"], kinds=kinds))


def deepseek_v3(r):
    return {**deepseek(r), "norm_topk_prob": r.maybe(), **r.some(rope_interleave=r.maybe())}


def glm4_moe_lite(r):
    c = deepseek_v3(r)
    c.pop("first_k_dense_replace")
    return {**c, **r.some(mlp_layer_types=r.types(c["num_hidden_layers"], "dense", "sparse"))}


def deepseek_v2(r):
    c = deepseek(r, [k for k in SCALED if k != "longrope"])
    for k in ("qk_nope_head_dim", "kv_lora_rank"):  # which transformers takes apart by pairs
        c[k] += c[k] % 2
    if r.maybe():
        return {**c, "topk_method": "group_limited_greedy"}
    return {**c, "topk_method": "greedy", **r.some(n_group=None, topk_group=None)}


def olmo(r):
    c = with_rope(r, base(r, head_dim=False))
    return {**c, **r.some(attention_bias=True), **r.some(0.4, clip_qkv=r.choice([0.3, 1.0, 8.0]))}


def olmo2(r):
    return {**with_rope(r, base(r)), "rms_norm_eps": r.eps(), **r.some(attention_bias=True)}


def olmo3(r):
    c = {**base(r), "rms_norm_eps": r.eps(), "sliding_window": r.randint(1, 14), **r.some(attention_bias=True)}
    c.update(r.some(layer_types=r.types(c["num_hidden_layers"], FULL, SLIDING)))
    if r.maybe(0.8):
        c["rope_parameters"] = {FULL: rope(r, BY_LAYERS, width(c), True), SLIDING: rope(r, ["default"], 0)}
    return c


def olmoe(r):
    c = with_rope(r, {**base(r, head_dim=False), "rms_norm_eps": r.eps(), **r.some(attention_bias=True)})
    c = experts(r, {**c, "norm_topk_prob": r.maybe()}, "num_experts", "num_experts_per_tok")
    return {**c, **r.some(0.4, clip_qkv=r.choice([0.3, 1.0, 8.0]))}


def minimax_m2(r):
    c = {**base(r), "head_dim": r.choice([8, 10, 16, 24]), "rms_norm_eps": r.eps()}
    return experts(r, partial(r, c), "num_local_experts", "num_experts_per_tok")


def granite(r):
    return {**with_rope(r, base(r, head_dim=False)), "rms_norm_eps": r.eps(),
            **r.some(attention_bias=True, mlp_bias=True), **factors(r)}


def factors(r):
    return r.some(0.7, embedding_multiplier=r.choice([12, 3.0]), attention_multiplier=r.choice([0.2, 0.015625]),
                  residual_multiplier=r.choice([0.22, 1.5]), logits_scaling=r.choice([8.0, 0.5, 6]))


def granitemoe(r):
    c = granite(r)
    c.pop("mlp_bias", None)
    return experts(r, c, "num_local_experts", "num_experts_per_tok")


def granitemoehybrid(r):
    c = granite(r)
    c.pop("mlp_bias", None)
    for k in ("mamba_n_heads", "mamba_d_head"):  # sizes that transformers checks, and no layer has
        c[k] = 1 if k == "mamba_n_heads" else "auto"
    return {**c, "num_local_experts": 0, "shared_intermediate_size": r.randint(3, 40),
            "position_embedding_type": r.choice(["rope", "rope", "nope"]),
            "layer_types": r.types(c["num_hidden_layers"], "attention", FULL)}


def gemma(r, share=False):
    c = {**base(r, share=share), "head_dim": r.even(2, 24), "rms_norm_eps": r.eps(), **r.some(0.4, attention_bias=True)}
    return with_rope(r, c)


def gemma_windows(r, c):
    c.update(sliding_window=r.randint(1, 14), query_pre_attn_scalar=r.randint(1, 30))
    c.update(r.some(layer_types=r.types(c["num_hidden_layers"], FULL, SLIDING)))
    c.update(final_logit_softcapping=r.choice([None, 3.0, 30.0]))
    return c


def gemma2(r):
    return {**gemma_windows(r, gemma(r, True)), "attn_logit_softcapping": r.choice([None, 1.5, 50.0])}


def gemma3(r):
    c = gemma_windows(r, gemma(r, True))
    c["rope_parameters"] = {FULL: rope(r, BY_LAYERS, c["head_dim"], True), SLIDING: rope(r, ["default"], 0)}
    if "layer_types" not in c:
        c.update(r.some(sliding_window_pattern=r.randint(1, 4)))
    return c


def gpt_neox(r):
    c = base(r, head_dim=False, kv=False)
    c.update(layer_norm_eps=r.eps(), use_parallel_residual=r.maybe(), attention_bias=r.maybe(0.7),
             hidden_act=r.choice(ACTS), hidden_dropout=0.0, attention_dropout=0.0)
    while True:
        share = r.choice([0.25, 0.5, 0.75, 1.0])
        dim = int(width(c) * share)
        if dim >= 2 and dim % 2 == 0:
            return with_rope(r, c, dim=dim, partial_rotary_factor=share)


def gpt2(r):
    c = base(r, head_dim=False, kv=False)
    out = {k: c[k] for k in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id",
                             "tie_word_embeddings", "initializer_range")}
    out.update(n_embd=c["hidden_size"], n_layer=c["num_hidden_layers"], n_head=c["num_attention_heads"],
               n_positions=MAX, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, layer_norm_epsilon=r.eps(),
               scale_attn_weights=r.maybe(), scale_attn_by_inverse_layer_idx=r.maybe(),
               reorder_and_upcast_attn=r.maybe(0.3), activation_function=r.choice(ACTS))
    return {**out, **r.some(n_inner=c["intermediate_size"])}


def modernbert(r):
    c = base(r, head_dim=False, kv=False)
    layers = c["num_hidden_layers"]
    c.update(local_attention=r.randint(2, 12), norm_eps=r.eps(), norm_bias=r.maybe(), attention_bias=r.maybe(),
             mlp_bias=r.maybe(), hidden_activation=r.choice(ACTS), embedding_dropout=0.0, mlp_dropout=0.0,
             attention_dropout=0.0, pad_token_id=0)
    c.update(r.some(layer_types=r.types(layers, FULL, SLIDING)), **r.some(global_attn_every_n_layers=r.randint(1, 4)))
    if r.maybe(0.7):
        c["rope_parameters"] = {FULL: rope(r, ["default"], 0), SLIDING: rope(r, ["default"], 0)}
    return c


FAMILIES = {"Llama": llama, "Mistral": mistral, "Ministral": ministral, "Ministral3": ministral3,
            "Mixtral": mixtral, "SmolLM3": smollm3, "Phi3": phi3, "Qwen2": qwen2, "Qwen2Moe": qwen2_moe,
            "Qwen3": qwen3, "Qwen3Moe": qwen3_moe, "Qwen3Next": qwen3_next, "Qwen3_5": qwen3_5,
            "Qwen3_5Moe": qwen3_5_moe, "Glm4Moe": glm4_moe, "GptOss": gpt_oss,
            "DeepseekV2": deepseek_v2, "DeepseekV3": deepseek_v3, "Olmo": olmo, "Olmo2": olmo2,
            "Olmo3": olmo3, "Olmoe": olmoe, "MiniMaxM2": minimax_m2, "Granite": granite,
            "GraniteMoe": granitemoe, "GraniteMoeHybrid": granitemoehybrid, "Glm4MoeLite": glm4_moe_lite, "Gemma": gemma, "Gemma2": gemma2, "Gemma3": gemma3,
            "GPTNeoX": gpt_neox, "GPT2": gpt2, "ModernBert": modernbert}

# Fields whose defaults make small models too.
OPTIONAL = {"rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_topk_prob", "head_dim",
            "sliding_window", "routed_scaling_factor", "swiglu_limit", "tie_word_embeddings", "topk_method",
            "attention_bias", "mlp_bias", "qkv_bias", "norm_bias", "hidden_act", "activation_function",
            "hidden_activation", "query_pre_attn_scalar", "attn_logit_softcapping", "first_k_dense_replace",
            "final_logit_softcapping", "use_parallel_residual", "scale_attn_weights", "local_attention",
            "rope_parameters", "no_rope_layer_interval", "max_window_layers", "linear_conv_kernel_dim",
            "initializer_range", "use_qk_norm", "n_group", "topk_group", "n_shared_experts",
            "max_position_embeddings", "n_positions", "shared_expert_intermediate_size", "mlp_only_layers",
            "decoder_sparse_step", "rope_interleave", "q_lora_rank"}

# --- forms of a config.json ------------------------------------------------------------------


def older(kind, c):
    """Names before transformers 5: rope_theta beside rope_scaling."""
    p = c.get("rope_parameters")
    if p is None:
        return c
    c = {k: v for k, v in c.items() if k != "rope_parameters"}
    if SLIDING in p:
        local, p = p[SLIDING]["rope_theta"], p[FULL]
        c[{"ModernBert": "local_rope_theta", "Gemma3": "rope_local_base_freq"}.get(kind, "")] = local
        c.pop("", None)
    p = dict(p)
    if kind == "Olmo3":  # transformers takes this for layers with a window, whatever the file says
        p["rope_theta"] = 500000.0
    if kind == "ModernBert":
        c["global_rope_theta"] = p.pop("rope_theta")
    if kind == "GPTNeoX":
        c.update(rotary_emb_base=p.pop("rope_theta"), rotary_pct=p.pop("partial_rotary_factor"))
    for k in ("rope_theta", "partial_rotary_factor"):
        if k in p:
            c[k] = p.pop(k)
    if p["rope_type"] != "default" or len(p) > 1:
        c["rope_scaling"] = p
    return c


def written(r, kind, c, saved):
    """The config.json: as saved, or as drawn."""
    form = r.choice(["saved", "drawn", "older"])
    if form == "saved":
        return form, saved
    doc = older(kind, c) if form == "older" else c
    return form, {"architectures": saved["architectures"], "model_type": saved["model_type"], **doc}


def config_of(kind, doc):
    """transformers' configuration of the fields, as of a file."""
    return getattr(T, CONFIGS.get(kind, kind) + "Config").from_dict(json.loads(json.dumps(doc)))


# --- running ---------------------------------------------------------------------------------

def run(*args, cwd=None):
    p = subprocess.run([str(a) for a in args], cwd=cwd, capture_output=True, text=True, timeout=300)
    return p.returncode, (p.stdout + p.stderr).strip()


def says(text):
    """The sentence of a failure."""
    lines = [l for l in text.splitlines() if l.startswith("d9d-")] or \
        [l for l in text.splitlines() if "ERROR" in l or "error" in l or "is not" in l or "--- " in l]
    return (lines or text.splitlines() or ["no word"])[0].strip()


def there_and_back(bin, case, work):
    for at, to in ((case, work / "own"), (work / "own", work / "back")):
        code, text = run(bin / "d9d-map", "-q", at, to)
        if code != 0:
            return "map: " + says(text)
    code, text = run(bin / "d9d-map", "-q", "diff", case, work / "back")
    if code != 0 or (case / "config.json").read_bytes() != (work / "back" / "config.json").read_bytes():
        return "map: comes back different: " + says(text)
    return None


def generates(bin, case, work):
    new = len(json.loads((case / "generate.jsonl").read_text().splitlines()[0])["tokens"])
    (work / "generate.json").write_text(json.dumps({
        "model_provider": {"name": "auto", "hf_config": str(case / "config.json")},
        "trainer": {"batching": {"microbatch_size": 2}, "model_stage_factory": {"source_checkpoint": str(case)}},
        "task": {"name": "generate", "prompts": str(case / "generate.jsonl"), "max_new_tokens": new,
                 "stop_at_eos": False, "output": str(work / "text.jsonl")}}))
    code, text = run(bin / "d9d-infer", "-q", "--device", "cpu", "generate.json", cwd=work)
    if code != 0:
        return "generate: " + says(text)
    got, want = ([json.loads(l)["tokens"] for l in p.read_text().splitlines()]
                 for p in (work / "text.jsonl", case / "generate.jsonl"))
    return None if got == want else f"generate: {got} is not {want}"


# --- training --------------------------------------------------------------------------------

BIASED = {"DeepseekV3", "Glm4Moe", "Glm4MoeLite", "MiniMaxM2"}  # transformers does not move their biases
DEGREES = ["data_parallel_shard", "data_parallel_replicate", "tensor_parallel", "pipeline_parallel",
           "context_parallel_shard", "expert_parallel"]


def learns(bin, case, work, name, steps, more, launch=()):
    """Losses and gradient norms of a job, or its sentence."""
    (work / "train.json").write_text(json.dumps({
        "data": {"dataset": str(work / "data"), "epochs": 40, "order": "sequential"},
        "model_provider": {"name": "auto", "hf_config": str(case / "config.json"),
                           **({"router": {"bias_update_rate": 0}} if case.name.split("-")[0] in BIASED else {})},
        "optimizer": {"name": "adamw", "lr": 1e-3, "betas": [0.9, 0.95], "weight_decay": 0.1},
        "trainer": {"run": {"name": name, "dir": str(work / name), "steps": steps},
                    "batching": {"global_batch_size": 3, "microbatch_size": 3},
                    "gradient_clipping": {"max_norm": 1.0},
                    "model_stage_factory": {"source_checkpoint": str(case)}}}))
    sets = [w for k, v in more.items() for w in ("--set", f"{k}={json.dumps(v)}")]
    code, text = run(*launch, bin / "d9d-train", "-q", "--device", "cpu", *sets, "train.json", cwd=work)
    if code != 0:
        return None, f"{code}: {says(text)}"
    log = [json.loads(l) for l in (work / name / "metrics.jsonl").read_text().splitlines()]
    return [(l["loss"], l["grad_norm"]) for l in log if "loss" in l and "grad_norm" in l], None


def differ(got, want, most):
    """The first step whose loss or norm is too far, or None; and the largest distance of a loss."""
    if len(got) != len(want):
        return f"{len(got)} steps, not {len(want)}", math.inf
    far = [[abs(a - b) / max(abs(b), 1e-6) for a, b in zip(g, w)] for g, w in zip(got, want)]
    for step, (loss, norm) in enumerate(far, 1):
        if not (loss <= most and norm <= 50 * most):
            return f"step {step}: {got[step - 1]} is not {want[step - 1]}", loss
    return None, max(f[0] for f in far)


def trains(bin, case, work, made, r):
    ids, labels, _, exact, apart = made
    want = [(l["loss"], l["grad_norm"]) for l in train(exact, ids, labels)]
    got, wrong = learns(bin, case, work, "steps", 10, {"optimizer.eps": 1e-8})
    if wrong:
        return "train: " + wrong, ""
    # Adam makes of small gradients what it likes: how far is transformers' own float32?
    plain = T.AutoModelForCausalLM.from_pretrained(
        case, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager")
    own = differ([(l["loss"], l["grad_norm"]) for l in train(plain, ids, labels)], want, math.inf)[1]
    wrong, far = differ(got, want, max(1e-5, 10 * own))
    return wrong and f"train: {wrong}, transformers' float32 {own:.1e}", f"{far:.1e}"


def draw_mesh(r, ranks):
    """Degrees whose product is `ranks`; experts are over ranks of the others."""
    mesh, left = {}, ranks
    while left > 1:
        k = r.choice(DEGREES[:-1])
        mesh[k] = 2 * mesh.get(k, 1)
        left //= 2
    if r.maybe(0.4):
        mesh["expert_parallel"] = r.choice([2, ranks])
    return mesh


def reshards(bin, case, work, made, r):
    """Also with a mesh that cannot be, which another one replaces."""
    gentle = {"optimizer.eps": 1e-3, "trainer.batching.global_batch_size": 12, "trainer.batching.microbatch_size": 1}
    done = []
    for steps in (3, 6):
        for _ in range(12):
            ranks = r.choice([1, 2, 4]) if steps == 6 else r.choice([2, 4])
            mesh = draw_mesh(r, ranks)
            launch = ["mpirun", "--mca", "mpi_yield_when_idle", "0", "--oversubscribe", "--bind-to", "none", "-n", ranks]
            more = {f"mesh.{k}": v for k, v in mesh.items()}
            got, wrong = learns(bin, case, work, "mesh", steps, {**gentle, **more}, launch if ranks > 1 else ())
            if wrong is None or not wrong.startswith("2: "):
                break
        if wrong:
            return f"reshard: {ranks} ranks {mesh}: {wrong}", ""
        done.append(mesh)
        shutil.rmtree(work / "mesh/export")
    want, wrong = learns(bin, case, work, "one", 6, gentle)
    if wrong:
        return "reshard: one rank: " + wrong, ""
    wrong, far = differ(got, want, 1e-5)
    return wrong and f"reshard: {done}: {wrong}", f"{far:.1e}"


def adapts(bin, case, work, made, r):
    base = work / "base"
    code, text = run(bin / "d9d-map", "-q", "--to", "hf", "--dtype", "float32", case, base)
    if code != 0:
        return "adapt: " + says(text), ""
    rank, said = r.randint(1, 4), io.StringIO()
    _, wrong = learns(bin, base, work, "lora", 3, {
        "optimizer.lr": 2e-2, "peft": {"kind": "lora", "module_name_pattern": r.choice([
            r"model\.layers\..*", r".*\.(q|v|up|o)_proj", r".*_proj"]), "params": {"r": rank, "alpha": 2 * rank}}})
    if wrong:
        return "adapt: " + wrong, ""
    try:
        with contextlib.redirect_stdout(said):
            fine = check(base, work / "lora", 1e-5)
    except Exception as e:
        return f"adapt: peft: {type(e).__name__}: {str(e)[:300]!r}", ""
    return None if fine else "adapt: " + " ".join(said.getvalue().split("\n")), said.getvalue().split(": ")[-1].strip()


BY_TRAINING = {"train": trains, "reshard": reshards, "adapt": adapts}


def compare_training(build, case, made, r, which):
    work = case.parent / (case.name + ".train")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    code, text = run(build / "bin/d9d-shard", "-q", "--format", "tokens", "--out", work / "data", case / "train.jsonl")
    wrong, far = says(text) if code != 0 else None, {}
    for name in which:
        if wrong is None:
            wrong, far[name] = BY_TRAINING[name](build / "bin", case, work, made, r)
    shutil.rmtree(work)
    return wrong, far


def compare(build, case, decodes):
    """What differs, or None; and the largest distance."""
    work = case.parent / (case.name + ".work")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    code, text = run(build / "tests/golden/test_golden_families", case)
    away = [l.split(" is ")[1].split()[0] for l in text.splitlines() if l.endswith(" away")]
    wrong = None if code == 0 else says(text)
    wrong = wrong or there_and_back(build / "bin", case, work)
    wrong = wrong or (generates(build / "bin", case, work) if decodes else None)
    shutil.rmtree(work)
    return wrong, away[0] if away else "-"


def brief(c):
    plain = ("bos_token_id", "eos_token_id", "pad_token_id", "initializer_range", "max_position_embeddings")
    return json.dumps({k: v for k, v in c.items() if k not in plain})


def make(kind, doc, seed, case, r):
    """The model's files; a model that amplifies rounding tells little, and has other weights."""
    length = r.randint(12, 40)
    for n in range(6):
        config = config_of(kind, doc)
        shutil.rmtree(case, ignore_errors=True)
        if kind == "ModernBert":
            made = dump_encoder(case, "Model", config, seed + 100000 * n)
        else:
            made = dump_case(case, kind, config, seed + 100000 * n, length, length // 2, 6)
        if made[-1] < 2e-5:
            break
    return made


def draw(kind, r):
    """Fields that transformers takes; some are left to its defaults."""
    while True:
        whole = FAMILIES[kind](r)
        c = {k: v for k, v in whole.items() if k not in OPTIONAL or not r.maybe(0.12)}
        if whole.get("hidden_size", 0) % whole.get("num_attention_heads", 1) != 0:
            c.update({k: whole[k] for k in ("head_dim",) if k in whole})  # d9d asks for it then
        if "longrope" in str(whole):  # whose factors d9d takes by this, not by the row
            c["max_position_embeddings"] = MAX
        try:
            config_of(kind, c)
            return c
        except Exception:
            continue


def one(kind, seed, out, build, which):
    r = Draw(f"{kind} {seed}")
    drawn = draw(kind, r)
    case = out / f"{kind}-{seed}"
    model_type = getattr(T, CONFIGS.get(kind, kind) + "Config").model_type
    name = "ModernBertModel" if kind == "ModernBert" else class_name(kind)
    form, doc = written(r, kind, drawn, {"architectures": [name], "model_type": model_type, **drawn})
    try:
        made = make(kind, doc, seed, case, r)
    except Exception as e:
        print(f"{kind} {seed}: transformers: {type(e).__name__}: {str(e)[:200]!r}: {brief(doc)}", flush=True)
        return None
    if form != "saved":
        (case / "config.json").write_text(json.dumps(doc, indent=2) + "\n")
    wrong, away = compare(build, case, kind != "ModernBert")
    if wrong is None and which and kind != "ModernBert":
        wrong, far = compare_training(build, case, made, r, which)
        away += "".join(f", {k} {v}" for k, v in far.items())
    print(f"{kind} {seed}: {wrong or 'ok'}: {away} away, float32 {made[-1]:.1e}: {form} {brief(doc)}", flush=True)
    if wrong is None:
        shutil.rmtree(case)
    return wrong is None


def main():
    p = options(20, "random-families", FAMILIES)
    p.add_argument("--build", type=Path, default=ROOT / "build")
    for name in BY_TRAINING:
        p.add_argument("--" + name, action="store_true")
    a = p.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    os.environ.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive",
                      OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    which = [name for name in BY_TRAINING if getattr(a, name)]
    done = {k: [one(k, s, a.out.resolve(), a.build.resolve(), which) for s in range(a.seed, a.seed + a.count)]
            for k in a.family or FAMILIES}
    for k, all_of in done.items():
        print(f"{k}: {all_of.count(True)} equal, {all_of.count(False)} not, "
              f"{all_of.count(None)} that transformers refuses")
    sys.exit(any(False in v for v in done.values()))


if __name__ == "__main__":
    main()
