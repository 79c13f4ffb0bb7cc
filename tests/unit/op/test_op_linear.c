/* test_op_linear.c - y = x W^T. */
#include "support/fd.h"
#include "support/op_fixture.h"

static d9d_status run(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                      size_t n_out)
{
    fd_env *e = self;

    (void)n_in, (void)n_out;
    return d9d_op_linear(t, in[0], e->param[0], out);
}

/* Added to something. */
static d9d_status run_onto(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                           size_t n_out)
{
    fd_env *e = self;

    (void)n_in, (void)n_out;
    return d9d_op_linear_residual(t, in[0], e->param[0], in[1], out);
}

/* With a bias, and perhaps added to something. */
static d9d_status run_biased(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in,
                             d9d_var **out, size_t n_out)
{
    fd_env *e = self;

    (void)n_out;
    return d9d_op_linear_bias(t, in[0], e->param[0], e->param[1], n_in > 1 ? in[1] : NULL, out);
}

/* Rows of two weights with their parts of biases, of one x: both results together. */
static d9d_status run_several(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in,
                              d9d_var **out, size_t n_out)
{
    fd_env *e = self;
    const d9d_op_weight_slice of[] = {{e->param[0], 0, 4, e->param[2]},
                                      {e->param[1], 2, 4, e->param[3]}};
    d9d_var *y[2];

    (void)n_in, (void)n_out;
    D9D_TRY(d9d_op_linear_multi(t, in[0], NULL, of, 2, y));
    return d9d_op_add(t, y[0], y[1], out);
}

/* Some rows of the weight. */
static d9d_status run_rows(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                           size_t n_out)
{
    fd_env *e = self;
    const int64_t *rows = e->of->arg;

    (void)n_in, (void)n_out;
    return d9d_op_linear_slice(t, in[0], e->param[0], rows[0], rows[1], out);
}

/* With an adapter, whose factors are two parameters more. */
static d9d_status run_adapted(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in,
                              d9d_var **out, size_t n_out)
{
    fd_env *e = self;
    d9d_param_adapter adapter = {
        .param = {[D9D_ADAPTER_A] = e->param[1], [D9D_ADAPTER_B] = e->param[2]}, .scale = 1.5f};
    const int64_t *rows = e->of->arg;
    d9d_status st;

    (void)n_in, (void)n_out;
    e->param[0]->peft.adapter = &adapter;
    st = rows == NULL ? d9d_op_linear(t, in[0], e->param[0], out)
                      : d9d_op_linear_slice(t, in[0], e->param[0], rows[0], rows[1], out);
    e->param[0]->peft.adapter = NULL;
    return st;
}

/* With features left out of what goes into A: tokens of two rows of three. */
static d9d_status run_dropped(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in,
                              d9d_var **out, size_t n_out)
{
    fd_env *e = self;
    d9d_param_adapter adapter = {
        .param = {[D9D_ADAPTER_A] = e->param[1], [D9D_ADAPTER_B] = e->param[2]},
        .scale = 1.5f,
        .dropout = 0.4f};
    const d9d_dropout_rng draws = {.seed = 3, .token = e->constant[0]};
    d9d_status st;

    (void)n_in, (void)n_out;
    d9d_tape_set_dropout_rng(t, &draws);
    e->param[0]->peft.adapter = &adapter;
    st = d9d_op_linear(t, in[0], e->param[0], out);
    e->param[0]->peft.adapter = NULL;
    return st;
}

static const int64_t tokens[] = {0, 1, 2, 100, 101, 102};
static const int64_t middle[] = {2, 3}, last[] = {6, 1}, no_rows[] = {4, 0};

