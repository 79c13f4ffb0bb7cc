/* delta_block.c - gated delta net.  See d9d/nn/block.h. */
#include <math.h>

#include "nn/block_init.h"

static d9d_status check(const d9d_delta_shape *s)
{
    if (s->key_heads < 1 || s->value_heads < 1 || s->value_heads % s->key_heads != 0)
        return D9D_FAIL(D9D_EINVAL,
                        "gated delta net: %lld value heads are no multiple of %lld key heads",
                        (long long)s->value_heads, (long long)s->key_heads);
    if (s->conv_width < 1 || s->conv_width > D9D_CONV_WIDTH)
        return D9D_FAIL(D9D_EINVAL,
                        "gated delta net: a convolution %lld tokens wide, from 1 to %d are "
                        "possible",
                        (long long)s->conv_width, D9D_CONV_WIDTH);
    return D9D_OK;
}

/* U(+-1/sqrt(W)): each channel sees the W numbers of its own. */
static d9d_status conv_init(d9d_block_conv *b, const d9d_block_how *how, int64_t channels,
                            int64_t width)
{
    float scale;
    const d9d_init_kind kind = d9di_block_init(how, width, &scale);

    d9d_module_init(&b->module);
    return d9d_module_param(&b->module, "weight", &b->weight, how->dtype,
                            D9D_SHAPE(channels, width), kind, scale);
}

/* What the block has of each kind, in the order of its declaration. */
static d9d_status init_parts(d9d_block_delta *b, const d9d_block_how *how)
{
    const d9d_delta_shape *s = &b->shape;
    const int64_t keys = s->key_heads * s->key_dim, values = s->value_heads * s->value_dim;

    D9D_TRY(d9d_block_linear_init(&b->q_proj, how, s->hidden, keys));
    D9D_TRY(d9d_block_linear_init(&b->k_proj, how, s->hidden, keys));
    D9D_TRY(d9d_block_linear_init(&b->v_proj, how, s->hidden, values));
    D9D_TRY(d9d_block_linear_init(&b->g_proj, how, s->hidden, values));
    D9D_TRY(d9d_block_linear_init(&b->b_proj, how, s->hidden, s->value_heads));
    D9D_TRY(d9d_block_linear_init(&b->a_proj, how, s->hidden, s->value_heads));
    D9D_TRY(d9d_block_linear_init(&b->o_proj, how, values, s->hidden));
    D9D_TRY(conv_init(&b->q_conv, how, keys, s->conv_width));
    D9D_TRY(conv_init(&b->k_conv, how, keys, s->conv_width));
    D9D_TRY(conv_init(&b->v_conv, how, values, s->conv_width));
    return d9d_block_norm_init(&b->out_norm, how, s->value_dim, s->norm_eps, false);
}

d9d_status d9d_block_delta_init(d9d_block_delta *b, const d9d_block_how *how,
                                const d9d_delta_shape *shape)
{
    const struct d9di_child children[] = {
        {"q_proj", &b->q_proj.module},     {"k_proj", &b->k_proj.module},
        {"v_proj", &b->v_proj.module},     {"g_proj", &b->g_proj.module},
        {"b_proj", &b->b_proj.module},     {"a_proj", &b->a_proj.module},
        {"o_proj", &b->o_proj.module},     {"q_conv", &b->q_conv.module},
        {"k_conv", &b->k_conv.module},     {"v_conv", &b->v_conv.module},
        {"out_norm", &b->out_norm.module},
    };
    const d9d_shape heads = D9D_SHAPE(shape->value_heads);

    D9D_TRY(check(shape));
    b->shape = *shape;
    b->cut = how->cut;
    d9d_module_init(&b->module);
    D9D_TRY(init_parts(b, how));
    /* States fade by e^-0.2 to e^-10 a token where the projection gives 0. */
    D9D_TRY(
        d9d_module_param(&b->module, "A_log", &b->rate, how->dtype, heads, D9D_INIT_UNIFORM, 2.0f));
    D9D_TRY(d9d_module_param(&b->module, "dt_bias", &b->bias, how->dtype, heads, D9D_INIT_ONES, 0));
    return d9di_block_children(&b->module, children, sizeof(children) / sizeof(children[0]));
}

