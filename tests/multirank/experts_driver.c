/* experts_driver.c - launched by tests/multirank/experts.bats: `experts_driver [EP [LOCAL
 * [COPIES]]]`.
 *
 * Expert parallelism: each rank has its own tokens and its share of the experts.  Groups have EP
 * neighbouring ranks (default: all), of which LOCAL are on one node (default: not told).  Each
 * trial runs the block over the group, and alone with all experts and all tokens of the group, and
 * compares the output and every gradient.  Then it compares the directional derivative of the loss
 * along a random direction with its finite difference.
 *
 * COPIES: hot experts have copies, placed by the loads of the trial; "stale": copies that never got
 * their owners' weights.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm_private.h"
#include "d9d/nn/expert_copies.h"
#include "d9d/parallel/expert_placement.h"
#include "support/arrays.h"
#include "support/ranks.h"
#include "support/unit_device.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

enum { HIDDEN = 12, WIDTH = 7, MAX_RANKS = 64 /* ranks of a group */ };

typedef enum mode { PLAIN, HALVES, REPLAY, REPLAY_HALVES } mode;

typedef struct trial {
    const char *name;
    d9d_dtype t;
    int64_t per_rank, top_k; /* experts; top_k 0: all */
    bool renormalise, shared;
    int64_t tokens[4]; /* rank i has tokens[i % 4] */
    bool crowd;        /* all tokens choose the last rank's experts */
    mode mode;
} trial;

static const trial trials[] = {
    {"top 2 of 4", D9D_F32, 4, 2, true, false, {9, 5, 7, 6}, false, PLAIN},
    {"shared expert", D9D_F32, 2, 2, true, true, {9, 5, 7, 6}, false, PLAIN},
    {"halves", D9D_F32, 3, 3, false, true, {9, 5, 7, 6}, false, HALVES},
    {"replay", D9D_F32, 3, 2, true, true, {9, 5, 7, 6}, false, REPLAY},
    {"replay in halves", D9D_F32, 2, 2, true, false, {3, 4, 8, 1}, false, REPLAY_HALVES},
    {"one expert a rank", D9D_F32, 1, 1, false, false, {9, 5, 7, 6}, false, PLAIN},
    {"every expert", D9D_F32, 2, 0, true, false, {3, 5, 4, 6}, false, PLAIN},
    {"every expert as it is", D9D_F32, 3, 0, false, false, {3, 5, 4, 6}, false, REPLAY},
    {"every expert, shared", D9D_F32, 2, 0, true, true, {0, 5, 0, 6}, false, HALVES},
    {"some ranks have no tokens", D9D_F32, 2, 2, true, true, {0, 3, 0, 1}, false, HALVES},
    {"one token in all", D9D_F32, 4, 1, false, false, {0, 0, 0, 1}, false, PLAIN},
    {"no tokens at all", D9D_F32, 2, 2, true, true, {0}, false, REPLAY},
    {"all to one rank", D9D_F32, 4, 3, true, false, {9, 5, 7, 6}, true, PLAIN},
    {"many tokens", D9D_F32, 4, 3, true, false, {300, 211, 0, 97}, false, PLAIN},
    {"bfloat16", D9D_BF16, 4, 2, true, true, {9, 5, 7, 6}, false, PLAIN},
    {"bfloat16 replay", D9D_BF16, 2, 2, false, false, {40, 3, 0, 6}, false, REPLAY_HALVES},
};

/* The ranks of a group, and how experts are divided over them. */
typedef struct expert_group {
    d9d_comm *all;
    d9d_groups cut;
    bool copies, stale;
} expert_group;

/* A block with its tokens, [first, first + tokens) of the group. */
typedef struct side {
    const trial *of;
    d9d_device *dev; /* shared */
    d9d_comm *all;
    d9d_groups cut;
    d9d_block_moe block;
    d9d_arena arena;
    d9d_params params;
    int64_t first, tokens;
    float *x, *y, *dx; /* [tokens, HIDDEN] */
    bool stale;        /* copies are not fetched */
} side;

static int64_t tokens_of(const trial *t, int rank)
{
    return t->tokens[rank % 4];
}

static int64_t tokens_before(const trial *t, int rank)
{
    int64_t sum = 0;

    for (int r = 0; r < rank; r++)
        sum += tokens_of(t, r);
    return sum;
}

