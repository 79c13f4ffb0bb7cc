/* op_linear_cross_entropy.c - head and loss in one, logits by blocks.  h [T, H], heads [V_s, H].
 *
 *     z = h W^T    lse = log(sum exp z)    loss = lse - z[target]
 *     unit = (exp(z - lse) - onehot(target)) W    dh = dloss unit
 *     dz = (exp(z - lse) - onehot(target)) dloss  dW = dz^T h
 *
 * The forward has z a block at a time and makes `unit` along with the loss where a gradient of
 * h is wanted; the weight half computes z again.  As a root dloss is 1: the forward makes dW too,
 * and dh is `unit` itself.
 *
 * Over n ranks each makes lse and loss of its part of the vocabulary, in its place of
 * parts [n, 2, T]; all have all of them then, and the same sums.  A root's kernel does so itself.
 */
#include "op/op_common.h"

typedef struct xent_attr {
    int32_t ignore;
    int64_t v[D9D_NODE_MAX];     /* rows of each split here */
    int64_t first[D9D_NODE_MAX]; /* ids of their first rows */
    int64_t all;                 /* ids of the whole vocabulary */
    bool part;                   /* that is not all of it */
} xent_attr;

/* The unit comes last: it is there only where a gradient of h is wanted. */
enum { SAVED_H, SAVED_LSE, SAVED_TARGETS, SAVED_UNIT };

/* The kernel's view of an op: dimensions, and the tables as pointers. */
typedef struct xent_call {
    d9d_xent_dims dims;
    const void *w[D9D_NODE_MAX];
} xent_call;

static xent_call call_of(const d9d_tensor *h, d9d_param *const *heads, size_t n, const xent_attr *a)
{
    xent_call c = {.dims = {.t = h->dtype,
                            .rows = h->shape.dim[0],
                            .h = h->shape.dim[1],
                            .n_split = (int)n,
                            .v = a->v,
                            .ignore = a->ignore,
                            .first = a->part ? a->first : NULL,
                            .all = a->all}};

    for (size_t i = 0; i < n; i++)
        c.w[i] = d9d_tensor_data(&heads[i]->data);
    return c;
}

static d9d_status xent_input(d9d_node *n)
{
    const d9d_tensor *unit = &n->saved[SAVED_UNIT];
    d9d_tensor dh;

    D9D_TRY(d9di_node_grad(n, 0, &dh));
    return d9di_node_finish(n, 0, &dh,
                            D9DI_KERNEL(n->tape, xent_din, unit->dtype, d9d_tensor_data(&dh),
                                        d9d_tensor_data(&n->dout[0]), d9d_tensor_data(unit),
                                        unit->shape.dim[0], unit->shape.dim[1]));
}

/* Where the gradients of the heads go; dw[i] NULL: not wanted. */
typedef struct xent_grads {
    d9d_dtype t;
    void *dw[D9D_NODE_MAX];
    float beta[D9D_NODE_MAX];
} xent_grads;

static xent_grads grads_of(d9d_param *const *heads, size_t n)
{
    xent_grads g = {.t = D9D_F32};

    for (size_t i = 0; i < n; i++) {
        if (!d9d_param_wants(heads[i]))
            continue;
        g.t = heads[i]->grad.dtype;
        g.dw[i] = d9d_tensor_data(&heads[i]->grad);
        g.beta[i] = d9d_param_grad_beta(heads[i]);
    }
    return g;
}

static d9d_status xent_weight(d9d_node *n)
{
    const d9d_tensor *h = &n->saved[SAVED_H];
    const xent_call c = call_of(h, n->param, (size_t)n->n_param, n->attr);
    const xent_grads g = grads_of(n->param, (size_t)n->n_param);

    return D9DI_KERNEL(n->tape, xent_dw, &c.dims, g.t, g.dw, g.beta, d9d_tensor_data(&n->dout[0]),
                       d9d_tensor_data(&n->saved[SAVED_LSE]), d9d_tensor_data(h), c.w,
                       d9d_tensor_data(&n->saved[SAVED_TARGETS]));
}

