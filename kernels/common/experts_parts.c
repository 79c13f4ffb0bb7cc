/* experts_parts.c - the experts of a mixture, forward only, from the entries of a table. */
#include "common/kernel_common.h"

static d9d_status feed_forward(const d9d_kernels *k, d9d_stream s, const d9d_experts_args *a)
{
    const d9d_gemm_glu_dims glu = {.t = a->t,
                                   .rows = a->n,
                                   .h = a->h,
                                   .i = a->i,
                                   .e = a->e,
                                   .offset = a->order.offset,
                                   .glu = a->glu,
                                   .b_gate = a->b_gate,
                                   .b_up = a->b_up};

    D9D_TRY(k->gemm->glu(s, &glu, a->hidden, a->gates, a->up != NULL ? a->ups : NULL, a->sorted,
                         a->gate, a->up));
    D9D_TRY(k->gemm->grouped(s, a->t, a->sorted, a->hidden, a->down, a->order.offset, a->n, a->e,
                             a->i, a->h));
    return a->b_down == NULL ? D9D_OK
                             : k->elementwise->add_bias(s, a->t, a->sorted, a->sorted, a->b_down,
                                                        a->order.offset, a->n, a->e, a->h);
}

d9d_status d9di_experts_parts(const d9d_kernels *k, d9d_stream s, const d9d_experts_args *a,
                              void *y)
{
    const d9d_moe_permute_dims dims = {a->t, a->rows, a->k, a->n, a->h};

    D9D_TRY(d9di_args_check_glu("experts", a->t, &a->glu, a->up != NULL));
    D9D_TRY(k->moe->permute(s, &dims, a->sorted, a->x, a->order.row));
    D9D_TRY(feed_forward(k, s, a));
    return k->moe->unpermute(s, &dims, y, a->sorted, a->prob, a->order.row, a->plus);
}
