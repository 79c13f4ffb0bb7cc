/* sim_table.c - every kernel as a number of operations and of bytes.  See d9d/kernels/sim.h.
 *
 * A product of M by K and K by N is 2 M N K operations; bytes are those of arrays read and written
 * once.  Shape letters as in d9d/kernels/table.h.
 */
#include <string.h>

#include "common/kernel_common.h"
#include "sim/sim_private.h"

#pragma GCC diagnostic ignored "-Wunused-parameter" /* arrays, of which none is read */

#define ENTRY(op, ...) static d9d_status op##_(d9d_stream s, __VA_ARGS__)

static double size(d9d_dtype t)
{
    return (double)d9d_dtype_size(t);
}

/* n elements read or written. */
static d9d_status move(d9d_stream s, d9d_dtype t, double n)
{
    return d9di_paper_charge(s, D9D_PAPER_MEMORY, t, 0, n * size(t));
}

/* --- elementwise --------------------------------------------------------------------------- */

ENTRY(fill, d9d_dtype t, void *y, int64_t n, float v)
{
    return move(s, t, (double)n);
}
ENTRY(cast, d9d_dtype yt, void *y, d9d_dtype xt, const void *x, int64_t n)
{
    return d9di_paper_charge(s, D9D_PAPER_MEMORY, yt, 0, (double)n * (size(yt) + size(xt)));
}
ENTRY(add, d9d_dtype t, void *y, const void *const *x, int of, int64_t n)
{
    return move(s, t, (of + 1.0) * (double)n);
}
ENTRY(accumulate, d9d_dtype yt, void *y, float beta, d9d_dtype xt, const void *x, int64_t n)
{
    return d9di_paper_charge(s, D9D_PAPER_MEMORY, yt, 0, (double)n * (2 * size(yt) + size(xt)));
}
ENTRY(swiglu, d9d_dtype t, void *y, const void *gate, const void *up, int64_t n)
{
    return move(s, t, 3.0 * (double)n);
}
ENTRY(swiglu_din, d9d_dtype t, void *dgate, void *dup, const void *dy, const void *gate,
      const void *up, int64_t n)
{
    return move(s, t, 5.0 * (double)n);
}
ENTRY(sigmoid_gate, d9d_dtype t, void *y, const void *x, const void *g, int64_t m, int64_t n)
{
    return move(s, t, 2.0 * (double)m * (double)n);
}
ENTRY(sigmoid_gate_din, d9d_dtype t, void *dx, void *dg, const void *dy, const void *x,
      const void *g, int64_t m, int64_t n)
{
    return move(s, t, 3.0 * (double)m * (double)n);
}
ENTRY(random, d9d_dtype t, void *y, d9d_init_kind kind, float scale, d9d_rng r, int ndim,
      const int64_t *box, const int64_t *start, const int64_t *whole)
{
    return D9D_OK; /* of no step */
}

/* --- products ------------------------------------------------------------------------------ */

static d9d_status product(d9d_stream s, d9d_paper_kind kind, d9d_dtype t, d9d_dtype ct, double m,
                          double n, double k)
{
    return d9di_paper_charge(s, kind, t, 2 * m * n * k,
                             (m * k + k * n) * size(t) + m * n * size(ct));
}

ENTRY(gemm, const d9d_gemm *g, const void *a, const void *b, void *c)
{
    D9D_TRY(d9di_paper_gemm_scratch(s, g));
    return product(s, D9D_PAPER_PRODUCTS, g->t, g->ct, (double)g->m, (double)g->n, (double)g->k);
}

/* Rows of E experts, whose matrices are read or written whole. */
static d9d_status grouped(d9d_stream s, d9d_dtype t, d9d_dtype wt, int64_t rows, int64_t e,
                          int64_t in, int64_t out)
{
    const double w = (double)in * (double)out;

    return d9di_paper_charge(s, D9D_PAPER_EXPERTS, t, 2 * (double)rows * w,
                             (double)rows * (double)(in + out) * size(t) +
                                 (double)e * w * size(wt));
}

