/* checkpointer_manifest.c - parses a checkpoint's manifest, and writes its state.  See
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
    {"reference", offsetof(d9d_checkpointer_state, origin.reference), true},
    {"run", offsetof(d9d_checkpointer_state, origin.run), true},
};
enum { N_HASHES = sizeof(state_hashes) / sizeof(state_hashes[0]) };

static d9d_status fail_no_memory(const char *label)
{
    return D9D_FAIL(D9D_ENOMEM, "%s: no memory for what the manifest says", label);
}

/* --- the state -------------------------------------------------------------------- */

/* Adds a member; false if out of memory. */
static bool json_add(json_t *obj, const char *key, json_t *value)
{
    return json_object_set_new(obj, key, value) == 0;
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

d9d_status d9di_checkpointer_state_add(json_t *root, const d9d_checkpointer_state *state)
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

/* The list of files in d9d.checkpoint.v1. */
static d9d_status read_rank_state_files(d9di_checkpointer_manifest *s, const json_t *root,
                                        const char *key)
{
    json_t *list;

    D9D_TRY(d9d_json_get_arr(root, s->path, key, &list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));

        if (name == NULL || d9d_manifest_find(s->manifest, name) == NULL)
            return D9D_FAIL(D9D_EFORMAT, "%s: %s[%zu] is not among its files", s->path, key, i);
    }
    s->rank_states = list;
    s->n_rank_states = json_array_size(list);
    return D9D_OK;
}

static d9d_status read_rank_state(d9di_checkpointer_manifest *s, const json_t *root)
{
    const char *key =
        json_object_get(root, RANK_STATE_KEY) != NULL ? RANK_STATE_KEY : FORMER_RANK_STATE_KEY;
    int has;

    if (json_object_get(root, key) == NULL)
        return D9D_OK;
    if (s->slices.ranks == 0)
        return read_rank_state_files(s, root, key);
    D9D_TRY(d9d_json_get_bool(root, s->path, key, &has));
    s->n_rank_states = has != 0 ? (size_t)s->slices.ranks : 0;
    return D9D_OK;
}

const char *d9di_checkpointer_manifest_rank_state(const d9di_checkpointer_manifest *s, size_t i,
                                                  char buf[D9D_SLICES_FILE])
{
    static const d9d_sliced_tensor state = {.group = D9DI_CHECKPOINTER_RANK_STATE};
    const d9d_slice own = {.rank = (int64_t)i};

    return s->rank_states != NULL ? json_string_value(json_array_get(s->rank_states, i))
                                  : d9d_slices_file(&s->slices, &state, &own, buf);
}

static d9d_status read_all(d9di_checkpointer_manifest *s)
{
    const json_t *root = d9d_manifest_root(s->manifest);

    D9D_TRY(read_state(root, s->path, &s->state));
    D9D_TRY(read_counts(s, root));
    D9D_TRY(d9d_slices_parse(s->manifest, s->path, &s->slices));
    return read_rank_state(s, root);
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

    D9D_TRY(d9d_manifest_open_root(dir, &manifest));
    return d9di_checkpointer_manifest_take(dir, manifest, out);
}

void d9di_checkpointer_manifest_release(d9di_checkpointer_manifest *s)
{
    d9d_manifest_close(s->manifest);
    d9d_slices_release(&s->slices);
    d9d_arena_release(&s->arena);
    *s = (d9di_checkpointer_manifest){0};
}
