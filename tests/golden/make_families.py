#!/usr/bin/env python3
"""Golden vectors of the families: tiny models of transformers, their losses, gradients, training.

    python make_families.py [CASE...]      # writes families/CASE beside this file; without one all
    python make_families.py --class Glm4 DIR [KEY=VALUE...]    # a case that is not listed, in DIR

Cases of families that are plugins, such as seed_oss, are in plugins/CASE.  The second line is for a
family in the making: its class without ForCausalLM, and what its configuration has beside DENSE, in
JSON: head_dim=8 tie_word_embeddings=true.  d9d-map certify --golden DIR compares with it.

Each case is a checkpoint as transformers saves it (weights are bfloat16 numbers), with

    golden.safetensors   input_ids, labels [3, S]; logits [3, S, V], token_losses [3, S];
                         grad.NAME: gradients of the mean loss of all targets, names of the files;
                         float32_apart [1]: how far transformers' own float32 is from them
    train.jsonl          the rows as samples
    train.json           losses and gradient norms of ten AdamW steps over all rows
    logprobs.jsonl       of plugins: the log-probability of each target of the rows
    generate.jsonl       the greedy continuation of the first tokens of each row

All are computed in float64 with transformers' modules, some of which cast to float32 inside.
Transformers in float32 runs beside it and must agree.
"""
import json
import math
import re
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers as T
from transformers.utils import logging
from safetensors.torch import load_file, save_file

HERE = Path(__file__).resolve().parent
IGNORE, STEPS, ROWS, NEW = -100, 10, 3, 6
ADAMW = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
DENSE = dict(vocab_size=53, hidden_size=24, intermediate_size=28, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
             bos_token_id=None, eos_token_id=0, pad_token_id=None)
ODD = dict(DENSE, hidden_size=20, num_attention_heads=5, num_key_value_heads=1, num_hidden_layers=3,
           intermediate_size=18)
CLASSIC = {k: v for k, v in DENSE.items() if k != "num_key_value_heads"}
EXPERTS = dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=10)
GPT2 = dict(vocab_size=53, n_embd=24, n_layer=2, n_head=4, n_positions=64, resid_pdrop=0.0, embd_pdrop=0.0,
            attn_pdrop=0.0, bos_token_id=None, eos_token_id=0, pad_token_id=None)
LLAMA3 = dict(rope_type="llama3", rope_theta=500.0, factor=8.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=8)
DELTA = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
             linear_value_head_dim=6, linear_conv_kernel_dim=3)
FACTORS = dict(embedding_multiplier=3.0, attention_multiplier=0.2, residual_multiplier=0.6,
               logits_scaling=1.5)
MROPE = dict(rope_type="default", rope_theta=1e6, partial_rotary_factor=0.5, mrope_interleaved=True,
             mrope_section=[1, 1, 0])
TEMPERATURE = dict(rope_type="yarn", rope_theta=1e4, factor=4.0, beta_fast=32.0, beta_slow=1.0,
                   original_max_position_embeddings=4, max_position_embeddings=64, mscale=1.0,
                   mscale_all_dim=1.0, llama_4_scaling_beta=0.1)
LONGROPE = dict(rope_type="longrope", rope_theta=1e4)
SOFTCAPS = dict(attn_logit_softcapping=1.5, final_logit_softcapping=3.0)
NO_DROPOUT = dict(attention_dropout=0.0, residual_dropout=0.0)
GPT_OSS_YARN = dict(rope_type="yarn", rope_theta=1e4, factor=4.0, beta_fast=32.0, beta_slow=1.0,
                    truncate=False, original_max_position_embeddings=16)
MLA = dict(q_lora_rank=8, kv_lora_rank=6, qk_nope_head_dim=4, qk_rope_head_dim=4, v_head_dim=6,
           n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=3, moe_intermediate_size=8,
           n_group=4, topk_group=2, first_k_dense_replace=1)
LITE = {**MLA, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.8}
del LITE["first_k_dense_replace"]
GRANITE4 = dict(num_local_experts=0, num_experts_per_tok=0, shared_intermediate_size=14,
                layer_types=["attention"] * 2, mamba_n_heads=4, mamba_d_head="auto")


def row(kind, base, **more):
    return kind, {**base, **more}


