/* input_splits.c - see input_splits.h. */
#include "data/build/input_splits.h"

#include <stdlib.h>
#include <string.h>

#include "data/build/documents.h"
#include "data/dataset/megatron.h"

static d9d_status add_split(d9di_input_splits *p, d9di_input_split input_split)
{
    if (p->list.len == D9DI_MAX_INPUT_SPLITS)
        return D9D_FAIL(
            D9D_ECONFIG,
            "the inputs are more than %d input splits; a larger --unit-size makes fewer",
            D9DI_MAX_INPUT_SPLITS);
    input_split.start = p->bytes;
    p->bytes += input_split.bytes;
    return D9D_VEC_PUSH(&p->list, input_split);
}

static d9d_status split_file(d9di_input_splits *p, int64_t source, int64_t bytes,
                             int64_t unit_bytes)
{
    int64_t at;

    for (at = 0; at < bytes; at += unit_bytes) {
        const int64_t n = bytes - at < unit_bytes ? bytes - at : unit_bytes;

        D9D_TRY(add_split(p, (d9di_input_split){.source = source,
                                                .n_sources = 1,
                                                .from = at,
                                                .upto = at + n == bytes ? INT64_MAX : at + n,
                                                .bytes = n}));
    }
    return D9D_OK;
}

/* True if the input is divided.  Errors of the input are reported when it is opened. */
static bool is_split(const d9d_shard_opts *opts, size_t source, int64_t bytes, int64_t unit_bytes)
{
    return bytes > unit_bytes && d9di_documents_are_lines(opts, source) &&
           d9di_input_stream_is_plain(opts->inputs[source]);
}

static bool is_megatron(const d9d_shard_opts *opts, size_t source)
{
    return d9di_documents_format(opts, source) == D9D_SHARD_MEGATRON;
}

static d9d_status stat_input(const d9d_shard_opts *opts, size_t source, d9di_input_stat seen[2])
{
    const char *path = opts->inputs[source];

    if (is_megatron(opts, source))
        return d9di_megatron_stat(path, seen);
    return d9di_input_stream_stat(path, &seen[0]);
}

static d9d_status check_input(const d9d_shard_opts *opts, size_t source,
                              const d9di_input_stat seen[2])
{
    const char *path = opts->inputs[source];

    if (is_megatron(opts, source))
        return d9di_megatron_check(path, seen);
    return d9di_input_stream_check(path, &seen[0]);
}

d9d_status d9di_input_split_check(const d9d_shard_opts *opts, const d9di_input_splits *p,
                                  size_t input_split)
{
    const d9di_input_split *at = &p->list.data[input_split];

    for (int64_t i = at->source; i < at->source + at->n_sources; i++)
        D9D_TRY(check_input(opts, (size_t)i, p->stats[i]));
    return D9D_OK;
}

d9d_status d9di_input_splits_make(const d9d_shard_opts *opts, int64_t unit_bytes,
                                  d9di_input_splits *out)
{
    d9di_input_split open = {.upto = INT64_MAX}; /* whole sources grouped so far */
    size_t i;

    memset(out, 0, sizeof(*out));
    out->stats = calloc(opts->n_inputs, sizeof(*out->stats));
    if (!out->stats)
        return D9D_FAIL(D9D_ENOMEM, "no memory for %zu inputs", opts->n_inputs);
    for (i = 0; i < opts->n_inputs; i++) {
        int64_t bytes;
        bool file, cut;

        D9D_TRY(stat_input(opts, i, out->stats[i]));
        file = out->stats[i][0].is_file;
        bytes = file ? out->stats[i][0].bytes : 0;
        cut = is_split(opts, i, bytes, unit_bytes);
        if (open.n_sources > 0 && (cut || !file || open.bytes + bytes > unit_bytes)) {
            D9D_TRY(add_split(out, open));
            open.n_sources = 0;
        }
        if (cut) {
            D9D_TRY(split_file(out, (int64_t)i, bytes, unit_bytes));
            continue;
        }
        if (open.n_sources == 0)
            open = (d9di_input_split){.source = (int64_t)i, .upto = INT64_MAX};
        open.n_sources++;
        open.bytes += file ? bytes : unit_bytes; /* what is not a regular file stays alone */
    }
    return open.n_sources > 0 ? add_split(out, open) : D9D_OK;
}

void d9di_input_splits_release(d9di_input_splits *p)
{
    D9D_VEC_RELEASE(&p->list);
    free(p->stats);
    p->stats = NULL;
}

int64_t d9di_input_split_task(const d9di_input_splits *p, size_t input_split, int64_t tasks)
{
    const unsigned __int128 start = (uint64_t)p->list.data[input_split].start;
    int64_t task;

    if (p->bytes == 0)
        return 0;
    task = (int64_t)(start * (uint64_t)tasks / (uint64_t)p->bytes);
    return task < tasks ? task : tasks - 1; /* empty splits at the end */
}
