/* test_op_quant.c - ops that read quantised matrices: linear ones, the embedding and the head.
 * Compared with the same ops on the matrices dequantised: the same operand, so on a CPU the same
 * bits. */
#include "support/arrays.h"
#include "support/op_fixture.h"
#include "support/unit_device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { T = 21, IN = 128, MID = 192 }; /* tokens, features */
enum { Q, K, O, GATE, UP, DOWN, WEIGHTS };

static const int64_t shape[WEIGHTS][2] = {{IN, IN},  {IN + 48, IN}, {IN, IN},
                                          {MID, IN}, {MID, IN},     {IN, MID}};

/* A layer with frozen matrices, some adapted, its data and results. */
typedef struct layer {
    d9d_param *w[WEIGHTS], *a, *b;
    d9d_param_adapter adapter;
    d9d_tensor x, dy, y, dx, da;
} layer;

static d9d_tensor tensor_random(op_fixture *f, d9d_dtype t, d9d_shape s, uint64_t seed, double by)
{
    void *host = array_random(t, d9d_shape_numel(&s), seed, by);
    d9d_tensor x;

    assert_ok(d9d_tensor_from_host(f->dev, t, s, host, &x));
    free(host);
    return x;
}

/* A frozen parameter: quantised, or with the elements that the bytes stand for. */
static d9d_param *matrix(op_fixture *f, d9d_quant_format format, bool stored, d9d_dtype t,
                         int64_t rows, int64_t cols, uint64_t seed)
{
    const int64_t bytes = d9d_quant_row_bytes(format, cols);
    void *x = array_random(t, rows * cols, seed, 1.0 / sqrt((double)cols));
    void *q = calloc((size_t)(rows * bytes), 1);
    d9d_param *p = op_param(f, "w", t, D9D_SHAPE(rows, cols));
    const d9d_quant_matrix w = {format, rows, cols, q};

    assert_non_null(q);
    assert_ok(d9d_quant_rows(format, t, x, rows, cols, 0, cols, q));
    assert_ok(d9d_kernels_cpu()->quant->dequantise(NULL, t, x, &w));
    d9d_tensor_release(&p->local.data);
    d9d_tensor_release(&p->local.grad);
    p->spec.trainable = false;
    p->local.shape = D9D_SHAPE(rows, cols);
    p->spec.stored = stored ? format : D9D_QUANT_NONE;
    assert_ok(stored
                  ? d9d_tensor_from_host(f->dev, D9D_U8, D9D_SHAPE(rows, bytes), q, &p->local.data)
                  : d9d_tensor_from_host(f->dev, t, D9D_SHAPE(rows, cols), x, &p->local.data));
    free(x);
    free(q);
    return p;
}
static d9d_param *matrix_of_layer(op_fixture *f, d9d_quant_format format, bool stored, d9d_dtype t,
                                  int i)
{
    return matrix(f, format, stored, t, shape[i][0], shape[i][1], 10 + (uint64_t)i);
}

static d9d_param *factor(op_fixture *f, d9d_dtype t, d9d_shape s, uint64_t seed)
{
    d9d_param *p = op_param(f, "factor", t, s);

    d9d_tensor_release(&p->local.data);
    p->local.data = tensor_random(f, t, s, seed, 0.2);
    return p;
}

/* Slices and a residual, an adapter, the feed-forward half. */
static d9d_status layer_forward(layer *l, d9d_tape *t, d9d_var *in, d9d_var **out)
{
    const d9d_op_ffn_weights ffn = {
        .gate = l->w[GATE], .up = l->w[UP], .down = l->w[DOWN], .glu = {.act = D9D_ACT_SILU}};
    const d9d_op_weight_slice of[] = {{l->w[Q], 0, IN, NULL}, {l->w[K], 32, IN, NULL}};
    d9d_var *v[2], *h;

    D9D_TRY(d9d_op_linear_multi(t, in, NULL, of, 2, v));
    D9D_TRY(d9d_op_add(t, v[0], v[1], &h));
    D9D_TRY(d9d_op_linear_slice(t, h, l->w[K], 16, IN, &h));
    D9D_TRY(d9d_op_linear_residual(t, h, l->w[O], in, &h));
    return d9d_op_ffn(t, h, &ffn, NULL, NULL, h, out);
}

