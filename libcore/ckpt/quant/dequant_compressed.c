/* dequant_compressed.c - quantization_config of compressed-tensors, and its matrices of bytes.  See
 * d9d/ckpt/quant/dequant.h.
 *
 *     X F8_E4M3 or I8 [R, C], X_scale [R, 1], [1], [R, C / group] or by blocks   ->   X [R, C]
 */
#include "ckpt/quant/dequant_compressed.h"

#include <string.h>
#include <strings.h>

#include "ckpt/quant/dequant_bytes.h"

enum { MAX_GROUP = 1 << 20 };

/* --- the configuration ------------------------------------------------------------------------ */

/* What is decoded of a group's weights: arrays of the values that members may have. */
typedef struct format {
    const char *name;
    d9d_quantization_method method;
    const char *num_bits, *type, *symmetric, *strategies;
    int64_t group; /* what group_size must be; 0: of codes whole int32, of bytes anything */
} format;

#define BY_ROWS "[\"channel\", \"group\"]"
#define BY_ANY  "[\"channel\", \"group\", \"tensor\", \"block\"]"
static const format formats[] = {
    {"pack-quantized", D9D_QUANTIZATION_PACKED, "[2, 4, 8]", "[\"int\"]", "[true]", BY_ROWS, 0},
    {"pack-quantized", D9D_QUANTIZATION_PACKED_ZEROS, "[2, 4, 8]", "[\"int\"]", "[false]", BY_ROWS,
     0},
    {"int-quantized", D9D_QUANTIZATION_BYTES, "[8]", "[\"int\"]", "[true]", BY_ANY, 0},
    {"float-quantized", D9D_QUANTIZATION_BYTES, "[8]", "[\"float\"]", "[true]", BY_ANY, 0},
    {"naive-quantized", D9D_QUANTIZATION_BYTES, "[8]", "[\"int\", \"float\"]", "[true]", BY_ANY, 0},
    {"nvfp4-pack-quantized", D9D_QUANTIZATION_NVFP4, "[4]", "[\"float\"]", "[true]",
     "[\"tensor_group\"]", 16},
    {"mxfp4-pack-quantized", D9D_QUANTIZATION_MXFP4_PACKED, "[4]", "[\"float\"]", "[true]",
     "[\"group\"]", 32},
};
enum { N_FORMATS = sizeof(formats) / sizeof(formats[0]) };
#define DECODED                                                                                    \
    "\"pack-quantized\" of 2, 4 and 8 bits, symmetric \"int-quantized\" and "                      \
    "\"float-quantized\" of 8, \"nvfp4-pack-quantized\" and \"mxfp4-pack-quantized\""

/* Other members of a group's weights: arrays of the values that are decoded; NULL: it changes no
 * number, or strategy_read() reads it. */
static const struct rule {
    const char *name, *only;
} rules[] = {
    {"dynamic", "[false]"},    {"actorder", "[null, false, \"weight\", \"static\"]"},
    {"strategy", NULL},        {"group_size", NULL},
    {"block_structure", NULL}, {"observer", NULL},
    {"observer_kwargs", NULL}, {"scale_dtype", NULL}, /* the scales' own types say it */
    {"zp_dtype", NULL}, /* zeros that are decoded are packed as the numbers are */
};

static d9d_status fail_member(const char *where, const char *name, const json_t *v)
{
    return d9di_dequant_fail_member(where, name, v, DECODED);
}

/* Is a member what its rule says?  One without a rule must be null. */
static d9d_status member_check(const format *f, const char *name, const json_t *v,
                               const char *where)
{
    const struct rule own[] = {
        {"num_bits", f->num_bits}, {"type", f->type}, {"symmetric", f->symmetric}};
    const char *only = "[null]";
    bool found = true;

    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
        if (strcmp(own[i].name, name) == 0)
            only = own[i].only;
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++)
        if (strcmp(rules[i].name, name) == 0)
            only = rules[i].only;
    if (only != NULL)
        D9D_TRY(d9di_dequant_is_in(where, only, v, &found));
    return found ? D9D_OK : fail_member(where, name, v);
}

