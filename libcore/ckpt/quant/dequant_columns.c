/* dequant_columns.c - GPTQ and AWQ: integers in int32, whose columns are rows of the matrix, with a
 * scale and a zero for each group of a column.  See d9d/ckpt/quant/dequant.h.
 *
 *     GPTQ  qweight [C / per, R]   an int32 has `per` numbers of a column, the first in its lowest
 *                                  bits; g_idx[c] is the group of input c
 *     AWQ   qweight [C, R / per]   an int32 has `per` numbers of a row, by awq_place
 *     both  qzeros [G, R / per], scales [G, R]
 *
 * A band of columns is read and decoded at a time.
 */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "ckpt/quant/dequant_method.h"

enum { VALUES, SCALES, ZEROS, GROUPS }; /* places */
enum {
    INT_BITS = 32,
    BAND = 128, /* columns that are decoded at a time; a multiple of what an int32 has */
    AWQ_BITS = 4,
    MAX_GROUP = 1 << 20
};

/* Where the numbers of eight neighbours are in an int32 of AWQ's kernels. */
static const int awq_place[INT_BITS / AWQ_BITS] = {0, 4, 1, 5, 2, 6, 3, 7};

/* --- the configuration ------------------------------------------------------------------------ */

/* Members that must have one of these values, a JSON array, if they are there. */
typedef struct rule {
    const char *name, *only;
} rule;

static d9d_status rules_check(const json_t *o, const char *where, const rule *rules, size_t n,
                              const char *decoded)
{
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_object_get(o, rules[i].name);
        bool found;

        D9D_TRY(d9di_dequant_is_in(where, rules[i].only, v, &found));
        if (!found && !json_is_null(v))
            return d9di_dequant_fail_member(where, rules[i].name, v, decoded);
    }
    return D9D_OK;
}

/* -1: the whole column. */
static d9d_status group_read(const json_t *o, const char *where, d9d_quantization *q)
{
    const json_t *v = json_object_get(o, "group_size");
    const json_int_t n = json_integer_value(v);

    if (!json_is_integer(v) || n == 0 || n < -1 || n > MAX_GROUP)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s.group_size: must be a number of inputs, or "
                        "-1 for all",
                        where);
    q->block[0] = 1;
    q->block[1] = n > 0 ? n : 0;
    return D9D_OK;
}

#define GPTQ_DECODED "2, 4 or 8 bits in int32, \"gptq\" and \"gptq_v2\""

/* "gptq", the older layout, unless a member says "gptq_v2". */
static bool is_zeros_less(const json_t *o)
{
    static const char *const names[] = {"checkpoint_format", "format"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *word = json_string_value(json_object_get(o, names[i]));

        if (word != NULL && strcasecmp(word, "gptq_v2") == 0)
            return false;
    }
    return true;
}

/* Rules for some modules: "-:PATTERN" leaves them as they are, which names of tensors say too.
 * Others have their own bits or groups. */
static d9d_status dynamic_check(const json_t *o, const char *where)
{
    const json_t *v = json_object_get(o, "dynamic");
    const char *name;
    json_t *changes;

    json_object_foreach((json_t *)(uintptr_t)v, name, changes)
    {
        (void)changes;
        if (strncmp(name, "-:", 2) != 0)
            return d9di_dequant_fail_member(where, "dynamic", v, GPTQ_DECODED);
    }
    return v == NULL || json_is_null(v) || json_is_object(v)
               ? D9D_OK
               : d9di_dequant_fail_member(where, "dynamic", v, GPTQ_DECODED);
}

static d9d_status gptq_configure(const json_t *o, const char *where, d9d_quantization *q)
{
    static const rule rules[] = {
        {"bits", "[2, 4, 8]"},
        {"checkpoint_format", "[\"gptq\", \"gptq_v2\"]"},
        {"format", "[\"gptq\", \"gptq_v2\"]"},
        {"pack_dtype", "[\"int32\"]"},
        {"is_marlin_format", "[false]"},
        {"data_type", "[\"int\"]"},
    };
    const json_t *bits = json_object_get(o, "bits");

    D9D_TRY(rules_check(o, where, rules, sizeof(rules) / sizeof(rules[0]), GPTQ_DECODED));
    if (!json_is_integer(bits))
        return d9di_dequant_fail_member(where, "bits", bits, GPTQ_DECODED);
    q->bits = (int)json_integer_value(bits);
    q->zeros_less = is_zeros_less(o);
    D9D_TRY(dynamic_check(o, where));
    return group_read(o, where, q);
}

