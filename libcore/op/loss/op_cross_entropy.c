/* op_cross_entropy.c - cross entropy of logits that exist, with hard or soft labels, and
 * log-probabilities of targets: compositions of logsumexp, gather and sums.
 */
#include "op/op_common.h"

#include "d9d/op/loss.h"

/* EINVAL unless targets [...] have an element for each row of logits [..., V]. */
static d9d_status targets_check(const char *op, const d9d_tensor *logits, const d9d_tensor *targets)
{
    D9D_TRY(d9di_op_check_real(op, "logits", logits));
    D9D_TRY(d9di_op_check(op, "targets", targets, D9D_I32));
    if (logits->shape.ndim < 1 || d9d_tensor_numel(targets) != d9di_op_rows(&logits->shape))
        return d9di_op_misfit(op, "targets", &targets->shape, "logits", &logits->shape,
                              "logits are [..., V], targets [...]");
    return D9D_OK;
}

/* The targets as indices [..., 1] of rows of logits; counted. */
static d9d_tensor targets_index(const d9d_tensor *logits, const d9d_tensor *targets)
{
    d9d_shape shape = logits->shape;

    shape.dim[shape.ndim - 1] = 1;
    return d9d_tensor_reshape(targets, shape);
}

/* y times 1 where the target is not negative, else 0. */
static d9d_status mask_targets(d9d_tape *t, d9d_var *y, const d9d_tensor *index, d9d_var **out)
{
    d9d_var *target, *mask;

    D9D_TRY(d9d_tape_leaf(t, index, false, &target));
    D9D_TRY(d9d_op_ge(t, target, 0.0f, &mask));
    return d9d_op_mul(t, y, mask, out);
}

/* z of the target less the logsumexp of its row. */
static d9d_status target_log_probs(d9d_tape *t, d9d_var *logits, const d9d_tensor *index,
                                   d9d_var **lse, d9d_var **y)
{
    d9d_var *z;

    D9D_TRY(d9d_op_logsumexp(t, logits, -1, lse));
    D9D_TRY(d9d_op_gather(t, logits, index, &z));
    return d9d_op_sub(t, z, *lse, y);
}

d9d_status d9d_op_target_log_probs(d9d_tape *t, d9d_var *logits, const d9d_tensor *targets,
                                   d9d_var **y)
{
    d9d_tensor index;
    d9d_var *lse, *log_p;
    d9d_status st;

    D9D_TRY(targets_check("target_log_probs", d9d_var_tensor(logits), targets));
    index = targets_index(d9d_var_tensor(logits), targets);
    D9D_TRY_OR(st, target_log_probs(t, logits, &index, &lse, &log_p), out);
    st = mask_targets(t, log_p, &index, y);
out:
    d9d_tensor_release(&index);
    return st;
}

/* (1 - e) log p(target) + e (mean of z - lse) */
static d9d_status smoothed(d9d_tape *t, d9d_var *logits, const d9d_tensor *index, float e,
                           d9d_var **y)
{
    d9d_var *lse, *log_p, *mean;

    D9D_TRY(target_log_probs(t, logits, index, &lse, &log_p));
    if (e == 0.0f) {
        *y = log_p;
        return D9D_OK;
    }
    D9D_TRY(d9d_op_mean(t, logits, -1, &mean));
    D9D_TRY(d9d_op_sub(t, mean, lse, &mean));
    D9D_TRY(d9d_op_affine(t, mean, e, 0, &mean));
    D9D_TRY(d9d_op_affine(t, log_p, 1.0f - e, 0, &log_p));
    return d9d_op_add(t, log_p, mean, y);
}

d9d_status d9d_op_cross_entropy(d9d_tape *t, d9d_var *logits, const d9d_tensor *targets,
                                float label_smoothing, d9d_var **loss)
{
    d9d_tensor index;
    d9d_var *log_p;
    d9d_status st;

    D9D_TRY(targets_check("cross_entropy", d9d_var_tensor(logits), targets));
    if (!(label_smoothing >= 0.0f && label_smoothing <= 1.0f))
        return D9D_FAIL(D9D_EINVAL, "cross_entropy: a label smoothing of %g, not in [0, 1]",
                        (double)label_smoothing);
    index = targets_index(d9d_var_tensor(logits), targets);
    D9D_TRY_OR(st, smoothed(t, logits, &index, label_smoothing, &log_p), out);
    D9D_TRY_OR(st, d9d_op_affine(t, log_p, -1.0f, 0, &log_p), out);
    st = mask_targets(t, log_p, &index, loss);
out:
    d9d_tensor_release(&index);
    return st;
}

d9d_status d9d_op_soft_cross_entropy(d9d_tape *t, d9d_var *logits, d9d_var *q, d9d_var **loss)
{
    d9d_var *log_p, *terms;

    D9D_TRY(d9di_op_check_same("soft_cross_entropy", "logits", d9d_var_tensor(logits), "q",
                               d9d_var_tensor(q)));
    D9D_TRY(d9d_op_log_softmax(t, logits, &log_p));
    D9D_TRY(d9d_op_mul(t, q, log_p, &terms));
    D9D_TRY(d9d_op_sum(t, terms, -1, &terms));
    return d9d_op_affine(t, terms, -1.0f, 0, loss);
}
