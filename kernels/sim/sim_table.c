/* sim_table.c - every kernel as a number of FLOP and of bytes. See d9d/kernels/sim.h.
 *
 * A GEMM of M by K and K by N is 2 M N K FLOP. Bytes are those of each array, read or written once.
 * Shape letters as in d9d/kernels/table.h.
 */
#include <math.h>
#include <string.h>

#include "common/kernel_common.h"
#include "common/quant_code.h"
#include "common/sampling.h"
#include "sim/sim_private.h"

#pragma GCC diagnostic ignored "-Wunused-parameter" /* arrays are never read */

#define ENTRY(op, ...) static d9d_status sim_##op(d9d_stream s, __VA_ARGS__)

static double dtype_bytes(d9d_dtype t)
{
    return (double)d9d_dtype_size(t);
}

/* Charges n elements read or written. */
static d9d_status charge_memory(d9d_stream s, d9d_dtype t, double n)
{
    return d9di_sim_charge(s, D9D_SIM_MEMORY, t, 0, n * dtype_bytes(t));
}

/* --- elementwise --------------------------------------------------------------------------- */

/* The host reads a count from an array. */
ENTRY(fill, d9d_dtype t, void *y, int64_t n, float v)
{
    if (t == D9D_I32 && n == 1 && d9d_sim_is_real(y))
        *(int32_t *)y = (int32_t)v;
    return charge_memory(s, t, (double)n);
}
ENTRY(cast, d9d_dtype yt, void *y, d9d_dtype xt, const void *x, int64_t n)
{
    return d9di_sim_charge(s, D9D_SIM_MEMORY, yt, 0,
                           (double)n * (dtype_bytes(yt) + dtype_bytes(xt)));
}
ENTRY(add, d9d_dtype t, void *y, const void *const *x, int of, int64_t n)
{
    return charge_memory(s, t, (of + 1.0) * (double)n);
}
ENTRY(accumulate, d9d_dtype yt, void *y, float beta, d9d_dtype xt, const void *x, int64_t n)
{
    return d9di_sim_charge(s, D9D_SIM_MEMORY, yt, 0,
                           (double)n * (2 * dtype_bytes(yt) + dtype_bytes(xt)));
}
ENTRY(axpy, d9d_dtype t, void *y, float alpha, const void *x, const void *plus, int64_t n)
{
    return charge_memory(s, t, (plus != NULL ? 3.0 : 2.0) * (double)n);
}
ENTRY(foreach_axpby, d9d_dtype yt, d9d_dtype xt, const d9d_foreach_matrix *list, int count)
{
    double bytes = 0;

    for (int i = 0; i < count; i++)
        bytes += (double)list[i].m * (double)list[i].n *
                 (dtype_bytes(xt) + (list[i].beta != 0.0f ? 2 : 1) * dtype_bytes(yt));
    return d9di_sim_charge(s, D9D_SIM_MEMORY, yt, 0, bytes);
}
ENTRY(glu, const d9d_glu *f, d9d_dtype t, void *y, const void *gate, const void *up, int64_t n)
{
    return charge_memory(s, t, (up != NULL ? 3.0 : 2.0) * (double)n);
}
ENTRY(glu_bwd, const d9d_glu *f, d9d_dtype t, void *dgate, void *dup, const void *dy,
      const void *gate, const void *up, int64_t n)
{
    return charge_memory(s, t, (up != NULL ? 5.0 : 3.0) * (double)n);
}
ENTRY(add_bias, d9d_dtype t, void *y, const void *x, const void *b, const int32_t *offset,
      int64_t m, int64_t e, int64_t n)
{
    return charge_memory(s, t, (2.0 * (double)m + (double)e) * (double)n);
}
ENTRY(softcap, d9d_dtype t, void *y, const void *x, float cap, int64_t n)
{
    return charge_memory(s, t, 2.0 * (double)n);
}
ENTRY(sigmoid_gate, d9d_dtype t, void *y, const void *x, const void *g, int64_t m, int64_t n)
{
    return charge_memory(s, t, 2.0 * (double)m * (double)n);
}
ENTRY(sigmoid_gate_bwd, d9d_dtype t, void *dx, void *dg, const void *dy, const void *x,
      const void *g, int64_t m, int64_t n)
{
    return charge_memory(s, t, 3.0 * (double)m * (double)n);
}
ENTRY(random, d9d_dtype t, void *y, d9d_init_kind kind, float scale, d9d_rng r, int ndim,
      const int64_t *box, const int64_t *start, const int64_t *whole)
{
    return D9D_OK; /* initialisation is not part of a step */
}

/* --- functions of elements, reductions, gather --------------------------------------------- */

/* Bytes of the elements of an input, those that are broadcast once. */
static double input_bytes(const d9d_pointwise_dims *d, int i)
{
    double n = dtype_bytes(d->x[i].t);

    for (int k = 0; k < d->ndim; k++)
        n *= d->x[i].stride[k] != 0 ? (double)d->dim[k] : 1.0;
    return n;
}
ENTRY(pointwise, const d9d_pointwise_dims *d, void *y, const void *const x[D9D_POINTWISE_INPUTS])
{
    double bytes = dtype_bytes(d->yt);

    for (int k = 0; k < d->ndim; k++)
        bytes *= (double)d->dim[k];
    for (int i = 0; i < D9D_POINTWISE_INPUTS; i++)
        bytes += x[i] != NULL ? input_bytes(d, i) : 0.0;
    return d9di_sim_charge(s, D9D_SIM_MEMORY, d->yt, 0, bytes);
}
static double reduce_elements(const d9d_reduce_axis_dims *d)
{
    return (d->offset != NULL ? 1.0 : (double)d->m) * (double)d->r * (double)d->n;
}
ENTRY(reduce_axis, const d9d_reduce_axis_dims *d, float *y, const void *x)
{
    D9D_TRY(d9di_sim_reduce_axis_scratch(s, d, false));
    return charge_memory(s, d->t, reduce_elements(d));
}
ENTRY(reduce_axis_bwd, const d9d_reduce_axis_dims *d, void *dx, const float *dy, const void *x,
      const float *y)
{
    if (d->kind == D9D_REDUCE_MAX) { /* how many equal it */
        D9D_TRY(d9di_sim_reduce_axis_scratch(s, d, true));
        D9D_TRY(charge_memory(s, d->t, reduce_elements(d)));
    }
    return charge_memory(s, d->t, (x != NULL ? 2.0 : 1.0) * reduce_elements(d));
}
ENTRY(gather, d9d_dtype t, void *y, const void *x, const int32_t *index, int64_t m, int64_t n,
      int64_t k)
{
    return charge_memory(s, t, 2.0 * (double)m * (double)k);
}
ENTRY(gather_bwd, d9d_dtype t, void *dx, const void *dy, const int32_t *index, int64_t m, int64_t n,
      int64_t k)
{
    return charge_memory(s, t, (double)m * (double)(n + k));
}