static bool is_expert(const d9d_param *p)
{
    return p->spec.shape.ndim == 3;
}

/* Indices of the tokens of a side in the group. */
static float *numbers(const side *s, uint64_t seed)
{
    const int64_t n = s->tokens * HIDDEN;
    float *all = array_random(D9D_F32, s->first * HIDDEN + n, seed, 1.0);

    memmove(all, all + s->first * HIDDEN, (size_t)n * sizeof(*all));
    return all;
}

/* --- a side ----------------------------------------------------------------------------------- */

static d9d_status block_make(side *s, int n_ranks)
{
    const trial *t = s->of;
    const d9d_block_opts block_opts = {.dtype = t->t, .init_std = 0.3, .groups = &s->cut};
    const int64_t experts = t->per_rank * n_ranks;
    const d9d_block_moe_shape shape = {.hidden = HIDDEN,
                                       .intermediate = WIDTH,
                                       .experts = experts,
                                       .top_k = t->top_k == 0 ? experts : t->top_k,
                                       .renormalise = t->renormalise,
                                       .shared_intermediate = t->shared ? WIDTH : 0,
                                       .shared_gate = t->shared};

    D9D_TRY(d9d_block_moe_init(&s->block, &block_opts, &shape));
    D9D_TRY(d9d_module_bind(&s->block.module));
    D9D_TRY(d9d_module_params(&s->block.module, &s->arena, &s->params));
    for (size_t i = 0; i < s->params.n; i++)
        if (is_expert(s->params.p[i]))
            d9d_param_partition(s->params.p[i], 0, d9d_comm_size(s->all), d9d_comm_rank(s->all));
    D9D_TRY(d9d_module_materialise(&s->block.module, s->dev, true));
    return d9d_module_reset(&s->block.module, 7);
}

/* The first feature of every token is 4, and only the last rank's experts have a weight for it. */
static d9d_status crowd(side *s, int n_ranks)
{
    const d9d_tensor *w = &s->block.gate.weight.local.data;
    float *host = ranks_host(w);
    d9d_status st;

    for (int64_t i = 0; i < s->tokens; i++)
        s->x[i * HIDDEN] = 4.0f;
    for (int64_t e = 0; e < w->shape.dim[0]; e++)
        host[e * HIDDEN] = e / s->of->per_rank == n_ranks - 1 ? 8.0f : 0.0f;
    st = d9d_device_upload(s->dev, d9d_tensor_data(w), host, d9d_tensor_bytes(w));
    free(host);
    return st;
}

static void side_close(side *s)
{
    d9d_expert_copies_free(&s->block);
    if (s->params.n > 0)
        d9d_module_release(&s->block.module);
    d9d_arena_release(&s->arena);
    free(s->x);
    free(s->y);
    free(s->dx);
}

/* A side of a group of `ranks`; single rank without a group. */
static d9d_status side_open(side *s, const trial *t, d9d_device *dev, int n_ranks,
                            const expert_group *g)
{
    const int rank = d9d_comm_rank(g->all);

    *s = (side){.of = t,
                .dev = dev,
                .all = g->all,
                .cut = g->cut,
                .first = tokens_before(t, rank),
                .tokens = g->all != NULL ? tokens_of(t, rank) : tokens_before(t, n_ranks)};
    s->x = numbers(s, 11);
    s->y = array_poison(D9D_F32, s->tokens * HIDDEN);
    s->dx = array_poison(D9D_F32, s->tokens * HIDDEN);
    D9D_TRY(block_make(s, n_ranks));
    return t->crowd ? crowd(s, n_ranks) : D9D_OK;
}

/* --- one pass --------------------------------------------------------------------------------- */

static d9d_status forward(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                          size_t n_out)
{
    (void)n_in, (void)n_out;
    return d9d_block_moe_forward(self, t, in[0], NULL, out);
}

static d9d_status upload(side *s, const float *from, d9d_tensor *out)
{
    d9d_tensor f;
    d9d_status st;

    D9D_TRY(d9d_tensor_from_host(s->dev, D9D_F32, D9D_SHAPE(s->tokens, HIDDEN), from, &f));
    st = d9d_tensor_alloc(s->dev, s->of->t, f.shape, out);
    if (st == D9D_OK)
        st = s->dev->kernels->elementwise->cast(s->dev->stream, s->of->t, d9d_tensor_data(out),
                                                D9D_F32, d9d_tensor_data(&f), d9d_tensor_numel(&f));
    d9d_tensor_release(&f);
    return st;
}

