/* tied_weights.c - see d9d/parallel/tied_weights.h. */
#include "d9d/parallel/tied_weights.h"

static d9d_status clear_primary(void *arg, d9d_param *p)
{
    (void)arg;
    p->placement.is_primary = false;
    return D9D_OK;
}

void d9d_tied_weights_set_primary(d9d_model *m)
{
    d9d_status st = D9D_OK;

    if (m->tied != NULL && !d9d_stage_is_first(m->stage))
        st = d9d_module_each(m->tied, clear_primary, NULL);
    (void)st; /* clear_primary cannot fail */
}

/* Two instances; the second is on this rank or on another. */
typedef struct tied_pair {
    d9d_comm *comm;
    int peer;
    d9d_device *dev;
    d9d_params others; /* parameters of the other instance, if local */
    size_t at;
} tied_pair;

/* a += b. */
static d9d_status grad_add(const tied_pair *x, const d9d_param_part *a, const d9d_tensor *b)
{
    return x->dev->kernels->elementwise->accumulate(x->dev->stream, a->grad.dtype,
                                                    d9d_tensor_data(&a->grad), 1.0f, b->dtype,
                                                    d9d_tensor_data(b), d9d_tensor_numel(b));
}

static d9d_status sum_local(void *arg, d9d_param *p)
{
    tied_pair *x = arg;
    d9d_param *other = x->others.p[x->at++];

    if (!d9d_param_has_shard_grad(p) || !d9d_param_has_shard_grad(other))
        return D9D_OK;
    D9D_TRY(d9d_param_wait_grad(&p->shard, x->dev->stream));
    D9D_TRY(d9d_param_wait_grad(&other->shard, x->dev->stream));
    D9D_TRY(grad_add(x, &p->shard, &other->shard.grad));
    return d9d_device_copy(x->dev, d9d_tensor_data(&other->shard.grad),
                           d9d_tensor_data(&p->shard.grad), d9d_tensor_bytes(&p->shard.grad));
}

/* Both ranks send and both add.  Addition of two numbers is commutative, so both get the same bits.
 */
static d9d_status sum_remote(void *arg, d9d_param *p)
{
    tied_pair *x = arg;
    const int64_t n = d9d_tensor_numel(&p->shard.grad);
    d9d_stream s = x->dev->stream;
    d9d_tensor theirs;
    d9d_status st;

    if (!d9d_param_has_shard_grad(p))
        return D9D_OK;
    D9D_TRY(d9d_param_wait_grad(&p->shard, s));
    D9D_TRY(d9d_tensor_alloc(x->dev, p->shard.grad.dtype, p->shard.grad.shape, &theirs));
    D9D_TRY_OR(st, d9d_comm_group_start(x->comm), out);
    D9D_TRY_OR(st,
               d9d_comm_send(x->comm, s, p->name, p->shard.grad.dtype,
                             d9d_tensor_data(&p->shard.grad), n, x->peer),
               out);
    D9D_TRY_OR(st,
               d9d_comm_recv(x->comm, s, p->name, p->shard.grad.dtype, d9d_tensor_data(&theirs), n,
                             x->peer),
               out);
    D9D_TRY_OR(st, d9d_comm_group_end(x->comm), out);
    st = grad_add(x, &p->shard, &theirs);
out:
    d9d_tensor_release(&theirs);
    return st;
}

d9d_status d9d_tied_weights_sum_grads(d9d_module *local, d9d_module *other, d9d_comm *comm,
                                      int peer, d9d_device *dev)
{
    tied_pair x = {.comm = comm, .peer = peer, .dev = dev};
    d9d_arena a = {0};
    d9d_status st;

    if (other == NULL)
        return d9d_module_each(local, sum_remote, &x);
    st = d9d_module_params(other, &a, &x.others);
    if (st == D9D_OK)
        st = d9d_module_each(local, sum_local, &x);
    d9d_arena_release(&a);
    return st;
}
