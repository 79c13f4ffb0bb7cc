/* input_stream.c - see input_stream.h. */
#include "data/io/input_stream.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include "d9d/base/fs.h"
#include "data/io/parquet.h"

enum { RAW_BYTES = 256 << 10, MAGIC_BYTES = 10 };

struct codec {
    const char *name;
    unsigned char magic[8];
    size_t magic_len;
    d9d_status (*start)(d9di_input_stream *r);
    /* Decodes raw[at, len) into p[0, n); *got is 0 only if more raw bytes are needed. */
    d9d_status (*decode)(d9di_input_stream *r, void *p, size_t n, size_t *got);
    void (*stop)(d9di_input_stream *r);
};

struct d9di_input_stream {
    int fd;
    char *path;
    const struct codec *codec;
    unsigned char *raw;
    size_t pos, len;
    uint64_t consumed;
    bool raw_end;
    d9di_input_stat stat; /* state when it was opened */
    bool between;         /* compressed: a member or frame has ended and the next has not begun */
    z_stream gz;
    ZSTD_DStream *zstd;
    d9di_parquet *parquet;
};

/* --- plain ---------------------------------------------------------------------------------- */

static d9d_status start_plain(d9di_input_stream *r)
{
    r->between = true;
    return D9D_OK;
}

static d9d_status decode_plain(d9di_input_stream *r, void *p, size_t n, size_t *got)
{
    *got = r->len - r->pos < n ? r->len - r->pos : n;
    memcpy(p, r->raw + r->pos, *got);
    r->pos += *got;
    return D9D_OK;
}

static void stop_plain(d9di_input_stream *r)
{
    (void)r;
}

/* --- gzip ----------------------------------------------------------------------------------- */

static d9d_status start_gzip(d9di_input_stream *r)
{
    if (inflateInit2(&r->gz, 15 + 16) != Z_OK)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory to decompress", r->path);
    return D9D_OK;
}

static d9d_status decode_gzip(d9di_input_stream *r, void *p, size_t n, size_t *got)
{
    int rc;

    *got = 0;
    while (r->between && r->pos < r->len && r->raw[r->pos] == 0) /* padding, as of tapes' blocks */
        r->pos++;
    if (r->pos == r->len)
        return D9D_OK;
    if (r->between) {
        inflateReset(&r->gz);
        r->between = false;
    }
    r->gz.next_in = r->raw + r->pos;
    r->gz.avail_in = (uInt)(r->len - r->pos);
    r->gz.next_out = p;
    r->gz.avail_out = (uInt)(n < RAW_BYTES ? n : RAW_BYTES);
    *got = r->gz.avail_out;
    rc = inflate(&r->gz, Z_NO_FLUSH);
    r->pos = r->len - r->gz.avail_in;
    *got -= r->gz.avail_out;
    if (rc != Z_OK && rc != Z_STREAM_END && rc != Z_BUF_ERROR)
        return D9D_FAIL(D9D_EFORMAT, "%s: byte %llu: gzip data is damaged: %s", r->path,
                        (unsigned long long)(r->consumed - r->gz.avail_in),
                        r->gz.msg ? r->gz.msg : zError(rc));
    r->between = rc == Z_STREAM_END;
    return D9D_OK;
}

static void stop_gzip(d9di_input_stream *r)
{
    inflateEnd(&r->gz);
}

/* --- zstd ----------------------------------------------------------------------------------- */

static d9d_status start_zstd(d9di_input_stream *r)
{
    r->zstd = ZSTD_createDStream();
    if (!r->zstd)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory to decompress", r->path);
    /* Frames may have any window, as those of `zstd --long=31`; others take no more memory. */
    ZSTD_DCtx_setParameter(r->zstd, ZSTD_d_windowLogMax,
                           ZSTD_dParam_getBounds(ZSTD_d_windowLogMax).upperBound);
    return D9D_OK;
}

static d9d_status decode_zstd(d9di_input_stream *r, void *p, size_t n, size_t *got)
{
    ZSTD_inBuffer in = {r->raw, r->len, r->pos};
    ZSTD_outBuffer out = {p, n, 0};
    size_t rc;

    *got = 0;
    if (r->between && r->pos == r->len)
        return D9D_OK;
    rc = ZSTD_decompressStream(r->zstd, &out, &in);
    r->pos = in.pos;
    *got = out.pos;
    if (ZSTD_isError(rc))
        return D9D_FAIL(D9D_EFORMAT, "%s: byte %llu: zstd data is damaged: %s", r->path,
                        (unsigned long long)(r->consumed - (r->len - r->pos)),
                        ZSTD_getErrorName(rc));
    r->between = rc == 0;
    return D9D_OK;
}

