/* checkpoint.c - reads a model folder or a training checkpoint as a tensor source.  See
 * d9d/ckpt/dir/checkpoint.h. */
#include "d9d/ckpt/dir/checkpoint.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "ckpt/safetensors/json_scan.h"
#include "ckpt/safetensors/st_index.h"
#include "d9d/base/num_format.h"
#include "d9d/ckpt/dir/slices.h"

/* One of the directory's safetensors files. */
struct file {
    const char *name, *path;
    d9d_safetensors_file *st;       /* NULL: its header is not read yet */
    d9d_safetensors_tensor *listed; /* used while st is NULL: names from the index */
    size_t n_listed;
};

/* Location of a tensor. */
struct tensor_location {
    const d9d_safetensors_tensor *tensor; /* the global tensor */
    size_t file;                          /* of its first slice */
    const d9d_safetensors_tensor
        *stored;                     /* as stored in that file; NULL: the header is not read yet */
    const d9d_sliced_tensor *sliced; /* its slices, if there are several; otherwise NULL */
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
    return &c->files[c->tensors.data[i].file];
}

/* Adds a tensor stored as a single slice. */
static d9d_status add_tensor(d9d_checkpoint *c, size_t file, const d9d_safetensors_tensor *t)
{
    uintptr_t before = (uintptr_t)d9d_map_get(&c->by_name, t->name, strlen(t->name));
    const d9d_safetensors_tensor *stored = c->files[file].st != NULL ? t : NULL;

    if (before != 0)
        return D9D_FAIL(D9D_EFORMAT, "%s: tensor %s is in %s too", c->files[file].path, t->name,
                        tensor_file(c, before - 1)->path);
    D9D_TRY(D9D_VEC_PUSH(&c->tensors, (struct tensor_location){t, file, stored, NULL}));
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

static const char model_group[] = "model"; /* of parameters; others hold optimizer state */

/* Finds the file of a slice and its stored tensor, which must agree with the manifest. */
static d9d_status find_stored(const d9d_checkpoint *c, const d9d_sliced_tensor *t,
                              const d9d_slice *slice, size_t *file,
                              const d9d_safetensors_tensor **out)
{
    char name[D9D_SLICES_FILE], text[D9D_BOX_TEXT];
    const size_t number = file_number(c, d9d_slices_file(&c->slices, t, slice, name));
    const struct file *f = &c->files[number];
    const d9d_safetensors_tensor *found;

    if (number == c->n_files)
        return D9D_FAIL(D9D_EFORMAT, "%s: %s is not a file of parameters, %s is one", c->dir,
                        d9d_slices_file(&c->slices, t, slice, name), t->name);
    found = f->st != NULL ? d9d_safetensors_find(f->st, t->name) : NULL;
    *file = number;
    *out = found;
    if (f->st == NULL)
        return D9D_OK;
    if (found == NULL || found->dtype != t->dtype || found->ndim != slice->box.ndim ||
        memcmp(found->shape, slice->box.size, (size_t)found->ndim * sizeof(found->shape[0])) != 0)
        return D9D_FAIL(D9D_EFORMAT,
                        "%s: has not the slice %s of %s that " D9D_MANIFEST_NAME " places there",
                        f->path, d9d_box_text(&slice->box, text), t->name);
    return D9D_OK;
}

/* A visit of a tensor's slices. */
struct slice_visit {
    const d9d_checkpoint *c;
    struct tensor_location *p;
    bool *wanted;  /* [files] to mark; or NULL */
    d9d_hasher *h; /* to add the slices to; or NULL */
    bool first;
};

/* Checks a slice, and takes the first one's file. */
static d9d_status take_slice(void *arg, const d9d_slice *slice)
{
    struct slice_visit *v = arg;
    const d9d_safetensors_tensor *stored;
    size_t file;

    D9D_TRY(find_stored(v->c, v->p->sliced, slice, &file, &stored));
    if (v->first) {
        v->p->file = file;
        v->p->stored = stored;
        v->first = false;
    }
    return D9D_OK;
}

static d9d_status add_sliced(d9d_checkpoint *c, const d9d_sliced_tensor *t)
{
    const int64_t n = d9d_shape_numel(&t->whole), left = n - d9d_sliced_tensor_volume(t);
    d9d_safetensors_tensor *whole = d9d_arena_alloc(&c->arena, sizeof(*whole));
    struct tensor_location p = {.tensor = whole, .sliced = t};

    if (whole == NULL)
        return no_memory(c->dir);
    whole->name = t->name;
    whole->dtype = t->dtype;
    whole->ndim = t->whole.ndim;
    memcpy(whole->shape, t->whole.dim, sizeof(whole->shape));
    whole->bytes = (uint64_t)n * d9d_dtype_size(t->dtype);
    D9D_TRY(d9d_sliced_tensor_visit(t, NULL, take_slice,
                                    &(struct slice_visit){.c = c, .p = &p, .first = true}));
    if (left != 0)
        return D9D_FAIL(D9D_EFORMAT, "%s: its slices of %s leave %lld element%s out", c->dir,
                        t->name, (long long)left, D9D_PLURAL(left));
    if (d9d_sliced_tensor_count(t) == 1)
        p.sliced = NULL;
    D9D_TRY(D9D_VEC_PUSH(&c->tensors, p));
    return d9d_map_put(&c->by_name, t->name, strlen(t->name), to_pointer(c->tensors.len - 1));
}

static d9d_status add_all_sliced(d9d_checkpoint *c)
{
    for (size_t i = 0; i < c->slices.n; i++)
        if (c->slices.tensors[i].n_runs > 0 && strcmp(c->slices.tensors[i].group, model_group) == 0)
            D9D_TRY(add_sliced(c, &c->slices.tensors[i]));
    return D9D_OK;
}

/* True for "model-r00000.safetensors", also in a directory. */
static bool is_model_file(const char *name)
{
    const char *slash = strrchr(name, '/'), *base = slash != NULL ? slash + 1 : name;
    const size_t n = sizeof(model_group) - 1;

    return strncmp(base, model_group, n) == 0 && strncmp(base + n, "-r", 2) == 0;
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

        if (is_model_file(name))
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

d9d_status d9d_checkpoint_check_folder(const char *dir)
{
    static const struct {
        const char *file, *what;
    } kinds[] = {
        {"adapter_config.json", "adapters, which are read beside the checkpoint of their base"},
        {"metrics.jsonl", "a run, whose model is in export/ and whose states are in checkpoints/"},
        {"index.lmdb", "a dataset"},
    };

    d9d_arena a = {0};
    d9d_status st = D9D_OK;

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]) && st == D9D_OK; i++) {
        const char *file = d9d_fs_join(&a, dir, kinds[i].file);

        if (file == NULL)
            st = no_memory(dir);
        else if (d9d_fs_exists(file))
            st = D9D_FAIL(D9D_ENOTFOUND, "%s: no checkpoint is there, but %s", dir, kinds[i].what);
    }
    d9d_arena_release(&a);
    return st;
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
    D9D_TRY(d9d_checkpoint_check_folder(c->dir));
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

