/* chunk_journal.c - see chunk_journal.h. */
#include "ckpt/dir/chunk_journal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PREFIX ".d9d-chunks."
#define MAGIC  D9DI_CHUNK_JOURNAL_MAGIC

enum { LINE_SIZE = 64 }; /* more than any line has */

const char *d9di_chunk_journal_path(d9d_arena *a, const char *dir, int rank)
{
    char name[sizeof(PREFIX) + 16];

    (void)snprintf(name, sizeof(name), PREFIX "%d", rank);
    return d9d_fs_join(a, dir, name);
}

bool d9di_chunk_journal_is(const char *name)
{
    return strncmp(name, PREFIX, sizeof(PREFIX) - 1) == 0;
}

static int format_key(char line[LINE_SIZE], d9d_hash key)
{
    char hex[D9D_HASH_HEX];

    d9d_hash_hex(key, hex);
    return snprintf(line, LINE_SIZE, MAGIC " %s\n", hex);
}

/* "17 <hash>" */
static bool read_line(const char *line, size_t n, size_t *chunk, d9d_hash *hash)
{
    char *end;
    unsigned long long k;

    if (*line < '0' || *line > '9')
        return false;
    k = strtoull(line, &end, 10);
    *chunk = (size_t)k;
    return *end == ' ' && k < n && d9d_hash_parse(end + 1, hash) == D9D_OK;
}

d9d_status d9di_chunk_journal_read(const char *path, d9d_hash key, size_t n, bool *key_matches,
                                   d9di_chunk_journal_fn found, void *arg)
{
    const uint64_t max_bytes = ((uint64_t)n + 64) * LINE_SIZE * 4; /* each chunk a few times */
    char head[LINE_SIZE];
    d9d_buf text = {0};
    d9d_status st;

    *key_matches = false;
    st = d9d_fs_read(path, max_bytes, &text);
    if (st == D9D_EFORMAT) /* larger than any journal of ours */
        return D9D_OK;
    D9D_TRY(st);
    (void)format_key(head, key);
    *key_matches = text.len >= strlen(head) && memcmp(text.data, head, strlen(head)) == 0;
    for (char *line = text.data, *stop = line + text.len, *end;
         *key_matches && (end = memchr(line, '\n', (size_t)(stop - line))) != NULL;
         line = end + 1) {
        size_t chunk;
        d9d_hash hash;

        *end = '\0';
        if (read_line(line, n, &chunk, &hash))
            found(arg, chunk, hash);
    }
    d9d_buf_release(&text);
    return D9D_OK;
}

/* Appends with one write(), which is atomic under O_APPEND; thread-safe. */
static d9d_status append_line(const d9d_file *f, const char *p, int n)
{
    size_t left = (size_t)n;

    while (left > 0) {
        const ssize_t put = write(f->fd, p, left);

        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return D9D_FAIL(D9D_EIO, "%s: cannot write %zu bytes: %s", f->path, left,
                            strerror(put == 0 ? ENOSPC : errno));
        p += put;
        left -= (size_t)put;
    }
    return D9D_OK;
}

d9d_status d9di_chunk_journal_open(const char *path, d9d_hash key, d9d_file *out)
{
    char line[LINE_SIZE];
    uint64_t size;
    d9d_file f;
    d9d_status st;

    D9D_TRY(d9d_file_open_rw(path, &f));
    D9D_TRY_OR(st, d9d_fs_size(path, &size), out);
    if (fcntl(f.fd, F_SETFL, O_APPEND) != 0) {
        st = D9D_FAIL(D9D_EIO, "%s: cannot append to it: %s", path, strerror(errno));
        goto out;
    }
    /* The existing file may end within a line. */
    D9D_TRY_OR(st,
               size > 0 ? append_line(&f, "\n", 1) : append_line(&f, line, format_key(line, key)),
               out);
    *out = f;
    f = (d9d_file){.fd = -1};
out:
    d9d_file_release(&f);
    return st;
}

d9d_status d9di_chunk_journal_put(const d9d_file *f, size_t chunk, d9d_hash hash)
{
    char hex[D9D_HASH_HEX], line[LINE_SIZE];

    d9d_hash_hex(hash, hex);
    return append_line(f, line, snprintf(line, sizeof(line), "%zu %s\n", chunk, hex));
}
