#!/usr/bin/env python3
"""Golden vectors of blocks that no whole model here is made of: tiny stacks of them in transformers.

    python make_blocks.py      # writes blocks/*.safetensors beside this file

`next` is a Qwen3-Next of full-attention layers alone; `oss` has the attention of gpt-oss in layers
with a dense feed-forward.  Computed in float64 with transformers' own modules
(their casts to float32 taken out) and rounded at the end; plain float32 runs beside and must agree.
README.md describes the files.
"""
import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import GptOssConfig, GptOssForCausalLM, Qwen3Config, Qwen3NextConfig
from transformers import Qwen3NextForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP

import make_models as models

OUT = Path(__file__).resolve().parent / "blocks"
SHAPE = dict(vocab_size=61, hidden_size=32, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-6, max_position_embeddings=256,
             tie_word_embeddings=False, bos_token_id=None, eos_token_id=0)
ROWS = [(0, 1, [0, 5]), (9, 1, [22]), (0, 2, [])]      # as in make_models.py
SEQ = 24


class Tuple(torch.nn.Module):
    """A feed-forward where transformers expects one with router scores."""

    def __init__(self, mlp):
        super().__init__()
        self.inner = mlp

    def forward(self, x):
        return self.inner(x), None


def next_model():
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    config = Qwen3NextConfig(**SHAPE, intermediate_size=40, moe_intermediate_size=12,
                             shared_expert_intermediate_size=20, num_experts=4,
                             num_experts_per_tok=2, norm_topk_prob=True,
                             layer_types=["full_attention"] * 3, rope_parameters=rope)
    config._attn_implementation = "sdpa"
    config._experts_implementation = "eager"
    return Qwen3NextForCausalLM(config)


def oss_model():
    rope = {"rope_type": "yarn", "rope_theta": 1.5e4, "factor": 4.0, "beta_fast": 4.0,
            "beta_slow": 1.0, "truncate": False, "original_max_position_embeddings": 64}
    config = GptOssConfig(**SHAPE, intermediate_size=40, sliding_window=7, num_local_experts=2,
                          num_experts_per_tok=1, rope_parameters=rope,
                          layer_types=["sliding_attention", "full_attention", "sliding_attention"])
    config._attn_implementation = "eager"
    model = GptOssForCausalLM(config)
    for layer in model.model.layers:
        layer.mlp = Tuple(Qwen3MLP(Qwen3Config(hidden_size=32, intermediate_size=40)))
    return model


def draw_weights(model, rng):
    for name, p in model.named_parameters():
        z = torch.from_numpy(rng.standard_normal(p.shape))
        scale = 1.2 / math.sqrt(p.shape[-1])
        if name.endswith("norm.weight"):
            z, scale = z if isinstance(model, Qwen3NextForCausalLM) else z + 4, 0.25
        elif "embed_tokens" in name or name.endswith("sinks") or name.endswith("bias"):
            scale = 1.0
        elif name.endswith("mlp.gate.weight"):
            scale = 2.0 / math.sqrt(p.shape[-1])
        p.data = (scale * z).to(torch.bfloat16).to(torch.float32)


def exact(model):
    """Without casts to float32."""
    for m in model.double().modules():
        kind = type(m).__name__
        if kind == "Qwen3NextRMSNorm":
            m.forward = lambda x, m=m: m._norm(x) * (1 + m.weight)
        elif kind == "GptOssRMSNorm":
            m.forward = models.Exact.norm(m)
        elif kind.endswith("TopKRouter"):
            m.forward = models.Exact.router(m)
        elif kind.endswith("RotaryEmbedding"):
            m.forward = turn(m)
    return model


