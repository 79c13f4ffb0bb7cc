/* input_stream.c - see input_stream.h. */
#include "data/build/input_stream.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include "d9d/base/fs.h"

enum { RAW_BYTES = 256 << 10, MAGIC_BYTES = 10 };

struct codec {
    const char *name;
    unsigned char magic[4];
    size_t magic_len;
    d9d_status (*start)(d9di_source_reader *r);
    /* Decode from raw[at, len) into p[0, n); *got 0 only when more raw bytes are needed. */
    d9d_status (*decode)(d9di_source_reader *r, void *p, size_t n, size_t *got);
    void (*stop)(d9di_source_reader *r);
};

struct d9di_source_reader {
    int fd;
    char *path;
    const struct codec *codec;
    unsigned char *raw;
    size_t at, len;
    uint64_t consumed;
    bool raw_end;
    d9di_seen seen; /* when it was opened */
    bool between;   /* compressed: a member or frame has ended and no other has begun */
    z_stream gz;
    ZSTD_DStream *zstd;
};

/* --- plain ---------------------------------------------------------------------------------- */

static d9d_status start_plain(d9di_source_reader *r)
{
    r->between = true;
    return D9D_OK;
}

static d9d_status decode_plain(d9di_source_reader *r, void *p, size_t n, size_t *got)
{
    *got = r->len - r->at < n ? r->len - r->at : n;
    memcpy(p, r->raw + r->at, *got);
    r->at += *got;
    return D9D_OK;
}

static void stop_plain(d9di_source_reader *r)
{
    (void)r;
}

/* --- gzip ----------------------------------------------------------------------------------- */

static d9d_status start_gzip(d9di_source_reader *r)
{
    if (inflateInit2(&r->gz, 15 + 16) != Z_OK)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory to decompress", r->path);
    return D9D_OK;
}

static d9d_status decode_gzip(d9di_source_reader *r, void *p, size_t n, size_t *got)
{
    int rc;

    *got = 0;
    if (r->at == r->len)
        return D9D_OK;
    if (r->between) {
        inflateReset(&r->gz);
        r->between = false;
    }
    r->gz.next_in = r->raw + r->at;
    r->gz.avail_in = (uInt)(r->len - r->at);
    r->gz.next_out = p;
    r->gz.avail_out = (uInt)(n < RAW_BYTES ? n : RAW_BYTES);
    *got = r->gz.avail_out;
    rc = inflate(&r->gz, Z_NO_FLUSH);
    r->at = r->len - r->gz.avail_in;
    *got -= r->gz.avail_out;
    if (rc != Z_OK && rc != Z_STREAM_END && rc != Z_BUF_ERROR)
        return D9D_FAIL(D9D_EFORMAT, "%s: byte %llu: gzip data is damaged: %s", r->path,
                        (unsigned long long)(r->consumed - r->gz.avail_in),
                        r->gz.msg ? r->gz.msg : zError(rc));
    r->between = rc == Z_STREAM_END;
    return D9D_OK;
}

static void stop_gzip(d9di_source_reader *r)
{
    inflateEnd(&r->gz);
}

/* --- zstd ----------------------------------------------------------------------------------- */

static d9d_status start_zstd(d9di_source_reader *r)
{
    r->zstd = ZSTD_createDStream();
    return r->zstd ? D9D_OK : D9D_FAIL(D9D_ENOMEM, "%s: no memory to decompress", r->path);
}

static d9d_status decode_zstd(d9di_source_reader *r, void *p, size_t n, size_t *got)
{
    ZSTD_inBuffer in = {r->raw, r->len, r->at};
    ZSTD_outBuffer out = {p, n, 0};
    size_t rc;

    *got = 0;
    if (r->between && r->at == r->len)
        return D9D_OK;
    rc = ZSTD_decompressStream(r->zstd, &out, &in);
    r->at = in.pos;
    *got = out.pos;
    if (ZSTD_isError(rc))
        return D9D_FAIL(D9D_EFORMAT, "%s: byte %llu: zstd data is damaged: %s", r->path,
                        (unsigned long long)(r->consumed - (r->len - r->at)),
                        ZSTD_getErrorName(rc));
    r->between = rc == 0;
    return D9D_OK;
}

static void stop_zstd(d9di_source_reader *r)
{
    ZSTD_freeDStream(r->zstd);
}

static const struct codec codecs[] = {
    {"gzip", {0x1f, 0x8b}, 2, start_gzip, decode_gzip, stop_gzip},
    {"zstd", {0x28, 0xb5, 0x2f, 0xfd}, 4, start_zstd, decode_zstd, stop_zstd},
    {"plain", {0}, 0, start_plain, decode_plain, stop_plain},
};

