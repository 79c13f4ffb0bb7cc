/* shard_sink.c - a directory as one sink.  See d9d/ckpt/checkpoint.h. */
#include <inttypes.h>
#include <stdlib.h>

#include "ckpt/st_index.h"
#include "d9d/ckpt/checkpoint.h"

struct home { /* of an output */
    uint32_t shard;
    size_t number; /* of its declaration there */
};

struct d9d_shard_sink {
    char *dir;
    uint64_t shard_bytes, total;
    d9d_arena arena;
    D9D_VEC(d9d_st_writer *) shards;
    struct home *homes;
    const char **names, **files; /* for the index: of every output */
    size_t n;
};

static d9d_status no_memory(void)
{
    return D9D_FAIL(D9D_ENOMEM, "shards: out of memory");
}

d9d_status d9d_shard_sink_create(const char *dir, uint64_t shard_bytes, d9d_shard_sink **out)
{
    d9d_shard_sink *s = calloc(1, sizeof(*s));

    if (s == NULL || (s->dir = d9d_arena_strdup(&s->arena, dir)) == NULL) {
        d9d_shard_sink_free(s);
        return no_memory();
    }
    s->shard_bytes = shard_bytes;
    *out = s;
    return D9D_OK;
}

void d9d_shard_sink_free(d9d_shard_sink *s)
{
    if (s == NULL)
        return;
    for (size_t i = 0; i < s->shards.len; i++)
        d9d_st_writer_free(s->shards.data[i]);
    D9D_VEC_RELEASE(&s->shards);
    d9d_arena_release(&s->arena);
    free(s);
}

static d9d_status add_shard(d9d_shard_sink *s)
{
    if (s->shards.len == D9D_MAX_SHARDS)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: shards of %" PRIu64 " bytes would be more than %d; allow larger ones",
                        s->dir, s->shard_bytes, D9D_MAX_SHARDS);
    D9D_TRY(D9D_VEC_RESERVE(&s->shards, 1));
    D9D_TRY(d9d_st_writer_create(&s->shards.data[s->shards.len]));
    s->shards.len++;
    return d9d_st_writer_metadata(s->shards.data[s->shards.len - 1], "format", "pt");
}

/* Give every output its shard: the next one where the last would become too large. */
static d9d_status deal(d9d_shard_sink *s, const d9d_st_tensor *outputs, size_t n)
{
    uint64_t used = 0;
    size_t count = 0;

    D9D_TRY(add_shard(s));
    for (size_t i = 0; i < n; i++, count++) {
        const d9d_st_tensor *t = &outputs[i];
        d9d_st_writer *w;

        if (count > 0 && (t->bytes > s->shard_bytes || used > s->shard_bytes - t->bytes)) {
            D9D_TRY(add_shard(s));
            used = 0;
            count = 0;
        }
        w = s->shards.data[s->shards.len - 1];
        D9D_TRY(d9d_st_writer_declare(w, t->name, t->dtype, t->ndim, t->shape));
        s->homes[i] = (struct home){(uint32_t)(s->shards.len - 1), count};
        s->names[i] = d9d_arena_strdup(&s->arena, t->name);
        if (s->names[i] == NULL)
            return no_memory();
        used += t->bytes;
        s->total += t->bytes;
    }
    return D9D_OK;
}

static d9d_status begin(void *self, const d9d_st_tensor *outputs, size_t n)
{
    d9d_shard_sink *s = self;
    const char **shard_names;

    s->n = n;
    s->homes = d9d_arena_alloc(&s->arena, (n + 1) * sizeof(*s->homes));
    s->names = d9d_arena_alloc(&s->arena, (n + 1) * sizeof(*s->names));
    s->files = d9d_arena_alloc(&s->arena, (n + 1) * sizeof(*s->files));
    if (s->homes == NULL || s->names == NULL || s->files == NULL)
        return no_memory();
    D9D_TRY(deal(s, outputs, n));
    shard_names = d9d_arena_alloc(&s->arena, s->shards.len * sizeof(*shard_names));
    if (shard_names == NULL)
        return no_memory();
    for (size_t i = 0; i < s->shards.len; i++) {
        const char *path;

        shard_names[i] = s->shards.len == 1
                             ? d9d_arena_strdup(&s->arena, "model.safetensors")
                             : d9d_arena_printf(&s->arena, "model-%05zu-of-%05zu.safetensors",
                                                i + 1, s->shards.len);
        if (shard_names[i] == NULL ||
            (path = d9d_fs_join(&s->arena, s->dir, shard_names[i])) == NULL)
            return no_memory();
        D9D_TRY(d9d_st_writer_begin(s->shards.data[i], path));
    }
    for (size_t i = 0; i < n; i++)
        s->files[i] = shard_names[s->homes[i].shard];
    return D9D_OK;
}

static d9d_status put(void *self, size_t i, uint64_t at, const void *src, uint64_t n)
{
    d9d_shard_sink *s = self;

    return d9d_st_writer_put(s->shards.data[s->homes[i].shard], s->homes[i].number, at, src, n);
}

static d9d_status copy(void *self, size_t i, uint64_t at, int fd, uint64_t offset, uint64_t n)
{
    d9d_shard_sink *s = self;

    return d9d_st_writer_copy(s->shards.data[s->homes[i].shard], s->homes[i].number, at, fd, offset,
                              n);
}

d9d_sink d9d_shard_sink_sink(d9d_shard_sink *s)
{
    return (d9d_sink){s, begin, put, copy};
}

d9d_status d9d_shard_sink_end(d9d_shard_sink *s)
{
    char *path = d9d_fs_join(&s->arena, s->dir, D9D_INDEX_NAME);

    if (path == NULL)
        return no_memory();
    for (size_t i = 0; i < s->shards.len; i++)
        D9D_TRY(d9d_st_writer_end(s->shards.data[i]));
    if (s->shards.len == 1)
        return D9D_OK;
    return d9di_index_write(path, s->names, s->files, s->n, s->total);
}
