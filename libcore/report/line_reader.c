/* line_reader.c - see report/line_reader.h. */
#include "report/line_reader.h"

#include <stdlib.h>
#include <string.h>

#include "d9d/base/fs.h"

#define MAX_LINE (UINT64_C(1) << 30)

typedef struct line_walk {
    const char *path;
    d9di_line_reader_fn fn;
    void *arg;
    int64_t lines;
    bool enough;
    d9d_buf line;
} line_walk;

static d9d_status feed_bytes(line_walk *w, const char *data, size_t n)
{
    const char *end;

    while ((end = memchr(data, '\n', n)) != NULL) {
        D9D_TRY(d9d_buf_append(&w->line, data, (size_t)(end - data)));
        D9D_TRY(w->fn(w->arg, &w->line, ++w->lines, &w->enough));
        if (w->enough)
            return D9D_OK;
        w->line.len = 0;
        n -= (size_t)(end + 1 - data);
        data = end + 1;
    }
    D9D_TRY(d9d_buf_append(&w->line, data, n));
    return w->line.len <= MAX_LINE
               ? D9D_OK
               : D9D_FAIL(D9D_EFORMAT, "%s: line %lld is longer than %llu bytes", w->path,
                          (long long)w->lines + 1, (unsigned long long)MAX_LINE);
}

d9d_status d9di_line_reader_read(const char *path, d9di_line_reader_fn fn, void *arg)
{
    line_walk w = {.path = path, .fn = fn, .arg = arg};
    char data[1 << 14];
    d9d_file f = {.fd = -1};
    uint64_t size, at, n;
    d9d_status st = D9D_OK;

    D9D_TRY(d9d_file_open(path, &f));
    D9D_TRY_OR(st, d9d_fs_size(path, &size), out);
    for (at = 0; at < size && !w.enough; at += n) {
        n = size - at < sizeof(data) ? size - at : sizeof(data);
        D9D_TRY_OR(st, d9d_file_read_at(&f, data, n, at), out);
        D9D_TRY_OR(st, feed_bytes(&w, data, n), out);
    }
out:
    d9d_file_release(&f);
    d9d_buf_release(&w.line);
    return st;
}

int64_t d9di_line_reader_number_after(const d9d_buf *line, const char *begin)
{
    const size_t n = strlen(begin);

    return line->len > n && memcmp(line->data, begin, n) == 0 ? strtoll(line->data + n, NULL, 10)
                                                              : -1;
}
