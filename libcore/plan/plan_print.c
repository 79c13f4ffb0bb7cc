/* plan_print.c - a plan as text and as d9d.plan.v1.  See d9d/plan/plan.h. */
#include <math.h>
#include <stdio.h>

#include "d9d/base/num_format.h"
#include "plan/plan_private.h"

/* --- amounts --------------------------------------------------------------------------------- */

typedef struct amount {
    char text[32];
} amount;

/* GiB, MiB or KiB. */
typedef struct byte_unit {
    const char *name;
    double bytes;
} byte_unit;

static byte_unit choose_unit(uint64_t max_bytes)
{
    static const byte_unit units[] = {{"GiB", 0x1p30}, {"MiB", 0x1p20}, {"KiB", 0x1p10}};
    int u = 0;

    while (u < 2 && (double)max_bytes < units[u].bytes)
        u++;
    return units[u];
}

static amount format_in_unit(byte_unit u, uint64_t bytes)
{
    amount a;

    (void)d9d_num_format(a.text, sizeof(a.text), "%.2f", (double)bytes / u.bytes);
    return a;
}

/* "1.72 GiB" */
static amount format_bytes(uint64_t bytes)
{
    const byte_unit u = choose_unit(bytes);
    amount a;

    (void)d9d_num_format(a.text, sizeof(a.text), "%.2f %s", (double)bytes / u.bytes, u.name);
    return a;
}

/* "1.72 G" */
static amount format_count(double v)
{
    static const char *const units[] = {"", " k", " M", " G", " T", " P"};
    amount a;
    int u = 0;

    for (; fabs(v) >= 1000 && u < 5; u++)
        v /= 1000;
    (void)d9d_num_format(a.text, sizeof(a.text), "%.*f%s",
                         u == 0 || v >= 100 ? 0
                         : v >= 10          ? 1
                                            : 2,
                         v, units[u]);
    return a;
}

static amount format_duration(double s)
{
    amount a;

    if (s < 1)
        (void)d9d_num_format(a.text, sizeof(a.text), "%.*f ms", s < 0.1 ? 1 : 0, s * 1e3);
    else if (s < 120)
        (void)d9d_num_format(a.text, sizeof(a.text), "%.1f s", s);
    else if (s < 7200)
        (void)d9d_num_format(a.text, sizeof(a.text), "%.1f minutes", s / 60);
    else if (s < 48 * 3600.0)
        (void)d9d_num_format(a.text, sizeof(a.text), "%.1f hours", s / 3600);
    else
        (void)d9d_num_format(a.text, sizeof(a.text), "%.1f days", s / 86400);
    return a;
}

/* --- memory -------------------------------------------------------------------------------- */

/* Columns: bytes per rank, and what they are called. */
#define MEMORY_COLUMNS(X)                                                                          \
    X(weights, "weights")                                                                          \
    X(gradients, "gradients")                                                                      \
    X(optimizer, "optimizer")                                                                      \
    X(units, "fsdp_buffers")                                                                       \
    X(activations, "activations")                                                                  \
    X(scratch, "scratch")                                                                          \
    X(outside, "unaccounted")

/* The host that needs most. */
static d9d_status print_host(const d9d_plan *p, d9d_buf *out)
{
    uint64_t copy = 0, batches = 0, optimizer = 0, activations = 0, local = 0;

    for (size_t i = 0; i < p->n_stages; i++) {
        const d9d_plan_rank *s = &p->stages[i];

        copy = s->copy > copy ? s->copy : copy;
        batches = s->batches > batches ? s->batches : batches;
        optimizer = s->host_optimizer > optimizer ? s->host_optimizer : optimizer;
        activations = s->host_activations > activations ? s->host_activations : activations;
        local = s->local > local ? s->local : local;
    }
    D9D_TRY(
        d9d_buf_printf(out, "host memory of a rank: %s for batches", format_bytes(batches).text));
    if (optimizer > 0)
        D9D_TRY(d9d_buf_printf(out, ", %s for optimizer states", format_bytes(optimizer).text));
    if (activations > 0)
        D9D_TRY(d9d_buf_printf(out, ", %s for activations", format_bytes(activations).text));
    if (copy > 0)
        D9D_TRY(d9d_buf_printf(out, ", %s for asynchronous checkpoints", format_bytes(copy).text));
    if (local > 0)
        D9D_TRY(d9d_buf_printf(out, ", %s for local ones", format_bytes(local).text));
    if (p->host_ranks > 1)
        D9D_TRY(d9d_buf_printf(out, "; of %lld on a host: %s", (long long)p->host_ranks,
                               format_bytes(p->host).text));
    return d9d_buf_printf(out, "\n");
}

