/* st_reader.c - opening and checking safetensors files.  See d9d/ckpt/safetensors/safetensors.h. */
#include "d9d/ckpt/safetensors/safetensors.h"

#include <endian.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "ckpt/safetensors/json_scan.h"
#include "ckpt/safetensors/st_file.h"

struct d9d_safetensors_file {
    d9d_file file;
    uint64_t size, data; /* file size; offset of the first tensor */
    d9d_arena arena;
    D9D_VEC(d9d_safetensors_tensor *) tensors;
    d9d_map by_name, metadata;
    bool has_metadata;
};

/* --- shapes -------------------------------------------------------------- */

bool d9d_safetensors_shape_bytes(d9d_dtype t, int ndim, const int64_t *shape, uint64_t *out)
{
    uint64_t n = d9d_dtype_size(t);
    bool zero = false;

    for (int d = 0; d < ndim; d++) {
        if (shape[d] < 0)
            return false;
        /* A zero must not hide an overflow of the others. */
        if (shape[d] == 0)
            zero = true;
        else if (!d9d_checked_mul_u64(n, (uint64_t)shape[d], &n))
            return false;
    }
    *out = zero ? 0 : n;
    return n <= INT64_MAX;
}

const char *d9d_safetensors_describe(const d9d_safetensors_tensor *t,
                                     char out[D9D_SAFETENSORS_DESCRIBE])
{
    int n = snprintf(out, D9D_SAFETENSORS_DESCRIBE, "%s [", d9d_dtype_safetensors(t->dtype));

    for (int d = 0; d < t->ndim; d++)
        n += snprintf(out + n, D9D_SAFETENSORS_DESCRIBE - (size_t)n, "%s%" PRId64,
                      d > 0 ? ", " : "", t->shape[d]);
    (void)snprintf(out + n, D9D_SAFETENSORS_DESCRIBE - (size_t)n, "]");
    return out;
}

/* --- the header ------------------------------------------------------------ */

struct header_field {
    const char *name;
    d9d_status (*read)(d9di_json_scan *s, d9d_safetensors_file *f, d9d_safetensors_tensor *t);
};

static d9d_status read_dtype(d9di_json_scan *s, d9d_safetensors_file *f, d9d_safetensors_tensor *t)
{
    char *word;
    size_t len;
    int dtype;

    D9D_TRY(d9di_json_scan_string(s, &f->arena, &word, &len));
    for (dtype = 0; dtype < D9D_DTYPE_COUNT; dtype++)
        if (strcmp(word, d9d_dtype_safetensors((d9d_dtype)dtype)) == 0)
            break;
    if (dtype == D9D_DTYPE_COUNT)
        return D9D_FAIL(D9D_EFORMAT, "%s: tensor %s: unknown dtype \"%.32s\"", f->file.path,
                        t->name, word);
    t->dtype = (d9d_dtype)dtype;
    return D9D_OK;
}

static d9d_status read_shape(d9di_json_scan *s, d9d_safetensors_file *f, d9d_safetensors_tensor *t)
{
    uint64_t size;
    bool more;

    D9D_TRY(d9di_json_scan_open(s, '['));
    for (;;) {
        D9D_TRY(d9di_json_scan_more(s, ']', t->ndim == 0, &more));
        if (!more)
            return D9D_OK;
        if (t->ndim == D9D_MAX_DIMS)
            return D9D_FAIL(D9D_EFORMAT, "%s: tensor %s: more than %d dimensions", f->file.path,
                            t->name, D9D_MAX_DIMS);
        D9D_TRY(d9di_json_scan_u64(s, &size));
        if (size > INT64_MAX)
            return D9D_FAIL(D9D_EFORMAT, "%s: tensor %s: dimension of %" PRIu64, f->file.path,
                            t->name, size);
        t->shape[t->ndim++] = (int64_t)size;
    }
}

static d9d_status read_offsets(d9di_json_scan *s, d9d_safetensors_file *f,
                               d9d_safetensors_tensor *t)
{
    uint64_t at[2] = {0, 0};
    bool more;

    D9D_TRY(d9di_json_scan_open(s, '['));
    for (int i = 0; i < 2; i++) {
        D9D_TRY(d9di_json_scan_more(s, ']', i == 0, &more));
        if (!more)
            return D9D_FAIL(D9D_EFORMAT, "%s: tensor %s: data_offsets must be two numbers",
                            f->file.path, t->name);
        D9D_TRY(d9di_json_scan_u64(s, &at[i]));
    }
    D9D_TRY(d9di_json_scan_open(s, ']'));
    if (at[1] < at[0])
        return D9D_FAIL(D9D_EFORMAT, "%s: tensor %s ends at %" PRIu64 ", before its start %" PRIu64,
                        f->file.path, t->name, at[1], at[0]);
    t->offset = at[0];
    t->bytes = at[1] - at[0];
    return D9D_OK;
}

