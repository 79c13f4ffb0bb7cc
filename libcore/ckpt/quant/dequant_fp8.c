/* dequant_fp8.c - FP8 (e4m3) with a float32 scale for each block of a matrix: DeepSeek V3, MiniMax,
 * Qwen3-FP8.  See d9d/ckpt/quant/dequant.h.
 *
 * R rows, C columns; a matrix may be one of several, [..., R, C], each with scales of its own.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/quant/dequant_method.h"

enum {
    RUN = 512,        /* elements that are decoded at a time */
    MAX_TABLES = 512, /* of a row of blocks */
    MIN_ROWS = 4,     /* of a span, for which tables are worth their memory */
    MAX_BLOCK = 1 << 20
};

/* --- the configuration -------------------------------------------------------------------------
 */

/* DeepSeek's name of the type, and torch's, which MiniMax has. */
static bool is_e4m3(const json_t *fmt)
{
    const char *word = json_string_value(fmt);

    return word != NULL && (strcmp(word, "e4m3") == 0 || strcmp(word, "float8_e4m3fn") == 0);
}

static d9d_status configure(const json_t *o, const char *where, d9d_quantization *q)
{
    const json_t *block = json_object_get(o, "weight_block_size");
    const json_t *fmt = json_object_get(o, "fmt");

    if (fmt != NULL && !json_is_null(fmt) && !is_e4m3(fmt))
        return D9D_FAIL(D9D_ENOTSUP, "%s: " D9D_QUANTIZATION_FIELD ".fmt: must be \"e4m3\"", where);
    if (block == NULL || json_is_null(block))
        return D9D_OK;
    for (size_t i = 0; i < 2; i++) {
        const json_t *v = json_array_get(block, i);

        q->block[i] = json_integer_value(v);
        if (json_array_size(block) != 2 || !json_is_integer(v) || q->block[i] < 1 ||
            q->block[i] > MAX_BLOCK)
            return D9D_FAIL(D9D_ECONFIG,
                            "%s: " D9D_QUANTIZATION_FIELD
                            ".weight_block_size: must be two numbers of elements, such as [128, "
                            "128]",
                            where);
    }
    return D9D_OK;
}

/* --- shapes ------------------------------------------------------------------------------------
 */

/* The scales [rows, columns] of each of the matrices [R, C]. */
struct grid {
    int64_t R, C;
    int64_t block_rows, block_columns;
    int64_t rows, columns;
};

static struct grid grid_of(const d9di_dequant_pair *p)
{
    const d9d_safetensors_tensor *v = d9di_dequant_values(p);
    struct grid g = {.R = v->shape[v->ndim - 2], .C = v->shape[v->ndim - 1]};

    g.block_rows = p->block[0] > 0 ? p->block[0] : g.R > 0 ? g.R : 1;
    g.block_columns = p->block[1] > 0 ? p->block[1] : g.C > 0 ? g.C : 1;
    g.rows = (g.R + g.block_rows - 1) / g.block_rows;
    g.columns = (g.C + g.block_columns - 1) / g.block_columns;
    return g;
}

/* The shape that the scales must have. */
static int scale_shape(const d9di_dequant_pair *p, int64_t shape[D9D_MAX_DIMS])
{
    const d9d_safetensors_tensor *v = d9di_dequant_values(p);
    const struct grid g = grid_of(p);

    memcpy(shape, v->shape, sizeof(v->shape));
    shape[v->ndim - 2] = g.rows;
    shape[v->ndim - 1] = g.columns;
    return v->ndim;
}

/* One scale of a matrix may be written without dimensions, or with one. */
static bool is_one_scale(const d9di_dequant_pair *p)
{
    const d9d_safetensors_tensor *v = d9di_dequant_values(p), *s = d9di_dequant_scales(p);

    return p->block[0] == 0 && v->ndim == 2 && (s->ndim == 0 || (s->ndim == 1 && s->shape[0] == 1));
}

