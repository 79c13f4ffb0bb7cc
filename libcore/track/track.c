/* track.c - metrics.jsonl.  See d9d/track/track.h. */
#include "d9d/track/track.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/json.h"
#include "d9d/base/thread.h"
#include "d9d/track/sink.h"

struct d9d_tracker {
    d9d_file file, lock; /* the same file; the lock admits one writing process */
    d9d_writer *writer;  /* owns the file once started; NULL: lines are written immediately */
    d9d_buf line;
    int64_t restarts;
    int64_t damaged, first_damaged; /* damaged lines that were there; line number of the first */
    d9d_sinks *sinks;
    D9D_VEC(const char *) keys; /* names of the numbers in the line, for the sinks */
    D9D_VEC(double) values;
};

static const char restart_key[] = "{\"restart\":";

enum { READ_BYTES = 1 << 16, RESTART_KEY = sizeof(restart_key) - 1 };

/* State of a line-by-line scan of a file of any length. */
typedef struct file_scan {
    int64_t restarts;
    uint64_t at, end; /* bytes seen; end of the last complete line */
    uint64_t line;    /* offset at which the current line begins */
    bool is_restart;  /* so far */
    bool is_whole;    /* so far: a JSON object of text */
    char last;        /* byte of it */
    int64_t lines, damaged, first;
} file_scan;

static void scan_line_end(file_scan *s, uint64_t length)
{
    s->lines++;
    s->restarts += length >= RESTART_KEY && s->is_restart;
    if (length > 0 && (!s->is_whole || s->last != '}') && s->damaged++ == 0)
        s->first = s->lines;
    s->end = s->line = s->at;
}

static void scan_bytes(file_scan *s, const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const uint64_t k = s->at++ - s->line;

        if (k < RESTART_KEY)
            s->is_restart = (k == 0 || s->is_restart) && p[i] == restart_key[k];
        if (p[i] == '\n') {
            scan_line_end(s, k);
            continue;
        }
        s->is_whole = (k == 0 ? p[i] == '{' : s->is_whole) && (unsigned char)p[i] >= ' ';
        s->last = p[i];
    }
}

