"""Times of other people's kernels at the sizes of bench_large, for kernels.

Lines "OURS<tab>PEER<tab>microseconds<tab>GiB", where OURS names the kernels of bench_large that do the
same together, joined by "+", and GiB is what the call takes beside its inputs and results.  Random
bfloat16 numbers; the best of five series, as bench_large has it.
"""

import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

T, H, I, S, A, KV, D, V, E, K, EI = 16384, 2048, 6144, 4096, 16, 8, 128, 151936, 128, 8, 768
B, ROWS = T // S, T * K


def normal(*shape, grad=False):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16).mul_(0.1).requires_grad_(grad)


def measure(ours, peer, run):
    try:
        run()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = run()
        torch.cuda.synchronize()
        held = sum(t.nbytes for t in (result if isinstance(result, tuple) else (result,)) if t is not None)
        extra = (torch.cuda.max_memory_allocated() - before - held) / 2**30
        del result
        best, total = float("inf"), 0.0
        while total < 0.2:
            begin = time.perf_counter()
            for _ in range(10):
                run()
            torch.cuda.synchronize()
            s = (time.perf_counter() - begin) / 10
            best, total = min(best, s), total + 10 * s
        print(f"{ours}\t{peer}\t{best * 1e6:.0f}\t{max(extra, 0):.2f}", flush=True)
    except Exception as e:  # a peer that is not there or does not run
        print(f"{ours}\t{peer}\tfailed\t{str(e).splitlines()[0][:80] if str(e) else type(e).__name__}", flush=True)


def both(ours_fwd, ours_bwd, peer, f, *inputs):
    """Forward alone, and backward of a recorded one."""
    wanted = [x for x in inputs if x.requires_grad]
    if ours_fwd:
        with torch.no_grad():
            measure(ours_fwd, peer, lambda: f(*inputs))
    try:
        y = f(*inputs)
        y = y[0] if isinstance(y, tuple) else y
        dy = torch.randn_like(y)
    except Exception as e:
        print(f"{ours_bwd}\t{peer}\tfailed\t{str(e).splitlines()[0][:80]}", flush=True)
        return
    measure(ours_bwd, peer, lambda: torch.autograd.grad(y, wanted, dy, retain_graph=True))


def attention():
    q, k, v = normal(B, A, S, D, grad=True), normal(B, KV, S, D, grad=True), normal(B, KV, S, D, grad=True)
    for backend, name in ((SDPBackend.CUDNN_ATTENTION, "torch cuDNN"), (SDPBackend.FLASH_ATTENTION, "torch flash")):

        def f(q, k, v, backend=backend):
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

        both("attention", "attention_bwd", name, f, q, k, v)


def experts():
    x, dy, w = normal(ROWS, H), normal(ROWS, EI), normal(E, H, EI)
    offs = (torch.arange(1, E + 1, device="cuda") * (ROWS // E)).int()
    measure("grouped_gemm", "grouped_mm", lambda: torch._grouped_mm(x, w, offs=offs))
    measure("grouped_gemm_dgrad", "grouped_mm", lambda: torch._grouped_mm(dy, w.transpose(-2, -1), offs=offs))
    measure("grouped_gemm_wgrad", "grouped_mm", lambda: torch._grouped_mm(x.t(), dy, offs=offs))


def norms(liger):
    x, w = normal(T, I, grad=True), normal(I, grad=True)
    ours = "rms_norm", "rms_norm_bwd"
    both(*ours, "torch.compile", torch.compile(lambda x, w: F.rms_norm(x, (I,), w, 1e-6)), x, w)
    if liger:
        both(*ours, "Liger", lambda x, w: liger.LigerRMSNormFunction.apply(x, w, 1e-6, 0.0, "llama", False), x, w)


def rotary(liger):
    heads = I // D
    angle = torch.outer(torch.arange(S, device="cuda").float(), 1.0 / (1 + torch.arange(D // 2, device="cuda")))
    angle = torch.cat((angle, angle), -1)
    cos, sin = angle.cos().bfloat16()[None], angle.sin().bfloat16()[None]
    x = normal(B, heads, S, D)

    def turn(x):
        half = torch.cat((-x[..., D // 2 :], x[..., : D // 2]), -1)
        return x * cos[:, None] + half * sin[:, None]

    measure("rope", "torch.compile", lambda f=torch.compile(turn): f(x))
    if liger:
        # Its layout is [B, S, heads, D] underneath, as ours.
        q = normal(B, S, heads - KV, D).transpose(1, 2)
        k = normal(B, S, KV, D).transpose(1, 2)
        measure("rope", "Liger", lambda: liger.LigerRopeFunction.apply(q, k, cos, sin))


def swiglu(liger):
    a, b = normal(T, I, grad=True), normal(T, I, grad=True)
    both("swiglu", "swiglu_bwd", "torch.compile", torch.compile(lambda a, b: F.silu(a) * b), a, b)
    if liger:
        both("swiglu", "swiglu_bwd", "Liger", lambda a, b: liger.LigerSiLUMulFunction.apply(a, b), a, b)


def delta():
    """A layer of Qwen3-Next as transformers does it: flash-linear-attention where that is there."""
    try:
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule as rule

        name, keys = "fla", A
    except ImportError:
        from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule as rule

        name, keys = "transformers", 2 * A  # which repeats them first
    q, k, v = normal(B, S, keys, D, grad=True), normal(B, S, keys, D, grad=True), normal(B, S, 2 * A, D, grad=True)
    g = torch.zeros(B, S, 2 * A, device="cuda", requires_grad=True)
    beta = torch.rand(B, S, 2 * A, device="cuda", dtype=torch.bfloat16, requires_grad=True)

    def f(q, k, v, g, beta):
        return rule(q, k, v, g=g, beta=beta, use_qk_l2norm_in_kernel=True)[0]

    both("gated_delta", "gated_delta_bwd", name, f, q, k, v, g, beta)


def head(liger):
    x, w = normal(T, H, grad=True), normal(V, H, grad=True)
    ids = (torch.arange(T, device="cuda") * 7919) % V
    ours = ("linear_cross_entropy_fwd_bwd", "linear_cross_entropy_fwd_bwd in 256 MiB")

    def plain(x, w):
        return F.cross_entropy((x @ w.t()).float(), ids)

    compiled = torch.compile(plain)
    for name in ours:
        measure(name, "torch.compile", lambda: torch.autograd.grad(compiled(x, w), (x, w)))
    if liger:
        f = liger.LigerFusedLinearCrossEntropyFunction

        def run():
            y = f.apply(x, w, ids)
            return torch.autograd.grad(y[0] if isinstance(y, tuple) else y, (x, w))

        for name in ours:
            measure(name, "Liger", run)


def main():
    try:
        import liger_kernel.ops as liger
    except Exception as e:
        print(f"kernels_peer: without Liger: {e}", file=sys.stderr)
        liger = None
    attention()
    experts()
    norms(liger)
    rotary(liger)
    swiglu(liger)
    try:
        delta()
    except Exception as e:
        print(f"kernels_peer: without the delta rule: {e}", file=sys.stderr)
    head(liger)


main()
