/* op_policy_gradient.c - losses of sampled tokens by advantages: compositions of functions of
 * elements.  See d9d/op/loss.h.
 */
#include "op/op_common.h"

#include "d9d/op/loss.h"
#include "d9d/op/op.h"

#define LOWEST (-1e30f) /* no lower bound */

/* The importance weight: of each token, or of each sequence. */
static d9d_status ratio_make(d9d_tape *t, const d9d_op_policy_opts *o, const d9d_op_policy_in *in,
                             d9d_var **ratio)
{
    d9d_var *old = in->old, *x;

    if (old == NULL)
        D9D_TRY(d9d_op_detach(t, in->own, &old));
    if (!o->sequence)
        return d9d_op_exp_sub(t, in->own, old, ratio);
    D9D_TRY(d9d_op_sub(t, in->own, old, &x));
    D9D_TRY(d9d_op_mul(t, x, in->share, &x));
    D9D_TRY(d9d_op_cp_gather(t, x, in->cp, "policy ratio", &x));
    D9D_TRY(d9d_op_sum(t, x, 1, &x));
    return d9d_op_exp(t, x, ratio);
}

/* At most delta. */
static d9d_status ratio_bound(d9d_tape *t, const d9d_op_policy_opts *o, d9d_var *ratio, d9d_var **y)
{
    *y = ratio;
    return o->delta > 0 ? d9d_op_clamp(t, ratio, LOWEST, o->delta, y) : D9D_OK;
}

/* 1 where x < k, without gradient. */
static d9d_status is_below(d9d_tape *t, d9d_var *x, float k, d9d_var **y)
{
    D9D_TRY(d9d_op_ge(t, x, k, y));
    return d9d_op_affine(t, *y, -1.0f, 1.0f, y);
}

/* 1 where sign ratio < bound and sign A < 0: the clipped one is the smaller. */
static d9d_status is_clipped(d9d_tape *t, d9d_var *ratio, d9d_var *advantage, float sign,
                             float bound, d9d_var **y)
{
    d9d_var *x, *a;

    D9D_TRY(d9d_op_detach(t, ratio, &x));
    D9D_TRY(d9d_op_affine(t, x, sign, 0, &x));
    D9D_TRY(is_below(t, x, sign * bound, &x));
    D9D_TRY(d9d_op_affine(t, advantage, sign, 0, &a));
    D9D_TRY(is_below(t, a, 0, &a));
    return d9d_op_mul(t, x, a, y);
}

/* min(min(c, delta) A, clamp(c) A) */
static d9d_status clipped_gain(d9d_tape *t, const d9d_op_policy_opts *o, d9d_var *ratio,
                               d9d_var *bounded, d9d_var *advantage, d9d_var **y)
{
    d9d_var *clipped;

    D9D_TRY(d9d_op_clamp(t, ratio, 1 - o->epsilon_low, 1 + o->epsilon_high, &clipped));
    D9D_TRY(d9d_op_mul(t, clipped, advantage, &clipped));
    D9D_TRY(d9d_op_mul(t, bounded, advantage, y));
    return d9d_op_minimum(t, *y, clipped, y);
}

/* min(c, epsilon_high) A own */
static d9d_status cispo_gain(d9d_tape *t, const d9d_op_policy_opts *o, d9d_var *ratio,
                             const d9d_op_policy_in *in, d9d_var **y)
{
    d9d_var *x;

    D9D_TRY(d9d_op_detach(t, ratio, &x));
    D9D_TRY(d9d_op_clamp(t, x, LOWEST, o->epsilon_high, &x));
    D9D_TRY(d9d_op_mul(t, x, in->advantage, &x));
    return d9d_op_mul(t, x, in->own, y);
}

/* e^(ref - own) - (ref - own) - 1, k3 of Schulman's "Approximating KL divergence". */
static d9d_status kl_make(d9d_tape *t, const d9d_op_policy_in *in, d9d_var **kl)
{
    d9d_var *difference;

    D9D_TRY(d9d_op_sub(t, in->ref, in->own, &difference));
    D9D_TRY(d9d_op_exp_sub(t, in->ref, in->own, kl));
    D9D_TRY(d9d_op_sub(t, *kl, difference, kl));
    return d9d_op_affine(t, *kl, 1.0f, -1.0f, kl);
}

d9d_status d9d_op_policy_gradient(d9d_tape *t, const d9d_op_policy_opts *o,
                                  const d9d_op_policy_in *in, d9d_op_policy_out *out)
{
    const float low = o->cispo ? LOWEST : 1 - o->epsilon_low,
                high = o->cispo ? o->epsilon_high : 1 + o->epsilon_high;
    d9d_var *ratio, *bounded, *weighted;

    *out = (d9d_op_policy_out){.kl = NULL};
    D9D_TRY(ratio_make(t, o, in, &ratio));
    D9D_TRY(ratio_bound(t, o, ratio, &bounded));
    D9D_TRY(is_clipped(t, bounded, in->advantage, 1.0f, low, &out->low));
    D9D_TRY(is_clipped(t, bounded, in->advantage, -1.0f, high, &out->high));
    D9D_TRY(o->cispo ? cispo_gain(t, o, ratio, in, &out->loss)
                     : clipped_gain(t, o, ratio, bounded, in->advantage, &out->loss));
    D9D_TRY(d9d_op_affine(t, out->loss, -1.0f, 0, &out->loss));
    if (in->ref != NULL) {
        D9D_TRY(kl_make(t, in, &out->kl));
        D9D_TRY(d9d_op_affine(t, out->kl, o->beta, 0, &weighted));
        D9D_TRY(d9d_op_add(t, out->loss, weighted, &out->loss));
    }
    return d9d_op_mul(t, out->loss, in->weight, &out->loss);
}
