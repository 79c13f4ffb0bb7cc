/* plan_print.c - a plan as text and as d9d.plan.v1.  See d9d/plan/plan.h. */
#include <math.h>
#include <stdio.h>

#include "d9d/base/num_format.h"
#include "plan/plan_private.h"

/* --- amounts --------------------------------------------------------------------------------- */

typedef struct amount {
    char text[32];
} amount;

/* Bytes in the unit in which `most` is a number of people's size. */
typedef struct unit {
    const char *name;
    double bytes;
} unit;

static unit unit_for(uint64_t most)
{
    static const unit units[] = {{"GiB", 0x1p30}, {"MiB", 0x1p20}, {"KiB", 0x1p10}};
    int u = 0;

    while (u < 2 && (double)most < units[u].bytes)
        u++;
    return units[u];
}

static amount in(unit u, uint64_t bytes)
{
    amount a;

    (void)d9d_point_format(a.text, sizeof(a.text), "%.2f", (double)bytes / u.bytes);
    return a;
}

/* "1.72 GiB" */
static amount size(uint64_t bytes)
{
    const unit u = unit_for(bytes);
    amount a;

    (void)d9d_point_format(a.text, sizeof(a.text), "%.2f %s", (double)bytes / u.bytes, u.name);
    return a;
}

/* "1.72 G" */
static amount big(double v)
{
    static const char *const units[] = {"", " k", " M", " G", " T", " P"};
    amount a;
    int u = 0;

    for (; fabs(v) >= 1000 && u < 5; u++)
        v /= 1000;
    (void)d9d_point_format(a.text, sizeof(a.text), "%.*f%s",
                           u == 0 || v >= 100 ? 0
                           : v >= 10          ? 1
                                              : 2,
                           v, units[u]);
    return a;
}

static amount duration(double s)
{
    amount a;

    if (s < 1)
        (void)d9d_point_format(a.text, sizeof(a.text), "%.*f ms", s < 0.1 ? 1 : 0, s * 1e3);
    else if (s < 120)
        (void)d9d_point_format(a.text, sizeof(a.text), "%.1f s", s);
    else if (s < 7200)
        (void)d9d_point_format(a.text, sizeof(a.text), "%.1f minutes", s / 60);
    else if (s < 48 * 3600.0)
        (void)d9d_point_format(a.text, sizeof(a.text), "%.1f hours", s / 3600);
    else
        (void)d9d_point_format(a.text, sizeof(a.text), "%.1f days", s / 86400);
    return a;
}

/* --- memory ------------------------------------------------------------------------------------
 */

/* Columns: bytes of a rank. */
#define PARTS(X) X(weights) X(gradients) X(optimizer) X(units) X(activations) X(scratch) X(outside)

/* Of the ranks of the host that needs most. */
static d9d_status print_host(const d9d_forecast *p, d9d_buf *out)
{
    uint64_t copy = 0, batches = 0;

    for (size_t i = 0; i < p->n_stages; i++) {
        copy = p->stages[i].copy > copy ? p->stages[i].copy : copy;
        batches = p->stages[i].batches > batches ? p->stages[i].batches : batches;
    }
    D9D_TRY(d9d_buf_printf(out, "host memory of a rank: %s for batches", size(batches).text));
    if (copy > 0)
        D9D_TRY(d9d_buf_printf(out, ", %s for checkpoints written behind", size(copy).text));
    if (p->host_ranks > 1)
        D9D_TRY(d9d_buf_printf(out, "; of %lld on a host: %s", (long long)p->host_ranks,
                               size(p->host).text));
    return d9d_buf_printf(out, "\n");
}

static d9d_status print_memory(const d9d_forecast *p, d9d_buf *out)
{
    const unit u = unit_for(d9d_forecast_bytes(d9d_forecast_largest(p)));

    D9D_TRY(d9d_buf_printf(out, "\n%-11s", u.name));
#define X(part) D9D_TRY(d9d_buf_printf(out, " %11s", #part));
    PARTS(X)
#undef X
    D9D_TRY(d9d_buf_printf(out, " %9s\n", "in all"));
    for (size_t i = 0; i < p->n_stages; i++) {
        const d9d_forecast_rank *r = &p->stages[i];
        amount ranks;

        (void)snprintf(ranks.text, sizeof(ranks.text),
                       r->ranks > 1 ? "rank %lld-%lld" : "rank %lld", (long long)r->rank,
                       (long long)(r->rank + r->ranks - 1));
        D9D_TRY(d9d_buf_printf(out, "%-11s", ranks.text));
#define X(part) D9D_TRY(d9d_buf_printf(out, " %11s", in(u, r->part).text));
        PARTS(X)
#undef X
        D9D_TRY(d9d_buf_printf(out, " %9s\n", in(u, d9d_forecast_bytes(r)).text));
    }
    D9D_TRY(d9d_buf_printf(out, "%s\n", p->updates));
    D9D_TRY(print_host(p, out));
    if (p->memory == 0)
        return D9D_OK;
    return d9d_buf_printf(
        out, "%s: %s of %s\n", d9d_forecast_fits(p) ? "it fits" : "it does not fit",
        size(d9d_forecast_bytes(d9d_forecast_largest(p))).text, size(p->memory).text);
}

