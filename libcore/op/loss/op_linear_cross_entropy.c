/* op_linear_cross_entropy.c - language-model head and cross entropy in one, logits by blocks.
 * h [T, H], heads [V_s, H].
 *
 *     z = h W^T    lse = log(sum exp z)    loss = lse - z[target]
 *     unit = (exp(z - lse) - onehot(target)) W    dh = dloss unit
 *     dz = (exp(z - lse) - onehot(target)) dloss  dW = dz^T h
 *
 * Forward computes z one block at a time.  If a gradient of h is wanted, it computes `unit` along
 * with the loss; wgrad recomputes z.  As a root of the backward dloss is 1: forward computes dW
 * too, and dh is `unit` itself.
 *
 * With a softcap c, z = c tanh(h W^T / c); `unit` and dz have the factor 1 - (z / c)^2.  With a
 * bias b, h W^T is h W^T + b, and db the sum of dz over tokens: a parameter behind the heads.
 *
 * With an adapter of the one table h and W are wider (op_head_adapter.h).  Quantised tables are
 * dequantised for the call, and have no backward.
 *
 * Vocabulary parallel over n ranks: each rank computes lse and loss of its part of the vocabulary
 * in its place of parts [n, 2, T].  An all-gather gives every rank all parts, and all compute the
 * same sums.  A root's kernel does the all-gather itself.
 */
#include <string.h>

#include "op/loss/op_head_adapter.h"

typedef struct lce_attr {
    d9d_op_vocab_opts opts;
    int64_t v[D9D_NODE_MAX];     /* rows of each table that this rank has */
    int64_t first[D9D_NODE_MAX]; /* ids of their first rows */
    int64_t all;                 /* ids of the whole vocabulary */
    size_t n;                    /* tables; a node's next parameters are B and the bias, if any */
    bool adapted;                /* the table has an adapter: h is wide (op_head_adapter.h) */
    bool part;                   /* this rank has a part of it only */
} lce_attr;

/* `unit` is last because it exists only if a gradient of h is wanted. */
enum { SAVED_H, SAVED_LSE, SAVED_TARGETS, SAVED_UNIT };

/* The kernel's view of an op: dimensions, and the tables as pointers. */
typedef struct lce_call {
    d9d_linear_cross_entropy_dims dims;
    const void *w[D9D_NODE_MAX];
    d9d_tensor own[D9D_NODE_MAX]; /* tables of the call: one with its adapter, or dequantised ones;
                                     storage NULL: none */
} lce_call;

static void lce_call_release(lce_call *c)
{
    for (size_t i = 0; i < sizeof(c->own) / sizeof(c->own[0]); i++)
        d9d_tensor_release(&c->own[i]);
}

/* Have the table with its adapter, until the call is released. */
static d9d_status lce_call_widen(d9d_tape *t, const d9d_param *head, const d9d_param *up,
                                 lce_call *c)
{
    D9D_TRY(d9di_op_head_matrix(t, head, up, &c->own[0]));
    c->w[0] = d9d_tensor_data(&c->own[0]);
    return D9D_OK;
}

/* Have quantised tables as elements, until the call is released. */
static d9d_status lce_call_dequantise(d9d_tape *t, d9d_param *const *heads, size_t n, lce_call *c)
{
    for (size_t i = 0; i < n; i++) {
        const d9d_shape *s = d9di_op_weight_shape(heads[i]);
        const d9d_quant_matrix q = d9d_param_quant_rows(heads[i], 0, s->dim[0]);

        if (q.format == D9D_QUANT_NONE)
            continue;
        D9D_TRY(d9d_tensor_alloc(d9d_tape_device(t), c->dims.t, *s, &c->own[i]));
        c->w[i] = d9d_tensor_data(&c->own[i]);
        D9D_TRY(D9DI_KERNEL(t, quant->dequantise, c->dims.t, d9d_tensor_data(&c->own[i]), &q));
    }
    return D9D_OK;
}

