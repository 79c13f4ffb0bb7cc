/* dequant_fp8.c - FP8 (e4m3) with a float32 scale for each block of a matrix: DeepSeek V3, MiniMax,
 * Qwen3-FP8; for the matrix: Mistral, AutoFP8; for each row: FBGEMM, as Llama 3.1 405B.  See
 * d9d/ckpt/quant/dequant.h.
 */
#include "ckpt/quant/dequant_bytes.h"

#include <string.h>

enum { MAX_BLOCK = 1 << 20 };

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
        return D9D_FAIL(D9D_ENOTSUP, "%s.fmt: must be \"e4m3\"", where);
    if (block == NULL || json_is_null(block))
        return D9D_OK;
    for (size_t i = 0; i < 2; i++) {
        const json_t *v = json_array_get(block, i);

        q->block[i] = json_integer_value(v);
        if (json_array_size(block) != 2 || !json_is_integer(v) || q->block[i] < 1 ||
            q->block[i] > MAX_BLOCK)
            return D9D_FAIL(D9D_ECONFIG,
                            "%s.weight_block_size: must be two numbers of elements, such as [128, "
                            "128]",
                            where);
    }
    return D9D_OK;
}

/* One scale a matrix, whatever weight_block_size says. */
static d9d_status whole_shape(d9di_dequant_item *p, d9d_arena *a)
{
    p->block[0] = p->block[1] = 0;
    return d9di_dequant_fp8_shape(p, a);
}

/* Scales of activations and caches. */
static const char *const hidden[] = {
    ".input_scale", ".input_scale_ub", ".activation_scale", ".output_scale",
    ".kv_scale",    ".k_scale",        ".v_scale",          NULL};
static const char *const members[] = {"quant_method",      "fmt",
                                      "weight_block_size", "activation_scheme",
                                      "kv_cache_scheme",   "modules_to_not_convert",
                                      "ignored_layers",    "scale_fmt",
                                      "dequantize",        NULL};
#define FP8                                                                                        \
    .hidden = hidden, .is_values = d9di_dequant_is_fp8, .bytes = d9di_dequant_bytes_product,       \
    .read = d9di_dequant_bytes_read, .span = d9di_dequant_bytes_span

/* AutoFP8 and vLLM */
static const d9di_dequant_method whole = {.name = "fp8",
                                          .suffix = {"", "_scale"},
                                          .members = members,
                                          .configure = configure,
                                          .shape = whole_shape,
                                          FP8};
const d9di_dequant_method d9di_dequant_fp8 = {.name = "fp8",
                                              .or_else = &whole,
                                              .suffix = {"", "_scale_inv"},
                                              .members = members,
                                              .configure = configure,
                                              .shape = d9di_dequant_fp8_shape,
                                              FP8};

/* --- FBGEMM ----------------------------------------------------------------------------------- */

static d9d_status fbgemm_configure(const json_t *o, const char *where, d9d_quantization *q)
{
    (void)o, (void)where;
    q->block[0] = 1;
    return D9D_OK;
}

static const char *const fbgemm_members[] = {"quant_method", "activation_scale_ub",
                                             "modules_to_not_convert", NULL};
const d9di_dequant_method d9di_dequant_fbgemm_fp8 = {.name = "fbgemm_fp8",
                                                     .suffix = {"", "_scale"},
                                                     .members = fbgemm_members,
                                                     .configure = fbgemm_configure,
                                                     .shape = d9di_dequant_fp8_shape,
                                                     FP8};