CASES = {
    "llama": row("Llama", DENSE, num_key_value_heads=4, tie_word_embeddings=False),
    "llama3": row("Llama", DENSE, rope_parameters=LLAMA3, tie_word_embeddings=False, rms_norm_eps=1e-5),
    "llama_odd": row("Llama", ODD, head_dim=6, tie_word_embeddings=True),
    "mistral": row("Mistral", DENSE, sliding_window=5),
    "mistral_odd": row("Mistral", ODD, head_dim=10, sliding_window=None, tie_word_embeddings=True),
    "mistral_one": row("Mistral", DENSE, num_key_value_heads=1, sliding_window=1),
    "mixtral": row("Mixtral", DENSE, num_local_experts=6, num_experts_per_tok=2),
    "mixtral_one": row("Mixtral", ODD, num_local_experts=5, num_experts_per_tok=1, head_dim=4),
    "mixtral_window": row("Mixtral", DENSE, num_local_experts=3, num_experts_per_tok=3,
                          sliding_window=4, tie_word_embeddings=True),
    "smollm3": row("SmolLM3", DENSE, num_hidden_layers=4),
    "smollm3_list": row("SmolLM3", ODD, no_rope_layers=[0, 1, 0], head_dim=4),
    "smollm3_untied": row("SmolLM3", DENSE, no_rope_layer_interval=2, tie_word_embeddings=False),
    "qwen2": row("Qwen2", DENSE, tie_word_embeddings=False),
    "qwen2_odd": row("Qwen2", ODD, tie_word_embeddings=True),
    "qwen2_window": row("Qwen2", DENSE, num_hidden_layers=3, use_sliding_window=True,
                        sliding_window=4, max_window_layers=1),
    "qwen2_moe": row("Qwen2Moe", DENSE, **EXPERTS, shared_expert_intermediate_size=14),
    "qwen2_moe_mixed": row("Qwen2Moe", ODD, **EXPERTS, shared_expert_intermediate_size=12,
                           decoder_sparse_step=2, norm_topk_prob=True, tie_word_embeddings=True),
    "qwen2_moe_one": row("Qwen2Moe", DENSE, num_experts=4, num_experts_per_tok=1,
                         moe_intermediate_size=12, shared_expert_intermediate_size=6,
                         mlp_only_layers=[0], qkv_bias=False),
    "qwen3": row("Qwen3", DENSE, head_dim=8),
    "qwen3_moe": row("Qwen3Moe", DENSE, **EXPERTS, head_dim=8, norm_topk_prob=True),
    "phi3": row("Phi3", DENSE),
    "phi3_partial": row("Phi3", DENSE, hidden_size=32, partial_rotary_factor=0.75, sliding_window=6,
                        rope_parameters=dict(rope_type="default", rope_theta=1e4,
                                             partial_rotary_factor=0.75)),
    "phi3_odd": row("Phi3", ODD, tie_word_embeddings=True),
    "glm4_moe": row("Glm4Moe", DENSE, head_dim=8, n_routed_experts=8, n_shared_experts=1,
                    num_experts_per_tok=2, moe_intermediate_size=10, n_group=1, topk_group=1,
                    first_k_dense_replace=1, attention_bias=True, use_qk_norm=True,
                    partial_rotary_factor=0.5),
    "glm4_moe_groups": row("Glm4Moe", ODD, head_dim=8, n_routed_experts=6, n_shared_experts=2,
                           num_experts_per_tok=3, moe_intermediate_size=6, n_group=3, topk_group=2,
                           first_k_dense_replace=0, routed_scaling_factor=1.7,
                           partial_rotary_factor=0.5),
    "glm4_moe_one": row("Glm4Moe", DENSE, head_dim=12, n_routed_experts=5, n_shared_experts=1,
                        num_experts_per_tok=1, moe_intermediate_size=8, n_group=1, topk_group=1,
                        first_k_dense_replace=1, norm_topk_prob=False, partial_rotary_factor=0.5),
    "qwen3_next": row("Qwen3Next", DENSE, **EXPERTS, head_dim=8, **DELTA,
                      full_attention_interval=2, shared_expert_intermediate_size=12),
    "qwen3_next_types": row("Qwen3Next", ODD, **EXPERTS, head_dim=16, **{**DELTA,
                            "num_hidden_layers": 2, "linear_num_key_heads": 1, "linear_num_value_heads": 3},
                            shared_expert_intermediate_size=6, tie_word_embeddings=True,
                            layer_types=["full_attention", "linear_attention"]),
    "qwen3_next_mixed": row("Qwen3Next", DENSE, num_experts=5,
                            num_experts_per_tok=1, moe_intermediate_size=8, head_dim=8, **DELTA,
                            shared_expert_intermediate_size=8, mlp_only_layers=[1],
                            norm_topk_prob=False, full_attention_interval=2),
    "deepseek_v3": row("DeepseekV3", DENSE, num_key_value_heads=4, **MLA),
    "deepseek_v3_yarn": row("DeepseekV3", DENSE, num_key_value_heads=4, **{**MLA, "q_lora_rank": None},
                            num_hidden_layers=3, rope_parameters=dict(
                                rope_type="yarn", rope_theta=1e4, factor=4.0, beta_fast=32.0,
                                beta_slow=1.0, mscale=1.0, mscale_all_dim=0.8,
                                original_max_position_embeddings=16)),
    "deepseek_v3_odd": row("DeepseekV3", dict(ODD, num_key_value_heads=5),
                           **{**MLA, "v_head_dim": 3, "n_group": 2, "topk_group": 1,
                              "n_shared_experts": 2, "num_experts_per_tok": 1}),
    "seed_oss": row("SeedOss", DENSE, **NO_DROPOUT, head_dim=8),
    "seed_oss_odd": row("SeedOss", ODD, **NO_DROPOUT, head_dim=6, attention_bias=False,
                        attention_out_bias=True),
    "seed_oss_tied": row("SeedOss", DENSE, **NO_DROPOUT, head_dim=6, attention_out_bias=True,
                         tie_word_embeddings=True),
    "gpt_oss": row("GptOss", DENSE, head_dim=8, num_local_experts=6, num_experts_per_tok=2,
                   sliding_window=5, swiglu_limit=1.0, rope_parameters=GPT_OSS_YARN),
    "gpt_oss_odd": row("GptOss", ODD, head_dim=6, num_local_experts=5, num_experts_per_tok=3,
                       sliding_window=3, swiglu_limit=0.75, tie_word_embeddings=True,
                       layer_types=["full_attention", "sliding_attention", "sliding_attention"],
                       rope_parameters=dict(rope_type="default", rope_theta=1e4)),
    "gpt_oss_one": row("GptOss", DENSE, head_dim=6, num_local_experts=4, num_experts_per_tok=1,
                       sliding_window=4, attention_bias=False, rope_parameters=GPT_OSS_YARN),
    "llama_gelu": row("Llama", DENSE, hidden_act="gelu_pytorch_tanh", mlp_bias=True,
                      attention_bias=True),
    "olmo": row("Olmo", DENSE),
    "olmo_odd": row("Olmo", ODD, num_key_value_heads=5, tie_word_embeddings=True),
    "olmo_bias": row("Olmo", DENSE, num_key_value_heads=1, attention_bias=True),
    "olmo2": row("Olmo2", DENSE),
    "olmo2_odd": row("Olmo2", ODD, head_dim=6, tie_word_embeddings=True),
    "olmo2_bias": row("Olmo2", DENSE, num_key_value_heads=1, attention_bias=True,
                      rope_parameters=LLAMA3, rms_norm_eps=1e-3),
    "olmo3": row("Olmo3", DENSE, num_hidden_layers=4, sliding_window=5),
    "olmo3_types": row("Olmo3", ODD, head_dim=6, sliding_window=1, tie_word_embeddings=True,
                       layer_types=["full_attention", "sliding_attention", "full_attention"]),
    "olmo3_yarn": row("Olmo3", DENSE, sliding_window=4, attention_bias=True,
                      layer_types=["sliding_attention", "full_attention"], rope_parameters=dict(
                          full_attention=dict(rope_type="yarn", rope_theta=1e4, factor=4.0,
                                              beta_fast=32.0, beta_slow=1.0, attention_factor=1.2,
                                              original_max_position_embeddings=16),
                          sliding_attention=dict(rope_type="default", rope_theta=300.0))),
    "olmoe": row("Olmoe", DENSE, num_experts=6, num_experts_per_tok=2),
    "olmoe_renorm": row("Olmoe", ODD, num_experts=5, num_experts_per_tok=3, norm_topk_prob=True,
                        attention_bias=True, tie_word_embeddings=True),
    "olmoe_one": row("Olmoe", DENSE, num_key_value_heads=1, num_experts=4, num_experts_per_tok=1),
    "minimax_m2": row("MiniMaxM2", DENSE, head_dim=8, num_local_experts=6, num_experts_per_tok=2,
                      rope_parameters=dict(rope_type="default", rope_theta=5e6,
                                           partial_rotary_factor=0.5)),
    "minimax_m2_odd": row("MiniMaxM2", ODD, head_dim=6, num_local_experts=5, num_experts_per_tok=3,
                          tie_word_embeddings=True),
    "minimax_m2_one": row("MiniMaxM2", DENSE, head_dim=12, num_key_value_heads=1,
                          num_local_experts=4, num_experts_per_tok=1,
                          rope_parameters=dict(rope_type="default", rope_theta=1e4,
                                               partial_rotary_factor=0.5)),
    "granite": row("Granite", DENSE, **FACTORS),
    "granite_odd": row("Granite", ODD, **{**FACTORS, "logits_scaling": 0.5,
                       "attention_multiplier": 0.3}, attention_bias=True, mlp_bias=True,
                       tie_word_embeddings=True),
    "granite_plain": row("Granite", DENSE, num_key_value_heads=4, rope_parameters=LLAMA3,
                         attention_multiplier=0.4, mlp_bias=True),
    "granitemoe": row("GraniteMoe", DENSE, **FACTORS, num_local_experts=6, num_experts_per_tok=2),
    "granitemoe_odd": row("GraniteMoe", ODD, **FACTORS, num_local_experts=5, num_experts_per_tok=3,
                          attention_bias=True, tie_word_embeddings=True),
    "granitemoe_one": row("GraniteMoe", DENSE, **{**FACTORS, "residual_multiplier": 1.5},
                          num_local_experts=4, num_experts_per_tok=1),
    "qwen3_5": row("Qwen3_5", DENSE, head_dim=8, **DELTA, rope_parameters=MROPE,
                   layer_types=["linear_attention", "full_attention"]),
    "qwen3_5_odd": row("Qwen3_5", ODD, head_dim=16, **{**DELTA, "linear_num_key_heads": 1,
                       "linear_num_value_heads": 3}, tie_word_embeddings=True, rope_parameters=dict(
                           MROPE, rope_theta=1e4, partial_rotary_factor=0.25), layer_types=[
                               "full_attention", "linear_attention", "linear_attention"]),
    "qwen3_5_linear": row("Qwen3_5", DENSE, head_dim=8, **DELTA, num_hidden_layers=1,
                          rope_parameters=MROPE, layer_types=["linear_attention"]),
    "qwen3_5_moe": row("Qwen3_5Moe", DENSE, **EXPERTS, head_dim=8, **DELTA, rope_parameters=MROPE,
                       layer_types=["linear_attention", "full_attention"],
                       shared_expert_intermediate_size=12),
    "qwen3_5_moe_odd": row("Qwen3_5Moe", ODD, **EXPERTS, head_dim=16, **{**DELTA,
                           "num_hidden_layers": 2, "linear_num_key_heads": 1,
                           "linear_num_value_heads": 3}, rope_parameters=dict(
                               MROPE, partial_rotary_factor=0.25), tie_word_embeddings=True,
                           layer_types=["full_attention", "linear_attention"],
                           shared_expert_intermediate_size=6),
    "qwen3_5_moe_one": row("Qwen3_5Moe", DENSE, num_experts=5, num_experts_per_tok=1,
                           moe_intermediate_size=8, head_dim=8, **DELTA, rope_parameters=MROPE,
                           layer_types=["full_attention", "linear_attention"],
                           shared_expert_intermediate_size=8),
    "deepseek_v2": row("DeepseekV2", DENSE, num_key_value_heads=4, **{
        **MLA, "n_group": None, "topk_group": None}, topk_method="greedy"),
    "deepseek_v2_groups": row("DeepseekV2", DENSE, num_key_value_heads=4, **{
        **MLA, "q_lora_rank": None}, num_hidden_layers=3, topk_method="group_limited_greedy",
        routed_scaling_factor=3.0, rope_parameters=dict(
            rope_type="yarn", rope_theta=1e4, factor=4.0, beta_fast=32.0, beta_slow=1.0,
            mscale=0.707, mscale_all_dim=0.707, original_max_position_embeddings=16)),
    "deepseek_v2_odd": row("DeepseekV2", dict(ODD, num_key_value_heads=5), **{
        **MLA, "v_head_dim": 3, "n_group": 2, "topk_group": 1, "n_shared_experts": 2,
        "num_experts_per_tok": 1, "first_k_dense_replace": 0}, topk_method="group_limited_greedy"),
    "ministral": row("Ministral", DENSE, head_dim=8, num_hidden_layers=3, sliding_window=4, layer_types=[
        "full_attention", "sliding_attention", "sliding_attention"]),
    "ministral_all": row("Ministral", DENSE, head_dim=6, sliding_window=3),
    "ministral_odd": row("Ministral", ODD, head_dim=6, sliding_window=1, tie_word_embeddings=True, layer_types=[
        "sliding_attention", "full_attention", "sliding_attention"]),
    "ministral3": row("Ministral3", DENSE, head_dim=8, rope_parameters=TEMPERATURE),
    "ministral3_odd": row("Ministral3", ODD, head_dim=6, tie_word_embeddings=True, rope_parameters=dict(
        TEMPERATURE, llama_4_scaling_beta=0.5, original_max_position_embeddings=3, mscale=0.9)),
    "ministral3_window": row("Ministral3", DENSE, num_key_value_heads=1, head_dim=6, sliding_window=5,
                             rope_parameters=dict(TEMPERATURE, original_max_position_embeddings=8)),
    "phi3_long": row("Phi3", DENSE, original_max_position_embeddings=3, rope_parameters=dict(
        LONGROPE, short_factor=[1.0, 1.1, 1.3], long_factor=[1.2, 2.5, 7.0])),
    "phi3_short": row("Phi3", DENSE, original_max_position_embeddings=64, rope_parameters=dict(
        LONGROPE, short_factor=[1.0, 1.1, 1.3], long_factor=[1.2, 2.5, 7.0], attention_factor=1.3)),
    "phi3_long_odd": row("Phi3", DENSE, hidden_size=32, num_key_value_heads=1, sliding_window=6,
                         original_max_position_embeddings=2, partial_rotary_factor=0.75,
                         rope_parameters=dict(LONGROPE, factor=9.0, partial_rotary_factor=0.75,
                                              short_factor=[1.0, 1.0, 1.0], long_factor=[1.0, 3.5, 6.0])),
    "llama_dynamic": row("Llama", DENSE, rope_parameters=dict(
        rope_type="dynamic", rope_theta=1e4, factor=4.0)),
    "gemma": row("Gemma", DENSE, head_dim=8),
    "gemma_odd": row("Gemma", ODD, head_dim=6, tie_word_embeddings=False),
    "gemma_bias": row("Gemma", DENSE, head_dim=6, num_key_value_heads=1, attention_bias=True,
                      rope_parameters=LLAMA3, rms_norm_eps=1e-3),
    "gemma2": row("Gemma2", DENSE, **SOFTCAPS, head_dim=8, sliding_window=5, query_pre_attn_scalar=6),
    "gemma2_odd": row("Gemma2", ODD, head_dim=6, sliding_window=3, query_pre_attn_scalar=9,
                      attn_logit_softcapping=None, final_logit_softcapping=4.0,
                      tie_word_embeddings=False,
                      layer_types=["full_attention", "full_attention", "sliding_attention"]),
    "gemma2_bias": row("Gemma2", DENSE, **{**SOFTCAPS, "final_logit_softcapping": None}, head_dim=6,
                       num_key_value_heads=1, num_hidden_layers=3, sliding_window=1,
                       query_pre_attn_scalar=4, attention_bias=True),
    "gemma3": row("Gemma3", DENSE, head_dim=8, sliding_window=5, num_hidden_layers=3,
                  query_pre_attn_scalar=6, sliding_window_pattern=2, rope_parameters=dict(
                      full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1e6),
                      sliding_attention=dict(rope_type="default", rope_theta=300.0))),
    "gemma3_odd": row("Gemma3", ODD, head_dim=6, sliding_window=3, query_pre_attn_scalar=9,
                      tie_word_embeddings=False, final_logit_softcapping=3.0,
                      layer_types=["full_attention", "sliding_attention", "full_attention"]),
    "gemma3_bias": row("Gemma3", DENSE, head_dim=12, num_key_value_heads=1, sliding_window=4,
                       query_pre_attn_scalar=4, attention_bias=True),
    "gpt_neox": row("GPTNeoX", CLASSIC, hidden_size=32, rotary_pct=0.25),
    "gpt_neox_odd": row("GPTNeoX", CLASSIC, hidden_size=30, num_attention_heads=5, intermediate_size=18,
                        num_hidden_layers=3, use_parallel_residual=False, tie_word_embeddings=True,
                        attention_bias=False, hidden_act="gelu_fast", rope_parameters=dict(
                            rope_type="default", rope_theta=500.0, partial_rotary_factor=1.0)),
    "gpt_neox_one": row("GPTNeoX", CLASSIC, num_attention_heads=1, rotary_pct=0.5, layer_norm_eps=1e-3,
                        rope_parameters=dict(LLAMA3, partial_rotary_factor=0.5)),
    "gpt2": row("GPT2", GPT2, n_inner=28),
    "gpt2_odd": row("GPT2", GPT2, n_embd=20, n_head=5, n_layer=3, n_positions=24, tie_word_embeddings=False,
                    activation_function="gelu", scale_attn_by_inverse_layer_idx=True,
                    reorder_and_upcast_attn=True, layer_norm_epsilon=1e-3),
    "gpt2_one": row("GPT2", GPT2, n_head=1, n_positions=19, scale_attn_weights=False, n_inner=18),
    "olmo_clip": row("Olmo", DENSE, clip_qkv=0.5, attention_bias=True),
    "olmoe_clip": row("Olmoe", DENSE, num_experts=4, num_experts_per_tok=2, clip_qkv=0.75),
    "smollm3_window": row("SmolLM3", DENSE, num_hidden_layers=3, no_rope_layer_interval=2, attention_bias=True,
                          mlp_bias=True, use_sliding_window=True, sliding_window=4),
    "qwen3_bias": row("Qwen3", DENSE, head_dim=8, attention_bias=True),
    "qwen3_next_bias": row("Qwen3Next", DENSE, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8,
                           head_dim=8, **DELTA, shared_expert_intermediate_size=6, attention_bias=True,
                           layer_types=["full_attention", "linear_attention"]),
    "deepseek_v3_bias": row("DeepseekV3", DENSE, num_key_value_heads=4, **{**MLA, "v_head_dim": 10},
                            attention_bias=True),  # values wider than keys
    "glm4": row("Glm4", DENSE, head_dim=8),
    "glm4_odd": row("Glm4", ODD, head_dim=10, partial_rotary_factor=0.6, attention_bias=False,
                    tie_word_embeddings=True),
    "glm4_one": row("Glm4", DENSE, head_dim=6, num_key_value_heads=1, rms_norm_eps=1e-3,
                    rope_parameters=dict(LLAMA3, partial_rotary_factor=1.0)),
    "llama_prefix": row("Llama", DENSE, attention_mask="prefix"),
    "gemma2_prefix": row("Gemma2", DENSE, **SOFTCAPS, head_dim=8, sliding_window=4,
                         query_pre_attn_scalar=6, attention_mask="prefix"),
    "gpt_oss_prefix": row("GptOss", DENSE, head_dim=8, num_local_experts=4, num_experts_per_tok=2,
                          sliding_window=3, swiglu_limit=1.0, rope_parameters=GPT_OSS_YARN,
                          attention_mask="prefix"),
    "deepseek_v3_prefix": row("DeepseekV3", DENSE, num_key_value_heads=4, **MLA, attention_mask="prefix"),
    "ministral3_default": row("Ministral3", DENSE, head_dim=8),
    "glm4_moe_lite": row("Glm4MoeLite", DENSE, num_key_value_heads=4, **LITE, rope_parameters=dict(
        rope_type="default", rope_theta=1e6)),
    "glm4_moe_lite_types": row("Glm4MoeLite", dict(ODD, num_key_value_heads=5), **{
        **LITE, "q_lora_rank": None, "n_shared_experts": 2, "num_experts_per_tok": 1},
        mlp_layer_types=["sparse", "dense", "sparse"], tie_word_embeddings=True),
    "glm4_moe_lite_heads": row("Glm4MoeLite", DENSE, hidden_size=26, num_key_value_heads=4, **{
        **LITE, "n_group": 4, "topk_group": 2, "norm_topk_prob": False}, num_hidden_layers=3,
        attention_bias=True),
    "granitemoehybrid": row("GraniteMoeHybrid", DENSE, **FACTORS, **GRANITE4, position_embedding_type="rope"),
    "granitemoehybrid_nope": row("GraniteMoeHybrid", ODD, **FACTORS, **{**GRANITE4, "num_hidden_layers": 3,
                                 "layer_types": ["attention"] * 3}, attention_bias=True,
                                 position_embedding_type="nope", tie_word_embeddings=True),
    "granitemoehybrid_plain": row("GraniteMoeHybrid", DENSE, num_key_value_heads=4, **GRANITE4,
                                  position_embedding_type="rope", rope_parameters=LLAMA3,
                                  attention_multiplier=0.4),
}
LEFT_OUT = {"ministral3_default": "rope_parameters"}  # of config.json: transformers' default counts
PLUGINS = ("SeedOss", "Glm4")
# A case's number seeds it.  Numbers go on from the case before, but for these, which keep theirs
# wherever they stand.
NUMBERS = {"gpt_oss": 35, "olmo": 35, "qwen3_5": 35, "gemma": 35, "gpt_neox": 79,
           "olmo_clip": 100}