/* Weights of the first group. */
static const json_t *first_weights(const json_t *o)
{
    json_t *groups = json_object_get(o, "config_groups");

    return json_object_get(json_object_iter_value(json_object_iter(groups)), "weights");
}

static bool is_named(const format *f, const json_t *o)
{
    const char *word = json_string_value(json_object_get(o, "format"));

    return word != NULL && strcmp(f->name, word) == 0;
}

/* The format by its name and whether numbers have zeros; NULL. */
static const format *format_of(const json_t *o)
{
    const bool zeros = json_is_false(json_object_get(first_weights(o), "symmetric"));
    const format *found = NULL;

    for (size_t i = 0; i < N_FORMATS; i++)
        if (is_named(&formats[i], o) &&
            (found == NULL || zeros == (strcmp(formats[i].symmetric, "[false]") == 0)))
            found = &formats[i];
    return found;
}

static bool is_size(const json_t *v)
{
    return json_is_integer(v) && json_integer_value(v) > 0 && json_integer_value(v) <= MAX_GROUP;
}

/* Groups of codes are of whole int32, or of the one size that the format has. */
static bool is_group(const format *f, const json_t *size, int bits)
{
    const json_int_t n = json_integer_value(size);

    return is_size(size) && (f->group > 0                          ? n == f->group
                             : f->method == D9D_QUANTIZATION_BYTES ? true
                                                                   : n % (32 / bits) == 0);
}

