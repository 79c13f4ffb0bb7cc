/* lines.c - see loop/lines.h. */
#include "loop/lines.h"

#include <errno.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 1 << 14 };

/* Whole lines of a file, and where the last of them ends. */
static d9d_status lines_count(const char *path, int64_t *lines, uint64_t *end)
{
    d9d_file f = {.fd = -1};
    char piece[PIECE];
    uint64_t size, n;
    d9d_status st;

    *lines = 0;
    *end = 0;
    if (!d9d_fs_exists(path))
        return D9D_OK;
    D9D_TRY(d9d_fs_size(path, &size));
    D9D_TRY(d9d_file_open(path, &f));
    st = D9D_OK;
    for (uint64_t at = 0; at < size; at += n) {
        n = size - at < PIECE ? size - at : PIECE;
        D9D_TRY_OR(st, d9d_file_read_at(&f, piece, n, at), out);
        for (uint64_t i = 0; i < n; i++)
            if (piece[i] == '\n') {
                ++*lines;
                *end = at + i + 1;
            }
    }
out:
    d9d_file_release(&f);
    return st;
}

/* Whole records, likewise; a file that is shorter than its head has none. */
static d9d_status records_count(const char *path, uint64_t head, uint64_t bytes, int64_t *records,
                                uint64_t *end)
{
    uint64_t size = 0;

    if (d9d_fs_exists(path))
        D9D_TRY(d9d_fs_size(path, &size));
    *records = size > head ? (int64_t)((size - head) / bytes) : 0;
    *end = size < head ? 0 : head + (uint64_t)*records * bytes;
    return D9D_OK;
}

/* head NULL: lines. */
static d9d_status open_part(const char *path, d9d_hash key, const d9d_buf *head, uint64_t bytes,
                            d9di_lines *out)
{
    d9di_lines l = {.path = strdup(path)};
    char hex[D9D_HASH_HEX];
    d9d_buf part = {0};
    uint64_t end;
    d9d_status st;

    if (l.path == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: its name", path);
    d9d_hash_hex(key, hex);
    D9D_TRY_OR(st, d9d_buf_printf(&part, "%s.part-%.16s", path, hex), out);
    D9D_TRY_OR(st, d9d_file_edit(part.data, &l.lock), out);
    D9D_TRY_OR(st, d9d_file_lock(&l.lock), out);
    D9D_TRY_OR(st,
               head != NULL ? records_count(part.data, head->len, bytes, &l.done, &end)
                            : lines_count(part.data, &l.done, &end),
               out);
    D9D_TRY_OR(st, d9d_file_append(part.data, end, &l.file), out);
    if (head != NULL && end == 0)
        st = d9d_file_write(&l.file, head->data, head->len);
    *out = l;
    l = (d9di_lines){.path = NULL};
out:
    d9di_lines_release(&l);
    d9d_buf_release(&part);
    return st;
}

d9d_status d9di_lines_open(const char *path, d9d_hash key, d9di_lines *out)
{
    return open_part(path, key, NULL, 0, out);
}

d9d_status d9di_records_open(const char *path, d9d_hash key, const d9d_buf *head, uint64_t bytes,
                             d9di_lines *out)
{
    return open_part(path, key, head, bytes, out);
}

d9d_status d9di_lines_add(d9di_lines *l, const char *line, size_t n)
{
    D9D_TRY(d9d_file_write(&l->file, line, n));
    l->done++;
    return D9D_OK;
}

d9d_status d9di_lines_commit(d9di_lines *l)
{
    char *dir;
    d9d_status st;

    D9D_TRY(d9d_file_sync(&l->file));
    if (rename(l->file.path, l->path) != 0)
        return D9D_FAIL(D9D_EIO, "%s: cannot be renamed to %s: %s", l->file.path, l->path,
                        strerror(errno));
    dir = strdup(l->path);
    if (dir == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: its directory's name", l->path);
    st = d9d_fs_sync_dir(dirname(dir));
    free(dir);
    return st;
}

void d9di_lines_release(d9di_lines *l)
{
    d9d_file_release(&l->file);
    d9d_file_release(&l->lock);
    free(l->path);
    l->path = NULL;
}
