/* infer.c - the inference loop.  See d9d/loop/infer.h. */
#include "d9d/loop/infer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/thread.h"
#include "d9d/loop/stop.h"
#include "loop/engine.h"
#include "loop/generate.h"
#include "loop/launch.h"
#include "loop/lines.h"
#include "loop/npy.h"
#include "loop/same.h"
#include "loop/tasks.h"

typedef struct run {
    const d9d_infer_config *c;
    const d9d_job *where;
    const d9d_log *log;
    int rank;
    d9d_stop *stop;
    d9d_events *events;
    int64_t step, total_steps; /* batches of all ranks */
    d9di_data data;
    d9d_feed *feed;
    d9di_engine engine;
    const d9d_infer_task_kind *task;
    const d9d_output_section *output;
    d9di_task body;        /* kind NULL: the model's losses */
    int64_t width;         /* values of a row; 0: losses */
    d9di_lines lines;      /* of rank 0 */
    d9d_buf line, records; /* records: of a batch of all ranks, where the file has such */
    d9d_buf *rows;         /* [round]: what this rank says of its rows of each batch */
    int64_t round;         /* batches that go through the model together */
    int64_t at, end;       /* the batch that is asked for next begins at this sample; of how many */
    int64_t asked;         /* batches of this round that were asked for */
    int64_t base;          /* the first sample of the batch whose rows are taken */
    bool has_rows;         /* the batch that was asked for last has samples of this rank */
    d9d_batch_room *idle;  /* of a rank that is left without samples */
    float *loss;           /* host copy of a batch's losses */
    size_t loss_cap;
    double sum;
    int64_t targets;
} run;

typedef d9d_infer_row row;

/* --- logprobs --------------------------------------------------------------------------- */

/* How many of the targets each packed document has. */
static d9d_status put_documents(d9d_buf *b, const row *x)
{
    int64_t targets = 0;

    D9D_TRY(d9d_buf_printf(b, ", \"documents\": ["));
    for (int64_t i = 0; i < x->length; i++) {
        targets += x->labels[i] != D9D_IGNORE_INDEX;
        if (i + 1 < x->length && x->positions[i + 1] != 0)
            continue;
        D9D_TRY(d9d_buf_printf(b, "%lld%s", (long long)targets, i + 1 < x->length ? ", " : ""));
        targets = 0;
    }
    return d9d_buf_append(b, "]", 1);
}

static d9d_status logprobs_row(const void *config, const row *x, d9d_buf *b)
{
    const char *comma = "";

    (void)config;
    D9D_TRY(d9d_buf_printf(b, "{\"sample\": %lld, ", (long long)x->sample));
    if (x->blended)
        D9D_TRY(d9d_buf_printf(b, "\"dataset\": %d, ", x->dataset));
    D9D_TRY(d9d_buf_printf(b, "\"logprobs\": ["));
    for (int64_t i = 0; i < x->length; i++) {
        if (x->labels[i] == D9D_IGNORE_INDEX)
            continue;
        D9D_TRY(d9d_buf_printf(b, "%s", comma));
        D9D_TRY(d9d_json_put_f64(b, -(double)x->loss[i]));
        comma = ", ";
    }
    D9D_TRY(d9d_buf_printf(b, "], \"loss\": "));
    D9D_TRY(d9d_json_put_f64(b, x->targets > 0 ? x->sum / (double)x->targets : NAN));
    D9D_TRY(d9d_buf_printf(b, ", \"tokens\": %lld", (long long)x->targets));
    if (x->packed)
        D9D_TRY(put_documents(b, x));
    return d9d_buf_append(b, "}\n", 2);
}

const d9d_infer_task_kind d9di_logprobs = {.size = sizeof(d9d_infer_task_kind),
                                           .row = logprobs_row};

/* --- perplexity --------------------------------------------------------------------------- */

