/* dequant_packed.c - integers of two, four or eight bits in int32, with a scale for each group of a
 * row: compressed-tensors' "pack-quantized", as Kimi K2 has its experts.  See
 * d9d/ckpt/quant/dequant.h.
 *
 *     X_packed I32 [R, C / per], X_scale [R, C / group],             ->   X [R, C]
 *     X_zero_point I32 [ceil(R / per), C / group] if asymmetric
 *
 * An int32 has `per` numbers of a row, but zeros of a column of groups.
 */
#include <string.h>

#include "ckpt/quant/dequant_codes.h"
#include "ckpt/quant/dequant_compressed.h"

enum {
    ZEROS = D9DI_DEQUANT_MORE, /* place */
    INT_BITS = 32
};

/* Rounded to the type of the scales, as compressed-tensors does. */
static void numbers(const d9di_dequant_item *p, float scale, int zero, float *out)
{
    const d9d_dtype type = d9di_dequant_stored(p, D9DI_DEQUANT_SCALES)->dtype;

    for (int i = 0; i < 1 << p->q->bits; i++)
        out[i] = d9di_dequant_round((float)(i - zero) * scale, type);
}

/* The zeros of one row's groups. */
static d9d_status row_zeros(const d9di_dequant_item *p, uint64_t row, uint64_t first, uint64_t n,
                            uint8_t *out)
{
    enum { SOME = 256 }; /* int32 that are read at a time */
    const uint64_t groups = (uint64_t)d9di_dequant_stored(p, ZEROS)->shape[1];
    const unsigned bits = (unsigned)p->q->bits, per = INT_BITS / bits;
    uint32_t ints[SOME];

    for (uint64_t done = 0, k; done < n; done += k) {
        k = n - done < SOME ? n - done : SOME;
        D9D_TRY(d9di_dequant_read(p, ZEROS, (row / per * groups + first + done) * sizeof(*ints),
                                  ints, k * sizeof(*ints)));
        for (uint64_t i = 0; i < k; i++)
            out[done + i] = (uint8_t)(ints[i] >> row % per * bits & ((1u << bits) - 1));
    }
    return D9D_OK;
}

static d9d_status zeros_read(const d9di_dequant_item *p, uint64_t first, uint64_t n, uint8_t *out)
{
    const uint64_t groups = (uint64_t)d9di_dequant_stored(p, ZEROS)->shape[1];

    for (uint64_t done = 0, k; done < n; done += k) {
        const uint64_t at = (first + done) % groups;

        k = n - done < groups - at ? n - done : groups - at;
        D9D_TRY(row_zeros(p, (first + done) / groups, at, k, out + done));
    }
    return D9D_OK;
}

#define INTEGERS                                                                                   \
    .values = D9D_I32, .need = "scales of a matrix of whole groups in I32",                        \
    .is_scale = d9di_dequant_is_float, .scale = D9D_BF16, .numbers = numbers
static const d9di_dequant_codes symmetric = {INTEGERS};
static const d9di_dequant_codes asymmetric = {INTEGERS, .zeros = zeros_read};

static d9d_status zeros_shape(d9di_dequant_item *p, d9d_arena *a)
{
    const d9d_safetensors_tensor *s = d9di_dequant_stored(p, D9DI_DEQUANT_SCALES),
                                 *z = d9di_dequant_stored(p, ZEROS);
    d9d_safetensors_tensor need = {.name = z->name, .dtype = D9D_I32, .ndim = 2};
    char text[D9D_SAFETENSORS_DESCRIBE];
    const int64_t per = INT_BITS / p->q->bits;

    D9D_TRY(d9di_dequant_codes_shape(p, a));
    need.shape[0] = s->shape[0] / per + (s->shape[0] % per != 0);
    need.shape[1] = s->shape[1];
    return z->dtype == D9D_I32 && z->ndim == 2 &&
                   memcmp(z->shape, need.shape, 2 * sizeof(need.shape[0])) == 0
               ? D9D_OK
               : d9di_dequant_fail(p, ZEROS, d9d_safetensors_describe(&need, text));
}

static bool is_symmetric(const json_t *o)
{
    return d9di_dequant_compressed_is(o, D9D_QUANTIZATION_PACKED);
}

static bool is_asymmetric(const json_t *o)
{
    return d9di_dequant_compressed_is(o, D9D_QUANTIZATION_PACKED_ZEROS);
}

const d9di_dequant_method d9di_dequant_packed = {.name = D9DI_DEQUANT_COMPRESSED,
                                                 .is_of = is_symmetric,
                                                 .suffix = {"_packed", "_scale"},
                                                 .hidden = d9di_dequant_compressed_hidden,
                                                 .members = d9di_dequant_compressed_members,
                                                 .configure = d9di_dequant_compressed_configure,
                                                 .codes = &symmetric,
                                                 .shape = d9di_dequant_codes_shape,
                                                 .read = d9di_dequant_codes_read,
                                                 .span = d9di_dequant_span_of_bits};

const d9di_dequant_method d9di_dequant_packed_zeros = {
    .name = D9DI_DEQUANT_COMPRESSED,
    .is_of = is_asymmetric,
    .suffix = {"_packed", "_scale", [ZEROS] = "_zero_point"},
    .hidden = d9di_dequant_compressed_activations,
    .members = d9di_dequant_compressed_members,
    .configure = d9di_dequant_compressed_configure,
    .codes = &asymmetric,
    .shape = zeros_shape,
    .read = d9di_dequant_codes_read,
    .span = d9di_dequant_span_of_bits};