/* Slots for copies of experts, if there are any. */
static d9d_status print_copies(const d9d_plan_rank *r, d9d_buf *out)
{
    const d9d_expert_copies_size *c = &r->copies;

    if (c->weights == 0)
        return D9D_OK;
    return d9d_buf_printf(out,
                          "copies of experts in all slots of a rank: %s of weights, which a step "
                          "brings, and %s of gradients, which it takes back\n",
                          format_bytes(c->weights).text, format_bytes(c->gradients).text);
}

static d9d_status print_memory(const d9d_plan *p, d9d_buf *out)
{
    const byte_unit u = choose_unit(d9d_plan_rank_bytes(d9d_plan_largest_rank(p)));

    D9D_TRY(d9d_buf_printf(out, "\n%-11s", u.name));
#define X(column, name) D9D_TRY(d9d_buf_printf(out, " %12s", name));
    MEMORY_COLUMNS(X)
#undef X
    D9D_TRY(d9d_buf_printf(out, " %9s\n", "in all"));
    for (size_t i = 0; i < p->n_stages; i++) {
        const d9d_plan_rank *r = &p->stages[i];
        amount ranks;

        (void)snprintf(ranks.text, sizeof(ranks.text),
                       r->ranks > 1 ? "rank %lld-%lld" : "rank %lld", (long long)r->rank,
                       (long long)(r->rank + r->ranks - 1));
        D9D_TRY(d9d_buf_printf(out, "%-11s", ranks.text));
#define X(column, name) D9D_TRY(d9d_buf_printf(out, " %12s", format_in_unit(u, r->column).text));
        MEMORY_COLUMNS(X)
#undef X
        D9D_TRY(d9d_buf_printf(out, " %9s\n", format_in_unit(u, d9d_plan_rank_bytes(r)).text));
    }
    if (d9d_plan_full_bytes(p) > 0)
        D9D_TRY(d9d_buf_printf(out, "where a rank's experts are at their capacity: at most %s\n",
                               format_bytes(d9d_plan_full_bytes(p)).text));
    D9D_TRY(print_copies(d9d_plan_largest_rank(p), out));
    D9D_TRY(d9d_buf_printf(out, "%s\n", p->updates));
    D9D_TRY(print_host(p, out));
    if (p->memory == 0)
        return D9D_OK;
    D9D_TRY(d9d_buf_printf(out, "%s: %s of %s\n", d9d_plan_fits(p) ? "it fits" : "it does not fit",
                           format_bytes(d9d_plan_rank_bytes(d9d_plan_largest_rank(p))).text,
                           format_bytes(p->memory).text));
    if (p->released == 0)
        return D9D_OK;
    return d9d_buf_printf(out, "with trainer.optimizer_in_backward %s: %s\n",
                          p->released <= p->memory ? "it fits" : "it does not fit either",
                          format_bytes(p->released).text);
}

/* --- time ---------------------------------------------------------------------------------- */

static d9d_status print_work(const d9d_plan_rank *r, d9d_buf *out)
{
    D9D_TRY(d9d_buf_printf(out, "\n%-38s %9s %9s %9s %10s\n", "a step of rank 0", "calls", "FLOP",
                           "bytes", "time"));
    for (int k = 0; k < D9D_SIM_KIND_COUNT; k++) {
        const d9d_sim_work *w = &r->tally.work[k];

        if (w->calls > 0)
            D9D_TRY(d9d_buf_printf(out, "%-38s %9lld %9s %9s %10s\n", d9d_sim_kind_name(k),
                                   (long long)w->calls, format_count(w->flops).text,
                                   format_count(w->bytes).text, format_duration(w->seconds).text));
    }
    for (size_t i = 0; i < r->tally.n_traffic; i++) {
        const d9d_sim_traffic *t = &r->tally.traffic[i];
        char label[96];

        (void)snprintf(label, sizeof(label), "%s, %s, %s", t->group, t->coll,
                       d9d_sim_link_name(t->link));
        D9D_TRY(d9d_buf_printf(out, "%-38s %9lld %9s %9s %10s\n", label, (long long)t->calls, "-",
                               format_count(t->bytes).text, format_duration(t->seconds).text));
    }
    return D9D_OK;
}

