/* lr.h - learning-rate schedules: the factor of the base rate at every step, of any configured
 * kind.
 *
 *     D9D_TRY(d9d_lr_schedule_create(&config.lr_scheduler, "lr_scheduler", total, &lr));
 *     rate = base * d9d_lr_schedule_at(lr, step);
 *
 * Steps count from 0: the first step of a run has the factor of step 0.  A kind is a table;
 * piecewise.h is the one that is built in.
 */
#ifndef D9D_SCHED_LR_H
#define D9D_SCHED_LR_H

#include "d9d/config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { D9D_STEPS_UNKNOWN = -1 }; /* a total, for kinds that need none */

typedef struct d9d_lr_schedule_kind {
    size_t size;            /* sizeof(d9d_lr_schedule_kind) */
    const d9d_table *table; /* of its configuration section */
    /* `config` is the bound section and outlives *self; `where` is the prefix of messages; total:
     * steps of the run.  ECONFIG. */
    d9d_status (*create)(const void *config, const char *where, int64_t total, void **self);
    double (*at)(const void *self, int64_t step); /* cannot fail */
    void (*free)(void *self);                     /* NULL: nothing to free */
    /* What is known without a total: the number of steps that the section fixes, and whether it
     * also needs the total.  NULL: no step, and it does. */
    int64_t (*steps)(const void *config, bool *needs_total);
} d9d_lr_schedule_kind;

/* The default without the section: a constant rate. */
#define D9D_LR_SCHEDULE_CONSTANT                                                                   \
    "{\"name\": \"piecewise\", \"scheduler\": {\"initial_multiplier\": 1.0, \"phases\": "          \
    "[{\"mode\": "                                                                                 \
    "\"rest\", \"target_multiplier\": 1.0, \"curve\": {\"type\": \"linear\"}}]}}"

/* The "lr_scheduler" section is a union of the kinds' tables. */
D9D_API extern const char *const d9d_lr_schedule_tag[];
D9D_API extern const d9d_table *const d9d_lr_schedule_choices[]; /* NULL-ended */

typedef struct d9d_lr_schedule d9d_lr_schedule;

D9D_API D9D_MUST_USE d9d_status d9d_lr_schedule_create(const d9d_union *section, const char *where,
                                                       int64_t total, d9d_lr_schedule **out);
D9D_API void d9d_lr_schedule_free(d9d_lr_schedule *lr);
D9D_API double d9d_lr_schedule_at(const d9d_lr_schedule *lr, int64_t step);
D9D_API int64_t d9d_lr_schedule_fixed_steps(const d9d_union *section, bool *needs_total);

#ifdef __cplusplus
}
#endif
#endif /* D9D_SCHED_LR_H */
