/* plan_goodput.c - what failures of nodes leave of a planned job's time. */
#include <math.h>

#include "plan/plan_private.h"

/* Bytes a second from a device's memory to its host's, pinned, as measured. */
#define HOST_COPY_RATE 25e9
/* The same into a file of shared memory, which is not pinned; and a TCP connection of two hosts.
 * Assumed. */
#define LOCAL_COPY_RATE 6e9
#define LINK_RATE       1.2e9

/* Bytes of the state of the rank that has most.  One replica writes its state to the disk; each
 * writes its own to memory. */
static double max_state_bytes(const d9d_plan *p)
{
    uint64_t most = 0;

    for (size_t i = 0; i < p->n_stages; i++)
        most = p->stages[i].state > most ? p->stages[i].state : most;
    return (double)most;
}

/* Seconds that a save takes from training, and until it is complete. */
static void set_save_costs(const d9d_plan *p, const d9d_plan_opts *opts, bool asynchronous,
                           d9d_goodput_costs *out)
{
    out->save_s = opts->storage_rate > 0 ? (double)p->checkpoint / (double)opts->storage_rate : 0;
    out->blocked_s = asynchronous ? max_state_bytes(p) / HOST_COPY_RATE : out->save_s;
    out->save_s = fmax(out->save_s, out->blocked_s);
}

/* 0: none in a run of so many steps, or at its end alone. */
static int64_t steps_of(d9d_step_period period)
{
    return period > 0 ? period : 0;
}

static double fraction_of(const d9d_goodput_costs *c, int64_t steps, double step_s)
{
    return steps > 0 ? d9d_goodput_fraction(c, (double)steps * step_s) : 0;
}

/* Of a local checkpoint: forward and backward hide the copy, the steps of a period the rest. */
static void set_local_costs(const d9d_plan *p, d9d_plan_goodput *g, d9d_goodput_costs *out)
{
    const double bytes = max_state_bytes(p), copy_s = bytes / LOCAL_COPY_RATE;
    const double period_s = (double)g->local_steps * p->step_s;

    *out = g->costs;
    out->save_s = copy_s + (g->nodes > 1 ? bytes / LINK_RATE : 0);
    out->blocked_s = fmax(copy_s - p->step_s, 0) + fmax(out->save_s - period_s, 0);
}

void d9di_plan_set_goodput(const d9d_train_config *c, const d9d_plan_opts *opts, d9d_plan *p)
{
    d9d_plan_goodput *g = &p->goodput;
    d9d_goodput_costs local;

    if (!(opts->node_mtbf_h > 0))
        return;
    g->nodes = (p->ranks + p->chip->per_node - 1) / p->chip->per_node;
    g->node_mtbf_h = opts->node_mtbf_h;
    g->costs.mtbf_s = opts->node_mtbf_h * 3600 / (double)g->nodes;
    g->costs.restart_s = opts->restart_s;
    set_save_costs(p, opts, c->trainer.checkpointing.asynchronous, &g->costs);
    g->period_steps = steps_of(c->trainer.checkpointing.period_steps);
    g->fraction = fraction_of(&g->costs, g->period_steps, p->step_s);
    g->best_steps = llround(ceil(d9d_goodput_best_period(&g->costs, p->step_s) / p->step_s));
    g->best_fraction = fraction_of(&g->costs, g->best_steps, p->step_s);
    g->local_steps = steps_of(c->trainer.checkpointing.local_period_steps);
    set_local_costs(p, g, &local);
    g->local_fraction = fraction_of(&local, g->local_steps, p->step_s);
}
