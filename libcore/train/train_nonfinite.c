/* train_nonfinite.c - finds the cause of a step that is not finite.  Nothing was updated since the
 * step began, so running it again shows the tensor and the rank.  See train/train_parts.h.
 */
#include <math.h>
#include <stdio.h>

#include "train/train_parts.h"

/* The loss of micro-batch i of this rank is not finite: checks whether the weights are. */
static d9d_status diagnose_loss(d9di_train *r, int64_t i, double loss)
{
    const int64_t micro = r->run.c->trainer.batching.microbatch_size;
    const int64_t first =
        r->state.samples +
        (d9d_mesh_index(r->engine.mesh, D9D_AXES_DP) * r->run.n_micro + i) * micro;
    const d9di_run_data_samples_text s = d9di_run_data_describe_samples(&r->run.data, first, micro);
    const d9d_param *culprit;
    char weights[600] = "every parameter is finite";
    int64_t at;

    D9D_TRY(d9d_optimizer_find_nonfinite_param(r->engine.dev, &r->engine.params, &culprit, &at));
    if (culprit != NULL)
        (void)snprintf(weights, sizeof(weights), "%.500s is not finite at element %lld",
                       culprit->name, (long long)at);
    return D9D_FAIL(D9D_ENUMERIC, "step %lld: the loss of %s is %s; %s; nothing was updated",
                    (long long)(r->state.step + 1), s.text, d9di_engine_nonfinite_name(loss),
                    weights);
}

/* Looks for values that are not finite in this rank's gradients. */
static d9d_status diagnose_gradients(d9di_train *r)
{
    const d9d_param *culprit;
    int64_t at;

    D9D_TRY(d9d_optimizer_find_nonfinite_grad(r->engine.dev, &r->engine.params, &culprit, &at));
    if (culprit == NULL)
        return D9D_OK;
    return D9D_FAIL(D9D_ENUMERIC,
                    "step %lld: the gradient of %s is not finite at element %lld; "
                    "%s; nothing was updated",
                    (long long)(r->state.step + 1), culprit->name, (long long)at,
                    d9di_train_run_describe_step(&r->run, r->state.samples).text);
}

/* What this rank finds wrong with the step that was just run again. */
static d9d_status diagnose_local(d9di_train *r, const d9d_grad_finalize_report *report)
{
    double *sums = d9d_arena_alloc(&r->arena, (size_t)r->run.n_micro * sizeof(double));

    if (sums == NULL)
        return D9D_FAIL(D9D_ENOMEM, "train: %lld micro-batches", (long long)r->run.n_micro);
    D9D_TRY(d9d_device_download(r->engine.dev, sums, d9d_tensor_data(&r->grad_finalize.loss),
                                (uint64_t)r->run.n_micro * sizeof(double)));
    for (int64_t i = 0; i < r->run.n_micro && d9di_engine_has_last_stage(&r->engine); i++)
        if (!isfinite(sums[i]))
            return diagnose_loss(r, i, sums[i]);
    return isfinite(report->loss) ? diagnose_gradients(r) : D9D_OK;
}

d9d_status d9di_train_diagnose_nonfinite(d9di_train *r, const d9di_train_pending_step *p,
                                         const d9d_grad_finalize_report *report)
{
    int64_t targets;
    double flops;
    d9d_status st;

    r->state = p->state_before;
    D9D_TRY(d9di_train_open_prefetcher(r));
    D9D_TRY(d9di_train_forward_backward(r, &targets, &flops));
    D9D_TRY(d9di_engine_wait_grads(&r->engine));
    D9D_TRY(d9d_bootstrap_agree_status(r->run.where->boot, diagnose_local(r, report)));
    if (isfinite(report->loss))
        st = D9D_FAIL(D9D_ENUMERIC,
                      "step %lld: the norm of the gradient is %s though every element is finite; "
                      "%s; nothing was updated",
                      (long long)(r->state.step + 1), d9di_engine_nonfinite_name(report->norm),
                      d9di_train_run_describe_step(&r->run, r->state.samples).text);
    else
        st = D9D_FAIL(D9D_ENUMERIC,
                      "step %lld: the loss was %s, and is finite when computed again: %s does not "
                      "compute reliably; nothing was updated",
                      (long long)(r->state.step + 1), d9di_engine_nonfinite_name(report->loss),
                      r->engine.dev->name);
    return d9d_bootstrap_agree_status(r->run.where->boot, st);
}
