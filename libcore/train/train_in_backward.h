/* train_in_backward.h - updates within backward, which release gradients
 * (trainer.optimizer_in_backward).
 *
 *     step        forward | begin | backward of  4   | 3        | 2        | 1        |   | end
 *     meanwhile                                        update 4   update 3   update 2   1
 *
 * Before backward the losses and targets of all ranks are summed, which gives the factor of the
 * gradients.  FSDP reports gradients that are final, the device's stream then has their squares and
 * their update, and their memory is free.  The step's end adds the squares up, and updates
 * parameters that belong to no unit.
 */
#ifndef D9DI_TRAIN_TRAIN_IN_BACKWARD_H
#define D9DI_TRAIN_TRAIN_IN_BACKWARD_H

#include "train/train_run.h"

struct d9di_train_stepper;
struct d9di_train_checkpointer;

typedef struct d9di_train_in_backward {
    bool is_on;
    /* Of the step that is being enqueued: */
    bool began, updates;                   /* it has gone backward; it has targets */
    double lr;                             /* as d9d_optimizer_step() has it */
    struct d9di_train_checkpointer *saves; /* in flight; NULL: a step that only computes */
} d9di_train_in_backward;

/* After the engine has its memory. */
d9d_status d9di_train_in_backward_open(struct d9di_train_stepper *s, const d9di_train_run *run);
/* The next step updates at this rate; or, with saves NULL, computes and drops its gradients. */
void d9di_train_in_backward_begin_step(struct d9di_train_stepper *s, double lr,
                                       struct d9di_train_checkpointer *saves);
/* The forward is done, with so many targets on this rank.  Nothing to do unless it is on.
 * Collective. */
d9d_status d9di_train_in_backward_start(struct d9di_train_stepper *s, const d9di_train_run *run,
                                        int64_t targets);

#endif /* D9DI_TRAIN_TRAIN_IN_BACKWARD_H */
