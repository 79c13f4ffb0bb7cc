/* lr_table.h - the learning rate of every step of a run, from its configuration alone (d9d-lrplot).
 *
 *     D9D_TRY(d9d_lr_table_load(&d9d_lr_table_section, doc, "config.json", 0, log, &v));
 *     for (int64_t k = 0; k < v.steps; k++)
 *         printf("%g\n", d9d_lr_table_at(&v, k));
 *     d9d_lr_table_release(&v);
 */
#ifndef D9D_SCHED_LR_TABLE_H
#define D9D_SCHED_LR_TABLE_H

#include "d9d/sched/piecewise.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { D9D_LR_TABLE_STEPS_MAX = 100000000 };

typedef struct d9d_lr_table {
    d9d_lr_schedule *lr;
    double base; /* the base learning rate, or 1 if the configuration has none */
    bool is_lr;  /* the configuration has a base learning rate */
    int64_t steps;
    d9d_arena arena; /* owns the bound section */
} d9d_lr_table;

/* The configuration sections that it reads, for d9d_plugins_table(). */
D9D_API extern const d9d_table d9d_lr_table_section;

/* `table` is d9d_lr_table_section or one made from it.  `doc` is one of: a training configuration,
 * of which lr_scheduler and optimizer.lr are read; its lr_scheduler section; the scheduler in that
 * section.  With an optimizer and no lr_scheduler the rate is constant.
 *
 * `steps` 0 takes trainer.run.steps; without it, the steps of the phases.  If a phase is then a
 * share of the run, the length is 1000 or twice the steps of the other phases, and the log reports
 * it. ECONFIG. */
D9D_API D9D_MUST_USE d9d_status d9d_lr_table_load(const d9d_table *table, const json_t *doc,
                                                  const char *where, int64_t steps,
                                                  const d9d_log *log, d9d_lr_table *out);
D9D_API double d9d_lr_table_at(const d9d_lr_table *v, int64_t k);
D9D_API void d9d_lr_table_release(d9d_lr_table *v);

#ifdef __cplusplus
}
#endif
#endif /* D9D_SCHED_LR_TABLE_H */
