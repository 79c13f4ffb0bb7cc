/* op_ffn.c - SwiGLU FFN: y = h Wd' (+ plus), h = silu(gate) up, gate = x Wg', up = x Wu'; dense, or
 * grouped by expert.
 *
 *     dgate, dup = the gradients of SwiGLU for dy Wd        dWd = dy' h        dplus = dy
 *
 * Gate and up are one fused GEMM with a SwiGLU epilogue.  SwiGLU and down are one node, so that h
 * needs no kernel of its own and the gradient of h is never in memory.  If a matrix has an adapter,
 * the ops run unfused.
 */
#include "op/linear/op_gemm.h"
#include "op/parallel/op_tp_overlap.h"

enum { GATE, UP, PLUS }; /* inputs; the first two are saved */
enum { SAVED_H = 2, SAVED_OFFSET };

/* Is it a grouped FFN, with several experts? */
static bool has_experts(const d9d_node *n)
{
    return n->n_saved > SAVED_OFFSET;
}

static d9d_status ffn_dgrad(d9d_node *n)
{
    d9d_gemm_swiglu_dims dims = *(const d9d_gemm_swiglu_dims *)n->attr;
    d9d_tensor dgate = {0}, dup = {0}, dy;
    d9d_status st;

    if (has_experts(n))
        dims.offset = d9d_tensor_data(&n->saved[SAVED_OFFSET]);
    D9D_TRY_OR(st, d9di_op_grad_alloc(n, GATE, &dgate), out);
    D9D_TRY_OR(st, d9di_op_grad_alloc(n, UP, &dup), out);
    D9D_TRY_OR(st,
               D9DI_KERNEL(n->tape, gemm->swiglu_bwd, &dims, d9d_tensor_data(&dgate),
                           d9d_tensor_data(&dup), d9d_tensor_data(&n->dout[0]),
                           d9d_tensor_data(&n->param[0]->local.data),
                           d9d_tensor_data(&n->saved[GATE]), d9d_tensor_data(&n->saved[UP])),
               out);
    D9D_TRY_OR(st, d9d_node_accumulate_grad(n, GATE, &dgate), out);
    D9D_TRY_OR(st, d9d_node_accumulate_grad(n, UP, &dup), out);
    if (n->n_in > PLUS) {
        dy = d9d_tensor_ref(&n->dout[0]);
        st = d9d_node_accumulate_grad(n, PLUS, &dy);
    }
out:
    d9d_tensor_release(&dgate);
    d9d_tensor_release(&dup);
    return st;
}

static d9d_status ffn_wgrad(d9d_node *n)
{
    const d9d_tensor *h = &n->saved[SAVED_H];

    return has_experts(n) ? d9di_op_grouped_linear_wgrad(n, &n->saved[SAVED_OFFSET], h, &n->dout[0],
                                                         n->param[0])
                          : d9di_op_linear_wgrad(n, h, &n->dout[0], n->param[0]);
}

static const d9d_node_ops ffn_node_ops = {.name = "ffn", .dgrad = ffn_dgrad, .wgrad = ffn_wgrad};

/* Arguments of one call, and its intermediate arrays. */
typedef struct ffn_call {
    d9d_tape *t;
    d9d_var *x;
    const d9d_op_ffn_weights *w;
    const d9d_routing *r;       /* NULL: no experts */
    const d9d_op_ffn_tp *ranks; /* NULL: no tensor parallelism */
    d9d_var *plus;
    d9d_var *both[2], *h;      /* gate and up */
    d9d_gemm_swiglu_dims gate; /* of gate and up */
    d9d_gemm down;             /* h times Wd */
} ffn_call;

/* Output features of w. */
static int64_t out_features(const ffn_call *c, const d9d_param *w)
{
    return w->local.data.shape.dim[c->r != NULL ? 2 : 0];
}

static d9d_shape output_shape(const ffn_call *c, const d9d_param *w)
{
    d9d_shape s = d9d_var_tensor(c->x)->shape;

    s.dim[s.ndim - 1] = out_features(c, w);
    return s;
}

static d9d_status weight_check(const ffn_call *c, const d9d_tensor *x, const d9d_param *w)
{
    return c->r != NULL ? d9di_op_grouped_linear_check(x, w, c->r) : d9di_op_linear_check(x, w);
}

/* plus must have y's shape; with tensor parallelism d9di_op_tp_reduce_scatter() checks it. */
static d9d_status plus_check(const ffn_call *c)
{
    const d9d_tensor *x = d9d_var_tensor(c->x), *plus = d9d_var_tensor(c->plus);
    const d9d_shape y = output_shape(c, c->w->down);

    D9D_TRY(d9di_op_check("ffn", "plus", plus, x->dtype));
    if (c->ranks == NULL && !d9d_shape_equal(&plus->shape, &y))
        return d9di_op_misfit("ffn", "plus", &plus->shape, "y", &y,
                              "a residual has the result's shape");
    return D9D_OK;
}

