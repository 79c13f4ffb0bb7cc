/* tensor.c - reference-counted storage and views of it.  See d9d/tensor/tensor.h. */
#include "d9d/tensor/tensor.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "d9d/base/mem.h"
#include "tensor/storage.h"

int64_t d9d_shape_numel(const d9d_shape *s)
{
    int64_t n = 1;
    bool fits = true;

    for (int d = 0; d < s->ndim; d++)
        if (s->dim[d] < 0)
            return -1;
    for (int d = 0; d < s->ndim; d++) {
        if (s->dim[d] == 0)
            return 0;
        fits = fits && !__builtin_mul_overflow(n, s->dim[d], &n);
    }
    return fits ? n : -1;
}

bool d9d_shape_equal(const d9d_shape *a, const d9d_shape *b)
{
    if (a->ndim != b->ndim)
        return false;
    for (int d = 0; d < a->ndim; d++)
        if (a->dim[d] != b->dim[d])
            return false;
    return true;
}

char *d9d_shape_text(const d9d_shape *s, char *buf, size_t n)
{
    size_t at = 0;
    int wrote = snprintf(buf, n, "[");

    for (int d = 0; d < s->ndim && wrote >= 0 && at + (size_t)wrote < n; d++) {
        at += (size_t)wrote;
        wrote = snprintf(buf + at, n - at, "%s%" PRId64, d > 0 ? ", " : "", s->dim[d]);
    }
    if (wrote >= 0 && at + (size_t)wrote < n)
        (void)snprintf(buf + at + wrote, n - at - (size_t)wrote, "]");
    return buf;
}

/* Where an array is, and how it gets its memory. */
typedef struct place {
    d9d_status (*alloc)(d9d_device *dev, uint64_t n, void **out);
    bool is_pinned;
} place;
static const place on_device = {d9d_device_alloc, false}, loose = {d9d_device_alloc_loose, false},
                   pinned = {d9d_device_pin, true};

static d9d_status storage_create(d9d_device *dev, uint64_t bytes, const place *where,
                                 d9d_storage **out)
{
    d9d_storage *s = malloc(sizeof(*s));
    d9d_status st = D9D_ENOMEM;

    if (s == NULL)
        return D9D_FAIL(st, "no memory for the record of a tensor");
    *s = (d9d_storage){.dev = dev, .bytes = bytes, .refs = 1, .is_pinned = where->is_pinned};
    st = where->alloc(dev, bytes, &s->data);
    if (st != D9D_OK) {
        free(s);
        return st;
    }
    s->next = dev->storages;
    if (s->next != NULL)
        s->next->prev = s;
    dev->storages = s;
    *out = s;
    return D9D_OK;
}

static void storage_unlink(d9d_storage *s)
{
    if (s->next != NULL)
        s->next->prev = s->prev;
    if (s->prev != NULL)
        s->prev->next = s->next;
    else
        s->dev->storages = s->next;
}

static d9d_status tensor_alloc(d9d_device *dev, d9d_dtype t, d9d_shape shape, const place *where,
                               d9d_tensor *out)
{
    const int64_t numel = d9d_shape_numel(&shape);
    d9d_storage *s = NULL;
    uint64_t bytes;
    char text[128];

    if (numel < 0 || !d9d_checked_mul_u64((uint64_t)numel, d9d_dtype_size(t), &bytes))
        return D9D_FAIL(D9D_EINVAL, "a tensor of shape %s cannot be counted in bytes",
                        d9d_shape_text(&shape, text, sizeof(text)));
    D9D_TRY(storage_create(dev, bytes, where, &s));
    *out = (d9d_tensor){.storage = s, .dtype = t, .shape = shape};
    return D9D_OK;
}

d9d_status d9d_tensor_alloc(d9d_device *dev, d9d_dtype t, d9d_shape shape, d9d_tensor *out)
{
    return tensor_alloc(dev, t, shape, &on_device, out);
}

d9d_status d9d_tensor_alloc_loose(d9d_device *dev, d9d_dtype t, d9d_shape shape, d9d_tensor *out)
{
    return tensor_alloc(dev, t, shape, &loose, out);
}

d9d_status d9d_tensor_alloc_pinned(d9d_device *dev, d9d_dtype t, d9d_shape shape, d9d_tensor *out)
{
    return tensor_alloc(dev, t, shape, &pinned, out);
}

d9d_status d9d_tensor_from_host(d9d_device *dev, d9d_dtype t, d9d_shape shape, const void *host,
                                d9d_tensor *out)
{
    d9d_tensor x = {0};
    d9d_status st;

    D9D_TRY_OR(st, d9d_tensor_alloc(dev, t, shape, &x), out);
    D9D_TRY_OR(st, d9d_device_upload(dev, d9d_tensor_data(&x), host, d9d_tensor_bytes(&x)), out);
    *out = x;
    x.storage = NULL;
out:
    d9d_tensor_release(&x);
    return st;
}

d9d_tensor d9d_tensor_ref(const d9d_tensor *t)
{
    if (t->storage != NULL)
        t->storage->refs++;
    return *t;
}

