/* slices.c - see d9d/ckpt/dir/slices.h. */
#include "d9d/ckpt/dir/slices.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/dir/slice_runs.h"
#include "d9d/base/num_format.h"
#include "d9d/ckpt/safetensors/safetensors.h"

enum { WHERE = 512 };

static void *to_pointer(size_t number)
{
    return (void *)(uintptr_t)(number + 1);
}

static d9d_status no_memory(const char *what)
{
    return D9D_FAIL(D9D_ENOMEM, "%s: no memory for what the manifest says", what);
}

static d9d_status get_dims(const json_t *obj, const char *where, const char *key, int *ndim,
                           int64_t dim[D9D_MAX_DIMS])
{
    json_t *list;
    size_t n;

    D9D_TRY(d9d_json_get_arr(obj, where, key, &list));
    n = json_array_size(list);
    if (n > D9D_MAX_DIMS)
        return D9D_FAIL(D9D_EFORMAT, "%s: \"%s\" has %zu dimensions, at most %d are known", where,
                        key, n, D9D_MAX_DIMS);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);

        if (!json_is_integer(v) || json_integer_value(v) < 0)
            return D9D_FAIL(D9D_EFORMAT, "%s: %s[%zu] must be an integer of at least 0", where, key,
                            i);
        dim[i] = json_integer_value(v);
    }
    *ndim = (int)n;
    return D9D_OK;
}

/* The slice of a checkpoint of d9d.checkpoint.v1. */
static d9d_status get_file(const d9d_manifest *m, const json_t *v, const char *where,
                           d9d_slice_run *out)
{
    D9D_TRY(d9d_json_get_str(v, where, "file", &out->file));
    if (d9d_manifest_find(m, out->file) == NULL)
        return D9D_FAIL(D9D_EFORMAT, "%s: \"%s\" is not among its files", where, out->file);
    return D9D_OK;
}

static d9d_status get_step(const json_t *v, const char *where, d9d_slice_step *out)
{
    int64_t dim;

    D9D_TRY(d9d_json_get_i64(v, where, "n", 2, D9D_SLICES_RANKS, &out->n));
    D9D_TRY(d9d_json_get_i64(v, where, "dim", 0, D9D_MAX_DIMS - 1, &dim));
    D9D_TRY(d9d_json_get_i64(v, where, "by", 1, INT64_MAX, &out->by));
    out->dim = (int)dim;
    return d9d_json_get_i64(v, where, "ranks", -D9D_SLICES_RANKS, D9D_SLICES_RANKS, &out->ranks);
}

static d9d_status get_steps(d9d_slices *s, const json_t *v, const char *where, d9d_slice_run *out)
{
    json_t *list;

    if (json_object_get(v, "steps") == NULL)
        return D9D_OK;
    D9D_TRY(d9d_json_get_arr(v, where, "steps", &list));
    out->n_steps = json_array_size(list);
    if (out->n_steps > D9D_SLICE_STEPS)
        return D9D_FAIL(D9D_EFORMAT, "%s: %zu step%s, at most %d are known", where, out->n_steps,
                        D9D_PLURAL(out->n_steps), D9D_SLICE_STEPS);
    out->steps = d9d_arena_alloc(&s->arena, (out->n_steps + 1) * sizeof(*out->steps));
    if (out->steps == NULL)
        return no_memory(where);
    for (size_t k = 0; k < out->n_steps; k++)
        D9D_TRY(get_step(json_array_get(list, k), where, &out->steps[k]));
    return D9D_OK;
}