/* What makes a ring slow. */
static d9d_status print_plain_ring(const d9d_plan *p, d9d_buf *out)
{
    const d9d_sim_work *w = &p->stages[0].tally.work[D9D_SIM_ATTENTION_BUILTIN];
    const bool ring = p->mesh.context_parallel_method == D9D_CP_RING ||
                      p->mesh.context_parallel_method == D9D_CP_HYBRID_RING;

    if (!ring || w->calls == 0 || !p->chip->is_gpu)
        return D9D_OK;
    return d9d_buf_printf(
        out,
        "blocks of the ring take %s on plain kernels: packed documents, prefixes, "
        "softcaps, dropout, float32, chunks below 64 positions and windows that cut "
        "a chunk have no others\n",
        format_duration(w->seconds).text);
}

/* Does the bus to the host hold computation up? */
static d9d_status print_bus(const d9d_plan_rank *r, d9d_buf *out)
{
    const double bound = 0.02; /* of a step */

    if (r->host_activations == 0)
        return D9D_OK;
    if (r->bus_wait_s > bound * r->step_s)
        return d9d_buf_printf(
            out,
            "the bus to the host bounds the step: computation waits %s of %s for activations; less "
            "of trainer.offload.activation_fraction, or model_provider.checkpointing, sends "
            "fewer\n",
            format_duration(r->bus_wait_s).text, format_duration(r->step_s).text);
    return d9d_buf_printf(out,
                          "activations travel to the host and back beside the computation, which "
                          "waits %s of %s for them\n",
                          format_duration(r->bus_wait_s).text, format_duration(r->step_s).text);
}

static d9d_status print_speed(const d9d_plan *p, d9d_buf *out)
{
    D9D_TRY(d9d_buf_printf(out, "\na step takes about %s: %s tokens/s, %s tokens an hour",
                           format_duration(p->step_s).text,
                           format_count(p->tokens / p->step_s).text,
                           format_count(d9d_plan_tokens_per_hour(p)).text));
    if (p->chip->is_gpu)
        D9D_TRY(d9d_buf_printf(out, ", %.1f %% MFU", 100 * p->mfu));
    if (p->n_stages > 1)
        D9D_TRY(d9d_buf_printf(out, ", bubble of %s %.1f %%%s%s%s", p->schedule, 100 * p->bubble,
                               p->measured_run != NULL ? " (as " : "",
                               p->measured_run != NULL ? p->measured_run : "",
                               p->measured_run != NULL ? " has measured its stages)" : ""));
    if (p->steps >= 0)
        D9D_TRY(d9d_buf_printf(out, "\n%lld step%s, %s tokens: %s", (long long)p->steps,
                               D9D_PLURAL(p->steps),
                               format_count(p->tokens * (double)p->steps).text,
                               format_duration(p->step_s * (double)p->steps).text));
    return d9d_buf_printf(out, "\na checkpoint has %s, the exported model %s\n",
                          format_bytes(p->checkpoint).text, format_bytes(p->exported).text);
}

static d9d_status print_start(const d9d_plan *p, d9d_buf *out)
{
    const d9d_plan_start *s = &p->start;

    if (s->exchanges == 0)
        return D9D_OK;
    D9D_TRY(d9d_buf_printf(out, "ranks find each other in %s: %lld exchanges ",
                           format_duration(s->seconds).text, (long long)s->exchanges));
    if (s->tcp)
        D9D_TRY(d9d_buf_printf(out, "by TCP, at most %lld messages of a rank, and ",
                               (long long)s->messages));
    else
        D9D_TRY(d9d_buf_printf(out, "by PMIx, "));
    return d9d_buf_printf(out, "%lld requests to a node's PMIx server\n", (long long)s->requests);
}

static d9d_status print_period(const d9d_plan *p, const char *where, int64_t steps, double fraction,
                               d9d_buf *out)
{
    return d9d_buf_printf(out, "goodput %.1f %% with a checkpoint %severy %lld step%s, %s\n",
                          100 * fraction, where, (long long)steps, D9D_PLURAL(steps),
                          format_duration((double)steps * p->step_s).text);
}

