/* shard_fields.c - see data/build/shard_fields.h. */
#include "data/build/shard_fields.h"

#include <float.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "d9d/base/num_format.h"
#include "d9d/config/config.h"

#define MAX_DECLARATION (UINT64_C(1) << 20)

/* --- the declaration -------------------------------------------------------------------------- */

typedef struct field_section {
    const char *name, *key, *npy;
    int dtype, per, padding;
    d9d_list shape;
    bool ragged, allow_nan;
    double pad;
} field_section;

static const char *const dtypes[] = {"F32", "I64", "I32", "U8", NULL};
static const d9d_key dimension_key = {
    .kind = D9D_KIND_INT, .min = 1, .max = 1 << 30, .doc = "size of a dimension"};
static const d9d_key field_keys[] = {
    D9D_KEY_STR(field_section, name, D9D_REQUIRED, "the name under which it is used", .min = 1),
    D9D_KEY_STR(field_section, key, "null", "member of a JSON line that has it; null: its name",
                .flags = D9D_NULLABLE),
    D9D_KEY_ENUM(field_section, dtype, "\"F32\"", dtypes, "type of its elements"),
    D9D_KEY_ENUM(field_section, per, "\"sample\"", d9d_field_per_names,
                 "what has a row of it: each token, each target or the whole sample"),
    D9D_KEY_LIST(field_section, shape, "[]", &dimension_key, "shape of a row; [] is a number",
                 .max = D9D_FIELD_DIMS),
    D9D_KEY_BOOL(field_section, ragged, "false", "a sample has any number of such rows"),
    D9D_KEY_ENUM(field_section, padding, "\"right\"", d9d_field_padding_names,
                 "where ragged fields are padded in a batch; none: they must have the same rows"),
    D9D_KEY_REAL(field_section, pad, "0", -FLT_MAX, FLT_MAX, "value of padding"),
    D9D_KEY_BOOL(field_section, allow_nan, "false",
                 "NaN, which null stands for, and infinities are values"),
    D9D_KEY_STR(field_section, npy, "null",
                "a NumPy file: the line has the number of its row, from 0; null: the values",
                .flags = D9D_NULLABLE),
    D9D_KEY_END,
};
static const d9d_table field_table =
    D9D_TABLE(field_section, "field", field_keys, "a named tensor of each sample");
static const d9d_key field_key = {.kind = D9D_KIND_TABLE, .table = &field_table};

typedef struct fields_section {
    d9d_list fields;
} fields_section;
static const d9d_key fields_keys[] = {
    D9D_KEY_LIST(fields_section, fields, D9D_REQUIRED, &field_key, "the fields of a dataset",
                 .min = 1, .max = D9D_FIELDS_MAX),
    D9D_KEY_END,
};
const d9d_table d9d_shard_fields_table =
    D9D_TABLE(fields_section, "shard_fields", fields_keys, "named tensors of each sample");

static d9d_field make_field(const field_section *s)
{
    d9d_field f = {.name = s->name,
                   .dtype = (d9d_dtype)d9d_dtype_find(dtypes[s->dtype]),
                   .per = (d9d_field_per)s->per,
                   .rank = (int)s->shape.n,
                   .ragged = s->ragged,
                   .padding = (d9d_field_padding)s->padding,
                   .pad = s->pad,
                   .allow_nan = s->allow_nan};

    for (int i = 0; i < f.rank; i++)
        f.shape[i] = ((const int64_t *)s->shape.items)[i];
    return f;
}

/* Checks that the rows of an array are those of the field. */
static d9d_status check_npy(const d9d_field *f, const d9di_npy *a, const char *path)
{
    bool same = a->rank == f->rank + 1 && a->dtype == f->dtype;

    for (int i = 0; same && i < f->rank; i++)
        same = a->shape[i + 1] == f->shape[i];
    if (f->ragged || f->per != D9D_FIELD_PER_SAMPLE)
        return D9D_FAIL(D9D_ECONFIG,
                        "the field \"%s\": the rows of %s are of one shape, for fields per sample "
                        "that are not ragged",
                        f->name, path);
    if (same)
        return D9D_OK;
    return D9D_FAIL(
        D9D_ECONFIG,
        "%s: an array of %s in %d dimensions; the field \"%s\" is of %s, in %d with the "
        "samples, of %lld elements each",
        path, d9d_dtype_safetensors(a->dtype), a->rank, f->name, d9d_dtype_safetensors(f->dtype),
        f->rank + 1, (long long)d9d_field_elements(f));
}

