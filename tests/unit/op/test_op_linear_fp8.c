/* test_op_linear_fp8.c - linear ops in FP8, also of experts, compared with the same ops in their
 * own type.
 *
 * An element of e4m3 is off by at most 2^-4 of itself or, where it is subnormal, by 2^-10 of its
 * scale, which is at most the largest magnitude / 224.  So a product of K pairs is off by at most
 *
 *     sum of |x| |w| ((1 + 2^-4)^2 - 1)  +  K 2^-10 / 224 max|x| max|w| (1 + 2^-4) 2
 *
 * and e5m2 has 2^-3 and 2^-17 / 28672 in the place of its own.  Random errors are far smaller.
 */
#include "support/arrays.h"
#include "support/moe.h"
#include "support/op_fixture.h"
#include "support/unit_device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { T = 40, IN = 64, MID = 96, OUT = 48 }; /* tokens, no multiple of 16; features */

static const d9d_quantised_recipe recipes[] = {
    {D9D_SCALE_ROWWISE, D9D_F8_E4M3, D9D_F8_E4M3, false},
    {D9D_SCALE_ROWWISE, D9D_F8_E4M3, D9D_F8_E5M2, false},
    {D9D_SCALE_TENSORWISE, D9D_F8_E4M3, D9D_F8_E4M3, false},
    {D9D_SCALE_TENSORWISE, D9D_F8_E4M3, D9D_F8_E5M2, true},
};
enum { RECIPES = sizeof(recipes) / sizeof(recipes[0]) };

static d9d_tensor tensor_random(op_fixture *f, d9d_dtype t, d9d_shape s, uint64_t seed,
                                double scale)
{
    void *host = array_random(t, d9d_shape_numel(&s), seed, scale);
    d9d_tensor x;

    assert_ok(d9d_tensor_from_host(f->dev, t, s, host, &x));
    free(host);
    return x;
}

static d9d_param *param_random(op_fixture *f, const char *name, d9d_dtype t, d9d_shape s,
                               uint64_t seed)
{
    d9d_param *p = op_param(f, name, t, s);

    d9d_tensor_release(&p->local.data);
    p->local.data = tensor_random(f, t, s, seed, 1.0 / sqrt((double)s.dim[1]));
    return p;
}

static double *doubles(const d9d_tensor *x)
{
    const int64_t n = d9d_tensor_numel(x);
    float *host = malloc((size_t)n * sizeof(float) + 1);
    double *v = malloc((size_t)n * sizeof(double) + 1);

    assert_true(host != NULL && v != NULL);
    assert_ok(d9d_tensor_to_f32(x, host));
    for (int64_t i = 0; i < n; i++)
        v[i] = (double)host[i];
    free(host);
    return v;
}

/* --- one layer: errors of the three products ------------------------------------------------- */

/* A matrix of doubles, maybe transposed. */
typedef struct side {
    const double *v;
    int64_t row, k; /* distances of rows and of elements */
    double relative, subnormal;
} side;

static double largest(const double *v, int64_t n)
{
    double most = 0;

    for (int64_t i = 0; i < n; i++)
        most = fmax(most, fabs(v[i]));
    return most;
}

/* c [m, n] is near the product of a [m, k] and b [n, k]: within the bound, and far nearer than
 * that at the mean. */
static void check_near(const char *what, const d9d_tensor *got, const side *a, double a_max,
                       const side *b, double b_max, int64_t m, int64_t n, int64_t k,
                       double rounding)
{
    double *c = doubles(got), error = 0, size = 0;

    for (int64_t i = 0; i < m * n; i++) {
        double sum = 0, weight = 0, bound;

        for (int64_t j = 0; j < k; j++) {
            const double p = a->v[i / n * a->row + j * a->k] * b->v[i % n * b->row + j * b->k];

            sum += p;
            weight += fabs(p);
        }
        bound = weight * ((1 + a->relative) * (1 + b->relative) - 1) +
                (double)k * 1.0625 * a_max * b_max * (a->subnormal + b->subnormal) +
                rounding * (fabs(sum) + weight);
        if (fabs(c[i] - sum) > bound)
            fail_msg("%s[%d] is %g, in doubles %g; off by at most %g", what, (int)i, c[i], sum,
                     bound);
        error += (c[i] - sum) * (c[i] - sum);
        size += sum * sum;
    }
    if (!(sqrt(error / size) < 0.07))
        fail_msg("%s: a relative error of %g", what, sqrt(error / size));
    assert_true(error > 0); /* it was in FP8 */
    free(c);
}

