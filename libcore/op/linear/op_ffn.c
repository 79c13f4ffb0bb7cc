/* op_ffn.c - FFN: y = h Wd' + bd (+ plus), h = act(gate) up, gate = x Wg' + bg, up = x Wu' + bu; or
 * h = act(up) without a gate; dense, or grouped by expert.
 *
 *     dgate, dup = the gradients of the unit for dy Wd        dWd = dy' h        dplus = dy
 *
 * Gate and up are one fused GEMM with a GLU epilogue.  The unit and down are one node, so that h
 * needs no kernel of its own and the gradient of h is never in memory.  Products add the biases,
 * which are nodes of their own that share arrays with their inputs.  If a matrix has an adapter or
 * a recipe of FP8, or h dropout, the ops run unfused; so they do where backward meets a quantised
 * matrix, and where a quantised one has a bias after it.
 */
#include "op/linear/op_gemm.h"
#include "op/parallel/op_tp_overlap.h"

enum { GATE, UP }; /* inputs and saved: what the unit reads, gate first; the rest follows */

typedef struct ffn_attr {
    d9d_gemm_glu_dims dims;
    int n_read; /* 2: gate and up; 1: up alone */
    bool grouped;
} ffn_attr;

/* What follows the arrays that the unit reads: the input `plus`, and saved arrays. */
enum { PLUS = 0, SAVED_H = 0, SAVED_OFFSET };
static int after_read(const d9d_node *n, int which)
{
    return ((const ffn_attr *)n->attr)->n_read + which;
}

static d9d_status ffn_dgrad(d9d_node *n)
{
    const ffn_attr *a = n->attr;
    const bool gated = a->n_read > UP;
    d9d_gemm_glu_dims dims = a->dims;
    d9d_tensor d[2] = {{0}}, dy;
    d9d_status st;

    if (a->grouped)
        dims.offset = d9d_tensor_data(&n->saved[after_read(n, SAVED_OFFSET)]);
    for (int i = 0; i < a->n_read; i++)
        D9D_TRY_OR(st, d9di_op_grad_alloc(n, i, &d[i]), out);
    D9D_TRY_OR(st,
               D9DI_KERNEL(n->tape, gemm->glu_bwd, &dims, d9d_tensor_data(&d[GATE]),
                           gated ? d9d_tensor_data(&d[UP]) : NULL, d9d_tensor_data(&n->dout[0]),
                           d9d_tensor_data(&n->param[0]->local.data),
                           d9d_tensor_data(&n->saved[GATE]),
                           gated ? d9d_tensor_data(&n->saved[UP]) : NULL),
               out);
    for (int i = 0; i < a->n_read; i++)
        D9D_TRY_OR(st, d9d_node_accumulate_grad(n, i, &d[i]), out);
    if (n->n_in > after_read(n, PLUS)) {
        dy = d9d_tensor_ref(&n->dout[0]);
        st = d9d_node_accumulate_grad(n, after_read(n, PLUS), &dy);
    }
out:
    d9d_tensor_release(&d[GATE]);
    d9d_tensor_release(&d[UP]);
    return st;
}

static d9d_status ffn_wgrad(d9d_node *n)
{
    const d9d_tensor *h = &n->saved[after_read(n, SAVED_H)];

    return ((const ffn_attr *)n->attr)->grouped
               ? d9di_op_grouped_linear_wgrad(n, &n->saved[after_read(n, SAVED_OFFSET)], h,
                                              &n->dout[0], n->param[0])
               : d9di_op_linear_wgrad(n, h, &n->dout[0], n->param[0]);
}

static const d9d_node_ops ffn_node_ops = {.name = "ffn", .dgrad = ffn_dgrad, .wgrad = ffn_wgrad};

/* Arguments of one call, and its intermediate arrays. */
typedef struct ffn_call {
    d9d_tape *t;
    d9d_var *x;
    const d9d_tensor *in; /* x, of experts in their order */
    const d9d_op_ffn_weights *w;
    const d9d_routing *r;       /* NULL: no experts */
    const d9d_op_ffn_tp *ranks; /* NULL: no tensor parallelism */
    d9d_var *plus;
    int n_read; /* of the arrays that the unit reads: gate and up, or up alone */
    d9d_param *read_w[2], *read_b[2];
    d9d_var *read[2], *h;
    d9d_gemm_glu_dims gate; /* of gate and up */
    d9d_gemm down;          /* h times Wd */
} ffn_call;