static lce_call lce_call_of(const d9d_tensor *h, d9d_param *const *heads, size_t n,
                            const lce_attr *a)
{
    lce_call c = {
        .dims = {.t = h->dtype,
                 .rows = h->shape.dim[0],
                 .h = h->shape.dim[1],
                 .n_split = (int)n,
                 .v = a->v,
                 .ignore = a->opts.ignore,
                 .softcap = a->opts.softcap,
                 .first = a->part ? a->first : NULL,
                 .vocab = a->all,
                 .bias = a->opts.bias != NULL ? d9d_tensor_data(&a->opts.bias->local.data) : NULL}};

    for (size_t i = 0; i < n; i++)
        c.w[i] = d9d_tensor_data(&heads[i]->local.data);
    return c;
}

static d9d_status lce_dgrad(d9d_node *n)
{
    const d9d_tensor *unit = &n->saved[SAVED_UNIT];
    d9d_tensor dh;

    D9D_TRY(d9di_op_grad_alloc(n, 0, &dh));
    return d9di_op_grad_finish(n, 0, &dh,
                               D9DI_KERNEL(n->tape, loss->linear_cross_entropy_dgrad, unit->dtype,
                                           d9d_tensor_data(&dh), d9d_tensor_data(&n->dout[0]),
                                           d9d_tensor_data(unit), unit->shape.dim[0],
                                           unit->shape.dim[1]));
}

/* Gradients of the heads; dw[i] NULL: not wanted. */
typedef struct lce_grads {
    d9d_dtype t;
    void *dw[D9D_NODE_MAX];
    float beta[D9D_NODE_MAX];
} lce_grads;

static lce_grads lce_grads_of(d9d_param *const *heads, size_t n)
{
    lce_grads g = {.t = D9D_F32};

    for (size_t i = 0; i < n; i++) {
        if (!d9d_param_needs_grad(heads[i]))
            continue;
        g.t = heads[i]->local.grad.dtype;
        g.dw[i] = d9d_tensor_data(&heads[i]->local.grad);
        g.beta[i] = d9d_param_grad_beta(&heads[i]->local);
    }
    return g;
}

static d9d_status lce_wgrad_run(d9d_node *n, lce_call *c, const lce_grads *g)
{
    const lce_attr *a = n->attr;

    /* The kernel adds to the bias's gradient, on a rank with a part of the vocabulary to a part. */
    c->dims.dbias = a->opts.bias != NULL ? g->dw[n->n_param - 1] : NULL;
    if (c->dims.dbias != NULL && g->beta[n->n_param - 1] == 0.0f)
        D9D_TRY(D9DI_KERNEL(n->tape, elementwise->fill, g->t, c->dims.dbias, a->all, 0.0f));
    return D9DI_KERNEL(n->tape, loss->linear_cross_entropy_wgrad, &c->dims, g->t, g->dw, g->beta,
                       d9d_tensor_data(&n->dout[0]), d9d_tensor_data(&n->saved[SAVED_LSE]),
                       d9d_tensor_data(&n->saved[SAVED_H]), c->w,
                       d9d_tensor_data(&n->saved[SAVED_TARGETS]));
}

/* Of a table and its B together, which are columns of one matrix. */
static d9d_status lce_wgrad_adapted(d9d_node *n, lce_call *c, const lce_grads *g)
{
    enum { TABLE, UP };
    d9d_tensor grad = {0};
    lce_grads both;
    d9d_status st;

    D9D_TRY(lce_call_widen(n->tape, n->param[TABLE], n->param[UP], c));
    D9D_TRY_OR(st, d9d_tensor_alloc(d9d_tape_device(n->tape), g->t, c->own[0].shape, &grad), out);
    both = *g;
    both.dw[TABLE] = d9d_tensor_data(&grad);
    both.beta[TABLE] = 0;
    D9D_TRY_OR(st, lce_wgrad_run(n, c, &both), out);
    st = d9di_op_head_wgrad(n, n->param, g->beta, &grad);
out:
    d9d_tensor_release(&grad);
    lce_call_release(c);
    return st;
}

