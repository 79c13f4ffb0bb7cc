"""PyTorch's optimizer steps at the sizes of bench_optim, for optim: "NAME MILLISECONDS WAY" a line.

    optim_peer.py [LAYERS]

AdamW is the fused one; Muon as it is and compiled, with float32 and with bfloat16 parameters.  The
best of five steps.
"""

import sys
import time

import torch

layers = int(sys.argv[1]) if len(sys.argv) > 1 else 28
shapes = [(2048, 2048), (1024, 2048), (1024, 2048), (2048, 2048), (6144, 2048), (6144, 2048), (2048, 6144)]


def best_ms(step):
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best * 1e3


def measure(name, make, way, dtype):
    try:
        params = [torch.randn(s, device="cuda", dtype=dtype).requires_grad_() for _ in range(layers) for s in shapes]
        for p in params:
            p.grad = torch.randn_like(p)
        step = make(params).step
        ms = best_ms(torch.compile(step, fullgraph=False) if way.endswith("compiled") else step)
        print(name, f"{ms:.2f}", way, flush=True)
    except Exception as e:
        print(name, "-", way, str(e).splitlines()[0][:80], flush=True)
    torch.cuda.empty_cache()


measure("adamw", lambda p: torch.optim.AdamW(p, fused=True), "float32,fused", torch.float32)
for dtype, word in (torch.float32, "float32"), (torch.bfloat16, "bfloat16"):
    measure("muon", torch.optim.Muon, word, dtype)
measure("muon", torch.optim.Muon, "float32,compiled", torch.float32)
