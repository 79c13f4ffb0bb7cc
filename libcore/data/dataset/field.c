/* field.c - see d9d/data/dataset/field.h. */
#include "data/dataset/field_values.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "d9d/base/num_format.h"

const char *const d9d_field_per_names[] = {"token", "target", "sample", NULL};
const char *const d9d_field_padding_names[] = {"right", "left", "none", NULL};

enum { ALIGN = 8, MAX_ROW_BYTES = 1 << 30 };

int64_t d9d_field_elements(const d9d_field *f)
{
    int64_t n = 1;

    for (int i = 0; i < f->rank; i++)
        n *= f->shape[i];
    return n;
}

size_t d9d_field_bytes(const d9d_field *f)
{
    return (size_t)d9d_field_elements(f) * d9d_dtype_size(f->dtype);
}

const d9d_field *d9d_field_find(d9d_field_list list, const char *name)
{
    for (size_t i = 0; i < list.n; i++)
        if (strcmp(list.v[i].name, name) == 0)
            return &list.v[i];
    return NULL;
}

/* --- declarations ----------------------------------------------------------------------------- */

static d9d_status check_name(const char *name, const char *where)
{
    static const char *const taken[] = {"ids", "labels", "positions", "segments"};
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789_";

    for (size_t i = 0; i < sizeof(taken) / sizeof(taken[0]); i++)
        if (strcmp(name, taken[i]) == 0)
            return D9D_FAIL(D9D_ECONFIG, "%s: the field \"%s\": every sample has these already",
                            where, name);
    if (name[0] >= 'a' && name[0] <= 'z' && name[strspn(name, letters)] == '\0' &&
        strlen(name) <= D9D_FIELD_NAME_MAX)
        return D9D_OK;
    return D9D_FAIL(D9D_ECONFIG,
                    "%s: the field \"%.80s\": a name has small letters, digits and \"_\", begins "
                    "with a letter, and is of at most %d bytes",
                    where, name, D9D_FIELD_NAME_MAX);
}

static d9d_status check_shape(const d9d_field *f, const char *where)
{
    uint64_t bytes = d9d_dtype_size(f->dtype);
    bool fits = f->rank >= 0 && f->rank <= D9D_FIELD_DIMS;

    for (int i = 0; fits && i < f->rank; i++)
        fits = f->shape[i] >= 1 && d9d_checked_mul_u64(bytes, (uint64_t)f->shape[i], &bytes) &&
               bytes <= MAX_ROW_BYTES;
    if (fits)
        return D9D_OK;
    return D9D_FAIL(D9D_ECONFIG,
                    "%s: the field \"%s\": a shape has at most %d dimensions of 1 or more, and %d "
                    "bytes",
                    where, f->name, D9D_FIELD_DIMS, MAX_ROW_BYTES);
}

/* The padding must be a value of the type. */
static bool pad_fits(const d9d_field *f)
{
    switch (f->dtype) {
    case D9D_F32: return isfinite((float)f->pad);
    case D9D_U8: return f->pad >= 0 && f->pad <= 255 && f->pad == floor(f->pad);
    case D9D_I32: return fabs(f->pad) <= INT32_MAX && f->pad == floor(f->pad);
    default: return fabs(f->pad) <= 0x1p53 && f->pad == floor(f->pad);
    }
}

static d9d_status check_field(const d9d_field *f, const char *where)
{
    D9D_TRY(check_name(f->name, where));
    if (f->dtype != D9D_F32 && f->dtype != D9D_I64 && f->dtype != D9D_I32 && f->dtype != D9D_U8)
        return D9D_FAIL(D9D_ECONFIG, "%s: the field \"%s\": its dtype is F32, I64, I32 or U8",
                        where, f->name);
    D9D_TRY(check_shape(f, where));
    if (f->ragged && f->per != D9D_FIELD_PER_SAMPLE)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: the field \"%s\": is ragged, and per %s; that has a row each", where,
                        f->name, d9d_field_per_names[f->per]);
    if (!pad_fits(f))
        return D9D_FAIL(D9D_ECONFIG, "%s: the field \"%s\": %g is no %s to pad with", where,
                        f->name, f->pad, d9d_dtype_safetensors(f->dtype));
    return D9D_OK;
}