CONFIGS = {"Gemma3": "Gemma3Text", "Qwen3_5": "Qwen3_5Text", "Qwen3_5Moe": "Qwen3_5MoeText"}  # of text alone


def dump(path, value):
    path.write_text(json.dumps(value, indent=1) + "\n")


def digits(x):
    return float(f"{x:.10g}")


def class_name(kind):
    return kind + ("LMHeadModel" if kind == "GPT2" else "ForCausalLM")


def build(kind, config, exact=False, name=None):
    """transformers' model; exact: with its casts to float32 made casts to float64."""
    name = name or class_name(kind)
    module = sys.modules[getattr(T, name).__module__]
    names = dict(vars(module))
    if exact:
        source = Path(module.__file__).read_text()
        source = re.sub(r"torch\.float(32)?\b", "torch.float64", source).replace(".float()", ".double()")
        exec(compile(source, module.__file__, "exec"), names)
    model = names[name](config)
    if hasattr(config, "swiglu_limit"):  # transformers' experts have gpt-oss's own limit
        for m in model.modules():
            if hasattr(m, "limit"):
                m.limit = config.swiglu_limit
    return (model.double() if exact else model).eval()


def draw_weights(model, seed):
    """bfloat16 numbers, of a size that gives sharp logits and well separated experts."""
    g = torch.Generator().manual_seed(seed)
    out = {}
    for name, p in list(model.named_parameters()) + list(model.named_buffers()):
        if name.endswith(("inv_freq", "embed_scale")) or name in out:
            continue
        z = torch.randn(p.shape, generator=g, dtype=torch.float64)
        if name.endswith("e_score_correction_bias"):
            w = 0.1 * z
        elif p.ndim == 1:
            ones = bool((p == 1).all())
            w = (1 if ones else 0) + 0.25 * z
        elif name.endswith(("gate.weight", "router.weight")):
            w = 2.0 / math.sqrt(p.shape[-1]) * z
        elif "embed" in name or "wte" in name:
            w = 0.7 * z
        else:
            w = 1.2 / math.sqrt(p.shape[-1]) * z
        out[name] = w.to(torch.bfloat16).to(torch.float64)
    return out


