/* test_kernel_state_blocks.c - Adam and Lion with states in 8 bits, against the float32 step. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/state_blocks.h"
#include "support/arrays.h"
#include "support/host_kernels.h"

enum { ROWS = 5, COLS = 2 * D9D_STATE_BLOCK + 7, N = ROWS * COLS, ROW_BLOCKS = 3 };
enum { SCALES = ROWS * ROW_BLOCKS };

static const d9d_adam_step adam = {.lr = 0.01,
                                   .beta1 = 0.9,
                                   .beta2 = 0.95,
                                   .eps = 1e-8,
                                   .weight_decay = 0.1,
                                   .bias_correction1 = 0.1,
                                   .bias_correction2 = 0.05,
                                   .decoupled = true};
static const d9d_lion_step lion = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.1};
static const d9d_rng rng = {.seed = 11, .stream = 0xfffffffffffffff0u};

/* A parameter with its states; all of it in one block of memory, for comparisons. */
typedef struct matrix {
    d9d_dtype t, gt;
    bool masters, is_lion;
    float scale;
    void *p, *g;
    struct {
        int16_t residual[N];
        int8_t m[N];
        uint8_t v[N];
        uint16_t m_scale[SCALES], v_scale[SCALES];
    } x;
} matrix;

static void matrix_open(matrix *a, d9d_dtype t, d9d_dtype gt, bool masters, bool is_lion)
{
    *a = (matrix){.t = t, .gt = gt, .masters = masters, .is_lion = is_lion, .scale = 0.5f};
    a->p = array_random(t, N, 1, 1.0);
    a->g = array_random(gt, N, 2, 0.01);
}

static void matrix_close(matrix *a)
{
    free(a->p);
    free(a->g);
}

static d9d_status update(matrix *a, int ndim, const int64_t *box, const int64_t *start,
                         const int64_t *whole)
{
    const d9d_optim_arrays arrays = {.p = a->p,
                                     .g = a->g,
                                     .m = a->x.m,
                                     .v = a->is_lion ? NULL : a->x.v,
                                     .residual = a->masters ? a->x.residual : NULL,
                                     .m_scale = a->x.m_scale,
                                     .v_scale = a->is_lion ? NULL : a->x.v_scale};
    const d9d_optim_kernels *k = host_kernels()->optim;

    return a->is_lion ? k->lion_stochastic(NULL, &lion, &a->scale, a->t, a->gt, D9D_I8, &arrays,
                                           rng, ndim, box, start, whole)
                      : k->adam_stochastic(NULL, &adam, &a->scale, a->t, a->gt, D9D_I8, &arrays,
                                           rng, ndim, box, start, whole);
}

static void update_all(void *arg)
{
    static const int64_t whole[] = {ROWS, COLS}, zero[] = {0, 0};

    assert_int_equal(update(arg, 2, whole, zero, whole), D9D_OK);
}

static double weight(const matrix *a, int i)
{
    uint32_t u;
    float f;

    if (!a->masters)
        return array_get(a->t, a->p, i);
    u = ((uint32_t)((const uint16_t *)a->p)[i] << 16) + (uint32_t)(int32_t)a->x.residual[i];
    memcpy(&f, &u, sizeof(f));
    return (double)f;
}

static float scale_at(const uint16_t *scales, int i)
{
    return d9d_bf16_to_f32(scales[i / COLS * ROW_BLOCKS + i % COLS / D9D_STATE_BLOCK]);
}

/* The number that a code stands for: the formula in double. */
static double m_value(const matrix *a, int i)
{
    const double c = a->x.m[i];

    return (double)scale_at(a->x.m_scale, i) * c * fabs(c) / (127.0 * 127.0);
}
static double v_value(const matrix *a, int i)
{
    return (double)scale_at(a->x.v_scale, i) * pow(a->x.v[i] / 255.0, 4);
}

/* --- codes ------------------------------------------------------------------------------------ */

/* A code's number has that code, whatever is drawn within a thousandth. */
static void test_codes_are_kept(void **state)
{
    static const float scales[] = {1.0f, 0x1p-90f, 3.5e20f};

    (void)state;
    for (size_t k = 0; k < sizeof(scales) / sizeof(scales[0]); k++) {
        const float inverse = d9di_state_inverse(scales[k]);

        for (int c = -127; c <= 127; c++)
            for (uint32_t bits = 60; bits < 65476; bits += 131)
                assert_int_equal(d9di_state_m_code(d9di_state_m(c, scales[k]), inverse, bits), c);
        for (int c = 0; c <= 255; c++)
            for (uint32_t bits = 60; bits < 65476; bits += 131)
                assert_int_equal(d9di_state_v_code(d9di_state_v(c, scales[k]), inverse, bits), c);
    }
}