d9d_status d9d_field_list_check(d9d_field_list list, const char *where)
{
    if (list.n > D9D_FIELDS_MAX)
        return D9D_FAIL(D9D_ECONFIG, "%s: %zu fields, of at most %d", where, list.n,
                        D9D_FIELDS_MAX);
    for (size_t i = 0; i < list.n; i++) {
        D9D_TRY(check_field(&list.v[i], where));
        if (d9d_field_find((d9d_field_list){list.v, i}, list.v[i].name) != NULL)
            return D9D_FAIL(D9D_ECONFIG, "%s: the field \"%s\" is declared twice", where,
                            list.v[i].name);
    }
    return D9D_OK;
}

/* --- values of a document --------------------------------------------------------------------- */

static d9d_status fail_cut_short(const d9d_field *f, size_t bytes, const char *where)
{
    return D9D_FAIL(D9D_EFORMAT, "%s: the field \"%s\" ends behind the %zu bytes of its document",
                    where, f->name, bytes);
}

d9d_status d9d_field_values_find(d9d_field_list list, const void *document, size_t bytes,
                                 int64_t tokens, const char *where, d9d_field_values *out)
{
    const char *p = document;
    size_t at = 0;

    for (size_t i = 0; i < list.n; i++) {
        const d9d_field *f = &list.v[i];
        uint64_t rows = f->per == D9D_FIELD_PER_SAMPLE ? 1 : (uint64_t)tokens, size;

        if (f->ragged) {
            if (bytes - at < sizeof(rows))
                return fail_cut_short(f, bytes, where);
            memcpy(&rows, p + at, sizeof(rows));
            at += sizeof(rows);
        }
        if (!d9d_checked_mul_u64(rows, d9d_field_bytes(f), &size) || size > bytes - at ||
            (size + ALIGN - 1) / ALIGN * ALIGN > bytes - at)
            return fail_cut_short(f, bytes, where);
        out->data[i] = p + at;
        out->rows[i] = (int64_t)rows;
        at += (size + ALIGN - 1) / ALIGN * ALIGN;
    }
    if (at == bytes)
        return D9D_OK;
    return D9D_FAIL(D9D_EFORMAT, "%s: the fields of a document have %zu bytes, must have %zu",
                    where, bytes, at);
}

d9d_status d9di_field_append(const d9d_field *f, const void *data, int64_t rows, d9d_buf *out)
{
    static const char zeros[ALIGN];
    const size_t size = (size_t)rows * d9d_field_bytes(f);
    const uint64_t n = (uint64_t)rows;

    if (f->ragged)
        D9D_TRY(d9d_buf_append(out, &n, sizeof(n)));
    if (size > 0)
        D9D_TRY(d9d_buf_append(out, data, size));
    return d9d_buf_append(out, zeros, (ALIGN - size % ALIGN) % ALIGN);
}

d9d_status d9di_field_slice(d9d_field_list list, const void *document, size_t bytes, int64_t tokens,
                            int64_t from, int64_t n, d9d_buf *out)
{
    d9d_field_values v;

    if (from == 0 && n == tokens)
        return d9d_buf_append(out, document, bytes);
    D9D_TRY(d9d_field_values_find(list, document, bytes, tokens, "a document", &v));
    for (size_t i = 0; i < list.n; i++) {
        const d9d_field *f = &list.v[i];
        const bool whole = f->per == D9D_FIELD_PER_SAMPLE;
        const char *data = v.data[i];

        D9D_TRY(d9di_field_append(f, whole ? data : data + (size_t)from * d9d_field_bytes(f),
                                  whole ? v.rows[i] : n, out));
    }
    return D9D_OK;
}

int64_t d9di_field_find_nonfinite(const d9d_field *f, const void *data, int64_t rows)
{
    const int64_t n = rows * d9d_field_elements(f);
    const char *p = data;

    for (int64_t i = 0; f->dtype == D9D_F32 && i < n; i++) {
        float v;

        memcpy(&v, p + i * (int64_t)sizeof(v), sizeof(v));
        if (!isfinite(v))
            return i;
    }
    return -1;
}

bool d9d_field_row_is_present(const float *row, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (isnan(row[i]))
            return false;
    return true;
}

/* --- ranges ----------------------------------------------------------------------------------- */

static void range_add(d9d_field_range *r, int64_t v)
{
    if (v == D9D_FIELD_IGNORED)
        return;
    r->min = !r->known || v < r->min ? v : r->min;
    r->max = !r->known || v > r->max ? v : r->max;
    r->known = true;
}

void d9di_field_range_add_i32(d9d_field_range *r, const int32_t *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        range_add(r, v[i]);
}

