/* attention_block.c - grouped-query attention (GQA).  See d9d/nn/block.h.
 */
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

/* Heads stay whole.  Ranks beyond the key-value heads share them: d9d_block_attention_shape. */
static void heads_divide(d9d_block_attention *b, const d9d_block_opts *opts)
{
    const d9d_param_parallel q = {D9D_COLWISE, b->shape.heads, false, "num_attention_heads", true};
    const d9d_param_parallel kv = {D9D_COLWISE, b->shape.kv_heads, true, "num_key_value_heads",
                                   true};
    const d9d_param_parallel o = {D9D_ROWWISE, b->shape.heads, false, "num_attention_heads", true};
    d9d_param *const of_queries[] = {&b->q_proj.weight, &b->q_bias, &b->gate_proj.weight,
                                     &b->gate_bias, &b->sinks};
    d9d_param *const of_keys[] = {&b->k_proj.weight, &b->v_proj.weight, &b->k_bias, &b->v_bias};

    for (size_t i = 0; i < sizeof(of_queries) / sizeof(of_queries[0]); i++)
        d9di_block_divide(of_queries[i], opts, q);
    for (size_t i = 0; i < sizeof(of_keys) / sizeof(of_keys[0]); i++)
        d9di_block_divide(of_keys[i], opts, kv);
    d9di_block_divide(&b->o_proj.weight, opts, o);
    if (b->shape.qk_norm == D9D_QK_NORM_FULL) {
        d9di_block_divide(&b->q_norm.weight, opts, q);
        d9di_block_divide(&b->k_norm.weight, opts, kv);
    }
}

static d9d_status biases_init(d9d_block_attention *b, const d9d_block_opts *opts)
{
    const d9d_block_attention_shape *s = &b->shape;
    const int64_t queries = s->heads * s->head_dim, keys = s->kv_heads * s->head_dim;
    const struct {
        d9d_block_linear *of;
        d9d_param *bias;
        int64_t n;
        bool wanted;
    } all[] = {{&b->q_proj, &b->q_bias, queries, s->qkv_bias},
               {&b->k_proj, &b->k_bias, keys, s->qkv_bias},
               {&b->v_proj, &b->v_bias, keys, s->qkv_bias},
               {&b->gate_proj, &b->gate_bias, queries, s->qkv_bias && s->output_gate},
               {&b->o_proj, &b->o_bias, s->hidden, s->o_bias}};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (all[i].wanted)
            D9D_TRY(d9d_module_param(&all[i].of->module, "bias", all[i].bias, opts->dtype,
                                     D9D_SHAPE(all[i].n), D9D_INIT_ZEROS, 0));
    return D9D_OK;
}

d9d_status d9d_block_attention_init(d9d_block_attention *b, const d9d_block_opts *opts,
                                    const d9d_block_attention_shape *shape)
{
    const int64_t hidden = shape->hidden, d = shape->head_dim;
    const int64_t queries = shape->heads * d, keys = shape->kv_heads * d;
    d9d_module *m = &b->module;

    if (shape->clip > 0 && shape->qk_norm == D9D_QK_NORM_HEAD)
        return D9D_FAIL(D9D_EINVAL, "attention: a clip of %g with a QK norm of each head",
                        (double)shape->clip);
    if (shape->qk_norm != D9D_QK_NORM_NONE && !(shape->norm_eps > 0))
        return D9D_FAIL(D9D_EINVAL, "attention: a QK norm with a norm_eps of %g",
                        (double)shape->norm_eps);
    b->shape = *shape;
    b->groups = opts->groups;
    if (opts->blocks != NULL) {
        opts->blocks->attention = b;
        opts->blocks->dropout |= shape->dropout > 0 || shape->out_dropout > 0;
    }
    d9d_module_init(m);
    D9D_BLOCK_ADD(m, "q_proj", linear, &b->q_proj, opts, hidden, queries);
    D9D_BLOCK_ADD(m, "k_proj", linear, &b->k_proj, opts, hidden, keys);
    D9D_BLOCK_ADD(m, "v_proj", linear, &b->v_proj, opts, hidden, keys);
    D9D_BLOCK_ADD(m, "o_proj", linear, &b->o_proj, opts, queries, hidden);
    if (shape->output_gate)
        D9D_BLOCK_ADD(m, "gate_proj", linear, &b->gate_proj, opts, hidden, queries);
    D9D_TRY(biases_init(b, opts));
    if (shape->sinks)
        D9D_TRY(d9d_module_param(m, "sinks", &b->sinks, opts->dtype, D9D_SHAPE(shape->heads),
                                 D9D_INIT_ZEROS, 0));
    if (shape->qk_norm != D9D_QK_NORM_NONE) {
        const bool full = shape->qk_norm == D9D_QK_NORM_FULL;

        D9D_BLOCK_ADD(m, "q_norm", norm, &b->q_norm, opts, full ? queries : d, shape->norm_eps,
                      shape->zero_centred);
        D9D_BLOCK_ADD(m, "k_norm", norm, &b->k_norm, opts, full ? keys : d, shape->norm_eps,
                      shape->zero_centred);
    }
    heads_divide(b, opts);
    return D9D_OK;
}

