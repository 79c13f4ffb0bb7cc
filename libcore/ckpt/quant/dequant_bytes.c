/* dequant_bytes.c - see ckpt/quant/dequant_bytes.h. */
#include "ckpt/quant/dequant_bytes.h"

#include <stdlib.h>
#include <string.h>

enum {
    RUN = 512,        /* elements that are decoded at a time */
    MAX_TABLES = 512, /* of a row of blocks */
    MIN_ROWS = 4      /* of a span, for which tables are worth their memory */
};

/* --- shapes ------------------------------------------------------------------------------------
 */

d9di_dequant_grid d9di_dequant_grid_of(const d9di_dequant_item *p)
{
    const d9d_safetensors_tensor *v = d9di_dequant_stored(p, D9DI_DEQUANT_VALUES);
    d9di_dequant_grid g = {.R = v->shape[v->ndim - 2], .C = v->shape[v->ndim - 1]};

    g.block_rows = p->block[0] > 0 ? p->block[0] : g.R > 0 ? g.R : 1;
    g.block_columns = p->block[1] > 0 ? p->block[1] : g.C > 0 ? g.C : 1;
    g.rows = (g.R + g.block_rows - 1) / g.block_rows;
    g.columns = (g.C + g.block_columns - 1) / g.block_columns;
    return g;
}

/* The shape that the scales must have. */
static int scale_shape(const d9di_dequant_item *p, int64_t shape[D9D_MAX_DIMS])
{
    const d9d_safetensors_tensor *v = d9di_dequant_stored(p, D9DI_DEQUANT_VALUES);
    const d9di_dequant_grid g = d9di_dequant_grid_of(p);

    memcpy(shape, v->shape, sizeof(v->shape));
    shape[v->ndim - 2] = g.rows;
    shape[v->ndim - 1] = g.columns;
    return v->ndim;
}

/* One scale of a matrix may be written without dimensions, or with one. */
static bool is_one_scale(const d9di_dequant_item *p)
{
    const d9d_safetensors_tensor *v = d9di_dequant_stored(p, D9DI_DEQUANT_VALUES),
                                 *s = d9di_dequant_stored(p, D9DI_DEQUANT_SCALES);

    return p->block[0] == 0 && v->ndim == 2 && (s->ndim == 0 || (s->ndim == 1 && s->shape[0] == 1));
}

d9d_status d9di_dequant_bytes_shape(d9di_dequant_item *p, d9d_arena *a)
{
    const d9d_safetensors_tensor *v = d9di_dequant_stored(p, D9DI_DEQUANT_VALUES),
                                 *s = d9di_dequant_stored(p, D9DI_DEQUANT_SCALES);
    d9d_safetensors_tensor need = {.name = s->name, .dtype = D9D_F32};
    char text[D9D_SAFETENSORS_DESCRIBE];

    (void)a;
    if (v->ndim < 2)
        return d9di_dequant_fail(p, D9DI_DEQUANT_SCALES, "scales of a matrix");
    need.ndim = scale_shape(p, need.shape);
    if (!d9di_dequant_is_float(s->dtype) ||
        (!is_one_scale(p) &&
         (s->ndim != need.ndim ||
          memcmp(s->shape, need.shape, (size_t)need.ndim * sizeof(need.shape[0])) != 0)))
        return d9di_dequant_fail(p, D9DI_DEQUANT_SCALES, d9d_safetensors_describe(&need, text));
    p->decoded.ndim = v->ndim;
    memcpy(p->decoded.shape, v->shape, sizeof(v->shape));
    return D9D_OK;
}

d9d_status d9di_dequant_fp8_shape(d9di_dequant_item *p, d9d_arena *a)
{
    const d9d_safetensors_tensor *v = d9di_dequant_stored(p, D9DI_DEQUANT_VALUES);

    if (v->dtype != D9D_F8_E4M3 || v->ndim < 2)
        return d9di_dequant_fail(p, D9DI_DEQUANT_SCALES, "scales of a matrix in F8_E4M3");
    return d9di_dequant_bytes_shape(p, a);
}

bool d9di_dequant_is_fp8(d9d_dtype type)
{
    return type == D9D_F8_E4M3 || type == D9D_F8_E5M2;
}

/* --- decoding ----------------------------------------------------------------------------------
 */

/* What each of the 256 bytes is in a block of some scale. */
typedef union table {
    float f[256];
    uint16_t h[256];
} table;

