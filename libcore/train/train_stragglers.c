/* train_stragglers.c - see train/train_stragglers.h. */
#include "train/train_stragglers.h"

#include <math.h>
#include <string.h>

#include "d9d/comm/exchange.h"

/* --- opening ---------------------------------------------------------------------------------- */

/* Ranks with the same work: of one stage, with the same experts. */
static d9d_status teams_set(const d9d_parallel_degrees *d, int n, d9d_arena *a, int **out)
{
    int *team = d9d_arena_alloc(a, (size_t)n * sizeof(*team));

    if (team == NULL)
        return D9D_FAIL(D9D_ENOMEM, "stragglers: no memory for %d ranks", n);
    for (int r = 0; r < n; r++)
        team[r] = d9d_parallel_degrees_index(d, D9D_AXIS(PP), r) * (int)d->expert_parallel +
                  d9d_parallel_degrees_index(d, D9D_AXES_EXPERT, r);
    *out = team;
    return D9D_OK;
}

static d9d_status nodes_list(d9di_train_stragglers *s, const d9di_train_run *run, d9d_arena *a)
{
    d9d_bootstrap *bootstrap = run->where->bootstrap;
    const char *node = d9d_bootstrap_node(bootstrap);
    d9d_bootstrap_blob *all;

    s->node = d9d_arena_alloc(a, (size_t)s->n_ranks * sizeof(*s->node));
    if (s->node == NULL)
        return D9D_FAIL(D9D_ENOMEM, "stragglers: no memory for %d ranks", s->n_ranks);
    D9D_TRY(d9d_bootstrap_allgather_arena(bootstrap, node, strlen(node) + 1, a, &all));
    for (int r = 0; r < s->n_ranks; r++)
        s->node[r] = all[r].data;
    return D9D_OK;
}

static d9d_status arrays_alloc(d9di_train_stragglers *s, d9d_arena *a)
{
    const size_t n = (size_t)s->n_ranks;

    s->capacity = s->c->period_steps > 0 ? (size_t)s->c->period_steps : 1;
    s->window = d9d_arena_alloc(a, s->capacity * sizeof(*s->window));
    s->times = d9d_arena_alloc(a, n * sizeof(*s->times));
    s->verdicts = d9d_arena_alloc(a, n * sizeof(*s->verdicts));
    if (s->window == NULL || s->times == NULL || s->verdicts == NULL)
        return D9D_FAIL(D9D_ENOMEM, "stragglers: no memory for %zu steps of %zu ranks", s->capacity,
                        n);
    for (int i = 0; i < 4; i++)
        D9D_TRY(d9d_wait_timer_create(s->engine->dev, &s->timer[i]));
    return D9D_OK;
}

d9d_status d9di_train_stragglers_open(d9di_train_stragglers *s, const d9di_train_run *run,
                                      d9di_engine *e, int64_t step, d9d_arena *a)
{
    const struct d9d_job_stragglers_section *c = &run->c->trainer.stragglers;
    int *team = NULL;

    s->sent_step = -1;
    if (c->period_steps == D9D_PERIOD_DISABLE || run->where->trial > 0 || e->world == NULL)
        return D9D_OK;
    s->engine = e;
    s->n_ranks = d9d_comm_size(e->world);
    D9D_TRY(teams_set(&run->c->mesh, s->n_ranks, a, &team));
    D9D_TRY(d9di_straggler_watch_open(
        &s->watch, &(d9di_straggler_watch_opts){.factor = c->factor, .periods = c->periods}, team,
        s->n_ranks, step, a));
    if (!d9di_straggler_watch_has_peers(&s->watch)) {
        d9d_log_warn(run->log,
                     "trainer.stragglers: no rank of %d does what another one does, so that "
                     "none can be compared",
                     s->n_ranks);
        return D9D_OK;
    }
    s->c = c;
    D9D_TRY(nodes_list(s, run, a));
    return arrays_alloc(s, a);
}