static void read_init(ffn_call *c)
{
    const d9d_op_ffn_weights *w = c->w;

    c->n_read = w->gate != NULL ? 2 : 1;
    c->read_w[GATE] = w->gate != NULL ? w->gate : w->up;
    c->read_b[GATE] = w->gate != NULL ? w->gate_bias : w->up_bias;
    c->read_w[UP] = w->gate != NULL ? w->up : NULL;
    c->read_b[UP] = w->gate != NULL ? w->up_bias : NULL;
}

/* Output features of w. */
static int64_t out_features(const ffn_call *c, const d9d_param *w)
{
    return d9di_op_weight_shape(w)->dim[c->r != NULL ? 2 : 0];
}

static d9d_shape output_shape(const ffn_call *c, const d9d_param *w)
{
    d9d_shape s = c->in->shape;

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
    const d9d_tensor *x = c->in, *plus = d9d_var_tensor(c->plus);
    const d9d_shape y = output_shape(c, c->w->down);

    D9D_TRY(d9di_op_check("ffn", "plus", plus, x->dtype));
    if (c->ranks == NULL && !d9d_shape_equal(&plus->shape, &y))
        return d9di_op_misfit("ffn", "plus", &plus->shape, "y", &y,
                              "a residual has the result's shape");
    return D9D_OK;
}

/* A bias has an element for each output feature, of each expert. */
static d9d_status bias_check(const ffn_call *c, const d9d_param *b, const d9d_param *w)
{
    const int64_t out = out_features(c, w);
    const d9d_shape want =
        c->r != NULL ? D9D_SHAPE(w->local.data.shape.dim[0], out) : D9D_SHAPE(out);

    if (b == NULL)
        return D9D_OK;
    D9D_TRY(d9di_op_check_param("ffn", b, c->in->dtype));
    if (!d9d_shape_equal(&b->local.data.shape, &want))
        return d9di_op_misfit("ffn", d9di_op_param_name(b), &b->local.data.shape,
                              d9di_op_param_name(w), d9di_op_weight_shape(w),
                              "a bias has an element for each output feature");
    return D9D_OK;
}

static d9d_status ffn_check(const ffn_call *c)
{
    const d9d_param *gate = c->read_w[GATE], *up = c->read_w[UP];
    const d9d_tensor *x = c->in;
    d9d_tensor h = *x;

    if (c->r != NULL && (c->plus != NULL || c->ranks != NULL || c->w->dropout.p != 0))
        return D9D_FAIL(
            D9D_EINVAL,
            "ffn: experts support no residual, no tensor-parallel overlap and no dropout");
    if (c->w->gate == NULL && c->w->gate_bias != NULL)
        return D9D_FAIL(D9D_EINVAL, "ffn: a bias of the gate, but there is no gate");
    for (int i = 0; i < c->n_read; i++) {
        D9D_TRY(weight_check(c, x, c->read_w[i]));
        D9D_TRY(bias_check(c, c->read_b[i], c->read_w[i]));
    }
    if (up != NULL && !d9d_shape_equal(d9di_op_weight_shape(gate), d9di_op_weight_shape(up)))
        return d9di_op_misfit("ffn", d9di_op_param_name(up), d9di_op_weight_shape(up),
                              d9di_op_param_name(gate), d9di_op_weight_shape(gate),
                              "gate and up have one shape");
    h.shape = output_shape(c, gate);
    D9D_TRY(weight_check(c, &h, c->w->down));
    D9D_TRY(bias_check(c, c->w->down_bias, c->w->down));
    return c->plus != NULL ? plus_check(c) : D9D_OK;
}

static d9d_status down_unfused(ffn_call *c, d9d_var **y)
{
    d9d_param *const down = c->w->down;

    if (c->r != NULL)
        return d9d_op_grouped_linear(c->t, c->h, &down, 1, c->r, y);
    if (c->ranks != NULL)
        return d9d_op_linear_reduce_scatter(c->t, c->h, down, c->ranks->comm, c->ranks->label,
                                            c->plus, y);
    return c->plus != NULL ? d9d_op_linear_residual(c->t, c->h, down, c->plus, y)
                           : d9d_op_linear(c->t, c->h, down, y);
}

