/* test_op_gated_delta.c - the ops of the gated delta rule. */
#include "support/fd.h"
#include "support/op_fixture.h"

static const d9d_segment documents[] = {
    {0, 1, 0, 1}, {1, 66, 1, 66}, {67, 3, 67, 3}, {70, 1, 70, 1}};

#define DOCUMENTS                                                                                  \
    {                                                                                              \
        D9D_I32, D9D_SHAPE(4, 4), documents                                                        \
    }

static const d9d_tensor *segments_of(fd_env *e)
{
    return e->of->constant[0].host != NULL ? &e->constant[0] : NULL;
}

static void check_all(const fd_case *cases, size_t n)
{
    for (size_t i = 0; i < n; i++)
        fd_check(&cases[i]);
}
#define CHECK_ALL(cases) check_all((cases), sizeof(cases) / sizeof((cases)[0]))

/* --- conv ----------------------------------------------------------------------------------- */

static d9d_status run_conv(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                           size_t n_out)
{
    fd_env *e = self;

    (void)n_in, (void)n_out;
    return d9d_op_causal_conv1d(t, in[0], e->param[0], segments_of(e), NULL, out);
}

static void conv(void **state)
{
    static const fd_case cases[] = {
        {.name = "rows", .run = run_conv, .in = {FD(2, 7, 5)}, .param = {FD(5, 4)}, .saved = {70}},
        {.name = "one wide",
         .run = run_conv,
         .in = {FD(1, 3, 2)},
         .param = {FD(2, 1)},
         .saved = {6}},
        {.name = "documents",
         .run = run_conv,
         .in = {FD(1, 71, 3)},
         .param = {FD(3, 8)},
         .constant = {DOCUMENTS},
         .saved = {213}},
        {.name = "no rows",
         .run = run_conv,
         .in = {FD(0, 7, 5)},
         .param = {FD(5, 4)},
         .saved = {-1}},
    };

    (void)state;
    CHECK_ALL(cases);
}

/* --- decay ------------------------------------------------------------------------------------ */

static d9d_status run_decay(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                            size_t n_out)
{
    fd_env *e = self;

    (void)n_in, (void)n_out;
    return d9d_op_gdn_gate(t, in[0], e->param[0], e->param[1], out);
}

static void decay(void **state)
{
    static const fd_case cases[] = {
        {.name = "heads",
         .run = run_decay,
         .in = {FD(2, 5, 3)},
         .param = {FD(3), FD(3)},
         .saved = {30}},
        {.name = "one", .run = run_decay, .in = {FD(1)}, .param = {FD(1), FD(1)}, .saved = {1}},
    };

    (void)state;
    CHECK_ALL(cases);
}

/* --- delta ------------------------------------------------------------------------------------ */

static d9d_status run_delta(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                            size_t n_out)
{
    fd_env *e = self;
    const d9d_op_gated_delta_args x = {.q = in[0],
                                       .k = in[1],
                                       .v = in[2],
                                       .g = in[3],
                                       .b = in[4],
                                       .scale = 0.5f,
                                       .segments = segments_of(e)};

    (void)n_in, (void)n_out;
    return d9d_op_gated_delta(t, &x, out);
}

/* Of either sign, which a decay need not be for its gradient to be right. */
#define DECAY(...)                                                                                 \
    {                                                                                              \
        .shape = D9D_SHAPE(__VA_ARGS__), .scale = 0.1f, .float32 = true                            \
    }

