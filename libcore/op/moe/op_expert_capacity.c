/* op_expert_capacity.c - see op/moe/op_expert_capacity.h.  B sequences of S positions, k choices
 * each, of E experts; this rank has T tokens of them.
 *
 *     gather     choices of whole sequences, in the order of positions         [B, S k]
 *     sort       of each sequence: row of a choice in the order (expert, token) [B, S k]
 *     excess     row - (first row of its expert + capacity)                    [B, S k]
 *     drop       this rank's choices whose excess is not negative              [T, k]
 */
#include "op/moe/op_expert_capacity.h"

#include <math.h>

#include "op/attention/op_cp_gather.h"

typedef struct capacity_call {
    d9d_tape *t;
    const d9d_op_router_opts *opts;
    const d9d_token_weights *weights;
    int64_t t_rows, k, e;
    int64_t b, local_s, s; /* sequences; their positions on the tp ranks of this cp rank; all */
} capacity_call;

static d9di_op_cp capacity_cp(const capacity_call *c)
{
    return (d9di_op_cp){c->opts->cp, c->opts->label};
}

static d9d_device *capacity_device(const capacity_call *c)
{
    return d9d_tape_device(c->t);
}

/* Rows of kernels' arrays begin at multiples of 16 bytes. */
static int64_t padded(int64_t n)
{
    return (n + 3) / 4 * 4;
}

/* Ids as words of 32 bits, for kernels that only move them. */
static d9d_tensor words_of(const d9d_tensor *ids, d9d_shape shape)
{
    d9d_tensor words = d9d_tensor_reshape(ids, shape);

    words.dtype = D9D_F32;
    return words;
}

/* Rows of n words, padded or not, to such rows. */
static d9d_status rows_copy(const capacity_call *c, void *y, int64_t y_cols, const void *x,
                            int64_t x_cols, int64_t n)
{
    const d9d_copy_strided_dims dims = {
        .t = D9D_F32, .m = c->b, .heads = 1, .n = n, .x_cols = x_cols, .y_cols = y_cols};

    return D9DI_KERNEL(c->t, elementwise->copy_strided, &dims, y, x);
}

/* --- gather ------------------------------------------------------------------------------- */

/* Choices [T, k] to those of whole sequences, [B, S, k] words. */
static d9d_status choices_gather(const capacity_call *c, const d9d_tensor *expert, d9d_tensor *out)
{
    const int64_t tokens = c->b * c->local_s;
    const d9di_op_cp cp = capacity_cp(c);
    d9d_tensor slices, words;
    d9d_status st = D9D_OK;

    if (c->t_rows == tokens) {
        slices = d9d_tensor_ref(expert);
    } else {
        D9D_TRY(d9d_tensor_alloc(capacity_device(c), D9D_I32, D9D_SHAPE(tokens, c->k), &slices));
        st = d9di_op_collective_even(c->t, d9d_comm_all_gather, c->opts->tp, c->opts->label,
                                     D9D_I32, d9d_tensor_data(&slices), d9d_tensor_data(expert),
                                     d9d_tensor_numel(expert));
    }
    words = words_of(&slices, D9D_SHAPE(c->b, c->local_s, c->k));
    if (st == D9D_OK)
        st = d9di_op_cp_gather(c->t, &cp, &words, out);
    d9d_tensor_release(&words);
    d9d_tensor_release(&slices);
    return st;
}

/* x [B, S k] to this rank's tokens, [T, k]. */
static d9d_status tokens_take(const capacity_call *c, const d9d_tensor *x, d9d_tensor *out)
{
    const int ranks = d9d_comm_size(c->opts->cp);
    d9d_tensor dealt, own, flat;
    d9d_status st = D9D_OK;

    if (ranks == 1) {
        own = d9d_tensor_ref(x);
    } else {
        D9D_TRY(d9d_tensor_alloc(capacity_device(c), D9D_F32,
                                 D9D_SHAPE(ranks, c->b, c->local_s, c->k), &dealt));
        st = D9DI_KERNEL(c->t, attention->cp_zigzag, D9D_F32, d9d_tensor_data(&dealt),
                         d9d_tensor_data(x), ranks, c->b, c->local_s / 2, c->k, false);
        own = d9d_tensor_rows(&dealt, d9d_comm_rank(c->opts->cp), 1);
        d9d_tensor_release(&dealt);
    }
    flat = d9d_tensor_reshape(&own, D9D_SHAPE(c->b * c->local_s, c->k));
    *out =
        d9d_tensor_rows(&flat, c->t_rows != flat.shape.dim[0] ? c->weights->first : 0, c->t_rows);
    d9d_tensor_release(&flat);
    d9d_tensor_release(&own);
    return st;
}

/* --- excess ------------------------------------------------------------------------------- */