/* A range of heads of a projection. */
typedef struct proj_heads {
    d9d_block_linear *proj;
    d9d_param *bias;
    int64_t first, n; /* among the heads whose weight rows this rank has */
} proj_heads;

/* The key-value heads that this rank's query heads read.  The rank may have more: with more tp
 * ranks than key-value heads, all ranks have all of them, and each needs one. */
static proj_heads kv_heads_here(const d9d_block_attention *b, d9d_block_linear *proj,
                                d9d_param *bias)
{
    const d9d_param *q = &b->q_proj.weight, *kv = &b->k_proj.weight;
    const int64_t d = b->shape.head_dim;
    const int64_t group =
        b->shape.heads / b->shape.kv_heads * d; /* rows of q that read one key-value head */
    const int64_t first = q->local.offset[0] / group;
    const int64_t end = (q->local.offset[0] + q->local.shape.dim[0] - 1) / group + 1;

    return (proj_heads){proj, bias, first - kv->local.offset[0] / d, end - first};
}

/* The first of this rank's query heads, among all. */
static int64_t first_head(const d9d_block_attention *b)
{
    return b->q_proj.weight.local.offset[0] / b->shape.head_dim;
}

enum { Q, K, V, QKV };
/* Entries of the KV cache; it has scales if it is in 8 bits. */
enum { K_CACHE, V_CACHE, CACHE_ENTRIES, K_SCALE = CACHE_ENTRIES, V_SCALE };

/* Project x, all tokens, to heads [B, S, n, D]: queries, keys and values. */
static d9d_status qkv_project(d9d_block_attention *b, d9d_tape *t, d9d_var *x,
                              d9d_op_pending_rows *coming, const proj_heads *of, const d9d_shape *s,
                              d9d_var **y)
{
    const int64_t d = b->shape.head_dim;
    d9d_op_weight_slice rows[QKV];

    for (int i = 0; i < QKV; i++)
        rows[i] = (d9d_op_weight_slice){&of[i].proj->weight, of[i].first * d, of[i].n * d,
                                        b->shape.qkv_bias ? of[i].bias : NULL};
    D9D_TRY(d9d_op_linear_multi(t, x, coming, rows, QKV, y));
    for (int i = 0; i < QKV; i++)
        D9D_TRY(d9d_op_reshape(t, y[i], D9D_SHAPE(s->dim[0], s->dim[1], of[i].n, d), &y[i]));
    return D9D_OK;
}

static d9d_op_norm_rope_opts norm_rope_opts(const d9d_block_attention *b,
                                            const d9d_tensor *positions)
{
    const d9d_block_rope *rope = b->shape.rope;

    if (rope == NULL)
        return (d9d_op_norm_rope_opts){0};
    return (d9d_op_norm_rope_opts){.eps = b->shape.norm_eps,
                                   .zero_centred = b->shape.zero_centred,
                                   .positions = positions,
                                   .inv_freq = &rope->inv_freq,
                                   .style = rope->style,
                                   .mscale = d9d_rope_mscale(&rope->scaling)};
}

