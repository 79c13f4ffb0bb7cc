/* checkpointer_manifest.c - writes and parses a checkpoint's manifest.  See
 * checkpointer/checkpointer_private.h. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpointer/checkpointer_private.h"

#define RANK_STATE_KEY        "rank_state"
#define FORMER_RANK_STATE_KEY "cells" /* of 0.1, whose files are cells-rNNNNN */

/* Upper bound of all counters; a resumed run can continue from it without overflow. */
static const int64_t MAX_VALUE = INT64_C(1) << 60;

static const struct state_number {
    const char *key;
    size_t offset; /* of an int64_t in d9d_checkpointer_state */
    int64_t min;
} state_numbers[] = {
    {"step", offsetof(d9d_checkpointer_state, step), 0},
    {"samples", offsetof(d9d_checkpointer_state, samples), 0},
    {"tokens", offsetof(d9d_checkpointer_state, tokens), 0},
    {"parent", offsetof(d9d_checkpointer_state, parent), -1},
};
enum { N_NUMBERS = sizeof(state_numbers) / sizeof(state_numbers[0]) };

static const struct state_hash {
    const char *key;
    size_t offset; /* of a d9d_hash */
    bool optional; /* left out if zero */
} state_hashes[] = {
    {"config", offsetof(d9d_checkpointer_state, config), false},
    {"dataset", offsetof(d9d_checkpointer_state, dataset), false},
    {"hf_config", offsetof(d9d_checkpointer_state, origin.hf_config), true},
    {"source", offsetof(d9d_checkpointer_state, origin.source), true},
    {"source_path", offsetof(d9d_checkpointer_state, origin.source_path), true},
};
enum { N_HASHES = sizeof(state_hashes) / sizeof(state_hashes[0]) };

static d9d_status fail_no_memory(const char *label)
{
    return D9D_FAIL(D9D_ENOMEM, "%s: no memory for what the manifest says", label);
}

d9d_status d9di_checkpointer_file_name(const char *group, size_t rank,
                                       char out[D9DI_CHECKPOINTER_FILE_NAME_MAX])
{
    const int n =
        snprintf(out, D9DI_CHECKPOINTER_FILE_NAME_MAX, "%s-r%05zu.safetensors", group, rank);

    return d9d_fs_check_name(
        out, n < D9DI_CHECKPOINTER_FILE_NAME_MAX ? (size_t)n : D9DI_CHECKPOINTER_FILE_NAME_MAX,
        "checkpoint");
}

/* --- writing ---------------------------------------------------------------------- */

/* Adds a member; false if out of memory. */
static bool json_add(json_t *obj, const char *key, json_t *value)
{
    return json_object_set_new(obj, key, value) == 0;
}

static json_t *int_array(const int64_t *v, int n)
{
    json_t *list = json_array();

    for (int i = 0; i < n; i++)
        if (json_array_append_new(list, json_integer(v[i])) != 0) {
            json_decref(list);
            return NULL;
        }
    return list;
}

d9d_status d9di_checkpointer_state_check(const d9d_checkpointer_state *state)
{
    for (size_t i = 0; i < N_NUMBERS; i++) {
        const int64_t v = *(const int64_t *)((const char *)state + state_numbers[i].offset);

        if (v < state_numbers[i].min)
            return D9D_FAIL(D9D_EINVAL, "checkpoint: %s is %" PRId64 ", must be at least %" PRId64,
                            state_numbers[i].key, v, state_numbers[i].min);
    }
    if (state->seed > INT64_MAX)
        return D9D_FAIL(D9D_EINVAL, "checkpoint: seed is %" PRIu64 ", must be at most %" PRId64,
                        state->seed, INT64_MAX);
    return D9D_OK;
}

static d9d_status add_state(json_t *root, const d9d_checkpointer_state *state)
{
    bool ok = true;

    D9D_TRY(d9di_checkpointer_state_check(state));
    for (size_t i = 0; i < N_NUMBERS; i++)
        ok &= json_add(
            root, state_numbers[i].key,
            json_integer(*(const int64_t *)((const char *)state + state_numbers[i].offset)));
    ok &= json_add(root, "seed", json_integer((json_int_t)state->seed));
    ok &= json_add(root, "finite", json_boolean(state->finite));
    for (size_t i = 0; i < N_HASHES; i++) {
        const d9d_hash hash = *(const d9d_hash *)((const char *)state + state_hashes[i].offset);
        char hex[D9D_HASH_HEX];

        if (state_hashes[i].optional && d9d_hash_equal(hash, (d9d_hash){0}))
            continue;
        d9d_hash_hex(hash, hex);
        ok &= json_add(root, state_hashes[i].key, json_string(hex));
    }
    return ok ? D9D_OK : fail_no_memory("checkpoint");
}

