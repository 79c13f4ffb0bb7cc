/* Fill, cast, add, accumulate, axpy, softcap, the sigmoid gate and random numbers. */
#include "support/arrays.h"
#include "support/host_kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Three inputs and two outputs of n elements, and what the outputs should be. */
typedef struct call {
    d9d_dtype t, t2;
    int64_t n, m;
    float beta;
    void *in[3], *out[2], *both; /* `both`: out[0] and out[1] in one block */
    double *want[2];
} call;

static void call_make(call *p, d9d_dtype t, int64_t n)
{
    *p = (call){.t = t, .t2 = t, .n = n};
    for (int i = 0; i < 3; i++)
        p->in[i] = array_random(t, n, (uint64_t)i + 1, 2.0);
    p->both = array_poison(D9D_F32, 2 * n);
    p->out[0] = p->both;
    p->out[1] = (char *)p->both + (size_t)n * d9d_dtype_size(t);
    for (int i = 0; i < 2; i++)
        assert_non_null(p->want[i] = calloc((size_t)n + 1, sizeof(double)));
}

static void call_free(call *p)
{
    for (int i = 0; i < 3; i++)
        free(p->in[i]);
    for (int i = 0; i < 2; i++)
        free(p->want[i]);
    free(p->both);
}

static double in(const call *p, int which, int64_t i)
{
    return array_get(p->t, p->in[which], i);
}
static double sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

/* --- one row a kernel: how to call it, and what an element is ---------------------- */

static d9d_status do_add(const d9d_kernels *k, call *p)
{
    return k->elementwise->add(NULL, p->t, p->out[0], (const void *[]){p->in[0], p->in[1]}, 2,
                               p->n);
}
static void want_add(call *p, int64_t i)
{
    p->want[0][i] = in(p, 0, i) + in(p, 1, i);
}

/* Seven of three arrays, onto one that is there. */
static d9d_status do_add_many(const d9d_kernels *k, call *p)
{
    const void *x[] = {p->out[0], p->in[0], p->in[1], p->in[2], p->in[0], p->in[1], p->in[2]};

    D9D_TRY(k->elementwise->fill(NULL, p->t, p->out[0], p->n, 0.5f));
    return k->elementwise->add(NULL, p->t, p->out[0], x, 7, p->n);
}
static void want_add_many(call *p, int64_t i)
{
    p->want[0][i] = 0.5 + 2 * (in(p, 0, i) + in(p, 1, i) + in(p, 2, i));
}

static d9d_status do_cast(const d9d_kernels *k, call *p)
{
    return k->elementwise->cast(NULL, p->t, p->out[0], p->t, p->in[0], p->n);
}
static void want_cast(call *p, int64_t i)
{
    p->want[0][i] = in(p, 0, i);
}

static const struct row {
    const char *name;
    d9d_status (*run)(const d9d_kernels *k, call *p);
    void (*want)(call *p, int64_t i);
    int outs;
} rows[] = {
    {"add", do_add, want_add, 1},
    {"add many", do_add_many, want_add_many, 1},
    {"cast", do_cast, want_cast, 1},
};

typedef struct bound {
    const struct row *row;
    call *p;
} bound;

static void run_row(void *arg)
{
    bound *b = arg;

    assert_int_equal(b->row->run(host_kernels(), b->p), D9D_OK);
}

static void test_elementwise(void **state)
{
    (void)state;
    for (size_t r = 0; r < sizeof(rows) / sizeof(*rows); r++)
        for (size_t i = 0; i < 16; i++) {
            call p;
            bound b = {&rows[r], &p};

            call_make(&p, array_types[i / 8], array_sizes[i % 8]);
            for (int64_t j = 0; j < p.n; j++)
                rows[r].want(&p, j);
            array_same_for_threads(run_row, &b, p.both, (size_t)(2 * p.n) * d9d_dtype_size(p.t),
                                   NULL);
            for (int o = 0; o < rows[r].outs; o++)
                array_close(rows[r].name, p.t, p.out[o], p.want[o], p.n, 2e-6);
            call_free(&p);
        }
}

/* --- types that differ -------------------------------------------------------------- */

static void run_accumulate(void *arg)
{
    call *p = arg;

    assert_int_equal(host_kernels()->elementwise->accumulate(NULL, p->t2, p->out[0], p->beta, p->t,
                                                             p->in[0], p->n),
                     D9D_OK);
}

static void test_accumulate(void **state)
{
    const float betas[] = {0.0f, 1.0f, 0.5f};

    (void)state;
    for (int flags = 0; flags < 4; flags++)
        for (size_t i = 0; i < 8 * 3; i++) {
            void *before;
            call p;

            call_make(&p, array_types[flags & 1], array_sizes[i % 8]);
            p.t2 = array_types[flags >> 1];
            p.beta = betas[i / 8];
            before = array_random(p.t2, p.n, 9, 1.0);
            for (int64_t j = 0; j < p.n; j++)
                p.want[0][j] = (double)p.beta * array_get(p.t2, before, j) + in(&p, 0, j);
            array_same_for_threads(run_accumulate, &p, p.out[0], (size_t)p.n * d9d_dtype_size(p.t2),
                                   p.beta == 0.0f ? NULL : before);
            array_close("y", p.t2, p.out[0], p.want[0], p.n, 1e-6);
            free(before);
            call_free(&p);
        }
}