static side side_of(const double *v, int64_t row, int64_t k, d9d_dtype f)
{
    return f == D9D_F8_E4M3 ? (side){v, row, k, 0x1p-4, 0x1p-10 / 224}
                            : (side){v, row, k, 0x1p-3, 0x1p-17 / 28672};
}

/* What a check of the three products leaves: x, dy and dx, and x, w and dy as numbers. */
static void products_release(op_fixture *f, d9d_param *w, d9d_tensor *tensors[3],
                             double *numbers[3])
{
    d9d_param_forget_quantised(w);
    d9d_tape_reset(f->tape);
    for (int i = 0; i < 3; i++) {
        d9d_tensor_release(tensors[i]);
        free(numbers[i]);
    }
}

static void check_products(op_fixture *f, const d9d_quantised_recipe *recipe, d9d_dtype t)
{
    const d9d_dtype gf = recipe->grad_format;
    const double rounding = t == D9D_F32 ? 1e-5 : 0x1p-8;
    d9d_tensor tx = tensor_random(f, t, D9D_SHAPE(2, T / 2, IN), 1, 1.0),
               dy = tensor_random(f, t, D9D_SHAPE(2, T / 2, OUT), 2, 1e-3), dx;
    d9d_param *w = param_random(f, "w", t, D9D_SHAPE(OUT, IN), 3);
    double *x, *dyv, *wv;
    d9d_var *in, *y;
    side a, b;

    w->fp8.recipe = recipe;
    assert_ok(d9d_tape_leaf(f->tape, &tx, true, &in));
    assert_ok(d9d_op_linear(f->tape, in, w, &y));
    x = doubles(&tx), wv = doubles(&w->local.data), dyv = doubles(&dy);
    a = side_of(x, IN, 1, D9D_F8_E4M3), b = side_of(wv, IN, 1, D9D_F8_E4M3);
    check_near("y", d9d_var_tensor(y), &a, largest(x, T * IN), &b, largest(wv, OUT * IN), T, OUT,
               IN, rounding);
    assert_ok(d9d_tape_backward(f->tape, &y, &dy, 1, D9D_BACKWARD_FULL));
    d9d_var_grad(in, &dx);
    a = side_of(dyv, OUT, 1, gf), b = side_of(wv, 1, IN, D9D_F8_E4M3);
    check_near("dx", &dx, &a, largest(dyv, T * OUT), &b, largest(wv, OUT * IN), T, IN, OUT,
               rounding);
    a = side_of(dyv, 1, OUT, gf), b = side_of(x, 1, IN, D9D_F8_E4M3);
    check_near("dw", &w->local.grad, &a, largest(dyv, T * OUT), &b, largest(x, T * IN), OUT, IN, T,
               1e-5);
    products_release(f, w, (d9d_tensor *[]){&tx, &dy, &dx}, (double *[]){x, wv, dyv});
}

static void the_products_are_near(void **state)
{
    op_fixture *f = *state;

    for (int i = 0; i < RECIPES; i++)
        for (int t = 0; t < 2; t++)
            check_products(f, &recipes[i], array_types[t]);
}

/* --- a layer of several: bits ------------------------------------------------------------------
 */

enum { Q, K, GATE, UP, DOWN, FROZEN, PARAMS };

/* What is run, and what it leaves. */
typedef struct layer {
    d9d_param *w[PARAMS];
    d9d_tensor x, dy;
    d9d_tensor y, dx, dw[PARAMS];
} layer;

static d9d_status layer_forward(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in,
                                d9d_var **out, size_t n_out)
{
    layer *l = self;
    const d9d_op_ffn_weights ffn = {
        .gate = l->w[GATE], .up = l->w[UP], .down = l->w[DOWN], .glu = {.act = D9D_ACT_SILU}};
    const d9d_op_weight_slice of[] = {{l->w[Q], 0, IN, NULL}, {l->w[K], 32, IN, NULL}};
    d9d_var *v[2], *h;

    (void)n_in, (void)n_out;
    D9D_TRY(d9d_op_linear_multi(t, in[0], NULL, of, 2, v));
    D9D_TRY(d9d_op_add(t, v[0], v[1], &h));
    D9D_TRY(d9d_op_linear_residual(t, h, l->w[FROZEN], in[0], &h));
    return d9d_op_ffn(t, h, &ffn, NULL, NULL, h, out);
}