/* Arrays of whole sequences; P is S k and Q is E + 1, padded. */
enum { IDS, ROW, SOURCE, OFFSET, END, PLACE, EXCESS, SCRATCH };
static d9d_status scratch_alloc(const capacity_call *c, d9d_tensor a[SCRATCH])
{
    const d9d_shape p = D9D_SHAPE(c->b, padded(c->s * c->k)), q = D9D_SHAPE(c->b, padded(c->e + 1));
    const struct {
        d9d_dtype t;
        d9d_shape shape;
    } of[SCRATCH] = {[IDS] = {D9D_I32, p},
                     [ROW] = {D9D_I32, p},
                     [SOURCE] = {D9D_I32, p},
                     [OFFSET] = {D9D_I32, q},
                     [END] = {D9D_F32, q},
                     [PLACE] = {D9D_F32, p},
                     [EXCESS] = {D9D_F32, D9D_SHAPE(c->b, c->s * c->k)}};

    for (int i = 0; i < SCRATCH; i++)
        D9D_TRY(d9d_tensor_alloc(capacity_device(c), of[i].t, of[i].shape, &a[i]));
    return D9D_OK;
}

static int64_t capacity_of(const capacity_call *c, int64_t b)
{
    const int64_t tokens = c->weights->lengths != NULL ? c->weights->lengths[b] : c->s;
    const double at_most = ceil((double)(tokens * c->k) / (double)c->e * c->opts->capacity);

    return at_most < (double)(c->s * c->k) ? (int64_t)at_most : c->s * c->k;
}

static int32_t *ints_of(const d9d_tensor *a, int64_t b)
{
    return (int32_t *)d9d_tensor_data(a) + b * a->shape.dim[1];
}

/* Sort sequence b; END becomes the row behind the last that each expert keeps. */
static d9d_status sequence_sort(const capacity_call *c, int64_t b, const d9d_tensor a[SCRATCH])
{
    const int64_t q = a[END].shape.dim[1];
    const d9d_pointwise_dims end = {.f = D9D_POINTWISE_AFFINE,
                                    .of = D9D_POINTWISE_VALUE,
                                    .k = {1.0f, (float)capacity_of(c, b)},
                                    .ndim = 1,
                                    .dim = {c->e + 1},
                                    .yt = D9D_F32,
                                    .x = {{D9D_I32, {1}}}};

    D9D_TRY(D9DI_KERNEL(c->t, moe->sort_by_expert, ints_of(&a[OFFSET], b), ints_of(&a[ROW], b),
                        ints_of(&a[SOURCE], b), ints_of(&a[IDS], b), a[IDS].shape.dim[1], c->e, 1));
    return D9DI_KERNEL(c->t, math->pointwise, &end, (float *)d9d_tensor_data(&a[END]) + b * q,
                       (const void *const[D9D_POINTWISE_INPUTS]){ints_of(&a[OFFSET], b)});
}

/* EXCESS of the choices of whole sequences: below 0 where an expert keeps its choice. */
static d9d_status excess_compute(const capacity_call *c, const d9d_tensor *choices,
                                 d9d_tensor a[SCRATCH])
{
    const int64_t n = c->s * c->k, p = padded(n), q = padded(c->e + 1);
    const d9d_pointwise_dims sub = {.f = D9D_POINTWISE_SUB,
                                    .of = D9D_POINTWISE_VALUE,
                                    .ndim = 1,
                                    .dim = {c->b * p},
                                    .yt = D9D_F32,
                                    .x = {{D9D_I32, {1}}, {D9D_F32, {1}}}};
    void *place;

    D9D_TRY(scratch_alloc(c, a));
    D9D_TRY(D9DI_KERNEL(c->t, elementwise->fill, D9D_I32, d9d_tensor_data(&a[IDS]), c->b * p, -1));
    D9D_TRY(rows_copy(c, d9d_tensor_data(&a[IDS]), p, d9d_tensor_data(choices), n, n));
    for (int64_t b = 0; b < c->b; b++)
        D9D_TRY(sequence_sort(c, b, a));
    place = d9d_tensor_data(&a[PLACE]);
    D9D_TRY(D9DI_KERNEL(c->t, math->gather, D9D_F32, place, d9d_tensor_data(&a[END]),
                        d9d_tensor_data(&a[IDS]), c->b, q, p));
    D9D_TRY(
        D9DI_KERNEL(c->t, math->pointwise, &sub, place,
                    (const void *const[D9D_POINTWISE_INPUTS]){d9d_tensor_data(&a[ROW]), place}));
    return rows_copy(c, d9d_tensor_data(&a[EXCESS]), n, place, p, n);
}

/* --- drop --------------------------------------------------------------------------------- */