#define AWQ_DECODED "\"gemm\" of 4 bits with zeros"

static d9d_status awq_configure(const json_t *o, const char *where, d9d_quantization *q)
{
    static const rule rules[] = {
        {"bits", "[4]"},
        {"version", "[\"gemm\"]"},
        {"format", "[\"gemm\"]"},
        {"checkpoint_format", "[\"gemm\"]"},
        {"zero_point", "[true]"},
        {"pack_dtype", "[\"int32\"]"},
        {"data_type", "[\"int\"]"},
        {"dynamic", "[{}]"},
    };
    const json_t *backend = json_object_get(o, "backend");

    D9D_TRY(rules_check(o, where, rules, sizeof(rules) / sizeof(rules[0]), AWQ_DECODED));
    if (json_is_string(backend) && strcmp(json_string_value(backend), "llm-awq") == 0)
        return d9di_dequant_fail_member(where, "backend", backend, AWQ_DECODED);
    q->bits = AWQ_BITS;
    return group_read(o, where, q);
}

/* --- shapes ----------------------------------------------------------------------------------- */

/* The state of an item: its sizes. */
typedef struct layout {
    bool by_input; /* an int32 has numbers of a column (GPTQ) */
    int bits, per; /* of a number; numbers of an int32 */
    int64_t C, R;  /* of the decoded matrix [R, C] */
    int64_t group, groups;
} layout;

/* Has a stored tensor this type and shape? */
static d9d_status part_check(const d9di_dequant_item *p, int place, d9d_dtype type,
                             const int64_t *shape, int ndim)
{
    const d9d_safetensors_tensor *t = d9di_dequant_stored(p, place);
    d9d_safetensors_tensor need = {.name = t->name, .dtype = type, .ndim = ndim};
    char text[D9D_SAFETENSORS_DESCRIBE];

    memcpy(need.shape, shape, (size_t)ndim * sizeof(*shape));
    return t->dtype == type && t->ndim == ndim &&
                   memcmp(t->shape, need.shape, (size_t)ndim * sizeof(*shape)) == 0
               ? D9D_OK
               : d9di_dequant_fail(p, place, d9d_safetensors_describe(&need, text));
}

static d9d_status layout_check(const d9di_dequant_item *p, const layout *l)
{
    const int64_t zeros[] = {l->groups, l->R / l->per}, scales[] = {l->groups, l->R};
    const d9d_dtype type = d9di_dequant_stored(p, SCALES)->dtype;

    if (!d9di_dequant_is_float(type))
        return d9di_dequant_fail(p, SCALES, "of floating-point numbers");
    D9D_TRY(part_check(p, SCALES, type, scales, 2));
    D9D_TRY(part_check(p, ZEROS, D9D_I32, zeros, 2));
    return d9di_dequant_has(p, GROUPS) ? part_check(p, GROUPS, D9D_I32, &l->C, 1) : D9D_OK;
}

static d9d_status layout_make(d9di_dequant_item *p, d9d_arena *a, bool by_input)
{
    const d9d_safetensors_tensor *v = d9di_dequant_stored(p, VALUES);
    layout *l = d9d_arena_alloc(a, sizeof(*l));

    if (l == NULL)
        return d9di_dequant_no_memory(p);
    *l = (layout){.by_input = by_input, .bits = p->q->bits, .per = INT_BITS / p->q->bits};
    if (v->dtype != D9D_I32 || v->ndim != 2 || v->shape[0] < 1 || v->shape[1] < 1 ||
        v->shape[by_input ? 0 : 1] > INT64_MAX / l->per || (by_input && v->shape[1] % l->per != 0))
        return d9di_dequant_fail(p, SCALES, "of a matrix of I32 whose zeros fill I32");
    l->C = v->shape[0] * (by_input ? l->per : 1);
    l->R = v->shape[1] * (by_input ? 1 : l->per);
    l->group = p->block[1] > 0 ? p->block[1] : l->C;
    l->groups = (l->C + l->group - 1) / l->group;
    D9D_TRY(layout_check(p, l));
    p->state = l;
    p->decoded.ndim = 2;
    p->decoded.shape[0] = l->R;
    p->decoded.shape[1] = l->C;
    return D9D_OK;
}

static d9d_status gptq_shape(d9di_dequant_item *p, d9d_arena *a)
{
    return layout_make(p, a, true);
}

