/* train_timeout.h - the timeouts of collective calls in the phases of a training run. */
#ifndef D9DI_TRAIN_TRAIN_TIMEOUT_H
#define D9DI_TRAIN_TRAIN_TIMEOUT_H

#include "d9d/comm/mesh.h"
#include "d9d/job/job.h"

#define D9DI_TRAIN_START_TIMEOUT_NAME "before the first step, trainer.timeout.init_timeout"
#define D9DI_TRAIN_SAVE_TIMEOUT_NAME  "in a save, trainer.timeout.save_timeout"

/* Phases with a timeout of their own. */
typedef enum d9di_train_phase {
    D9DI_TRAIN_START,  /* of a run, and after a wake-up */
    D9DI_TRAIN_STREAM, /* between steps, until the next one's samples are there on all ranks */
    D9DI_TRAIN_STEP,
    D9DI_TRAIN_EVALUATION,
    D9DI_TRAIN_SAVE,
    D9DI_TRAIN_EXPORT,
    D9DI_TRAIN_PHASES
} d9di_train_phase;

typedef struct d9di_train_timeouts {
    const struct d9d_job_timeout_section *c;
    d9d_mesh *mesh; /* borrowed */
    double write_s; /* the time that this rank's write of a checkpoint may take */
} d9di_train_timeouts;

/* Sets the timeout of all collective calls that follow. */
void d9di_train_timeouts_set(const d9di_train_timeouts *t, d9di_train_phase phase);
/* The timeout in a save, in seconds. */
double d9di_train_timeouts_save_s(const d9di_train_timeouts *t);

#endif /* D9DI_TRAIN_TRAIN_TIMEOUT_H */
