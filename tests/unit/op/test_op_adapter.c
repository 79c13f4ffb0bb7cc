/* test_op_adapter.c - linear ops of a matrix with factors of inputs and outputs or with magnitudes.
 * The latter against the former: with norms as constants, a magnitude is a factor of the output. */
#include "support/arrays.h"
#include "support/fd.h"
#include "support/op_fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/op/adapter_forward.h"
#include "d9d/op/math.h"

/* --- finite differences -------------------------------------------------------------------------
 */

static d9d_status run_param(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                            size_t n_out)
{
    fd_env *e = self;
    const int64_t *rows = e->of->arg;
    d9d_var *p;

    (void)n_in, (void)n_out;
    D9D_TRY(d9d_op_param(t, e->param[0], rows[0], rows[1], &p));
    return d9d_op_mul(t, in[0], p, out);
}

/* Parameters: W, a bias, factors of the output, of the input. */
static d9d_status run_scaled(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in,
                             d9d_var **out, size_t n_out)
{
    fd_env *e = self;
    d9d_param_adapter adapter = {
        .param = {[D9D_ADAPTER_OUTPUT] = e->param[2], [D9D_ADAPTER_INPUT] = e->param[3]}};
    d9d_status st;

    (void)n_out;
    e->param[0]->peft.adapter = &adapter;
    st = d9d_op_linear_bias(t, in[0], e->param[0], e->param[1], n_in > 1 ? in[1] : NULL, out);
    e->param[0]->peft.adapter = NULL;
    return st;
}

/* A forward of its own: y = 2 x W^T + s x (W * (B A))^T, element by element, then + b + plus. */
static d9d_status own_forward(const d9d_op_adapter *a, d9d_var *x, d9d_var **y)
{
    const d9d_op_matmul_opts plain = {false, false}, by_rows = {.trans_b = true};
    d9d_var *w, *down, *up, *change;

    D9D_TRY(d9d_op_adapter_matrix(a, &w));
    D9D_TRY(d9d_op_adapter_param(a, 0, &down));
    D9D_TRY(d9d_op_adapter_param(a, 1, &up));
    D9D_TRY(d9d_op_matmul(a->tape, up, down, &plain, &change));
    D9D_TRY(d9d_op_mul(a->tape, change, w, &change));
    D9D_TRY(d9d_op_matmul(a->tape, x, change, &by_rows, &change));
    D9D_TRY(d9d_op_adapter_base(a, x, D9D_OP_ADAPTER_BARE, y));
    D9D_TRY(d9d_op_scale(a->tape, *y, 2, y));
    return d9d_op_add_scaled(a->tape, *y, a->adapter->scale, change, y);
}

/* Parameters: W, a bias, A, B; of some rows. */
static d9d_status run_own(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                          size_t n_out)
{
    fd_env *e = self;
    const int64_t *rows = e->of->arg;
    d9d_param_adapter adapter = {.param = {e->param[2], e->param[3]},
                                 .scale = 1.5f,
                                 .forward = own_forward,
                                 .name = "own",
                                 .by_output = 1u << 1,
                                 .reads_matrix = true};
    const d9d_op_weight_slice of = {e->param[0], rows[0], rows[1], e->param[1]};
    d9d_status st;

    (void)n_out;
    e->param[0]->peft.adapter = &adapter;
    st = n_in > 1 ? d9d_op_linear_bias(t, in[0], e->param[0], e->param[1], in[1], out)
                  : d9d_op_linear_multi(t, in[0], NULL, &of, 1, out);
    e->param[0]->peft.adapter = NULL;
    return st;
}

static const int64_t all[] = {0, 7}, middle[] = {2, 3}, none[] = {4, 0};