/* Gate and up, of one reading of x. */
static d9d_status read_linear(ffn_call *c)
{
    d9d_op_weight_slice of[2];

    for (int i = 0; i < c->n_read; i++)
        of[i] = (d9d_op_weight_slice){.w = c->read_w[i], .n = out_features(c, c->read_w[i])};
    return d9d_op_linear_multi(c->t, c->x, NULL, of, (size_t)c->n_read, c->read);
}

/* The same by separate ops. */
static d9d_status ffn_unfused(ffn_call *c, d9d_var **y)
{
    D9D_TRY(c->r != NULL
                ? d9d_op_grouped_linear(c->t, c->x, c->read_w, (size_t)c->n_read, c->r, c->read)
                : read_linear(c));
    for (int i = 0; i < c->n_read; i++)
        if (c->read_b[i] != NULL)
            D9D_TRY(d9di_op_bias_add(c->t, &c->read[i], c->read_b[i], 0, c->r));
    D9D_TRY(d9d_op_glu(c->t, &c->w->glu, c->read[GATE], c->read[UP], &c->h));
    D9D_TRY(d9d_op_dropout(c->t, c->h, &c->w->dropout, &c->h));
    return down_unfused(c, y);
}

static void *param_data(const d9d_param *p)
{
    return p != NULL ? d9d_tensor_data(&p->local.data) : NULL;
}
static void *rows_of(d9d_var *v, int64_t first)
{
    return v != NULL ? d9di_op_row_ptr(d9d_var_tensor(v), first) : NULL;
}

static d9d_status gate_up_rows(void *arg, const d9di_op_tp_rows *part)
{
    ffn_call *c = arg;
    d9d_quant_matrix w[2];

    c->gate.rows = part->n;
    if (c->read_w[GATE]->spec.stored != D9D_QUANT_NONE) {
        for (int i = 0; i < c->n_read; i++)
            w[i] = d9d_param_quant_rows(c->read_w[i], 0, c->gate.i);
        return D9DI_KERNEL(c->t, quant->glu, &c->gate, rows_of(c->h, part->first),
                           rows_of(c->read[GATE], part->first), rows_of(c->read[UP], part->first),
                           part->x, w);
    }
    return D9DI_KERNEL(c->t, gemm->glu, &c->gate, rows_of(c->h, part->first),
                       rows_of(c->read[GATE], part->first), rows_of(c->read[UP], part->first),
                       part->x, param_data(c->read_w[GATE]), param_data(c->read_w[UP]));
}

static bool weights_constant(const ffn_call *c)
{
    for (int i = 0; i < c->n_read; i++)
        if (!d9d_tape_is_weight_constant(c->t, c->read_w[i]))
            return false;
    return true;
}

static d9d_status gate_up_record(ffn_call *c)
{
    if (c->r != NULL)
        D9D_TRY(
            d9di_op_grouped_linear_record(c->t, c->x, c->read_w, (size_t)c->n_read, c->r, c->read));
    for (int i = 0; i < c->n_read; i++) {
        if (c->r == NULL)
            D9D_TRY(d9di_op_linear_record(c->t, c->x, c->read_w[i], c->read[i]));
        if (c->read_b[i] != NULL)
            D9D_TRY(d9di_op_bias_record(c->t, &c->read[i], c->read_b[i], 0, c->r));
    }
    return D9D_OK;
}

/* Compute gate, up and h from x. */
static d9d_status gate_up_forward(ffn_call *c)
{
    const d9d_tensor *x = c->in;
    const d9d_shape wide = output_shape(c, c->read_w[GATE]);
    d9d_op_pending_rows *coming = c->ranks != NULL ? c->ranks->pending : NULL;

    c->gate = (d9d_gemm_glu_dims){.t = x->dtype,
                                  .h = d9di_op_last_dim(&x->shape),
                                  .i = out_features(c, c->read_w[GATE]),
                                  .e = 1,
                                  .weights_constant = weights_constant(c),
                                  .glu = c->w->glu,
                                  .b_gate = param_data(c->read_b[GATE]),
                                  .b_up = param_data(c->read_b[UP])};
    if (c->r != NULL) {
        c->gate.e = c->read_w[GATE]->local.data.shape.dim[0];
        c->gate.offset = d9d_tensor_data(&c->r->offset);
    }
    for (int i = 0; i < c->n_read; i++)
        D9D_TRY(d9d_tape_output(c->t, x->dtype, wide, &c->read[i]));
    D9D_TRY(d9d_tape_output(c->t, x->dtype, wide, &c->h));
    D9D_TRY(d9di_op_tp_for_each_rank(c->t, coming, c->x, gate_up_rows, c));
    return gate_up_record(c);
}