def fill(model, weights):
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    with torch.no_grad():
        for k, v in weights.items():
            state[k].copy_(v)
    return model


def has_prefix(config):
    return getattr(config, "attention_mask", None) == "prefix"


def rows(config, length, seed):
    g = torch.Generator().manual_seed(1000 + seed)
    t = torch.randint(1, config.vocab_size, (ROWS, length + 1), generator=g)
    labels = t[:, 1:].clone()
    if has_prefix(config):  # prompts of 7, 1 and 11 tokens
        labels[0, :6] = labels[2, :10] = labels[1, 5] = IGNORE
    else:
        labels[0, 3] = labels[1, :2] = IGNORE
    return t[:, :-1].clone(), labels


def prompts(labels):
    """Tokens before the first target, whose position is the last of them."""
    return (labels != IGNORE).int().argmax(-1) + 1


def prefix_masks(model, prefix, length):
    """A mask [B, 1, S, S] to be added to scores, for each type of layers: the tokens of a prefix see
    each other, in sliding layers those less than a window apart."""
    i, j = torch.arange(length)[:, None], torch.arange(length)[None, :]
    seen = (j <= i) | (j < prefix[:, None, None])
    near = (i - j).abs() < (getattr(model.config, "sliding_window", None) or length)
    out = {}
    for layers, s in ("full_attention", seen), ("sliding_attention", seen & near):
        out[layers] = torch.zeros(s.shape, dtype=model.dtype).masked_fill(
            ~s, torch.finfo(model.dtype).min)[:, None]
    return out if getattr(model.config, "layer_types", None) else out["full_attention"]


