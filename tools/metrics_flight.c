/* metrics_flight.c - d9d-metrics flight. */
#include "metrics_commands.h"

#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#include "d9d/comm/flight.h"

struct flight_opts {
    int64_t calls;
};

static const struct flight_opts defaults = {.calls = 10};
static const tool_option options[] = {
    TOOL_OPT(struct flight_opts, calls, INT, "calls", 'n', "N",
             "with --json: the last N calls of each rank (default 10)", .max = 1024),
    TOOL_END};

static d9d_status show_flight(const tool_run *r, const struct flight_opts *o, d9d_flight *f)
{
    d9d_buf out = {0};
    d9d_status st;
    json_t *v;

    if (r->json) {
        D9D_TRY(d9d_flight_json(f, (int)o->calls, &v));
        return tool_put_json(v);
    }
    st = d9d_flight_text(f, &out);
    if (st == D9D_OK)
        tool_put(&out);
    d9d_buf_release(&out);
    return st;
}

/* RUN/flight, or the flight recorder's directory itself. */
static d9d_status run_flight(tool_run *r, const void *o)
{
    char inside[PATH_MAX];
    const char *dir = r->args[0];
    d9d_flight *f;
    d9d_status st;

    if ((size_t)snprintf(inside, sizeof(inside), "%s/flight", dir) < sizeof(inside) &&
        access(inside, F_OK) == 0)
        dir = inside;
    D9D_TRY(d9d_flight_open(dir, &f));
    st = show_flight(r, o, f);
    d9d_flight_close(f);
    return st;
}

const tool_command metrics_flight = {
    .name = "flight",
    .operands = "RUN",
    .min = 1,
    .max = 1,
    .options = options,
    .size = sizeof(struct flight_opts),
    .defaults = &defaults,
    .run = run_flight,
    .about = "Which rank keeps the others waiting, and in which call; of a run that goes on, hangs "
             "or has died."};
