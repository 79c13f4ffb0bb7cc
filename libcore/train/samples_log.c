/* samples_log.c - see train/samples_log.h. */
#include "train/samples_log.h"

#include <stdlib.h>
#include <string.h>

#include "d9d/base/json.h"
#include "d9d/data/loader/blend.h"

static const char line_prefix[] = "{\"step\": ", sampler_key[] = ", \"sampler\": ";

enum { SAMPLER_PERIOD = 1024 /* steps between two samplers in the log */, LINE_HEAD_MAX = 40 };

/* --- the existing file, scanned from its end -------------------------------------------------- */

/* A chunk of the file, which is scanned backwards. */
typedef struct file_tail {
    d9d_file file;
    uint64_t from, n;
    char chunk_buf[1 << 16];
} file_tail;

/* Finds the start of the line whose newline is at end - 1. */
static d9d_status find_line_start(file_tail *t, uint64_t end, uint64_t *out)
{
    for (uint64_t at = end - 1; at > 0; at--) {
        if (at <= t->from || at > t->from + t->n) {
            t->n = at < sizeof(t->chunk_buf) ? at : sizeof(t->chunk_buf);
            t->from = at - t->n;
            D9D_TRY(d9d_file_read_at(&t->file, t->chunk_buf, t->n, t->from));
        }
        if (t->chunk_buf[at - 1 - t->from] == '\n') {
            *out = at;
            return D9D_OK;
        }
    }
    *out = 0;
    return D9D_OK;
}

/* The step of the line [from, end); -1 if it is not a line of this format. */
static d9d_status parse_step(const file_tail *t, uint64_t from, uint64_t end, int64_t *out)
{
    char head[LINE_HEAD_MAX + 1] = "";

    D9D_TRY(d9d_file_read_at(&t->file, head,
                             end - from < LINE_HEAD_MAX ? end - from : LINE_HEAD_MAX, from));
    *out = strncmp(head, line_prefix, sizeof(line_prefix) - 1) == 0
               ? strtoll(head + sizeof(line_prefix) - 1, NULL, 10)
               : -1;
    return D9D_OK;
}

/* The sampler of a line, if it has one. */
static d9d_status parse_sampler(const file_tail *t, uint64_t from, uint64_t end, d9d_buf *out)
{
    d9d_buf line = {0};
    char *at, *last;
    d9d_status st;

    D9D_TRY_OR(st, d9d_buf_reserve(&line, (size_t)(end - from) + 1), out);
    D9D_TRY_OR(st, d9d_file_read_at(&t->file, line.data, end - from, from), out);
    line.data[end - from] = '\0';
    at = strstr(line.data, sampler_key);
    last = at != NULL ? strstr(at, "}]") : NULL;
    if (last != NULL)
        st = d9d_buf_append(out, at, (size_t)(last + 2 - at));
out:
    d9d_buf_release(&line);
    return st;
}

/* *end: size of the lines up to and including step `done`; *sampler: the last sampler state among
 * them. */
static d9d_status find_end_in_tail(file_tail *t, uint64_t size, int64_t done, uint64_t *end,
                                   d9d_buf *sampler)
{
    uint64_t at, from;
    int64_t step = -1;

    *end = 0;
    if (done == 0 || size == 0)
        return D9D_OK;
    D9D_TRY(find_line_start(t, size + 1, &at)); /* after the last newline */
    for (; at > 0; at = from) {
        D9D_TRY(find_line_start(t, at, &from));
        D9D_TRY(parse_step(t, from, at, &step));
        if (step < 0 || step > done)
            continue;
        *end = *end == 0 ? at : *end;
        if (at - from <= sizeof(t->chunk_buf))
            D9D_TRY(parse_sampler(t, from, at, sampler));
        if (sampler->len > 0 || done - step > SAMPLER_PERIOD)
            return D9D_OK;
    }
    return D9D_OK;
}

static d9d_status find_end(const char *path, int64_t done, uint64_t *end, d9d_buf *sampler)
{
    file_tail *t = calloc(1, sizeof(*t));
    uint64_t size;
    d9d_status st;

    *end = 0;
    if (t == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory to read it", path);
    t->file.fd = -1;
    st = d9d_fs_exists(path) ? d9d_file_open(path, &t->file) : D9D_OK;
    if (st == D9D_OK && t->file.fd >= 0)
        st = d9d_fs_size(path, &size);
    if (st == D9D_OK && t->file.fd >= 0)
        st = find_end_in_tail(t, size, done, end, sampler);
    d9d_file_release(&t->file);
    free(t);
    return st;
}

d9d_status d9di_samples_log_open(const char *path, int64_t done, const d9d_log *log,
                                 d9di_samples_log *out)
{
    d9d_file f = {.fd = -1};
    uint64_t end;
    d9d_status st;

    D9D_TRY(find_end(path, done, &end, &out->last_sampler));
    D9D_TRY(d9d_file_open_append(path, end, &f));
    st = d9d_writer_open(&f, &(d9d_writer_opts){.log = log}, &out->writer);
    d9d_file_release(&f);
    out->path = path;
    return st;
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
    D9D_TRY(d9d_buf_printf(&g->line, "%s%lld, \"first\": %lld", line_prefix, (long long)step,
                           (long long)first));
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