/* Over all draws the mean of the codes' numbers is the number. */
static void test_codes_are_unbiased(void **state)
{
    (void)state;
    for (int k = 1; k < 200; k++) {
        const float x = (float)k / 200.0f * (float)k / 200.0f;
        double m = 0, negative = 0, v = 0;

        for (uint32_t bits = 0; bits < 65536; bits++) {
            m += d9di_state_m(d9di_state_m_code(x, 1, bits), 1);
            negative += d9di_state_m(d9di_state_m_code(-x, 1, bits), 1);
            v += d9di_state_v(d9di_state_v_code(x, 1, bits), 1);
        }
        assert_true(fabs(m / 65536 - (double)x) < 1e-5);
        assert_true(fabs(negative / 65536 + (double)x) < 1e-5);
        assert_true(fabs(v / 65536 - (double)x) < 1e-5);
    }
}

/* A second moment never becomes 0, and the scale is no less than what it scales. */
static void test_edges(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 65536; bits += 13) {
        assert_int_equal(d9di_state_v_code(1e-12f, 1, bits), 1);
        assert_int_equal(d9di_state_v_code(0, 1, bits), 0);
        assert_int_equal(d9di_state_m_code(0, 1, bits), 0);
        assert_int_equal(d9di_state_m_code(1, 1, bits), 127);
        assert_int_equal(d9di_state_v_code(1, 1, bits), 255);
    }
    for (int i = 0; i < 1000; i++) {
        const float x = (1.0f + (float)i / 1000.0f) * 0x1p-30f;
        const float s = d9d_bf16_to_f32(d9di_state_scale_bits(x));

        assert_true(s >= x && s <= x * 1.0079f);
    }
    assert_int_equal(d9di_state_scale_bits(0x1p-101f), 0);
    assert_true(isnan(d9d_bf16_to_f32(d9di_state_scale_bits(NAN))));
}

/* --- a step ----------------------------------------------------------------------------------- */

typedef struct exact {
    float p[N], g[N], m[N], v[N];
} exact;

/* What the float32 step makes of the numbers that a has. */
static void exact_step(const matrix *a, exact *e)
{
    const d9d_optim_arrays plain = {.p = e->p, .g = e->g, .m = e->m, .v = e->v, .n = N};
    const d9d_optim_kernels *k = host_kernels()->optim;
    const float one = 1.0f;

    for (int i = 0; i < N; i++) {
        e->p[i] = (float)weight(a, i);
        e->g[i] = a->scale * (float)array_get(a->gt, a->g, i);
        e->m[i] = (float)m_value(a, i);
        e->v[i] = (float)v_value(a, i);
    }
    assert_int_equal(a->is_lion ? k->lion(NULL, &lion, &one, D9D_F32, D9D_F32, D9D_F32, &plain, 1)
                                : k->adam(NULL, &adam, &one, D9D_F32, D9D_F32, D9D_F32, &plain, 1),
                     D9D_OK);
}

/* A scale is the block's largest magnitude, rounded up to bfloat16. */
static void check_scales(const uint16_t *scales, const float *x)
{
    for (int row = 0; row < ROWS; row++)
        for (int b = 0; b < ROW_BLOCKS; b++) {
            const float s = d9d_bf16_to_f32(scales[row * ROW_BLOCKS + b]);
            float most = 0;

            for (int c = b * D9D_STATE_BLOCK; c < COLS && c < (b + 1) * D9D_STATE_BLOCK; c++)
                most = fmaxf(most, fabsf(x[row * COLS + c]));
            assert_true(s >= most * 0.99999f && s <= most * 1.008f);
        }
}

/* Each number is one of the two codes beside the float32 step's. */
static void check_numbers(const matrix *a, const exact *e)
{
    for (int i = 0; i < N; i++) {
        const double root = sqrt(fabs((double)e->m[i]) / (double)scale_at(a->x.m_scale, i));

        assert_true(fabs(fabs((double)a->x.m[i]) - 127 * root) < 1.001);
        assert_true(a->x.m[i] == 0 || (a->x.m[i] > 0) == (e->m[i] > 0));
        if (!a->is_lion)
            assert_true(fabs(a->x.v[i] -
                             255 * pow((double)e->v[i] / (double)scale_at(a->x.v_scale, i), 0.25)) <
                        1.001);
        assert_true(fabs(weight(a, i) - (double)e->p[i]) <=
                    (a->masters || a->t == D9D_F32 ? 1e-6 : 0.0079) * fabs((double)e->p[i]));
    }
}

static void test_steps(void **state)
{
    (void)state;
    for (int flags = 0; flags < 16; flags++) {
        const d9d_dtype t = flags & 1 ? D9D_F32 : D9D_BF16;
        matrix a;
        exact e;

        matrix_open(&a, t, array_types[flags >> 1 & 1], t == D9D_BF16 && (flags & 4) != 0,
                    (flags & 8) != 0);
        for (int step = 0; step < 3; step++) {
            exact_step(&a, &e);
            update_all(&a);
            check_scales(a.x.m_scale, e.m);
            if (!a.is_lion)
                check_scales(a.x.v_scale, e.v);
            check_numbers(&a, &e);
        }
        matrix_close(&a);
    }
}