static void range_add_i64(d9d_field_range *r, const char *p, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t v;

        memcpy(&v, p + i * (int64_t)sizeof(v), sizeof(v));
        range_add(r, v);
    }
}

static void range_add_u8(d9d_field_range *r, const uint8_t *v, int64_t n)
{
    uint8_t min = UINT8_MAX, max = 0;

    for (int64_t i = 0; i < n; i++) {
        min = v[i] < min ? v[i] : min;
        max = v[i] > max ? v[i] : max;
    }
    if (n > 0)
        d9di_field_range_merge(r, &(d9d_field_range){true, min, max});
}

void d9di_field_range_add(d9d_field_range *r, const d9d_field *f, const void *data, int64_t rows)
{
    const int64_t n = rows * d9d_field_elements(f);

    switch (f->dtype) {
    case D9D_U8: range_add_u8(r, data, n); break;
    case D9D_I32: d9di_field_range_add_i32(r, data, (size_t)n); break;
    case D9D_I64: range_add_i64(r, data, n); break;
    default: break;
    }
}

void d9di_field_range_merge(d9d_field_range *r, const d9d_field_range *other)
{
    if (!other->known)
        return;
    r->min = !r->known || other->min < r->min ? other->min : r->min;
    r->max = !r->known || other->max > r->max ? other->max : r->max;
    r->known = true;
}

void d9di_field_ranges_merge(d9di_field_ranges *to, const d9di_field_ranges *from)
{
    for (size_t i = 0; i < D9D_FIELDS_MAX; i++)
        d9di_field_range_merge(&to->field[i], &from->field[i]);
    d9di_field_range_merge(&to->label, &from->label);
}

json_t *d9di_field_range_json(const d9d_field_range *r)
{
    return r->known ? json_pack("[I, I]", (json_int_t)r->min, (json_int_t)r->max) : json_null();
}

d9d_status d9di_field_range_parse(const json_t *v, const char *where, d9d_field_range *out)
{
    const json_t *min = json_array_get(v, 0), *max = json_array_get(v, 1);

    *out = (d9d_field_range){.known = false};
    if (v == NULL || json_is_null(v))
        return D9D_OK;
    if (json_array_size(v) != 2 || !json_is_integer(min) || !json_is_integer(max) ||
        json_integer_value(min) > json_integer_value(max))
        return D9D_FAIL(D9D_EFORMAT, "%s: must be null, or the smallest and the largest integer",
                        where);
    *out = (d9d_field_range){true, json_integer_value(min), json_integer_value(max)};
    return D9D_OK;
}

/* --- documents -------------------------------------------------------------------------------- */

d9d_status d9di_field_document_find(const struct d9di_field_document *documents, size_t n,
                                    uint64_t bytes, uint64_t token, const char *where,
                                    size_t *index, size_t *size)
{
    size_t lo = 0, hi = n;
    uint64_t end;

    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;

        if (documents[mid].token < token)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo == n || documents[lo].token != token)
        return D9D_FAIL(D9D_EFORMAT, "%s: lists no document that begins at token %llu", where,
                        (unsigned long long)token);
    end = lo + 1 < n ? documents[lo + 1].byte : bytes;
    if (documents[lo].byte > end || end > bytes || documents[lo].byte % ALIGN != 0)
        return D9D_FAIL(D9D_EFORMAT,
                        "%s: the document at token %llu has its fields in bytes %llu to %llu, of "
                        "%llu",
                        where, (unsigned long long)token, (unsigned long long)documents[lo].byte,
                        (unsigned long long)end, (unsigned long long)bytes);
    *index = lo;
    *size = (size_t)(end - documents[lo].byte);
    return D9D_OK;
}

/* --- JSON ------------------------------------------------------------------------------------- */

static json_t *field_json(const d9d_field *f)
{
    json_t *shape = json_array(), *v;

    for (int i = 0; i < f->rank; i++)
        d9d_json_add(&shape, json_integer(f->shape[i]));
    v = json_pack("{s:s, s:s, s:s, s:o, s:b, s:o, s:b}", "name", f->name, "dtype",
                  d9d_dtype_safetensors(f->dtype), "per", d9d_field_per_names[f->per], "shape",
                  shape, "ragged", f->ragged, "pad", json_real(f->pad), "allow_nan", f->allow_nan);
    if (f->dtype != D9D_F32)
        d9d_json_set(&v, "range", d9di_field_range_json(&f->range));
    if (!f->ragged)
        return v;
    d9d_json_set(&v, "padding", json_string(d9d_field_padding_names[f->padding]));
    d9d_json_set(&v, "longest", json_integer(f->longest));
    return v;
}

