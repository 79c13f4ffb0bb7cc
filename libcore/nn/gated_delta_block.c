/* gated_delta_block.c - gated delta net.  See d9d/nn/block.h. */
#include <math.h>

#include "nn/block_init.h"

static d9d_status shape_check(const d9d_block_gated_delta_shape *s)
{
    if (s->key_heads < 1 || s->value_heads < 1 || s->value_heads % s->key_heads != 0)
        return D9D_FAIL(D9D_EINVAL,
                        "gated delta net: %lld value heads are not a multiple of %lld key heads",
                        (long long)s->value_heads, (long long)s->key_heads);
    if (s->conv_width < 1 || s->conv_width > D9D_CAUSAL_CONV1D_MAX_WIDTH)
        return D9D_FAIL(
            D9D_EINVAL,
            "gated delta net: a convolution of kernel size %lld, from 1 to %d are supported",
            (long long)s->conv_width, D9D_CAUSAL_CONV1D_MAX_WIDTH);
    return D9D_OK;
}

/* U(+-1/sqrt(W)): the fan-in of a channel is W. */
static d9d_status conv_init(d9d_block_causal_conv1d *b, const d9d_block_opts *opts,
                            int64_t channels, int64_t width)
{
    float scale;
    const d9d_init_kind kind = d9di_block_init(opts, width, &scale);

    d9d_module_init(&b->module);
    return d9d_module_param(&b->module, "weight", &b->weight, opts->dtype,
                            D9D_SHAPE(channels, width), kind, scale);
}

/* The block's modules and parameters, in the order of declaration. */
static d9d_status parts_init(d9d_block_gated_delta *b, const d9d_block_opts *opts)
{
    const d9d_block_gated_delta_shape *s = &b->shape;
    const int64_t keys = s->key_heads * s->key_dim, values = s->value_heads * s->value_dim;

    D9D_TRY(d9d_block_linear_init(&b->q_proj, opts, s->hidden, keys));
    D9D_TRY(d9d_block_linear_init(&b->k_proj, opts, s->hidden, keys));
    D9D_TRY(d9d_block_linear_init(&b->v_proj, opts, s->hidden, values));
    D9D_TRY(d9d_block_linear_init(&b->g_proj, opts, s->hidden, values));
    D9D_TRY(d9d_block_linear_init(&b->b_proj, opts, s->hidden, s->value_heads));
    D9D_TRY(d9d_block_linear_init(&b->a_proj, opts, s->hidden, s->value_heads));
    D9D_TRY(d9d_block_linear_init(&b->o_proj, opts, values, s->hidden));
    D9D_TRY(conv_init(&b->q_conv, opts, keys, s->conv_width));
    D9D_TRY(conv_init(&b->k_conv, opts, keys, s->conv_width));
    D9D_TRY(conv_init(&b->v_conv, opts, values, s->conv_width));
    return d9d_block_norm_init(&b->out_norm, opts, s->value_dim, s->norm_eps, false);
}

/* Key heads stay whole, and each with the value heads of its group. */
static void heads_divide(d9d_block_gated_delta *b, const d9d_block_opts *opts)
{
    const d9d_param_parallel columns = {D9D_COLWISE, b->shape.key_heads, false,
                                        "linear_num_key_heads", false};
    const d9d_param_parallel rows = {D9D_ROWWISE, b->shape.key_heads, false, "linear_num_key_heads",
                                     false};
    d9d_param *const of_heads[] = {&b->q_proj.weight, &b->k_proj.weight, &b->v_proj.weight,
                                   &b->g_proj.weight, &b->b_proj.weight, &b->a_proj.weight,
                                   &b->q_conv.weight, &b->k_conv.weight, &b->v_conv.weight,
                                   &b->a_log,         &b->dt_bias};

    for (size_t i = 0; i < sizeof(of_heads) / sizeof(of_heads[0]); i++)
        d9di_block_divide(of_heads[i], opts, columns);
    d9di_block_divide(&b->o_proj.weight, opts, rows);
}