static d9d_status awq_shape(d9di_dequant_item *p, d9d_arena *a)
{
    return layout_make(p, a, false);
}

/* --- decoding --------------------------------------------------------------------------------- */

/* The rows [r0, r1) of the matrix, a band, and of them the inputs [c0, c1). */
struct band {
    const d9di_dequant_item *p;
    const layout *l;
    int64_t r0, r1, c0, c1;
    int64_t first_int, ints;  /* int32 of a row of zeros, and of AWQ's values, from r0 on */
    int64_t first_row;        /* stored row of c0 */
    uint32_t *values, *zeros; /* [stored rows, columns or ints], [G, ints] */
    void *scales;             /* [G, r1 - r0] */
    int32_t *group;           /* [C], of an input */
    /* Of a row of the matrix: */
    uint8_t *numbers;  /* of its inputs, from the first of first_row on */
    int32_t *row_zero; /* [G] */
    float *row_scale;  /* [G] */
};

static d9d_dtype scales_type(const struct band *b)
{
    return d9di_dequant_stored(b->p, SCALES)->dtype;
}

/* The stored columns of a place; rows [first, first + n) of `width` elements of `size` bytes. */
static d9di_dequant_columns columns_of(int64_t first, int64_t n, int64_t width, int64_t at,
                                       int64_t columns, size_t size)
{
    return (d9di_dequant_columns){.at = (uint64_t)(first * width + at) * size,
                                  .n = (uint64_t)columns * size,
                                  .stride = (uint64_t)width * size,
                                  .rows = n};
}

static d9di_dequant_columns values_of(const struct band *b)
{
    const layout *l = b->l;
    const int64_t per = l->by_input ? l->per : 1, last = (b->c1 - 1) / per;

    return l->by_input ? columns_of(b->first_row, last - b->first_row + 1, l->R, b->r0,
                                    b->r1 - b->r0, sizeof(uint32_t))
                       : columns_of(b->first_row, last - b->first_row + 1, l->R / l->per,
                                    b->first_int, b->ints, sizeof(uint32_t));
}

static d9di_dequant_columns zeros_of(const struct band *b)
{
    return columns_of(0, b->l->groups, b->l->R / b->l->per, b->first_int, b->ints,
                      sizeof(uint32_t));
}

static d9di_dequant_columns scales_of(const struct band *b)
{
    return columns_of(0, b->l->groups, b->l->R, b->r0, b->r1 - b->r0,
                      d9d_dtype_size(scales_type(b)));
}

/* Set what is read for the rows [r0, r1). */
static void band_limit(struct band *b, int64_t r0, int64_t r1)
{
    b->r0 = r0;
    b->r1 = r1;
    b->first_int = r0 / b->l->per;
    b->ints = (r1 - 1) / b->l->per + 1 - b->first_int;
    b->first_row = b->c0 / (b->l->by_input ? b->l->per : 1);
}

static d9d_status band_read(struct band *b)
{
    const d9di_dequant_columns values = values_of(b), zeros = zeros_of(b), scales = scales_of(b);

    D9D_TRY(d9di_dequant_read_columns(b->p, VALUES, &values, b->values));
    D9D_TRY(d9di_dequant_read_columns(b->p, ZEROS, &zeros, b->zeros));
    return d9di_dequant_read_columns(b->p, SCALES, &scales, b->scales);
}

/* Where a number of row r is among the int32 of a row from r0 on. */
typedef struct int_slot {
    int64_t at; /* of the int32 */
    int shift;
} int_slot;

static int_slot int_slot_of(const struct band *b, int64_t r)
{
    const int k = (int)(r % b->l->per);

    return (int_slot){.at = r / b->l->per - b->first_int,
                      .shift = b->l->bits * (b->l->by_input ? k : awq_place[k])};
}

/* Unpack the numbers of row r. */
static void row_unpack(const struct band *b, int64_t r)
{
    const layout *l = b->l;
    const uint32_t mask = (1u << l->bits) - 1;
    const int_slot at = int_slot_of(b, r);
    const int64_t width = b->r1 - b->r0, rows = (b->c1 - 1) / l->per + 1 - b->first_row;

    if (!l->by_input) {
        for (int64_t c = 0; c < b->c1 - b->c0; c++)
            b->numbers[c] = (uint8_t)(b->values[c * b->ints + at.at] >> at.shift & mask);
        return;
    }
    for (int64_t k = 0; k < rows; k++) {
        uint32_t v = b->values[k * width + r - b->r0];

        for (int i = 0; i < l->per; i++, v >>= l->bits)
            b->numbers[k * l->per + i] = (uint8_t)(v & mask);
    }
}

