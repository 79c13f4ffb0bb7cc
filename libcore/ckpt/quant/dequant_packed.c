/* dequant_packed.c - integers of four bits, eight to an int32, with a scale for each group of a
 * row: compressed-tensors' "pack-quantized", as Kimi K2 has its experts.  See
 * d9d/ckpt/quant/dequant.h.
 *
 *     X_packed I32 [R, C / 8], X_scale [R, C / group]   ->   X [R, C]
 */
#include <stdlib.h>
#include <string.h>

#include "ckpt/quant/dequant_compressed.h"

enum {
    PER_INT = 8,  /* numbers of an int32, the lowest bits first */
    RUN = 1 << 15 /* numbers that are decoded at a time */
};

/* --- shapes ----------------------------------------------------------------------------------- */

static d9d_status shape(d9di_dequant_item *p, d9d_arena *a)
{
    const d9d_safetensors_tensor *v = d9di_dequant_stored(p, D9DI_DEQUANT_VALUES),
                                 *s = d9di_dequant_stored(p, D9DI_DEQUANT_SCALES);
    d9d_safetensors_tensor need = {.name = s->name, .dtype = D9D_BF16, .ndim = 2};
    char text[D9D_SAFETENSORS_DESCRIBE];

    (void)a;
    if (p->block[1] == 0 && v->ndim == 2) /* a scale for each row */
        p->block[1] =
            v->shape[1] > 0 && v->shape[1] < INT64_MAX / PER_INT ? v->shape[1] * PER_INT : PER_INT;
    if (v->dtype != D9D_I32 || v->ndim != 2 || v->shape[1] > INT64_MAX / PER_INT ||
        v->shape[1] * PER_INT % p->block[1] != 0)
        return d9di_dequant_fail(p, D9DI_DEQUANT_SCALES,
                                 "scales of a matrix of whole groups, eight numbers an I32");
    need.shape[0] = v->shape[0];
    need.shape[1] = v->shape[1] * PER_INT / p->block[1];
    if (!d9di_dequant_is_float(s->dtype) || s->ndim != 2 ||
        memcmp(s->shape, need.shape, 2 * sizeof(need.shape[0])) != 0)
        return d9di_dequant_fail(p, D9DI_DEQUANT_SCALES, d9d_safetensors_describe(&need, text));
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

static void numbers_make(numbers *t, float scale, d9d_dtype type, d9d_dtype to)
{
    for (int i = 0; i < 16; i++) {
        const float x = d9di_dequant_round((float)(i - 8) * scale, type);

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

static void run_decode(const d9di_dequant_item *p, const struct run *r, uint64_t first, uint64_t n,
                       void *dst)
{
    const uint64_t group = (uint64_t)p->block[1], base = first / group;
    const d9d_dtype type = d9di_dequant_stored(p, D9DI_DEQUANT_SCALES)->dtype;
    uint64_t made = UINT64_MAX;
    numbers t;

    for (uint64_t i = 0; i < n; i++) {
        const uint64_t at = first + i;
        const uint8_t byte = r->packed[at / 2 - first / 2];
        const int number = at % 2 == 0 ? byte & 15 : byte >> 4;

        if (at / group != made)
            numbers_make(&t, r->scales[at / group - base], type, p->decoded.dtype);
        made = at / group;
        if (p->decoded.dtype == D9D_F32)
            ((float *)dst)[i] = t.f[number];
        else
            ((uint16_t *)dst)[i] = t.h[number];
    }
}

static d9d_status read(const d9di_dequant_item *p, uint64_t first, uint64_t n, void *dst)
{
    const uint64_t group = (uint64_t)p->block[1], width = d9d_dtype_size(p->decoded.dtype);
    struct run *r = malloc(sizeof(*r));
    d9d_status st = r != NULL ? D9D_OK : d9di_dequant_no_memory(p);

    for (uint64_t done = 0, k; done < n && st == D9D_OK; done += k) {
        const uint64_t from = first + done, base = from / group;
        uint64_t at, bytes;

        k = n - done < RUN ? n - done : RUN;
        d9di_dequant_span_of_pairs(p, from, k, &at, &bytes);
        st = d9di_dequant_read(p, D9DI_DEQUANT_VALUES, at, r->packed, bytes);
        if (st == D9D_OK)
            st = d9di_dequant_read_floats(p, D9DI_DEQUANT_SCALES, base,
                                          (from + k - 1) / group - base + 1, r->scales);
        if (st == D9D_OK)
            run_decode(p, r, from, k, (char *)dst + done * width);
    }
    free(r);
    return st;
}

static bool is_of(const json_t *o)
{
    return d9di_dequant_compressed_is(o, D9D_QUANTIZATION_PACKED);
}

const d9di_dequant_method d9di_dequant_packed = {.name = D9DI_DEQUANT_COMPRESSED,
                                                 .is_of = is_of,
                                                 .suffix = {"_packed", "_scale"},
                                                 .hidden = d9di_dequant_compressed_hidden,
                                                 .members = d9di_dequant_compressed_members,
                                                 .configure = d9di_dequant_compressed_configure,
                                                 .shape = shape,
                                                 .read = read,
                                                 .span = d9di_dequant_span_of_pairs};