ENTRY(grouped_gemm, d9d_dtype t, void *y, const void *x, const void *w, const int32_t *offset,
      int64_t rows, int64_t e, int64_t in, int64_t out)
{
    return grouped(s, t, t, rows, e, in, out);
}
ENTRY(grouped_gemm_din, d9d_dtype t, void *dx, float beta, int n, const void *const *dy,
      const void *const *w, const int32_t *offset, int64_t rows, int64_t e, int64_t in, int64_t out)
{
    for (int i = 0; i < n; i++)
        D9D_TRY(grouped(s, t, t, rows, e, in, out));
    return D9D_OK;
}
ENTRY(grouped_gemm_dw, d9d_dtype t, d9d_dtype gt, void *dw, float beta, const void *x,
      const void *dy, const int32_t *offset, int64_t rows, int64_t e, int64_t in, int64_t out)
{
    return grouped(s, t, gt, rows, e, in, out);
}

/* As their parts. */
ENTRY(gated_gemm, const d9d_gated_dims *n, void *y, void *gate, void *up, const void *x,
      const void *w_gate, const void *w_up)
{
    return d9di_gated_parts(d9d_kernels_paper(), s, n, y, gate, up, x, w_gate, w_up);
}
ENTRY(gated_gemm_din, const d9d_gated_dims *n, void *dgate, void *dup, const void *dout,
      const void *w, const void *gate, const void *up)
{
    return d9di_gated_din_parts(d9d_kernels_paper(), s, n, dgate, dup, dout, w, gate, up);
}

/* --- norm, position, attention -------------------------------------------------------------- */

ENTRY(rms_norm, d9d_dtype t, void *y, float *inv, const void *x, const void *w, int64_t m,
      int64_t n, float eps, bool zero_centred)
{
    return move(s, t, 2.0 * (double)m * (double)n);
}
ENTRY(rms_norm_grad, d9d_dtype t, void *dx, const void *plus, d9d_dtype gt, void *dw, float beta,
      const void *dy, const void *x, const void *w, const float *inv, int64_t m, int64_t n,
      bool zero_centred)
{
    return move(s, t, (plus != NULL ? 4.0 : 3.0) * (double)m * (double)n);
}
ENTRY(rope, d9d_dtype t, void *y, const void *x, const int32_t *positions, const float *inv_freq,
      int64_t m, int64_t heads, int64_t d, int64_t r, bool interleaved, float mscale, float sign)
{
    return move(s, t, 2.0 * (double)(m * heads) * (double)d);
}
ENTRY(norm_rope, const d9d_norm_rope_dims *n, void *y, float *inv, const void *x, const void *w)
{
    return move(s, n->t, 2.0 * (double)(n->m * n->heads) * (double)n->d);
}
ENTRY(norm_rope_grad, const d9d_norm_rope_dims *n, void *dx, d9d_dtype gt, void *dw, float beta,
      const void *dy, const void *x, const void *w, const float *inv)
{
    return move(s, n->t, 3.0 * (double)(n->m * n->heads) * (double)n->d);
}

/* 1 + 2 + ... + n */
static double triangle(double n)
{
    return n > 0 ? n * (n + 1) / 2 : 0;
}

/* Of a segment: all but what the mask hides of each query and what lies before its window. */
static double pairs_of(const d9d_attention_dims *n, double nq, double nk)
{
    const double w = n->window > 0 ? (double)n->window : nk;

    if (!n->causal)
        return nq * nk;
    return nq * nk - triangle(nq - 1) - triangle(nk - w) + triangle(nk - nq - w);
}

/* Pairs of a query and a key that it sees. */
static double pairs(const d9d_attention_dims *n)
{
    double sum = 0;

    if (n->segments == 0 && n->pieces > 0) {
        for (int64_t i = 0; i < n->pieces; i++)
            sum += pairs_of(n, (double)(n->s / n->pieces), (double)n->end[i]);
        return (double)n->b * sum;
    }
    if (n->segments == 0 || !d9d_paper_is_real(n->segment))
        return (double)n->b * pairs_of(n, (double)n->s, (double)n->z);
    for (int64_t i = 0; i < n->segments; i++)
        sum += pairs_of(n, n->segment[i].nq, n->segment[i].nk);
    return sum;
}

/* `products` of D for each pair. */
static d9d_status attend(d9d_stream s, const d9d_attention_dims *n, d9d_paper_kind kind,
                         double products)
{
    const double heads = (double)(n->a * n->d);
    const double elements =
        products * ((double)n->s * heads + (double)n->z * (double)(n->kv * n->d)) * (double)n->b;
    const bool fast = d9di_paper_by_tensor_cores(s, n, kind == D9D_PAPER_ATTENTION_GRAD);

    return d9di_paper_charge(s, n->s == n->z || fast ? kind : D9D_PAPER_ATTENTION_OWN, n->t,
                             2 * products * heads * pairs(n), elements * size(n->t));
}

