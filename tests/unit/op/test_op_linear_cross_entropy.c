/* test_op_linear_cross_entropy.c - head and loss in one. */
#include <math.h>

#include "support/fd.h"
#include "support/op_fixture.h"
#include "support/unit_device.h"

enum { IGNORE = -100 };

static const d9d_op_vocab_opts plain = {.ignore = IGNORE};
static const d9d_op_vocab_opts capped = {.ignore = IGNORE, .softcap = 1.5f};

/* The last parameter is the bias. */
static d9d_status run_with_bias(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in,
                                d9d_var **out, size_t n_out)
{
    fd_env *e = self;
    d9d_op_vocab_opts opts = e->of->arg != NULL ? *(const d9d_op_vocab_opts *)e->of->arg : plain;

    (void)n_in, (void)n_out;
    opts.bias = e->param[e->n_param - 1];
    return d9d_op_linear_cross_entropy(t, in[0], e->param, e->n_param - 1, &e->constant[0], &opts,
                                       out);
}

static d9d_status run(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                      size_t n_out)
{
    fd_env *e = self;

    const d9d_op_vocab_opts *opts = e->of->arg;

    (void)n_in, (void)n_out;
    return d9d_op_linear_cross_entropy(t, in[0], e->param, e->n_param, &e->constant[0],
                                       opts != NULL ? opts : &plain, out);
}

/* Parameters: W, A, B, and a bias if there is a fourth. */
static d9d_status run_adapted(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in,
                              d9d_var **out, size_t n_out)
{
    fd_env *e = self;
    d9d_param_adapter adapter = {
        .r = e->param[1]->spec.shape.dim[0],
        .scale = 0.75f,
        .param = {[D9D_ADAPTER_A] = e->param[1], [D9D_ADAPTER_B] = e->param[2]}};
    d9d_op_vocab_opts opts = capped;
    d9d_status st;

    (void)n_in, (void)n_out;
    opts.bias = e->n_param > 3 ? e->param[3] : NULL;
    e->param[0]->peft.adapter = &adapter;
    st = d9d_op_linear_cross_entropy(t, in[0], e->param, 1, &e->constant[0], &opts, out);
    e->param[0]->peft.adapter = NULL;
    return st;
}

static const int32_t targets[] = {0, 8, IGNORE, 4, 5, 5, 7, IGNORE, 1};