d9d_status d9d_block_gated_delta_init(d9d_block_gated_delta *b, const d9d_block_opts *opts,
                                      const d9d_block_gated_delta_shape *shape)
{
    const struct d9di_block_child children[] = {
        {"q_proj", &b->q_proj.module},     {"k_proj", &b->k_proj.module},
        {"v_proj", &b->v_proj.module},     {"g_proj", &b->g_proj.module},
        {"b_proj", &b->b_proj.module},     {"a_proj", &b->a_proj.module},
        {"o_proj", &b->o_proj.module},     {"q_conv", &b->q_conv.module},
        {"k_conv", &b->k_conv.module},     {"v_conv", &b->v_conv.module},
        {"out_norm", &b->out_norm.module},
    };
    const d9d_shape heads = D9D_SHAPE(shape->value_heads);

    D9D_TRY(shape_check(shape));
    b->shape = *shape;
    b->groups = opts->groups;
    if (opts->blocks != NULL)
        opts->blocks->gated_delta = b;
    d9d_module_init(&b->module);
    D9D_TRY(parts_init(b, opts));
    /* The decay of a state is e^-0.2 to e^-10 a token where the projection gives 0. */
    D9D_TRY(d9d_module_param(&b->module, "A_log", &b->a_log, opts->dtype, heads, D9D_INIT_UNIFORM,
                             2.0f));
    D9D_TRY(
        d9d_module_param(&b->module, "dt_bias", &b->dt_bias, opts->dtype, heads, D9D_INIT_ONES, 0));
    heads_divide(b, opts);
    return d9di_block_children(&b->module, children, sizeof(children) / sizeof(children[0]));
}

/* x of this rank's heads as [B, S, heads, D]. */
static d9d_status heads_split(d9d_tape *t, d9d_var *x, int64_t d, d9d_var **y)
{
    const d9d_shape *s = &d9d_var_tensor(x)->shape;

    return d9d_op_reshape(t, x, D9D_SHAPE(s->dim[0], s->dim[1], s->dim[2] / d, d), y);
}

/* Cache entries, in their order. */
enum { STATE, Q_LAST, K_LAST, V_LAST, CACHE_ENTRIES };

void d9d_block_gated_delta_cache_spec(const d9d_block_gated_delta *b, d9d_block_cache_spec *out)
{
    const d9d_block_gated_delta_shape *s = &b->shape;
    const d9d_block_linear *const of[] = {&b->q_proj, &b->k_proj, &b->v_proj};
    const int64_t heads = b->v_proj.weight.local.shape.dim[0] / s->value_dim;

    out->n = CACHE_ENTRIES;
    out->item[STATE] = (d9d_block_cache_entry){"state", true, D9D_F32,
                                               D9D_SHAPE(heads, s->key_dim, s->value_dim), false};
    for (int i = 0; i < 3; i++)
        out->item[Q_LAST + i] = (d9d_block_cache_entry){
            "last", true, of[i]->weight.spec.dtype,
            D9D_SHAPE(s->conv_width - 1, of[i]->weight.local.shape.dim[0]), false};
}

/* Where documents begin, and their state cache; NULL: none. */
typedef struct seq_state {
    const d9d_tensor *segments;
    const d9d_block_cache *cache;
} seq_state;

static const d9d_op_state_cache *state_cache_at(const seq_state *r, int entry,
                                                d9d_op_state_cache *state)
{
    if (r->cache == NULL)
        return NULL;
    *state = (d9d_op_state_cache){r->cache->entry[entry], r->cache->seq_slots};
    return state;
}

/* What x is projected to, in this order. */
enum { Q, K, V, Z, BETA, DECAY, PROJECTIONS, CONVOLVED = Z };

/* Project x [B, S, H], of which all projections read the same. */
static d9d_status all_project(d9d_block_gated_delta *b, d9d_tape *t, d9d_var *x,
                              d9d_var *y[PROJECTIONS])
{
    d9d_block_linear *const of[PROJECTIONS] = {&b->q_proj, &b->k_proj, &b->v_proj,
                                               &b->g_proj, &b->b_proj, &b->a_proj};
    d9d_op_weight_slice all[PROJECTIONS];

    for (int i = 0; i < PROJECTIONS; i++)
        all[i] = (d9d_op_weight_slice){.w = &of[i]->weight, .n = of[i]->weight.local.shape.dim[0]};
    return d9d_op_linear_multi(t, x, NULL, all, PROJECTIONS, y);
}