static d9d_status backward(side *s, d9d_tape *tape, d9d_var *y)
{
    float *dy = numbers(s, 12);
    d9d_tensor seed = {0};
    d9d_status st = upload(s, dy, &seed);
    const bool halves = s->of->mode == HALVES || s->of->mode == REPLAY_HALVES;

    if (st == D9D_OK)
        st = d9d_tape_backward(tape, &y, &seed, 1, halves ? D9D_BACKWARD_DGRAD : D9D_BACKWARD_FULL);
    if (st == D9D_OK && halves)
        st = d9d_tape_backward(tape, NULL, NULL, 0, D9D_BACKWARD_WGRAD);
    d9d_tensor_release(&seed);
    free(dy);
    return st;
}

static d9d_status run_on(side *s, d9d_tape *tape, const d9d_tensor *x)
{
    d9d_var *in, *y;
    d9d_tensor dx;
    d9d_status st;

    D9D_TRY(d9d_tape_leaf(tape, x, true, &in));
    D9D_TRY(s->of->mode >= REPLAY ? d9d_tape_recompute(tape, forward, &s->block, &in, 1, &y, 1)
                                  : forward(&s->block, tape, &in, 1, &y, 1));
    D9D_TRY(d9d_tensor_to_f32(d9d_var_tensor(y), s->y));
    D9D_TRY(backward(s, tape, y));
    d9d_var_grad(in, &dx);
    st = d9d_tensor_to_f32(&dx, s->dx);
    d9d_tensor_release(&dx);
    return st;
}

/* Lanes of the tokens, as positions would give them; one more than there are, for ranks without
 * any. */
static d9d_status begin_copies(side *s, d9d_tape *t)
{
    const d9d_shape shape = D9D_SHAPE(1, s->tokens + 1);
    float *weight = calloc((size_t)shape.dim[1], sizeof(*weight));
    int32_t *lane = calloc((size_t)shape.dim[1], sizeof(*lane));
    d9d_token_weights w = {0};
    d9d_status st;

    assert_true(weight != NULL && lane != NULL);
    for (int64_t i = 0; i <= s->tokens; i++)
        lane[i] = (int32_t)((s->first + i) % D9D_EXPERT_LANES);
    if (!s->stale)
        d9d_expert_copies_expire(&s->block);
    s->block.copies->is_fresh |= s->stale;
    st = d9d_tensor_from_host(s->dev, D9D_F32, shape, weight, &w.weight);
    if (st == D9D_OK)
        st = d9d_tensor_from_host(s->dev, D9D_I32, shape, lane, &w.lane);
    if (st == D9D_OK)
        d9d_tape_set_token_weights(t, &w);
    d9d_tensor_release(&w.weight);
    d9d_tensor_release(&w.lane);
    free(weight);
    free(lane);
    return st;
}

static d9d_status run(side *s)
{
    d9d_tensor x = {0};
    d9d_tape *tape;
    d9d_status st;

    d9d_module_clear_grads(&s->block.module);
    D9D_TRY(d9d_tape_create(s->dev, &tape));
    st = upload(s, s->x, &x);
    if (st == D9D_OK && s->block.copies != NULL)
        st = begin_copies(s, tape);
    if (st == D9D_OK)
        st = run_on(s, tape, &x);
    if (st == D9D_OK)
        st = d9d_expert_copies_reduce(&s->block, s->dev);
    d9d_tensor_release(&x);
    d9d_tape_free(tape);
    return st;
}

/* --- against one rank ------------------------------------------------------------------------- */

static d9d_status close_enough(const trial *t, const char *what, const float *got,
                               const float *want, int64_t n)
{
    const double tolerance = t->t == D9D_F32 ? unit_device_tolerance(2e-6, 1e-5) : 1e-2;
    double off = 0.0, size = 0.0;

    for (int64_t i = 0; i < n; i++) {
        off += pow((double)got[i] - (double)want[i], 2);
        size += pow((double)want[i], 2);
    }
    if (sqrt(off) <= tolerance * (sqrt(size) + 1e-3))
        return D9D_OK;
    return D9D_FAIL(D9D_EINVAL, "%s: %s is off by %.3g of %.3g", t->name, what, sqrt(off),
                    sqrt(size));
}

