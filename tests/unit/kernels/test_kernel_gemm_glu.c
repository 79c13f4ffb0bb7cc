/* The GLU half of a feed-forward layer at once against its parts, products, biases and the unit
 * apart: the same numbers, but for sums in another order. */
#include "common/kernel_common.h"
#include "support/arrays.h"
#include "support/host_kernels.h"
#include "support/unit.h"

#include <math.h>
#include <stdlib.h>

enum { MOST_EXPERTS = 8 };

/* Y to UP are what forward makes, DGATE and DUP what backward does. */
enum { Y, GATE, UP, DGATE, DUP, MADE };

typedef struct call {
    d9d_gemm_glu_dims n;
    int64_t wide;
    bool ungated; /* y = act(gate) */
    void *x, *w[2], *b[2], *back, *dout;
    void *made[MADE];
} call;

static void *if_gated(const call *p, void *array)
{
    return p->ungated ? NULL : array;
}

static void run_forward(void *arg)
{
    call *p = arg;

    assert_int_equal(host_kernels()->gemm->glu(NULL, &p->n, p->made[Y], p->made[GATE],
                                               if_gated(p, p->made[UP]), p->x, p->w[0],
                                               if_gated(p, p->w[1])),
                     D9D_OK);
}
static void run_dgrad(void *arg)
{
    call *p = arg;

    assert_int_equal(host_kernels()->gemm->glu_bwd(NULL, &p->n, p->made[DGATE],
                                                   if_gated(p, p->made[DUP]), p->dout, p->back,
                                                   p->made[GATE], if_gated(p, p->made[UP])),
                     D9D_OK);
}

static void make(call *p, bool biased)
{
    d9d_gemm_glu_dims *n = &p->n;
    const int64_t weights = n->e * n->h * n->i;

    p->wide = n->rows * n->i;
    p->x = array_random(n->t, n->rows * n->h, 1, 1.0);
    p->dout = array_random(n->t, n->rows * n->h, 2, 1.0);
    for (int i = 0; i < 2; i++) {
        p->w[i] = array_random(n->t, weights, 3 + (uint64_t)i, 2.0 / sqrt((double)n->h));
        p->b[i] = array_random(n->t, n->e * n->i, 6 + (uint64_t)i, 1.0);
    }
    n->b_gate = biased ? p->b[0] : NULL;
    n->b_up = biased ? if_gated(p, p->b[1]) : NULL;
    p->back = array_random(n->t, weights, 5, 1.0 / sqrt((double)n->h));
    for (int i = 0; i < MADE; i++)
        p->made[i] = array_poison(n->t, p->wide);
}

static void release(call *p)
{
    void *parts[] = {p->x, p->w[0], p->w[1], p->b[0], p->b[1], p->back, p->dout};

    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++)
        free(parts[i]);
    for (int i = 0; i < MADE; i++)
        free(p->made[i]);
}

/* Gate and up are those of products; y is to the bit, and the gradients are, those of the very gate
 * and up that were made. */
static void check_kind(const call *kind, bool biased)
{
    static const char *const names[MADE] = {"y", "gate", "up", "dgate", "dup"};
    const d9d_kernels *k = host_kernels();
    void *want[MADE];
    call call_of_kind = *kind, *p = &call_of_kind;
    size_t bytes;

    make(p, biased);
    bytes = (size_t)p->wide * d9d_dtype_size(p->n.t);
    for (int i = 0; i < MADE; i++)
        want[i] = array_poison(p->n.t, p->wide);
    array_same_for_threads(run_forward, p, p->made[Y], bytes, NULL);
    array_same_for_threads(run_dgrad, p, p->made[DGATE], bytes, NULL);
    assert_int_equal(d9di_gemm_glu_parts(k, NULL, &p->n, want[Y], want[GATE], if_gated(p, want[UP]),
                                         p->x, p->w[0], if_gated(p, p->w[1])),
                     D9D_OK);
    assert_int_equal(d9di_gemm_glu_bwd_parts(k, NULL, &p->n, want[DGATE], if_gated(p, want[DUP]),
                                             p->dout, p->back, p->made[GATE],
                                             if_gated(p, p->made[UP])),
                     D9D_OK);
    for (int i = GATE; i < MADE; i++) {
        double *numbers = array_doubles(p->n.t, want[i], p->wide);

        if (!p->ungated || (i != UP && i != DUP))
            array_close(names[i], p->n.t, p->made[i], numbers, p->wide,
                        p->n.t == D9D_F32 ? 1e-5 : 1e-2);
        free(numbers);
    }
    assert_int_equal(k->elementwise->glu(NULL, &p->n.glu, p->n.t, want[Y], p->made[GATE],
                                         if_gated(p, p->made[UP]), p->wide),
                     D9D_OK);
    assert_memory_equal(want[Y], p->made[Y], bytes);
    for (int i = 0; i < MADE; i++)
        free(want[i]);
    release(p);
}

/* Plain SwiGLU, which has fused kernels; other units and biases. */
static void check(const d9d_gemm_glu_dims *n)
{
    static const struct {
        d9d_glu glu;
        bool ungated, biased;
    } kinds[] = {
        {{D9D_ACT_SILU, 0, 0}, false, false},
        {{D9D_ACT_SILU, 0, 0}, false, true},
        {{D9D_ACT_GELU, 0, 0}, true, true},
        {{D9D_ACT_GELU_TANH, 0, 0}, false, false},
        {{D9D_ACT_SWIGLU_OAI, 1.702f, 1.5f}, false, true},
        {{D9D_ACT_SILU, 0, 0}, true, false},
    };

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        call p = {.n = *n, .ungated = kinds[i].ungated};

        p.n.glu = kinds[i].glu;
        check_kind(&p, kinds[i].biased);
    }
}

static void test_dense(void **state)
{
    static const int64_t shapes[][3] = {
        {0, 3, 2},      {1, 1, 1},      {17, 33, 5},    {256, 64, 64},   {300, 128, 192},
        {700, 64, 448}, {1, 4096, 40},  {8, 520, 1030}, {9, 72, 17},     {16, 1032, 24},
        {300, 8, 8},    {259, 72, 200}, {300, 264, 56}, {700, 200, 1096}};

    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i += (size_t)unit_step(3))
        for (int t = 0; t < 2; t++) {
            const d9d_gemm_glu_dims n = {.t = array_types[t],
                                         .rows = shapes[i][0],
                                         .h = shapes[i][1],
                                         .i = shapes[i][2],
                                         .e = 1};

            check(&n);
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
        {72, 200, 6, {0, 1, 1, 4, 4, 6, 19}},
        {520, 136, 6, {0, 0, 2, 5, 5, 5, 8}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        for (int t = 0; t < 2; t++) {
            const struct experts *x = &all[i];
            const d9d_gemm_glu_dims n = {.t = array_types[t],
                                         .rows = x->offset[x->e],
                                         .h = x->h,
                                         .i = x->i,
                                         .e = x->e,
                                         .offset = x->offset};

            check(&n);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense),
        cmocka_unit_test(test_experts),
    };

    return cmocka_run_group_tests_name("kernel_gemm_glu", tests, NULL, NULL);
}
