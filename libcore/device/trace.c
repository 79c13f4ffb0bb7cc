/* trace.c - recording and writing a timeline.  See d9d/device/trace.h. */
#include "d9d/device/trace.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/fs.h"
#include "d9d/base/thread.h"
#include "d9d/device/readback.h"
#include "device/backend.h"

enum { TOP_COUNT = 6, NAME_BYTES = 128 };

/* A point on the host's and the device's timeline: a mark, or the begin or end of a range. */
typedef struct trace_point {
    enum { MARK, BEGIN, END } kind;
    const char *name, *what;
    d9d_device_event *event;
    int64_t host_ns;
    double device_us; /* known when the device has reached all points */
} trace_point;

/* A range of another stream. */
typedef struct stream_range {
    const char *name, *what;
    d9d_stream stream;
    d9d_device_event *from, *to; /* to: NULL while it is open */
} stream_range;

struct d9d_trace {
    d9d_device *dev;
    d9d_arena names;
    D9D_VEC(trace_point) points;
    D9D_VEC(stream_range) stream_ranges;
    int depth;
    d9d_status failed; /* the first recording failure */
    d9d_err_copy why;
};

/* --- recording ------------------------------------------------------------------------- */

static d9d_status record_point(d9d_trace *t, trace_point p)
{
    D9D_TRY(d9d_device_event_create(t->dev, &p.event));
    p.host_ns = d9d_clock_ns();
    if (D9D_VEC_PUSH(&t->points, p) != D9D_OK) {
        d9d_device_event_free(p.event);
        return D9D_FAIL(D9D_ENOMEM, "trace: out of memory after %zu marks", t->points.len);
    }
    return d9d_device_event_record(p.event);
}

static void set_failure(d9d_trace *t, d9d_status st)
{
    t->failed = st;
    if (st != D9D_OK)
        d9d_err_save(&t->why, st);
}

static void add_point(d9d_trace *t, trace_point p)
{
    if (t->failed == D9D_OK)
        set_failure(t, record_point(t, p));
}

