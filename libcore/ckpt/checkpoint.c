/* checkpoint.c - a directory as one source.  See d9d/ckpt/checkpoint.h. */
#include "d9d/ckpt/checkpoint.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "ckpt/json_scan.h"
#include "ckpt/st_index.h"

/* One of the directory's safetensors files. */
struct file {
    const char *name, *path;
    d9d_st_file *st;       /* NULL: its header is not read */
    d9d_st_tensor *listed; /* then: names from the index */
    size_t n_listed;
};

struct place {
    size_t file;
    const d9d_st_tensor *tensor;
};

struct d9d_checkpoint {
    char *dir;
    d9d_arena arena;
    d9di_index index;
    bool indexed;
    struct file *files; /* by name */
    size_t n_files;
    D9D_VEC(struct place) tensors; /* by file, then offset */
    d9d_map by_name;               /* name to number, plus 1, as a pointer */
};

static d9d_status no_memory(const char *dir)
{
    return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", dir);
}

static void *to_pointer(size_t number)
{
    return (void *)(uintptr_t)(number + 1);
}

/* --- listing --------------------------------------------------------------------- */

static d9d_status name_files(d9d_checkpoint *c, char *const *names, size_t n)
{
    c->files = d9d_arena_alloc(&c->arena, (n + 1) * sizeof(*c->files));
    if (c->files == NULL)
        return no_memory(c->dir);
    for (size_t i = 0; i < n; i++) {
        c->files[i].name = names[i];
        c->files[i].path = d9d_fs_join(&c->arena, c->dir, names[i]);
        if (c->files[i].path == NULL)
            return no_memory(c->dir);
    }
    c->n_files = n;
    return D9D_OK;
}

/* The index's names, file by file. */
static d9d_status list_names(d9d_checkpoint *c)
{
    const d9d_map *map = &c->index.map;
    d9d_map numbers = {0}; /* of files */
    d9d_status st = D9D_OK;

    for (size_t i = 0; i < c->n_files; i++)
        D9D_TRY_OR(st,
                   d9d_map_put(&numbers, c->files[i].name, strlen(c->files[i].name), to_pointer(i)),
                   out);
    for (int pass = 0; pass < 2; pass++) { /* count, then fill */
        for (size_t i = 0; i < map->len; i++) {
            const char *file = map->entries[i].value;
            size_t k = (size_t)(uintptr_t)d9d_map_get(&numbers, file, strlen(file)) - 1;

            if (pass == 1)
                c->files[k].listed[c->files[k].n_listed].name = map->entries[i].key;
            c->files[k].n_listed++;
        }
        for (size_t i = 0; i < c->n_files && pass == 0; i++) {
            struct file *f = &c->files[i];

            f->listed = d9d_arena_alloc(&c->arena, (f->n_listed + 1) * sizeof(*f->listed));
            if (f->listed == NULL) {
                st = no_memory(c->dir);
                goto out;
            }
            f->n_listed = 0;
        }
    }
out:
    d9d_map_release(&numbers);
    return st;
}

static d9d_status add_tensor(d9d_checkpoint *c, size_t file, const d9d_st_tensor *t)
{
    uintptr_t before = (uintptr_t)d9d_map_get(&c->by_name, t->name, strlen(t->name));

    if (before != 0)
        return D9D_FAIL(D9D_EFORMAT, "%s: tensor %s is in %s too", c->files[file].path, t->name,
                        c->files[c->tensors.data[before - 1].file].path);
    D9D_TRY(D9D_VEC_PUSH(&c->tensors, (struct place){file, t}));
    return d9d_map_put(&c->by_name, t->name, strlen(t->name), to_pointer(c->tensors.len - 1));
}

/* Index and headers say the same. */
static d9d_status check_index(const d9d_checkpoint *c)
{
    const d9d_map *map = &c->index.map;

    for (size_t i = 0; i < map->len; i++) {
        const char *name = map->entries[i].key, *file = map->entries[i].value;
        uintptr_t at = (uintptr_t)d9d_map_get(&c->by_name, name, strlen(name));

        if (at == 0 || strcmp(c->files[c->tensors.data[at - 1].file].name, file) != 0)
            return D9D_FAIL(D9D_EFORMAT, "%s: tensor %s should be in %s, which lacks it",
                            c->index.path, name, file);
    }
    for (size_t i = 0; i < c->tensors.len; i++) {
        const char *name = c->tensors.data[i].tensor->name;

        if (!d9d_map_has(map, name, strlen(name)))
            return D9D_FAIL(D9D_EFORMAT, "%s: tensor %s of %s is not listed", c->index.path, name,
                            c->files[c->tensors.data[i].file].path);
    }
    return D9D_OK;
}

/* Number the tensors anew: those of headers that are read, else the index's. */
static d9d_status number(d9d_checkpoint *c)
{
    c->tensors.len = 0;
    d9d_map_release(&c->by_name);
    for (size_t i = 0; i < c->n_files; i++) {
        const struct file *f = &c->files[i];
        size_t n = f->st != NULL ? d9d_st_count(f->st) : f->n_listed;

        for (size_t k = 0; k < n; k++)
            D9D_TRY(add_tensor(c, i, f->st != NULL ? d9d_st_at(f->st, k) : &f->listed[k]));
    }
    return c->indexed ? check_index(c) : D9D_OK;
}