/* Rows [first, first + n) of h Wd' (+ plus). */
static d9d_status down_rows(void *arg, int64_t first, int64_t n, void *y)
{
    ffn_call *c = arg;

    c->down.m = n;
    return d9di_op_weight_gemm(c->t, &c->down, d9di_op_row_ptr(d9d_var_tensor(c->h), first),
                               c->w->down, 0, y);
}

/* y = h Wd' (+ plus) */
static d9d_status down_gemm(const ffn_call *c, const d9d_gemm_glu_dims *n, d9d_var *y)
{
    const void *h = d9d_tensor_data(d9d_var_tensor(c->h));
    void *out = d9d_tensor_data(d9d_var_tensor(y));
    d9d_gemm g = c->down;

    g.bias = c->r == NULL ? param_data(c->w->down_bias) : NULL;
    g.beta = c->plus != NULL ? 1.0f : 0.0f;
    g.addend = c->plus != NULL ? d9d_tensor_data(d9d_var_tensor(c->plus)) : NULL;
    return c->r == NULL ? d9di_op_weight_gemm(c->t, &g, h, c->w->down, 0, out)
                        : D9DI_KERNEL(c->t, gemm->grouped, n->t, out, h,
                                      d9d_tensor_data(&c->w->down->local.data),
                                      d9d_tensor_data(&c->r->offset), n->rows, n->e, n->i, n->h);
}

/* With tensor parallelism `plus` is an input of the reduce-scatter, not of this node. */
static d9d_status down_record(const ffn_call *c, const d9d_gemm_glu_dims *n, d9d_var *y)
{
    const bool has_plus = c->plus != NULL && c->ranks == NULL;
    d9d_var *in[] = {c->read[GATE], c->read[UP], c->plus};
    const size_t n_in = (size_t)c->n_read + has_plus;
    d9d_param *const w = c->w->down;
    d9d_node *node;

    if (has_plus)
        in[c->n_read] = c->plus;
    if (!d9d_tape_should_record(c->t, in, n_in, &w, 1))
        return D9D_OK;
    D9D_TRY(d9d_tape_record(c->t, &ffn_node_ops, in, n_in, &y, 1, &w, 1, sizeof(ffn_attr), &node));
    *(ffn_attr *)node->attr = (ffn_attr){*n, c->n_read, c->r != NULL};
    for (int i = 0; i < c->n_read; i++)
        (void)d9d_node_save(node, d9d_var_tensor(c->read[i]), D9D_NEED_DGRAD);
    (void)d9d_node_save(node, d9d_var_tensor(c->h), D9D_NEED_WGRAD);
    if (c->r != NULL)
        (void)d9d_node_save(node, &c->r->offset, D9D_NEED_BOTH);
    return D9D_OK;
}

static d9d_status down_local(const ffn_call *c, const d9d_gemm_glu_dims *n, d9d_var **y)
{
    d9d_var *out;

    D9D_TRY(d9d_tape_output(c->t, n->t, output_shape(c, c->w->down), &out));
    D9D_TRY(down_gemm(c, n, out));
    D9D_TRY(down_record(c, n, out));
    *y = out;
    if (c->w->down_bias == NULL)
        return D9D_OK;
    return c->r != NULL ? d9di_op_bias_add(c->t, y, c->w->down_bias, 0, c->r)
                        : d9di_op_bias_record(c->t, y, c->w->down_bias, 0, NULL);
}

static d9d_status down_reduce_scatter(ffn_call *c, const d9d_gemm_glu_dims *n, d9d_var **y)
{
    const d9di_op_tp_reduce_scatter_args sum = {c->ranks->comm, c->ranks->label, c->plus, down_rows,
                                                c};
    d9d_var *part, *out;

    D9D_TRY(d9di_op_tp_reduce_scatter(c->t, &sum, n->t, output_shape(c, c->w->down), &part, &out));
    D9D_TRY(down_record(c, n, part));
    D9D_TRY(d9di_op_tp_reduce_scatter_record(c->t, &sum, part, out));
    *y = out;
    return c->w->down_bias != NULL ? d9di_op_bias_add(c->t, y, c->w->down_bias, 0, NULL) : D9D_OK;
}

