/* dequant_modelopt.c - quantization_config of NVIDIA's Model Optimizer, and its FP8.  See
 * d9d/ckpt/quant/dequant.h.
 *
 *     X F8_E4M3 [R, C], X_scale F32 []   ->   X [R, C]
 */
#include "ckpt/quant/dequant_modelopt.h"

#include <string.h>

#include "ckpt/quant/dequant_bytes.h"

static const struct algorithm {
    const char *name;
    d9d_quantization_method method;
    int64_t group; /* numbers of a row that share a scale; 0: the matrix does */
    int bits;
} algorithms[] = {
    {"FP8", D9D_QUANTIZATION_MODELOPT_FP8, 0, 8},
    {"NVFP4", D9D_QUANTIZATION_MODELOPT_NVFP4, 16, 4},
    {"W4A16_NVFP4", D9D_QUANTIZATION_MODELOPT_NVFP4, 16, 4},
};
#define DECODED "\"FP8\", \"NVFP4\" and \"W4A16_NVFP4\" in groups of 16"

static const struct algorithm *algorithm_of(const json_t *o)
{
    const char *word = json_string_value(json_object_get(o, "quant_algo"));

    for (size_t i = 0; word != NULL && i < sizeof(algorithms) / sizeof(algorithms[0]); i++)
        if (strcmp(algorithms[i].name, word) == 0)
            return &algorithms[i];
    return NULL;
}

bool d9di_dequant_modelopt_is(const json_t *o, d9d_quantization_method method)
{
    const struct algorithm *a = algorithm_of(o);

    return a != NULL && a->method == method;
}

d9d_status d9di_dequant_modelopt_configure(const json_t *o, const char *where, d9d_quantization *q)
{
    const struct algorithm *a = algorithm_of(o);
    const json_t *size = json_object_get(o, "group_size");
    bool known;

    if (a == NULL)
        return d9di_dequant_fail_member(where, "quant_algo", json_object_get(o, "quant_algo"),
                                        DECODED);
    D9D_TRY(d9di_dequant_is_in(where, a->group > 0 ? "[null, 16]" : "[null, 0]", size, &known));
    if (!known)
        return d9di_dequant_fail_member(where, "group_size", size, DECODED);
    q->block[0] = a->group > 0 ? 1 : 0;
    q->block[1] = a->group;
    q->bits = a->bits;
    return D9D_OK;
}

/* Those of config.json and of hf_quant_config.json. */
const char *const d9di_dequant_modelopt_members[] = {
    "quant_method",    "quant_algo",          "quant_library",    "producer",
    "config_groups",   "group_size",          "ignore",           "exclude_modules",
    "kv_cache_scheme", "kv_cache_quant_algo", "quantized_layers", NULL};

/* Scales of activations and of caches, and what is subtracted from caches. */
const char *const d9di_dequant_modelopt_hidden[] = {".input_scale",  ".k_scale",      ".v_scale",
                                                    "k_proj.k_bias", "v_proj.v_bias", NULL};

static bool is_of(const json_t *o)
{
    return d9di_dequant_modelopt_is(o, D9D_QUANTIZATION_MODELOPT_FP8);
}

const d9di_dequant_method d9di_dequant_modelopt_fp8 = {.name = D9DI_DEQUANT_MODELOPT,
                                                       .is_of = is_of,
                                                       .suffix = {"", "_scale"},
                                                       .hidden = d9di_dequant_modelopt_hidden,
                                                       .members = d9di_dequant_modelopt_members,
                                                       .is_values = d9di_dequant_is_fp8,
                                                       .configure = d9di_dequant_modelopt_configure,
                                                       .bytes = d9di_dequant_bytes_product,
                                                       .shape = d9di_dequant_fp8_shape,
                                                       .read = d9di_dequant_bytes_read,
                                                       .span = d9di_dequant_bytes_span};
