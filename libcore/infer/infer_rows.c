/* infer_rows.c - see infer/infer_rows.h. */
#include "infer/infer_rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/plugin_call.h"
#include "d9d/comm/exchange.h"
#include "infer/npy_writer.h"

/* Precedes a row's line, or columns of its record. */
typedef struct message_head {
    double sum;
    int64_t targets;
    uint64_t bytes;   /* that follow, */
    uint64_t counted; /* and those behind them that metrics count */
    int64_t sample;   /* if the sum is not finite */
    int64_t at;       /* of a record: its number in the stream */
    uint64_t from;    /* and the offset of the bytes in it */
} message_head;

/* What metrics count of a row: its numbers [rows, columns], and the targets of these. */
typedef struct counted_head {
    size_t source; /* SIZE_MAX: every metric counts them, without targets */
    int64_t rows, columns, targets;
} counted_head;

enum { REPLICA_AXES = D9D_AXES_CP | D9D_AXIS(TP) }; /* these have equal losses and values */

static const d9d_job_output_section *output_section(const d9di_infer_rows *r)
{
    return r->section->value;
}
static const char *task_name(const d9di_infer_rows *r)
{
    return r->section->choice->name;
}
static bool has_records(const d9di_infer_rows *r)
{
    return r->task->shape != NULL;
}
static uint64_t record_bytes(const d9di_infer_rows *r)
{
    return (uint64_t)r->width * sizeof(float);
}

/* --- the file --------------------------------------------------------------------------------- */

bool d9di_infer_rows_are_values(const d9di_infer_rows *r)
{
    return r->task->body != NULL && r->task->body->forward != NULL;
}

bool d9di_infer_rows_are_written(const d9di_infer_rows *r)
{
    return r->task->row != NULL || has_records(r);
}

d9d_status d9di_infer_rows_check(d9di_infer_rows *r)
{
    int64_t shape[8];
    uint64_t all = 1;
    const int n = has_records(r) ? r->task->shape(r->body->self, r->engine->whole.model, shape) : 0;

    for (int i = 0; i < n; i++)
        if (!d9d_checked_mul_u64(all, (uint64_t)shape[i], &all) || all > INT32_MAX)
            return D9D_FAIL(D9D_ECONFIG, "task %s: a sample has more than 2^31 values",
                            task_name(r));
    r->width = has_records(r) ? (int64_t)all : 0;
    r->samples = d9d_loader_samples(r->data->loader);
    return D9D_OK;
}

/* The .npy header, for all rows of the task's shape. */
static d9d_status make_npy_header(d9di_infer_rows *r)
{
    int64_t shape[8 + 1] = {r->samples};
    const int n = r->task->shape(r->body->self, r->engine->whole.model, shape + 1);

    r->line.len = 0;
    return d9di_npy_writer_header(n + 1, shape, &r->line);
}

/* The totals, and what metrics have counted. */
static d9d_status make_state(d9di_infer_rows *r, d9d_arena *a, d9di_resumable_lines_state *out)
{
    const size_t n = r->metrics != NULL ? r->metrics->n : 0;
    d9di_resumable_lines_part *parts = d9d_arena_alloc(a, (1 + n) * sizeof(*parts));

    if (parts == NULL)
        return D9D_FAIL(D9D_ENOMEM, "task %s: no memory for the states of %zu metrics",
                        task_name(r), n);
    parts[0] = (d9di_resumable_lines_part){&r->totals, sizeof(r->totals)};
    for (size_t i = 0; i < n; i++) {
        const d9d_metric_form *f = d9d_metric_form_of(r->metrics->metric[i]);

        parts[1 + i] =
            (d9di_resumable_lines_part){d9d_metric_local_state(r->metrics->metric[i]),
                                        (size_t)f->state_size * d9d_dtype_size(f->dtype)};
    }
    *out = (d9di_resumable_lines_state){.id = r->metrics_id, .parts = parts, .n = 1 + n};
    return D9D_OK;
}