static d9d_status lce_wgrad(d9d_node *n)
{
    const lce_attr *a = n->attr;
    const lce_grads g = lce_grads_of(n->param, (size_t)n->n_param);
    lce_call c = lce_call_of(&n->saved[SAVED_H], n->param, a->n, a);

    return a->adapted ? lce_wgrad_adapted(n, &c, &g) : lce_wgrad_run(n, &c, &g);
}

static const d9d_node_ops lce_node_ops = {
    .name = "linear_cross_entropy", .dgrad = lce_dgrad, .wgrad = lce_wgrad};

/* The heads are one matrix to the kernel, so their gradients have one type. */
static d9d_status lce_check_grads(d9d_param *const *heads, size_t n)
{
    const d9d_param *first = NULL;

    for (size_t i = 0; i < n; i++) {
        if (!d9d_param_needs_grad(heads[i]))
            continue;
        first = first != NULL ? first : heads[i];
        if (heads[i]->local.grad.dtype != first->local.grad.dtype)
            return D9D_FAIL(D9D_EINVAL, "linear_cross_entropy: the gradient of %s is %s, of %s %s",
                            d9di_op_param_name(first), d9d_dtype_name(first->local.grad.dtype),
                            d9di_op_param_name(heads[i]),
                            d9d_dtype_name(heads[i]->local.grad.dtype));
    }
    return D9D_OK;
}

/* The heads, B of an adapter, and the bias, as a node's parameters. */
typedef struct lce_params {
    d9d_param *of[D9D_NODE_MAX];
    size_t n;
} lce_params;

static lce_params lce_params_of(d9d_param *const *heads, size_t n, const d9d_param_adapter *ad,
                                const d9d_op_vocab_opts *opts)
{
    lce_params p = {.n = n};

    memcpy(p.of, heads, n * sizeof(*heads));
    if (ad != NULL)
        p.of[p.n++] = ad->param[D9D_ADAPTER_B];
    if (opts->bias != NULL)
        p.of[p.n++] = opts->bias;
    return p;
}

static d9d_status lce_check(const d9d_tensor *h, d9d_param *const *heads, size_t n,
                            const d9d_tensor *targets, const d9d_param_adapter *ad,
                            const d9d_op_vocab_opts *opts)
{
    static const char op[] = "linear_cross_entropy";
    lce_params params;

    D9D_TRY(d9di_op_check_real(op, "h", h));
    D9D_TRY(d9di_op_check(op, "targets", targets, D9D_I32));
    if (h->shape.ndim != 2 || !d9d_shape_equal(&targets->shape, &D9D_SHAPE(h->shape.dim[0])))
        return d9di_op_misfit(op, "targets", &targets->shape, "h", &h->shape,
                              "h is [T, H], targets are [T]");
    D9D_TRY(d9di_op_check_splits(op, heads, n, h->dtype, h->shape.dim[1]));
    D9D_TRY(d9di_op_head_adapter_check(op, heads, n));
    D9D_TRY(d9di_op_check_vocab_bias(op, heads, n, h->dtype, opts->bias));
    params = lce_params_of(heads, n, ad, opts);
    return lce_check_grads(params.of, params.n);
}

/* *node is NULL if nothing is recorded. */
static d9d_status lce_record(d9d_tape *t, d9d_var *h, d9d_param *const *heads, size_t n_heads,
                             d9d_var *loss, const d9d_tensor *lse, const d9d_tensor *targets,
                             const d9d_tensor *unit, const lce_attr *attr, d9d_node **node)
{
    const lce_params p = lce_params_of(
        heads, n_heads, attr->adapted ? d9d_tape_adapter(t, heads[0]) : NULL, &attr->opts);
    d9d_node *n;

    *node = NULL;
    if (!d9d_tape_should_record(t, &h, 1, p.of, p.n))
        return D9D_OK;
    D9D_TRY(d9d_tape_record(t, &lce_node_ops, &h, 1, &loss, 1, p.of, p.n, sizeof(lce_attr), &n));
    *(lce_attr *)n->attr = *attr;
    (void)d9d_node_save(n, d9d_var_tensor(h), D9D_NEED_WGRAD);
    (void)d9d_node_save(n, lse, D9D_NEED_WGRAD);
    (void)d9d_node_save(n, targets, D9D_NEED_WGRAD);
    (void)d9d_node_save(n, unit, D9D_NEED_DGRAD);
    *node = n;
    return D9D_OK;
}

