/* checkpoint.c - a directory as one source.  See d9d/ckpt/checkpoint.h. */
#include "d9d/ckpt/checkpoint.h"

#include <stdlib.h>

#include "ckpt/json_scan.h"
#include "ckpt/st_index.h"

struct place {
    const d9d_st_file *file;
    const d9d_st_tensor *tensor;
};

struct d9d_checkpoint {
    char *dir;
    d9d_arena arena;
    D9D_VEC(d9d_st_file *) files;
    D9D_VEC(struct place) tensors; /* by file, then offset */
    d9d_map by_name;               /* name to number, plus 1, as a pointer */
};

static d9d_status no_memory(const char *dir)
{
    return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", dir);
}

/* --- files --------------------------------------------------------------------- */

static d9d_status add_file(d9d_checkpoint *c, const char *name)
{
    char *path = d9d_fs_join(&c->arena, c->dir, name);
    d9d_st_file *f;

    if (path == NULL)
        return no_memory(c->dir);
    D9D_TRY(D9D_VEC_RESERVE(&c->files, 1));
    D9D_TRY(d9d_st_open(path, &f));
    c->files.data[c->files.len++] = f;
    for (size_t i = 0; i < d9d_st_count(f); i++) {
        const d9d_st_tensor *t = d9d_st_at(f, i);
        uintptr_t before = (uintptr_t)d9d_map_get(&c->by_name, t->name, strlen(t->name));

        if (before != 0)
            return D9D_FAIL(D9D_EFORMAT, "%s: tensor %s is in %s too", path, t->name,
                            d9d_st_path(c->tensors.data[before - 1].file));
        D9D_TRY(D9D_VEC_PUSH(&c->tensors, (struct place){f, t}));
        D9D_TRY(
            d9d_map_put(&c->by_name, t->name, strlen(t->name), (void *)(uintptr_t)c->tensors.len));
    }
    return D9D_OK;
}

/* The last component of a path that d9d_fs_join() made. */
static const char *base_name(const char *path)
{
    return strrchr(path, '/') + 1;
}

/* Index and headers say the same. */
static d9d_status check_index(const d9d_checkpoint *c, const d9di_index *index)
{
    for (size_t i = 0; i < index->map.len; i++) {
        const char *name = index->map.entries[i].key, *file = index->map.entries[i].value;
        uintptr_t at = (uintptr_t)d9d_map_get(&c->by_name, name, strlen(name));

        if (at == 0 || strcmp(base_name(d9d_st_path(c->tensors.data[at - 1].file)), file) != 0)
            return D9D_FAIL(D9D_EFORMAT, "%s: tensor %s should be in %s, which lacks it",
                            index->path, name, file);
    }
    for (size_t i = 0; i < c->tensors.len; i++) {
        const char *name = c->tensors.data[i].tensor->name;

        if (!d9d_map_has(&index->map, name, strlen(name)))
            return D9D_FAIL(D9D_EFORMAT, "%s: tensor %s of %s is not listed", index->path, name,
                            d9d_st_path(c->tensors.data[i].file));
    }
    return D9D_OK;
}

static d9d_status open_indexed(d9d_checkpoint *c, const char *path)
{
    d9di_index index = {0};
    d9d_status st;

    D9D_TRY_OR(st, d9di_index_read(path, &index), out);
    for (size_t i = 0; i < index.n_files; i++)
        D9D_TRY_OR(st, add_file(c, index.files[i]), out);
    st = check_index(c, &index);
out:
    d9di_index_release(&index);
    return st;
}

static d9d_status open_dir(d9d_checkpoint *c)
{
    char *index = d9d_fs_join(&c->arena, c->dir, D9D_INDEX_NAME);
    char *single = d9d_fs_join(&c->arena, c->dir, "model.safetensors");

    if (index == NULL || single == NULL)
        return no_memory(c->dir);
    if (d9d_fs_exists(index))
        return open_indexed(c, index);
    if (d9d_fs_exists(single))
        return add_file(c, "model.safetensors");
    return D9D_FAIL(D9D_ENOTFOUND, "%s: neither model.safetensors nor " D9D_INDEX_NAME " is there",
                    c->dir);
}

d9d_status d9d_checkpoint_open(const char *dir, d9d_checkpoint **out)
{
    d9d_checkpoint *c = calloc(1, sizeof(*c));
    size_t n = strlen(dir);
    d9d_status st;

    if (c == NULL)
        return no_memory(dir);
    while (n > 1 && dir[n - 1] == '/')
        n--;
    c->dir = d9d_arena_strndup(&c->arena, dir, n);
    if (c->dir == NULL) {
        st = no_memory(dir);
        goto out;
    }
    D9D_TRY_OR(st, open_dir(c), out);
    *out = c;
    c = NULL;
out:
    d9d_checkpoint_close(c);
    return st;
}

void d9d_checkpoint_close(d9d_checkpoint *c)
{
    if (c == NULL)
        return;
    for (size_t i = 0; i < c->files.len; i++)
        d9d_st_close(c->files.data[i]);
    D9D_VEC_RELEASE(&c->files);
    D9D_VEC_RELEASE(&c->tensors);
    d9d_map_release(&c->by_name);
    d9d_arena_release(&c->arena);
    free(c);
}

/* --- looking ------------------------------------------------------------------------ */

const char *d9d_checkpoint_dir(const d9d_checkpoint *c)
{
    return c->dir;
}
size_t d9d_checkpoint_count(const d9d_checkpoint *c)
{
    return c->tensors.len;
}

const d9d_st_tensor *d9d_checkpoint_at(const d9d_checkpoint *c, size_t i)
{
    return c->tensors.data[i].tensor;
}

const d9d_st_tensor *d9d_checkpoint_find(const d9d_checkpoint *c, const char *name)
{
    uintptr_t at = (uintptr_t)d9d_map_get(&c->by_name, name, strlen(name));

    return at == 0 ? NULL : c->tensors.data[at - 1].tensor;
}

const char *d9d_checkpoint_place(const d9d_checkpoint *c, size_t i)
{
    return d9d_st_path(c->tensors.data[i].file);
}

d9d_status d9d_checkpoint_read(const d9d_checkpoint *c, size_t i, uint64_t at, void *dst,
                               uint64_t n)
{
    return d9d_st_read(c->tensors.data[i].file, c->tensors.data[i].tensor, at, dst, n);
}

static const d9d_st_tensor *source_at(void *self, size_t i)
{
    return d9d_checkpoint_at(self, i);
}
static const char *source_place(void *self, size_t i)
{
    return d9d_checkpoint_place(self, i);
}

static d9d_status source_read(void *self, size_t i, uint64_t at, void *dst, uint64_t n)
{
    return d9d_checkpoint_read(self, i, at, dst, n);
}

static int source_locate(void *self, size_t i, uint64_t *offset)
{
    const d9d_checkpoint *c = self;

    *offset = c->tensors.data[i].tensor->offset;
    return d9d_st_fd(c->tensors.data[i].file);
}

d9d_source d9d_checkpoint_source(d9d_checkpoint *c)
{
    return (d9d_source){c, c->tensors.len, source_at, source_place, source_read, source_locate};
}
