/* batch_fields.c - see data/loader/batch_fields.h. */
#include "data/loader/batch_fields.h"

#include <string.h>

#include "d9d/base/num_format.h"
#include "d9d/data/loader/pooling.h"
#include "data/dataset/dataset_private.h"
#include "data/loader/value_limits.h"

/* --- requests --------------------------------------------------------------------------------- */

static d9d_status fail_missing(const d9d_dataset *ds, const d9d_field_request *r)
{
    const d9d_field_list list = d9d_dataset_fields(ds);
    d9d_buf names = {0};
    d9d_status st = D9D_OK;

    for (size_t i = 0; i < list.n && st == D9D_OK; i++)
        st = d9d_buf_printf(&names, "%s\"%s\"", i > 0 ? ", " : "", list.v[i].name);
    if (st == D9D_OK)
        st = D9D_FAIL(D9D_ECONFIG,
                      "%s wants the field \"%s\" of %s, which has %s%s; d9d-shard --fields makes "
                      "datasets with fields",
                      r->where, r->name, d9d_dataset_dir(ds), list.n > 0 ? "only " : "none",
                      list.n > 0 ? names.data : "");
    d9d_buf_release(&names);
    return st;
}

static bool converts(d9d_dtype from, d9d_dtype to)
{
    return from == to || from == D9D_U8 || (from == D9D_I32 && to == D9D_F32);
}

/* True if the field has an array for each position, or a number that can stand at each. */
static bool has_right_rows(const d9d_field *f, const d9d_field_request *r)
{
    return f->per == r->per || (r->spread && f->per == D9D_FIELD_PER_SAMPLE && !f->ragged);
}

static d9d_status check_field(const d9d_dataset *ds, const d9d_field *f, const d9d_field_request *r)
{
    if (!has_right_rows(f, r))
        return D9D_FAIL(D9D_ECONFIG, "%s: the field \"%s\" of %s is per %s%s, must be per %s%s",
                        r->where, r->name, d9d_dataset_dir(ds), d9d_field_per_names[f->per],
                        f->ragged ? " and ragged" : "", d9d_field_per_names[r->per],
                        r->spread ? " or sample" : "");
    if ((r->dtype != D9D_F32 && r->dtype != D9D_I32) || !converts(f->dtype, r->dtype))
        return D9D_FAIL(D9D_ECONFIG, "%s: the field \"%s\" of %s is of %s, which is not used as %s",
                        r->where, r->name, d9d_dataset_dir(ds), d9d_dtype_safetensors(f->dtype),
                        d9d_dtype_safetensors(r->dtype));
    if (r->elements > 0 && d9d_field_elements(f) != r->elements)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: the field \"%s\" of %s has %lld numbers in a row, must have %lld",
                        r->where, r->name, d9d_dataset_dir(ds), (long long)d9d_field_elements(f),
                        (long long)r->elements);
    return D9D_OK;
}

/* Datasets that are blended have one shape of a field. */
static d9d_status check_same(const d9d_dataset *ds, const d9d_field *f, const d9d_dataset *first,
                             const d9d_field *g, const d9d_field_request *r)
{
    const bool same = f->per == g->per && f->rank == g->rank && f->ragged == g->ragged &&
                      f->padding == g->padding && f->pad == g->pad &&
                      memcmp(f->shape, g->shape, (size_t)f->rank * sizeof(f->shape[0])) == 0;

    return same
               ? D9D_OK
               : D9D_FAIL(D9D_ECONFIG,
                          "%s: the field \"%s\" of %s and that of %s have other shapes or padding, "
                          "and cannot be blended",
                          r->where, r->name, d9d_dataset_dir(first), d9d_dataset_dir(ds));
}

static bool is_same_list(const d9di_loader_fields *f, const d9d_field_request *requests, size_t n)
{
    bool same = f->n == n;

    for (size_t i = 0; same && i < n; i++) {
        const d9d_field_request *a = &f->requests[i], *b = &requests[i];

        same = strcmp(a->name, b->name) == 0 && a->per == b->per && a->dtype == b->dtype &&
               a->elements == b->elements && a->spread == b->spread && a->classes == b->classes &&
               a->drops_labels == b->drops_labels && a->limit == b->limit;
    }
    return same;
}