/* --- GEMM ---------------------------------------------------------------------------------- */

static d9d_status charge_gemm(d9d_stream s, d9d_sim_kind kind, d9d_dtype t, d9d_dtype ct, double m,
                              double n, double k)
{
    return d9di_sim_charge(s, kind, t, 2 * m * n * k,
                           (m * k + k * n) * dtype_bytes(t) + m * n * dtype_bytes(ct));
}

ENTRY(gemm, const d9d_gemm *g, const void *a, const void *b, void *c)
{
    D9D_TRY(d9di_sim_gemm_scratch(s, g));
    return charge_gemm(s, D9D_SIM_GEMM, g->t, g->ct, (double)g->m, (double)g->n, (double)g->k);
}

/* Work of a symmetric product that a GPU computes in panels up to the diagonal. */
static double symmetric_part(d9d_stream s, int64_t m)
{
    const int64_t h = d9di_gemm_symmetric_panel(m);
    double elements = 0;

    if (s == NULL || !d9d_sim_get_chip(d9d_sim_of_stream(s))->is_gpu || m == 0)
        return 1;
    for (int64_t row = 0; row < m; row += h) {
        const int64_t rows = d9di_i64_min(h, m - row);

        elements += (double)rows * (double)(row + rows);
    }
    return elements / ((double)m * (double)m);
}

ENTRY(gemm_batched, const d9d_gemm_batched *n, const void *a, const void *b, void *c)
{
    const d9d_gemm *g = &n->gemm;
    const double count = (double)n->count, m = (double)g->m, cols = (double)g->n, k = (double)g->k;
    const double part = n->symmetric ? symmetric_part(s, g->m) : 1;

    return d9di_sim_charge(s, D9D_SIM_GEMM, g->t, 2 * part * count * m * cols * k,
                           count * ((m * k + k * cols) * dtype_bytes(g->t) +
                                    (g->beta != 0 ? 2 : 1) * m * cols * dtype_bytes(g->ct)));
}

/* Rows of E experts, whose weight matrices are read or written entirely. */
static d9d_status charge_grouped_gemm(d9d_stream s, d9d_dtype t, d9d_dtype wt, int64_t rows,
                                      int64_t e, int64_t in, int64_t out)
{
    const double w = (double)in * (double)out;

    return d9di_sim_charge(s, D9D_SIM_GROUPED_GEMM, t, 2 * (double)rows * w,
                           (double)rows * (double)(in + out) * dtype_bytes(t) +
                               (double)e * w * dtype_bytes(wt));
}

ENTRY(grouped_gemm, d9d_dtype t, void *y, const void *x, const void *w, const int32_t *offset,
      int64_t rows, int64_t e, int64_t in, int64_t out)
{
    return charge_grouped_gemm(s, t, t, rows, e, in, out);
}
ENTRY(grouped_gemm_dgrad, d9d_dtype t, void *dx, float beta, int n, const void *const *dy,
      const void *const *w, const int32_t *offset, int64_t rows, int64_t e, int64_t in, int64_t out)
{
    for (int i = 0; i < n; i++)
        D9D_TRY(charge_grouped_gemm(s, t, t, rows, e, in, out));
    return D9D_OK;
}
ENTRY(grouped_gemm_wgrad, d9d_dtype t, d9d_dtype gt, void *dw, float beta, const void *x,
      const void *dy, const int32_t *offset, int64_t rows, int64_t e, int64_t in, int64_t out)
{
    return charge_grouped_gemm(s, t, gt, rows, e, in, out);
}

ENTRY(grouped_bias_wgrad, d9d_dtype t, d9d_dtype gt, void *db, float beta, const void *dy,
      const int32_t *offset, int64_t rows, int64_t e, int64_t n)
{
    return charge_memory(s, t, (double)rows * (double)n);
}

/* Charged as its parts. */
ENTRY(gemm_glu, const d9d_gemm_glu_dims *n, void *y, void *gate, void *up, const void *x,
      const void *w_gate, const void *w_up)
{
    return d9di_gemm_glu_parts(d9d_kernels_sim(), s, n, y, gate, up, x, w_gate, w_up);
}
ENTRY(gemm_glu_bwd, const d9d_gemm_glu_dims *n, void *dgate, void *dup, const void *dout,
      const void *w, const void *gate, const void *up)
{
    return d9di_gemm_glu_bwd_parts(d9d_kernels_sim(), s, n, dgate, dup, dout, w, gate, up);
}

/* --- quantised matrices -------------------------------------------------------------------- */

ENTRY(fp8_quantise, d9d_dtype t, const void *x, int64_t m, int64_t n, const d9d_fp8_operand *rows,
      const d9d_fp8_operand *cols)
{
    const double copies = (rows != NULL ? 1.0 : 0.0) + (cols != NULL ? 1.0 : 0.0);

    D9D_TRY(d9di_sim_fp8_quantise_scratch(s, m, n));
    return d9di_sim_charge(s, D9D_SIM_MEMORY, t, 0,
                           (double)m * (double)n * (2 * dtype_bytes(t) + copies));
}
ENTRY(fp8_gemm, const d9d_fp8_gemm_dims *g, const d9d_fp8_operand *a, const d9d_fp8_operand *b,
      void *c)
{
    const d9d_gemm shape = {
        .t = a->t, .ct = g->ct, .trans_b = true, .m = g->m, .n = g->n, .k = g->k, .beta = g->beta};

    D9D_TRY(d9di_sim_gemm_scratch(s, &shape));
    return charge_gemm(s, D9D_SIM_FP8_GEMM, a->t, g->ct, (double)g->m, (double)g->n, (double)g->k);
}