void d9di_train_stragglers_close(d9di_train_stragglers *s)
{
    for (int i = 0; i < 4; i++)
        d9d_wait_timer_free(s->timer[i]);
    d9d_async_host_reduce_release(&s->reduce);
    if (s->c != NULL && s->engine->mesh != NULL)
        d9d_mesh_observe_waits(s->engine->mesh, NULL, NULL, NULL);
}

/* --- measuring -------------------------------------------------------------------------------- */

void d9di_train_stragglers_begin_step(d9di_train_stragglers *s, int64_t k)
{
    if (s->c == NULL)
        return;
    d9d_wait_timer_reset(s->timer[k % 4]);
    d9d_mesh_observe_waits(s->engine->mesh, s->engine->dev->stream, d9d_wait_timer_mark,
                           s->timer[k % 4]);
}

/* Starts to share the median of the period that ends after k + 1 steps. */
static d9d_status period_send(d9di_train_stragglers *s, int64_t k)
{
    memset(s->times, 0, (size_t)s->n_ranks * sizeof(*s->times));
    s->times[d9d_comm_rank(s->engine->world)] = d9di_straggler_time_of(s->window, s->n);
    s->n = 0;
    s->sent_step = k + 1;
    return d9d_async_host_reduce_start(&s->reduce, s->engine->dev, s->engine->world, "stragglers",
                                       D9D_F64, s->times, 2 * (int64_t)s->n_ranks, D9D_COMM_SUM);
}

static d9d_status period_receive(d9di_train_stragglers *s)
{
    const int64_t step = s->sent_step;

    if (step < 0)
        return D9D_OK;
    s->sent_step = -1;
    D9D_TRY(d9d_async_host_reduce_wait(&s->reduce, s->times));
    d9di_straggler_watch_judge(&s->watch, step, s->times, s->verdicts, &s->n_verdicts);
    return D9D_OK;
}

d9d_status d9di_train_stragglers_collect(d9di_train_stragglers *s, const d9di_train_run *run,
                                         int64_t k, double ms)
{
    double waited;

    if (s->c == NULL)
        return D9D_OK;
    D9D_TRY(period_receive(s));
    D9D_TRY(d9d_wait_timer_read(s->timer[k % 4], &waited));
    if (s->n < s->capacity && !isnan(waited))
        s->window[s->n++] = ms > waited ? ms - waited : 0;
    return d9d_step_period_due(s->c->period_steps, k + 1, run->total_steps, D9D_DUE_AFTER_STEP)
               ? period_send(s, k)
               : D9D_OK;
}

/* --- verdicts --------------------------------------------------------------------------------- */

bool d9di_train_stragglers_poll(d9di_train_stragglers *s, d9d_track_straggler_record *out)
{
    const d9di_straggler_verdict *v;

    if (s->n_verdicts == 0)
        return false;
    v = &s->verdicts[--s->n_verdicts];
    *out = (d9d_track_straggler_record){.step = s->watch.last_step,
                                        .rank = v->rank,
                                        .host = s->node[v->rank],
                                        .recovered = v->recovered,
                                        .since = v->since,
                                        .compute_ms = v->ms,
                                        .peers_ms = v->peers_ms,
                                        .before = v->before};
    return true;
}

d9d_status d9di_train_stragglers_text(const d9d_track_straggler_record *r, d9d_buf *out)
{
    const double ratio = r->compute_ms / r->peers_ms;

    if (r->recovered)
        D9D_TRY(d9d_buf_printf(out, "rank %d (%s) computes as fast as its peers since step %lld",
                               r->rank, r->host, (long long)r->since));
    else
        D9D_TRY(d9d_buf_printf(out,
                               "rank %d (%s) computes %.2f times slower than its peers since step "
                               "%lld",
                               r->rank, r->host, ratio, (long long)r->since));
    D9D_TRY(d9d_buf_printf(out, ": %.3g ms a step, and they %.3g", r->compute_ms, r->peers_ms));
    return isnan(r->before) || r->recovered
               ? D9D_OK
               : d9d_buf_printf(out, " (before: %.2f times)", r->before);
}
