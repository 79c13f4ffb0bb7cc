/* checkpointer_share.c - what ranks have written, as manifests that are merged.  See
 * checkpointer/checkpointer_private.h. */
#include <string.h>

#include "checkpointer/checkpointer_private.h"

static d9d_status fail_no_memory(const char *label)
{
    return D9D_FAIL(D9D_ENOMEM, "%s: no memory for what the manifest says", label);
}

/* --- one rank ---------------------------------------------------------------------- */

/* The tensor of an item, with the slice of this rank. */
static d9d_status make_tensor(const d9d_checkpointer_tensor *item, int64_t rank, d9d_arena *a,
                              d9d_sliced_tensor *out)
{
    d9d_slice_run *run = d9d_arena_alloc(a, sizeof(*run));
    char text[D9D_BOX_TEXT], whole[128];

    if (run == NULL)
        return fail_no_memory(item->name);
    run->rank = rank;
    run->box = d9di_checkpointer_tensor_box(item);
    if (!d9d_box_fits(&run->box, &item->global_shape))
        return D9D_FAIL(D9D_EINVAL, "checkpoint: %s: %s is not a part of %s", item->name,
                        d9d_box_text(&run->box, text),
                        d9d_shape_text(&item->global_shape, whole, sizeof(whole)));
    *out = (d9d_sliced_tensor){.name = item->name,
                               .group = item->group,
                               .dtype = item->tensor->dtype,
                               .whole = item->global_shape,
                               .runs = run,
                               .n_runs = 1};
    return d9d_fs_check_name(item->group, strlen(item->group), "checkpoint");
}

static d9d_status make_tensors(const d9d_checkpointer_set *set, int64_t rank, d9d_slices *s)
{
    s->tensors = d9d_arena_alloc(&s->arena, (set->n + 1) * sizeof(*s->tensors));
    if (s->tensors == NULL)
        return fail_no_memory("checkpoint");
    for (; s->n < set->n; s->n++)
        D9D_TRY(make_tensor(&set->items[s->n], rank, &s->arena, &s->tensors[s->n]));
    return D9D_OK;
}

d9d_status d9di_checkpointer_share_of_rank(const d9d_checkpointer_set *set, int64_t rank,
                                           int64_t ranks, int64_t ranks_per_dir,
                                           d9di_checkpointer_share *out)
{
    d9di_checkpointer_share s = {.slices = {.ranks = ranks, .ranks_per_dir = ranks_per_dir},
                                 .counts = json_object(),
                                 .rank_state = set->n_rank_states > 0};
    d9d_status st = make_tensors(set, rank, &s.slices);

    for (size_t i = 0; i < set->n_counts; i++)
        d9d_json_set(&s.counts, set->counts[i].name, json_integer(*set->counts[i].value));
    if (st == D9D_OK && s.counts == NULL)
        st = fail_no_memory("checkpoint");
    if (st == D9D_OK)
        *out = s;
    else
        d9di_checkpointer_share_release(&s);
    return st;
}

/* --- several ------------------------------------------------------------------------ */

/* Adds a copy of a file's entry, whose hashes and name go with their manifest. */
static d9d_status add_file(d9di_checkpointer_share *to, const d9d_manifest_file *f)
{
    d9d_arena *a = &to->slices.arena;
    d9d_manifest_file own = *f;

    own.name = d9d_arena_strdup(a, f->name);
    own.chunks = d9d_arena_alloc(a, (f->n_chunks + 1) * sizeof(*own.chunks));
    if (own.name == NULL || own.chunks == NULL)
        return fail_no_memory(f->name);
    if (f->n_chunks > 0)
        memcpy(own.chunks, f->chunks, f->n_chunks * sizeof(*own.chunks));
    return D9D_VEC_PUSH(&to->files, own);
}

/* Adds values of a share to an object or a list; it may lack them. */
static d9d_status add_counts(json_t **to, json_t *from)
{
    if (*to == NULL)
        *to = json_object();
    return json_object_update(*to, from) == 0 ? D9D_OK : fail_no_memory("checkpoint");
}

static d9d_status add_parts(json_t **to, json_t *from)
{
    if (from == NULL)
        return D9D_OK;
    if (*to == NULL)
        *to = json_array();
    return json_array_extend(*to, from) == 0 ? D9D_OK : fail_no_memory("checkpoint");
}

static d9d_status add_manifest(d9di_checkpointer_share *to, const char *label,
                               const d9d_manifest *m)
{
    const json_t *root = d9d_manifest_root(m);
    d9d_slices slices;
    json_t *counts;
    d9d_status st;

    D9D_TRY(d9d_json_get_obj(root, label, "optimizer_steps", &counts));
    D9D_TRY(add_counts(&to->counts, counts));
    D9D_TRY(add_parts(&to->parts, json_object_get(root, "parts")));
    to->rank_state = to->rank_state || json_is_true(json_object_get(root, "rank_state"));
    for (size_t i = 0; i < d9d_manifest_count(m); i++)
        D9D_TRY(add_file(to, d9d_manifest_at(m, i)));
    D9D_TRY(d9d_slices_parse(m, label, &slices));
    st = d9d_slices_add(&to->slices, &slices);
    d9d_slices_release(&slices);
    return st;
}

d9d_status d9di_checkpointer_share_add(d9di_checkpointer_share *to, const char *label,
                                       const char *text, size_t n)
{
    d9d_manifest *m;
    d9d_status st;

    D9D_TRY(d9d_manifest_parse(label, text, n, &m));
    st = add_manifest(to, label, m);
    d9d_manifest_close(m);
    return st;
}

d9d_status d9di_checkpointer_share_members(d9di_checkpointer_share *s,
                                           const d9d_checkpointer_state *state, json_t **out)
{
    json_t *root = json_object();
    d9d_status st = D9D_OK;

    if (state != NULL)
        D9D_TRY_OR(st, d9di_checkpointer_state_add(root, state), out);
    D9D_TRY_OR(st, d9d_slices_join_runs(&s->slices), out);
    d9d_json_set(&root, "ranks", json_integer(s->slices.ranks));
    d9d_json_set(&root, "ranks_per_dir", json_integer(s->slices.ranks_per_dir));
    d9d_json_set(&root, "optimizer_steps", json_incref(s->counts));
    if (s->rank_state)
        d9d_json_set(&root, "rank_state", json_true());
    if (s->parts != NULL)
        d9d_json_set(&root, "parts", json_incref(s->parts));
    d9d_json_set(&root, "tensors", d9d_slices_json(&s->slices));
    if (root == NULL)
        st = fail_no_memory("checkpoint");
    *out = root;
    root = NULL;
out:
    json_decref(root);
    return st;
}

void d9di_checkpointer_share_release(d9di_checkpointer_share *s)
{
    json_decref(s->counts);
    json_decref(s->parts);
    D9D_VEC_RELEASE(&s->files);
    d9d_slices_release(&s->slices);
    *s = (d9di_checkpointer_share){0};
}