static d9d_status perplexity_end(const void *config, const d9d_infer_summary *s, d9d_buf *b)
{
    (void)config;
    D9D_TRY(d9d_buf_printf(b, "{\"perplexity\": "));
    D9D_TRY(d9d_json_put_f64(b, s->perplexity));
    D9D_TRY(d9d_buf_printf(b, ", \"loss\": "));
    D9D_TRY(d9d_json_put_f64(b, s->loss));
    return d9d_buf_printf(b, ", \"tokens\": %lld, \"samples\": %lld}\n", (long long)s->tokens,
                          (long long)s->samples);
}

const d9d_infer_task_kind d9di_perplexity = {.size = sizeof(d9d_infer_task_kind),
                                             .end = perplexity_end};

/* --- the output ------------------------------------------------------------------------------- */

static bool has_records(const run *r)
{
    return r->task->shape != NULL;
}
static bool has_rows_file(const run *r)
{
    return r->task->row != NULL || has_records(r);
}

/* A .npy, of so many rows of the task's shape. */
static d9d_status records_open(run *r, d9d_hash key)
{
    int64_t shape[8 + 1] = {d9d_loader_samples(r->data.loader)};
    const int n = r->task->shape(r->body.self, r->engine.whole, shape + 1);

    r->line.len = 0;
    D9D_TRY(d9di_npy_head(n + 1, shape, &r->line));
    return d9di_records_open(r->output->output, key, &r->line, (uint64_t)r->width * sizeof(float),
                             &r->lines);
}

/* Rank 0: the file of lines, to go on with behind what it has. */
static d9d_status lines_open(run *r, const json_t *resolved, int64_t *first)
{
    const d9d_hash data = d9d_loader_data_hash(r->data.loader);
    d9d_hash key;

    if (r->output->output == NULL)
        return D9D_FAIL(D9D_ECONFIG, "task.output: %s writes a line a sample; name its file",
                        r->c->task.choice->name);
    r->line.len = 0;
    D9D_TRY(d9d_json_put(&r->line, resolved, -1));
    D9D_TRY(d9d_buf_append(&r->line, &data, sizeof(data)));
    key = d9d_hash_bytes(r->line.data, r->line.len);
    D9D_TRY(has_records(r) ? records_open(r, key)
                           : d9di_lines_open(r->output->output, key, &r->lines));
    *first = r->lines.done;
    return D9D_OK;
}

static d9d_status output_end(run *r, const d9d_infer_summary *s)
{
    if (has_rows_file(r))
        return d9di_lines_commit(&r->lines);
    if (r->task->end == NULL || r->output->output == NULL)
        return D9D_OK;
    r->line.len = 0;
    D9D_TRY(r->task->end(r->output, s, &r->line));
    return d9d_fs_write_atomic(r->output->output, r->line.data, r->line.len);
}

/* --- telling ---------------------------------------------------------------------------------- */

static d9d_status tell(const run *r, const char *id, d9d_event e)
{
    e.size = sizeof(e);
    e.id = id;
    return d9d_events_trigger(r->events, &e);
}

static d9d_status tell_step(const run *r, const char *id)
{
    return tell(r, id, (d9d_event){.step = r->step, .total_steps = r->total_steps});
}

/* --- the loop -------------------------------------------------------------------------------- */

static d9di_engine_how engine_how(const run *r)
{
    return (d9di_engine_how){
        .where = r->where,
        .mesh = &r->c->mesh,
        .provider = &r->c->model_provider,
        .source = r->c->trainer.model_stage_factory.source_checkpoint,
        .adapter = r->c->trainer.model_stage_factory.source_adapter,
        .data = &r->data,
        .task = r->body.kind != NULL ? &r->body : NULL,
        .initialise = true,
        .timeout_s = (double)r->c->trainer.timeout.init_timeout,
    };
}

/* How many values a row of a .npy has; of other tasks their forward shows. */
static d9d_status width_find(run *r)
{
    int64_t shape[8];
    uint64_t all = 1;

    for (int i = 0, n = has_records(r) ? r->task->shape(r->body.self, r->engine.whole, shape) : 0;
         i < n; i++)
        if (!d9d_mul_u64(all, (uint64_t)shape[i], &all) || all > INT32_MAX)
            return D9D_FAIL(D9D_ECONFIG, "task %s: a sample has more than 2^31 values",
                            r->c->task.choice->name);
    r->width = has_records(r) ? (int64_t)all : 0;
    return D9D_OK;
}

