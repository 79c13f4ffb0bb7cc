/* test_op_expert_capacity.c - experts that take no more than their capacity of a sequence: what is
 * kept against a slow twin, and the gradients of what is left.  Parts of a sequence on several
 * ranks: tests/multirank/capacity.bats. */
#include <math.h>
#include <string.h>

#include "support/arrays.h"
#include "support/fd.h"
#include "support/op_fixture.h"

typedef struct capacity_case {
    int64_t b, s, e;
    int k;
    double factor;
    bool crowd;         /* the first experts are everybody's */
    int64_t lengths[4]; /* 0: all of s */
} capacity_case;

/* The choices that are kept, by the definition; returns how many of tokens that count are not. */
static int64_t twin(const capacity_case *c, const int32_t *expert, int32_t *kept)
{
    int64_t dropped = 0;

    for (int64_t b = 0; b < c->b; b++) {
        const int64_t length = c->lengths[b] > 0 ? c->lengths[b] : c->s;
        const int64_t most = (int64_t)ceil((double)(length * c->k) / (double)c->e * c->factor);
        int64_t taken[64] = {0};

        for (int64_t i = b * c->s * c->k; i < (b + 1) * c->s * c->k; i++) {
            kept[i] = taken[expert[i]]++ < most ? expert[i] : -1;
            dropped += kept[i] < 0 && i / c->k % c->s < length;
        }
    }
    return dropped;
}

static int32_t *ints_of(const d9d_tensor *t)
{
    const int64_t n = d9d_tensor_numel(t);
    int32_t *x = calloc((size_t)n + 1, sizeof(*x));

    assert_non_null(x);
    assert_ok(
        d9d_device_download(d9d_tensor_device(t), x, d9d_tensor_data(t), (uint64_t)n * sizeof(*x)));
    return x;
}

static float *scores_of(const capacity_case *c)
{
    float *x = array_random(D9D_F32, c->b * c->s * c->e, 5, 1.0);

    for (int64_t i = 0; i < c->b * c->s * c->e && c->crowd; i++)
        x[i] -= 2.0f * (float)(i % c->e);
    return x;
}

/* Route rows [first, first + n) of the case, with or without the capacity. */
static void route(op_fixture *f, const capacity_case *c, int64_t first, int64_t n, double factor,
                  const d9d_tensor *counted, d9d_routing *r)
{
    float *x = scores_of(c), *weight = calloc((size_t)(n * c->s) + 1, sizeof(*weight));
    d9d_token_weights w = {.lengths = c->lengths[0] > 0 ? c->lengths + first : NULL};
    d9d_tensor logits;
    d9d_var *in, *prob;

    assert_non_null(weight);
    for (int64_t i = 0; i < n * c->s; i++)
        weight[i] = w.lengths == NULL || i % c->s < w.lengths[i / c->s] ? 0.5f : 0.0f;
    assert_ok(d9d_tensor_from_host(f->dev, D9D_F32, D9D_SHAPE(n, c->s), weight, &w.weight));
    assert_ok(d9d_tensor_from_host(f->dev, D9D_F32, D9D_SHAPE(n * c->s, c->e),
                                   x + first * c->s * c->e, &logits));
    d9d_tape_reset(f->tape);
    d9d_tape_set_token_weights(f->tape, &w);
    assert_ok(d9d_tape_leaf(f->tape, &logits, false, &in));
    assert_ok(d9d_op_router(
        f->tape, in, &(d9d_op_router_opts){.k = c->k, .capacity = factor, .counted = counted},
        &prob, r));
    d9d_tape_reset(f->tape);
    d9d_tensor_release(&w.weight);
    d9d_tensor_release(&logits);
    free(weight);
    free(x);
}