def logits_of(model, ids, prefix):
    masks = {"attention_mask": prefix_masks(model, prefix, ids.shape[1])} if has_prefix(model.config) else {}
    return model(input_ids=ids, use_cache=False, **masks).logits


def continue_greedily(model, ids, new):
    prefix = torch.full((len(ids),), ids.shape[1])
    for _ in range(new):
        ids = torch.cat([ids, logits_of(model, ids, prefix)[:, -1].argmax(-1, keepdim=True)], 1)
    return ids


def losses(model, ids, labels):
    logits = logits_of(model, ids, prompts(labels))
    token = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE,
                            reduction="none").view(labels.shape)
    return logits, token, token.sum() / (labels != IGNORE).sum()


def to_files(model, tensors, folder):
    """The tensors under the names and in the forms of the files: saved as the model's weights."""
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    keep = {k: v.detach().clone() for k, v in state.items()}
    with torch.no_grad():
        for k in state:
            if k in tensors:
                state[k].copy_(tensors[k])
    model.save_pretrained(folder)
    out = {}
    for f in sorted(folder.glob("*.safetensors")):
        out.update(load_file(f))
        f.unlink()
    for f in folder.iterdir():
        f.unlink()
    folder.rmdir()
    with torch.no_grad():
        for k in state:
            state[k].copy_(keep[k])
    return out


