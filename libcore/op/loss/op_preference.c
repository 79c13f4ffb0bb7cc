/* op_preference.c - losses of pairs of answers, and of single ones: compositions of functions of
 * elements.  See d9d/op/loss.h.
 */
#include "op/op_common.h"

#include "d9d/op/loss.h"

/* -(1 - e) log s(z) - e log s(-z) */
static d9d_status smoothed_log_loss(d9d_tape *t, d9d_var *z, float e, d9d_var **loss)
{
    d9d_var *wrong;

    D9D_TRY(d9d_op_affine(t, z, -1.0f, 0, &wrong));
    D9D_TRY(d9d_op_log_sigmoid(t, z, loss));
    D9D_TRY(d9d_op_affine(t, *loss, e - 1.0f, 0, loss));
    if (e == 0.0f)
        return D9D_OK;
    D9D_TRY(d9d_op_log_sigmoid(t, wrong, &wrong));
    D9D_TRY(d9d_op_affine(t, wrong, -e, 0, &wrong));
    return d9d_op_add(t, *loss, wrong, loss);
}

d9d_status d9d_op_dpo(d9d_tape *t, d9d_var *margin, float beta, float label_smoothing,
                      d9d_var **loss)
{
    D9D_TRY(d9d_op_affine(t, margin, beta, 0, &margin));
    return smoothed_log_loss(t, margin, label_smoothing, loss);
}

d9d_status d9d_op_simpo(d9d_tape *t, d9d_var *margin, float beta, float gamma,
                        float label_smoothing, d9d_var **loss)
{
    D9D_TRY(d9d_op_affine(t, margin, beta, -gamma, &margin));
    return smoothed_log_loss(t, margin, label_smoothing, loss);
}

d9d_status d9d_op_ipo(d9d_tape *t, d9d_var *margin, float beta, d9d_var **loss)
{
    D9D_TRY(d9d_op_affine(t, margin, 1.0f, -0.5f / beta, &margin));
    return d9d_op_square(t, margin, loss);
}

/* log p - log(1 - p) of log p */
static d9d_status log_odds(d9d_tape *t, d9d_var *log_p, d9d_var **y)
{
    d9d_var *rest;

    D9D_TRY(d9d_op_exp(t, log_p, &rest));
    D9D_TRY(d9d_op_affine(t, rest, -1.0f, 1.0f, &rest));
    D9D_TRY(d9d_op_log(t, rest, &rest));
    return d9d_op_sub(t, log_p, rest, y);
}

d9d_status d9d_op_orpo(d9d_tape *t, d9d_var *chosen, d9d_var *rejected, float beta, d9d_var **loss)
{
    d9d_var *a, *b, *ratio;

    D9D_TRY(log_odds(t, chosen, &a));
    D9D_TRY(log_odds(t, rejected, &b));
    D9D_TRY(d9d_op_sub(t, a, b, &ratio));
    D9D_TRY(d9d_op_log_sigmoid(t, ratio, &ratio));
    D9D_TRY(d9d_op_affine(t, ratio, -beta, 0, &ratio));
    D9D_TRY(d9d_op_affine(t, chosen, -1.0f, 0, &a));
    return d9d_op_add(t, a, ratio, loss);
}

d9d_status d9d_op_kto(d9d_tape *t, d9d_var *ratio, d9d_var *kl, d9d_var *sign, float beta,
                      d9d_var **loss)
{
    d9d_var *z;

    D9D_TRY(d9d_op_sub(t, ratio, kl, &z));
    D9D_TRY(d9d_op_mul(t, z, sign, &z));
    D9D_TRY(d9d_op_affine(t, z, beta, 0, &z));
    D9D_TRY(d9d_op_sigmoid(t, z, &z));
    return d9d_op_affine(t, z, -1.0f, 1.0f, loss);
}

d9d_status d9d_op_bradley_terry(d9d_tape *t, d9d_var *chosen, d9d_var *rejected, d9d_var **loss)
{
    d9d_var *margin;

    D9D_TRY(d9d_op_sub(t, chosen, rejected, &margin));
    return smoothed_log_loss(t, margin, 0.0f, loss);
}