static d9d_status ffn_check(const ffn_call *c)
{
    const d9d_param *gate = c->w->gate, *up = c->w->up;
    const d9d_tensor *x = d9d_var_tensor(c->x);
    d9d_tensor h = *x;

    if (c->r != NULL && (c->plus != NULL || c->ranks != NULL))
        return D9D_FAIL(D9D_EINVAL,
                        "ffn: experts support neither a residual nor tensor-parallel overlap");
    D9D_TRY(weight_check(c, x, gate));
    D9D_TRY(weight_check(c, x, up));
    if (!d9d_shape_equal(&gate->local.data.shape, &up->local.data.shape))
        return d9di_op_misfit("ffn", d9di_op_param_name(up), &up->local.data.shape,
                              d9di_op_param_name(gate), &gate->local.data.shape,
                              "gate and up have one shape");
    h.shape = output_shape(c, gate);
    D9D_TRY(weight_check(c, &h, c->w->down));
    return c->plus != NULL ? plus_check(c) : D9D_OK;
}

/* The same by separate ops. */
static d9d_status ffn_unfused(ffn_call *c, d9d_var **y)
{
    d9d_param *const down = c->w->down;

    if (c->r != NULL) {
        d9d_param *const w[] = {c->w->gate, c->w->up};

        D9D_TRY(d9d_op_grouped_linear(c->t, c->x, w, 2, c->r, c->both));
    } else {
        D9D_TRY(d9d_op_linear(c->t, c->x, c->w->gate, &c->both[0]));
        D9D_TRY(d9d_op_linear(c->t, c->x, c->w->up, &c->both[1]));
    }
    D9D_TRY(d9d_op_swiglu(c->t, c->both[0], c->both[1], &c->h));
    if (c->r != NULL)
        return d9d_op_grouped_linear(c->t, c->h, &down, 1, c->r, y);
    if (c->ranks != NULL)
        return d9d_op_linear_reduce_scatter(c->t, c->h, down, c->ranks->comm, c->ranks->label,
                                            c->plus, y);
    return c->plus != NULL ? d9d_op_linear_residual(c->t, c->h, down, c->plus, y)
                           : d9d_op_linear(c->t, c->h, down, y);
}

static d9d_status gate_up_rows(void *arg, const d9di_op_tp_rows *part)
{
    ffn_call *c = arg;

    c->gate.rows = part->n;
    return D9DI_KERNEL(
        c->t, gemm->swiglu, &c->gate, d9di_op_row_ptr(d9d_var_tensor(c->h), part->first),
        d9di_op_row_ptr(d9d_var_tensor(c->both[0]), part->first),
        d9di_op_row_ptr(d9d_var_tensor(c->both[1]), part->first), part->x,
        d9d_tensor_data(&c->w->gate->local.data), d9d_tensor_data(&c->w->up->local.data));
}

/* Compute gate, up and h from x. */
static d9d_status gate_up_forward(ffn_call *c)
{
    const d9d_tensor *x = d9d_var_tensor(c->x);
    d9d_param *const w[] = {c->w->gate, c->w->up};
    const d9d_shape wide = output_shape(c, w[0]);
    d9d_op_pending_rows *coming = c->ranks != NULL ? c->ranks->pending : NULL;

    c->gate = (d9d_gemm_swiglu_dims){.t = x->dtype,
                                     .h = d9di_op_last_dim(&x->shape),
                                     .i = out_features(c, w[0]),
                                     .e = 1,
                                     .weights_constant = d9d_tape_is_weight_constant(c->t, w[0]) &&
                                                         d9d_tape_is_weight_constant(c->t, w[1])};
    if (c->r != NULL) {
        c->gate.e = w[0]->local.data.shape.dim[0];
        c->gate.offset = d9d_tensor_data(&c->r->offset);
    }
    for (int i = 0; i < 2; i++)
        D9D_TRY(d9d_tape_output(c->t, x->dtype, wide, &c->both[i]));
    D9D_TRY(d9d_tape_output(c->t, x->dtype, wide, &c->h));
    D9D_TRY(d9di_op_tp_for_each_rank(c->t, coming, c->x, gate_up_rows, c));
    if (c->r != NULL)
        return d9di_op_grouped_linear_record(c->t, c->x, w, 2, c->r, c->both);
    D9D_TRY(d9di_op_linear_record(c->t, c->x, w[0], c->both[0]));
    return d9di_op_linear_record(c->t, c->x, w[1], c->both[1]);
}

/* Rows [first, first + n) of h Wd' (+ plus). */
static d9d_status down_rows(void *arg, int64_t first, int64_t n, void *y)
{
    ffn_call *c = arg;

    c->down.m = n;
    return D9DI_KERNEL(c->t, gemm->dense, &c->down, d9di_op_row_ptr(d9d_var_tensor(c->h), first),
                       d9d_tensor_data(&c->w->down->local.data), y);
}

