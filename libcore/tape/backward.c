/* backward.c - running a tape backward, whole or in halves.  See d9d/tape/tape.h. */
#include <assert.h>

#include "d9d/device/trace.h"
#include "tape/record.h"

/* --- sums of gradients ----------------------------------------------------------- */

/* a += b in a's memory. */
static d9d_status add_into(d9d_device *dev, d9d_tensor *a, const d9d_tensor *b)
{
    return dev->kernels->accumulate(dev->stream, a->dtype, d9d_tensor_data(a), 1.0f, b->dtype,
                                    d9d_tensor_data(b), d9d_tensor_numel(a));
}

static d9d_status add_apart(d9d_device *dev, d9d_tensor *sum, const d9d_tensor *a,
                            const d9d_tensor *b)
{
    const void *const both[] = {d9d_tensor_data(a), d9d_tensor_data(b)};

    D9D_TRY(d9d_tensor_alloc(dev, a->dtype, a->shape, sum));
    return dev->kernels->add(dev->stream, a->dtype, d9d_tensor_data(sum), both, 2,
                             d9d_tensor_numel(a));
}

/* A gradient that someone else holds is never written to.  The three ways give the same bits. */
static d9d_status accumulate(d9d_device *dev, d9d_tensor *slot, d9d_tensor *grad)
{
    d9d_tensor sum = {0};
    d9d_status st;

    if (d9d_tensor_is_sole(slot)) {
        st = add_into(dev, slot, grad);
    } else if (d9d_tensor_is_sole(grad)) {
        const d9d_tensor old = *slot;

        st = add_into(dev, grad, slot);
        *slot = *grad;
        *grad = old;
    } else {
        st = add_apart(dev, &sum, slot, grad);
        d9d_tensor_release(slot);
        *slot = sum;
    }
    return st;
}

static d9d_status refuse(const d9d_var *v)
{
    return D9D_FAIL(D9D_EINVAL, "backward: %s makes its own gradient and takes no other",
                    v->maker->ops->name);
}

d9d_status d9di_var_give(d9d_tape *t, d9d_var *v, d9d_tensor *grad)
{
    d9d_tensor *slot = d9di_var_slot(v);
    d9d_status st = D9D_OK;

    assert(grad->dtype == v->value.dtype && d9d_shape_equal(&grad->shape, &v->value.shape));
    if (d9d_var_is_root(v))
        st = refuse(v);
    else if (v->needs_grad && slot->storage == NULL) {
        *slot = *grad;
        *grad = (d9d_tensor){0};
    } else if (v->needs_grad) {
        st = accumulate(t->dev, slot, grad);
    }
    d9d_tensor_release(grad);
    return st;
}

d9d_status d9d_node_give(d9d_node *n, int i, d9d_tensor *grad)
{
    return d9di_var_give(n->tape, n->in[i], grad);
}

d9d_status d9d_node_sum(d9d_node *n, int i, d9d_tensor *sum, const void **plus)
{
    const d9d_var *v = n->in[i];
    d9d_tensor *slot = d9di_var_slot(n->in[i]);

    if (d9d_var_is_root(v))
        return refuse(v);
    *plus = slot->storage != NULL ? d9d_tensor_data(slot) : NULL;
    if (slot->storage == NULL || !d9d_tensor_is_sole(slot))
        return d9d_node_alloc(n, v->value.dtype, v->value.shape, sum);
    *sum = d9d_tensor_ref(slot);
    return D9D_OK;
}

void d9d_node_sum_give(d9d_node *n, int i, d9d_tensor *sum)
{
    d9d_tensor *slot = d9di_var_slot(n->in[i]);

    d9d_tensor_release(slot);
    *slot = *sum;
    *sum = (d9d_tensor){0};
}

/* --- nodes in reverse ---------------------------------------------------------------- */

static void drop_saved(d9d_node *n, d9d_need half)
{
    for (int i = 0; i < n->n_saved; i++)
        if (n->need[i] == half)
            d9d_tensor_release(&n->saved[i]);
}

static d9d_status run_input(d9d_node *n)
{
    if (n->halves & D9D_NEED_INPUT)
        D9D_TRY(n->ops->input(n));
    d9d_trace_lap(n->tape->dev, n->ops->name, "dx");
    drop_saved(n, D9D_NEED_INPUT);
    if (!(n->halves & D9D_NEED_WEIGHT))
        d9di_node_forget(n);
    return D9D_OK;
}

static d9d_status run_weight(d9d_node *n)
{
    if (n->halves & D9D_NEED_WEIGHT)
        D9D_TRY(n->ops->weight(n));
    d9d_trace_lap(n->tape->dev, n->ops->name, "dw");
    d9di_node_forget(n);
    return D9D_OK;
}

