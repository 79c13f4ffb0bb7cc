/* tensor_driver.c - launched by tests/multirank/tensor.bats: tensor parallelism over all ranks.
 *
 * Each rank also computes alone what all ranks compute together, and compares.  It covers values
 * and gradients of the operations between ranks, of the vocabulary-parallel loss, and of small
 * whole models.
 */
#include "support/fd.h"
#include "support/ranks.h"
#include "support/unit.h"
#include "support/unit_device.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/rng.h"
#include "d9d/comm/mesh.h"
#include "d9d/model/model.h"
#include "d9d/parallel/parallel_plan.h"
#include "support/family.h"

static double exact(void)
{
    return unit_device_tolerance(1e-6, 5e-6);
}

/* An array with the same bytes on every rank. */
static void check_same(const ranks *w, const void *local, size_t bytes)
{
    d9d_comm_blob *all = calloc((size_t)w->size, sizeof(*all));
    d9d_arena a = {0};

    assert_ok(d9d_comm_allgather_bytes(w->comm, "check", local, bytes, &a, all));
    for (int r = 0; r < w->size; r++) {
        assert_int_equal(all[r].n, bytes);
        assert_memory_equal(all[r].data, local, bytes);
    }
    d9d_arena_release(&a);
    free(all);
}

/* --- rows ------------------------------------------------------------------------------------- */

/* Rank r has rows r, and sums its own multiple; small integers, so that sums are exact. */
static void rows_go_and_come_back(void **state)
{
    const ranks *w = *state;
    const int64_t n = w->size, rows = 3, wide = 5;
    d9d_shape part = D9D_SHAPE(rows, wide);
    float host[15], *got;
    d9d_tensor x, dy, dx;
    d9d_var *v, *all, *y;
    d9d_tape *t;

    for (int i = 0; i < 15; i++)
        host[i] = (float)(100 * w->rank + i);
    assert_ok(d9d_tape_create(w->dev, &t));
    assert_ok(d9d_tensor_from_host(w->dev, D9D_F32, part, host, &x));
    assert_ok(d9d_tape_leaf(t, &x, true, &v));
    assert_ok(d9d_op_all_gather_rows(t, v, w->comm, "x", &all));
    got = ranks_host(d9d_var_tensor(all));
    assert_int_equal(d9d_tensor_numel(d9d_var_tensor(all)), n * 15);
    for (int64_t i = 0; i < n * 15; i++)
        assert_true(got[i] == (float)(100 * (i / 15) + i % 15));
    free(got);
    assert_ok(d9d_op_reduce_scatter_rows(t, all, w->comm, "y", &y)); /* n times its own rows */
    got = ranks_host(d9d_var_tensor(y));
    for (int i = 0; i < 15; i++)
        assert_true(got[i] == (float)n * host[i]);
    free(got);
    for (int i = 0; i < 15; i++)
        host[i] = (float)(1000 * w->rank - i);
    assert_ok(d9d_tensor_from_host(w->dev, D9D_F32, part, host, &dy));
    assert_ok(d9d_tape_backward(t, &y, &dy, 1, D9D_BACKWARD_FULL));
    d9d_var_grad(v, &dx);
    got = ranks_host(&dx);
    for (int i = 0; i < 15; i++)
        assert_true(got[i] == (float)n * host[i]);
    free(got);
    d9d_tensor_release(&dx);
    d9d_tensor_release(&dy);
    d9d_tensor_release(&x);
    d9d_tape_free(t);
}

/* Every rank has the same values, so that each difference is that of all. */
static d9d_status run_rows(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                           size_t n_out)
{
    fd_env *e = self;
    const ranks *w = e->of->arg;
    d9d_var *all, *h;

    (void)n_in, (void)n_out;
    D9D_TRY(d9d_op_all_gather_rows(t, in[0], w->comm, "x", &all));
    D9D_TRY(d9d_op_linear(t, all, e->param[0], &h));
    return d9d_op_reduce_scatter_rows(t, h, w->comm, "y", out);
}

/* all_gather_gemm and gemm_reduce_scatter, and their gradients; the reference is made of separate
 * operations. */