static void layer_open(op_fixture *f, const d9d_quantised_recipe *recipe, layer *l)
{
    static const int64_t shape[PARAMS][2] = {{IN, IN},  {IN + 48, IN}, {MID, IN},
                                             {MID, IN}, {IN, MID},     {IN, IN}};

    *l = (layer){.x = tensor_random(f, D9D_BF16, D9D_SHAPE(T, IN), 1, 1.0),
                 .dy = tensor_random(f, D9D_BF16, D9D_SHAPE(T, IN), 2, 0.1)};
    for (int i = 0; i < PARAMS; i++) {
        l->w[i] =
            param_random(f, "w", D9D_BF16, D9D_SHAPE(shape[i][0], shape[i][1]), 10 + (uint64_t)i);
        l->w[i]->fp8.recipe = recipe;
    }
    l->w[FROZEN]->spec.trainable = false;
}

/* Forward and backward, in one way; results are references of their own. */
static void layer_run(op_fixture *f, layer *l, bool recompute, bool halves)
{
    d9d_var *in, *y;

    for (int i = 0; i < PARAMS; i++)
        l->w[i]->local.has_grad = false;
    assert_ok(d9d_tape_leaf(f->tape, &l->x, true, &in));
    assert_ok(recompute ? d9d_tape_recompute(f->tape, layer_forward, l, &in, 1, &y, 1)
                        : layer_forward(l, f->tape, &in, 1, &y, 1));
    l->y = d9d_tensor_ref(d9d_var_tensor(y));
    if (halves) {
        assert_ok(d9d_tape_backward(f->tape, &y, &l->dy, 1, D9D_BACKWARD_DGRAD));
        assert_ok(d9d_tape_backward(f->tape, NULL, NULL, 0, D9D_BACKWARD_WGRAD));
    } else {
        assert_ok(d9d_tape_backward(f->tape, &y, &l->dy, 1, D9D_BACKWARD_FULL));
    }
    d9d_var_grad(in, &l->dx);
    d9d_tape_reset(f->tape);
}

static void layer_results(layer *l, double *out[PARAMS + 2])
{
    out[0] = doubles(&l->y);
    out[1] = doubles(&l->dx);
    for (int i = 0; i < PARAMS; i++)
        out[2 + i] = doubles(&l->w[i]->local.grad);
    d9d_tensor_release(&l->y);
    d9d_tensor_release(&l->dx);
}

static void layer_close(layer *l)
{
    for (int i = 0; i < PARAMS; i++)
        d9d_param_forget_quantised(l->w[i]);
    d9d_tensor_release(&l->x);
    d9d_tensor_release(&l->dy);
}

static void recompute_and_halves_have_the_same_bits(void **state)
{
    op_fixture *f = *state;
    double *want[PARAMS + 2], *got[PARAMS + 2];
    layer l;

    layer_open(f, &recipes[0], &l);
    layer_run(f, &l, false, false);
    layer_results(&l, want);
    for (int way = 1; way < 4; way++) {
        if (way == 3) /* weights quantised anew, after they were dropped */
            for (int i = 0; i < PARAMS; i++)
                d9d_param_forget_quantised(l.w[i]);
        layer_run(f, &l, (way & 1) != 0, (way & 2) != 0);
        layer_results(&l, got);
        for (int i = 0; i < PARAMS + 2; i++) {
            const int64_t n = i < 2 ? T * IN : d9d_tensor_numel(&l.w[i - 2]->local.data);

            if (i - 2 != FROZEN)
                assert_memory_equal(got[i], want[i], (size_t)n * sizeof(double));
            free(got[i]);
        }
    }
    for (int i = 0; i < PARAMS + 2; i++)
        free(want[i]);
    layer_close(&l);
}

