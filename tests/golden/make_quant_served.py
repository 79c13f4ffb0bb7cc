#!/usr/bin/env python3
"""Golden vectors of weights that are quantised for serving, and what libraries decode of them.

    python make_quant_served.py      # writes into quant/, beside make_quant_formats.py

compressed-tensors and modelopt (nvidia-modelopt 0.47) compress and decompress on a CPU.  AutoFP8
and FBGEMM need a GPU: what they store is written here, number times scale in float32.

    fp8_matrix.safetensors   NAME F8_E4M3 and NAME_scale of the matrix: AutoFP8, and modelopt's FP8
    fp8_rows.safetensors     NAME and NAME_scale [rows, 1]: FBGEMM
    modelopt_nvfp4.safetensors   NAME U8, NAME_scale F8_E4M3, NAME_scale_2: modelopt
    nvfp4.safetensors, mxfp4_packed.safetensors    NAME_packed, NAME_scale, NAME_global_scale:
                             compressed-tensors
    packed2, packed8, zeros2, zeros4, zeros8       NAME_packed, NAME_scale, NAME_zero_point of
                             integers of so many bits: compressed-tensors
    qwen3_autofp8/, qwen3_fbgemm/, qwen3_modelopt_fp8/, qwen3_modelopt_nvfp4/,
    qwen3_modelopt_mixed/, qwen3_nvfp4/, qwen3_mxfp4/, qwen3_int4/, qwen3_int8/
                             a model so, with scales of activations and caches
    qwen3_autofp8_bf16/, ...                       the same decoded
"""
import json
import shutil

import torch
import transformers as T
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from modelopt.torch.quantization.qtensor import FP8QTensor, NVFP4QTensor
from safetensors.torch import load_file

from make_quant_formats import OUT, add, integers, packed_tensors, save, write

LARGEST = torch.finfo(torch.float8_e4m3fn).max
EVERY = torch.arange(256, dtype=torch.uint8)
EVERY = EVERY[(EVERY & 0x7F) != 0x7F].view(torch.float8_e4m3fn)  # all numbers, without NaN
SCALES = torch.arange(1, 127, dtype=torch.uint8).view(torch.float8_e4m3fn)


def some(of, shape, g):
    return of[torch.randint(len(of), (torch.Size(shape).numel(),), generator=g)].reshape(shape)


def spread_out(shape, g, width=1.0):
    return torch.exp(torch.randn(shape, generator=g) * width - 4)


# --- FP8 ---------------------------------------------------------------------------------------


def by_matrix(q, scale):
    value = q.float() * scale.float()
    other = FP8QTensor(q.shape, torch.float32, q).dequantize(torch.float32, scale=scale)
    assert torch.equal(value, other)
    return value


def fp8_matrix(g):
    tensors = {}
    for name, shape, at in (("even", (32, 24), ()), ("odd", (7, 33), (1,)), ("wide", (2, 2100), ()),
                            ("row", (1, 40), (1, 1))):
        q, s = some(EVERY, shape, g), spread_out(at, g)
        tensors[name], tensors[name + "_scale"] = q, s
        add(tensors, name, by_matrix(q, s))
    tensors["plain"] = torch.randn(5, generator=g).bfloat16()
    save(tensors, "fp8_matrix")


def fp8_rows(g):
    tensors = {}
    for name, shape in (("even", (32, 24)), ("odd", (7, 33)), ("wide", (3, 2100)), ("row", (1, 40))):
        q, s = some(EVERY, shape, g), spread_out((shape[0], 1), g)
        tensors[name], tensors[name + "_scale"] = q, s
        add(tensors, name, q.float() * s)
    tensors["plain"] = torch.randn(5, generator=g).bfloat16()
    save(tensors, "fp8_rows")


# --- modelopt's NVFP4 --------------------------------------------------------------------------


def by_groups(q, scale, double):
    shape = (q.shape[0], q.shape[1] * 2)
    return NVFP4QTensor(shape, torch.float32, q).dequantize(torch.float32, scale=scale, double_scale=double,
                                                            block_sizes={-1: 16})