static d9d_status print_goodput(const d9d_plan *p, d9d_buf *out)
{
    const d9d_plan_goodput *g = &p->goodput;

    if (g->nodes == 0)
        return D9D_OK;
    D9D_TRY(d9d_buf_printf(out, "\n%lld node%s, of which each fails every %s: a failure every %s, ",
                           (long long)g->nodes, g->nodes > 1 ? "s" : "",
                           format_duration(g->node_mtbf_h * 3600).text,
                           format_duration(g->costs.mtbf_s).text));
    D9D_TRY(d9d_buf_printf(out, "%s to restart; ", format_duration(g->costs.restart_s).text));
    D9D_TRY(d9d_buf_printf(out, "a save takes %s, of which training waits for %s\n",
                           format_duration(g->costs.save_s).text,
                           format_duration(g->costs.blocked_s).text));
    if (g->local_steps > 0)
        D9D_TRY(print_period(p, "in the hosts' memory ", g->local_steps, g->local_fraction, out));
    if (g->period_steps > 0)
        D9D_TRY(print_period(p, "", g->period_steps, g->fraction, out));
    else
        D9D_TRY(d9d_buf_printf(out, "no checkpoints: a failure costs all that was computed\n"));
    D9D_TRY(print_period(p, "", g->best_steps, g->best_fraction, out));
    return d9d_buf_printf(out,
                          "the last is the best: --set trainer.checkpointing.period_steps=%lld\n",
                          (long long)g->best_steps);
}

static d9d_status print_cp_candidate(const d9d_plan_cp_candidate *x, d9d_buf *out)
{
    const char *name = d9d_cp_method_name(x->method);

    if (x->refused != NULL)
        return d9d_buf_printf(out, "; %s is refused: %s", name, x->refused);
    return d9d_buf_printf(out, "; %s: a step of %.4g s, %s%s", name, x->step_s,
                          format_bytes(x->bytes).text, x->fits ? "" : " do not fit");
}

d9d_status d9d_plan_print_cp_choice(const d9d_plan_cp_choice *c, d9d_buf *out)
{
    D9D_TRY(d9d_buf_printf(out, "%s", d9d_cp_method_name(c->method)));
    for (int i = 0; i < c->n; i++)
        D9D_TRY(print_cp_candidate(&c->item[i], out));
    return D9D_OK;
}

d9d_status d9d_plan_print_text(const d9d_plan *p, d9d_buf *out)
{
    D9D_TRY(d9d_buf_printf(out, "%s parameters", format_count((double)p->parameters).text));
    if (p->frozen > 0)
        D9D_TRY(d9d_buf_printf(out, ", beside a frozen model of %s,",
                               format_count((double)p->frozen).text));
    D9D_TRY(d9d_buf_printf(out, " on %lld x %s, %s\n", (long long)p->ranks, p->chip->title,
                           p->mesh_text));
    D9D_TRY(d9d_buf_printf(out, "%lld micro-batch%s of %lld row%s of %lld position%s",
                           (long long)p->micro_batches, p->micro_batches > 1 ? "es" : "",
                           (long long)p->rows, p->rows > 1 ? "s" : "", (long long)p->length,
                           D9D_PLURAL(p->length)));
    if (p->longest > p->length)
        D9D_TRY(d9d_buf_printf(out, ", at most %lld", (long long)p->longest));
    if (p->document > 0)
        D9D_TRY(d9d_buf_printf(out, ", documents of %lld", (long long)p->document));
    D9D_TRY(d9d_buf_printf(out, "\n"));
    if (p->micro_batch_term != NULL) {
        D9D_TRY(d9di_task_put_micro_batch_term(p->micro_batch_term, p->samples, out));
        D9D_TRY(d9d_buf_printf(out, "\n"));
    }
    if (p->cp_choice.n > 0) {
        D9D_TRY(d9d_buf_printf(out, "context_parallel_method auto is "));
        D9D_TRY(d9d_plan_print_cp_choice(&p->cp_choice, out));
        D9D_TRY(d9d_buf_printf(out, "\n"));
    }
    D9D_TRY(print_memory(p, out));
    if (p->generate_s > 0)
        D9D_TRY(d9d_buf_printf(out,
                               "generation of the completions, all of the most tokens: %s of a "
                               "step, with a KV cache of %s\n",
                               format_duration(p->generate_s).text,
                               format_bytes(p->stages[0].cache).text));
    D9D_TRY(print_work(&p->stages[0], out));
    D9D_TRY(print_plain_ring(p, out));
    D9D_TRY(print_bus(&p->stages[0], out));
    D9D_TRY(print_speed(p, out));
    D9D_TRY(print_start(p, out));
    return print_goodput(p, out);
}

/* --- JSON ---------------------------------------------------------------------------------- */

/* Takes over `v`; false when memory is out. */
static bool json_append(json_t *list, json_t *v)
{
    return v != NULL && json_array_append_new(list, v) == 0;
}