static void layer_run(op_fixture *f, d9d_quant_format format, bool stored, bool recorded,
                      d9d_dtype t, layer *l)
{
    d9d_var *in, *y;

    *l = (layer){.x = tensor_random(f, t, D9D_SHAPE(T, IN), 1, 1.0),
                 .dy = tensor_random(f, t, D9D_SHAPE(T, IN), 2, 1.0)};
    for (int i = 0; i < WEIGHTS; i++)
        l->w[i] = matrix_of_layer(f, format, stored, t, i);
    l->a = factor(f, t, D9D_SHAPE(4, IN), 3);
    l->b = factor(f, t, D9D_SHAPE(IN, 4), 4);
    l->adapter = (d9d_param_adapter){.param = {[D9D_ADAPTER_A] = l->a, [D9D_ADAPTER_B] = l->b},
                                     .scale = 0.5f};
    l->w[O]->peft.adapter = &l->adapter;
    d9d_tape_set_recording(f->tape, recorded);
    assert_ok(d9d_tape_leaf(f->tape, &l->x, true, &in));
    assert_ok(layer_forward(l, f->tape, in, &y));
    l->y = d9d_tensor_ref(d9d_var_tensor(y));
    if (recorded) {
        assert_ok(d9d_tape_backward(f->tape, &y, &l->dy, 1, D9D_BACKWARD_FULL));
        d9d_var_grad(in, &l->dx);
        l->da = d9d_tensor_ref(&l->a->local.grad);
    }
    d9d_tape_reset(f->tape);
    l->w[O]->peft.adapter = NULL;
}

/* To the bit on a CPU; a GPU's few rows of decode sum in another order. */
static void same(const char *name, const d9d_tensor *a, const d9d_tensor *b)
{
    const int64_t n = d9d_tensor_numel(a);
    float *x = malloc((size_t)n * sizeof(*x) + 1), *y = malloc((size_t)n * sizeof(*y) + 1);
    double sum = 0, off = 0;

    assert_true(x != NULL && y != NULL);
    assert_ok(d9d_tensor_to_f32(a, x));
    assert_ok(d9d_tensor_to_f32(b, y));
    for (int64_t i = 0; i < n; i++) {
        sum += (double)y[i] * (double)y[i];
        off += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
    }
    if (!(off <= (unit_device_is_cpu() ? 0 : 1e-4 * sum)) || !(sum > 0))
        fail_msg("%s: off by %g of %g", name, sqrt(off), sqrt(sum));
    free(x);
    free(y);
}

static void layer_release(layer *l)
{
    d9d_tensor *all[] = {&l->x, &l->dy, &l->y, &l->dx, &l->da};

    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        d9d_tensor_release(all[i]);
}

static void check_layer(d9d_quant_format format, d9d_dtype t, bool recorded)
{
    void *of[2];
    layer l[2];

    for (int i = 0; i < 2; i++) {
        assert_int_equal(op_fixture_open(&of[i]), 0);
        layer_run(of[i], format, i == 0, recorded, t, &l[i]);
    }
    same("y", &l[0].y, &l[1].y);
    if (recorded) {
        same("dx", &l[0].dx, &l[1].dx);
        same("dA", &l[0].da, &l[1].da);
    }
    for (int i = 0; i < 2; i++) {
        layer_release(&l[i]);
        assert_int_equal(op_fixture_close(&of[i]), 0);
    }
}

/* Fused where nothing is recorded, and forward and backward. */
static void test_layer(void **state)
{
    (void)state;
    for (int flags = 0; flags < 8; flags++)
        check_layer((flags & 1) != 0 ? D9D_QUANT_NF4 : D9D_QUANT_FP8, array_types[flags >> 1 & 1],
                    (flags & 4) != 0);
}

/* --- the vocabulary ----------------------------------------------------------------------------
 */

