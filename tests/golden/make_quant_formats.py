#!/usr/bin/env python3
"""Golden vectors of weights that users' libraries quantised, and what these decode of them.

    python make_quant_formats.py AUTO_GPTQ AWQ      # writes into quant/, which make_quant.py begins

AUTO_GPTQ and AWQ are the files qlinear_cuda_old.py of auto_gptq 0.7.1 and packing_utils.py of
autoawq 0.2.9, which need no GPU by themselves.

    bnb4.safetensors     NAME, NAME.absmax, NAME.quant_map, ...: bitsandbytes in NF4 and FP4, with
                         double quantisation and without, of three types; bfloat16.NAME, float32.NAME
    bnb8.safetensors     NAME.weight and NAME.SCB: LLM.int8()
    gptq2, gptq4, gptq8  NAME.qweight, NAME.qzeros, NAME.scales, and NAME.g_idx of some
    awq.safetensors      the same, as AWQ packs them
    bytes.safetensors    NAME, NAME_scale: "float-quantized" and "int-quantized" of
                         compressed-tensors, by rows
    qwen3_bnb4/, qwen3_bnb8/   a model as transformers saves it with load_in_4bit and load_in_8bit
    qwen3_gptq/, qwen3_awq/    the same model with rounded weights, packed by auto_gptq and for AWQ
    qwen3_bnb4_bf16/, ...      the same decoded
"""
import importlib.util
import json
import shutil
import sys
from pathlib import Path

import bitsandbytes.functional as B
import torch
import transformers as T
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import dequantize
from safetensors.torch import load_file, save_file

HERE = Path(__file__).resolve().parent
OUT = HERE / "quant"


def module(path):
    spec = importlib.util.spec_from_file_location("quantised", path)
    m = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(m)
    return m


def save(tensors, name):
    save_file({k: v.contiguous() for k, v in tensors.items()}, OUT / (name + ".safetensors"))


def add(tensors, name, value):
    tensors["bfloat16." + name], tensors["float32." + name] = value.bfloat16(), value.float()


def integers(shape, g):
    return torch.randint(-2**31, 2**31, shape, generator=g, dtype=torch.int64).to(torch.int32)


def bnb4(g):
    tensors = {}
    for name, shape, dtype, kind, double, block in (
            ("nf4", (96, 64), torch.bfloat16, "nf4", True, 64), ("plain_nf4", (7, 64), torch.float16, "nf4", False, 64),
            ("fp4", (10, 128), torch.float16, "fp4", True, 128), ("float", (33, 20), torch.float32, "nf4", True, 64),
            ("long", (130, 256), torch.bfloat16, "nf4", True, 64), ("odd", (3, 7), torch.bfloat16, "fp4", False, 64)):
        w = (torch.randn(shape, generator=g) * torch.exp(torch.randn(shape[0], 1, generator=g))).to(dtype)
        q, state = B.quantize_4bit(w, blocksize=block, compress_statistics=double, quant_type=kind)
        tensors[name] = q
        tensors.update({f"{name}.{k}": v for k, v in state.as_dict(packed=True).items()})
        add(tensors, name, B.dequantize_4bit(q, state))
    tensors["plain"] = torch.randn(5, generator=g).bfloat16()
    save(tensors, "bnb4")


def bnb8(g):
    tensors = {}
    for name, shape in (("even", (32, 24)), ("odd", (7, 33)), ("row", (1, 40)), ("wide", (3, 2100))):
        q, scb, _ = B.int8_vectorwise_quant(torch.randn(shape, generator=g).half())
        tensors[name + ".weight"], tensors[name + ".SCB"] = q, scb
        tensors[name + ".weight_format"] = torch.tensor(0, dtype=torch.uint8)
        add(tensors, name + ".weight", B.int8_vectorwise_dequant(q, scb))
    tensors["plain"] = torch.randn(5, generator=g).bfloat16()
    save(tensors, "bnb8")


