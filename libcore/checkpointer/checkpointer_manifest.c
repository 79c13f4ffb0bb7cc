/* checkpointer_manifest.c - a checkpoint's members of its manifest, and back.  See
 * checkpointer/checkpointer_private.h. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpointer/checkpointer_private.h"

/* No run counts so far; what goes on from there still can, without an overflow. */
static const int64_t MOST = INT64_C(1) << 60;

static const struct number {
    const char *key;
    size_t offset; /* of an int64_t in d9d_save_state */
    int64_t min;
} numbers[] = {
    {"step", offsetof(d9d_save_state, step), 0},
    {"samples", offsetof(d9d_save_state, samples), 0},
    {"tokens", offsetof(d9d_save_state, tokens), 0},
    {"parent", offsetof(d9d_save_state, parent), -1},
};
enum { N_NUMBERS = sizeof(numbers) / sizeof(numbers[0]) };

static const struct digest {
    const char *key;
    size_t offset; /* of a d9d_hash */
    bool optional; /* zero: left out */
} digests[] = {
    {"config", offsetof(d9d_save_state, config), false},
    {"dataset", offsetof(d9d_save_state, dataset), false},
    {"hf_config", offsetof(d9d_save_state, origin.hf_config), true},
    {"source", offsetof(d9d_save_state, origin.source), true},
    {"source_path", offsetof(d9d_save_state, origin.source_path), true},
};
enum { N_DIGESTS = sizeof(digests) / sizeof(digests[0]) };

static d9d_status no_memory(const char *what)
{
    return D9D_FAIL(D9D_ENOMEM, "%s: no memory for what the manifest says", what);
}

d9d_status d9di_save_file_name(const char *group, size_t rank, char out[D9DI_SAVE_FILE])
{
    const int n = snprintf(out, D9DI_SAVE_FILE, "%s-r%05zu.safetensors", group, rank);

    return d9d_fs_check_name(out, n < D9DI_SAVE_FILE ? (size_t)n : D9DI_SAVE_FILE, "checkpoint");
}

/* --- writing ---------------------------------------------------------------------- */

/* Add a member; false when memory is out. */
static bool put(json_t *obj, const char *key, json_t *value)
{
    return json_object_set_new(obj, key, value) == 0;
}

static json_t *ints(const int64_t *v, int n)
{
    json_t *list = json_array();

    for (int i = 0; i < n; i++)
        if (json_array_append_new(list, json_integer(v[i])) != 0) {
            json_decref(list);
            return NULL;
        }
    return list;
}

d9d_status d9di_save_state_check(const d9d_save_state *state)
{
    for (size_t i = 0; i < N_NUMBERS; i++) {
        const int64_t v = *(const int64_t *)((const char *)state + numbers[i].offset);

        if (v < numbers[i].min)
            return D9D_FAIL(D9D_EINVAL, "checkpoint: %s is %" PRId64 ", must be at least %" PRId64,
                            numbers[i].key, v, numbers[i].min);
    }
    if (state->seed > INT64_MAX)
        return D9D_FAIL(D9D_EINVAL, "checkpoint: seed is %" PRIu64 ", must be at most %" PRId64,
                        state->seed, INT64_MAX);
    return D9D_OK;
}

static d9d_status put_state(json_t *root, const d9d_save_state *state)
{
    bool ok = true;

    D9D_TRY(d9di_save_state_check(state));
    for (size_t i = 0; i < N_NUMBERS; i++)
        ok &= put(root, numbers[i].key,
                  json_integer(*(const int64_t *)((const char *)state + numbers[i].offset)));
    ok &= put(root, "seed", json_integer((json_int_t)state->seed));
    ok &= put(root, "finite", json_boolean(state->finite));
    for (size_t i = 0; i < N_DIGESTS; i++) {
        const d9d_hash hash = *(const d9d_hash *)((const char *)state + digests[i].offset);
        char hex[D9D_HASH_HEX];

        if (digests[i].optional && d9d_hash_equal(hash, (d9d_hash){0}))
            continue;
        d9d_hash_hex(hash, hex);
        ok &= put(root, digests[i].key, json_string(hex));
    }
    return ok ? D9D_OK : no_memory("checkpoint");
}

static d9d_status put_slice(json_t *slices, const d9d_save_tensor *t, const d9d_box *box,
                            size_t rank)
{
    char file[D9DI_SAVE_FILE];
    json_t *slice;
    bool ok;

    D9D_TRY(d9di_save_file_name(t->group, rank, file));
    slice = json_object();
    ok = put(slice, "file", json_string(file));
    ok &= put(slice, "start", ints(box->start, box->ndim));
    ok &= put(slice, "shape", ints(box->size, box->ndim));
    ok &= json_array_append_new(slices, slice) == 0;
    return ok ? D9D_OK : no_memory(t->name);
}

