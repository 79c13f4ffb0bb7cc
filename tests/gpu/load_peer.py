"""The tensors of a checkpoint to the GPU with safetensors, for load.

    load_peer.py DIR TIMES
"""

import pathlib
import sys
import time

import torch
from safetensors.torch import load_file

torch.empty(1, device="cuda")
for _ in range(int(sys.argv[2])):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    loaded = [load_file(f, device="cuda") for f in sorted(pathlib.Path(sys.argv[1]).glob("*.safetensors"))]
    torch.cuda.synchronize()
    s = time.perf_counter() - begin
    n = sum(t.nbytes for part in loaded for t in part.values())
    print(f"{n * 1e-9:.2f} GB in {s:.3f} s: {n / s * 1e-9:.1f} GB/s")
    del loaded
