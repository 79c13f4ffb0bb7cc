/* ledger.c - see loop/ledger.h. */
#include "loop/ledger.h"

#include <stdlib.h>
#include <string.h>

static const char begin[] = "{\"step\": ";

/* Bytes of the lines up to and with step `done`; a line that is cut or not of ours ends them. */
static d9d_status end_of(const char *path, int64_t done, uint64_t *end)
{
    enum { PIECE = 1 << 14, HEAD = 40 };
    char piece[PIECE], head[HEAD + 1];
    size_t have = 0; /* of the head of the line that is being read */
    uint64_t size, at, n;
    d9d_file f = {.fd = -1};
    d9d_status st = D9D_OK;

    *end = 0;
    if (!d9d_fs_exists(path))
        return D9D_OK;
    D9D_TRY(d9d_fs_size(path, &size));
    D9D_TRY(d9d_file_open(path, &f));
    for (at = 0; at < size; at += n) {
        n = size - at < PIECE ? size - at : PIECE;
        D9D_TRY_OR(st, d9d_file_read_at(&f, piece, n, at), out);
        for (uint64_t i = 0; i < n; i++) {
            if (have < HEAD)
                head[have++] = piece[i];
            if (piece[i] != '\n')
                continue;
            head[have] = '\0';
            if (strncmp(head, begin, sizeof(begin) - 1) != 0 ||
                strtoll(head + sizeof(begin) - 1, NULL, 10) > done)
                goto out;
            *end = at + i + 1;
            have = 0;
        }
    }
out:
    d9d_file_release(&f);
    return st;
}

d9d_status d9di_ledger_open(const char *path, int64_t done, const d9d_log *log, d9di_ledger *out)
{
    d9d_file f = {.fd = -1};
    uint64_t end;
    d9d_status st;

    D9D_TRY(end_of(path, done, &end));
    D9D_TRY(d9d_file_append(path, end, &f));
    st = d9d_writer_open(&f, &(d9d_writer_how){.log = log}, &out->writer);
    d9d_file_release(&f);
    out->path = path;
    return st;
}

/* One list of a line; `what` of a draw, of those that are skipped or of all. */
enum what { SAMPLE, DATASET };

static d9d_status put_list(d9d_buf *b, const char *name, const d9d_draw *draws, int64_t n,
                           enum what what, bool skipped_only)
{
    const char *comma = "";

    D9D_TRY(d9d_buf_printf(b, ", \"%s\": [", name));
    for (int64_t i = 0; i < n; i++) {
        if (skipped_only && !draws[i].skipped)
            continue;
        D9D_TRY(d9d_buf_printf(b, "%s%lld", comma,
                               what == SAMPLE ? (long long)draws[i].sample
                                              : (long long)draws[i].source));
        comma = ", ";
    }
    return d9d_buf_append(b, "]", 1);
}

static d9d_status put_line(d9d_buf *b, int64_t step, int64_t first, const d9d_draw *draws,
                           int64_t n)
{
    bool skipped = false, blend = false;

    for (int64_t i = 0; i < n; i++) {
        skipped |= draws[i].skipped;
        blend |= draws[i].source != 0;
    }
    b->len = 0;
    D9D_TRY(d9d_buf_printf(b, "%s%lld, \"first\": %lld", begin, (long long)step, (long long)first));
    D9D_TRY(put_list(b, "samples", draws, n, SAMPLE, false));
    if (blend)
        D9D_TRY(put_list(b, "datasets", draws, n, DATASET, false));
    if (skipped)
        D9D_TRY(put_list(b, "skipped", draws, n, SAMPLE, true));
    return d9d_buf_append(b, "}\n", 2);
}

d9d_status d9di_ledger_add(d9di_ledger *g, int64_t step, d9d_loader *l, int64_t first, int64_t n)
{
    d9d_draw *draws = calloc((size_t)n, sizeof(*draws));
    d9d_status st;

    if (draws == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %lld samples of a step", g->path, (long long)n);
    for (int64_t i = 0; i < n; i++)
        D9D_TRY_OR(st, d9d_loader_draw(l, first + i, &draws[i]), out);
    D9D_TRY_OR(st, put_line(&g->line, step, first, draws, n), out);
    st = d9d_writer_put(g->writer, g->line.data, g->line.len);
out:
    free(draws);
    return st;
}

d9d_status d9di_ledger_flush(d9di_ledger *g)
{
    return d9d_writer_flush(g->writer);
}

d9d_status d9di_ledger_sync(d9di_ledger *g)
{
    return d9d_writer_sync(g->writer);
}

void d9di_ledger_release(d9di_ledger *g)
{
    d9d_writer_close(g->writer);
    g->writer = NULL;
    d9d_buf_release(&g->line);
}
