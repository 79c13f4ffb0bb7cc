#!/usr/bin/env python3
"""Golden vectors of frozen matrices in 4 bits: what bitsandbytes makes of each row alone.

    python make_quant_weights.py      # writes quant_weights.safetensors beside this file

    NAME.w           [N, K] float32
    NAME.codes       [N, K/2], NAME.scale_codes [N, K/64], NAME.offset, NAME.range [N]: NormalFloat
                     with blocks of 64 and double quantisation, of a row after the other
    NAME.plain       [N, K]: the rows dequantised, without double quantisation
    NAME.dequantised [N, K]: with it
    NAME.x [M, K], NAME.y = x dequantised', NAME.dy [M, N], NAME.dx = dy dequantised
"""
from pathlib import Path

import bitsandbytes.functional as F
import torch
from safetensors.torch import save_file

OUT = Path(__file__).resolve().parent / "quant_weights.safetensors"


def add(tensors, name, w, rows):
    parts = {k: [] for k in ("codes", "scale_codes", "offset", "range", "plain", "dequantised")}
    for row in w:
        q, state = F.quantize_4bit(row, blocksize=64, compress_statistics=True, quant_type="nf4")
        plain, once = F.quantize_4bit(row, blocksize=64, quant_type="nf4")
        parts["codes"].append(q.flatten())
        parts["scale_codes"].append(state.absmax.flatten())
        parts["offset"].append(state.offset.reshape(()))
        parts["range"].append(state.state2.absmax.reshape(()))
        parts["plain"].append(F.dequantize_4bit(plain, once).flatten())
        parts["dequantised"].append(F.dequantize_4bit(q, state).flatten())
    for k, v in parts.items():
        tensors[f"{name}.{k}"] = torch.stack(v)
    deq = tensors[f"{name}.dequantised"]
    x, dy = torch.randn(rows, w.shape[1]), torch.randn(rows, w.shape[0])
    tensors.update({f"{name}.w": w, f"{name}.x": x, f"{name}.dy": dy,
                    f"{name}.y": (x.double() @ deq.double().T).float(),
                    f"{name}.dx": (dy.double() @ deq.double()).float()})


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tensors = {}
    add(tensors, "normal", torch.randn(6, 640) * 0.02, 3)
    spread = torch.randn(5, 512) * torch.logspace(-3, 1, 8).repeat_interleave(64)
    spread[1, 70:140] = 0
    spread[2, 5] = 40
    add(tensors, "spread", spread, 4)
    save_file({k: v.contiguous() for k, v in tensors.items()}, OUT)


main()
