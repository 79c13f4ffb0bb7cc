/* test_op_grouped_linear.c - grouped GEMM: each expert's tokens through its own matrix. */
#include "support/fd.h"
#include "support/moe.h"
#include "support/op_fixture.h"

static d9d_status run(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                      size_t n_out)
{
    fd_env *e = self;
    d9d_routing r;
    d9d_status st;

    (void)n_in;
    D9D_TRY(moe_route(&e->constant[0], e->param[0]->shard.shape.dim[0], &r));
    st = d9d_op_grouped_linear(t, in[0], e->param, n_out, &r, out);
    d9d_routing_release(&r);
    return st;
}

/* With an adapter, whose factors are two parameters more. */
static d9d_status run_adapted(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in,
                              d9d_var **out, size_t n_out)
{
    fd_env *e = self;
    d9d_param_adapter adapter = {
        .param = {[D9D_ADAPTER_A] = e->param[1], [D9D_ADAPTER_B] = e->param[2]}, .scale = 0.75f};
    d9d_status st;

    e->param[0]->peft.adapter = &adapter;
    st = run(self, t, in, n_in, out, n_out);
    e->param[0]->peft.adapter = NULL;
    return st;
}

/* The same with dropout in front of A: tokens have numbers. */
static d9d_status run_dropped(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in,
                              d9d_var **out, size_t n_out)
{
    fd_env *e = self;
    const d9d_dropout_rng rng = {.seed = 9, .token = e->constant[1], .max_positions = 50};
    d9d_param_adapter adapter = {
        .param = {[D9D_ADAPTER_A] = e->param[1], [D9D_ADAPTER_B] = e->param[2]},
        .scale = 0.75f,
        .dropout = 0.4f};
    d9d_routing r;
    d9d_status st;

    (void)n_in;
    d9d_tape_set_dropout_rng(t, &rng);
    D9D_TRY(moe_route(&e->constant[0], e->param[0]->shard.shape.dim[0], &r));
    e->param[0]->peft.adapter = &adapter;
    st = d9d_op_routing_number(t, &r);
    if (st == D9D_OK)
        st = d9d_op_grouped_linear(t, in[0], e->param, n_out, &r, out);
    e->param[0]->peft.adapter = NULL;
    d9d_routing_release(&r);
    return st;
}

static d9d_status run_two(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                          size_t n_out)
{
    fd_env *e = self;
    d9d_routing r;
    d9d_var *y[2];
    d9d_status st;

    (void)n_in, (void)n_out;
    D9D_TRY(moe_route(&e->constant[0], e->param[0]->shard.shape.dim[0], &r));
    st = d9d_op_grouped_linear(t, in[0], e->param, 2, &r, y);
    d9d_routing_release(&r);
    return st == D9D_OK ? d9d_op_glu(t, &(d9d_glu){0}, y[0], y[1], out) : st;
}

/* Experts 2 and 4 have no rows. */
static const int32_t expert[] = {5, 0, 3, 0, 5, 3, 1, 3, 0, 5, 0, 1};
static const int32_t elsewhere[] = {5, -1, 3, 0, -1, -1, 1, -1, -1, 5, 0, 1};

static const int32_t all_first[3] = {0};
static const int64_t tokens[] = {0, 1, 2, 50, 51, 52};

