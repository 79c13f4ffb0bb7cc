/* checkpointer_rank_state.c - rank state in checkpoints.  See d9d/checkpointer/checkpointer.h. */
#include <stdlib.h>
#include <string.h>

#include "checkpointer/checkpointer_private.h"

static uint64_t state_bytes(const d9d_checkpointer_rank_state *c)
{
    return (uint64_t)c->n * d9d_dtype_size(c->dtype);
}

d9d_status d9d_checkpointer_set_add_rank_state(d9d_checkpointer_set *set,
                                               const d9d_checkpointer_rank_state *states, size_t n,
                                               d9d_arena *a)
{
    d9d_checkpointer_rank_state *all = d9d_arena_alloc(a, (set->n_rank_states + n) * sizeof(*all));

    if (all == NULL)
        return D9D_FAIL(D9D_ENOMEM, "checkpoint: no memory for records of %zu arrays",
                        set->n_rank_states + n);
    for (size_t i = 0; i < n; i++)
        if (states[i].name == NULL || states[i].n < 1 ||
            (states[i].dtype != D9D_F64 && states[i].dtype != D9D_I64))
            return D9D_FAIL(D9D_EINVAL, "checkpoint: rank state %s: %lld of type %s",
                            states[i].name != NULL ? states[i].name : "without a name",
                            (long long)states[i].n, d9d_dtype_name(states[i].dtype));
    if (set->n_rank_states > 0)
        memcpy(all, set->rank_states, set->n_rank_states * sizeof(*all));
    memcpy(all + set->n_rank_states, states, n * sizeof(*all));
    set->rank_states = all;
    set->n_rank_states += n;
    return D9D_OK;
}

/* --- writing ------------------------------------------------------------------------- */

d9d_status d9di_checkpointer_rank_state_write(const d9di_checkpointer_save *s,
                                              const d9d_checkpointer_set *set, d9d_arena *a,
                                              d9d_manifest_file *out)
{
    d9d_tensor *t = d9d_arena_alloc(a, set->n_rank_states * sizeof(*t));
    d9d_checkpointer_set items = {
        .items = d9d_arena_alloc(a, set->n_rank_states * sizeof(*items.items))};
    d9d_progress unread = {.log = NULL};

    if (t == NULL || items.items == NULL)
        return D9D_FAIL(D9D_ENOMEM, "checkpoint: no memory for records of %zu arrays",
                        set->n_rank_states);
    for (; items.n < set->n_rank_states; items.n++) {
        const d9d_checkpointer_rank_state *c = &set->rank_states[items.n];

        t[items.n] = (d9d_tensor){.dtype = c->dtype, .shape = D9D_SHAPE(c->n)};
        items.items[items.n] = (d9d_checkpointer_tensor){.name = c->name,
                                                         .group = D9DI_CHECKPOINTER_RANK_STATE,
                                                         .tensor = &t[items.n],
                                                         .host = c->data};
    }
    return d9di_checkpointer_file_write(s, D9DI_CHECKPOINTER_RANK_STATE, &items, &unread, a, out);
}

d9d_status d9di_checkpointer_rank_state_copy(const d9d_checkpointer_set *from, d9d_arena *a,
                                             d9d_checkpointer_set *to)
{
    to->rank_states = NULL;
    to->n_rank_states = 0;
    for (size_t i = 0; i < from->n_rank_states; i++) {
        d9d_checkpointer_rank_state c = from->rank_states[i];

        c.data = d9d_arena_alloc(a, state_bytes(&c));
        if (c.data == NULL)
            return D9D_FAIL(D9D_ENOMEM, "checkpoint: %s: a copy of %lld numbers", c.name,
                            (long long)c.n);
        D9D_TRY(d9d_checkpointer_set_add_rank_state(to, &c, 1, a));
    }
    d9di_checkpointer_rank_state_update(from, to);
    return D9D_OK;
}

void d9di_checkpointer_rank_state_update(const d9d_checkpointer_set *from, d9d_checkpointer_set *to)
{
    for (size_t i = 0; i < to->n_rank_states; i++)
        memcpy(to->rank_states[i].data, from->rank_states[i].data,
               state_bytes(&from->rank_states[i]));
}

/* --- reading -------------------------------------------------------------------------- */