/* All that can be wrong without memory for a model. */
static d9d_status run_check(run *r)
{
    d9di_engine_how how;

    if (r->task->body != NULL)
        D9D_TRY(d9di_task_begin(r->task->body, r->output, &r->body));
    D9D_TRY(d9di_events_open(r->where, &r->c->model_provider, NULL, &r->events));
    D9D_TRY(tell(r, "inference.configuration.start", (d9d_event){.boot = r->where->boot}));
    D9D_TRY(d9d_degrees_check(&r->c->mesh, d9d_boot_size(r->where->boot)));
    if (r->c->trainer.model_stage_factory.source_checkpoint == NULL)
        return D9D_FAIL(D9D_ECONFIG, "trainer.model_stage_factory.source_checkpoint: name the "
                                     "model's weights");
    if (r->output->output != NULL && d9d_fs_exists(r->output->output))
        return D9D_FAIL(D9D_ECONFIG, "%s: exists already; remove it or name another output",
                        r->output->output);
    if (r->c->data.n == 0)
        return D9D_FAIL(D9D_ECONFIG, "data.dataset: name the samples");
    D9D_TRY(d9di_data_open(&r->c->data, &r->c->trainer.data_loading, &r->c->mesh,
                           r->c->trainer.batching.microbatch_size, &r->data));
    if (d9d_loader_last_source(r->data.loader) < 0)
        return D9D_FAIL(D9D_ECONFIG, "data.epochs is null; inference needs an end");
    if (r->body.kind != NULL && d9di_task_pooling(&r->body) != D9D_POOL_NONE)
        D9D_TRY(d9di_data_take_whole(&r->data, true, false, r->c->task.choice->name));
    D9D_TRY(tell(r, "inference.configuration.data_loader", (d9d_event){.loader = r->data.loader}));
    how = engine_how(r);
    D9D_TRY(d9di_engine_open(&how, &r->engine));
    return width_find(r);
}

/* All that is read is the same on all ranks. */
static d9d_status sources_check(run *r)
{
    const d9di_engine_how how = engine_how(r);
    d9di_same same = {0};

    d9di_same_add(&same, r->data.sections[0].dataset, d9d_loader_data_hash(r->data.loader));
    d9di_same_engine(&same, &r->engine, &how);
    return d9di_same_agree(&same, r->where->boot);
}

/* Rank 0 opens the output, which says where to go on, and tells the others. */
static d9d_status output_open(run *r, const json_t *resolved, int64_t *first)
{
    const char *text = NULL;
    d9d_status st = D9D_OK;

    if (r->rank == 0 && has_rows_file(r))
        st = lines_open(r, resolved, first);
    D9D_TRY(d9d_boot_agree(r->where->boot, st));
    r->line.len = 0;
    D9D_TRY(d9d_buf_printf(&r->line, "%lld", (long long)*first));
    text = r->line.data;
    D9D_TRY(d9di_launch_tell(r->where->boot, &r->engine.arena, &text));
    *first = strtoll(text, NULL, 10);
    return D9D_OK;
}

static d9d_status run_open(run *r, const json_t *resolved, int64_t *first)
{
    const d9di_engine_how how = engine_how(r);

    D9D_TRY(output_open(r, resolved, first));
    D9D_TRY(d9d_batch_room_create(&r->idle));
    D9D_TRY(d9di_engine_fill(&r->engine, &how));
    return tell(r, "inference.configuration.model_stages",
                (d9d_event){.models = r->engine.models, .n_models = r->engine.n_stages});
}

static void run_close(run *r)
{
    d9di_engine_release(&r->engine);
    d9di_task_close(&r->body);
    d9d_buf_release(&r->records);
    d9di_lines_release(&r->lines);
    d9d_buf_release(&r->line);
    for (int64_t i = 0; i < r->round && r->rows != NULL; i++)
        d9d_buf_release(&r->rows[i]);
    free(r->rows);
    free(r->loss);
    d9d_feed_close(r->feed);
    d9d_batch_room_free(r->idle);
    d9di_data_release(&r->data);
    d9d_stop_close(r->stop);
    d9d_events_free(r->events);
}

