/* line_stream.c - see data/io/line_stream.h. */
#include "data/io/line_stream.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "d9d/base/fs.h"
#include "data/io/framing.h"

enum { READ_BYTES = 1 << 18, MAX_LINE = 1 << 30 };
static const char file_end[] = ".end", folder_end[] = "END", extension[] = ".jsonl";

struct d9di_line_stream {
    d9d_arena arena; /* path, and names as they are found */
    const char *path;
    bool folder, follow;
    const char *name; /* of the open file, or NULL; of a folder, the last one that was begun */
    const char *open_path;
    int fd;         /* -1: none is open */
    int64_t size;   /* of a folder's file when it was opened: it is complete */
    d9d_buf unread; /* bytes of the file from `offset` on */
    size_t used;    /* of them, those of lines that were given */
    size_t scanned; /* of them, those without a line's end */
    int64_t offset;
};

/* --- files --------------------------------------------------------------------------------- */

static d9d_status check_file(const char *path)
{
    struct stat st;

    if (stat(path, &st) != 0)
        return D9D_FAIL(errno == ENOENT ? D9D_ENOTFOUND : D9D_EIO, "%s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return D9D_FAIL(
            D9D_ECONFIG,
            "%s: is no file; a pipe can be read once and by one rank, so let its writer "
            "append to a file, or put files into a folder",
            path);
    if (d9di_framing_name_ends(path, extension) &&
        strcmp(path + strlen(path) - strlen(extension), extension) != 0)
        return D9D_FAIL(D9D_ECONFIG, "%s: is compressed, and a stream is read from plain files",
                        path);
    return D9D_OK;
}

static void file_close(d9di_line_stream *s)
{
    if (s->fd >= 0)
        (void)close(s->fd);
    s->fd = -1;
    s->unread.len = s->used = s->scanned = 0;
    s->offset = 0;
}

