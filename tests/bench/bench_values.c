/* bench_values.c - what own values cost a step: a handler that records 1,000 scalars, and all that
 * is written of them, to metrics.jsonl and an event file of TensorBoard.
 *
 *     bench_values [SCALARS [STEPS]]      milliseconds of a step, and of a step of a second the
 * share
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "d9d/base/fs.h"
#include "d9d/base/thread.h"
#include "d9d/track/values.h"

static d9d_status sinks_open(const d9d_table *const *choices, d9d_arena *a, d9d_sinks **out)
{
    d9d_union config = {.choice = choices[1], .choices = choices};
    const d9d_list list = {&config, 1};

    config.value = d9d_arena_alloc(a, config.choice->size);
    D9D_TRY(config.value != NULL ? D9D_OK : D9D_ENOMEM);
    memset(config.value, 0, config.choice->size);
    return d9d_sinks_open(&list, &(d9d_sink_run){.id = "0", .name = "bench", .dir = "."}, out);
}

/* The mean time of a step's values, in milliseconds. */
static d9d_status measure(int scalars, int steps, d9d_values *v, d9d_tracker *t, double *ms)
{
    const int64_t start = d9d_clock_ns();
    char name[32];

    for (int k = 1; k <= steps; k++) {
        d9d_values_set_step(v, k);
        for (int i = 0; i < scalars; i++) {
            (void)snprintf(name, sizeof(name), "bench/%d", i);
            D9D_TRY(d9d_values_scalar(v, name, 1.0 / (k + i)));
        }
        D9D_TRY(d9d_values_write(v, k, t, NULL));
    }
    *ms = 1e-6 * (double)(d9d_clock_ns() - start) / steps;
    return D9D_OK;
}

static d9d_status run(int scalars, int steps, double *ms)
{
    d9d_arena a = {0};
    d9d_tracker *t = NULL;
    d9d_values *v = NULL;
    d9d_sinks *sinks = NULL;
    d9d_status st;

    D9D_TRY_OR(st, d9d_tracker_open("metrics.jsonl", &t), out);
    D9D_TRY_OR(st, d9d_tracker_start_writer(t, &(d9d_writer_opts){.log = NULL}), out);
    D9D_TRY_OR(st, sinks_open(d9d_sink_choices, &a, &sinks), out);
    d9d_tracker_set_sinks(t, sinks);
    D9D_TRY_OR(st, d9d_values_create(true, ".", &v), out);
    D9D_TRY_OR(st, measure(scalars, steps, v, t, ms), out);
out:
    d9d_values_free(v);
    d9d_tracker_close(t);
    d9d_sinks_close(sinks);
    d9d_arena_release(&a);
    return st;
}

int main(int argc, char **argv)
{
    const int scalars = argc > 1 ? atoi(argv[1]) : 1000, steps = argc > 2 ? atoi(argv[2]) : 200;
    char dir[] = "/tmp/d9d-bench-values-XXXXXX";
    double ms = 0;
    d9d_status st;

    if (mkdtemp(dir) == NULL || chdir(dir) != 0)
        return 1;
    st = run(scalars, steps, &ms);
    if (st == D9D_OK)
        printf("%d scalars: %.3f ms a step, %.3f %% of a step of a second\n", scalars, ms, ms / 10);
    else
        fprintf(stderr, "%s\n", d9d_err_message());
    (void)!d9d_fs_remove_tree(dir);
    return st != D9D_OK;
}
