/* test_op_ffn.c - a feed-forward layer at once. */
#include "support/fd.h"
#include "support/moe.h"
#include "support/op_fixture.h"

/* Weights in the order of a case's parameters: gate (unless it is `ungated`), up, down; then, with
 * `biases`, one of each. */
typedef struct ffn_kind {
    bool ungated, biases;
    d9d_glu glu;
} ffn_kind;

static d9d_op_ffn_weights weights(const fd_env *e)
{
    static const ffn_kind plain;
    const ffn_kind *k = e->of->arg != NULL ? e->of->arg : &plain;
    d9d_param *const *p = e->param, *const *b = p + (k->ungated ? 2 : 3);
    d9d_op_ffn_weights w = {.glu = k->glu};

    if (!k->ungated)
        w.gate = *p++;
    w.up = p[0];
    w.down = p[1];
    if (!k->biases)
        return w;
    if (!k->ungated)
        w.gate_bias = *b++;
    w.up_bias = b[0];
    w.down_bias = b[1];
    return w;
}

static d9d_status run(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                      size_t n_out)
{
    const d9d_op_ffn_weights w = weights(self);

    (void)n_out;
    return d9d_op_ffn(t, in[0], &w, NULL, NULL, n_in > 1 ? in[1] : NULL, out);
}

static d9d_status run_experts(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in,
                              d9d_var **out, size_t n_out)
{
    fd_env *e = self;
    const d9d_op_ffn_weights w = weights(e);
    d9d_routing r;
    d9d_status st;

    (void)n_in, (void)n_out;
    D9D_TRY(moe_route(&e->constant[0], e->param[0]->shard.shape.dim[0], &r));
    st = d9d_op_ffn(t, in[0], &w, &r, NULL, NULL, out);
    d9d_routing_release(&r);
    return st;
}

/* A mixture: tokens, their choices' weights and perhaps a residual. */
static d9d_status run_mixture(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in,
                              d9d_var **out, size_t n_out)
{
    fd_env *e = self;
    const d9d_op_ffn_weights w = weights(e);
    d9d_routing r;
    d9d_status st;

    (void)n_out;
    D9D_TRY(moe_route(&e->constant[0], e->param[0]->shard.shape.dim[0], &r));
    st = d9d_op_experts(t, in[0], in[1], &w, &r, n_in > 2 ? in[2] : NULL, out);
    d9d_routing_release(&r);
    return st;
}

/* With dropout of what `down` multiplies: tokens of two rows of three. */
static d9d_status run_dropped(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in,
                              d9d_var **out, size_t n_out)
{
    fd_env *e = self;
    const d9d_dropout_rng rng = {.seed = 3, .token = e->constant[0]};
    d9d_op_ffn_weights w = weights(e);

    (void)n_out;
    w.dropout = (d9d_op_dropout_opts){.p = 0.4f, .site = w.up};
    d9d_tape_set_dropout_rng(t, &rng);
    return d9d_op_ffn(t, in[0], &w, NULL, NULL, n_in > 1 ? in[1] : NULL, out);
}

/* With an adapter of `down`. */
static d9d_status run_adapted(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in,
                              d9d_var **out, size_t n_out)
{
    fd_env *e = self;
    d9d_param_adapter adapter = {
        .param = {[D9D_ADAPTER_A] = e->param[3], [D9D_ADAPTER_B] = e->param[4]}, .scale = 0.75f};
    d9d_status st;

    if (e->of->arg != NULL) /* the first parameters are weights and their biases */
        adapter = (d9d_param_adapter){
            .param = {[D9D_ADAPTER_A] = e->param[6], [D9D_ADAPTER_B] = e->param[7]},
            .scale = 0.75f};
    e->param[2]->peft.adapter = &adapter;
    st = run(self, t, in, n_in, out, n_out);
    e->param[2]->peft.adapter = NULL;
    return st;
}

/* Experts 2 and 4 have no rows. */
static const int32_t expert[] = {5, 0, 3, 0, 5, 3, 1, 3, 0, 5, 0, 1};

static const int32_t elsewhere[] = {5, -1, 3, 0, 5, 3, 1, -1, 0, 5, -1, 1};

static const int64_t tokens[] = {0, 1, 2, 100, 101, 102};