/* Set the zeros and the scales of row r. */
static void row_groups(const struct band *b, int64_t r)
{
    const uint32_t mask = (1u << b->l->bits) - 1, less = b->p->q->zeros_less ? 1 : 0;
    const d9d_dtype type = scales_type(b);
    const int_slot at = int_slot_of(b, r);
    const uint16_t *half = b->scales;
    const float *whole = b->scales;

    for (int64_t g = 0; g < b->l->groups; g++) {
        const int64_t i = g * (b->r1 - b->r0) + r - b->r0;

        b->row_zero[g] = (int32_t)(((b->zeros[g * b->ints + at.at] >> at.shift) + less) & mask);
        b->row_scale[g] = type == D9D_F32    ? whole[i]
                          : type == D9D_BF16 ? d9d_bf16_to_f32(half[i])
                                             : d9d_f16_to_f32(half[i]);
    }
}

/* Elements [c0, c1) of row r. */
static d9d_status row_decode(const struct band *b, int64_t r, void *dst)
{
    const uint8_t *numbers = b->numbers + (b->l->by_input ? b->c0 % b->l->per : 0);
    const int64_t n = b->c1 - b->c0;
    const d9d_dtype type = scales_type(b), to = b->p->decoded.dtype;
    float *f = dst;
    uint16_t *h = dst;

    row_unpack(b, r);
    row_groups(b, r);
    for (int64_t i = 0; i < n; i++) {
        const int32_t g = b->group[b->c0 + i];
        float x;

        if (g < 0 || g >= b->l->groups)
            return d9di_dequant_fail(b->p, GROUPS, "of groups that are there");
        x = d9di_dequant_round((float)((int32_t)numbers[i] - b->row_zero[g]) * b->row_scale[g],
                               type);
        if (to == D9D_F32)
            f[i] = x;
        else
            h[i] = d9d_bf16_from_f32(x);
    }
    return D9D_OK;
}

/* Elements [c0, c1) of rows [r0, r1), each whole unless there is one. */
static d9d_status rows_decode(struct band *b, int64_t r0, int64_t r1, unsigned char *dst)
{
    const int64_t bytes = (b->c1 - b->c0) * (int64_t)d9d_dtype_size(b->p->decoded.dtype);

    for (int64_t at = r0, end; at < r1; at = end) {
        end = (at / BAND + 1) * BAND < r1 ? (at / BAND + 1) * BAND : r1;
        band_limit(b, at, end);
        D9D_TRY(band_read(b));
        for (int64_t r = at; r < end; r++)
            D9D_TRY(row_decode(b, r, dst + (r - r0) * bytes));
    }
    return D9D_OK;
}

/* The group of each input. */
static d9d_status groups_read(struct band *b)
{
    const layout *l = b->l;

    if (d9di_dequant_has(b->p, GROUPS))
        return d9di_dequant_read(b->p, GROUPS, 0, b->group, (uint64_t)l->C * sizeof(*b->group));
    for (int64_t c = 0; c < l->C; c++)
        b->group[c] = (int32_t)(c / l->group);
    return D9D_OK;
}

/* Memory of the largest band that the inputs [0, C) need. */
static d9d_status band_alloc(struct band *b, d9d_arena *a)
{
    const layout *l = b->l;
    d9di_dequant_columns values, zeros, scales;

    b->c0 = 0;
    b->c1 = l->C;
    band_limit(b, 0, l->R < BAND ? l->R : BAND);
    values = values_of(b);
    zeros = zeros_of(b);
    scales = scales_of(b);
    b->values = d9d_arena_alloc(a, d9di_dequant_columns_bytes(&values));
    b->zeros = d9d_arena_alloc(a, d9di_dequant_columns_bytes(&zeros));
    b->scales = d9d_arena_alloc(a, d9di_dequant_columns_bytes(&scales));
    b->group = d9d_arena_alloc(a, (uint64_t)l->C * sizeof(*b->group));
    b->numbers = d9d_arena_alloc(a, (uint64_t)l->C);
    b->row_zero = d9d_arena_alloc(a, (uint64_t)l->groups * sizeof(*b->row_zero));
    b->row_scale = d9d_arena_alloc(a, (uint64_t)l->groups * sizeof(*b->row_scale));
    return b->values != NULL && b->zeros != NULL && b->scales != NULL && b->group != NULL &&
                   b->numbers != NULL && b->row_zero != NULL && b->row_scale != NULL
               ? groups_read(b)
               : d9di_dequant_no_memory(b->p);
}