static d9d_status run_beside(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in,
                             d9d_var **out, size_t n_out)
{
    fd_env *e = self;
    const ranks *w = e->of->arg;
    const d9d_op_weight_slice of[] = {{e->param[0], 2, 5, NULL}, {e->param[0], 0, 7, NULL}};
    d9d_var *all, *h[2], *y[2];
    d9d_op_pending_rows coming;

    (void)n_in, (void)n_out;
    D9D_TRY(d9d_op_all_gather_rows_start(t, in[0], w->comm, "x", &coming, &all));
    D9D_TRY(d9d_op_linear_multi(t, all, &coming, of, 2, h));
    D9D_TRY(d9d_op_add(t, h[0], h[0], &h[0]));
    if (w->size == 1) {
        D9D_TRY(d9d_op_linear_residual(t, h[1], e->param[1], in[1], &y[0]));
        D9D_TRY(d9d_op_linear(t, h[0], e->param[2], &y[1]));
    } else {
        D9D_TRY(d9d_op_linear_reduce_scatter(t, h[1], e->param[1], w->comm, "y", in[1], &y[0]));
        D9D_TRY(d9d_op_linear_reduce_scatter(t, h[0], e->param[2], w->comm, "y", NULL, &y[1]));
    }
    return d9d_op_add(t, y[0], y[1], out);
}

/* A feed-forward layer between the two; with six parameters it has biases. */
static d9d_status run_ffn(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                          size_t n_out)
{
    fd_env *e = self;
    const ranks *w = e->of->arg;
    const bool biased = e->n_param == 6;
    const d9d_op_ffn_weights weights = {.gate = e->param[0],
                                        .up = e->param[1],
                                        .down = e->param[2],
                                        .gate_bias = biased ? e->param[3] : NULL,
                                        .up_bias = biased ? e->param[4] : NULL,
                                        .down_bias = biased ? e->param[5] : NULL,
                                        .glu.act = biased ? D9D_ACT_GELU_TANH : D9D_ACT_SILU};
    d9d_op_pending_rows coming;
    const d9d_op_ffn_tp between = {w->comm, "y", &coming};
    d9d_var *all;

    (void)n_in, (void)n_out;
    D9D_TRY(d9d_op_all_gather_rows_start(t, in[0], w->comm, "x", &coming, &all));
    return d9d_op_ffn(t, all, &weights, NULL, w->size > 1 ? &between : NULL, in[1], out);
}

/* A row is the same elements on every rank, once more for each. */
static d9d_status run_norm_in_parts(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in,
                                    d9d_var **out, size_t n_out)
{
    fd_env *e = self;
    const ranks *w = e->of->arg;
    const d9d_op_rms_norm_parallel_opts opts = {
        .eps = 1e-3f, .total = 5 * w->size, .comm = w->comm, .label = "x"};

    (void)n_in, (void)n_out;
    return d9d_op_rms_norm_parallel(t, in[0], e->param[0], &opts, out);
}

static void rows_keep_the_promises_of_ops(void **state)
{
    ranks *w = *state;
    const int64_t n = w->size;
    const fd_case cases[] = {{.name = "rows",
                              .run = run_rows,
                              .in = {FD(2, 3, 5)},
                              .param = {FD(7, 5)},
                              .saved = {30 * n}},
                             {.name = "products beside rows",
                              .run = run_beside,
                              .in = {FD(6, 5), FD(6, 4)},
                              .param = {FD(7, 5), FD(4, 7), FD(4, 5)},
                              .saved = {30 * n, 42 * n, 30 * n}},
                             {.name = "a layer beside rows",
                              .run = run_ffn,
                              .in = {FD(6, 5), FD(6, 5)},
                              .param = {FD(4, 5), FD(4, 5), FD(5, 4)},
                              .saved = {30 * n, 24 * n, 24 * n, 24 * n}},
                             {.name = "a layer with biases beside rows",
                              .run = run_ffn,
                              .in = {FD(6, 5), FD(6, 5)},
                              .param = {FD(4, 5), FD(4, 5), FD(5, 4), FD(4), FD(4), FD(5)},
                              .saved = {30 * n, 24 * n, 24 * n, 24 * n}},
                             {.name = "a norm in parts",
                              .run = run_norm_in_parts,
                              .in = {FD(3, 5)},
                              .param = {FD(5)},
                              .saved = {15, 3}}};

    if (!unit_device_is_cpu()) /* it opens one device, the same on every rank */
        skip();
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        fd_case c = cases[i];

        c.arg = w;
        fd_check(&c);
    }
}