static void keeps_its_promises(void **state)
{
    static const ffn_kind gelu = {.ungated = true, .glu = {.act = D9D_ACT_GELU_TANH}},
                          gpt2 = {.ungated = true, .biases = true, .glu = {.act = D9D_ACT_GELU}},
                          biased = {.biases = true},
                          oai = {.biases = true, .glu = {D9D_ACT_SWIGLU_OAI, 1.702f, 100.0f}};
    static const fd_case cases[] = {
        {.name = "dense",
         .run = run,
         .in = {FD(4, 5)},
         .param = {FD(7, 5), FD(7, 5), FD(3, 7)},
         .saved = {20, 28, 28, 28}},
        {.name = "added",
         .run = run,
         .in = {FD(2, 3, 5), FD(2, 3, 5)},
         .param = {FD(7, 5), FD(7, 5), FD(5, 7)},
         .saved = {30, 42, 42, 42}},
        {.name = "experts",
         .run = run_experts,
         .in = {FD(12, 5)},
         .param = {FD(6, 5, 7), FD(6, 5, 7), FD(6, 7, 5)},
         .constant = {{D9D_I32, D9D_SHAPE(6, 2), expert}},
         .saved = {7, 60, 84, 84, 84}},
        {.name = "no rows",
         .run = run,
         .in = {FD(0, 3)},
         .param = {FD(2, 3), FD(2, 3), FD(3, 2)},
         .saved = {-1, -1, -1, -1}},
        {.name = "adapted",
         .run = run_adapted,
         .in = {FD(4, 5)},
         .param = {FD(7, 5), FD(7, 5), FD(3, 7), FD(2, 7), FD(3, 2)},
         .saved = {20, 28, 28, 28, 8}},
        {.name = "ungated",
         .run = run,
         .in = {FD(4, 5), FD(4, 3)},
         .param = {FD(7, 5), FD(3, 7)},
         .saved = {20, 28, 28},
         .arg = &gelu},
        {.name = "ungated, biases",
         .run = run,
         .in = {FD(4, 5)},
         .param = {FD(7, 5), FD(3, 7), FD(7), FD(3)},
         .saved = {20, 28, 28},
         .arg = &gpt2},
        {.name = "biases",
         .run = run,
         .in = {FD(2, 3, 5), FD(2, 3, 5)},
         .param = {FD(7, 5), FD(7, 5), FD(5, 7), FD(7), FD(7), FD(5)},
         .saved = {30, 42, 42, 42},
         .arg = &biased},
        {.name = "adapted, biases",
         .run = run_adapted,
         .in = {FD(4, 5)},
         .param = {FD(7, 5), FD(7, 5), FD(3, 7), FD(7), FD(7), FD(3), FD(2, 7), FD(3, 2)},
         .saved = {20, 28, 28, 28, 8},
         .arg = &biased,
         .tolerance_bf16 = 0.02f},
        {.name = "dropout",
         .run = run_dropped,
         .in = {FD(2, 3, 5), FD(2, 3, 5)},
         .param = {FD(7, 5), FD(7, 5), FD(5, 7), FD(7), FD(7), FD(5)},
         .constant = {{D9D_I64, D9D_SHAPE(6), tokens}},
         .saved = {30, 42, 42, 42},
         .arg = &biased},
        {.name = "experts, biases",
         .run = run_experts,
         .in = {FD(12, 5)},
         .param = {FD(6, 5, 7), FD(6, 5, 7), FD(6, 7, 5), FD(6, 7), FD(6, 7), FD(6, 5)},
         .constant = {{D9D_I32, D9D_SHAPE(6, 2), expert}},
         .saved = {7, 60, 84, 84, 84},
         .arg = &oai},
        {.name = "mixture",
         .run = run_mixture,
         .in = {FD(6, 5), {.shape = D9D_SHAPE(6, 2), .float32 = true}, FD(6, 5)},
         .param = {FD(6, 5, 7), FD(6, 5, 7), FD(6, 7, 5)},
         .constant = {{D9D_I32, D9D_SHAPE(6, 2), expert}},
         .saved = {12, 7, 60, 84, 84, 84, 60, 12}},
        {.name = "mixture, biases, some choices elsewhere",
         .run = run_mixture,
         .in = {FD(6, 5), {.shape = D9D_SHAPE(6, 2), .float32 = true}},
         .param = {FD(6, 5, 7), FD(6, 7, 5), FD(6, 7), FD(6, 5)},
         .constant = {{D9D_I32, D9D_SHAPE(6, 2), elsewhere}},
         .saved = {12, 7, 45, 63, 63, 45, 12},
         .arg = &gpt2,
         .tolerance_bf16 = 0.02f},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fd_check(&cases[i]);
}

static void refuses(void **state)
{
    op_fixture *f = *state;
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(8, 5)), *few = op_var(f, D9D_F32, D9D_SHAPE(4, 5)),
            *y;
    d9d_param *gate = op_param(f, "g", D9D_F32, D9D_SHAPE(6, 5));
    d9d_param *up = op_param(f, "u", D9D_F32, D9D_SHAPE(7, 5));
    d9d_param *down = op_param(f, "d", D9D_F32, D9D_SHAPE(5, 6));
    d9d_param *long_bias = op_param(f, "b", D9D_F32, D9D_SHAPE(7));
    const d9d_op_ffn_weights
        odd = {.gate = gate, .up = up, .down = down},
        turned = {.gate = gate, .up = gate, .down = gate},
        good = {.gate = gate, .up = gate, .down = down},
        biased = {.gate = gate, .up = gate, .down = down, .up_bias = long_bias},
        no_gate = {.up = up, .down = down, .gate_bias = up},
        drops = {.gate = gate, .up = gate, .down = down, .dropout = {.p = 0.5f, .site = up}};
    const d9d_routing routing = {0};

    assert_refused(f, d9d_op_ffn(f->tape, x, &odd, NULL, NULL, NULL, &y),
                   "ffn: u [7, 5] does not fit g [6, 5]: gate and up have one shape");
    assert_refused(f, d9d_op_ffn(f->tape, x, &turned, NULL, NULL, NULL, &y),
                   "linear: x [8, 6] does not fit g [6, 5]: x is [..., in], a weight [out, in]");
    assert_refused(f, d9d_op_ffn(f->tape, x, &good, NULL, NULL, few, &y),
                   "ffn: plus [4, 5] does not fit y [8, 5]: a residual has the result's shape");
    assert_refused(f, d9d_op_ffn(f->tape, x, &biased, NULL, NULL, NULL, &y),
                   "ffn: b [7] does not fit g [6, 5]: a bias has an element for each output "
                   "feature");
    assert_refused(f, d9d_op_ffn(f->tape, x, &no_gate, NULL, NULL, NULL, &y),
                   "ffn: a bias of the gate, but there is no gate");
    assert_refused(f, d9d_op_ffn(f->tape, x, &drops, &routing, NULL, NULL, &y),
                   "ffn: experts support no residual, no tensor-parallel overlap and no dropout");
}

