/* samples_log.c - see train/samples_log.h. */
#include "train/samples_log.h"

#include <stdlib.h>
#include <string.h>

#include "d9d/base/json.h"
#include "d9d/data/loader/blend.h"

static const char begin[] = "{\"step\": ", rule[] = ", \"sampler\": ";

enum { EVERY = 1024 /* steps between rules */, HEAD = 40 };

/* --- what is there already, from its end --------------------------------------------------- */

/* A piece of the file, which is walked backwards. */
typedef struct tail {
    d9d_file file;
    uint64_t from, n;
    char piece[1 << 16];
} tail;

/* Where the line begins whose newline is at end - 1. */
static d9d_status line_begin(tail *t, uint64_t end, uint64_t *out)
{
    for (uint64_t at = end - 1; at > 0; at--) {
        if (at <= t->from || at > t->from + t->n) {
            t->n = at < sizeof(t->piece) ? at : sizeof(t->piece);
            t->from = at - t->n;
            D9D_TRY(d9d_file_read_at(&t->file, t->piece, t->n, t->from));
        }
        if (t->piece[at - 1 - t->from] == '\n') {
            *out = at;
            return D9D_OK;
        }
    }
    *out = 0;
    return D9D_OK;
}

/* The step of the line [from, end); -1: it is none of ours. */
static d9d_status step_of(const tail *t, uint64_t from, uint64_t end, int64_t *out)
{
    char head[HEAD + 1] = "";

    D9D_TRY(d9d_file_read_at(&t->file, head, end - from < HEAD ? end - from : HEAD, from));
    *out = strncmp(head, begin, sizeof(begin) - 1) == 0
               ? strtoll(head + sizeof(begin) - 1, NULL, 10)
               : -1;
    return D9D_OK;
}

/* The rule of a line, if it has one. */
static d9d_status rule_of(const tail *t, uint64_t from, uint64_t end, d9d_buf *out)
{
    d9d_buf line = {0};
    char *at, *last;
    d9d_status st;

    D9D_TRY_OR(st, d9d_buf_reserve(&line, (size_t)(end - from) + 1), out);
    D9D_TRY_OR(st, d9d_file_read_at(&t->file, line.data, end - from, from), out);
    line.data[end - from] = '\0';
    at = strstr(line.data, rule);
    last = at != NULL ? strstr(at, "}]") : NULL;
    if (last != NULL)
        st = d9d_buf_append(out, at, (size_t)(last + 2 - at));
out:
    d9d_buf_release(&line);
    return st;
}

/* Bytes of the lines up to and with step `done`, and the last rule among them. */
static d9d_status end_of(tail *t, uint64_t size, int64_t done, uint64_t *end, d9d_buf *was)
{
    uint64_t at, from;
    int64_t step = -1;

    *end = 0;
    if (done == 0 || size == 0)
        return D9D_OK;
    D9D_TRY(line_begin(t, size + 1, &at)); /* behind the last newline */
    for (; at > 0; at = from) {
        D9D_TRY(line_begin(t, at, &from));
        D9D_TRY(step_of(t, from, at, &step));
        if (step < 0 || step > done)
            continue;
        *end = *end == 0 ? at : *end;
        if (at - from <= sizeof(t->piece))
            D9D_TRY(rule_of(t, from, at, was));
        if (was->len > 0 || done - step > EVERY)
            return D9D_OK;
    }
    return D9D_OK;
}

static d9d_status find_end(const char *path, int64_t done, uint64_t *end, d9d_buf *was)
{
    tail *t = calloc(1, sizeof(*t));
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
        st = end_of(t, size, done, end, was);
    d9d_file_release(&t->file);
    free(t);
    return st;
}

d9d_status d9di_ledger_open(const char *path, int64_t done, const d9d_log *log, d9di_ledger *out)
{
    d9d_file f = {.fd = -1};
    uint64_t end;
    d9d_status st;

    D9D_TRY(find_end(path, done, &end, &out->was));
    D9D_TRY(d9d_file_append(path, end, &f));
    st = d9d_writer_open(&f, &(d9d_writer_how){.log = log}, &out->writer);
    d9d_file_release(&f);
    out->path = path;
    return st;
}

