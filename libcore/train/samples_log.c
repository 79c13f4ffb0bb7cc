/* samples_log.c - see train/samples_log.h. */
#include "train/samples_log.h"

#include <stdlib.h>
#include <string.h>

#include "d9d/base/json.h"
#include "d9d/data/loader/blend.h"
#include "train/step_lines.h"

enum { SAMPLER_PERIOD = 1024 /* steps between two samplers in the log */ };

d9d_status d9di_samples_log_open(const char *path, int64_t done, const d9d_log *log,
                                 d9di_samples_log *out)
{
    D9D_TRY(d9di_step_lines_open(
        path, done, log,
        &(d9di_step_lines_tail){", \"sampler\": ", "}]", SAMPLER_PERIOD, &out->last_sampler},
        &out->writer));
    out->path = path;
    return D9D_OK;
}

/* --- a step ----------------------------------------------------------------------------------- */

/* Appends one list of a line: the `sample_field` of the skipped samples, or of all. */
enum sample_field { SAMPLE, DATASET };

static d9d_status append_list(d9d_buf *b, const char *name, const d9d_sample_ref *draws, int64_t n,
                              enum sample_field sample_field, bool skipped_only)
{
    const char *comma = "";

    D9D_TRY(d9d_buf_printf(b, ", \"%s\": [", name));
    for (int64_t i = 0; i < n; i++) {
        if (skipped_only && !draws[i].skipped)
            continue;
        D9D_TRY(d9d_buf_printf(b, "%s%lld", comma,
                               sample_field == SAMPLE ? (long long)draws[i].sample
                                                      : (long long)draws[i].source));
        comma = ", ";
    }
    return d9d_buf_append(b, "]", 1);
}

/* The stream's sampler; nothing for an order that is not a function of the numbers. */
static d9d_status append_sampler(d9d_buf *b, const d9d_loader *l)
{
    static const char *const orders[] = {"sequential", "shuffled", "bucketed"};
    d9d_sampler_source from[D9D_BLEND_SOURCES];
    const size_t n = d9d_loader_sampler_sources(l, from);

    for (size_t i = 0; i < n; i++) {
        D9D_TRY(d9d_buf_printf(b,
                               "%s{\"samples\": %lld, \"order\": \"%s\", \"seed\": %llu, "
                               "\"weight\": ",
                               i == 0 ? ", \"sampler\": [" : ", ", (long long)from[i].samples,
                               orders[from[i].order], (unsigned long long)from[i].seed));
        D9D_TRY(d9d_json_put_f64(b, n > 1 ? from[i].weight : 1));
        D9D_TRY(d9d_buf_append(b, "}", 1));
    }
    return n > 0 ? d9d_buf_append(b, "]", 1) : D9D_OK;
}

/* Appends a step by its count, with the sampler when it is due. */
static d9d_status append_count(d9di_samples_log *g, int64_t step, int64_t n)
{
    const bool same = g->last_sampler.len == g->sampler.len &&
                      memcmp(g->last_sampler.data, g->sampler.data, g->sampler.len) == 0;

    D9D_TRY(d9d_buf_printf(&g->line, ", \"count\": %lld", (long long)n));
    if (same && step % SAMPLER_PERIOD != 1)
        return D9D_OK;
    g->last_sampler.len = 0;
    D9D_TRY(d9d_buf_append(&g->last_sampler, g->sampler.data, g->sampler.len));
    return d9d_buf_append(&g->line, g->sampler.data, g->sampler.len);
}

static d9d_status append_samples(d9di_samples_log *g, d9d_loader *l, int64_t first, int64_t n,
                                 bool listed)
{
    d9d_sample_ref *draws = calloc((size_t)n, sizeof(*draws));
    bool skipped = false, blend = false;
    d9d_status st = D9D_OK;

    if (draws == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %lld samples of a step", g->path, (long long)n);
    for (int64_t i = 0; i < n; i++) {
        D9D_TRY_OR(st, d9d_loader_sample_ref(l, first + i, &draws[i]), out);
        skipped |= draws[i].skipped;
        blend |= draws[i].source != 0;
    }
    if (listed)
        D9D_TRY_OR(st, append_list(&g->line, "samples", draws, n, SAMPLE, false), out);
    if (listed && blend)
        D9D_TRY_OR(st, append_list(&g->line, "datasets", draws, n, DATASET, false), out);
    if (skipped)
        st = append_list(&g->line, "skipped", draws, n, SAMPLE, true);
out:
    free(draws);
    return st;
}

d9d_status d9di_samples_log_add(d9di_samples_log *g, int64_t step, d9d_loader *l, int64_t first,
                                int64_t n)
{
    if (g->sampler.len == 0)
        D9D_TRY(append_sampler(&g->sampler, l));
    g->line.len = 0;
    D9D_TRY(d9d_buf_printf(&g->line, D9DI_STEP_LINES_PREFIX "%lld, \"first\": %lld",
                           (long long)step, (long long)first));
    if (g->sampler.len > 0)
        D9D_TRY(append_count(g, step, n));
    if (g->sampler.len == 0 || d9d_loader_has_skips(l))
        D9D_TRY(append_samples(g, l, first, n, g->sampler.len == 0));
    D9D_TRY(d9d_buf_append(&g->line, "}\n", 2));
    return d9d_writer_put(g->writer, g->line.data, g->line.len);
}

d9d_status d9di_samples_log_flush(d9di_samples_log *g)
{
    return d9d_writer_flush(g->writer);
}

d9d_status d9di_samples_log_sync(d9di_samples_log *g)
{
    return d9d_writer_sync(g->writer);
}

void d9di_samples_log_release(d9di_samples_log *g)
{
    d9d_writer_close(g->writer);
    g->writer = NULL;
    d9d_buf_release(&g->line);
    d9d_buf_release(&g->last_sampler);
    d9d_buf_release(&g->sampler);
}
