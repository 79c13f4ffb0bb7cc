/* dequant_compressed.c - quantization_config of compressed-tensors, and its matrices of bytes.  See
 * d9d/ckpt/quant/dequant.h.
 *
 *     X F8_E4M3 or I8 [R, C], X_scale [R, 1], [1], [R, C / group] or by blocks   ->   X [R, C]
 */
#include "ckpt/quant/dequant_compressed.h"

#include <string.h>

#include "ckpt/quant/dequant_bytes.h"

enum { MAX_GROUP = 1 << 20 };

/* --- the configuration ------------------------------------------------------------------------ */

typedef struct format {
    const char *name;
    d9d_quantization_method method;
    const char *bits, *types; /* of "num_bits" and "type": arrays of what is decoded */
} format;

static const format formats[] = {
    {"pack-quantized", D9D_QUANTIZATION_PACKED, "[4]", "[\"int\"]"},
    {"int-quantized", D9D_QUANTIZATION_BYTES, "[8]", "[\"int\"]"},
    {"float-quantized", D9D_QUANTIZATION_BYTES, "[8]", "[\"float\"]"},
    {"naive-quantized", D9D_QUANTIZATION_BYTES, "[8]", "[\"int\", \"float\"]"},
};
#define DECODED                                                                                    \
    "symmetric \"pack-quantized\" of 4 bits, \"int-quantized\" and \"float-quantized\" of 8"

/* Other members of a group's weights: arrays of the values that are decoded; NULL: it changes no
 * number, or strategy_read() reads it. */
static const struct rule {
    const char *name, *only;
} rules[] = {
    {"symmetric", "[true]"},
    {"dynamic", "[false]"},
    {"actorder", "[null, false, \"weight\", \"static\"]"},
    {"strategy", NULL},
    {"group_size", NULL},
    {"block_structure", NULL},
    {"observer", NULL},
    {"observer_kwargs", NULL},
    {"scale_dtype", NULL},
    {"zp_dtype", NULL}, /* of zeros, which symmetric numbers have none of */
};

static d9d_status fail_member(const char *where, const char *name, const json_t *v)
{
    return d9di_dequant_fail_member(where, name, v, DECODED);
}

/* Is a member what its rule says?  One without a rule must be null. */
static d9d_status member_check(const format *f, const char *name, const json_t *v,
                               const char *where)
{
    const char *only = strcmp(name, "num_bits") == 0 ? f->bits
                       : strcmp(name, "type") == 0   ? f->types
                                                     : "[null]";
    bool found = true;

    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++)
        if (strcmp(rules[i].name, name) == 0)
            only = rules[i].only;
    if (only != NULL)
        D9D_TRY(d9di_dequant_is_in(where, only, v, &found));
    return found ? D9D_OK : fail_member(where, name, v);
}

static const format *format_of(const json_t *o)
{
    const char *word = json_string_value(json_object_get(o, "format"));

    for (size_t i = 0; word != NULL && i < sizeof(formats) / sizeof(formats[0]); i++)
        if (strcmp(formats[i].name, word) == 0)
            return &formats[i];
    return NULL;
}

static bool is_size(const json_t *v)
{
    return json_is_integer(v) && json_integer_value(v) > 0 && json_integer_value(v) <= MAX_GROUP;
}

/* Which numbers share a scale. */
static d9d_status strategy_read(const json_t *weights, const char *where, int64_t block[2])
{
    const json_t *strategy = json_object_get(weights, "strategy");
    const json_t *size = json_object_get(weights, "group_size");
    const json_t *blocks = json_object_get(weights, "block_structure");
    const char *word = json_string_value(strategy);

    if (word == NULL) /* as compressed-tensors has it */
        word = is_size(size) ? "group" : "tensor";
    block[0] = strcmp(word, "tensor") == 0 ? 0 : 1;
    block[1] = 0;
    if (strcmp(word, "tensor") == 0 || strcmp(word, "channel") == 0)
        return D9D_OK;
    if (strcmp(word, "group") == 0) {
        block[1] = json_integer_value(size);
        return is_size(size) ? D9D_OK : fail_member(where, "group_size", size);
    }
    if (strcmp(word, "block") != 0)
        return fail_member(where, "strategy", strategy);
    for (size_t i = 0; i < 2; i++) {
        block[i] = json_integer_value(json_array_get(blocks, i));
        if (json_array_size(blocks) != 2 || !is_size(json_array_get(blocks, i)))
            return fail_member(where, "block_structure", blocks);
    }
    return D9D_OK;
}

/* Groups of four bits are of whole int32; a matrix has no single scale. */
static d9d_status packed_check(const json_t *weights, const char *where, const int64_t block[2])
{
    if (block[0] != 1)
        return fail_member(where, "strategy", json_object_get(weights, "strategy"));
    return block[1] % 8 == 0
               ? D9D_OK
               : fail_member(where, "group_size", json_object_get(weights, "group_size"));
}