static d9d_status list_dir(d9d_checkpoint *c)
{
    char *index = d9d_fs_join(&c->arena, c->dir, D9D_INDEX_NAME);
    char *single = d9d_arena_strdup(&c->arena, "model.safetensors");

    if (index == NULL || single == NULL)
        return no_memory(c->dir);
    c->indexed = d9d_fs_exists(index);
    if (c->indexed) {
        D9D_TRY(d9di_index_read(index, &c->index));
        D9D_TRY(name_files(c, c->index.files, c->index.n_files));
        D9D_TRY(list_names(c));
        return number(c);
    }
    D9D_TRY(name_files(c, &single, 1));
    if (!d9d_fs_exists(c->files[0].path))
        return D9D_FAIL(D9D_ENOTFOUND,
                        "%s: neither model.safetensors nor " D9D_INDEX_NAME " is there", c->dir);
    return d9d_checkpoint_load(c, NULL, 0);
}

d9d_status d9d_checkpoint_list(const char *dir, d9d_checkpoint **out)
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
    D9D_TRY_OR(st, list_dir(c), out);
    *out = c;
    c = NULL;
out:
    d9d_checkpoint_close(c);
    return st;
}

/* --- headers ---------------------------------------------------------------------- */

d9d_status d9d_checkpoint_load(d9d_checkpoint *c, const char *const *names, size_t n)
{
    bool *wanted = d9d_arena_alloc(&c->arena, c->n_files + 1);

    if (wanted == NULL)
        return no_memory(c->dir);
    for (size_t i = 0; i < n; i++) {
        uintptr_t at = (uintptr_t)d9d_map_get(&c->by_name, names[i], strlen(names[i]));

        if (at != 0)
            wanted[c->tensors.data[at - 1].file] = true;
    }
    for (size_t i = 0; i < c->n_files; i++)
        if (c->files[i].st == NULL && (names == NULL || wanted[i]))
            D9D_TRY(d9d_st_open(c->files[i].path, &c->files[i].st));
    return number(c);
}

d9d_status d9d_checkpoint_open(const char *dir, d9d_checkpoint **out)
{
    d9d_checkpoint *c;
    d9d_status st;

    D9D_TRY(d9d_checkpoint_list(dir, &c));
    st = d9d_checkpoint_load(c, NULL, 0);
    if (st == D9D_OK)
        *out = c;
    else
        d9d_checkpoint_close(c);
    return st;
}

void d9d_checkpoint_close(d9d_checkpoint *c)
{
    if (c == NULL)
        return;
    for (size_t i = 0; i < c->n_files; i++)
        d9d_st_close(c->files[i].st);
    D9D_VEC_RELEASE(&c->tensors);
    d9d_map_release(&c->by_name);
    d9di_index_release(&c->index);
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
    return c->files[c->tensors.data[i].file].path;
}

d9d_status d9d_checkpoint_read(const d9d_checkpoint *c, size_t i, uint64_t at, void *dst,
                               uint64_t n)
{
    return d9d_st_read(c->files[c->tensors.data[i].file].st, c->tensors.data[i].tensor, at, dst, n);
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

/* A request is cut short at what a device takes at once: many small ones are heard. */
static void source_soon(void *self, size_t i, uint64_t at, uint64_t n)
{
    enum { REQUEST = 256 << 10 };
    const d9d_checkpoint *c = self;
    const struct place *p = &c->tensors.data[i];

    for (uint64_t done = 0; done < n; done += REQUEST)
        (void)posix_fadvise(d9d_st_fd(c->files[p->file].st), (off_t)(p->tensor->offset + at + done),
                            (off_t)(n - done < REQUEST ? n - done : REQUEST), POSIX_FADV_WILLNEED);
}

static void identify_tensor(const d9d_st_tensor *t, d9d_hasher *h)
{
    const int64_t kind[] = {t->dtype, t->ndim, (int64_t)t->offset};

    d9d_hasher_add(h, t->name, strlen(t->name) + 1);
    d9d_hasher_add(h, kind, sizeof(kind));
    d9d_hasher_add(h, t->shape, (size_t)t->ndim * sizeof(t->shape[0]));
}

/* Files by name, size and time of their last change; and where tensors are in them. */
static void source_identify(void *self, d9d_hasher *h)
{
    const d9d_checkpoint *c = self;

    for (size_t i = 0; i < c->n_files; i++) {
        struct stat s = {0};

        if (c->files[i].st != NULL)
            (void)fstat(d9d_st_fd(c->files[i].st), &s);
        d9d_hasher_add(h, c->files[i].name, strlen(c->files[i].name) + 1);
        d9d_hasher_add(h, &s.st_size, sizeof(s.st_size));
        d9d_hasher_add(h, &s.st_mtim, sizeof(s.st_mtim));
    }
    for (size_t i = 0; i < c->tensors.len; i++)
        identify_tensor(c->tensors.data[i].tensor, h);
}

d9d_source d9d_checkpoint_source(d9d_checkpoint *c)
{
    return (d9d_source){.self = c,
                        .n = c->tensors.len,
                        .at = source_at,
                        .place = source_place,
                        .read = source_read,
                        .soon = source_soon,
                        .identify = source_identify};
}