d9d_status d9d_trace_open(d9d_device *dev, d9d_trace **out)
{
    d9d_trace *t = calloc(1, sizeof(*t));

    if (t == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for a trace", dev->name);
    t->dev = dev;
    dev->trace = t;
    d9d_trace_begin(dev, "trace");
    *out = t;
    return D9D_OK;
}

void d9d_trace_begin(d9d_device *dev, const char *fmt, ...)
{
    char name[NAME_BYTES];
    va_list ap;
    trace_point p = {.kind = BEGIN, .what = ""};

    if (dev->trace == NULL && dev->ops->range_push == NULL)
        return;
    va_start(ap, fmt);
    (void)vsnprintf(name, sizeof(name), fmt, ap);
    va_end(ap);
    if (dev->ops->range_push != NULL)
        dev->ops->range_push(dev, name);
    if (dev->trace == NULL)
        return;
    p.name = d9d_arena_strdup(&dev->trace->names, name);
    p.name = p.name != NULL ? p.name : "?";
    dev->trace->depth++;
    add_point(dev->trace, p);
}

void d9d_trace_end(d9d_device *dev)
{
    if (dev->ops->range_pop != NULL)
        dev->ops->range_pop(dev);
    if (dev->trace == NULL || dev->trace->depth == 0)
        return; /* its begin was before the trace's */
    dev->trace->depth--;
    add_point(dev->trace, (trace_point){.kind = END});
}

void d9d_trace_mark(d9d_device *dev, const char *name, const char *what)
{
    if (dev->trace != NULL)
        add_point(dev->trace, (trace_point){.kind = MARK, .name = name, .what = what});
}

static d9d_status record_event_on(d9d_device *dev, d9d_stream stream, d9d_device_event **out)
{
    D9D_TRY(d9d_device_event_create(dev, out));
    return d9d_device_event_record_on(*out, stream);
}

void d9d_trace_stream_range_begin(d9d_device *dev, d9d_stream stream, const char *name,
                                  const char *what)
{
    d9d_trace *t = dev->trace;

    if (t == NULL || t->failed != D9D_OK)
        return;
    set_failure(t, D9D_VEC_PUSH(&t->stream_ranges,
                                ((stream_range){.name = name, .what = what, .stream = stream})));
    if (t->failed == D9D_OK)
        set_failure(
            t, record_event_on(dev, stream, &t->stream_ranges.data[t->stream_ranges.len - 1].from));
}

void d9d_trace_stream_range_end(d9d_device *dev, d9d_stream stream)
{
    d9d_trace *t = dev->trace;

    if (t == NULL || t->failed != D9D_OK)
        return;
    for (size_t i = t->stream_ranges.len; i-- > 0;) {
        stream_range *a = &t->stream_ranges.data[i];

        if (a->stream != stream || a->to != NULL)
            continue;
        set_failure(t, record_event_on(dev, stream, &a->to));
        return;
    }
}

void d9d_trace_discard(d9d_trace *t)
{
    if (t == NULL)
        return;
    t->dev->trace = NULL;
    for (size_t i = 0; i < t->stream_ranges.len; i++) {
        d9d_device_event_free(t->stream_ranges.data[i].from);
        d9d_device_event_free(t->stream_ranges.data[i].to);
    }
    D9D_VEC_RELEASE(&t->stream_ranges);
    for (size_t i = 0; i < t->points.len; i++)
        d9d_device_event_free(t->points.data[i].event);
    D9D_VEC_RELEASE(&t->points);
    d9d_arena_release(&t->names);
    free(t);
}

/* --- writing ----------------------------------------------------------------------------- */

/* Resolve the device times of all points, relative to the first. */
static d9d_status resolve_times(d9d_trace *t)
{
    D9D_TRY(d9d_device_sync(t->dev));
    for (size_t i = 0; i < t->points.len; i++) {
        double ms;

        D9D_TRY(d9d_device_event_elapsed_ms(t->points.data[0].event, t->points.data[i].event, &ms));
        t->points.data[i].device_us = ms * 1e3;
    }
    return D9D_OK;
}

/* Names are op names and formats of ours: nothing in them needs an escape. */
static d9d_status append_span(const d9d_trace *t, d9d_buf *b, int rank, const trace_point *name,
                              const trace_point *from, const trace_point *to)
{
    const trace_point *zero = &t->points.data[0];
    const struct {
        double from, to;
    } span[] = {{from->device_us, to->device_us},
                {(double)(from->host_ns - zero->host_ns) * 1e-3,
                 (double)(to->host_ns - zero->host_ns) * 1e-3}};

    for (int lane = 0; lane < 2; lane++)
        D9D_TRY(d9d_buf_printf(b,
                               ",\n{\"ph\": \"X\", \"name\": \"%s%s%s\", \"pid\": %d, \"tid\": %d, "
                               "\"ts\": %.3f, \"dur\": %.3f}",
                               name->name, name->what[0] != '\0' ? " " : "", name->what, rank, lane,
                               span[lane].from, span[lane].to - span[lane].from));
    return D9D_OK;
}

static d9d_status append_spans(const d9d_trace *t, d9d_buf *b, int rank, size_t *open)
{
    size_t depth = 0;

    for (size_t i = 0; i < t->points.len; i++) {
        const trace_point *p = &t->points.data[i];

        if (p->kind == BEGIN)
            open[depth++] = i;
        else if (p->kind == MARK)
            D9D_TRY(append_span(t, b, rank, p, p - 1, p));
        else if (depth > 0) {
            const trace_point *from = &t->points.data[open[--depth]];

            D9D_TRY(append_span(t, b, rank, from, from, p));
        }
    }
    return D9D_OK;
}

/* Lanes of other streams are numbered in order of appearance. */
static int lane_of(const d9d_trace *t, size_t i)
{
    int lane = 2;

    for (size_t k = 0; t->stream_ranges.data[k].stream != t->stream_ranges.data[i].stream; k++) {
        bool first = true;

        for (size_t j = 0; j < k; j++)
            first = first && t->stream_ranges.data[j].stream != t->stream_ranges.data[k].stream;
        lane += first;
    }
    return lane;
}

static d9d_status append_stream_ranges(const d9d_trace *t, d9d_buf *b, int rank)
{
    const d9d_device_event *zero = t->points.data[0].event;
    double from, ms;

    for (size_t i = 0; i < t->stream_ranges.len; i++) {
        const stream_range *a = &t->stream_ranges.data[i];

        if (a->to == NULL)
            continue;
        D9D_TRY(d9d_device_event_wait(a->to));
        D9D_TRY(d9d_device_event_elapsed_ms(zero, a->from, &from));
        D9D_TRY(d9d_device_event_elapsed_ms(a->from, a->to, &ms));
        D9D_TRY(d9d_buf_printf(b,
                               ",\n{\"ph\": \"X\", \"name\": \"%s %s\", \"pid\": %d, \"tid\": "
                               "%d, \"ts\": %.3f, \"dur\": %.3f}",
                               a->name, a->what, rank, lane_of(t, i), from * 1e3, ms * 1e3));
    }
    return D9D_OK;
}

static d9d_status append_all(const d9d_trace *t, d9d_buf *b, int rank)
{
    static const char *const lanes[] = {"device", "host, queueing"};
    size_t *open = calloc(t->points.len + 1, sizeof(*open));
    d9d_status st;

    if (open == NULL)
        return D9D_FAIL(D9D_ENOMEM, "trace: out of memory");
    D9D_TRY_OR(st,
               d9d_buf_printf(b,
                              "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n"
                              "{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": %d, "
                              "\"args\": {\"name\": \"rank %d, %s\"}}",
                              rank, rank, t->dev->name),
               out);
    for (int lane = 0; lane < 2; lane++)
        D9D_TRY_OR(st,
                   d9d_buf_printf(b,
                                  ",\n{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": %d, "
                                  "\"tid\": %d, \"args\": {\"name\": \"%s\"}}",
                                  rank, lane, lanes[lane]),
                   out);
    D9D_TRY_OR(st, append_spans(t, b, rank, open), out);
    D9D_TRY_OR(st, append_stream_ranges(t, b, rank), out);
    st = d9d_buf_printf(b, "\n]}\n");
out:
    free(open);
    return st;
}

/* --- the longest marks --------------------------------------------------------------- */

typedef struct label_time {
    const char *name, *what;
    double us;
} label_time;

static int compare_time(const void *a, const void *b)
{
    const label_time *x = a, *y = b;

    return x->us > y->us ? -1 : x->us < y->us;
}

/* Sum marks by name; there are as many names as ops. */
static size_t sum_marks(const d9d_trace *t, label_time *s, double *total)
{
    size_t n = 0;

    for (size_t i = 1; i < t->points.len; i++) {
        const trace_point *p = &t->points.data[i];
        size_t k = 0;

        if (p->kind != MARK)
            continue;
        while (k < n && (strcmp(s[k].name, p->name) != 0 || strcmp(s[k].what, p->what) != 0))
            k++;
        if (k == n)
            s[n++] = (label_time){p->name, p->what, 0};
        s[k].us += p->device_us - p[-1].device_us;
        *total += p->device_us - p[-1].device_us;
    }
    return n;
}

static d9d_status append_top(const d9d_trace *t, d9d_buf *top)
{
    label_time *s = calloc(t->points.len + 1, sizeof(*s));
    double total = 0;
    d9d_status st = D9D_OK;
    size_t n;

    if (s == NULL)
        return D9D_FAIL(D9D_ENOMEM, "trace: out of memory");
    n = sum_marks(t, s, &total);
    qsort(s, n, sizeof(*s), compare_time);
    for (size_t i = 0; i < n && i < TOP_COUNT && st == D9D_OK; i++)
        st = d9d_buf_printf(top, "%s%s%s%s %.0f %%", i > 0 ? ", " : "", s[i].name,
                            s[i].what[0] != '\0' ? " " : "", s[i].what,
                            total > 0 ? 100.0 * s[i].us / total : 0.0);
    free(s);
    return st;
}

static d9d_status write_file(const char *path, const d9d_buf *b)
{
    d9d_file f;
    d9d_status st;

    D9D_TRY(d9d_file_create(path, &f));
    st = d9d_file_write(&f, b->data, b->len);
    if (st == D9D_OK)
        return d9d_file_close(&f);
    d9d_file_release(&f);
    return st;
}

d9d_status d9d_trace_text(d9d_trace *t, int rank, d9d_buf *text, d9d_buf *top)
{
    d9d_status st;

    while (t->depth > 0)
        d9d_trace_end(t->dev);
    D9D_TRY_OR(st, t->failed == D9D_OK ? D9D_OK : d9d_err_restore(&t->why), out);
    D9D_TRY_OR(st, resolve_times(t), out);
    D9D_TRY_OR(st, append_all(t, text, rank), out);
    if (top != NULL)
        st = append_top(t, top);
out:
    d9d_trace_discard(t);
    return st;
}

d9d_status d9d_trace_close(d9d_trace *t, const char *path, int rank, d9d_buf *top)
{
    d9d_buf b = {0};
    d9d_status st = d9d_trace_text(t, rank, &b, top);

    if (st == D9D_OK)
        st = write_file(path, &b);
    d9d_buf_release(&b);
    return st;
}