static const struct header_field header_fields[] = {
    {"dtype", read_dtype}, {"shape", read_shape}, {"data_offsets", read_offsets}};
enum { N_FIELDS = sizeof(header_fields) / sizeof(header_fields[0]) };

static d9d_status check_span(const d9d_safetensors_file *f, const d9d_safetensors_tensor *t)
{
    char text[D9D_SAFETENSORS_DESCRIBE];
    uint64_t bytes;

    if (!d9d_safetensors_shape_bytes(t->dtype, t->ndim, t->shape, &bytes))
        return D9D_FAIL(D9D_EFORMAT, "%s: tensor %s: the size of %s overflows", f->file.path,
                        t->name, d9d_safetensors_describe(t, text));
    if (bytes != t->bytes)
        return D9D_FAIL(D9D_EFORMAT,
                        "%s: tensor %s: %s takes %" PRIu64 " bytes, its offsets span %" PRIu64,
                        f->file.path, t->name, d9d_safetensors_describe(t, text), bytes, t->bytes);
    return D9D_OK;
}

static d9d_status read_tensor(d9di_json_scan *s, d9d_safetensors_file *f, char *name, size_t len)
{
    d9d_safetensors_tensor *t = d9d_arena_alloc(&f->arena, sizeof(*t));
    unsigned seen = 0;
    bool more;
    char *key;
    size_t k, i;

    if (t == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", f->file.path);
    t->name = name;
    if (d9d_map_has(&f->by_name, name, len))
        return D9D_FAIL(D9D_EFORMAT, "%s: tensor %s is there twice", f->file.path, name);
    D9D_TRY(d9di_json_scan_open(s, '{'));
    for (bool first = true;; first = false) {
        D9D_TRY(d9di_json_scan_more(s, '}', first, &more));
        if (!more)
            break;
        D9D_TRY(d9di_json_scan_key(s, &f->arena, &key, &k));
        for (i = 0; i < N_FIELDS && strcmp(key, header_fields[i].name) != 0; i++)
            ;
        if (i == N_FIELDS || (seen & (1u << i)) != 0)
            return D9D_FAIL(D9D_EFORMAT, "%s: tensor %s: %s member \"%.32s\"", f->file.path, name,
                            i == N_FIELDS ? "unknown" : "duplicate", key);
        seen |= 1u << i;
        D9D_TRY(header_fields[i].read(s, f, t));
    }
    for (i = 0; i < N_FIELDS; i++)
        if ((seen & (1u << i)) == 0)
            return D9D_FAIL(D9D_EFORMAT, "%s: tensor %s has no \"%s\"", f->file.path, name,
                            header_fields[i].name);
    D9D_TRY(check_span(f, t));
    D9D_TRY(D9D_VEC_PUSH(&f->tensors, t));
    return d9d_map_put(&f->by_name, name, len, t);
}

static d9d_status read_metadata(d9di_json_scan *s, d9d_safetensors_file *f)
{
    bool more;
    char *key, *value;
    size_t k, n;

    if (f->has_metadata)
        return D9D_FAIL(D9D_EFORMAT, "%s: __metadata__ is there twice", f->file.path);
    f->has_metadata = true;
    if (d9di_json_scan_null(s)) /* HuggingFace's reader treats null as absent */
        return D9D_OK;
    D9D_TRY(d9di_json_scan_open(s, '{'));
    for (bool first = true;; first = false) {
        D9D_TRY(d9di_json_scan_more(s, '}', first, &more));
        if (!more)
            return D9D_OK;
        D9D_TRY(d9di_json_scan_key(s, &f->arena, &key, &k));
        if (d9d_map_has(&f->metadata, key, k))
            return D9D_FAIL(D9D_EFORMAT, "%s: __metadata__ has \"%s\" twice", f->file.path, key);
        D9D_TRY(d9di_json_scan_free_text(s, &f->arena, &value, &n));
        D9D_TRY(d9d_map_put(&f->metadata, key, k, value));
    }
}

static d9d_status read_header(d9d_safetensors_file *f, const char *text, size_t n)
{
    char *where = d9d_arena_printf(&f->arena, "%s: header", f->file.path);
    d9di_json_scan s = d9di_json_scan_start(where, text, n);
    bool more;
    char *key;
    size_t len;

    if (where == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", f->file.path);
    if (n == 0 || text[0] != '{') /* white space may follow the header, not precede it */
        return D9D_FAIL(D9D_EFORMAT, "%s: byte 0: expected '{'", where);
    D9D_TRY(d9di_json_scan_open(&s, '{'));
    for (bool first = true;; first = false) {
        D9D_TRY(d9di_json_scan_more(&s, '}', first, &more));
        if (!more)
            break;
        D9D_TRY(d9di_json_scan_key(&s, &f->arena, &key, &len));
        if (len == 0)
            return D9D_FAIL(D9D_EFORMAT, "%s: a tensor without a name", f->file.path);
        if (strcmp(key, "__metadata__") == 0)
            D9D_TRY(read_metadata(&s, f));
        else
            D9D_TRY(read_tensor(&s, f, key, len));
    }
    return d9di_json_scan_end(&s);
}

/* --- the layout -------------------------------------------------------------- */

static int compare_offsets(const void *a, const void *b)
{
    const d9d_safetensors_tensor *x = *(d9d_safetensors_tensor *const *)a,
                                 *y = *(d9d_safetensors_tensor *const *)b;

    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Checks that tensors are contiguous up to the end of the file, and makes their offsets file
 * offsets. */
static d9d_status check_layout(d9d_safetensors_file *f)
{
    uint64_t at = 0, data_bytes = f->size - f->data;

    if (f->tensors.len > 0)
        qsort(f->tensors.data, f->tensors.len, sizeof(f->tensors.data[0]), compare_offsets);
    for (size_t i = 0; i < f->tensors.len; i++) {
        d9d_safetensors_tensor *t = f->tensors.data[i];
        uint64_t end = t->offset + t->bytes; /* cannot overflow: both were computed from one u64 */

        if (end > data_bytes)
            return D9D_FAIL(D9D_EFORMAT,
                            "%s: tensor %s ends at %" PRIu64 ", the file has %" PRIu64
                            " bytes of tensors",
                            f->file.path, t->name, end, data_bytes);
        if (t->offset < at)
            return D9D_FAIL(D9D_EFORMAT,
                            "%s: tensor %s starts at %" PRIu64 ", inside %s which ends at %" PRIu64,
                            f->file.path, t->name, t->offset, f->tensors.data[i - 1]->name, at);
        if (t->offset > at)
            return D9D_FAIL(D9D_EFORMAT,
                            "%s: a hole from %" PRIu64 " to %" PRIu64 " before tensor %s",
                            f->file.path, at, t->offset, t->name);
        at = end;
        t->offset += f->data;
    }
    if (at != data_bytes)
        return D9D_FAIL(D9D_EFORMAT,
                        "%s: the tensors end at %" PRIu64 ", the file has %" PRIu64
                        " bytes of tensors",
                        f->file.path, at, data_bytes);
    return D9D_OK;
}

/* Checks the header length in the first 8 bytes. */
static d9d_status check_length(d9d_safetensors_file *f, uint64_t prefix, uint64_t *out)
{
    static const char pointer[] = "version ";
    const uint64_t n = le64toh(prefix);

    if (memcmp(&prefix, pointer, sizeof(prefix)) == 0)
        return D9D_FAIL(D9D_EFORMAT,
                        "%s: is a pointer of Git LFS, and git lfs pull brings the file",
                        f->file.path);
    if (n > D9D_SAFETENSORS_MAX_HEADER)
        return D9D_FAIL(D9D_EFORMAT, "%s: header of %" PRIu64 " bytes, at most %u are allowed",
                        f->file.path, n, D9D_SAFETENSORS_MAX_HEADER);
    if (n > f->size - sizeof(prefix))
        return D9D_FAIL(D9D_EFORMAT, "%s: header of %" PRIu64 " bytes, the file has %" PRIu64,
                        f->file.path, n, f->size);
    f->data = sizeof(prefix) + n;
    *out = n;
    return D9D_OK;
}

static d9d_status check_size(const d9d_safetensors_file *f)
{
    if (f->size >= sizeof(uint64_t))
        return D9D_OK;
    return D9D_FAIL(D9D_EFORMAT, "%s: %" PRIu64 " bytes are too few for a safetensors file",
                    f->file.path, f->size);
}

static d9d_status read_text(d9d_safetensors_file *f, const char *text, size_t n)
{
    D9D_TRY(read_header(f, text, n));
    return check_layout(f);
}

static d9d_status load_header(d9d_safetensors_file *f)
{
    uint64_t prefix, n;
    char *text;
    d9d_status st;

    D9D_TRY(check_size(f));
    D9D_TRY(d9d_file_read_at(&f->file, &prefix, sizeof(prefix), 0));
    D9D_TRY(check_length(f, prefix, &n));
    text = malloc(n + 1);
    if (text == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", f->file.path);
    st = d9d_file_read_at(&f->file, text, n, sizeof(prefix));
    if (st == D9D_OK)
        st = read_text(f, text, n);
    free(text);
    return st;
}

d9d_status d9d_safetensors_open(const char *path, d9d_safetensors_file **out)
{
    d9d_safetensors_file *f = calloc(1, sizeof(*f));
    d9d_status st;

    if (f == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", path);
    f->file.fd = -1;
    D9D_TRY_OR(st, d9d_fs_check_regular(path), out);
    D9D_TRY_OR(st, d9d_file_open(path, &f->file), out);
    D9D_TRY_OR(st, d9d_fs_size(path, &f->size), out);
    D9D_TRY_OR(st, load_header(f), out);
    *out = f;
    f = NULL;
out:
    d9d_safetensors_close(f);
    return st;
}

d9d_status d9di_safetensors_parse(const char *path, const void *head, size_t n, uint64_t size,
                                  d9d_safetensors_file **out)
{
    d9d_safetensors_file *f = calloc(1, sizeof(*f));
    uint64_t prefix = 0, len;
    d9d_status st;

    if (f == NULL || (f->file.path = strdup(path)) == NULL) {
        st = D9D_FAIL(D9D_ENOMEM, "%s: out of memory", path);
        goto out;
    }
    f->file.fd = -1;
    f->size = size;
    D9D_TRY_OR(st, check_size(f), out);
    memcpy(&prefix, head, n < sizeof(prefix) ? n : sizeof(prefix));
    D9D_TRY_OR(st, check_length(f, prefix, &len), out);
    if (n < f->data) {
        st = D9D_FAIL(D9D_EINVAL, "%s: the first %zu bytes are not its whole header", path, n);
        goto out;
    }
    D9D_TRY_OR(st, read_text(f, (const char *)head + sizeof(prefix), len), out);
    *out = f;
    f = NULL;
out:
    d9d_safetensors_close(f);
    return st;
}

void d9d_safetensors_close(d9d_safetensors_file *f)
{
    if (f == NULL)
        return;
    d9d_file_release(&f->file);
    D9D_VEC_RELEASE(&f->tensors);
    d9d_map_release(&f->by_name);
    d9d_map_release(&f->metadata);
    d9d_arena_release(&f->arena);
    free(f);
}

void d9di_safetensors_close_fd(d9d_safetensors_file *f)
{
    (void)close(f->file.fd);
    f->file.fd = -1;
}

const char *d9d_safetensors_path(const d9d_safetensors_file *f)
{
    return f->file.path;
}
size_t d9d_safetensors_count(const d9d_safetensors_file *f)
{
    return f->tensors.len;
}
const d9d_safetensors_tensor *d9d_safetensors_at(const d9d_safetensors_file *f, size_t i)
{
    return f->tensors.data[i];
}
int d9d_safetensors_fd(const d9d_safetensors_file *f)
{
    return f->file.fd;
}

const d9d_safetensors_tensor *d9d_safetensors_find(const d9d_safetensors_file *f, const char *name)
{
    return d9d_map_get(&f->by_name, name, strlen(name));
}

const char *d9d_safetensors_metadata(const d9d_safetensors_file *f, const char *key)
{
    return d9d_map_get(&f->metadata, key, strlen(key));
}

d9d_status d9d_safetensors_read(const d9d_safetensors_file *f, const d9d_safetensors_tensor *t,
                                uint64_t at, void *dst, uint64_t n)
{
    if (at > t->bytes || n > t->bytes - at)
        return D9D_FAIL(D9D_EINVAL,
                        "%s: tensor %s: %" PRIu64 " bytes at %" PRIu64 ", it has %" PRIu64,
                        f->file.path, t->name, n, at, t->bytes);
    return d9d_file_read_at(&f->file, dst, n, t->offset + at);
}
