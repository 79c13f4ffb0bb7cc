/* dequant_mxfp4.c - MXFP4, as GPT-OSS has its experts.  See d9d/ckpt/quant/dequant.h.
 *
 * Of each expert R rows of G groups of 32 numbers are stored; decoded, the rows are columns:
 *
 *     X_blocks [E, R, G, 16], X_scales [E, R, G]   ->   X [E, 32 G, R]
 */
#include <stdlib.h>
#include <string.h>

#include "ckpt/quant/dequant_method.h"
#include "ckpt/quant/dequant_numbers.h"

enum {
    GROUP = 32,         /* numbers with one scale */
    PACKED = GROUP / 2, /* bytes of them */
    BAND = 64           /* stored rows that are decoded at a time */
};

static d9d_status shape(d9di_dequant_item *p, d9d_arena *a)
{
    const d9d_safetensors_tensor *v = d9di_dequant_stored(p, D9DI_DEQUANT_VALUES),
                                 *s = d9di_dequant_stored(p, D9DI_DEQUANT_SCALES);
    d9d_safetensors_tensor need = {.name = s->name, .dtype = D9D_U8, .ndim = 3};
    char text[D9D_SAFETENSORS_DESCRIBE];

    (void)a;
    if (v->dtype != D9D_U8 || v->ndim != 4 || v->shape[3] != PACKED ||
        v->shape[2] > INT64_MAX / GROUP)
        return d9di_dequant_fail(p, D9DI_DEQUANT_SCALES,
                                 "scales of blocks U8 [experts, rows, groups, 16]");
    memcpy(need.shape, v->shape, 3 * sizeof(need.shape[0]));
    if (s->dtype != D9D_U8 || s->ndim != 3 ||
        memcmp(s->shape, need.shape, 3 * sizeof(need.shape[0])) != 0)
        return d9di_dequant_fail(p, D9DI_DEQUANT_SCALES, d9d_safetensors_describe(&need, text));
    p->decoded.ndim = 3;
    p->decoded.shape[0] = v->shape[0];
    p->decoded.shape[1] = v->shape[2] * GROUP;
    p->decoded.shape[2] = v->shape[1];
    return D9D_OK;
}

/* --- numbers -------------------------------------------------------------------------- */

/* The sixteen numbers of a scale; they are made when a group first has it. */
typedef struct numbers {
    bool made[256];
    union {
        float f[256][16];
        uint16_t h[256][16];
    } of;
} numbers;

static void numbers_make(numbers *t, uint8_t scale, d9d_dtype to)
{
    const float of = d9di_dequant_e8m0(scale);

    for (int i = 0; i < 16; i++)
        if (to == D9D_F32)
            t->of.f[scale][i] = d9di_dequant_e2m1[i] * of;
        else
            t->of.h[scale][i] = d9d_bf16_from_f32(d9di_dequant_e2m1[i] * of);
    t->made[scale] = true;
}

/* --- one expert -------------------------------------------------------------------- */

/* The elements [first, end) of an expert's decoded matrix [32 G, R]. */
struct part {
    const d9di_dequant_item *p;
    int64_t expert, R, G;
    int64_t first, end;
    int64_t g0, g1, r0, r1; /* groups and rows that they are decoded of */
    unsigned char *dst;
    numbers *table;
    uint8_t *packed, *scales; /* of a band: [BAND, G, 16], [BAND, G]; groups from g0 on */
};

static d9d_status band_read(const struct part *x, int64_t r, int64_t rows)
{
    const uint64_t at = (uint64_t)((x->expert * x->R + r) * x->G + x->g0);
    const uint64_t n = (uint64_t)(x->g1 - x->g0), stride = (uint64_t)x->G;
    const d9di_dequant_columns values = {at * PACKED, n * PACKED, stride * PACKED, rows};
    const d9di_dequant_columns scales = {at, n, stride, rows};

    D9D_TRY(d9di_dequant_read_columns(x->p, D9DI_DEQUANT_VALUES, &values, x->packed));
    return d9di_dequant_read_columns(x->p, D9DI_DEQUANT_SCALES, &scales, x->scales);
}

/* A group of `rows` rows, as a tile [32, BAND]. */
#define DECODE_TILE(name, T, member)                                                               \
    static void name(const struct part *x, int64_t g, int64_t rows, T tile[GROUP][BAND])           \
    {                                                                                              \
        const int64_t groups = x->g1 - x->g0;                                                      \
                                                                                                   \
        for (int64_t r = 0; r < rows; r++) {                                                       \
            const uint8_t *v = x->packed + (r * groups + g - x->g0) * PACKED;                      \
            const uint8_t scale = x->scales[r * groups + g - x->g0];                               \
            const T *number = x->table->of.member[scale];                                          \
                                                                                                   \
            if (!x->table->made[scale])                                                            \
                numbers_make(x->table, scale, x->p->decoded.dtype);                                \
            for (int i = 0; i < PACKED; i++) {                                                     \
                tile[2 * i][r] = number[v[i] & 15];                                                \
                tile[2 * i + 1][r] = number[v[i] >> 4];                                            \
            }                                                                                      \
        }                                                                                          \
    }
