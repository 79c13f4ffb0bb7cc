/* sinks.c - the sinks of a run.  See d9d/track/sink.h. */
#include "d9d/track/sink.h"

#include <stdlib.h>

#include "d9d/base/plugin_call.h"
#include "track/sink_kinds.h"

typedef struct sink {
    const d9d_sink_kind *kind; /* NULL: closed after a failure */
    void *self;
} sink;

struct d9d_sinks {
    const d9d_log *log;
    size_t n;
    sink sink[];
};

static const d9d_key no_keys[] = {D9D_KEY_END};
static const d9d_table null_table = {
    .name = "null", .keys = no_keys, .doc = "metrics.jsonl alone, which is always written"};

const char *const d9d_sink_tag[] = {"provider", NULL};
const d9d_table *const d9d_sink_choices[] = {&null_table,
                                             &d9di_sink_tensorboard_table,
                                             &d9di_sink_wandb_table,
                                             &d9di_sink_mlflow_table,
                                             &d9di_sink_aim_table,
                                             &d9di_sink_log_table,
                                             &d9di_sink_command_table,
                                             NULL};

static void sink_close(sink *s)
{
    if (s->kind != NULL && s->kind->close != NULL)
        s->kind->close(s->self);
    s->kind = NULL;
}

/* A failing copy does not stop the run. */
static void warn_sink_failed(const d9d_sinks *all, const sink *s)
{
    d9d_log_warn(all->log, "tracker %s: %s; the run goes on without it", s->kind->table->name,
                 d9d_err_message());
}

d9d_status d9d_sinks_check(const d9d_list *configs)
{
    const d9d_union *config = configs->items;

    for (size_t i = 0; i < configs->n; i++) {
        const d9d_sink_kind *kind = config[i].choice->row;

        if (kind != NULL && kind->check != NULL)
            D9D_TRY(D9D_PLUGIN_CALL(kind->table->name, kind, check, config[i].value));
    }
    return D9D_OK;
}

d9d_status d9d_sinks_open(const d9d_list *configs, const d9d_sink_run *run, d9d_sinks **out)
{
    const d9d_union *config = configs->items;
    d9d_sinks *all = calloc(1, sizeof(*all) + configs->n * sizeof(sink));

    if (all == NULL)
        return D9D_FAIL(D9D_ENOMEM, "run %s: its trackers", run->name);
    all->log = run->log;
    for (size_t i = 0; i < configs->n; i++) {
        sink *s = &all->sink[all->n];

        s->kind = config[i].choice->row;
        if (s->kind == NULL)
            continue;
        all->n++;
        if (D9D_PLUGIN_CALL(s->kind->table->name, s->kind, open, config[i].value, run, &s->self) !=
            D9D_OK) {
            warn_sink_failed(all, s);
            s->kind = NULL;
        }
    }
    *out = all;
    return D9D_OK;
}

void d9d_sinks_write(d9d_sinks *all, const d9d_sink_record *r)
{
    for (size_t i = 0; all != NULL && i < all->n; i++) {
        sink *s = &all->sink[i];

        if (s->kind == NULL ||
            D9D_PLUGIN_CALL(s->kind->table->name, s->kind, put, s->self, r) == D9D_OK)
            continue;
        warn_sink_failed(all, s);
        sink_close(s);
    }
}

void d9d_sinks_close(d9d_sinks *all)
{
    for (size_t i = 0; all != NULL && i < all->n; i++)
        sink_close(&all->sink[i]);
    free(all);
}