/* A matrix whose product the fused kernels do not compute. */
static bool is_unfused(const d9d_tape *t, const d9d_param *w)
{
    return d9d_tape_adapter(t, w) != NULL || w->fp8.recipe != NULL;
}

/* The fused backward reads matrices of the activations' type. */
static bool is_quantised_for_backward(const ffn_call *c, const d9d_param *w)
{
    d9d_var *in[] = {c->x, c->plus};

    return w->spec.stored != D9D_QUANT_NONE &&
           d9d_tape_should_record(c->t, in, c->plus != NULL ? 2 : 1, NULL, 0);
}

static bool has_unfused(const ffn_call *c)
{
    const d9d_param *all[] = {c->read_w[GATE], c->w->down, c->read_w[UP]};
    const int n = c->n_read + 1;

    for (int i = 0; i < n && all[i] != NULL; i++)
        if (is_unfused(c->t, all[i]) || is_quantised_for_backward(c, all[i]) ||
            all[i]->spec.stored != all[0]->spec.stored ||
            (all[i]->spec.stored != D9D_QUANT_NONE && c->w->down_bias != NULL))
            return true;
    return false;
}

static d9d_status ffn_fused(ffn_call *c, d9d_var **y)
{
    const d9d_tensor *x = c->in;
    d9d_gemm_glu_dims n = {.t = x->dtype, .e = 1, .glu = c->w->glu};

    D9D_TRY(gate_up_forward(c));
    n.rows = d9di_op_rows(&x->shape);
    n.i = out_features(c, c->read_w[GATE]);
    n.h = out_features(c, c->w->down);
    if (c->r != NULL)
        n.e = c->w->down->local.data.shape.dim[0];
    c->down = (d9d_gemm){.t = n.t,
                         .ct = n.t,
                         .trans_b = true,
                         .m = n.rows,
                         .n = n.h,
                         .k = n.i,
                         .b_constant = d9d_tape_is_weight_constant(c->t, c->w->down)};
    return c->ranks != NULL ? down_reduce_scatter(c, &n, y) : down_local(c, &n, y);
}

d9d_status d9d_op_ffn(d9d_tape *t, d9d_var *x, const d9d_op_ffn_weights *w, const d9d_routing *r,
                      const d9d_op_ffn_tp *ranks, d9d_var *plus, d9d_var **y)
{
    ffn_call c = {
        .t = t, .x = x, .in = d9d_var_tensor(x), .w = w, .r = r, .ranks = ranks, .plus = plus};

    read_init(&c);
    D9D_TRY(ffn_check(&c));
    if (has_unfused(&c) || d9d_op_dropout_is_active(t, w->dropout.p)) {
        D9D_TRY(ranks != NULL ? d9d_op_all_gather_rows_wait(t, ranks->pending, x) : D9D_OK);
        D9D_TRY(ffn_unfused(&c, y));
        return w->down_bias != NULL ? d9di_op_bias_add(t, y, w->down_bias, 0, r) : D9D_OK;
    }
    return ffn_fused(&c, y);
}

/* --- a mixture of experts, without a backward pass -------------------------------------------- */

/* Is a backward pass to come, or is there what one kernel does not compute? */
static bool experts_are_parts(const ffn_call *c, d9d_var *prob)
{
    d9d_var *in[] = {c->x, prob, c->plus};
    d9d_param *const all[] = {c->w->gate,      c->w->up,      c->w->down,
                              c->w->gate_bias, c->w->up_bias, c->w->down_bias};
    d9d_param *w[sizeof(all) / sizeof(all[0])];
    size_t n = 0;

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (all[i] != NULL)
            w[n++] = all[i];
    return has_unfused(c) || d9d_tape_should_record(c->t, in, c->plus != NULL ? 3 : 2, w, n);
}

enum { SORTED, GATES, UPS, HIDDEN, WORK }; /* arrays that are freed at once */