/* dropped = excess >= 0, as the larger of the scores (-1/2, excess), which a router finds. */
static d9d_status excess_test(const capacity_call *c, const d9d_tensor *excess,
                              const d9d_tensor *dropped)
{
    const d9d_router_dims two = {
        .t = D9D_F32, .rows = c->t_rows * c->k, .e = 2, .k = 1, .sigmoid = true, .scale = 1.0f};
    d9d_tensor scores = {0}, p = {0}, best = {0};
    d9d_device *dev = capacity_device(c);
    d9d_status st;

    D9D_TRY_OR(st, d9d_tensor_alloc(dev, D9D_F32, D9D_SHAPE(two.rows, 2), &scores), out);
    D9D_TRY_OR(st, d9d_tensor_alloc(dev, D9D_F32, scores.shape, &p), out);
    D9D_TRY_OR(st, d9d_tensor_alloc(dev, D9D_F32, D9D_SHAPE(two.rows), &best), out);
    D9D_TRY_OR(st,
               D9DI_KERNEL(c->t, elementwise->fill, D9D_F32, d9d_tensor_data(&scores), 2 * two.rows,
                           -0.5f),
               out);
    D9D_TRY_OR(st,
               D9DI_KERNEL(c->t, elementwise->scatter_rows, D9D_F32, d9d_tensor_data(&scores), 2, 1,
                           NULL, d9d_tensor_data(excess), two.rows, 1),
               out);
    st = D9DI_KERNEL(c->t, moe->router, &two, d9d_tensor_data(&p), d9d_tensor_data(&best),
                     d9d_tensor_data(dropped), d9d_tensor_data(&scores), NULL);
out:
    d9d_tensor_release(&scores);
    d9d_tensor_release(&p);
    d9d_tensor_release(&best);
    return st;
}

/* kept = dropped ? -1 : expert */
static d9d_status choices_keep(const capacity_call *c, const d9d_tensor *expert,
                               const d9d_tensor *dropped, const d9d_tensor *kept)
{
    d9d_tensor none;
    d9d_status st;

    D9D_TRY(d9d_device_copy(capacity_device(c), d9d_tensor_data(kept), d9d_tensor_data(expert),
                            d9d_tensor_bytes(expert)));
    D9D_TRY(d9d_tensor_alloc(capacity_device(c), D9D_I32, D9D_SHAPE(1), &none));
    st = D9DI_KERNEL(c->t, elementwise->fill, D9D_I32, d9d_tensor_data(&none), 1, -1);
    if (st == D9D_OK)
        st = D9DI_KERNEL(c->t, elementwise->embedding, D9D_F32, d9d_tensor_data(kept),
                         d9d_tensor_data(dropped), d9d_tensor_data(&none), c->t_rows * c->k, 1, 1,
                         1, false);
    d9d_tensor_release(&none);
    return st;
}

/* --- the whole ---------------------------------------------------------------------------- */

static d9d_status capacity_check(const capacity_call *c)
{
    const d9d_shape *s = &c->weights->weight.shape;
    const int64_t tokens = c->b * c->local_s;

    if (s->ndim != 2 || (c->t_rows != tokens && c->t_rows * d9d_comm_size(c->opts->tp) != tokens))
        return d9di_op_misfit("expert_capacity", "tokens", &D9D_SHAPE(c->t_rows), "token weights",
                              s, "token weights are [B, S], tokens all of them or a rank's");
    if (d9d_comm_size(c->opts->cp) > 1 && c->local_s % 2 != 0)
        return d9di_op_misfit("expert_capacity", "tokens", &D9D_SHAPE(c->t_rows), "token weights",
                              s, "a rank of context parallelism has two chunks of a sequence");
    if (c->s * c->k > D9DI_EXPERT_CAPACITY_CHOICES_MAX)
        return D9D_FAIL(D9D_EINVAL,
                        "expert_capacity: sequences of %lld tokens with %lld choices have over %d "
                        "choices",
                        (long long)c->s, (long long)c->k, D9DI_EXPERT_CAPACITY_CHOICES_MAX);
    return D9D_OK;
}

d9d_status d9di_op_expert_capacity(d9d_tape *t, const d9d_op_router_opts *opts,
                                   const d9d_router_dims *n, const d9d_tensor *expert,
                                   const d9d_tensor *kept, d9d_tensor *dropped)
{
    const d9d_token_weights *w = d9d_tape_token_weights(t);
    const int64_t local_s = w->weight.shape.dim[1];
    const capacity_call c = {.t = t,
                             .opts = opts,
                             .weights = w,
                             .t_rows = n->rows,
                             .k = n->k,
                             .e = n->e,
                             .b = w->weight.shape.dim[0],
                             .local_s = local_s,
                             .s = local_s * d9d_comm_size(opts->cp)};
    d9d_tensor a[SCRATCH] = {{0}}, whole = {0}, own = {0};
    d9d_status st;

    D9D_TRY(capacity_check(&c));
    D9D_TRY(d9d_tensor_alloc(d9d_tape_device(t), D9D_I32, expert->shape, dropped));
    D9D_TRY_OR(st, choices_gather(&c, expert, &whole), out);
    D9D_TRY_OR(st, excess_compute(&c, &whole, a), out);
    D9D_TRY_OR(st, tokens_take(&c, &a[EXCESS], &own), out);
    D9D_TRY_OR(st, excess_test(&c, &own, dropped), out);
    st = choices_keep(&c, expert, dropped, kept);
out:
    for (int i = 0; i < SCRATCH; i++)
        d9d_tensor_release(&a[i]);
    d9d_tensor_release(&own);
    d9d_tensor_release(&whole);
    return st;
}
