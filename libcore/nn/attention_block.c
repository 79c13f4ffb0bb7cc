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
    d9d_rope_frequencies(&b->scaling, b->base, b->features, host);
    st = d9d_tensor_from_host(dev, D9D_F32, D9D_SHAPE(half), host, &b->inv_freq);
    free(host);
    return st;
}

void d9d_block_rope_release(d9d_block_rope *b)
{
    d9d_tensor_release(&b->inv_freq);
}

static d9d_status biases_init(d9d_block_attention *b, const d9d_block_how *how)
{
    const d9d_attention_shape *s = &b->shape;
    const int64_t queries = s->heads * s->head_dim, keys = s->kv_heads * s->head_dim;
    const struct {
        d9d_block_linear *of;
        d9d_param *bias;
        int64_t n;
        bool wanted;
    } all[] = {{&b->q_proj, &b->q_bias, queries, s->qkv_bias},
               {&b->k_proj, &b->k_bias, keys, s->qkv_bias},
               {&b->v_proj, &b->v_bias, keys, s->qkv_bias},
               {&b->o_proj, &b->o_bias, s->hidden, s->o_bias}};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (all[i].wanted)
            D9D_TRY(d9d_module_param(&all[i].of->module, "bias", all[i].bias, how->dtype,
                                     D9D_SHAPE(all[i].n), D9D_INIT_ZEROS, 0));
    return D9D_OK;
}

d9d_status d9d_block_attention_init(d9d_block_attention *b, const d9d_block_how *how,
                                    const d9d_attention_shape *shape)
{
    const int64_t hidden = shape->hidden, d = shape->head_dim;
    const int64_t queries = shape->heads * d, keys = shape->kv_heads * d;
    d9d_module *m = &b->module;

    b->shape = *shape;
    b->cut = how->cut;
    d9d_module_init(m);
    D9D_BLOCK_ADD(m, "q_proj", linear, &b->q_proj, how, hidden, queries);
    D9D_BLOCK_ADD(m, "k_proj", linear, &b->k_proj, how, hidden, keys);
    D9D_BLOCK_ADD(m, "v_proj", linear, &b->v_proj, how, hidden, keys);
    D9D_BLOCK_ADD(m, "o_proj", linear, &b->o_proj, how, queries, hidden);
    D9D_TRY(biases_init(b, how));
    if (shape->output_gate)
        D9D_BLOCK_ADD(m, "gate_proj", linear, &b->gate_proj, how, hidden, queries);
    if (shape->sinks)
        D9D_TRY(d9d_module_param(m, "sinks", &b->sinks, how->dtype, D9D_SHAPE(shape->heads),
                                 D9D_INIT_ZEROS, 0));
    if (shape->no_norm)
        return D9D_OK;
    D9D_BLOCK_ADD(m, "q_norm", norm, &b->q_norm, how, d, shape->norm_eps, shape->zero_centred);
    D9D_BLOCK_ADD(m, "k_norm", norm, &b->k_norm, how, d, shape->norm_eps, shape->zero_centred);
    return D9D_OK;
}

/* Some heads of a projection. */
typedef struct heads {
    d9d_block_linear *proj;
    d9d_param *bias;
    d9d_block_norm *norm; /* of what turns; NULL: it does not */
    int64_t first, n;     /* of those whose rows of the weight are here */
} heads;

/* The key-value heads that the query heads here read.  There may be more of them here: with more
 * ranks than key-value heads all ranks have all, and each needs one. */
static heads heads_read(const d9d_block_attention *b, d9d_block_linear *proj, d9d_param *bias,
                        d9d_block_norm *norm)
{
    const d9d_param *q = &b->q_proj.weight, *kv = &b->k_proj.weight;
    const int64_t d = b->shape.head_dim;
    const int64_t group = b->shape.heads / b->shape.kv_heads * d; /* rows that read one head */
    const int64_t first = q->work_start[0] / group;
    const int64_t end = (q->work_start[0] + q->work.dim[0] - 1) / group + 1;

    return (heads){proj, bias, norm, first - kv->work_start[0] / d, end - first};
}

/* Heads [B, S, n, D] normed, unless they are not, and turned. */
static d9d_status turned(const d9d_block_attention *b, d9d_tape *t, d9d_var *x,
                         d9d_block_norm *norm, const d9d_tensor *positions, d9d_var **y)
{
    const d9d_block_rope *rope = b->shape.rope;
    const float mscale = d9d_rope_mscale(&rope->scaling);

    if (b->shape.no_norm)
        return d9d_op_rope(t, x, positions, &rope->inv_freq, rope->style, mscale, y);
    return d9d_op_norm_rope(t, x, &norm->weight,
                            &(d9d_norm_rope){.eps = norm->eps,
                                             .zero_centred = norm->zero_centred,
                                             .positions = positions,
                                             .inv_freq = &rope->inv_freq,
                                             .style = rope->style,
                                             .mscale = mscale},
                            y);
}

