/* dequant_codes.c - see ckpt/quant/dequant_codes.h. */
#include "ckpt/quant/dequant_codes.h"

#include <stdlib.h>
#include <string.h>

enum {
    RUN = 1 << 15, /* numbers that are decoded at a time */
    MIN_GROUP = 4  /* what an int32 has of the widest codes */
};

/* --- shapes ----------------------------------------------------------------------------------- */

/* Is it a matrix of whole groups?  Set the codes of a stored element. */
static bool is_whole(const d9di_dequant_item *p, int64_t *per)
{
    const d9d_safetensors_tensor *v = d9di_dequant_stored(p, D9DI_DEQUANT_VALUES);
    const d9di_dequant_codes *c = p->method->codes;

    *per = (int64_t)d9d_dtype_size(c->values) * 8 / p->q->bits;
    return v->dtype == c->values && v->ndim == 2 && v->shape[1] <= INT64_MAX / *per &&
           v->shape[1] * *per % (p->block[1] > 0 ? p->block[1] : 1) == 0;
}

d9d_status d9di_dequant_codes_shape(d9di_dequant_item *p, d9d_arena *a)
{
    const d9di_dequant_codes *c = p->method->codes;
    const d9d_safetensors_tensor *v = d9di_dequant_stored(p, D9DI_DEQUANT_VALUES),
                                 *s = d9di_dequant_stored(p, D9DI_DEQUANT_SCALES);
    d9d_safetensors_tensor need = {.name = s->name, .dtype = c->scale, .ndim = 2};
    char text[D9D_SAFETENSORS_DESCRIBE];
    int64_t per, columns;

    (void)a;
    if (!is_whole(p, &per))
        return d9di_dequant_fail(p, D9DI_DEQUANT_SCALES, c->need);
    columns = v->shape[1] * per;
    if (p->block[1] == 0) /* a scale for each row */
        p->block[1] = columns > 0 ? columns : per;
    need.shape[0] = v->shape[0];
    need.shape[1] = columns / p->block[1];
    if (!c->is_scale(s->dtype) || s->ndim != 2 ||
        memcmp(s->shape, need.shape, 2 * sizeof(need.shape[0])) != 0)
        return d9di_dequant_fail(p, D9DI_DEQUANT_SCALES, d9d_safetensors_describe(&need, text));
    p->decoded.ndim = 2;
    p->decoded.shape[0] = v->shape[0];
    p->decoded.shape[1] = columns;
    return D9D_OK;
}

/* --- decoding --------------------------------------------------------------------------------- */

/* What the codes of a group mean. */
typedef union numbers {
    float f[D9DI_DEQUANT_CODES];
    uint16_t h[D9DI_DEQUANT_CODES];
} numbers;

/* What a run is decoded of.  Groups and rows are whole, so numbers are counted through the matrix.
 */
struct run {
    uint8_t packed[RUN + 1];
    float scales[RUN / MIN_GROUP + 2];
    uint8_t zeros[RUN / MIN_GROUP + 2];
};

static d9d_status run_read(const d9di_dequant_item *p, uint64_t first, uint64_t n, struct run *r)
{
    const d9di_dequant_codes *c = p->method->codes;
    const uint64_t group = (uint64_t)p->block[1], base = first / group;
    const uint64_t groups = (first + n - 1) / group - base + 1;
    uint64_t at, bytes;

    d9di_dequant_span_of_bits(p, first, n, &at, &bytes);
    D9D_TRY(d9di_dequant_read(p, D9DI_DEQUANT_VALUES, at, r->packed, bytes));
    D9D_TRY(c->scales != NULL
                ? c->scales(p, base, groups, r->scales)
                : d9di_dequant_read_floats(p, D9DI_DEQUANT_SCALES, base, groups, r->scales));
    if (c->zeros != NULL)
        return c->zeros(p, base, groups, r->zeros);
    memset(r->zeros, 1 << (p->q->bits - 1), groups);
    return D9D_OK;
}

static void numbers_make(const d9di_dequant_item *p, float scale, int zero, numbers *t)
{
    p->method->codes->numbers(p, scale, zero, t->f);
    for (int i = 0; p->decoded.dtype != D9D_F32 && i < 1 << p->q->bits; i++)
        t->h[i] = d9d_bf16_from_f32(t->f[i]); /* where no later f lies */
}

/* Decode n numbers of one group, the first of them at bit `bit` of the packed ones. */
static void group_decode(const d9di_dequant_item *p, const uint8_t *packed, uint64_t bit,
                         uint64_t n, const numbers *t, void *dst)
{
    const unsigned bits = (unsigned)p->q->bits, mask = (1u << bits) - 1;

    for (uint64_t i = 0; i < n; i++, bit += bits) {
        const unsigned code = packed[bit / 8] >> bit % 8 & mask;

        if (p->decoded.dtype == D9D_F32)
            ((float *)dst)[i] = t->f[code];
        else
            ((uint16_t *)dst)[i] = t->h[code];
    }
}

static void run_decode(const d9di_dequant_item *p, const struct run *r, uint64_t first, uint64_t n,
                       char *dst)
{
    const uint64_t group = (uint64_t)p->block[1], base = first / group, end = first + n;
    const uint64_t bits = (uint64_t)p->q->bits, start = first * bits / 8 * 8;
    numbers t;

    for (uint64_t at = first, k; at < end; at += k) {
        const uint64_t g = at / group;

        k = (g + 1) * group < end ? (g + 1) * group - at : end - at;
        numbers_make(p, r->scales[g - base], r->zeros[g - base], &t);
        group_decode(p, r->packed, at * bits - start, k, &t,
                     dst + (at - first) * d9d_dtype_size(p->decoded.dtype));
    }
}

d9d_status d9di_dequant_codes_read(const d9di_dequant_item *p, uint64_t first, uint64_t n,
                                   void *dst)
{
    const uint64_t width = d9d_dtype_size(p->decoded.dtype);
    struct run *r = malloc(sizeof(*r));
    d9d_status st = D9D_OK;

    if (r == NULL)
        return d9di_dequant_no_memory(p);
    for (uint64_t done = 0, k; done < n && st == D9D_OK; done += k) {
        k = n - done < RUN ? n - done : RUN;
        st = run_read(p, first + done, k, r);
        if (st == D9D_OK)
            run_decode(p, r, first + done, k, (char *)dst + done * width);
    }
    free(r);
    return st;
}