static d9d_status set_request(d9di_loader_fields *f, const d9d_loader_source *sources,
                              size_t n_sources, size_t i, const d9d_field_request *r)
{
    f->requests[i] = *r;
    f->requests[i].name = d9d_arena_strdup(&f->arena, r->name);
    f->requests[i].where = d9d_arena_strdup(&f->arena, r->where);
    if (f->requests[i].name == NULL || f->requests[i].where == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", r->where);
    for (size_t k = 0; k < n_sources; k++) {
        const d9d_dataset *ds = sources[k].dataset;
        const d9d_field_list list = d9d_dataset_fields(ds);
        const d9d_field *field = d9d_field_find(list, r->name);

        if (field == NULL)
            return fail_missing(ds, r);
        D9D_TRY(check_field(ds, field, r));
        if (k == 0)
            f->field[i] = field;
        D9D_TRY(check_same(ds, field, sources[0].dataset, f->field[i], r));
        f->index[k * f->n + i] = (size_t)(field - list.v);
    }
    return D9D_OK;
}

d9d_status d9di_loader_fields_check_values(const d9di_loader_fields *f,
                                           const d9d_loader_source *sources, size_t n_sources,
                                           int64_t classes)
{
    for (size_t k = 0; k < n_sources; k++)
        D9D_TRY(
            d9di_value_limits_check(&sources[k], &(d9di_value_limits){.requests = f->requests,
                                                                      .index = f->index + k * f->n,
                                                                      .n = f->n,
                                                                      .classes = classes}));
    return D9D_OK;
}

d9d_status d9di_loader_fields_set(d9di_loader_fields *f, const d9d_loader_source *sources,
                                  size_t n_sources, const d9d_field_request *requests, size_t n)
{
    d9di_loader_fields to = {.n = n};
    d9d_status st = D9D_OK;

    if (is_same_list(f, requests, n))
        return D9D_OK;
    if (n > D9D_FIELDS_MAX)
        return D9D_FAIL(D9D_ECONFIG, "%zu fields are wanted, of at most %d", n, D9D_FIELDS_MAX);
    to.requests = d9d_arena_alloc(&to.arena, (n + 1) * sizeof(*to.requests));
    to.field = d9d_arena_alloc(&to.arena, (n + 1) * sizeof(const d9d_field *));
    to.index = d9d_arena_alloc(&to.arena, (n * n_sources + 1) * sizeof(*to.index));
    if (to.requests == NULL || to.field == NULL || to.index == NULL)
        st = D9D_FAIL(D9D_ENOMEM, "no memory for %zu fields", n);
    for (size_t i = 0; i < n && st == D9D_OK; i++)
        st = set_request(&to, sources, n_sources, i, &requests[i]);
    if (st == D9D_OK) {
        d9di_loader_fields_release(f);
        *f = to;
    } else {
        d9di_loader_fields_release(&to);
    }
    return st;
}

void d9di_loader_fields_release(d9di_loader_fields *f)
{
    d9d_arena_release(&f->arena);
    *f = (d9di_loader_fields){0};
}

/* --- samples of a batch ----------------------------------------------------------------------- */

d9d_status d9di_batch_fields_add(d9di_batch_fields *to, const d9d_dataset *ds, int32_t source,
                                 const d9d_sample *sample)
{
    struct d9di_batch_fields_row row = {.ds = ds, .source = source, .sample = sample};
    d9d_status st;

    if (ds != NULL)
        D9D_TRY(d9d_sample_fields_open(ds, sample, &row.values));
    st = D9D_VEC_PUSH(&to->rows, row);
    if (st != D9D_OK)
        d9d_sample_fields_close(row.values);
    return st;
}

void d9di_batch_fields_clear(d9di_batch_fields *to)
{
    for (size_t i = 0; i < to->rows.len; i++)
        d9d_sample_fields_close(to->rows.data[i].values);
    to->rows.len = 0;
}

void d9di_batch_fields_release(d9di_batch_fields *to)
{
    d9di_batch_fields_clear(to);
    D9D_VEC_RELEASE(&to->rows);
    for (size_t i = 0; i < D9D_FIELDS_MAX; i++) {
        d9d_buf_release(&to->data[i]);
        D9D_VEC_RELEASE(&to->counts[i]);
    }
}

static size_t segments_of(const struct d9di_batch_fields_row *row)
{
    return row->ds == NULL ? 0 : row->ds->kind != NULL ? 1 : row->sample->n_segments;
}

/* Positions of a segment; *shift: its first target is a token of its own. */
static int64_t positions_of(const struct d9di_batch_fields_row *row, size_t segment, bool *shift)
{
    *shift = !row->ds->manifest.labels && !row->ds->no_targets;
    if (row->ds->kind != NULL)
        return row->sample->length;
    return (int64_t)row->sample->segments[segment] - *shift;
}

/* Copies n elements into the batch's type. */
static void convert(const void *from, d9d_dtype dtype, int64_t n, void *to, d9d_dtype wanted)
{
    const uint8_t *bytes = from;
    const int32_t *ints = from;
    float *reals = to;
    int32_t *wide = to;

    if (dtype == wanted) {
        if (n > 0)
            memcpy(to, from, (size_t)n * d9d_dtype_size(dtype));
        return;
    }
    for (int64_t i = 0; i < n; i++)
        if (wanted == D9D_F32)
            reals[i] = dtype == D9D_U8 ? (float)bytes[i] : (float)ints[i];
        else
            wide[i] = bytes[i];
}

static void pad(const d9d_field *f, const d9d_field_request *r, int64_t n, void *to)
{
    const double value = r->classes ? D9D_FIELD_IGNORED : f->pad;
    float *reals = to;
    int32_t *ints = to;

    for (int64_t i = 0; i < n; i++)
        if (r->dtype == D9D_F32)
            reals[i] = (float)value;
        else
            ints[i] = (int32_t)value;
}

/* --- shapes ----------------------------------------------------------------------------------- */

size_t d9d_batch_field_row_bytes(const d9d_batch_field *f, int first_dim)
{
    size_t n = d9d_dtype_size(f->dtype);

    for (int i = first_dim; i < f->rank; i++)
        n *= (size_t)f->shape[i];
    return n;
}

/* The shape of a field; `rows`: of a ragged one. */
static d9d_batch_field shape_field(const d9d_field_request *r, const d9d_field *f,
                                   const d9d_batch *b, int64_t documents, int64_t rows)
{
    d9d_batch_field x = {.name = r->name,
                         .dtype = r->dtype,
                         .is_sequence = r->per != D9D_FIELD_PER_SAMPLE,
                         .classes = r->classes};

    if (x.is_sequence) {
        x.shape[x.rank++] = b->seqs;
        x.shape[x.rank++] = b->length;
    } else {
        x.shape[x.rank++] = documents;
        if (f->ragged)
            x.shape[x.rank++] = rows;
    }
    for (int i = 0; i < f->rank; i++)
        x.shape[x.rank++] = f->shape[i];
    return x;
}

static d9d_status count_elements(const d9d_batch_field *x, int64_t *out)
{
    uint64_t n = 1;

    for (int i = 0; i < x->rank; i++)
        if (!d9d_checked_mul_u64(n, (uint64_t)x->shape[i], &n) || n > INT32_MAX)
            return D9D_FAIL(D9D_ENOMEM, "the field \"%s\" of a batch has more than %d elements",
                            x->name, INT32_MAX);
    *out = (int64_t)n;
    return D9D_OK;
}

/* --- filling ---------------------------------------------------------------------------------- */

/* The rows of a ragged field, at most and of each document. */
static d9d_status count_rows(const d9di_loader_fields *f, size_t i, d9di_batch_fields *to,
                             const d9d_batch *b, int64_t *most)
{
    const d9d_field *x = f->field[i];
    int64_t least = INT64_MAX;

    to->counts[i].len = 0;
    *most = 0;
    for (size_t r = 0; r < to->rows.len; r++) {
        const struct d9di_batch_fields_row *row = &to->rows.data[r];
        const size_t n = segments_of(row);

        for (size_t k = 0; k < n; k++) {
            const int64_t rows = d9d_sample_fields_get(row->values, k)
                                     ->rows[f->index[(size_t)row->source * f->n + i]];

            *most = rows > *most ? rows : *most;
            least = rows < least ? rows : least;
            D9D_TRY(D9D_VEC_PUSH(&to->counts[i], (int32_t)rows));
        }
        if (n == 0 && b->cu_seqlens == NULL)
            D9D_TRY(D9D_VEC_PUSH(&to->counts[i], 0));
    }
    if (x->padding == D9D_FIELD_PADDING_NONE && *most > 0 && least != *most)
        return D9D_FAIL(
            D9D_ECONFIG,
            "the field \"%s\" has from %lld to %lld row%s in one batch, and its padding "
            "is \"none\"",
            x->name, (long long)least, (long long)*most, D9D_PLURAL(*most));
    *most = *most > 0 ? *most : 1;
    return D9D_OK;
}

/* Writes the positions of a sequence. */
static void fill_sequence(const d9di_loader_fields *f, size_t i,
                          const struct d9di_batch_fields_row *row, const d9d_batch_field *x,
                          char *at)
{
    const size_t index = f->index[(size_t)row->source * f->n + i];
    const size_t bytes = d9d_batch_field_row_bytes(x, 2);

    for (size_t k = 0; k < segments_of(row); k++) {
        const d9d_field *stored = &d9d_dataset_fields(row->ds).v[index];
        const char *from = d9d_sample_fields_get(row->values, k)->data[index];
        const int64_t elements = d9d_field_elements(stored);
        bool shift;
        const int64_t n = positions_of(row, k, &shift);
        const bool next = stored->per == D9D_FIELD_PER_TARGET && row->ds->next_targets &&
                          !row->ds->manifest.labels;

        if ((shift && stored->per == D9D_FIELD_PER_TARGET) || next)
            from += d9d_field_bytes(stored);
        if (stored->per != D9D_FIELD_PER_SAMPLE)
            convert(from, stored->dtype, (n - next) * elements, at, x->dtype);
        for (int64_t p = 0; stored->per == D9D_FIELD_PER_SAMPLE && p < n; p++)
            convert(from, stored->dtype, elements, at + (size_t)p * bytes, x->dtype);
        at += (size_t)n * bytes;
    }
}

/* Writes the arrays of a sequence's documents; returns their number. */
static int64_t fill_documents(const d9di_loader_fields *f, size_t i,
                              const struct d9di_batch_fields_row *row, const d9d_batch_field *x,
                              char *at)
{
    const size_t index = f->index[(size_t)row->source * f->n + i], n = segments_of(row);
    const size_t bytes = d9d_batch_field_row_bytes(x, 1);

    for (size_t k = 0; k < n; k++, at += bytes) {
        const d9d_field *stored = &d9d_dataset_fields(row->ds).v[index];
        const d9d_field_values *v = d9d_sample_fields_get(row->values, k);
        size_t skip = 0;

        if (stored->ragged && stored->padding == D9D_FIELD_PADDING_LEFT)
            skip = (size_t)(x->shape[1] - v->rows[index]) * d9d_batch_field_row_bytes(x, 2);
        convert(v->data[index], stored->dtype, v->rows[index] * d9d_field_elements(stored),
                at + skip, x->dtype);
    }
    return (int64_t)n;
}

static d9d_status fill_field(const d9di_loader_fields *f, size_t i, const d9d_batch *b,
                             int64_t documents, d9di_batch_fields *to)
{
    const bool ragged = f->field[i]->ragged;
    d9d_batch_field *x = &to->list[i];
    int64_t rows = 0, n = 0;
    char *at;

    if (ragged)
        D9D_TRY(count_rows(f, i, to, b, &rows));
    *x = shape_field(&f->requests[i], f->field[i], b, documents, rows);
    D9D_TRY(count_elements(x, &n));
    to->data[i].len = 0;
    D9D_TRY(d9d_buf_reserve(&to->data[i], (size_t)n * d9d_dtype_size(x->dtype) + 1));
    at = to->data[i].data;
    pad(f->field[i], &f->requests[i], n, at);
    for (size_t r = 0; r < to->rows.len; r++) {
        const struct d9di_batch_fields_row *row = &to->rows.data[r];
        int64_t done = 1;

        if (x->is_sequence)
            fill_sequence(f, i, row, x, at);
        else if ((done = fill_documents(f, i, row, x, at)) == 0 && b->cu_seqlens == NULL)
            done = 1; /* a skipped sample is an empty document */
        at += (size_t)done * d9d_batch_field_row_bytes(x, 1);
    }
    x->data = to->data[i].data;
    x->rows = ragged ? to->counts[i].data : NULL;
    return D9D_OK;
}

d9d_status d9di_batch_fields_fill(const d9di_loader_fields *f, d9d_batch *b, d9di_batch_fields *to)
{
    const int64_t documents = d9d_batch_count_documents(b);

    for (size_t i = 0; i < f->n; i++)
        D9D_TRY(fill_field(f, i, b, documents, to));
    b->fields = to->list;
    b->n_fields = f->n;
    return D9D_OK;
}

/* Takes the labels of rows with a NaN away, and returns how many there were. */
static int64_t drop_labels(const d9d_batch_field *x, int64_t positions, float *v, int32_t *labels)
{
    const int64_t n = (int64_t)(d9d_batch_field_row_bytes(x, 2) / sizeof(*v));
    int64_t dropped = 0;

    for (int64_t i = 0; i < positions; i++, v += n) {
        if (d9d_field_row_is_present(v, n))
            continue;
        memset(v, 0, (size_t)n * sizeof(*v));
        dropped += labels[i] != D9D_FIELD_IGNORED;
        labels[i] = D9D_FIELD_IGNORED;
    }
    return dropped;
}

int64_t d9di_batch_fields_drop_labels(const d9di_loader_fields *f, const d9d_batch *b,
                                      d9di_batch_fields *from, int32_t *labels)
{
    int64_t dropped = 0;

    for (size_t i = 0; i < f->n; i++)
        if (f->requests[i].drops_labels)
            dropped += drop_labels(&from->list[i], b->seqs * b->length,
                                   (float *)(void *)from->data[i].data, labels);
    return dropped;
}

const d9d_batch_field *d9d_batch_find_field(const d9d_batch *b, const char *name)
{
    for (size_t i = 0; i < b->n_fields; i++)
        if (strcmp(b->fields[i].name, name) == 0)
            return &b->fields[i];
    return NULL;
}

/* --- plans ------------------------------------------------------------------------------------ */

d9d_status d9di_batch_fields_plan(const d9di_loader_fields *f, const d9d_field_request *requests,
                                  size_t n, d9d_arena *a, d9d_batch *b)
{
    d9d_batch_field *list = d9d_arena_alloc(a, (n + 1) * sizeof(*list));
    const int64_t documents = d9d_batch_count_documents(b);

    if (list == NULL)
        return D9D_FAIL(D9D_ENOMEM, "plan: no memory for %zu fields", n);
    for (size_t i = 0; i < n; i++) {
        const d9d_field_request *r = &requests[i];
        const d9d_field wanted = {.rank = r->elements > 1, .shape = {r->elements}};
        const d9d_field *field = f != NULL && f->n == n ? f->field[i] : &wanted;
        int64_t elements = 0;
        size_t bytes;

        list[i] = shape_field(r, field, b, documents, field->longest > 0 ? field->longest : 1);
        D9D_TRY(count_elements(&list[i], &elements));
        bytes = (size_t)elements * d9d_dtype_size(r->dtype);
        list[i].data = d9d_arena_alloc(a, bytes + 1);
        if (field->ragged)
            list[i].rows = d9d_arena_alloc(a, (size_t)documents * sizeof(int32_t) + 1);
        if (list[i].data == NULL || (field->ragged && list[i].rows == NULL))
            return D9D_FAIL(D9D_ENOMEM, "plan: no memory for %zu bytes of the field \"%s\"", bytes,
                            r->name);
    }
    b->fields = list;
    b->n_fields = n;
    return D9D_OK;
}