/* The strategy, or what its absence means to compressed-tensors, if the format has it. */
static d9d_status strategy_word(const format *f, const json_t *weights, const char *where,
                                const char **out)
{
    const json_t *strategy = json_object_get(weights, "strategy");
    const json_t *size = json_object_get(weights, "group_size");
    const char *word = json_string_value(strategy);
    json_t *v;
    bool found;
    d9d_status st;

    if (word == NULL)
        word = is_size(size) ? "group" : json_integer_value(size) == -1 ? "channel" : "tensor";
    v = json_string(word);
    if (v == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", where);
    st = d9di_dequant_is_in(where, f->strategies, v, &found);
    json_decref(v);
    *out = word;
    return st != D9D_OK || found ? st : fail_member(where, "strategy", strategy);
}

/* Which numbers share a scale. */
static d9d_status strategy_read(const format *f, const json_t *weights, const char *where,
                                d9d_quantization *q)
{
    const json_t *size = json_object_get(weights, "group_size");
    const json_t *blocks = json_object_get(weights, "block_structure");
    const char *word = NULL;

    D9D_TRY(strategy_word(f, weights, where, &word));
    q->block[0] = strcasecmp(word, "tensor") == 0 ? 0 : 1;
    q->block[1] = 0;
    if (strcasecmp(word, "group") == 0 || strcasecmp(word, "tensor_group") == 0) {
        q->block[1] = json_integer_value(size);
        return is_group(f, size, q->bits) ? D9D_OK : fail_member(where, "group_size", size);
    }
    for (size_t i = 0; i < 2 && strcasecmp(word, "block") == 0; i++) {
        q->block[i] = json_integer_value(json_array_get(blocks, i));
        if (json_array_size(blocks) != 2 || !is_size(json_array_get(blocks, i)))
            return fail_member(where, "block_structure", blocks);
    }
    return D9D_OK;
}

static d9d_status weights_read(const format *f, const json_t *weights, const char *where,
                               d9d_quantization *q)
{
    const json_t *bits = json_object_get(weights, "num_bits");
    const char *name;
    json_t *v;

    if (bits == NULL)
        return D9D_FAIL(D9D_ECONFIG, "%s.config_groups: weights have no num_bits", where);
    json_object_foreach((json_t *)(uintptr_t)weights, name, v)
    {
        D9D_TRY(member_check(f, name, v, where));
    }
    q->bits = (int)json_integer_value(bits);
    return strategy_read(f, weights, where, q);
}

/* A group may name its format, which must be the whole's. */
static d9d_status format_check(const format *f, const json_t *o, const char *where)
{
    const json_t *v = json_object_get(o, "format");

    return f != NULL && (v == NULL || json_is_null(v) || is_named(f, o))
               ? D9D_OK
               : fail_member(where, "format", v);
}

/* Sparse matrices that are stored as dense ones are no others. */
static d9d_status sparsity_check(const json_t *o, const char *where)
{
    const json_t *v = json_object_get(o, "sparsity_config");
    bool dense;

    D9D_TRY(d9di_dequant_is_in(where, "[\"dense\"]", json_object_get(v, "format"), &dense));
    return dense ? D9D_OK : fail_member(where, "sparsity_config", v);
}

/* All groups are decoded alike. */
static d9d_status same_check(const d9d_quantization *a, const d9d_quantization *b,
                             const char *where)
{
    if (memcmp(a->block, b->block, sizeof(a->block)) != 0)
        return D9D_FAIL(D9D_ENOTSUP,
                        "%s.config_groups: scales are of %lld x "
                        "%lld numbers in one group and %lld x %lld in another, which must be "
                        "the same (0: all)",
                        where, (long long)a->block[0], (long long)a->block[1],
                        (long long)b->block[0], (long long)b->block[1]);
    return a->bits == b->bits ? D9D_OK
                              : D9D_FAIL(D9D_ENOTSUP,
                                         "%s.config_groups: numbers have %d bits in "
                                         "one group and %d in another, which must be the same",
                                         where, a->bits, b->bits);
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
        return D9D_FAIL(D9D_ECONFIG, "%s.config_groups: must be an object of groups", where);
    json_object_foreach((json_t *)(uintptr_t)groups, name, v)
    {
        d9d_quantization of = *q;

        D9D_TRY(format_check(f, v, where));
        D9D_TRY(weights_read(f, json_object_get(v, "weights"), where, &of));
        if (any)
            D9D_TRY(same_check(q, &of, where));
        *q = of;
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

/* Scales and zeros of activations and of caches, and shapes. */
#define ACTIVATIONS                                                                                \
    "input_scale", "output_scale", ".k_scale", ".v_scale", ".q_scale", "input_zero_point",         \
        "output_zero_point", ".k_zero_point", ".v_zero_point", ".q_zero_point",                    \
        "input_global_scale", "output_global_scale", "_shape"
const char *const d9di_dequant_compressed_activations[] = {ACTIVATIONS, NULL};
/* And zeros of symmetric weights. */
const char *const d9di_dequant_compressed_hidden[] = {ACTIVATIONS, "_zero_point", NULL};

/* --- bytes ------------------------------------------------------------------------------------ */

static bool is_bytes(d9d_dtype type)
{
    return type == D9D_F8_E4M3 || type == D9D_I8;
}

static d9d_status shape(d9di_dequant_item *p, d9d_arena *a)
{
    if (!is_bytes(d9di_dequant_stored(p, D9DI_DEQUANT_VALUES)->dtype))
        return d9di_dequant_fail(p, D9DI_DEQUANT_SCALES, "scales of a matrix in F8_E4M3 or I8");
    return d9di_dequant_bytes_shape(p, a);
}

/* Rounded to the type of the scales, as compressed-tensors does. */
static void numbers(const d9di_dequant_item *p, float scale, float out[256])
{
    const d9d_dtype bytes = d9di_dequant_stored(p, D9DI_DEQUANT_VALUES)->dtype;
    const d9d_dtype type = d9di_dequant_stored(p, D9DI_DEQUANT_SCALES)->dtype;

    for (int i = 0; i < 256; i++)
        out[i] = d9di_dequant_round(d9di_dequant_byte(bytes, i) * scale, type);
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
                                                .bytes = numbers,
                                                .read = d9di_dequant_bytes_read,
                                                .span = d9di_dequant_bytes_span};