ENTRY(fp8_amax, d9d_dtype t, const void *x, int64_t m, int64_t n, const d9d_fp8_maxima *to)
{
    return charge_memory(s, t, (double)m * (double)n);
}
ENTRY(fp8_encode, d9d_dtype t, const void *x, int64_t m, int64_t n, const d9d_fp8_maxima *by,
      d9d_dtype f, void *y)
{
    return d9di_sim_charge(s, D9D_SIM_MEMORY, t, 0, (double)m * (double)n * (dtype_bytes(t) + 1));
}
ENTRY(fp8_scales, d9d_dtype f, const int32_t *maxima, int64_t n, float *scale)
{
    return charge_memory(s, D9D_F32, 2.0 * (double)n);
}
ENTRY(fp8_transpose, const void *x, int64_t m, int64_t n, void *y)
{
    return charge_memory(s, D9D_U8, 2.0 * (double)m * (double)n);
}
ENTRY(fp8_grouped_gemm, const d9d_fp8_grouped_dims *g, const d9d_fp8_operand *a,
      const d9d_fp8_operand *b, void *c)
{
    const double r = (double)g->rows, w = (double)g->in * (double)g->out, e = (double)g->e;
    const bool is_wgrad = g->form == D9D_FP8_GROUPED_WGRAD;
    const double results =
        is_wgrad ? e * w : r * (double)(g->form == D9D_FP8_GROUPED_FWD ? g->out : g->in);
    const double read =
        is_wgrad ? r * (double)(g->in + g->out) : e * w + r * (double)(g->in + g->out) - results;

    return d9di_sim_charge(s, D9D_SIM_FP8_GROUPED_GEMM, a->t, 2 * r * w,
                           read + (g->beta != 0 ? 2 : 1) * results * dtype_bytes(g->ct));
}

/* A matrix that is read as it is stored. */
static d9d_status charge_quant_read(d9d_stream s, const d9d_quant_matrix *w)
{
    return d9di_sim_charge(s, D9D_SIM_MEMORY, D9D_BF16, 0,
                           (double)w->rows * (double)d9d_quant_row_bytes(w->format, w->cols));
}
ENTRY(quant_dequantise, d9d_dtype t, void *y, const d9d_quant_matrix *w)
{
    D9D_TRY(charge_quant_read(s, w));
    return charge_memory(s, t, (double)w->rows * (double)w->cols);
}
/* As training does it: dequantised to a panel in scratch. */
ENTRY(quant_gemm, const d9d_gemm *g, const void *a, const d9d_quant_matrix *w, void *c)
{
    D9D_TRY(d9di_sim_quant_scratch(s, g, w));
    D9D_TRY(sim_quant_dequantise(s, g->t, NULL, w));
    return sim_gemm(s, g, a, NULL, c);
}
ENTRY(quant_gemm_multi, int n, const d9d_gemm *g, const void *a, const d9d_quant_matrix *w,
      void *const *c)
{
    return d9di_quant_gemm_each(d9d_kernels_sim(), s, n, g, a, w, c);
}
ENTRY(quant_gemm_glu, const d9d_gemm_glu_dims *n, void *y, void *gate, void *up, const void *x,
      const d9d_quant_matrix *w)
{
    return d9di_quant_glu_parts(d9d_kernels_sim(), s, n, y, gate, up, x, w);
}

/* --- norm, position, attention -------------------------------------------------------------- */

ENTRY(rms_norm, d9d_dtype t, void *y, float *inv, const void *x, const void *w, int64_t m,
      int64_t n, float eps, bool zero_centred)
{
    return charge_memory(s, t, 2.0 * (double)m * (double)n);
}
ENTRY(rms_norm_bwd, d9d_dtype t, void *dx, const void *plus, d9d_dtype gt, void *dw, float beta,
      const void *dy, const void *x, const void *w, const float *inv, int64_t m, int64_t n,
      bool zero_centred)
{
    return charge_memory(s, t, (plus != NULL ? 4.0 : 3.0) * (double)m * (double)n);
}
ENTRY(layer_norm, d9d_dtype t, void *y, float *mean, float *inv, const void *x, const void *w,
      const void *b, int64_t m, int64_t n, float eps)
{
    return charge_memory(s, t, 2.0 * (double)m * (double)n);
}
ENTRY(layer_norm_bwd, d9d_dtype t, void *dx, const void *plus, const d9d_layer_norm_grads *of,
      const void *dy, const void *x, const void *w, const float *mean, const float *inv, int64_t m,
      int64_t n)
{
    return charge_memory(s, t, (plus != NULL ? 4.0 : 3.0) * (double)m * (double)n);
}
ENTRY(rms_norm_dot, const d9d_rms_norm_parallel_dims *n, float *dot, const void *x, const void *y,
      const void *w)
{
    return charge_memory(s, n->t, (x != y ? 2.0 : 1.0) * (double)n->m * (double)n->n);
}
ENTRY(rms_norm_parallel, const d9d_rms_norm_parallel_dims *n, void *y, float *inv, const float *sum,
      const void *x, const void *w)
{
    return charge_memory(s, n->t, 2.0 * (double)n->m * (double)n->n);
}
ENTRY(rms_norm_parallel_bwd, const d9d_rms_norm_parallel_dims *n, void *dx, d9d_dtype gt, void *dw,
      float beta, const void *dy, const void *x, const void *w, const float *inv, const float *dot)
{
    const double arrays = (dx != NULL ? 3.0 : 0.0) + (dw != NULL ? 2.0 : 0.0);

    return charge_memory(s, n->t, arrays * (double)n->m * (double)n->n);
}
ENTRY(position_scale, d9d_dtype t, void *y, const void *x, const int32_t *positions, int64_t m,
      int64_t n, float beta, int64_t period)
{
    return charge_memory(s, t, 2.0 * (double)m * (double)n);
}
ENTRY(rope, d9d_dtype t, void *y, const void *x, const int32_t *positions, const float *inv_freq,
      int64_t m, int64_t heads, int64_t d, int64_t r, bool interleaved, float mscale, float sign)
{
    return charge_memory(s, t, 2.0 * (double)(m * heads) * (double)d);
}
ENTRY(norm_rope, const d9d_qk_norm_rope_dims *n, void *y, float *inv, const void *x, const void *w)
{
    return charge_memory(s, n->t, 2.0 * (double)(n->m * n->heads) * (double)n->d);
}
ENTRY(norm_rope_bwd, const d9d_qk_norm_rope_dims *n, void *dx, d9d_dtype gt, void *dw, float beta,
      const void *dy, const void *x, const void *w, const float *inv)
{
    return charge_memory(s, n->t, 3.0 * (double)(n->m * n->heads) * (double)n->d);
}

/* Sum over i in [0, n) of a + i, each clipped to [0, most]. */
static double clipped_sum(double a, double n, double most)
{
    const double ends[] = {a, a + n}; /* sums over all integers below each */
    double sum[2];

    if (most <= 0)
        return 0;
    for (int i = 0; i < 2; i++) {
        const double x = ends[i] - 1, t = x < most ? x : most;

        sum[i] = x <= 0 ? 0 : t * (t + 1) / 2 + (x - t) * most;
    }
    return sum[1] - sum[0];
}

/* Pairs of a segment's queries and those of its first `keys` keys that they see.  All queries see
 * the first `prefix`; without a mask these are all. */