/* Elements of all heads of this kind, on all ranks, and those at the begin of this rank's heads
 * that another rank counts: the one whose queries begin with the first that reads them. */
static d9d_op_rms_norm_parallel_opts full_norm_opts(const d9d_block_attention *b,
                                                    const proj_heads *of)
{
    const bool keys = of->proj == &b->k_proj;
    const int64_t d = b->shape.head_dim, heads = keys ? b->shape.kv_heads : b->shape.heads;
    const int64_t group = keys ? b->shape.heads / b->shape.kv_heads * d : d;

    return (d9d_op_rms_norm_parallel_opts){
        .eps = b->shape.norm_eps,
        .zero_centred = b->shape.zero_centred,
        .first = of->first * d,
        .uncounted = b->q_proj.weight.local.offset[0] % group == 0 ? 0 : d,
        .total = heads * d,
        .comm = d9d_groups_tp(b->groups),
        .label = of->proj->weight.name};
}

/* QK norm of all heads together.  y [B, S, n, D]. */
static d9d_status full_norm(d9d_block_attention *b, d9d_tape *t, const proj_heads *of,
                            d9d_block_norm *norm, d9d_var **y)
{
    const d9d_shape s = d9d_var_tensor(*y)->shape;
    const d9d_op_rms_norm_parallel_opts opts = full_norm_opts(b, of);

    D9D_TRY(d9d_op_reshape(t, *y, D9D_SHAPE(s.dim[0], s.dim[1], s.dim[2] * s.dim[3]), y));
    D9D_TRY(d9d_comm_size(opts.comm) > 1 ? d9d_op_rms_norm_parallel(t, *y, &norm->weight, &opts, y)
                                         : d9d_block_norm_forward(norm, t, *y, y));
    return d9d_op_reshape(t, *y, s, y);
}

static d9d_status heads_clip(const d9d_block_attention *b, d9d_tape *t, d9d_var **y)
{
    const d9d_glu clamp = {.act = D9D_ACT_HARDTANH, .limit = b->shape.clip};

    return clamp.limit > 0 ? d9d_op_glu(t, &clamp, *y, NULL, y) : D9D_OK;
}

/* The norm of all heads together is part of heads_rope_append(): this rank has them all, and no
 * clip comes between. */
static bool full_norm_is_appended(const d9d_block_attention *b, const d9d_block_cache *cache)
{
    return b->shape.qk_norm == D9D_QK_NORM_FULL && cache != NULL && b->shape.rope != NULL &&
           b->shape.clip <= 0 && d9d_comm_size(d9d_groups_tp(b->groups)) == 1;
}

/* Norm of all heads together and clip, as far as there are: what comes before norm and RoPE of each
 * head. */
static d9d_status heads_norm_clip(d9d_block_attention *b, d9d_tape *t, const proj_heads *of,
                                  const d9d_block_cache *cache, d9d_block_norm *norm, d9d_var **y)
{
    if (b->shape.qk_norm == D9D_QK_NORM_FULL && !full_norm_is_appended(b, cache))
        D9D_TRY(full_norm(b, t, of, norm, y));
    return heads_clip(b, t, y);
}

/* Norm of each head and RoPE, as far as there are. */
static d9d_status heads_norm_rope(d9d_block_attention *b, d9d_tape *t,
                                  const d9d_op_norm_rope_opts *opts, d9d_block_norm *norm,
                                  d9d_var **y)
{
    const bool normed = b->shape.qk_norm == D9D_QK_NORM_HEAD;

    if (b->shape.rope == NULL)
        return normed ? d9d_block_norm_forward(norm, t, *y, y) : D9D_OK;
    return normed
               ? d9d_op_norm_rope(t, *y, &norm->weight, opts, y)
               : d9d_op_rope(t, *y, opts->positions, opts->inv_freq, opts->style, opts->mscale, y);
}