/* Tables of a tied vocabulary, and what ops make of them. */
typedef struct vocabulary {
    d9d_param *table[2];
    size_t n;
    d9d_tensor rows, logits, loss;
} vocabulary;

enum { IDS_AT_ONCE = 16384 }; /* of a quantised table, for many rows */

/* Rows of the ids, the logits of the last `picked` of them, and their losses. */
static void vocabulary_run(op_fixture *f, int64_t tokens, int64_t picked, vocabulary *v)
{
    const int64_t all =
        v->table[0]->spec.shape.dim[0] + (v->n > 1 ? v->table[1]->spec.shape.dim[0] : 0);
    d9d_tensor *ids = op_tensor(f, D9D_I32, D9D_SHAPE(tokens)),
               *pick = op_tensor(f, D9D_I32, D9D_SHAPE(picked));
    int32_t *host = malloc((size_t)tokens * sizeof(*host));
    const d9d_op_vocab_opts opts = {.ignore = -100, .softcap = 3.0f};
    d9d_var *x, *y, *loss;

    assert_non_null(host);
    for (int64_t i = 0; i < tokens; i++)
        host[i] = (int32_t)(i * 7919 % all);
    assert_ok(d9d_device_upload(f->dev, d9d_tensor_data(ids), host, (uint64_t)tokens * 4));
    for (int64_t i = 0; i < picked; i++)
        host[i] = (int32_t)(tokens - picked + i);
    assert_ok(d9d_device_upload(f->dev, d9d_tensor_data(pick), host, (uint64_t)picked * 4));
    free(host);
    d9d_tape_set_recording(f->tape, false);
    assert_ok(d9d_op_embedding(f->tape, ids, v->table, v->n, &x));
    assert_ok(d9d_op_logits(f->tape, x, pick, v->table, v->n, &opts, &y));
    assert_ok(d9d_op_linear_cross_entropy(f->tape, x, v->table, v->n, ids, &opts, &loss));
    v->rows = d9d_tensor_ref(d9d_var_tensor(x));
    v->logits = d9d_tensor_ref(d9d_var_tensor(y));
    v->loss = d9d_tensor_ref(d9d_var_tensor(loss));
    d9d_tape_reset(f->tape);
}

static void vocabulary_release(vocabulary *v)
{
    d9d_tensor_release(&v->rows);
    d9d_tensor_release(&v->logits);
    d9d_tensor_release(&v->loss);
}

static void check_vocabulary(d9d_quant_format format, d9d_dtype t, const int64_t *ids, size_t n,
                             int64_t picked)
{
    enum { TOKENS = 40 };
    void *of[2];
    vocabulary v[2];

    for (int i = 0; i < 2; i++) {
        assert_int_equal(op_fixture_open(&of[i]), 0);
        v[i] = (vocabulary){.n = n};
        for (size_t k = 0; k < n; k++)
            v[i].table[k] = matrix(of[i], format, i == 0, t, ids[k], 64, 30 + k);
        vocabulary_run(of[i], TOKENS, picked, &v[i]);
    }
    same("rows", &v[0].rows, &v[1].rows);
    same("logits", &v[0].logits, &v[1].logits);
    same("losses", &v[0].loss, &v[1].loss);
    for (int i = 0; i < 2; i++) {
        vocabulary_release(&v[i]);
        assert_int_equal(op_fixture_close(&of[i]), 0);
    }
}

/* One table and two, few rows and many, more ids than are dequantised at a time. */
static void test_vocabulary(void **state)
{
    static const int64_t one[] = {211}, two[] = {130, 61}, many[] = {IDS_AT_ONCE + 40};

    (void)state;
    for (int flags = 0; flags < 4; flags++) {
        const d9d_quant_format format = (flags & 1) != 0 ? D9D_QUANT_NF4 : D9D_QUANT_FP8;
        const d9d_dtype t = array_types[flags >> 1 & 1];

        check_vocabulary(format, t, one, 1, 5);
        check_vocabulary(format, t, two, 2, 5);
        check_vocabulary(format, t, two, 2, 40);
        check_vocabulary(format, t, many, 1, 33);
    }
}