static double visible_pairs_before(const d9d_attention_dims *n, double nq, double nk, double prefix,
                                   double keys)
{
    const double diagonal = nk - nq, most = keys < prefix ? keys : prefix;
    const double w = n->window > 0 ? (double)n->window : nk + nq + prefix;
    const double hidden = clipped_sum(diagonal + 1 - w, nq, keys);

    return clipped_sum(diagonal + w, nq, most) +
           clipped_sum(diagonal + 1 - prefix, nq, keys - prefix) - hidden;
}

/* Of those keys that the arrays have; the segment begins with key `at` of its row. */
static double visible_pairs_segment(const d9d_attention_dims *n, double nq, double nk,
                                    double prefix, double at)
{
    const double open = n->causal ? prefix : nk, all = nk > open ? nk : open;
    const double first = (double)n->part.first - at, end = first + (double)n->part.n;

    if (n->part.n == 0)
        return visible_pairs_before(n, nq, nk, open, all);
    return visible_pairs_before(n, nq, nk, open, end < all ? end : all) -
           visible_pairs_before(n, nq, nk, open, first < all ? first : all);
}

/* Pairs of a query and a key that it sees. */
static double visible_pairs(const d9d_attention_dims *n)
{
    const bool prefixes = n->prefix != NULL && d9d_sim_is_real(n->prefix);
    double sum = 0;

    if (n->segments == 0 && n->chunks > 0) {
        for (int64_t i = 0; i < n->chunks; i++)
            sum +=
                visible_pairs_segment(n, (double)(n->s / n->chunks), (double)n->chunk_end[i], 0, 0);
        return (double)n->b * sum;
    }
    if (n->segments == 0 || !d9d_sim_is_real(n->segment))
        return (double)n->b * visible_pairs_segment(n, (double)n->s, (double)n->z, 0, 0);
    for (int64_t i = 0; i < n->segments; i++)
        sum += visible_pairs_segment(n, n->segment[i].nq, n->segment[i].nk,
                                     prefixes ? (double)n->prefix[i] : 0,
                                     (double)(n->segment[i].k % n->z));
    return sum;
}

/* GEMMs of `depth` features in all over the visible pairs. */
static d9d_status charge_attention(d9d_stream s, const d9d_attention_dims *n, d9d_sim_kind kind,
                                   int64_t depth)
{
    const double heads = (double)(n->a * depth);
    const double keys = (double)d9d_attention_array_keys(n) * (double)n->kv;
    const double key_bytes =
        n->k_scale != NULL ? (double)depth + 2 * sizeof(float) : (double)depth * dtype_bytes(n->t);
    const double bytes =
        ((double)n->s * heads * dtype_bytes(n->t) + keys * key_bytes) * (double)n->b;
    const bool fast = d9di_sim_attention_on_tensor_cores(s, n, kind == D9D_SIM_ATTENTION_BWD);

    const bool special = n->softcap > 0.0f || n->dropout.p > 0.0f || n->prefix != NULL;
    const bool builtin = !fast && (n->s != n->z || special);

    D9D_TRY(d9di_sim_charge(s, builtin ? D9D_SIM_ATTENTION_BUILTIN : kind, n->t,
                            2 * heads * visible_pairs(n), bytes));
    if (n->part.n > 0 && s != NULL)
        d9d_sim_wait_until(
            s, d9d_sim_now(s) +
                   d9d_sim_get_chip(d9d_sim_of_stream(s))->part_s[kind == D9D_SIM_ATTENTION_BWD]);
    return D9D_OK;
}

ENTRY(attention, const d9d_attention_dims *n, void *o, float *lse, const void *q, const void *k,
      const void *v)
{
    const d9d_attention_dims x = d9d_attention_dims_resolve(n);

    D9D_TRY(d9di_sim_attention_scratch(s, &x, false));
    return charge_attention(s, &x, D9D_SIM_ATTENTION, x.d + x.dv);
}
ENTRY(attention_bwd, const d9d_attention_dims *n, void *dq, void *dk, void *dv, const void *dout,
      const void *q, const void *k, const void *v, const void *o, const float *lse)
{
    const d9d_attention_dims x = d9d_attention_dims_resolve(n);

    D9D_TRY(d9di_sim_attention_scratch(s, &x, true));
    return charge_attention(s, &x, D9D_SIM_ATTENTION_BWD, 3 * x.d + 2 * x.dv);
}
ENTRY(attention_sink, const d9d_attention_dims *n, void *o, float *lse, const void *sink)
{
    const int64_t dv = d9d_attention_dims_resolve(n).dv;

    return charge_memory(s, n->t, 2.0 * (double)(n->b * n->s) * (double)(n->a * dv));
}
ENTRY(attention_sink_wgrad, const d9d_attention_dims *n, d9d_dtype gt, void *dsink, float beta,
      const void *dout, const void *o, const float *lse, const void *sink)
{
    const int64_t dv = d9d_attention_dims_resolve(n).dv;

    return charge_memory(s, n->t, 2.0 * (double)(n->b * n->s) * (double)(n->a * dv));
}
ENTRY(attention_merge, const d9d_attention_dims *n, bool first, float *acc, float *acc_lse,
      const void *o, const float *lse)
{
    const int64_t dv = d9d_attention_dims_resolve(n).dv;

    return d9di_sim_charge(s, D9D_SIM_MEMORY, n->t, 0,
                           (double)(n->b * n->s) * (double)(n->a * dv) *
                               (dtype_bytes(n->t) + (first ? 4 : 8)));
}
ENTRY(cp_zigzag, d9d_dtype t, void *y, const void *x, int64_t n, int64_t b, int64_t p, int64_t w,
      bool in_order)
{
    return charge_memory(s, t, 4.0 * (double)(n * b) * (double)(p * w));
}
ENTRY(kv_append_fp8, d9d_dtype t, int n, const d9d_attention_append_fp8 *list, const int32_t *at,
      int64_t m, int64_t kv, int64_t d)
{
    return d9di_sim_charge(s, D9D_SIM_MEMORY, t, 0,
                           (double)(n * m * kv) *
                               ((double)d * (dtype_bytes(t) + 1) + sizeof(float)));
}
ENTRY(dropout, d9d_dtype t, void *y, const void *x, float p, float factor, d9d_rng r,
      const int64_t *token, int64_t m, int64_t n, int64_t first, int64_t width)
{
    return charge_memory(s, t, 2.0 * (double)m * (double)n);
}
ENTRY(copy_strided, const d9d_copy_strided_dims *n, void *y, const void *x)
{
    return charge_memory(s, n->t, 2.0 * (double)(n->m * n->heads) * (double)n->n);
}
ENTRY(copy_strided_bwd, const d9d_copy_strided_dims *n, void *x, const void *y)
{
    return charge_memory(s, n->t, (double)(n->m * (n->heads + 1)) * (double)n->n);
}
ENTRY(scatter_rows, d9d_dtype t, void *y, int64_t ld, int64_t first, const int32_t *at,
      const void *x, int64_t m, int64_t n)
{
    return charge_memory(s, t, 2.0 * (double)m * (double)n);
}

