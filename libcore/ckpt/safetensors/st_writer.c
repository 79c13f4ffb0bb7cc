/* st_writer.c - writes safetensors files in one pass.  See d9d/ckpt/safetensors/safetensors.h. */
#include "d9d/ckpt/safetensors/safetensors.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "ckpt/safetensors/json_scan.h"
#include "d9d/base/json.h"

struct tensor_span {
    const char *name;
    d9d_dtype dtype;
    int ndim;
    int64_t shape[D9D_MAX_DIMS];
    uint64_t offset, bytes; /* in the file, after layout */
    _Atomic uint64_t written;
};

struct d9d_safetensors_writer {
    d9d_file file;
    bool placed, begun;
    d9d_arena arena;
    D9D_VEC(struct tensor_span *) spans; /* in order of declaration */
    D9D_VEC(size_t) order;               /* in file order, after layout */
    d9d_map names, metadata;
    d9d_buf header; /* length prefix and text, after layout */
    uint64_t total; /* bytes of the file, after layout */
};

d9d_status d9d_safetensors_writer_create(d9d_safetensors_writer **out)
{
    d9d_safetensors_writer *w = calloc(1, sizeof(*w));

    if (w == NULL)
        return D9D_FAIL(D9D_ENOMEM, "safetensors writer: out of memory");
    w->file.fd = -1;
    *out = w;
    return D9D_OK;
}

void d9d_safetensors_writer_free(d9d_safetensors_writer *w)
{
    if (w == NULL)
        return;
    d9d_file_release(&w->file);
    D9D_VEC_RELEASE(&w->spans);
    D9D_VEC_RELEASE(&w->order);
    d9d_buf_release(&w->header);
    d9d_map_release(&w->names);
    d9d_map_release(&w->metadata);
    d9d_arena_release(&w->arena);
    free(w);
}

d9d_status d9d_safetensors_writer_metadata(d9d_safetensors_writer *w, const char *key,
                                           const char *value)
{
    char *copy = d9d_arena_strdup(&w->arena, value);

    assert(!w->placed);
    if (copy == NULL)
        return D9D_FAIL(D9D_ENOMEM, "safetensors writer: out of memory");
    return d9d_map_put(&w->metadata, key, strlen(key), copy);
}

/* Rejects names that no reader accepts. */
static d9d_status check_name(const char *name)
{
    for (const char *p = name; *p != '\0'; p++)
        if (d9di_json_scan_is_control((unsigned char)*p))
            return D9D_FAIL(D9D_EINVAL, "tensor %s: its name has a control character", name);
    return D9D_OK;
}

d9d_status d9d_safetensors_writer_declare(d9d_safetensors_writer *w, const char *name, d9d_dtype t,
                                          int ndim, const int64_t *shape)
{
    struct tensor_span *s = d9d_arena_alloc(&w->arena, sizeof(*s));

    assert(!w->placed && ndim <= D9D_MAX_DIMS);
    D9D_TRY(check_name(name));
    if (s == NULL || (s->name = d9d_arena_strdup(&w->arena, name)) == NULL)
        return D9D_FAIL(D9D_ENOMEM, "safetensors writer: out of memory");
    s->dtype = t;
    s->ndim = ndim;
    for (int d = 0; d < ndim; d++)
        s->shape[d] = shape[d];
    if (!d9d_safetensors_shape_bytes(t, ndim, shape, &s->bytes))
        return D9D_FAIL(D9D_EINVAL, "tensor %s: its size overflows", name);
    if (d9d_map_has(&w->names, name, strlen(name)))
        return D9D_FAIL(D9D_EINVAL, "tensor %s is declared twice", name);
    D9D_TRY(D9D_VEC_PUSH(&w->spans, s));
    return d9d_map_put(&w->names, name, strlen(name), s);
}

/* --- the header -------------------------------------------------------------- */

static d9d_status put_member(d9d_buf *b, const char *key, const char *value)
{
    D9D_TRY(d9d_json_put_str(b, key, strlen(key)));
    D9D_TRY(d9d_buf_append(b, ":", 1));
    return d9d_json_put_str(b, value, strlen(value));
}

static d9d_status put_span(d9d_buf *b, const struct tensor_span *s)
{
    D9D_TRY(d9d_json_put_str(b, s->name, strlen(s->name)));
    D9D_TRY(d9d_buf_printf(b, ":{\"dtype\":\"%s\",\"shape\":[", d9d_dtype_safetensors(s->dtype)));
    for (int d = 0; d < s->ndim; d++)
        D9D_TRY(d9d_buf_printf(b, "%s%" PRId64, d > 0 ? "," : "", s->shape[d]));
    return d9d_buf_printf(b, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", s->offset,
                          s->offset + s->bytes);
}

/* Orders spans by element width, wider first, otherwise as declared; offsets count from the first
 * tensor byte. */
static d9d_status layout_spans(d9d_safetensors_writer *w, uint64_t *total)
{
    uint64_t at = 0;

    for (size_t width = 8; width > 0; width /= 2)
        for (size_t i = 0; i < w->spans.len; i++) {
            struct tensor_span *s = w->spans.data[i];

            if (d9d_dtype_size(s->dtype) != width)
                continue;
            s->offset = at;
            if (!d9d_checked_add_u64(at, s->bytes, &at))
                return D9D_FAIL(D9D_EINVAL, "tensor %s: the file's size overflows", s->name);
            D9D_TRY(D9D_VEC_PUSH(&w->order, i));
        }
    *total = at;
    return D9D_OK;
}

