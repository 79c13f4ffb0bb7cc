/* attention_padded.c - attention with values narrower or wider than keys, by a cuDNN kernel of one
 * head size: on copies of the narrower arrays, padded with zeros. Zeros of queries and keys add
 * nothing to scores; outputs and gradients lose the features that were added. */
#include <stddef.h>
#include <string.h>

#include "cuda/attention/attention_call.h"

typedef enum array_use { UNUSED, READ, WRITTEN } array_use;

/* Arrays of [queries or keys, D or DV]. */
static const struct {
    size_t offset; /* in d9di_attention_call */
    bool of_keys, of_values;
    array_use use[2]; /* in forward, in backward */
} arrays[] = {
    {offsetof(d9di_attention_call, q), false, false, {READ, READ}},
    {offsetof(d9di_attention_call, k), true, false, {READ, READ}},
    {offsetof(d9di_attention_call, v), true, true, {READ, READ}},
    {offsetof(d9di_attention_call, o), false, true, {WRITTEN, READ}},
    {offsetof(d9di_attention_call, dout), false, true, {UNUSED, READ}},
    {offsetof(d9di_attention_call, dq), false, false, {UNUSED, WRITTEN}},
    {offsetof(d9di_attention_call, dk), true, false, {UNUSED, WRITTEN}},
    {offsetof(d9di_attention_call, dv), true, true, {UNUSED, WRITTEN}},
};
enum { ARRAYS = sizeof(arrays) / sizeof(*arrays) };

static void *array_of(const d9di_attention_call *c, int i)
{
    void *p;

    memcpy(&p, (const char *)c + arrays[i].offset, sizeof(p));
    return p;
}

/* Features of a head of array i. */
static int64_t array_features(const d9d_attention_dims *n, int i)
{
    return arrays[i].of_values ? n->dv : n->d;
}

/* Heads of all tokens of array i. */
static int64_t array_heads(const d9d_attention_dims *n, int i)
{
    return arrays[i].of_keys ? n->b * n->z * n->kv : n->b * n->s * n->a;
}

/* The use of array i, if it is one of the narrower ones. */
static array_use use_of_narrow(const d9di_attention_call *c, const d9di_attention_call *padded,
                               int i)
{
    return array_features(&c->n, i) < padded->n.d ? arrays[i].use[c->dout != NULL] : UNUSED;
}

/* Copies the features that both have. */
static d9d_status copy_features(d9d_stream s, void *y, int64_t y_features, const void *x,
                                int64_t x_features, int64_t heads)
{
    const d9d_copy_strided_dims n = {.t = D9D_BF16,
                                     .m = heads,
                                     .heads = 1,
                                     .n = d9di_i64_min(x_features, y_features),
                                     .x_cols = x_features,
                                     .y_cols = y_features};

    return d9d_k_copy_strided(s, &n, y, x);
}

/* Places the padded copies. */
static void copies_alloc(const d9di_attention_call *c, d9di_attention_call *padded,
                         d9di_cuda_arena *r)
{
    for (int i = 0; i < ARRAYS; i++) {
        void *p;

        if (use_of_narrow(c, padded, i) == UNUSED)
            continue;
        p = d9di_cuda_arena_alloc(r, array_heads(&c->n, i) * padded->n.d * 2);
        memcpy((char *)padded + arrays[i].offset, &p, sizeof(p));
    }
}

/* Copies what the kernel reads; clears what it writes, because it skips keys without a segment. */
static d9d_status copies_fill(d9d_stream s, const d9di_attention_call *c,
                              const d9di_attention_call *padded)
{
    for (int i = 0; i < ARRAYS; i++) {
        const int64_t heads = array_heads(&c->n, i);
        const array_use use = use_of_narrow(c, padded, i);

        if (use != UNUSED)
            D9D_TRY(d9d_k_fill(s, D9D_BF16, array_of(padded, i), heads * padded->n.d, 0.0f));
        if (use == READ)
            D9D_TRY(copy_features(s, array_of(padded, i), padded->n.d, array_of(c, i),
                                  array_features(&c->n, i), heads));
    }
    return D9D_OK;
}

static d9d_status run_padded(d9d_stream s, const d9di_attention_call *c,
                             const d9di_attention_call *padded, bool *done)
{
    D9D_TRY(copies_fill(s, c, padded));
    D9D_TRY(d9di_attention_cudnn(s, padded, done));
    for (int i = 0; i < ARRAYS && *done; i++)
        if (use_of_narrow(c, padded, i) == WRITTEN)
            D9D_TRY(copy_features(s, array_of(c, i), array_features(&c->n, i), array_of(padded, i),
                                  padded->n.d, array_heads(&c->n, i)));
    return D9D_OK;
}

d9d_status d9di_attention_padded(d9d_stream s, const d9di_attention_call *c, bool *done)
{
    d9di_attention_call padded = *c;
    d9di_cuda_arena r = {0};
    void *scratch;
    d9d_status st;

    *done = false;
    padded.n.d = padded.n.dv = d9di_i64_max(c->n.d, c->n.dv);
    if (c->n.d == c->n.dv || !d9di_attention_cudnn_supported(&padded))
        return D9D_OK;
    copies_alloc(c, &padded, &r);
    D9D_TRY(d9di_cuda_scratch_alloc(s, r.used, &scratch));
    copies_alloc(c, &padded, &(d9di_cuda_arena){.base = scratch});
    st = run_padded(s, c, &padded, done);
    d9di_cuda_scratch_free(s, scratch, r.used);
    return st;
}