def train(model, ids, labels, losses=losses):
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], foreach=False, **ADAMW)
    log = []
    for step in range(1, STEPS + 1):
        opt.zero_grad(set_to_none=False)
        _, _, loss = losses(model, ids, labels)
        loss.backward()
        for p in model.parameters():
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        log.append({"step": step, "loss": digits(loss.item()), "grad_norm": digits(norm.item())})
    return log


def dump_case(folder, kind, config, seed, length, prompt, new, change=lambda weights: None):
    """The checkpoint, golden.safetensors, generate.jsonl and train.jsonl, and what made them: rows,
    labels, losses of the targets, the model in float64, and how far float32 is from it."""
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    config.architectures = [class_name(kind)]
    folder.mkdir(parents=True, exist_ok=True)
    ids, labels = rows(config, length, seed)
    model = build(kind, config)
    weights = draw_weights(model, seed)
    change(weights)
    fill(model, weights)
    model.tie_weights()
    plain_logits, _, plain = losses(model, ids, labels)
    plain.backward()
    plain_grads = {k: p.grad.double() for k, p in model.named_parameters() if p.grad is not None}
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    exact = fill(build(kind, config, True), weights)
    exact.tie_weights()
    logits, token, loss = losses(exact, ids, labels)
    apart = ((plain_logits - logits).norm() / logits.norm()).item()
    loss.backward()
    grads = {k: torch.zeros_like(p) if p.grad is None else p.grad for k, p in exact.named_parameters()}
    # What is zero by mathematics, such as the router's part in the weight of a single expert.
    total = math.sqrt(sum(g.norm().item() ** 2 for g in grads.values()))
    for g in grads.values():
        if g.norm().item() < 1e-7 * total:
            g.zero_()
    grads.update({k: torch.zeros_like(b) for k, b in exact.named_buffers()})
    apart = max([apart] + [((plain_grads[k] - g).norm() / g.norm()).item()
                           for k, g in grads.items() if k in plain_grads and g.norm() > 0])
    files = to_files(exact, grads, folder / "tmp")
    names = load_file(folder / "model.safetensors").keys()
    out = {"grad." + k: files[k].float().contiguous() for k in files if k in names}
    out.update(input_ids=ids.int(), labels=labels.int(), logits=logits.detach().float(),
               token_losses=token.detach().float(), float32_apart=torch.tensor([apart]))
    save_file(out, folder / "golden.safetensors", metadata={"format": "pt"})
    with torch.no_grad():
        text = continue_greedily(exact, ids[:, :prompt], new) if has_prefix(config) else exact.generate(
            ids[:, :prompt], max_new_tokens=new, do_sample=False, use_cache=False,
            eos_token_id=None, pad_token_id=0)
    (folder / "generate.jsonl").write_text("".join(json.dumps(
        {"input_ids": t[:prompt], "tokens": t[prompt:]}) + "\n" for t in text.tolist()))
    (folder / "train.jsonl").write_text("".join(json.dumps(
        {"input_ids": i, "labels": l}) + "\n" for i, l in zip(ids.tolist(), labels.tolist())))
    return ids, labels, token.detach(), exact, apart