/* --- gated delta rule ---------------------------------------------------------------------- */

ENTRY(causal_conv1d, const d9d_causal_conv1d_dims *n, void *y, const void *x, const void *w)
{
    return charge_memory(s, n->t, 2.0 * (double)(n->docs.b * n->docs.s) * (double)n->n);
}
ENTRY(causal_conv1d_bwd, const d9d_causal_conv1d_dims *n, void *dx, d9d_dtype gt, void *dw,
      float beta, const void *dy, const void *x, const void *w)
{
    return charge_memory(s, n->t, 3.0 * (double)(n->docs.b * n->docs.s) * (double)n->n);
}
ENTRY(gdn_gate, d9d_dtype t, float *g, const void *x, const void *rate, const void *bias, int64_t m,
      int64_t n)
{
    return charge_memory(s, D9D_F32, 2.0 * (double)m * (double)n);
}
ENTRY(gdn_gate_dgrad, d9d_dtype t, void *dx, const float *dg, const void *x, const void *rate,
      const void *bias, int64_t m, int64_t n)
{
    return charge_memory(s, D9D_F32, 3.0 * (double)m * (double)n);
}
ENTRY(gdn_gate_wgrad, d9d_dtype t, d9d_dtype gt, void *dw, float beta, bool of_bias,
      const float *dg, const void *x, const void *rate, const void *bias, int64_t m, int64_t n)
{
    return charge_memory(s, D9D_F32, 2.0 * (double)m * (double)n);
}

/* Per token and head: `inner` products with the tokens of its chunk, `outer` with the state. What
 * is passed between chunks is float32. */
static d9d_status charge_gated_delta(d9d_stream s, const d9d_gated_delta_dims *n, double inner,
                                     double outer, double passes)
{
    const double n_gates = (double)(n->docs.b * n->docs.s) * (double)n->a, d = (double)n->d,
                 f = (double)n->f;

    D9D_TRY(d9di_sim_gated_delta_scratch(s, n, passes > 2));
    return d9di_sim_charge(s, D9D_SIM_ATTENTION_BUILTIN, n->t,
                           n_gates * (inner * D9D_GATED_DELTA_CHUNK * (d + f) + outer * 2 * d * f),
                           n_gates * passes * ((d + f) * 4 + d * f * 4 / D9D_GATED_DELTA_CHUNK));
}
ENTRY(gated_delta, const d9d_gated_delta_dims *n, void *o, float *states, const void *q,
      const void *k, const void *v, const float *g, const void *b)
{
    return charge_gated_delta(s, n, 3, 3, 2);
}
ENTRY(gated_delta_bwd, const d9d_gated_delta_dims *n, void *dq, void *dk, void *dv, float *dg,
      void *db, const void *dout, const void *q, const void *k, const void *v, const float *g,
      const void *b, const float *states)
{
    return charge_gated_delta(s, n, 9, 7, 5);
}
ENTRY(causal_conv1d_update, const d9d_causal_conv1d_dims *n, int count,
      const d9d_causal_conv1d_array *of)
{
    d9d_causal_conv1d_dims all = *n;

    all.n = 0;
    for (int i = 0; i < count; i++)
        all.n += of[i].n;
    return sim_causal_conv1d(s, &all, NULL, NULL, NULL);
}
ENTRY(gated_delta_step, const d9d_gated_delta_dims *n, const d9d_state_slots *past, void *o,
      const void *q, const void *k, const void *v, const float *g, const void *b)
{
    return sim_gated_delta(s, n, o, NULL, q, k, v, g, b);
}
ENTRY(gemm_per_head, const d9d_gemm_per_head_dims *n, void *y, const void *x, const void *w)
{
    return charge_gemm(s, D9D_SIM_GEMM, n->t, n->t, (double)n->m, (double)(n->heads * n->out),
                       (double)n->in);
}
ENTRY(rms_norm_gated, d9d_dtype t, void *y, float *inv, const void *x, const void *z, const void *w,
      int64_t m, int64_t n, float eps)
{
    return charge_memory(s, t, 3.0 * (double)m * (double)n);
}
ENTRY(rms_norm_gated_bwd, d9d_dtype t, void *dx, void *dz, d9d_dtype gt, void *dw, float beta,
      const void *dy, const void *x, const void *z, const void *w, const float *inv, int64_t m,
      int64_t n)
{
    return charge_memory(s, t, 5.0 * (double)m * (double)n);
}

/* --- embedding and loss ----------------------------------------------------------------------- */

ENTRY(embedding, d9d_dtype t, void *y, const int32_t *ids, const void *table, int64_t rows,
      int64_t first, int64_t v, int64_t h, bool clear)
{
    return charge_memory(s, t, 2.0 * (double)rows * (double)h);
}
ENTRY(embedding_wgrad, d9d_dtype t, d9d_dtype gt, void *dtable, float beta, const int32_t *ids,
      const void *dy, int64_t rows, int64_t first, int64_t v, int64_t h)
{
    return d9di_sim_charge(s, D9D_SIM_MEMORY, t, 0,
                           (double)h *
                               ((double)rows * dtype_bytes(t) + (double)v * dtype_bytes(gt)));
}

/* `products` GEMMs of the hidden rows and the vocabulary. */
static d9d_status charge_cross_entropy(d9d_stream s, const d9d_linear_cross_entropy_dims *n,
                                       double products)
{
    const double rows = (double)n->rows, h = (double)n->h;
    double v = 0;

    for (int i = 0; i < n->n_split; i++)
        v += (double)n->v[i];
    return d9di_sim_charge(s, D9D_SIM_LINEAR_CROSS_ENTROPY, n->t, products * 2 * rows * h * v,
                           products * (rows * h + h * v) * dtype_bytes(n->t));
}

