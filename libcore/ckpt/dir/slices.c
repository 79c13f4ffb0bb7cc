/* slices.c - see d9d/ckpt/dir/slices.h. */
#include "d9d/ckpt/dir/slices.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/ckpt/safetensors/safetensors.h"

enum { WHERE = 512 };

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

static d9d_status get_slice(const d9d_manifest *m, const json_t *v, const char *where,
                            const d9d_shape *whole, d9d_slice *out)
{
    int ndim;

    D9D_TRY(d9d_json_get_str(v, where, "file", &out->file));
    D9D_TRY(get_dims(v, where, "start", &ndim, out->box.start));
    D9D_TRY(get_dims(v, where, "shape", &out->box.ndim, out->box.size));
    if (ndim != out->box.ndim || !d9d_box_fits(&out->box, whole)) {
        char text[D9D_BOX_TEXT], shape[128];

        return D9D_FAIL(D9D_EFORMAT, "%s: %s is not a part of %s", where,
                        d9d_box_text(&out->box, text), d9d_shape_text(whole, shape, sizeof(shape)));
    }
    if (d9d_manifest_find(m, out->file) == NULL)
        return D9D_FAIL(D9D_EFORMAT, "%s: \"%s\" is not among its files", where, out->file);
    return D9D_OK;
}

static int compare_starts(const void *a, const void *b)
{
    const d9d_slice *x = a, *y = b;

    for (int d = 0; d < x->box.ndim; d++)
        if (x->box.start[d] != y->box.start[d])
            return x->box.start[d] < y->box.start[d] ? -1 : 1;
    return 0;
}

/* Slices are sorted by start, so a slice can overlap only those that start before it ends. */
static d9d_status check_disjoint(const d9d_sliced_tensor *t, const char *where)
{
    for (size_t i = 0; i < t->n_slices; i++) {
        const d9d_box *a = &t->slices[i].box;

        for (size_t k = i + 1; k < t->n_slices; k++) {
            const d9d_box *b = &t->slices[k].box;
            char one[D9D_BOX_TEXT], other[D9D_BOX_TEXT];
            d9d_box both;

            if (a->ndim > 0 && b->start[0] >= a->start[0] + a->size[0])
                break;
            if (d9d_box_intersect(a, b, &both))
                return D9D_FAIL(D9D_EFORMAT, "%s: slices %s and %s overlap", where,
                                d9d_box_text(a, one), d9d_box_text(b, other));
        }
    }
    return D9D_OK;
}

static d9d_status get_slices(d9d_slices *s, const d9d_manifest *m, const json_t *v,
                             const char *where, d9d_sliced_tensor *t)
{
    json_t *list;

    D9D_TRY(d9d_json_get_arr(v, where, "slices", &list));
    t->n_slices = json_array_size(list);
    t->slices = d9d_arena_alloc(&s->arena, (t->n_slices + 1) * sizeof(*t->slices));
    if (t->slices == NULL)
        return no_memory(where);
    for (size_t i = 0; i < t->n_slices; i++) {
        char slice[WHERE + 40];

        (void)snprintf(slice, sizeof(slice), "%s: slices[%zu]", where, i);
        D9D_TRY(get_slice(m, json_array_get(list, i), slice, &t->whole, &t->slices[i]));
    }
    if (t->n_slices > 0)
        qsort(t->slices, t->n_slices, sizeof(*t->slices), compare_starts);
    return check_disjoint(t, where);
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
    D9D_TRY(d9d_map_put(&s->by_name, t->name, strlen(t->name), t));
    D9D_TRY(d9d_json_get_str(v, where, "dtype", &dtype));
    found = d9d_dtype_find(dtype);
    if (found < 0)
        return D9D_FAIL(D9D_EFORMAT, "%s: unknown dtype \"%.32s\"", where, dtype);
    t->dtype = (d9d_dtype)found;
    D9D_TRY(get_dims(v, where, "shape", &t->whole.ndim, t->whole.dim));
    if (!d9d_safetensors_shape_bytes(t->dtype, t->whole.ndim, t->whole.dim, &bytes))
        return D9D_FAIL(D9D_EFORMAT, "%s: its size overflows", where);
    return get_slices(s, m, v, where, t);
}

static d9d_status get_tensors(d9d_slices *s, const d9d_manifest *m, const char *path)
{
    json_t *list;

    D9D_TRY(d9d_json_get_arr(d9d_manifest_root(m), path, "tensors", &list));
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
    return d9d_map_get(&s->by_name, name, strlen(name));
}
