/* test_op_router.c - MoE router: the experts of each token, and their weights. */
#include <math.h>
#include <string.h>

#include "support/fd.h"
#include "support/op_fixture.h"

typedef struct router_arg {
    int k;
    bool renormalise;
} router_arg;

static d9d_status run(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                      size_t n_out)
{
    fd_env *e = self;
    const router_arg *a = e->of->arg;
    const d9d_op_router_opts opts = {
        .k = a->k,
        .renormalise = a->renormalise,
        .bias = e->constant[0].storage != NULL ? &e->constant[0] : NULL,
    };
    d9d_routing r;

    (void)n_in, (void)n_out;
    D9D_TRY(d9d_op_router(t, in[0], &opts, out, &r));
    d9d_routing_release(&r);
    return D9D_OK;
}

/* Far enough apart that differences do not change the choice. */
static const float logits[] = {
    0.5f,  -1.0f, 1.5f,  0.0f,  -0.5f, /* */
    2.0f,  1.0f,  0.0f,  -2.0f, -1.0f, /* */
    -1.0f, -0.5f, 0.0f,  0.5f,  1.0f,  /* */
    0.25f, 0.75f, 1.25f, 1.75f, -0.25f,
};
static const float bias[] = {3, 0, -3, 0, 1.5f};

static void keeps_its_promises(void **state)
{
    static const router_arg one = {1, false}, two = {2, true}, three = {3, false}, all = {5, true};
    static const fd_case cases[] = {
        {.name = "one",
         .run = run,
         .in = {{.shape = D9D_SHAPE(4, 5), .host = logits}},
         .saved = {20, 4, 4},
         .arg = &one},
        {.name = "two",
         .run = run,
         .in = {{.shape = D9D_SHAPE(4, 5), .host = logits}},
         .saved = {20, 8, 8},
         .arg = &two},
        {.name = "three",
         .run = run,
         .in = {{.shape = D9D_SHAPE(4, 5), .host = logits}},
         .saved = {20, 12, 12},
         .arg = &three},
        {.name = "all",
         .run = run,
         .in = {{.shape = D9D_SHAPE(4, 5), .host = logits}},
         .saved = {20, 20, 20},
         .arg = &all},
        {.name = "bias",
         .run = run,
         .in = {{.shape = D9D_SHAPE(4, 5), .host = logits}},
         .constant = {{D9D_F32, D9D_SHAPE(5), bias}},
         .saved = {20, 8, 8},
         .arg = &two},
        {.name = "no tokens", .run = run, .in = {FD(0, 5)}, .saved = {-1, -1, -1}, .arg = &two},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fd_check(&cases[i]);
}

static void read_ints(const d9d_tensor *t, const int *want, int64_t n)
{
    float got[32];

    assert_int_equal(d9d_tensor_numel(t), n);
    assert_ok(d9d_tensor_to_f32(t, got));
    for (int64_t i = 0; i < n; i++)
        assert_int_equal((int)got[i], want[i]);
}

static void chooses_and_orders(void **state)
{
    static const float x[] = {1, 3, 2, 3, /* ties go to the lower expert */
                              0, 0, 0, 0, 9, 8, 0, 7};
    static const int expert[] = {1, 3, 0, 1, 0, 1}, offset[] = {0, 2, 5, 5, 6},
                     row[] = {2, 5, 0, 3, 1, 4}, source[] = {2, 4, 0, 3, 5, 1};
    const d9d_op_router_opts two = {.k = 2, .renormalise = true};
    op_fixture *f = *state;
    d9d_var *v = op_var(f, D9D_F32, D9D_SHAPE(3, 4)), *prob;
    d9d_routing r;
    float p[6];

    assert_ok(d9d_device_upload(f->dev, d9d_tensor_data(d9d_var_tensor(v)), x, sizeof(x)));
    assert_ok(d9d_op_router(f->tape, v, &two, &prob, &r));
    read_ints(&r.expert, expert, 6);
    read_ints(&r.offset, offset, 5);
    read_ints(&r.row, row, 6);
    read_ints(&r.source, source, 6);
    assert_ok(d9d_tensor_to_f32(d9d_var_tensor(prob), p));
    assert_float_equal(p[0], 0.5, 1e-6);
    assert_float_equal(p[3], 0.5, 1e-6);
    assert_float_equal(p[4], 1 / (1 + exp(-1)), 1e-6);
    assert_float_equal(p[4] + p[5], 1, 1e-6);
    d9d_routing_release(&r);
    assert_null(r.row.storage);
}

static void refuses(void **state)
{
    op_fixture *f = *state;
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(2, 3)),
            *deep = op_var(f, D9D_F32, D9D_SHAPE(2, 3, 4)), *p;
    d9d_tensor *b = op_tensor(f, D9D_F32, D9D_SHAPE(4));
    d9d_routing r;

    assert_refused(f, d9d_op_router(f->tape, x, &(d9d_op_router_opts){.k = 4}, &p, &r),
                   "router: logits [2, 3] does not fit k [4]: logits are [T, E], k is 1 to E");
    assert_refused(f, d9d_op_router(f->tape, x, &(d9d_op_router_opts){.k = 0}, &p, &r),
                   "router: logits [2, 3] does not fit k [0]: logits are [T, E], k is 1 to E");
    assert_refused(f, d9d_op_router(f->tape, deep, &(d9d_op_router_opts){.k = 1}, &p, &r),
                   "router: logits [2, 3, 4] does not fit k [1]: logits are [T, E], k is 1 to E");
    assert_refused(f, d9d_op_router(f->tape, x, &(d9d_op_router_opts){.k = 1, .bias = b}, &p, &r),
                   "router: bias [4] does not fit logits [2, 3]: logits are [T, E], a bias [E]");
}