static d9d_status file_open(d9di_line_stream *s, const char *name)
{
    struct stat st;

    s->open_path = s->folder ? d9d_fs_join(&s->arena, s->path, name) : s->path;
    s->name = d9d_arena_strdup(&s->arena, name);
    if (s->open_path == NULL || s->name == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: the name of a file", s->path);
    D9D_TRY(check_file(s->open_path));
    s->fd = open(s->open_path, O_RDONLY | O_CLOEXEC);
    if (s->fd < 0 || fstat(s->fd, &st) != 0)
        return D9D_FAIL(D9D_EIO, "%s: %s", s->open_path, strerror(errno));
    s->size = st.st_size;
    return D9D_OK;
}

/* The first of a folder's files behind the last one; NULL: there is none. */
static d9d_status find_next(d9di_line_stream *s, d9d_arena *a, const char **out)
{
    d9d_fs_names names;

    *out = NULL;
    D9D_TRY(d9d_fs_list(s->path, a, &names));
    for (size_t i = 0; i < names.n && *out == NULL; i++) {
        const char *name = names.name[i];

        if (d9di_framing_name_ends(name, extension) && name[0] != '.' &&
            (s->name == NULL || strcmp(name, s->name) > 0))
            *out = name;
    }
    return D9D_OK;
}

/* True if nothing will be added any more. */
static bool has_ended(d9di_line_stream *s)
{
    d9d_arena a = {0};
    const char *mark = s->folder ? d9d_fs_join(&a, s->path, folder_end)
                                 : d9d_arena_printf(&a, "%s%s", s->path, file_end);
    const bool ended = mark != NULL && d9d_fs_exists(mark);

    d9d_arena_release(&a);
    return ended;
}

/* Opens the next file, if there is one. */
static d9d_status advance(d9di_line_stream *s, bool *found)
{
    d9d_arena a = {0};
    const char *next = NULL;
    d9d_status st = D9D_OK;

    if (s->folder)
        st = find_next(s, &a, &next);
    else if (s->name == NULL)
        next = s->path;
    *found = next != NULL;
    if (st == D9D_OK && next != NULL) {
        file_close(s);
        st = file_open(s, next);
    }
    d9d_arena_release(&a);
    return st;
}

/* --- bytes --------------------------------------------------------------------------------- */

/* Reads what follows the unread bytes; *got 0: nothing is there. */
static d9d_status read_more(d9di_line_stream *s, size_t *got)
{
    size_t most = READ_BYTES;
    ssize_t n;

    if (s->used > 0) {
        memmove(s->unread.data, s->unread.data + s->used, s->unread.len - s->used);
        s->unread.len -= s->used;
        s->offset += (int64_t)s->used;
        s->used = 0;
    }
    if (s->unread.len > MAX_LINE)
        return D9D_FAIL(D9D_EFORMAT, "%s: byte %lld: a line of more than %d bytes", s->open_path,
                        (long long)s->offset, MAX_LINE);
    if (s->folder && s->size - s->offset - (int64_t)s->unread.len < READ_BYTES)
        most = (size_t)(s->size - s->offset - (int64_t)s->unread.len);
    D9D_TRY(d9d_buf_reserve(&s->unread, READ_BYTES));
    do
        n = pread(s->fd, s->unread.data + s->unread.len, most,
                  (off_t)(s->offset + (int64_t)s->unread.len));
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return D9D_FAIL(D9D_EIO, "%s: %s", s->open_path, strerror(errno));
    s->unread.len += (size_t)n;
    *got = (size_t)n;
    return D9D_OK;
}

/* A file that grows must be the one of its name, or nothing that comes would be seen. */
static d9d_status check_name(const d9di_line_stream *s, const struct stat *open_file)
{
    struct stat named;

    if (s->folder || !s->follow || stat(s->open_path, &named) != 0 ||
        (named.st_dev == open_file->st_dev && named.st_ino == open_file->st_ino))
        return D9D_OK;
    return D9D_FAIL(D9D_EIO, "%s: another file has its name; a stream may only grow", s->open_path);
}

/* All bytes are read: a folder's file must be what it was, no file may have shrunk. */
static d9d_status check_unchanged(const d9di_line_stream *s)
{
    const int64_t at = s->offset + (int64_t)s->unread.len;
    struct stat st;

    if (fstat(s->fd, &st) != 0)
        return D9D_FAIL(D9D_EIO, "%s: %s", s->open_path, strerror(errno));
    if (st.st_size < at || (s->folder && (st.st_size != s->size || at != s->size)))
        return D9D_FAIL(D9D_EIO, "%s: has %lld bytes, and had %lld; %s", s->open_path,
                        (long long)st.st_size, (long long)(s->folder ? s->size : at),
                        s->folder ? "files of a stream get their names when they are complete"
                                  : "a stream may only grow");
    return check_name(s, &st);
}

/* The line that ends at `end` of the unread bytes; `next` are those behind it. */
static void give_line(d9di_line_stream *s, size_t end, size_t next, d9di_line *out)
{
    *out = (d9di_line){.state = D9DI_LINE_FOUND,
                       .text = s->unread.data + s->used,
                       .n = end - s->used,
                       .file = s->name,
                       .offset = s->offset + (int64_t)s->used};
    if (out->n > 0 && out->text[out->n - 1] == '\r')
        out->n--;
    s->used = s->scanned = next;
}

/* A line of the open file; found false: there is no whole one. */
static d9d_status find_line(d9di_line_stream *s, d9di_line *out, bool *found)
{
    size_t got = 1;

    for (*found = false; !*found && got > 0;) {
        const size_t from = s->scanned;
        const char *end =
            s->unread.len > from ? memchr(s->unread.data + from, '\n', s->unread.len - from) : NULL;

        *found = end != NULL;
        if (*found) {
            give_line(s, (size_t)(end - s->unread.data), (size_t)(end - s->unread.data) + 1, out);
        } else {
            const size_t tail = s->unread.len - s->used;

            D9D_TRY(read_more(s, &got));
            s->scanned = tail;
        }
    }
    return *found ? D9D_OK : check_unchanged(s);
}

/* --- the stream ---------------------------------------------------------------------------- */

d9d_status d9di_line_stream_open(const char *path, bool follow, d9di_line_stream **out)
{
    d9di_line_stream *s = calloc(1, sizeof(*s));
    d9d_status st;

    if (s == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: a stream", path);
    s->fd = -1;
    s->follow = follow;
    s->folder = d9d_fs_is_dir(path);
    s->path = d9d_arena_strdup(&s->arena, path);
    st = s->path == NULL ? D9D_FAIL(D9D_ENOMEM, "%s: its name", path)
         : s->folder     ? D9D_OK
                         : check_file(path);
    if (st != D9D_OK) {
        d9di_line_stream_close(s);
        return st;
    }
    *out = s;
    return D9D_OK;
}

void d9di_line_stream_close(d9di_line_stream *s)
{
    if (s == NULL)
        return;
    file_close(s);
    d9d_buf_release(&s->unread);
    d9d_arena_release(&s->arena);
    free(s);
}

d9d_status d9di_line_stream_seek(d9di_line_stream *s, const char *file, int64_t offset)
{
    d9d_status st = file_open(s, s->folder ? file : s->path);

    if (st == D9D_ENOTFOUND)
        return D9D_FAIL(D9D_EMISMATCH, "%s: has no file %s any more, where the stream goes on",
                        s->path, file);
    D9D_TRY(st);
    if (offset > s->size)
        return D9D_FAIL(D9D_EMISMATCH, "%s: has %lld bytes, and the stream goes on at byte %lld",
                        s->open_path, (long long)s->size, (long long)offset);
    s->offset = offset;
    return D9D_OK;
}

/* `ended`: what is there is all. */
static d9d_status look(d9di_line_stream *s, bool ended, d9di_line *out, bool *found)
{
    bool more;

    do {
        if (s->fd >= 0) {
            D9D_TRY(find_line(s, out, found));
            if (!*found && (s->folder || ended) && s->unread.len > s->used) {
                give_line(s, s->unread.len, s->unread.len, out);
                *found = true;
            }
            if (*found)
                return D9D_OK;
        }
        D9D_TRY(advance(s, &more));
    } while (more);
    *found = false;
    return D9D_OK;
}

/* The end is looked for before the last look at the files. */
d9d_status d9di_line_stream_next(d9di_line_stream *s, d9di_line *out)
{
    bool found = false, ended = !s->follow;

    D9D_TRY(look(s, ended, out, &found));
    if (!found && !ended) {
        ended = has_ended(s);
        if (ended)
            D9D_TRY(look(s, true, out, &found));
    }
    if (!found)
        *out = (d9di_line){.state = ended ? D9DI_LINE_ENDED : D9DI_LINE_PENDING};
    return D9D_OK;
}
