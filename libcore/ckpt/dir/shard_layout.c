/* shard_layout.c - see shard_layout.h. */
#include "ckpt/dir/shard_layout.h"

#include <errno.h>
#include <inttypes.h>
#include <sys/stat.h>

#include "ckpt/safetensors/st_index.h"
#include "d9d/ckpt/dir/checkpoint.h"

static d9d_status no_memory(void)
{
    return D9D_FAIL(D9D_ENOMEM, "shards: out of memory");
}

void d9di_shard_layout_release(d9di_shard_layout *l)
{
    D9D_VEC_RELEASE(&l->files);
    d9d_arena_release(&l->arena);
}

/* --- files --------------------------------------------------------------------------------- */

/* Adds a file of n contiguous extents; `extents` is in the arena. */
static d9d_status add_file(d9di_shard_layout *l, const char *name,
                           d9di_shard_layout_extent *extents, size_t n)
{
    d9di_shard_layout_file f = {.name = d9d_arena_strdup(&l->arena, name),
                                .first_chunk = l->n_chunks,
                                .extents = extents,
                                .n_extents = n};

    if (f.name == NULL)
        return no_memory();
    for (size_t i = 0; i < n; i++)
        f.bytes += extents[i].bytes;
    f.n_chunks = (size_t)(f.bytes / D9D_MANIFEST_CHUNK + (f.bytes % D9D_MANIFEST_CHUNK != 0));
    if (!d9d_checked_add_u64(l->bytes, f.bytes, &l->bytes) || l->bytes > INT64_MAX)
        return D9D_FAIL(D9D_EINVAL, "%s: the sizes of all files overflow", name);
    l->n_chunks += f.n_chunks;
    return D9D_VEC_PUSH(&l->files, f);
}

static d9d_status add_single_extent(d9di_shard_layout *l, const char *name,
                                    d9di_shard_layout_extent extent)
{
    d9di_shard_layout_extent *p = d9d_arena_alloc(&l->arena, sizeof(*p));

    if (p == NULL)
        return no_memory();
    *p = extent;
    return add_file(l, name, p, 1);
}

d9d_status d9di_shard_layout_add_text(d9di_shard_layout *l, const char *name, const char *text,
                                      size_t n)
{
    char *copy = d9d_arena_alloc(&l->arena, n + 1);

    if (copy == NULL)
        return no_memory();
    memcpy(copy, text, n);
    return add_single_extent(l, name, (d9di_shard_layout_extent){.bytes = n, .text = copy});
}

static d9d_status stat_regular(const char *path, struct stat *s)
{
    if (stat(path, s) != 0)
        return D9D_FAIL(D9D_EIO, "%s: cannot look at it: %s", path, strerror(errno));
    if (!S_ISREG(s->st_mode))
        return D9D_FAIL(D9D_EINVAL, "%s: is not a regular file", path);
    return D9D_OK;
}

d9d_status d9di_shard_layout_add_copy(d9di_shard_layout *l, const char *name, const char *path)
{
    d9di_shard_layout_extent extent = {.path = d9d_arena_strdup(&l->arena, path)};
    struct stat s;

    if (extent.path == NULL)
        return no_memory();
    D9D_TRY(stat_regular(path, &s));
    extent.bytes = (uint64_t)s.st_size;
    return add_single_extent(l, name, extent);
}

/* --- shards ---------------------------------------------------------------------------------- */

typedef D9D_VEC(size_t) shard_starts; /* first output of each shard, then the end */

/* Starts a new shard where the current one would become too large. */
static d9d_status split_shards(const char *dir, uint64_t shard_bytes,
                               const d9d_safetensors_tensor *outputs, size_t n, shard_starts *out)
{
    uint64_t used = 0;

    D9D_TRY(D9D_VEC_PUSH(out, 0));
    for (size_t i = 0; i < n; i++) {
        const uint64_t bytes = outputs[i].bytes;

        if (i > out->data[out->len - 1] && (bytes > shard_bytes || used > shard_bytes - bytes)) {
            D9D_TRY(D9D_VEC_PUSH(out, i));
            used = 0;
        }
        used += bytes;
    }
    if (out->len > D9D_MAX_SHARDS)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: shards of %" PRIu64
                        " bytes would be %zu, at most %d can be numbered; allow larger ones",
                        dir, shard_bytes, out->len, D9D_MAX_SHARDS);
    return D9D_VEC_PUSH(out, n);
}

/* Lists the header and then the tensors in file order. */
static d9d_status list_extents(d9di_shard_layout *l, const d9d_safetensors_writer *w, size_t first,
                               size_t n, d9di_shard_layout_extent **out)
{
    d9di_shard_layout_extent *p = d9d_arena_alloc(&l->arena, (n + 1) * sizeof(*p));
    size_t header;
    const char *text = d9d_safetensors_writer_header(w, &header);
    char *copy = d9d_arena_alloc(&l->arena, header);

    if (p == NULL || copy == NULL)
        return no_memory();
    memcpy(copy, text, header);
    p[0] = (d9di_shard_layout_extent){.bytes = header, .text = copy};
    for (size_t k = 0; k < n; k++) {
        const size_t i = d9d_safetensors_writer_order(w, k);

        p[k + 1] = (d9di_shard_layout_extent){.offset = d9d_safetensors_writer_offset(w, i),
                                              .output = first + i};
        p[k].bytes = p[k + 1].offset - p[k].offset;
    }
    p[n].bytes = d9d_safetensors_writer_bytes(w) - p[n].offset;
    *out = p;
    return D9D_OK;
}