static const d9d_node_ops xent_ops = {
    .name = "linear_cross_entropy", .input = xent_input, .weight = xent_weight};

/* The heads are one matrix to the kernel, so their gradients have one type. */
static d9d_status check_grads(d9d_param *const *heads, size_t n)
{
    const d9d_param *first = NULL;

    for (size_t i = 0; i < n; i++) {
        if (!d9d_param_wants(heads[i]))
            continue;
        first = first != NULL ? first : heads[i];
        if (heads[i]->grad.dtype != first->grad.dtype)
            return D9D_FAIL(D9D_EINVAL, "linear_cross_entropy: the gradient of %s is %s, of %s %s",
                            d9di_param_name(first), d9d_dtype_word(first->grad.dtype),
                            d9di_param_name(heads[i]), d9d_dtype_word(heads[i]->grad.dtype));
    }
    return D9D_OK;
}

static d9d_status check(const d9d_tensor *h, d9d_param *const *heads, size_t n,
                        const d9d_tensor *targets)
{
    static const char op[] = "linear_cross_entropy";

    D9D_TRY(d9di_op_check_real(op, "h", h));
    D9D_TRY(d9di_op_check(op, "targets", targets, D9D_I32));
    if (h->shape.ndim != 2 || !d9d_shape_equal(&targets->shape, &D9D_SHAPE(h->shape.dim[0])))
        return d9di_op_misfit(op, "targets", &targets->shape, "h", &h->shape,
                              "h is [T, H], targets are [T]");
    D9D_TRY(d9di_op_check_splits(op, heads, n, h->dtype, h->shape.dim[1]));
    for (size_t i = 0; i < n; i++)
        if (heads[i]->adapter != NULL)
            return D9D_FAIL(D9D_ENOTSUP,
                            "%s: the head %s has an adapter, which is not computed here; train it "
                            "whole (full_tune)",
                            op, heads[i]->name != NULL ? heads[i]->name : "without a name");
    return check_grads(heads, n);
}

/* *node is NULL where nothing is to be recorded. */
static d9d_status record(d9d_tape *t, d9d_var *h, d9d_param *const *heads, size_t n_heads,
                         d9d_var *loss, const d9d_tensor *lse, const d9d_tensor *targets,
                         const d9d_tensor *unit, const xent_attr *attr, d9d_node **node)
{
    d9d_node *n;

    *node = NULL;
    if (!d9d_tape_wants(t, &h, 1, heads, n_heads))
        return D9D_OK;
    D9D_TRY(d9d_tape_record(t, &xent_ops, &h, 1, &loss, 1, heads, n_heads, sizeof(xent_attr), &n));
    *(xent_attr *)n->attr = *attr;
    (void)d9d_node_save(n, d9d_var_tensor(h), D9D_NEED_WEIGHT);
    (void)d9d_node_save(n, lse, D9D_NEED_WEIGHT);
    (void)d9d_node_save(n, targets, D9D_NEED_WEIGHT);
    (void)d9d_node_save(n, unit, D9D_NEED_INPUT);
    *node = n;
    return D9D_OK;
}

static xent_attr attr_of(d9d_param *const *heads, size_t n, int32_t ignore, bool part)
{
    xent_attr a = {.ignore = ignore, .part = part};

    for (size_t i = 0; i < n; i++) {
        a.v[i] = heads[i]->data.shape.dim[0];
        a.first[i] = d9di_split_first(heads, i);
        a.all += heads[i]->whole.dim[0];
    }
    return a;
}

/* --- forward: arrays of one call ----------------------------------------------------- */

typedef struct run {
    xent_call call;
    const d9d_tensor *h, *targets;
    float *loss, *lse;
    void *unit; /* NULL: not wanted */
    d9d_comm *comm;
    const char *what;
} run;

static d9d_status run_alone(d9d_tape *t, const run *f)
{
    return D9DI_KERNEL(t, xent, &f->call.dims, f->loss, f->lse, f->unit, d9d_tensor_data(f->h),
                       f->call.w, d9d_tensor_data(f->targets));
}

