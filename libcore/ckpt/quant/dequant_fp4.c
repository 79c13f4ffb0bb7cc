/* dequant_fp4.c - FP4 (e2m1), two numbers a byte, with a scale for each group of a row.  See
 * d9d/ckpt/quant/dequant.h.
 *
 *     NVFP4 of compressed-tensors  X_packed U8 [R, C / 2], X_scale F8_E4M3 [R, C / 16],
 *                                  X_global_scale F32 [1], which scales are divided by
 *     MXFP4 of compressed-tensors  X_packed U8 [R, C / 2], X_scale U8 [R, C / 32], exponents
 *     NVFP4 of modelopt            X U8 [R, C / 2], X_scale F8_E4M3 [R, C / 16], X_scale_2 F32 [],
 *                                  which scales are multiplied by
 */
#include "ckpt/quant/dequant_codes.h"
#include "ckpt/quant/dequant_compressed.h"
#include "ckpt/quant/dequant_modelopt.h"
#include "ckpt/quant/dequant_numbers.h"

enum { GLOBAL = D9DI_DEQUANT_MORE /* place of the matrix's scale */ };

/* --- scales ----------------------------------------------------------------------------------- */

static bool is_e4m3(d9d_dtype type)
{
    return type == D9D_F8_E4M3;
}

static bool is_exponent(d9d_dtype type)
{
    return type == D9D_U8;
}

/* Scales of groups, and the matrix's. */
static d9d_status both_read(const d9di_dequant_item *p, uint64_t first, uint64_t n, float *out,
                            float *global)
{
    D9D_TRY(d9di_dequant_read_floats(p, GLOBAL, 0, 1, global));
    return d9di_dequant_read_floats(p, D9DI_DEQUANT_SCALES, first, n, out);
}

static d9d_status quotients_read(const d9di_dequant_item *p, uint64_t first, uint64_t n, float *out)
{
    float global;

    D9D_TRY(both_read(p, first, n, out, &global));
    for (uint64_t i = 0; i < n; i++)
        out[i] /= global;
    return D9D_OK;
}

static d9d_status products_read(const d9di_dequant_item *p, uint64_t first, uint64_t n, float *out)
{
    float global;

    D9D_TRY(both_read(p, first, n, out, &global));
    for (uint64_t i = 0; i < n; i++)
        out[i] *= global;
    return D9D_OK;
}

/* --- numbers ---------------------------------------------------------------------------------- */

static void numbers(const d9di_dequant_item *p, float scale, int zero, float *out)
{
    (void)p, (void)zero;
    for (int i = 0; i < 16; i++)
        out[i] = d9di_dequant_e2m1[i] * scale;
}

/* modelopt has one zero. */
static void one_zero_numbers(const d9di_dequant_item *p, float scale, int zero, float *out)
{
    numbers(p, scale, zero, out);
    out[8] = out[0];
}

/* compressed-tensors decodes to bfloat16. */
static void bf16_numbers(const d9di_dequant_item *p, float scale, int zero, float *out)
{
    numbers(p, scale, zero, out);
    for (int i = 0; i < 16; i++)
        out[i] = d9di_dequant_round(out[i], D9D_BF16);
}

/* --- methods ---------------------------------------------------------------------------------- */

/* The matrix's scale is one float32. */
static d9d_status nvfp4_shape(d9di_dequant_item *p, d9d_arena *a)
{
    const d9d_safetensors_tensor *g = d9di_dequant_stored(p, GLOBAL);
    const bool one = g->ndim == 0 || (g->ndim == 1 && g->shape[0] == 1);

    D9D_TRY(d9di_dequant_codes_shape(p, a));
    return g->dtype == D9D_F32 && one ? D9D_OK : d9di_dequant_fail(p, GLOBAL, "one F32");
}

#define NEED(group) "scales of a matrix U8 [rows, bytes] whose rows are whole groups of " group
#define NVFP4       .values = D9D_U8, .need = NEED("16"), .is_scale = is_e4m3, .scale = D9D_F8_E4M3
static const d9di_dequant_codes quotients = {NVFP4, .scales = quotients_read,
                                             .numbers = bf16_numbers};
static const d9di_dequant_codes products = {NVFP4, .scales = products_read,
                                            .numbers = one_zero_numbers};
static const d9di_dequant_codes exponents = {.values = D9D_U8,
                                             .need = NEED("32"),
                                             .is_scale = is_exponent,
                                             .scale = D9D_U8,
                                             .numbers = bf16_numbers};

static bool is_nvfp4(const json_t *o)
{
    return d9di_dequant_compressed_is(o, D9D_QUANTIZATION_NVFP4);
}

static bool is_mxfp4(const json_t *o)
{
    return d9di_dequant_compressed_is(o, D9D_QUANTIZATION_MXFP4_PACKED);
}

static bool is_modelopt(const json_t *o)
{
    return d9di_dequant_modelopt_is(o, D9D_QUANTIZATION_MODELOPT_NVFP4);
}

#define COMPRESSED                                                                                 \
    .name = D9DI_DEQUANT_COMPRESSED, .hidden = d9di_dequant_compressed_hidden,                     \
    .members = d9di_dequant_compressed_members, .configure = d9di_dequant_compressed_configure
#define CODES .read = d9di_dequant_codes_read, .span = d9di_dequant_span_of_bits
const d9di_dequant_method d9di_dequant_nvfp4 = {
    COMPRESSED,
    .is_of = is_nvfp4,
    .suffix = {"_packed", "_scale", [GLOBAL] = "_global_scale"},
    .codes = &quotients,
    .shape = nvfp4_shape,
    CODES};
const d9di_dequant_method d9di_dequant_mxfp4_packed = {COMPRESSED,
                                                       .is_of = is_mxfp4,
                                                       .suffix = {"_packed", "_scale"},
                                                       .codes = &exponents,
                                                       .shape = d9di_dequant_codes_shape,
                                                       CODES};
const d9di_dequant_method d9di_dequant_modelopt_nvfp4 = {
    .name = D9DI_DEQUANT_MODELOPT,
    .is_of = is_modelopt,
    .suffix = {"", "_scale", [GLOBAL] = "_scale_2"},
    .hidden = d9di_dequant_modelopt_hidden,
    .members = d9di_dequant_modelopt_members,
    .is_values = d9di_dequant_modelopt_is_values,
    .configure = d9di_dequant_modelopt_configure,
    .codes = &products,
    .shape = nvfp4_shape,
    CODES};
