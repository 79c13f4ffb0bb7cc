#!/usr/bin/env python3
"""Golden vectors of a KV cache in 8 bits: PyTorch's e4m3, and its attention over what it stores.

    python make_kv_fp8.py      # writes kv_fp8.safetensors beside this file

    k, v               [Z, KV, D] float32, of very different sizes; one head of zeros
    k.codes, v.codes   [Z, KV, D] F8_E4M3, k.scale, v.scale [Z, KV]: a power of two, the smallest
                       with which the head's largest magnitude is at most 448
    q, o               [S, A, D]: queries, the last S of Z tokens, and causal attention in float64
    exact              [S, A, D]: the same over k and v themselves
"""
from pathlib import Path

import torch
from safetensors.torch import save_file

OUT = Path(__file__).resolve().parent / "kv_fp8.safetensors"
Z, S, A, KV, D = 40, 3, 6, 2, 24


def quantise(x):
    amax = x.abs().amax(-1)
    scale = torch.exp2(torch.ceil(torch.log2(amax.double() / 448))).float()
    scale = torch.where(amax == 0, 1.0, scale)
    return (x / scale[..., None]).to(torch.float8_e4m3fn), scale


def attention(q, k, v):
    k, v = (x.double().repeat_interleave(A // KV, 1).transpose(0, 1) for x in (k, v))
    mask = torch.ones(S, Z, dtype=torch.bool).tril(Z - S)
    o = torch.nn.functional.scaled_dot_product_attention(q.double().transpose(0, 1), k, v, mask)
    return o.transpose(0, 1).float()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    q, k, v = torch.randn(S, A, D), torch.randn(Z, KV, D), torch.randn(Z, KV, D)
    k, v = k * torch.logspace(-2, 0, Z)[:, None, None], v * torch.logspace(1, -3, Z)[:, None, None]
    v[5, 1] = 0
    tensors = {"q": q, "k": k, "v": v, "exact": attention(q, k, v)}
    stored = []
    for name, x in (("k", k), ("v", v)):
        codes, scale = quantise(x)
        tensors.update({f"{name}.codes": codes, f"{name}.scale": scale})
        stored.append(codes.float() * scale[..., None])
    tensors["o"] = attention(q, *stored)
    save_file({k: v.contiguous() for k, v in tensors.items()}, OUT)


main()