d9d_status d9di_infer_rows_open(d9di_infer_rows *r, d9d_hash key, d9d_arena *a, int64_t *first)
{
    const char *path = output_section(r)->output;
    d9di_resumable_lines_state state;

    if (path == NULL)
        return D9D_FAIL(D9D_ECONFIG, "task.output: %s writes a line a sample; name its file",
                        task_name(r));
    if (has_records(r))
        D9D_TRY(make_npy_header(r));
    D9D_TRY(make_state(r, a, &state));
    D9D_TRY(d9di_resumable_lines_open(path, key, has_records(r) ? &r->line : NULL, &state,
                                      r->where->log, &r->lines));
    *first = r->lines.done;
    r->counted_from = r->lines.counted_from;
    return D9D_OK;
}

d9d_status d9di_infer_rows_finish(d9di_infer_rows *r, const d9d_infer_task_summary *s)
{
    const d9d_job_output_section *section = output_section(r);

    if (d9di_infer_rows_are_written(r))
        return d9di_resumable_lines_commit(&r->lines);
    if (r->task->end == NULL || section->output == NULL)
        return D9D_OK;
    r->line.len = 0;
    D9D_TRY(D9D_PLUGIN_CALL(task_name(r), r->task, end, section, s, &r->line));
    return d9d_fs_write_new(section->output, r->line.data, r->line.len);
}

void d9di_infer_rows_release(d9di_infer_rows *r)
{
    for (int64_t i = 0; i < r->max_batches; i++)
        d9d_buf_release(&r->messages[i]);
    free(r->messages);
    free(r->host);
    D9D_VEC_RELEASE(&r->prediction);
    D9D_VEC_RELEASE(&r->target);
    d9d_buf_release(&r->counted);
    d9d_buf_release(&r->records);
    d9d_buf_release(&r->line);
    d9di_resumable_lines_release(&r->lines);
}

/* --- messages ------------------------------------------------------------------------- */

d9d_status d9di_infer_rows_prepare(d9di_infer_rows *r, int64_t batch, int64_t max_batches)
{
    r->messages = calloc((size_t)max_batches, sizeof(*r->messages));
    if (r->messages == NULL)
        return D9D_FAIL(D9D_ENOMEM, "infer: no memory for the rows of %lld batches",
                        (long long)max_batches);
    r->max_batches = max_batches;
    r->batch = batch;
    return D9D_OK;
}

void d9di_infer_rows_begin(d9di_infer_rows *r)
{
    for (int64_t i = 0; i < r->max_batches; i++)
        r->messages[i].len = 0;
}

/* Copies losses or values to r->host. */
static d9d_status copy_to_host(d9di_infer_rows *r, const d9d_tensor *x)
{
    const size_t n = (size_t)d9d_tensor_numel(x);

    if (n > r->host_cap) {
        float *grown = realloc(r->host, n * sizeof(*grown));

        if (grown == NULL)
            return D9D_FAIL(D9D_ENOMEM, "infer: no memory for %zu numbers of a batch", n);
        r->host = grown;
        r->host_cap = n;
    }
    return d9d_tensor_to_f32(x, r->host);
}

/* Makes one line; resuming counts lines, so a row must be exactly one. */
static d9d_status make_line(d9di_infer_rows *r, const d9d_infer_task_row *x)
{
    const char *end;

    D9D_TRY(D9D_PLUGIN_CALL(task_name(r), r->task, row, output_section(r), x, &r->line));
    end = r->line.len > 0 ? memchr(r->line.data, '\n', r->line.len) : NULL;
    if (end == NULL || end + 1 != r->line.data + r->line.len)
        return D9D_FAIL(D9D_EINVAL, "task %s: its text of sample %lld is not one line",
                        task_name(r), (long long)x->sample);
    return D9D_OK;
}

/* Appends a head, the content of r->line and what is counted. */
static d9d_status append_message(const d9di_infer_rows *r, message_head h, d9d_buf *messages)
{
    h.bytes = r->line.len;
    h.counted = r->counted.len;
    D9D_TRY(d9d_buf_append(messages, &h, sizeof(h)));
    D9D_TRY(d9d_buf_append(messages, r->line.data, r->line.len));
    return d9d_buf_append(messages, r->counted.data, r->counted.len);
}

/* --- what metrics count of a row ---------------------------------------------------------- */