def gptq(g, path, bits, group):
    tensors, per = {}, 32 // bits
    for name, (columns, rows), ordered in (("even", (64, 32), False), ("ordered", (96, 64), True), ("tall", (128, 160), True)):
        m = module(path).QuantLinear(bits, group, columns, rows, False)
        m.qweight.copy_(integers((columns // per, rows), g))
        m.qzeros.copy_(integers((columns // group, rows // per), g))
        m.scales.copy_(torch.exp(torch.randn(columns // group, rows, generator=g)) / 50)
        for k in ("qweight", "qzeros", "scales"):
            tensors[f"{name}.{k}"] = getattr(m, k).clone()
        w = m(torch.eye(columns).half()).t()  # [rows, columns]
        if ordered:  # inputs in another order: each says of which group it is
            order = torch.randperm(columns, generator=g)
            tensors[name + ".g_idx"] = (order // group).to(torch.int32)
            q = (m.qweight.unsqueeze(1) >> torch.arange(0, 32, bits).view(1, -1, 1) & (2**bits - 1)).view(columns, rows)
            q = q[order]
            tensors[name + ".qweight"] = (q.view(-1, per, rows).long() << torch.arange(0, 32, bits).view(1, -1, 1)).sum(
                1).to(torch.int32)
            w = w[:, order]
        add(tensors, name + ".weight", w)
    tensors["plain"] = torch.randn(5, generator=g).bfloat16()
    save(tensors, f"gptq{bits}")


def awq(g, path):
    tensors, group = {}, 32
    for name, (columns, rows) in (("even", (64, 32)), ("tall", (96, 200)), ("small", (32, 8))):
        q, z = integers((columns, rows // 8), g), integers((columns // group, rows // 8), g)
        s = (torch.exp(torch.randn(columns // group, rows, generator=g)) / 50).half()
        tensors[name + ".qweight"], tensors[name + ".qzeros"], tensors[name + ".scales"] = q, z, s
        add(tensors, name + ".weight", module(path).dequantize_gemm(q, z, s, 4, group).t())
    tensors["plain"] = torch.randn(5, generator=g).bfloat16()
    save(tensors, "awq")


def by_bytes(g):
    tensors = {}
    every = torch.arange(256, dtype=torch.uint8)
    every = every[(every & 0x7F) != 0x7F].view(torch.float8_e4m3fn)
    for name, shape, kind, dtype in (("float", (32, 24), "float", torch.bfloat16), ("float_odd", (7, 33), "float", torch.float32),
                                     ("int", (16, 40), "int", torch.bfloat16), ("int_half", (5, 2100), "int", torch.float16)):
        n = shape[0] * shape[1]
        q = (every[torch.randint(len(every), (n,), generator=g)] if kind == "float" else
             torch.randint(-128, 128, (n,), generator=g, dtype=torch.int8)).reshape(shape)
        s = torch.exp(torch.randn(shape[0], 1, generator=g) - 4).to(dtype)
        args = QuantizationArgs(num_bits=8, type=kind, symmetric=True, strategy="channel")
        tensors[name], tensors[name + "_scale"] = q, s
        add(tensors, name, dequantize(q, s, args=args))
    tensors["plain"] = torch.randn(5, generator=g).bfloat16()
    save(tensors, "bytes")


def decoded(tensors):
    """A model's tensors as bitsandbytes decodes them."""
    out = {}
    for k, v in tensors.items():
        if k + ".absmax" in tensors:
            state = {n.removeprefix(k + "."): t for n, t in tensors.items() if n.startswith(k + ".")}
            out[k] = B.dequantize_4bit(v, B.QuantState.from_dict(state, device=torch.device("cpu")))
        elif k.removesuffix("weight") + "SCB" in tensors:
            out[k] = B.int8_vectorwise_dequant(v, tensors[k.removesuffix("weight") + "SCB"]).bfloat16()
        elif k + ".absmax" not in tensors and v.dtype == torch.bfloat16:
            out[k] = v
    return out


def rounded(w, group):
    """Integers of four bits [rows, columns], scales and zeros [rows, groups] of a matrix."""
    parts = w.float().view(w.shape[0], -1, group)
    low, high = parts.amin(-1).clamp(max=0), parts.amax(-1).clamp(min=0)
    scale = ((high - low) / 15).half()
    zero = (-low / scale.float()).round().clamp(1, 15)
    q = (parts / scale.float()[..., None] + zero[..., None]).round().clamp(0, 15).to(torch.int32)
    return q.view(w.shape), scale, zero


def pack_gptq(w, group, path):
    rows, columns = w.shape
    _, scale, zero = rounded(w, group)
    m, linear = module(path).QuantLinear(4, group, columns, rows, False), torch.nn.Linear(columns, rows, bias=False)
    linear.weight.data = w.float()
    groups = torch.arange(columns, dtype=torch.int32) // group
    linear.half()
    m.pack(linear, scale, zero.half(), groups)
    parts = {"qweight": m.qweight, "qzeros": m.qzeros, "scales": m.scales, "g_idx": groups}
    return parts, m(torch.eye(columns).half()).t()


def pack_awq(w, group, path):
    q, scale, zero = rounded(w, group)
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])  # the neighbour in each place of an int32

    def pack(x):  # [n, rows]
        x = x.view(x.shape[0], -1, 8)[..., order].long() << torch.arange(0, 32, 4)
        return x.sum(-1).to(torch.int32)

    parts = {"qweight": pack(q.t().contiguous()), "qzeros": pack(zero.t().contiguous().to(torch.int32)),
             "scales": scale.t().contiguous()}
    return parts, module(path).dequantize_gemm(parts["qweight"], parts["qzeros"], parts["scales"], 4, group).t()


def packed_tensors(plain, pack):
    """A model's tensors with the parts of its packed matrices, and with what these decode to."""
    whole, twin = {}, {}
    for k, w in plain.items():
        if "_proj." not in k:
            whole[k] = twin[k] = w
            continue
        parts, value = pack(w)
        whole.update({k.removesuffix("weight") + n: v.clone() for n, v in parts.items()})
        twin[k] = value.bfloat16()
    return whole, twin


def packed(name, document, plain, pack, path, quantization, group=32):
    whole, twin = packed_tensors(plain, lambda w: pack(w, group, path))
    write(name, {**document, "quantization_config": quantization}, whole)
    write(name + "_bf16", document, twin)


def write(name, document, tensors):
    shutil.rmtree(OUT / name, ignore_errors=True)
    (OUT / name).mkdir()
    (OUT / name / "config.json").write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")
    save_file({k: v.contiguous() for k, v in tensors.items()}, OUT / name / "model.safetensors",
              metadata={"format": "pt"})


def models(seed, gptq_path, awq_path):
    """Inputs are whole blocks: bitsandbytes' kernel for CPUs decodes others otherwise than its CUDA one."""
    config = T.Qwen3Config(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                           num_key_value_heads=2, head_dim=16, vocab_size=53, max_position_embeddings=64,
                           tie_word_embeddings=False)
    torch.manual_seed(seed)
    T.Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(OUT / "source")
    document = json.loads((OUT / "source/config.json").read_text())
    plain = load_file(OUT / "source/model.safetensors")
    for name, q in (("qwen3_bnb4", T.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4",
                                                        bnb_4bit_use_double_quant=True,
                                                        bnb_4bit_compute_dtype=torch.bfloat16)),
                    ("qwen3_bnb8", T.BitsAndBytesConfig(load_in_8bit=True))):
        shutil.rmtree(OUT / name, ignore_errors=True)
        T.Qwen3ForCausalLM.from_pretrained(OUT / "source", quantization_config=q, device_map="cpu",
                                           dtype=torch.bfloat16).save_pretrained(OUT / name)
        (OUT / name / "generation_config.json").unlink()
        twin = json.loads((OUT / name / "config.json").read_text())
        del twin["quantization_config"]
        write(name + "_bf16", twin, decoded(load_file(OUT / name / "model.safetensors")))
    packed("qwen3_gptq", document, plain, pack_gptq, gptq_path,
           dict(quant_method="gptq", bits=4, group_size=32, desc_act=False, sym=False, damp_percent=0.01,
                checkpoint_format="gptq", pack_dtype="int32", lm_head=False, true_sequential=True))
    packed("qwen3_awq", document, plain, pack_awq, awq_path,
           dict(quant_method="awq", bits=4, group_size=32, version="gemm", zero_point=True,
                modules_to_not_convert=None))
    shutil.rmtree(OUT / "source")


def main():
    torch.set_num_threads(1)
    bnb4(torch.Generator().manual_seed(11))
    bnb8(torch.Generator().manual_seed(12))
    for bits, group in ((2, 32), (4, 32), (8, 16)):
        gptq(torch.Generator().manual_seed(20 + bits), sys.argv[1], bits, group)
    awq(torch.Generator().manual_seed(13), sys.argv[2])
    by_bytes(torch.Generator().manual_seed(14))
    models(15, sys.argv[1], sys.argv[2])


if __name__ == "__main__":
    main()
