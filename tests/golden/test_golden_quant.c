/* test_golden_quant.c - decoding of quantised weights, bit for bit that of torch, transformers,
 * compressed-tensors, modelopt, bitsandbytes, auto_gptq and autoawq (make_quant.py,
 * make_quant_formats.py, make_quant_served.py), whole and in spans of every kind. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/rng.h"
#include "d9d/ckpt/quant/dequant.h"
#include "support/mem_tensors.h"
#include "support/vectors.h"

static const struct {
    const char *file;
    d9d_quantization q;
    size_t decoded;
} cases[] = {
    {"fp8.safetensors", {.method = D9D_QUANTIZATION_FP8, .block = {16, 8}}, 8},
    {"mxfp4.safetensors", {.method = D9D_QUANTIZATION_MXFP4}, 3},
    {"packed.safetensors", {D9D_QUANTIZATION_PACKED, {1, 32}, .bits = 4}, 5},
    {"packed2.safetensors", {D9D_QUANTIZATION_PACKED, {1, 32}, .bits = 2}, 5},
    {"packed8.safetensors", {D9D_QUANTIZATION_PACKED, {1, 32}, .bits = 8}, 5},
    {"zeros2.safetensors", {D9D_QUANTIZATION_PACKED_ZEROS, {1, 32}, .bits = 2}, 5},
    {"zeros4.safetensors", {D9D_QUANTIZATION_PACKED_ZEROS, {1, 32}, .bits = 4}, 5},
    {"zeros8.safetensors", {D9D_QUANTIZATION_PACKED_ZEROS, {1, 32}, .bits = 8}, 5},
    {"nvfp4.safetensors", {D9D_QUANTIZATION_NVFP4, {1, 16}, .bits = 4}, 4},
    {"mxfp4_packed.safetensors", {D9D_QUANTIZATION_MXFP4_PACKED, {1, 32}, .bits = 4}, 4},
    {"modelopt_nvfp4.safetensors", {D9D_QUANTIZATION_MODELOPT_NVFP4, {1, 16}, .bits = 4}, 4},
    {"fp8_matrix.safetensors", {.method = D9D_QUANTIZATION_MODELOPT_FP8}, 4},
    {"fp8_matrix.safetensors", {.method = D9D_QUANTIZATION_FP8}, 4},
    {"fp8_rows.safetensors", {D9D_QUANTIZATION_FBGEMM_FP8, {1, 0}, .bits = 8}, 4},
    {"bytes.safetensors", {.method = D9D_QUANTIZATION_BYTES, .block = {1, 0}}, 4},
    {"bnb4.safetensors", {.method = D9D_QUANTIZATION_BNB4, .bits = 4}, 6},
    {"bnb8.safetensors", {.method = D9D_QUANTIZATION_BNB8}, 4},
    {"gptq2.safetensors", {D9D_QUANTIZATION_GPTQ, {1, 32}, .bits = 2, .zeros_less = true}, 3},
    {"gptq4.safetensors", {D9D_QUANTIZATION_GPTQ, {1, 32}, .bits = 4, .zeros_less = true}, 3},
    {"gptq8.safetensors", {D9D_QUANTIZATION_GPTQ, {1, 16}, .bits = 8, .zeros_less = true}, 3},
    {"awq.safetensors", {D9D_QUANTIZATION_AWQ, {1, 32}, .bits = 4, .zeros_less = false}, 3},
};

static bool is_of(const char *name, const char *prefix)
{
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

/* What is stored: no decoded tensor.  In FP8, `one`: those with one scale, or the others. */
static void load_stored(const d9d_safetensors_file *f, int one, mem_tensors *m)
{
    for (size_t i = 0; i < d9d_safetensors_count(f); i++) {
        const d9d_safetensors_tensor *t = d9d_safetensors_at(f, i);
        mem_tensor *a;

        if (is_of(t->name, "bfloat16.") || is_of(t->name, "float32.") ||
            (one >= 0 && is_of(t->name, "one") != one))
            continue;
        a = mem_tensors_add(m, t->name, t->dtype, t->ndim, t->shape);
        assert_ok(d9d_safetensors_read(f, t, 0, a->data, t->bytes));
    }
}

