/* rows.c - which records and values a report shows. */
#include "report/rows.h"

#include <string.h>

size_t d9di_rows_count(size_t rows, size_t n)
{
    return rows == 0 || rows > n ? n : rows;
}

size_t d9di_rows_spread(size_t i, size_t rows, size_t n)
{
    if (rows == 0 || rows >= n)
        return i;
    return rows > 1 ? (size_t)((double)i * (double)(n - 1) / (double)(rows - 1) + 0.5) : n - 1;
}

double d9di_rows_value(const d9d_run *r, const char *key, size_t i)
{
    const double *v = d9d_run_values(r, key);

    return v != NULL ? v[i] : (double)NAN;
}

static bool is_whole(double v)
{
    return v == floor(v) && fabs(v) < 0x1p53;
}

json_t *d9di_rows_json(double v)
{
    if (!isfinite(v))
        return json_null();
    return is_whole(v) ? json_integer((json_int_t)v) : json_real(v);
}

d9d_status d9di_rows_put(d9d_buf *out, double v)
{
    return is_whole(v) ? d9d_buf_printf(out, "%.0f", v) : d9d_json_put_f64(out, v);
}

/* --- keys -------------------------------------------------------------------------- */

static const char *const usual_keys[] = {"loss",   "grad_norm",    "lr",
                                         "tokens", "tokens_per_s", "step_ms"};
const d9d_keys d9di_rows_usual = {usual_keys, sizeof(usual_keys) / sizeof(usual_keys[0])};

static bool has(const char *const *keys, size_t n, const char *key)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(keys[i], key) == 0)
            return true;
    return false;
}

static bool is_loss(const char *name)
{
    const char *slash = strrchr(name, '/');

    return slash != NULL && strcmp(slash, "/loss") == 0;
}

d9d_status d9di_rows_keys(const d9d_runs *r, d9d_keys keys, d9d_keys usual, bool all, d9d_arena *a,
                          d9d_keys *out)
{
    size_t n = 0, most = usual.n;
    const char **list;

    *out = keys;
    if (keys.n > 0)
        return D9D_OK;
    for (size_t k = 0; k < r->n; k++)
        most += r->run[k]->n_columns;
    list = d9d_arena_alloc(a, most * sizeof(*list));
    if (list == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for the names of %zu columns", most);
    for (; n < usual.n; n++)
        list[n] = usual.key[n];
    for (size_t k = 0; k < r->n; k++)
        for (size_t i = 0; i < r->run[k]->n_columns; i++) {
            const d9d_run_column *c = &r->run[k]->columns[i];

            if (d9d_run_evaluation_of(r->run[k], c) >= 0 && (all || is_loss(c->name)) &&
                !has(list, n, c->name))
                list[n++] = c->name;
        }
    *out = (d9d_keys){list, n};
    return D9D_OK;
}

/* --- records ----------------------------------------------------------------------- */

uint32_t d9di_rows_sources(const d9d_run *r, d9d_keys keys)
{
    uint32_t all = 0;

    for (size_t k = 0; k < keys.n; k++)
        all |= d9d_run_sources(r, keys.key[k]);
    return all;
}

/* Of the records list[lo..hi) the nearest to `at` with an evaluation; without any, `at`. */
static size_t nearest(const d9d_run *r, const size_t *list, size_t lo, size_t hi, size_t at,
                      uint32_t evaluations)
{
    for (size_t far = 0; at + far < hi || (far <= at && at - far >= lo); far++) {
        if (at + far < hi && (r->sources[list[at + far]] & evaluations) != 0)
            return at + far;
        if (far <= at && at - far >= lo && (r->sources[list[at - far]] & evaluations) != 0)
            return at - far;
    }
    return at;
}

d9d_status d9di_rows_pick(const d9d_run *r, uint32_t sources, size_t rows, d9d_arena *a,
                          d9di_row_list *out)
{
    const uint32_t evaluations = sources & ~(uint32_t)D9D_RUN_TRAINING;
    size_t *list = d9d_arena_alloc(a, (r->n + 1) * sizeof(*list)), n = 0, count, before = 0;

    if (list == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for the numbers of %zu records", r->path, r->n);
    for (size_t i = 0; i < r->n; i++)
        if ((r->sources[i] & sources) != 0)
            list[n++] = i;
    count = d9di_rows_count(rows, n);
    for (size_t i = 0; count < n && i < count; i++) { /* in place: none is taken before its turn */
        const size_t at = d9di_rows_spread(i, count, n);
        const size_t next = i + 1 < count ? d9di_rows_spread(i + 1, count, n) : n;
        const size_t end = at + (next - at + 1) / 2;
        const bool inner = i > 0 && i + 1 < count;

        list[i] = list[inner ? nearest(r, list, before, end, at, evaluations) : at];
        before = end;
    }
    *out = (d9di_row_list){list, count};
    return D9D_OK;
}
