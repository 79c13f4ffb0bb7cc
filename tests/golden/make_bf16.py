#!/usr/bin/env python3
"""How far PyTorch is from the golden values when it computes in bfloat16.

    python make_bf16.py      # writes bf16.json beside this file

The measure of our own bfloat16: it may be half as far away again.  Distances are relative, in the
2-norm; of an op, the root of the mean square over its cases, of a model's gradients over its tensors.
Arrays of fewer than 16 numbers do not count.
Inputs that are not bfloat16 numbers (those of the ops) are rounded first, there as here.
"""
import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import make_models as models

HERE = Path(__file__).resolve().parent
HALF = torch.bfloat16
FEW = 16


def rms_norm(i, o):
    if not o.get("zero_centered"):
        return F.rms_norm(i["x"], i["w"].shape, i["w"], o["eps"])
    x = i["x"].float()
    x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + o["eps"])
    return (x * (1 + i["w"].float())).to(HALF)


def rope(i, o):
    x, cos, sin = i["x"], i["cos"].to(HALF)[:, :, None], i["sin"].to(HALF)[:, :, None]
    r = cos.shape[-1]
    part = x[..., :r]
    if o["style"] == "half":
        turned = torch.cat((-part[..., r // 2:], part[..., :r // 2]), -1)
    else:
        turned = torch.stack((-part[..., 1::2], part[..., ::2]), -1).flatten(-2)
    return torch.cat((part * cos + turned * sin, x[..., r:]), -1)


def sdpa(i, o):
    q, k, v = (i[n].transpose(1, 2) for n in "qkv")
    out = F.scaled_dot_product_attention(q, k, v, is_causal=o.get("causal", True), enable_gqa=True)
    return out.transpose(1, 2)


def silu_mul(i, o):
    return F.silu(i["x"]) * i["y"]


def router(i, o):
    full = torch.softmax(F.linear(i["x"], i["gate"]).float(), -1)
    chosen = (full + i["expert_bias"] if o.get("bias") else full).topk(o["top_k"], -1).indices
    if not torch.equal(chosen, i["indices"]):
        return None                                 # rounding has chosen another expert
    probs = full.gather(1, chosen)
    return probs / (probs.sum(-1, keepdim=True) + 1e-20) if o["renormalize"] else probs


def linear_cross_entropy(i, o):
    logits = F.linear(i["hidden"], i["weight"]).float()
    return F.cross_entropy(logits, i["labels"], ignore_index=models.IGNORE, reduction="none")


def grouped_swiglu(i, o):
    x, out = i["x"], torch.zeros_like(i["x"])
    for e in range(i["gate"].shape[0]):
        row, slot = (i["indices"] == e).nonzero(as_tuple=True)
        h = F.silu(x[row] @ i["gate"][e]) * (x[row] @ i["up"][e])
        out = out.index_add(0, row, ((h @ i["down"][e]) * i["probs"][row, slot, None]).to(HALF))
    return out


# Inputs that are rounded, those that stay float32, and the output.
OPS = {rms_norm: ("x w", "", "y"), rope: ("x", "", "y"), sdpa: ("q k v", "", "out"),
       silu_mul: ("x y", "", "out"), router: ("x gate", "", "probs"),
       linear_cross_entropy: ("hidden weight", "", "losses"),
       grouped_swiglu: ("x gate up down", "probs", "y")}

# Logits of hundreds: rounding the inputs alone decides which is the largest.
ILL = {("linear_cross_entropy", "sharp")}


def apart(got, want):
    """None where the golden value is zero, and of the few numbers whose error is luck."""
    size = want.double().norm().item()
    if size == 0 or want.numel() < FEW:
        return None
    return (got.double() - want.double()).norm().item() / size


def mean_square(found):
    found = [v for v in found if v is not None]
    return float(f"{math.sqrt(sum(v * v for v in found) / len(found)):.3g}") if found else 0.0


def measure_op(op, cases):
    rounded, kept, out = OPS[op]
    file = load_file(HERE / "ops" / f"{op.__name__}.safetensors")
    found, skipped = {}, []
    for case, options in cases.items():
        want = {k.split(".", 1)[1]: v for k, v in file.items() if k.startswith(f"{case}.")}
        wanted = {n: want[n].to(HALF).requires_grad_() for n in rounded.split()}
        wanted.update({n: want[n].clone().requires_grad_() for n in kept.split()})
        y = None if (op.__name__, case) in ILL else op({**want, **wanted}, options)
        if y is None:
            skipped.append(case)
            continue
        grads = torch.autograd.grad(y, list(wanted.values()), want[f"d{out}"].to(y.dtype))
        for name, got in ((out, y), *((f"d{n}", g) for n, g in zip(wanted, grads))):
            found.setdefault(name, []).append(apart(got, want[name]))
    result = {n: mean_square(f) for n, f in found.items()}
    return {**result, "skipped": skipped} if skipped else result


def measure_model(name):
    folder = HERE / name
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=HALF, attn_implementation="sdpa",
                                                 experts_implementation="eager")
    want = load_file(folder / "golden.safetensors")
    batch = load_file(folder / "batch.safetensors")
    logits = models.forward(model.eval(), batch["input_ids"], batch["position_ids"])
    token = models.losses_of(logits.float(), batch["labels"])
    (token.sum() / (batch["labels"] != models.IGNORE).sum()).backward()
    grads = [apart(p.grad if p.grad is not None else torch.zeros_like(p), want[n])
             for n, p in model.named_parameters()]
    return {"logits": mean_square([apart(logits, want["logits"])]),
            "token_losses": mean_square([apart(token, want["token_losses"])]),
            "gradients": mean_square(grads)}


def main():
    torch.set_num_threads(1)
    cases = json.loads((HERE / "ops" / "ops.json").read_text())
    out = {"ops": {op.__name__: measure_op(op, cases[op.__name__]) for op in OPS},
           "models": {name: measure_model(name) for name in models.MODELS}}
    parts = ",\n".join(f' "{part}": {{\n' + ",\n".join(
        f'  "{k}": {json.dumps(v)}' for k, v in rows.items()) + "}" for part, rows in out.items())
    (HERE / "bf16.json").write_text("{\n" + parts + "\n}\n")


if __name__ == "__main__":
    main()
