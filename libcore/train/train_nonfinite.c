/* train_nonfinite.c - finds the cause of a step that is not finite.  Nothing was updated since the
 * step began, so running it again shows the tensor and the rank; where updates begin within
 * backward, the squares of its gradients do.  See train/train_step.h.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "d9d/base/num_format.h"
#include "train/train_step.h"

/* The loss of micro-batch i of this rank is not finite: checks whether the weights are. */
static d9d_status diagnose_loss(d9di_train_stepper *s, const d9di_train_run *run, int64_t i,
                                double loss)
{
    const int64_t micro = run->c->trainer.batching.microbatch_size;
    const int64_t first = s->state.samples +
                          (d9d_mesh_index(s->engine->mesh, D9D_AXES_DP) * run->n_micro + i) * micro;
    const d9di_run_data_samples_text which =
        d9di_run_data_describe_samples(&run->data, first, micro);
    const d9d_param *culprit;
    char weights[600] = "every parameter is finite";
    int64_t at;

    D9D_TRY(d9d_optimizer_find_nonfinite_param(s->engine->dev, &s->engine->params, &culprit, &at));
    if (culprit != NULL)
        (void)d9d_num_format(weights, sizeof(weights), "%.500s is not finite at element %lld",
                             culprit->name, (long long)at);
    return D9D_FAIL(D9D_ENUMERIC, "step %lld: the loss of %s is %s; %s; nothing was updated",
                    (long long)(s->state.step + 1), which.text, d9di_engine_nonfinite_name(loss),
                    weights);
}

/* Looks for values that are not finite in this rank's gradients. */
static d9d_status diagnose_gradients(d9di_train_stepper *s, const d9di_train_run *run)
{
    const d9d_param *culprit;
    int64_t at;

    D9D_TRY(d9d_optimizer_find_nonfinite_grad(s->engine->dev, &s->engine->params, &culprit, &at));
    if (culprit == NULL)
        return D9D_OK;
    return D9D_FAIL(D9D_ENUMERIC,
                    "step %lld: the gradient of %s is not finite at element %lld; "
                    "%s; nothing was updated",
                    (long long)(s->state.step + 1), culprit->name, (long long)at,
                    d9di_train_run_describe_step(run, s->state.samples).text);
}

/* What this rank finds wrong with the step that was just run again; its losses go to sums. */
static d9d_status find_cause(d9di_train_stepper *s, const d9di_train_run *run,
                             const d9d_grad_finalize_report *report, double *sums)
{
    const d9di_engine *e = s->engine;

    if (sums == NULL)
        return D9D_FAIL(D9D_ENOMEM, "train: %lld micro-batches", (long long)run->n_micro);
    D9D_TRY(d9d_device_download(e->dev, sums, d9d_tensor_data(&s->grad_finalize.loss),
                                (uint64_t)run->n_micro * sizeof(double)));
    for (int64_t i = 0; i < run->n_micro && d9di_engine_has_last_stage(e); i++)
        if (!isfinite(sums[i]))
            return diagnose_loss(s, run, i, sums[i]);
    return isfinite(report->loss) ? diagnose_gradients(s, run) : D9D_OK;
}

static d9d_status diagnose_local(d9di_train_stepper *s, const d9di_train_run *run,
                                 const d9d_grad_finalize_report *report)
{
    double *sums = calloc((size_t)run->n_micro, sizeof(*sums));
    const d9d_status st = find_cause(s, run, report, sums);

    free(sums);
    return st;
}

/* A gradient was released with an element that is not finite. */
static d9d_status diagnose_released(const d9di_train_stepper *s, const d9di_train_run *run)
{
    const d9d_param *culprit;

    D9D_TRY(d9d_grad_finalize_find_nonfinite(&s->grad_finalize, s->state.step, &culprit));
    if (culprit == NULL)
        return D9D_OK;
    return D9D_FAIL(D9D_ENUMERIC,
                    "step %lld: the gradient of %s is not finite; %s; what backward had reached "
                    "before it is updated, and is not saved",
                    (long long)(s->state.step + 1), culprit->name,
                    d9di_train_run_describe_step(run, s->state.samples).text);
}

d9d_status d9di_train_stepper_diagnose(d9di_train_stepper *s, const d9di_train_run *run,
                                       const d9di_train_pending_step *p,
                                       const d9d_grad_finalize_report *report)
{
    int64_t targets;
    double flops;
    d9d_status st;

    s->state = p->state_before;
    if (s->in_backward.is_on && isfinite(report->loss))
        D9D_TRY(d9d_bootstrap_agree_status(run->where->bootstrap, diagnose_released(s, run)));
    d9di_train_in_backward_begin_step(s, 0, NULL);
    if (s->rollout->c != NULL) /* the next round may have taken the place of this one */
        return D9D_FAIL(D9D_ENUMERIC,
                        "step %lld: the loss of completions of %s is %g, the norm of its gradient "
                        "%g; nothing was updated",
                        (long long)(s->state.step + 1),
                        d9di_train_run_describe_step(run, s->state.samples).text,
                        report->loss / report->targets, report->norm);
    D9D_TRY(d9di_train_stepper_open_prefetcher(s, run, 0));
    D9D_TRY(d9di_train_stepper_forward_backward(s, run, &targets, &flops));
    D9D_TRY(d9di_engine_wait_grads(s->engine));
    D9D_TRY(d9d_bootstrap_agree_status(run->where->bootstrap, diagnose_local(s, run, report)));
    if (isfinite(report->loss))
        st = D9D_FAIL(D9D_ENUMERIC,
                      "step %lld: the norm of the gradient is %s though every element is finite; "
                      "%s; nothing was updated",
                      (long long)(s->state.step + 1), d9di_engine_nonfinite_name(report->norm),
                      d9di_train_run_describe_step(run, s->state.samples).text);
    else
        st = D9D_FAIL(D9D_ENUMERIC,
                      "step %lld: the loss was %s, and is finite when computed again: %s does not "
                      "compute reliably; nothing was updated",
                      (long long)(s->state.step + 1), d9di_engine_nonfinite_name(report->loss),
                      s->engine->dev->name);
    return d9d_bootstrap_agree_status(run->where->bootstrap, st);
}