/* x, all tokens, to heads [B, S, n, D]. */
static d9d_status heads_of(d9d_block_attention *b, d9d_tape *t, d9d_var *x, const heads *of,
                           const d9d_tensor *positions, d9d_var **y)
{
    const d9d_shape *s = &positions->shape;
    const int64_t d = b->shape.head_dim;

    D9D_TRY(d9d_op_linear_rows(t, x, &of->proj->weight, of->first * d, of->n * d, y));
    if (b->shape.qkv_bias)
        D9D_TRY(d9d_op_add_bias(t, *y, of->bias, of->first * d, y));
    D9D_TRY(d9d_op_reshape(t, *y, D9D_SHAPE(s->dim[0], s->dim[1], of->n, d), y));
    return of->norm != NULL ? turned(b, t, *y, of->norm, positions, y) : D9D_OK;
}

/* o [B, S, n, D] as [B, S, n D], times its gate of x, all tokens. */
static d9d_status gated(d9d_block_attention *b, d9d_tape *t, d9d_var *o, d9d_var *x, d9d_var **y)
{
    const d9d_shape *s = &d9d_var_tensor(o)->shape;
    const d9d_shape merged = D9D_SHAPE(s->dim[0], s->dim[1], s->dim[2] * s->dim[3]);
    d9d_var *gate;

    D9D_TRY(d9d_op_reshape(t, o, merged, y));
    if (!b->shape.output_gate)
        return D9D_OK;
    D9D_TRY(d9d_block_linear_forward(&b->gate_proj, t, x, &gate));
    D9D_TRY(d9d_op_reshape(t, gate, merged, &gate));
    return d9d_op_sigmoid_gate(t, *y, gate, y);
}

void d9d_block_attention_cells(const d9d_block_attention *b, d9d_cells *out)
{
    const d9d_shape s = D9D_SHAPE(heads_read(b, NULL, NULL, NULL).n, b->shape.head_dim);
    const d9d_dtype t = b->k_proj.weight.dtype;

    *out = (d9d_cells){2, {{"k", false, t, s}, {"v", false, t, s}}};
}

d9d_status d9d_block_attention_forward(d9d_block_attention *b, d9d_tape *t, d9d_var *x,
                                       const d9d_tensor *positions, const d9d_tensor *segments,
                                       const d9d_block_cache *cache, d9d_var *plus, d9d_var **y)
{
    const int64_t d = b->shape.head_dim;
    const heads q_heads = {&b->q_proj, &b->q_bias, &b->q_norm, 0, b->q_proj.weight.work.dim[0] / d};
    const heads k_heads = heads_read(b, &b->k_proj, &b->k_bias, &b->k_norm);
    const heads v_heads = heads_read(b, &b->v_proj, &b->v_bias, NULL);
    const d9d_attention how = {.scale = 1.0f / sqrtf((float)d),
                               .causal = true,
                               .segments = segments,
                               .cp = d9d_cut_cp(b->cut),
                               .what = b->k_proj.weight.name,
                               .cached = cache != NULL,
                               .window = b->shape.window,
                               .sinks = b->shape.sinks ? &b->sinks : NULL};
    d9d_comm *tp = d9d_cut_tp(b->cut);
    d9d_var *all, *q, *k, *v, *o;

    D9D_TRY(d9d_op_gather_rows(t, x, tp, b->q_proj.weight.name, &all));
    D9D_TRY(heads_of(b, t, all, &q_heads, positions, &q));
    D9D_TRY(heads_of(b, t, all, &k_heads, positions, &k));
    D9D_TRY(heads_of(b, t, all, &v_heads, positions, &v));
    if (cache != NULL) {
        D9D_TRY(d9d_op_cache(t, k, cache->at, cache->cell[0], &k));
        D9D_TRY(d9d_op_cache(t, v, cache->at, cache->cell[1], &v));
    }
    D9D_TRY(d9d_op_attention(t, q, k, v, &how, &o));
    D9D_TRY(gated(b, t, o, all, &o));
    D9D_TRY(d9di_block_linear_end(&b->o_proj, t, o, tp, plus, y));
    return b->shape.o_bias ? d9d_op_add_bias(t, *y, &b->o_bias, 0, y) : D9D_OK;
}