/* Compares a parameter's gradient over all tokens of the group with the same part of the single
 * rank's. */
static d9d_status same_gradient(const side *s, const d9d_param *p, const d9d_param *alone)
{
    const int64_t n = d9d_tensor_numel(&p->local.grad);
    const int64_t first = is_expert(p) ? n * d9d_comm_rank(s->all) : 0;
    float *got, *want = ranks_host(&alone->local.grad);
    d9d_status st = D9D_OK;

    if (!is_expert(p))
        st = d9d_comm_all_reduce(s->all, s->dev->stream, p->name, D9D_F32,
                                 d9d_tensor_data(&p->local.grad), n, D9D_COMM_SUM);
    got = ranks_host(&p->local.grad);
    if (st == D9D_OK)
        st = close_enough(s->of, p->name, got, want + first, n);
    free(got);
    free(want);
    return st;
}

static d9d_status compare(const side *s, const side *alone)
{
    const int64_t n = s->tokens * HIDDEN, at = s->first * HIDDEN;

    for (size_t i = 0; i < s->params.n; i++)
        D9D_TRY(same_gradient(s, s->params.p[i], alone->params.p[i]));
    D9D_TRY(close_enough(s->of, "y", s->y, alone->y + at, n));
    return close_enough(s->of, "dx", s->dx, alone->dx + at, n);
}

/* --- against finite differences --------------------------------------------------------------- */

/* Sums a number over the group. */
static d9d_status total(const side *s, double *x)
{
    d9d_comm_blob all[MAX_RANKS];
    d9d_arena a = {0};
    d9d_status st = d9d_comm_allgather_bytes(s->all, "total", x, sizeof(*x), &a, all);
    double one, sum = 0.0;

    for (int r = 0; st == D9D_OK && r < d9d_comm_size(s->all); r++) {
        memcpy(&one, all[r].data, sizeof(one));
        sum += one;
    }
    *x = sum;
    d9d_arena_release(&a);
    return st;
}

/* sum(y dy) over the group. */
static d9d_status loss(side *s, double *out)
{
    float *dy = numbers(s, 12);
    d9d_status st = run(s);

    *out = 0.0;
    for (int64_t i = 0; i < s->tokens * HIDDEN; i++)
        *out += (double)s->y[i] * (double)dy[i];
    free(dy);
    return st == D9D_OK ? total(s, out) : st;
}

/* x += by * line; returns <g, line>. */
static double along(float *x, const float *g, const float *line, int64_t n, double by)
{
    double sum = 0.0;

    for (int64_t i = 0; i < n; i++) {
        sum += (double)g[i] * (double)line[i];
        x[i] += (float)(by * (double)line[i]);
    }
    return sum;
}

static d9d_status move_param(side *s, const d9d_param *p, uint64_t seed, double by,
                             double *derivative)
{
    const int64_t n = d9d_tensor_numel(&p->local.data);
    const int64_t first = is_expert(p) ? n * d9d_comm_rank(s->all) : 0;
    float *line = array_random(D9D_F32, d9d_shape_numel(&p->spec.shape), seed, 0.1);
    float *x = ranks_host(&p->local.data), *g = ranks_host(&p->local.grad);
    d9d_status st;

    *derivative += along(x, g, line + first, n, by);
    st = d9d_device_upload(s->dev, d9d_tensor_data(&p->local.data), x,
                           d9d_tensor_bytes(&p->local.data));
    free(line);
    free(x);
    free(g);
    return st;
}

/* Moves the tokens and all parameters along the line; returns the directional derivative from the
 * gradients. */
static d9d_status move(side *s, double by, double *derivative)
{
    float *line = numbers(s, 13);

    *derivative = along(s->x, s->dx, line, s->tokens * HIDDEN, by);
    free(line);
    for (size_t i = 0; i < s->params.n; i++)
        D9D_TRY(move_param(s, s->params.p[i], 20 + i, by, derivative));
    return total(s, derivative);
}

static d9d_status check_derivative(side *s)
{
    const double step = 1e-3;
    double derivative, up, down, unused;

    D9D_TRY(loss(s, &up));
    D9D_TRY(move(s, step, &derivative));
    D9D_TRY(loss(s, &up));
    D9D_TRY(move(s, -2.0 * step, &unused));
    D9D_TRY(loss(s, &down));
    if (fabs((up - down) / (2.0 * step) - derivative) > 1e-2 * (fabs(derivative) + 0.1))
        return D9D_FAIL(D9D_EINVAL, "%s: the derivative is %g, finite differences say %g",
                        s->of->name, derivative, (up - down) / (2.0 * step));
    return D9D_OK;
}

