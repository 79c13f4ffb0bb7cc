/* op_router.c - which experts a token goes to, and with what weight.  logits [T, E], prob [T, k].
 *
 *     p = softmax(logits)    prob_j = p[e_j], or p[e_j] / (sum over j of p[e_j] + 1e-20)
 *
 * The choice has no gradient; prob has, through the whole softmax.
 */
#include "op/op_common.h"

typedef struct router_attr {
    bool renormalise;
} router_attr;

enum { SAVED_P, SAVED_PROB, SAVED_EXPERT };

static d9d_status router_input(d9d_node *n)
{
    const router_attr *a = n->attr;
    const d9d_tensor *p = &n->saved[SAVED_P], *expert = &n->saved[SAVED_EXPERT];
    d9d_tensor dlogits;

    D9D_TRY(d9di_node_grad(n, 0, &dlogits));
    return d9di_node_finish(n, 0, &dlogits,
                            D9DI_KERNEL(n->tape, router_din, dlogits.dtype,
                                        d9d_tensor_data(&dlogits), d9d_tensor_data(&n->dout[0]),
                                        d9d_tensor_data(p), d9d_tensor_data(&n->saved[SAVED_PROB]),
                                        d9d_tensor_data(expert), p->shape.dim[0], p->shape.dim[1],
                                        expert->shape.dim[1], a->renormalise));
}

static const d9d_node_ops router_ops = {.name = "router", .input = router_input};

static d9d_status check(const d9d_tensor *logits, int k, const d9d_tensor *bias)
{
    const d9d_shape *s = &logits->shape;

    D9D_TRY(d9di_op_check_real("router", "logits", logits));
    if (s->ndim != 2 || k < 1 || k > s->dim[1])
        return d9di_op_misfit("router", "logits", s, "a choice of", &D9D_SHAPE(k),
                              "logits are [T, E], from 1 to E experts can be chosen");
    if (s->dim[1] >= INT32_MAX || s->dim[0] > INT32_MAX / k)
        return d9di_op_misfit("router", "logits", s, "a choice of", &D9D_SHAPE(k),
                              "rows and experts are numbered in 31 bits");
    if (bias == NULL)
        return D9D_OK;
    D9D_TRY(d9di_op_check("router", "bias", bias, D9D_F32));
    if (!d9d_shape_equal(&bias->shape, &D9D_SHAPE(s->dim[1])))
        return d9di_op_misfit("router", "bias", &bias->shape, "logits", s,
                              "logits are [T, E], a bias [E]");
    return D9D_OK;
}

/* Fill p, prob and the routing, all allocated. */
static d9d_status choose(d9d_tape *t, const d9d_tensor *logits, int64_t k, bool renormalise,
                         const d9d_tensor *bias, const d9d_tensor *p, const d9d_tensor *prob,
                         const d9d_routing *r)
{
    const int64_t tokens = logits->shape.dim[0], experts = logits->shape.dim[1];

    D9D_TRY(D9DI_KERNEL(t, router, logits->dtype, d9d_tensor_data(p), d9d_tensor_data(prob),
                        d9d_tensor_data(&r->expert), d9d_tensor_data(logits),
                        bias != NULL ? d9d_tensor_data(bias) : NULL, tokens, experts, k,
                        renormalise));
    return D9DI_KERNEL(t, route, d9d_tensor_data(&r->offset), d9d_tensor_data(&r->row),
                       d9d_tensor_data(&r->source), d9d_tensor_data(&r->expert), tokens, experts,
                       k);
}

static d9d_status record(d9d_tape *t, d9d_var *logits, d9d_var *prob, const d9d_tensor *p,
                         const d9d_tensor *expert, bool renormalise)
{
    d9d_node *n;

    if (!d9d_tape_wants(t, &logits, 1, NULL, 0))
        return D9D_OK;
    D9D_TRY(
        d9d_tape_record(t, &router_ops, &logits, 1, &prob, 1, NULL, 0, sizeof(router_attr), &n));
    ((router_attr *)n->attr)->renormalise = renormalise;
    (void)d9d_node_save(n, p, D9D_NEED_INPUT);
    (void)d9d_node_save(n, d9d_var_tensor(prob), D9D_NEED_INPUT);
    (void)d9d_node_save(n, expert, D9D_NEED_INPUT);
    return D9D_OK;
}

d9d_status d9d_op_router(d9d_tape *t, d9d_var *logits, int k, bool renormalise,
                         const d9d_tensor *bias, d9d_var **prob, d9d_routing *routing)
{
    const d9d_tensor *x = d9d_var_tensor(logits);
    d9d_device *dev = d9d_tape_device(t);
    d9d_routing r = {0};
    d9d_tensor p = {0};
    d9d_var *out;
    d9d_status st;

    D9D_TRY_OR(st, check(x, k, bias), out);
    D9D_TRY_OR(st, d9di_routing_alloc(dev, x->shape.dim[0], x->shape.dim[1], k, &r), out);
    D9D_TRY_OR(st, d9d_tensor_alloc(dev, D9D_F32, x->shape, &p), out);
    D9D_TRY_OR(st, d9d_tape_output(t, D9D_F32, r.expert.shape, &out), out);
    D9D_TRY_OR(st, choose(t, x, k, renormalise, bias, &p, d9d_var_tensor(out), &r), out);
    D9D_TRY_OR(st, record(t, logits, out, &p, &r.expert, renormalise), out);
    *prob = out;
    *routing = r;
    r = (d9d_routing){0};
out:
    d9d_routing_release(&r);
    d9d_tensor_release(&p);
    return st;
}