static void refuses_mixtures(void **state)
{
    op_fixture *f = *state;
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(4, 5)), *few = op_var(f, D9D_F32, D9D_SHAPE(3, 5)),
            *prob = op_var(f, D9D_F32, D9D_SHAPE(4, 2)), *y;
    d9d_param *up = op_param(f, "u", D9D_F32, D9D_SHAPE(3, 5, 7));
    d9d_param *down = op_param(f, "d", D9D_F32, D9D_SHAPE(3, 7, 5));
    const d9d_op_ffn_weights w = {.up = up, .down = down}, odd = {.up = up, .down = up};
    d9d_routing r;

    assert_ok(moe_route(op_tensor(f, D9D_I32, D9D_SHAPE(4, 2)), 3, &r));
    d9d_tape_set_recording(f->tape, false);
    assert_refused(f, d9d_op_experts(f->tape, few, prob, &w, &r, NULL, &y),
                   "experts: x [3, 5] does not fit the expert ids [4, 2]: x is [T, ...], expert "
                   "ids are [T, k]");
    assert_refused(f, d9d_op_experts(f->tape, x, few, &w, &r, NULL, &y),
                   "experts: prob [3, 5] does not fit the expert ids [4, 2]: shapes must be equal");
    assert_refused(f, d9d_op_experts(f->tape, x, prob, &w, &r, few, &y),
                   "experts: plus [3, 5] does not fit x [4, 5]: shapes must be equal");
    assert_refused(f, d9d_op_experts(f->tape, x, prob, &odd, &r, NULL, &y),
                   "grouped_linear: x [8, 7] does not fit u [3, 5, 7]: x is [R, in], a weight "
                   "[E, in, out]");
    d9d_routing_release(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_its_promises),
        op_test(refuses),
        op_test(refuses_mixtures),
    };

    return cmocka_run_group_tests_name("op_ffn", tests, NULL, NULL);
}