/* --- copies of experts ------------------------------------------------------------------------ */

/* The rows that arrive here, of own experts and of copies. */
static d9d_status receive(side *s, d9d_tape *t, d9d_var *x, d9d_var *prob, const d9d_routing *r,
                          double *rows)
{
    d9d_op_moe_dispatch to[2] = {{0}};
    d9d_routing placed = {0};
    d9d_status st;

    D9D_TRY_OR(st, begin_copies(s, t), out);
    D9D_TRY_OR(
        st, d9d_op_route_copies(t, r, &s->block.copies->table, 2 * s->block.shape.experts, &placed),
        out);
    D9D_TRY_OR(st, d9d_op_dispatch(t, s->cut.ep, "rows", x, prob, &placed, &to[0]), out);
    D9D_TRY_OR(
        st,
        d9d_op_dispatch(t, s->cut.ep_local, "rows", to[0].x, to[0].prob, &to[0].routing, &to[1]),
        out);
    *rows = (double)to[1].routing.source.shape.dim[0];
out:
    d9d_op_moe_dispatch_release(&to[1]);
    d9d_op_moe_dispatch_release(&to[0]);
    d9d_routing_release(&placed);
    return st;
}

/* The experts that this rank's tokens choose, [tokens, k]; freed by the caller.  And the rows that
 * arrive here, unless NULL. */
static d9d_status choices_make(side *s, int32_t **out, double *received)
{
    const int64_t n = s->tokens * s->block.shape.top_k;
    d9d_var *x, *logits, *prob;
    d9d_tensor rows;
    d9d_routing r = {0};
    d9d_tape *tape;
    d9d_status st;

    *out = calloc((size_t)n + 1, sizeof(**out));
    assert_non_null(*out);
    D9D_TRY(d9d_tape_create(s->dev, &tape));
    D9D_TRY_OR(st, upload(s, s->x, &rows), out);
    st = d9d_tape_leaf(tape, &rows, false, &x);
    d9d_tensor_release(&rows);
    if (st == D9D_OK)
        st = d9d_block_linear_forward(&s->block.gate, tape, x, &logits);
    if (st == D9D_OK)
        st = d9d_op_router(tape, logits,
                           &(d9d_op_router_opts){.k = (int)s->block.shape.top_k,
                                                 .renormalise = s->of->renormalise,
                                                 .scale = 1.0f,
                                                 .label = "router"},
                           &prob, &r);
    if (st == D9D_OK)
        st = d9d_device_download(s->dev, *out, d9d_tensor_data(&r.expert), (size_t)n * 4);
    if (st == D9D_OK && received != NULL)
        st = receive(s, tape, x, prob, &r, received);
    d9d_routing_release(&r);
out:
    d9d_tape_free(tape);
    return st;
}

enum { MAX_EXPERTS = 256 };

/* What each rank of the group computes with these copies: choices, counted from the lanes.  `most`
 * is that of the slowest, `own` this rank's. */
static d9d_status rank_rows(const side *s, const int32_t *expert, const d9d_expert_placement *p,
                            double *most, double *own)
{
    const int64_t k = s->block.shape.top_k, per = p->experts / p->ranks;
    double rows[MAX_RANKS] = {0};

    for (int64_t i = 0; i < s->tokens * k; i++) {
        int holder[MAX_RANKS] = {(int)(expert[i] / per)}, n = 1;

        for (int64_t j = 0; j < p->ranks * p->slots; j++)
            if (p->expert[j] == expert[i])
                holder[n++] = (int)(j / p->slots);
        rows[holder[(s->first + i / k) % D9D_EXPERT_LANES % n]]++;
    }
    *most = 0;
    for (int r = 0; r < p->ranks; r++) {
        D9D_TRY(total(s, &rows[r]));
        *most = rows[r] > *most ? rows[r] : *most;
    }
    *own = rows[d9d_comm_rank(s->all)];
    return D9D_OK;
}

