/* The experts of a mixture, forward only, against a twin in double that goes token by token; and
 * the router with the order of its choices against the two apart. */
#include "support/arrays.h"
#include "support/host_kernels.h"
#include "support/unit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Rounded to t where a kernel stores, or may store, an array. */
static double rounded(d9d_dtype t, double v)
{
    float stored = 0;

    array_set(t, &stored, 0, v);
    return array_get(t, &stored, 0);
}

enum { GATE, UP, DOWN, MATRICES };

typedef struct call {
    d9d_experts_args a;
    bool ungated, biased, added;
    int32_t *expert, *order;
    float *prob;
    void *x, *plus, *y, *w[MATRICES], *b[MATRICES], *work[4];
} call;

static void run_experts(void *arg)
{
    call *c = arg;

    assert_ok(host_kernels()->moe->experts(NULL, &c->a, c->y));
}

/* Every fifth choice is elsewhere and has no row; experts 0 and 1 have most, so that one has more
 * rows than a kernel takes at a time. */
static void choose(call *c)
{
    d9d_experts_args *a = &c->a;

    a->n = 0;
    for (int64_t i = 0; i < a->rows * a->k; i++) {
        c->expert[i] = (int32_t)(i % 5 == 3 ? -1 : i % 3 == 0 ? i % a->e : i % 2 % a->e);
        c->prob[i] = 0.1f + 0.3f * (float)(i % 4);
        a->n += c->expert[i] >= 0;
    }
    assert_int_equal(host_kernels()->moe->sort_by_expert(NULL, a->order.offset, a->order.row,
                                                         a->order.source, c->expert, a->rows, a->e,
                                                         a->k),
                     D9D_OK);
}

static void make(call *c)
{
    d9d_experts_args *a = &c->a;
    const int64_t choices = a->rows * a->k, weights = a->e * a->h * a->i,
                  wide[MATRICES] = {a->i, a->i, a->h};

    c->expert = calloc((size_t)choices + 1, sizeof(*c->expert));
    c->order = calloc((size_t)(a->e + 1 + 2 * choices) + 1, sizeof(*c->order));
    c->prob = calloc((size_t)choices + 1, sizeof(*c->prob));
    a->order = (d9d_expert_order){c->order, c->order + a->e + 1, c->order + a->e + 1 + choices};
    choose(c);
    c->x = array_random(a->t, a->rows * a->h, 1, 1.0);
    c->plus = array_random(a->t, a->rows * a->h, 2, 1.0);
    c->y = array_poison(a->t, a->rows * a->h);
    for (int i = 0; i < MATRICES; i++) {
        c->w[i] = array_random(a->t, weights, 3 + (uint64_t)i,
                               1.0 / sqrt((double)(i == DOWN ? a->i : a->h)));
        c->b[i] = array_random(a->t, a->e * wide[i], 6 + (uint64_t)i, 0.5);
    }
    for (int i = 0; i < 4; i++)
        c->work[i] = array_poison(a->t, a->n * (i == 0 ? a->h : a->i));
    a->x = c->x;
    a->plus = c->added ? c->plus : NULL;
    a->prob = c->prob;
    a->gate = c->w[GATE];
    a->up = c->ungated ? NULL : c->w[UP];
    a->down = c->w[DOWN];
    a->b_gate = c->biased ? c->b[GATE] : NULL;
    a->b_up = c->biased && !c->ungated ? c->b[UP] : NULL;
    a->b_down = c->biased ? c->b[DOWN] : NULL;
    a->sorted = c->work[0];
    a->gates = c->work[1];
    a->ups = c->work[2];
    a->hidden = c->work[3];
}

static void release(call *c)
{
    void *all[] = {c->expert, c->order, c->prob, c->x, c->plus, c->y};

    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        free(all[i]);
    for (int i = 0; i < MATRICES; i++) {
        free(c->w[i]);
        free(c->b[i]);
    }
    for (int i = 0; i < 4; i++)
        free(c->work[i]);
}