/* What people have their texts in besides, by its first bytes: none that a text has. */
static const struct stranger {
    const char *what;
    const char *magic;
    size_t len;
} strangers[] = {
    {"a Parquet file; make JSON lines of it", "PAR1\x15", 5},
    {"an Arrow file; make JSON lines of it", "ARROW1\0\0", 8},
    {"a stream of Arrow; make JSON lines of it", "\xff\xff\xff\xff", 4},
    {"compressed with bzip2, and gzip and zstd are read", "BZh91AY&SY", 10},
    {"compressed with xz, and gzip and zstd are read", "\xfd\x37zXZ\0", 6},
    {"compressed with lz4, and gzip and zstd are read", "\x04\x22\x4d\x18", 4},
    {"a zip archive; unpack it", "PK\x03\x04", 4},
};

static bool is_stdin(const char *path)
{
    return strcmp(path, "-") == 0;
}

static d9d_status check_kind(const char *path)
{
    return d9d_fs_is_dir(path) ? D9D_FAIL(D9D_EPATH, "%s: is a directory; name its files", path)
                               : D9D_OK;
}

/* --- what has changed --------------------------------------------------------------------------
 */

static d9di_seen seen_of(const struct stat *s)
{
    if (!S_ISREG(s->st_mode))
        return (d9di_seen){.file = false};
    return (d9di_seen){true, true, (int64_t)s->st_size, s->st_dev, s->st_ino, s->st_mtim};
}

static d9d_status compare(const char *path, const d9di_seen *before, const d9di_seen *now)
{
    if (!before->known)
        return D9D_OK;
    if (now->bytes != before->bytes)
        return D9D_FAIL(D9D_EIO, "%s: has %lld bytes, had %lld: it was changed while it was read",
                        path, (long long)now->bytes, (long long)before->bytes);
    if (now->known && now->device == before->device && now->inode == before->inode &&
        now->changed.tv_sec == before->changed.tv_sec &&
        now->changed.tv_nsec == before->changed.tv_nsec)
        return D9D_OK;
    return D9D_FAIL(D9D_EIO, "%s: was changed while it was read", path);
}

/* Of standard input the descriptor is looked at, and it may be read from anywhere on. */
d9d_status d9di_source_look(const char *path, d9di_seen *out)
{
    const bool in = is_stdin(path);
    struct stat s = {.st_size = 0};

    if (!in) {
        D9D_TRY(d9d_fs_check_readable(path));
        D9D_TRY(check_kind(path));
    }
    if ((in ? fstat(STDIN_FILENO, &s) : stat(path, &s)) != 0 && !in)
        return D9D_FAIL(D9D_EIO, "%s: cannot open: %s", path, strerror(errno));
    *out = seen_of(&s);
    if (in)
        out->file = false;
    return D9D_OK;
}

d9d_status d9di_source_check(const char *path, const d9di_seen *seen)
{
    d9di_seen now;

    D9D_TRY(d9di_source_look(path, &now));
    return compare(is_stdin(path) ? "standard input" : path, seen, &now);
}

/* Of the file that is open. */
static d9d_status look_at_fd(const d9di_source_reader *r, d9di_seen *out)
{
    struct stat s;

    if (fstat(r->fd, &s) != 0)
        return D9D_FAIL(D9D_EIO, "%s: cannot be looked at: %s", r->path, strerror(errno));
    *out = seen_of(&s);
    return D9D_OK;
}

static d9d_status check_end(const d9di_source_reader *r)
{
    d9di_seen now;

    D9D_TRY(look_at_fd(r, &now));
    return compare(r->path, &r->seen, &now);
}

/* --- reading -------------------------------------------------------------------------------- */

/* More raw bytes behind those that are left. */
static d9d_status refill(d9di_source_reader *r)
{
    ssize_t got;

    memmove(r->raw, r->raw + r->at, r->len - r->at);
    r->len -= r->at;
    r->at = 0;
    do
        got = read(r->fd, r->raw + r->len, RAW_BYTES - r->len);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return D9D_FAIL(D9D_EIO, "%s: cannot read at byte %llu: %s", r->path,
                        (unsigned long long)r->consumed, strerror(errno));
    r->raw_end = got == 0;
    r->len += (size_t)got;
    r->consumed += (uint64_t)got;
    return r->raw_end ? check_end(r) : D9D_OK;
}

static d9d_status refuse_strangers(const d9di_source_reader *r)
{
    for (size_t i = 0; i < sizeof(strangers) / sizeof(strangers[0]); i++)
        if (r->len >= strangers[i].len && memcmp(r->raw, strangers[i].magic, strangers[i].len) == 0)
            return D9D_FAIL(D9D_EFORMAT, "%s: is %s", r->path, strangers[i].what);
    return D9D_OK;
}