ENTRY(linear_cross_entropy, const d9d_linear_cross_entropy_dims *n, float *loss, float *lse,
      void *token_grad, const void *hidden, const void *const *w, const int32_t *targets)
{
    D9D_TRY(d9di_sim_cross_entropy_scratch(
        s, n, token_grad != NULL ? D9DI_SIM_CROSS_ENTROPY_FWD_DGRAD : D9DI_SIM_CROSS_ENTROPY_FWD));
    return charge_cross_entropy(s, n, token_grad != NULL ? 2 : 1);
}
ENTRY(linear_cross_entropy_combine, const d9d_linear_cross_entropy_dims *d, float *loss, float *lse,
      void *token_grad, const float *parts, int64_t n, int64_t rank, const void *const *w,
      const int32_t *targets)
{
    return charge_memory(s, d->t, token_grad != NULL ? 2.0 * (double)d->rows * (double)d->h : 0);
}
ENTRY(linear_cross_entropy_dgrad, d9d_dtype t, void *dhidden, const float *dloss,
      const void *token_grad, int64_t rows, int64_t h)
{
    return charge_memory(s, t, 2.0 * (double)rows * (double)h);
}
ENTRY(linear_cross_entropy_wgrad, const d9d_linear_cross_entropy_dims *n, d9d_dtype gt,
      void *const *dw, const float *beta, const float *dloss, const float *lse, const void *hidden,
      const void *const *w, const int32_t *targets)
{
    D9D_TRY(d9di_sim_cross_entropy_scratch(s, n, D9DI_SIM_CROSS_ENTROPY_WGRAD));
    return charge_cross_entropy(s, n, 2);
}
/* The all-gather of vocabulary-parallel ranks. */
static d9d_status gather_rank_parts(const d9d_linear_cross_entropy_dims *n, float *any)
{
    const int64_t tokens = n->ranks != NULL ? d9di_sim_cross_entropy_tokens(n) : 0;

    if (tokens == 0)
        return D9D_OK;
    D9D_TRY(n->ranks->all_gather(n->ranks->arg, any, n->rows));
    for (int64_t i = 0; i < n->rows; i += tokens)
        D9D_TRY(n->ranks->all_gather(n->ranks->arg, any,
                                     2 * (n->rows - i < tokens ? n->rows - i : tokens)));
    return D9D_OK;
}
ENTRY(linear_cross_entropy_fwd_bwd, const d9d_linear_cross_entropy_dims *n, d9d_dtype gt,
      float *loss, void *token_grad, void *const *dw, const float *beta, const void *hidden,
      const void *const *w, const int32_t *targets)
{
    bool grads = false;

    for (int i = 0; i < n->n_split; i++)
        grads = grads || dw[i] != NULL;
    D9D_TRY(d9di_sim_cross_entropy_scratch(s, n, D9DI_SIM_CROSS_ENTROPY_FWD_BWD));
    D9D_TRY(gather_rank_parts(n, loss));
    return charge_cross_entropy(s, n, 1.0 + (token_grad != NULL) + grads);
}

/* --- mixture of experts -------------------------------------------------------------------- */

/* Scores, read or written `times` times. */
static d9d_status charge_scores(d9d_stream s, const d9d_router_dims *n, double times)
{
    return charge_memory(s, D9D_F32, times * (double)n->rows * (double)n->e);
}
ENTRY(router, const d9d_router_dims *n, float *p, float *prob, int32_t *expert, const void *logits,
      const float *bias)
{
    return charge_scores(s, n, 2);
}
ENTRY(router_bwd, const d9d_router_dims *n, void *dlogits, const float *dprob, const float *p,
      const float *prob, const int32_t *expert, const d9d_router_balance *b)
{
    return charge_scores(s, n, b != NULL && b->z != 0 ? 3 : 2);
}
ENTRY(expert_load, const d9d_router_dims *n, float *load, double *total, const int32_t *expert,
      const d9d_router_balance *b)
{
    return charge_memory(s, D9D_I32, (double)n->rows * (double)n->k);
}
ENTRY(router_losses, const d9d_router_dims *n, float *aux, float *z, const float *p,
      const d9d_router_balance *b)
{
    return charge_scores(s, n, b->z != 0 ? 2 : 1);
}
ENTRY(router_bias, float *bias, const double *load, const float *scale, float rate, int64_t first,
      int64_t n, int64_t e)
{
    return charge_memory(s, D9D_F64, (double)e);
}

/* Offsets by how unevenly experts are chosen; the number of choices of an array from expert_ranks
 * was noted, and that of a row from another rank. */
ENTRY(sort_by_expert, int32_t *offset, int32_t *row, int32_t *source, const int32_t *expert,
      int64_t rows, int64_t e, int64_t k)
{
    const d9di_sim_choices each = d9di_sim_received_choices(s, expert, e, k);
    const d9di_sim_choices c =
        d9di_sim_get_choices(s, expert, (d9di_sim_choices){(double)rows * each.n, each.most});
    const double most = c.most > 0 ? c.most : 1;

    for (int64_t i = 0; i <= e && d9d_sim_is_real(offset); i++)
        offset[i] = (int32_t)(fmin(c.n, c.n * most * (double)i / (double)e) + 0.5);
    return charge_memory(s, D9D_I32, 6.0 * (double)rows * (double)k);
}
ENTRY(permute, const d9d_moe_permute_dims *n, void *y, const void *x, const int32_t *row)
{
    return charge_memory(s, n->t, 2.0 * (double)n->n * (double)n->h);
}
ENTRY(permute_bwd, const d9d_moe_permute_dims *n, void *dx, const void *dy, const int32_t *row)
{
    return charge_memory(s, n->t, (double)(n->n + n->rows) * (double)n->h);
}
ENTRY(unpermute, const d9d_moe_permute_dims *n, void *y, const void *x, const float *prob,
      const int32_t *row, const void *plus)
{
    return charge_memory(s, n->t, (double)(n->n + (plus != NULL ? 2 : 1) * n->rows) * (double)n->h);
}
ENTRY(unpermute_bwd, const d9d_moe_permute_dims *n, void *dx, float *dprob, const void *dy,
      const void *x, const float *prob, const int32_t *row)
{
    return charge_memory(s, n->t, 3.0 * (double)n->n * (double)n->h);
}

ENTRY(route, const d9d_router_dims *n, float *p, float *prob, int32_t *expert,
      const d9d_expert_order *order, const void *logits, const float *bias)
{
    D9D_TRY(sim_router(s, n, p, prob, expert, logits, bias));
    return sim_sort_by_expert(s, order->offset, order->row, order->source, expert, n->rows, n->e,
                              n->k);
}
ENTRY(experts, const d9d_experts_args *a, void *y)
{
    return d9di_experts_parts(d9d_kernels_sim(), s, a, y);
}

/* A rank owns `per` of all experts. It has none of a token's k with the probability that k draws
 * without replacement are all from the others. */
static double probability_of_none(double all, double per, int64_t k)
{
    double none = 1;

    for (int64_t i = 0; i < k; i++)
        none *= all - per - (double)i > 0 ? (all - per - (double)i) / (all - (double)i) : 0;
    return none;
}