/* An id that no table has, as another rank's, gives zeros in either format. */
static void test_id_outside(void **state)
{
    static const int32_t some[] = {-1, 3, 7};
    op_fixture *f = *state;
    d9d_tensor *ids = op_tensor(f, D9D_I32, D9D_SHAPE(3));
    float got[3 * 64];
    d9d_var *y;

    assert_ok(d9d_device_upload(f->dev, d9d_tensor_data(ids), some, sizeof(some)));
    for (int k = 0; k < 2; k++) {
        d9d_param *w = matrix(f, k == 0 ? D9D_QUANT_FP8 : D9D_QUANT_NF4, true, D9D_BF16, 7, 64, 50);

        assert_ok(d9d_op_embedding(f->tape, ids, &w, 1, &y));
        assert_ok(d9d_tensor_to_f32(d9d_var_tensor(y), got));
        for (int i = 0; i < 64; i++)
            assert_true(got[i] == 0 && got[128 + i] == 0);
        assert_true(got[64] != 0);
    }
}

static void test_vocabulary_refused(void **state)
{
    op_fixture *f = *state;
    d9d_param *tables[] = {matrix(f, D9D_QUANT_NF4, true, D9D_BF16, 7, 128, 60),
                           matrix(f, D9D_QUANT_FP8, true, D9D_BF16, 5, 128, 61)};
    d9d_tensor *targets = op_tensor(f, D9D_I32, D9D_SHAPE(3)),
               *pick = op_tensor(f, D9D_I32, D9D_SHAPE(1));
    d9d_var *y, *x = op_var(f, D9D_BF16, D9D_SHAPE(3, 128)),
                *other = op_var(f, D9D_F32, D9D_SHAPE(3, 128));
    const d9d_op_vocab_opts opts = {.ignore = -100};
    d9d_param_adapter adapter = {0};

    tables[0]->name = "a";
    tables[1]->name = "b";
    assert_refused(f, d9d_op_embedding(f->tape, targets, tables, 2, &y),
                   "embedding: a and b are quantised differently");
    assert_refused(f, d9d_op_logits(f->tape, other, pick, tables, 1, &opts, &y),
                   "logits: a is bfloat16, expected float32");
    assert_fails(d9d_op_linear_cross_entropy(f->tape, x, tables, 1, targets, &opts, &y),
                 D9D_ENOTSUP, "linear_cross_entropy: a is quantised to nf4, which has no backward");
    d9d_tape_set_recording(f->tape, false);
    tables[0]->peft.adapter = &adapter;
    assert_fails(d9d_op_logits(f->tape, x, pick, tables, 1, &opts, &y), D9D_ENOTSUP,
                 "logits: a has an adapter and is quantised to nf4");
    tables[0]->peft.adapter = NULL;
    d9d_tape_set_recording(f->tape, true);
}

/* Operations that do not read such matrices say so; shapes and types are those of elements. */
static void test_refused(void **state)
{
    op_fixture *f = *state;
    d9d_param *w = matrix_of_layer(f, D9D_QUANT_NF4, true, D9D_BF16, O);
    d9d_var *y, *x = op_var(f, D9D_BF16, D9D_SHAPE(3, 64)),
                *other = op_var(f, D9D_F32, D9D_SHAPE(3, IN)),
                *ids = op_var(f, D9D_BF16, D9D_SHAPE(1, 1, 2, IN));
    const d9d_op_linear_per_head_opts opts = {.step = 64, .out = IN};

    assert_refused(
        f, d9d_op_linear(f->tape, x, w, &y),
        "linear: x [3, 64] does not fit w [128, 128]: x is [..., in], a weight [out, in]");
    assert_refused(f, d9d_op_linear(f->tape, other, w, &y),
                   "linear: w is bfloat16, expected float32");
    assert_fails(d9d_op_linear_per_head(f->tape, ids, w, &opts, &y), D9D_ENOTSUP,
                 "linear_per_head: w is quantised to nf4, which this operation does not read");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_layer), op_test(test_refused),
                                       cmocka_unit_test(test_vocabulary), op_test(test_id_outside),
                                       op_test(test_vocabulary_refused)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
