/* attention_block.c - grouped-query attention, rotary frequencies.  See d9d/nn/block.h. */
#include <math.h>
#include <stdlib.h>

#include "nn/block_init.h"

d9d_status d9d_block_rope_prepare(d9d_block_rope *b, d9d_device *dev)
{
    int64_t half = b->features / 2;
    float *host;
    d9d_status st;

    if (b->inv_freq.storage != NULL)
        return D9D_OK;
    host = calloc((size_t)half + 1, sizeof(*host));
    if (host == NULL)
        return D9D_FAIL(D9D_ENOMEM, "rotary embedding: %lld frequencies", (long long)half);
    for (int64_t i = 0; i < half; i++)
        host[i] = (float)pow(b->base, -2.0 * (double)i / (double)b->features);
    st = d9d_tensor_from_host(dev, D9D_F32, D9D_SHAPE(half), host, &b->inv_freq);
    free(host);
    return st;
}

void d9d_block_rope_release(d9d_block_rope *b)
{
    d9d_tensor_release(&b->inv_freq);
}

d9d_status d9d_block_attention_init(d9d_block_attention *b, const d9d_block_how *how,
                                    int64_t hidden, int64_t heads, int64_t kv_heads,
                                    int64_t head_dim, float norm_eps, const d9d_block_rope *rope)
{
    const struct d9di_child children[] = {
        {"q_proj", &b->q_proj.module}, {"k_proj", &b->k_proj.module}, {"v_proj", &b->v_proj.module},
        {"o_proj", &b->o_proj.module}, {"q_norm", &b->q_norm.module}, {"k_norm", &b->k_norm.module},
    };

    b->heads = heads;
    b->kv_heads = kv_heads;
    b->head_dim = head_dim;
    b->rope = rope;
    b->cut = how->cut;
    d9d_module_init(&b->module);
    D9D_TRY(d9d_block_linear_init(&b->q_proj, how, hidden, heads * head_dim));
    D9D_TRY(d9d_block_linear_init(&b->k_proj, how, hidden, kv_heads * head_dim));
    D9D_TRY(d9d_block_linear_init(&b->v_proj, how, hidden, kv_heads * head_dim));
    D9D_TRY(d9d_block_linear_init(&b->o_proj, how, heads * head_dim, hidden));
    D9D_TRY(d9d_block_norm_init(&b->q_norm, how, head_dim, norm_eps, false));
    D9D_TRY(d9d_block_norm_init(&b->k_norm, how, head_dim, norm_eps, false));
    return d9di_block_children(&b->module, children, 6);
}

/* x [B, S, H] to heads [B, S, n, D]: project; where `norm` is given, norm and turn. */
static d9d_status heads_of(d9d_block_attention *b, d9d_tape *t, d9d_var *x, int64_t n,
                           d9d_block_linear *proj, d9d_block_norm *norm,
                           const d9d_tensor *positions, d9d_var **y)
{
    const d9d_shape *s = &d9d_var_tensor(x)->shape;
    d9d_shape shape = D9D_SHAPE(s->dim[0], s->dim[1], n, b->head_dim);
    d9d_var *flat, *h;

    D9D_TRY(d9d_block_linear_forward(proj, t, x, &flat));
    D9D_TRY(d9d_op_reshape(t, flat, shape, &h));
    if (norm != NULL) {
        D9D_TRY(d9d_block_norm_forward(norm, t, h, &h));
        D9D_TRY(d9d_op_rope(t, h, positions, &b->rope->inv_freq, b->rope->style, 1.0f, &h));
    }
    *y = h;
    return D9D_OK;
}

d9d_status d9d_block_attention_forward(d9d_block_attention *b, d9d_tape *t, d9d_var *x,
                                       const d9d_tensor *positions, const d9d_tensor *segments,
                                       d9d_var **y)
{
    const d9d_shape *s = &d9d_var_tensor(x)->shape;
    d9d_shape merged = D9D_SHAPE(s->dim[0], s->dim[1], b->heads * b->head_dim);
    d9d_attention how = {
        .scale = 1.0f / sqrtf((float)b->head_dim), .causal = true, .segments = segments};
    d9d_comm *cp = d9d_cut_cp(b->cut);
    d9d_var *q, *k, *v, *o;

    if (segments == NULL && d9d_comm_size(cp) > 1)
        return D9D_FAIL(D9D_EINVAL, "attention: rows lie on %d ranks and have no segments",
                        d9d_comm_size(cp));
    D9D_TRY(heads_of(b, t, x, b->heads, &b->q_proj, &b->q_norm, positions, &q));
    D9D_TRY(heads_of(b, t, x, b->kv_heads, &b->k_proj, &b->k_norm, positions, &k));
    D9D_TRY(heads_of(b, t, x, b->kv_heads, &b->v_proj, NULL, NULL, &v));
    D9D_TRY(d9d_op_gather_pieces(t, k, cp, b->k_proj.weight.name, &k));
    D9D_TRY(d9d_op_gather_pieces(t, v, cp, b->v_proj.weight.name, &v));
    D9D_TRY(d9d_op_attention(t, q, k, v, &how, &o));
    D9D_TRY(d9d_op_reshape(t, o, merged, &o));
    return d9d_block_linear_forward(&b->o_proj, t, o, y);
}