static void keeps_its_promises(void **state)
{
    static const fd_case cases[] = {
        {.name = "parameter",
         .run = run_param,
         .arg = all,
         .in = {FD(3, 7)},
         .param = {FD(7)},
         .saved = {21, 7}},
        {.name = "elements in the middle",
         .run = run_param,
         .arg = middle,
         .in = {FD(2, 4, 3)},
         .param = {FD(7)},
         .saved = {24, 3}},
        {.name = "elements of a matrix",
         .run = run_param,
         .arg = middle,
         .in = {FD(2, 4, 3)},
         .param = {FD(2, 4)},
         .saved = {24, 3}},
        {.name = "a forward of its own",
         .run = run_own,
         .arg = all,
         .in = {FD(3, 5), FD(3, 7)},
         .param = {FD(7, 5), FD(7), FD(2, 5), FD(7, 2)},
         .saved = {15, 14, 10, 35, 35, 35}},
        {.name = "a forward of its own, of some rows",
         .run = run_own,
         .arg = middle,
         .in = {FD(2, 2, 5)},
         .param = {FD(7, 5), FD(7), FD(2, 5), FD(7, 2)},
         .saved = {20, 6, 10, 15, 15, 15}},
        {.name = "no elements",
         .run = run_param,
         .arg = none,
         .in = {FD(3, 0)},
         .param = {FD(7)},
         .saved = {-1, -1}},
        {.name = "factors of both sides",
         .run = run_scaled,
         .in = {FD(2, 3, 5)},
         .param = {FD(7, 5), FD(7), FD(7), FD(5)},
         .saved = {30, 5, 30, 42, 7}},
        {.name = "factors of both sides, onto another",
         .run = run_scaled,
         .in = {FD(3, 5), FD(3, 7)},
         .param = {FD(7, 5), FD(7), FD(7), FD(5)},
         .saved = {15, 5, 15, 21, 7}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fd_check(&cases[i]);
}

/* --- magnitudes ---------------------------------------------------------------------------------
 */

enum { T = 9, IN = 23, OUT = 17, R = 3, FIRST = 4, SOME = 11 };
static const float scale = 0.75f;

enum { X, PLUS, W, BIAS, A, B, M, N_ARRAYS };

/* Arrays on the host, float32. */
typedef struct numbers {
    float *v[N_ARRAYS], *dy;
    float norm[OUT];
} numbers;

static int64_t size_of(int i)
{
    static const int64_t sizes[N_ARRAYS] = {
        [X] = T * IN, [PLUS] = T * SOME, [W] = OUT * IN, [BIAS] = OUT,
        [A] = R * IN, [B] = OUT * R,     [M] = OUT};

    return sizes[i];
}

/* |W_i + s B_i A|, in float64. */
static float norm_of(const numbers *n, int64_t i)
{
    double sum = 0;

    for (int64_t j = 0; j < IN; j++) {
        double v = n->v[W][i * IN + j];

        for (int64_t k = 0; k < R; k++)
            v += (double)scale * (double)n->v[B][i * R + k] * (double)n->v[A][k * IN + j];
        sum += v * v;
    }
    return (float)sqrt(sum);
}

static void numbers_draw(numbers *n)
{
    for (int i = 0; i < N_ARRAYS; i++)
        n->v[i] = array_random(D9D_F32, size_of(i), 30 + (uint64_t)i, 1);
    n->dy = array_random(D9D_F32, T * SOME, 29, 1);
    for (int64_t i = 0; i < OUT; i++)
        n->norm[i] = norm_of(n, i);
}

static void numbers_release(numbers *n)
{
    for (int i = 0; i < N_ARRAYS; i++)
        free(n->v[i]);
    free(n->dy);
}

static d9d_tensor tensor(op_fixture *f, const float *v, d9d_shape s)
{
    d9d_tensor x;

    assert_ok(d9d_tensor_from_host(f->dev, D9D_F32, s, v, &x));
    return x;
}

static d9d_param *param(op_fixture *f, const float *v, d9d_shape s)
{
    d9d_param *p = op_param(f, "p", D9D_F32, s);

    d9d_tensor_release(&p->local.data);
    p->local.data = tensor(f, v, s);
    p->local.shape = s;
    return p;
}

/* y, then the gradients of x, A, B and the last vector, which is m or m / norm. */
enum { N_RESULTS = 5 };
typedef struct results {
    float *v[N_RESULTS];
} results;

static void result_take(results *r, int i, const d9d_tensor *x)
{
    r->v[i] = calloc((size_t)d9d_tensor_numel(x), sizeof(float));
    assert_non_null(r->v[i]);
    assert_ok(d9d_tensor_to_f32(x, r->v[i]));
}

/* Some rows, with a bias and onto another array. */
static void layer_run(op_fixture *f, const numbers *n, bool magnitude, results *r)
{
    float factor[OUT];
    d9d_param *w = param(f, n->v[W], D9D_SHAPE(OUT, IN)),
              *bias = param(f, n->v[BIAS], D9D_SHAPE(OUT)),
              *a = param(f, n->v[A], D9D_SHAPE(R, IN)), *b = param(f, n->v[B], D9D_SHAPE(OUT, R)),
              *m;
    d9d_param_adapter adapter = {
        .param = {[D9D_ADAPTER_A] = a, [D9D_ADAPTER_B] = b}, .r = R, .scale = scale};
    d9d_tensor x = tensor(f, n->v[X], D9D_SHAPE(T, IN)), dy = tensor(f, n->dy, D9D_SHAPE(T, SOME)),
               dx;
    d9d_op_weight_slice of = {w, FIRST, SOME, magnitude ? bias : NULL};
    d9d_var *in, *y;

    for (int64_t i = 0; i < OUT; i++)
        factor[i] = magnitude ? n->v[M][i] : n->v[M][i] / n->norm[i];
    m = param(f, factor, D9D_SHAPE(OUT));
    adapter.param[magnitude ? D9D_ADAPTER_MAGNITUDE : D9D_ADAPTER_OUTPUT] = m;
    w->peft.adapter = &adapter;
    assert_ok(d9d_tape_leaf(f->tape, &x, true, &in));
    assert_ok(d9d_op_linear_multi(f->tape, in, NULL, &of, 1, &y));
    if (!magnitude)
        assert_ok(d9d_op_add_bias(f->tape, y, bias, FIRST, &y));
    result_take(r, 0, d9d_var_tensor(y));
    assert_ok(d9d_tape_backward(f->tape, &y, &dy, 1, D9D_BACKWARD_FULL));
    d9d_var_grad(in, &dx);
    result_take(r, 1, &dx);
    result_take(r, 2, &a->local.grad);
    result_take(r, 3, &b->local.grad);
    result_take(r, 4, &m->local.grad);
    w->peft.adapter = NULL;
    d9d_tensor_release(&x);
    d9d_tensor_release(&dy);
    d9d_tensor_release(&dx);
}

static void close_to(const char *name, const float *a, const float *b, int64_t n)
{
    double sum = 0, off = 0;

    for (int64_t i = 0; i < n; i++) {
        sum += (double)b[i] * (double)b[i];
        off += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    }
    if (!(off <= 1e-10 * sum) || !(sum > 0))
        fail_msg("%s: off by %g of %g", name, sqrt(off), sqrt(sum));
}

static void magnitudes_are_factors_of_the_output(void **state)
{
    static const char *const names[N_RESULTS] = {"y", "dx", "dA", "dB", "dm"};
    const int64_t sizes[N_RESULTS] = {T * SOME, T * IN, R * IN, OUT * R, OUT};
    numbers n;
    results r[2];

    (void)state;
    numbers_draw(&n);
    for (int i = 0; i < 2; i++) {
        void *f;

        assert_int_equal(op_fixture_open(&f), 0);
        layer_run(f, &n, i == 0, &r[i]);
        assert_int_equal(op_fixture_close(&f), 0);
    }
    for (int64_t i = 0; i < OUT; i++)
        r[0].v[4][i] *= n.norm[i];
    for (int i = 0; i < N_RESULTS; i++)
        close_to(names[i], r[0].v[i], r[1].v[i], sizes[i]);
    for (int i = 0; i < N_RESULTS; i++) {
        free(r[0].v[i]);
        free(r[1].v[i]);
    }
    numbers_release(&n);
}

static void refuses(void **state)
{
    op_fixture *f = *state;
    d9d_param *v = op_param(f, "v", D9D_F32, D9D_SHAPE(4)),
              *w = op_param(f, "w", D9D_F32, D9D_SHAPE(4, 3));
    d9d_var *y;

    assert_refused(f, d9d_op_param(f->tape, v, 2, 3, &y),
                   "param: elements [2, 2 + 3) of v, which has 4");
    assert_refused(f, d9d_op_param(f->tape, v, -1, 3, &y),
                   "param: elements [-1, -1 + 3) of v, which has 4");
    assert_refused(f, d9d_op_param(f->tape, w, 10, 3, &y),
                   "param: elements [10, 10 + 3) of w, which has 12");
}

/* --- what a forward asks for --------------------------------------------------------------------
 */

static d9d_status asks_for_parameter(const d9d_op_adapter *a, d9d_var *x, d9d_var **y)
{
    (void)x;
    return d9d_op_adapter_param(a, 7, y);
}

static d9d_status asks_for_matrix(const d9d_op_adapter *a, d9d_var *x, d9d_var **y)
{
    (void)x;
    return d9d_op_adapter_matrix(a, y);
}

static d9d_status gives_its_input(const d9d_op_adapter *a, d9d_var *x, d9d_var **y)
{
    (void)a;
    *y = x;
    return D9D_OK;
}

static void refuses_what_a_kind_has_not(void **state)
{
    static const struct {
        d9d_param_adapter_forward *forward;
        const char *sentence;
    } cases[] = {
        {asks_for_parameter, "the adapter of w has no parameter 7"},
        {asks_for_matrix, "the adapter of w reads the matrix and does not say so"},
        {gives_its_input, "adapter: what its forward made [2, 3] does not fit w [2, 4]: y has a "
                          "column for each row"},
    };
    op_fixture *f = *state;
    d9d_param *w = op_param(f, "w", D9D_F32, D9D_SHAPE(4, 3));
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(2, 3)), *y;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        d9d_param_adapter adapter = {.forward = cases[i].forward, .name = "own"};

        w->peft.adapter = &adapter;
        assert_refused(f, d9d_op_linear(f->tape, x, w, &y), cases[i].sentence);
        w->peft.adapter = NULL;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_its_promises),
        cmocka_unit_test(magnitudes_are_factors_of_the_output),
        op_test(refuses),
        op_test(refuses_what_a_kind_has_not),
    };

    return cmocka_run_group_tests_name("op_adapter", tests, NULL, NULL);
}