static void run_axpy(void *arg)
{
    call *p = arg;

    assert_int_equal(host_kernels()->elementwise->axpy(NULL, p->t, p->out[0], p->beta, p->in[0],
                                                       p->m > 0 ? p->in[1] : NULL, p->n),
                     D9D_OK);
}

/* With an addend and without; the result may lie in either input. */
static void test_axpy(void **state)
{
    const float alphas[] = {0.0f, 1.0f, -0.375f};

    (void)state;
    for (int flags = 0; flags < 4; flags++)
        for (size_t i = 0; i < 8 * 3; i++) {
            size_t bytes;
            call p;

            call_make(&p, array_types[flags & 1], array_sizes[i % 8]);
            bytes = (size_t)p.n * d9d_dtype_size(p.t);
            p.m = flags >> 1;
            p.beta = alphas[i / 8];
            for (int64_t j = 0; j < p.n; j++)
                p.want[0][j] = (double)p.beta * in(&p, 0, j) + (p.m > 0 ? in(&p, 1, j) : 0.0);
            array_same_for_threads(run_axpy, &p, p.out[0], bytes, NULL);
            array_close("y", p.t, p.out[0], p.want[0], p.n, 1e-6);
            memcpy(p.in[2], p.in[p.m], bytes);
            assert_int_equal(host_kernels()->elementwise->axpy(NULL, p.t, p.in[2], p.beta,
                                                               p.m > 0 ? p.in[0] : p.in[2],
                                                               p.m > 0 ? p.in[2] : NULL, p.n),
                             D9D_OK);
            assert_memory_equal(p.in[2], p.out[0], bytes);
            call_free(&p);
        }
}

static void test_cast_between(void **state)
{
    enum { N = 3000 };
    float *x = array_random(D9D_F32, N, 1, 1.0), *back = array_poison(D9D_F32, N);
    uint16_t *y = array_poison(D9D_BF16, N);

    (void)state;
    assert_int_equal(host_kernels()->elementwise->cast(NULL, D9D_BF16, y, D9D_F32, x, N), D9D_OK);
    assert_int_equal(host_kernels()->elementwise->cast(NULL, D9D_F32, back, D9D_BF16, y, N),
                     D9D_OK);
    for (int i = 0; i < N; i++) {
        assert_int_equal(y[i], d9d_bf16_from_f32(x[i]));
        assert_true(back[i] == d9d_bf16_to_f32(y[i]));
    }
    assert_int_equal(host_kernels()->elementwise->cast(NULL, D9D_I64, y, D9D_F32, x, N),
                     D9D_EINVAL);
    free(x);
    free(y);
    free(back);
}

static void test_fill(void **state)
{
    const d9d_kernels *k = host_kernels();
    float f[5];
    uint16_t h[5];
    int32_t i[5];
    double d[5];
    uint8_t b[5];

    (void)state;
    assert_int_equal(k->elementwise->fill(NULL, D9D_F32, f, 5, 1.5f), D9D_OK);
    assert_int_equal(k->elementwise->fill(NULL, D9D_BF16, h, 5, 1.5f), D9D_OK);
    assert_int_equal(k->elementwise->fill(NULL, D9D_I32, i, 5, -3.0f), D9D_OK);
    assert_int_equal(k->elementwise->fill(NULL, D9D_F64, d, 5, 1.5f), D9D_OK);
    assert_int_equal(k->elementwise->fill(NULL, D9D_U8, b, 5, 7.0f), D9D_OK);
    for (int j = 0; j < 5; j++)
        assert_true(f[j] == 1.5f && h[j] == 0x3fc0 && i[j] == -3 && d[j] == 1.5 && b[j] == 7);
    assert_int_equal(k->elementwise->fill(NULL, D9D_F16, d, 5, 1.0f), D9D_EINVAL);
}

/* --- softcap ----------------------------------------------------------------------- */

static void run_softcap(void *arg)
{
    call *p = arg;

    assert_int_equal(
        host_kernels()->elementwise->softcap(NULL, p->t, p->out[0], p->in[0], 1.5f, p->n), D9D_OK);
}

static void test_softcap(void **state)
{
    (void)state;
    for (size_t i = 0; i < 16; i++) {
        const int64_t n = array_sizes[i / 2];
        call p;

        call_make(&p, array_types[i % 2], n);
        for (int64_t j = 0; j < n; j++)
            p.want[0][j] = 1.5 * tanh(in(&p, 0, j) / 1.5);
        array_same_for_threads(run_softcap, &p, p.out[0], (size_t)n * d9d_dtype_size(p.t), NULL);
        array_close("y", p.t, p.out[0], p.want[0], n, 1e-6);
        call_free(&p);
    }
}

/* --- sigmoid gate ------------------------------------------------------------------ */

