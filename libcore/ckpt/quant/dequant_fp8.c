/* dequant_fp8.c - FP8 (e4m3) with a float32 scale for each block of a matrix: DeepSeek V3, MiniMax,
 * Qwen3-FP8.  See d9d/ckpt/quant/dequant.h.
 */
#include <string.h>

#include "ckpt/quant/dequant_bytes.h"

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

static d9d_status shape(d9di_dequant_item *p, d9d_arena *a)
{
    const d9d_safetensors_tensor *v = d9di_dequant_stored(p, D9DI_DEQUANT_VALUES);

    (void)a;
    if (v->dtype != D9D_F8_E4M3 || v->ndim < 2)
        return d9di_dequant_fail(p, D9DI_DEQUANT_SCALES, "scales of a matrix in F8_E4M3");
    return d9di_dequant_bytes_shape(p);
}

static void numbers(const d9di_dequant_item *p, float scale, float out[256])
{
    (void)p;
    for (int i = 0; i < 256; i++)
        out[i] = d9di_dequant_byte(D9D_F8_E4M3, i) * scale;
}

static d9d_status read(const d9di_dequant_item *p, uint64_t first, uint64_t n, void *dst)
{
    return d9di_dequant_bytes_read(p, numbers, first, n, dst);
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
                                              .suffix = {"", "_scale_inv"},
                                              .hidden = hidden,
                                              .members = members,
                                              .is_values = is_values,
                                              .configure = configure,
                                              .shape = shape,
                                              .read = read,
                                              .span = d9di_dequant_bytes_span};
