/* piecewise.h - piecewise learning-rate schedules: warm-up, hold and decay as consecutive phases.
 *
 *     1.0        .-------.                {"name": "piecewise", "scheduler": {
 *              ,'  hold   `.                "initial_multiplier": 0.0, "phases": [
 *            ,'             `.  cosine        {"mode": "steps", "steps": 100, ...},
 *     0.0  -'  linear         `---            {"mode": "percentage", "percentage": 0.9, ...},
 *          0   100       900  1000 step       {"mode": "rest", ...}]}}
 *
 * A phase moves the multiplier from the previous phase's target to its own, along its curve.
 * "steps" lasts a number of steps, "percentage" until floor(total * share), "rest" until the total.
 * After the last phase the multiplier is constant.
 *
 * lr(k) = base lr * d9d_piecewise_at(s, k) for optimizer step k counted from 0.
 *
 * In a configuration it is one kind of d9d/sched/lr.h.
 */
#ifndef D9D_SCHED_PIECEWISE_H
#define D9D_SCHED_PIECEWISE_H

#include "d9d/sched/lr.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Curves from s to e, with p in [0, 1) the elapsed fraction of the phase: linear s + (e-s)p; cosine
 * e + (s-e)(1 + cos(pi p))/2; poly s + (e-s)p^power; exponential exp(ln s' + (ln e' - ln s')p)
 * where x' = max(x, 1e-8). */
typedef enum d9d_piecewise_curve_kind {
    D9D_CURVE_LINEAR,
    D9D_CURVE_COSINE,
    D9D_CURVE_EXPONENTIAL,
    D9D_CURVE_POLY
} d9d_piecewise_curve_kind;

D9D_API double d9d_piecewise_curve_at(d9d_piecewise_curve_kind kind, double power, double s,
                                      double e, double p);

/* --- configuration ---------------------------------------------------------- */

typedef enum d9d_piecewise_phase_mode {
    D9D_PHASE_STEPS,
    D9D_PHASE_PERCENTAGE,
    D9D_PHASE_REST
} d9d_piecewise_phase_mode;

/* What the tables fill: which is a d9d_piecewise_phase_mode, value a d9d_piecewise_phase_config. */
typedef struct d9d_piecewise_phase_config {
    int64_t steps;     /* D9D_PHASE_STEPS */
    double percentage; /* D9D_PHASE_PERCENTAGE, of 1 */
    double target_multiplier;
    d9d_union curve; /* which is a d9d_piecewise_curve_kind, value a d9d_piecewise_curve_config */
} d9d_piecewise_phase_config;

typedef struct d9d_piecewise_curve_config {
    double power; /* D9D_CURVE_POLY */
} d9d_piecewise_curve_config;

typedef struct d9d_piecewise_config {
    double initial_multiplier;
    d9d_list phases; /* of d9d_union, see above */
} d9d_piecewise_config;

typedef struct d9d_lr_schedule_config {
    d9d_piecewise_config scheduler;
} d9d_lr_schedule_config;

D9D_API extern const d9d_table d9d_piecewise_table;
D9D_API extern const d9d_lr_schedule_kind d9d_piecewise_kind;

/* --- schedules ------------------------------------------------------------------ */

typedef struct d9d_piecewise d9d_piecewise;

/* Create a schedule over `total` steps from a bound configuration.  `where` is the prefix of
 * messages: "config.json: lr_scheduler.scheduler".  ECONFIG when a phase would end before it
 * begins, when the phases are longer than the total, when a phase needs a total that is not known,
 * and without phases. */
D9D_API D9D_MUST_USE d9d_status d9d_piecewise_create(const d9d_piecewise_config *config,
                                                     const char *where, int64_t total,
                                                     d9d_piecewise **out);
D9D_API void d9d_piecewise_free(d9d_piecewise *s);

/* The factor of step k; for k below 0, the initial multiplier.  Cannot fail. */
D9D_API double d9d_piecewise_at(const d9d_piecewise *s, int64_t k);

/* The number of steps that the phases cover. */
D9D_API int64_t d9d_piecewise_steps(const d9d_piecewise *s);

/* What is known without a total: the sum of its "steps" phases, and whether another phase needs the
 * total. */
D9D_API int64_t d9d_piecewise_fixed_steps(const d9d_piecewise_config *config, bool *needs_total);

#ifdef __cplusplus
}
#endif
#endif /* D9D_SCHED_PIECEWISE_H */