DECODE_TILE(tile_f32, float, f)
DECODE_TILE(tile_bf16, uint16_t, h)

/* Copy what is asked for of a tile, the rows [r, r + rows) of group g. */
static void tile_copy(const struct part *x, int64_t g, int64_t r, int64_t rows, const void *tile)
{
    const int64_t width = (int64_t)d9d_dtype_size(x->p->decoded.dtype);

    for (int64_t i = 0; i < GROUP; i++) {
        const int64_t at = (g * GROUP + i) * x->R + r; /* of the first of them */
        const int64_t from = at > x->first ? at : x->first;
        const int64_t to = at + rows < x->end ? at + rows : x->end;

        if (from < to)
            memcpy(x->dst + (from - x->first) * width,
                   (const char *)tile + (i * BAND + from - at) * width,
                   (size_t)((to - from) * width));
    }
}

static void band_decode(const struct part *x, int64_t r, int64_t rows)
{
    union {
        float f[GROUP][BAND];
        uint16_t h[GROUP][BAND];
    } tile;

    for (int64_t g = x->g0; g < x->g1; g++) {
        if (x->p->decoded.dtype == D9D_F32)
            tile_f32(x, g, rows, tile.f);
        else
            tile_bf16(x, g, rows, tile.h);
        tile_copy(x, g, r, rows, &tile);
    }
}

/* Find the groups and rows of the elements [first, end). */
static void part_limit(struct part *x)
{
    const int64_t k0 = x->first / x->R, k1 = (x->end - 1) / x->R;

    x->g0 = k0 / GROUP;
    x->g1 = k1 / GROUP + 1;
    x->r0 = k0 == k1 ? x->first % x->R : 0;
    x->r1 = k0 == k1 ? (x->end - 1) % x->R + 1 : x->R;
}

static d9d_status part_decode(struct part *x)
{
    d9d_status st = D9D_OK;

    part_limit(x);
    for (int64_t r = x->r0; r < x->r1 && st == D9D_OK; r += BAND) {
        const int64_t rows = x->r1 - r < BAND ? x->r1 - r : BAND;

        st = band_read(x, r, rows);
        if (st == D9D_OK)
            band_decode(x, r, rows);
    }
    return st;
}

static d9d_status read(const d9di_dequant_item *p, uint64_t first, uint64_t n, void *dst)
{
    const d9d_safetensors_tensor *v = d9di_dequant_stored(p, D9DI_DEQUANT_VALUES);
    const uint64_t width = d9d_dtype_size(p->decoded.dtype);
    const uint64_t all = (uint64_t)(p->decoded.shape[1] * p->decoded.shape[2]); /* of an expert */
    const size_t band = (size_t)(BAND * v->shape[2]);
    struct part x = {.p = p, .R = v->shape[1], .G = v->shape[2], .dst = dst};
    uint8_t *memory = malloc(band * (PACKED + 1));
    numbers *table = calloc(1, sizeof(*table));
    d9d_status st = D9D_OK;

    if (memory == NULL || table == NULL)
        st = d9di_dequant_no_memory(p);
    x.table = table;
    x.packed = memory;
    x.scales = memory != NULL ? memory + band * PACKED : NULL;
    for (uint64_t at = first; at < first + n && st == D9D_OK;) {
        const uint64_t within = at % all;
        const uint64_t k = first + n - at < all - within ? first + n - at : all - within;

        x.expert = (int64_t)(at / all);
        x.first = (int64_t)within;
        x.end = (int64_t)(within + k);
        st = part_decode(&x);
        x.dst += k * width;
        at += k;
    }
    free(memory);
    free(table);
    return st;
}

/* Whole experts. */
static void span(const d9di_dequant_item *p, uint64_t first, uint64_t n, uint64_t *at,
                 uint64_t *bytes)
{
    const d9d_safetensors_tensor *v = d9di_dequant_stored(p, D9DI_DEQUANT_VALUES);
    const uint64_t all = (uint64_t)(p->decoded.shape[1] * p->decoded.shape[2]);
    const uint64_t expert = v->bytes / (uint64_t)v->shape[0];

    *at = first / all * expert;
    *bytes = ((first + n - 1) / all + 1) * expert - *at;
}

static const char *const members[] = {"quant_method", "modules_to_not_convert", "dequantize", NULL};
const d9di_dequant_method d9di_dequant_mxfp4 = {.name = "mxfp4",
                                                .suffix = {"_blocks", "_scales"},
                                                .members = members,
                                                .shape = shape,
                                                .read = read,
                                                .span = span};
