/* plan_costs.c - costs of a pipeline's actions.  See plan/plan_simulate.h. */
#include <string.h>

#include "engine/engine.h"
#include "engine/stage_tuple.h"
#include "plan/plan_simulate.h"

/* Of a whole tuple, whose tensors are messages of their own. */
static void find_transfer(const d9di_engine *e, d9di_plan_simulation *out)
{
    for (size_t i = 0; i < out->tally.n_traffic; i++) {
        const d9d_sim_traffic *t = &out->tally.traffic[i];

        if (strcmp(t->group, "pp") == 0 && strcmp(t->coll, "send_recv") == 0 && t->calls > 0)
            out->transfer_s = t->seconds / (double)t->calls * d9di_stage_tuple_messages(e);
    }
}

d9d_status d9di_plan_simulate_costs(const d9di_engine *e, const d9d_stage_timer *m, d9d_arena *a,
                                    d9di_plan_simulation *out)
{
    const d9d_program *p = &e->exec.program;
    d9d_stage_times *work = d9d_arena_alloc(a, (size_t)p->stages * sizeof(*work));
    double busy;

    out->stages = d9d_arena_alloc(a, e->n_stages * sizeof(*out->stages));
    if (work == NULL || out->stages == NULL)
        return D9D_FAIL(D9D_ENOMEM, "plan: %d stages", p->stages);
    D9D_TRY(d9d_stage_timer_read(m, p->stages, work, &busy, &out->pipeline_s));
    for (size_t k = 0; k < e->n_stages; k++) {
        const int s = e->stages[k].model->stage.index;

        out->stages[out->n_stages++] =
            (d9di_plan_simulate_stage){s, d9d_stage_times_cost(&work[s], p, s)};
    }
    find_transfer(e, out);
    return D9D_OK;
}