/* What the first of the ranks receives of each, in rows with as few choices as may be, where
 * experts are chosen unevenly. */
static double first_rank_rows(double rows, d9di_sim_choices each, double ranks)
{
    return fmin(rows, rows * each.n * fmin(1, each.most / ranks));
}

/* A token from another rank has a mean of choices: some have the number below it, some that above.
 */
ENTRY(expert_ranks, int32_t *rank, const int32_t *expert, int64_t rows, int64_t k, int64_t ranks,
      int64_t per)
{
    const double n = (double)ranks, all = (double)(ranks * per);
    const d9di_sim_choices each = d9di_sim_received_choices(s, expert, 0, k);
    const int64_t least = (int64_t)each.n;
    const double more = each.n - (double)least;
    const double none = (1 - more) * probability_of_none(all, (double)per, least) +
                        more * probability_of_none(all, (double)per, least + 1);
    d9di_sim_choices sent = {(double)rows * n * (1 - none), 0},
                     came = {each.n / (n * (1 - none)), 0};

    if (each.most > 0 && rows > 0) {
        const double first = first_rank_rows((double)rows, each, n);

        sent.n = fmax(sent.n, first);
        sent.most = first * n / sent.n;
        came.n = (double)rows * each.n * fmin(1, each.most / n) / first;
        came.most = fmax(1, each.most / n);
    }
    d9di_sim_set_choices(s, rank, sent);
    d9di_sim_note_sent(s, rank, per, k, came);
    return charge_memory(s, D9D_I32, (double)rows * (double)(k + ranks));
}
ENTRY(expert_local_ids, int32_t *local, const int32_t *source, const int32_t *expert, int64_t n,
      int64_t rows, int64_t k, int64_t ranks, int64_t per)
{
    return charge_memory(s, D9D_I32, 2.0 * (double)n * (double)k);
}
ENTRY(expert_numbers, int64_t *number, const int64_t *token, const int32_t *source,
      const int32_t *expert, int64_t n, int64_t rows, int64_t k, int64_t first, int64_t all)
{
    return charge_memory(s, D9D_I64, 3.0 * (double)n);
}

/* --- reductions and optimizers ------------------------------------------------------------- */

ENTRY(sum_squares, double *out, d9d_dtype t, const d9d_sum_squares_array *list, int64_t count)
{
    double n = 0;

    for (int64_t i = 0; i < count; i++)
        n += (double)list[i].n;
    return charge_memory(s, t, n);
}
ENTRY(sum_ordered, double *out, const double *x, int64_t n)
{
    return charge_memory(s, D9D_F64, (double)n);
}
ENTRY(sum, double *out, double beta, d9d_dtype t, const void *x, int64_t n)
{
    return charge_memory(s, t, (double)n);
}
ENTRY(find_nonfinite, int64_t *out, d9d_dtype t, const void *x, int64_t n)
{
    return charge_memory(s, t, (double)n);
}
ENTRY(checksum, uint64_t *out, const d9d_checksum_array *list, int64_t count)
{
    double bytes = 0;

    for (int64_t i = 0; i < count; i++)
        bytes += (double)list[i].bytes;
    return charge_memory(s, D9D_F32, bytes / 4);
}
ENTRY(grad_scale, float *scale, double *report, const double *loss, int64_t n, const double *weight,
      const double *squares, double max_norm)
{
    return charge_memory(s, D9D_F64, (double)n);
}
/* A weight, and its residual if any, read and written. */
static double weight_bytes(d9d_dtype t, const int16_t *residual)
{
    return 2 * (dtype_bytes(t) + (residual != NULL ? dtype_bytes(D9D_I16) : 0));
}

/* Bytes of an element's states, with the scales of 8 bits. */
static double state_bytes(int states, d9d_dtype st)
{
    return states *
           (dtype_bytes(st) + (st == D9D_I8 ? dtype_bytes(D9D_BF16) / D9D_STATE_BLOCK : 0));
}

/* Of these and of the residual, what lies in host memory. */
static double host_bytes(const d9d_optim_arrays *a, int states, d9d_dtype st)
{
    return (d9d_sim_is_host(a->m) ? state_bytes(states, st) : 0) +
           (d9d_sim_is_host(a->residual) ? dtype_bytes(D9D_I16) : 0);
}

/* Adam, Lion: weights, gradients and states are read, and all but the gradients written.  `host`
 * bytes of these cross the bus in either direction. */
static d9d_status charge_update(d9d_stream s, int states, d9d_dtype t, d9d_dtype gt, d9d_dtype st,
                                const int16_t *residual, double n, double host)
{
    D9D_TRY(d9di_sim_charge(
        s, D9D_SIM_MEMORY, t, 0,
        n * (weight_bytes(t, residual) + dtype_bytes(gt) + 2 * state_bytes(states, st)) -
            2 * host));
    return host > 0 && s != NULL
               ? d9d_sim_transfer(s, "optimizer", "states", D9D_SIM_LINK_HOST, host)
               : D9D_OK;
}

/* Of one call for a list: either all of them have residuals, or none. */
static d9d_status charge_list(d9d_stream s, int states, d9d_dtype t, d9d_dtype gt, d9d_dtype st,
                              const d9d_optim_arrays *list, int64_t count)
{
    double n = 0, host = 0;

    for (int64_t i = 0; i < count; i++) {
        n += (double)list[i].n;
        host += (double)list[i].n * host_bytes(&list[i], states, st);
    }
    return charge_update(s, states, t, gt, st, count > 0 ? list->residual : NULL, n, host);
}

static d9d_status charge_box(d9d_stream s, int states, d9d_dtype t, d9d_dtype gt, d9d_dtype st,
                             const d9d_optim_arrays *a, int ndim, const int64_t *box)
{
    double n = 1;

    for (int d = 0; d < ndim; d++)
        n *= (double)box[d];
    return charge_update(s, states, t, gt, st, a->residual, n, n * host_bytes(a, states, st));
}

