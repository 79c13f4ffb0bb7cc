#!/usr/bin/env python3
"""Golden vectors of single operations: forward and backward in float64, stored as float32.

    python make_ops.py      # writes ops/ beside this file

README.md describes the files. Inputs are float32 numbers; torch computes with them in float64.
Optimizers but Muon run in float32, as torch.optim does. The other precision runs beside, and must agree
to CLOSE, so that nothing is asked of a float32 program that the numbers do not allow.
"""
import json
import math
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import schedulefree
import torch
import torch.nn.functional as F
import transformers.optimization
from safetensors.torch import save_file
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

OUT = Path(__file__).resolve().parent / "ops"
IGNORE = -100
STEPS = 5
CLOSE = 3e-6


class Draw:
    """Random float32 numbers, to be computed with in `dtype`."""

    def __init__(self, seed, dtype):
        self.dtype = dtype
        self.rng = np.random.Generator(np.random.PCG64(seed))

    def normal(self, *shape, scale=1.0, grad=True):
        x = torch.from_numpy(scale * self.rng.standard_normal(shape)).float().to(self.dtype)
        return x.requires_grad_(grad)

    def ints(self, high, *shape):
        return torch.from_numpy(self.rng.integers(0, high, shape))


def with_grads(inputs, outputs, upstream):
    """Tensors of a case: inputs, outputs, d<output> (given) and d<input> (found)."""
    wanted = {k: v for k, v in inputs.items() if v.requires_grad}
    grads = torch.autograd.grad([outputs[k] for k in upstream], list(wanted.values()),
                                list(upstream.values()), allow_unused=True)
    case = {**inputs, **outputs, **{f"d{k}": v for k, v in upstream.items()}}
    for (k, v), g in zip(wanted.items(), grads):
        case[f"d{k}"] = torch.zeros_like(v) if g is None else g
    return case


# ---- operations: each row of a table is a case ----------------------------------------------

def rms_norm(d, shape, eps, zero_centered=False, scale=1.0):
    x = d.normal(*shape, scale=scale)
    w = d.normal(shape[-1], scale=0.3)
    if not zero_centered:
        w = (w.detach() + 1).float().to(d.dtype).requires_grad_()
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * (w + 1 if zero_centered else w)
    return with_grads({"x": x, "w": w}, {"y": y}, {"y": d.normal(*shape, grad=False)})


