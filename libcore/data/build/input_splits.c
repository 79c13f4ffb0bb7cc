/* input_splits.c - see input_splits.h. */
#include "data/build/input_splits.h"

#include <stdlib.h>
#include <string.h>

#include "data/build/documents.h"
#include "data/dataset/megatron.h"

static d9d_status push(d9di_pieces *p, d9di_piece piece)
{
    if (p->list.len == D9DI_MAX_PIECES)
        return D9D_FAIL(D9D_ECONFIG,
                        "the inputs are more than %d pieces of the --part-size; a larger one makes "
                        "fewer",
                        D9DI_MAX_PIECES);
    piece.start = p->bytes;
    p->bytes += piece.bytes;
    return D9D_VEC_PUSH(&p->list, piece);
}

static d9d_status cut_file(d9di_pieces *p, int64_t source, int64_t bytes, int64_t part)
{
    int64_t at;

    for (at = 0; at < bytes; at += part) {
        const int64_t n = bytes - at < part ? bytes - at : part;

        D9D_TRY(push(p, (d9di_piece){.source = source,
                                     .n_sources = 1,
                                     .from = at,
                                     .upto = at + n == bytes ? INT64_MAX : at + n,
                                     .bytes = n}));
    }
    return D9D_OK;
}

/* Whether the input is cut: whatever is wrong with it is said when it is opened. */
static bool is_cut(const d9d_shard_how *how, size_t source, int64_t bytes, int64_t part)
{
    return bytes > part && d9di_format_has_lines(how, source) &&
           d9di_source_is_plain(how->inputs[source]);
}

static bool is_megatron(const d9d_shard_how *how, size_t source)
{
    return d9di_format_of(how, source) == D9D_SHARD_MEGATRON;
}

static d9d_status look(const d9d_shard_how *how, size_t source, d9di_seen seen[2])
{
    const char *path = how->inputs[source];

    if (is_megatron(how, source))
        return d9di_megatron_look(path, seen);
    return d9di_source_look(path, &seen[0]);
}

static d9d_status check(const d9d_shard_how *how, size_t source, const d9di_seen seen[2])
{
    const char *path = how->inputs[source];

    if (is_megatron(how, source))
        return d9di_megatron_check(path, seen);
    return d9di_source_check(path, &seen[0]);
}

d9d_status d9di_piece_check(const d9d_shard_how *how, const d9di_pieces *p, size_t piece)
{
    const d9di_piece *at = &p->list.data[piece];

    for (int64_t i = at->source; i < at->source + at->n_sources; i++)
        D9D_TRY(check(how, (size_t)i, p->seen[i]));
    return D9D_OK;
}

d9d_status d9di_pieces_cut(const d9d_shard_how *how, int64_t part, d9di_pieces *out)
{
    d9di_piece open = {.upto = INT64_MAX}; /* whole sources that are together so far */
    size_t i;

    memset(out, 0, sizeof(*out));
    out->seen = calloc(how->n_inputs, sizeof(*out->seen));
    if (!out->seen)
        return D9D_FAIL(D9D_ENOMEM, "no memory for %zu inputs", how->n_inputs);
    for (i = 0; i < how->n_inputs; i++) {
        int64_t bytes;
        bool file, cut;

        D9D_TRY(look(how, i, out->seen[i]));
        file = out->seen[i][0].file;
        bytes = file ? out->seen[i][0].bytes : 0;
        cut = is_cut(how, i, bytes, part);
        if (open.n_sources > 0 && (cut || !file || open.bytes + bytes > part)) {
            D9D_TRY(push(out, open));
            open.n_sources = 0;
        }
        if (cut) {
            D9D_TRY(cut_file(out, (int64_t)i, bytes, part));
            continue;
        }
        if (open.n_sources == 0)
            open = (d9di_piece){.source = (int64_t)i, .upto = INT64_MAX};
        open.n_sources++;
        open.bytes += file ? bytes : part; /* what is no file stays alone */
    }
    return open.n_sources > 0 ? push(out, open) : D9D_OK;
}

void d9di_pieces_release(d9di_pieces *p)
{
    D9D_VEC_RELEASE(&p->list);
    free(p->seen);
    p->seen = NULL;
}

int64_t d9di_piece_task(const d9di_pieces *p, size_t piece, int64_t tasks)
{
    const d9di_piece *at = &p->list.data[piece];

    return p->bytes == 0
               ? 0
               : (int64_t)((__extension__(unsigned __int128) at->start * (uint64_t)tasks) /
                           (uint64_t)p->bytes);
}