/* --- time --------------------------------------------------------------------------------------
 */

static d9d_status print_work(const d9d_forecast_rank *r, d9d_buf *out)
{
    D9D_TRY(d9d_buf_printf(out, "\n%-38s %9s %9s %9s %10s\n", "a step of rank 0", "calls", "FLOP",
                           "bytes", "time"));
    for (int k = 0; k < D9D_PAPER_KIND_COUNT; k++) {
        const d9d_paper_work *w = &r->tally.work[k];

        if (w->calls > 0)
            D9D_TRY(d9d_buf_printf(out, "%-38s %9lld %9s %9s %10s\n", d9d_paper_kind_text(k),
                                   (long long)w->calls, big(w->flops).text, big(w->bytes).text,
                                   duration(w->seconds).text));
    }
    for (size_t i = 0; i < r->tally.n_talk; i++) {
        const d9d_paper_talk *t = &r->tally.talk[i];
        char what[96];

        (void)snprintf(what, sizeof(what), "%s, %s, %s", t->group, t->verb,
                       d9d_paper_link_text(t->link));
        D9D_TRY(d9d_buf_printf(out, "%-38s %9lld %9s %9s %10s\n", what, (long long)t->calls, "-",
                               big(t->bytes).text, duration(t->seconds).text));
    }
    return D9D_OK;
}

static d9d_status print_speed(const d9d_forecast *p, d9d_buf *out)
{
    D9D_TRY(d9d_buf_printf(out, "\na step takes about %s: %s tokens/s, %s tokens an hour",
                           duration(p->step_s).text, big(p->tokens / p->step_s).text,
                           big(d9d_forecast_tokens_per_hour(p)).text));
    if (p->chip->gpu)
        D9D_TRY(d9d_buf_printf(out, ", %.1f %% MFU", 100 * p->mfu));
    if (p->n_stages > 1)
        D9D_TRY(d9d_buf_printf(out, ", bubble of %s %.1f %%%s%s%s", p->schedule, 100 * p->bubble,
                               p->costs != NULL ? " (as " : "", p->costs != NULL ? p->costs : "",
                               p->costs != NULL ? " has measured its stages)" : ""));
    if (p->steps >= 0)
        D9D_TRY(d9d_buf_printf(out, "\n%lld steps, %s tokens: %s", (long long)p->steps,
                               big(p->tokens * (double)p->steps).text,
                               duration(p->step_s * (double)p->steps).text));
    return d9d_buf_printf(out,
                          "\na checkpoint has %s, its manifest up to %s, the exported model %s\n",
                          size(p->checkpoint).text, size(p->manifest).text, size(p->exported).text);
}

d9d_status d9d_forecast_print(const d9d_forecast *p, d9d_buf *out)
{
    D9D_TRY(d9d_buf_printf(out, "%s parameters on %lld x %s, %s\n", big((double)p->parameters).text,
                           (long long)p->ranks, p->chip->text, p->mesh_text));
    D9D_TRY(d9d_buf_printf(out, "%lld micro-batch%s of %lld row%s of %lld positions",
                           (long long)p->micro_batches, p->micro_batches > 1 ? "es" : "",
                           (long long)p->rows, p->rows > 1 ? "s" : "", (long long)p->length));
    if (p->longest > p->length)
        D9D_TRY(d9d_buf_printf(out, ", at most %lld", (long long)p->longest));
    if (p->document > 0)
        D9D_TRY(d9d_buf_printf(out, ", documents of %lld", (long long)p->document));
    D9D_TRY(d9d_buf_printf(out, "\n"));
    D9D_TRY(print_memory(p, out));
    D9D_TRY(print_work(&p->stages[0], out));
    return print_speed(p, out);
}

/* --- JSON ----------------------------------------------------------------------------------------
 */

/* Takes over `v`; false when memory is out. */
static bool add(json_t *list, json_t *v)
{
    return v != NULL && json_array_append_new(list, v) == 0;
}

static json_t *work_json(const d9d_paper_tally *t)
{
    json_t *list = json_array();
    bool well = list != NULL;

    for (int k = 0; k < D9D_PAPER_KIND_COUNT && well; k++) {
        const d9d_paper_work *w = &t->work[k];

        if (w->calls > 0)
            well = add(list, json_pack("{s:s, s:I, s:f, s:f, s:f}", "kind", d9d_paper_kind_text(k),
                                       "calls", (json_int_t)w->calls, "flops", w->flops, "bytes",
                                       w->bytes, "seconds", w->seconds));
    }
    return list;
}