static d9d_status shape(d9di_dequant_pair *p)
{
    const d9d_safetensors_tensor *v = d9di_dequant_values(p), *s = d9di_dequant_scales(p);
    d9d_safetensors_tensor need = {.name = s->name, .dtype = D9D_F32};
    char text[D9D_SAFETENSORS_DESCRIBE];

    if (v->dtype != D9D_F8_E4M3 || v->ndim < 2)
        return d9di_dequant_fail_pair(p, "scales of a matrix in F8_E4M3");
    need.ndim = scale_shape(p, need.shape);
    if ((s->dtype != D9D_F32 && s->dtype != D9D_BF16) ||
        (!is_one_scale(p) &&
         (s->ndim != need.ndim ||
          memcmp(s->shape, need.shape, (size_t)need.ndim * sizeof(need.shape[0])) != 0)))
        return d9di_dequant_fail_pair(p, d9d_safetensors_describe(&need, text));
    p->decoded.ndim = v->ndim;
    memcpy(p->decoded.shape, v->shape, sizeof(v->shape));
    return D9D_OK;
}

/* --- decoding ----------------------------------------------------------------------------------
 */

/* The numbers by their bits: sign, four bits of exponent with bias 7, three of mantissa.  All ones
 * are NaN; there is no infinity. */
#define EIGHTHS(x) 8 * (x), 9 * (x), 10 * (x), 11 * (x), 12 * (x), 13 * (x), 14 * (x), 15 * (x)
static const float magnitudes[128] = {
    0,
    0x1p-9f,
    2 * 0x1p-9f,
    3 * 0x1p-9f,
    4 * 0x1p-9f,
    5 * 0x1p-9f,
    6 * 0x1p-9f,
    7 * 0x1p-9f,
    EIGHTHS(0x1p-9f),
    EIGHTHS(0x1p-8f),
    EIGHTHS(0x1p-7f),
    EIGHTHS(0x1p-6f),
    EIGHTHS(0x1p-5f),
    EIGHTHS(0x1p-4f),
    EIGHTHS(0x1p-3f),
    EIGHTHS(0x1p-2f),
    EIGHTHS(0x1p-1f),
    EIGHTHS(1.f),
    EIGHTHS(2.f),
    EIGHTHS(4.f),
    EIGHTHS(8.f),
    EIGHTHS(16.f),
    256,
    288,
    320,
    352,
    384,
    416,
    448,
    NAN,
};

/* What each of the 256 bit patterns is in a block of this scale. */
typedef union table {
    float f[256];
    uint16_t h[256];
} table;

static void table_fill(table *t, d9d_dtype to, float scale)
{
    for (int i = 0; i < 128; i++) {
        const float x = magnitudes[i] * scale, y = -magnitudes[i] * scale;

        if (to == D9D_F32) {
            t->f[i] = x;
            t->f[i + 128] = y;
        } else {
            t->h[i] = d9d_bf16_from_f32(x);
            t->h[i + 128] = d9d_bf16_from_f32(y);
        }
    }
}

/* A span that is decoded in place: the packed numbers are at the end of the destination, where
 * reading is ahead of writing. */
struct span {
    d9d_dtype to;
    const uint8_t *packed;
    unsigned char *dst;
};

static void decode_run(struct span *s, size_t n, const table *t)
{
    uint8_t v[RUN];

    for (size_t at = 0, k; at < n; at += k) {
        float *f = (float *)(void *)s->dst;
        uint16_t *h = (uint16_t *)(void *)s->dst;

        k = n - at < RUN ? n - at : RUN;
        memcpy(v, s->packed, k);
        for (size_t i = 0; s->to == D9D_F32 && i < k; i++)
            f[i] = t->f[v[i]];
        for (size_t i = 0; s->to != D9D_F32 && i < k; i++)
            h[i] = t->h[v[i]];
        s->packed += k;
        s->dst += k * d9d_dtype_size(s->to);
    }
}

/* Decode n elements from column `column` of a row on, within rows of the same scales.  `tables`:
 * those of all blocks; NULL: one is made for each run. */