static d9d_status weights_read(const format *f, const json_t *weights, const char *where,
                               int64_t block[2])
{
    const char *name;
    json_t *v;

    if (json_object_get(weights, "num_bits") == NULL)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: " D9D_QUANTIZATION_FIELD ".config_groups: weights have no num_bits",
                        where);
    json_object_foreach((json_t *)(uintptr_t)weights, name, v)
    {
        D9D_TRY(member_check(f, name, v, where));
    }
    D9D_TRY(strategy_read(weights, where, block));
    return f->method == D9D_QUANTIZATION_PACKED ? packed_check(weights, where, block) : D9D_OK;
}

static d9d_status format_check(const format *f, const json_t *o, const char *where)
{
    return f != NULL && (json_object_get(o, "format") == NULL || format_of(o) == f)
               ? D9D_OK
               : fail_member(where, "format", json_object_get(o, "format"));
}

/* Sparse matrices that are stored as dense ones are no others. */
static d9d_status sparsity_check(const json_t *o, const char *where)
{
    const json_t *v = json_object_get(o, "sparsity_config");
    bool dense;

    D9D_TRY(d9di_dequant_is_in(where, "[\"dense\"]", json_object_get(v, "format"), &dense));
    return dense ? D9D_OK : fail_member(where, "sparsity_config", v);
}

d9d_status d9di_dequant_compressed_configure(const json_t *o, const char *where,
                                             d9d_quantization *q)
{
    const json_t *groups = json_object_get(o, "config_groups");
    const format *f = format_of(o);
    bool any = false;
    const char *name;
    json_t *v;

    D9D_TRY(format_check(f, o, where));
    D9D_TRY(sparsity_check(o, where));
    if (json_object_size(groups) == 0)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: " D9D_QUANTIZATION_FIELD ".config_groups: must be an object of groups",
                        where);
    json_object_foreach((json_t *)(uintptr_t)groups, name, v)
    {
        int64_t block[2];

        D9D_TRY(format_check(f, v, where));
        D9D_TRY(weights_read(f, json_object_get(v, "weights"), where, block));
        if (any && memcmp(q->block, block, sizeof(block)) != 0)
            return D9D_FAIL(D9D_ENOTSUP,
                            "%s: " D9D_QUANTIZATION_FIELD ".config_groups: scales are of %lld x "
                            "%lld numbers in one group and %lld x %lld in another, which must be "
                            "the same (0: all)",
                            where, (long long)q->block[0], (long long)q->block[1],
                            (long long)block[0], (long long)block[1]);
        memcpy(q->block, block, sizeof(block));
        any = true;
    }
    return D9D_OK;
}

bool d9di_dequant_compressed_is(const json_t *o, d9d_quantization_method method)
{
    const format *f = format_of(o);

    return f != NULL && f->method == method;
}

const char *const d9di_dequant_compressed_members[] = {"quant_method",
                                                       "format",
                                                       "config_groups",
                                                       "ignore",
                                                       "kv_cache_scheme",
                                                       "sparsity_config",
                                                       "quantization_status",
                                                       "global_compression_ratio",
                                                       "version",
                                                       NULL};

/* Scales and zeros of activations and of caches, zeros of symmetric weights, and shapes. */
const char *const d9di_dequant_compressed_hidden[] = {
    "input_scale", "output_scale", ".k_scale", ".v_scale",
    ".q_scale",    "_zero_point",  "_shape",   NULL};

/* --- bytes ------------------------------------------------------------------------------------ */

static bool is_bytes(d9d_dtype type)
{
    return type == D9D_F8_E4M3 || type == D9D_I8;
}

static d9d_status shape(d9di_dequant_item *p, d9d_arena *a)
{
    (void)a;
    if (!is_bytes(d9di_dequant_stored(p, D9DI_DEQUANT_VALUES)->dtype))
        return d9di_dequant_fail(p, D9DI_DEQUANT_SCALES, "scales of a matrix in F8_E4M3 or I8");
    return d9di_dequant_bytes_shape(p);
}

/* Rounded to the type of the scales, as compressed-tensors does. */
static void numbers(const d9di_dequant_item *p, float scale, float out[256])
{
    const d9d_dtype bytes = d9di_dequant_stored(p, D9DI_DEQUANT_VALUES)->dtype;
    const d9d_dtype type = d9di_dequant_stored(p, D9DI_DEQUANT_SCALES)->dtype;

    for (int i = 0; i < 256; i++)
        out[i] = d9di_dequant_round(d9di_dequant_byte(bytes, i) * scale, type);
}

static d9d_status read(const d9di_dequant_item *p, uint64_t first, uint64_t n, void *dst)
{
    return d9di_dequant_bytes_read(p, numbers, first, n, dst);
}

static bool is_of(const json_t *o)
{
    return d9di_dequant_compressed_is(o, D9D_QUANTIZATION_BYTES);
}

const d9di_dequant_method d9di_dequant_bytes = {.name = D9DI_DEQUANT_COMPRESSED,
                                                .is_of = is_of,
                                                .suffix = {"", "_scale"},
                                                .hidden = d9di_dequant_compressed_hidden,
                                                .members = d9di_dequant_compressed_members,
                                                .is_values = is_bytes,
                                                .configure = d9di_dequant_compressed_configure,
                                                .shape = shape,
                                                .read = read,
                                                .span = d9di_dequant_bytes_span};