/* --- GEMMs overlapped with communication: so many that a GPU computes them rank by rank ------- */

enum { R = 256, IN = 64, MID = 96 };

/* Rank r's shards of two GEMMs. */
typedef struct columns {
    d9d_param up, down;
} columns;

static void columns_make(const ranks *w, int rank, d9d_dtype t, columns *c)
{
    const uint64_t stream = 90 + 2 * (uint64_t)rank;
    d9d_param *const p[] = {&c->up, &c->down};
    const d9d_shape shape[] = {D9D_SHAPE(MID, IN), D9D_SHAPE(IN, MID)};

    for (size_t i = 0; i < 2; i++)
        *p[i] = (d9d_param){.name = "w",
                            .spec.shape = shape[i],
                            .local.shape = shape[i],
                            .spec.dtype = t,
                            .local.data = ranks_numbers(w, t, shape[i], stream + i)};
}

/* y = x + the sum over ranks of their two GEMMs of x. */
static d9d_status products_together(const ranks *w, d9d_tape *t, d9d_var *x, columns *c,
                                    d9d_var **y)
{
    const d9d_op_weight_slice of = {&c[w->rank].up, 0, MID, NULL};
    d9d_op_pending_rows coming;
    d9d_var *h;

    D9D_TRY(d9d_op_all_gather_rows_start(t, x, w->comm, "x", &coming, &h));
    D9D_TRY(d9d_op_linear_multi(t, h, &coming, &of, 1, &h));
    return d9d_op_linear_reduce_scatter(t, h, &c[w->rank].down, w->comm, "y", x, y);
}

static d9d_status products_alone(const ranks *w, d9d_tape *t, d9d_var *x, columns *c, d9d_var **y)
{
    d9d_var *h;

    *y = x;
    for (int r = 0; r < w->size; r++) {
        D9D_TRY(d9d_op_linear(t, x, &c[r].up, &h));
        D9D_TRY(d9d_op_linear_residual(t, h, &c[r].down, *y, y));
    }
    return D9D_OK;
}

/* y and dx, of this rank's rows or, single-rank, of all. */
static void products_run(const ranks *w, d9d_dtype t, bool together, float **y, float **dx)
{
    const int64_t all = (int64_t)R * w->size, first = together ? R * w->rank : 0;
    d9d_tensor xs = ranks_numbers(w, t, D9D_SHAPE(all, IN), 80),
               seeds = ranks_numbers(w, t, D9D_SHAPE(all, IN), 81),
               x = d9d_tensor_rows(&xs, first, together ? R : all),
               seed = d9d_tensor_rows(&seeds, first, together ? R : all), grad;
    d9d_var *v, *out;
    columns c[8];
    d9d_tape *tape;

    assert_in_range(w->size, 1, 8);
    for (int r = 0; r < w->size; r++)
        columns_make(w, r, t, &c[r]);
    assert_ok(d9d_tape_create(w->dev, &tape));
    assert_ok(d9d_tape_leaf(tape, &x, true, &v));
    assert_ok((together && w->size > 1 ? products_together : products_alone)(w, tape, v, c, &out));
    *y = ranks_host(d9d_var_tensor(out));
    assert_ok(d9d_tape_backward(tape, &out, &seed, 1, D9D_BACKWARD_FULL));
    d9d_var_grad(v, &grad);
    *dx = ranks_host(&grad);
    d9d_tensor_release(&grad);
    d9d_tape_free(tape);
    for (int r = 0; r < w->size; r++) {
        d9d_tensor_release(&c[r].up.local.data);
        d9d_tensor_release(&c[r].down.local.data);
    }
    d9d_tensor_release(&seed);
    d9d_tensor_release(&seeds);
    d9d_tensor_release(&x);
    d9d_tensor_release(&xs);
}