static void keeps_its_promises(void **state)
{
    static const fd_case cases[] = {
        {.name = "one",
         .run = run,
         .in = {FD(9, 5)},
         .param = {FD(9, 5)},
         .constant = {{D9D_I32, D9D_SHAPE(9), targets}},
         .saved = {45, 45, 9}},
        {.name = "split",
         .run = run,
         .in = {FD(9, 7)},
         .param = {FD(5, 7), FD(3, 7), FD(1, 7)},
         .constant = {{D9D_I32, D9D_SHAPE(9), targets}},
         .saved = {63, 63, 9}},
        {.name = "split, with a softcap",
         .run = run,
         .in = {FD(9, 7)},
         .param = {FD(5, 7), FD(3, 7), FD(1, 7)},
         .constant = {{D9D_I32, D9D_SHAPE(9), targets}},
         .saved = {63, 63, 9},
         .arg = &capped},
        {.name = "with a bias",
         .run = run_with_bias,
         .in = {FD(9, 5)},
         .param = {FD(9, 5), FD(9)},
         .constant = {{D9D_I32, D9D_SHAPE(9), targets}},
         .saved = {45, 45, 9}},
        {.name = "split, with a bias and a softcap",
         .run = run_with_bias,
         .in = {FD(9, 7)},
         .param = {FD(5, 7), FD(3, 7), FD(1, 7), FD(9)},
         .constant = {{D9D_I32, D9D_SHAPE(9), targets}},
         .saved = {63, 63, 9},
         .arg = &capped},
        {.name = "longer than a block",
         .run = run,
         .in = {{.shape = D9D_SHAPE(9, 17), .scale = 0.3f}},
         .param = {FD(6, 17), FD(1201, 17)},
         .constant = {{D9D_I32, D9D_SHAPE(9), targets}},
         .saved = {153, 153, 9}},
        {.name = "with an adapter",
         .run = run_adapted,
         .in = {FD(9, 5)},
         .param = {FD(9, 5), FD(2, 5), FD(9, 2)},
         .constant = {{D9D_I32, D9D_SHAPE(9), targets}},
         .saved = {45, 117, 9, 117}},
        {.name = "with an adapter and a bias",
         .run = run_adapted,
         .in = {FD(9, 5)},
         .param = {FD(9, 5), FD(8, 5), FD(9, 8), FD(9)},
         .constant = {{D9D_I32, D9D_SHAPE(9), targets}},
         .saved = {45, 117, 9, 117}},
        {.name = "no tokens",
         .run = run,
         .in = {FD(0, 5)},
         .param = {FD(3, 5)},
         .constant = {{D9D_I32, D9D_SHAPE(0), targets}},
         .saved = {-1, -1, -1}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fd_check(&cases[i]);
}

static void one_of_several_tables_has_no_adapter(void **state)
{
    op_fixture *f = *state;
    d9d_var *h = op_var(f, D9D_F32, D9D_SHAPE(3, 2)), *loss;
    d9d_param *w[] = {op_param(f, "head", D9D_F32, D9D_SHAPE(4, 2)),
                      op_param(f, "more", D9D_F32, D9D_SHAPE(4, 2))};
    d9d_tensor *y = op_tensor(f, D9D_I32, D9D_SHAPE(3));
    d9d_param_adapter adapter = {0};

    w[0]->peft.adapter = &adapter;
    assert_fails_like(d9d_op_linear_cross_entropy(f->tape, h, w, 2, y, &plain, &loss), D9D_ENOTSUP,
                      "head has an adapter and is one of 2 tables");
    assert_fails_like(d9d_op_linear_cross_entropy_root(f->tape, h, w, 2, y, &plain, &loss),
                      D9D_ENOTSUP, "head has an adapter and is one of 2 tables");
    w[0]->peft.adapter = NULL;
}

/* h is zero: every logit is 0, every loss log V; ignored ones are 0 and have no gradient. */
static void ignored_targets_do_not_count(void **state)
{
    op_fixture *f = *state;
    d9d_var *h = op_var(f, D9D_F32, D9D_SHAPE(3, 2)), *loss;
    d9d_param *w = op_param(f, "head", D9D_F32, D9D_SHAPE(7, 2));
    d9d_tensor *target = op_tensor(f, D9D_I32, D9D_SHAPE(3));
    const int32_t some[] = {6, IGNORE, 0};
    float got[3];

    assert_ok(d9d_device_upload(f->dev, d9d_tensor_data(target), some, sizeof(some)));
    assert_ok(d9d_op_linear_cross_entropy(f->tape, h, &w, 1, target, &plain, &loss));
    assert_ok(d9d_tensor_to_f32(d9d_var_tensor(loss), got));
    assert_float_equal(got[0], log(7), 1e-6);
    assert_float_equal(got[1], 0, 0);
    assert_float_equal(got[2], log(7), 1e-6);
}

static void targets_outside_the_vocabulary_are_refused(void **state)
{
    static const int32_t bad[] = {7, -1, INT32_MIN, INT32_MAX, -99};
    op_fixture *f = *state;
    d9d_var *h = op_var(f, D9D_F32, D9D_SHAPE(1, 2)), *loss = NULL;
    d9d_param *w = op_param(f, "head", D9D_F32, D9D_SHAPE(7, 2));
    d9d_tensor *target = op_tensor(f, D9D_I32, D9D_SHAPE(1));

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_ok(d9d_device_upload(f->dev, d9d_tensor_data(target), &bad[i], sizeof(bad[i])));
        if (!unit_device_is_cpu()) { /* which is known too late to refuse */
            float got;

            assert_ok(d9d_op_linear_cross_entropy(f->tape, h, &w, 1, target, &plain, &loss));
            assert_ok(d9d_tensor_to_f32(d9d_var_tensor(loss), &got));
            assert_true(isnan(got));
            loss = NULL;
            continue;
        }
        assert_int_equal(d9d_op_linear_cross_entropy(f->tape, h, &w, 1, target, &plain, &loss),
                         D9D_EINVAL);
        assert_null(loss);
    }
}

static void refuses(void **state)
{
    op_fixture *f = *state;
    d9d_var *h = op_var(f, D9D_F32, D9D_SHAPE(3, 2)), *y;
    d9d_param *w = op_param(f, "head", D9D_F32, D9D_SHAPE(7, 3));
    d9d_param *a = op_param(f, "a", D9D_F32, D9D_SHAPE(7, 2)),
              *b = op_param(f, "b", D9D_F32, D9D_SHAPE(7, 2));
    d9d_param *both[] = {a, b};
    const d9d_op_vocab_opts biased = {.ignore = IGNORE,
                                      .bias = op_param(f, "bias", D9D_F32, D9D_SHAPE(6))};
    d9d_tensor *three = op_tensor(f, D9D_I32, D9D_SHAPE(3)),
               *two = op_tensor(f, D9D_I32, D9D_SHAPE(2));

    assert_refused(f, d9d_op_linear_cross_entropy(f->tape, h, &w, 1, three, &plain, &y),
                   "linear_cross_entropy: head [7, 3] does not fit rows [2]: a split is [V, H]");
    assert_refused(f, d9d_op_linear_cross_entropy(f->tape, h, &a, 1, two, &plain, &y),
                   "linear_cross_entropy: targets [2] does not fit h [3, 2]: h is [T, H], targets "
                   "are [T]");
    assert_refused(f, d9d_op_linear_cross_entropy(f->tape, h, &a, 1, three, &biased, &y),
                   "linear_cross_entropy: bias [6] does not fit ids [7]: a bias has an element for "
                   "each id");
    assert_refused(f, d9d_op_linear_cross_entropy(f->tape, h, &a, 0, three, &plain, &y),
                   "linear_cross_entropy: a vocabulary of 0 splits, from 1 to 8 are possible");
    d9d_tensor_release(&b->local.grad);
    assert_ok(d9d_tensor_alloc(f->dev, D9D_BF16, D9D_SHAPE(7, 2), &b->local.grad));
    assert_refused(f, d9d_op_linear_cross_entropy(f->tape, h, both, 2, three, &plain, &y),
                   "linear_cross_entropy: the gradient of a is float32, of b bfloat16");
}

/* What a fixture computes of 9 tokens: loss, dh, and the gradients of two splits. */
typedef struct results {
    float loss[9], dh[9 * 5], dw[2][6 * 5];
} results;

enum { SEEDED, ROOT, ROOT_HALVES, ROOT_SHARDED, ROOT_FROZEN_HEAD, ROOT_FROZEN_BODY };

/* A bias is added to the logits, whatever the head; a root's losses are those of a seeded one. */
static void a_bias_is_part_of_the_logits(void **state)
{
    op_fixture *f = *state;
    const float values[] = {0.0f, 1.0f, -2.0f, 0.5f};
    const int32_t some[] = {1, 3, IGNORE};
    d9d_var *h = op_var(f, D9D_F32, D9D_SHAPE(3, 2)), *loss;
    d9d_param *w = op_param(f, "head", D9D_F32, D9D_SHAPE(4, 2)),
              *b = op_param(f, "bias", D9D_F32, D9D_SHAPE(4));
    d9d_tensor *target = op_tensor(f, D9D_I32, D9D_SHAPE(3));
    const d9d_op_vocab_opts biased = {.ignore = IGNORE, .bias = b};
    double sum = 0;
    float got[4];

    for (int i = 0; i < 4; i++)
        sum += exp((double)values[i]);
    assert_ok(d9d_device_upload(f->dev, d9d_tensor_data(target), some, sizeof(some)));
    assert_ok(d9d_device_upload(f->dev, d9d_tensor_data(&b->local.data), values, sizeof(values)));
    for (int root = 0; root < 2; root++) {
        assert_ok((root ? d9d_op_linear_cross_entropy_root
                        : d9d_op_linear_cross_entropy)(f->tape, h, &w, 1, target, &biased, &loss));
        assert_ok(d9d_tensor_to_f32(d9d_var_tensor(loss), got));
        assert_float_equal(got[0], log(sum) - 1, 1e-6);
        assert_float_equal(got[1], log(sum) - 0.5, 1e-6);
        assert_float_equal(got[2], 0, 0);
    }
    assert_ok(d9d_tape_backward(f->tape, NULL, NULL, 0, D9D_BACKWARD_FULL));
    assert_ok(d9d_tensor_to_f32(&b->local.grad, got));
    for (int i = 0; i < 4; i++)
        assert_float_equal(got[i], 2 * exp((double)values[i]) / sum - (i == 1) - (i == 3), 1e-6);
}

/* Between forward and backward the gradient of a sharded head has no memory. */
static void hide(d9d_param *p, d9d_tensor *grad)
{
    *grad = p->shard.grad = p->local.grad;
    p->local.grad.storage = NULL;
}

static void train(op_fixture *f, int mode, results *r)
{
    static const d9d_tape_backward_mode modes[] = {D9D_BACKWARD_DGRAD, D9D_BACKWARD_WGRAD};
    d9d_tensor *target = op_tensor(f, D9D_I32, D9D_SHAPE(9)),
               *x = op_tensor(f, D9D_F32, D9D_SHAPE(9, 5)),
               *ones = op_tensor(f, D9D_F32, D9D_SHAPE(9)), dh;
    d9d_param *w[] = {op_param(f, "a", D9D_F32, D9D_SHAPE(4, 5)),
                      op_param(f, "b", D9D_F32, D9D_SHAPE(6, 5))};
    d9d_tensor grad[2];
    const d9d_kernels *k = f->dev->kernels;
    d9d_var *h, *loss;

    *r = (results){.dh = {0}};
    assert_ok(d9d_device_upload(f->dev, d9d_tensor_data(target), targets, sizeof(targets)));
    assert_ok(k->elementwise->fill(f->dev->stream, D9D_F32, d9d_tensor_data(ones), 9, 1.0f));
    for (uint64_t i = 0; i < 3; i++) {
        const d9d_tensor *to = i < 2 ? &w[i]->local.data : x;
        const int64_t n = d9d_tensor_numel(to), zero = 0;

        assert_ok(k->elementwise->random(f->dev->stream, D9D_F32, d9d_tensor_data(to),
                                         D9D_INIT_NORMAL, 1.0f, (d9d_rng){7, i}, 1, &n, &zero, &n));
    }
    w[1]->spec.trainable = mode != ROOT_FROZEN_HEAD;
    d9d_tape_reset(f->tape);
    assert_ok(d9d_tape_leaf(f->tape, x, mode != ROOT_FROZEN_BODY, &h));
    for (int i = 0; i < 2 && mode == ROOT_SHARDED; i++)
        hide(w[i], &grad[i]);
    assert_ok((mode == SEEDED ? d9d_op_linear_cross_entropy : d9d_op_linear_cross_entropy_root)(
        f->tape, h, w, 2, target, &plain, &loss));
    assert_ok(d9d_tensor_to_f32(d9d_var_tensor(loss), r->loss));
    for (int i = 0; i < 2 && mode == ROOT_SHARDED; i++) {
        assert_false(w[i]->local.has_grad);
        w[i]->local.grad = grad[i];
        w[i]->shard.grad = (d9d_tensor){0};
    }
    for (int i = 0; i < 2 && mode == ROOT_HALVES; i++)
        assert_ok(d9d_tape_backward(f->tape, NULL, NULL, 0, modes[i]));
    if (mode != ROOT_HALVES)
        assert_ok(
            d9d_tape_backward(f->tape, &loss, ones, mode == SEEDED ? 1 : 0, D9D_BACKWARD_FULL));
    d9d_var_grad(h, &dh);
    assert_true((dh.storage == NULL) == (mode == ROOT_FROZEN_BODY));
    if (dh.storage != NULL)
        assert_ok(d9d_tensor_to_f32(&dh, r->dh));
    d9d_tensor_release(&dh);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(w[i]->local.has_grad, w[i]->spec.trainable);
        if (w[i]->spec.trainable)
            assert_ok(d9d_tensor_to_f32(&w[i]->local.grad, r->dw[i]));
    }
}