static void decode_rows(struct span *s, const struct grid *g, const float *scales,
                        const table *tables, int64_t column, uint64_t n)
{
    table own;

    while (n > 0) {
        const int64_t block = column / g->block_columns, end = (block + 1) * g->block_columns;
        const uint64_t left = (uint64_t)((end < g->C ? end : g->C) - column);
        const uint64_t k = n < left ? n : left;

        if (tables == NULL)
            table_fill(&own, s->to, scales[block]);
        decode_run(s, (size_t)k, tables != NULL ? &tables[block] : &own);
        column = column + (int64_t)k == g->C ? 0 : column + (int64_t)k;
        n -= k;
    }
}

static d9d_status bands_decode(const d9di_dequant_pair *p, const struct grid *g, uint64_t first,
                               uint64_t n, struct span *s, float *scales, table *tables)
{
    while (n > 0) {
        const int64_t row = (int64_t)(first / (uint64_t)g->C);
        const int64_t column = (int64_t)(first % (uint64_t)g->C);
        const int64_t within = row % g->R, block = within / g->block_rows;
        const int64_t end = (block + 1) * g->block_rows;
        const uint64_t left = (uint64_t)(((end < g->R ? end : g->R) - within) * g->C - column);
        const uint64_t k = n < left ? n : left;

        D9D_TRY(d9di_dequant_read_scales(p, (uint64_t)((row / g->R * g->rows + block) * g->columns),
                                         (uint64_t)g->columns, scales));
        for (int64_t c = 0; tables != NULL && c < g->columns; c++)
            table_fill(&tables[c], s->to, scales[c]);
        decode_rows(s, g, scales, tables, column, k);
        first += k;
        n -= k;
    }
    return D9D_OK;
}

/* Memory for a row of scales and, if the span has several rows, for a table of each. */
static d9d_status memory_alloc(const d9di_dequant_pair *p, const struct grid *g, uint64_t n,
                               float **scales, table **tables)
{
    const size_t k = (size_t)g->columns;
    const bool few = g->columns <= MAX_TABLES && n >= MIN_ROWS * (uint64_t)g->C;

    *scales = malloc(k * sizeof(**scales));
    *tables = few ? malloc(k * sizeof(**tables)) : NULL;
    return *scales != NULL && (!few || *tables != NULL)
               ? D9D_OK
               : D9D_FAIL(D9D_ENOMEM, "tensor %s: no memory for %lld scales", p->decoded.name,
                          (long long)g->columns);
}

static d9d_status read(const d9di_dequant_pair *p, uint64_t first, uint64_t n, void *dst)
{
    const struct grid g = grid_of(p);
    const uint64_t width = d9d_dtype_size(p->decoded.dtype);
    unsigned char *packed = (unsigned char *)dst + n * (width - 1);
    struct span s = {p->decoded.dtype, packed, dst};
    float *scales;
    table *tables;
    d9d_status st = memory_alloc(p, &g, n, &scales, &tables);

    if (st == D9D_OK)
        st = p->src->read(p->src->self, p->values, first, packed, n);
    if (st == D9D_OK)
        st = bands_decode(p, &g, first, n, &s, scales, tables);
    free(scales);
    free(tables);
    return st;
}

static void span(const d9di_dequant_pair *p, uint64_t first, uint64_t n, uint64_t *at,
                 uint64_t *bytes)
{
    (void)p;
    *at = first;
    *bytes = n;
}

static bool is_values(d9d_dtype type)
{
    return type == D9D_F8_E4M3 || type == D9D_F8_E5M2;
}

static const char *const hidden[] = {".input_scale", ".activation_scale", NULL};
static const char *const members[] = {"quant_method",
                                      "fmt",
                                      "weight_block_size",
                                      "activation_scheme",
                                      "modules_to_not_convert",
                                      "ignored_layers",
                                      "scale_fmt",
                                      "dequantize",
                                      NULL};
const d9di_dequant_method d9di_dequant_fp8 = {.name = "fp8",
                                              .values = "",
                                              .scales = "_scale_inv",
                                              .hidden = hidden,
                                              .members = members,
                                              .is_values = is_values,
                                              .configure = configure,
                                              .shape = shape,
                                              .read = read,
                                              .span = span};