/* Appends r->prediction and r->target. */
static d9d_status append_counted(d9di_infer_rows *r, size_t source, int64_t rows, int64_t columns)
{
    const counted_head h = {source, rows, columns, (int64_t)r->target.len};

    D9D_TRY(d9d_buf_append(&r->counted, &h, sizeof(h)));
    D9D_TRY(d9d_buf_append(&r->counted, r->prediction.data,
                           r->prediction.len * sizeof(*r->prediction.data)));
    return d9d_buf_append(&r->counted, r->target.data, r->target.len * sizeof(*r->target.data));
}

static d9d_status take_values(d9di_infer_rows *r, const float *values, int64_t n)
{
    r->prediction.len = 0;
    for (int64_t i = 0; i < n; i++)
        D9D_TRY(D9D_VEC_PUSH(&r->prediction, (double)values[i]));
    return D9D_OK;
}

/* Of a row's losses those of its targets. */
static d9d_status count_losses(d9di_infer_rows *r, const d9d_infer_task_row *x)
{
    r->prediction.len = r->target.len = 0;
    for (int64_t j = 0; r->metrics != NULL && j < x->length; j++)
        if (x->labels[j] != D9D_IGNORE_INDEX)
            D9D_TRY(D9D_VEC_PUSH(&r->prediction, (double)x->loss[j]));
    return r->prediction.len > 0 ? append_counted(r, SIZE_MAX, (int64_t)r->prediction.len, 1)
                                 : D9D_OK;
}

/* What a head's outputs of a text are compared with, in r->target; empty: nothing. */
static d9d_status find_targets(d9di_infer_rows *r, const d9d_infer_task_row *x,
                               const d9d_task_head_record *h)
{
    const d9d_batch_field *f = h->label != NULL ? d9d_batch_find_field(x->batch, h->label) : NULL;
    const int32_t *classes = f != NULL ? f->data : NULL;
    const float *values = f != NULL ? f->data : NULL;

    r->target.len = 0;
    if (h->targets == D9D_TASK_TARGETS_CLASSES) {
        const int32_t class = classes != NULL ? classes[x->seq] : x->label;

        return class >= 0 ? D9D_VEC_PUSH(&r->target, (double)class) : D9D_OK;
    }
    if (values == NULL)
        return D9D_OK;
    values += x->seq * h->columns;
    for (int64_t i = 0; i < h->columns && d9d_field_row_is_present(values, h->columns); i++)
        D9D_TRY(D9D_VEC_PUSH(&r->target, (double)values[i]));
    return D9D_OK;
}

/* Columns of a row are those of the task's heads, one of which may have no number of its own. */
static d9d_status count_heads(d9di_infer_rows *r, const d9d_infer_task_row *x)
{
    size_t n;
    const d9d_task_head_record *h = d9di_task_heads(r->body, &n);
    const float *at = x->values;
    int64_t known = 0;

    for (size_t i = 0; i < n; i++)
        known += h[i].columns != D9D_INT_NULL ? h[i].columns : 0;
    for (size_t i = 0; i < n; i++) {
        const int64_t columns = h[i].columns != D9D_INT_NULL ? h[i].columns : x->width - known;

        r->target.len = 0;
        if (h[i].metrics->n > 0 && x->length > 0)
            D9D_TRY(find_targets(r, x, &h[i]));
        if (r->target.len > 0) {
            D9D_TRY(take_values(r, at, columns));
            D9D_TRY(append_counted(r, 1 + i, 1, columns));
        }
        at += columns;
    }
    return D9D_OK;
}

/* The values of a row that has a class, and those of each head that have their targets. */
static d9d_status count_values(d9di_infer_rows *r, const d9d_infer_task_row *x)
{
    if (r->metrics == NULL)
        return D9D_OK;
    r->target.len = 0;
    if (x->label != D9D_IGNORE_INDEX) {
        D9D_TRY(D9D_VEC_PUSH(&r->target, (double)x->label));
        D9D_TRY(take_values(r, x->values, x->width));
        D9D_TRY(append_counted(r, 0, 1, x->width));
    }
    return count_heads(r, x);
}

/* --- rows ---------------------------------------------------------------------------------- */