/* --- what is put off ------------------------------------------------------------------- */

void d9d_tape_may_put_off(d9d_tape *t)
{
    t->may_put_off = true;
}

/* The first n of those that were put off. */
static d9d_status catch_up(d9d_tape *t, size_t n)
{
    d9di_put_off *const all = t->put_off.data;

    for (size_t i = 0; i < n; i++) {
        D9D_TRY(all[i].run(all[i].node));
        t->point_put_off = t->point_put_off && all[i].run == run_weight;
    }
    t->put_off.len -= n;
    for (size_t i = 0; i < t->put_off.len; i++)
        all[i] = all[n + i];
    return D9D_OK;
}

d9d_status d9d_tape_catch_up(d9d_tape *t)
{
    return catch_up(t, t->put_off.len);
}

d9d_status d9d_tape_catch_up_but_one(d9d_tape *t)
{
    size_t n = t->put_off.len;

    while (n > 0 && t->put_off.data[n - 1].run != run_weight)
        n--;
    return catch_up(t, n > 0 ? n - 1 : 0);
}

static d9d_status put_off(d9d_node *n, d9d_status (*run)(d9d_node *n))
{
    return D9D_VEC_PUSH(&n->tape->put_off, ((d9di_put_off){n, run}));
}

d9d_status d9d_node_put_off(d9d_node *n, d9d_status (*run)(d9d_node *n))
{
    d9d_tape *t = n->tape;

    if (t->point_put_off)
        D9D_TRY(d9d_tape_catch_up(t));
    if (t->put_off.len == 0)
        return run(n);
    t->point_put_off = true;
    return put_off(n, run);
}

static d9d_status run_full(d9d_node *n)
{
    if (n->ops->full == NULL) {
        D9D_TRY(run_input(n));
        return n->tape->may_put_off && n->halves & D9D_NEED_WEIGHT ? put_off(n, run_weight)
                                                                   : run_weight(n);
    }
    D9D_TRY(n->ops->full(n));
    d9d_trace_lap(n->tape->dev, n->ops->name, "dx dw");
    d9di_node_forget(n);
    return D9D_OK;
}

/* What a mode does with a node, and where in a tape's life it belongs. */
static const struct mode {
    const char *name;
    d9di_phase from, to;
    d9d_status (*run)(d9d_node *n);
} modes[] = {
    [D9D_BACKWARD_FULL] = {"full", D9DI_FORWARD, D9DI_DONE, run_full},
    [D9D_BACKWARD_INPUT] = {"input", D9DI_FORWARD, D9DI_HALF_WAY, run_input},
    [D9D_BACKWARD_WEIGHT] = {"weight", D9DI_HALF_WAY, D9DI_DONE, run_weight},
};

static bool is_reached(const d9d_node *n)
{
    bool reached = n->reached || n->is_root;

    for (int i = 0; i < n->n_out; i++)
        reached = reached || n->dout[i].storage != NULL;
    return reached;
}

d9d_status d9di_tape_run(d9d_tape *t, d9d_backward_mode mode)
{
    const struct mode *m = &modes[mode];

    t->phase = m->to;
    for (size_t i = t->nodes.len; i-- > 0;) {
        d9d_node *n = t->nodes.data[i];

        n->reached = is_reached(n);
        if (n->reached)
            D9D_TRY(m->run(n));
        else
            d9di_node_forget(n);
    }
    return d9d_tape_catch_up(t);
}

/* --- the call --------------------------------------------------------------------------- */

static d9d_status check_phase(const d9d_tape *t, const struct mode *m)
{
    static const char *const before[] = {
        [D9DI_FORWARD] = "no input backward came before it",
        [D9DI_HALF_WAY] = "the input backward has run; only the weight backward may follow",
        [D9DI_DONE] = "the tape went backward already",
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
                        d9d_dtype_word(root->dtype), d9d_shape_text(&root->shape, a, sizeof(a)),
                        d9d_dtype_word(seed->dtype), d9d_shape_text(&seed->shape, b, sizeof(b)));
    return D9D_OK;
}

d9d_status d9d_tape_backward(d9d_tape *t, d9d_var *const *roots, const d9d_tensor *seeds, size_t n,
                             d9d_backward_mode mode)
{
    if (mode == D9D_BACKWARD_WEIGHT)
        n = 0;
    D9D_TRY(check_phase(t, &modes[mode]));
    for (size_t i = 0; i < n; i++)
        D9D_TRY(check_seed(&roots[i]->value, &seeds[i], i));
    for (size_t i = 0; i < n; i++) {
        d9d_tensor seed = d9d_tensor_ref(&seeds[i]);

        D9D_TRY(d9di_var_give(t, roots[i], &seed));
    }
    return d9di_tape_run(t, mode);
}