/* Losses or values into r->loss. */
static d9d_status fetch(run *r, const d9d_tensor *loss)
{
    const size_t n = (size_t)d9d_tensor_numel(loss);

    if (n > r->loss_cap) {
        float *grown = realloc(r->loss, n * sizeof(*grown));

        if (grown == NULL)
            return D9D_FAIL(D9D_ENOMEM, "infer: %zu numbers of a batch", n);
        r->loss = grown;
        r->loss_cap = n;
    }
    return d9d_tensor_to_f32(loss, r->loss);
}

/* --- rows of all ranks, in order ------------------------------------------------------------- *
 *
 * A rank says of its rows, one behind the other: a head, and the line that goes to the output, or
 * some columns of the record. */

typedef struct row_head {
    double sum;
    int64_t targets;
    uint64_t line;  /* bytes */
    int64_t sample; /* where the sum is not finite */
    int64_t at;     /* of a record: its number in the stream, */
    uint64_t from;  /* and where in it the bytes belong */
} row_head;

/* One line, as a run that goes on counts them. */
static d9d_status line_make(run *r, const row *x)
{
    const char *end;

    D9D_TRY(r->task->row(r->output, x, &r->line));
    end = r->line.len > 0 ? memchr(r->line.data, '\n', r->line.len) : NULL;
    if (end == NULL || end + 1 != r->line.data + r->line.len)
        return D9D_FAIL(D9D_EINVAL, "task %s: its text of sample %lld is not one line",
                        r->c->task.choice->name, (long long)x->sample);
    return D9D_OK;
}

static d9d_status row_say(run *r, row *x, d9d_buf *rows)
{
    row_head head = {.sample = x->sample};

    for (int64_t j = 0; j < x->length; j++)
        if (x->labels[j] != D9D_IGNORE_INDEX) {
            x->sum += (double)x->loss[j];
            x->targets++;
        }
    head.sum = x->sum;
    head.targets = x->targets;
    r->line.len = 0;
    if (isfinite(x->sum) && r->task->row != NULL)
        D9D_TRY(line_make(r, x));
    head.line = r->line.len;
    D9D_TRY(d9d_buf_append(rows, &head, sizeof(head)));
    return d9d_buf_append(rows, r->line.data, r->line.len);
}

/* Of ranks that have the same losses the first one speaks. */
static d9d_status batch_say(run *r, const d9d_batch *b, d9d_buf *rows)
{
    if (d9d_mesh_index(r->engine.mesh, D9D_AXES_CP | D9D_AXIS(TP)) > 0)
        return D9D_OK;
    for (int64_t i = 0; i < b->rows; i++) {
        row x = {.sample = b->draws[i].sample,
                 .dataset = b->draws[i].source,
                 .blended = r->data.n > 1,
                 .loss = r->loss + i * b->length,
                 .labels = b->labels + i * b->length,
                 .positions = b->positions + i * b->length,
                 .packed = b->bounds != NULL,
                 .length = b->lengths[i]};

        D9D_TRY(row_say(r, &x, rows));
    }
    return D9D_OK;
}

/* Every rank adds up all rows, in the order of samples; rank 0 writes them. */
static d9d_status rows_take(run *r, const char *at, size_t n)
{
    const char *end = at + n;
    row_head head;

    for (; at < end; at += sizeof(head) + head.line) {
        memcpy(&head, at, sizeof(head));
        if (!isfinite(head.sum))
            return d9d_boot_agree(
                r->where->boot,
                D9D_FAIL(D9D_ENUMERIC, "sample %lld: its %s is %s", (long long)head.sample,
                         r->task->body != NULL ? "output" : "loss", d9di_nonfinite_word(head.sum)));
        r->sum += head.sum;
        r->targets += head.targets;
        if (r->rank > 0 || head.line == 0)
            continue;
        if (has_records(r))
            memcpy(r->records.data +
                       (uint64_t)(head.at - r->base) * (uint64_t)r->width * sizeof(float) +
                       head.from,
                   at + sizeof(head), head.line);
        else
            D9D_TRY(d9di_lines_add(&r->lines, at + sizeof(head), head.line));
    }
    return D9D_OK;
}

