/* content_hash.c - see d9d/ckpt/dir/content_hash.h. */
#include "d9d/ckpt/dir/content_hash.h"

#include <stdlib.h>
#include <string.h>

#include "d9d/base/thread.h"
#include "d9d/ckpt/dir/checkpoint.h"

enum { BLOCK = 4 << 10, STRIDE = 4 << 20, WHOLE_MAX = 64 << 10, TAIL = 64 << 10 };

d9d_status d9d_content_hash_file(const char *path, d9d_hash *out)
{
    uint64_t size;

    D9D_TRY(d9d_fs_check_regular(path));
    return d9d_hash_file(path, out, &size);
}

/* --- tensors ---------------------------------------------------------------------------------- */

/* Sources of the tensors to hash. */
typedef struct tensor_list {
    size_t n;
    const void *from;
    const d9d_safetensors_tensor *(*at)(const void *from, size_t i);
    d9d_status (*read)(const void *from, size_t i, uint64_t at, void *dst, uint64_t n);
    struct named_hash {
        const char *name;
        d9d_hash hash;
    } * found;
} tensor_list;

static const d9d_safetensors_tensor *checkpoint_at(const void *c, size_t i)
{
    return d9d_checkpoint_at(c, i);
}
static d9d_status checkpoint_read(const void *c, size_t i, uint64_t at, void *dst, uint64_t n)
{
    return d9d_checkpoint_read(c, i, at, dst, n);
}
static const d9d_safetensors_tensor *file_at(const void *f, size_t i)
{
    return d9d_safetensors_at(f, i);
}
static d9d_status file_read(const void *f, size_t i, uint64_t at, void *dst, uint64_t n)
{
    return d9d_safetensors_read(f, d9d_safetensors_at(f, i), at, dst, n);
}

static d9d_status add_span(d9d_hasher *h, const tensor_list *t, size_t i, uint64_t at, uint64_t n)
{
    char block[WHOLE_MAX];

    D9D_TRY(t->read(t->from, i, at, block, n));
    d9d_hasher_add(h, block, n);
    return D9D_OK;
}

static d9d_status add_samples(d9d_hasher *h, const tensor_list *t, size_t i)
{
    const uint64_t bytes = t->at(t->from, i)->bytes;

    if (bytes <= WHOLE_MAX)
        return add_span(h, t, i, 0, bytes);
    for (uint64_t at = 0; at + BLOCK < bytes; at += STRIDE)
        D9D_TRY(add_span(h, t, i, at, BLOCK));
    return add_span(h, t, i, bytes - BLOCK, BLOCK);
}

static d9d_status tensor_hash(void *arg, int worker, size_t i)
{
    const tensor_list *t = arg;
    const d9d_safetensors_tensor *x = t->at(t->from, i);
    const int64_t kind[] = {x->dtype, x->ndim, (int64_t)x->bytes};
    d9d_hasher *h;
    d9d_status st;

    (void)worker;
    D9D_TRY(d9d_hasher_create(&h));
    d9d_hasher_add(h, x->name, strlen(x->name) + 1);
    d9d_hasher_add(h, kind, sizeof(kind));
    d9d_hasher_add(h, x->shape, (size_t)x->ndim * sizeof(*x->shape));
    st = add_samples(h, t, i);
    t->found[i] = (struct named_hash){x->name, d9d_hasher_digest(h)};
    d9d_hasher_free(h);
    return st;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct named_hash *)a)->name, ((const struct named_hash *)b)->name);
}