/* y = h Wd' (+ plus) */
static d9d_status down_gemm(const ffn_call *c, const d9d_gemm_swiglu_dims *n, d9d_var *y)
{
    const void *h = d9d_tensor_data(d9d_var_tensor(c->h));
    const void *w = d9d_tensor_data(&c->w->down->local.data);
    void *out = d9d_tensor_data(d9d_var_tensor(y));
    d9d_gemm g = c->down;

    g.beta = c->plus != NULL ? 1.0f : 0.0f;
    g.addend = c->plus != NULL ? d9d_tensor_data(d9d_var_tensor(c->plus)) : NULL;
    return c->r == NULL ? D9DI_KERNEL(c->t, gemm->dense, &g, h, w, out)
                        : D9DI_KERNEL(c->t, gemm->grouped, n->t, out, h, w,
                                      d9d_tensor_data(&c->r->offset), n->rows, n->e, n->i, n->h);
}

/* With tensor parallelism `plus` is an input of the reduce-scatter, not of this node. */
static d9d_status down_record(const ffn_call *c, const d9d_gemm_swiglu_dims *n, d9d_var *y)
{
    d9d_var *const in[] = {c->both[0], c->both[1], c->plus};
    const size_t n_in = c->plus != NULL && c->ranks == NULL ? 3 : 2;
    d9d_param *const w = c->w->down;
    d9d_node *node;

    if (!d9d_tape_should_record(c->t, in, n_in, &w, 1))
        return D9D_OK;
    D9D_TRY(d9d_tape_record(c->t, &ffn_node_ops, in, n_in, &y, 1, &w, 1, sizeof(*n), &node));
    *(d9d_gemm_swiglu_dims *)node->attr = *n;
    (void)d9d_node_save(node, d9d_var_tensor(c->both[0]), D9D_NEED_DGRAD);
    (void)d9d_node_save(node, d9d_var_tensor(c->both[1]), D9D_NEED_DGRAD);
    (void)d9d_node_save(node, d9d_var_tensor(c->h), D9D_NEED_WGRAD);
    if (c->r != NULL)
        (void)d9d_node_save(node, &c->r->offset, D9D_NEED_BOTH);
    return D9D_OK;
}

static d9d_status down_local(const ffn_call *c, const d9d_gemm_swiglu_dims *n, d9d_var **y)
{
    d9d_var *out;

    D9D_TRY(d9d_tape_output(c->t, n->t, output_shape(c, c->w->down), &out));
    D9D_TRY(down_gemm(c, n, out));
    D9D_TRY(down_record(c, n, out));
    *y = out;
    return D9D_OK;
}

static d9d_status down_reduce_scatter(ffn_call *c, const d9d_gemm_swiglu_dims *n, d9d_var **y)
{
    const d9di_op_tp_reduce_scatter_args sum = {c->ranks->comm, c->ranks->label, c->plus, down_rows,
                                                c};
    d9d_var *part, *out;

    D9D_TRY(d9di_op_tp_reduce_scatter(c->t, &sum, n->t, output_shape(c, c->w->down), &part, &out));
    D9D_TRY(down_record(c, n, part));
    D9D_TRY(d9di_op_tp_reduce_scatter_record(c->t, &sum, part, out));
    *y = out;
    return D9D_OK;
}

d9d_status d9d_op_ffn(d9d_tape *t, d9d_var *x, const d9d_op_ffn_weights *w, const d9d_routing *r,
                      const d9d_op_ffn_tp *ranks, d9d_var *plus, d9d_var **y)
{
    const d9d_tensor *tx = d9d_var_tensor(x);
    ffn_call c = {.t = t, .x = x, .w = w, .r = r, .ranks = ranks, .plus = plus};
    d9d_gemm_swiglu_dims n = {.t = tx->dtype, .e = 1};

    D9D_TRY(ffn_check(&c));
    if (w->gate->lora.adapter != NULL || w->up->lora.adapter != NULL ||
        w->down->lora.adapter != NULL) {
        D9D_TRY(ranks != NULL ? d9d_op_all_gather_rows_wait(t, ranks->pending, x) : D9D_OK);
        return ffn_unfused(&c, y);
    }
    D9D_TRY(gate_up_forward(&c));
    n.rows = d9di_op_rows(&tx->shape);
    n.i = out_features(&c, w->gate);
    n.h = out_features(&c, w->down);
    if (r != NULL)
        n.e = w->down->local.data.shape.dim[0];
    c.down = (d9d_gemm){.t = n.t,
                        .ct = n.t,
                        .trans_b = true,
                        .m = n.rows,
                        .n = n.h,
                        .k = n.i,
                        .b_constant = d9d_tape_is_weight_constant(t, w->down)};
    return ranks != NULL ? down_reduce_scatter(&c, &n, y) : down_local(&c, &n, y);
}
