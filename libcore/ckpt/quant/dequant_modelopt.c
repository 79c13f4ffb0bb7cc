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
    {"MIXED_PRECISION", D9D_QUANTIZATION_MODELOPT_MIXED, 16, 4},
};
#define DECODED                                                                                    \
    "\"FP8\", \"NVFP4\" and \"W4A16_NVFP4\" in groups of 16, and \"MIXED_PRECISION\" of these"

/* By the member quant_algo of the whole, or of one of quantized_layers. */
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

/* Layers of their own algorithms have known ones. */
static d9d_status layers_check(const json_t *o, const char *where)
{
    const char *name;
    json_t *v;

    json_object_foreach(json_object_get(o, "quantized_layers"), name, v)
    {
        const struct algorithm *a = algorithm_of(v);

        (void)name;
        if (a == NULL || a->method == D9D_QUANTIZATION_MODELOPT_MIXED)
            return d9di_dequant_fail_member(where, "quantized_layers.quant_algo",
                                            json_object_get(v, "quant_algo"), DECODED);
    }
    return D9D_OK;
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
    D9D_TRY(layers_check(o, where));
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

bool d9di_dequant_modelopt_is_values(d9d_dtype type)
{
    return type == D9D_U8 || type == D9D_F8_E4M3;
}

static bool is_fp8(const json_t *o)
{
    return d9di_dequant_modelopt_is(o, D9D_QUANTIZATION_MODELOPT_FP8);
}

static bool is_mixed(const json_t *o)
{
    return d9di_dequant_modelopt_is(o, D9D_QUANTIZATION_MODELOPT_MIXED);
}

/* A matrix is NVFP4 if it has a scale of its own beside those of groups. */
static d9d_status mixed_shape(d9di_dequant_item *p, d9d_arena *a)
{
    const bool groups = d9di_dequant_has(p, D9DI_DEQUANT_MORE);

    p->method = groups ? &d9di_dequant_modelopt_nvfp4 : &d9di_dequant_modelopt_fp8;
    if (!groups)
        p->block[0] = p->block[1] = 0;
    return p->method->shape(p, a);
}

const d9di_dequant_method d9di_dequant_modelopt_fp8 = {.name = D9DI_DEQUANT_MODELOPT,
                                                       .is_of = is_fp8,
                                                       .suffix = {"", "_scale"},
                                                       .hidden = d9di_dequant_modelopt_hidden,
                                                       .members = d9di_dequant_modelopt_members,
                                                       .is_values = d9di_dequant_is_fp8,
                                                       .configure = d9di_dequant_modelopt_configure,
                                                       .bytes = d9di_dequant_bytes_product,
                                                       .shape = d9di_dequant_fp8_shape,
                                                       .read = d9di_dequant_bytes_read,
                                                       .span = d9di_dequant_bytes_span};

const d9di_dequant_method d9di_dequant_modelopt_mixed = {
    .name = D9DI_DEQUANT_MODELOPT,
    .is_of = is_mixed,
    .suffix = {"", "_scale", [D9DI_DEQUANT_MORE] = "_scale_2"},
    .optional = 1u << D9DI_DEQUANT_MORE,
    .hidden = d9di_dequant_modelopt_hidden,
    .members = d9di_dequant_modelopt_members,
    .is_values = d9di_dequant_modelopt_is_values,
    .configure = d9di_dequant_modelopt_configure,
    .shape = mixed_shape};
