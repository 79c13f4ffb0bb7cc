/* test_published_configs.c - the fields that config.json of published models have are read. */
#include "d9d/models/models.h"
#include "support/family.h"
#include "support/unit.h"

#define DEEPSEEK                                                                                   \
    "\"attention_bias\": false, \"attention_dropout\": 0.0, \"aux_loss_alpha\": 0.001, "           \
    "\"hidden_act\": \"silu\", \"initializer_range\": 0.02, \"moe_layer_freq\": 1, "               \
    "\"pretraining_tp\": 1, \"seq_aux\": true, \"tie_word_embeddings\": false, "                   \
    "\"torch_dtype\": \"bfloat16\", \"use_cache\": true, \"auto_map\": {\"AutoConfig\": \"x\"}, "  \
    "\"bos_token_id\": 0, \"eos_token_id\": 1, \"kv_lora_rank\": 512, \"qk_nope_head_dim\": 128, " \
    "\"qk_rope_head_dim\": 64, \"v_head_dim\": 128, \"rms_norm_eps\": 1e-6, "

static const char *const published[] = {
    /* Kimi K2: bounds of YaRN that are equal */
    "{\"model_type\": \"kimi_k2\", \"architectures\": [\"DeepseekV3ForCausalLM\"], " DEEPSEEK
    "\"ep_size\": 1, \"first_k_dense_replace\": 1, \"hidden_size\": 7168, "
    "\"intermediate_size\": 18432, \"max_position_embeddings\": 131072, "
    "\"moe_intermediate_size\": 2048, \"n_group\": 1, \"n_routed_experts\": 384, "
    "\"n_shared_experts\": 1, \"norm_topk_prob\": true, \"num_attention_heads\": 64, "
    "\"num_experts_per_tok\": 8, \"num_hidden_layers\": 61, \"num_key_value_heads\": 64, "
    "\"num_nextn_predict_layers\": 0, \"q_lora_rank\": 1536, \"rope_scaling\": {\"beta_fast\": "
    "1.0, "
    "\"beta_slow\": 1.0, \"factor\": 32.0, \"mscale\": 1.0, \"mscale_all_dim\": 1.0, "
    "\"original_max_position_embeddings\": 4096, \"type\": \"yarn\"}, \"rope_theta\": 50000.0, "
    "\"routed_scaling_factor\": 2.827, \"scoring_func\": \"sigmoid\", \"topk_group\": 1, "
    "\"topk_method\": \"noaux_tc\", \"vocab_size\": 163840}",
    /* Moonlight */
    "{\"model_type\": \"deepseek_v3\", \"architectures\": [\"DeepseekV3ForCausalLM\"], " DEEPSEEK
    "\"ep_size\": 1, \"first_k_dense_replace\": 1, \"hidden_size\": 2048, "
    "\"intermediate_size\": 11264, \"max_position_embeddings\": 8192, "
    "\"moe_intermediate_size\": 1408, \"n_group\": 1, \"n_routed_experts\": 64, "
    "\"n_shared_experts\": 2, \"norm_topk_prob\": true, \"num_attention_heads\": 16, "
    "\"num_experts_per_tok\": 6, \"num_hidden_layers\": 27, \"num_key_value_heads\": 16, "
    "\"num_nextn_predict_layers\": 0, \"q_lora_rank\": null, \"rope_scaling\": null, "
    "\"rope_theta\": 50000.0, \"routed_scaling_factor\": 2.446, \"scoring_func\": \"sigmoid\", "
    "\"topk_group\": 1, \"topk_method\": \"noaux_tc\", \"vocab_size\": 163840}",
    /* DeepSeek V2 */
    "{\"model_type\": \"deepseek_v2\", \"architectures\": [\"DeepseekV2ForCausalLM\"], " DEEPSEEK
    "\"ep_size\": 1, \"first_k_dense_replace\": 1, \"hidden_size\": 5120, "
    "\"intermediate_size\": 12288, \"max_position_embeddings\": 163840, "
    "\"moe_intermediate_size\": 1536, \"n_group\": 8, \"n_routed_experts\": 160, "
    "\"n_shared_experts\": 2, \"norm_topk_prob\": false, \"num_attention_heads\": 128, "
    "\"num_experts_per_tok\": 6, \"num_hidden_layers\": 60, \"num_key_value_heads\": 128, "
    "\"q_lora_rank\": 1536, \"rope_scaling\": {\"beta_fast\": 32, \"beta_slow\": 1, \"factor\": "
    "40, "
    "\"mscale\": 0.707, \"mscale_all_dim\": 0.707, \"original_max_position_embeddings\": 4096, "
    "\"type\": \"yarn\"}, \"rope_theta\": 10000, \"routed_scaling_factor\": 16.0, "
    "\"scoring_func\": \"softmax\", \"topk_group\": 3, \"topk_method\": "
    "\"group_limited_greedy\", \"vocab_size\": 102400}",
    /* The text model of Qwen3.5 with experts */
    "{\"model_type\": \"qwen3_5_moe_text\", \"attention_bias\": false, \"attention_dropout\": 0.0, "
    "\"attn_output_gate\": true, \"dtype\": \"bfloat16\", \"eos_token_id\": 248044, "
    "\"full_attention_interval\": 4, \"head_dim\": 256, \"hidden_act\": \"silu\", "
    "\"hidden_size\": 2048, \"initializer_range\": 0.02, \"linear_conv_kernel_dim\": 4, "
    "\"linear_key_head_dim\": 128, \"linear_num_key_heads\": 16, \"linear_num_value_heads\": 32, "
    "\"linear_value_head_dim\": 128, \"max_position_embeddings\": 262144, "
    "\"mlp_only_layers\": [], \"moe_intermediate_size\": 512, \"mtp_num_hidden_layers\": 1, "
    "\"mtp_use_dedicated_embeddings\": false, \"num_attention_heads\": 16, \"num_experts\": 256, "
    "\"num_experts_per_tok\": 8, \"num_hidden_layers\": 40, \"num_key_value_heads\": 2, "
    "\"rms_norm_eps\": 1e-06, \"router_aux_loss_coef\": 0.001, "
    "\"shared_expert_intermediate_size\": 512, \"use_cache\": true, \"vocab_size\": 248320, "
    "\"mamba_ssm_dtype\": \"float32\", \"rope_parameters\": {\"mrope_interleaved\": true, "
    "\"mrope_section\": [11, 11, 10], \"rope_type\": \"default\", \"rope_theta\": 10000000, "
    "\"partial_rotary_factor\": 0.25}}",
    /* GPT-NeoX-20B */
    "{\"model_type\": \"gpt_neox\", \"architectures\": [\"GPTNeoXForCausalLM\"], "
    "\"attention_probs_dropout_prob\": 0, \"bos_token_id\": 0, \"eos_token_id\": 0, "
    "\"hidden_act\": \"gelu_fast\", \"hidden_dropout_prob\": 0, \"hidden_size\": 6144, "
    "\"initializer_range\": 0.02, \"intermediate_size\": 24576, \"layer_norm_eps\": 1e-05, "
    "\"max_position_embeddings\": 2048, \"num_attention_heads\": 64, \"num_hidden_layers\": 44, "
    "\"rotary_emb_base\": 10000, \"rotary_pct\": 0.25, \"tie_word_embeddings\": false, "
    "\"torch_dtype\": \"float16\", \"use_cache\": true, \"vocab_size\": 50432}",
    /* Pythia */
    "{\"model_type\": \"gpt_neox\", \"architectures\": [\"GPTNeoXForCausalLM\"], "
    "\"bos_token_id\": 0, \"eos_token_id\": 0, \"hidden_act\": \"gelu\", \"hidden_size\": 768, "
    "\"initializer_range\": 0.02, \"intermediate_size\": 3072, \"layer_norm_eps\": 1e-05, "
    "\"max_position_embeddings\": 2048, \"num_attention_heads\": 12, \"num_hidden_layers\": 12, "
    "\"rotary_emb_base\": 10000, \"rotary_pct\": 0.25, \"tie_word_embeddings\": false, "
    "\"torch_dtype\": \"float16\", \"use_cache\": true, \"use_parallel_residual\": true, "
    "\"vocab_size\": 50304}",
    /* GPT-2 */
    "{\"model_type\": \"gpt2\", \"architectures\": [\"GPT2LMHeadModel\"], "
    "\"activation_function\": \"gelu_new\", \"attn_pdrop\": 0.1, \"bos_token_id\": 50256, "
    "\"embd_pdrop\": 0.1, \"eos_token_id\": 50256, \"initializer_range\": 0.02, "
    "\"layer_norm_epsilon\": 1e-05, \"n_ctx\": 1024, \"n_embd\": 768, \"n_head\": 12, "
    "\"n_layer\": 12, \"n_positions\": 1024, \"resid_pdrop\": 0.1, \"summary_activation\": null, "
    "\"summary_first_dropout\": 0.1, \"summary_proj_to_labels\": true, "
    "\"summary_type\": \"cls_index\", \"summary_use_proj\": true, \"task_specific_params\": "
    "{\"text-generation\": {\"do_sample\": true, \"max_length\": 50}}, \"vocab_size\": 50257}",
    /* ModernBERT, base */
    "{\"model_type\": \"modernbert\", \"architectures\": [\"ModernBertForMaskedLM\"], "
    "\"attention_bias\": false, \"attention_dropout\": 0.0, \"bos_token_id\": 50281, "
    "\"classifier_activation\": \"gelu\", \"classifier_bias\": false, "
    "\"classifier_dropout\": 0.0, \"classifier_pooling\": \"mean\", \"cls_token_id\": 50281, "
    "\"decoder_bias\": true, \"deterministic_flash_attn\": false, \"embedding_dropout\": 0.0, "
    "\"eos_token_id\": 50282, \"global_attn_every_n_layers\": 3, \"global_rope_theta\": 160000.0, "
    "\"gradient_checkpointing\": false, \"hidden_activation\": \"gelu\", \"hidden_size\": 768, "
    "\"initializer_cutoff_factor\": 2.0, \"initializer_range\": 0.02, "
    "\"intermediate_size\": 1152, \"layer_norm_eps\": 1e-05, \"local_attention\": 128, "
    "\"local_rope_theta\": 10000.0, \"max_position_embeddings\": 8192, \"mlp_bias\": false, "
    "\"mlp_dropout\": 0.0, \"norm_bias\": false, \"norm_eps\": 1e-05, "
    "\"num_attention_heads\": 12, \"num_hidden_layers\": 22, \"pad_token_id\": 50283, "
    "\"position_embedding_type\": \"absolute\", \"reference_compile\": null, "
    "\"repad_logits_with_grad\": false, \"sep_token_id\": 50282, \"sparse_pred_ignore_index\": "
    "-100, \"sparse_prediction\": false, \"tie_word_embeddings\": true, "
    "\"torch_dtype\": \"float32\", \"vocab_size\": 50368}",
};

static void every_document_is_read(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(published) / sizeof(published[0]); i++) {
        json_t *doc = json_loads(published[i], 0, NULL);
        d9d_arena a = {0};
        d9d_family_config c;

        assert_non_null(doc);
        if (family_parse(doc, "c", false, &a, &c) != D9D_OK)
            fail_msg("document %zu: %s", i, d9d_err_message());
        json_decref(doc);
        d9d_arena_release(&a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_document_is_read),
    };

    return cmocka_run_group_tests_name("published configs", tests, NULL, NULL);
}