/* Column `to` of x [n] times an expert's matrix [n, wide], plus its bias. */
static double product(const call *c, const double *x, int64_t n, int64_t wide, int which,
                      int64_t expert, int64_t to)
{
    double sum = c->biased ? array_get(c->a.t, c->b[which], expert * wide + to) : 0;

    for (int64_t i = 0; i < n; i++)
        sum += x[i] * array_get(c->a.t, c->w[which], (expert * n + i) * wide + to);
    return rounded(c->a.t, sum);
}

static double act(const d9d_glu *f, double g)
{
    return f->act == D9D_ACT_GELU ? g * 0.5 * erfc(-g / sqrt(2.0))
                                  : g / (1 + exp(-(f->act == D9D_ACT_SILU ? 1 : f->alpha) * g));
}

static double unit(const call *c, double g, double u)
{
    const d9d_glu *f = &c->a.glu;
    const double limit = f->limit;

    if (c->ungated)
        return act(f, g);
    if (f->act != D9D_ACT_SWIGLU_OAI)
        return act(f, g) * u;
    return act(f, fmin(g, limit)) * (fmax(-limit, fmin(u, limit)) + 1);
}

/* want += prob times the feed-forward of an expert. */
static void twin_choice(const call *c, const double *x, int64_t expert, double prob, double *want)
{
    const d9d_experts_args *a = &c->a;
    double *hidden = calloc((size_t)a->i + 1, sizeof(*hidden));

    for (int64_t i = 0; i < a->i; i++) {
        const double g = product(c, x, a->h, a->i, GATE, expert, i);

        hidden[i] =
            rounded(a->t, unit(c, g, c->ungated ? 0 : product(c, x, a->h, a->i, UP, expert, i)));
    }
    for (int64_t f = 0; f < a->h; f++)
        want[f] += prob * product(c, hidden, a->i, a->h, DOWN, expert, f);
    free(hidden);
}

static void check(const call *kind, double tolerance)
{
    call copy = *kind, *c = &copy;
    const d9d_experts_args *a = &c->a;
    double *x, *want;

    make(c);
    x = array_doubles(a->t, c->x, a->rows * a->h);
    want = c->added ? array_doubles(a->t, c->plus, a->rows * a->h)
                    : calloc((size_t)(a->rows * a->h) + 1, sizeof(*want));
    for (int64_t i = 0; i < a->rows * a->k; i++)
        if (c->expert[i] >= 0)
            twin_choice(c, x + i / a->k * a->h, c->expert[i], (double)c->prob[i],
                        want + i / a->k * a->h);
    array_same_for_threads(run_experts, c, c->y, (size_t)(a->rows * a->h) * d9d_dtype_size(a->t),
                           NULL);
    array_close("experts", a->t, c->y, want, a->rows * a->h, tolerance);
    free(x);
    free(want);
    release(c);
}

static const d9d_glu silu = {D9D_ACT_SILU, 0, 0}, gelu = {D9D_ACT_GELU, 0, 0},
                     oai = {D9D_ACT_SWIGLU_OAI, 1.702f, 0.8f};

static void test_experts(void **state)
{
    const int64_t shapes[][5] = {{0, 2, 4, 8, 8},    {1, 1, 1, 1, 1},     {1, 2, 4, 40, 24},
                                 {3, 2, 7, 136, 72}, {8, 3, 5, 264, 136}, {16, 4, 6, 72, 40},
                                 {5, 2, 3, 33, 17},  {90, 2, 4, 24, 16}};
    const struct {
        const d9d_glu *glu;
        bool ungated, biased, added;
    } kinds[] = {{&silu, false, false, false},
                 {&silu, false, true, true},
                 {&gelu, true, true, false},
                 {&gelu, false, false, true},
                 {&oai, false, true, true}};

    (void)state;
    for (size_t t = 0; t < 2; t++)
        for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
            for (size_t j = 0; j < sizeof(kinds) / sizeof(kinds[0]); j++) {
                const int64_t *s = shapes[i];
                const call c = {.a = {.t = array_types[t],
                                      .rows = s[0],
                                      .k = s[1],
                                      .e = s[2],
                                      .h = s[3],
                                      .i = s[4],
                                      .glu = *kinds[j].glu},
                                .ungated = kinds[j].ungated,
                                .biased = kinds[j].biased,
                                .added = kinds[j].added};

                check(&c, array_types[t] == D9D_F32 ? 1e-5 : 5e-2);
            }
}

