/* step_lines.c - see train/step_lines.h. */
#include "train/step_lines.h"

#include <stdlib.h>
#include <string.h>

#include "d9d/base/fs.h"

static const char prefix[] = D9DI_STEP_LINES_PREFIX;

enum { LINE_HEAD_MAX = 40 };

/* A chunk of the file, which is scanned backwards. */
typedef struct file_tail {
    d9d_file file;
    uint64_t from, n;
    char chunk_buf[1 << 16];
} file_tail;

/* Finds the start of the line whose newline is at end - 1. */
static d9d_status find_line_start(file_tail *t, uint64_t end, uint64_t *out)
{
    for (uint64_t at = end - 1; at > 0; at--) {
        if (at <= t->from || at > t->from + t->n) {
            t->n = at < sizeof(t->chunk_buf) ? at : sizeof(t->chunk_buf);
            t->from = at - t->n;
            D9D_TRY(d9d_file_read_at(&t->file, t->chunk_buf, t->n, t->from));
        }
        if (t->chunk_buf[at - 1 - t->from] == '\n') {
            *out = at;
            return D9D_OK;
        }
    }
    *out = 0;
    return D9D_OK;
}

/* The step of the line [from, end); -1 if it is not a line of this format. */
static d9d_status parse_step(const file_tail *t, uint64_t from, uint64_t end, int64_t *out)
{
    char head[LINE_HEAD_MAX + 1] = "";

    D9D_TRY(d9d_file_read_at(&t->file, head,
                             end - from < LINE_HEAD_MAX ? end - from : LINE_HEAD_MAX, from));
    *out = strncmp(head, prefix, sizeof(prefix) - 1) == 0
               ? strtoll(head + sizeof(prefix) - 1, NULL, 10)
               : -1;
    return D9D_OK;
}

/* Appends the part of a line that is looked for, if it has one. */
static d9d_status parse_part(const file_tail *t, uint64_t from, uint64_t end,
                             const d9di_step_lines_tail *part)
{
    d9d_buf line = {0};
    char *at, *last;
    d9d_status st;

    D9D_TRY_OR(st, d9d_buf_reserve(&line, (size_t)(end - from) + 1), out);
    D9D_TRY_OR(st, d9d_file_read_at(&t->file, line.data, end - from, from), out);
    line.data[end - from] = '\0';
    at = strstr(line.data, part->begin);
    last = at != NULL ? strstr(at, part->end) : NULL;
    if (last != NULL)
        st = d9d_buf_append(part->out, at, (size_t)(last + strlen(part->end) - at));
out:
    d9d_buf_release(&line);
    return st;
}

/* *end: size of the lines up to and including step `done`. */
static d9d_status find_end_in_tail(file_tail *t, uint64_t size, int64_t done, uint64_t *end,
                                   const d9di_step_lines_tail *part)
{
    uint64_t at, from;
    int64_t step = -1;

    *end = 0;
    if (done == 0 || size == 0)
        return D9D_OK;
    D9D_TRY(find_line_start(t, size + 1, &at)); /* after the last newline */
    for (; at > 0; at = from) {
        D9D_TRY(find_line_start(t, at, &from));
        D9D_TRY(parse_step(t, from, at, &step));
        if (step < 0 || step > done)
            continue;
        *end = *end == 0 ? at : *end;
        if (part != NULL && at - from <= sizeof(t->chunk_buf))
            D9D_TRY(parse_part(t, from, at, part));
        if (part == NULL || part->out->len > 0 || done - step > part->steps)
            return D9D_OK;
    }
    return D9D_OK;
}

static d9d_status find_end(const char *path, int64_t done, uint64_t *end,
                           const d9di_step_lines_tail *part)
{
    file_tail *t = calloc(1, sizeof(*t));
    uint64_t size;
    d9d_status st;

    *end = 0;
    if (t == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory to read it", path);
    t->file.fd = -1;
    st = d9d_fs_exists(path) ? d9d_file_open(path, &t->file) : D9D_OK;
    if (st == D9D_OK && t->file.fd >= 0)
        st = d9d_fs_size(path, &size);
    if (st == D9D_OK && t->file.fd >= 0)
        st = find_end_in_tail(t, size, done, end, part);
    d9d_file_release(&t->file);
    free(t);
    return st;
}

d9d_status d9di_step_lines_open(const char *path, int64_t done, const d9d_log *log,
                                const d9di_step_lines_tail *part, d9d_writer **out)
{
    d9d_file f = {.fd = -1};
    uint64_t end;
    d9d_status st;

    D9D_TRY(find_end(path, done, &end, part));
    D9D_TRY(d9d_file_open_append(path, end, &f));
    st = d9d_writer_open(&f, &(d9d_writer_opts){.log = log}, out);
    d9d_file_release(&f);
    return st;
}
