/* events.h - what happens in a job, told to those who asked, when it happens.
 *
 *     static d9d_status after_step(void *self, const d9d_job_event *e)
 *     {
 *         ... e->step ...
 *         return D9D_OK;
 *     }
 *     static const d9d_job_event_handler events[] = {{"train.step.post", after_step}, {NULL,
 * NULL}};
 *
 *     D9D_PLUGIN(.events = events);
 *
 * A model provider, a task and a plugin each bring such a table, and are subscribed in that order.
 * Handlers run on every rank, in the order of subscription, before the job goes on.  The first
 * that fails ends the job with its sentence; no other hears of the event then, nor of the end of
 * what it began.
 *
 *     in this order                          what is in it
 *     train.configuration.start              boot
 *     train.configuration.data_loader        loader
 *     train.configuration.model_stages       models
 *     train.configuration.optimizer          optimizer
 *     train.configuration.lr_scheduler       lr
 *     train.ready                            tracker
 *     train.step.pre                         step, total_steps; the same in all of a step
 *       train.forward_backward.pre
 *       train.forward_backward.post
 *       train.optimizer_step.pre             not in a step without a target
 *       train.optimizer_step.post
 *     train.step.post
 *     train.evaluation.pre, .post            step, total_steps, name; between two steps
 *     train.sleep.pre, .post                 step, total_steps; between two steps
 *     train.wake.pre, .post                  the same
 *     train.finished                         nothing
 *
 *     inference.configuration.start          boot
 *     inference.configuration.data_loader    loader
 *     inference.configuration.model_stages   models
 *     inference.ready                        nothing
 *     inference.step.pre                     step, total_steps; the same in all of a step
 *       inference.forward.pre
 *       inference.forward.post
 *     inference.step.post
 *     inference.finished                     nothing
 *
 * The model's stages have their memory and weights when they are told of; the weights of a
 * checkpoint come between the schedule and "ready".  Steps count from 0: the number of those that
 * are done before this one.  On a device a step is queued: what it computes is there when somebody
 * waits for it.  Who changes parameters or the optimizer's state does so from optimizer_step.pre
 * on: before that a checkpoint of the last step may still be read from them.  Where somebody hears
 * of an event between optimizer_step.pre and the next forward, ranks that keep weights in parts
 * gather none of them before it (docs/design/fsdp.md).  A run with nothing left to do ends behind
 * the data loader.
 *
 * Other ids are whoever's who triggers them, not beginning with "train." or "inference.", with
 * `user` for what is in them:
 *
 *     D9D_TRY(d9d_job_events_trigger(e->events, &(d9d_job_event){.size = sizeof(d9d_job_event),
 *                                                        .id = "mine.thing", .user = &thing}));
 */
#ifndef D9D_JOB_EVENTS_H
#define D9D_JOB_EVENTS_H

#include "d9d/comm/bootstrap.h"
#include "d9d/data/loader/loader.h"
#include "d9d/model/model.h"
#include "d9d/optim/optim.h"
#include "d9d/sched/lr.h"
#include "d9d/track/track.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_job_events d9d_job_events;

/* What is not in an event is NULL or 0; everything is borrowed. */
typedef struct d9d_job_event {
    size_t size; /* sizeof(d9d_job_event) */
    const char *id;
    d9d_job_events *events; /* that it was triggered in */
    d9d_bootstrap *boot;
    d9d_loader *loader;
    d9d_model *const *models; /* n_models of them, this rank's stages */
    size_t n_models;
    d9d_optimizer *optimizer;
    const d9d_lr_schedule *lr;
    d9d_tracker *tracker; /* of rank 0 */
    int64_t step, total_steps;
    const void *user;
    const char *name; /* of an evaluation */
} d9d_job_event;

/* Ends with {NULL, NULL}. */
typedef struct d9d_job_event_handler {
    const char *id;
    d9d_status (*handle)(void *self, const d9d_job_event *e);
} d9d_job_event_handler;

D9D_API D9D_MUST_USE d9d_status d9d_job_events_create(d9d_job_events **out);
D9D_API void d9d_job_events_free(d9d_job_events *v);
/* Every row of a table, NULL too; table and `self` must outlive the job.  ECONFIG for a row without
 * a function, and for a "train." or "inference." that is not listed above. */
D9D_API D9D_MUST_USE d9d_status d9d_job_events_subscribe(d9d_job_events *v,
                                                         const d9d_job_event_handler *table,
                                                         void *self);
/* Has somebody subscribed to it? */
D9D_API bool d9d_job_events_has_subscriber(const d9d_job_events *v, const char *id);
/* Also from within a handler, up to 16 deep: EINVAL.  `e->events` is filled in. */
D9D_API D9D_MUST_USE d9d_status d9d_job_events_trigger(d9d_job_events *v, const d9d_job_event *e);

#ifdef __cplusplus
}
#endif
#endif /* D9D_JOB_EVENTS_H */