/* The same token has the same bits alone and among others, with whichever experts they have. */
static void test_alone_and_beside_others(void **state)
{
    enum { ROWS = 7, H = 136, K = 2 };
    call one = {.a = {.t = D9D_BF16, .rows = 1, .k = K, .e = 6, .h = H, .i = 72, .glu = silu}};
    call all = one;

    (void)state;
    all.a.rows = ROWS;
    make(&all);
    run_experts(&all);
    for (int64_t r = 0; r < ROWS; r++) {
        make(&one);
        memcpy(one.x, (char *)all.x + r * H * 2, H * 2);
        memcpy(one.expert, all.expert + r * K, K * sizeof(int32_t));
        memcpy(one.prob, all.prob + r * K, K * sizeof(float));
        assert_int_equal(host_kernels()->moe->sort_by_expert(NULL, one.a.order.offset,
                                                             one.a.order.row, one.a.order.source,
                                                             one.expert, 1, one.a.e, K),
                         D9D_OK);
        one.a.n = (one.expert[0] >= 0) + (one.expert[1] >= 0);
        run_experts(&one);
        assert_memory_equal(one.y, (char *)all.y + r * H * 2, H * 2);
        release(&one);
    }
    release(&all);
}

/* --- the router and the order of its choices ------------------------------------------------- */

enum { ORDER_MAX = 4096, SCORE_MAX = 16384 };

typedef struct routed {
    float p[SCORE_MAX], prob[ORDER_MAX];
    int32_t expert[ORDER_MAX], offset[ORDER_MAX], row[ORDER_MAX], source[ORDER_MAX];
} routed;

static void check_route(const d9d_router_dims *n)
{
    const d9d_moe_kernels *k = host_kernels()->moe;
    routed *apart = calloc(1, sizeof(*apart)), *at_once = calloc(1, sizeof(*at_once));
    const d9d_expert_order order = {at_once->offset, at_once->row, at_once->source};
    void *logits = array_random(n->t, n->rows * n->e, 1, 1.0);
    float *bias = array_random(D9D_F32, n->e, 2, 0.1);

    assert_int_equal(k->router(NULL, n, apart->p, apart->prob, apart->expert, logits, bias),
                     D9D_OK);
    assert_int_equal(k->sort_by_expert(NULL, apart->offset, apart->row, apart->source,
                                       apart->expert, n->rows, n->e, n->k),
                     D9D_OK);
    assert_int_equal(
        k->route(NULL, n, at_once->p, at_once->prob, at_once->expert, &order, logits, bias),
        D9D_OK);
    assert_memory_equal(apart, at_once, sizeof(*apart));
    free(apart);
    free(at_once);
    free(logits);
    free(bias);
}

static void test_route(void **state)
{
    const d9d_router_dims dims[] = {
        {.t = D9D_BF16, .rows = 1, .e = 64, .k = 8, .scale = 1},
        {.t = D9D_F32,
         .rows = 8,
         .e = 33,
         .k = 5,
         .scale = 2,
         .sigmoid = true,
         .renormalise = true},
        {.t = D9D_BF16, .rows = 16, .e = 128, .k = 10, .scale = 1, .renormalise = true},
        {.t = D9D_BF16, .rows = 16, .e = 32, .k = 17, .scale = 1},
        {.t = D9D_BF16, .rows = 17, .e = 16, .k = 2, .scale = 1, .groups = 4, .top_groups = 2},
        {.t = D9D_F32,
         .rows = 3,
         .e = 16,
         .k = 3,
         .scale = 1,
         .groups = 4,
         .top_groups = 2,
         .sigmoid = true},
        {.t = D9D_BF16, .rows = 100, .e = 60, .k = 4, .scale = 1}};

    (void)state;
    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++)
        check_route(&dims[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_alone_and_beside_others),
        cmocka_unit_test(test_route),
    };

    return cmocka_run_group_tests_name("kernel_experts", tests, NULL, NULL);
}