/* Rows are numbered by (expert, token), and R counts them. */
static void check_order(op_fixture *f, const capacity_case *c, const int32_t *kept, d9d_routing *r)
{
    const int64_t n = c->b * c->s * c->k;
    int32_t *row = ints_of(&r->row), *offset = ints_of(&r->offset);
    int32_t at = 0;

    assert_true(r->limited);
    assert_int_equal(r->source.shape.dim[0], n);
    for (int32_t e = 0; e < c->e; e++) {
        assert_int_equal(offset[e], at);
        for (int64_t i = 0; i < n; i++)
            if (kept[i] == e)
                assert_int_equal(row[i], at++);
    }
    for (int64_t i = 0; i < n; i++)
        assert_true(kept[i] >= 0 || row[i] == -1);
    assert_ok(d9d_op_routing_trim(f->tape, r));
    assert_int_equal(r->source.shape.dim[0], at);
    assert_false(r->limited);
    assert_ok(d9d_op_routing_trim(f->tape, r));
    free(row);
    free(offset);
}

/* A sequence keeps what it keeps alone. */
static void check_alone(op_fixture *f, const capacity_case *c, const int32_t *kept)
{
    for (int64_t b = 0; b < c->b; b++) {
        const int64_t n = c->s * c->k;
        d9d_routing r;
        int32_t *got;

        route(f, c, b, 1, c->factor, NULL, &r);
        got = ints_of(&r.expert);
        assert_memory_equal(got, kept + b * n, (size_t)n * sizeof(*got));
        free(got);
        d9d_routing_release(&r);
    }
}

static void keeps_the_first_tokens(void **state)
{
    static const capacity_case cases[] = {
        {2, 6, 4, 2, 1.0, false, {0}},        {1, 1, 3, 2, 1.0, true, {0}},
        {3, 7, 5, 3, 0.5, false, {0}},        {1, 37, 8, 3, 1.25, true, {0}},
        {2, 33, 5, 1, 1.1, true, {0}},        {4, 9, 6, 2, 1.0, true, {9, 1, 4, 8}},
        {2, 130, 17, 4, 1.0, false, {5, 99}}, {2, 8, 4, 4, 0.25, false, {0}},
        {1, 40, 4, 2, 1e3, true, {0}},        {2, 16, 4, 1, 1e-9, true, {0}},
        {3, 5, 1, 1, 0.6, false, {0}},
    };
    op_fixture *f = *state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const capacity_case *c = &cases[i];
        const int64_t n = c->b * c->s * c->k;
        double sums[4 + 64] = {0};
        d9d_tensor counted;
        d9d_routing all, r;
        int32_t *expert, *got, *kept = calloc((size_t)n, sizeof(*kept));
        int64_t dropped, counts = 0;

        assert_non_null(kept);
        assert_ok(d9d_tensor_from_host(f->dev, D9D_F64, D9D_SHAPE(4 + c->e), sums, &counted));
        route(f, c, 0, c->b, 0, NULL, &all);
        route(f, c, 0, c->b, c->factor, &counted, &r);
        expert = ints_of(&all.expert);
        got = ints_of(&r.expert);
        dropped = twin(c, expert, kept);
        assert_memory_equal(got, kept, (size_t)n * sizeof(*got));
        assert_ok(d9d_device_download(f->dev, sums, d9d_tensor_data(&counted),
                                      (uint64_t)(4 + c->e) * sizeof(*sums)));
        assert_int_equal((int64_t)sums[2 + c->e + 1], dropped);
        for (int64_t e = 0; e < c->e; e++) /* of what tokens chose */
            counts += (int64_t)sums[2 + e];
        assert_int_equal((int64_t)(sums[2 + c->e] + sums[2 + c->e + 1]), counts);
        check_order(f, c, kept, &r);
        check_alone(f, c, kept);
        d9d_tensor_release(&counted);
        d9d_routing_release(&all);
        d9d_routing_release(&r);
        free(expert);
        free(got);
        free(kept);
    }
}

/* --- gradients -------------------------------------------------------------------------------- */

enum { B = 2, S = 3, E = 3, H = 4, I = 2 };