static d9d_status add_slice(json_t *slices, const d9d_checkpointer_tensor *t, const d9d_box *box,
                            size_t rank)
{
    char file[D9DI_CHECKPOINTER_FILE_NAME_MAX];
    json_t *slice;
    bool ok;

    D9D_TRY(d9di_checkpointer_file_name(t->group, rank, file));
    slice = json_object();
    ok = json_add(slice, "file", json_string(file));
    ok &= json_add(slice, "start", int_array(box->start, box->ndim));
    ok &= json_add(slice, "shape", int_array(box->size, box->ndim));
    ok &= json_array_append_new(slices, slice) == 0;
    return ok ? D9D_OK : fail_no_memory(t->name);
}

/* The entry of a tensor, with the slice of this rank. */
static d9d_status add_tensor(json_t *tensors, const d9d_checkpointer_tensor *t, size_t rank)
{
    json_t *tensor = json_object(), *slices = json_array();
    const d9d_box box = d9di_checkpointer_tensor_box(t);
    char text[D9D_BOX_TEXT], whole[128];
    bool ok = json_add(tensor, "name", json_string(t->name));

    ok &= json_add(tensor, "dtype", json_string(d9d_dtype_safetensors(t->tensor->dtype)));
    ok &= json_add(tensor, "shape", int_array(t->global_shape.dim, t->global_shape.ndim));
    ok &= json_add(tensor, "slices", slices);
    ok &= json_array_append_new(tensors, tensor) == 0;
    if (!ok)
        return fail_no_memory(t->name);
    if (!d9d_box_fits(&box, &t->global_shape))
        return D9D_FAIL(D9D_EINVAL, "checkpoint: %s: %s is not a part of %s", t->name,
                        d9d_box_text(&box, text),
                        d9d_shape_text(&t->global_shape, whole, sizeof(whole)));
    return add_slice(slices, t, &box, rank);
}

static d9d_status add_counts(json_t *counts, const d9d_checkpointer_set *set)
{
    for (size_t i = 0; i < set->n_counts; i++)
        if (!json_add(counts, set->counts[i].name, json_integer(*set->counts[i].value)))
            return fail_no_memory(set->counts[i].name);
    return D9D_OK;
}

/* The list with this rank's file. */
static d9d_status add_rank_state(json_t *root, size_t rank)
{
    json_t *list = json_array();
    char file[D9DI_CHECKPOINTER_FILE_NAME_MAX];
    bool ok = json_add(root, RANK_STATE_KEY, list);

    D9D_TRY(d9di_checkpointer_file_name(D9DI_CHECKPOINTER_RANK_STATE, rank, file));
    ok = ok && json_array_append_new(list, json_string(file)) == 0;
    return ok ? D9D_OK : fail_no_memory(D9DI_CHECKPOINTER_RANK_STATE);
}

/* An object with two empty members for tensors and counts, both borrowed. */
static d9d_status add_empty_lists(json_t *root, json_t **counts, json_t **tensors)
{
    bool held;

    *counts = json_object();
    *tensors = json_array();
    held = json_add(root, "optimizer_steps", *counts);
    held = json_add(root, "tensors", *tensors) && held; /* json_add() takes both, even on failure */
    return held ? D9D_OK : fail_no_memory("checkpoint");
}

d9d_status d9di_checkpointer_manifest_describe_rank(const d9d_checkpointer_set *set, size_t rank,
                                                    json_t **out)
{
    json_t *root = json_object(), *counts, *tensors;
    d9d_status st;

    D9D_TRY_OR(st, add_empty_lists(root, &counts, &tensors), out);
    D9D_TRY_OR(st, add_counts(counts, set), out);
    for (size_t i = 0; i < set->n; i++)
        D9D_TRY_OR(st, add_tensor(tensors, &set->items[i], rank), out);
    if (set->n_rank_states > 0)
        D9D_TRY_OR(st, add_rank_state(root, rank), out);
    *out = root;
    root = NULL;
out:
    json_decref(root);
    return st;
}

/* Appends slices to tensors that other ranks have listed, and adds the remaining tensors. */
static d9d_status merge_tensors(json_t *tensors, const json_t *share, d9d_map *lists)
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
                return fail_no_memory(name);
            continue;
        }
        if (json_array_append(tensors, tensor) != 0)
            return fail_no_memory(name);
        D9D_TRY(d9d_map_put(lists, name, strlen(name), slices));
    }
    return D9D_OK;
}

static d9d_status merge_rank_state(json_t *root, const json_t *share)
{
    json_t *list = json_object_get(root, RANK_STATE_KEY);

    if (share == NULL)
        return D9D_OK;
    if (list == NULL && json_add(root, RANK_STATE_KEY, json_array()))
        list = json_object_get(root, RANK_STATE_KEY);
    return list != NULL && json_array_extend(list, (json_t *)(uintptr_t)share) == 0
               ? D9D_OK
               : fail_no_memory(D9DI_CHECKPOINTER_RANK_STATE);
}