ENTRY(attention, const d9d_attention_dims *n, void *o, float *lse, const void *q, const void *k,
      const void *v)
{
    D9D_TRY(d9di_paper_attention_scratch(s, n, false));
    return attend(s, n, D9D_PAPER_ATTENTION, 2);
}
ENTRY(attention_din, const d9d_attention_dims *n, void *dq, void *dk, void *dv, const void *dout,
      const void *q, const void *k, const void *v, const void *o, const float *lse)
{
    D9D_TRY(d9di_paper_attention_scratch(s, n, true));
    return attend(s, n, D9D_PAPER_ATTENTION_GRAD, 5);
}
ENTRY(attention_sink, const d9d_attention_dims *n, void *o, float *lse, const void *sink)
{
    return move(s, n->t, 2.0 * (double)(n->b * n->s) * (double)(n->a * n->d));
}
ENTRY(attention_sink_dw, const d9d_attention_dims *n, d9d_dtype gt, void *dsink, float beta,
      const void *dout, const void *o, const float *lse, const void *sink)
{
    return move(s, n->t, 2.0 * (double)(n->b * n->s) * (double)(n->a * n->d));
}
ENTRY(pieces, d9d_dtype t, void *y, const void *x, int64_t n, int64_t b, int64_t p, int64_t w,
      bool in_order)
{
    return move(s, t, 4.0 * (double)(n * b) * (double)(p * w));
}
ENTRY(dropout, d9d_dtype t, void *y, const void *x, float p, float factor, d9d_rng r,
      const int64_t *token, int64_t m, int64_t n, int64_t first, int64_t width)
{
    return move(s, t, 2.0 * (double)m * (double)n);
}
ENTRY(columns, const d9d_columns_dims *n, void *y, const void *x)
{
    return move(s, n->t, 2.0 * (double)(n->m * n->heads) * (double)n->n);
}
ENTRY(columns_din, const d9d_columns_dims *n, void *x, const void *y)
{
    return move(s, n->t, (double)(n->m * (n->heads + 1)) * (double)n->n);
}
ENTRY(put_rows, d9d_dtype t, void *y, int64_t ld, int64_t first, const int32_t *at, const void *x,
      int64_t m, int64_t n)
{
    return move(s, t, 2.0 * (double)m * (double)n);
}

/* --- delta rule ------------------------------------------------------------------------------ */

ENTRY(conv, const d9d_conv_dims *n, void *y, const void *x, const void *w)
{
    return move(s, n->t, 2.0 * (double)(n->of.b * n->of.s) * (double)n->n);
}
ENTRY(conv_grad, const d9d_conv_dims *n, void *dx, d9d_dtype gt, void *dw, float beta,
      const void *dy, const void *x, const void *w)
{
    return move(s, n->t, 3.0 * (double)(n->of.b * n->of.s) * (double)n->n);
}
ENTRY(decay, d9d_dtype t, float *g, const void *x, const void *rate, const void *bias, int64_t m,
      int64_t n)
{
    return move(s, D9D_F32, 2.0 * (double)m * (double)n);
}
ENTRY(decay_din, d9d_dtype t, void *dx, const float *dg, const void *x, const void *rate,
      const void *bias, int64_t m, int64_t n)
{
    return move(s, D9D_F32, 3.0 * (double)m * (double)n);
}
ENTRY(decay_dw, d9d_dtype t, d9d_dtype gt, void *dw, float beta, bool of_bias, const float *dg,
      const void *x, const void *rate, const void *bias, int64_t m, int64_t n)
{
    return move(s, D9D_F32, 2.0 * (double)m * (double)n);
}

/* For each token and head: `inner` products with the tokens of its chunk, `outer` with the state;
 * what chunks give to each other is float32. */
