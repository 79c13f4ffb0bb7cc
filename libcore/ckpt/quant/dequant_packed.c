/* dequant_packed.c - integers of four bits, eight to an int32, with a scale for each group of a
 * row: compressed-tensors' "pack-quantized", as Kimi K2 has its experts.  See
 * d9d/ckpt/quant/dequant.h.
 *
 *     X_packed I32 [R, C / 8], X_scale [R, C / group]   ->   X [R, C]
 */
#include <stdlib.h>
#include <string.h>

#include "ckpt/quant/dequant_method.h"

enum {
    PER_INT = 8, /* numbers of an int32, the lowest bits first */
    MAX_GROUP = 1 << 20,
    RUN = 1 << 15 /* numbers that are decoded at a time */
};

/* --- the configuration ------------------------------------------------------------------------ */

#define FORMAT "pack-quantized"

/* Members of a group's weights, and the only value that is decoded; NULL: it changes no number. */
static const struct {
    const char *name, *only;
} rules[] = {
    {"num_bits", "4"},         {"type", "\"int\""},       {"symmetric", "true"},
    {"strategy", "\"group\""}, {"dynamic", "false"},      {"group_size", NULL}, /* weights_read() */
    {"observer", NULL},        {"observer_kwargs", NULL}, {"scale_dtype", NULL}};

static d9d_status fail_member(const char *where, const char *name, const json_t *v)
{
    d9d_buf text = {0};
    d9d_status st = d9d_json_put(&text, v, -1);

    if (st == D9D_OK)
        st = D9D_FAIL(D9D_ENOTSUP,
                      "%s: " D9D_QUANTIZATION_FIELD ".%s: %.64s is not decoded, only \"" FORMAT
                      "\" of symmetric integers of 4 bits in groups; of others take the "
                      "unquantised weights",
                      where, name, text.data);
    d9d_buf_release(&text);
    return st;
}

/* Is a member what its rule says?  One without a rule must be null. */
static d9d_status member_check(const char *name, const json_t *v, const char *where)
{
    const char *only = "null";
    json_t *value;
    bool same;

    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++)
        if (strcmp(rules[i].name, name) == 0)
            only = rules[i].only;
    if (only == NULL)
        return D9D_OK;
    D9D_TRY(d9d_json_parse(where, only, strlen(only), &value));
    same = json_equal(value, v) != 0;
    json_decref(value);
    return same ? D9D_OK : fail_member(where, name, v);
}

static d9d_status format_check(const json_t *format, const char *where)
{
    const char *word = json_string_value(format);

    return word != NULL && strcmp(word, FORMAT) == 0
               ? D9D_OK
               : fail_member(where, "format", format != NULL ? format : json_null());
}

/* The weights of a group of modules: how many numbers have one scale. */
static d9d_status weights_read(const json_t *weights, const char *where, int64_t *group)
{
    const json_t *size = json_object_get(weights, "group_size");
    const char *name;
    json_t *v;

    *group = 0;
    if (json_object_get(weights, "num_bits") == NULL)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: " D9D_QUANTIZATION_FIELD ".config_groups: weights have no num_bits",
                        where);
    json_object_foreach((json_t *)(uintptr_t)weights, name, v)
    {
        D9D_TRY(member_check(name, v, where));
    }
    *group = json_integer_value(size);
    if (*group < PER_INT || *group > MAX_GROUP || *group % PER_INT != 0)
        return fail_member(where, "group_size", size != NULL ? size : json_null());
    return D9D_OK;
}

static d9d_status configure(const json_t *o, const char *where, d9d_quantization *q)
{
    const json_t *groups = json_object_get(o, "config_groups");
    const char *name;
    json_t *v;

    D9D_TRY(format_check(json_object_get(o, "format"), where));
    if (json_object_size(groups) == 0)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: " D9D_QUANTIZATION_FIELD ".config_groups: must be an object of groups",
                        where);
    json_object_foreach((json_t *)(uintptr_t)groups, name, v)
    {
        int64_t group;

        if (json_object_get(v, "format") != NULL)
            D9D_TRY(format_check(json_object_get(v, "format"), where));
        D9D_TRY(weights_read(json_object_get(v, "weights"), where, &group));
        if (q->block[1] != 0 && q->block[1] != group)
            return D9D_FAIL(D9D_ENOTSUP,
                            "%s: " D9D_QUANTIZATION_FIELD ".config_groups: group_size is %lld and "
                            "%lld, which must be one",
                            where, (long long)q->block[1], (long long)group);
        q->block[0] = 1;
        q->block[1] = group;
    }
    return D9D_OK;
}

/* --- shapes ----------------------------------------------------------------------------------- */