d9d_status d9di_checkpointer_manifest_merge(const d9d_checkpointer_state *state,
                                            const json_t *const *shares, size_t n, json_t **out)
{
    json_t *root = json_object(), *counts, *tensors;
    d9d_map lists = {0}; /* slices by tensor name */
    d9d_status st;

    D9D_TRY_OR(st, add_state(root, state), out);
    D9D_TRY_OR(st, add_empty_lists(root, &counts, &tensors), out);
    for (size_t i = 0; i < n; i++) {
        if (json_object_update(counts, json_object_get(shares[i], "optimizer_steps")) != 0) {
            st = fail_no_memory("checkpoint");
            goto out;
        }
        D9D_TRY_OR(st, merge_tensors(tensors, json_object_get(shares[i], "tensors"), &lists), out);
        D9D_TRY_OR(st, merge_rank_state(root, json_object_get(shares[i], RANK_STATE_KEY)), out);
    }
    *out = root;
    root = NULL;
out:
    d9d_map_release(&lists);
    json_decref(root);
    return st;
}

/* --- reading ------------------------------------------------------------------------- */

static d9d_status read_hash(const json_t *root, const char *path, const struct state_hash *d,
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

static d9d_status read_state(const json_t *root, const char *path, d9d_checkpointer_state *state)
{
    int64_t seed;
    int finite;

    for (size_t i = 0; i < N_NUMBERS; i++)
        D9D_TRY(d9d_json_get_i64(root, path, state_numbers[i].key, state_numbers[i].min, MAX_VALUE,
                                 (int64_t *)((char *)state + state_numbers[i].offset)));
    D9D_TRY(d9d_json_get_i64(root, path, "seed", 0, INT64_MAX, &seed));
    D9D_TRY(d9d_json_get_bool(root, path, "finite", &finite));
    state->seed = (uint64_t)seed;
    state->finite = finite != 0;
    for (size_t i = 0; i < N_HASHES; i++)
        D9D_TRY(read_hash(root, path, &state_hashes[i],
                          (d9d_hash *)((char *)state + state_hashes[i].offset)));
    return D9D_OK;
}

static d9d_status read_counts(d9di_checkpointer_manifest *s, const json_t *root)
{
    const char *key;
    json_t *counts, *v;

    D9D_TRY(d9d_json_get_obj(root, s->path, "optimizer_steps", &counts));
    json_object_foreach(
        counts, key, v) if (!json_is_integer(v) || json_integer_value(v) < 0 ||
                            json_integer_value(v) >
                                MAX_VALUE) return D9D_FAIL(D9D_EFORMAT,
                                                           "%s: optimizer_steps: \"%s\" must be an "
                                                           "integer of at least 0, at most 2^60",
                                                           s->path, key);
    s->counts = counts;
    return D9D_OK;
}

static d9d_status read_rank_state(d9di_checkpointer_manifest *s, const json_t *root)
{
    const char *key =
        json_object_get(root, RANK_STATE_KEY) != NULL ? RANK_STATE_KEY : FORMER_RANK_STATE_KEY;
    json_t *list;

    if (json_object_get(root, key) == NULL)
        return D9D_OK;
    D9D_TRY(d9d_json_get_arr(root, s->path, key, &list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));

        if (name == NULL || d9d_manifest_find(s->manifest, name) == NULL)
            return D9D_FAIL(D9D_EFORMAT, "%s: %s[%zu] is not among its files", s->path, key, i);
    }
    s->rank_states = list;
    return D9D_OK;
}

static d9d_status read_all(d9di_checkpointer_manifest *s)
{
    const json_t *root = d9d_manifest_root(s->manifest);

    D9D_TRY(read_state(root, s->path, &s->state));
    D9D_TRY(read_counts(s, root));
    D9D_TRY(read_rank_state(s, root));
    return d9d_slices_parse(s->manifest, s->path, &s->slices);
}

d9d_status d9di_checkpointer_manifest_take(const char *dir, d9d_manifest *manifest,
                                           d9di_checkpointer_manifest *out)
{
    d9di_checkpointer_manifest s = {.manifest = manifest};
    d9d_status st;

    s.dir = d9d_arena_strdup(&s.arena, dir);
    s.path = d9d_fs_join(&s.arena, dir, D9D_MANIFEST_NAME);
    if (s.dir == NULL || s.path == NULL) {
        st = fail_no_memory(dir);
        goto out;
    }
    D9D_TRY_OR(st, read_all(&s), out);
    *out = s;
    s = (d9di_checkpointer_manifest){0};
out:
    d9di_checkpointer_manifest_release(&s);
    return st;
}

d9d_status d9di_checkpointer_manifest_open(const char *dir, d9di_checkpointer_manifest *out)
{
    d9d_manifest *manifest;

    D9D_TRY(d9d_manifest_open(dir, &manifest));
    return d9di_checkpointer_manifest_take(dir, manifest, out);
}

void d9di_checkpointer_manifest_release(d9di_checkpointer_manifest *s)
{
    d9d_manifest_close(s->manifest);
    d9d_slices_release(&s->slices);
    d9d_arena_release(&s->arena);
    *s = (d9di_checkpointer_manifest){0};
}