static json_t *work_json(const d9d_sim_tally *t)
{
    json_t *list = json_array();
    bool well = list != NULL;

    for (int k = 0; k < D9D_SIM_KIND_COUNT && well; k++) {
        const d9d_sim_work *w = &t->work[k];

        if (w->calls > 0)
            well = json_append(list,
                               json_pack("{s:s, s:I, s:f, s:f, s:f}", "kind", d9d_sim_kind_name(k),
                                         "calls", (json_int_t)w->calls, "flops", w->flops, "bytes",
                                         w->bytes, "seconds", w->seconds));
    }
    return list;
}

static json_t *comm_json(const d9d_sim_tally *tally)
{
    json_t *list = json_array();
    bool well = list != NULL;

    for (size_t i = 0; i < tally->n_traffic && well; i++) {
        const d9d_sim_traffic *t = &tally->traffic[i];

        well = json_append(list, json_pack("{s:s, s:s, s:s, s:I, s:f, s:f}", "group", t->group,
                                           "call", t->coll, "link", d9d_sim_link_name(t->link),
                                           "calls", (json_int_t)t->calls, "bytes", t->bytes,
                                           "seconds", t->seconds));
    }
    return list;
}

static json_t *rank_json(const d9d_plan_rank *r)
{
    return json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, "
        "s:i, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:f}",
        "rank", (json_int_t)r->rank, "ranks", (json_int_t)r->ranks, "weights",
        (json_int_t)r->weights, "gradients", (json_int_t)r->gradients, "optimizer",
        (json_int_t)r->optimizer, "master_residual", (json_int_t)r->residuals, "fsdp_buffers",
        (json_int_t)r->units, "activations", (json_int_t)r->activations, "scratch",
        (json_int_t)r->scratch, "peak", (json_int_t)r->peak, "unaccounted", (json_int_t)r->outside,
        "bytes", (json_int_t)d9d_plan_rank_bytes(r), "host_optimizer",
        (json_int_t)r->host_optimizer, "host_copy", (json_int_t)r->copy, "host_batches",
        (json_int_t)r->batches, "step_s", r->step_s, "live_activations", r->live, "work",
        work_json(&r->tally), "messages", comm_json(&r->tally), "kv_cache", (json_int_t)r->cache,
        "host_local", (json_int_t)r->local, "bytes_experts_full",
        (json_int_t)(r->full_peak > 0 ? r->full_peak + r->outside : 0), "expert_copies_weights",
        (json_int_t)r->copies.weights, "expert_copies_gradients", (json_int_t)r->copies.gradients,
        "host_activations", (json_int_t)r->host_activations, "bus_wait_s", r->bus_wait_s);
}

static json_t *ranks_json(const d9d_plan *p)
{
    json_t *list = json_array();
    bool well = list != NULL;

    for (size_t i = 0; i < p->n_stages && well; i++)
        well = json_append(list, rank_json(&p->stages[i]));
    return list;
}

json_t *d9di_plan_mesh_json(const d9d_parallel_degrees *d)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:s, s:I, s:I, s:I}", "pipeline_parallel",
                     (json_int_t)d->pipeline_parallel, "data_parallel_replicate",
                     (json_int_t)d->data_parallel_replicate, "data_parallel_shard",
                     (json_int_t)d->data_parallel_shard, "context_parallel_replicate",
                     (json_int_t)d->context_parallel_replicate, "context_parallel_shard",
                     (json_int_t)d->context_parallel_shard, "context_parallel_method",
                     d9d_cp_method_name((d9d_cp_method)d->context_parallel_method),
                     "tensor_parallel", (json_int_t)d->tensor_parallel, "expert_parallel",
                     (json_int_t)d->expert_parallel, "expert_parallel_local",
                     (json_int_t)(d->expert_parallel_local > 1 ? d->expert_parallel_local : 1));
}

/* The costs of a pipeline's stages, in order. */
static json_t *costs_json(const d9d_plan *p)
{
    const int n =
        p->n_stages > 1 ? (int)p->n_stages * d9d_pipe_schedule_stages_per_rank(&p->pipe) : 0;
    json_t *list = json_array();
    bool well = list != NULL;

    for (int i = 0; i < n && well; i++) {
        const d9d_stage_costs *s = &p->stage_costs[i];

        well = json_append(list, json_pack("{s:f, s:f, s:f}", "forward", s->forward, "dgrad",
                                           s->dgrad, "wgrad", s->wgrad));
    }
    return list;
}

