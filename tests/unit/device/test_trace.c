/* test_trace.c - traces (timelines): the content of the file; nothing is recorded without one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "d9d/base/json.h"
#include "d9d/device/trace.h"
#include "support/unit.h"

enum { N = 1 << 20 };

static void work(d9d_device *dev, float *x)
{
    assert_ok(dev->kernels->elementwise->fill(dev->stream, D9D_F32, x, N, 1.0f));
}

/* The event of that name on a track, in the order of the file. */
static const json_t *find(const json_t *events, const char *name, int lane, int which)
{
    size_t i;
    json_t *e;

    json_array_foreach(events, i, e)
    {
        if (strcmp(json_string_value(json_object_get(e, "name")), name) == 0 &&
            json_integer_value(json_object_get(e, "tid")) == lane && which-- == 0)
            return e;
    }
    fail_msg("no event %s on lane %d", name, lane);
    return NULL;
}

/* Tolerance in microseconds: up to three numbers, written to 3 decimals. */
static const double rounded = 2e-3;

static double from(const json_t *e)
{
    return json_real_value(json_object_get(e, "ts"));
}
static double to(const json_t *e)
{
    return from(e) + json_real_value(json_object_get(e, "dur"));
}

static void ranges_and_laps_are_in_the_file(void **state)
{
    char path[] = "/tmp/d9d-trace-XXXXXX";
    int fd = mkstemp(path);
    d9d_buf top = {0};
    json_t *doc, *events;
    d9d_device *dev;
    d9d_trace *t;
    float *x;

    (void)state;
    assert_true(fd >= 0);
    assert_ok(d9d_device_open("cpu", &dev));
    assert_ok(d9d_device_alloc(dev, N * sizeof(*x), (void **)&x));
    d9d_trace_mark(dev, "before", "");
    d9d_trace_begin(dev, "early");
    assert_ok(d9d_trace_open(dev, &t));
    d9d_trace_begin(dev, "step %d", 7);
    work(dev, x);
    d9d_trace_mark(dev, "linear", "wgrad");
    d9d_trace_begin(dev, "inner");
    work(dev, x);
    d9d_trace_mark(dev, "add", "");
    d9d_trace_end(dev);
    work(dev, x);
    d9d_trace_mark(dev, "linear", "wgrad");
    d9d_trace_end(dev);
    d9d_trace_stream_range_begin(dev, NULL, "unshard", "weights");
    work(dev, x);
    d9d_trace_stream_range_end(dev, NULL);
    d9d_trace_stream_range_end(dev, NULL); /* without an open range */
    d9d_trace_stream_range_begin(dev, NULL, "never", "ended");
    d9d_trace_begin(dev, "left open");
    assert_ok(d9d_trace_close(t, path, 3, &top));
    assert_null(dev->trace);
    d9d_trace_end(dev); /* "early" began before the trace was open */
    assert_ok(d9d_json_read(path, 1 << 20, &doc));
    events = json_object_get(doc, "traceEvents");
    for (int lane = 0; lane < 2; lane++) {
        const json_t *step = find(events, "step 7", lane, 0),
                     *inner = find(events, "inner", lane, 0);
        const json_t *first = find(events, "linear wgrad", lane, 0);
        const json_t *last = find(events, "linear wgrad", lane, 1),
                     *add = find(events, "add", lane, 0);

        assert_int_equal(json_integer_value(json_object_get(step, "pid")), 3);
        assert_true(from(step) <= from(first) && to(first) <= from(inner) + rounded);
        assert_true(from(inner) <= from(add) + rounded && to(add) <= to(inner) + rounded);
        assert_true(to(inner) <= from(last) + rounded && to(last) <= to(step) + rounded);
        assert_true(to(first) > from(first));
        (void)find(events, "left open", lane, 0);
    }
    {
        const json_t *beside = find(events, "unshard weights", 2, 0);

        assert_true(from(beside) >= to(find(events, "step 7", 0, 0)) - rounded);
        assert_true(to(beside) > from(beside));
    }
    assert_non_null(strstr(top.data, "linear wgrad "));
    assert_non_null(strstr(top.data, "add "));
    json_decref(doc);
    d9d_buf_release(&top);
    d9d_device_free(dev, x, N * sizeof(*x));
    d9d_device_close(dev);
    (void)close(fd);
    (void)unlink(path);
}

static void a_file_that_cannot_be_written(void **state)
{
    d9d_device *dev;
    d9d_trace *t;

    (void)state;
    assert_ok(d9d_device_open("cpu", &dev));
    assert_ok(d9d_trace_open(dev, &t));
    assert_int_equal(d9d_trace_close(t, "/nonexistent/trace.json", 0, NULL), D9D_ENOTFOUND);
    assert_null(dev->trace);
    assert_ok(d9d_trace_open(dev, &t));
    d9d_trace_discard(t);
    assert_null(dev->trace);
    d9d_trace_discard(NULL);
    d9d_device_close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranges_and_laps_are_in_the_file),
        cmocka_unit_test(a_file_that_cannot_be_written),
    };

    return cmocka_run_group_tests_name("trace", tests, NULL, NULL);
}