/* Rows of a result do not depend on the rows beside them, but for gradients of weights. */
static void rows_do_not_depend_on_others(void **state)
{
    op_fixture *f = *state;
    double *all, *some;
    d9d_tensor part;
    layer l;

    if (!unit_device_is_cpu())
        skip();
    layer_open(f, &recipes[0], &l);
    layer_run(f, &l, false, false);
    all = doubles(&l.y);
    d9d_tensor_release(&l.y);
    d9d_tensor_release(&l.dx);
    part = d9d_tensor_rows(&l.x, 7, 20);
    d9d_tensor_release(&l.x);
    l.x = part;
    part = d9d_tensor_rows(&l.dy, 7, 20);
    d9d_tensor_release(&l.dy);
    l.dy = part;
    layer_run(f, &l, false, false);
    some = doubles(&l.y);
    assert_memory_equal(some, all + 7 * IN, 20 * IN * sizeof(double));
    d9d_tensor_release(&l.y);
    d9d_tensor_release(&l.dx);
    free(all);
    free(some);
    layer_close(&l);
}

/* Weights are quantised once; of a frozen one the copies that gradients of inputs read. */
static void weights_are_quantised_once(void **state)
{
    op_fixture *f = *state;
    const void *rows, *cols;
    uint64_t before;
    layer l;

    layer_open(f, &recipes[0], &l);
    layer_run(f, &l, false, false);
    rows = d9d_tensor_data(&l.w[UP]->fp8.rows.data);
    cols = d9d_tensor_data(&l.w[UP]->fp8.cols.data);
    assert_non_null(rows);
    assert_non_null(cols);
    assert_false(d9d_quantised_is_empty(&l.w[FROZEN]->fp8.cols));
    d9d_tensor_release(&l.y);
    d9d_tensor_release(&l.dx);
    before = d9d_device_memory(f->dev).in_use;
    layer_run(f, &l, false, false);
    assert_ptr_equal(rows, d9d_tensor_data(&l.w[UP]->fp8.rows.data));
    assert_ptr_equal(cols, d9d_tensor_data(&l.w[UP]->fp8.cols.data));
    d9d_tensor_release(&l.y);
    d9d_tensor_release(&l.dx);
    assert_int_equal(d9d_device_memory(f->dev).in_use, before);
    d9d_tape_set_recording(f->tape, false); /* without gradients only rows */
    for (int i = 0; i < PARAMS; i++)
        d9d_param_forget_quantised(l.w[i]);
    {
        d9d_var *in, *y;

        assert_ok(d9d_tape_leaf(f->tape, &l.x, true, &in));
        assert_ok(layer_forward(&l, f->tape, &in, 1, &y, 1));
        d9d_tape_reset(f->tape);
    }
    assert_false(d9d_quantised_is_empty(&l.w[UP]->fp8.rows));
    assert_true(d9d_quantised_is_empty(&l.w[UP]->fp8.cols));
    layer_close(&l);
}

/* What a node keeps: a byte an element of x and a float for each column. */
static void forward_saves_bytes(void **state)
{
    op_fixture *f = *state;
    enum { ROWS = 4096 };
    uint64_t used[2];

    for (int fp8 = 0; fp8 < 2; fp8++) {
        d9d_tensor x = tensor_random(f, D9D_BF16, D9D_SHAPE(ROWS, IN), 1, 1.0);
        d9d_param *w = param_random(f, "w", D9D_BF16, D9D_SHAPE(IN, IN), 2);
        const size_t mark = d9d_tape_mark(f->tape);
        const uint64_t before = d9d_device_memory(f->dev).in_use;
        d9d_var *in, *y;

        w->fp8.recipe = fp8 ? &recipes[0] : NULL;
        assert_ok(d9d_tape_leaf(f->tape, &x, false, &in));
        d9d_tensor_release(&x);
        assert_ok(d9d_op_linear(f->tape, in, w, &y));
        d9d_tape_release_since(f->tape, mark, NULL, 0);
        d9d_param_forget_quantised(w);
        used[fp8] = d9d_device_memory(f->dev).in_use - before;
        d9d_tape_reset(f->tape);
    }
    /* before counts x, which is freed unless it is saved */
    assert_true(used[0] == 0);
    assert_true((int64_t)used[1] <= -(int64_t)(ROWS * IN) + 4096);
}

/* --- an adapter of a quantised base --------------------------------------------------------- */