static d9d_status detect(d9di_source_reader *r)
{
    const struct codec *c = codecs;

    while (!r->raw_end && r->len < MAGIC_BYTES)
        D9D_TRY(refill(r));
    D9D_TRY(refuse_strangers(r));
    while (r->len < c->magic_len || memcmp(r->raw, c->magic, c->magic_len) != 0)
        c++;
    D9D_TRY(c->start(r));
    r->codec = c;
    return D9D_OK;
}

static d9d_status open_fd(d9di_source_reader *r)
{
    d9d_file f;

    if (is_stdin(r->path)) {
        free(r->path);
        r->path = strdup("standard input");
        r->fd = dup(STDIN_FILENO);
        return r->path != NULL && r->fd >= 0 ? D9D_OK
                                             : D9D_FAIL(D9D_EIO, "standard input: cannot open: %m");
    }
    D9D_TRY(check_kind(r->path));
    D9D_TRY(d9d_file_open_stream(r->path, &f));
    r->fd = f.fd;
    free(f.path);
    return D9D_OK;
}

d9d_status d9di_source_open(const char *path, const d9di_seen *seen, d9di_source_reader **out)
{
    d9di_source_reader *r = calloc(1, sizeof(*r));
    d9d_status st;

    if (!r)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", path);
    r->fd = -1;
    r->path = strdup(path);
    r->raw = malloc(RAW_BYTES);
    if (!r->path || !r->raw) {
        st = D9D_FAIL(D9D_ENOMEM, "%s: no memory", path);
        goto out;
    }
    D9D_TRY_OR(st, open_fd(r), out);
    D9D_TRY_OR(st, look_at_fd(r, &r->seen), out);
    if (seen)
        D9D_TRY_OR(st, compare(r->path, seen, &r->seen), out);
    D9D_TRY_OR(st, detect(r), out);
    *out = r;
    r = NULL;
out:
    d9di_source_close(r);
    return st;
}

d9d_status d9di_source_read(d9di_source_reader *r, void *p, size_t n, size_t *got)
{
    *got = 0;
    while (n > 0) {
        const size_t before = r->at;

        D9D_TRY(r->codec->decode(r, p, n, got));
        if (*got > 0)
            return D9D_OK;
        if (r->at < r->len && r->at == before)
            return D9D_FAIL(D9D_EFORMAT, "%s: %s data is damaged", r->path, r->codec->name);
        if (r->at < r->len)
            continue;
        if (r->raw_end)
            break;
        D9D_TRY(refill(r));
    }
    if (n > 0 && !r->between)
        return D9D_FAIL(D9D_EFORMAT, "%s: %s data is cut off at byte %llu", r->path, r->codec->name,
                        (unsigned long long)r->consumed);
    return D9D_OK;
}

d9d_status d9di_source_skip(d9di_source_reader *r, uint64_t n)
{
    char *piece = NULL;
    size_t got;
    d9d_status st = D9D_OK;

    if (strcmp(r->codec->name, "plain") == 0 && r->consumed == r->len && r->at == 0 && n > r->len &&
        lseek(r->fd, (off_t)n, SEEK_SET) >= 0) {
        r->consumed = n;
        r->len = 0;
        return D9D_OK;
    }
    piece = malloc(RAW_BYTES);
    if (!piece)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", r->path);
    while (n > 0) {
        D9D_TRY_OR(st, d9di_source_read(r, piece, n < RAW_BYTES ? (size_t)n : RAW_BYTES, &got),
                   out);
        if (got == 0) {
            st = D9D_FAIL(D9D_EFORMAT, "%s: ends %llu bytes before the place to go on at", r->path,
                          (unsigned long long)n);
            goto out;
        }
        n -= got;
    }
out:
    free(piece);
    return st;
}

bool d9di_source_is_plain(const char *path)
{
    d9di_source_reader *r = NULL;
    bool plain;

    if (d9di_source_open(path, NULL, &r) != D9D_OK)
        return false;
    plain = strcmp(r->codec->name, "plain") == 0;
    d9di_source_close(r);
    return plain;
}

uint64_t d9di_source_consumed(const d9di_source_reader *r)
{
    return r->consumed;
}

void d9di_source_close(d9di_source_reader *r)
{
    if (!r)
        return;
    if (r->codec)
        r->codec->stop(r);
    if (r->fd >= 0)
        close(r->fd);
    free(r->path);
    free(r->raw);
    free(r);
}