static lce_attr lce_attr_of(d9d_param *const *heads, size_t n, const d9d_op_vocab_opts *opts)
{
    lce_attr a = {.opts = *opts, .n = n, .part = d9d_comm_size(opts->comm) > 1};

    for (size_t i = 0; i < n; i++) {
        a.v[i] = heads[i]->local.data.shape.dim[0];
        a.first[i] = d9di_op_split_first_id(heads, i);
        a.all += heads[i]->spec.shape.dim[0];
    }
    return a;
}

/* --- forward: arrays of one call ----------------------------------------------------- */

typedef struct lce_run {
    lce_call call;
    const d9d_tensor *h, *targets;
    float *loss, *lse;
    void *unit; /* NULL: not wanted */
    d9d_comm *comm;
    const char *label;
} lce_run;

static d9d_status lce_run_local(d9d_tape *t, const lce_run *f)
{
    return D9DI_KERNEL(t, loss->linear_cross_entropy, &f->call.dims, f->loss, f->lse, f->unit,
                       d9d_tensor_data(f->h), f->call.w, d9d_tensor_data(f->targets));
}

static d9d_status lce_run_vocab_parallel(d9d_tape *t, const lce_run *f)
{
    const int64_t n = d9d_comm_size(f->comm), rank = d9d_comm_rank(f->comm);
    const int64_t tokens = f->call.dims.rows;
    lce_run part = *f;
    d9d_tensor all;
    float *parts;
    d9d_status st;

    D9D_TRY(d9d_tensor_alloc(d9d_tape_device(t), D9D_F32, D9D_SHAPE(n, 2, tokens), &all));
    parts = d9d_tensor_data(&all);
    part.lse = parts + 2 * rank * tokens;
    part.loss = part.lse + tokens;
    D9D_TRY_OR(st, lce_run_local(t, &part), out);
    D9D_TRY_OR(st,
               d9di_op_collective_even(t, d9d_comm_all_gather, f->comm, f->label, D9D_F32, parts,
                                       part.lse, 2 * tokens),
               out);
    st = D9DI_KERNEL(t, loss->linear_cross_entropy_combine, &f->call.dims, f->loss, f->lse, f->unit,
                     parts, n, rank, f->call.w, d9d_tensor_data(f->targets));
out:
    d9d_tensor_release(&all);
    return st;
}

/* h is wide if the head has an adapter. */
static d9d_status lce_forward(d9d_tape *t, d9d_var *h, d9d_param *const *heads, size_t n,
                              const d9d_tensor *targets, const lce_attr *attr, d9d_var **loss,
                              d9d_node **node)
{
    const d9d_tensor *x = d9d_var_tensor(h);
    d9d_tensor lse = {0}, unit = {0};
    d9d_var *out;
    d9d_status st;
    lce_run r = {.call = lce_call_of(x, heads, n, attr)};

    D9D_TRY_OR(st, d9d_tape_output(t, D9D_F32, targets->shape, &out), out);
    D9D_TRY_OR(st, d9d_tensor_alloc(d9d_tape_device(t), D9D_F32, targets->shape, &lse), out);
    if (d9d_tape_should_record(t, &h, 1, NULL, 0))
        D9D_TRY_OR(st, d9d_tensor_alloc(d9d_tape_device(t), x->dtype, x->shape, &unit), out);
    if (attr->adapted)
        D9D_TRY_OR(
            st, lce_call_widen(t, heads[0], heads[0]->peft.adapter->param[D9D_ADAPTER_B], &r.call),
            out);
    D9D_TRY_OR(st, lce_call_dequantise(t, heads, n, &r.call), out);
    r.h = x;
    r.targets = targets;
    r.loss = d9d_tensor_data(d9d_var_tensor(out));
    r.lse = d9d_tensor_data(&lse);
    r.unit = d9d_tensor_data(&unit);
    r.comm = attr->opts.comm;
    r.label = d9di_op_param_name(heads[0]);
    D9D_TRY_OR(st, attr->part ? lce_run_vocab_parallel(t, &r) : lce_run_local(t, &r), out);
    D9D_TRY_OR(st, lce_record(t, h, heads, n, out, &lse, targets, &unit, attr, node), out);
    *loss = out;
out:
    lce_call_release(&r.call);
    d9d_tensor_release(&unit);
    d9d_tensor_release(&lse);
    return st;
}

