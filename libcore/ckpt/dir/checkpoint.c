/* checkpoint.c - reads a model folder or a training checkpoint as a tensor source.  See
 * d9d/ckpt/dir/checkpoint.h. */
#include "d9d/ckpt/dir/checkpoint.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "ckpt/safetensors/json_scan.h"
#include "ckpt/safetensors/st_index.h"
#include "d9d/ckpt/dir/slices.h"

/* One of the directory's safetensors files. */
struct file {
    const char *name, *path;
    d9d_safetensors_file *st;       /* NULL: its header is not read yet */
    d9d_safetensors_tensor *listed; /* used while st is NULL: names from the index */
    size_t n_listed;
};

/* Location of a tensor, or of a slice of one. */
struct stored_slice {
    size_t file;
    const d9d_safetensors_tensor
        *stored; /* as stored in its file; NULL: the header is not read yet */
    d9d_box box; /* region, if the tensor has several slices */
};

struct tensor_location {
    const d9d_safetensors_tensor *tensor; /* the global tensor */
    struct stored_slice *slices;
    size_t n;
};

struct d9d_checkpoint {
    char *dir;
    d9d_arena arena;
    d9di_safetensors_index index;
    bool indexed;
    d9d_manifest *manifest; /* of a training checkpoint, with `slices`; otherwise NULL */
    d9d_slices slices;
    struct file *files; /* by name */
    size_t n_files;
    d9d_map numbers;                         /* of files, as by_name */
    D9D_VEC(struct tensor_location) tensors; /* by file, then offset */
    d9d_map by_name;                         /* name to number, plus 1, as a pointer */
    d9d_quantization quantization;
    d9d_dtype decoded;    /* type of decoded tensors */
    d9d_dequant *dequant; /* NULL: tensors are presented as they are stored */
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

static d9d_status set_files(d9d_checkpoint *c, char *const *names, size_t n)
{
    d9d_map_release(&c->numbers);
    c->files = d9d_arena_alloc(&c->arena, (n + 1) * sizeof(*c->files));
    if (c->files == NULL)
        return no_memory(c->dir);
    for (size_t i = 0; i < n; i++) {
        c->files[i].name = names[i];
        c->files[i].path = d9d_fs_join(&c->arena, c->dir, names[i]);
        if (c->files[i].path == NULL)
            return no_memory(c->dir);
        D9D_TRY(d9d_map_put(&c->numbers, names[i], strlen(names[i]), to_pointer(i)));
    }
    c->n_files = n;
    return D9D_OK;
}

/* The file's index; n_files if no file has this name. */
static size_t file_number(const d9d_checkpoint *c, const char *name)
{
    const uintptr_t found = (uintptr_t)d9d_map_get(&c->numbers, name, strlen(name));

    return found != 0 ? (size_t)found - 1 : c->n_files;
}

/* Lists the names of the index, grouped by file. */
static d9d_status list_names(d9d_checkpoint *c)
{
    const d9d_map *map = &c->index.map;

    for (int pass = 0; pass < 2; pass++) { /* count, then fill */
        for (size_t i = 0; i < map->len; i++) {
            const size_t k = file_number(c, map->entries[i].value);

            if (pass == 1)
                c->files[k].listed[c->files[k].n_listed].name = map->entries[i].key;
            c->files[k].n_listed++;
        }
        for (size_t i = 0; i < c->n_files && pass == 0; i++) {
            struct file *f = &c->files[i];

            f->listed = d9d_arena_alloc(&c->arena, (f->n_listed + 1) * sizeof(*f->listed));
            if (f->listed == NULL)
                return no_memory(c->dir);
            f->n_listed = 0;
        }
    }
    return D9D_OK;
}

/* The file of a tensor's first slice. */
static const struct file *tensor_file(const d9d_checkpoint *c, size_t i)
{
    return &c->files[c->tensors.data[i].slices[0].file];
}

/* Adds a tensor stored as a single slice. */
static d9d_status add_tensor(d9d_checkpoint *c, size_t file, const d9d_safetensors_tensor *t)
{
    uintptr_t before = (uintptr_t)d9d_map_get(&c->by_name, t->name, strlen(t->name));
    struct stored_slice *stored_slice = d9d_arena_alloc(&c->arena, sizeof(*stored_slice));

    if (before != 0)
        return D9D_FAIL(D9D_EFORMAT, "%s: tensor %s is in %s too", c->files[file].path, t->name,
                        tensor_file(c, before - 1)->path);
    if (stored_slice == NULL)
        return no_memory(c->dir);
    *stored_slice =
        (struct stored_slice){.file = file, .stored = c->files[file].st != NULL ? t : NULL};
    D9D_TRY(D9D_VEC_PUSH(&c->tensors, (struct tensor_location){t, stored_slice, 1}));
    return d9d_map_put(&c->by_name, t->name, strlen(t->name), to_pointer(c->tensors.len - 1));
}

/* Checks that index and headers agree. */
static d9d_status check_index(const d9d_checkpoint *c)
{
    const d9d_map *map = &c->index.map;

    for (size_t i = 0; i < map->len; i++) {
        const char *name = map->entries[i].key, *file = map->entries[i].value;
        uintptr_t at = (uintptr_t)d9d_map_get(&c->by_name, name, strlen(name));

        if (at == 0 || strcmp(tensor_file(c, at - 1)->name, file) != 0)
            return D9D_FAIL(D9D_EFORMAT, "%s: tensor %s should be in %s, which lacks it",
                            c->index.path, name, file);
    }
    for (size_t i = 0; i < c->tensors.len; i++) {
        const char *name = c->tensors.data[i].tensor->name;

        if (!d9d_map_has(map, name, strlen(name)))
            return D9D_FAIL(D9D_EFORMAT, "%s: tensor %s of %s is not listed", c->index.path, name,
                            tensor_file(c, i)->path);
    }
    return D9D_OK;
}

/* --- training checkpoints (slices) ------------------------------------------------------- */

static const char model_group[] = "model-r"; /* parameter files; the others hold optimizer state */

static bool is_parameter(const d9d_sliced_tensor *t)
{
    return t->n_slices > 0 && strncmp(t->slices[0].file, model_group, sizeof(model_group) - 1) == 0;
}

/* Finds the stored tensor of a slice and checks it against the manifest. */
static d9d_status find_stored_slice(const d9d_checkpoint *c, const d9d_sliced_tensor *t,
                                    const d9d_slice *slice, struct stored_slice *out)
{
    const size_t number = file_number(c, slice->file);
    const struct file *f = &c->files[number];
    const d9d_safetensors_tensor *found;
    char text[D9D_BOX_TEXT];

    if (number == c->n_files)
        return D9D_FAIL(D9D_EFORMAT, "%s: %s is not a file of parameters, %s is one", c->dir,
                        slice->file, t->name);
    found = f->st != NULL ? d9d_safetensors_find(f->st, t->name) : NULL;
    *out = (struct stored_slice){number, found, slice->box};
    if (f->st == NULL)
        return D9D_OK;
    if (found == NULL || found->dtype != t->dtype || found->ndim != slice->box.ndim ||
        memcmp(found->shape, slice->box.size, (size_t)found->ndim * sizeof(found->shape[0])) != 0)
        return D9D_FAIL(D9D_EFORMAT,
                        "%s: has not the slice %s of %s that " D9D_MANIFEST_NAME " places there",
                        f->path, d9d_box_text(&slice->box, text), t->name);
    return D9D_OK;
}

static d9d_status add_sliced(d9d_checkpoint *c, const d9d_sliced_tensor *t)
{
    d9d_safetensors_tensor *whole = d9d_arena_alloc(&c->arena, sizeof(*whole));
    struct stored_slice *slices = d9d_arena_alloc(&c->arena, t->n_slices * sizeof(*slices));
    int64_t left = d9d_shape_numel(&t->whole);

    if (whole == NULL || slices == NULL)
        return no_memory(c->dir);
    whole->name = t->name;
    whole->dtype = t->dtype;
    whole->ndim = t->whole.ndim;
    memcpy(whole->shape, t->whole.dim, sizeof(whole->shape));
    whole->bytes = (uint64_t)left * d9d_dtype_size(t->dtype);
    for (size_t i = 0; i < t->n_slices; i++) {
        D9D_TRY(find_stored_slice(c, t, &t->slices[i], &slices[i]));
        left -= d9d_box_volume(&t->slices[i].box);
    }
    if (left != 0)
        return D9D_FAIL(D9D_EFORMAT, "%s: its slices of %s leave %lld elements out", c->dir,
                        t->name, (long long)left);
    D9D_TRY(D9D_VEC_PUSH(&c->tensors, (struct tensor_location){whole, slices, t->n_slices}));
    return d9d_map_put(&c->by_name, t->name, strlen(t->name), to_pointer(c->tensors.len - 1));
}

static d9d_status add_all_sliced(d9d_checkpoint *c)
{
    for (size_t i = 0; i < c->slices.n; i++)
        if (is_parameter(&c->slices.tensors[i]))
            D9D_TRY(add_sliced(c, &c->slices.tensors[i]));
    return D9D_OK;
}

/* Lists a training checkpoint.  *found: the directory has a manifest with tensors. */
static d9d_status list_sliced(d9d_checkpoint *c, bool *found)
{
    char *path = d9d_fs_join(&c->arena, c->dir, D9D_MANIFEST_NAME);
    char **names;
    size_t n = 0;

    *found = false;
    if (path == NULL)
        return no_memory(c->dir);
    if (!d9d_fs_exists(path))
        return D9D_OK;
    D9D_TRY(d9d_manifest_open(c->dir, &c->manifest));
    if (json_object_get(d9d_manifest_root(c->manifest), "tensors") == NULL)
        return D9D_OK;
    D9D_TRY(d9d_slices_parse(c->manifest, path, &c->slices));
    names = d9d_arena_alloc(&c->arena, (d9d_manifest_count(c->manifest) + 1) * sizeof(*names));
    if (names == NULL)
        return no_memory(c->dir);
    for (size_t i = 0; i < d9d_manifest_count(c->manifest); i++) {
        const char *name = d9d_manifest_at(c->manifest, i)->name;

        if (strncmp(name, model_group, sizeof(model_group) - 1) == 0)
            names[n++] = (char *)(uintptr_t)name;
    }
    *found = true;
    return set_files(c, names, n);
}

/* Renumbers the tensors: from headers that are read, otherwise from the index. */
static d9d_status number(d9d_checkpoint *c)
{
    c->tensors.len = 0;
    d9d_map_release(&c->by_name);
    if (c->slices.n > 0)
        return add_all_sliced(c);
    for (size_t i = 0; i < c->n_files; i++) {
        const struct file *f = &c->files[i];
        size_t n = f->st != NULL ? d9d_safetensors_count(f->st) : f->n_listed;

        for (size_t k = 0; k < n; k++)
            D9D_TRY(add_tensor(c, i, f->st != NULL ? d9d_safetensors_at(f->st, k) : &f->listed[k]));
    }
    return c->indexed ? check_index(c) : D9D_OK;
}

static bool has_suffix(const char *name, const char *suffix)
{
    const size_t n = strlen(name), k = strlen(suffix);

    return n > k && strcmp(name + n - k, suffix) == 0;
}

/* Weights under another name or in another format, so that the message can say so; NULL: none. */
static const char *find_foreign(d9d_checkpoint *c)
{
    static const char *const suffixes[] = {".safetensors", ".bin", ".gguf", ".pt", ".pth", NULL};
    d9d_fs_names names = {0};

    if (d9d_fs_list(c->dir, &c->arena, &names) != D9D_OK)
        return NULL;
    for (const char *const *s = suffixes; *s != NULL; s++)
        for (size_t i = 0; i < names.n; i++)
            if (has_suffix(names.name[i], *s))
                return names.name[i];
    return NULL;
}

static d9d_status fail_no_weights(d9d_checkpoint *c)
{
    const char *foreign = find_foreign(c);

    return D9D_FAIL(D9D_ENOTFOUND,
                    "%s: neither model.safetensors nor " D9D_CHECKPOINT_INDEX_NAME
                    " is there%s%s%s",
                    c->dir, foreign != NULL ? "; " : "", foreign != NULL ? foreign : "",
                    foreign != NULL ? " is not read: save the model as safetensors" : "");
}

static d9d_status list_dir(d9d_checkpoint *c)
{
    char *index = d9d_fs_join(&c->arena, c->dir, D9D_CHECKPOINT_INDEX_NAME);
    char *single = d9d_arena_strdup(&c->arena, "model.safetensors");
    bool sliced;

    if (index == NULL || single == NULL)
        return no_memory(c->dir);
    c->indexed = d9d_fs_exists(index);
    if (c->indexed) {
        D9D_TRY(d9di_safetensors_index_read(index, &c->index));
        D9D_TRY(set_files(c, c->index.files, c->index.n_files));
        D9D_TRY(list_names(c));
        return number(c);
    }
    D9D_TRY(set_files(c, &single, 1));
    if (d9d_fs_exists(c->files[0].path))
        return d9d_checkpoint_load(c, NULL, 0);
    D9D_TRY(list_sliced(c, &sliced));
    return sliced ? number(c) : fail_no_weights(c);
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

/* --- decoding ---------------------------------------------------------------------- */

static d9d_tensor_source stored_source(d9d_checkpoint *c);

/* Pair the tensors as they are numbered now. */
static d9d_status pair_tensors(d9d_checkpoint *c)
{
    const d9d_tensor_source stored = stored_source(c);

    d9d_dequant_free(c->dequant);
    c->dequant = NULL;
    return c->quantization.method != D9D_QUANTIZATION_NONE
               ? d9d_dequant_create(&c->quantization, c->decoded, &stored, &c->dequant)
               : D9D_OK;
}

d9d_status d9d_checkpoint_decode(d9d_checkpoint *c, const d9d_quantization *q, d9d_dtype to)
{
    c->quantization = *q;
    c->decoded = to;
    return pair_tensors(c);
}

size_t d9d_checkpoint_decoded(const d9d_checkpoint *c)
{
    return c->dequant != NULL ? d9d_dequant_count(c->dequant) : 0;
}

/* --- headers ---------------------------------------------------------------------- */

/* Mark the files of a stored tensor. */
static void mark_files(const d9d_checkpoint *c, const char *name, bool *wanted)
{
    const uintptr_t at = (uintptr_t)d9d_map_get(&c->by_name, name, strlen(name));

    for (size_t k = 0; at != 0 && k < c->tensors.data[at - 1].n; k++)
        wanted[c->tensors.data[at - 1].slices[k].file] = true;
}

d9d_status d9d_checkpoint_load(d9d_checkpoint *c, const char *const *names, size_t n)
{
    bool *wanted = d9d_arena_alloc(&c->arena, c->n_files + 1);
    const char *stored[2];

    if (wanted == NULL)
        return no_memory(c->dir);
    for (size_t i = 0; i < n; i++) {
        const bool pair = c->dequant != NULL && d9d_dequant_stored(c->dequant, names[i], stored);

        mark_files(c, pair ? stored[0] : names[i], wanted);
        if (pair)
            mark_files(c, stored[1], wanted);
    }
    for (size_t i = 0; i < c->n_files; i++)
        if (c->files[i].st == NULL && (names == NULL || wanted[i]))
            D9D_TRY(d9d_safetensors_open(c->files[i].path, &c->files[i].st));
    D9D_TRY(number(c));
    return pair_tensors(c);
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
        d9d_safetensors_close(c->files[i].st);
    d9d_dequant_free(c->dequant);
    D9D_VEC_RELEASE(&c->tensors);
    d9d_map_release(&c->by_name);
    d9d_map_release(&c->numbers);
    d9di_safetensors_index_release(&c->index);
    d9d_slices_release(&c->slices);
    d9d_manifest_close(c->manifest);
    d9d_arena_release(&c->arena);
    free(c);
}

/* --- lookup ------------------------------------------------------------------------ */

const char *d9d_checkpoint_dir(const d9d_checkpoint *c)
{
    return c->dir;
}
size_t d9d_checkpoint_count(const d9d_checkpoint *c)
{
    return c->tensors.len;
}

const d9d_safetensors_tensor *d9d_checkpoint_at(const d9d_checkpoint *c, size_t i)
{
    return c->tensors.data[i].tensor;
}

const d9d_safetensors_tensor *d9d_checkpoint_find(const d9d_checkpoint *c, const char *name)
{
    uintptr_t at = (uintptr_t)d9d_map_get(&c->by_name, name, strlen(name));

    return at == 0 ? NULL : c->tensors.data[at - 1].tensor;
}

const char *d9d_checkpoint_file_path(const d9d_checkpoint *c, size_t i)
{
    return tensor_file(c, i)->path;
}

/* State of reading a span of a sliced tensor. */
struct read_span {
    const d9d_checkpoint *c;
    const struct stored_slice *slice;
    int64_t first, end; /* element range in the global tensor */
    uint64_t width;
    char *dst;
};

static d9d_status read_run(void *arg, int64_t src, int64_t dst, int64_t n)
{
    const struct read_span *s = arg;
    const int64_t from = dst > s->first ? dst : s->first;
    const int64_t to = dst + n < s->end ? dst + n : s->end;

    if (from >= to)
        return D9D_OK;
    return d9d_safetensors_read(
        s->c->files[s->slice->file].st, s->slice->stored, (uint64_t)(src + from - dst) * s->width,
        s->dst + (uint64_t)(from - s->first) * s->width, (uint64_t)(to - from) * s->width);
}

/* Copies what each slice holds of the rows that the span touches. */
static d9d_status read_slices(const struct tensor_location *p, struct read_span *s)
{
    d9d_box whole = {.ndim = p->tensor->ndim}, rows, part;
    int64_t row = 1;

    memcpy(whole.size, p->tensor->shape, sizeof(whole.size));
    for (int d = 1; d < whole.ndim; d++)
        row *= whole.size[d];
    rows = whole;
    rows.start[0] = s->first / row;
    rows.size[0] = (s->end - 1) / row + 1 - rows.start[0];
    for (size_t i = 0; i < p->n; i++) {
        s->slice = &p->slices[i];
        if (d9d_box_intersect(&s->slice->box, &rows, &part))
            D9D_TRY(d9d_box_runs(&part, &s->slice->box, &whole, read_run, s));
    }
    return D9D_OK;
}

d9d_status d9d_checkpoint_read(const d9d_checkpoint *c, size_t i, uint64_t at, void *dst,
                               uint64_t n)
{
    const struct tensor_location *p = &c->tensors.data[i];
    const uint64_t width = d9d_dtype_size(p->tensor->dtype);
    struct read_span s = {.c = c, .width = width, .dst = dst};

    if (p->n == 1)
        return d9d_safetensors_read(c->files[p->slices[0].file].st, p->slices[0].stored, at, dst,
                                    n);
    if (at % width != 0 || n % width != 0 || at > p->tensor->bytes || n > p->tensor->bytes - at)
        return D9D_FAIL(D9D_EINVAL, "%s: tensor %s: %llu bytes at %llu", c->dir, p->tensor->name,
                        (unsigned long long)n, (unsigned long long)at);
    s.first = (int64_t)(at / width);
    s.end = s.first + (int64_t)(n / width);
    return n > 0 ? read_slices(p, &s) : D9D_OK;
}

static const d9d_safetensors_tensor *source_at(void *self, size_t i)
{
    return d9d_checkpoint_at(self, i);
}
static const char *source_path(void *self, size_t i)
{
    return d9d_checkpoint_file_path(self, i);
}

static d9d_status source_read(void *self, size_t i, uint64_t at, void *dst, uint64_t n)
{
    return d9d_checkpoint_read(self, i, at, dst, n);
}

/* The kernel shortens a request to the device's maximal transfer, so it is issued as many small
 * ones. */
static void source_prefetch(void *self, size_t i, uint64_t at, uint64_t n)
{
    enum { READAHEAD_BYTES = 256 << 10 };
    const d9d_checkpoint *c = self;
    const struct stored_slice *p = &c->tensors.data[i].slices[0];

    if (c->tensors.data[i].n > 1) /* one span of the global tensor is many spans of its slices */
        return;
    for (uint64_t done = 0; done < n; done += READAHEAD_BYTES)
        (void)posix_fadvise(
            d9d_safetensors_fd(c->files[p->file].st), (off_t)(p->stored->offset + at + done),
            (off_t)(n - done < READAHEAD_BYTES ? n - done : READAHEAD_BYTES), POSIX_FADV_WILLNEED);
}

static void hash_tensor(const d9d_safetensors_tensor *t, d9d_hasher *h)
{
    const int64_t kind[] = {t->dtype, t->ndim, (int64_t)t->offset};

    d9d_hasher_add(h, t->name, strlen(t->name) + 1);
    d9d_hasher_add(h, kind, sizeof(kind));
    d9d_hasher_add(h, t->shape, (size_t)t->ndim * sizeof(t->shape[0]));
}

/* Hashes the name, size and modification time of each file, and the location of each tensor. */
static void source_fingerprint(void *self, d9d_hasher *h)
{
    const d9d_checkpoint *c = self;

    for (size_t i = 0; i < c->n_files; i++) {
        struct stat s = {0};

        if (c->files[i].st != NULL)
            (void)fstat(d9d_safetensors_fd(c->files[i].st), &s);
        d9d_hasher_add(h, c->files[i].name, strlen(c->files[i].name) + 1);
        d9d_hasher_add(h, &s.st_size, sizeof(s.st_size));
        d9d_hasher_add(h, &s.st_mtim, sizeof(s.st_mtim));
    }
    for (size_t i = 0; i < c->tensors.len; i++)
        for (size_t k = 0; k < c->tensors.data[i].n; k++) {
            const struct stored_slice *p = &c->tensors.data[i].slices[k];

            hash_tensor(p->stored != NULL ? p->stored : c->tensors.data[i].tensor, h);
            d9d_hasher_add(h, p->box.start, sizeof(p->box.start));
        }
}

static d9d_tensor_source stored_source(d9d_checkpoint *c)
{
    return (d9d_tensor_source){.self = c,
                               .n = c->tensors.len,
                               .at = source_at,
                               .path = source_path,
                               .read = source_read,
                               .prefetch = source_prefetch,
                               .fingerprint = source_fingerprint};
}

d9d_tensor_source d9d_checkpoint_source(d9d_checkpoint *c)
{
    return c->dequant != NULL ? d9d_dequant_source(c->dequant) : stored_source(c);
}