static void an_adapter_adds_to_a_frozen_base(void **state)
{
    op_fixture *f = *state;
    d9d_param *w = param_random(f, "w", D9D_F32, D9D_SHAPE(OUT, IN), 3),
              *a = param_random(f, "a", D9D_F32, D9D_SHAPE(4, IN), 4),
              *b = param_random(f, "b", D9D_F32, D9D_SHAPE(OUT, 4), 5);
    d9d_param_adapter adapter = {.param = {[D9D_ADAPTER_A] = a, [D9D_ADAPTER_B] = b},
                                 .scale = 0.5f};
    d9d_tensor tx = tensor_random(f, D9D_F32, D9D_SHAPE(T, IN), 1, 1.0),
               dy = tensor_random(f, D9D_F32, D9D_SHAPE(T, OUT), 2, 1.0);
    d9d_var *in, *base, *low, *y;
    double *want, *got;

    w->spec.trainable = false;
    w->fp8.recipe = &recipes[0];
    assert_ok(d9d_tape_leaf(f->tape, &tx, true, &in));
    assert_ok(d9d_op_linear(f->tape, in, w, &base));
    assert_ok(d9d_op_linear(f->tape, in, a, &low));
    assert_ok(d9d_op_scale(f->tape, low, 0.5f, &low));
    assert_ok(d9d_op_linear_residual(f->tape, low, b, base, &y));
    want = doubles(d9d_var_tensor(y));
    w->peft.adapter = &adapter;
    assert_ok(d9d_op_linear(f->tape, in, w, &y));
    got = doubles(d9d_var_tensor(y));
    assert_memory_equal(got, want, (size_t)(T * OUT) * sizeof(double));
    assert_ok(d9d_tape_backward(f->tape, &y, &dy, 1, D9D_BACKWARD_FULL));
    assert_false(w->local.has_grad);
    assert_true(a->local.has_grad && b->local.has_grad);
    w->peft.adapter = NULL;
    d9d_param_forget_quantised(w);
    d9d_tape_reset(f->tape);
    d9d_tensor_release(&tx);
    d9d_tensor_release(&dy);
    free(want);
    free(got);
}

/* --- experts --------------------------------------------------------------------------------- */

enum { E = 4 };

/* One choice a token: experts 0, 1 and 3 have rows, of numbers that are no multiples of 16. */
static d9d_routing route_some(op_fixture *f)
{
    int32_t expert[T];
    d9d_tensor t;
    d9d_routing r;

    for (int i = 0; i < T; i++)
        expert[i] = i % 7 == 0 ? 3 : i % 3 == 0;
    assert_ok(d9d_tensor_from_host(f->dev, D9D_I32, D9D_SHAPE(T, 1), expert, &t));
    assert_ok(moe_route(&t, E, &r));
    d9d_tensor_release(&t);
    return r;
}

static d9d_param *experts_random(op_fixture *f, d9d_dtype t, int64_t in, int64_t out, uint64_t seed)
{
    d9d_param *p = op_param(f, "w", t, D9D_SHAPE(E, in, out));

    d9d_tensor_release(&p->local.data);
    p->local.data = tensor_random(f, t, D9D_SHAPE(E, in, out), seed, 1.0 / sqrt((double)in));
    return p;
}