#define MERGE(type, name, expr)                                                                    \
    static void name(void *to, const void *from, int64_t n)                                        \
    {                                                                                              \
        type *a = to;                                                                              \
        const type *b = from;                                                                      \
                                                                                                   \
        for (int64_t i = 0; i < n; i++)                                                            \
            a[i] = (expr);                                                                         \
    }
MERGE(double, sum_f64, a[i] + b[i])
MERGE(double, max_f64, a[i] < b[i] ? b[i] : a[i])
MERGE(int64_t, sum_i64, (int64_t)((uint64_t)a[i] + (uint64_t)b[i]))
MERGE(int64_t, max_i64, a[i] < b[i] ? b[i] : a[i])

/* Restores a rank's values, or reduces them into the present ones. */
static d9d_status read_entry(const d9d_safetensors_file *f, const d9d_safetensors_tensor *t,
                             const d9d_checkpointer_rank_state *c, bool first)
{
    static void (*const join[2][2])(void *, const void *, int64_t) = {{sum_f64, max_f64},
                                                                      {sum_i64, max_i64}};
    void *own;
    d9d_status st;

    if (first)
        return d9d_safetensors_read(f, t, 0, c->data, state_bytes(c));
    own = malloc(state_bytes(c));
    if (own == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %s: %lld numbers", d9d_safetensors_path(f), c->name,
                        (long long)c->n);
    st = d9d_safetensors_read(f, t, 0, own, state_bytes(c));
    if (st == D9D_OK)
        join[c->dtype == D9D_I64][c->reduce_op == D9D_COMM_MAX](c->data, own, c->n);
    free(own);
    return st;
}

static d9d_status read_file(const char *path, const d9d_checkpointer_set *set, bool first,
                            const d9d_log *log)
{
    d9d_safetensors_file *f;
    d9d_status st = D9D_OK;

    D9D_TRY(d9d_safetensors_open(path, &f));
    for (size_t i = 0; i < set->n_rank_states && st == D9D_OK; i++) {
        const d9d_checkpointer_rank_state *c = &set->rank_states[i];
        const d9d_safetensors_tensor *t = d9d_safetensors_find(f, c->name);

        if (t != NULL && t->dtype == c->dtype && t->ndim == 1 && t->shape[0] == c->n)
            st = read_entry(f, t, c, first);
        else if (first)
            d9d_log_warn(log, "%s: %s %lld numbers of %s, which starts from its initial state",
                         path, t == NULL ? "has no" : "has other than", (long long)c->n, c->name);
    }
    d9d_safetensors_close(f);
    return st;
}

/* With as many files as ranks, each rank reads its own; else rank 0 reads all. */
static d9d_status read_files(const d9di_checkpointer_manifest *s, const d9d_checkpointer_set *set,
                             int rank, int ranks, const d9d_log *log)
{
    const size_t n = s->n_rank_states;
    const bool own = n == (size_t)ranks;
    const size_t from = own ? (size_t)rank : 0, until = own ? from + 1 : rank == 0 ? n : 0;
    d9d_arena a = {0};
    d9d_status st = D9D_OK;

    for (size_t i = from; i < until && st == D9D_OK; i++) {
        char name[D9D_SLICES_FILE];
        const char *path =
            d9d_fs_join(&a, s->dir, d9di_checkpointer_manifest_rank_state(s, i, name));

        st = path != NULL ? read_file(path, set, i == from, log)
                          : D9D_FAIL(D9D_ENOMEM, "%s: no memory for a name", s->dir);
    }
    d9d_arena_release(&a);
    return st;
}

d9d_status d9d_checkpointer_read_rank_state(const char *path, const d9d_checkpointer_set *set,
                                            int rank, int ranks, const d9d_log *log)
{
    d9di_checkpointer_manifest s;
    d9d_status st = D9D_OK;

    if (set->n_rank_states == 0)
        return D9D_OK;
    D9D_TRY(d9di_checkpointer_manifest_open(path, &s));
    if (s.n_rank_states == 0)
        d9d_log_warn(log, "%s: has no rank state, so %s and others start from their initial state",
                     path, set->rank_states[0].name);
    else
        st = read_files(&s, set, rank, ranks, log);
    d9di_checkpointer_manifest_release(&s);
    return st;
}
