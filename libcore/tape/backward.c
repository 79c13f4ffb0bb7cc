/* backward.c - the backward pass of a tape: full, dgrad only or wgrad only.  See
 * d9d/tape/tape.h. */
#include <assert.h>

#include "d9d/device/trace.h"
#include "tape/record.h"

/* --- sums of gradients ----------------------------------------------------------- */

/* a += b in a's memory. */
static d9d_status add_in_place(d9d_device *dev, d9d_tensor *a, const d9d_tensor *b)
{
    return dev->kernels->elementwise->accumulate(dev->stream, a->dtype, d9d_tensor_data(a), 1.0f,
                                                 b->dtype, d9d_tensor_data(b), d9d_tensor_numel(a));
}

static d9d_status add_to_new(d9d_device *dev, d9d_tensor *sum, const d9d_tensor *a,
                             const d9d_tensor *b)
{
    const void *const both[] = {d9d_tensor_data(a), d9d_tensor_data(b)};

    D9D_TRY(d9d_tensor_alloc(dev, a->dtype, a->shape, sum));
    return dev->kernels->elementwise->add(dev->stream, a->dtype, d9d_tensor_data(sum), both, 2,
                                          d9d_tensor_numel(a));
}

/* A gradient with other references is never written to.  The three ways give the same bits. */
static d9d_status accumulate_grad(d9d_device *dev, d9d_tensor *slot, d9d_tensor *grad)
{
    d9d_tensor sum = {0};
    d9d_status st;

    if (d9d_tensor_is_unique(slot)) {
        st = add_in_place(dev, slot, grad);
    } else if (d9d_tensor_is_unique(grad)) {
        const d9d_tensor old = *slot;

        st = add_in_place(dev, grad, slot);
        *slot = *grad;
        *grad = old;
    } else {
        st = add_to_new(dev, &sum, slot, grad);
        d9d_tensor_release(slot);
        *slot = sum;
    }
    return st;
}

static d9d_status fail_root_grad(const d9d_var *v)
{
    return D9D_FAIL(D9D_EINVAL, "backward: %s starts its own gradient and accepts none",
                    v->producer->ops->name);
}

d9d_status d9di_var_accumulate_grad(d9d_tape *t, d9d_var *v, d9d_tensor *grad)
{
    d9d_tensor *slot = d9di_var_grad_slot(v);
    d9d_status st = D9D_OK;

    assert(grad->dtype == v->value.dtype && d9d_shape_equal(&grad->shape, &v->value.shape));
    if (d9d_var_is_root(v))
        st = fail_root_grad(v);
    else if (v->needs_grad && slot->storage == NULL) {
        *slot = *grad;
        *grad = (d9d_tensor){0};
    } else if (v->needs_grad) {
        st = accumulate_grad(t->dev, slot, grad);
    }
    d9d_tensor_release(grad);
    return st;
}

d9d_status d9d_node_accumulate_grad(d9d_node *n, int i, d9d_tensor *grad)
{
    return d9di_var_accumulate_grad(n->tape, n->in[i], grad);
}

d9d_status d9d_node_accumulate_begin(d9d_node *n, int i, d9d_tensor *sum, const void **plus)
{
    const d9d_var *v = n->in[i];
    d9d_tensor *slot = d9di_var_grad_slot(n->in[i]);

    if (d9d_var_is_root(v))
        return fail_root_grad(v);
    *plus = slot->storage != NULL ? d9d_tensor_data(slot) : NULL;
    if (slot->storage == NULL || !d9d_tensor_is_unique(slot))
        return d9d_node_alloc(n, v->value.dtype, v->value.shape, sum);
    *sum = d9d_tensor_ref(slot);
    return D9D_OK;
}

void d9d_node_accumulate_end(d9d_node *n, int i, d9d_tensor *sum)
{
    d9d_tensor *slot = d9di_var_grad_slot(n->in[i]);

    d9d_tensor_release(slot);
    *slot = *sum;
    *sum = (d9d_tensor){0};
}

/* --- nodes in reverse ---------------------------------------------------------------- */

static void release_saved(d9d_node *n, d9d_node_need half)
{
    for (int i = 0; i < n->n_saved; i++)
        if (n->need[i] == half)
            d9d_tensor_release(&n->saved[i]);
}

/* Some operations compute both halves at once, so before either. */
static d9d_status param_grads_alloc(const d9d_node *n)
{
    for (int i = 0; n->halves & D9D_NEED_WGRAD && i < n->n_param; i++)
        D9D_TRY(d9d_param_grad_alloc(n->param[i]));
    return D9D_OK;
}

static d9d_status run_dgrad(d9d_node *n)
{
    D9D_TRY(param_grads_alloc(n));
    if (n->halves & D9D_NEED_DGRAD)
        D9D_TRY(n->ops->dgrad(n));
    d9d_trace_mark(n->tape->dev, n->ops->name, "dgrad");
    release_saved(n, D9D_NEED_DGRAD);
    if (!(n->halves & D9D_NEED_WGRAD))
        d9di_node_release(n);
    return D9D_OK;
}

static d9d_status run_wgrad(d9d_node *n)
{
    D9D_TRY(param_grads_alloc(n));
    if (n->halves & D9D_NEED_WGRAD)
        D9D_TRY(n->ops->wgrad(n));
    d9d_trace_mark(n->tape->dev, n->ops->name, "wgrad");
    d9di_node_release(n);
    return D9D_OK;
}

/* --- deferred wgrad ------------------------------------------------------------------ */

void d9d_tape_defer_wgrad(d9d_tape *t)
{
    t->can_defer_wgrad = true;
}