static void delta(void **state)
{
    static const fd_case cases[] = {
        {.name = "a chunk",
         .run = run_delta,
         .in = {FD(2, 9, 1, 4), FD(2, 9, 1, 4), FD(2, 9, 2, 3), DECAY(2, 9, 2), FD(2, 9, 2)},
         .saved = {72, 72, 108, 36, 36, -1},
         .tolerance_bf16 = 0.03f},
        {.name = "chunks",
         .run = run_delta,
         .in = {FD(1, 130, 1, 8), FD(1, 130, 1, 8), FD(1, 130, 1, 2), DECAY(1, 130, 1),
                FD(1, 130, 1)},
         .saved = {1040, 1040, 260, 130, 130, 32},
         .tolerance_bf16 = 0.03f},
        {.name = "documents",
         .run = run_delta,
         .in = {FD(1, 71, 2, 3), FD(1, 71, 2, 3), FD(1, 71, 2, 5), DECAY(1, 71, 2), FD(1, 71, 2)},
         .constant = {DOCUMENTS},
         .saved = {426, 426, 710, 142, 142, 30},
         .tolerance_bf16 = 0.03f},
        {.name = "no rows",
         .run = run_delta,
         .in = {FD(0, 5, 1, 3), FD(0, 5, 1, 3), FD(0, 5, 1, 3), DECAY(0, 5, 1), FD(0, 5, 1)},
         .saved = {-1, -1, -1, -1, -1, -1}},
    };

    (void)state;
    CHECK_ALL(cases);
}

/* --- gated norm ------------------------------------------------------------------------------- */

static d9d_status run_norm(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                           size_t n_out)
{
    fd_env *e = self;

    (void)n_in, (void)n_out;
    return d9d_op_rms_norm_gated(t, in[0], in[1], e->param[0], 1e-5f, out);
}

static void gated_norm(void **state)
{
    static const fd_case cases[] = {
        {.name = "heads",
         .run = run_norm,
         .in = {FD(2, 3, 2, 7), FD(2, 3, 2, 7)},
         .param = {FD(7)},
         .saved = {84, 84, 12}},
        {.name = "no rows",
         .run = run_norm,
         .in = {FD(0, 7), FD(0, 7)},
         .param = {FD(7)},
         .saved = {-1, -1, -1}},
    };

    (void)state;
    CHECK_ALL(cases);
}

/* --- what does not fit --------------------------------------------------------------------- */

static void refuses_weights(void **state)
{
    op_fixture *f = *state;
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(2, 3, 4)), *z = op_var(f, D9D_F32, D9D_SHAPE(2, 4)),
            *y;
    d9d_param *four = op_param(f, "four", D9D_F32, D9D_SHAPE(4)),
              *five = op_param(f, "five", D9D_F32, D9D_SHAPE(5)),
              *narrow = op_param(f, "narrow", D9D_F32, D9D_SHAPE(3, 4)),
              *wide = op_param(f, "wide", D9D_F32, D9D_SHAPE(4, 9)),
              *fine = op_param(f, "fine", D9D_F32, D9D_SHAPE(4, 4));
    const d9d_tensor *list = op_tensor(f, D9D_I32, D9D_SHAPE(4));

    assert_refused(
        f, d9d_op_causal_conv1d(f->tape, x, narrow, NULL, NULL, &y),
        "causal_conv1d: x [2, 3, 4] does not fit narrow [3, 4]: x is [B, S, N], a weight [N, W]");
    assert_refused(f, d9d_op_causal_conv1d(f->tape, x, wide, NULL, NULL, &y),
                   "causal_conv1d: wide has a kernel size of 9, from 1 to 8 are supported");
    assert_refused(f, d9d_op_causal_conv1d(f->tape, x, fine, list, NULL, &y),
                   "causal_conv1d: segments [4] does not fit x [2, 3, 4]: segments are [N, 4]");
    assert_refused(f, d9d_op_gdn_gate(f->tape, x, four, five, &y),
                   "gdn_gate: x [2, 3, 4] does not fit five [5]: x is [..., N], rate and bias [N]");
    assert_refused(
        f, d9d_op_rms_norm_gated(f->tape, x, x, five, 1, &y),
        "rms_norm_gated: x [2, 3, 4] does not fit five [5]: x is [..., N], a weight [N]");
    assert_refused(f, d9d_op_rms_norm_gated(f->tape, x, z, four, 1, &y),
                   "rms_norm_gated: z [2, 4] does not fit x [2, 3, 4]: shapes must be equal");
}