static void stop_zstd(d9di_input_stream *r)
{
    ZSTD_freeDStream(r->zstd);
}

/* --- Parquet, which is read by its descriptor and not by raw bytes ------------------------- */

static d9d_status check_end(const d9di_input_stream *r);

static d9d_status start_parquet(d9di_input_stream *r)
{
    if (!r->stat.known)
        return D9D_FAIL(D9D_EFORMAT, "%s: is a Parquet file in a pipe; name the file", r->path);
    D9D_TRY(d9di_parquet_open(r->fd, r->path, &r->parquet));
    r->pos = r->len = 0;
    r->consumed = 0;
    r->raw_end = r->between = true;
    return D9D_OK;
}

static d9d_status decode_parquet(d9di_input_stream *r, void *p, size_t n, size_t *got)
{
    D9D_TRY(d9di_parquet_read(r->parquet, p, n, got));
    r->consumed = (uint64_t)(d9di_parquet_progress(r->parquet) * (double)r->stat.bytes);
    return *got == 0 ? check_end(r) : D9D_OK;
}

static void stop_parquet(d9di_input_stream *r)
{
    d9di_parquet_close(r->parquet);
}

static const struct codec codecs[] = {
    {"gzip", {0x1f, 0x8b}, 2, start_gzip, decode_gzip, stop_gzip},
    {"zstd", {0x28, 0xb5, 0x2f, 0xfd}, 4, start_zstd, decode_zstd, stop_zstd},
    {"zstd", {0x50, 0x2a, 0x4d, 0x18}, 4, start_zstd, decode_zstd, stop_zstd}, /* of pzstd */
    {"Parquet", D9DI_PARQUET_MAGIC, sizeof(D9DI_PARQUET_MAGIC) - 1, start_parquet, decode_parquet,
     stop_parquet},
    {"plain", {0}, 0, start_plain, decode_plain, stop_plain},
};