static void assert_close(const float *a, const float *b, int n)
{
    for (int i = 0; i < n; i++)
        assert_float_equal(a[i], b[i], 1e-5);
}

static void a_root_is_seeded_with_ones(void **state)
{
    results seeded, r;

    train(*state, SEEDED, &seeded);
    for (int mode = ROOT; mode <= ROOT_FROZEN_BODY; mode++) {
        op_fixture_close(state);
        op_fixture_open(state);
        train(*state, mode, &r);
        assert_close(r.loss, seeded.loss, 9);
        if (mode != ROOT_FROZEN_BODY)
            assert_close(r.dh, seeded.dh, 45);
        assert_close(r.dw[0], seeded.dw[0], 20);
        if (mode != ROOT_FROZEN_HEAD)
            assert_close(r.dw[1], seeded.dw[1], 30);
    }
}

static d9d_status root_in_checkpoint(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in,
                                     d9d_var **out, size_t n_out)
{
    void *const *arg = self;
    d9d_param *w = arg[0];

    (void)n_in, (void)n_out;
    return d9d_op_linear_cross_entropy_root(t, in[0], &w, 1, arg[1], &plain, out);
}

static void a_root_takes_no_seed(void **state)
{
    op_fixture *f = *state;
    d9d_param *w = op_param(f, "a", D9D_F32, D9D_SHAPE(4, 5));
    d9d_tensor *target = op_tensor(f, D9D_I32, D9D_SHAPE(9)),
               *ones = op_tensor(f, D9D_F32, D9D_SHAPE(9));
    d9d_var *h = op_var(f, D9D_F32, D9D_SHAPE(9, 5)), *loss;
    void *arg[] = {w, target};

    assert_fails(d9d_tape_recompute(f->tape, root_in_checkpoint, arg, &h, 1, &loss, 1), D9D_EINVAL,
                 "linear_cross_entropy: a root of the backward cannot be inside a checkpoint");
    d9d_tape_reset(f->tape);
    h = op_var(f, D9D_F32, D9D_SHAPE(9, 5));
    assert_ok(d9d_op_linear_cross_entropy_root(f->tape, h, &w, 1, target, &plain, &loss));
    assert_fails(d9d_tape_backward(f->tape, &loss, ones, 1, D9D_BACKWARD_FULL), D9D_EINVAL,
                 "backward: linear_cross_entropy starts its own gradient and accepts none");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_its_promises),
        op_test(one_of_several_tables_has_no_adapter),
        op_test(ignored_targets_do_not_count),
        op_test(a_bias_is_part_of_the_logits),
        op_test(targets_outside_the_vocabulary_are_refused),
        op_test(refuses),
        op_test(a_root_is_seeded_with_ones),
        op_test(a_root_takes_no_seed),
    };

    return cmocka_run_group_tests_name("op_linear_cross_entropy", tests, NULL, NULL);
}
