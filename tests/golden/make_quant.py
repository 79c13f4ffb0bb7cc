#!/usr/bin/env python3
"""Golden vectors of quantised checkpoints: what torch and transformers decode of them.

    python make_quant.py      # writes quant/ beside this file

    fp8.safetensors      NAME F8_E4M3 and NAME_scale_inv, and bfloat16.NAME, float32.NAME: decoded;
                         blocks are [16, 8], of names that begin with "one" the whole matrix
    packed.safetensors   NAME_packed, NAME_scale, NAME_shape in groups of 32, as compressed-tensors
                         packs integers of four bits, and what it decodes of them
    mxfp4.safetensors    NAME_blocks, NAME_scales, and bfloat16.NAME, float32.NAME: decoded by
                         transformers
    deepseek_v3/         families/deepseek_v3 in FP8, as DeepSeek's own files are, with blocks of
                         [16, 8] and odd ones at the edges
    deepseek_v3_bf16/    the same decoded to bfloat16
    mistral3/, qwen3_5_moe/          families/ministral3 and qwen3_5_moe as the text models of
                         multimodal checkpoints in FP8: one scale a matrix and scales of activations,
                         as Mistral's own files are; blocks of [16, 8], of stacked experts too
    kimi_k25/            a DeepSeek V3 with random weights, the text model of a multimodal one, whose experts are integers of four bits, as Kimi K2.5 is
    mistral3_bf16/, qwen3_5_moe_bf16/, kimi_k25_bf16/  the text models, decoded to bfloat16
    gpt_oss/             a model whose experts are MXFP4, as OpenAI's own files are, and
                         golden.safetensors of it as in families/
    gpt_oss_bf16/        the same as transformers loads it
"""
import json
import shutil
from pathlib import Path

import torch
import transformers as T
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import dequantize
from safetensors.torch import load_file, save_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from make_families import DENSE, dump_case

HERE = Path(__file__).resolve().parent
OUT = HERE / "quant"
BLOCK = [16, 8]
LARGEST = torch.finfo(torch.float8_e4m3fn).max
GPT_OSS_YARN = dict(rope_type="yarn", rope_theta=1e4, factor=4.0, beta_fast=32.0, beta_slow=1.0,
                    truncate=False, original_max_position_embeddings=16)
MLA = dict(q_lora_rank=8, kv_lora_rank=6, qk_nope_head_dim=4, qk_rope_head_dim=4, v_head_dim=6,
           n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=3, moe_intermediate_size=8,
           n_group=4, topk_group=2, first_k_dense_replace=1)


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


GROUP = 32
INT4 = QuantizationArgs(num_bits=4, type="int", symmetric=True, strategy="group", group_size=GROUP)


def unpack(packed, scale, shape):
    return dequantize(unpack_from_int32(packed, 4, torch.Size(shape.tolist())), scale, args=INT4)


