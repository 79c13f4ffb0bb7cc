/* experts.c - the experts of a mixture, forward only: for a few tokens three launches at memory
 * bandwidth, else in parts.
 *
 *     hidden = act(x Wg) (x Wu)    of the chosen experts, from the tokens' rows where they are
 *     sorted = hidden Wd           of matrices that are requested while the first launch ends
 *     y      = plus + the weighted sum of a token's rows
 *
 *     vLLM fused_moe, TensorRT-LLM MoE GEMV    here
 */
#include "cuda/gemm/grouped_gemm.h"

static d9di_grouped_gemm_call call_of(const d9d_experts_args *a, void *c, const void *x,
                                      const void *w, int64_t in, int64_t out)
{
    return (d9di_grouped_gemm_call){.op = "experts",
                                    .form = D9DI_GROUPED_GEMM_FWD,
                                    .t = a->t,
                                    .ct = a->t,
                                    .c = c,
                                    .a = x,
                                    .b = w,
                                    .offset = a->order.offset,
                                    .rows = a->n,
                                    .e = a->e,
                                    .in = in,
                                    .out = out};
}

d9d_status d9d_k_experts(d9d_stream s, const d9d_experts_args *a, void *y)
{
    const d9d_moe_permute_dims dims = {a->t, a->rows, a->k, a->n, a->h};
    const d9di_grouped_gemm_call wide = call_of(a, a->hidden, a->x, a->gate, a->h, a->i),
                                 down = call_of(a, a->sorted, a->hidden, a->down, a->i, a->h);
    const d9di_grouped_gemm_gate gate = {a->order.source, a->k, a->up, a->b_gate, a->b_up, &a->glu};

    if (a->up == NULL || (uintptr_t)a->up % 16 != 0 ||
        !d9di_grouped_gemm_skinny_supported(s, &wide) ||
        !d9di_grouped_gemm_skinny_supported(s, &down))
        return d9di_experts_parts(d9d_kernels_cuda(), s, a, y);
    D9D_TRY(d9di_args_check_glu("experts", a->t, &a->glu, true));
    D9D_TRY(d9di_grouped_gemm_skinny_glu(s, &wide, &gate));
    D9D_TRY(d9di_grouped_gemm_skinny_after(s, &down, a->b_down));
    return d9d_k_unpermute(s, &dims, y, a->sorted, a->prob, a->order.row, a->plus);
}
