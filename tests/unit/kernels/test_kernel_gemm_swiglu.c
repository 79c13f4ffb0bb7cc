/* The gated half of a feed-forward layer at once against its parts, products and SwiGLU apart: the
 * same numbers, but for sums in another order. */
#include "common/kernel_common.h"
#include "support/arrays.h"
#include "support/host_kernels.h"

#include <math.h>
#include <stdlib.h>

enum { MOST_EXPERTS = 8 };

/* Y to UP are what forward makes, DGATE and DUP what backward does. */
enum { Y, GATE, UP, DGATE, DUP, MADE };

typedef struct call {
    d9d_gemm_swiglu_dims n;
    int64_t wide;
    void *x, *w[2], *back, *dout;
    void *made[MADE];
} call;

static void run_forward(void *arg)
{
    call *p = arg;

    assert_int_equal(host_kernels()->gemm->swiglu(NULL, &p->n, p->made[Y], p->made[GATE],
                                                  p->made[UP], p->x, p->w[0], p->w[1]),
                     D9D_OK);
}
static void run_din(void *arg)
{
    call *p = arg;

    assert_int_equal(host_kernels()->gemm->swiglu_bwd(NULL, &p->n, p->made[DGATE], p->made[DUP],
                                                      p->dout, p->back, p->made[GATE], p->made[UP]),
                     D9D_OK);
}

static void make(call *p)
{
    const d9d_gemm_swiglu_dims *n = &p->n;
    const int64_t weights = n->e * n->h * n->i;

    p->wide = n->rows * n->i;
    p->x = array_random(n->t, n->rows * n->h, 1, 1.0);
    p->dout = array_random(n->t, n->rows * n->h, 2, 1.0);
    for (int i = 0; i < 2; i++)
        p->w[i] = array_random(n->t, weights, 3 + (uint64_t)i, 2.0 / sqrt((double)n->h));
    p->back = array_random(n->t, weights, 5, 1.0 / sqrt((double)n->h));
    for (int i = 0; i < MADE; i++)
        p->made[i] = array_poison(n->t, p->wide);
}

static void release(call *p)
{
    void *parts[] = {p->x, p->w[0], p->w[1], p->back, p->dout};

    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++)
        free(parts[i]);
    for (int i = 0; i < MADE; i++)
        free(p->made[i]);
}

/* Gate and up are those of products; y is to the bit, and the gradients are, those of the very gate
 * and up that were made. */
static void check(call *p)
{
    static const char *const names[MADE] = {"y", "gate", "up", "dgate", "dup"};
    const d9d_kernels *k = host_kernels();
    size_t bytes;
    void *want[MADE], *y;

    make(p);
    bytes = (size_t)p->wide * d9d_dtype_size(p->n.t);
    for (int i = 0; i < MADE; i++)
        want[i] = array_poison(p->n.t, p->wide);
    array_same_for_threads(run_forward, p, p->made[Y], bytes, NULL);
    array_same_for_threads(run_din, p, p->made[DGATE], bytes, NULL);
    assert_int_equal(d9di_gemm_swiglu_parts(k, NULL, &p->n, want[Y], want[GATE], want[UP], p->x,
                                            p->w[0], p->w[1]),
                     D9D_OK);
    assert_int_equal(d9di_gemm_swiglu_bwd_parts(k, NULL, &p->n, want[DGATE], want[DUP], p->dout,
                                                p->back, p->made[GATE], p->made[UP]),
                     D9D_OK);
    for (int i = GATE; i < MADE; i++) {
        double *numbers = array_doubles(p->n.t, want[i], p->wide);

        array_close(names[i], p->n.t, p->made[i], numbers, p->wide,
                    p->n.t == D9D_F32 ? 1e-5 : 1e-2);
        free(numbers);
    }
    y = want[Y];
    assert_int_equal(k->elementwise->swiglu(NULL, p->n.t, y, p->made[GATE], p->made[UP], p->wide),
                     D9D_OK);
    assert_memory_equal(y, p->made[Y], bytes);
    for (int i = 0; i < MADE; i++)
        free(want[i]);
    release(p);
}

static void test_dense(void **state)
{
    static const int64_t shapes[][3] = {
        {0, 3, 2},      {1, 1, 1},      {17, 33, 5},    {256, 64, 64},   {300, 128, 192},
        {700, 64, 448}, {1, 4096, 40},  {8, 520, 1030}, {9, 72, 17},     {16, 1032, 24},
        {300, 8, 8},    {259, 72, 200}, {300, 264, 56}, {700, 200, 1096}};

    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
        for (int t = 0; t < 2; t++) {
            call p = {
                .n = {array_types[t], shapes[i][0], shapes[i][1], shapes[i][2], 1, NULL, false}};

            check(&p);
        }
}

/* Experts without rows, with one, with a few tiles. */
static void test_experts(void **state)
{
    static const struct experts {
        int64_t h, i, e;
        int32_t offset[MOST_EXPERTS + 1];
    } all[] = {
        {5, 3, 3, {0, 2, 2, 7}},
        {64, 64, 4, {0, 0, 1, 65, 257}},
        {128, 192, 6, {0, 130, 130, 387, 388, 452, 720}},
        {72, 200, 6, {0, 130, 130, 387, 388, 452, 720}},
        {200, 24, 4, {0, 0, 1, 65, 321}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        for (int t = 0; t < 2; t++) {
            const struct experts *x = &all[i];
            call p = {.n = {array_types[t], x->offset[x->e], x->h, x->i, x->e, x->offset, false}};

            check(&p);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense),
        cmocka_unit_test(test_experts),
    };

    return cmocka_run_group_tests_name("kernel_gated", tests, NULL, NULL);
}
