/* Frozen matrices in 4 bits compared with bitsandbytes, row by row: the bytes, the values, and
 * products with them. */
#include "d9d/kernels/table.h"
#include "support/unit.h"
#include "support/vectors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A case of the file. */
typedef struct golden {
    const d9d_safetensors_file *f;
    const char *name;
    int64_t rows, cols;
    uint8_t *bytes;
} golden;

static const char *name_of(const golden *g, const char *part)
{
    static char name[64];

    (void)snprintf(name, sizeof(name), "%s.%s", g->name, part);
    return name;
}

static float *floats(const golden *g, const char *part)
{
    size_t n;

    return vectors_f32(g->f, name_of(g, part), &n);
}

static uint8_t *bytes_of(const golden *g, const char *part)
{
    const d9d_safetensors_tensor *t = vectors_find(g->f, name_of(g, part));
    uint8_t *to = malloc(t->bytes);

    assert_non_null(to);
    assert_ok(d9d_safetensors_read(g->f, t, 0, to, t->bytes));
    return to;
}

/* Bytes are those of bitsandbytes; offset and range, sums in another order, to 1e-6. */
static void check_bytes(const golden *g)
{
    const int64_t codes = g->cols / 2, blocks = g->cols / D9D_QUANT_NF4_BLOCK;
    uint8_t *want = bytes_of(g, "codes"), *scales = bytes_of(g, "scale_codes");
    float *offset = floats(g, "offset"), *range = floats(g, "range"), of[2];

    for (int64_t r = 0; r < g->rows; r++) {
        const uint8_t *row = g->bytes + r * d9d_quant_row_bytes(D9D_QUANT_NF4, g->cols);

        memcpy(of, row + d9d_quant_scale_at(D9D_QUANT_NF4, g->cols), sizeof(of));
        assert_memory_equal(row, want + r * codes, (size_t)codes);
        assert_memory_equal(row + codes, scales + r * blocks, (size_t)blocks);
        assert_true(fabsf(of[0] - offset[r]) <= 1e-6f * offset[r]);
        assert_true(fabsf(of[1] - range[r]) <= 1e-6f * offset[r]);
    }
    free(want);
    free(scales);
    free(offset);
    free(range);
}

/* Values, y = x w' and dx = dy w, to 1e-5. */
static void check_products(const golden *g)
{
    const d9d_quant_kernels *k = d9d_kernels_cpu()->quant;
    const d9d_quant_matrix q = {D9D_QUANT_NF4, g->rows, g->cols, g->bytes};
    const int64_t m = vectors_find(g->f, name_of(g, "x"))->shape[0];
    const d9d_gemm fwd = {
        .t = D9D_F32, .ct = D9D_F32, .trans_b = true, .m = m, .n = g->rows, .k = g->cols};
    const d9d_gemm dgrad = {.t = D9D_F32, .ct = D9D_F32, .m = m, .n = g->cols, .k = g->rows};
    float *x = floats(g, "x"), *y = floats(g, "y"), *dy = floats(g, "dy"), *dx = floats(g, "dx"),
          *w = floats(g, "dequantised");
    float *made = calloc((size_t)(g->cols * (g->rows > m ? g->rows : m)), sizeof(*made));

    assert_non_null(made);
    assert_ok(k->dequantise(NULL, D9D_F32, made, &q));
    assert_true(vectors_distance(made, w, (size_t)(g->rows * g->cols), 1e-9) < 1e-6);
    assert_ok(k->product(NULL, &fwd, x, &q, made));
    assert_true(vectors_distance(made, y, (size_t)(m * g->rows), 1e-9) < 1e-5);
    assert_ok(k->product(NULL, &dgrad, dy, &q, made));
    assert_true(vectors_distance(made, dx, (size_t)(m * g->cols), 1e-9) < 1e-5);
    free(x);
    free(y);
    free(dy);
    free(dx);
    free(w);
    free(made);
}

static void check_case(const d9d_safetensors_file *f, const char *name)
{
    golden g = {.f = f, .name = name};
    const d9d_safetensors_tensor *t = vectors_find(f, name_of(&g, "w"));
    float *w = floats(&g, "w");

    g.rows = t->shape[0];
    g.cols = t->shape[1];
    g.bytes = malloc((size_t)(g.rows * d9d_quant_row_bytes(D9D_QUANT_NF4, g.cols)));
    assert_non_null(g.bytes);
    assert_ok(d9d_quant_rows(D9D_QUANT_NF4, D9D_F32, w, g.rows, g.cols, 0, g.cols, g.bytes));
    check_bytes(&g);
    check_products(&g);
    free(g.bytes);
    free(w);
}

static void test_bitsandbytes(void **state)
{
    d9d_safetensors_file *f;

    (void)state;
    assert_ok(d9d_safetensors_open(vectors_path(".", "quant_weights.safetensors"), &f));
    check_case(f, "normal");
    check_case(f, "spread");
    d9d_safetensors_close(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bitsandbytes)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
