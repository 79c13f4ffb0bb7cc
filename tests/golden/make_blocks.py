#!/usr/bin/env python3
"""Golden vectors of blocks that no whole model here is made of: tiny stacks of them in transformers.

    python make_blocks.py      # writes blocks/*.safetensors beside this file

`next` is a Qwen3-Next of full-attention layers alone; `oss` has the attention of gpt-oss in layers
with a dense feed-forward; `latent` is a DeepSeek-V3 with all that its routers have, `latent_wide`
one whose queries are not of low rank and whose values are as wide as keys.  Computed in float64 with
transformers' own modules
(their casts to float32 taken out) and rounded at the end; plain float32 runs beside and must agree.
README.md describes the files.
"""
import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM
from transformers import GptOssConfig, GptOssForCausalLM, Qwen3Config, Qwen3NextConfig
from transformers import Qwen3NextForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP

import make_models as models
from make_ops import best_groups

OUT = Path(__file__).resolve().parent / "blocks"
SHAPE = dict(vocab_size=61, hidden_size=32, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-6, max_position_embeddings=256,
             tie_word_embeddings=False, bos_token_id=None, eos_token_id=0)
ROWS = [(0, 1, [0, 5]), (9, 1, [22]), (0, 2, [])]      # as in make_models.py
SEQ = 24


LATENT = {"q_a_proj": "q_proj.down_proj", "q_a_layernorm": "q_proj.norm",
          "q_b_proj": "q_proj.up_proj", "kv_a_proj_with_mqa": "kv_down_proj",
          "kv_a_layernorm": "kv_down_norm", "kv_b_proj": "kv_up_proj"}


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


def latent_model(dense, **more):
    shape = {k: v for k, v in SHAPE.items() if k not in ("num_key_value_heads", "head_dim")}
    config = DeepseekV3Config(
        **shape, num_key_value_heads=4, intermediate_size=40, moe_intermediate_size=12,
        n_shared_experts=2, n_routed_experts=8, num_experts_per_tok=3, n_group=4, topk_group=2,
        norm_topk_prob=True, routed_scaling_factor=2.5, first_k_dense_replace=3 if dense else 0,
        kv_lora_rank=16, qk_nope_head_dim=10, qk_rope_head_dim=8, rope_interleave=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4}, **more)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    return DeepseekV3ForCausalLM(config)


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
    for name, b in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            b.copy_(torch.from_numpy(0.2 * rng.standard_normal(b.shape)).to(torch.float32))


def exact(model):
    """Without casts to float32."""
    for m in model.double().modules():
        kind = type(m).__name__
        if kind == "Qwen3NextRMSNorm":
            m.forward = lambda x, m=m: m._norm(x) * (1 + m.weight)
        elif kind == "GptOssRMSNorm":
            m.forward = models.Exact.norm(m)
        elif kind == "DeepseekV3RMSNorm":
            m.forward = models.Exact.norm(m)
        elif kind == "DeepseekV3TopkRouter":
            m.forward = deepseek_router(m)
        elif kind.endswith("TopKRouter"):
            m.forward = models.Exact.router(m)
        elif kind.endswith("RotaryEmbedding"):
            m.forward = turn(m)
    return model


def deepseek_router(m):
    """As transformers' own, in float64, after it has agreed on the choice."""
    theirs = m.forward

    def forward(x):
        x = x.reshape(-1, m.hidden_dim)
        logits = x @ m.weight.T
        _, weights, chosen = theirs(x)
        mine = logits.sigmoid().gather(1, chosen)
        mine = m.routed_scaling_factor * mine / (mine.sum(-1, keepdim=True) + 1e-20)
        assert (mine - weights).abs().max() < 1e-5
        key, worth = best_groups(logits.sigmoid() + m.e_score_correction_bias, m.num_group,
                                 m.topk_group)
        for values, k in ((key, m.top_k), (worth, m.topk_group)):
            order = values.sort(-1, descending=True).values
            assert (order[:, k - 1] - order[:, k]).min() > models.MARGIN
        return logits, mine, chosen
    return forward


def turn(m):
    """Angles in float64, of the float32 frequencies that are part of the model."""
    inv, scale = m.inv_freq.float().double(), m.attention_scaling

    def forward(x, position_ids):
        angle = position_ids[..., None].double() * inv
        if not type(m).__name__.startswith("GptOss"):   # which turns halves without repeating
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
        name = name.replace("mlp.gate.e_score_correction_bias", "mlp.router.expert_bias")
        name = name.replace("mlp.gate.", "mlp.router.gate.").replace("shared_experts.",
                                                                     "shared_expert.")
        for theirs, mine in LATENT.items():
            name = name.replace(f"self_attn.{theirs}.", f"self_attn.{mine}.")
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
        elif (config.model_type == "qwen3_next" and name.endswith("q_proj.weight")):
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


def least_sink(tensors):
    """The least gradient of a head's sink beside the layer's greatest.  A rank may hold one head
    alone, and a sum over tokens that cancels has no relative precision to compare."""
    shares = [g.abs().min() / g.abs().max() for k, g in tensors.items()
              if k.startswith("grad.") and k.endswith("sinks")]
    return min(shares, default=1.0)


def make(name, build, seed):
    rng = np.random.Generator(np.random.PCG64(seed))
    model = build()
    draw_weights(model, rng)
    batch = models.draw_batch({"seq": SEQ, "rows": ROWS, "config": SHAPE}, rng)
    weights = {f"weight.{k}": v.detach().clone()
               for k, v in ours(model.state_dict(), model.config).items()}
    plain = run(model, batch)
    margins = models.Margins(exact(model))
    truth = run(model, batch)
    apart = models.distance(truth, plain)
    print(f"{name}: {len(weights)} parameters, float32 apart {apart:.1e}, experts {margins.least:.1e}")
    assert apart < 5e-6 and margins.least > models.MARGIN
    assert least_sink(truth) > 0.05
    tensors = {k: v.float().contiguous() for k, v in {**weights, **truth}.items()}
    save_file({**batch, **tensors}, OUT / f"{name}.safetensors", metadata={"format": "pt"})


def main():
    torch.set_num_threads(1)
    OUT.mkdir(exist_ok=True)
    make("next", next_model, 32)
    make("oss", oss_model, 23)
    make("latent", lambda: latent_model(False, q_lora_rank=20, v_head_dim=8), 11)
    make("latent_wide", lambda: latent_model(True, q_lora_rank=None, v_head_dim=18), 12)


if __name__ == "__main__":
    main()