/* --- what keeps it even ------------------------------------------------------------------- */

enum { T = 4, E = 5, K = 2 };

/* Two rows of three tokens of which the last four are here; one of them is padding. */
static const float weight[6] = {9, 9, 0.5f, 1.5f, 0, 1};
static const float dprob[T * K] = {0.5f, -1, 2, 0.25f, -0.75f, 1, 0.5f, 0};

static d9d_status even_router(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in,
                              d9d_var **out, size_t n_out)
{
    d9d_routing r;

    (void)n_in, (void)n_out;
    D9D_TRY(d9d_op_router(t, in[0], self, out, &r));
    d9d_routing_release(&r);
    return D9D_OK;
}

/* sum of prob dprob, and both losses; with `grad` their gradient. */
static double even_run(op_fixture *f, d9d_op_router_opts *opts, const float *x, bool again,
                       float *grad)
{
    d9d_tensor host, seed, counted, g;
    d9d_token_weights shares = {.first = 2};
    double sums[2 + E], loss = 0, choices = 0;
    float prob[T * K];
    d9d_var *in, *out;

    assert_ok(d9d_tensor_from_host(f->dev, D9D_F32, D9D_SHAPE(T, E), x, &host));
    assert_ok(d9d_tensor_from_host(f->dev, D9D_F32, D9D_SHAPE(T, K), dprob, &seed));
    assert_ok(d9d_tensor_from_host(f->dev, D9D_F32, D9D_SHAPE(2, 3), weight, &shares.weight));
    assert_ok(
        d9d_tensor_from_host(f->dev, D9D_F64, D9D_SHAPE(2 + E), (double[2 + E]){0}, &counted));
    opts->counted = &counted;
    d9d_tape_reset(f->tape);
    d9d_tape_set_token_weights(f->tape, &shares);
    assert_ok(d9d_tape_leaf(f->tape, &host, true, &in));
    assert_ok(again ? d9d_tape_recompute(f->tape, even_router, opts, &in, 1, &out, 1)
                    : even_router(opts, f->tape, &in, 1, &out, 1));
    assert_ok(d9d_tensor_to_f32(d9d_var_tensor(out), prob));
    assert_ok(d9d_tape_backward(f->tape, &out, &seed, 1, D9D_BACKWARD_FULL));
    assert_ok(d9d_device_download(f->dev, sums, d9d_tensor_data(&counted), sizeof(sums)));
    d9d_var_grad(in, &g);
    if (grad != NULL)
        assert_ok(d9d_tensor_to_f32(&g, grad));
    for (int i = 0; i < T * K; i++)
        loss += (double)prob[i] * (double)dprob[i];
    loss += sums[0] * (double)opts->aux + sums[1] * (double)opts->z;
    for (int e = 0; e < E; e++)
        choices += sums[2 + e];
    assert_true(choices == 3 * K); /* of three tokens, once also where they are seen twice */
    d9d_tape_reset(f->tape);
    d9d_tensor_release(&g);
    d9d_tensor_release(&host);
    d9d_tensor_release(&seed);
    d9d_tensor_release(&counted);
    d9d_tensor_release(&shares.weight);
    return loss;
}