/* Find what is decoded of the tensors as they are numbered now. */
static d9d_status decode_tensors(d9d_checkpoint *c)
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
    return decode_tensors(c);
}

size_t d9d_checkpoint_decoded(const d9d_checkpoint *c)
{
    return c->dequant != NULL ? d9d_dequant_count(c->dequant) : 0;
}

/* --- headers ---------------------------------------------------------------------- */

static d9d_status mark_slice(void *arg, const d9d_slice *slice)
{
    struct slice_visit *v = arg;
    const d9d_safetensors_tensor *stored;
    size_t file;

    D9D_TRY(find_stored(v->c, v->p->sliced, slice, &file, &stored));
    v->wanted[file] = true;
    return D9D_OK;
}

/* Mark the files of a stored tensor. */
static d9d_status mark_files(const d9d_checkpoint *c, const char *name, bool *wanted)
{
    const uintptr_t at = (uintptr_t)d9d_map_get(&c->by_name, name, strlen(name));
    struct tensor_location *p = at != 0 ? &c->tensors.data[at - 1] : NULL;

    if (p == NULL)
        return D9D_OK;
    wanted[p->file] = true;
    return p->sliced == NULL
               ? D9D_OK
               : d9d_sliced_tensor_visit(p->sliced, NULL, mark_slice,
                                         &(struct slice_visit){.c = c, .p = p, .wanted = wanted});
}

