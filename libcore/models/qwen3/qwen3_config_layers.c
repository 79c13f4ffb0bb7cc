/* qwen3_config_layers.c - reads each layer's sliding window and kind of FFN from config.json.
 */
#include "models/qwen3/qwen3_config_parts.h"

#include <inttypes.h>
#include <string.h>

/* Windowed layers: by layer_types, or those after the first max_window_layers. */
static d9d_status read_windowed(const d9di_hf_reader *r, int64_t layers, int64_t behind,
                                bool *windowed)
{
    static const char *const words[] = {"full_attention", "sliding_attention"};
    const json_t *types = d9di_hf_member(r->doc, "layer_types");

    if (types != NULL && (int64_t)json_array_size(types) != layers)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: layer_types has %zu layers, num_hidden_layers is %" PRId64, r->where,
                        json_array_size(types), layers);
    for (int64_t l = 0; l < layers; l++) {
        const json_t *v = json_array_get(types, (size_t)l);
        const char *word = json_is_string(v) ? json_string_value(v) : "";

        windowed[l] = types != NULL ? strcmp(word, words[true]) == 0 : l >= behind;
        if (types != NULL && !windowed[l] && strcmp(word, words[false]) != 0)
            return d9di_hf_refuse(r, "layer_types", v);
    }
    return D9D_OK;
}

/* As in transformers 5: in a mixture every layer has the window, whatever layer_types says. */
d9d_status d9di_qwen3_config_window(const d9di_hf_reader *r, d9d_arena *a, d9d_qwen3_config *c)
{
    bool used, *windowed = d9d_arena_alloc(a, (size_t)c->layers), any = false;
    int64_t behind;

    if (windowed == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", r->where);
    D9D_TRY(d9di_hf_bool(r, "use_sliding_window", &used));
    D9D_TRY(d9di_hf_i64(r, "sliding_window", json_object_get(r->doc, "sliding_window") ? 0 : 4096,
                        &c->window));
    D9D_TRY(d9di_hf_i64(r, "max_window_layers", 28, &behind));
    if (used && c->window == 0 && d9di_hf_member(r->doc, "sliding_window") != NULL)
        return d9di_hf_refuse(r, "sliding_window", d9di_hf_member(r->doc, "sliding_window"));
    c->window = used ? c->window : 0;
    if (c->window > 0 && r->moe)
        return D9D_OK;
    D9D_TRY(read_windowed(r, c->layers, c->window > 0 ? behind : c->layers, windowed));
    for (int64_t l = 0; l < c->layers; l++)
        any |= windowed[l];
    if (any && c->window == 0)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: layer_types has sliding_attention, and no sliding_window is in use",
                        r->where);
    c->windowed = any ? windowed : NULL;
    c->window = any ? c->window : 0;
    return D9D_OK;
}

/* Every decoder_sparse_step-th layer is a mixture, unless mlp_only_layers lists it. */
d9d_status d9di_qwen3_config_moe_layers(const d9di_hf_reader *r, d9d_arena *a, d9d_qwen3_config *c)
{
    const json_t *dense = d9di_hf_member(r->doc, "mlp_only_layers");
    int64_t every;
    bool *moe;

    D9D_TRY(d9di_hf_i64(r, "decoder_sparse_step", 1, &every));
    if (every == 0)
        return D9D_FAIL(D9D_ECONFIG, "%s: decoder_sparse_step must be at least 1", r->where);
    if (dense != NULL && !json_is_array(dense))
        return D9D_FAIL(D9D_ECONFIG, "%s: mlp_only_layers must be a list", r->where);
    moe = d9d_arena_alloc(a, (size_t)c->layers);
    if (moe == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", r->where);
    for (int64_t l = 0; l < c->layers; l++)
        moe[l] = (l + 1) % every == 0;
    for (size_t i = 0; i < json_array_size(dense); i++) {
        const json_t *v = json_array_get(dense, i);

        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= c->layers)
            return D9D_FAIL(D9D_ECONFIG, "%s: mlp_only_layers[%zu] is not a layer of 0..%" PRId64,
                            r->where, i, c->layers - 1);
        moe[json_integer_value(v)] = false;
    }
    c->moe_layer = moe;
    return D9D_OK;
}