def turn(m):
    """Angles are float32 products where models are trained; here they are those of float64."""
    parameters = m.config.rope_parameters
    theta, dim = parameters["rope_theta"], m.config.head_dim
    dim = int(dim * parameters.get("partial_rotary_factor", 1.0))
    inv = theta ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    scale = 1.0
    if parameters["rope_type"] == "yarn":
        pair = [dim * math.log(parameters["original_max_position_embeddings"] /
                               (turns * 2 * math.pi)) / (2 * math.log(theta))
                for turns in (parameters["beta_fast"], parameters["beta_slow"])]
        low, high = max(pair[0], 0), min(pair[1], dim - 1)
        ramp = ((torch.arange(dim // 2, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
        inv = inv * (1 - ramp) + inv / parameters["factor"] * ramp
        scale = 0.1 * math.log(parameters["factor"]) + 1.0

    def forward(x, position_ids):
        angle = position_ids[..., None].double() * inv
        if type(m).__name__.startswith("Qwen3Next"):    # gpt-oss turns halves without repeating
            angle = torch.cat((angle, angle), -1)
        return scale * angle.cos(), scale * angle.sin()
    return forward


def ours(tensors, config):
    """Parameters, or their gradients, under the names and in the layouts of our blocks."""
    out = {}
    for name, t in tensors.items():
        name = name.removeprefix("model.").replace("mlp.inner.", "mlp.")
        name = name.replace("embed_tokens.", "embed.token_embedding.all.")
        name = name.replace("lm_head.", "head.lm_head.all.")
        name = name.replace("mlp.gate.", "mlp.router.gate.")
        name = name.replace("shared_expert_gate.", "shared_expert.gate.")
        if "shared_expert." in name and "shared_expert.gate." not in name:
            name = name.replace("shared_expert.", "shared_expert.expert.")
        stem = name.rpartition("experts.")[0] + "grouped_experts."
        if name.endswith("experts.gate_up_proj"):
            gate, up = t.chunk(2, 1)
            out[stem + "gate_proj.weight"] = gate.transpose(1, 2)
            out[stem + "up_proj.weight"] = up.transpose(1, 2)
        elif name.endswith("experts.down_proj"):
            out[stem + "down_proj.weight"] = t.transpose(1, 2)
        elif name.endswith("q_proj.weight") and t.shape[0] == 2 * 4 * config.head_dim:
            query, gate = t.view(4, 2, config.head_dim, -1).unbind(1)
            out[name] = query.flatten(0, 1)
            out[name.replace("q_proj", "gate_proj")] = gate.flatten(0, 1)
        else:
            out[name] = t
    return out


def run(model, batch):
    model.zero_grad(set_to_none=True)
    logits = models.forward(model, batch["input_ids"], batch["position_ids"])
    token = models.losses_of(logits, batch["labels"])
    (token.sum() / (batch["labels"] != models.IGNORE).sum()).backward()
    grads = ours({k: p.grad for k, p in model.named_parameters()}, model.config)
    return {"logits": logits.detach(), "token_losses": token.detach(),
            **{f"grad.{k}": v for k, v in grads.items()}}


def make(name, build, seed):
    rng = np.random.Generator(np.random.PCG64(seed))
    model = build()
    draw_weights(model, rng)
    batch = models.draw_batch({"seq": SEQ, "rows": ROWS, "config": SHAPE}, rng)
    weights = {f"weight.{k}": v.detach().clone()
               for k, v in ours(dict(model.named_parameters()), model.config).items()}
    plain = run(model, batch)
    margins = models.Margins(exact(model))
    truth = run(model, batch)
    apart = models.distance(truth, plain)
    print(f"{name}: {len(weights)} parameters, float32 apart {apart:.1e}, experts {margins.least:.1e}")
    assert apart < 5e-6 and margins.least > models.MARGIN
    tensors = {k: v.float().contiguous() for k, v in {**weights, **truth}.items()}
    save_file({**batch, **tensors}, OUT / f"{name}.safetensors", metadata={"format": "pt"})


def main():
    torch.set_num_threads(1)
    OUT.mkdir(exist_ok=True)
    make("next", next_model, 32)
    make("oss", oss_model, 22)


if __name__ == "__main__":
    main()