static d9d_status get_run(d9d_slices *s, const d9d_manifest *m, const json_t *v, const char *where,
                          const d9d_shape *whole, d9d_slice_run *out)
{
    const bool former = s->ranks == 0;
    char text[D9D_BOX_TEXT], shape[128];
    int ndim;

    if (former)
        D9D_TRY(get_file(m, v, where, out));
    else
        D9D_TRY(d9d_json_get_i64(v, where, "rank", 0, s->ranks - 1, &out->rank));
    D9D_TRY(get_dims(v, where, "start", &ndim, out->box.start));
    D9D_TRY(get_dims(v, where, "shape", &out->box.ndim, out->box.size));
    if (!former)
        D9D_TRY(get_steps(s, v, where, out));
    if (ndim != out->box.ndim || !d9d_box_fits(&out->box, whole))
        return D9D_FAIL(D9D_EFORMAT, "%s: %s is not a part of %s", where,
                        d9d_box_text(&out->box, text), d9d_shape_text(whole, shape, sizeof(shape)));
    if (!d9di_slice_run_fits(out, whole, former ? 1 : s->ranks))
        return D9D_FAIL(D9D_EFORMAT,
                        "%s: its steps from %s leave %s or the %lld rank%s, or overlap", where,
                        d9d_box_text(&out->box, text), d9d_shape_text(whole, shape, sizeof(shape)),
                        (long long)s->ranks, D9D_PLURAL(s->ranks));
    return D9D_OK;
}

static d9d_status get_runs(d9d_slices *s, const d9d_manifest *m, const json_t *v, const char *where,
                           d9d_sliced_tensor *t)
{
    char one[D9D_BOX_TEXT], other[D9D_BOX_TEXT];
    d9d_box a, b;
    json_t *list;

    D9D_TRY(d9d_json_get_arr(v, where, "slices", &list));
    t->n_runs = json_array_size(list);
    t->runs = d9d_arena_alloc(&s->arena, (t->n_runs + 1) * sizeof(*t->runs));
    if (t->runs == NULL)
        return no_memory(where);
    for (size_t i = 0; i < t->n_runs; i++) {
        char slice[WHERE + 40];

        (void)snprintf(slice, sizeof(slice), "%s: slices[%zu]", where, i);
        D9D_TRY(get_run(s, m, json_array_get(list, i), slice, &t->whole, &t->runs[i]));
    }
    d9di_slice_runs_sort(t);
    if (d9di_slice_runs_overlap(t, &a, &b))
        return D9D_FAIL(D9D_EFORMAT, "%s: slices %s and %s overlap", where, d9d_box_text(&a, one),
                        d9d_box_text(&b, other));
    return D9D_OK;
}

/* The group: a member, or in d9d.checkpoint.v1 the beginning of a file's name. */
static d9d_status get_group(d9d_slices *s, const json_t *v, const char *where, d9d_sliced_tensor *t)
{
    const char *file = t->n_runs > 0 ? t->runs[0].file : NULL, *end;

    if (s->ranks > 0) {
        D9D_TRY(d9d_json_get_str(v, where, "group", &t->group));
        return d9d_fs_check_name(t->group, strlen(t->group), where);
    }
    end = file != NULL ? strstr(file, "-r") : NULL;
    t->group = end != NULL ? d9d_arena_strndup(&s->arena, file, (size_t)(end - file)) : "";
    return t->group != NULL ? D9D_OK : no_memory(where);
}

static d9d_status get_tensor(d9d_slices *s, const d9d_manifest *m, const char *path,
                             const json_t *v, size_t i)
{
    d9d_sliced_tensor *t = &s->tensors[i];
    char where[WHERE];
    const char *dtype;
    uint64_t bytes;
    int found;

    (void)snprintf(where, sizeof(where), "%s: tensors[%zu]", path, i);
    D9D_TRY(d9d_json_get_str(v, where, "name", &t->name));
    (void)snprintf(where, sizeof(where), "%s: tensor %s", path, t->name);
    if (d9d_map_has(&s->by_name, t->name, strlen(t->name)))
        return D9D_FAIL(D9D_EFORMAT, "%s is there twice", where);
    D9D_TRY(d9d_map_put(&s->by_name, t->name, strlen(t->name), to_pointer(i)));
    D9D_TRY(d9d_json_get_str(v, where, "dtype", &dtype));
    found = d9d_dtype_find(dtype);
    if (found < 0)
        return D9D_FAIL(D9D_EFORMAT, "%s: unknown dtype \"%.32s\"", where, dtype);
    t->dtype = (d9d_dtype)found;
    D9D_TRY(get_dims(v, where, "shape", &t->whole.ndim, t->whole.dim));
    if (!d9d_safetensors_shape_bytes(t->dtype, t->whole.ndim, t->whole.dim, &bytes))
        return D9D_FAIL(D9D_EFORMAT, "%s: its size overflows", where);
    D9D_TRY(get_runs(s, m, v, where, t));
    return get_group(s, v, where, t);
}