/* Norm if there is one that has not been, RoPE and append in one kernel. */
static d9d_status heads_rope_append(d9d_block_attention *b, d9d_tape *t,
                                    const d9d_op_norm_rope_opts *opts, const d9d_block_cache *cache,
                                    d9d_var **y)
{
    const bool all_heads = full_norm_is_appended(b, cache),
               normed = all_heads || b->shape.qk_norm == D9D_QK_NORM_HEAD;
    d9d_op_qk_norm_rope_append_args new = {y[Q],
                                           y[K],
                                           y[V],
                                           normed ? &b->q_norm.weight : NULL,
                                           normed ? &b->k_norm.weight : NULL,
                                           all_heads,
                                           cache->token_slots,
                                           cache->entry[K_CACHE],
                                           cache->entry[V_CACHE],
                                           cache->entry[K_SCALE],
                                           cache->entry[V_SCALE]};

    D9D_TRY(d9d_op_qk_norm_rope_append(t, opts, &new));
    y[Q] = new.q, y[K] = new.k, y[V] = new.v;
    return D9D_OK;
}

/* Append keys and values to a KV cache in 8 bits, or in their own type. */
static d9d_status heads_append(d9d_tape *t, const d9d_block_cache *c, d9d_var **y)
{
    if (c->entry[K_SCALE] != NULL) {
        D9D_TRY(d9d_op_kv_append_fp8(t, y[K], c->token_slots, c->entry[K_CACHE], c->entry[K_SCALE],
                                     &y[K]));
        return d9d_op_kv_append_fp8(t, y[V], c->token_slots, c->entry[V_CACHE], c->entry[V_SCALE],
                                    &y[V]);
    }
    return d9d_op_kv_append_both(t, c->token_slots, c->entry[K_CACHE], c->entry[V_CACHE], &y[K],
                                 &y[V]);
}

/* Prepare heads for attention: QK norm and RoPE of queries and keys, clips; append keys and values
 * to a KV cache. */
static d9d_status heads_prepare(d9d_block_attention *b, d9d_tape *t, const d9d_tensor *positions,
                                const d9d_block_cache *cache, const proj_heads *of, d9d_var **y)
{
    const d9d_op_norm_rope_opts opts = norm_rope_opts(b, positions);

    D9D_TRY(heads_norm_clip(b, t, &of[Q], cache, &b->q_norm, &y[Q]));
    D9D_TRY(heads_norm_clip(b, t, &of[K], cache, &b->k_norm, &y[K]));
    D9D_TRY(heads_clip(b, t, &y[V]));
    if (cache != NULL && b->shape.rope != NULL)
        return heads_rope_append(b, t, &opts, cache, y);
    D9D_TRY(heads_norm_rope(b, t, &opts, &b->q_norm, &y[Q]));
    D9D_TRY(heads_norm_rope(b, t, &opts, &b->k_norm, &y[K]));
    return cache != NULL ? heads_append(t, cache, y) : D9D_OK;
}

/* o [B, S, n, D] as [B, S, n D], times the sigmoid of its gate, which is projected from x, all
 * tokens. */
static d9d_status gate_heads(d9d_block_attention *b, d9d_tape *t, d9d_var *o, d9d_var *x,
                             d9d_var **y)
{
    const d9d_shape *s = &d9d_var_tensor(o)->shape;
    const d9d_shape merged = D9D_SHAPE(s->dim[0], s->dim[1], s->dim[2] * s->dim[3]);
    d9d_var *gate;

    D9D_TRY(d9d_op_reshape(t, o, merged, y));
    if (!b->shape.output_gate)
        return D9D_OK;
    D9D_TRY(d9d_op_linear_bias(t, x, &b->gate_proj.weight, b->shape.qkv_bias ? &b->gate_bias : NULL,
                               NULL, &gate));
    D9D_TRY(d9d_op_reshape(t, gate, merged, &gate));
    return d9d_op_sigmoid_gate(t, *y, gate, y);
}