/* Compare a span of decoded tensor i with what the file has of it. */
static void check_span(const d9d_tensor_source *src, size_t i, const char *want, uint64_t first,
                       uint64_t n)
{
    const d9d_safetensors_tensor *t = src->at(src->self, i);
    const uint64_t width = d9d_dtype_size(t->dtype);
    char *got = malloc(n * width + 1);

    assert_non_null(got);
    assert_ok(src->read(src->self, i, first * width, got, n * width));
    if (memcmp(got, want + first * width, n * width) != 0)
        fail_msg("%s as %s: elements %llu and %llu more differ", t->name, d9d_dtype_name(t->dtype),
                 (unsigned long long)first, (unsigned long long)n);
    free(got);
}

/* The whole, each element by itself of small tensors, and spans of any length. */
static void check_tensor(const d9d_tensor_source *src, size_t i, const d9d_safetensors_file *f)
{
    const d9d_safetensors_tensor *t = src->at(src->self, i), *golden;
    const uint64_t n = t->bytes / d9d_dtype_size(t->dtype);
    const d9d_rng rng = {7, i};
    char name[80], *want = malloc(t->bytes);

    (void)snprintf(name, sizeof(name), "%s.%s", d9d_dtype_name(t->dtype), t->name);
    golden = vectors_find(f, name);
    assert_non_null(want);
    assert_int_equal(t->ndim, golden->ndim);
    assert_memory_equal(t->shape, golden->shape, (size_t)t->ndim * sizeof(t->shape[0]));
    assert_ok(d9d_safetensors_read(f, golden, 0, want, t->bytes));
    check_span(src, i, want, 0, n);
    for (uint64_t k = 0; k < n && n < 1100; k++)
        check_span(src, i, want, k, 1);
    for (uint64_t k = 0; k < 800; k += 2) {
        const uint64_t first = d9d_rng_below(rng, k, n);

        check_span(src, i, want, first, 1 + d9d_rng_below(rng, k + 1, n - first));
    }
    free(want);
}

static size_t check_decoded(mem_tensors *m, const d9d_quantization *q, d9d_dtype to,
                            const d9d_safetensors_file *f)
{
    const d9d_tensor_source stored = mem_tensors_source(m);
    d9d_tensor_source src;
    d9d_dequant *d;
    size_t n;

    assert_ok(d9d_dequant_create(q, to, &stored, &d));
    src = d9d_dequant_source(d);
    n = d9d_dequant_count(d);
    for (size_t i = 0; i < src.n; i++)
        if (strcmp(src.at(src.self, i)->name, "plain") != 0)
            check_tensor(&src, i, f);
        else
            assert_int_equal(src.at(src.self, i)->dtype, D9D_BF16);
    d9d_dequant_free(d);
    return n;
}

static void test_decoded(void **state)
{
    static const d9d_dtype types[] = {D9D_BF16, D9D_F32};

    (void)state;
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++)
        for (size_t k = 0; k < 2; k++) {
            d9d_safetensors_file *f;
            mem_tensors m = {.n = 0};

            assert_ok(d9d_safetensors_open(vectors_path("quant", cases[c].file), &f));
            load_stored(f, c == 0 ? 0 : -1, &m);
            assert_int_equal(check_decoded(&m, &cases[c].q, types[k], f), cases[c].decoded);
            mem_tensors_free(&m);
            d9d_safetensors_close(f);
        }
}

static void test_one_scale(void **state)
{
    static const d9d_quantization q = {.method = D9D_QUANTIZATION_FP8};
    d9d_safetensors_file *f;
    mem_tensors m = {.n = 0};

    (void)state;
    assert_ok(d9d_safetensors_open(vectors_path("quant", "fp8.safetensors"), &f));
    load_stored(f, 1, &m);
    assert_int_equal(check_decoded(&m, &q, D9D_BF16, f), 3);
    mem_tensors_free(&m);
    d9d_safetensors_close(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decoded),
        cmocka_unit_test(test_one_scale),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