/* Check the arrays, and widen h for an adapter. */
static d9d_status lce_begin(d9d_tape *t, d9d_var **h, d9d_param *const *heads, size_t n,
                            const d9d_tensor *targets, const d9d_op_vocab_opts *opts,
                            lce_attr *attr)
{
    const d9d_param_adapter *ad = d9di_op_head_adapter(t, heads, n);

    D9D_TRY(lce_check(d9d_var_tensor(*h), heads, n, targets, ad, opts));
    if (heads[0]->spec.stored != D9D_QUANT_NONE && d9d_tape_should_record(t, h, 1, heads, n))
        return D9D_FAIL(D9D_ENOTSUP,
                        "linear_cross_entropy: %s is quantised to %s, which has no backward",
                        d9di_op_param_name(heads[0]), d9d_quant_name(heads[0]->spec.stored));
    *attr = lce_attr_of(heads, n, opts);
    attr->adapted = ad != NULL;
    return ad != NULL ? d9di_op_head_input(t, *h, ad, h) : D9D_OK;
}

d9d_status d9d_op_linear_cross_entropy(d9d_tape *t, d9d_var *h, d9d_param *const *heads, size_t n,
                                       const d9d_tensor *targets, const d9d_op_vocab_opts *opts,
                                       d9d_var **loss)
{
    lce_attr attr;
    d9d_node *node;

    D9D_TRY(lce_begin(t, &h, heads, n, targets, opts, &attr));
    return lce_forward(t, h, heads, n, targets, &attr, loss, &node);
}

/* --- as a root of the backward -------------------------------------------------------- */

static d9d_status lce_root_dgrad(d9d_node *n)
{
    d9d_tensor dh = d9d_tensor_ref(&n->saved[0]);

    return d9d_node_accumulate_grad(n, 0, &dh);
}

static const d9d_node_ops lce_root_node_ops = {.name = "linear_cross_entropy",
                                               .dgrad = lce_root_dgrad};

/* The vocabulary-parallel group. */
typedef struct vocab_ranks {
    d9d_tape *t;
    d9d_comm *comm;
    const char *label;
} vocab_ranks;

static d9d_status vocab_all_gather(void *arg, float *all, int64_t count)
{
    const vocab_ranks *o = arg;

    return d9di_op_collective_even(o->t, d9d_comm_all_gather, o->comm, o->label, D9D_F32, all,
                                   all + d9d_comm_rank(o->comm) * count, count);
}

/* Rows of the largest part. */
static int64_t max_rank_rows(d9d_param *const *heads, size_t n, int64_t ranks)
{
    int64_t sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (heads[i]->spec.shape.dim[0] + ranks - 1) / ranks;
    return sum;
}