/* The entry of a tensor, with the one slice that is here. */
static d9d_status put_tensor(json_t *tensors, const d9d_save_tensor *t, size_t rank)
{
    json_t *tensor = json_object(), *slices = json_array();
    const d9d_box box = d9di_box_of(t);
    char text[D9D_BOX_TEXT], whole[128];
    bool ok = put(tensor, "name", json_string(t->name));

    ok &= put(tensor, "dtype", json_string(d9d_dtype_safetensors(t->tensor->dtype)));
    ok &= put(tensor, "shape", ints(t->whole.dim, t->whole.ndim));
    ok &= put(tensor, "slices", slices);
    ok &= json_array_append_new(tensors, tensor) == 0;
    if (!ok)
        return no_memory(t->name);
    if (!d9d_box_fits(&box, &t->whole))
        return D9D_FAIL(D9D_EINVAL, "checkpoint: %s: %s is not a part of %s", t->name,
                        d9d_box_text(&box, text), d9d_shape_text(&t->whole, whole, sizeof(whole)));
    return put_slice(slices, t, &box, rank);
}

static d9d_status put_counts(json_t *counts, const d9d_save_set *set)
{
    for (size_t i = 0; i < set->n_counts; i++)
        if (!put(counts, set->counts[i].name, json_integer(*set->counts[i].value)))
            return no_memory(set->counts[i].name);
    return D9D_OK;
}

/* The list of this rank's one file. */
static d9d_status put_cells(json_t *root, size_t rank)
{
    json_t *list = json_array();
    char file[D9DI_SAVE_FILE];
    bool ok = put(root, "cells", list);

    D9D_TRY(d9di_save_file_name(D9DI_SAVE_CELLS, rank, file));
    ok = ok && json_array_append_new(list, json_string(file)) == 0;
    return ok ? D9D_OK : no_memory(D9DI_SAVE_CELLS);
}

/* An object with the two members that name tensors, both empty and borrowed. */
static d9d_status lists_begin(json_t *root, json_t **counts, json_t **tensors)
{
    bool held;

    *counts = json_object();
    *tensors = json_array();
    held = put(root, "optimizer_steps", *counts);
    held = put(root, "tensors", *tensors) && held; /* both are given away, whatever happens */
    return held ? D9D_OK : no_memory("checkpoint");
}

d9d_status d9di_saved_describe(const d9d_save_set *set, size_t rank, json_t **out)
{
    json_t *root = json_object(), *counts, *tensors;
    d9d_status st;

    D9D_TRY_OR(st, lists_begin(root, &counts, &tensors), out);
    D9D_TRY_OR(st, put_counts(counts, set), out);
    for (size_t i = 0; i < set->n; i++)
        D9D_TRY_OR(st, put_tensor(tensors, &set->items[i], rank), out);
    if (set->n_cells > 0)
        D9D_TRY_OR(st, put_cells(root, rank), out);
    *out = root;
    root = NULL;
out:
    json_decref(root);
    return st;
}

/* The slices of tensors that others have begun go to those; the rest is added. */
static d9d_status join_tensors(json_t *tensors, const json_t *share, d9d_map *lists)
{
    json_t *tensor;
    size_t i;

    json_array_foreach(share, i, tensor)
    {
        const char *name = json_string_value(json_object_get(tensor, "name"));
        json_t *slices = json_object_get(tensor, "slices"), *list;

        if (name == NULL)
            return D9D_FAIL(D9D_EFORMAT, "checkpoint: a rank's tensor has no name");
        list = d9d_map_get(lists, name, strlen(name));
        if (list != NULL) {
            if (json_array_extend(list, slices) != 0)
                return no_memory(name);
            continue;
        }
        if (json_array_append(tensors, tensor) != 0)
            return no_memory(name);
        D9D_TRY(d9d_map_put(lists, name, strlen(name), slices));
    }
    return D9D_OK;
}

static d9d_status join_cells(json_t *root, const json_t *share)
{
    json_t *list = json_object_get(root, "cells");

    if (share == NULL)
        return D9D_OK;
    if (list == NULL && put(root, "cells", json_array()))
        list = json_object_get(root, "cells");
    return list != NULL && json_array_extend(list, (json_t *)(uintptr_t)share) == 0
               ? D9D_OK
               : no_memory(D9DI_SAVE_CELLS);
}