ENTRY(adam, const d9d_adam_step *c, const float *scale, d9d_dtype t, d9d_dtype gt, d9d_dtype st,
      const d9d_optim_arrays *list, int64_t count)
{
    return charge_list(s, c->amsgrad ? 3 : 2, t, gt, st, list, count);
}
ENTRY(adam_stochastic, const d9d_adam_step *c, const float *scale, d9d_dtype t, d9d_dtype gt,
      d9d_dtype st, const d9d_optim_arrays *a, d9d_rng r, int ndim, const int64_t *box,
      const int64_t *start, const int64_t *whole)
{
    return charge_box(s, 2, t, gt, st, a, ndim, box);
}
ENTRY(lion, const d9d_lion_step *c, const float *scale, d9d_dtype t, d9d_dtype gt, d9d_dtype st,
      const d9d_optim_arrays *list, int64_t count)
{
    return charge_list(s, 1, t, gt, st, list, count);
}
ENTRY(lion_stochastic, const d9d_lion_step *c, const float *scale, d9d_dtype t, d9d_dtype gt,
      d9d_dtype st, const d9d_optim_arrays *a, d9d_rng r, int ndim, const int64_t *box,
      const int64_t *start, const int64_t *whole)
{
    return charge_box(s, 1, t, gt, st, a, ndim, box);
}
ENTRY(schedule_free, const d9d_schedule_free_step *c, const float *scale, d9d_dtype t, d9d_dtype gt,
      const d9d_optim_arrays *list, int64_t count)
{
    return charge_list(s, 2, t, gt, D9D_F32, list, count);
}
ENTRY(average, const d9d_average_step *c, const float *scale, d9d_dtype t, d9d_dtype st,
      const d9d_optim_arrays *list, int64_t count)
{
    return charge_list(s, 1, t, t, st, list, count);
}
ENTRY(average_stochastic, const d9d_average_step *c, const float *scale, d9d_dtype t, d9d_dtype st,
      const d9d_optim_arrays *a, d9d_rng r, int ndim, const int64_t *box, const int64_t *start,
      const int64_t *whole)
{
    return charge_box(s, 1, t, t, st, a, ndim, box);
}
ENTRY(muon_momentum, const d9d_muon_step *c, const float *scale, d9d_dtype ut, d9d_dtype gt,
      const d9d_optim_arrays *list, int64_t count)
{
    return charge_list(s, 1, ut, gt, D9D_F32, list, count);
}
ENTRY(muon_normalize, d9d_dtype t, void *x, const double *squares, int64_t count, int64_t n,
      float eps)
{
    return charge_memory(s, t, 2.0 * (double)count * (double)n);
}
ENTRY(muon, const d9d_muon_step *c, const float *scale, d9d_dtype t, d9d_dtype gt,
      const d9d_optim_arrays *list, int64_t count)
{
    return charge_list(s, 0, t, gt, D9D_F32, list, count);
}
static double box_numel(const d9d_adafactor_array *a)
{
    return (double)a->e * (double)a->r * (double)a->c;
}
ENTRY(adafactor_sums, const float *scale, d9d_dtype gt, const d9d_adafactor_array *a)
{
    return charge_memory(s, gt, (a->col != NULL ? 2 : 1) * box_numel(a));
}
ENTRY(adafactor_moments, const d9d_adafactor_step *c, const float *scale,
      const d9d_adafactor_array *a)
{
    const double rows = (double)(a->rows + 2 * a->r),
                 cols = a->col != NULL ? (double)(a->cols + 2 * a->c) : 0;

    return charge_memory(s, D9D_F32, (double)a->e * (rows + cols));
}
ENTRY(adafactor_squares, const d9d_adafactor_step *c, const float *scale, d9d_dtype t, d9d_dtype gt,
      const d9d_adafactor_array *a)
{
    return d9di_sim_charge(s, D9D_SIM_MEMORY, t, 0,
                           box_numel(a) * (weight_bytes(t, a->residual) / 2 + dtype_bytes(gt)));
}
ENTRY(adafactor, const d9d_adafactor_step *c, const float *scale, d9d_dtype t, d9d_dtype gt,
      const d9d_adafactor_array *a)
{
    return d9di_sim_charge(s, D9D_SIM_MEMORY, t, 0,
                           box_numel(a) * (weight_bytes(t, a->residual) + dtype_bytes(gt)));
}
ENTRY(sgd, const d9d_sgd_step *c, d9d_dtype t, void *p, int16_t *residual, d9d_dtype gt,
      const void *g, const float *scale, d9d_dtype st, void *momentum, int64_t n)
{
    return d9di_sim_charge(s, D9D_SIM_MEMORY, t, 0,
                           (double)n * (weight_bytes(t, residual) + dtype_bytes(gt) +
                                        (momentum != NULL ? 2 * dtype_bytes(st) : 0)));
}

ENTRY(gemm_multi, int n, const d9d_gemm *g, const void *a, const void *const *b, void *const *c)
{
    return d9di_gemm_each(d9d_kernels_sim(), s, n, g, a, b, c);
}
ENTRY(qk_norm_rope_append, const d9d_qk_norm_rope_dims *d, int n,
      const d9d_qk_norm_rope_heads *list)
{
    double features = 0;

    for (int i = 0; i < n; i++)
        features += (double)list[i].heads * (double)d->d;
    return charge_memory(s, d->t, 2.0 * (double)d->m * features);
}
ENTRY(latent_append, const d9d_latent_append_args *a)
{
    return charge_memory(s, a->t, 2.0 * (double)a->m * (double)(a->heads * a->r + a->c + a->r));
}
ENTRY(argmax, int32_t *at, float *value, const float *x, int64_t m, int64_t n)
{
    return charge_memory(s, D9D_F32, (double)m * (double)n);
}
ENTRY(repetition_penalty, const d9d_repetition_penalty_args *a)
{
    return charge_memory(s, D9D_F32, 2.0 * (double)a->m * (double)a->n + 3.0 * (double)a->tokens);
}
/* A row is read for its largest logit, for its sum and, three times each, for top_k and top_p. */
ENTRY(sample_tokens, const d9d_sample_tokens_args *a)
{
    const bool draws = a->temperature > 0;
    const int limits = draws ? (a->top_k > 0 && a->top_k < a->n) + (a->top_p < 1) : 0;
    const int reads = 1 + (draws || a->stats != NULL ? 1 : 0) + D9DI_SAMPLE_PASSES * limits;

    D9D_TRY(d9di_sim_sample_tokens_scratch(s, a->m, limits > 0));
    return charge_memory(s, D9D_F32, (double)reads * (double)a->m * (double)a->n);
}

#undef ENTRY
#define ENTRY(family, member, op) .member = sim_##op,
#define FAMILY(family, list)      static const d9d_##family##_kernels family##_kernels = {list(ENTRY)};
D9D_KERNEL_FAMILIES(FAMILY)
#undef FAMILY
#undef ENTRY

const d9d_kernels *d9d_kernels_sim(void)
{
#define FAMILY(family, list) .family = &family##_kernels,
    static const d9d_kernels table = {.name = "sim", D9D_KERNEL_FAMILIES(FAMILY)};
#undef FAMILY

    return &table;
}