static d9d_status put_header_text(d9d_buf *b, const d9d_safetensors_writer *w)
{
    const char *comma = "";

    D9D_TRY(d9d_buf_append(b, "{", 1));
    if (w->metadata.len > 0) {
        D9D_TRY(d9d_buf_printf(b, "\"__metadata__\":{"));
        for (size_t i = 0; i < w->metadata.len; i++) {
            D9D_TRY(d9d_buf_printf(b, "%s", i > 0 ? "," : ""));
            D9D_TRY(put_member(b, w->metadata.entries[i].key, w->metadata.entries[i].value));
        }
        D9D_TRY(d9d_buf_append(b, "}", 1));
        comma = ",";
    }
    for (size_t k = 0; k < w->order.len; k++) {
        D9D_TRY(d9d_buf_printf(b, "%s", comma));
        D9D_TRY(put_span(b, w->spans.data[w->order.data[k]]));
        comma = ",";
    }
    D9D_TRY(d9d_buf_append(b, "}", 1));
    while (b->len % 8 != 0)
        D9D_TRY(d9d_buf_append(b, " ", 1));
    return D9D_OK;
}

/* Writes the header: length prefix and text. */
static d9d_status write_header(d9d_safetensors_writer *w, const char *path)
{
    d9d_buf *b = &w->header;
    uint64_t n = 0;

    D9D_TRY(d9d_buf_append(b, &n, sizeof(n)));
    D9D_TRY(put_header_text(b, w));
    if (b->len - sizeof(n) > D9D_SAFETENSORS_MAX_HEADER)
        return D9D_FAIL(D9D_EINVAL, "%s: header of %zu bytes, at most %u are allowed", path,
                        b->len - sizeof(n), D9D_SAFETENSORS_MAX_HEADER);
    n = htole64(b->len - sizeof(n));
    memcpy(b->data, &n, sizeof(n));
    return D9D_OK;
}

d9d_status d9d_safetensors_writer_layout(d9d_safetensors_writer *w, const char *path)
{
    assert(!w->placed);
    D9D_TRY(layout_spans(w, &w->total));
    D9D_TRY(write_header(w, path));
    for (size_t i = 0; i < w->spans.len; i++)
        w->spans.data[i]->offset += w->header.len;
    w->placed = true;
    if (!d9d_checked_add_u64(w->total, w->header.len, &w->total) || w->total > INT64_MAX)
        return D9D_FAIL(D9D_EINVAL, "%s: its size overflows", path);
    return D9D_OK;
}

d9d_status d9d_safetensors_writer_begin(d9d_safetensors_writer *w, const char *path)
{
    D9D_TRY(d9d_safetensors_writer_layout(w, path));
    D9D_TRY(d9d_file_create(path, &w->file));
    D9D_TRY(d9d_file_write(&w->file, w->header.data, w->header.len));
    if (ftruncate(w->file.fd, (off_t)w->total) != 0)
        return D9D_FAIL(D9D_EIO, "%s: cannot make it %" PRIu64 " bytes long: %s", path, w->total,
                        strerror(errno));
    w->begun = true;
    return D9D_OK;
}

const char *d9d_safetensors_writer_header(const d9d_safetensors_writer *w, size_t *n)
{
    assert(w->placed);
    *n = w->header.len;
    return w->header.data;
}

size_t d9d_safetensors_writer_order(const d9d_safetensors_writer *w, size_t k)
{
    assert(w->placed && k < w->order.len);
    return w->order.data[k];
}

uint64_t d9d_safetensors_writer_offset(const d9d_safetensors_writer *w, size_t i)
{
    assert(w->placed && i < w->spans.len);
    return w->spans.data[i]->offset;
}

uint64_t d9d_safetensors_writer_bytes(const d9d_safetensors_writer *w)
{
    assert(w->placed);
    return w->total;
}

/* --- the bytes ------------------------------------------------------------------ */

static d9d_status check_write(d9d_safetensors_writer *w, size_t i, uint64_t at, uint64_t n)
{
    const struct tensor_span *s = w->spans.data[i];

    assert(w->begun && i < w->spans.len);
    if (at > s->bytes || n > s->bytes - at)
        return D9D_FAIL(D9D_EINVAL,
                        "%s: tensor %s: %" PRIu64 " bytes at %" PRIu64 ", it has %" PRIu64,
                        w->file.path, s->name, n, at, s->bytes);
    return D9D_OK;
}

d9d_status d9d_safetensors_writer_write(d9d_safetensors_writer *w, size_t i, uint64_t at,
                                        const void *src, uint64_t n)
{
    D9D_TRY(check_write(w, i, at, n));
    D9D_TRY(d9d_file_write_at(&w->file, src, n, w->spans.data[i]->offset + at));
    atomic_fetch_add(&w->spans.data[i]->written, n);
    return D9D_OK;
}

d9d_status d9d_safetensors_writer_sync(d9d_safetensors_writer *w)
{
    return d9d_file_sync(&w->file);
}

d9d_status d9d_safetensors_writer_end(d9d_safetensors_writer *w)
{
    for (size_t i = 0; i < w->spans.len; i++) {
        const struct tensor_span *s = w->spans.data[i];
        uint64_t written = atomic_load(&s->written);

        if (written != s->bytes)
            return D9D_FAIL(D9D_EINVAL,
                            "%s: tensor %s: %" PRIu64 " bytes were written, it has %" PRIu64,
                            w->file.path, s->name, written, s->bytes);
    }
    return d9d_file_close(&w->file);
}
