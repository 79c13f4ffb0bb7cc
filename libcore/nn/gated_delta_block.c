/* gated_delta_block.c - gated delta net.  See d9d/nn/block.h. */
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

/* Cells, in their order. */
enum { STATE, Q_LAST, K_LAST, V_LAST, CELLS };

void d9d_block_delta_cells(const d9d_block_delta *b, d9d_cells *out)
{
    const d9d_delta_shape *s = &b->shape;
    const d9d_block_linear *const of[] = {&b->q_proj, &b->k_proj, &b->v_proj};
    const int64_t heads = b->v_proj.weight.work.dim[0] / s->value_dim;

    out->n = CELLS;
    out->item[STATE] =
        (d9d_cell){"state", true, D9D_F32, D9D_SHAPE(heads, s->key_dim, s->value_dim)};
    for (int i = 0; i < 3; i++)
        out->item[Q_LAST + i] = (d9d_cell){"last", true, of[i]->weight.dtype,
                                           D9D_SHAPE(s->conv_width - 1, of[i]->weight.work.dim[0])};
}

/* Where documents begin, and what is kept of those before; NULL: nothing. */
typedef struct rows {
    const d9d_tensor *segments;
    const d9d_block_cache *cache;
} rows;

static const d9d_kept *kept_of(const rows *r, int cell, d9d_kept *room)
{
    if (r->cache == NULL)
        return NULL;
    *room = (d9d_kept){r->cache->cell[cell], r->cache->rows};
    return room;
}

/* x [B, S, H] by a projection to heads of d features, or, with d 0, as they are. */
static d9d_status project(d9d_tape *t, d9d_var *x, d9d_block_linear *proj, int64_t d, d9d_var **y)
{
    D9D_TRY(d9d_block_linear_forward(proj, t, x, y));
    return d != 0 ? cut_heads(t, *y, d, y) : D9D_OK;
}

/* The same of the last tokens. */
static d9d_status convolve(d9d_tape *t, d9d_var *x, d9d_block_linear *proj, d9d_block_conv *conv,
                           const rows *r, int cell, int64_t d, d9d_var **y)
{
    d9d_kept room;

    D9D_TRY(d9d_block_linear_forward(proj, t, x, y));
    D9D_TRY(d9d_op_conv(t, *y, &conv->weight, r->segments, kept_of(r, cell, &room), y));
    return cut_heads(t, *y, d, y);
}

static d9d_status check_ranks(const d9d_block_delta *b)
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
    return D9D_OK;
}

d9d_status d9d_block_delta_forward(d9d_block_delta *b, d9d_tape *t, d9d_var *x,
                                   const d9d_tensor *positions, const d9d_tensor *segments,
                                   const d9d_block_cache *cache, d9d_var *plus, d9d_var **y)
{
    const int64_t dk = b->shape.key_dim, dv = b->shape.value_dim;
    const int64_t B = positions->shape.dim[0], S = positions->shape.dim[1];
    const rows r = {segments, cache};
    d9d_comm *tp = d9d_cut_tp(b->cut);
    d9d_kept room;
    d9d_delta n = {
        .scale = 1.0f / sqrtf((float)dk), .segments = segments, .kept = kept_of(&r, STATE, &room)};
    d9d_var *all, *z, *o, *a = NULL;

    D9D_TRY(check_ranks(b));
    D9D_TRY(d9d_op_gather_rows(t, x, tp, b->q_proj.weight.name, &all));
    D9D_TRY(d9d_op_reshape(t, all, D9D_SHAPE(B, S, b->shape.hidden), &all));
    D9D_TRY(convolve(t, all, &b->q_proj, &b->q_conv, &r, Q_LAST, dk, &n.q));
    D9D_TRY(convolve(t, all, &b->k_proj, &b->k_conv, &r, K_LAST, dk, &n.k));
    D9D_TRY(convolve(t, all, &b->v_proj, &b->v_conv, &r, V_LAST, dv, &n.v));
    D9D_TRY(project(t, all, &b->g_proj, dv, &z));
    D9D_TRY(project(t, all, &b->b_proj, 0, &n.b));
    D9D_TRY(project(t, all, &b->a_proj, 0, &a));
    D9D_TRY(d9d_op_decay(t, a, &b->rate, &b->bias, &n.g));
    D9D_TRY(d9d_op_delta(t, &n, &o));
    D9D_TRY(d9d_op_gated_norm(t, o, z, &b->out_norm.weight, b->out_norm.eps, &o));
    D9D_TRY(d9d_op_reshape(t, o, D9D_SHAPE(B, S, d9d_var_tensor(o)->shape.dim[2] * dv), &o));
    return d9di_block_linear_end(&b->o_proj, t, o, tp, plus, y);
}