/* A part of a row, then whole rows, then a part of one. */
static d9d_status parts_decode(struct band *b, uint64_t first, uint64_t n, unsigned char *dst)
{
    const uint64_t C = (uint64_t)b->l->C, width = d9d_dtype_size(b->p->decoded.dtype);

    while (n > 0) {
        const uint64_t row = first / C, at = first % C;
        const bool whole = at == 0 && n >= C;
        const uint64_t k = whole ? n / C * C : n < C - at ? n : C - at;

        b->c0 = (int64_t)at;
        b->c1 = whole ? (int64_t)C : (int64_t)(at + k);
        D9D_TRY(rows_decode(b, (int64_t)row, (int64_t)(whole ? row + k / C : row + 1), dst));
        first += k;
        n -= k;
        dst += k * width;
    }
    return D9D_OK;
}

static d9d_status read(const d9di_dequant_item *p, uint64_t first, uint64_t n, void *dst)
{
    struct band b = {.p = p, .l = p->state};
    d9d_arena a = {0};
    d9d_status st = band_alloc(&b, &a);

    if (st == D9D_OK)
        st = parts_decode(&b, first, n, dst);
    d9d_arena_release(&a);
    return st;
}

/* Columns are everywhere. */
static void span(const d9di_dequant_item *p, uint64_t first, uint64_t n, uint64_t *at,
                 uint64_t *bytes)
{
    (void)first, (void)n;
    *at = 0;
    *bytes = d9di_dequant_stored(p, VALUES)->bytes;
}

/* transformers, auto_gptq, GPTQModel, autoawq and AutoRound write these.  Those that the rules do
 * not have say how the weights were quantised, and how they are to be run. */
static const char *const members[] = {"act_group_aware",
                                      "amp",
                                      "autoround_version",
                                      "backend",
                                      "batch_size",
                                      "bits",
                                      "block_name_to_quantize",
                                      "cache_block_outputs",
                                      "checkpoint_format",
                                      "damp_auto_increment",
                                      "damp_percent",
                                      "data_type",
                                      "dataset",
                                      "desc_act",
                                      "disable_exllama",
                                      "do_fuse",
                                      "dynamic",
                                      "enable_minmax_tuning",
                                      "enable_norm_bias_tuning",
                                      "enable_quanted_input",
                                      "exllama_config",
                                      "format",
                                      "fuse_max_seq_len",
                                      "gradient_accumulate_steps",
                                      "group_size",
                                      "is_marlin_format",
                                      "iters",
                                      "lm_head",
                                      "low_gpu_mem_usage",
                                      "lr",
                                      "max_input_length",
                                      "meta",
                                      "minmax_lr",
                                      "model_file_base_name",
                                      "model_name_or_path",
                                      "model_seqlen",
                                      "module_name_preceding_first_block",
                                      "modules_in_block_to_quantize",
                                      "modules_to_fuse",
                                      "modules_to_not_convert",
                                      "mse",
                                      "nsamples",
                                      "pack_dtype",
                                      "pad_token_id",
                                      "quant_block_list",
                                      "quant_method",
                                      "quantizer",
                                      "scale_dtype",
                                      "seqlen",
                                      "static_groups",
                                      "sym",
                                      "tokenizer",
                                      "train_bs",
                                      "true_sequential",
                                      "use_cuda_fp16",
                                      "use_exllama",
                                      "version",
                                      "zero_point",
                                      NULL};
const d9di_dequant_method d9di_dequant_gptq = {
    .name = "gptq",
    .suffix =
        {[VALUES] = ".qweight", [SCALES] = ".scales", [ZEROS] = ".qzeros", [GROUPS] = ".g_idx"},
    .optional = 1u << GROUPS,
    .decoded = ".weight",
    .members = members,
    .configure = gptq_configure,
    .shape = gptq_shape,
    .read = read,
    .span = span};

const d9di_dequant_method d9di_dequant_awq = {
    .name = "awq",
    .suffix = {[VALUES] = ".qweight", [SCALES] = ".scales", [ZEROS] = ".qzeros"},
    .decoded = ".weight",
    .members = members,
    .configure = awq_configure,
    .shape = awq_shape,
    .read = read,
    .span = span};
