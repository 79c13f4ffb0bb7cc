/* attention_dispatch.c - chooses the attention kernel: split-KV decode for a few queries; the
 * Hopper backward; cuDNN if it is selected and supports the call, or a padded copy of it; else the
 * SIMT kernels, which alone have dropout and, beside decode, prefix masks.
 *
 * A part of the keys (ring attention) goes to the Hopper backward and to cuDNN as rows of its own,
 * if the chunks of queries see all of its keys, none, or those before their diagonals. */
#include "cuda/attention/attention_call.h"

/* Zeroes dK and dV of keys that no segment has, where there are more keys than queries, and of
 * those of a part that no query sees. */
static d9d_status dkv_clear(d9d_stream s, const d9di_attention_call *c)
{
    const int64_t heads = c->n.b * d9d_attention_array_keys(&c->n) * c->n.kv;

    if (c->dout == NULL || (c->n.s == c->n.z && c->n.part.n == 0))
        return D9D_OK;
    D9D_TRY(d9d_k_fill(s, c->n.t, c->dk, heads * c->n.d, 0.0f));
    return d9d_k_fill(s, c->n.t, c->dv, heads * c->n.dv, 0.0f);
}

/* What only the SIMT kernels have, or NULL. */
static const char *simt_reason(const d9d_attention_dims *n)
{
    if (n->dropout.p > 0.0f)
        return "they alone have dropout";
    if (n->prefix != NULL)
        return "they alone have prefix masks";
    if (n->part.n > 0)
        return n->segment != NULL
                   ? "they alone have ring attention over packed documents"
                   : "they alone have this window, softcap, head size or chunk of a ring";
    return NULL;
}

static d9d_status attention_simt(d9d_stream s, const d9di_attention_call *c)
{
    const char *reason = simt_reason(&c->n);

    if (reason != NULL && c->n.t == D9D_BF16)
        d9di_say_slow(s, D9DI_SLOW_ATTENTION, c->op, c->n.s, c->n.z, reason);
    return c->dout != NULL ? d9di_attention_bwd_simt(s, c) : d9di_attention_simt(s, c);
}

/* On tensor cores: *done is false if no such kernel supports the call. */
static d9d_status attention_tensor_cores(d9d_stream s, const d9di_attention_call *c, bool *done)
{
    *done = d9di_attention_bwd_sm90_supported(s, c);
    if (*done)
        return d9di_attention_bwd_sm90(s, c);
    if (s->opts.attention == D9D_CUDA_ATTENTION_SIMT)
        return D9D_OK;
    D9D_TRY(d9di_attention_cudnn(s, c, done));
    return *done ? D9D_OK : d9di_attention_padded(s, c, done);
}

static d9d_status attention_run(d9d_stream s, const d9di_attention_call *c);

/* Many queries of a cache in 8 bits: its keys and values as type t in scratch. */
static d9d_status attention_dequantised(d9d_stream s, const d9di_attention_call *c)
{
    const int64_t rows = c->n.b * c->n.z * c->n.kv, size = (int64_t)d9d_dtype_size(c->n.t);
    d9di_attention_call plain = *c;
    d9di_cuda_arena r = {NULL, 0};
    d9d_status st;

    (void)d9di_cuda_arena_alloc(&r, rows * c->n.d * size);
    (void)d9di_cuda_arena_alloc(&r, rows * c->n.dv * size);

    const int64_t bytes = r.used;

    D9D_TRY(d9di_cuda_scratch_alloc(s, bytes, (void **)&r.base));
    r.used = 0;
    void *k = d9di_cuda_arena_alloc(&r, rows * c->n.d * size);
    void *v = d9di_cuda_arena_alloc(&r, rows * c->n.dv * size);

    plain.k = k;
    plain.v = v;
    plain.n.k_scale = plain.n.v_scale = NULL;
    D9D_TRY_OR(st, d9di_attention_dequantise(s, c->op, c->n.t, k, c->k, c->n.k_scale, rows, c->n.d),
               out);
    D9D_TRY_OR(
        st, d9di_attention_dequantise(s, c->op, c->n.t, v, c->v, c->n.v_scale, rows, c->n.dv), out);
    st = attention_run(s, &plain);
out:
    d9di_cuda_scratch_free(s, r.base, bytes);
    return st;
}

/* Parts of the keys as rows of their own, where they can be such. */
static d9d_status attention_run(d9d_stream s, const d9di_attention_call *c)
{
    d9di_attention_call rows = *c;
    bool done = false;

    D9D_TRY(d9di_args_check_float(c->op, c->n.t));
    D9D_TRY(d9di_args_check_attention_cache(c->op, &c->n));
    D9D_TRY(dkv_clear(s, c));
    if (c->n.b * c->n.s * c->n.a * c->n.d == 0)
        return D9D_OK;
    if (d9di_attention_decode_supported(c))
        return d9di_attention_decode(s, c);
    if (c->n.k_scale != NULL)
        return attention_dequantised(s, c);
    rows.part = c->n.part.n > 0;
    if (c->n.dropout.p == 0.0f && (!rows.part || d9di_attention_part_as_rows(&c->n, &rows.n)))
        D9D_TRY(attention_tensor_cores(s, &rows, &done));
    return done ? D9D_OK : attention_simt(s, c);
}

d9d_status d9d_k_attention(d9d_stream s, const d9d_attention_dims *n, void *o, float *lse,
                           const void *q, const void *k, const void *v)
{
    const d9di_attention_call c = {.op = "attention",
                                   .n = d9d_attention_dims_resolve(n),
                                   .q = q,
                                   .k = k,
                                   .v = v,
                                   .o = o,
                                   .lse = lse};

    return attention_run(s, &c);
}

d9d_status d9d_k_attention_bwd(d9d_stream s, const d9d_attention_dims *n, void *dq, void *dk,
                               void *dv, const void *dout, const void *q, const void *k,
                               const void *v, const void *o, const float *lse)
{
    const d9di_attention_call c = {.op = "attention_bwd",
                                   .n = d9d_attention_dims_resolve(n),
                                   .q = q,
                                   .k = k,
                                   .v = v,
                                   .dout = dout,
                                   .o = (void *)(uintptr_t)o,
                                   .dq = dq,
                                   .dk = dk,
                                   .dv = dv,
                                   .lse = (float *)(uintptr_t)lse};

    return attention_run(s, &c);
}
