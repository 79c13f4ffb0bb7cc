/* test_published_configs.c - the fields that config.json of published models have are read. */
#include "d9d/models/models.h"
#include "model/hf/hf_config_fields.h"
#include "support/family.h"
#include "support/unit.h"

#define DEEPSEEK                                                                                   \
    "\"attention_bias\": false, \"attention_dropout\": 0.0, \"aux_loss_alpha\": 0.001, "           \
    "\"hidden_act\": \"silu\", \"initializer_range\": 0.02, \"moe_layer_freq\": 1, "               \
    "\"pretraining_tp\": 1, \"seq_aux\": true, \"tie_word_embeddings\": false, "                   \
    "\"torch_dtype\": \"bfloat16\", \"use_cache\": true, \"auto_map\": {\"AutoConfig\": \"x\"}, "  \
    "\"bos_token_id\": 0, \"eos_token_id\": 1, \"kv_lora_rank\": 512, \"qk_nope_head_dim\": 128, " \
    "\"qk_rope_head_dim\": 64, \"v_head_dim\": 128, "

#define THREE(list) list ", " list ", " list

/* What it reads as: 0 heads, not asked. */
static const struct {
    const char *text;
    int64_t heads, kv_heads, vocab;
} published[] = {
    /* Kimi K2: bounds of YaRN that are equal */
    {"{\"model_type\": \"kimi_k2\", \"architectures\": [\"DeepseekV3ForCausalLM\"], " DEEPSEEK
     "\"rms_norm_eps\": 1e-6, "
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
     0, 0, 0},
    /* Moonlight */
    {"{\"model_type\": \"deepseek_v3\", \"architectures\": [\"DeepseekV3ForCausalLM\"], " DEEPSEEK
     "\"rms_norm_eps\": 1e-5, "
     "\"ep_size\": 1, \"first_k_dense_replace\": 1, \"hidden_size\": 2048, "
     "\"intermediate_size\": 11264, \"max_position_embeddings\": 8192, "
     "\"moe_intermediate_size\": 1408, \"n_group\": 1, \"n_routed_experts\": 64, "
     "\"n_shared_experts\": 2, \"norm_topk_prob\": true, \"num_attention_heads\": 16, "
     "\"num_experts_per_tok\": 6, \"num_hidden_layers\": 27, \"num_key_value_heads\": 16, "
     "\"num_nextn_predict_layers\": 0, \"q_lora_rank\": null, \"rope_scaling\": null, "
     "\"rope_theta\": 50000.0, \"routed_scaling_factor\": 2.446, \"scoring_func\": \"sigmoid\", "
     "\"topk_group\": 1, \"topk_method\": \"noaux_tc\", \"vocab_size\": 163840}",
     0, 0, 0},
    /* DeepSeek V2 */
    {"{\"model_type\": \"deepseek_v2\", \"architectures\": [\"DeepseekV2ForCausalLM\"], " DEEPSEEK
     "\"rms_norm_eps\": 1e-6, "
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
     0, 0, 0},
    /* The text model of Qwen3.5 with experts */
    {"{\"model_type\": \"qwen3_5_moe_text\", \"attention_bias\": false, \"attention_dropout\": "
     "0.0, "
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
     0, 0, 0},
    /* GPT-NeoX-20B */
    {"{\"model_type\": \"gpt_neox\", \"architectures\": [\"GPTNeoXForCausalLM\"], "
     "\"attention_probs_dropout_prob\": 0, \"bos_token_id\": 0, \"eos_token_id\": 0, "
     "\"hidden_act\": \"gelu_fast\", \"hidden_dropout_prob\": 0, \"hidden_size\": 6144, "
     "\"initializer_range\": 0.02, \"intermediate_size\": 24576, \"layer_norm_eps\": 1e-05, "
     "\"max_position_embeddings\": 2048, \"num_attention_heads\": 64, \"num_hidden_layers\": 44, "
     "\"rotary_emb_base\": 10000, \"rotary_pct\": 0.25, \"tie_word_embeddings\": false, "
     "\"torch_dtype\": \"float16\", \"use_cache\": true, \"vocab_size\": 50432}",
     0, 0, 0},
    /* Pythia */
    {"{\"model_type\": \"gpt_neox\", \"architectures\": [\"GPTNeoXForCausalLM\"], "
     "\"bos_token_id\": 0, \"eos_token_id\": 0, \"hidden_act\": \"gelu\", \"hidden_size\": 768, "
     "\"initializer_range\": 0.02, \"intermediate_size\": 3072, \"layer_norm_eps\": 1e-05, "
     "\"max_position_embeddings\": 2048, \"num_attention_heads\": 12, \"num_hidden_layers\": 12, "
     "\"rotary_emb_base\": 10000, \"rotary_pct\": 0.25, \"tie_word_embeddings\": false, "
     "\"torch_dtype\": \"float16\", \"use_cache\": true, \"use_parallel_residual\": true, "
     "\"vocab_size\": 50304}",
     0, 0, 0},
    /* GPT-2 */
    {"{\"model_type\": \"gpt2\", \"architectures\": [\"GPT2LMHeadModel\"], "
     "\"activation_function\": \"gelu_new\", \"attn_pdrop\": 0.1, \"bos_token_id\": 50256, "
     "\"embd_pdrop\": 0.1, \"eos_token_id\": 50256, \"initializer_range\": 0.02, "
     "\"layer_norm_epsilon\": 1e-05, \"n_ctx\": 1024, \"n_embd\": 768, \"n_head\": 12, "
     "\"n_layer\": 12, \"n_positions\": 1024, \"resid_pdrop\": 0.1, \"summary_activation\": null, "
     "\"summary_first_dropout\": 0.1, \"summary_proj_to_labels\": true, "
     "\"summary_type\": \"cls_index\", \"summary_use_proj\": true, \"task_specific_params\": "
     "{\"text-generation\": {\"do_sample\": true, \"max_length\": 50}}, \"vocab_size\": 50257}",
     0, 0, 0},
    /* ModernBERT, base */
    {"{\"model_type\": \"modernbert\", \"architectures\": [\"ModernBertForMaskedLM\"], "
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
     0, 0, 0},
    /* Gemma 3 4B, which leaves heads and ids to defaults */
    {"{\"model_type\": \"gemma3\", \"architectures\": [\"Gemma3ForConditionalGeneration\"], "
     "\"boi_token_index\": 255999, \"eoi_token_index\": 256000, \"eos_token_id\": [1, 106], "
     "\"image_token_index\": 262144, \"initializer_range\": 0.02, \"mm_tokens_per_image\": "
     "256, \"text_config\": {\"model_type\": \"gemma3_text\", \"hidden_size\": 2560, "
     "\"intermediate_size\": 10240, \"num_hidden_layers\": 34, \"rope_scaling\": "
     "{\"factor\": 8.0, \"rope_type\": \"linear\"}, \"sliding_window\": 1024}, "
     "\"torch_dtype\": \"bfloat16\", \"transformers_version\": \"4.50.0.dev0\", "
     "\"vision_config\": {\"hidden_size\": 1152, \"image_size\": 896, \"model_type\": "
     "\"siglip_vision_model\", \"vision_use_head\": false}}",
     8, 4, 262208},
    /* Gemma 3 27B */
    {"{\"model_type\": \"gemma3\", \"architectures\": [\"Gemma3ForConditionalGeneration\"], "
     "\"boi_token_index\": 255999, \"eoi_token_index\": 256000, \"eos_token_id\": [1, 106], "
     "\"image_token_index\": 262144, \"initializer_range\": 0.02, \"mm_tokens_per_image\": "
     "256, \"text_config\": {\"model_type\": \"gemma3_text\", \"head_dim\": 128, "
     "\"hidden_size\": 5376, \"intermediate_size\": 21504, \"num_attention_heads\": 32, "
     "\"num_hidden_layers\": 62, \"num_key_value_heads\": 16, \"query_pre_attn_scalar\": "
     "168, \"rope_scaling\": {\"factor\": 8.0, \"rope_type\": \"linear\"}, "
     "\"sliding_window\": 1024}, \"torch_dtype\": \"bfloat16\", \"transformers_version\": "
     "\"4.50.0.dev0\", \"vision_config\": {\"hidden_size\": 1152, \"image_size\": 896, "
     "\"model_type\": \"siglip_vision_model\", \"vision_use_head\": false}}",
     32, 16, 262208},
    /* DeepSeek V2 Lite, as transformers 5 saves it */
    {"{\"model_type\": \"deepseek_v2\", \"architectures\": [\"DeepseekV2ForCausalLM\"], "
     "\"attention_bias\": false, \"attention_dropout\": 0.0, \"auto_map\": {\"AutoConfig\": "
     "\"x\"}, \"aux_loss_alpha\": 0.001, \"bos_token_id\": 100000, \"dtype\": \"bfloat16\", "
     "\"eos_token_id\": 100001, \"first_k_dense_replace\": 1, \"head_dim\": 64, "
     "\"hidden_act\": \"silu\", \"hidden_size\": 2048, \"initializer_range\": 0.02, "
     "\"intermediate_size\": 10944, \"kv_lora_rank\": 512, \"max_position_embeddings\": "
     "163840, \"mlp_bias\": false, \"moe_intermediate_size\": 1408, \"moe_layer_freq\": 1, "
     "\"n_group\": 1, \"n_routed_experts\": 64, \"n_shared_experts\": 2, \"norm_topk_prob\": "
     "false, \"num_attention_heads\": 16, \"num_experts_per_tok\": 6, \"num_hidden_layers\": "
     "27, \"num_key_value_heads\": 16, \"pad_token_id\": null, \"pretraining_tp\": 1, "
     "\"q_lora_rank\": null, \"qk_nope_head_dim\": 128, \"qk_rope_head_dim\": 64, "
     "\"rms_norm_eps\": 1e-06, \"rope_parameters\": {\"beta_fast\": 32, \"beta_slow\": 1, "
     "\"factor\": 40, \"mscale\": 0.707, \"mscale_all_dim\": 0.707, "
     "\"original_max_position_embeddings\": 4096, \"rope_theta\": 10000, \"rope_type\": "
     "\"yarn\", \"type\": \"yarn\"}, \"routed_scaling_factor\": 1.0, \"scoring_func\": "
     "\"softmax\", \"seq_aux\": true, \"tie_word_embeddings\": false, \"topk_group\": 1, "
     "\"topk_method\": \"greedy\", \"use_cache\": true, \"v_head_dim\": 128, \"vocab_size\": "
     "102400}",
     16, 16, 102400},
    /* gpt-oss-120b */
    {"{\"model_type\": \"gpt_oss\", \"architectures\": [\"GptOssForCausalLM\"], "
     "\"attention_bias\": true, \"attention_dropout\": 0.0, \"eos_token_id\": 200002, "
     "\"experts_per_token\": 4, \"head_dim\": 64, \"hidden_act\": \"silu\", \"hidden_size\": "
     "2880, \"initial_context_length\": 4096, \"initializer_range\": 0.02, "
     "\"intermediate_size\": 2880, \"layer_types\": [" THREE(
         THREE("\"sliding_attention\", \"full_attention\", \"sliding_attention\", "
               "\"full_attention\"")) "], "
                                      "\"max_position_embeddings\": 131072, "
                                      "\"num_attention_heads\": 64, "
                                      "\"num_experts_per_tok\": 4, \"num_hidden_layers\": 36, "
                                      "\"num_key_value_heads\": 8, "
                                      "\"num_local_experts\": 128, \"output_router_logits\": "
                                      "false, \"pad_token_id\": 199999, "
                                      "\"quantization_config\": {\"modules_to_not_convert\": "
                                      "[\"model.layers.*.self_attn\", "
                                      "\"model.layers.*.mlp.router\", \"model.embed_tokens\", "
                                      "\"lm_head\"], \"quant_method\": "
                                      "\"mxfp4\"}, \"rms_norm_eps\": 1e-05, \"rope_scaling\": "
                                      "{\"beta_fast\": 32.0, "
                                      "\"beta_slow\": 1.0, \"factor\": 32.0, "
                                      "\"original_max_position_embeddings\": 4096, "
                                      "\"rope_type\": \"yarn\", \"truncate\": false}, "
                                      "\"rope_theta\": 150000, "
                                      "\"router_aux_loss_coef\": 0.9, \"sliding_window\": 128, "
                                      "\"swiglu_limit\": 7.0, "
                                      "\"tie_word_embeddings\": false, \"transformers_version\": "
                                      "\"4.55.0.dev0\", "
                                      "\"use_cache\": true, \"vocab_size\": 201088}",
     64, 8, 201088},
    /* MiniMax-M2 */
    {"{\"model_type\": \"minimax_m2\", \"architectures\": [\"MiniMaxM2ForCausalLM\"], "
     "\"auto_map\": {\"AutoConfig\": \"x\"}, \"head_dim\": 128, \"hidden_act\": \"silu\", "
     "\"hidden_size\": 3072, \"intermediate_size\": 1536, \"max_position_embeddings\": "
     "196608, \"mtp_transformer_layers\": 1, \"num_attention_heads\": 48, "
     "\"num_experts_per_tok\": 8, \"num_hidden_layers\": 62, \"num_key_value_heads\": 8, "
     "\"num_local_experts\": 256, \"num_mtp_modules\": 3, \"qk_norm_type\": \"per_layer\", "
     "\"quantization_config\": {\"activation_scheme\": \"dynamic\", \"fmt\": "
     "\"float8_e4m3fn\", \"quant_method\": \"fp8\", \"weight_block_size\": [128, 128], "
     "\"modules_to_not_convert\": [\"gate\", \"e_score_correction_bias\", \"lm_head\"]}, "
     "\"rms_norm_eps\": 1e-06, \"rope_theta\": 5000000, \"rotary_dim\": 64, "
     "\"scoring_func\": \"sigmoid\", \"shared_intermediate_size\": 0, "
     "\"tie_word_embeddings\": false, \"transformers_version\": \"4.46.1\", \"use_cache\": "
     "true, \"use_mtp\": true, \"use_qk_norm\": true, \"use_routing_bias\": true, "
     "\"vocab_size\": 200064}",
     48, 8, 200064},
    /* SmolLM3 */
    {"{\"model_type\": \"smollm3\", \"architectures\": [\"SmolLM3ForCausalLM\"], "
     "\"attention_bias\": false, \"attention_dropout\": 0.0, \"bos_token_id\": null, "
     "\"eos_token_id\": 128012, \"hidden_act\": \"silu\", \"hidden_size\": 2048, "
     "\"initializer_range\": 0.02, \"intermediate_size\": 11008, "
     "\"max_position_embeddings\": 65536, \"max_window_layers\": 28, \"mlp_bias\": false, "
     "\"no_rope_layer_interval\": 4, \"no_rope_layers\": [" THREE(
         "1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0") "], "
                                               "\"num_attention_heads\": 16, "
                                               "\"num_hidden_layers\": 36, "
                                               "\"num_key_value_heads\": 4, "
                                               "\"pad_token_id\": 128004, \"pretraining_tp\": 2, "
                                               "\"rms_norm_eps\": 1e-06, "
                                               "\"rope_scaling\": null, \"rope_theta\": 5000000.0, "
                                               "\"sliding_window\": null, "
                                               "\"tie_word_embeddings\": true, \"torch_dtype\": "
                                               "\"bfloat16\", "
                                               "\"transformers_version\": \"4.54.0\", "
                                               "\"use_cache\": true, \"use_sliding_window\": "
                                               "false, \"vocab_size\": 128256}",
     16, 4, 128256},
};

static void every_document_is_read(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(published) / sizeof(published[0]); i++) {
        json_t *doc = json_loads(published[i].text, 0, NULL);
        const d9d_family_dims *dims;
        d9d_arena a = {0};
        d9d_family_config c;

        assert_non_null(doc);
        assert_ok(d9di_hf_config_text_part(&doc, "c"));
        if (family_parse(doc, "c", false, &a, &c) != D9D_OK)
            fail_msg("document %zu: %s", i, d9d_err_message());
        dims = c.dims;
        if (published[i].heads > 0) {
            assert_int_equal(dims->num_attention_heads, published[i].heads);
            assert_int_equal(dims->num_key_value_heads, published[i].kv_heads);
            assert_int_equal(dims->vocab_size, published[i].vocab);
        }
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