static void refuses_heads(void **state)
{
    op_fixture *f = *state;
    d9d_op_gated_delta_args x = {.q = op_var(f, D9D_F32, D9D_SHAPE(1, 2, 2, 4)),
                                 .k = op_var(f, D9D_F32, D9D_SHAPE(1, 2, 2, 4)),
                                 .v = op_var(f, D9D_F32, D9D_SHAPE(1, 2, 3, 4)),
                                 .g = op_var(f, D9D_F32, D9D_SHAPE(1, 2, 4)),
                                 .b = op_var(f, D9D_F32, D9D_SHAPE(1, 2, 2))};
    d9d_var *y;

    assert_refused(f, d9d_op_gated_delta(f->tape, &x, &y),
                   "gated_delta: v [1, 2, 3, 4] does not fit q [1, 2, 2, 4]: value heads must be a "
                   "multiple of key heads");
    x.v = op_var(f, D9D_F32, D9D_SHAPE(1, 3, 2, 4));
    assert_refused(
        f, d9d_op_gated_delta(f->tape, &x, &y),
        "gated_delta: v [1, 3, 2, 4] does not fit q [1, 2, 2, 4]: q and k are [B, S, K, D], v "
        "[B, S, A, F]");
    x.v = op_var(f, D9D_F32, D9D_SHAPE(1, 2, 4, 4));
    assert_refused(
        f, d9d_op_gated_delta(f->tape, &x, &y),
        "gated_delta: b [1, 2, 2] does not fit v [1, 2, 4, 4]: v is [B, S, A, F], a gate [B, "
        "S, A]");
    x.k = op_var(f, D9D_F32, D9D_SHAPE(1, 2, 2, 5));
    assert_refused(f, d9d_op_gated_delta(f->tape, &x, &y),
                   "gated_delta: k [1, 2, 2, 5] does not fit q [1, 2, 2, 4]: shapes must be equal");
    x.g = op_var(f, D9D_BF16, D9D_SHAPE(1, 2, 4));
    x.k = op_var(f, D9D_F32, D9D_SHAPE(1, 2, 2, 4));
    assert_refused(f, d9d_op_gated_delta(f->tape, &x, &y),
                   "gated_delta: g is bfloat16, expected float32");
}

static void refuses_what_is_kept(void **state)
{
    op_fixture *f = *state;
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(1, 3, 4)), *y;
    d9d_param *w = op_param(f, "conv", D9D_F32, D9D_SHAPE(4, 4));
    const d9d_tensor *list = op_tensor(f, D9D_I32, D9D_SHAPE(2, 4)),
                     *one = op_tensor(f, D9D_I32, D9D_SHAPE(1));
    d9d_op_state_cache cache = {op_tensor(f, D9D_F32, D9D_SHAPE(5, 3, 4)),
                                op_tensor(f, D9D_I32, D9D_SHAPE(2))};

    assert_refused(f, d9d_op_causal_conv1d(f->tape, x, w, NULL, &cache, &y),
                   "causal_conv1d: a state cache needs segments, and none are given");
    assert_refused(f, d9d_op_causal_conv1d(f->tape, x, w, list, &cache, &y),
                   "causal_conv1d: has no backward through a state cache");
    d9d_tape_set_recording(f->tape, false);
    cache.slots = op_tensor(f, D9D_F32, D9D_SHAPE(5, 2, 4));
    assert_refused(f, d9d_op_causal_conv1d(f->tape, x, w, list, &cache, &y),
                   "causal_conv1d: slots [5, 2, 4] does not fit a slot [3, 4]: slots are [R, ...]");
    cache.slots = op_tensor(f, D9D_BF16, D9D_SHAPE(5, 3, 4));
    assert_refused(f, d9d_op_causal_conv1d(f->tape, x, w, list, &cache, &y),
                   "causal_conv1d: slots is bfloat16, expected float32");
    cache = (d9d_op_state_cache){op_tensor(f, D9D_F32, D9D_SHAPE(5, 3, 4)), one};
    assert_refused(
        f, d9d_op_causal_conv1d(f->tape, x, w, list, &cache, &y),
        "causal_conv1d: slot_index [1] does not fit segments [2, 4]: one slot for each segment");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conv),        cmocka_unit_test(decay),  cmocka_unit_test(delta),
        cmocka_unit_test(gated_norm),  op_test(refuses_weights), op_test(refuses_heads),
        op_test(refuses_what_is_kept),
    };

    return cmocka_run_group_tests_name("op_delta", tests, NULL, NULL);
}