static void check_expert_products(op_fixture *f, const d9d_quantised_recipe *recipe, d9d_dtype t)
{
    const d9d_dtype gf = recipe->grad_format;
    const double rounding = t == D9D_F32 ? 1e-5 : 0x1p-8;
    d9d_tensor tx = tensor_random(f, t, D9D_SHAPE(T, IN), 1, 1.0),
               dy = tensor_random(f, t, D9D_SHAPE(T, OUT), 2, 1e-3), dx, part;
    d9d_param *w = experts_random(f, t, IN, OUT, 3);
    d9d_routing r = route_some(f);
    double *x, *dyv, *wv, x_max, dy_max, w_max;
    int32_t offset[E + 1];
    d9d_var *in, *y;

    w->fp8.recipe = recipe;
    assert_ok(d9d_tape_leaf(f->tape, &tx, true, &in));
    assert_ok(d9d_op_grouped_linear(f->tape, in, &w, 1, &r, &y));
    assert_ok(d9d_tape_backward(f->tape, &y, &dy, 1, D9D_BACKWARD_FULL));
    d9d_var_grad(in, &dx);
    assert_ok(d9d_device_download(f->dev, offset, d9d_tensor_data(&r.offset), sizeof(offset)));
    x = doubles(&tx), wv = doubles(&w->local.data), dyv = doubles(&dy);
    x_max = largest(x, T * IN), dy_max = largest(dyv, T * OUT), w_max = largest(wv, E * IN * OUT);
    for (int e = 0; e < E; e++) {
        const int64_t first = offset[e], rows = offset[e + 1] - first;
        const double *we = wv + e * IN * OUT;
        side a = side_of(x + first * IN, IN, 1, D9D_F8_E4M3), b = side_of(we, 1, OUT, D9D_F8_E4M3);

        if (rows == 0) {
            part = d9d_tensor_rows(&w->local.grad, e, 1);
            double *none = doubles(&part);

            assert_true(largest(none, IN * OUT) == 0.0);
            free(none);
            d9d_tensor_release(&part);
            continue;
        }
        part = d9d_tensor_rows(d9d_var_tensor(y), first, rows);
        check_near("y", &part, &a, x_max, &b, w_max, rows, OUT, IN, rounding);
        d9d_tensor_release(&part);
        part = d9d_tensor_rows(&dx, first, rows);
        a = side_of(dyv + first * OUT, OUT, 1, gf), b = side_of(we, OUT, 1, D9D_F8_E4M3);
        check_near("dx", &part, &a, dy_max, &b, w_max, rows, IN, OUT, rounding);
        d9d_tensor_release(&part);
        part = d9d_tensor_rows(&w->local.grad, e, 1);
        a = side_of(x + first * IN, 1, IN, D9D_F8_E4M3), b = side_of(dyv + first * OUT, 1, OUT, gf);
        check_near("dw", &part, &a, x_max, &b, dy_max, IN, OUT, rows, 1e-5);
        d9d_tensor_release(&part);
    }
    d9d_routing_release(&r);
    products_release(f, w, (d9d_tensor *[]){&tx, &dy, &dx}, (double *[]){x, wv, dyv});
}

static void products_of_experts_are_near(void **state)
{
    op_fixture *f = *state;

    for (int i = 0; i < RECIPES; i++)
        for (int t = 0; t < 2; t++)
            check_expert_products(f, &recipes[i], array_types[t]);
}

/* A mixture of three stacks of matrices. */
typedef struct mixture {
    d9d_param *w[3];
    d9d_routing r;
    d9d_tensor x, dy, y, dx;
} mixture;

static d9d_status mixture_forward(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in,
                                  d9d_var **out, size_t n_out)
{
    mixture *m = self;
    const d9d_op_ffn_weights ffn = {
        .gate = m->w[0], .up = m->w[1], .down = m->w[2], .glu = {.act = D9D_ACT_SILU}};

    (void)n_in, (void)n_out;
    return d9d_op_ffn(t, in[0], &ffn, &m->r, NULL, NULL, out);
}

enum { MIXTURE_RESULTS = 5 };
static void mixture_run(op_fixture *f, mixture *m, bool recompute, bool halves,
                        double *out[MIXTURE_RESULTS])
{
    d9d_var *in, *y;

    for (int i = 0; i < 3; i++)
        m->w[i]->local.has_grad = false;
    assert_ok(d9d_tape_leaf(f->tape, &m->x, true, &in));
    assert_ok(recompute ? d9d_tape_recompute(f->tape, mixture_forward, m, &in, 1, &y, 1)
                        : mixture_forward(m, f->tape, &in, 1, &y, 1));
    out[0] = doubles(d9d_var_tensor(y));
    if (halves) {
        assert_ok(d9d_tape_backward(f->tape, &y, &m->dy, 1, D9D_BACKWARD_DGRAD));
        assert_ok(d9d_tape_backward(f->tape, NULL, NULL, 0, D9D_BACKWARD_WGRAD));
    } else {
        assert_ok(d9d_tape_backward(f->tape, &y, &m->dy, 1, D9D_BACKWARD_FULL));
    }
    d9d_var_grad(in, &m->dx);
    out[1] = doubles(&m->dx);
    d9d_tensor_release(&m->dx);
    for (int i = 0; i < 3; i++)
        out[2 + i] = doubles(&m->w[i]->local.grad);
    d9d_tape_reset(f->tape);
}