static d9d_status get_tensors(d9d_slices *s, const d9d_manifest *m, const char *path)
{
    const json_t *root = d9d_manifest_root(m);
    json_t *list;

    if (json_object_get(root, "ranks") != NULL) {
        D9D_TRY(d9d_json_get_i64(root, path, "ranks", 1, D9D_SLICES_RANKS, &s->ranks));
        D9D_TRY(
            d9d_json_get_i64(root, path, "ranks_per_dir", 1, D9D_SLICES_RANKS, &s->ranks_per_dir));
    }
    D9D_TRY(d9d_json_get_arr(root, path, "tensors", &list));
    s->n = json_array_size(list);
    s->tensors = d9d_arena_alloc(&s->arena, (s->n + 1) * sizeof(*s->tensors));
    if (s->tensors == NULL)
        return no_memory(path);
    for (size_t i = 0; i < s->n; i++)
        D9D_TRY(get_tensor(s, m, path, json_array_get(list, i), i));
    return D9D_OK;
}

d9d_status d9d_slices_parse(const d9d_manifest *m, const char *path, d9d_slices *out)
{
    d9d_slices s = {0};
    d9d_status st = get_tensors(&s, m, path);

    if (st == D9D_OK)
        *out = s;
    else
        d9d_slices_release(&s);
    return st;
}

void d9d_slices_release(d9d_slices *s)
{
    d9d_map_release(&s->by_name);
    d9d_arena_release(&s->arena);
    *s = (d9d_slices){0};
}

const d9d_sliced_tensor *d9d_slices_find(const d9d_slices *s, const char *name)
{
    const uintptr_t at = (uintptr_t)d9d_map_get(&s->by_name, name, strlen(name));

    return at != 0 ? &s->tensors[at - 1] : NULL;
}

/* --- names of files -------------------------------------------------------------------- */

void d9d_slices_dir_name(int64_t rank, int64_t ranks_per_dir, char buf[D9D_SLICES_FILE])
{
    (void)snprintf(buf, D9D_SLICES_FILE, "ranks-%05" PRId64, rank - rank % ranks_per_dir);
}

void d9d_slices_file_name(const char *group, int64_t rank, char buf[D9D_SLICES_FILE])
{
    (void)snprintf(buf, D9D_SLICES_FILE, "%s-r%05" PRId64 ".safetensors", group, rank);
}

const char *d9d_slices_file(const d9d_slices *s, const d9d_sliced_tensor *t, const d9d_slice *slice,
                            char buf[D9D_SLICES_FILE])
{
    size_t n;

    if (slice->file != NULL)
        return slice->file;
    d9d_slices_dir_name(slice->rank, s->ranks_per_dir, buf);
    n = strlen(buf);
    (void)snprintf(buf + n, D9D_SLICES_FILE - n, "/%s-r%05" PRId64 ".safetensors", t->group,
                   slice->rank);
    return buf;
}

/* --- writing ------------------------------------------------------------------------------ */

/* Doubles an array in the arena when its length is a power of two. */
static d9d_status grow(d9d_arena *a, void *array, size_t n, size_t width)
{
    void *old, *wider;

    if ((n & (n - 1)) != 0)
        return D9D_OK;
    wider = d9d_arena_alloc(a, (n > 0 ? 2 * n : 1) * width);
    if (wider == NULL)
        return no_memory("checkpoint");
    memcpy(&old, array, sizeof(old));
    if (n > 0)
        memcpy(wider, old, n * width);
    memcpy(array, &wider, sizeof(wider));
    return D9D_OK;
}

