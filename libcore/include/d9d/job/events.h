/* events.h - hooks into a job: handlers of a model provider, a task or a plugin.
 *
 *     static d9d_status after_step(void *self, const d9d_job_event *e)
 *     {
 *         ... e->step ...
 *         return D9D_OK;
 *     }
 *     static const d9d_job_event_handler events[] = {{"train.step.post", after_step},
 *                                                    {NULL, NULL}};
 *
 *     D9D_PLUGIN(.events = events);
 *
 * The model provider's table is subscribed first, then the task's, then each plugin's.  Handlers
 * run synchronously on every rank, in the order of subscription.  The first handler that fails ends
 * the job with its error.  No further handler is called then, not even for the matching .post
 * event.
 *
 *     events in this order                   members that are set
 *     train.configuration.start              bootstrap
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
 *     inference.configuration.start          bootstrap
 *     inference.configuration.data_loader    loader
 *     inference.configuration.model_stages   models
 *     inference.ready                        nothing
 *     inference.step.pre                     step, total_steps; the same in all of a step
 *       inference.forward.pre
 *       inference.forward.post
 *     inference.step.post
 *     inference.finished                     nothing
 *
 * data_stream is another name of data_loader, which the reference framework has since 0.17.
 *
 * `values` records scalars, histograms, texts and pictures (d9d/track/values.h); it is set in every
 * event of training but the first, and stays valid until the end of the job.
 *
 * At model_stages, the stages have their memory and initial weights.  The weights of a checkpoint
 * are loaded between lr_scheduler and "ready".  `step` is the number of completed steps, from 0.  A
 * GPU step is only enqueued: its results are available after a synchronization.
 *
 * A handler may change parameters or optimizer state from optimizer_step.pre on.  Before that, a
 * checkpoint of the last step may still be read from them, and one that changes meanwhile ends the
 * run as corrupted data.  If any handler subscribes to an event
 * between optimizer_step.pre and the next forward, FSDP prefetches no weights before it
 * (docs/design/fsdp.md).  A run whose steps are all done ends after the data_loader event.
 *
 * Events with other ids belong to the code that triggers them.  They must not begin with "train."
 * or "inference."; `user` carries their data:
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
#include "d9d/track/values.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_job_events d9d_job_events;

/* Members that an event does not set are NULL or 0; everything is borrowed. */
typedef struct d9d_job_event {
    size_t size; /* sizeof(d9d_job_event) */
    const char *id;
    d9d_job_events *events; /* the registry that it was triggered in */
    d9d_bootstrap *bootstrap;
    d9d_loader *loader;
    d9d_model *const *models; /* [n_models], this rank's stages */
    size_t n_models;
    d9d_optimizer *optimizer;
    const d9d_lr_schedule *lr;
    d9d_tracker *tracker; /* on rank 0; NULL on others */
    int64_t step, total_steps;
    const void *user;
    const char *name;   /* of an evaluation */
    d9d_values *values; /* own values of a training run, in every event but the first; else NULL */
} d9d_job_event;

/* Ends with {NULL, NULL}. */
typedef struct d9d_job_event_handler {
    const char *id;
    d9d_status (*handle)(void *self, const d9d_job_event *e);
} d9d_job_event_handler;

D9D_API D9D_MUST_USE d9d_status d9d_job_events_create(d9d_job_events **out);
D9D_API void d9d_job_events_free(d9d_job_events *v);
/* Subscribes every row of a table; NULL is an empty table.  Table and `self` must outlive the job.
 * ECONFIG for a row without a function, and for a "train." or "inference." id that is not listed
 * above. */
D9D_API D9D_MUST_USE d9d_status d9d_job_events_subscribe(d9d_job_events *v,
                                                         const d9d_job_event_handler *table,
                                                         void *self);
/* True if a handler is subscribed to `id`. */
D9D_API bool d9d_job_events_has_subscriber(const d9d_job_events *v, const char *id);
/* Calls the handlers of e->id.  A handler may trigger events, up to 16 levels deep; deeper is
 * EINVAL.  Sets `e->events` for the handlers. */
D9D_API D9D_MUST_USE d9d_status d9d_job_events_trigger(d9d_job_events *v, const d9d_job_event *e);

#ifdef __cplusplus
}
#endif
#endif /* D9D_JOB_EVENTS_H */