/* Other common formats, by their first bytes, which no text begins with. */
static const struct unsupported_format {
    const char *advice;
    const char *magic;
    size_t len;
} unsupported_formats[] = {
    {"an Arrow file; read JSON lines of it from a pipe: python3 -c \"import pyarrow as pa, json; "
     "[print(json.dumps(r)) for r in pa.ipc.open_file('FILE').read_all().to_pylist()]\" | "
     "d9d-shard "
     "... -",
     "ARROW1\0\0", 8},
    {"a stream of Arrow; read JSON lines of it from a pipe: python3 -c \"import pyarrow as pa, "
     "json; "
     "[print(json.dumps(r)) for b in pa.ipc.open_stream('FILE') for r in b.to_pylist()]\" | "
     "d9d-shard ... -",
     "\xff\xff\xff\xff", 4},
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

/* --- detecting changes --------------------------------------------------------------------- */

static d9di_input_stat stat_of(const struct stat *s)
{
    if (!S_ISREG(s->st_mode))
        return (d9di_input_stat){.is_file = false};
    return (d9di_input_stat){true, true, (int64_t)s->st_size, s->st_dev, s->st_ino, s->st_mtim};
}

static d9d_status compare_stats(const char *path, const d9di_input_stat *before,
                                const d9di_input_stat *now)
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

/* For standard input this examines the descriptor, which may be at any offset. */
d9d_status d9di_input_stream_stat(const char *path, d9di_input_stat *out)
{
    const bool in = is_stdin(path);
    struct stat s = {.st_size = 0};

    if (!in) {
        D9D_TRY(d9d_fs_check_readable(path));
        D9D_TRY(check_kind(path));
    }
    if ((in ? fstat(STDIN_FILENO, &s) : stat(path, &s)) != 0 && !in)
        return D9D_FAIL(D9D_EIO, "%s: cannot open: %s", path, strerror(errno));
    *out = stat_of(&s);
    if (in)
        out->is_file = false;
    return D9D_OK;
}

d9d_status d9di_input_stream_check(const char *path, const d9di_input_stat *seen)
{
    d9di_input_stat now;

    D9D_TRY(d9di_input_stream_stat(path, &now));
    return compare_stats(is_stdin(path) ? "standard input" : path, seen, &now);
}

/* State of the open file. */
static d9d_status stat_fd(const d9di_input_stream *r, d9di_input_stat *out)
{
    struct stat s;

    if (fstat(r->fd, &s) != 0)
        return D9D_FAIL(D9D_EIO, "%s: cannot be looked at: %s", r->path, strerror(errno));
    *out = stat_of(&s);
    return D9D_OK;
}

static d9d_status check_end(const d9di_input_stream *r)
{
    d9di_input_stat now;

    D9D_TRY(stat_fd(r, &now));
    return compare_stats(r->path, &r->stat, &now);
}

/* --- reading -------------------------------------------------------------------------------- */

/* Appends raw bytes to those that are left. */
static d9d_status refill_raw(d9di_input_stream *r)
{
    ssize_t got;

    memmove(r->raw, r->raw + r->pos, r->len - r->pos);
    r->len -= r->pos;
    r->pos = 0;
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

static d9d_status refuse_unsupported(const d9di_input_stream *r)
{
    for (size_t i = 0; i < sizeof(unsupported_formats) / sizeof(unsupported_formats[0]); i++)
        if (r->len >= unsupported_formats[i].len &&
            memcmp(r->raw, unsupported_formats[i].magic, unsupported_formats[i].len) == 0)
            return D9D_FAIL(D9D_EFORMAT, "%s: is %s", r->path, unsupported_formats[i].advice);
    return D9D_OK;
}

static d9d_status detect_codec(d9di_input_stream *r)
{
    const struct codec *c = codecs;

    while (!r->raw_end && r->len < MAGIC_BYTES)
        D9D_TRY(refill_raw(r));
    D9D_TRY(refuse_unsupported(r));
    while (r->len < c->magic_len || memcmp(r->raw, c->magic, c->magic_len) != 0)
        c++;
    D9D_TRY(c->start(r));
    r->codec = c;
    return D9D_OK;
}

static d9d_status open_fd(d9di_input_stream *r)
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

d9d_status d9di_input_stream_open(const char *path, const d9di_input_stat *seen,
                                  d9di_input_stream **out)
{
    d9di_input_stream *r = calloc(1, sizeof(*r));
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
    D9D_TRY_OR(st, stat_fd(r, &r->stat), out);
    if (seen)
        D9D_TRY_OR(st, compare_stats(r->path, seen, &r->stat), out);
    D9D_TRY_OR(st, detect_codec(r), out);
    *out = r;
    r = NULL;
out:
    d9di_input_stream_close(r);
    return st;
}

d9d_status d9di_input_stream_read(d9di_input_stream *r, void *p, size_t n, size_t *got)
{
    *got = 0;
    while (n > 0) {
        const size_t before = r->pos;

        D9D_TRY(r->codec->decode(r, p, n, got));
        if (*got > 0)
            return D9D_OK;
        if (r->pos < r->len && r->pos == before)
            return D9D_FAIL(D9D_EFORMAT, "%s: %s data is damaged", r->path, r->codec->name);
        if (r->pos < r->len)
            continue;
        if (r->raw_end)
            break;
        D9D_TRY(refill_raw(r));
    }
    if (n > 0 && !r->between)
        return D9D_FAIL(D9D_EFORMAT, "%s: %s data is cut off at byte %llu", r->path, r->codec->name,
                        (unsigned long long)r->consumed);
    return D9D_OK;
}

d9d_status d9di_input_stream_skip(d9di_input_stream *r, uint64_t n)
{
    char *block = NULL;
    size_t got;
    d9d_status st = D9D_OK;

    if (strcmp(r->codec->name, "plain") == 0 && r->consumed == r->len && r->pos == 0 &&
        n > r->len && lseek(r->fd, (off_t)n, SEEK_SET) >= 0) {
        r->consumed = n;
        r->len = 0;
        return D9D_OK;
    }
    block = malloc(RAW_BYTES);
    if (!block)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", r->path);
    while (n > 0) {
        D9D_TRY_OR(
            st, d9di_input_stream_read(r, block, n < RAW_BYTES ? (size_t)n : RAW_BYTES, &got), out);
        if (got == 0) {
            st = D9D_FAIL(D9D_EFORMAT, "%s: ends %llu bytes before the place to go on at", r->path,
                          (unsigned long long)n);
            goto out;
        }
        n -= got;
    }
out:
    free(block);
    return st;
}

bool d9di_input_stream_is_plain(const char *path)
{
    d9di_input_stream *r = NULL;
    bool plain;

    if (d9di_input_stream_open(path, NULL, &r) != D9D_OK)
        return false;
    plain = strcmp(r->codec->name, "plain") == 0;
    d9di_input_stream_close(r);
    return plain;
}

uint64_t d9di_input_stream_consumed(const d9di_input_stream *r)
{
    return r->consumed;
}

void d9di_input_stream_close(d9di_input_stream *r)
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