/* The tensor of this name in `into`, as it is in `from`. */
static d9d_status get_or_add(d9d_slices *into, const d9d_sliced_tensor *from,
                             d9d_sliced_tensor **out)
{
    const uintptr_t at = (uintptr_t)d9d_map_get(&into->by_name, from->name, strlen(from->name));
    d9d_sliced_tensor *t = NULL;

    if (at != 0) {
        t = *out = &into->tensors[at - 1];
        if (t->dtype != from->dtype || !d9d_shape_equal(&t->whole, &from->whole) ||
            strcmp(t->group, from->group) != 0)
            return D9D_FAIL(D9D_EFORMAT, "checkpoint: two ranks disagree about tensor %s",
                            from->name);
        return D9D_OK;
    }
    D9D_TRY(grow(&into->arena, &into->tensors, into->n, sizeof(*into->tensors)));
    t = &into->tensors[into->n];
    *t = (d9d_sliced_tensor){.name = d9d_arena_strdup(&into->arena, from->name),
                             .group = d9d_arena_strdup(&into->arena, from->group),
                             .dtype = from->dtype,
                             .whole = from->whole};
    if (t->name == NULL || t->group == NULL)
        return no_memory(from->name);
    *out = t;
    return d9d_map_put(&into->by_name, t->name, strlen(t->name), to_pointer(into->n++));
}

static d9d_status add_run(d9d_slices *into, d9d_sliced_tensor *t, const d9d_slice_run *r)
{
    const size_t bytes = r->n_steps * sizeof(*r->steps);
    d9d_slice_run own = *r;

    own.steps = d9d_arena_alloc(&into->arena, bytes + 1);
    if (own.steps == NULL)
        return no_memory(t->name);
    if (bytes > 0)
        memcpy(own.steps, r->steps, bytes);
    D9D_TRY(grow(&into->arena, &t->runs, t->n_runs, sizeof(*t->runs)));
    t->runs[t->n_runs++] = own;
    return D9D_OK;
}

d9d_status d9d_slices_add(d9d_slices *into, const d9d_slices *from)
{
    into->ranks = from->ranks;
    into->ranks_per_dir = from->ranks_per_dir;
    for (size_t i = 0; i < from->n; i++) {
        d9d_sliced_tensor *t = NULL;

        D9D_TRY(get_or_add(into, &from->tensors[i], &t));
        for (size_t k = 0; k < from->tensors[i].n_runs; k++)
            D9D_TRY(add_run(into, t, &from->tensors[i].runs[k]));
    }
    return D9D_OK;
}

d9d_status d9d_slices_join_runs(d9d_slices *s)
{
    for (size_t i = 0; i < s->n; i++)
        D9D_TRY(d9di_slice_runs_join(&s->tensors[i], &s->arena));
    return D9D_OK;
}

static json_t *ints_json(const int64_t *v, int n)
{
    json_t *list = json_array();

    for (int i = 0; i < n; i++)
        d9d_json_add(&list, json_integer(v[i]));
    return list;
}

static json_t *run_json(const d9d_slice_run *r)
{
    json_t *slice = json_pack("{s:I, s:o, s:o}", "rank", (json_int_t)r->rank, "start",
                              ints_json(r->box.start, r->box.ndim), "shape",
                              ints_json(r->box.size, r->box.ndim));
    json_t *steps = json_array();

    for (size_t k = 0; k < r->n_steps; k++) {
        const d9d_slice_step *s = &r->steps[k];

        d9d_json_add(&steps, json_pack("{s:I, s:i, s:I, s:I}", "n", (json_int_t)s->n, "dim", s->dim,
                                       "by", (json_int_t)s->by, "ranks", (json_int_t)s->ranks));
    }
    if (r->n_steps > 0)
        d9d_json_set(&slice, "steps", steps);
    else
        json_decref(steps);
    return slice;
}

static json_t *tensor_json(const d9d_sliced_tensor *t)
{
    json_t *slices = json_array();

    for (size_t i = 0; i < t->n_runs; i++)
        d9d_json_add(&slices, run_json(&t->runs[i]));
    return json_pack("{s:s, s:s, s:s, s:o, s:o}", "name", t->name, "group", t->group, "dtype",
                     d9d_dtype_safetensors(t->dtype), "shape",
                     ints_json(t->whole.dim, t->whole.ndim), "slices", slices);
}

json_t *d9d_slices_json(const d9d_slices *s)
{
    json_t *list = json_array();

    for (size_t i = 0; i < s->n; i++)
        d9d_json_add(&list, tensor_json(&s->tensors[i]));
    return list;
}