d9d_status d9d_checkpoint_load(d9d_checkpoint *c, const char *const *names, size_t n)
{
    bool *wanted = d9d_arena_alloc(&c->arena, c->n_files + 1);
    const char *stored[D9D_DEQUANT_MAX_STORED];

    if (wanted == NULL)
        return no_memory(c->dir);
    for (size_t i = 0; i < n; i++) {
        const size_t k = c->dequant != NULL ? d9d_dequant_stored(c->dequant, names[i], stored) : 0;

        if (k == 0)
            D9D_TRY(mark_files(c, names[i], wanted));
        for (size_t j = 0; j < k; j++)
            D9D_TRY(mark_files(c, stored[j], wanted));
    }
    for (size_t i = 0; i < c->n_files; i++)
        if (c->files[i].st == NULL && (names == NULL || wanted[i]))
            D9D_TRY(d9d_safetensors_open(c->files[i].path, &c->files[i].st));
    D9D_TRY(number(c));
    return decode_tensors(c);
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
    const struct tensor_location *p;
    d9d_box whole, rows; /* the global tensor, and its rows that the span touches */
    size_t file;         /* of the present slice */
    const d9d_safetensors_tensor *stored;
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
        s->c->files[s->file].st, s->stored, (uint64_t)(src + from - dst) * s->width,
        s->dst + (uint64_t)(from - s->first) * s->width, (uint64_t)(to - from) * s->width);
}

static d9d_status read_slice(void *arg, const d9d_slice *slice)
{
    struct read_span *s = arg;
    d9d_box part;

    D9D_TRY(find_stored(s->c, s->p->sliced, slice, &s->file, &s->stored));
    (void)d9d_box_intersect(&slice->box, &s->rows, &part);
    return d9d_box_runs(&part, &slice->box, &s->whole, read_run, s);
}

/* Copies what each slice holds of the rows that the span touches. */
static d9d_status read_slices(struct read_span *s)
{
    const d9d_safetensors_tensor *t = s->p->tensor;
    int64_t row = 1;

    s->whole = (d9d_box){.ndim = t->ndim};
    memcpy(s->whole.size, t->shape, sizeof(s->whole.size));
    for (int d = 1; d < t->ndim; d++)
        row *= t->shape[d];
    s->rows = s->whole;
    s->rows.start[0] = s->first / row;
    s->rows.size[0] = (s->end - 1) / row + 1 - s->rows.start[0];
    return d9d_sliced_tensor_visit(s->p->sliced, &s->rows, read_slice, s);
}

d9d_status d9d_checkpoint_read(const d9d_checkpoint *c, size_t i, uint64_t at, void *dst,
                               uint64_t n)
{
    const struct tensor_location *p = &c->tensors.data[i];
    const uint64_t width = d9d_dtype_size(p->tensor->dtype);
    struct read_span s = {.c = c, .p = p, .width = width, .dst = dst};

    if (p->sliced == NULL)
        return d9d_safetensors_read(c->files[p->file].st, p->stored, at, dst, n);
    if (at % width != 0 || n % width != 0 || at > p->tensor->bytes || n > p->tensor->bytes - at)
        return D9D_FAIL(D9D_EINVAL, "%s: tensor %s: %llu bytes at %llu", c->dir, p->tensor->name,
                        (unsigned long long)n, (unsigned long long)at);
    s.first = (int64_t)(at / width);
    s.end = s.first + (int64_t)(n / width);
    return n > 0 ? read_slices(&s) : D9D_OK;
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
    const struct tensor_location *p = &c->tensors.data[i];

    if (p->sliced != NULL) /* one span of the global tensor is many spans of its slices */
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

static d9d_status hash_slice(void *arg, const d9d_slice *slice)
{
    const struct slice_visit *v = arg;
    const d9d_safetensors_tensor *stored = NULL;
    size_t file;

    if (find_stored(v->c, v->p->sliced, slice, &file, &stored) != D9D_OK || stored == NULL)
        stored = v->p->tensor;
    hash_tensor(stored, v->h);
    d9d_hasher_add(v->h, slice->box.start, sizeof(slice->box.start));
    return D9D_OK;
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
    for (size_t i = 0; i < c->tensors.len; i++) {
        struct tensor_location *p = &c->tensors.data[i];

        hash_tensor(p->stored != NULL ? p->stored : p->tensor, h);
        if (p->sliced != NULL &&
            d9d_sliced_tensor_visit(p->sliced, NULL, hash_slice,
                                    &(struct slice_visit){.c = c, .p = p, .h = h}) != D9D_OK)
            continue; /* hash_slice() does not fail */
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