static d9d_status append_losses(d9di_infer_rows *r, d9d_infer_task_row *x, d9d_buf *messages)
{
    for (int64_t j = 0; j < x->length; j++)
        if (x->labels[j] != D9D_IGNORE_INDEX) {
            x->sum += (double)x->loss[j];
            x->targets++;
        }
    r->line.len = r->counted.len = 0;
    if (isfinite(x->sum))
        D9D_TRY(count_losses(r, x));
    if (isfinite(x->sum) && r->task->row != NULL)
        D9D_TRY(make_line(r, x));
    return append_message(
        r, (message_head){.sample = x->sample, .sum = x->sum, .targets = x->targets}, messages);
}

d9d_status d9di_infer_rows_add_losses(d9di_infer_rows *r, int64_t k, const d9d_batch *b,
                                      const d9d_tensor *loss)
{
    if (d9d_mesh_index(r->engine->mesh, REPLICA_AXES) > 0)
        return D9D_OK;
    D9D_TRY(copy_to_host(r, loss));
    for (int64_t i = 0; i < b->seqs; i++) {
        d9d_infer_task_row x = {.sample = b->refs[i].sample,
                                .dataset = b->refs[i].source,
                                .blended = r->data->n > 1,
                                .loss = r->host + i * b->length,
                                .labels = b->labels + i * b->length,
                                .positions = b->positions + i * b->length,
                                .packed = b->cu_seqlens != NULL,
                                .length = b->lengths[i],
                                .source = r->data->datasets[b->refs[i].source],
                                .batch = b,
                                .seq = i};

        D9D_TRY(append_losses(r, &x, &r->messages[k]));
    }
    return D9D_OK;
}

static d9d_status append_values(d9di_infer_rows *r, const d9d_infer_task_row *x, message_head h,
                                d9d_buf *messages)
{
    for (int64_t i = 0; i < x->width; i++)
        h.sum += isfinite(x->values[i]) ? 0 : (double)x->values[i];
    r->line.len = r->counted.len = 0;
    if (isfinite(h.sum))
        D9D_TRY(count_values(r, x));
    if (isfinite(h.sum) && has_records(r))
        D9D_TRY(d9d_buf_append(&r->line, x->values, (size_t)x->width * sizeof(*x->values)));
    else if (isfinite(h.sum))
        D9D_TRY(make_line(r, x));
    return append_message(r, h, messages);
}

/* The class that the dataset gives a row, if any. */
static int32_t row_label(const d9d_batch *b, int64_t i)
{
    const int32_t *labels = b->labels + i * b->length;

    for (int64_t k = b->lengths[i]; k-- > 0;)
        if (labels[k] != D9D_IGNORE_INDEX)
            return labels[k];
    return D9D_IGNORE_INDEX;
}

d9d_status d9di_infer_rows_add_values(d9di_infer_rows *r, int64_t k, const d9d_batch *b,
                                      const d9d_tensor *v, int64_t at)
{
    const int64_t width = v->shape.dim[1];

    if (d9d_mesh_index(r->engine->mesh, REPLICA_AXES) > 0)
        return D9D_OK;
    D9D_TRY(copy_to_host(r, v));
    for (int64_t i = 0; i < b->seqs; i++) {
        float *values = r->host + i * width;
        const d9d_infer_task_row x = {.sample = b->refs[i].sample,
                                      .dataset = b->refs[i].source,
                                      .blended = r->data->n > 1,
                                      .length = b->lengths[i],
                                      .values = values,
                                      .width = width,
                                      .label = row_label(b, i),
                                      .source = r->data->datasets[b->refs[i].source],
                                      .batch = b,
                                      .seq = i};
        const message_head h = {.sample = x.sample,
                                .targets = at == 0 ? x.length : 0,
                                .at = b->first + i,
                                .from = (uint64_t)at * sizeof(*values)};

        if (r->task->finish != NULL)
            r->task->finish(r->body->self, values, width);
        D9D_TRY(append_values(r, &x, h, &r->messages[k]));
    }
    return D9D_OK;
}

/* --- gathering ------------------------------------------------------------------------ */

/* Counts the records of a batch; their columns may arrive in any order. */
static uint64_t count_records(const d9di_infer_rows *r, int64_t first)
{
    const int64_t left = r->samples - first;

    return d9d_bootstrap_rank(r->where->bootstrap) == 0 && has_records(r)
               ? (uint64_t)(left < r->batch ? left : r->batch)
               : 0;
}