static d9d_status open_arrays(d9di_shard_fields *f, d9d_buf *state)
{
    for (size_t i = 0; i < f->list.n; i++) {
        struct stat s;

        if (f->npy_path[i] == NULL)
            continue;
        D9D_TRY(d9di_npy_open(f->npy_path[i], &f->npy[i]));
        D9D_TRY(check_npy(&f->list.v[i], &f->npy[i], f->npy_path[i]));
        if (stat(f->npy_path[i], &s) == 0)
            D9D_TRY(d9d_buf_printf(state, "%s %lld %lld.%09ld\n", f->npy_path[i],
                                   (long long)s.st_size, (long long)s.st_mtim.tv_sec,
                                   s.st_mtim.tv_nsec));
    }
    return D9D_OK;
}

static d9d_status make_list(const fields_section *c, const char *where, d9di_shard_fields *f)
{
    const field_section *s = c->fields.items;
    d9d_field *v = d9d_arena_alloc(&f->arena, c->fields.n * sizeof(*v));

    if (v == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for %zu fields", where, c->fields.n);
    for (size_t i = 0; i < c->fields.n; i++) {
        v[i] = make_field(&s[i]);
        f->key[i] = s[i].key != NULL ? s[i].key : s[i].name;
        f->npy_path[i] = s[i].npy;
        for (size_t k = 0; k < i; k++)
            if (strcmp(f->key[k], f->key[i]) == 0)
                return D9D_FAIL(D9D_ECONFIG, "%s: two fields are read from \"%s\"", where,
                                f->key[i]);
    }
    f->list = (d9d_field_list){v, c->fields.n};
    return d9d_field_list_check(f->list, where);
}

d9d_status d9di_shard_fields_load(const d9d_shard_opts *opts, const d9d_log *log,
                                  d9di_shard_fields *out)
{
    d9di_shard_fields f = {.list = {0}};
    json_t *doc = NULL;
    d9d_buf state = {0};
    fields_section c;
    d9d_status st;

    if (opts->fields == NULL)
        return D9D_OK;
    D9D_TRY(d9d_json_read(opts->fields, MAX_DECLARATION, &doc));
    D9D_TRY_OR(st, d9d_config_bind(&d9d_shard_fields_table, doc, opts->fields, log, &f.arena, &c),
               out);
    D9D_TRY_OR(st, make_list(&c, opts->fields, &f), out);
    D9D_TRY_OR(st, d9d_json_put(&state, doc, 0), out);
    D9D_TRY_OR(st, open_arrays(&f, &state), out);
    f.hash = d9d_hash_bytes(state.data, state.len);
    *out = f;
    f = (d9di_shard_fields){.list = {0}};
out:
    d9d_buf_release(&state);
    json_decref(doc);
    d9di_shard_fields_release(&f);
    return st;
}

void d9di_shard_fields_release(d9di_shard_fields *f)
{
    for (size_t i = 0; i < f->list.n; i++)
        d9di_npy_release(&f->npy[i]);
    d9d_arena_release(&f->arena);
    *f = (d9di_shard_fields){.list = {0}};
}

/* --- values ----------------------------------------------------------------------------------- */

void d9di_shard_field_values_release(d9di_shard_field_values *v)
{
    for (size_t i = 0; i < D9D_FIELDS_MAX; i++)
        d9d_buf_release(&v->data[i]);
}

static d9d_status fail_value(d9di_jsonl_error *error, const char *fmt, ...) D9D_PRINTF(2, 3);
static d9d_status fail_value(d9di_jsonl_error *error, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    (void)d9d_num_vformat(error->message, sizeof(error->message), fmt, ap);
    va_end(ap);
    error->offset = 0;
    error->reason = D9D_SHARD_BAD_VALUE;
    return D9D_EFORMAT;
}

static d9d_status put_number(void *arg, size_t i, const d9di_jsonl_number *x)
{
    d9di_shard_field_values *v = arg;
    const union {
        float f32;
        int64_t i64;
    } real = {.f32 = (float)x->real}, whole = {.i64 = x->whole};
    const d9d_dtype dtype = v->fields->npy_path[i] != NULL ? D9D_I64 : v->fields->list.v[i].dtype;

    /* Little endian: the first bytes of an integer are the integer of fewer bytes. */
    return d9d_buf_append(&v->data[i], dtype == D9D_F32 ? (const void *)&real : &whole,
                          d9d_dtype_size(dtype));
}

/* Replaces the number of a row by the row. */
static d9d_status take_row(const d9di_shard_fields *f, size_t i, d9di_shard_field_values *v)
{
    const size_t bytes = d9d_field_bytes(&f->list.v[i]);
    int64_t row;

    memcpy(&row, v->data[i].data, sizeof(row));
    v->data[i].len = 0;
    return d9d_buf_append(&v->data[i], (const char *)f->npy[i].data + (size_t)row * bytes, bytes);
}

static void describe_array(const d9di_shard_fields *f, size_t i, int64_t *shape,
                           d9di_jsonl_array *out)
{
    const d9d_field *x = &f->list.v[i];
    const bool rows = x->ragged || x->per != D9D_FIELD_PER_SAMPLE;

    *out = (d9di_jsonl_array){.key = f->key[i],
                              .rank = rows + x->rank,
                              .shape = shape,
                              .whole = x->dtype != D9D_F32,
                              .nulls = x->allow_nan && x->dtype == D9D_F32,
                              .min = x->dtype == D9D_U8    ? 0
                                     : x->dtype == D9D_I32 ? INT32_MIN
                                                           : INT64_MIN,
                              .max = x->dtype == D9D_U8    ? UINT8_MAX
                                     : x->dtype == D9D_I32 ? INT32_MAX
                                                           : INT64_MAX,
                              .rows = 1};
    shape[0] = -1;
    memcpy(shape + rows, x->shape, (size_t)x->rank * sizeof(*shape));
    if (f->npy_path[i] == NULL)
        return;
    out->rank = 0;
    out->whole = true;
    out->nulls = false;
    out->min = 0;
    out->max = f->npy[i].shape[0] - 1;
}

static d9d_status check_finite(const d9d_field *x, const d9di_shard_field_values *v, size_t i,
                               d9di_jsonl_error *error)
{
    const int64_t bad =
        x->allow_nan ? -1 : d9di_field_find_nonfinite(x, v->data[i].data, v->rows[i]);

    return bad < 0 ? D9D_OK
                   : fail_value(error,
                                "\"%s\": element %lld is NaN or infinite; \"allow_nan\" takes them",
                                x->name, (long long)bad);
}

d9d_status d9di_shard_fields_read(const d9di_shard_fields *f, const char *line, size_t n,
                                  d9di_shard_field_values *v, d9di_jsonl_error *error)
{
    d9di_jsonl_array arrays[D9D_FIELDS_MAX];
    int64_t shapes[D9D_FIELDS_MAX][1 + D9D_FIELD_DIMS];

    v->fields = f;
    for (size_t i = 0; i < f->list.n; i++) {
        v->data[i].len = 0;
        describe_array(f, i, shapes[i], &arrays[i]);
    }
    D9D_TRY(d9di_jsonl_get_arrays(line, n, arrays, f->list.n, put_number, v, error));
    for (size_t i = 0; i < f->list.n; i++) {
        const d9d_field *x = &f->list.v[i];

        if (f->npy_path[i] != NULL)
            D9D_TRY(take_row(f, i, v));
        v->rows[i] = x->ragged || x->per != D9D_FIELD_PER_SAMPLE ? arrays[i].rows : 1;
        if (v->rows[i] > INT32_MAX)
            return fail_value(error, "\"%s\" has %lld rows", x->name, (long long)v->rows[i]);
        D9D_TRY(check_finite(x, v, i, error));
    }
    return D9D_OK;
}

d9d_status d9di_shard_fields_tokens(const d9di_shard_fields *f, const d9di_shard_field_values *v,
                                    int64_t *tokens, d9di_jsonl_error *error)
{
    const char *first = NULL;

    *tokens = 1;
    for (size_t i = 0; i < f->list.n; i++) {
        if (f->list.v[i].per == D9D_FIELD_PER_SAMPLE)
            continue;
        if (first != NULL && v->rows[i] != *tokens)
            return fail_value(error, "\"%s\" has %lld row%s, \"%s\" has %lld", f->list.v[i].name,
                              (long long)v->rows[i], D9D_PLURAL(v->rows[i]), first,
                              (long long)*tokens);
        first = f->list.v[i].name;
        *tokens = v->rows[i];
    }
    return D9D_OK;
}

d9d_status d9di_shard_fields_append(const d9di_shard_fields *f, const d9di_shard_field_values *v,
                                    int64_t tokens, d9d_buf *out, d9di_jsonl_error *error)
{
    for (size_t i = 0; i < f->list.n; i++) {
        const d9d_field *x = &f->list.v[i];

        if (x->per != D9D_FIELD_PER_SAMPLE && v->rows[i] != tokens)
            return fail_value(error, "\"%s\" has %lld row%s for %lld token%s", x->name,
                              (long long)v->rows[i], D9D_PLURAL(v->rows[i]), (long long)tokens,
                              D9D_PLURAL(tokens));
        D9D_TRY(d9di_field_append(x, v->data[i].data, v->rows[i], out));
    }
    return D9D_OK;
}