static void losses_have_their_gradients(void **state)
{
    d9d_op_router_opts cases[] = {
        {.k = K, .renormalise = true, .aux = 0.5f, .z = 0.1f},
        {.k = K, .aux = 2, .scale = 3},
        {.k = K, .sigmoid = true, .renormalise = true, .aux = 1, .z = 0.2f, .scale = 2.5f},
        {.k = K, .sigmoid = true, .z = 0.3f},
    };
    const float step = 1e-2f;
    op_fixture *f = *state;

    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        float x[T * E], got[T * E], again[T * E];

        memcpy(x, logits, sizeof(x));
        (void)even_run(f, &cases[c], x, false, got);
        (void)even_run(f, &cases[c], x, true, again);
        assert_memory_equal(got, again, sizeof(got));
        for (int i = 0; i < T * E; i++) {
            double up, down;

            x[i] = logits[i] + step;
            up = even_run(f, &cases[c], x, false, NULL);
            x[i] = logits[i] - step;
            down = even_run(f, &cases[c], x, false, NULL);
            x[i] = logits[i];
            assert_float_equal(got[i], (up - down) / (2 * (double)step), 1e-3);
        }
    }
}

static void refuses_shares_that_do_not_fit(void **state)
{
    op_fixture *f = *state;
    d9d_tensor *flat = op_tensor(f, D9D_F32, D9D_SHAPE(6)),
               *few = op_tensor(f, D9D_F64, D9D_SHAPE(6));
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(4, 5)), *p;
    d9d_routing r;

    assert_refused(
        f, d9d_op_router(f->tape, x, &(d9d_op_router_opts){.k = 2, .counted = few}, &p, &r),
        "router: counted [6] does not fit logits [4, 5]: counts are at least [2 + E], with "
        "a capacity [4 + E]");
    assert_refused(
        f,
        d9d_op_router(f->tape, x, &(d9d_op_router_opts){.k = 2, .groups = 2, .top_groups = 1}, &p,
                      &r),
        "router: logits [4, 5] does not fit groups [2, 1]: E is a multiple of the groups, at most "
        "32, and the chosen groups have at least k experts");
    d9d_tape_set_token_weights(f->tape, &(d9d_token_weights){.weight = *flat});
    assert_fails(d9d_op_router(f->tape, x, &(d9d_op_router_opts){.k = 2, .z = 1}, &p, &r),
                 D9D_EINVAL,
                 "router: tokens [4] does not fit token weights [6]: token weights are [B, S], "
                 "tokens a slice of them");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_its_promises),
        op_test(chooses_and_orders),
        op_test(refuses),
        op_test(losses_have_their_gradients),
        op_test(refuses_shares_that_do_not_fit),
    };

    return cmocka_run_group_tests_name("op_router", tests, NULL, NULL);
}