/* --- a step ---------------------------------------------------------------------------------- */

/* One list of a line; `what` of a draw, of those that are skipped or of all. */
enum what { SAMPLE, DATASET };

static d9d_status put_list(d9d_buf *b, const char *name, const d9d_draw *draws, int64_t n,
                           enum what what, bool skipped_only)
{
    const char *comma = "";

    D9D_TRY(d9d_buf_printf(b, ", \"%s\": [", name));
    for (int64_t i = 0; i < n; i++) {
        if (skipped_only && !draws[i].skipped)
            continue;
        D9D_TRY(d9d_buf_printf(b, "%s%lld", comma,
                               what == SAMPLE ? (long long)draws[i].sample
                                              : (long long)draws[i].source));
        comma = ", ";
    }
    return d9d_buf_append(b, "]", 1);
}

/* What makes the stream: nothing where it does not follow from numbers. */
static d9d_status put_sampler(d9d_buf *b, const d9d_loader *l)
{
    static const char *const orders[] = {"sequential", "shuffled", "bucketed"};
    d9d_sampler_source from[D9D_BLEND_SOURCES];
    const size_t n = d9d_loader_sampler(l, from);

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

/* A step whose samples follow from numbers: how many there are, and the rule now and then. */
static d9d_status put_count(d9di_ledger *g, int64_t step, int64_t n)
{
    const bool same =
        g->was.len == g->sampler.len && memcmp(g->was.data, g->sampler.data, g->sampler.len) == 0;

    D9D_TRY(d9d_buf_printf(&g->line, ", \"count\": %lld", (long long)n));
    if (same && step % EVERY != 1)
        return D9D_OK;
    g->was.len = 0;
    D9D_TRY(d9d_buf_append(&g->was, g->sampler.data, g->sampler.len));
    return d9d_buf_append(&g->line, g->sampler.data, g->sampler.len);
}

static d9d_status put_draws(d9di_ledger *g, d9d_loader *l, int64_t first, int64_t n, bool listed)
{
    d9d_draw *draws = calloc((size_t)n, sizeof(*draws));
    bool skipped = false, blend = false;
    d9d_status st = D9D_OK;

    if (draws == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %lld samples of a step", g->path, (long long)n);
    for (int64_t i = 0; i < n; i++) {
        D9D_TRY_OR(st, d9d_loader_draw(l, first + i, &draws[i]), out);
        skipped |= draws[i].skipped;
        blend |= draws[i].source != 0;
    }
    if (listed)
        D9D_TRY_OR(st, put_list(&g->line, "samples", draws, n, SAMPLE, false), out);
    if (listed && blend)
        D9D_TRY_OR(st, put_list(&g->line, "datasets", draws, n, DATASET, false), out);
    if (skipped)
        st = put_list(&g->line, "skipped", draws, n, SAMPLE, true);
out:
    free(draws);
    return st;
}

d9d_status d9di_ledger_add(d9di_ledger *g, int64_t step, d9d_loader *l, int64_t first, int64_t n)
{
    if (g->sampler.len == 0)
        D9D_TRY(put_sampler(&g->sampler, l));
    g->line.len = 0;
    D9D_TRY(d9d_buf_printf(&g->line, "%s%lld, \"first\": %lld", begin, (long long)step,
                           (long long)first));
    if (g->sampler.len > 0)
        D9D_TRY(put_count(g, step, n));
    if (g->sampler.len == 0 || d9d_loader_skips(l))
        D9D_TRY(put_draws(g, l, first, n, g->sampler.len == 0));
    D9D_TRY(d9d_buf_append(&g->line, "}\n", 2));
    return d9d_writer_put(g->writer, g->line.data, g->line.len);
}

d9d_status d9di_ledger_flush(d9di_ledger *g)
{
    return d9d_writer_flush(g->writer);
}

d9d_status d9di_ledger_sync(d9di_ledger *g)
{
    return d9d_writer_sync(g->writer);
}

void d9di_ledger_release(d9di_ledger *g)
{
    d9d_writer_close(g->writer);
    g->writer = NULL;
    d9d_buf_release(&g->line);
    d9d_buf_release(&g->was);
    d9d_buf_release(&g->sampler);
}