static d9d_status add_tensors(d9d_hasher *h, tensor_list t, int jobs)
{
    d9d_status st;

    t.found = calloc(t.n + 1, sizeof(*t.found));
    if (t.found == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for the hashes of %zu tensors", t.n);
    st = d9d_thread_run(jobs, t.n, tensor_hash, &t);
    if (st == D9D_OK) {
        qsort(t.found, t.n, sizeof(*t.found), compare_names);
        for (size_t i = 0; i < t.n; i++)
            d9d_hasher_add(h, &t.found[i].hash, sizeof(t.found[i].hash));
    }
    free(t.found);
    return st;
}

/* --- directories ------------------------------------------------------------------------------ */

static bool has_suffix(const char *name, const char *end)
{
    const size_t n = strlen(name), k = strlen(end);

    return n > k && strcmp(name + n - k, end) == 0;
}

/* Adds the manifest's hashes.  A damaged manifest, or one of another kind, is ignored. */
static void add_manifest(d9d_hasher *h, const char *dir)
{
    d9d_manifest *m;

    if (d9d_manifest_open(dir, &m) != D9D_OK)
        return;
    for (size_t i = 0; i < d9d_manifest_count(m); i++) {
        const d9d_manifest_file *f = d9d_manifest_at(m, i);

        if (!has_suffix(f->name, ".safetensors"))
            continue;
        d9d_hasher_add(h, &f->bytes, sizeof(f->bytes));
        d9d_hasher_add(h, f->chunks, f->n_chunks * sizeof(*f->chunks));
    }
    d9d_manifest_close(m);
}

d9d_status d9d_content_hash_checkpoint(const char *dir, int jobs, d9d_hash *out)
{
    d9d_checkpoint *c = NULL;
    d9d_hasher *h = NULL;
    d9d_status st;

    D9D_TRY_OR(st, d9d_hasher_create(&h), out);
    D9D_TRY_OR(st, d9d_checkpoint_open(dir, &c), out);
    D9D_TRY_OR(st,
               add_tensors(h,
                           (tensor_list){.n = d9d_checkpoint_count(c),
                                         .from = c,
                                         .at = checkpoint_at,
                                         .read = checkpoint_read},
                           jobs),
               out);
    add_manifest(h, dir);
    *out = d9d_hasher_digest(h);
out:
    d9d_checkpoint_close(c);
    d9d_hasher_free(h);
    return st;
}

static d9d_status add_adapter(d9d_hasher *h, const char *config, const char *weights)
{
    d9d_safetensors_file *f;
    d9d_hash hash;
    d9d_status st;

    if (config == NULL || weights == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for the names of an adapter's files");
    D9D_TRY(d9d_content_hash_file(config, &hash));
    d9d_hasher_add(h, &hash, sizeof(hash));
    D9D_TRY(d9d_safetensors_open(weights, &f));
    st = add_tensors(
        h,
        (tensor_list){.n = d9d_safetensors_count(f), .from = f, .at = file_at, .read = file_read},
        0);
    d9d_safetensors_close(f);
    return st;
}

d9d_status d9d_content_hash_adapter(const char *dir, d9d_hash *out)
{
    d9d_arena a = {0};
    d9d_hasher *h = NULL;
    d9d_status st = d9d_hasher_create(&h);

    if (st == D9D_OK)
        st = add_adapter(h, d9d_fs_join(&a, dir, "adapter_config.json"),
                         d9d_fs_join(&a, dir, "adapter_model.safetensors"));
    if (st == D9D_OK)
        *out = d9d_hasher_digest(h);
    d9d_hasher_free(h);
    d9d_arena_release(&a);
    return st;
}

/* --- quick hash ---------------------------------------------------------------------------- */

/* Hashes the end of a file: further training changes the last bytes of the weights, but not the
 * header. */
static d9d_status add_tail(d9d_hasher *h, const char *path)
{
    char tail[TAIL];
    uint64_t size, n;
    d9d_file f;
    d9d_status st;

    D9D_TRY(d9d_fs_size(path, &size));
    D9D_TRY(d9d_file_open(path, &f));
    n = size < TAIL ? size : TAIL;
    st = d9d_file_read_at(&f, tail, n, size - n);
    d9d_file_release(&f);
    d9d_hasher_add(h, &size, sizeof(size));
    if (st == D9D_OK)
        d9d_hasher_add(h, tail, n);
    return st;
}

d9d_status d9d_content_hash_quick(const char *dir, d9d_hash *out)
{
    d9d_fs_names names = {0};
    d9d_hasher *h = NULL;
    d9d_arena a = {0};
    d9d_status st;

    D9D_TRY(d9d_hasher_create(&h));
    D9D_TRY_OR(st, d9d_fs_list(dir, &a, &names), out);
    for (size_t i = 0; i < names.n; i++) {
        const char *path = d9d_fs_join(&a, dir, names.name[i]);

        if (!has_suffix(names.name[i], ".safetensors") && !has_suffix(names.name[i], ".json"))
            continue;
        if (path == NULL) {
            st = D9D_FAIL(D9D_ENOMEM, "%s: a name in it", dir);
            goto out;
        }
        d9d_hasher_add(h, names.name[i], strlen(names.name[i]));
        D9D_TRY_OR(st, add_tail(h, path), out);
    }
    *out = d9d_hasher_digest(h);
out:
    d9d_hasher_free(h);
    d9d_arena_release(&a);
    return st;
}