static void keeps_its_promises(void **state)
{
    static const fd_case cases[] = {
        {.name = "small", .run = run, .in = {FD(3, 5)}, .param = {FD(7, 5)}, .saved = {15}},
        {.name = "three dimensions",
         .run = run,
         .in = {FD(2, 3, 17)},
         .param = {FD(33, 17)},
         .saved = {102}},
        {.name = "vector", .run = run, .in = {FD(9)}, .param = {FD(4, 9)}, .saved = {9}},
        {.name = "no rows", .run = run, .in = {FD(0, 3)}, .param = {FD(4, 3)}, .saved = {-1}},
        {.name = "one by one", .run = run, .in = {FD(1, 1)}, .param = {FD(1, 1)}, .saved = {1}},
        {.name = "onto another",
         .run = run_onto,
         .in = {FD(2, 3, 17), FD(2, 3, 33)},
         .param = {FD(33, 17)},
         .saved = {102}},
        {.name = "onto a vector",
         .run = run_onto,
         .in = {FD(9), FD(4)},
         .param = {FD(4, 9)},
         .saved = {9}},
        {.name = "nothing onto nothing",
         .run = run_onto,
         .in = {FD(0, 3), FD(0, 4)},
         .param = {FD(4, 3)},
         .saved = {-1}},
        {.name = "biased",
         .run = run_biased,
         .in = {FD(3, 5)},
         .param = {FD(7, 5), FD(7)},
         .saved = {15}},
        {.name = "biased, onto another",
         .run = run_biased,
         .in = {FD(2, 3, 17), FD(2, 3, 33)},
         .param = {FD(33, 17), FD(33)},
         .saved = {102}},
        {.name = "several with biases",
         .run = run_several,
         .in = {FD(3, 5)},
         .param = {FD(4, 5), FD(7, 5), FD(4), FD(7)},
         .saved = {15}},
        {.name = "rows in the middle",
         .run = run_rows,
         .arg = middle,
         .in = {FD(2, 3, 5)},
         .param = {FD(7, 5)},
         .saved = {30}},
        {.name = "the last row",
         .run = run_rows,
         .arg = last,
         .in = {FD(3, 5)},
         .param = {FD(7, 5)},
         .saved = {15}},
        {.name = "none of the rows",
         .run = run_rows,
         .arg = no_rows,
         .in = {FD(3, 5)},
         .param = {FD(7, 5)},
         .saved = {15}},
        {.name = "adapted",
         .run = run_adapted,
         .in = {FD(2, 3, 5)},
         .param = {FD(7, 5), FD(2, 5), FD(7, 2)},
         .saved = {30, 12}},
        {.name = "adapted, of rank 9",
         .run = run_adapted,
         .in = {FD(17, 4)},
         .param = {FD(33, 4), FD(9, 4), FD(33, 9)},
         .saved = {68, 153}},
        {.name = "adapted, rows in the middle",
         .run = run_adapted,
         .arg = middle,
         .in = {FD(3, 5)},
         .param = {FD(7, 5), FD(2, 5), FD(7, 2)},
         .saved = {15, 6}},
        {.name = "adapted, with dropout",
         .run = run_dropped,
         .in = {FD(2, 3, 5)},
         .param = {FD(7, 5), FD(2, 5), FD(7, 2)},
         .constant = {{D9D_I64, D9D_SHAPE(6), tokens}},
         .saved = {30, 30, 12}},
        {.name = "adapted, no rows",
         .run = run_adapted,
         .in = {FD(0, 3)},
         .param = {FD(4, 3), FD(2, 3), FD(4, 2)},
         .saved = {-1, -1}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fd_check(&cases[i]);
}

static void refuses(void **state)
{
    op_fixture *f = *state;
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(2, 3)), *y = NULL;
    d9d_var *half = op_var(f, D9D_BF16, D9D_SHAPE(2, 3)),
            *ids = op_var(f, D9D_I32, D9D_SHAPE(2, 3));
    d9d_var *scalar = op_var(f, D9D_F32, D9D_SCALAR);
    d9d_param *w = op_param(f, "q.weight", D9D_F32, D9D_SHAPE(4, 5));
    d9d_param *fits = op_param(f, "k.weight", D9D_F32, D9D_SHAPE(4, 3));
    d9d_param *flat = op_param(f, "flat", D9D_F32, D9D_SHAPE(3));
    d9d_param none = {.name = "o.weight"}, nameless = {.spec.dtype = D9D_F32};

    assert_refused(f, d9d_op_linear(f->tape, x, w, &y),
                   "linear: x [2, 3] does not fit q.weight [4, 5]: x is [..., in], a weight [out, "
                   "in]");
    assert_refused(f, d9d_op_linear(f->tape, x, flat, &y),
                   "linear: x [2, 3] does not fit flat [3]: x is [..., in], a weight [out, in]");
    assert_refused(f, d9d_op_linear(f->tape, scalar, fits, &y),
                   "linear: x [] does not fit k.weight [4, 3]: x is [..., in], a weight [out, in]");
    assert_refused(f, d9d_op_linear(f->tape, half, fits, &y),
                   "linear: k.weight is float32, expected bfloat16");
    assert_refused(f, d9d_op_linear(f->tape, ids, fits, &y),
                   "linear: x is int32, expected float32 or bfloat16");
    assert_refused(f, d9d_op_linear(f->tape, x, &none, &y),
                   "linear: o.weight has no data: it was released or never filled");
    assert_refused(f, d9d_op_linear(f->tape, x, &nameless, &y),
                   "linear: the parameter has no data: it was released or never filled");
    assert_refused(f, d9d_op_linear_residual(f->tape, x, fits, x, &y),
                   "linear: plus [2, 3] does not fit y [2, 4]: a residual has the result's shape");
    assert_refused(f, d9d_op_linear_residual(f->tape, x, fits, half, &y),
                   "linear: plus is bfloat16, expected float32");
    assert_refused(f, d9d_op_linear_slice(f->tape, x, fits, 3, 2, &y),
                   "linear: rows [3, 3 + 2) of k.weight, which has 4");
    assert_refused(f, d9d_op_linear_slice(f->tape, x, fits, -1, 2, &y),
                   "linear: rows [-1, -1 + 2) of k.weight, which has 4");
    assert_refused(f, d9d_op_linear_slice(f->tape, x, fits, 1, INT64_MAX, &y),
                   "linear: rows [1, 1 + 9223372036854775807) of k.weight, which has 4");
    assert_null(y);
    d9d_tape_release_since(f->tape, 0, &half, 1);
    assert_refused(f, d9d_op_linear(f->tape, x, fits, &y),
                   "linear: x has no data: it was released or never filled");
}

/* Between the two calls a matrix is the base model's, and nothing is recorded. */
static void a_reference_has_no_adapter(void **state)
{
    op_fixture *f = *state;
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(2, 3));
    d9d_param *w = op_param(f, "w", D9D_F32, D9D_SHAPE(4, 3)),
              *a = op_param(f, "a", D9D_F32, D9D_SHAPE(2, 3)),
              *b = op_param(f, "b", D9D_F32, D9D_SHAPE(4, 2));
    d9d_param_adapter adapter = {.param = {[D9D_ADAPTER_A] = a, [D9D_ADAPTER_B] = b},
                                 .scale = 1.0f};
    const d9d_dropout_rng rng = {.seed = 1, .token = *op_tensor(f, D9D_I32, D9D_SHAPE(2))};
    size_t before;
    d9d_var *y;

    w->peft.adapter = &adapter;
    d9d_tape_set_dropout_rng(f->tape, &rng);
    d9d_tape_begin_reference(f->tape);
    assert_null(d9d_tape_adapter(f->tape, w));
    assert_null(d9d_tape_dropout_rng(f->tape));
    assert_true(d9d_tape_is_recompute(f->tape));
    assert_false(d9d_tape_should_record(f->tape, &x, 1, &w, 1));
    before = d9d_tape_mark(f->tape);
    assert_ok(d9d_op_linear(f->tape, x, w, &y));
    assert_int_equal(d9d_tape_mark(f->tape) - before, 1); /* one product, not three */
    assert_false(d9d_var_needs_grad(y));
    d9d_tape_end_reference(f->tape);
    assert_ptr_equal(d9d_tape_adapter(f->tape, w), &adapter);
    assert_non_null(d9d_tape_dropout_rng(f->tape));
    assert_false(d9d_tape_is_recompute(f->tape));
    w->peft.adapter = NULL;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_its_promises),
        op_test(a_reference_has_no_adapter),
        op_test(refuses),
    };

    return cmocka_run_group_tests_name("op_linear", tests, NULL, NULL);
}