static void a_mixture_has_the_same_bits_recomputed_and_in_halves(void **state)
{
    op_fixture *f = *state;
    mixture m = {.w = {experts_random(f, D9D_BF16, IN, MID, 3),
                       experts_random(f, D9D_BF16, IN, MID, 4),
                       experts_random(f, D9D_BF16, MID, IN, 5)},
                 .r = route_some(f),
                 .x = tensor_random(f, D9D_BF16, D9D_SHAPE(T, IN), 1, 1.0),
                 .dy = tensor_random(f, D9D_BF16, D9D_SHAPE(T, IN), 2, 0.1)};
    static const int64_t n[MIXTURE_RESULTS] = {T * IN, T * IN, E * IN * MID, E * IN * MID,
                                               E * MID * IN};
    double *want[MIXTURE_RESULTS], *got[MIXTURE_RESULTS];
    const void *rows, *cols;

    for (int i = 0; i < 3; i++)
        m.w[i]->fp8.recipe = &recipes[0];
    mixture_run(f, &m, false, false, want);
    rows = d9d_tensor_data(&m.w[0]->fp8.rows.data), cols = d9d_tensor_data(&m.w[0]->fp8.cols.data);
    for (int way = 1; way < 4; way++) {
        mixture_run(f, &m, (way & 1) != 0, (way & 2) != 0, got);
        for (int i = 0; i < MIXTURE_RESULTS; i++) {
            assert_memory_equal(got[i], want[i], (size_t)n[i] * sizeof(double));
            free(got[i]);
        }
    }
    assert_ptr_equal(rows, d9d_tensor_data(&m.w[0]->fp8.rows.data)); /* quantised once */
    assert_ptr_equal(cols, d9d_tensor_data(&m.w[0]->fp8.cols.data));
    for (int i = 0; i < MIXTURE_RESULTS; i++)
        free(want[i]);
    for (int i = 0; i < 3; i++)
        d9d_param_forget_quantised(m.w[i]);
    d9d_tensor_release(&m.x);
    d9d_tensor_release(&m.dy);
    d9d_routing_release(&m.r);
}

/* As with LoRA. */
static void frozen_experts_take_an_adapter(void **state)
{
    op_fixture *f = *state;
    d9d_param *w = experts_random(f, D9D_F32, IN, OUT, 3),
              *a = experts_random(f, D9D_F32, IN, 4, 4), *b = experts_random(f, D9D_F32, 4, OUT, 5);
    d9d_param_adapter adapter = {.param = {[D9D_ADAPTER_A] = a, [D9D_ADAPTER_B] = b},
                                 .scale = 0.5f};
    d9d_tensor tx = tensor_random(f, D9D_F32, D9D_SHAPE(T, IN), 1, 1.0),
               dy = tensor_random(f, D9D_F32, D9D_SHAPE(T, OUT), 2, 1.0);
    d9d_routing r = route_some(f);
    d9d_var *in, *base, *low, *y;
    double *want, *got;

    w->spec.trainable = false;
    w->fp8.recipe = &recipes[0];
    assert_ok(d9d_tape_leaf(f->tape, &tx, true, &in));
    assert_ok(d9d_op_grouped_linear(f->tape, in, &w, 1, &r, &base));
    assert_ok(d9d_op_grouped_linear(f->tape, in, &a, 1, &r, &low));
    assert_ok(d9d_op_scale(f->tape, low, 0.5f, &low));
    assert_ok(d9d_op_grouped_linear(f->tape, low, &b, 1, &r, &low));
    assert_ok(d9d_op_add(f->tape, base, low, &y));
    want = doubles(d9d_var_tensor(y));
    w->peft.adapter = &adapter;
    assert_ok(d9d_op_grouped_linear(f->tape, in, &w, 1, &r, &y));
    got = doubles(d9d_var_tensor(y));
    assert_memory_equal(got, want, (size_t)(T * OUT) * sizeof(double));
    assert_ok(d9d_tape_backward(f->tape, &y, &dy, 1, D9D_BACKWARD_FULL));
    assert_false(w->local.has_grad);
    assert_true(a->local.has_grad && b->local.has_grad);
    w->peft.adapter = NULL;
    d9d_param_forget_quantised(w);
    d9d_tape_reset(f->tape);
    d9d_routing_release(&r);
    d9d_tensor_release(&tx);
    d9d_tensor_release(&dy);
    free(want);
    free(got);
}