/* Scans the existing file: counts restart lines, and finds the end of the last complete line. */
static d9d_status scan_existing(const char *path, file_scan *out)
{
    d9d_file f = {.fd = -1};
    char *chunk_buf = malloc(READ_BYTES);
    uint64_t size;
    file_scan s = {0};
    d9d_status st;

    if (chunk_buf == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: cannot allocate %d bytes to read it", path, READ_BYTES);
    st = d9d_fs_exists(path) ? d9d_file_open(path, &f) : D9D_OK;
    if (st != D9D_OK || f.fd < 0)
        goto out;
    D9D_TRY_OR(st, d9d_fs_size(path, &size), out);
    while (s.at < size) {
        const size_t n = size - s.at < READ_BYTES ? (size_t)(size - s.at) : READ_BYTES;

        D9D_TRY_OR(st, d9d_file_read_at(&f, chunk_buf, n, s.at), out);
        scan_bytes(&s, chunk_buf, n);
    }
out:
    d9d_file_release(&f);
    free(chunk_buf);
    if (st == D9D_OK)
        *out = s;
    return st;
}

/* A missing directory is not a configuration error here: the run created it earlier. */
static d9d_status open_locked(const char *path, d9d_file *out)
{
    return d9d_file_open_locked(path, out) == D9D_OK ? D9D_OK
                                                     : D9D_FAIL(D9D_EIO, "%s", d9d_err_message());
}

d9d_status d9d_tracker_open(const char *path, d9d_tracker **out)
{
    d9d_tracker *t = calloc(1, sizeof(*t));
    file_scan s = {0};
    d9d_status st;

    if (t == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: tracker", path);
    t->file.fd = t->lock.fd = -1;
    D9D_TRY_OR(st, open_locked(path, &t->lock), out);
    D9D_TRY_OR(st, scan_existing(path, &s), out);
    D9D_TRY_OR(st, d9d_file_open_append(path, s.end, &t->file), out);
    t->restarts = s.restarts;
    t->damaged = s.damaged;
    t->first_damaged = s.first;
    *out = t;
    t = NULL;
out:
    d9d_tracker_close(t);
    return st;
}

d9d_status d9d_tracker_start_writer(d9d_tracker *t, const d9d_writer_opts *opts)
{
    return d9d_writer_open(&t->file, opts, &t->writer);
}

int64_t d9d_tracker_damaged_lines(const d9d_tracker *t, int64_t *first)
{
    *first = t->first_damaged;
    return t->damaged;
}

int64_t d9d_tracker_restarts(const d9d_tracker *t)
{
    return t->restarts;
}

void d9d_tracker_set_sinks(d9d_tracker *t, d9d_sinks *sinks)
{
    t->sinks = sinks;
}

/* --- lines: a few members, each with its own way to be printed -------------------- */

static d9d_status append_key(d9d_buf *b, const char *key)
{
    return d9d_buf_printf(b, "%s\"%s\": ", b->len == 0 ? "{" : ", ", key);
}

static d9d_status append_int(d9d_buf *b, const char *key, int64_t v)
{
    D9D_TRY(append_key(b, key));
    return d9d_buf_printf(b, "%lld", (long long)v);
}

static d9d_status append_text(d9d_buf *b, const char *key, const char *v)
{
    D9D_TRY(append_key(b, key));
    return d9d_json_put_str(b, v, strlen(v));
}

/* Appends a number to the line, and records it for the sinks. */
static d9d_status append_number(d9d_tracker *t, const char *key, double v, bool whole)
{
    if (D9D_VEC_PUSH(&t->keys, key) != D9D_OK || D9D_VEC_PUSH(&t->values, v) != D9D_OK)
        return D9D_FAIL(D9D_ENOMEM, "no memory for a record's numbers");
    if (whole)
        return append_int(&t->line, key, (int64_t)v);
    D9D_TRY(append_key(&t->line, key));
    return d9d_json_put_f64(&t->line, v);
}

static void line_begin(d9d_tracker *t)
{
    t->line.len = t->keys.len = t->values.len = 0;
}

static d9d_status line_write_value(d9d_tracker *t, int64_t step, const d9d_track_value *value)
{
    D9D_TRY(d9d_buf_append(&t->line, "}\n", 2));
    D9D_TRY(t->writer != NULL ? d9d_writer_put(t->writer, t->line.data, t->line.len)
                              : d9d_file_write(&t->file, t->line.data, t->line.len));
    d9d_sinks_write(t->sinks, &(d9d_sink_record){.line = t->line.data,
                                                 .bytes = t->line.len - 1,
                                                 .step = step,
                                                 .names = t->keys.data,
                                                 .values = t->values.data,
                                                 .n = t->keys.len,
                                                 .value = value});
    return D9D_OK;
}

static d9d_status line_write(d9d_tracker *t, int64_t step)
{
    return line_write_value(t, step, NULL);
}

/* Ends a line that is not a step record: adds the time. */
static d9d_status finish_timed_line(d9d_tracker *t, int64_t step)
{
    char now[24];

    d9d_clock_iso(now);
    D9D_TRY(append_text(&t->line, "time", now));
    return line_write(t, step);
}

/* Ends a restart or end line: adds step and time. */
static d9d_status finish_life_line(d9d_tracker *t, int64_t step)
{
    D9D_TRY(append_int(&t->line, "step", step));
    return finish_timed_line(t, step);
}

d9d_status d9d_tracker_restart(d9d_tracker *t, int64_t from_step)
{
    line_begin(t);
    D9D_TRY(append_int(&t->line, "restart", ++t->restarts));
    return finish_life_line(t, from_step);
}

d9d_status d9d_tracker_save(d9d_tracker *t, d9d_track_save_kind kind, int64_t step,
                            double blocked_ms, double total_ms)
{
    static const char *const key[] = {
        [D9D_TRACK_SAVE] = "save", [D9D_TRACK_LOCAL_SAVE] = "local_save"};

    line_begin(t);
    D9D_TRY(append_int(&t->line, key[kind], step));
    D9D_TRY(append_number(t, "blocked_ms", blocked_ms, false));
    D9D_TRY(append_number(t, "total_ms", total_ms, false));
    return finish_timed_line(t, step);
}

static d9d_status append_list(d9d_tracker *t, const char *key, const double *v, size_t n)
{
    D9D_TRY(append_key(&t->line, key));
    for (size_t i = 0; i < n; i++) {
        D9D_TRY(d9d_buf_printf(&t->line, i == 0 ? "[" : ", "));
        D9D_TRY(d9d_json_put_f64(&t->line, v[i]));
    }
    return d9d_buf_printf(&t->line, "]");
}

d9d_status d9d_tracker_pipeline(d9d_tracker *t, const d9d_track_pipeline_record *r)
{
    line_begin(t);
    D9D_TRY(append_int(&t->line, "pipeline", r->step));
    D9D_TRY(append_text(&t->line, "schedule", r->schedule));
    D9D_TRY(append_int(&t->line, "micro_batches", r->micro_batches));
    D9D_TRY(append_int(&t->line, "rows", r->rows));
    D9D_TRY(append_number(t, "pipeline_ms", r->step_ms, false));
    D9D_TRY(append_number(t, "bubble", r->bubble, false));
    D9D_TRY(append_list(t, "compute_ms", r->compute_ms, r->ranks));
    D9D_TRY(append_list(t, "forward_ms", r->forward_ms, r->stages));
    D9D_TRY(append_list(t, "dgrad_ms", r->dgrad_ms, r->stages));
    D9D_TRY(append_list(t, "wgrad_ms", r->wgrad_ms, r->stages));
    return finish_timed_line(t, r->step);
}

d9d_status d9d_tracker_straggler(d9d_tracker *t, const d9d_track_straggler_record *r)
{
    line_begin(t);
    D9D_TRY(append_int(&t->line, "straggler", r->step));
    D9D_TRY(append_int(&t->line, "rank", r->rank));
    D9D_TRY(append_text(&t->line, "host", r->host));
    D9D_TRY(append_number(t, "slower", r->compute_ms / r->peers_ms, false));
    D9D_TRY(append_int(&t->line, "since", r->since));
    D9D_TRY(append_number(t, "compute_ms", r->compute_ms, false));
    D9D_TRY(append_number(t, "peers_ms", r->peers_ms, false));
    if (r->recovered) {
        D9D_TRY(append_key(&t->line, "recovered"));
        D9D_TRY(d9d_buf_printf(&t->line, "true"));
    }
    return finish_timed_line(t, r->step);
}

/* Not for the sinks, whose values need names. */
static d9d_status append_document(d9d_tracker *t, const d9d_track_document_loss *x, bool blended)
{
    D9D_TRY(d9d_buf_printf(&t->line, "{\"sample\": %lld, ", (long long)x->sample));
    if (blended)
        D9D_TRY(d9d_buf_printf(&t->line, "\"dataset\": %d, ", x->dataset));
    D9D_TRY(d9d_buf_printf(&t->line, "\"document\": %lld, \"tokens\": %lld, \"mean_loss\": ",
                           (long long)x->document, (long long)x->targets));
    D9D_TRY(d9d_json_put_f64(&t->line, x->sum / (double)x->targets));
    return d9d_buf_append(&t->line, "}", 1);
}

d9d_status d9d_tracker_documents(d9d_tracker *t, const d9d_track_documents_record *r)
{
    line_begin(t);
    D9D_TRY(append_int(&t->line, "documents", r->step));
    D9D_TRY(append_int(&t->line, "tokens", r->targets));
    D9D_TRY(append_key(&t->line, "worst"));
    D9D_TRY(d9d_buf_append(&t->line, "[", 1));
    for (int64_t i = 0; i < r->n; i++) {
        D9D_TRY(d9d_buf_printf(&t->line, i > 0 ? ", " : ""));
        D9D_TRY(append_document(t, &r->worst[i], r->blended));
    }
    D9D_TRY(d9d_buf_append(&t->line, "]", 1));
    return line_write(t, r->step);
}

d9d_status d9d_tracker_evaluation(d9d_tracker *t, const char *name, int64_t step,
                                  const char *const *names, const double *values, size_t n,
                                  size_t whole)
{
    line_begin(t);
    D9D_TRY(append_text(&t->line, "evaluation", name));
    D9D_TRY(append_int(&t->line, "step", step));
    for (size_t i = 0; i < n; i++)
        D9D_TRY(append_number(t, names[i], values[i], i < whole));
    return line_write(t, step);
}

d9d_status d9d_tracker_scalars(d9d_tracker *t, int64_t step, const char *const *names,
                               const double *values, size_t n)
{
    line_begin(t);
    D9D_TRY(append_int(&t->line, "values", step));
    for (size_t i = 0; i < n; i++)
        D9D_TRY(append_number(t, names[i], values[i], false));
    return line_write(t, step);
}

static d9d_status append_histogram(d9d_tracker *t, const d9d_track_value *v)
{
    D9D_TRY(append_list(t, "edges", v->edges, v->n + 1));
    return append_list(t, "counts", v->counts, v->n);
}

static d9d_status append_content(d9d_tracker *t, const d9d_track_value *v)
{
    D9D_TRY(append_key(&t->line, "content"));
    return d9d_json_put_str(&t->line, v->bytes, v->n);
}

static d9d_status append_picture(d9d_tracker *t, const d9d_track_value *v)
{
    D9D_TRY(append_text(&t->line, "file", v->file));
    D9D_TRY(append_int(&t->line, "width", v->width));
    return append_int(&t->line, "height", v->height);
}

d9d_status d9d_tracker_value(d9d_tracker *t, const d9d_track_value *v)
{
    static const struct {
        const char *key;
        d9d_status (*append)(d9d_tracker *t, const d9d_track_value *v);
    } kinds[] = {
        [D9D_TRACK_HISTOGRAM] = {"histogram", append_histogram},
        [D9D_TRACK_TEXT] = {"text", append_content},
        [D9D_TRACK_PICTURE] = {"picture", append_picture},
    };
    const size_t kind = (size_t)v->kind;

    if (kind >= sizeof(kinds) / sizeof(kinds[0]) || kinds[kind].append == NULL)
        return D9D_FAIL(D9D_EINVAL, "track: a value of the unknown kind %zu", kind);

    line_begin(t);
    D9D_TRY(append_text(&t->line, kinds[kind].key, v->name));
    D9D_TRY(append_int(&t->line, "step", v->step));
    D9D_TRY(kinds[kind].append(t, v));
    return line_write_value(t, v->step, v);
}

d9d_status d9d_tracker_end(d9d_tracker *t, const char *outcome, int64_t step)
{
    line_begin(t);
    D9D_TRY(append_text(&t->line, "end", outcome));
    return finish_life_line(t, step);
}

d9d_status d9d_tracker_step(d9d_tracker *t, const d9d_track_step_record *r)
{
    const struct {
        const char *key;
        double value;
        bool whole, always; /* always: written also if NaN; else left out */
    } members[] = {
        {"loss", r->loss, false, false},
        {"grad_norm", r->grad_norm, false, false},
        {"lr", r->lr, false, true},
        {"tokens", (double)r->tokens, true, true},
        {"samples", (double)r->samples, true, true},
        {"step_ms", r->step_ms, false, true},
        {"tokens_per_s", r->tokens_per_s, false, true},
        {"data_ms", r->data_ms, false, false},
        {"mfu", r->mfu, false, false},
        {"mem_bytes", (double)r->mem_bytes, true, true},
        {"host_bytes", r->host_bytes > 0 ? (double)r->host_bytes : NAN, true, false},
        {"joules", r->joules > 0 ? r->joules : NAN, false, false},
        {"tokens_per_joule", r->joules > 0 ? r->tokens_per_joule : NAN, false, false},
    };

    line_begin(t);
    D9D_TRY(append_int(&t->line, "step", r->step));
    for (size_t i = 0; i < sizeof(members) / sizeof(members[0]); i++)
        if (members[i].always || !isnan(members[i].value))
            D9D_TRY(append_number(t, members[i].key, members[i].value, members[i].whole));
    for (size_t i = 0; i < r->n; i++)
        D9D_TRY(append_number(t, r->names[i], r->values[i], false));
    return line_write(t, r->step);
}

d9d_status d9d_tracker_sync(d9d_tracker *t)
{
    return t->writer != NULL ? d9d_writer_sync(t->writer) : d9d_file_sync(&t->file);
}

d9d_status d9d_tracker_flush(d9d_tracker *t)
{
    return t->writer != NULL ? d9d_writer_flush(t->writer) : D9D_OK;
}

void d9d_tracker_close(d9d_tracker *t)
{
    if (t == NULL)
        return;
    d9d_writer_close(t->writer);
    d9d_file_release(&t->file);
    d9d_file_release(&t->lock);
    d9d_buf_release(&t->line);
    D9D_VEC_RELEASE(&t->keys);
    D9D_VEC_RELEASE(&t->values);
    free(t);
}
