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
    uint64_t bytes; /* that follow */
    int64_t sample; /* if the sum is not finite */
    int64_t at;     /* of a record: its number in the stream */
    uint64_t from;  /* and the offset of the bytes in it */
} message_head;

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

d9d_status d9di_infer_rows_open(d9di_infer_rows *r, d9d_hash key, int64_t *first)
{
    const char *path = output_section(r)->output;

    if (path == NULL)
        return D9D_FAIL(D9D_ECONFIG, "task.output: %s writes a line a sample; name its file",
                        task_name(r));
    if (has_records(r))
        D9D_TRY(make_npy_header(r));
    D9D_TRY(d9di_resumable_lines_open(path, key, has_records(r) ? &r->line : NULL, r->where->log,
                                      &r->lines));
    *first = r->lines.done;
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

/* Appends a head and the content of r->line. */
static d9d_status append_message(const d9di_infer_rows *r, message_head h, d9d_buf *messages)
{
    h.bytes = r->line.len;
    D9D_TRY(d9d_buf_append(messages, &h, sizeof(h)));
    return d9d_buf_append(messages, r->line.data, r->line.len);
}

/* Counts a row's predictions in every metric; target NULL: they have none. */
static d9d_status count_row(d9di_infer_rows *r, const d9d_predictions *b)
{
    for (size_t i = 0; r->metrics != NULL && i < r->metrics->n && b->rows > 0; i++)
        D9D_TRY(d9d_metric_update(r->metrics->metric[i], b));
    return D9D_OK;
}

/* Of a row's losses those of its targets. */
static d9d_status count_losses(d9di_infer_rows *r, const d9d_infer_task_row *x)
{
    r->prediction.len = 0;
    for (int64_t j = 0; r->metrics != NULL && j < x->length; j++)
        if (x->labels[j] != D9D_IGNORE_INDEX)
            D9D_TRY(D9D_VEC_PUSH(&r->prediction, (double)x->loss[j]));
    return count_row(r, &(d9d_predictions){.rows = (int64_t)r->prediction.len,
                                           .prediction = r->prediction.data,
                                           .prediction_columns = 1});
}

/* What a head's outputs of a text are compared with, in r->prediction; empty: nothing. */
static d9d_status find_targets(d9di_infer_rows *r, const d9d_infer_task_row *x,
                               const d9d_task_head_record *h)
{
    const d9d_batch_field *f = h->label != NULL ? d9d_batch_find_field(x->batch, h->label) : NULL;
    const int32_t *classes = f != NULL ? f->data : NULL;
    const float *values = f != NULL ? f->data : NULL;

    r->prediction.len = 0;
    if (h->targets == D9D_TASK_TARGETS_CLASSES) {
        const int32_t class = classes != NULL ? classes[x->seq] : x->label;

        return class >= 0 ? D9D_VEC_PUSH(&r->prediction, (double)class) : D9D_OK;
    }
    values += x->seq * h->columns;
    for (int64_t i = 0; i < h->columns && d9d_field_row_is_present(values, h->columns); i++)
        D9D_TRY(D9D_VEC_PUSH(&r->prediction, (double)values[i]));
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

        r->prediction.len = 0;
        if (h[i].metrics->n > 0 && x->length > 0)
            D9D_TRY(find_targets(r, x, &h[i]));
        if (r->prediction.len > 0)
            D9D_TRY(d9di_run_metrics_count(r->metrics, 1 + i, 1, columns, at, r->prediction.data));
        at += columns;
    }
    return D9D_OK;
}

/* The values of a row that has a class, and those of each head that have their targets. */
static d9d_status count_values(d9di_infer_rows *r, const d9d_infer_task_row *x)
{
    const double target = x->label;

    if (r->metrics == NULL)
        return D9D_OK;
    if (x->label != D9D_IGNORE_INDEX)
        D9D_TRY(d9di_run_metrics_count(r->metrics, 0, 1, x->width, x->values, &target));
    return count_heads(r, x);
}

static d9d_status append_losses(d9di_infer_rows *r, d9d_infer_task_row *x, d9d_buf *messages)
{
    for (int64_t j = 0; j < x->length; j++)
        if (x->labels[j] != D9D_IGNORE_INDEX) {
            x->sum += (double)x->loss[j];
            x->targets++;
        }
    if (isfinite(x->sum))
        D9D_TRY(count_losses(r, x));
    r->line.len = 0;
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
    if (isfinite(h.sum))
        D9D_TRY(count_values(r, x));
    r->line.len = 0;
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
    for (uint64_t i = 0, n = count_records(r, first); i < n; i++)
        D9D_TRY(d9di_resumable_lines_add(&r->lines, r->records.data + i * record_bytes(r),
                                         record_bytes(r)));
    return D9D_OK;
}

static d9d_status store_bytes(d9di_infer_rows *r, const message_head *h, const char *bytes,
                              int64_t first)
{
    if (d9d_bootstrap_rank(r->where->bootstrap) > 0 || h->bytes == 0)
        return D9D_OK;
    if (!has_records(r))
        return d9di_resumable_lines_add(&r->lines, bytes, h->bytes);
    memcpy(r->records.data + (uint64_t)(h->at - first) * record_bytes(r) + h->from, bytes,
           h->bytes);
    return D9D_OK;
}

/* Parses the messages of one rank. */
static d9d_status parse_message(d9di_infer_rows *r, const char *at, size_t n, int64_t first)
{
    const char *end = at + n;
    message_head h;

    for (; at < end; at += sizeof(h) + h.bytes) {
        memcpy(&h, at, sizeof(h));
        if (!isfinite(h.sum))
            return d9d_bootstrap_agree_status(
                r->where->bootstrap,
                D9D_FAIL(D9D_ENUMERIC, "sample %lld: its %s is %s", (long long)h.sample,
                         d9di_infer_rows_are_values(r) ? "output" : "loss",
                         d9di_engine_nonfinite_name(h.sum)));
        r->sum += h.sum;
        r->targets += h.targets;
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