static void products_beside_rows_are_products(void **state)
{
    const ranks *w = *state;
    const struct {
        d9d_dtype t;
        double tolerance;
    } cases[] = {{D9D_F32, 5 * exact()}, {D9D_BF16, 2e-2}};

    for (size_t i = 0; i < 2; i++) {
        float *y[2], *dx[2];

        for (int together = 0; together < 2; together++)
            products_run(w, cases[i].t, together, &y[together], &dx[together]);
        ranks_close_to("y", y[1], y[0] + R * w->rank * IN, R * IN, cases[i].tolerance);
        ranks_close_to("dx", dx[1], dx[0] + R * w->rank * IN, R * IN, cases[i].tolerance);
        for (int k = 0; k < 2; k++) {
            free(y[k]);
            free(dx[k]);
        }
    }
}

static void rows_that_do_not_divide_are_refused(void **state)
{
    const ranks *w = *state;
    d9d_tensor x = ranks_numbers(w, D9D_F32, D9D_SHAPE(2 * w->size + 1, 3), 1);
    d9d_var *v, *y = NULL;
    char want[100];
    d9d_tape *t;

    assert_ok(d9d_tape_create(w->dev, &t));
    assert_ok(d9d_tape_leaf(t, &x, true, &v));
    if (w->size == 1)
        goto out;
    (void)snprintf(want, sizeof(want), "reduce_scatter_rows: %d rows do not divide over %d ranks",
                   2 * w->size + 1, w->size);
    assert_fails(d9d_op_reduce_scatter_rows(t, v, w->comm, "x", &y), D9D_EINVAL, want);
    assert_null(y);
out:
    d9d_tape_free(t);
    d9d_tensor_release(&x);
}

/* --- vocabulary-parallel loss ----------------------------------------------------------------- */

enum { IGNORE = -100, MAX_SPLITS = 3 };

typedef struct vocabulary {
    const char *name;
    int64_t rows, h; /* rows per rank */
    size_t n;
    int64_t v[MAX_SPLITS];
    float softcap;
} vocabulary;

static void param_make(const ranks *w, d9d_param *p, int64_t v, int64_t h, uint64_t stream,
                       int64_t first, int64_t n)
{
    d9d_tensor all = ranks_numbers(w, D9D_F32, D9D_SHAPE(v, h), stream),
               part = d9d_tensor_rows(&all, first, n);
    float *host = ranks_host(&part);

    *p = (d9d_param){.name = "head",
                     .spec.shape = D9D_SHAPE(v, h),
                     .local.shape = D9D_SHAPE(n, h),
                     .local.offset = {first},
                     .spec.dtype = D9D_F32,
                     .spec.grad_dtype = D9D_F32,
                     .spec.trainable = true};
    assert_ok(d9d_tensor_from_host(w->dev, D9D_F32, p->local.shape, host, &p->local.data));
    assert_ok(d9d_tensor_alloc(w->dev, D9D_F32, p->local.shape, &p->local.grad));
    free(host);
    d9d_tensor_release(&part);
    d9d_tensor_release(&all);
}

/* Results of a run, on the host. */
typedef struct outcome {
    float *loss, *dx, *dw[MAX_SPLITS];
    int64_t first[MAX_SPLITS], n[MAX_SPLITS];
} outcome;

static void outcome_free(outcome *o)
{
    free(o->loss);
    free(o->dx);
    for (int i = 0; i < MAX_SPLITS; i++)
        free(o->dw[i]);
}

