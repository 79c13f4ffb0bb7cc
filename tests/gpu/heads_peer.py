"""PyTorch's attention by head size, for heads: "FEATURES FORWARD_US BACKWARD_US BACKEND" a line.

    heads_peer.py FEATURES ...

cuDNN and FlashAttention 2, at the sizes of bench_heads; the best of five series of ten calls.
"""

import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

B, S, A, KV = 4, 4096, 16, 8


def best_us(run):
    run()
    torch.cuda.synchronize()
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(10):
            run()
        torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - start) / 10)
    return best * 1e6


def normal(heads, features):
    x = torch.randn(B, S, heads, features, device="cuda", dtype=torch.bfloat16)
    return x.transpose(1, 2).detach().requires_grad_()


for features in map(int, sys.argv[1:]):
    q, k, v = normal(A, features), normal(KV, features), normal(KV, features)
    dout = torch.randn_like(q)
    for name, backend in ("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION):
        try:
            with sdpa_kernel(backend):
                attend = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
                with torch.no_grad():
                    forward = best_us(attend)
                o = attend()
                backward = best_us(lambda: torch.autograd.grad(o, (q, k, v), dout, retain_graph=True))
            print(features, f"{forward:.0f} {backward:.0f}", name, flush=True)
        except Exception as e:
            print(features, "- -", name, str(e).splitlines()[0][:80], flush=True)