static d9d_status rows_exchange(run *r, const d9d_buf *rows)
{
    const int ranks = d9d_comm_size(r->engine.world);
    d9d_arena a = {0};
    d9d_comm_word *all = d9d_arena_alloc(&a, (size_t)ranks * sizeof(*all));
    d9d_status st = D9D_OK;

    if (all == NULL)
        st = D9D_FAIL(D9D_ENOMEM, "infer: rows of %d ranks", ranks);
    if (st == D9D_OK)
        st = d9d_comm_gather_words(r->engine.world, "rows", rows->data, rows->len, &a, all);
    for (int k = 0; st == D9D_OK && k < ranks; k++)
        st = rows_take(r, all[k].data, all[k].n);
    d9d_arena_release(&a);
    return st;
}

/* This rank's part of the next batch of all ranks.  One without a sample computes along with the
 * others, of whose parameters it may keep a part. */
static d9d_status batch_next(void *arg, d9d_batch *b)
{
    run *r = arg;
    const int64_t micro = r->c->trainer.batching.microbatch_size, first = r->at;
    const int64_t mine = first + d9d_mesh_index(r->engine.mesh, D9D_AXES_DP) * micro;

    r->at += micro * d9d_mesh_count(r->engine.mesh, D9D_AXES_DP);
    r->has_rows = mine < r->end;
    r->asked++;
    return r->has_rows ? d9d_feed_next(r->feed, b)
                       : d9d_loader_fill(r->data.loader, first, 1, r->idle, b);
}

static d9d_status batch_losses(void *arg, const d9d_batch *b, const d9d_tensor *loss)
{
    run *r = arg;
    d9d_buf *rows = &r->rows[r->asked - 1];

    if (!r->has_rows)
        return D9D_OK;
    D9D_TRY(fetch(r, loss));
    return batch_say(r, b, rows);
}

static d9d_status values_say(run *r, row *x, int64_t k, int64_t at, float *v, d9d_buf *rows)
{
    row_head head = {.sample = x->sample, .at = k, .from = (uint64_t)at * sizeof(*v)};

    for (int64_t i = 0; i < x->width; i++)
        head.sum += isfinite(v[i]) ? 0 : (double)v[i];
    head.targets = at == 0 ? x->length : 0;
    x->values = v;
    r->line.len = 0;
    if (isfinite(head.sum) && has_records(r))
        D9D_TRY(d9d_buf_append(&r->line, v, (size_t)x->width * sizeof(*v)));
    else if (isfinite(head.sum))
        D9D_TRY(line_make(r, x));
    head.line = r->line.len;
    D9D_TRY(d9d_buf_append(rows, &head, sizeof(head)));
    return d9d_buf_append(rows, r->line.data, r->line.len);
}

/* The class that the dataset gives a row, where it gives any. */
static int32_t label_of(const d9d_batch *b, int64_t i)
{
    const int32_t *labels = b->labels + i * b->length;

    for (int64_t k = b->lengths[i]; k-- > 0;)
        if (labels[k] != D9D_IGNORE_INDEX)
            return labels[k];
    return D9D_IGNORE_INDEX;
}

/* Of every stage that has some; of ranks that share the documents the first one has them. */
static d9d_status batch_values(void *arg, const d9d_batch *b, const d9d_tensor *v, int64_t at)
{
    run *r = arg;
    const int64_t width = v->shape.dim[1];

    if (!r->has_rows || d9d_mesh_index(r->engine.mesh, D9D_AXES_CP | D9D_AXIS(TP)) > 0)
        return D9D_OK;
    D9D_TRY(fetch(r, v));
    for (int64_t i = 0; i < b->rows; i++) {
        float *mine = r->loss + i * width;
        row x = {.sample = b->draws[i].sample,
                 .dataset = b->draws[i].source,
                 .blended = r->data.n > 1,
                 .length = b->lengths[i],
                 .width = width,
                 .label = label_of(b, i)};

        if (r->task->finish != NULL)
            r->task->finish(r->body.self, mine, width);
        D9D_TRY(values_say(r, &x, b->first + i, at, mine, &r->rows[r->asked - 1]));
    }
    return D9D_OK;
}