/* Places copies by the loads of the group's tokens. */
static d9d_status place_copies(side *s, const int32_t *expert)
{
    const int64_t n = s->block.shape.experts;
    double load[MAX_EXPERTS] = {0}, without, with, own, received;
    int32_t *again;
    int32_t slot[MAX_EXPERTS];
    d9d_expert_placement p = {.ranks = d9d_comm_size(s->all),
                              .experts = n,
                              .slots = (s->of->per_rank + 1) / 2,
                              .expert = slot};

    assert_true(n <= MAX_EXPERTS);
    memset(slot, -1, sizeof(slot));
    for (int64_t i = 0; i < s->tokens * s->block.shape.top_k; i++)
        load[expert[i]]++;
    for (int64_t e = 0; e < n; e++)
        D9D_TRY(total(s, &load[e]));
    D9D_TRY(rank_rows(s, expert, &p, &without, &own));
    D9D_TRY(d9d_expert_placement_choose(&p, load));
    D9D_TRY(rank_rows(s, expert, &p, &with, &own));
    D9D_TRY(d9d_expert_copies_create(&s->block, s->dev, s->all, p.slots));
    if (d9d_comm_rank(s->all) == 0)
        printf("%s: %lld copies, rows of the slowest rank %.0f, without them %.0f\n", s->of->name,
               (long long)d9d_expert_placement_copies(&p), with, without);
    D9D_TRY(d9d_expert_copies_place(&s->block, s->dev, slot));
    D9D_TRY(choices_make(s, &again, &received));
    free(again);
    return received == own ? D9D_OK
                           : D9D_FAIL(D9D_EINVAL, "%s: %.0f rows have arrived, expected %.0f",
                                      s->of->name, received, own);
}

static d9d_status add_copies(side *s, const expert_group *g)
{
    int32_t *expert;
    d9d_status st;

    if (!g->copies)
        return D9D_OK;
    s->stale = g->stale;
    D9D_TRY(choices_make(s, &expert, NULL));
    st = place_copies(s, expert);
    free(expert);
    return st;
}

static d9d_status run_trial(const trial *t, const ranks *w, const expert_group *g)
{
    static const expert_group one;
    const int n = d9d_comm_size(w->comm);
    side s = {0}, alone = {0};
    d9d_status st;

    D9D_TRY_OR(st, side_open(&s, t, w->dev, n, g), out);
    D9D_TRY_OR(st, add_copies(&s, g), out);
    D9D_TRY_OR(st, side_open(&alone, t, w->dev, n, &one), out);
    D9D_TRY_OR(st, run(&alone), out);
    D9D_TRY_OR(st, run(&s), out);
    D9D_TRY_OR(st, compare(&s, &alone), out);
    if (t->t == D9D_F32 && t->top_k == 0) /* the step is too small to change a choice */
        st = check_derivative(&s);
out:
    side_close(&alone);
    side_close(&s);
    return st;
}

/* --- bytes between nodes ---------------------------------------------------------------------- */

/* Rows that this rank sends to ranks of other nodes: each token once to each of the `parts` of the
 * experts, of which `own` parts from `first` on are on this rank's node, that it has chosen. */
static int64_t rows_between_nodes(const side *s, const int32_t *expert, int64_t experts, int parts,
                                  int first, int own)
{
    const int64_t k = s->block.shape.top_k, per = experts / parts;
    int64_t rows = 0;

    for (int64_t t = 0; t < s->tokens; t++)
        for (int part = 0; part < parts; part++) {
            bool chosen = false;

            for (int64_t j = 0; j < k; j++)
                chosen = chosen || expert[t * k + j] / per == part;
            rows += chosen && (part < first || part >= first + own);
        }
    return rows;
}

static uint64_t bytes_between_nodes(const d9d_comm *c, int first, int own)
{
    uint64_t sum = 0;

    for (int r = 0; r < d9d_comm_size(c); r++)
        if (r < first || r >= first + own)
            sum += d9di_comm_sent_bytes(c, r);
    return sum;
}

/* Rows from a group's rank to others, and back: a row has H elements of the block's type.  Dispatch
 * adds k choices and k weights, its backward k gradients of weights. */