static d9d_status delta_work(d9d_stream s, const d9d_delta_dims *n, double inner, double outer,
                             double passes)
{
    const double cells = (double)(n->of.b * n->of.s) * (double)n->a, d = (double)n->d,
                 f = (double)n->f;

    D9D_TRY(d9di_paper_delta_scratch(s, n, passes > 2));
    return d9di_paper_charge(s, D9D_PAPER_ATTENTION_OWN, n->t,
                             cells * (inner * D9D_DELTA_CHUNK * (d + f) + outer * 2 * d * f),
                             cells * passes * ((d + f) * 4 + d * f * 4 / D9D_DELTA_CHUNK));
}
ENTRY(delta, const d9d_delta_dims *n, void *o, float *states, const void *q, const void *k,
      const void *v, const float *g, const void *b)
{
    return delta_work(s, n, 3, 3, 2);
}
ENTRY(delta_din, const d9d_delta_dims *n, void *dq, void *dk, void *dv, float *dg, void *db,
      const void *dout, const void *q, const void *k, const void *v, const float *g, const void *b,
      const float *states)
{
    return delta_work(s, n, 9, 7, 5);
}
ENTRY(conv_on, const d9d_conv_dims *n, const d9d_past *past, void *y, const void *x, const void *w)
{
    return conv_(s, n, y, x, w);
}
ENTRY(delta_on, const d9d_delta_dims *n, const d9d_past *past, void *o, const void *q,
      const void *k, const void *v, const float *g, const void *b)
{
    return delta_(s, n, o, NULL, q, k, v, g, b);
}
ENTRY(heads_gemm, const d9d_heads_dims *n, void *y, const void *x, const void *w)
{
    return product(s, D9D_PAPER_PRODUCTS, n->t, n->t, (double)n->m, (double)(n->heads * n->out),
                   (double)n->in);
}
ENTRY(gated_norm, d9d_dtype t, void *y, float *inv, const void *x, const void *z, const void *w,
      int64_t m, int64_t n, float eps)
{
    return move(s, t, 3.0 * (double)m * (double)n);
}
ENTRY(gated_norm_grad, d9d_dtype t, void *dx, void *dz, d9d_dtype gt, void *dw, float beta,
      const void *dy, const void *x, const void *z, const void *w, const float *inv, int64_t m,
      int64_t n)
{
    return move(s, t, 5.0 * (double)m * (double)n);
}

/* --- embedding and loss ----------------------------------------------------------------------- */

ENTRY(embedding, d9d_dtype t, void *y, const int32_t *ids, const void *table, int64_t rows,
      int64_t first, int64_t v, int64_t h, bool clear)
{
    return move(s, t, 2.0 * (double)rows * (double)h);
}
ENTRY(embedding_dw, d9d_dtype t, d9d_dtype gt, void *dtable, float beta, const int32_t *ids,
      const void *dy, int64_t rows, int64_t first, int64_t v, int64_t h)
{
    return d9di_paper_charge(s, D9D_PAPER_MEMORY, t, 0,
                             (double)h * ((double)rows * size(t) + (double)v * size(gt)));
}

/* `products` of the hidden rows and the vocabulary. */
static d9d_status head(d9d_stream s, const d9d_xent_dims *n, double products)
{
    const double rows = (double)n->rows, h = (double)n->h;
    double v = 0;

    for (int i = 0; i < n->n_split; i++)
        v += (double)n->v[i];
    return d9di_paper_charge(s, D9D_PAPER_HEAD, n->t, products * 2 * rows * h * v,
                             products * (rows * h + h * v) * size(n->t));
}

