#!/usr/bin/env python3
"""Golden vectors of quantised checkpoints: what torch and transformers decode of them.

    python make_quant.py      # writes quant/ beside this file

    fp8.safetensors      NAME F8_E4M3 and NAME_scale_inv, and bfloat16.NAME, float32.NAME: decoded;
                         blocks are [16, 8], of names that begin with "one" the whole matrix
    mxfp4.safetensors    NAME_blocks, NAME_scales, and bfloat16.NAME, float32.NAME: decoded by
                         transformers
    deepseek_v3/         families/deepseek_v3 in FP8, as DeepSeek's own files are, with blocks of
                         [16, 8] and odd ones at the edges
    deepseek_v3_bf16/    the same decoded to bfloat16
"""
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

HERE = Path(__file__).resolve().parent
OUT = HERE / "quant"
BLOCK = [16, 8]
LARGEST = torch.finfo(torch.float8_e4m3fn).max


def spread(scales, shape, block):
    """Each block's scale at each of its elements."""
    return scales.repeat_interleave(block[0], -2)[..., :shape[-2], :].repeat_interleave(
        block[1], -1)[..., :shape[-1]]


def decode(v, scales, block):
    return v.float() * spread(scales, v.shape, block)


def quantise(w, block):
    """FP8 and the scales that give each block's largest magnitude the largest number."""
    rows, columns = -(-w.shape[-2] // block[0]), -(-w.shape[-1] // block[1])
    scales = torch.empty(*w.shape[:-2], rows, columns)
    for r in range(rows):
        for c in range(columns):
            part = w[..., r * block[0]:(r + 1) * block[0], c * block[1]:(c + 1) * block[1]]
            scales[..., r, c] = part.abs().amax((-2, -1)).clamp(min=1e-12) / LARGEST
    return (w / spread(scales, w.shape, block)).to(torch.float8_e4m3fn), scales


def add(tensors, name, value):
    tensors["bfloat16." + name], tensors["float32." + name] = value.bfloat16(), value


def fp8(g):
    tensors = {}
    every = torch.arange(256, dtype=torch.uint8)
    every = every[(every & 0x7F) != 0x7F].view(torch.float8_e4m3fn)  # all numbers, without NaN
    for name, shape in {"even": (32, 24), "odd": (37, 21), "row": (1, 33), "column": (33, 1),
                        "small": (5, 3), "stack": (3, 20, 12), "wide": (2, 4200)}.items():
        n = torch.Size(shape).numel()
        v = every[torch.randint(len(every), (n,), generator=g)].reshape(shape)
        grid = (*shape[:-2], -(-shape[-2] // BLOCK[0]), -(-shape[-1] // BLOCK[1]))
        scales = torch.exp(torch.randn(grid, generator=g) * 4)
        tensors[name], tensors[name + "_scale_inv"] = v, scales
        value = decode(v, scales, BLOCK)
        if shape[-2] % grid[-2] == 0 and shape[-1] % grid[-1] == 0 and name == "even":
            assert torch.equal(value, Fp8Dequantize(None)._dequantize_one(v, scales, torch.float32))
        add(tensors, name, value)
    tensors["all"] = torch.cat([every] * 4).reshape(127, 8)
    tensors["all_scale_inv"] = torch.exp(torch.randn((8, 1), generator=g) * 20)
    add(tensors, "all", decode(tensors["all"], tensors["all_scale_inv"], BLOCK))
    for name, scale in {"one": torch.tensor(0.37), "one_1": torch.tensor([1.7e-3]),
                        "one_2": torch.tensor([[41.0]])}.items():
        v = every[torch.randint(len(every), (7 * 9,), generator=g)].reshape(7, 9)
        tensors[name], tensors[name + "_scale_inv"] = v, scale
        add(tensors, name, v.float() * scale)
    tensors["plain"] = torch.randn(5, generator=g).bfloat16()
    save_file({k: v.contiguous() for k, v in tensors.items()}, OUT / "fp8.safetensors")


def mxfp4(g):
    tensors = {}
    for name, shape in {"up": (3, 10, 2), "down": (2, 131, 3), "one": (1, 1, 1)}.items():
        blocks = torch.randint(256, (*shape, 16), generator=g, dtype=torch.uint8)
        scales = torch.randint(0, 254, shape, generator=g, dtype=torch.uint8)  # 2^127 times 6 is not finite
        scales = torch.where(torch.rand(shape, generator=g) < 0.7, scales // 16 + 118, scales)
        scales = scales.clamp(max=250)
        tensors[name + "_blocks"], tensors[name + "_scales"] = blocks, scales
        for dtype in (torch.bfloat16, torch.float32):
            tensors[str(dtype)[6:] + "." + name] = convert_moe_packed_tensors(blocks, scales, dtype=dtype)
    tensors["plain"] = torch.randn(5, generator=g).bfloat16()
    save_file({k: v.contiguous() for k, v in tensors.items()}, OUT / "mxfp4.safetensors")


def model(source, name):
    plain, packed, decoded = load_file(HERE / source / "model.safetensors"), {}, {}
    for k, w in plain.items():
        quantised = w.ndim == 2 and ("_proj" in k or ".experts." in k)
        if not quantised:
            packed[k] = decoded[k] = w
            continue
        packed[k], packed[k + "_scale_inv"] = quantise(w.float(), BLOCK)
        decoded[k] = decode(packed[k], packed[k + "_scale_inv"], BLOCK).bfloat16()
    config = json.loads((HERE / source / "config.json").read_text())
    for folder, tensors in ((name, packed), (name + "_bf16", decoded)):
        at = OUT / folder
        at.mkdir()
        if folder == name:
            config["quantization_config"] = dict(activation_scheme="dynamic", fmt="e4m3",
                                                 quant_method="fp8", weight_block_size=BLOCK)
        else:
            del config["quantization_config"]
        (at / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
        save_file({k: v.contiguous() for k, v in tensors.items()}, at / "model.safetensors",
                  metadata={"format": "pt"})


def main():
    torch.set_num_threads(1)
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    fp8(torch.Generator().manual_seed(1))
    mxfp4(torch.Generator().manual_seed(2))
    model("families/deepseek_v3", "deepseek_v3")


main()