def packed(g):
    tensors = {}
    for name, shape, dtype in (("even", (6, 64), torch.bfloat16), ("odd", (7, 96), torch.bfloat16),
                               ("one", (1, 32), torch.bfloat16), ("long", (2, 16416), torch.bfloat16),
                               ("float", (5, 128), torch.float32)):
        q = torch.randint(-8, 8, shape, generator=g, dtype=torch.int8)
        scale = torch.exp(torch.randn(shape[0], shape[1] // GROUP, generator=g) * 3).to(dtype)
        tensors[name + "_packed"], tensors[name + "_scale"] = pack_to_int32(q, 4), scale
        tensors[name + "_shape"] = torch.tensor(shape, dtype=torch.int32)
        add(tensors, name, unpack(tensors[name + "_packed"], scale, tensors[name + "_shape"]).float())
    tensors["plain"] = torch.randn(5, generator=g).bfloat16()
    save_file({k: v.contiguous() for k, v in tensors.items()}, OUT / "packed.safetensors")


def kimi(seed):
    """A text model with experts of whole groups, packed, beside a tensor of its vision model."""
    shape = {**DENSE, **MLA, "hidden_size": 32, "moe_intermediate_size": 64, "num_key_value_heads": 4}
    config = T.DeepseekV3Config(**shape)
    with torch.device("cpu"):
        torch.manual_seed(seed)
        text = T.DeepseekV3ForCausalLM(config).to(torch.bfloat16)
    at = OUT / "kimi_k25_bf16"
    text.save_pretrained(at)
    (at / "generation_config.json").unlink()
    plain, whole = load_file(at / "model.safetensors"), {}
    for k, w in plain.items():
        there = "language_model." + k
        if ".mlp.experts." not in k:
            whole[there] = w
            continue
        rows = w.float().view(w.shape[0], -1, GROUP)
        scale = (rows.abs().amax(-1) / 7).bfloat16()
        q = (rows / scale.float()[..., None]).round().clamp(-8, 7).to(torch.int8).view(w.shape)
        whole[there + "_packed"], whole[there + "_scale"] = pack_to_int32(q, 4), scale
        whole[there + "_shape"] = torch.tensor(w.shape, dtype=torch.int32)
        plain[k] = unpack(whole[there + "_packed"], scale, whole[there + "_shape"])
    whole["vision_tower.patch_embed.pos_emb.weight"] = torch.ones(3, 4).bfloat16()
    whole["mm_projector.pre_norm.weight"] = torch.ones(4).bfloat16()
    document = json.loads((at / "config.json").read_text())
    shutil.rmtree(at)
    weights = dict(actorder=None, block_structure=None, dynamic=False, group_size=GROUP, num_bits=4,
                   observer="minmax", observer_kwargs={}, strategy="group", symmetric=True, type="int")
    group = dict(input_activations=None, output_activations=None, targets=["Linear"], weights=weights)
    write("kimi_k25", {"model_type": "kimi_k25", "text_config": {**document, "quantization_config": dict(
        quant_method="compressed-tensors", format="pack-quantized", config_groups={"group_0": group},
        ignore=["lm_head", "re:.*self_attn.*"], kv_cache_scheme=None, quantization_status="compressed")},
        "media_placeholder_token_id": 52, "tie_word_embeddings": False, "vision_config": {"depth": 1}}, whole)
    write("kimi_k25_bf16", document, plain)


def quantise_model(plain, block, static=False):
    """A model's tensors in FP8, and decoded; without a block the matrix has one scale."""
    packed, decoded = {}, {}
    for k, w in plain.items():
        quantised = w.ndim > 1 and ("_proj" in k or ".experts." in k) and "shared_expert_gate" not in k
        if not quantised:
            packed[k] = decoded[k] = w
            continue
        size = block or list(w.shape[-2:])
        packed[k], scales = quantise(w.float(), size)
        decoded[k] = decode(packed[k], scales, size).bfloat16()
        packed[k + "_scale_inv"] = scales if block else scales.reshape(())
        if static:
            packed[k.removesuffix("weight") + "activation_scale"] = torch.tensor(0.01)
    return packed, decoded


def write(folder, config, tensors):
    at = OUT / folder
    at.mkdir()
    (at / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    save_file({k: v.contiguous() for k, v in tensors.items()}, at / "model.safetensors",
              metadata={"format": "pt"})


def config_fp8(block, scheme, **more):
    return dict(activation_scheme=scheme, quant_method="fp8", weight_block_size=block, **more)


def model(source, name):
    packed, decoded = quantise_model(load_file(HERE / source / "model.safetensors"), BLOCK)
    config = json.loads((HERE / source / "config.json").read_text())
    write(name, {**config, "quantization_config": config_fp8(BLOCK, "dynamic", fmt="e4m3")}, packed)
    write(name + "_bf16", config, decoded)


def wrapped(source, name, prefix, head, block, scheme):
    """A text model inside a multimodal one, beside a tensor of its vision model."""
    packed, decoded = quantise_model(load_file(HERE / source / "model.safetensors"), block, scheme == "static")
    config = json.loads((HERE / source / "config.json").read_text())
    whole = {(prefix + k.removeprefix("model.") if k.startswith("model.") else head + k): v
             for k, v in packed.items()}
    whole["model.visual.patch_embed.weight"] = torch.ones(3, 4).bfloat16()
    write(name, {"model_type": name, "text_config": config, "vision_config": {"depth": 1},
                 "tie_word_embeddings": config["tie_word_embeddings"],
                 "quantization_config": config_fp8(block, scheme, modules_to_not_convert=["model.visual"])},
          whole)
    write(name + "_bf16", config, decoded)


NOT_CONVERTED = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]


def gpt_oss(seed):
    """Experts of random blocks: all numbers of four bits, with scales that make usual weights."""
    config = T.GptOssConfig(**{**DENSE, "hidden_size": 64, "intermediate_size": 32}, head_dim=8,
                            num_local_experts=3, num_experts_per_tok=2, sliding_window=5,
                            rope_parameters=GPT_OSS_YARN)
    packed, at, decoded = {}, OUT / "gpt_oss", OUT / "gpt_oss_bf16"

    def pack(weights):
        g = torch.Generator().manual_seed(seed)
        for name, w in weights.items():
            if w.ndim == 3:
                shape = (w.shape[0], w.shape[2], w.shape[1] // 32)
                blocks = torch.randint(256, (*shape, 16), generator=g, dtype=torch.uint8)
                scales = torch.randint(119, 124, shape, generator=g, dtype=torch.uint8)
                packed[name + "_blocks"], packed[name + "_scales"] = blocks, scales
                weights[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.bfloat16).double()

    apart = dump_case(decoded, "GptOss", config, seed, 13, 4, 6, pack)[-1]
    assert apart < 2e-5, apart
    at.mkdir()
    (decoded / "golden.safetensors").rename(at / "golden.safetensors")
    (decoded / "generate.jsonl").unlink(), (decoded / "train.jsonl").unlink()
    doc = json.loads((decoded / "config.json").read_text())
    for folder, more in ((decoded, {}), (at, {"quantization_config": dict(
            modules_to_not_convert=NOT_CONVERTED, quant_method="mxfp4")})):
        (folder / "config.json").write_text(json.dumps({**doc, **more}, indent=2, sort_keys=True) + "\n")
    plain = load_file(decoded / "model.safetensors")
    packed.update({k: v for k, v in plain.items() if k + "_blocks" not in packed})
    save_file({k: v.contiguous() for k, v in packed.items()}, at / "model.safetensors", metadata={"format": "pt"})
    loaded = T.GptOssForCausalLM.from_pretrained(
        at, dtype=torch.bfloat16, quantization_config=T.Mxfp4Config(dequantize=True)).state_dict()
    assert set(loaded) == set(plain)
    save_file({k: loaded[k].contiguous() for k in plain}, decoded / "model.safetensors", metadata={"format": "pt"})
    assert all(torch.equal(plain[k], v) for k, v in load_file(decoded / "model.safetensors").items())


def main():
    torch.set_num_threads(1)
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    packed(torch.Generator().manual_seed(4))
    kimi(5)
    fp8(torch.Generator().manual_seed(1))
    mxfp4(torch.Generator().manual_seed(2))
    model("families/deepseek_v3", "deepseek_v3")
    wrapped("families/ministral3", "mistral3", "language_model.model.", "language_model.", None, "static")
    wrapped("families/qwen3_5_moe", "qwen3_5_moe", "model.language_model.", "", BLOCK, "dynamic")
    gpt_oss(3)


if __name__ == "__main__":
    main()