/* The causal convolutions of queries, keys and values, then their heads. */
static d9d_status heads_conv(d9d_block_gated_delta *b, d9d_tape *t, const seq_state *r, d9d_var **y)
{
    const int64_t d[] = {b->shape.key_dim, b->shape.key_dim, b->shape.value_dim};
    d9d_block_causal_conv1d *const conv[] = {&b->q_conv, &b->k_conv, &b->v_conv};
    const int entry[] = {Q_LAST, K_LAST, V_LAST};
    d9d_op_causal_conv1d_args of[CONVOLVED];
    d9d_op_state_cache state[CONVOLVED];

    for (int i = 0; i < CONVOLVED; i++)
        of[i] = (d9d_op_causal_conv1d_args){y[i], &conv[i]->weight,
                                            state_cache_at(r, entry[i], &state[i])};
    D9D_TRY(d9d_op_causal_conv1d_multi(t, of, CONVOLVED, r->segments, y));
    for (int i = 0; i < CONVOLVED; i++)
        D9D_TRY(heads_split(t, y[i], d[i], &y[i]));
    return D9D_OK;
}

static d9d_status ranks_check(const d9d_block_gated_delta *b)
{
    const int cp = d9d_comm_size(d9d_groups_cp(b->groups)),
              tp = d9d_comm_size(d9d_groups_tp(b->groups));

    if (cp > 1)
        return D9D_FAIL(D9D_ENOTSUP,
                        "gated delta net: context parallelism (%d ranks) is not supported, because "
                        "the state runs through whole sequences",
                        cp);
    if (b->shape.key_heads % tp != 0)
        return D9D_FAIL(D9D_ECONFIG,
                        "gated delta net: %d tensor-parallel ranks do not divide %lld key heads",
                        tp, (long long)b->shape.key_heads);
    return D9D_OK;
}

d9d_status d9d_block_gated_delta_forward(d9d_block_gated_delta *b, d9d_tape *t, d9d_var *x,
                                         const d9d_tensor *positions, const d9d_tensor *segments,
                                         const d9d_block_cache *cache, d9d_var *plus, d9d_var **y)
{
    const int64_t dk = b->shape.key_dim, dv = b->shape.value_dim;
    const int64_t B = positions->shape.dim[0], S = positions->shape.dim[1];
    const seq_state r = {segments, cache};
    d9d_comm *tp = d9d_groups_tp(b->groups);
    d9d_op_state_cache state;
    d9d_op_gated_delta_args n = {.scale = 1.0f / sqrtf((float)dk),
                                 .segments = segments,
                                 .cache = state_cache_at(&r, STATE, &state)};
    d9d_var *all, *part[PROJECTIONS], *z, *o;

    D9D_TRY(ranks_check(b));
    D9D_TRY(d9d_op_all_gather_rows(t, x, tp, b->q_proj.weight.name, &all));
    D9D_TRY(d9d_op_reshape(t, all, D9D_SHAPE(B, S, b->shape.hidden), &all));
    D9D_TRY(all_project(b, t, all, part));
    D9D_TRY(heads_conv(b, t, &r, part));
    n.q = part[Q], n.k = part[K], n.v = part[V];
    D9D_TRY(heads_split(t, part[Z], dv, &z));
    n.b = part[BETA];
    D9D_TRY(d9d_op_gdn_gate(t, part[DECAY], &b->a_log, &b->dt_bias, &n.g));
    D9D_TRY(d9d_op_gated_delta(t, &n, &o));
    D9D_TRY(d9d_op_rms_norm_gated(t, o, z, &b->out_norm.weight, b->out_norm.eps, &o));
    D9D_TRY(d9d_op_reshape(t, o, D9D_SHAPE(B, S, d9d_var_tensor(o)->shape.dim[2] * dv), &o));
    return d9di_block_linear_reduce(&b->o_proj, NULL, t, o, tp, plus, y);
}