/* null if unknown. */
static json_t *int_or_null(int64_t v, bool known)
{
    return known ? json_integer(v) : json_null();
}

/* null where nobody asked. */
static json_t *goodput_json(const d9d_plan *p)
{
    const d9d_plan_goodput *g = &p->goodput;

    if (g->nodes == 0)
        return json_null();
    return json_pack(
        "{s:I, s:f, s:f, s:f, s:f, s:f, s:o, s:o, s:o, s:o, s:I, s:f}", "nodes",
        (json_int_t)g->nodes, "node_mtbf_h", g->node_mtbf_h, "mtbf_s", g->costs.mtbf_s, "save_s",
        g->costs.save_s, "blocked_s", g->costs.blocked_s, "restart_s", g->costs.restart_s,
        "period_steps", int_or_null(g->period_steps, g->period_steps > 0), "goodput",
        g->period_steps > 0 ? json_real(g->fraction) : json_null(), "local_period_steps",
        int_or_null(g->local_steps, g->local_steps > 0), "local_goodput",
        g->local_steps > 0 ? json_real(g->local_fraction) : json_null(), "best_period_steps",
        (json_int_t)g->best_steps, "best_goodput", g->best_fraction);
}

/* null for one rank. */
static json_t *start_json(const d9d_plan *p)
{
    const d9d_plan_start *s = &p->start;

    if (s->exchanges == 0)
        return json_null();
    return json_pack("{s:s, s:I, s:I, s:I, s:f}", "carrier", s->tcp ? "tcp" : "pmix", "exchanges",
                     (json_int_t)s->exchanges, "requests", (json_int_t)s->requests, "messages",
                     (json_int_t)s->messages, "seconds", s->seconds);
}

/* null where the configuration names a method. */
static json_t *cp_choice_json(const d9d_plan_cp_choice *c)
{
    json_t *list = c->n > 0 ? json_array() : json_null();
    bool well = list != NULL;

    for (int i = 0; i < c->n && well; i++) {
        const d9d_plan_cp_candidate *x = &c->item[i];
        const bool planned = x->refused == NULL;

        well = json_append(list, json_pack("{s:s, s:s?, s:o, s:o, s:b}", "method",
                                           d9d_cp_method_name(x->method), "refused", x->refused,
                                           "step_s", planned ? json_real(x->step_s) : json_null(),
                                           "bytes", int_or_null((int64_t)x->bytes, planned), "fits",
                                           planned && x->fits));
    }
    return list;
}

json_t *d9d_plan_json(const d9d_plan *p)
{
    return json_pack(
        "{s:s, s:o, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:f, s:f, s:f, s:o, s:o, s:f, "
        "s:o, s:s?, s:I, s:I, s:I, s:I, s:o, s:b, s:s, s:o, s:I, s:f, s:o, s:o, s:o, s:o}",
        "schema", "d9d.plan.v1", "mesh", d9di_plan_mesh_json(&p->mesh), "device", p->chip->name,
        "ranks", (json_int_t)p->ranks, "parameters", (json_int_t)p->parameters, "rows",
        (json_int_t)p->rows, "micro_batches", (json_int_t)p->micro_batches, "length",
        (json_int_t)p->length, "longest", (json_int_t)p->longest, "document",
        int_or_null(p->document, p->document > 0), "steps", int_or_null(p->steps, p->steps >= 0),
        "step_s", p->step_s, "tokens", p->tokens, "tokens_per_hour", d9d_plan_tokens_per_hour(p),
        "mfu", p->chip->is_gpu ? json_real(p->mfu) : json_null(), "schedule",
        p->n_stages > 1 ? json_string(p->schedule) : json_null(), "bubble", p->bubble,
        "stage_costs", costs_json(p), "costs", p->measured_run, "checkpoint_bytes",
        (json_int_t)p->checkpoint, "export_bytes", (json_int_t)p->exported, "host_bytes",
        (json_int_t)p->host, "host_ranks", (json_int_t)p->host_ranks, "memory",
        int_or_null((int64_t)p->memory, p->memory > 0), "fits", d9d_plan_fits(p), "updates",
        p->updates, "stages", ranks_json(p), "frozen_parameters", (json_int_t)p->frozen,
        "generation_s", p->generate_s, "start", start_json(p), "goodput", goodput_json(p),
        "context_parallel_choice", cp_choice_json(&p->cp_choice), "bytes_optimizer_in_backward",
        int_or_null((int64_t)p->released, p->released > 0));
}