/* Loss, unit (storage NULL: not wanted) and the gradients of the heads. */
static d9d_status lce_root_fwd_bwd(d9d_tape *t, const d9d_tensor *x, d9d_param *const *heads,
                                   size_t n, const d9d_tensor *targets, const lce_attr *attr,
                                   const d9d_tensor *loss, const d9d_tensor *unit)
{
    d9d_comm *comm = attr->opts.comm;
    vocab_ranks o = {t, comm, d9di_op_param_name(heads[0])};
    const d9d_linear_cross_entropy_ranks ranks = {.n = d9d_comm_size(comm),
                                                  .rank = d9d_comm_rank(comm),
                                                  .max_rows =
                                                      max_rank_rows(heads, n, d9d_comm_size(comm)),
                                                  .all_gather = vocab_all_gather,
                                                  .arg = &o};
    lce_call c = lce_call_of(x, heads, n, attr);
    const lce_grads g = lce_grads_of(heads, n);

    c.dims.ranks = attr->part ? &ranks : NULL;
    return D9DI_KERNEL(t, loss->linear_cross_entropy_fwd_bwd, &c.dims, g.t, d9d_tensor_data(loss),
                       d9d_tensor_data(unit), g.dw, g.beta, d9d_tensor_data(x), c.w,
                       d9d_tensor_data(targets));
}

static d9d_status lce_root_forward(d9d_tape *t, d9d_var *h, d9d_param *const *heads, size_t n,
                                   const d9d_tensor *targets, const lce_attr *attr, d9d_var **loss,
                                   d9d_node **node)
{
    const d9d_tensor *x = d9d_var_tensor(h);
    d9d_tensor unit = {0};
    d9d_var *out;
    d9d_status st;

    if (d9d_var_needs_grad(h))
        D9D_TRY(d9d_tensor_alloc(d9d_tape_device(t), x->dtype, x->shape, &unit));
    D9D_TRY_OR(st, d9d_tape_output(t, D9D_F32, targets->shape, &out), out);
    D9D_TRY_OR(st, lce_root_fwd_bwd(t, x, heads, n, targets, attr, d9d_var_tensor(out), &unit),
               out);
    D9D_TRY_OR(st, d9d_tape_record(t, &lce_root_node_ops, &h, 1, &out, 1, heads, n, 0, node), out);
    (void)d9d_node_save(*node, &unit, D9D_NEED_DGRAD);
    *loss = out;
out:
    d9d_tensor_release(&unit);
    return st;
}

/* Seed the backward with ones as the gradient of every loss. */
static d9d_status grad_seed_ones(d9d_node *n, const d9d_shape *shape)
{
    D9D_TRY(d9d_node_alloc(n, D9D_F32, *shape, &n->dout[0]));
    return D9DI_KERNEL(n->tape, elementwise->fill, D9D_F32, d9d_tensor_data(&n->dout[0]),
                       d9d_shape_numel(shape), 1.0f);
}

/* If the gradients of the heads have no memory yet, or there is a bias or an adapter, backward
 * computes them. */
d9d_status d9d_op_linear_cross_entropy_root(d9d_tape *t, d9d_var *h, d9d_param *const *heads,
                                            size_t n, const d9d_tensor *targets,
                                            const d9d_op_vocab_opts *opts, d9d_var **loss)
{
    lce_attr attr;
    d9d_node *node;
    bool at_once;

    D9D_TRY(d9d_tape_check_root(t, "linear_cross_entropy"));
    D9D_TRY(lce_begin(t, &h, heads, n, targets, opts, &attr));
    at_once = opts->bias == NULL && !attr.adapted && d9d_tape_should_record(t, &h, 1, heads, n);
    for (size_t i = 0; at_once && i < n; i++) {
        D9D_TRY(d9d_param_grad_alloc(heads[i]));
        at_once = !d9d_param_needs_grad(heads[i]) || heads[i]->local.grad.storage != NULL;
    }
    D9D_TRY(at_once ? lce_root_forward(t, h, heads, n, targets, &attr, loss, &node)
                    : lce_forward(t, h, heads, n, targets, &attr, loss, &node));
    if (node == NULL)
        return D9D_OK;
    d9d_node_make_root(node);
    return at_once ? D9D_OK : grad_seed_ones(node, &targets->shape);
}