def rope(d, shape, base, style, rope_dim=None, positions=None):
    B, S, _, D = shape
    R = rope_dim or D
    x = d.normal(*shape)
    pos = torch.tensor(positions) if positions else torch.arange(S).expand(B, S).contiguous()
    inv = float(base) ** -(torch.arange(0, R, 2, dtype=torch.float64) / R)
    angle = pos[..., None].double() * inv
    if style == "half":
        angle = torch.cat((angle, angle), -1)
        turn = lambda t: torch.cat((-t[..., R // 2:], t[..., :R // 2]), -1)
    else:
        angle = angle.repeat_interleave(2, -1)
        turn = lambda t: torch.stack((-t[..., 1::2], t[..., ::2]), -1).flatten(-2)
    cos, sin = angle.cos().to(d.dtype), angle.sin().to(d.dtype)
    part = x[..., :R]
    y = torch.cat((part * cos[:, :, None] + turn(part) * sin[:, :, None], x[..., R:]), -1)
    case = with_grads({"x": x}, {"y": y}, {"y": d.normal(*shape, grad=False)})
    return {**case, "position_ids": pos, "cos": cos, "sin": sin}


def sdpa(d, B, S, A, K, D, causal=True, scale=1.0):
    q, k, v = d.normal(B, S, A, D, scale=scale), d.normal(B, S, K, D), d.normal(B, S, K, D)
    heads = [t.transpose(1, 2) for t in (q, k, v)]
    heads[1:] = [t.repeat_interleave(A // K, 1) for t in heads[1:]]
    score = heads[0] @ heads[1].transpose(-1, -2) * D ** -0.5
    if causal:
        score = score.masked_fill(torch.ones(S, S, dtype=torch.bool).triu(1), -torch.inf)
    out = (torch.softmax(score, -1) @ heads[2]).transpose(1, 2)
    lse = torch.logsumexp(score, -1)
    case = with_grads({"q": q, "k": k, "v": v}, {"out": out},
                      {"out": d.normal(B, S, A, D, grad=False)})
    return {**case, "lse": lse}


def silu_mul(d, shape, scale=1.0):
    x, y = d.normal(*shape, scale=scale), d.normal(*shape)
    return with_grads({"x": x, "y": y}, {"out": F.silu(x) * y},
                      {"out": d.normal(*shape, grad=False)})


def router(d, T, H, E, top_k, renormalize, bias=False, scale=2.0):
    while True:                     # draw until no choice hangs on rounding
        x, gate = d.normal(T, H), d.normal(E, H, scale=scale * H ** -0.5)
        shift = d.normal(E, scale=0.2, grad=False) if bias else torch.zeros(E, dtype=d.dtype)
        logits = x @ gate.T
        full = torch.softmax(logits, -1)
        order = (full + shift).sort(-1, descending=True)
        gap = (order.values[:, :-1] - order.values[:, 1:]).min()
        if E == 1 or gap > 1e-4:
            break
    indices = order.indices[:, :top_k].contiguous()
    probs = full.gather(1, indices)
    if renormalize:
        probs = probs / (probs.sum(-1, keepdim=True) + 1e-20)
    case = with_grads({"x": x, "gate": gate}, {"probs": probs},
                      {"probs": d.normal(T, top_k, grad=False)})
    case.update(logits=logits, indices=indices)
    return {**case, "expert_bias": shift} if bias else case


def deepseek_agrees(x, gate, shift, weights, indices, options):
    """transformers' router, which computes in float32, chooses the same with the same weights."""
    groups, top = options["groups"] or (1, 1)
    r = DeepseekV3TopkRouter(SimpleNamespace(
        num_experts_per_tok=indices.shape[1], num_local_experts=gate.shape[0],
        hidden_size=x.shape[1], routed_scaling_factor=options["scale"], n_group=groups,
        topk_group=top, norm_topk_prob=options["renormalize"]))
    r.weight.data, r.e_score_correction_bias = gate.detach().float(), shift.float()
    _, theirs, chosen = r(x.detach().float())
    order, mine = chosen.argsort(-1), indices.argsort(-1)
    assert torch.equal(chosen.gather(1, order), indices.gather(1, mine))
    apart = theirs.gather(1, order).double() - weights.detach().gather(1, mine).double()
    assert apart.abs().max() < 1e-5


def best_groups(key, groups, top):
    """-inf outside the `top` groups whose two best keys are worth most."""
    each = key.view(len(key), groups, -1)
    worth = each.topk(min(2, each.shape[-1]), -1).values.sum(-1)
    keep = torch.zeros_like(worth).scatter_(1, worth.topk(top, -1).indices, 1).bool()
    return key.masked_fill(~keep.repeat_interleave(each.shape[-1], 1), -torch.inf), worth


def even_router(d, B, S, H, E, top_k, aux, z, renormalize=True, sigmoid=False, groups=None,
                scale=1.0, bias=0.0):
    """Rows of S tokens; `weight` of a token is what its row trains on by its tokens. Gradients are
    of probs, and of both losses times their coefficients."""
    shape = dict(renormalize=renormalize, groups=groups, scale=scale)
    while True:                     # draw until no choice hangs on rounding
        x, gate = d.normal(B * S, H), d.normal(E, H, scale=2 * H ** -0.5)
        shift = d.normal(E, scale=bias, grad=False)
        logits = x @ gate.T
        full = logits.sigmoid() if sigmoid else logits.softmax(-1)
        key, worth = best_groups(full.detach() + shift, *(groups or (1, 1)))
        order, ranks = key.sort(-1, descending=True), worth.sort(-1, descending=True).values
        near = (order.values[:, :-1] - order.values[:, 1:]).nan_to_num(nan=1.0)
        if near.min() > 1e-4 and (groups is None or (ranks[:, :-1] - ranks[:, 1:]).min() > 1e-4):
            break
    indices = order.indices[:, :top_k].contiguous()
    probs = full.gather(1, indices)
    probs = scale * (probs / (probs.sum(-1, keepdim=True) + 1e-20) if renormalize else probs)
    if sigmoid:
        deepseek_agrees(x, gate, shift, probs, indices, shape)
    share = torch.arange(1, B + 1, dtype=d.dtype) / B      # of a row's tokens that are targets
    part = full / full.sum(-1, keepdim=True)
    load = F.one_hot(indices, E).sum(1).to(d.dtype).view(B, S, E).mean(1) / top_k
    rows = E * (load * part.view(B, S, E).mean(1)).sum(-1)
    if not sigmoid:                 # what transformers has for one row is top_k times as much
        for row, one in zip(rows, logits.view(B, S, E)):
            theirs = load_balancing_loss_func((one,), E, top_k) / top_k
            assert bias or abs((row - theirs).item()) < 1e-6
    losses = torch.stack((
        (rows * share).sum() * S,
        (torch.logsumexp(logits, -1).pow(2).view(B, S) * share[:, None]).sum()))
    case = with_grads({"x": x, "gate": gate}, {"probs": probs, "losses": losses},
                      {"probs": d.normal(B * S, top_k, grad=False),
                       "losses": torch.tensor([aux, z], dtype=d.dtype)})
    return {**case, "logits": logits, "indices": indices, "expert_bias": shift,
            "weight": share[:, None].expand(B, S).contiguous()}


def capacity_experts(d, B, S, H, I, E, top_k, factor, crowd=0.0):
    """A mixture whose experts take at most ceil(S top_k / E factor) choices of each row of S tokens,
    those of its first tokens: GShard's local groups, with the capacity of Megatron's
    get_capacity(). `crowd` pulls all tokens to the first experts."""
    pull = crowd * torch.arange(E - 1, -1, -1, dtype=d.dtype)
    while True:                     # draw until no choice hangs on rounding
        x, router = d.normal(B * S, H), d.normal(E, H, scale=H ** -0.5)
        with torch.no_grad():
            x[:, 0] = 1.0
            router[:, 0] = pull
        full = (x @ router.T).softmax(-1)
        order = full.sort(-1, descending=True)
        if (order.values[:, :-1] - order.values[:, 1:]).min() > 1e-5:
            break
    gate, up = d.normal(E, H, I, scale=H ** -0.5), d.normal(E, H, I, scale=H ** -0.5)
    down = d.normal(E, I, H, scale=I ** -0.5)
    indices = order.indices[:, :top_k].contiguous()
    probs = full.gather(1, indices)
    probs = probs / (probs.sum(-1, keepdim=True) + 1e-20)
    capacity = math.ceil(S * top_k / E * factor)
    chosen = F.one_hot(indices, E).sum(1).view(B, S, E)
    keep = ((chosen.cumsum(1) - chosen) < capacity).view(B * S, E).gather(1, indices)
    assert 0 < (~keep).sum() < keep.numel()
    each = torch.einsum("tei,eih->teh", F.silu(torch.einsum("th,ehi->tei", x, gate)) *
                        torch.einsum("th,ehi->tei", x, up), down)
    weights = torch.zeros(B * S, E, dtype=d.dtype).scatter(1, indices, probs * keep)
    y = torch.einsum("te,teh->th", weights, each)
    case = with_grads({"x": x, "router": router, "gate": gate, "up": up, "down": down}, {"y": y},
                      {"y": d.normal(B * S, H, grad=False)})
    return {**case, "indices": torch.where(keep, indices, -1),
            "weight": torch.ones(B, S, dtype=d.dtype)}


def linear_cross_entropy(d, T, H, V, ignored=(), scale=1.0):
    hidden, weight = d.normal(T, H, scale=scale), d.normal(V, H, scale=H ** -0.5)
    labels = d.ints(V, T)
    labels[list(ignored)] = IGNORE
    logits = hidden @ weight.T
    losses = F.cross_entropy(logits, labels, ignore_index=IGNORE, reduction="none")
    case = with_grads({"hidden": hidden, "weight": weight}, {"losses": losses},
                      {"losses": d.normal(T, grad=False)})
    return {**case, "labels": labels, "lse": torch.logsumexp(logits, -1)}


FP8 = {"e4m3": (torch.float8_e4m3fn, 448), "e5m2": (torch.float8_e5m2, 57344)}


def in_fp8(x, fmt, dim):
    """x as it is rounded with a power of two for each slice along dim (all: dim None)."""
    to, largest = FP8[fmt]
    amax = x.detach().abs().amax(dim, keepdim=True) if dim is not None else x.detach().abs().amax()
    scale = torch.where(amax == 0, 1.0, torch.exp2(torch.ceil(torch.log2(amax / largest)))).to(x.dtype)
    return (x / scale).float().to(to).to(x.dtype) * scale


class ExpertsInFp8(torch.autograd.Function):
    """Rows [R, in], those of each expert by its matrix of w [E, in, out]: three products in FP8."""

    @staticmethod
    def forward(ctx, x, w, counts, recipe, grad_format):
        ctx.save_for_backward(x, w)
        ctx.options = counts, recipe, grad_format
        flat = in_fp8(w.flatten(0, 1), "e4m3", 0 if recipe == "rowwise" else None).view_as(w)
        rows = in_fp8(x, "e4m3", 1 if recipe == "rowwise" else None).split(counts)
        return torch.cat([r @ m for r, m in zip(rows, flat)])

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        counts, recipe, fmt = ctx.options
        by = (lambda dim: dim) if recipe == "rowwise" else lambda dim: None
        flat = in_fp8(w.flatten(0, 1), "e4m3", by(1)).view_as(w)
        dx = torch.cat([r @ m.T for r, m in zip(in_fp8(dy, fmt, by(1)).split(counts), flat)])
        columns = zip(in_fp8(x, "e4m3", by(0)).split(counts), in_fp8(dy, fmt, by(0)).split(counts))
        return dx, torch.stack([a.T @ b for a, b in columns]), None, None, None


def draw_experts(d, T, H, I, E, top_k, idle):
    """Tokens, stacks [E, in, out], and the experts of each token with their shares, none of them idle."""
    x = d.normal(T, H)
    gate, up = d.normal(E, H, I, scale=H ** -0.5), d.normal(E, H, I, scale=H ** -0.5)
    down = d.normal(E, I, H, scale=I ** -0.5)
    busy = [e for e in range(E) if e not in idle]
    indices = torch.stack([torch.from_numpy(d.rng.permutation(busy)[:top_k].copy())
                           for _ in range(T)])
    probs = torch.softmax(d.normal(T, top_k, grad=False), -1)
    probs = probs.detach().float().to(d.dtype).requires_grad_()
    return x, gate, up, down, indices, probs


def fp8_experts(d, T, H, I, E, top_k, idle=(), recipe="rowwise", grad_format="e4m3"):
    """grouped_swiglu with products as ours round them."""
    x, gate, up, down, indices, probs = draw_experts(d, T, H, I, E, top_k, idle)
    order = torch.argsort(indices.flatten(), stable=True)
    counts = torch.bincount(indices.flatten(), minlength=E).tolist()
    product = lambda rows, w: ExpertsInFp8.apply(rows, w, counts, recipe, grad_format)
    rows = x[order // top_k]
    h = product(F.silu(product(rows, gate)) * product(rows, up), down)
    y = torch.zeros_like(x).index_add(0, order // top_k, h * probs.flatten()[order, None])
    case = with_grads({"x": x, "probs": probs, "gate": gate, "up": up, "down": down}, {"y": y},
                      {"y": d.normal(T, H, grad=False)})
    return {**case, "indices": indices}


def grouped_swiglu(d, T, H, I, E, top_k, idle=()):
    """Experts in the suite's layout [E, in, out]; the tokens of idle experts go elsewhere."""
    x, gate, up, down, indices, probs = draw_experts(d, T, H, I, E, top_k, idle)
    rows = []
    for t in range(T):
        experts = [(F.silu(x[t] @ gate[e]) * (x[t] @ up[e])) @ down[e] for e in indices[t].tolist()]
        rows.append((torch.stack(experts) * probs[t, :, None]).sum(0))
    case = with_grads({"x": x, "probs": probs, "gate": gate, "up": up, "down": down},
                      {"y": torch.stack(rows)}, {"y": d.normal(T, H, grad=False)})
    return {**case, "indices": indices}


def clip(d, shapes, max_norm, scale=1.0):
    grads = [d.normal(*s, scale=scale, grad=False) for s in shapes]
    norm = torch.sqrt(sum(g.pow(2).sum() for g in grads))
    coef = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    case = {"norm": norm, "coef": coef}
    for i, g in enumerate(grads):
        case.update({f"g{i}": g, f"clipped{i}": g * coef})
    return case


def optim(d, cls, shape=(5, 7), **options):
    """p0, gradients g1..g5, and p1..p5 after each step."""
    start = d.normal(*shape, grad=False)
    grads = [d.normal(*shape, scale=10.0 ** (i % 3 - 2), grad=False) for i in range(STEPS)]
    for i, g in enumerate(grads):
        g.view(-1)[:3] = torch.tensor([
            0.0,                                     # never a gradient
            2.0 ** -23 * (i + 1),                    # one the size of eps
            1.0 if i == 0 else 0.0])                 # one, once
    case = {"p0": start}
    p = start.clone().requires_grad_()
    opt = cls([p], foreach=False, **options)
    for i, g in enumerate(grads, 1):
        p.grad = g.to(d.dtype, copy=True)
        opt.step()
        case.update({f"g{i}": g.to(d.dtype), f"p{i}": p.detach().clone()})
    return case


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023, Symbolic Discovery of Optimization Algorithms, algorithm 2."""

    def __init__(self, params, lr, betas=(0.9, 0.99), weight_decay=0.0, foreach=False):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                update = (b1 * m + (1 - b1) * p.grad).sign()
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * update)
                m.mul_(b2).add_(p.grad, alpha=1 - b2)


def losses(d, kind, shape=(7, 33), other=None, **options):
    """Of two arrays, element by element, or row by row."""
    a, b = d.normal(*shape, scale=2.0), d.normal(*(other or shape))
    q = b.softmax(-1)
    y = {"mse": lambda: F.mse_loss(a, b.expand_as(a), reduction="none"),
         "l1": lambda: F.l1_loss(a, b, reduction="none"),
         "huber": lambda: F.huber_loss(a, b, reduction="none", **options),
         "bce_with_logits": lambda: F.binary_cross_entropy_with_logits(a, b, reduction="none"),
         "kl_div": lambda: F.kl_div(a.log_softmax(-1), q, reduction="none").sum(-1, keepdim=True),
         "soft_cross_entropy": lambda: F.cross_entropy(a, q, reduction="none")[:, None],
         "dpo": lambda: -F.logsigmoid(0.1 * (a - b).sum(-1, keepdim=True)),
         "clipped": lambda: -torch.minimum((a - b).exp() * b, (a - b).exp().clamp(0.8, 1.2) * b),
         "attention": lambda: (a @ b.T).softmax(-1) @ b}[kind]()
    return with_grads({"a": a, "b": b}, {"y": y}, {"y": d.normal(*y.shape, grad=False)})


def row_losses(d, kind, shape=(7, 33), **options):
    a, labels = d.normal(*shape, scale=2.0), d.ints(shape[-1], shape[0])
    labels[2] = IGNORE
    y = {"softmax": lambda: a.softmax(-1),
         "log_softmax": lambda: a.log_softmax(-1),
         "logsumexp": lambda: a.logsumexp(0, keepdim=True),
         "max": lambda: a.amax(-1, keepdim=True),
         "mean": lambda: a.mean().view(1, 1),
         "gelu": lambda: F.gelu(a), "gelu_tanh": lambda: F.gelu(a, approximate="tanh"),
         "silu": lambda: F.silu(a),
         "cross_entropy": lambda: F.cross_entropy(a, labels, ignore_index=IGNORE, reduction="none",
                                                  **options)[:, None]}[kind]()
    case = with_grads({"a": a}, {"y": y}, {"y": d.normal(*y.shape, grad=False)})
    return {**case, "labels": labels}


class Muon(torch.optim.Muon):
    """torch's, without its cast to bfloat16."""

    def __init__(self, params, foreach=False, ns_dtype="float32", kind="muon", **options):
        super().__init__(params, **options)

    def step(self):
        with mock.patch.object(torch.Tensor, "bfloat16", torch.Tensor.clone):
            super().step()


lion = lambda d, **options: optim(d, Lion, **options)


class Adafactor(torch.optim.Adafactor):
    """torch's, in d9d's words."""

    def __init__(self, params, eps1=1e-15, eps2=1e-3, clip_threshold=1.0, scale_parameter=True,
                 relative_step=True, **options):
        assert scale_parameter and relative_step
        super().__init__(params, eps=(eps1, eps2), d=clip_threshold, **options)


class TransformersAdafactor(transformers.optimization.Adafactor):
    """transformers', likewise."""

    def __init__(self, params, foreach=False, beta2_decay=-0.8, **options):
        super().__init__(params, scale_parameter=False, relative_step=False, warmup_init=False,
                         decay_rate=beta2_decay, **options)


class ScheduleFree(schedulefree.AdamWScheduleFree):
    """Its steps, and x at last."""

    def __init__(self, params, foreach=False, **options):
        super().__init__(params, foreach=foreach, **options)
        self.train()


def schedule_free_adamw(d, **options):
    """Of x, which is evaluated: p1..p5 are x, and the gradients are of y whatever it is."""
    trained = optim(d, ScheduleFree, **options)
    p = trained["p0"].clone().requires_grad_()
    opt = ScheduleFree([p], **{k: v for k, v in options.items() if k != "shape"})
    for i in range(1, STEPS + 1):
        p.grad = trained[f"g{i}"].clone()
        opt.step()
        assert torch.equal(p, trained[f"p{i}"])
        opt.eval()
        trained[f"x{i}"] = p.detach().clone()
        opt.train()
        p.data.copy_(trained[f"p{i}"])
    return trained


def adafactor(d, **options):
    return optim(d, Adafactor if options.get("scale_parameter") else TransformersAdafactor,
                 **options)


muon = lambda d, **options: optim(d, Muon, **options)
adamw = lambda d, **options: optim(d, torch.optim.AdamW, **options)
adam = lambda d, **options: optim(d, torch.optim.Adam, **options)
sgd = lambda d, **options: optim(d, torch.optim.SGD, **options)
MUON = dict(lr=2e-2, ns_dtype="float32", kind="muon")
ADAM = dict(lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)

CASES = {
    rms_norm: {
        "plain": dict(shape=(5, 7, 40), eps=1e-6),
        "zero_centered": dict(shape=(3, 33), eps=1e-5, zero_centered=True),
        "wide": dict(shape=(2, 1030), eps=1e-6),
        "small": dict(shape=(9, 13), eps=1e-6, scale=1e-3),
        "narrow": dict(shape=(4, 3), eps=1e-6)},
    rope: {
        "half": dict(shape=(2, 7, 3, 16), base=10000, style="half"),
        "interleaved": dict(shape=(2, 7, 3, 16), base=10000, style="interleaved"),
        "half_partial": dict(shape=(1, 5, 2, 14), base=1000000, style="half", rope_dim=8),
        "interleaved_partial": dict(shape=(1, 5, 2, 14), base=500, style="interleaved", rope_dim=6),
        "half_positions": dict(shape=(2, 3, 1, 10), base=1000000, style="half",
                               positions=[[5, 0, 400], [7, 9, 11]])},
    sdpa: {
        "gqa": dict(B=2, S=13, A=6, K=2, D=10),
        "mha": dict(B=1, S=67, A=3, K=3, D=16),
        "mqa": dict(B=2, S=33, A=5, K=1, D=7),
        "one": dict(B=3, S=1, A=4, K=2, D=8),
        "sharp": dict(B=1, S=19, A=2, K=1, D=12, scale=12.0),
        "full": dict(B=2, S=11, A=4, K=2, D=8, causal=False)},
    silu_mul: {
        "plain": dict(shape=(7, 33)), "large": dict(shape=(5, 9), scale=60.0),
        "one": dict(shape=(1, 1))},
    router: {
        "renormalized": dict(T=29, H=20, E=8, top_k=3, renormalize=True),
        "raw": dict(T=17, H=12, E=5, top_k=2, renormalize=False),
        "top1": dict(T=9, H=12, E=4, top_k=1, renormalize=True),
        "all": dict(T=7, H=10, E=3, top_k=3, renormalize=True),
        "bias": dict(T=13, H=14, E=6, top_k=2, renormalize=True, bias=True)},
    linear_cross_entropy: {
        "plain": dict(T=37, H=40, V=211, ignored=(0, 5, 36)),
        "all_ignored": dict(T=4, H=6, V=11, ignored=range(4)),
        "sharp": dict(T=19, H=16, V=53, ignored=(3,), scale=200.0),
        "one": dict(T=1, H=5, V=2)},
    grouped_swiglu: {
        "plain": dict(T=23, H=16, I=10, E=6, top_k=3),
        "idle": dict(T=5, H=12, I=7, E=8, top_k=2, idle=(0, 3, 7)),
        "one": dict(T=1, H=6, I=5, E=2, top_k=1)},
    clip: {
        "clipped": dict(shapes=((7, 3), (11,), (1,)), max_norm=1.0),
        "kept": dict(shapes=((5, 3), (2,)), max_norm=1.0, scale=0.01),
        "zero": dict(shapes=((3,),), max_norm=1.0, scale=0.0)},
    adamw: {
        "plain": dict(ADAM), "amsgrad": dict(ADAM, amsgrad=True),
        "maximize": dict(ADAM, maximize=True), "no_decay": dict(ADAM, weight_decay=0.0),
        "defaults": dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2),
        "large_eps": dict(ADAM, eps=1e-2)},
    adam: {
        "plain": dict(ADAM), "amsgrad": dict(ADAM, amsgrad=True),
        "maximize": dict(ADAM, maximize=True), "no_decay": dict(ADAM, weight_decay=0.0),
        "decoupled": dict(ADAM, decoupled_weight_decay=True),
        "everything": dict(ADAM, decoupled_weight_decay=True, amsgrad=True, maximize=True)},
    sgd: {
        "plain": dict(lr=0.1), "decay": dict(lr=0.1, weight_decay=0.05),
        "momentum": dict(lr=0.1, momentum=0.9),
        "dampening": dict(lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.01),
        "nesterov": dict(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
        "maximize": dict(lr=0.1, momentum=0.8, weight_decay=0.05, maximize=True)},
    even_router: {
        "softmax": dict(B=2, S=9, H=14, E=6, top_k=2, aux=0.5, z=0.0),
        "z": dict(B=1, S=11, H=12, E=5, top_k=2, aux=0.0, z=0.1, renormalize=False),
        "sigmoid": dict(B=3, S=5, H=12, E=6, top_k=3, aux=0.3, z=0.05, sigmoid=True, scale=2.5,
                        bias=0.2),
        "groups": dict(B=2, S=8, H=16, E=16, top_k=4, aux=0.4, z=0.0, sigmoid=True,
                       groups=(4, 2), scale=1.8, bias=0.1)},
    lion: {
        "plain": dict(lr=1e-2, betas=(0.9, 0.99), weight_decay=0.1),
        "no_decay": dict(lr=1e-3, betas=(0.95, 0.98), weight_decay=0.0)},
    losses: {
        "mse": dict(kind="mse"), "mse_broadcast": dict(kind="mse", other=(7, 1)),
        "l1": dict(kind="l1"), "huber": dict(kind="huber", delta=0.75),
        "bce_with_logits": dict(kind="bce_with_logits"), "kl_div": dict(kind="kl_div"),
        "soft_cross_entropy": dict(kind="soft_cross_entropy"), "dpo": dict(kind="dpo"),
        "clipped": dict(kind="clipped"), "attention": dict(kind="attention")},
    row_losses: {
        "softmax": dict(kind="softmax"), "log_softmax": dict(kind="log_softmax"),
        "logsumexp": dict(kind="logsumexp"), "max": dict(kind="max"), "mean": dict(kind="mean"),
        "gelu": dict(kind="gelu"), "gelu_tanh": dict(kind="gelu_tanh"), "silu": dict(kind="silu"),
        "cross_entropy": dict(kind="cross_entropy"),
        "label_smoothing": dict(kind="cross_entropy", label_smoothing=0.1)},
    muon: {
        "defaults": dict(MUON), "tall": dict(MUON, shape=(7, 5)),
        "square": dict(MUON, shape=(6, 6), weight_decay=0.0),
        "match_rms_adamw": dict(MUON, shape=(3, 11), adjust_lr_fn="match_rms_adamw"),
        "plain_momentum": dict(MUON, momentum=0.8, nesterov=False, weight_decay=0.5),
        "steps": dict(MUON, shape=(9, 4), ns_steps=3, ns_coefficients=(2.0, -1.5, 0.5), eps=0.5)},
    adafactor: {
        "torch": dict(lr=1e-2, eps1=1.1920928955078125e-07, scale_parameter=True, relative_step=True),
        "torch_decay": dict(lr=0.9, beta2_decay=-0.5, eps1=1e-4, eps2=0.5, weight_decay=0.1,
                            clip_threshold=1.5, scale_parameter=True, relative_step=True),
        "transformers": dict(lr=1e-3), "transformers_decay": dict(
            lr=1e-2, clip_threshold=0.5, beta2_decay=-0.6, weight_decay=0.1, shape=(9, 4)),
        "stack": dict(lr=1e-2, shape=(3, 4, 6)), "vector": dict(lr=1e-2, shape=(7,)),
        "torch_stack": dict(lr=0.1, eps1=1e-6, shape=(3, 4, 6), scale_parameter=True,
                            relative_step=True)},
    schedule_free_adamw: {
        "defaults": dict(lr=2.5e-3), "decay": dict(lr=1e-2, betas=(0.8, 0.95), weight_decay=0.1),
        "warmup": dict(lr=1e-2, warmup_steps=3, eps=1e-4),
        "weights": dict(lr=1e-2, warmup_steps=4, r=1.5, weight_lr_power=1.0, shape=(7,))},
    fp8_experts: {
        "rowwise": dict(T=23, H=32, I=16, E=4, top_k=2, idle=(3,)),
        "e5m2": dict(T=9, H=16, I=16, E=3, top_k=1, grad_format="e5m2"),
        "tensorwise": dict(T=17, H=16, I=32, E=3, top_k=2, recipe="tensorwise")},
    capacity_experts: {
        "even": dict(B=2, S=12, H=14, I=6, E=4, top_k=2, factor=1.0),
        "crowd": dict(B=3, S=9, H=12, I=5, E=5, top_k=3, factor=1.25, crowd=0.7),
        "less": dict(B=1, S=15, H=10, I=7, E=6, top_k=2, factor=0.5)},
}
SEEDS = {capacity_experts: 118}   # others have their place
EXACT = {muon}   # in float64, as operations are; other optimizers in float32
NAMES = {lion: "lion", adafactor: "adafactor", schedule_free_adamw: "schedule_free_adamw", muon: "muon", adamw: "adamw", adam: "adam", sgd: "sgd"}


def compute(op, cases, seed, dtype):
    d, out = Draw(seed, dtype), {}
    for case, options in cases.items():
        for k, t in op(d, **options).items():
            t = t.detach().clone(memory_format=torch.contiguous_format)
            # What is zero by mathematics (the one probability of a renormalised top-1 has no
            # gradient) is stored as zero.
            zero = t.is_floating_point() and t.double().norm() < 1e-12
            out[f"{case}.{k}"] = torch.zeros_like(t) if zero else t
    return out


def distance(exact, plain):
    """(relative L2 distance, name) of the worst tensor; absolute where it is zero."""
    worst = (0.0, "")
    for name, e in exact.items():
        apart = (e.double() - plain[name].double()).norm().item()
        worst = max(worst, (apart / (e.double().norm().item() or 1.0), name))
    return worst


def main():
    torch.set_num_threads(1)
    OUT.mkdir(exist_ok=True)
    listed = {}
    for place, (op, cases) in enumerate(CASES.items(), 100):
        seed = SEEDS.get(op, place)
        name = NAMES.get(op, op.__name__)
        exact, plain = (compute(op, cases, seed, t) for t in (torch.float64, torch.float32))
        apart, where = distance(exact, plain)
        print(f"{name:24} {len(cases)} cases  float32 apart: {apart:.1e} {where}")
        assert apart < CLOSE
        assert all(t.double().isfinite().all() for t in exact.values())
        kept = plain if op in NAMES and op not in EXACT else exact
        save_file({k: t.float() if t.is_floating_point() else t for k, t in kept.items()},
                  OUT / f"{name}.safetensors", metadata={"format": "pt"})
        listed[name] = {case: {k: list(v) if isinstance(v, (tuple, range)) else v
                               for k, v in options.items()} for case, options in cases.items()}
    rows = ",\n".join(
        f' "{op}": {{\n' + ",\n".join(f'  "{c}": {json.dumps(o)}' for c, o in cases.items()) + "}"
        for op, cases in listed.items())
    (OUT / "ops.json").write_text("{\n" + rows + "\n}\n")


if __name__ == "__main__":
    main()