/* NaN in the factor of the gradients changes nothing. */
static void test_skipped_step(void **state)
{
    matrix a;
    void *before;

    (void)state;
    matrix_open(&a, D9D_BF16, D9D_F32, true, false);
    update_all(&a);
    before = malloc(sizeof(a.x));
    memcpy(before, &a.x, sizeof(a.x));
    a.scale = NAN;
    update_all(&a);
    assert_memory_equal(before, &a.x, sizeof(a.x));
    free(before);
    matrix_close(&a);
}

/* A large matrix, by `rows` rows a call: codes of m, freed by the caller. */
static int8_t *large_step(int64_t all, int64_t rows)
{
    const int64_t n = all * COLS, scales = all * ROW_BLOCKS, whole[] = {all, COLS};
    uint16_t *p = array_random(D9D_BF16, n, 1, 1.0), *g = array_random(D9D_BF16, n, 2, 1.0);
    uint16_t *m_scale = calloc((size_t)scales, 2), *v_scale = calloc((size_t)scales, 2);
    uint8_t *v = calloc((size_t)n, 1);
    int8_t *m = calloc((size_t)n, 1);
    const float scale = 1.0f;

    for (int64_t row = 0; row < all; row += rows) {
        const int64_t box[] = {rows, COLS}, start[] = {row, 0};
        const d9d_optim_arrays part = {.p = p + row * COLS,
                                       .g = g + row * COLS,
                                       .m = m + row * COLS,
                                       .v = v + row * COLS,
                                       .m_scale = m_scale + row * ROW_BLOCKS,
                                       .v_scale = v_scale + row * ROW_BLOCKS};

        assert_int_equal(host_kernels()->optim->adam_stochastic(NULL, &adam, &scale, D9D_BF16,
                                                                D9D_BF16, D9D_I8, &part, rng, 2,
                                                                box, start, whole),
                         D9D_OK);
    }
    free(p);
    free(g);
    free(m_scale);
    free(v_scale);
    free(v);
    return m;
}

/* One call with several threads has the bits of small ones with one. */
static void test_parts(void **state)
{
    enum { ALL = 480 };
    int8_t *whole = large_step(ALL, ALL), *parts = large_step(ALL, 60);

    (void)state;
    assert_memory_equal(whole, parts, ALL * COLS);
    free(whole);
    free(parts);
}

/* --- boxes ------------------------------------------------------------------------------------ */

/* A shard of rows and of whole blocks has the bits of the whole. */
static void test_box(void **state)
{
    static const int64_t whole[] = {ROWS, COLS};
    const int64_t box[] = {2, COLS - D9D_STATE_BLOCK}, at[] = {3, D9D_STATE_BLOCK};
    matrix all, part;

    (void)state;
    matrix_open(&all, D9D_BF16, D9D_F32, false, false);
    matrix_open(&part, D9D_BF16, D9D_F32, false, false);
    for (int i = 0; i < box[0] * box[1]; i++) {
        const int64_t j = (at[0] + i / box[1]) * COLS + at[1] + i % box[1];

        ((uint16_t *)part.p)[i] = ((uint16_t *)all.p)[j];
        ((float *)part.g)[i] = ((float *)all.g)[j];
    }
    for (int step = 0; step < 2; step++) {
        update_all(&all);
        assert_int_equal(update(&part, 2, box, at, whole), D9D_OK);
    }
    for (int i = 0; i < box[0] * box[1]; i++) {
        const int64_t j = (at[0] + i / box[1]) * COLS + at[1] + i % box[1];

        assert_int_equal(((uint16_t *)part.p)[i], ((uint16_t *)all.p)[j]);
        assert_int_equal(part.x.m[i], all.x.m[j]);
        assert_int_equal(part.x.v[i], all.x.v[j]);
    }
    for (int i = 0; i < box[0] * (ROW_BLOCKS - 1); i++) {
        const int64_t j = (at[0] + i / (ROW_BLOCKS - 1)) * ROW_BLOCKS + 1 + i % (ROW_BLOCKS - 1);

        assert_int_equal(part.x.m_scale[i], all.x.m_scale[j]);
        assert_int_equal(part.x.v_scale[i], all.x.v_scale[j]);
    }
    matrix_close(&all);
    matrix_close(&part);
}

/* A block that two shards have is refused. */
static void test_divided_blocks(void **state)
{
    static const int64_t whole[] = {ROWS, COLS};
    static const struct {
        int64_t first, n;
    } parts[] = {{0, 40}, {16, 32}, {40, COLS - 40}};
    matrix a;

    (void)state;
    matrix_open(&a, D9D_BF16, D9D_F32, true, false);
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        const int64_t box[] = {1, parts[i].n}, at[] = {0, parts[i].first};

        assert_int_equal(update(&a, 2, box, at, whole), D9D_EINVAL);
        assert_non_null(strstr(d9d_err_message(), "do not begin and end with blocks of 32"));
    }
    matrix_close(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codes_are_kept),
        cmocka_unit_test(test_codes_are_unbiased),
        cmocka_unit_test(test_edges),
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_skipped_step),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_box),
        cmocka_unit_test(test_divided_blocks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