static d9d_status run_parts(d9d_tape *t, const run *f)
{
    const int64_t n = d9d_comm_size(f->comm), mine = d9d_comm_rank(f->comm);
    const int64_t tokens = f->call.dims.rows;
    run part = *f;
    d9d_tensor all;
    float *parts;
    d9d_status st;

    D9D_TRY(d9d_tensor_alloc(d9d_tape_device(t), D9D_F32, D9D_SHAPE(n, 2, tokens), &all));
    parts = d9d_tensor_data(&all);
    part.lse = parts + 2 * mine * tokens;
    part.loss = part.lse + tokens;
    D9D_TRY_OR(st, run_alone(t, &part), out);
    D9D_TRY_OR(st,
               d9di_transfer_even(t, d9d_comm_all_gather, f->comm, f->what, D9D_F32, parts,
                                  part.lse, 2 * tokens),
               out);
    st = D9DI_KERNEL(t, xent_join, &f->call.dims, f->loss, f->lse, f->unit, parts, n, mine,
                     f->call.w, d9d_tensor_data(f->targets));
out:
    d9d_tensor_release(&all);
    return st;
}

static d9d_status forward(d9d_tape *t, d9d_var *h, d9d_param *const *heads, size_t n,
                          const d9d_tensor *targets, int32_t ignore, d9d_comm *comm, d9d_var **loss,
                          d9d_node **node)
{
    const bool part = d9d_comm_size(comm) > 1;
    const d9d_tensor *x = d9d_var_tensor(h);
    d9d_tensor lse = {0}, unit = {0};
    xent_attr attr;
    d9d_var *out;
    d9d_status st;
    run r;

    D9D_TRY_OR(st, check(x, heads, n, targets), out);
    attr = attr_of(heads, n, ignore, part);
    D9D_TRY_OR(st, d9d_tape_output(t, D9D_F32, targets->shape, &out), out);
    D9D_TRY_OR(st, d9d_tensor_alloc(d9d_tape_device(t), D9D_F32, targets->shape, &lse), out);
    if (d9d_tape_wants(t, &h, 1, NULL, 0))
        D9D_TRY_OR(st, d9d_tensor_alloc(d9d_tape_device(t), x->dtype, x->shape, &unit), out);
    r = (run){.call = call_of(x, heads, n, &attr),
              .h = x,
              .targets = targets,
              .loss = d9d_tensor_data(d9d_var_tensor(out)),
              .lse = d9d_tensor_data(&lse),
              .unit = d9d_tensor_data(&unit),
              .comm = comm,
              .what = d9di_param_name(heads[0])};
    D9D_TRY_OR(st, part ? run_parts(t, &r) : run_alone(t, &r), out);
    D9D_TRY_OR(st, record(t, h, heads, n, out, &lse, targets, &unit, &attr, node), out);
    *loss = out;
out:
    d9d_tensor_release(&unit);
    d9d_tensor_release(&lse);
    return st;
}

d9d_status d9d_op_linear_cross_entropy(d9d_tape *t, d9d_var *h, d9d_param *const *heads, size_t n,
                                       const d9d_tensor *targets, int32_t ignore, d9d_comm *comm,
                                       d9d_var **loss)
{
    d9d_node *node;

    return forward(t, h, heads, n, targets, ignore, comm, loss, &node);
}

/* --- as a root ---------------------------------------------------------------------- */

static d9d_status root_input(d9d_node *n)
{
    d9d_tensor dh = d9d_tensor_ref(&n->saved[0]);

    return d9d_node_give(n, 0, &dh);
}

static const d9d_node_ops root_ops = {.name = "linear_cross_entropy", .input = root_input};

/* Ranks with the other parts of the vocabulary. */
typedef struct others {
    d9d_tape *t;
    d9d_comm *comm;
    const char *what;
} others;

static d9d_status gather(void *arg, float *all, int64_t count)
{
    const others *o = arg;

    return d9di_transfer_even(o->t, d9d_comm_all_gather, o->comm, o->what, D9D_F32, all,
                              all + d9d_comm_rank(o->comm) * count, count);
}