static d9d_status mixture(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                          size_t n_out)
{
    fd_env *e = self;
    d9d_routing r = {0};
    d9d_var *prob, *h;
    d9d_status st;

    (void)n_in, (void)n_out;
    d9d_tape_set_token_weights(t, &(d9d_token_weights){.weight = e->constant[0]});
    D9D_TRY(d9d_op_router(
        t, in[0], &(d9d_op_router_opts){.k = 2, .renormalise = true, .capacity = 1.0}, &prob, &r));
    D9D_TRY_OR(st, d9d_op_routing_trim(t, &r), out);
    D9D_TRY_OR(st, d9d_op_permute(t, in[1], &r, &h), out);
    D9D_TRY_OR(st, d9d_op_grouped_linear(t, h, e->param, 1, &r, &h), out);
    st = d9d_op_unpermute(t, h, prob, &r, NULL, out);
out:
    d9d_routing_release(&r);
    return st;
}

/* Each sequence of 3 tokens with 2 choices has 2 places at each of 3 experts.  All tokens of the
 * first choose experts 0 and 1; two choices are dropped there, none in the second. */
static const float logits[] = {
    2.0f, 1.0f,  -1.0f, 1.5f, 2.5f,  -0.5f, 1.0f, 2.0f,  0.0f,
    2.0f, -1.0f, 1.0f,  1.0f, 2.25f, 0.0f,  0.0f, -1.0f, 1.0f,
};
static const float ones[B * S] = {1, 1, 1, 1, 1, 1};

static void keeps_its_promises(void **state)
{
    (void)state;
    fd_check(&(fd_case){
        .name = "a mixture with a capacity",
        .run = mixture,
        .in = {{.shape = D9D_SHAPE(B * S, E), .host = logits}, FD(B * S, H)},
        .param = {FD(E, H, I)},
        .constant = {{D9D_F32, D9D_SHAPE(B, S), ones}},
        .saved = {18, 12, 12, 12, 4, 40, 20},
    });
}

/* --- limits ----------------------------------------------------------------------------------- */

static void drops_nothing_without_token_weights(void **state)
{
    op_fixture *f = *state;
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(6, 3)), *p;
    d9d_routing r;
    int32_t *expert;

    assert_ok(d9d_op_router(f->tape, x, &(d9d_op_router_opts){.k = 2, .capacity = 0.5}, &p, &r));
    assert_false(r.limited);
    expert = ints_of(&r.expert);
    for (int i = 0; i < 12; i++)
        assert_true(expert[i] >= 0);
    free(expert);
    d9d_routing_release(&r);
}

static void refuses(void **state)
{
    const d9d_op_router_opts opts = {.k = 2, .capacity = 1};
    op_fixture *f = *state;
    d9d_tensor *few = op_tensor(f, D9D_F32, D9D_SHAPE(2, 2)),
               *counted = op_tensor(f, D9D_F64, D9D_SHAPE(6));
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(6, 3)), *p;
    d9d_op_router_opts counts = opts;
    d9d_routing r;

    counts.counted = counted;
    assert_refused(f, d9d_op_router(f->tape, x, &counts, &p, &r),
                   "router: counted [6] does not fit logits [6, 3]: counts are at least [2 + E], "
                   "with a capacity [4 + E]");
    d9d_tape_set_token_weights(f->tape, &(d9d_token_weights){.weight = *few});
    assert_fails(d9d_op_router(f->tape, x, &opts, &p, &r), D9D_EINVAL,
                 "expert_capacity: tokens [6] does not fit token weights [2, 2]: token weights are "
                 "[B, S], tokens all of them or a rank's");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        op_test(keeps_the_first_tokens),
        cmocka_unit_test(keeps_its_promises),
        op_test(drops_nothing_without_token_weights),
        op_test(refuses),
    };

    return cmocka_run_group_tests_name("op_expert_capacity", tests, NULL, NULL);
}