/* Samples of a batch of all ranks. */
static int64_t global_batch(const run *r)
{
    return r->c->trainer.batching.microbatch_size * d9d_mesh_count(r->engine.mesh, D9D_AXES_DP);
}

/* The records of a batch, which come in columns of any order. */
static uint64_t records_count(const run *r)
{
    const int64_t n = global_batch(r), left = r->end - r->base;

    return r->rank == 0 && has_records(r) ? (uint64_t)(left < n ? left : n) : 0;
}

static d9d_status records_begin(run *r)
{
    const uint64_t bytes = records_count(r) * (uint64_t)r->width * sizeof(float);

    r->records.len = 0;
    D9D_TRY(d9d_buf_reserve(&r->records, bytes));
    if (bytes > 0)
        memset(r->records.data, 0, bytes);
    r->records.len = bytes;
    return D9D_OK;
}

static d9d_status records_end(run *r)
{
    const uint64_t bytes = (uint64_t)r->width * sizeof(float);

    for (uint64_t i = 0, n = records_count(r); i < n; i++)
        D9D_TRY(d9di_lines_add(&r->lines, r->records.data + i * bytes, bytes));
    return D9D_OK;
}

/* n batches of all ranks through the model together. */
static d9d_status round_run(run *r, int64_t n)
{
    const d9di_flow flow = {
        .next = batch_next, .loss = batch_losses, .values = batch_values, .arg = r};

    const int64_t global = global_batch(r), first = r->at;

    r->asked = 0;
    for (int64_t i = 0; i < n; i++)
        r->rows[i].len = 0;
    D9D_TRY(tell_step(r, "inference.forward.pre"));
    D9D_TRY(d9di_engine_losses(&r->engine, &flow, n));
    D9D_TRY(tell_step(r, "inference.forward.post"));
    for (int64_t i = 0; i < n; i++) {
        r->base = first + i * global;
        D9D_TRY(records_begin(r));
        D9D_TRY(rows_exchange(r, &r->rows[i]));
        D9D_TRY(records_end(r));
    }
    return D9D_OK;
}

/* A signal to any rank ends all of them. */
static d9d_status stop_check(run *r, int64_t done, int64_t n)
{
    const char *reason = r->stop != NULL ? d9d_stop_reason(r->stop) : NULL;
    const int ranks = d9d_comm_size(r->engine.world);
    d9d_arena a = {0};
    d9d_comm_word *all = d9d_arena_alloc(&a, (size_t)ranks * sizeof(*all));
    d9d_status st = D9D_OK;

    if (all == NULL)
        st = D9D_FAIL(D9D_ENOMEM, "infer: signals of %d ranks", ranks);
    if (st == D9D_OK)
        st = d9d_comm_gather_words(r->engine.world, "signals", reason,
                                   reason != NULL ? strlen(reason) : 0, &a, all);
    for (int k = 0; st == D9D_OK && k < ranks; k++)
        if (all[k].n > 0)
            st = d9d_boot_agree(r->where->boot,
                                D9D_FAIL(D9D_EINTR, "%s: %lld of %lld samples are done",
                                         (const char *)all[k].data, (long long)done, (long long)n));
    d9d_arena_release(&a);
    return st;
}

/* So many that a pipeline is mostly full. */
static d9d_status round_open(run *r)
{
    const int ranks = d9d_mesh_count(r->engine.mesh, D9D_AXIS(PP));

    r->rows = calloc(ranks > 1 ? 4 * (size_t)ranks : 1, sizeof(*r->rows));
    if (r->rows == NULL)
        return D9D_FAIL(D9D_ENOMEM, "infer: rows of %d ranks", ranks);
    r->round = ranks > 1 ? 4 * ranks : 1;
    return D9D_OK;
}

