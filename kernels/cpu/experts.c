/* experts.c - the experts of a mixture, and the router with the order of its choices, in parts. */
#include "cpu/common.h"

d9d_status d9d_ref_experts(d9d_stream s, const d9d_experts_args *a, void *y)
{
    return d9di_experts_parts(d9d_kernels_cpu(), s, a, y);
}

d9d_status d9d_ref_route(d9d_stream s, const d9d_router_dims *n, float *p, float *prob,
                         int32_t *expert, const d9d_expert_order *order, const void *logits,
                         const float *bias)
{
    const d9d_moe_kernels *k = d9d_kernels_cpu()->moe;

    D9D_TRY(k->router(s, n, p, prob, expert, logits, bias));
    return k->sort_by_expert(s, order->offset, order->row, order->source, expert, n->rows, n->e,
                             n->k);
}