def modelopt_nvfp4(g):
    tensors = {}
    for name, shape in (("even", (6, 64)), ("odd", (7, 48)), ("one", (1, 16)), ("long", (2, 16400))):
        q = torch.randint(256, (shape[0], shape[1] // 2), generator=g, dtype=torch.uint8)
        s, double = some(SCALES, (shape[0], shape[1] // 16), g), spread_out((), g, 3)
        tensors[name], tensors[name + "_scale"], tensors[name + "_scale_2"] = q, s, double
        add(tensors, name, by_groups(q, s, double))
    tensors["plain"] = torch.randn(5, generator=g).bfloat16()
    save(tensors, "modelopt_nvfp4")


# --- compressed-tensors ------------------------------------------------------------------------


def nvfp4_args():
    return QuantizationArgs(num_bits=4, type="float", symmetric=True, strategy="tensor_group", group_size=16,
                            scale_dtype=torch.float8_e4m3fn)


def mxfp4_args():
    return QuantizationArgs(num_bits=4, type="float", symmetric=True, strategy="group", group_size=32,
                            scale_dtype=torch.uint8)


def int_args(bits, symmetric, group=None):
    return QuantizationArgs(num_bits=bits, type="int", symmetric=symmetric, group_size=group,
                            strategy="group" if group else "channel")


def decompress(parts, name, kind, args):
    """What the library decodes of NAME_packed and what belongs to it."""
    of = {"weight" + k.removeprefix(name): v for k, v in parts.items() if k.startswith(name + "_")}
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    return BaseCompressor.get_value_from_registry(kind).decompress(of, scheme)["weight"]


def nvfp4(g):
    tensors = {}
    for name, shape in (("even", (6, 64)), ("odd", (7, 48)), ("one", (1, 16)), ("long", (2, 16400))):
        parts = {name + "_packed": torch.randint(256, (shape[0], shape[1] // 2), generator=g, dtype=torch.uint8),
                 name + "_scale": some(SCALES, (shape[0], shape[1] // 16), g),
                 name + "_global_scale": 1 / spread_out((1,), g, 3)}
        tensors.update(parts)
        add(tensors, name, decompress(parts, name, "nvfp4-pack-quantized", nvfp4_args()))
    tensors["plain"] = torch.randn(5, generator=g).bfloat16()
    save(tensors, "nvfp4")


def mxfp4_packed(g):
    tensors = {}
    for name, shape in (("even", (6, 64)), ("odd", (7, 96)), ("one", (1, 32)), ("long", (2, 16416))):
        s = torch.randint(0, 251, (shape[0], shape[1] // 32), generator=g, dtype=torch.uint8)  # 6 x 2^127 is not finite
        parts = {name + "_packed": torch.randint(256, (shape[0], shape[1] // 2), generator=g, dtype=torch.uint8),
                 name + "_scale": torch.where(torch.rand(s.shape, generator=g) < 0.7, s // 16 + 118, s)}
        tensors.update(parts)
        add(tensors, name, decompress(parts, name, "mxfp4-pack-quantized", mxfp4_args()))
    tensors["plain"] = torch.randn(5, generator=g).bfloat16()
    save(tensors, "mxfp4_packed")


def packed(g, bits, symmetric):
    tensors, per = {}, 32 // bits
    for name, shape, dtype in (("even", (16, 64), torch.bfloat16), ("odd", (9, 96), torch.bfloat16),
                               ("half", (19, 32), torch.float16), ("float", (13, 128), torch.float32),
                               ("long", (17, 1952), torch.bfloat16)):
        rows, groups = shape[0], shape[1] // 32
        parts = {name + "_packed": integers((rows, shape[1] // per), g),
                 name + "_scale": spread_out((rows, groups), g, 2).to(dtype),
                 name + "_shape": torch.tensor(shape)}
        if not symmetric:
            parts[name + "_zero_point"] = integers((-(-rows // per), groups), g)
        tensors.update(parts)
        add(tensors, name, decompress(parts, name, "pack-quantized", int_args(bits, symmetric, 32)))
    tensors["plain"] = torch.randn(5, generator=g).bfloat16()
    save(tensors, ("packed" if symmetric else "zeros") + str(bits))


# --- models ------------------------------------------------------------------------------------


def fp8_model(scale_of):
    """Parts of a matrix in FP8, with these scales, and what is decoded."""
    def pack(w):
        s = scale_of(w.float()) / LARGEST
        q = (w.float() / s).to(torch.float8_e4m3fn)
        return {"weight": q, "weight_scale": s, "input_scale": torch.tensor(0.5)}, q.float() * s
    return pack


def modelopt_model(w):
    q, s, double = NVFP4QTensor.quantize(w.float().clone(), 16)
    parts = {"weight": q._quantized_data, "weight_scale": s, "weight_scale_2": double,
             "input_scale": torch.tensor(0.01)}
    return parts, by_groups(parts["weight"], s, double)


def compressed_model(kind, args):
    def pack(w):
        groups = w.float().view(w.shape[0], -1, args.group_size or w.shape[1])
        low, high, whole = groups.amin(-1), groups.amax(-1), None
        if args.strategy == "tensor_group":
            whole = generate_gparam(low.min(), high.max()).reshape(1)
        scale, zero = calculate_qparams(low, high, args, global_scale=whole)
        of = {"weight": w, "weight_scale": scale.to(w.dtype), "weight_zero_point": zero.to(torch.int8)}
        if whole is not None:
            of.update(weight_global_scale=whole, input_global_scale=torch.tensor([3.0]))
        if args.type == "float":
            of["weight_scale"], _ = scale, of.pop("weight_zero_point")
        scheme = QuantizationScheme(targets=["Linear"], weights=args)
        parts = BaseCompressor.get_value_from_registry(kind).compress(of, scheme)
        return parts, decompress(parts, "weight", kind, args)
    return pack


def compressed_config(kind, args):
    scheme = QuantizationScheme(targets=["Linear"], weights=args, format=kind)
    return json.loads(QuantizationConfig(config_groups={"group_0": scheme}, format=kind, ignore=["lm_head"],
                                         quantization_status="compressed").model_dump_json())


def model(name, document, plain, pack, quantization, beside=None):
    whole, twin = packed_tensors(plain, pack)
    for k in plain:
        if beside is not None and (".k_proj." in k or ".v_proj." in k):  # scales of a cache
            whole[k.removesuffix("weight") + k[-13] + "_scale"] = torch.tensor(0.25)
    write(name, {**document, **({"quantization_config": quantization} if quantization else {})}, whole)
    write(name + "_bf16", document, twin)
    if beside:
        (OUT / name / "hf_quant_config.json").write_text(json.dumps(beside, indent=4) + "\n")


def models(seed):
    config = T.Qwen3Config(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                           num_key_value_heads=2, head_dim=16, vocab_size=53, max_position_embeddings=64,
                           tie_word_embeddings=False)
    torch.manual_seed(seed)
    T.Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(OUT / "source")
    document = json.loads((OUT / "source/config.json").read_text())
    plain = load_file(OUT / "source/model.safetensors")
    shutil.rmtree(OUT / "source")
    whole, rows = fp8_model(lambda w: w.abs().max()), fp8_model(lambda w: w.abs().amax(1, keepdim=True))
    modelopt = {"producer": {"name": "modelopt", "version": "0.47.0"},
                "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    model("qwen3_autofp8", document, plain, whole,
          dict(quant_method="fp8", activation_scheme="static", ignored_layers=["lm_head"]))
    model("qwen3_fbgemm", document, plain, rows,
          dict(quant_method="fbgemm_fp8", activation_scale_ub=1200.0, modules_to_not_convert=["lm_head"]))
    model("qwen3_modelopt_fp8", document, plain, whole, None, modelopt)
    group = {"input_activations": {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16},
             "weights": {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}, "targets": ["Linear"]}
    model("qwen3_modelopt_nvfp4", document, plain, modelopt_model,
          dict(config_groups={"group_0": group}, ignore=["lm_head"], quant_algo="NVFP4", quant_method="modelopt",
               kv_cache_scheme={"dynamic": False, "num_bits": 8, "type": "float"}, producer=modelopt["producer"]), {})
    model("qwen3_modelopt_mixed", document, plain, lambda w: modelopt_model(w) if 64 in w.shape else whole(w),
          dict(quant_algo="MIXED_PRECISION", quant_method="modelopt", producer=modelopt["producer"],
               quantized_layers={k.removesuffix(".weight"): (
                   dict(quant_algo="NVFP4", group_size=16) if 64 in w.shape else dict(quant_algo="FP8"))
                   for k, w in plain.items() if "_proj." in k}), {})
    for name, kind, args in (("qwen3_nvfp4", "nvfp4-pack-quantized", nvfp4_args()),
                             ("qwen3_mxfp4", "mxfp4-pack-quantized", mxfp4_args()),
                             ("qwen3_int4", "pack-quantized", int_args(4, False, 16)),
                             ("qwen3_int8", "pack-quantized", int_args(8, True))):
        model(name, document, plain, compressed_model(kind, args), compressed_config(kind, args))


def main():
    torch.set_num_threads(1)
    fp8_matrix(torch.Generator().manual_seed(31))
    fp8_rows(torch.Generator().manual_seed(32))
    modelopt_nvfp4(torch.Generator().manual_seed(33))
    nvfp4(torch.Generator().manual_seed(34))
    mxfp4_packed(torch.Generator().manual_seed(35))
    for bits, symmetric in ((2, True), (8, True), (2, False), (4, False), (8, False)):
        packed(torch.Generator().manual_seed(40 + bits + symmetric), bits, symmetric)
    models(36)


if __name__ == "__main__":
    main()