json_t *d9di_field_list_json(d9d_field_list list)
{
    json_t *v = json_array();

    for (size_t i = 0; i < list.n; i++)
        d9d_json_add(&v, field_json(&list.v[i]));
    return v;
}

/* The index of a member's word among `words`. */
static d9d_status get_word(const json_t *v, const char *where, const char *key,
                           const char *const *words, int *out)
{
    const char *text;

    D9D_TRY(d9d_json_get_str(v, where, key, &text));
    for (*out = 0; words[*out] != NULL; ++*out)
        if (strcmp(words[*out], text) == 0)
            return D9D_OK;
    return D9D_FAIL(D9D_EFORMAT, "%s: %s: \"%.20s\" is unknown", where, key, text);
}

static d9d_status parse_shape(const json_t *v, const char *where, d9d_field *out)
{
    json_t *list;

    D9D_TRY(d9d_json_get_arr(v, where, "shape", &list));
    if (json_array_size(list) > D9D_FIELD_DIMS)
        return D9D_FAIL(D9D_EFORMAT, "%s: shape: has %zu dimensions, of at most %d", where,
                        json_array_size(list), D9D_FIELD_DIMS);
    out->rank = (int)json_array_size(list);
    for (int i = 0; i < out->rank; i++)
        out->shape[i] = json_integer_value(json_array_get(list, (size_t)i));
    return D9D_OK;
}

static d9d_status parse_range(const json_t *v, const char *where, d9d_field *out)
{
    char at[512];

    (void)d9d_num_format(at, sizeof(at), "%.490s: range", where);
    return d9di_field_range_parse(json_object_get(v, "range"), at, &out->range);
}

static d9d_status parse_field(const json_t *v, const char *where, d9d_arena *a, d9d_field *out)
{
    const char *name, *dtype;
    int per, padding = 0, ragged, allow_nan;

    D9D_TRY(d9d_json_get_str(v, where, "name", &name));
    D9D_TRY(d9d_json_get_str(v, where, "dtype", &dtype));
    D9D_TRY(get_word(v, where, "per", d9d_field_per_names, &per));
    D9D_TRY(parse_shape(v, where, out));
    D9D_TRY(d9d_json_get_bool(v, where, "ragged", &ragged));
    D9D_TRY(d9d_json_get_bool(v, where, "allow_nan", &allow_nan));
    D9D_TRY(d9d_json_get_f64(v, where, "pad", &out->pad));
    out->ragged = ragged != 0;
    out->allow_nan = allow_nan != 0;
    if (out->ragged) {
        D9D_TRY(get_word(v, where, "padding", d9d_field_padding_names, &padding));
        D9D_TRY(d9d_json_get_i64(v, where, "longest", 0, INT32_MAX, &out->longest));
    }
    D9D_TRY(parse_range(v, where, out));
    out->per = (d9d_field_per)per;
    out->padding = (d9d_field_padding)padding;
    out->dtype = (d9d_dtype)d9d_dtype_find(dtype);
    out->name = d9d_arena_strdup(a, name);
    return out->name != NULL ? D9D_OK : D9D_FAIL(D9D_ENOMEM, "%s: no memory", where);
}

d9d_status d9di_field_list_parse(const json_t *list, const char *where, d9d_arena *a,
                                 d9d_field_list *out)
{
    const size_t n = json_array_size(list);
    d9d_field *v;
    d9d_err_copy why;
    d9d_status st;

    if (list == NULL)
        return D9D_OK; /* a dataset without fields */
    if (!json_is_array(list) || n == 0 || n > D9D_FIELDS_MAX)
        return D9D_FAIL(D9D_EFORMAT, "%s: fields: must be a list of 1 to %d", where,
                        D9D_FIELDS_MAX);
    v = d9d_arena_alloc(a, n * sizeof(*v));
    if (v == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for %zu fields", where, n);
    for (size_t i = 0; i < n; i++) {
        char at[512];

        (void)d9d_num_format(at, sizeof(at), "%.440s: fields[%zu]", where, i);
        D9D_TRY(parse_field(json_array_get(list, i), at, a, &v[i]));
    }
    *out = (d9d_field_list){v, n};
    st = d9d_field_list_check(*out, where);
    if (st != D9D_ECONFIG)
        return st;
    d9d_err_save(&why, st); /* here it is a file that is wrong */
    return D9D_FAIL(D9D_EFORMAT, "%s", why.text);
}