/* Rows of the largest part. */
static int64_t most_rows(d9d_param *const *heads, size_t n, int64_t ranks)
{
    int64_t sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (heads[i]->whole.dim[0] + ranks - 1) / ranks;
    return sum;
}

/* Loss, unit (storage NULL: not wanted) and the gradients of the heads. */
static d9d_status root_compute(d9d_tape *t, const d9d_tensor *x, d9d_param *const *heads, size_t n,
                               const d9d_tensor *targets, const xent_attr *attr, d9d_comm *comm,
                               const d9d_tensor *loss, const d9d_tensor *unit)
{
    others o = {t, comm, d9di_param_name(heads[0])};
    const d9d_xent_ranks ranks = {.n = d9d_comm_size(comm),
                                  .mine = d9d_comm_rank(comm),
                                  .most = most_rows(heads, n, d9d_comm_size(comm)),
                                  .gather = gather,
                                  .arg = &o};
    xent_call c = call_of(x, heads, n, attr);
    const xent_grads g = grads_of(heads, n);

    c.dims.ranks = attr->part ? &ranks : NULL;
    return D9DI_KERNEL(t, xent_once, &c.dims, g.t, d9d_tensor_data(loss), d9d_tensor_data(unit),
                       g.dw, g.beta, d9d_tensor_data(x), c.w, d9d_tensor_data(targets));
}

static d9d_status root_forward(d9d_tape *t, d9d_var *h, d9d_param *const *heads, size_t n,
                               const d9d_tensor *targets, int32_t ignore, d9d_comm *comm,
                               d9d_var **loss, d9d_node **node)
{
    const d9d_tensor *x = d9d_var_tensor(h);
    d9d_tensor unit = {0};
    xent_attr attr;
    d9d_var *out;
    d9d_status st;

    D9D_TRY(check(x, heads, n, targets));
    attr = attr_of(heads, n, ignore, d9d_comm_size(comm) > 1);
    if (d9d_var_needs_grad(h))
        D9D_TRY(d9d_tensor_alloc(d9d_tape_device(t), x->dtype, x->shape, &unit));
    D9D_TRY_OR(st, d9d_tape_output(t, D9D_F32, targets->shape, &out), out);
    D9D_TRY_OR(st, root_compute(t, x, heads, n, targets, &attr, comm, d9d_var_tensor(out), &unit),
               out);
    D9D_TRY_OR(st, d9d_tape_record(t, &root_ops, &h, 1, &out, 1, heads, n, 0, node), out);
    (void)d9d_node_save(*node, &unit, D9D_NEED_INPUT);
    *loss = out;
out:
    d9d_tensor_release(&unit);
    return st;
}

/* Ones as the gradient of every loss. */
static d9d_status seed(d9d_node *n, const d9d_shape *shape)
{
    D9D_TRY(d9d_node_alloc(n, D9D_F32, *shape, &n->dout[0]));
    return D9DI_KERNEL(n->tape, fill, D9D_F32, d9d_tensor_data(&n->dout[0]), d9d_shape_numel(shape),
                       1.0f);
}

/* Where the gradients of the heads have no memory yet their turn comes in the backward. */
d9d_status d9d_op_linear_cross_entropy_root(d9d_tape *t, d9d_var *h, d9d_param *const *heads,
                                            size_t n, const d9d_tensor *targets, int32_t ignore,
                                            d9d_comm *comm, d9d_var **loss)
{
    bool at_once = d9d_tape_wants(t, &h, 1, heads, n);
    d9d_node *node;

    D9D_TRY(d9d_tape_check_root(t, "linear_cross_entropy"));
    for (size_t i = 0; i < n; i++)
        at_once = at_once && (!d9d_param_wants(heads[i]) || heads[i]->grad.storage != NULL);
    D9D_TRY(at_once ? root_forward(t, h, heads, n, targets, ignore, comm, loss, &node)
                    : forward(t, h, heads, n, targets, ignore, comm, loss, &node));
    if (node == NULL)
        return D9D_OK;
    d9d_node_make_root(node);
    return at_once ? D9D_OK : seed(node, &targets->shape);
}