static d9d_status check_bytes(const trial *t, const ranks *w, const expert_group *g, int local)
{
    const int n = d9d_comm_size(w->comm), rank = d9d_comm_rank(w->comm), nodes = n / local;
    const bool levels = g->cut.ep_local != NULL;
    const int parts = levels ? nodes : n, own = levels ? 1 : local;
    const int first = levels ? rank / local : rank / local * local;
    const int64_t experts = t->per_rank * n;
    const uint64_t before = bytes_between_nodes(g->cut.ep, first, own);
    uint64_t row, rows, bytes;
    double got[2], want[2];
    int32_t *expert = NULL;
    side s = {0};
    d9d_status st;

    D9D_TRY_OR(st, side_open(&s, t, w->dev, n, g), out);
    D9D_TRY_OR(st, run(&s), out);
    D9D_TRY_OR(st, choices_make(&s, &expert, NULL), out);
    row = HIDDEN * d9d_dtype_size(t->t);
    rows = (uint64_t)rows_between_nodes(&s, expert, experts, parts, first, own);
    bytes = bytes_between_nodes(g->cut.ep, first, own) - before;
    /* What a rank sends comes back to it from others: sums over the group are equal. */
    got[0] = (double)bytes;
    want[0] = (double)(rows * (4 * row + 3 * 4 * (uint64_t)s.block.shape.top_k));
    got[1] = (double)rows, want[1] = 0;
    D9D_TRY_OR(st, total(&s, &got[0]), out);
    D9D_TRY_OR(st, total(&s, &want[0]), out);
    D9D_TRY_OR(st, total(&s, &got[1]), out);
    if (rank == 0)
        printf("%s: %.0f rows, %.0f bytes between nodes\n", t->name, got[1], got[0]);
    if (got[0] != want[0])
        st = D9D_FAIL(D9D_EINVAL, "%s: %.0f bytes between nodes, expected %.0f", t->name, got[0],
                      want[0]);
out:
    free(expert);
    side_close(&s);
    return st;
}

/* Without recomputation, and where rows are messages. */
static bool counts_bytes(const trial *t, const expert_group *g)
{
    return t->mode == PLAIN && !g->copies && !d9d_symm_buffer_is_forced(g->cut.ep);
}

static d9d_status run_all(const ranks *w, const expert_group *g, int local)
{
    d9d_status st = D9D_OK;

    for (size_t i = 0; st == D9D_OK && i < COUNT(trials); i++) {
        st = run_trial(&trials[i], w, g);
        if (st == D9D_OK && local > 1 && counts_bytes(&trials[i], g))
            st = check_bytes(&trials[i], w, g, local);
        st = d9d_bootstrap_agree_status(w->bootstrap, st);
    }
    return st;
}

/* Divided over nodes, and inside each of them; and all at once, where the bytes between nodes are
 * counted too. */
int main(int argc, char **argv)
{
    d9d_parallel_degrees d = {1, 1, 1, 1, 1, 1, 1, 1, D9D_CP_ALL_GATHER};
    expert_group flat = {0}, levels = {0};
    d9d_status st;
    d9d_bootstrap *bootstrap;
    ranks w;

    assert_ok(d9d_bootstrap_open(&bootstrap));
    d.data_parallel_shard = d9d_bootstrap_size(bootstrap);
    d.expert_parallel = argc > 1 ? atoll(argv[1]) : d.data_parallel_shard;
    d.expert_parallel_local = argc > 2 ? atoll(argv[2]) : 1;
    assert_true(d.expert_parallel <= MAX_RANKS);
    assert_ok(ranks_open(bootstrap, &d, D9D_AXES_EXPERT, &w));
    flat.all = flat.cut.ep = levels.all = w.comm;
    flat.copies = levels.copies = argc > 3;
    flat.stale = levels.stale = argc > 3 && strcmp(argv[3], "stale") == 0;
    st = run_all(&w, &flat, (int)d.expert_parallel_local);
    if (st == D9D_OK && d.expert_parallel_local > 1) {
        assert_ok(d9d_mesh_group(w.mesh, D9D_AXES_EXPERT_ACROSS, &levels.cut.ep));
        assert_ok(d9d_mesh_group(w.mesh, D9D_AXES_EXPERT_LOCAL, &levels.cut.ep_local));
        st = run_all(&w, &levels, (int)d.expert_parallel_local);
    }
    if (st != D9D_OK)
        (void)fprintf(stderr, "rank %d: %s\n", w.rank, d9d_err_message());
    printf("rank %d of %d: %d failed\n", w.rank, w.size, st != D9D_OK);
    ranks_close(&w);
    return d9d_status_exit_code(st);
}