void d9d_tensor_release(d9d_tensor *t)
{
    d9d_storage *s = t->storage;

    *t = (d9d_tensor){0};
    if (s == NULL || --s->refs > 0)
        return;
    if (s->host != NULL || s->is_pinned)
        (void)!d9d_device_sync(s->dev); /* a copy or a kernel may be pending */
    storage_unlink(s);
    d9d_device_unpin(s->dev, s->is_pinned ? s->data : s->host);
    if (!s->is_pinned)
        d9d_device_free(s->dev, s->data, s->bytes);
    free(s);
}

void *d9d_tensor_data(const d9d_tensor *t)
{
    return t->storage != NULL && t->storage->data != NULL ? (char *)t->storage->data + t->offset
                                                          : NULL;
}

d9d_device *d9d_tensor_device(const d9d_tensor *t)
{
    return t->storage != NULL ? t->storage->dev : NULL;
}

int64_t d9d_tensor_numel(const d9d_tensor *t)
{
    return d9d_shape_numel(&t->shape);
}

uint64_t d9d_tensor_bytes(const d9d_tensor *t)
{
    return (uint64_t)d9d_tensor_numel(t) * d9d_dtype_size(t->dtype);
}

bool d9d_tensor_is_unique(const d9d_tensor *t)
{
    return t->storage != NULL && t->storage->refs == 1;
}

d9d_tensor d9d_tensor_reshape(const d9d_tensor *t, d9d_shape shape)
{
    d9d_tensor y = d9d_tensor_ref(t);

    assert(d9d_shape_numel(&shape) == d9d_tensor_numel(t));
    y.shape = shape;
    return y;
}

d9d_tensor d9d_tensor_rows(const d9d_tensor *t, int64_t first, int64_t n)
{
    d9d_tensor y = d9d_tensor_ref(t);
    d9d_shape row = t->shape;

    assert(t->shape.ndim > 0 && first >= 0 && n >= 0 && first <= t->shape.dim[0] - n);
    row.dim[0] = 1;
    y.shape.dim[0] = n;
    y.offset += (uint64_t)(first * d9d_shape_numel(&row)) * d9d_dtype_size(t->dtype);
    return y;
}

/* --- offload to the host ------------------------------------------------------------- */

bool d9d_tensor_is_offloaded(const d9d_tensor *t)
{
    return t->storage != NULL && t->storage->host != NULL;
}

static d9d_status check_offloaded(const d9d_tensor *t, bool want)
{
    char text[128];

    if (t->storage == NULL)
        return D9D_FAIL(D9D_EINVAL, "a tensor without storage cannot be offloaded or restored");
    if (t->storage->is_pinned)
        return D9D_FAIL(D9D_EINVAL, "a tensor of shape %s is in host memory",
                        d9d_shape_text(&t->shape, text, sizeof(text)));
    if (d9d_tensor_is_offloaded(t) != want)
        return D9D_FAIL(D9D_EINVAL, "a tensor of shape %s is %s",
                        d9d_shape_text(&t->shape, text, sizeof(text)),
                        want ? "not offloaded" : "offloaded already");
    return D9D_OK;
}

/* The block may be reused at once: later writes are enqueued after the copy. */
d9d_status d9d_tensor_offload(const d9d_tensor *t)
{
    d9d_storage *s = t->storage;
    void *host;
    d9d_status st;

    D9D_TRY(check_offloaded(t, false));
    D9D_TRY(d9d_device_pin(s->dev, s->bytes, &host));
    st = d9d_device_d2h_async(s->dev, host, s->data, s->bytes);
    if (st != D9D_OK) {
        d9d_device_unpin(s->dev, host);
        return st;
    }
    d9d_device_free(s->dev, s->data, s->bytes);
    s->data = NULL;
    s->host = host;
    return D9D_OK;
}

d9d_status d9d_tensor_restore(const d9d_tensor *t)
{
    d9d_storage *s = t->storage;
    void *data;
    d9d_status st;

    D9D_TRY(check_offloaded(t, true));
    D9D_TRY(d9d_device_alloc(s->dev, s->bytes, &data));
    st = d9d_device_h2d_async(s->dev, data, s->host, s->bytes);
    if (st == D9D_OK)
        st = d9d_device_sync(s->dev); /* before the host memory is freed */
    if (st != D9D_OK) {
        d9d_device_free(s->dev, data, s->bytes);
        return st;
    }
    d9d_device_unpin(s->dev, s->host);
    s->data = data;
    s->host = NULL;
    return D9D_OK;
}

d9d_status d9d_tensor_offload_all(d9d_device *dev)
{
    for (d9d_storage *s = dev->storages; s != NULL; s = s->next) {
        const d9d_status st = s->data != NULL && !s->is_pinned
                                  ? d9d_tensor_offload(&(d9d_tensor){.storage = s})
                                  : D9D_OK;
        d9d_err_copy why;

        if (st == D9D_OK)
            continue;
        d9d_err_save(&why, st);
        (void)!d9d_tensor_restore_all(dev);
        return d9d_err_restore(&why);
    }
    return d9d_device_sync(dev);
}

d9d_status d9d_tensor_restore_all(d9d_device *dev)
{
    for (d9d_storage *s = dev->storages; s != NULL; s = s->next)
        if (s->host != NULL)
            D9D_TRY(d9d_tensor_restore(&(d9d_tensor){.storage = s}));
    return D9D_OK;
}
