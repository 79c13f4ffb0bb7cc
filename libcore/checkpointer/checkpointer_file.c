/* checkpointer_file.c - writes one file of a checkpoint and hashes it.  See
 * checkpointer/checkpointer_private.h.
 *
 * Tensors are written in file order, so every byte is hashed once and nothing is read back. */
#include <stdlib.h>
#include <string.h>

#include "checkpointer/checkpointer_private.h"

typedef struct file_output {
    d9d_safetensors_writer *writer;
    const d9d_checkpointer_tensor **items; /* in the order of declaration */
    size_t n;
    uint64_t bytes; /* hashed so far */
    const d9di_checkpointer_save *save;
    d9d_hasher *hasher;
    D9D_VEC(d9d_hash) chunks;
    void *buffer;
    d9d_progress *progress;
} file_output;

/* Hashes the next bytes of the file. */
static d9d_status hash_update(file_output *o, const char *p, uint64_t n)
{
    while (n > 0) {
        const uint64_t chunk_left = D9D_MANIFEST_CHUNK - o->bytes % D9D_MANIFEST_CHUNK;
        const uint64_t now = n < chunk_left ? n : chunk_left;

        d9d_hasher_add(o->hasher, p, now);
        o->bytes += now;
        p += now;
        n -= now;
        if (now == chunk_left) {
            D9D_TRY(D9D_VEC_PUSH(&o->chunks, d9d_hasher_digest(o->hasher)));
            d9d_hasher_reset(o->hasher);
        }
    }
    return D9D_OK;
}

static d9d_status hash_finish(file_output *o)
{
    if (o->bytes % D9D_MANIFEST_CHUNK == 0)
        return D9D_OK;
    return D9D_VEC_PUSH(&o->chunks, d9d_hasher_digest(o->hasher));
}

static d9d_status declare_tensors(file_output *o, const char *group,
                                  const d9d_checkpointer_set *set)
{
    o->items = calloc(set->n, sizeof(*o->items));
    o->buffer = malloc(D9DI_CHECKPOINTER_IO_BYTES);
    if (o->items == NULL || o->buffer == NULL)
        return D9D_FAIL(D9D_ENOMEM, "checkpoint: no memory to write %zu tensors", set->n);
    D9D_TRY(d9d_hasher_create(&o->hasher));
    D9D_TRY(d9d_safetensors_writer_create(&o->writer));
    D9D_TRY(d9d_safetensors_writer_metadata(o->writer, "format", "pt"));
    for (size_t i = 0; i < set->n; i++) {
        const d9d_checkpointer_tensor *t = &set->items[i];

        if (strcmp(t->group, group) != 0)
            continue;
        D9D_TRY(d9d_safetensors_writer_declare(o->writer, t->name, t->tensor->dtype,
                                               t->tensor->shape.ndim, t->tensor->shape.dim));
        o->items[o->n++] = t;
    }
    return D9D_OK;
}

/* Copies n bytes at `at` of an item to host memory. */
static d9d_status read_item_bytes(file_output *o, const d9d_checkpointer_tensor *item, uint64_t at,
                                  uint64_t n, const void **out)
{
    const d9d_tensor *t = item->tensor;

    if (item->host != NULL) {
        *out = (const char *)item->host + at;
        return D9D_OK;
    }
    *out = o->buffer;
    return d9d_device_download(d9d_tensor_device(t), o->buffer,
                               (const char *)d9d_tensor_data(t) + at, n);
}

static d9d_status write_tensor(file_output *o, size_t i)
{
    const uint64_t bytes = d9d_tensor_bytes(o->items[i]->tensor);
    const void *buffer;

    for (uint64_t at = 0; at < bytes;) {
        const uint64_t n =
            bytes - at < D9DI_CHECKPOINTER_IO_BYTES ? bytes - at : D9DI_CHECKPOINTER_IO_BYTES;

        if (__atomic_load_n(&o->save->cancelled, __ATOMIC_RELAXED))
            return D9D_FAIL(D9D_EINTR, "%s: given up", o->save->tmp);
        D9D_TRY(read_item_bytes(o, o->items[i], at, n, &buffer));
        D9D_TRY(hash_update(o, buffer, n));
        D9D_TRY(d9d_safetensors_writer_write(o->writer, i, at, buffer, n));
        d9d_progress_add(o->progress, n);
        at += n;
    }
    return D9D_OK;
}

static d9d_status write_all(file_output *o)
{
    size_t header;
    const char *text = d9d_safetensors_writer_header(o->writer, &header);

    D9D_TRY(hash_update(o, text, header));
    for (size_t k = 0; k < o->n; k++)
        D9D_TRY(write_tensor(o, d9d_safetensors_writer_order(o->writer, k)));
    D9D_TRY(hash_finish(o));
    D9D_TRY(d9d_safetensors_writer_sync(o->writer)); /* rank 0 cannot sync for another host */
    return d9d_safetensors_writer_end(o->writer);
}

d9d_status d9di_checkpointer_file_write(const d9di_checkpointer_save *s, const char *group,
                                        const d9d_checkpointer_set *set, d9d_progress *progress,
                                        d9d_arena *a, d9d_manifest_file *out)
{
    file_output o = {.save = s, .progress = progress};
    d9d_manifest_file f = {0};
    char name[D9D_SLICES_FILE], *path;
    d9d_status st;

    d9d_slices_file_name(group, s->rank, name);
    D9D_TRY_OR(st, declare_tensors(&o, group, set), out);
    path = d9d_fs_join(a, s->part, name);
    f.name = d9d_arena_strdup(a, name);
    if (path == NULL || f.name == NULL) {
        st = D9D_FAIL(D9D_ENOMEM, "%s: no memory for the name of a file", s->part);
        goto out;
    }
    D9D_TRY_OR(st, d9d_safetensors_writer_begin(o.writer, path), out);
    D9D_TRY_OR(st, write_all(&o), out);
    f.bytes = o.bytes;
    f.n_chunks = o.chunks.len;
    f.chunks = d9d_arena_alloc(a, (o.chunks.len + 1) * sizeof(*f.chunks));
    if (f.chunks == NULL) {
        st = D9D_FAIL(D9D_ENOMEM, "%s: no memory for %zu hashes", path, o.chunks.len);
        goto out;
    }
    if (o.chunks.len > 0)
        memcpy(f.chunks, o.chunks.data, o.chunks.len * sizeof(*f.chunks));
    *out = f;
out:
    d9d_safetensors_writer_free(o.writer);
    d9d_hasher_free(o.hasher);
    D9D_VEC_RELEASE(&o.chunks);
    free(o.items);
    free(o.buffer);
    return st;
}