d9d_status d9di_saved_join(const d9d_save_state *state, const json_t *const *shares, size_t n,
                           json_t **out)
{
    json_t *root = json_object(), *counts, *tensors;
    d9d_map lists = {0}; /* of slices, by tensor */
    d9d_status st;

    D9D_TRY_OR(st, put_state(root, state), out);
    D9D_TRY_OR(st, lists_begin(root, &counts, &tensors), out);
    for (size_t i = 0; i < n; i++) {
        if (json_object_update(counts, json_object_get(shares[i], "optimizer_steps")) != 0) {
            st = no_memory("checkpoint");
            goto out;
        }
        D9D_TRY_OR(st, join_tensors(tensors, json_object_get(shares[i], "tensors"), &lists), out);
        D9D_TRY_OR(st, join_cells(root, json_object_get(shares[i], "cells")), out);
    }
    *out = root;
    root = NULL;
out:
    d9d_map_release(&lists);
    json_decref(root);
    return st;
}

/* --- reading ------------------------------------------------------------------------- */

static d9d_status get_digest(const json_t *root, const char *path, const struct digest *d,
                             d9d_hash *out)
{
    const char *hex;

    *out = (d9d_hash){0};
    if (d->optional && json_object_get(root, d->key) == NULL)
        return D9D_OK;
    D9D_TRY(d9d_json_get_str(root, path, d->key, &hex));
    if (d9d_hash_parse(hex, out) != D9D_OK)
        return D9D_FAIL(D9D_EFORMAT, "%s: \"%s\": %s", path, d->key, d9d_err_message());
    return D9D_OK;
}

static d9d_status get_state(const json_t *root, const char *path, d9d_save_state *state)
{
    int64_t seed;
    int finite;

    for (size_t i = 0; i < N_NUMBERS; i++)
        D9D_TRY(d9d_json_get_i64(root, path, numbers[i].key, numbers[i].min, MOST,
                                 (int64_t *)((char *)state + numbers[i].offset)));
    D9D_TRY(d9d_json_get_i64(root, path, "seed", 0, INT64_MAX, &seed));
    D9D_TRY(d9d_json_get_bool(root, path, "finite", &finite));
    state->seed = (uint64_t)seed;
    state->finite = finite != 0;
    for (size_t i = 0; i < N_DIGESTS; i++)
        D9D_TRY(
            get_digest(root, path, &digests[i], (d9d_hash *)((char *)state + digests[i].offset)));
    return D9D_OK;
}

static d9d_status get_counts(d9di_saved *s, const json_t *root)
{
    const char *key;
    json_t *counts, *v;

    D9D_TRY(d9d_json_get_obj(root, s->path, "optimizer_steps", &counts));
    json_object_foreach(counts, key,
                        v) if (!json_is_integer(v) || json_integer_value(v) < 0 ||
                               json_integer_value(v) >
                                   MOST) return D9D_FAIL(D9D_EFORMAT,
                                                         "%s: optimizer_steps: \"%s\" must be an "
                                                         "integer of at least 0, at most 2^60",
                                                         s->path, key);
    s->counts = counts;
    return D9D_OK;
}

static d9d_status get_cells(d9di_saved *s, const json_t *root)
{
    json_t *list;

    if (json_object_get(root, "cells") == NULL)
        return D9D_OK;
    D9D_TRY(d9d_json_get_arr(root, s->path, "cells", &list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));

        if (name == NULL || d9d_manifest_find(s->manifest, name) == NULL)
            return D9D_FAIL(D9D_EFORMAT, "%s: cells[%zu] is not among its files", s->path, i);
    }
    s->cells = list;
    return D9D_OK;
}

static d9d_status get_all(d9di_saved *s)
{
    const json_t *root = d9d_manifest_root(s->manifest);

    D9D_TRY(get_state(root, s->path, &s->state));
    D9D_TRY(get_counts(s, root));
    D9D_TRY(get_cells(s, root));
    return d9d_slices_take(s->manifest, s->path, &s->slices);
}

d9d_status d9di_saved_take(const char *dir, d9d_manifest *manifest, d9di_saved *out)
{
    d9di_saved s = {.manifest = manifest};
    d9d_status st;

    s.dir = d9d_arena_strdup(&s.arena, dir);
    s.path = d9d_fs_join(&s.arena, dir, D9D_MANIFEST_NAME);
    if (s.dir == NULL || s.path == NULL) {
        st = no_memory(dir);
        goto out;
    }
    D9D_TRY_OR(st, get_all(&s), out);
    *out = s;
    s = (d9di_saved){0};
out:
    d9di_saved_release(&s);
    return st;
}

d9d_status d9di_saved_open(const char *dir, d9di_saved *out)
{
    d9d_manifest *manifest;

    D9D_TRY(d9d_manifest_open(dir, &manifest));
    return d9di_saved_take(dir, manifest, out);
}

void d9di_saved_release(d9di_saved *s)
{
    d9d_manifest_close(s->manifest);
    d9d_slices_release(&s->slices);
    d9d_arena_release(&s->arena);
    *s = (d9di_saved){0};
}