static void keeps_its_promises(void **state)
{
    static const fd_case cases[] = {
        {.name = "some are empty",
         .run = run,
         .in = {FD(12, 5)},
         .param = {FD(6, 5, 7)},
         .constant = {{D9D_I32, D9D_SHAPE(6, 2), expert}},
         .saved = {7, 60}},
        {.name = "two weights",
         .run = run_two,
         .in = {FD(12, 5)},
         .param = {FD(6, 5, 7), FD(6, 5, 7)},
         .constant = {{D9D_I32, D9D_SHAPE(6, 2), expert}},
         .saved = {7, 60, 84, 84}},
        {.name = "wide",
         .run = run,
         .in = {FD(12, 33)},
         .param = {FD(7, 33, 17)},
         .constant = {{D9D_I32, D9D_SHAPE(4, 3), expert}},
         .saved = {8, 396}},
        {.name = "one expert",
         .run = run,
         .in = {FD(3, 2)},
         .param = {FD(1, 2, 3)},
         .constant = {{D9D_I32, D9D_SHAPE(3, 1), all_first}},
         .saved = {2, 6}},
        {.name = "some are elsewhere",
         .run = run,
         .in = {FD(7, 5)},
         .param = {FD(6, 5, 7)},
         .constant = {{D9D_I32, D9D_SHAPE(6, 2), elsewhere}},
         .saved = {7, 35}},
        {.name = "no rows",
         .run = run,
         .in = {FD(0, 3)},
         .param = {FD(4, 3, 2)},
         .constant = {{D9D_I32, D9D_SHAPE(0, 2), expert}},
         .saved = {5, -1}},
        {.name = "adapted",
         .run = run_adapted,
         .in = {FD(12, 5)},
         .param = {FD(6, 5, 7), FD(6, 5, 2), FD(6, 2, 7)},
         .constant = {{D9D_I32, D9D_SHAPE(6, 2), expert}},
         .saved = {7, 60, 24}},
        {.name = "adapted, with dropout",
         .run = run_dropped,
         .in = {FD(12, 5)},
         .param = {FD(6, 5, 7), FD(6, 5, 2), FD(6, 2, 7)},
         .constant = {{D9D_I32, D9D_SHAPE(6, 2), expert}, {D9D_I64, D9D_SHAPE(6), tokens}},
         .saved = {7, 60, 24, 60, 24}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fd_check(&cases[i]);
}

/* The gradient of an expert without rows is zero, not what was in memory. */
static void an_expert_without_rows_has_a_zero_gradient(void **state)
{
    op_fixture *f = *state;
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(2, 3)), *y;
    d9d_param *w = op_param(f, "experts", D9D_F32, D9D_SHAPE(2, 3, 1));
    const int32_t both[] = {1, 1};
    d9d_tensor *choice = op_tensor(f, D9D_I32, D9D_SHAPE(2, 1));
    float ones[] = {1, 1, 1, 1, 1, 1}, got[6];
    d9d_tensor seed;
    d9d_routing r;

    assert_ok(d9d_device_upload(f->dev, d9d_tensor_data(choice), both, sizeof(both)));
    assert_ok(d9d_device_upload(f->dev, d9d_tensor_data(&w->local.grad), ones, sizeof(ones)));
    assert_ok(d9d_device_upload(f->dev, d9d_tensor_data(d9d_var_tensor(x)), ones, sizeof(ones)));
    assert_ok(moe_route(choice, 2, &r));
    assert_ok(d9d_op_grouped_linear(f->tape, x, &w, 1, &r, &y));
    d9d_routing_release(&r);
    assert_ok(d9d_tensor_from_host(f->dev, D9D_F32, D9D_SHAPE(2, 1), ones, &seed));
    assert_ok(d9d_tape_backward(f->tape, &y, &seed, 1, D9D_BACKWARD_FULL));
    d9d_tensor_release(&seed);
    assert_true(w->local.has_grad);
    assert_ok(d9d_tensor_to_f32(&w->local.grad, got));
    for (int i = 0; i < 6; i++)
        assert_float_equal(got[i], i < 3 ? 0 : 2, 0);
}

static void refuses(void **state)
{
    op_fixture *f = *state;
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(8, 5)), *few = op_var(f, D9D_F32, D9D_SHAPE(4, 5)),
            *y;
    d9d_param *w = op_param(f, "w", D9D_F32, D9D_SHAPE(3, 6, 2));
    d9d_param *more = op_param(f, "v", D9D_F32, D9D_SHAPE(4, 5, 2));
    d9d_routing r;

    assert_ok(moe_route(op_tensor(f, D9D_I32, D9D_SHAPE(4, 2)), 3, &r));
    assert_refused(f, d9d_op_grouped_linear(f->tape, x, &w, 1, &r, &y),
                   "grouped_linear: x [8, 5] does not fit w [3, 6, 2]: x is [R, in], a weight [E, "
                   "in, out]");
    assert_refused(
        f, d9d_op_grouped_linear(f->tape, x, &more, 1, &r, &y),
        "grouped_linear: the routing's offsets [4] does not fit v [4, 5, 2]: offsets are "
        "[E + 1], a weight [E, in, out]");
    assert_refused(f, d9d_op_grouped_linear(f->tape, few, &more, 1, &r, &y),
                   "grouped_linear: x [4, 5] does not fit the rows of the routing [8]: x is [R, "
                   "...], the routing has R rows");
    d9d_routing_release(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_its_promises),
        op_test(an_expert_without_rows_has_a_zero_gradient),
        op_test(refuses),
    };

    return cmocka_run_group_tests_name("op_grouped_linear", tests, NULL, NULL);
}
