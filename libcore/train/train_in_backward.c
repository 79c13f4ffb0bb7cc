/* train_in_backward.c - see train/train_in_backward.h. */
#include "train/train_in_backward.h"

#include "d9d/device/trace.h"
#include "train/train_step.h"

/* Some gradients are final.  In a step that updates nothing they are dropped. */
static d9d_status update_some(void *arg, const d9d_params *some)
{
    d9di_train_stepper *s = arg;
    d9d_device *dev = s->engine->dev;

    if (!s->in_backward.updates)
        return D9D_OK;
    D9D_TRY(d9d_grad_finalize_add(&s->grad_finalize, some));
    d9d_trace_mark(dev, "norm", "");
    D9D_TRY(
        d9d_optimizer_step_some(s->optimizer, some, s->in_backward.lr, &s->grad_finalize.scale));
    d9d_trace_mark(dev, "optimizer", "");
    return D9D_OK;
}

d9d_status d9di_train_in_backward_open(d9di_train_stepper *s, const d9di_train_run *run)
{
    if (!run->c->trainer.optimizer_in_backward)
        return D9D_OK;
    s->in_backward.is_on = true;
    for (size_t k = 0; k < s->engine->n_stages; k++)
        d9d_fsdp_set_post_accumulate_grad_hook(s->engine->stages[k].sharded, update_some, s);
    d9d_log_info(run->log, "updates are made within backward, which frees the gradients of each "
                           "layer");
    return d9d_grad_finalize_set_released(&s->grad_finalize, &s->engine->params);
}

void d9di_train_in_backward_begin_step(d9di_train_stepper *s, double lr,
                                       d9di_train_checkpointer *saves)
{
    s->in_backward.began = s->in_backward.updates = false;
    s->in_backward.lr = lr;
    s->in_backward.saves = saves;
}

d9d_status d9di_train_in_backward_start(d9di_train_stepper *s, const d9di_train_run *run,
                                        int64_t targets)
{
    d9di_train_in_backward *b = &s->in_backward;
    d9d_grad_finalize_local own;

    if (!b->is_on || b->saves == NULL)
        return D9D_OK;
    b->began = true;
    D9D_TRY(d9di_train_integrity_verify(s->integrity, s->state.step));
    D9D_TRY(d9di_train_stepper_has_targets(s, run, targets, &b->updates));
    if (!b->updates)
        return D9D_OK;
    D9D_TRY(d9di_train_checkpointer_wait_copy(b->saves));
    D9D_TRY(d9di_train_run_trigger_step(run, "train.optimizer_step.pre", s->state.step));
    own = d9di_train_stepper_targets(s, targets);
    return d9d_grad_finalize_begin(&s->grad_finalize, s->state.step, &own);
}