static d9d_status shape(d9di_dequant_pair *p)
{
    const d9d_safetensors_tensor *v = d9di_dequant_values(p), *s = d9di_dequant_scales(p);
    d9d_safetensors_tensor need = {.name = s->name, .dtype = D9D_BF16, .ndim = 2};
    char text[D9D_SAFETENSORS_DESCRIBE];

    if (v->dtype != D9D_I32 || v->ndim != 2 || v->shape[1] > INT64_MAX / PER_INT ||
        v->shape[1] * PER_INT % p->block[1] != 0)
        return d9di_dequant_fail_pair(p,
                                      "scales of a matrix of whole groups, eight numbers an I32");
    need.shape[0] = v->shape[0];
    need.shape[1] = v->shape[1] * PER_INT / p->block[1];
    if ((s->dtype != D9D_BF16 && s->dtype != D9D_F32) || s->ndim != 2 ||
        memcmp(s->shape, need.shape, 2 * sizeof(need.shape[0])) != 0)
        return d9di_dequant_fail_pair(p, d9d_safetensors_describe(&need, text));
    p->decoded.ndim = 2;
    p->decoded.shape[0] = v->shape[0];
    p->decoded.shape[1] = v->shape[1] * PER_INT;
    return D9D_OK;
}

/* --- decoding --------------------------------------------------------------------------------- */

/* The sixteen numbers of a scale, rounded to the type of the scales as compressed-tensors does. */
typedef union numbers {
    float f[16];
    uint16_t h[16];
} numbers;

static void numbers_make(numbers *t, float scale, bool half, d9d_dtype to)
{
    for (int i = 0; i < 16; i++) {
        const float exact = (float)(i - 8) * scale;
        const float x = half ? d9d_bf16_to_f32(d9d_bf16_from_f32(exact)) : exact;

        if (to == D9D_F32)
            t->f[i] = x;
        else
            t->h[i] = d9d_bf16_from_f32(x);
    }
}

/* What a run is decoded of.  Groups and rows are whole, so numbers are counted through the matrix.
 */
struct run {
    uint8_t packed[RUN / 2 + 1];
    float scales[RUN / PER_INT + 2];
};

static void run_decode(const d9di_dequant_pair *p, const struct run *r, uint64_t first, uint64_t n,
                       void *dst)
{
    const uint64_t group = (uint64_t)p->block[1], base = first / group;
    const bool half = d9di_dequant_scales(p)->dtype == D9D_BF16;
    uint64_t made = UINT64_MAX;
    numbers t;

    for (uint64_t i = 0; i < n; i++) {
        const uint64_t at = first + i;
        const uint8_t byte = r->packed[at / 2 - first / 2];
        const int number = at % 2 == 0 ? byte & 15 : byte >> 4;

        if (at / group != made)
            numbers_make(&t, r->scales[at / group - base], half, p->decoded.dtype);
        made = at / group;
        if (p->decoded.dtype == D9D_F32)
            ((float *)dst)[i] = t.f[number];
        else
            ((uint16_t *)dst)[i] = t.h[number];
    }
}

static void span(const d9di_dequant_pair *p, uint64_t first, uint64_t n, uint64_t *at,
                 uint64_t *bytes)
{
    (void)p;
    *at = first / 2;
    *bytes = (first + n + 1) / 2 - *at;
}

static d9d_status read(const d9di_dequant_pair *p, uint64_t first, uint64_t n, void *dst)
{
    const uint64_t group = (uint64_t)p->block[1], width = d9d_dtype_size(p->decoded.dtype);
    struct run *r = malloc(sizeof(*r));
    d9d_status st =
        r != NULL ? D9D_OK
                  : D9D_FAIL(D9D_ENOMEM, "tensor %s: no memory to decode it", p->decoded.name);

    for (uint64_t done = 0, k; done < n && st == D9D_OK; done += k) {
        const uint64_t from = first + done, base = from / group;
        uint64_t at, bytes;

        k = n - done < RUN ? n - done : RUN;
        span(p, from, k, &at, &bytes);
        st = p->src->read(p->src->self, p->values, at, r->packed, bytes);
        if (st == D9D_OK)
            st = d9di_dequant_read_scales(p, base, (from + k - 1) / group - base + 1, r->scales);
        if (st == D9D_OK)
            run_decode(p, r, from, k, (char *)dst + done * width);
    }
    free(r);
    return st;
}

static bool is_values(d9d_dtype type)
{
    (void)type;
    return true; /* nothing else is called so */
}

static const char *const hidden[] = {"_shape", NULL};
static const char *const members[] = {"quant_method",
                                      "format",
                                      "config_groups",
                                      "ignore",
                                      "quantization_status",
                                      "global_compression_ratio",
                                      "version",
                                      NULL};
const d9di_dequant_method d9di_dequant_packed = {.name = "compressed-tensors",
                                                 .values = "_packed",
                                                 .scales = "_scale",
                                                 .hidden = hidden,
                                                 .members = members,
                                                 .is_values = is_values,
                                                 .configure = configure,
                                                 .shape = shape,
                                                 .read = read,
                                                 .span = span};
