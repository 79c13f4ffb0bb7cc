/* period.h - the period in steps of an action such as logging or saving.
 *
 *     { "period_steps": 100 }              after steps 100, 200, 300, ...
 *     { "period_steps": "last_step" }      after the last one
 *     { "period_steps": "disable" }        never
 *
 * Steps are counted from 1 to total.  `done` steps are complete.  Before or during a step the
 * question is about step done + 1; after it, about step done:
 *
 *     d9d_step_period_due(p, done, total, 0)                   while step done + 1 runs
 *     d9d_step_period_due(p, done, total, D9D_DUE_AFTER_STEP)  when `done` was just increased
 */
#ifndef D9D_CONFIG_PERIOD_H
#define D9D_CONFIG_PERIOD_H

#include "d9d/config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A number of steps above 0, or one of these. */
typedef int64_t d9d_step_period;
#define D9D_PERIOD_DISABLE   ((d9d_step_period)0)
#define D9D_PERIOD_LAST_STEP ((d9d_step_period)-1)

enum {
    D9D_DUE_ON_LAST = 1,    /* a number of steps is due on the last step too */
    D9D_DUE_AFTER_STEP = 2, /* the step in question is `done`, not the next one */
};

D9D_API bool d9d_step_period_due(d9d_step_period p, int64_t done, int64_t total, unsigned flags);

/* For key tables: D9D_KEY_PERIOD(struct logging, period_steps, "1", "between two log lines"). */
D9D_API extern const d9d_key_custom d9d_step_period_kind;
#define D9D_KEY_PERIOD(S, f, d, ...) D9D_KEY_CUSTOM(S, f, d, &d9d_step_period_kind, __VA_ARGS__)

#ifdef __cplusplus
}
#endif
#endif /* D9D_CONFIG_PERIOD_H */