/* A rank may have received no rows at all. */
static void no_rows_are_fine(void **state)
{
    op_fixture *f = *state;
    const int32_t nowhere[T] = {[0 ... T - 1] = -1};
    d9d_param *w = experts_random(f, D9D_BF16, IN, OUT, 3);
    d9d_tensor t, tx, dy, dx;
    d9d_var *in, *y;
    d9d_routing r;
    double *dw;

    assert_ok(d9d_tensor_from_host(f->dev, D9D_I32, D9D_SHAPE(T, 1), nowhere, &t));
    assert_ok(moe_route(&t, E, &r));
    assert_ok(d9d_tensor_alloc(f->dev, D9D_BF16, D9D_SHAPE(0, IN), &tx));
    assert_ok(d9d_tensor_alloc(f->dev, D9D_BF16, D9D_SHAPE(0, OUT), &dy));
    w->fp8.recipe = &recipes[0];
    assert_ok(d9d_tape_leaf(f->tape, &tx, true, &in));
    assert_ok(d9d_op_grouped_linear(f->tape, in, &w, 1, &r, &y));
    assert_ok(d9d_tape_backward(f->tape, &y, &dy, 1, D9D_BACKWARD_FULL));
    d9d_var_grad(in, &dx);
    dw = doubles(&w->local.grad);
    assert_true(largest(dw, E * IN * OUT) == 0.0);
    free(dw);
    d9d_param_forget_quantised(w);
    d9d_tape_reset(f->tape);
    d9d_routing_release(&r);
    d9d_tensor_release(&t);
    d9d_tensor_release(&tx);
    d9d_tensor_release(&dy);
    d9d_tensor_release(&dx);
}

/* --- what is refused ------------------------------------------------------------------------- */

static void bad_shapes_are_refused(void **state)
{
    op_fixture *f = *state;
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(3, 32)), *odd = op_var(f, D9D_F32, D9D_SHAPE(3, 40)),
            *y[2];
    d9d_param *w = op_param(f, "w", D9D_F32, D9D_SHAPE(48, 32)),
              *v = op_param(f, "v", D9D_F32, D9D_SHAPE(48, 32)),
              *wide = op_param(f, "wide", D9D_F32, D9D_SHAPE(48, 40)),
              *stack = op_param(f, "stack", D9D_F32, D9D_SHAPE(E, 40, 48)),
              *stacks[] = {op_param(f, "s", D9D_F32, D9D_SHAPE(E, 32, 48)),
                           op_param(f, "u", D9D_F32, D9D_SHAPE(E, 32, 48))};
    d9d_var *rows = op_var(f, D9D_F32, D9D_SHAPE(T, 40)),
            *inputs = op_var(f, D9D_F32, D9D_SHAPE(T, 32));
    d9d_routing r = route_some(f);
    const d9d_op_weight_slice of[] = {{w, 0, 48, NULL}, {v, 0, 48, NULL}};

    w->fp8.recipe = wide->fp8.recipe = &recipes[0];
    v->fp8.recipe = &recipes[1];
    assert_refused(f, d9d_op_linear_slice(f->tape, x, w, 8, 16, y),
                   "linear: rows [8, 8 + 16) of w, of 32 elements each: in FP8 all are multiples "
                   "of 16");
    assert_refused(f, d9d_op_linear(f->tape, odd, wide, y),
                   "linear: rows [0, 0 + 48) of wide, of 40 elements each: in FP8 all are "
                   "multiples of 16");
    assert_refused(f, d9d_op_linear_multi(f->tape, x, NULL, of, 2, y),
                   "linear: v is multiplied with the same input by another recipe of FP8");
    stack->fp8.recipe = &recipes[0];
    assert_refused(
        f, d9d_op_grouped_linear(f->tape, rows, &stack, 1, &r, y),
        "grouped_linear: matrices of stack are 40 x 48: in FP8 both are multiples of 16");
    stacks[0]->fp8.recipe = &recipes[0];
    assert_refused(f, d9d_op_grouped_linear(f->tape, inputs, stacks, 2, &r, y),
                   "grouped_linear: u and s have different recipes of FP8");
    d9d_routing_release(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        op_test(the_products_are_near),
        op_test(recompute_and_halves_have_the_same_bits),
        op_test(rows_do_not_depend_on_others),
        op_test(weights_are_quantised_once),
        op_test(forward_saves_bytes),
        op_test(an_adapter_adds_to_a_frozen_base),
        op_test(products_of_experts_are_near),
        op_test(no_rows_are_fine),
        op_test(frozen_experts_take_an_adapter),
        op_test(a_mixture_has_the_same_bits_recomputed_and_in_halves),
        op_test(bad_shapes_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