static void run_gate(void *arg)
{
    call *p = arg;

    assert_int_equal(host_kernels()->elementwise->sigmoid_gate(NULL, p->t, p->out[0], p->in[0],
                                                               p->in[1], p->m, p->n / p->m),
                     D9D_OK);
}
static void run_gate_bwd(void *arg)
{
    call *p = arg;

    assert_int_equal(host_kernels()->elementwise->sigmoid_gate_bwd(NULL, p->t, p->out[0], p->out[1],
                                                                   p->in[2], p->in[0], p->in[1],
                                                                   p->m, p->n / p->m),
                     D9D_OK);
}

static void test_sigmoid_gate(void **state)
{
    const int64_t shapes[][2] = {{1, 1}, {3, 17}, {33, 1}, {5, 1030}, {77, 640}, {40001, 1}};

    (void)state;
    for (size_t i = 0; i < 12; i++) {
        int64_t m = shapes[i / 2][0], n = shapes[i / 2][1];
        size_t size = d9d_dtype_size(array_types[i % 2]);
        double *dg = calloc((size_t)m, sizeof(*dg));
        call p;

        call_make(&p, array_types[i % 2], m * n);
        p.m = m;
        for (int64_t j = 0; j < m * n; j++) {
            double s = sigmoid(in(&p, 1, j / n));

            p.want[0][j] = in(&p, 0, j) * s;
            p.want[1][j] = in(&p, 2, j) * s;
            dg[j / n] += s * (1.0 - s) * in(&p, 0, j) * in(&p, 2, j);
        }
        array_same_for_threads(run_gate, &p, p.out[0], (size_t)(m * n) * size, NULL);
        array_close("y", p.t, p.out[0], p.want[0], m * n, 1e-6);
        array_same_for_threads(run_gate_bwd, &p, p.both, (size_t)(m * n + m) * size, NULL);
        array_close("dx", p.t, p.out[0], p.want[1], m * n, 1e-6);
        array_close("dg", p.t, p.out[1], dg, m, 1e-4);
        free(dg);
        call_free(&p);
    }
}

/* --- random ------------------------------------------------------------------------ */

/* A part of an array gets the numbers that the whole gets there. */
static void test_random_box(void **state)
{
    const int64_t whole[] = {6, 50, 40}, zero[] = {0, 0, 0};
    const int64_t boxes[][3] = {{6, 50, 40}, {2, 50, 40}, {6, 7, 40}, {3, 5, 9}};
    const int64_t starts[][3] = {{0, 0, 0}, {3, 0, 0}, {0, 11, 0}, {1, 30, 31}};
    const d9d_rng r = {.seed = 3, .stream = 77};
    const d9d_kernels *k = host_kernels();

    (void)state;
    for (int flags = 0; flags < 4; flags++) {
        d9d_dtype t = array_types[flags & 1];
        d9d_init_kind kind = flags & 2 ? D9D_INIT_NORMAL : D9D_INIT_UNIFORM;
        void *all = array_poison(t, 6 * 50 * 40), *part = array_poison(t, 6 * 50 * 40);

        assert_int_equal(k->elementwise->random(NULL, t, all, kind, 0.5f, r, 3, whole, zero, whole),
                         D9D_OK);
        for (int64_t i = 0; i < 6 * 50 * 40; i++) {
            float v = flags & 2 ? 0.5f * d9d_rng_normal(r, (uint64_t)i)
                                : d9d_rng_uniform(r, (uint64_t)i) - 0.5f;

            assert_true(array_get(t, all, i) ==
                        (double)(flags & 1 ? d9d_bf16_to_f32(d9d_bf16_from_f32(v)) : v));
        }
        for (size_t b = 0; b < 4; b++) {
            const int64_t *box = boxes[b], *start = starts[b];
            int64_t n = box[0] * box[1] * box[2];

            assert_int_equal(
                k->elementwise->random(NULL, t, part, kind, 0.5f, r, 3, box, start, whole), D9D_OK);
            for (int64_t i = 0; i < n; i++) {
                int64_t x = start[2] + i % box[2], y = start[1] + i / box[2] % box[1];
                int64_t z = start[0] + i / box[2] / box[1];

                assert_true(array_get(t, part, i) == array_get(t, all, (z * 50 + y) * 40 + x));
            }
        }
        free(all);
        free(part);
    }
}

static void test_random_ones(void **state)
{
    const int64_t box[] = {4, 5}, zero[] = {0, 0};
    float y[20];

    (void)state;
    assert_int_equal(host_kernels()->elementwise->random(NULL, D9D_F32, y, D9D_INIT_ONES, 9.0f,
                                                         (d9d_rng){0}, 2, box, zero, box),
                     D9D_OK);
    for (int i = 0; i < 20; i++)
        assert_true(y[i] == 1.0f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_elementwise),  cmocka_unit_test(test_accumulate),
        cmocka_unit_test(test_axpy),         cmocka_unit_test(test_softcap),
        cmocka_unit_test(test_cast_between), cmocka_unit_test(test_fill),
        cmocka_unit_test(test_sigmoid_gate), cmocka_unit_test(test_random_box),
        cmocka_unit_test(test_random_ones),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