static d9d_status add_shard(d9di_shard_layout *l, const char *dir, const char *name,
                            const d9d_safetensors_tensor *outputs, size_t first, size_t n)
{
    const char *path = d9d_fs_join(&l->arena, dir, name);
    d9d_safetensors_writer *w = NULL;
    d9di_shard_layout_extent *extents = NULL;
    d9d_status st;

    if (path == NULL)
        return no_memory();
    D9D_TRY(d9d_safetensors_writer_create(&w));
    D9D_TRY_OR(st, d9d_safetensors_writer_metadata(w, "format", "pt"), out);
    for (size_t i = first; i < first + n; i++) {
        const d9d_safetensors_tensor *t = &outputs[i];

        D9D_TRY_OR(st, d9d_safetensors_writer_declare(w, t->name, t->dtype, t->ndim, t->shape),
                   out);
    }
    D9D_TRY_OR(st, d9d_safetensors_writer_layout(w, path), out);
    D9D_TRY_OR(st, list_extents(l, w, first, n, &extents), out);
    st = add_file(l, name, extents, n + 1);
out:
    d9d_safetensors_writer_free(w);
    return st;
}

static d9d_status add_index(d9di_shard_layout *l, const shard_starts *first,
                            const d9d_safetensors_tensor *outputs,
                            const d9di_shard_layout_file *shards)
{
    const size_t n = first->data[first->len - 1];
    uint64_t total = 0;
    d9d_buf b = {0};
    d9d_status st;

    for (size_t i = 0; i < n; i++)
        total += outputs[i].bytes;
    D9D_TRY_OR(st, d9di_safetensors_index_begin(&b, total), out);
    for (size_t s = 0; s + 1 < first->len; s++)
        for (size_t i = first->data[s]; i < first->data[s + 1]; i++)
            D9D_TRY_OR(st,
                       d9di_safetensors_index_add(&b, outputs[i].name, shards[s].name, i + 1 == n),
                       out);
    D9D_TRY_OR(st, d9di_safetensors_index_end(&b), out);
    st = d9di_shard_layout_add_text(l, D9D_CHECKPOINT_INDEX_NAME, b.data, b.len);
out:
    d9d_buf_release(&b);
    return st;
}

d9d_status d9di_shard_layout_add_shards(d9di_shard_layout *l, const char *dir, uint64_t shard_bytes,
                                        const d9d_safetensors_tensor *outputs, size_t n)
{
    const size_t before = l->files.len;
    shard_starts first = {0};
    d9d_status st;

    D9D_TRY_OR(st, split_shards(dir, shard_bytes, outputs, n, &first), out);
    for (size_t s = 0; s + 1 < first.len; s++) {
        char name[64] = "model.safetensors";

        if (first.len > 2)
            (void)snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", s + 1,
                           first.len - 1);
        D9D_TRY_OR(
            st, add_shard(l, dir, name, outputs, first.data[s], first.data[s + 1] - first.data[s]),
            out);
    }
    if (first.len > 2)
        st = add_index(l, &first, outputs, l->files.data + before);
out:
    D9D_VEC_RELEASE(&first);
    return st;
}

/* --- lookup --------------------------------------------------------------------------------- */

size_t d9di_shard_layout_find_chunk(const d9di_shard_layout *l, size_t chunk, uint64_t *at,
                                    uint64_t *n)
{
    size_t lo = 0,
           hi = l->files.len; /* binary search for the last file that begins at or before it */
    const d9di_shard_layout_file *f;

    while (hi - lo > 1) {
        const size_t mid = lo + (hi - lo) / 2;

        if (l->files.data[mid].first_chunk <= chunk)
            lo = mid;
        else
            hi = mid;
    }
    f = &l->files.data[lo];
    *at = (chunk - f->first_chunk) * D9D_MANIFEST_CHUNK;
    *n = f->bytes - *at < D9D_MANIFEST_CHUNK ? f->bytes - *at : D9D_MANIFEST_CHUNK;
    return lo;
}

size_t d9di_shard_layout_find_extent(const d9di_shard_layout_file *f, uint64_t at)
{
    size_t lo = 0, hi = f->n_extents;

    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;

        if (f->extents[mid].offset + f->extents[mid].bytes <= at)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

d9d_status d9di_shard_layout_hash(const d9di_shard_layout *l, d9d_hasher *h)
{
    for (size_t i = 0; i < l->files.len; i++) {
        const d9di_shard_layout_file *f = &l->files.data[i];

        d9d_hasher_add(h, f->name, strlen(f->name) + 1);
        for (size_t k = 0; k < f->n_extents; k++) {
            const d9di_shard_layout_extent *p = &f->extents[k];
            const uint64_t words[] = {p->offset, p->bytes, p->output};
            struct stat s;

            d9d_hasher_add(h, words, sizeof(words));
            if (p->text != NULL)
                d9d_hasher_add(h, p->text, p->bytes);
            if (p->path == NULL)
                continue;
            D9D_TRY(stat_regular(p->path, &s));
            d9d_hasher_add(h, &s.st_size, sizeof(s.st_size));
            d9d_hasher_add(h, &s.st_mtim, sizeof(s.st_mtim));
        }
    }
    return D9D_OK;
}