static d9d_status start_records(d9di_infer_rows *r, int64_t first)
{
    const uint64_t bytes = count_records(r, first) * record_bytes(r);

    r->records.len = 0;
    D9D_TRY(d9d_buf_reserve(&r->records, bytes));
    if (bytes > 0)
        memset(r->records.data, 0, bytes);
    r->records.len = bytes;
    return D9D_OK;
}

static d9d_status write_records(d9di_infer_rows *r, int64_t first)
{
    const uint64_t n = count_records(r, first);

    return n > 0 ? d9di_resumable_lines_add(&r->lines, r->records.data, n * record_bytes(r),
                                            (int64_t)n)
                 : D9D_OK;
}

static d9d_status store_bytes(d9di_infer_rows *r, const message_head *h, const char *bytes,
                              int64_t first)
{
    if (d9d_bootstrap_rank(r->where->bootstrap) > 0 || h->bytes == 0)
        return D9D_OK;
    if (!has_records(r))
        return d9di_resumable_lines_add(&r->lines, bytes, h->bytes, 1);
    memcpy(r->records.data + (uint64_t)(h->at - first) * record_bytes(r) + h->from, bytes,
           h->bytes);
    return D9D_OK;
}

/* Counts what a rank has said of a row, in every metric or in those of a source. */
static d9d_status count_row(d9di_infer_rows *r, const char *at, size_t n)
{
    const char *end = at + n;
    counted_head h;

    while (at < end) {
        memcpy(&h, at, sizeof(h));
        at += sizeof(h);
        r->prediction.len = r->target.len = 0;
        for (int64_t i = 0; i < h.rows * h.columns + h.targets; i++, at += sizeof(double)) {
            double x;

            memcpy(&x, at, sizeof(x));
            D9D_TRY(i < h.rows * h.columns ? D9D_VEC_PUSH(&r->prediction, x)
                                           : D9D_VEC_PUSH(&r->target, x));
        }
        if (h.source != SIZE_MAX)
            D9D_TRY(d9di_run_metrics_count(r->metrics, h.source, h.rows, h.columns,
                                           r->prediction.data, r->target.data));
        for (size_t i = 0; h.source == SIZE_MAX && i < r->metrics->n; i++)
            D9D_TRY(d9d_metric_update(r->metrics->metric[i],
                                      &(d9d_predictions){.rows = h.rows,
                                                         .prediction = r->prediction.data,
                                                         .prediction_columns = h.columns}));
    }
    return D9D_OK;
}

/* Parses the messages of one rank. */
static d9d_status parse_message(d9di_infer_rows *r, const char *at, size_t n, int64_t first)
{
    const char *end = at + n;
    message_head h;

    for (; at < end; at += sizeof(h) + h.bytes + h.counted) {
        memcpy(&h, at, sizeof(h));
        if (!isfinite(h.sum))
            return d9d_bootstrap_agree_status(
                r->where->bootstrap,
                D9D_FAIL(D9D_ENUMERIC, "sample %lld: its %s is %s", (long long)h.sample,
                         d9di_infer_rows_are_values(r) ? "output" : "loss",
                         d9di_engine_nonfinite_name(h.sum)));
        r->lines.state_is_ahead = true;
        r->totals.sum += h.sum;
        r->totals.targets += h.targets;
        if (d9d_bootstrap_rank(r->where->bootstrap) == 0)
            D9D_TRY(count_row(r, at + sizeof(h) + h.bytes, h.counted));
        D9D_TRY(store_bytes(r, &h, at + sizeof(h), first));
    }
    return D9D_OK;
}

static d9d_status parse_messages(d9di_infer_rows *r, const d9d_buf *messages, int64_t first)
{
    d9d_arena a = {0};
    d9d_comm_blob *all;
    d9d_status st =
        d9d_comm_allgather_arena(r->engine->world, "rows", messages->data, messages->len, &a, &all);

    for (int k = 0, n = d9d_comm_size(r->engine->world); st == D9D_OK && k < n; k++)
        st = parse_message(r, all[k].data, all[k].n, first);
    d9d_arena_release(&a);
    return st;
}

d9d_status d9di_infer_rows_gather(d9di_infer_rows *r, int64_t k, int64_t first)
{
    D9D_TRY(start_records(r, first));
    D9D_TRY(parse_messages(r, &r->messages[k], first));
    return write_records(r, first);
}