/* The output of all heads, plus the residual. */
static d9d_status output_project(d9d_block_attention *b, d9d_tape *t, d9d_var *o, d9d_var *plus,
                                 d9d_var **y)
{
    const bool drops = d9d_op_dropout_is_active(t, b->shape.out_dropout);

    D9D_TRY(d9di_block_linear_reduce(&b->o_proj, b->shape.o_bias ? &b->o_bias : NULL, t, o,
                                     d9d_groups_tp(b->groups), drops ? NULL : plus, y));
    return drops ? d9di_block_dropout_add(t, *y, b->shape.out_dropout, &b->o_proj.weight, plus, y)
                 : D9D_OK;
}

void d9d_block_attention_cache_spec(const d9d_block_attention *b, d9d_block_cache_spec *out)
{
    const d9d_shape s = D9D_SHAPE(kv_heads_here(b, NULL, NULL).n, b->shape.head_dim);
    const d9d_dtype t = b->k_proj.weight.spec.dtype;

    *out = (d9d_block_cache_spec){
        CACHE_ENTRIES,
        {[K_CACHE] = {"k", false, t, s, true}, [V_CACHE] = {"v", false, t, s, true}}};
}

d9d_status d9d_block_attention_forward(d9d_block_attention *b, d9d_tape *t, d9d_var *x,
                                       const d9d_tensor *positions, const d9d_tensor *segments,
                                       const d9d_block_cache *cache, d9d_var *plus, d9d_var **y)
{
    const int64_t d = b->shape.head_dim;
    const proj_heads of[QKV] = {
        {&b->q_proj, &b->q_bias, 0, b->q_proj.weight.local.shape.dim[0] / d},
        kv_heads_here(b, &b->k_proj, &b->k_bias),
        kv_heads_here(b, &b->v_proj, &b->v_bias)};
    const d9d_groups *cut = cache == NULL ? b->groups : NULL; /* a cached sequence is whole */
    const d9d_op_attention_opts opts = {
        .scale = b->shape.scale != 0.0f ? b->shape.scale : 1.0f / sqrtf((float)d),
        .softcap = b->shape.softcap,
        .causal = !b->shape.bidirectional,
        .segments = segments,
        .prefix = d9d_tape_prefix(t),
        .cp = d9d_groups_cp_keys(cut),
        .cp_ring = d9d_groups_cp_ring(cut),
        .cp_heads = d9d_groups_cp_heads(cut),
        .label = b->k_proj.weight.name,
        .cached = cache != NULL,
        .k_scale = cache != NULL ? cache->entry[K_SCALE] : NULL,
        .v_scale = cache != NULL ? cache->entry[V_SCALE] : NULL,
        .window = b->shape.window,
        .sinks = b->shape.sinks ? &b->sinks : NULL,
        .dropout = {.p = b->shape.dropout, .site = &b->k_proj.weight, .first = first_head(b)}};
    const float beta = b->shape.temperature_beta;
    d9d_comm *tp = d9d_groups_tp(b->groups);
    d9d_var *all, *qkv[QKV], *o;
    d9d_op_pending_rows coming;

    D9D_TRY(d9d_op_all_gather_rows_start(t, x, tp, b->q_proj.weight.name, &coming, &all));
    D9D_TRY(qkv_project(b, t, all, &coming, of, &positions->shape, qkv));
    D9D_TRY(heads_prepare(b, t, positions, cache, of, qkv));
    if (beta != 0)
        D9D_TRY(d9d_op_position_scale(t, qkv[Q], positions, beta, b->shape.temperature_period,
                                      &qkv[Q]));
    D9D_TRY(d9d_op_attention(t, qkv[Q], qkv[K], qkv[V], &opts, &o));
    D9D_TRY(gate_heads(b, t, o, all, &o));
    return output_project(b, t, o, plus, y);
}
