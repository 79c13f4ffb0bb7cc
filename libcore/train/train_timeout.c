/* train_timeout.c - see train/train_timeout.h. */
#include "train/train_timeout.h"

double d9di_train_timeouts_save_s(const d9di_train_timeouts *t)
{
    return t->c->save_timeout > 0 ? (double)t->c->save_timeout
                                  : (double)t->c->init_timeout + t->write_s;
}

void d9di_train_timeouts_set(const d9di_train_timeouts *t, d9di_train_phase phase)
{
    const struct d9d_job_timeout_section *c = t->c;
    const struct {
        const char *name;
        int64_t configured;
        double otherwise;
    } limits[] = {
        [D9DI_TRAIN_START] = {D9DI_TRAIN_START_TIMEOUT_NAME, c->init_timeout, 0},
        [D9DI_TRAIN_STREAM] = {"while a stream is read, trainer.timeout.init_timeout",
                               c->init_timeout, 0},
        [D9DI_TRAIN_STEP] = {"trainer.timeout.step_timeout", c->step_timeout, 0},
        [D9DI_TRAIN_EVALUATION] = {"in an evaluation, trainer.timeout.evaluation_timeout",
                                   c->evaluation_timeout, (double)c->init_timeout},
        [D9DI_TRAIN_SAVE] = {D9DI_TRAIN_SAVE_TIMEOUT_NAME, c->save_timeout,
                             d9di_train_timeouts_save_s(t)},
        [D9DI_TRAIN_EXPORT] = {"in the export, trainer.timeout.export_timeout", c->export_timeout,
                               (double)c->init_timeout + t->write_s},
    };

    d9d_mesh_set_timeout(t->mesh,
                         limits[phase].configured > 0 ? (double)limits[phase].configured
                                                      : limits[phase].otherwise,
                         limits[phase].name);
}