ENTRY(xent, const d9d_xent_dims *n, float *loss, float *lse, void *unit, const void *hidden,
      const void *const *w, const int32_t *targets)
{
    D9D_TRY(d9di_paper_xent_scratch(s, n, unit != NULL ? D9DI_XENT_UNIT : D9DI_XENT));
    return head(s, n, unit != NULL ? 2 : 1);
}
ENTRY(xent_join, const d9d_xent_dims *d, float *loss, float *lse, void *unit, const float *parts,
      int64_t n, int64_t mine, const void *const *w, const int32_t *targets)
{
    return move(s, d->t, unit != NULL ? 2.0 * (double)d->rows * (double)d->h : 0);
}
ENTRY(xent_din, d9d_dtype t, void *dhidden, const float *dloss, const void *unit, int64_t rows,
      int64_t h)
{
    return move(s, t, 2.0 * (double)rows * (double)h);
}
ENTRY(xent_dw, const d9d_xent_dims *n, d9d_dtype gt, void *const *dw, const float *beta,
      const float *dloss, const float *lse, const void *hidden, const void *const *w,
      const int32_t *targets)
{
    D9D_TRY(d9di_paper_xent_scratch(s, n, D9DI_XENT_DW));
    return head(s, n, 2);
}
/* What ranks with parts tell each other. */
static d9d_status gather_once(const d9d_xent_dims *n, float *any)
{
    const int64_t tokens = n->ranks != NULL ? d9di_paper_xent_tokens(n) : 0;

    if (tokens == 0)
        return D9D_OK;
    D9D_TRY(n->ranks->gather(n->ranks->arg, any, n->rows));
    for (int64_t i = 0; i < n->rows; i += tokens)
        D9D_TRY(n->ranks->gather(n->ranks->arg, any,
                                 2 * (n->rows - i < tokens ? n->rows - i : tokens)));
    return D9D_OK;
}
ENTRY(xent_once, const d9d_xent_dims *n, d9d_dtype gt, float *loss, void *unit, void *const *dw,
      const float *beta, const void *hidden, const void *const *w, const int32_t *targets)
{
    bool grads = false;

    for (int i = 0; i < n->n_split; i++)
        grads = grads || dw[i] != NULL;
    D9D_TRY(d9di_paper_xent_scratch(s, n, D9DI_XENT_ONCE));
    D9D_TRY(gather_once(n, loss));
    return head(s, n, 1.0 + (unit != NULL) + grads);
}

/* --- mixture of experts ------------------------------------------------------------------------
 */

/* Scores, read or written `times`. */
static d9d_status scores(d9d_stream s, const d9d_router_dims *n, double times)
{
    return move(s, D9D_F32, times * (double)n->rows * (double)n->e);
}
ENTRY(router, const d9d_router_dims *n, float *p, float *prob, int32_t *expert, const void *logits,
      const float *bias)
{
    return scores(s, n, 2);
}
ENTRY(router_din, const d9d_router_dims *n, void *dlogits, const float *dprob, const float *p,
      const float *prob, const int32_t *expert, const d9d_router_balance *b)
{
    return scores(s, n, b != NULL && b->z != 0 ? 3 : 2);
}
ENTRY(router_count, const d9d_router_dims *n, float *load, double *total, const int32_t *expert,
      const d9d_router_balance *b)
{
    return move(s, D9D_I32, (double)n->rows * (double)n->k);
}
ENTRY(router_losses, const d9d_router_dims *n, float *aux, float *z, const float *p,
      const d9d_router_balance *b)
{
    return scores(s, n, b->z != 0 ? 2 : 1);
}
ENTRY(router_bias, float *bias, const double *load, const float *scale, float rate, int64_t first,
      int64_t n, int64_t e)
{
    return move(s, D9D_F64, (double)e);
}

/* As if every one of E got the same of all choices; how many there are of an array from
 * route_ranks, it has noted. */
ENTRY(route, int32_t *offset, int32_t *row, int32_t *source, const int32_t *expert, int64_t rows,
      int64_t e, int64_t k)
{
    const double choices = d9di_paper_choices(s, expert, (double)rows * (double)k);

    for (int64_t i = 0; i <= e && d9d_paper_is_real(offset); i++)
        offset[i] = (int32_t)(choices * (double)i / (double)e + 0.5);
    return move(s, D9D_I32, 6.0 * (double)rows * (double)k);
}
ENTRY(permute, const d9d_permute_dims *n, void *y, const void *x, const int32_t *row)
{
    return move(s, n->t, 2.0 * (double)n->n * (double)n->h);
}
ENTRY(permute_din, const d9d_permute_dims *n, void *dx, const void *dy, const int32_t *row)
{
    return move(s, n->t, (double)(n->n + n->rows) * (double)n->h);
}
ENTRY(unpermute, const d9d_permute_dims *n, void *y, const void *x, const float *prob,
      const int32_t *row)
{
    return move(s, n->t, (double)(n->n + n->rows) * (double)n->h);
}
ENTRY(unpermute_din, const d9d_permute_dims *n, void *dx, float *dprob, const void *dy,
      const void *x, const float *prob, const int32_t *row)
{
    return move(s, n->t, 3.0 * (double)n->n * (double)n->h);
}

/* A rank has `per` of the experts: it has none of a token's k with the chance that k drawn without
 * return are all others. */