static d9d_status work_alloc(const ffn_call *c, d9d_tensor work[WORK])
{
    d9d_device *dev = d9d_tape_device(c->t);

    for (int i = 0; i < WORK; i++)
        if (i != UPS || c->n_read > UP)
            D9D_TRY(d9d_tensor_alloc(dev, c->in->dtype,
                                     i == SORTED ? c->in->shape : output_shape(c, c->read_w[GATE]),
                                     &work[i]));
    return D9D_OK;
}

static d9d_status experts_run(const ffn_call *c, d9d_var *prob, const d9d_tensor work[WORK],
                              d9d_var **y)
{
    const d9d_tensor *x = d9d_var_tensor(c->x);
    const d9d_shape *d = &c->w->down->local.data.shape; /* [E, I, H] */
    const d9d_experts_args a = {
        .t = x->dtype,
        .rows = x->shape.dim[0],
        .k = c->r->row.shape.dim[1],
        .n = d9di_routing_rows(c->r),
        .e = d->dim[0],
        .i = d->dim[1],
        .h = d->dim[2],
        .glu = c->w->glu,
        .x = d9d_tensor_data(x),
        .plus = c->plus != NULL ? d9d_tensor_data(d9d_var_tensor(c->plus)) : NULL,
        .prob = d9d_tensor_data(d9d_var_tensor(prob)),
        .order = d9di_routing_order(c->r),
        .gate = param_data(c->read_w[GATE]),
        .up = param_data(c->read_w[UP]),
        .down = param_data(c->w->down),
        .b_gate = param_data(c->read_b[GATE]),
        .b_up = param_data(c->read_b[UP]),
        .b_down = param_data(c->w->down_bias),
        .sorted = d9d_tensor_data(&work[SORTED]),
        .gates = d9d_tensor_data(&work[GATES]),
        .ups = c->n_read > UP ? d9d_tensor_data(&work[UPS]) : NULL,
        .hidden = d9d_tensor_data(&work[HIDDEN]),
    };

    D9D_TRY(d9d_tape_output(c->t, a.t, x->shape, y));
    return D9DI_KERNEL(c->t, moe->experts, &a, d9d_tensor_data(d9d_var_tensor(*y)));
}

static d9d_status experts_check(const ffn_call *c, d9d_var *prob)
{
    const d9d_tensor *x = d9d_var_tensor(c->x), *p = d9d_var_tensor(prob);

    D9D_TRY(d9di_op_check_real("experts", "x", x));
    D9D_TRY(d9di_op_check_routing("experts", x, c->r, false));
    D9D_TRY(d9di_op_check("experts", "prob", p, D9D_F32));
    D9D_TRY(d9di_op_check_same("experts", "the expert ids", &c->r->expert, "prob", p));
    if (c->plus != NULL)
        D9D_TRY(d9di_op_check_same("experts", "x", x, "plus", d9d_var_tensor(c->plus)));
    return D9D_OK;
}

/* The same by ops that record. */
static d9d_status experts_by_parts(const ffn_call *c, d9d_var *prob, d9d_var **y)
{
    d9d_var *h;

    D9D_TRY(d9d_op_permute(c->t, c->x, c->r, &h));
    D9D_TRY(d9d_op_ffn(c->t, h, c->w, c->r, NULL, NULL, &h));
    return d9d_op_unpermute(c->t, h, prob, c->r, c->plus, y);
}

d9d_status d9d_op_experts(d9d_tape *t, d9d_var *x, d9d_var *prob, const d9d_op_ffn_weights *w,
                          const d9d_routing *r, d9d_var *plus, d9d_var **y)
{
    ffn_call c = {.t = t, .x = x, .w = w, .r = r, .plus = plus};
    d9d_tensor work[WORK] = {{0}}, sorted = *d9d_var_tensor(x);
    d9d_status st;

    read_init(&c);
    D9D_TRY(experts_check(&c, prob));
    if (experts_are_parts(&c, prob))
        return experts_by_parts(&c, prob, y);
    sorted.shape.dim[0] = d9di_routing_rows(r);
    c.in = &sorted;
    c.plus = NULL; /* of the tokens, not of their sorted rows */
    D9D_TRY(ffn_check(&c));
    c.plus = plus;
    D9D_TRY_OR(st, work_alloc(&c, work), out);
    st = experts_run(&c, prob, work, y);
out:
    for (int i = 0; i < WORK; i++)
        d9d_tensor_release(&work[i]);
    return st;
}
