/* hf_config_text_part.c - the text model in the config.json of a multimodal one.
 *
 *     {"model_type": "qwen3_5", "text_config": {"model_type": "qwen3_5_text", ...},
 *      "vision_config": {...}}
 *
 * It is read as the document of the text model alone.
 */
#include <string.h>

#include "d9d/ckpt/quant/dequant.h"
#include "model/hf/hf_config_fields.h"

/* Models whose text model a family computes, and its class in transformers. */
static const struct {
    const char *model_type, *text_type, *text_class;
} multimodal[] = {{"qwen3_5", "qwen3_5_text", "Qwen3_5ForCausalLM"},
                  {"qwen3_5_moe", "qwen3_5_moe_text", "Qwen3_5MoeForCausalLM"},
                  {"gemma3", "gemma3_text", "Gemma3ForCausalLM"},
                  {"mistral3", "ministral3", "Ministral3ForCausalLM"},
                  {"mistral3", "mistral", "MistralForCausalLM"},
                  {"kimi_k25", "kimi_k2", "DeepseekV3ForCausalLM"},
                  {"kimi_k25", "deepseek_v3", "DeepseekV3ForCausalLM"}};
enum { N_MULTIMODAL = sizeof(multimodal) / sizeof(multimodal[0]) };

/* Fields beside the text model, none of which changes what it computes. */
static const d9d_hf_field fields[] = {D9D_HF_IGNORED("text_config"),
                                      D9D_HF_IGNORED("vision_config"),
                                      D9D_HF_IGNORED("tie_word_embeddings"),
                                      D9D_HF_IGNORED("language_model_only"),
                                      D9D_HF_IGNORED("image_token_id"),
                                      D9D_HF_IGNORED("ignore_index"),
                                      D9D_HF_IGNORED("media_placeholder_token_id"),
                                      D9D_HF_IGNORED("use_unified_vision_chunk"),
                                      D9D_HF_IGNORED("video_placeholder"),
                                      D9D_HF_IGNORED("projection_hidden_size"),
                                      D9D_HF_IGNORED("projection_layer_norm_eps"),
                                      D9D_HF_IGNORED("image_token_index"),
                                      D9D_HF_IGNORED("video_token_id"),
                                      D9D_HF_IGNORED("boi_token_id"),
                                      D9D_HF_IGNORED("boi_token_index"),
                                      D9D_HF_IGNORED("eoi_token_id"),
                                      D9D_HF_IGNORED("eoi_token_index"),
                                      D9D_HF_IGNORED("mm_tokens_per_image"),
                                      D9D_HF_IGNORED("initializer_range"),
                                      D9D_HF_IGNORED("vision_start_token_id"),
                                      D9D_HF_IGNORED("vision_end_token_id"),
                                      D9D_HF_IGNORED("multimodal_projector_bias"),
                                      D9D_HF_IGNORED("projector_hidden_act"),
                                      D9D_HF_IGNORED("spatial_merge_size"),
                                      D9D_HF_IGNORED("vision_feature_layer"),
                                      D9D_HF_END};

static const char *type_of(const json_t *doc)
{
    const char *type = json_string_value(json_object_get(doc, "model_type"));

    return type != NULL ? type : "";
}

static bool is_multimodal(const json_t *doc)
{
    for (size_t i = 0; i < N_MULTIMODAL; i++)
        if (strcmp(multimodal[i].model_type, type_of(doc)) == 0)
            return true;
    return false;
}

/* The row of a document; N_MULTIMODAL: it has none. */
static size_t row_find(const json_t *doc, const json_t *text)
{
    size_t i = 0;

    while (i < N_MULTIMODAL && (strcmp(multimodal[i].model_type, type_of(doc)) != 0 ||
                                strcmp(multimodal[i].text_type, type_of(text)) != 0))
        i++;
    return i;
}

/* Take a field of the whole that the text model lacks. */
static int field_take(const json_t *doc, const char *name, json_t *text)
{
    json_t *v = json_object_get(doc, name);

    return v == NULL || json_is_null(v) || d9di_hf_member(text, name) != NULL
               ? 0
               : json_object_set(text, name, v);
}

/* Take the dtype, of either name, where the text model says none. */
static int dtype_take(const json_t *doc, json_t *text)
{
    return d9di_hf_member(text, "dtype") != NULL || d9di_hf_member(text, "torch_dtype") != NULL
               ? 0
               : field_take(doc, "dtype", text) | field_take(doc, "torch_dtype", text);
}

/* Two statements about one tensor must agree. */
static d9d_status tied_check(const json_t *doc, const json_t *text, const char *where)
{
    const json_t *outer = d9di_hf_member(doc, "tie_word_embeddings");
    const json_t *inner = d9di_hf_member(text, "tie_word_embeddings");

    return outer == NULL || inner == NULL || json_equal(outer, inner)
               ? D9D_OK
               : D9D_FAIL(D9D_ECONFIG,
                          "%s: tie_word_embeddings is %s and text_config.tie_word_embeddings is %s",
                          where, json_is_true(outer) ? "true" : "false",
                          json_is_true(inner) ? "true" : "false");
}

d9d_status d9di_hf_config_text_part(json_t **doc, const char *where)
{
    static const char *const taken[] = {
        "tie_word_embeddings",  "bos_token_id", "eos_token_id",         "pad_token_id",
        "transformers_version", "d9d",          D9D_QUANTIZATION_FIELD, "attention_mask"};
    const json_t *inner = json_object_get(*doc, "text_config");
    const size_t row = json_is_object(inner) ? row_find(*doc, inner) : N_MULTIMODAL;
    const char *types[] = {type_of(*doc), NULL};
    const d9d_hf_family whole = {types[0], types, NULL, fields, false};
    json_t *text;
    int bad = 0;

    if (is_multimodal(*doc) && !json_is_object(inner))
        return D9D_FAIL(D9D_ECONFIG, "%s: text_config of model_type \"%s\" %s", where, types[0],
                        inner == NULL ? "is missing" : "must be an object");
    if (row == N_MULTIMODAL)
        return D9D_OK;
    D9D_TRY(d9d_hf_family_check(&whole, *doc, where));
    D9D_TRY(tied_check(*doc, inner, where));
    text = json_copy((json_t *)(uintptr_t)inner);
    bad |= text != NULL ? dtype_take(*doc, text) : 0;
    for (size_t i = 0; text != NULL && i < sizeof(taken) / sizeof(taken[0]); i++)
        bad |= field_take(*doc, taken[i], text);
    bad |= text == NULL || json_object_set_new(text, "architectures",
                                               json_pack("[s]", multimodal[row].text_class)) != 0;
    if (bad != 0) {
        json_decref(text);
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", where);
    }
    json_decref(*doc);
    *doc = text;
    return D9D_OK;
}
