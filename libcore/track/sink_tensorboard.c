/* sink_tensorboard.c - the sink `tensorboard`: event files of a running job.  See
 * d9d/track/sink.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "d9d/base/fs.h"
#include "d9d/base/writer.h"
#include "d9d/track/tb_event.h"
#include "track/sink_kinds.h"

typedef struct tensorboard_config {
    const char *dir;
} tensorboard_config;

static const d9d_key tensorboard_keys[] = {
    D9D_KEY_STR(tensorboard_config, dir, "null",
                "directory of the event files; null: tensorboard in the run directory", .min = 1,
                .flags = D9D_NULLABLE),
    D9D_KEY_END,
};

typedef struct tensorboard {
    d9d_file file; /* owned until the writer takes it */
    d9d_writer *writer;
    d9d_buf bytes;
    const char **tags;
    double *values;
    size_t cap;
    bool done; /* the run has ended well */
} tensorboard;

static double wall_time(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static d9d_status flush_bytes(tensorboard *t)
{
    const d9d_status st = d9d_writer_put(t->writer, t->bytes.data, t->bytes.len);

    t->bytes.len = 0;
    return st;
}

/* What tells runs apart, by sections of the configuration, and what the user recorded besides. */
static d9d_status append_hparams(tensorboard *t, const d9d_sink_run *run)
{
    static const char *const sections[] = {"mesh", "model_provider", "optimizer", "task"};
    json_t *all = json_object();
    d9d_status st;

    d9d_json_set(&all, "hparams",
                 json_is_object(run->hparams) ? json_deep_copy(run->hparams) : json_object());
    for (size_t i = 0; i < sizeof(sections) / sizeof(sections[0]); i++) {
        const json_t *section = json_object_get(run->config, sections[i]);

        if (section != NULL)
            d9d_json_set(&all, sections[i], json_deep_copy(section));
    }
    st = all != NULL ? d9d_tb_event_hparams(&t->bytes, wall_time(), run->id, all)
                     : D9D_FAIL(D9D_ENOMEM, "%s: its hyperparameters", run->name);
    json_decref(all);
    return st;
}

static d9d_status start_file(tensorboard *t, const char *dir, const d9d_sink_run *run, d9d_arena *a)
{
    char *path =
        d9d_arena_printf(a, "%s/events.out.tfevents.%lld.d9d", dir, (long long)run->restarts);

    if (path == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: the name of an event file", dir);
    D9D_TRY(d9d_fs_mkdirs(dir));
    D9D_TRY(d9d_file_open_locked(path, &t->file));
    D9D_TRY(d9d_file_resize(&t->file, 0));
    D9D_TRY(d9d_tb_event_version(&t->bytes, wall_time()));
    D9D_TRY(d9d_tb_event_start(&t->bytes, wall_time(), run->step + 1));
    D9D_TRY(append_hparams(t, run));
    D9D_TRY(d9d_writer_open(&t->file, &(d9d_writer_opts){.log = run->log}, &t->writer));
    D9D_TRY(flush_bytes(t));
    return d9d_writer_flush(t->writer);
}

static void tensorboard_close(void *self)
{
    tensorboard *t = self;

    if (t->writer != NULL && d9d_tb_event_hparams_end(&t->bytes, wall_time(), t->done) == D9D_OK)
        (void)!flush_bytes(t);
    d9d_writer_close(t->writer);
    d9d_file_release(&t->file);
    d9d_buf_release(&t->bytes);
    free(t->tags);
    free(t->values);
    free(t);
}

static d9d_status tensorboard_open(const void *config, const d9d_sink_run *run, void **self)
{
    const tensorboard_config *c = config;
    tensorboard *t = calloc(1, sizeof(*t));
    d9d_arena a = {0};
    const char *dir = c->dir != NULL ? c->dir : d9d_fs_join(&a, run->dir, "tensorboard");
    d9d_status st;

    if (t == NULL || dir == NULL) {
        st = D9D_FAIL(D9D_ENOMEM, "%s: its event files", run->dir);
        free(t);
    } else {
        t->file.fd = -1;
        st = start_file(t, dir, run, &a);
        if (st == D9D_OK)
            *self = t;
        else
            tensorboard_close(t);
    }
    d9d_arena_release(&a);
    return st;
}

static d9d_status reserve_values(tensorboard *t, size_t n)
{
    const char **tags;
    double *values;

    if (n <= t->cap)
        return D9D_OK;
    tags = realloc(t->tags, n * sizeof(*tags));
    t->tags = tags != NULL ? tags : t->tags;
    values = realloc(t->values, n * sizeof(*values));
    t->values = values != NULL ? values : t->values;
    if (tags == NULL || values == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for %zu values", n);
    t->cap = n;
    return D9D_OK;
}

static d9d_status tensorboard_put(void *self, const d9d_sink_record *r)
{
    tensorboard *t = self;
    size_t n = 0;

    t->done = strncmp(r->line, "{\"end\": \"done\"", 14) == 0;
    if (r->value != NULL) {
        D9D_TRY(d9d_tb_event_value(&t->bytes, wall_time(), r->value));
        return flush_bytes(t);
    }
    if (r->n == 0)
        return D9D_OK;
    D9D_TRY(reserve_values(t, r->n));
    for (size_t i = 0; i < r->n; i++)
        if (isfinite(r->values[i])) {
            t->tags[n] = r->names[i];
            t->values[n++] = r->values[i];
        }
    D9D_TRY(d9d_tb_event_scalars(&t->bytes, wall_time(), r->step, t->tags, t->values, n));
    return flush_bytes(t);
}

static const d9d_sink_kind tensorboard_kind = {.size = sizeof(d9d_sink_kind),
                                               .table = &d9di_sink_tensorboard_table,
                                               .open = tensorboard_open,
                                               .put = tensorboard_put,
                                               .close = tensorboard_close};
const d9d_table d9di_sink_tensorboard_table =
    D9D_TABLE(tensorboard_config, "tensorboard", tensorboard_keys, "event files for TensorBoard",
              .row = &tensorboard_kind);