/* Rows of heads here, [B, S, heads, D]. */
static d9d_status cut_heads(d9d_tape *t, d9d_var *x, int64_t d, d9d_var **y)
{
    const d9d_shape *s = &d9d_var_tensor(x)->shape;

    return d9d_op_reshape(t, x, D9D_SHAPE(s->dim[0], s->dim[1], s->dim[2] / d, d), y);
}

/* x [B, S, H] by a projection; of the last tokens, where there is a convolution; to heads of d
 * features, where d is not 0. */
static d9d_status project(d9d_tape *t, d9d_var *x, d9d_block_linear *proj, d9d_block_conv *conv,
                          const d9d_tensor *segments, int64_t d, d9d_var **y)
{
    d9d_var *h;

    D9D_TRY(d9d_block_linear_forward(proj, t, x, &h));
    if (conv != NULL)
        D9D_TRY(d9d_op_conv(t, h, &conv->weight, segments, &h));
    if (d != 0)
        return cut_heads(t, h, d, y);
    *y = h;
    return D9D_OK;
}

static d9d_status check_ranks(const d9d_block_delta *b, const d9d_block_cache *cache)
{
    const int cp = d9d_comm_size(d9d_cut_cp(b->cut)), tp = d9d_comm_size(d9d_cut_tp(b->cut));

    if (cp > 1)
        return D9D_FAIL(D9D_ENOTSUP,
                        "gated delta net: rows lie in pieces on %d context-parallel ranks, and a "
                        "state goes through whole rows",
                        cp);
    if (b->shape.key_heads % tp != 0)
        return D9D_FAIL(D9D_ECONFIG,
                        "gated delta net: %d tensor-parallel ranks do not divide %lld key heads",
                        tp, (long long)b->shape.key_heads);
    if (cache != NULL)
        return D9D_FAIL(D9D_ENOTSUP, "gated delta net: generation has no place for its state yet");
    return D9D_OK;
}

d9d_status d9d_block_delta_forward(d9d_block_delta *b, d9d_tape *t, d9d_var *x,
                                   const d9d_tensor *positions, const d9d_tensor *segments,
                                   const d9d_block_cache *cache, d9d_var *plus, d9d_var **y)
{
    const int64_t dk = b->shape.key_dim, dv = b->shape.value_dim;
    const d9d_shape *rows = &positions->shape;
    d9d_comm *tp = d9d_cut_tp(b->cut);
    d9d_delta n = {.scale = 1.0f / sqrtf((float)dk), .segments = segments};
    d9d_var *all, *z, *o, *a = NULL;

    D9D_TRY(check_ranks(b, cache));
    D9D_TRY(d9d_op_gather_rows(t, x, tp, b->q_proj.weight.name, &all));
    D9D_TRY(d9d_op_reshape(t, all, D9D_SHAPE(rows->dim[0], rows->dim[1], b->shape.hidden), &all));
    D9D_TRY(project(t, all, &b->q_proj, &b->q_conv, segments, dk, &n.q));
    D9D_TRY(project(t, all, &b->k_proj, &b->k_conv, segments, dk, &n.k));
    D9D_TRY(project(t, all, &b->v_proj, &b->v_conv, segments, dv, &n.v));
    D9D_TRY(project(t, all, &b->g_proj, NULL, NULL, dv, &z));
    D9D_TRY(project(t, all, &b->b_proj, NULL, NULL, 0, &n.b));
    D9D_TRY(project(t, all, &b->a_proj, NULL, NULL, 0, &a));
    D9D_TRY(d9d_op_decay(t, a, &b->rate, &b->bias, &n.g));
    D9D_TRY(d9d_op_delta(t, &n, &o));
    D9D_TRY(d9d_op_gated_norm(t, o, z, &b->out_norm.weight, b->out_norm.eps, &o));
    D9D_TRY(d9d_op_reshape(
        t, o, D9D_SHAPE(rows->dim[0], rows->dim[1], d9d_var_tensor(o)->shape.dim[2] * dv), &o));
    return d9di_block_linear_end(&b->o_proj, t, o, tp, plus, y);
}
