/* line_reader.c - see report/line_reader.h. */
#include "report/line_reader.h"

#include <stdlib.h>
#include <string.h>

#include "d9d/base/fs.h"

#define MAX_LINE (UINT64_C(1) << 30)

typedef struct walk {
    const char *path;
    d9di_line_fn fn;
    void *arg;
    int64_t lines;
    bool enough;
    d9d_buf line;
} walk;

static d9d_status piece_take(walk *w, const char *piece, size_t n)
{
    const char *end;

    while ((end = memchr(piece, '\n', n)) != NULL) {
        D9D_TRY(d9d_buf_append(&w->line, piece, (size_t)(end - piece)));
        D9D_TRY(w->fn(w->arg, &w->line, ++w->lines, &w->enough));
        if (w->enough)
            return D9D_OK;
        w->line.len = 0;
        n -= (size_t)(end + 1 - piece);
        piece = end + 1;
    }
    D9D_TRY(d9d_buf_append(&w->line, piece, n));
    return w->line.len <= MAX_LINE
               ? D9D_OK
               : D9D_FAIL(D9D_EFORMAT, "%s: line %lld is longer than %llu bytes", w->path,
                          (long long)w->lines + 1, (unsigned long long)MAX_LINE);
}

d9d_status d9di_each_line(const char *path, d9di_line_fn fn, void *arg)
{
    walk w = {.path = path, .fn = fn, .arg = arg};
    char piece[1 << 14];
    d9d_file f = {.fd = -1};
    uint64_t size, at, n;
    d9d_status st = D9D_OK;

    D9D_TRY(d9d_file_open(path, &f));
    D9D_TRY_OR(st, d9d_fs_size(path, &size), out);
    for (at = 0; at < size && !w.enough; at += n) {
        n = size - at < sizeof(piece) ? size - at : sizeof(piece);
        D9D_TRY_OR(st, d9d_file_read_at(&f, piece, n, at), out);
        D9D_TRY_OR(st, piece_take(&w, piece, n), out);
    }
out:
    d9d_file_release(&f);
    d9d_buf_release(&w.line);
    return st;
}

int64_t d9di_line_number(const d9d_buf *line, const char *begin)
{
    const size_t n = strlen(begin);

    return line->len > n && memcmp(line->data, begin, n) == 0 ? strtoll(line->data + n, NULL, 10)
                                                              : -1;
}