/* Computes over the ranks of `comm`, or all of it on this rank. */
static void loss_run(const ranks *w, const vocabulary *c, bool root, d9d_comm *comm,
                     const d9d_tensor *targets, outcome *o)
{
    const int parts = d9d_comm_size(comm), rank = d9d_comm_rank(comm);
    const int64_t tokens = c->rows * w->size;
    d9d_tensor all = ranks_numbers(w, D9D_F32, D9D_SHAPE(tokens, c->h), 50), dx;
    d9d_tensor x = d9d_tensor_rows(&all, tokens / parts * rank, tokens / parts);
    d9d_tensor seed = root ? (d9d_tensor){0} : ranks_numbers(w, D9D_F32, D9D_SHAPE(tokens), 51);
    const d9d_op_vocab_opts opts = {.comm = comm, .softcap = c->softcap, .ignore = IGNORE};
    d9d_param param[MAX_SPLITS], *heads[MAX_SPLITS] = {&param[0], &param[1], &param[2]};
    d9d_var *v, *h, *loss;
    d9d_tape *t;

    for (size_t i = 0; i < c->n; i++) {
        d9d_param_split_even(c->v[i], parts, rank, &o->first[i], &o->n[i]);
        param_make(w, &param[i], c->v[i], c->h, 60 + i, o->first[i], o->n[i]);
    }
    assert_ok(d9d_tape_create(w->dev, &t));
    assert_ok(d9d_tape_leaf(t, &x, true, &v));
    assert_ok(d9d_op_all_gather_rows(t, v, comm, "h", &h));
    assert_ok((root ? d9d_op_linear_cross_entropy_root
                    : d9d_op_linear_cross_entropy)(t, h, heads, c->n, targets, &opts, &loss));
    o->loss = ranks_host(d9d_var_tensor(loss));
    assert_ok(d9d_tape_backward(t, &loss, &seed, root ? 0 : 1, D9D_BACKWARD_FULL));
    d9d_var_grad(v, &dx);
    o->dx = ranks_host(&dx);
    for (size_t i = 0; i < c->n; i++) {
        o->dw[i] = ranks_host(&param[i].local.grad);
        d9d_tensor_release(&param[i].local.data);
        d9d_tensor_release(&param[i].local.grad);
    }
    d9d_tensor_release(&dx);
    d9d_tensor_release(&seed);
    d9d_tensor_release(&x);
    d9d_tensor_release(&all);
    d9d_tape_free(t);
}

static void loss_check(const ranks *w, const vocabulary *c, bool root)
{
    const int64_t tokens = c->rows * w->size, first = c->rows * w->rank * c->h;
    int32_t *host = calloc((size_t)tokens + 1, sizeof(*host));
    outcome alone = {0}, parts = {0};
    d9d_tensor targets;
    int64_t all = 0;

    for (size_t i = 0; i < c->n; i++)
        all += c->v[i];
    for (int64_t i = 0; i < tokens; i++)
        host[i] = i % 5 == 3 ? IGNORE : (int32_t)(i * 7919 % all);
    assert_ok(d9d_tensor_from_host(w->dev, D9D_I32, D9D_SHAPE(tokens), host, &targets));
    loss_run(w, c, root, NULL, &targets, &alone);
    loss_run(w, c, root, w->comm, &targets, &parts);
    check_same(w, parts.loss, (size_t)tokens * sizeof(float));
    ranks_close_to("loss", parts.loss, alone.loss, tokens, exact());
    ranks_close_to("dx", parts.dx, alone.dx + first, c->rows * c->h, exact());
    for (size_t i = 0; i < c->n; i++)
        ranks_close_to("dw", parts.dw[i], alone.dw[i] + parts.first[i] * c->h, parts.n[i] * c->h,
                       5 * exact());
    d9d_tensor_release(&targets);
    outcome_free(&alone);
    outcome_free(&parts);
    free(host);
}