static d9d_status batches_run(run *r, int64_t first, int64_t n)
{
    const int64_t micro = r->c->trainer.batching.microbatch_size;
    const int replicas = d9d_mesh_count(r->engine.mesh, D9D_AXES_DP);
    const int64_t global = micro * replicas;
    const d9d_feed_how how =
        d9di_data_feed(&r->c->trainer.data_loading, first, global,
                       d9d_mesh_index(r->engine.mesh, D9D_AXES_DP), replicas, micro, n);
    d9d_progress progress;
    d9d_status st = D9D_OK;

    D9D_TRY(round_open(r));
    D9D_TRY(d9d_feed_open(r->data.loader, &how, &r->feed));
    r->total_steps = (n + global - 1) / global;
    D9D_TRY(tell(r, "inference.ready", (d9d_event){.user = NULL}));
    d9d_progress_start(&progress, r->log, "infer", "samples", (uint64_t)n);
    progress.first = progress.done = (uint64_t)first;
    r->end = n;
    for (r->at = first; r->at < n && st == D9D_OK;) {
        const int64_t from = r->at, batches = (n - from + global - 1) / global;

        r->step = from / global;
        st = stop_check(r, from, n);
        if (st == D9D_OK)
            st = tell_step(r, "inference.step.pre");
        if (st == D9D_OK)
            st = round_run(r, batches < r->round ? batches : r->round);
        if (st == D9D_OK)
            st = tell_step(r, "inference.step.post");
        d9d_progress_add(&progress, (uint64_t)((r->at < n ? r->at : n) - from));
    }
    d9d_progress_end(&progress);
    return st == D9D_OK ? tell(r, "inference.finished", (d9d_event){.user = NULL}) : st;
}

static d9d_status run_through(run *r, const json_t *resolved, d9d_infer_summary *s)
{
    int64_t start;

    D9D_TRY(d9d_boot_agree(r->where->boot, d9di_launch_checked(run_check(r))));
    D9D_TRY(sources_check(r));
    D9D_TRY(run_open(r, resolved, &s->first_sample));
    s->samples = d9d_loader_samples(r->data.loader);
    start = d9d_clock_ns();
    D9D_TRY(batches_run(r, s->first_sample, s->samples));
    s->tokens = r->targets;
    s->what = r->task->body != NULL ? D9D_INFER_ROWS : D9D_INFER_SCORED;
    s->loss = r->targets > 0 && r->task->body == NULL ? r->sum / (double)r->targets : NAN;
    s->perplexity = exp(s->loss);
    s->tokens_per_s = (double)r->targets / ((double)(d9d_clock_ns() - start) * 1e-9);
    return d9d_boot_agree(r->where->boot, r->rank == 0 ? output_end(r, s) : D9D_OK);
}

static d9d_status score(const d9d_infer_config *config, const json_t *resolved,
                        const d9d_job *where, d9d_infer_summary *out)
{
    run r = {.c = config,
             .where = where,
             .log = where->log,
             .rank = d9d_boot_rank(where->boot),
             .task = config->task.choice->row,
             .output = config->task.value,
             .lines = {.file = {.fd = -1}}};
    const int64_t margin = config->trainer.timeout.save_margin;
    d9d_infer_summary s = {0};
    d9d_status st;

    if (has_rows_file(&r))
        D9D_TRY_OR(st, d9d_stop_open(r.rank == 0 ? margin : D9D_STOP_NO_LIMIT, r.log, &r.stop),
                   out);
    D9D_TRY_OR(st, run_through(&r, resolved, &s), out);
    *out = s;
out:
    st = d9di_launch_failed(where->boot, r.engine.mesh, st);
    run_close(&r);
    return st;
}

d9d_status d9d_infer(const d9d_infer_config *config, const json_t *resolved, const d9d_job *where,
                     d9d_infer_summary *out)
{
    return config->task.choice->row == NULL ? d9di_generate(config, resolved, where, out)
                                            : score(config, resolved, where, out);
}