/* A span that is decoded in place: the packed numbers are at the end of the destination, where
 * reading is ahead of writing. */
struct span {
    const d9di_dequant_item *p;
    d9d_dtype to;
    const uint8_t *packed;
    unsigned char *dst;
};

static void table_fill(table *t, const struct span *s, float scale)
{
    float x[256];

    s->p->method->bytes(s->p, scale, s->to == D9D_F32 ? t->f : x);
    for (int i = 0; s->to != D9D_F32 && i < 256; i++)
        t->h[i] = d9d_bf16_from_f32(x[i]);
}

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
static void decode_rows(struct span *s, const d9di_dequant_grid *g, const float *scales,
                        const table *tables, int64_t column, uint64_t n)
{
    table own;

    while (n > 0) {
        const int64_t block = column / g->block_columns, end = (block + 1) * g->block_columns;
        const uint64_t left = (uint64_t)((end < g->C ? end : g->C) - column);
        const uint64_t k = n < left ? n : left;

        if (tables == NULL)
            table_fill(&own, s, scales[block]);
        decode_run(s, (size_t)k, tables != NULL ? &tables[block] : &own);
        column = column + (int64_t)k == g->C ? 0 : column + (int64_t)k;
        n -= k;
    }
}

static d9d_status bands_decode(const d9di_dequant_item *p, const d9di_dequant_grid *g,
                               uint64_t first, uint64_t n, struct span *s, float *scales,
                               table *tables)
{
    while (n > 0) {
        const int64_t row = (int64_t)(first / (uint64_t)g->C);
        const int64_t column = (int64_t)(first % (uint64_t)g->C);
        const int64_t within = row % g->R, block = within / g->block_rows;
        const int64_t end = (block + 1) * g->block_rows;
        const uint64_t left = (uint64_t)(((end < g->R ? end : g->R) - within) * g->C - column);
        const uint64_t k = n < left ? n : left;

        D9D_TRY(d9di_dequant_read_floats(p, D9DI_DEQUANT_SCALES,
                                         (uint64_t)((row / g->R * g->rows + block) * g->columns),
                                         (uint64_t)g->columns, scales));
        for (int64_t c = 0; tables != NULL && c < g->columns; c++)
            table_fill(&tables[c], s, scales[c]);
        decode_rows(s, g, scales, tables, column, k);
        first += k;
        n -= k;
    }
    return D9D_OK;
}

/* Memory for a row of scales and, if the span has several rows, for a table of each. */
static d9d_status memory_alloc(const d9di_dequant_item *p, const d9di_dequant_grid *g, uint64_t n,
                               float **scales, table **tables)
{
    const size_t k = (size_t)g->columns;
    const bool few = g->columns <= MAX_TABLES && n >= MIN_ROWS * (uint64_t)g->C;

    *scales = malloc(k * sizeof(**scales));
    *tables = few ? malloc(k * sizeof(**tables)) : NULL;
    return *scales != NULL && (!few || *tables != NULL) ? D9D_OK : d9di_dequant_no_memory(p);
}

d9d_status d9di_dequant_bytes_read(const d9di_dequant_item *p, uint64_t first, uint64_t n,
                                   void *dst)
{
    const d9di_dequant_grid g = d9di_dequant_grid_of(p);
    const uint64_t width = d9d_dtype_size(p->decoded.dtype);
    unsigned char *packed = (unsigned char *)dst + n * (width - 1);
    struct span s = {p, p->decoded.dtype, packed, dst};
    float *scales;
    table *tables;
    d9d_status st = memory_alloc(p, &g, n, &scales, &tables);

    if (st == D9D_OK)
        st = d9di_dequant_read(p, D9DI_DEQUANT_VALUES, first, packed, n);
    if (st == D9D_OK)
        st = bands_decode(p, &g, first, n, &s, scales, tables);
    free(scales);
    free(tables);
    return st;
}

void d9di_dequant_bytes_product(const d9di_dequant_item *p, float scale, float out[256])
{
    const d9d_dtype type = d9di_dequant_stored(p, D9DI_DEQUANT_VALUES)->dtype;

    for (int i = 0; i < 256; i++)
        out[i] = d9di_dequant_byte(type, i) * scale;
}

void d9di_dequant_bytes_span(const d9di_dequant_item *p, uint64_t first, uint64_t n, uint64_t *at,
                             uint64_t *bytes)
{
    (void)p;
    *at = first;
    *bytes = n;
}