def make(folder, kind, cfg, seed, plugin):
    config = getattr(T, CONFIGS.get(kind, kind) + "Config")(**cfg)
    ids, labels, token, exact, apart = dump_case(folder, kind, config, seed, 13, 4, NEW)
    if folder.name in LEFT_OUT:
        doc = json.loads((folder / "config.json").read_text())
        del doc[LEFT_OUT[folder.name]]
        (folder / "config.json").write_text(json.dumps(doc, indent=2, sort_keys=True) + "\n")
    if plugin:
        (folder / "logprobs.jsonl").write_text("".join(json.dumps(
            {"logprobs": [-digits(x) for x, y in zip(t, l) if y != IGNORE]}) + "\n"
            for t, l in zip(token.tolist(), labels.tolist())))
    dump(folder / "train.json", train(exact, ids, labels))
    loss = token.sum().item() / (labels != IGNORE).sum().item()
    print(f"{folder.name:18} loss {loss:.4f}  float32 apart {apart:.1e}", flush=True)
    return apart < 2e-5


def make_until_sharp(folder, kind, cfg, seed, plugin):
    while not make(folder, kind, cfg, seed, plugin):  # it amplifies rounding, and so tells little
        seed += 100


def make_unlisted(kind, folder, *more):
    cfg = {**DENSE, **{k: json.loads(v) for k, v in (m.split("=", 1) for m in more)}}
    make_until_sharp(Path(folder), kind, cfg, 0, True)


def make_listed(names):
    number = -1
    for name, (kind, cfg) in CASES.items():
        number = NUMBERS.get(name, number + 1)
        if not names or name in names:
            plugin = kind in PLUGINS
            make_until_sharp(HERE / ("plugins" if plugin else "families") / name, kind, cfg, number, plugin)


def main():
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    args = sys.argv[1:]
    if args[:1] == ["--class"]:
        make_unlisted(*args[1:])
    else:
        make_listed(args)


if __name__ == "__main__":
    main()
