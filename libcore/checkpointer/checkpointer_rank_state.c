/* checkpointer_rank_state.c - numbers of which every rank has its own, in checkpoints.  See
 * d9d/checkpointer/checkpointer.h. */
#include <stdlib.h>
#include <string.h>

#include "checkpointer/checkpointer_private.h"

static uint64_t bytes_of(const d9d_save_cells *c)
{
    return (uint64_t)c->n * d9d_dtype_size(c->dtype);
}

d9d_status d9d_save_set_cells(d9d_save_set *set, const d9d_save_cells *cells, size_t n,
                              d9d_arena *a)
{
    d9d_save_cells *all = d9d_arena_alloc(a, (set->n_cells + n) * sizeof(*all));

    if (all == NULL)
        return D9D_FAIL(D9D_ENOMEM, "checkpoint: records of %zu arrays", set->n_cells + n);
    for (size_t i = 0; i < n; i++)
        if (cells[i].name == NULL || cells[i].n < 1 ||
            (cells[i].dtype != D9D_F64 && cells[i].dtype != D9D_I64))
            return D9D_FAIL(D9D_EINVAL, "checkpoint: cells %s: %lld of type %s",
                            cells[i].name != NULL ? cells[i].name : "without a name",
                            (long long)cells[i].n, d9d_dtype_word(cells[i].dtype));
    if (set->n_cells > 0)
        memcpy(all, set->cells, set->n_cells * sizeof(*all));
    memcpy(all + set->n_cells, cells, n * sizeof(*all));
    set->cells = all;
    set->n_cells += n;
    return D9D_OK;
}

/* --- writing ------------------------------------------------------------------------- */

d9d_status d9di_save_cells_write(const d9di_save *s, const d9d_save_set *set, d9d_arena *a,
                                 d9d_manifest_file *out)
{
    d9d_tensor *t = d9d_arena_alloc(a, set->n_cells * sizeof(*t));
    d9d_save_set items = {.items = d9d_arena_alloc(a, set->n_cells * sizeof(*items.items))};
    d9d_progress untold = {.log = NULL};

    if (t == NULL || items.items == NULL)
        return D9D_FAIL(D9D_ENOMEM, "checkpoint: records of %zu arrays", set->n_cells);
    for (; items.n < set->n_cells; items.n++) {
        const d9d_save_cells *c = &set->cells[items.n];

        t[items.n] = (d9d_tensor){.dtype = c->dtype, .shape = D9D_SHAPE(c->n)};
        items.items[items.n] = (d9d_save_tensor){
            .name = c->name, .group = D9DI_SAVE_CELLS, .tensor = &t[items.n], .host = c->data};
    }
    return d9di_save_file_write(s, D9DI_SAVE_CELLS, &items, &untold, a, out);
}

d9d_status d9di_save_cells_copy(const d9d_save_set *from, d9d_arena *a, d9d_save_set *to)
{
    to->cells = NULL;
    to->n_cells = 0;
    for (size_t i = 0; i < from->n_cells; i++) {
        d9d_save_cells c = from->cells[i];

        c.data = d9d_arena_alloc(a, bytes_of(&c));
        if (c.data == NULL)
            return D9D_FAIL(D9D_ENOMEM, "checkpoint: %s: a copy of %lld cells", c.name,
                            (long long)c.n);
        D9D_TRY(d9d_save_set_cells(to, &c, 1, a));
    }
    d9di_save_cells_set(from, to);
    return D9D_OK;
}

void d9di_save_cells_set(const d9d_save_set *from, d9d_save_set *to)
{
    for (size_t i = 0; i < to->n_cells; i++)
        memcpy(to->cells[i].data, from->cells[i].data, bytes_of(&from->cells[i]));
}

/* --- reading -------------------------------------------------------------------------- */

#define JOIN(type, name, expr)                                                                     \
    static void name(void *to, const void *from, int64_t n)                                        \
    {                                                                                              \
        type *a = to;                                                                              \
        const type *b = from;                                                                      \
                                                                                                   \
        for (int64_t i = 0; i < n; i++)                                                            \
            a[i] = (expr);                                                                         \
    }
JOIN(double, sum_f64, a[i] + b[i])
JOIN(double, max_f64, a[i] < b[i] ? b[i] : a[i])
JOIN(int64_t, sum_i64, (int64_t)((uint64_t)a[i] + (uint64_t)b[i]))
JOIN(int64_t, max_i64, a[i] < b[i] ? b[i] : a[i])

/* What a rank had becomes this rank's, or is joined with what is there. */
static d9d_status take(const d9d_st_file *f, const d9d_st_tensor *t, const d9d_save_cells *c,
                       bool first)
{
    static void (*const join[2][2])(void *, const void *, int64_t) = {{sum_f64, max_f64},
                                                                      {sum_i64, max_i64}};
    void *own;
    d9d_status st;

    if (first)
        return d9d_st_read(f, t, 0, c->data, bytes_of(c));
    own = malloc(bytes_of(c));
    if (own == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %s: %lld cells", d9d_st_path(f), c->name, (long long)c->n);
    st = d9d_st_read(f, t, 0, own, bytes_of(c));
    if (st == D9D_OK)
        join[c->dtype == D9D_I64][c->join == D9D_COMM_MAX](c->data, own, c->n);
    free(own);
    return st;
}

static d9d_status file_read(const char *path, const d9d_save_set *set, bool first,
                            const d9d_log *log)
{
    d9d_st_file *f;
    d9d_status st = D9D_OK;

    D9D_TRY(d9d_st_open(path, &f));
    for (size_t i = 0; i < set->n_cells && st == D9D_OK; i++) {
        const d9d_save_cells *c = &set->cells[i];
        const d9d_st_tensor *t = d9d_st_find(f, c->name);

        if (t != NULL && t->dtype == c->dtype && t->ndim == 1 && t->shape[0] == c->n)
            st = take(f, t, c, first);
        else if (first)
            d9d_log_warn(log, "%s: %s %lld cells of %s, which begins anew", path,
                         t == NULL ? "has no" : "has other than", (long long)c->n, c->name);
    }
    d9d_st_close(f);
    return st;
}

/* A rank that finds one file a rank has its own; else rank 0 has all. */
static d9d_status files_read(const d9di_saved *s, const d9d_save_set *set, int rank, int ranks,
                             const d9d_log *log)
{
    const size_t n = json_array_size(s->cells);
    const bool own = n == (size_t)ranks;
    const size_t from = own ? (size_t)rank : 0, until = own ? from + 1 : rank == 0 ? n : 0;
    d9d_arena a = {0};
    d9d_status st = D9D_OK;

    for (size_t i = from; i < until && st == D9D_OK; i++) {
        const char *path = d9d_fs_join(&a, s->dir, json_string_value(json_array_get(s->cells, i)));

        st = path != NULL ? file_read(path, set, i == from, log)
                          : D9D_FAIL(D9D_ENOMEM, "%s: no memory for a name", s->dir);
    }
    d9d_arena_release(&a);
    return st;
}

d9d_status d9d_save_read_cells(const char *path, const d9d_save_set *set, int rank, int ranks,
                               const d9d_log *log)
{
    d9di_saved s;
    d9d_status st = D9D_OK;

    if (set->n_cells == 0)
        return D9D_OK;
    D9D_TRY(d9di_saved_open(path, &s));
    if (s.cells == NULL)
        d9d_log_warn(log, "%s: does not say what %s and others had counted, which begin anew", path,
                     set->cells[0].name);
    else
        st = files_read(&s, set, rank, ranks, log);
    d9di_saved_release(&s);
    return st;
}