ENTRY(route_ranks, int32_t *rank, const int32_t *expert, int64_t rows, int64_t k, int64_t ranks,
      int64_t per)
{
    const double all = (double)(ranks * per);
    double none = 1;

    for (int64_t i = 0; i < k; i++)
        none *= all - (double)per - (double)i > 0
                    ? (all - (double)per - (double)i) / (all - (double)i)
                    : 0;
    d9di_paper_note(s, rank, (double)rows * (double)ranks * (1 - none));
    return move(s, D9D_I32, (double)rows * (double)(k + ranks));
}
ENTRY(route_local, int32_t *local, const int32_t *source, const int32_t *expert, int64_t n,
      int64_t rows, int64_t k, int64_t ranks, int64_t per)
{
    return move(s, D9D_I32, 2.0 * (double)n * (double)k);
}

/* --- reductions and optimizers ------------------------------------------------------------------
 */

ENTRY(sum_squares, double *out, d9d_dtype t, const d9d_array *list, int64_t count)
{
    double n = 0;

    for (int64_t i = 0; i < count; i++)
        n += (double)list[i].n;
    return move(s, t, n);
}
ENTRY(add_up, double *out, const double *x, int64_t n)
{
    return move(s, D9D_F64, (double)n);
}
ENTRY(sum, double *out, double beta, d9d_dtype t, const void *x, int64_t n)
{
    return move(s, t, (double)n);
}
ENTRY(find_nonfinite, int64_t *out, d9d_dtype t, const void *x, int64_t n)
{
    return move(s, t, (double)n);
}
ENTRY(step_scale, float *scale, double *report, const double *loss, int64_t n, const double *weight,
      const double *squares, double max_norm)
{
    return move(s, D9D_F64, (double)n);
}
/* A weight, and its residual where there is one, read and written. */
static double weight_moved(d9d_dtype t, const int16_t *residual)
{
    return 2 * (size(t) + (residual != NULL ? size(D9D_I16) : 0));
}

static double moments_moved(const d9d_adam_step *c, d9d_dtype st)
{
    return (c->amsgrad ? 6 : 4) * size(st);
}

ENTRY(adam, const d9d_adam_step *c, const float *scale, d9d_dtype t, d9d_dtype gt, d9d_dtype st,
      const d9d_adam_arrays *list, int64_t count)
{
    double bytes = 0;

    for (int64_t i = 0; i < count; i++)
        bytes += (double)list[i].n *
                 (weight_moved(t, list[i].residual) + size(gt) + moments_moved(c, st));
    return d9di_paper_charge(s, D9D_PAPER_MEMORY, t, 0, bytes);
}
ENTRY(adam_stochastic, const d9d_adam_step *c, const float *scale, d9d_dtype t, d9d_dtype gt,
      d9d_dtype st, const d9d_adam_arrays *a, d9d_rng r, int ndim, const int64_t *box,
      const int64_t *start, const int64_t *whole)
{
    double n = 1;

    for (int d = 0; d < ndim; d++)
        n *= (double)box[d];
    return d9di_paper_charge(s, D9D_PAPER_MEMORY, t, 0,
                             n * (weight_moved(t, a->residual) + size(gt) + moments_moved(c, st)));
}
ENTRY(sgd, const d9d_sgd_step *c, d9d_dtype t, void *p, int16_t *residual, d9d_dtype gt,
      const void *g, const float *scale, d9d_dtype st, void *momentum, int64_t n)
{
    return d9di_paper_charge(
        s, D9D_PAPER_MEMORY, t, 0,
        (double)n * (weight_moved(t, residual) + size(gt) + (momentum != NULL ? 2 * size(st) : 0)));
}

ENTRY(gemms, int n, const d9d_gemm *g, const void *a, const void *const *b, void *const *c)
{
    return d9di_gemm_each(d9d_kernels_paper(), s, n, g, a, b, c);
}
ENTRY(new_heads, const d9d_norm_rope_dims *d, int n, const d9d_turned_heads *list)
{
    double features = 0;

    for (int i = 0; i < n; i++)
        features += (double)list[i].heads * (double)d->d;
    return move(s, d->t, 2.0 * (double)d->m * features);
}
ENTRY(largest, int32_t *at, float *value, const float *x, int64_t m, int64_t n)
{
    return move(s, D9D_F32, (double)m * (double)n);
}

const d9d_kernels *d9d_kernels_paper(void)
{
    static const d9d_kernels table = {.name = "paper",
#define X(op) .op = op##_,
                                      D9D_KERNEL_ENTRIES(X)
#undef X
    };

    return &table;
}
