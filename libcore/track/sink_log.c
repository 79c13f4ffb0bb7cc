/* sink_log.c - the sink `log`: the numbers of every record as a line of the job's log. */
#include <stdlib.h>

#include "track/sink_kinds.h"

typedef struct log_sink {
    const d9d_log *log;
    d9d_buf line;
} log_sink;

static d9d_status log_open(const void *config, const d9d_sink_run *run, void **self)
{
    log_sink *l = calloc(1, sizeof(*l));

    (void)config;
    if (l == NULL)
        return D9D_FAIL(D9D_ENOMEM, "run %s: its lines in the log", run->name);
    l->log = run->log;
    *self = l;
    return D9D_OK;
}

static d9d_status log_put(void *self, const d9d_sink_record *r)
{
    log_sink *l = self;

    if (r->n == 0)
        return D9D_OK;
    l->line.len = 0;
    for (size_t i = 0; i < r->n; i++)
        D9D_TRY(d9d_buf_printf(&l->line, "%s%s=%.6g", i > 0 ? " " : "", r->names[i], r->values[i]));
    d9d_log_info(l->log, "step %lld: %s", (long long)r->step, l->line.data);
    return D9D_OK;
}

static void log_close(void *self)
{
    log_sink *l = self;

    d9d_buf_release(&l->line);
    free(l);
}

static const d9d_key no_keys[] = {D9D_KEY_END};
static const d9d_sink_kind log_kind = {.size = sizeof(d9d_sink_kind),
                                       .table = &d9di_sink_log_table,
                                       .open = log_open,
                                       .put = log_put,
                                       .close = log_close};
const d9d_table d9di_sink_log_table = {
    .name = "log", .keys = no_keys, .doc = "a line of the job's log", .row = &log_kind};