static json_t *talk_json(const d9d_paper_tally *tally)
{
    json_t *list = json_array();
    bool well = list != NULL;

    for (size_t i = 0; i < tally->n_talk && well; i++) {
        const d9d_paper_talk *t = &tally->talk[i];

        well = add(list, json_pack("{s:s, s:s, s:s, s:I, s:f, s:f}", "group", t->group, "call",
                                   t->verb, "link", d9d_paper_link_text(t->link), "calls",
                                   (json_int_t)t->calls, "bytes", t->bytes, "seconds", t->seconds));
    }
    return list;
}

static json_t *rank_json(const d9d_forecast_rank *r)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, "
                     "s:i, s:o, s:o}",
                     "rank", (json_int_t)r->rank, "ranks", (json_int_t)r->ranks, "weights",
                     (json_int_t)r->weights, "gradients", (json_int_t)r->gradients, "optimizer",
                     (json_int_t)r->optimizer, "master_residual", (json_int_t)r->residuals, "units",
                     (json_int_t)r->units, "activations", (json_int_t)r->activations, "scratch",
                     (json_int_t)r->scratch, "peak", (json_int_t)r->peak, "outside",
                     (json_int_t)r->outside, "bytes", (json_int_t)d9d_forecast_bytes(r),
                     "host_copy", (json_int_t)r->copy, "host_batches", (json_int_t)r->batches,
                     "step_s", r->step_s, "live", r->live, "work", work_json(&r->tally), "messages",
                     talk_json(&r->tally));
}

static json_t *ranks_json(const d9d_forecast *p)
{
    json_t *list = json_array();
    bool well = list != NULL;

    for (size_t i = 0; i < p->n_stages && well; i++)
        well = add(list, rank_json(&p->stages[i]));
    return list;
}

json_t *d9di_mesh_json(const d9d_degrees *d)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "pipeline_parallel",
                     (json_int_t)d->pipeline_parallel, "data_parallel_replicate",
                     (json_int_t)d->data_parallel_replicate, "data_parallel_shard",
                     (json_int_t)d->data_parallel_shard, "context_parallel_replicate",
                     (json_int_t)d->context_parallel_replicate, "context_parallel_shard",
                     (json_int_t)d->context_parallel_shard, "tensor_parallel",
                     (json_int_t)d->tensor_parallel, "expert_parallel",
                     (json_int_t)d->expert_parallel);
}

/* Of a pipeline's stages, in order. */
static json_t *prices_json(const d9d_forecast *p)
{
    const int n = p->n_stages > 1 ? (int)p->n_stages * d9d_pipe_stages_per_rank(&p->pipe) : 0;
    json_t *list = json_array();
    bool well = list != NULL;

    for (int i = 0; i < n && well; i++) {
        const d9d_stage_price *s = &p->prices[i];

        well = add(list, json_pack("{s:f, s:f, s:f}", "forward", s->forward, "input", s->input,
                                   "weight", s->weight));
    }
    return list;
}

/* null where there is none. */
static json_t *maybe(int64_t v, bool known)
{
    return known ? json_integer(v) : json_null();
}

json_t *d9d_forecast_json(const d9d_forecast *p)
{
    return json_pack(
        "{s:s, s:o, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:f, s:f, s:f, s:o, s:o, s:f, "
        "s:o, s:s?, s:I, s:I, s:I, s:I, s:I, s:o, s:b, s:s, s:o}",
        "schema", "d9d.plan.v1", "mesh", d9di_mesh_json(&p->mesh), "processor", p->chip->name,
        "ranks", (json_int_t)p->ranks, "parameters", (json_int_t)p->parameters, "rows",
        (json_int_t)p->rows, "micro_batches", (json_int_t)p->micro_batches, "length",
        (json_int_t)p->length, "longest", (json_int_t)p->longest, "document",
        maybe(p->document, p->document > 0), "steps", maybe(p->steps, p->steps >= 0), "step_s",
        p->step_s, "tokens", p->tokens, "tokens_per_hour", d9d_forecast_tokens_per_hour(p), "mfu",
        p->chip->gpu ? json_real(p->mfu) : json_null(), "schedule",
        p->n_stages > 1 ? json_string(p->schedule) : json_null(), "bubble", p->bubble, "prices",
        prices_json(p), "costs", p->costs, "checkpoint_bytes", (json_int_t)p->checkpoint,
        "manifest_bytes", (json_int_t)p->manifest, "export_bytes", (json_int_t)p->exported,
        "host_bytes", (json_int_t)p->host, "host_ranks", (json_int_t)p->host_ranks, "memory",
        maybe((int64_t)p->memory, p->memory > 0), "fits", d9d_forecast_fits(p), "updates",
        p->updates, "stages", ranks_json(p));
}
