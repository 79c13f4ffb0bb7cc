#!/usr/bin/env python3
"""Golden vectors of Qwen3-Next's gated delta net: transformers' module, forward and backward.

    python make_delta.py      # writes delta/ beside this file

README.md describes the files.  The module runs in float64, its casts to float32 taken out (its
`torch.float32` is float64 there, and `.float()` does nothing), and the numbers are rounded at the
end; in float32, as it is, it runs beside and must agree to CLOSE, and in bfloat16, how far away it is
then being noted.  Rows of several documents are
what the module gives for each alone.
"""
import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import Qwen3NextConfig
from transformers.models.qwen3_next import modeling_qwen3_next as theirs

OUT = Path(__file__).resolve().parent / "delta"
CLOSE = 1e-5

# documents: lengths of those of the one row; without, two rows of so many tokens.
CASES = {
    "grouped": dict(hidden=24, key_heads=2, value_heads=4, key_dim=8, value_dim=12, conv=4, eps=1e-6, tokens=150),
    "square": dict(hidden=16, key_heads=3, value_heads=3, key_dim=16, value_dim=16, conv=4, eps=1e-5, tokens=64),
    "short": dict(hidden=20, key_heads=1, value_heads=2, key_dim=10, value_dim=6, conv=2, eps=1e-6, tokens=3),
    "packed": dict(hidden=24, key_heads=2, value_heads=4, key_dim=8, value_dim=12, conv=4, eps=1e-6,
                   documents=[1, 63, 64, 65, 2, 130]),
}


class Double:
    """torch as their module sees it when it computes in float64."""

    float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


def module(case, dtype):
    config = Qwen3NextConfig(
        hidden_size=case["hidden"], linear_num_key_heads=case["key_heads"],
        linear_num_value_heads=case["value_heads"], linear_key_head_dim=case["key_dim"],
        linear_value_head_dim=case["value_dim"], linear_conv_kernel_dim=case["conv"],
        rms_norm_eps=case["eps"], num_hidden_layers=1, layer_types=["linear_attention"])
    return theirs.Qwen3NextGatedDeltaNet(config, 0).to(dtype)


def numbers(case, seed):
    """Weights by their module's names, x and dy: float32."""
    rng = np.random.Generator(np.random.PCG64(seed))
    draw = lambda shape, scale: torch.from_numpy(scale * rng.standard_normal(shape)).float()
    weights = {}
    for name, p in module(case, torch.float32).named_parameters():
        scale = {"A_log": 1.0, "dt_bias": 1.0, "norm.weight": 0.3, "conv1d.weight": 0.5}.get(name)
        weights[name] = draw(p.shape, scale or p.shape[-1] ** -0.5)
    weights["norm.weight"] += 1
    rows, tokens = (1, sum(case["documents"])) if "documents" in case else (2, case["tokens"])
    shape = (rows, tokens, case["hidden"])
    return weights, draw(shape, 1.0), draw(shape, 1.0)


def run(case, weights, x, dy, dtype):
    """y and gradients, by their names."""
    torch_was, float_was = theirs.torch, torch.Tensor.float
    if dtype == torch.float64:
        theirs.torch, torch.Tensor.float = Double(), lambda t: t
    try:
        m = module(case, dtype)
        m.load_state_dict({k: v.to(dtype) for k, v in weights.items()})
        x = x.detach().clone().to(dtype).requires_grad_(True)
        parts = x.split(case.get("documents", [x.shape[1]]), dim=1)
        y = torch.cat([m(p) for p in parts], dim=1)
        assert y.dtype == dtype
        y.backward(dy.to(dtype))
    finally:
        theirs.torch, torch.Tensor.float = torch_was, float_was
    return {"y": y.detach(), "dx": x.grad, **{f"d{k}": p.grad for k, p in m.named_parameters()}}


def ours(case, theirs_by_name, prefix=""):
    """Their arrays of weights as ours: heads of keys one after the other, cut to projections."""
    nk, nv, dk, dv = (case[k] for k in ("key_heads", "value_heads", "key_dim", "value_dim"))
    group = nv // nk
    w = {k.removeprefix(prefix): v for k, v in theirs_by_name.items()}
    h = case["hidden"]
    q, k, v, z = w["in_proj_qkvz.weight"].view(nk, -1, h).split([dk, dk, group * dv, group * dv], dim=1)
    b, a = w["in_proj_ba.weight"].view(nk, -1, h).split([group, group], dim=1)
    cq, ck, cv = w["conv1d.weight"].squeeze(1).split([nk * dk, nk * dk, nv * dv])
    out = {"q_proj": q, "k_proj": k, "v_proj": v, "g_proj": z, "b_proj": b, "a_proj": a}
    out = {f"{n}.weight": p.reshape(-1, h) for n, p in out.items()}
    return {**out, "o_proj.weight": w["out_proj.weight"], "q_conv.weight": cq, "k_conv.weight": ck,
            "v_conv.weight": cv, "A_log": w["A_log"], "dt_bias": w["dt_bias"],
            "out_norm.weight": w["norm.weight"]}


def by_our_names(case, results):
    grads = {k: v for k, v in results.items() if k not in ("y", "dx")}
    return {"y": results["y"], "dx": results["dx"],
            **{f"d{k}": v for k, v in ours(case, grads, "d").items()}}


def distance(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


def main():
    torch.set_num_threads(1)
    OUT.mkdir(exist_ok=True)
    for seed, (name, case) in enumerate(CASES.items()):
        weights, x, dy = numbers(case, seed)
        exact = run(case, weights, x, dy, torch.float64)
        single = run(case, weights, x, dy, torch.float32)
        apart = {k: distance(single[k], exact[k]) for k in exact}
        worst = max(apart, key=apart.get)
        print(f"{name}: float32 is {apart[worst]:.1e} away in {worst}")
        assert apart[worst] < CLOSE
        results = by_our_names(case, exact)
        half = by_our_names(case, run(case, weights, x, dy, torch.bfloat16))
        case["bfloat16"] = {k: float(f"{distance(half[k], v):.3g}") for k, v in results.items()}
        tensors = {"x": x, "dy": dy, **ours(case, weights), **results}
        save_file({k: v.float().contiguous() for k, v in tensors.items()},
                  OUT / f"{name}.safetensors", metadata={"format": "pt"})
    (OUT / "cases.json").write_text(
        "{" + ",\n ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in CASES.items()) + "}\n")


if __name__ == "__main__":
    main()