static void a_loss_over_parts_is_the_loss(void **state)
{
    static const vocabulary cases[] = {
        {"odd", 7, 5, 1, {23}, 0},
        {"one id", 3, 4, 1, {1}, 0},
        {"fewer ids than ranks", 3, 4, 1, {2}, 0},
        {"splits", 5, 9, 3, {50, 1, 7}, 0},
        {"splits with a softcap", 5, 9, 3, {50, 1, 7}, 1.5f},
        {"longer than a block", 40, 3, 2, {9001, 40}, 0},
        {"no tokens", 0, 3, 1, {5}, 0},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (int root = 0; root < 2; root++)
            loss_check(*state, &cases[i], root);
}

static void a_target_outside_is_refused_on_every_rank(void **state)
{
    const ranks *w = *state;
    const int32_t bad = 5;
    d9d_tensor x = ranks_numbers(w, D9D_F32, D9D_SHAPE(1, 3), 1), target;
    d9d_param param, *head = &param;
    d9d_var *h, *loss = NULL;
    int64_t first, n;
    d9d_tape *t;

    d9d_param_split_even(5, w->size, w->rank, &first, &n);
    param_make(w, &param, 5, 3, 2, first, n);
    assert_ok(d9d_tensor_from_host(w->dev, D9D_I32, D9D_SHAPE(1), &bad, &target));
    assert_ok(d9d_tape_create(w->dev, &t));
    assert_ok(d9d_tape_leaf(t, &x, true, &h));
    if (!unit_device_is_cpu()) /* an error that is found too late to reject */
        goto out;
    assert_fails(
        d9d_op_linear_cross_entropy(t, h, &head, 1, &target,
                                    &(d9d_op_vocab_opts){.comm = w->comm, .ignore = IGNORE}, &loss),
        D9D_EINVAL, "cross-entropy: target 5 of row 0 is outside the vocabulary of 5");
out:
    d9d_tape_free(t);
    d9d_tensor_release(&param.local.data);
    d9d_tensor_release(&param.local.grad);
    d9d_tensor_release(&target);
    d9d_tensor_release(&x);
}

/* --- models ----------------------------------------------------------------------------------- */

enum { B = 2, S = 12, T = B * S };

static const d9d_block_vocab_split three_splits[] = {{"regular", 19}, {"one", 1}, {"special", 3}};

static const char dense[] = "\"model_type\": \"qwen3\"";
static const char mixture[] =
    "\"model_type\": \"qwen3_moe\", \"norm_topk_prob\": true, \"num_experts\": 4, "
    "\"num_experts_per_tok\": 2, \"moe_intermediate_size\": 9, "
    "\"shared_expert_intermediate_size\": 7, \"shared_expert_gate\": true";

static const char full_norm[] = "\"model_type\": \"olmo2\"";
static const char factors[] =
    "\"model_type\": \"granite\", \"mlp_bias\": true, \"attention_bias\": true, "
    "\"embedding_multiplier\": 3, \"attention_multiplier\": 0.3, \"residual_multiplier\": 0.6, "
    "\"logits_scaling\": 1.5";

/* Cases: heads per rank; key-value heads per rank, or ranks per key-value head. */
typedef struct variant {
    const char *name;
    int heads, kv, ranks_per_kv;
    const char *fields;
    bool tied, packed;
    d9d_model_recompute_mode recompute;
} variant;

static const variant variants[] = {
    {"grouped queries", 4, 2, 0, dense, false, false, D9D_RECOMPUTE_OFF},
    {"one head each", 1, 1, 0, dense, false, true, D9D_RECOMPUTE_FULL},
    {"shared key-value heads", 2, 0, 2, dense, true, false, D9D_RECOMPUTE_SELECTIVE},
    {"one key-value head", 3, 0, 4, dense, false, true, D9D_RECOMPUTE_OFF},
    {"experts", 2, 1, 0, mixture, false, false, D9D_RECOMPUTE_FULL},
    {"experts, tied", 2, 0, 4, mixture, true, true, D9D_RECOMPUTE_OFF},
    {"norm of all heads", 4, 2, 0, full_norm, false, false, D9D_RECOMPUTE_FULL},
    {"norm of all heads, shared key-value heads", 2, 0, 2, full_norm, true, true,
     D9D_RECOMPUTE_SELECTIVE},
    {"norm of all heads, one key-value head", 3, 0, 4, full_norm, false, false, D9D_RECOMPUTE_OFF},
    {"factors and biases", 2, 1, 0, factors, true, true, D9D_RECOMPUTE_FULL},
};

static d9d_family_config config_of(const variant *v, int n, d9d_arena *a)
{
    const int shared = v->kv == 0 && n % v->ranks_per_kv == 0 ? n / v->ranks_per_kv : 1;
    d9d_family_config c;

    assert_ok(family_make(
        a, &c,
        "{%s, \"hidden_size\": 20, \"num_hidden_layers\": 2, \"num_attention_heads\": %d, "
        "\"num_key_value_heads\": %d, \"head_dim\": 6, \"intermediate_size\": 14, "
        "\"max_position_embeddings\": 64, \"vocab_size\": 23, \"initializer_range\": 0, "
        "\"tie_word_embeddings\": %s}",
        v->fields, v->heads * n, v->kv > 0 ? v->kv * n : shared, v->tied ? "true" : "false"));
    if (v->tied) {
        c.splits = three_splits;
        c.n_splits = 3;
    }
    return c;
}

static d9d_tensor whole_numbers(const ranks *w, d9d_shape shape, int32_t (*of)(int64_t))
{
    const int64_t n = d9d_shape_numel(&shape);
    int32_t *host = calloc((size_t)n, sizeof(*host));
    d9d_tensor x;

    for (int64_t i = 0; i < n; i++)
        host[i] = of(i);
    assert_ok(d9d_tensor_from_host(w->dev, D9D_I32, shape, host, &x));
    free(host);
    return x;
}

static int32_t id_of(int64_t i)
{
    return (int32_t)d9d_rng_below((d9d_rng){7, 1}, (uint64_t)i, 23);
}
static int32_t label_of(int64_t i)
{
    return i % 7 == 2 ? IGNORE : (int32_t)d9d_rng_below((d9d_rng){7, 2}, (uint64_t)i, 23);
}
static int32_t position_of(int64_t i)
{
    return (int32_t)(i % S);
}
/* Documents of 5, 7 and 12 tokens: d9d_segment. */
enum { DOCUMENTS = 3 };
static int32_t segment_of(int64_t i)
{
    static const int32_t segments[] = {0, 5, 0, 5, 5, 7, 5, 7, 12, 12, 12, 12};

    return segments[i];
}

/* A model of this rank, whole or sharded; its losses, and its gradients summed over the ranks. */
typedef struct half {
    d9d_family_config config;
    d9d_model *model;
    d9d_params params;
    d9d_arena arena;
    float *loss;
} half;

static void half_open(const ranks *w, const variant *v, d9d_mesh *mesh, half *f)
{
    const d9d_model_opts options = {.dtype = D9D_F32, .recompute = v->recompute};

    *f = (half){0};
    f->config = config_of(v, w->size, &f->arena);
    assert_ok(d9d_family_create(&f->config, D9D_WHOLE_MODEL, &options, &f->model));
    assert_ok(d9d_module_bind(f->model->module));
    if (mesh != NULL) {
        assert_ok(d9d_parallel_plan_check_blocks(f->model, d9d_mesh_degrees(mesh)));
        assert_ok(d9d_parallel_plan_apply_blocks(mesh, f->model));
    }
    assert_ok(d9d_module_params(f->model->module, &f->arena, &f->params));
    assert_ok(d9d_module_materialise(f->model->module, w->dev, true));
    assert_ok(d9d_module_reset(f->model->module, 5));
}

static void half_close(half *f)
{
    d9d_model_free(f->model);
    d9d_arena_release(&f->arena);
    free(f->loss);
}

/* Variants of backward. */
typedef enum way { FULL, HALVES, ROOT, WAYS } way;

static void half_backward(const ranks *w, d9d_tape *t, d9d_var *loss, way by)
{
    d9d_tensor seed = ranks_numbers(w, D9D_F32, D9D_SHAPE(T), 3);

    assert_ok(d9d_tape_backward(t, &loss, &seed, by == ROOT ? 0 : 1,
                                by == HALVES ? D9D_BACKWARD_DGRAD : D9D_BACKWARD_FULL));
    if (by == HALVES)
        assert_ok(d9d_tape_backward(t, NULL, NULL, 0, D9D_BACKWARD_WGRAD));
    d9d_tensor_release(&seed);
}

static void half_learn(const ranks *w, const variant *v, half *f, way by)
{
    d9d_tensor ids = whole_numbers(w, D9D_SHAPE(B, S), id_of);
    d9d_tensor labels = whole_numbers(w, D9D_SHAPE(B, S), label_of);
    d9d_tensor positions = whole_numbers(w, D9D_SHAPE(B, S), position_of);
    d9d_tensor segments = whole_numbers(w, D9D_SHAPE(DOCUMENTS, 4), segment_of);
    const d9d_model_in in = {.ids = &ids,
                             .positions = &positions,
                             .labels = &labels,
                             .loss_is_root = by == ROOT,
                             .segments = v->packed ? &segments : NULL};
    d9d_model_out out;
    d9d_tape *t;

    assert_ok(d9d_tape_create(w->dev, &t));
    assert_ok(f->model->ops->forward(f->model, t, &in, &out));
    f->loss = ranks_host(d9d_var_tensor(out.loss));
    half_backward(w, t, out.loss, by);
    d9d_tape_free(t);
    for (size_t i = 0; i < f->params.n; i++) {
        d9d_param *p = f->params.p[i];

        assert_ok(d9d_comm_all_reduce(p->placement.grad_group, w->dev->stream, p->name, D9D_F32,
                                      d9d_tensor_data(&p->local.grad),
                                      d9d_tensor_numel(&p->local.grad), D9D_COMM_SUM));
    }
    d9d_tensor_release(&segments);
    d9d_tensor_release(&positions);
    d9d_tensor_release(&labels);
    d9d_tensor_release(&ids);
}

/* This rank's shard of a matrix. */
static float *part_of(const d9d_param *p, const float *whole)
{
    const int64_t cols = p->local.shape.ndim > 1 ? p->local.shape.dim[1] : 1;
    const int64_t stride = p->spec.shape.ndim > 1 ? p->spec.shape.dim[1] : 1;
    const int64_t left = p->spec.shape.ndim > 1 ? p->local.offset[1] : 0;
    float *part = calloc((size_t)(p->local.shape.dim[0] * cols) + 1, sizeof(*part));

    for (int64_t i = 0; i < p->local.shape.dim[0]; i++)
        memcpy(part + i * cols, whole + (p->local.offset[0] + i) * stride + left,
               (size_t)cols * sizeof(float));
    return part;
}

static void compare(const char *what, const d9d_param *part, const d9d_tensor *got,
                    const d9d_tensor *whole, double tolerance)
{
    char text[200];
    float *a = ranks_host(got), *b = ranks_host(whole), *want = b;

    if (part->local.shape.ndim <= 2)
        want = part_of(part, b);
    (void)snprintf(text, sizeof(text), "%s of %s", what, part->name);
    ranks_close_to(text, a, want, d9d_tensor_numel(got), tolerance);
    if (want != b)
        free(want);
    free(a);
    free(b);
}

static void model_check(const ranks *w, const variant *v, way by)
{
    half whole, part;

    half_open(w, v, NULL, &whole);
    half_open(w, v, w->mesh, &part);
    assert_int_equal(whole.params.n, part.params.n);
    half_learn(w, v, &whole, by == HALVES ? FULL : by);
    half_learn(w, v, &part, by);
    check_same(w, part.loss, T * sizeof(float));
    ranks_close_to("loss", part.loss, whole.loss, T, exact());
    for (size_t i = 0; i < part.params.n; i++) {
        const d9d_param *p = part.params.p[i], *all = whole.params.p[i];

        assert_string_equal(p->name, all->name);
        compare("value", p, &p->local.data, &all->local.data, 0);
        compare("gradient", p, &p->local.grad, &all->local.grad, 10 * exact());
    }
    half_close(&part);
    half_close(&whole);
}

static void models_in_parts_are_the_model(void **state)
{
    for (size_t i = 0; i < sizeof(variants) / sizeof(variants[0]); i++)
        for (int by = 0; by < WAYS; by++)
            model_check(*state, &variants[i], (way)by);
}

int main(void)
{
    ranks w;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(rows_go_and_come_back, &w),
        cmocka_unit_test_prestate(rows_keep_the_promises_of_ops, &w),
        cmocka_unit_test_prestate(products_beside_rows_are_products, &w),
        cmocka_unit_test_prestate(rows_that_do_not_divide_are_refused, &w),
        cmocka_unit_test_prestate(a_loss_over_parts_is_the_loss, &w),
        cmocka_unit_test_prestate(a_target_outside_is_refused_on_every_rank, &w),
        cmocka_unit_test_prestate(models_in_parts_are_the_model, &w),
    };

    ranks_open_tensor(&w);
    return ranks_run(&w, "tensor parallel", tests, sizeof(tests) / sizeof(*tests));
}