/* Run the first n deferred ones. */
static d9d_status run_deferred(d9d_tape *t, size_t n)
{
    d9di_tape_deferred *const all = t->deferred.data;

    for (size_t i = 0; i < n; i++) {
        D9D_TRY(all[i].run(all[i].node));
        t->hook_deferred = t->hook_deferred && all[i].run == run_wgrad;
    }
    t->deferred.len -= n;
    for (size_t i = 0; i < t->deferred.len; i++)
        all[i] = all[n + i];
    return D9D_OK;
}

d9d_status d9d_tape_run_deferred(d9d_tape *t)
{
    return run_deferred(t, t->deferred.len);
}

d9d_status d9d_tape_run_deferred_keep_one(d9d_tape *t)
{
    size_t n = t->deferred.len;

    while (n > 0 && t->deferred.data[n - 1].run != run_wgrad)
        n--;
    return run_deferred(t, n > 0 ? n - 1 : 0);
}

static d9d_status defer_node(d9d_node *n, d9d_status (*run)(d9d_node *n))
{
    return D9D_VEC_PUSH(&n->tape->deferred, ((d9di_tape_deferred){n, run}));
}

d9d_status d9d_node_defer(d9d_node *n, d9d_status (*run)(d9d_node *n))
{
    d9d_tape *t = n->tape;

    if (t->hook_deferred)
        D9D_TRY(d9d_tape_run_deferred(t));
    if (t->deferred.len == 0)
        return run(n);
    t->hook_deferred = true;
    return defer_node(n, run);
}

static d9d_status run_bwd(d9d_node *n)
{
    if (n->ops->bwd == NULL) {
        D9D_TRY(run_dgrad(n));
        return n->tape->can_defer_wgrad && n->halves & D9D_NEED_WGRAD ? defer_node(n, run_wgrad)
                                                                      : run_wgrad(n);
    }
    D9D_TRY(param_grads_alloc(n));
    D9D_TRY(n->ops->bwd(n));
    d9d_trace_mark(n->tape->dev, n->ops->name, "bwd");
    d9di_node_release(n);
    return D9D_OK;
}

/* What a mode runs for a node, and the phases of the tape before and after it. */
static const struct mode {
    const char *name;
    d9di_tape_phase from, to;
    d9d_status (*run)(d9d_node *n);
} modes[] = {
    [D9D_BACKWARD_FULL] = {"full", D9DI_PHASE_FORWARD, D9DI_PHASE_DONE, run_bwd},
    [D9D_BACKWARD_DGRAD] = {"input", D9DI_PHASE_FORWARD, D9DI_PHASE_DGRAD_DONE, run_dgrad},
    [D9D_BACKWARD_WGRAD] = {"weight", D9DI_PHASE_DGRAD_DONE, D9DI_PHASE_DONE, run_wgrad},
};

static bool is_reached(const d9d_node *n)
{
    bool reached = n->reached || n->is_root;

    for (int i = 0; i < n->n_out; i++)
        reached = reached || n->dout[i].storage != NULL;
    return reached;
}

d9d_status d9di_tape_run_backward(d9d_tape *t, d9d_tape_backward_mode mode)
{
    const struct mode *m = &modes[mode];

    t->phase = m->to;
    for (size_t i = t->nodes.len; i-- > 0;) {
        d9d_node *n = t->nodes.data[i];

        n->reached = is_reached(n);
        if (n->reached)
            D9D_TRY(m->run(n));
        else
            d9di_node_release(n);
    }
    return d9d_tape_run_deferred(t);
}

/* --- the call --------------------------------------------------------------------------- */

static d9d_status check_phase(const d9d_tape *t, const struct mode *m)
{
    static const char *const before[] = {
        [D9DI_PHASE_FORWARD] = "no input backward (dgrad) came before it",
        [D9DI_PHASE_DGRAD_DONE] =
            "the input backward (dgrad) has run; only the weight backward (wgrad) may follow",
        [D9DI_PHASE_DONE] = "the tape went backward already",
    };

    if (t->phase != m->from)
        return D9D_FAIL(D9D_EINVAL, "%s backward: %s", m->name, before[t->phase]);
    return D9D_OK;
}

static d9d_status check_seed(const d9d_tensor *root, const d9d_tensor *seed, size_t i)
{
    char a[128], b[128];

    if (seed->storage == NULL)
        return D9D_FAIL(D9D_EINVAL, "backward: the gradient of root %zu has no storage", i);
    if (seed->dtype != root->dtype || !d9d_shape_equal(&seed->shape, &root->shape))
        return D9D_FAIL(D9D_EINVAL, "backward: root %zu is %s %s, its gradient %s %s", i,
                        d9d_dtype_name(root->dtype), d9d_shape_text(&root->shape, a, sizeof(a)),
                        d9d_dtype_name(seed->dtype), d9d_shape_text(&seed->shape, b, sizeof(b)));
    return D9D_OK;
}

d9d_status d9d_tape_backward(d9d_tape *t, d9d_var *const *roots, const d9d_tensor *seeds, size_t n,
                             d9d_tape_backward_mode mode)
{
    if (mode == D9D_BACKWARD_WGRAD)
        n = 0;
    D9D_TRY(check_phase(t, &modes[mode]));
    for (size_t i = 0; i < n; i++)
        D9D_TRY(check_seed(&roots[i]->value, &seeds[i], i));
    for (size_t i = 0; i < n; i++) {
        d9d_tensor seed = d9d_tensor_ref(&seeds[i]);

        D9D_TRY(d9di_var_accumulate_grad(t, roots[i], &seed));
    }
    return d9di_tape_run_backward(t, mode);
}
