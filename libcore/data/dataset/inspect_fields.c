/* inspect_fields.c - prints the fields of a dataset and of its samples. */
#include <math.h>
#include <string.h>

#include "d9d/base/num_format.h"
#include "data/dataset/dataset_private.h"

enum { SHOWN = 8 }; /* elements of a field, for people */

d9d_status d9di_dataset_print_fields(const d9d_dataset *ds, d9d_buf *out)
{
    const d9d_field_list list = ds->manifest.fields;

    for (size_t i = 0; i < list.n; i++) {
        const d9d_field *f = &list.v[i];

        D9D_TRY(d9d_buf_printf(out, "field %s: %s per %s", f->name, d9d_dtype_safetensors(f->dtype),
                               d9d_field_per_names[f->per]));
        for (int k = 0; k < f->rank; k++)
            D9D_TRY(d9d_buf_printf(out, "%s%lld", k > 0 ? " x " : ", ", (long long)f->shape[k]));
        if (f->ragged)
            D9D_TRY(d9d_buf_printf(out, ", up to %lld row%s", (long long)f->longest,
                                   D9D_PLURAL(f->longest)));
        if (f->range.known)
            D9D_TRY(d9d_buf_printf(out, ", from %lld to %lld", (long long)f->range.min,
                                   (long long)f->range.max));
        D9D_TRY(d9d_buf_append(out, "\n", 1));
    }
    return D9D_OK;
}

/* The shortest text that is the number again. */
static d9d_status put_real(float v, d9d_buf *out)
{
    char text[32] = "null";
    char *end;

    for (int digits = 6; isfinite(v) && digits <= 9; digits++) {
        (void)d9d_num_format(text, sizeof(text), "%.*g", digits, (double)v);
        if ((float)d9d_num_parse(text, &end) == v)
            break;
    }
    return d9d_buf_append(out, text, strlen(text));
}

static d9d_status put_element(const d9d_field *f, const void *data, int64_t i, d9d_buf *out)
{
    const char *p = (const char *)data + (size_t)i * d9d_dtype_size(f->dtype);
    float real;
    int64_t wide;
    int32_t narrow;

    switch (f->dtype) {
    case D9D_F32: memcpy(&real, p, sizeof(real)); return put_real(real, out);
    case D9D_I64:
        memcpy(&wide, p, sizeof(wide));
        return d9d_buf_printf(out, "%lld", (long long)wide);
    case D9D_I32: memcpy(&narrow, p, sizeof(narrow)); return d9d_buf_printf(out, "%d", narrow);
    default: return d9d_buf_printf(out, "%d", *(const uint8_t *)p);
    }
}

static d9d_status put_elements(const d9d_field *f, const void *data, int64_t n, const char *between,
                               d9d_buf *out)
{
    for (int64_t i = 0; i < n; i++) {
        D9D_TRY(d9d_buf_printf(out, "%s", i > 0 ? between : ""));
        D9D_TRY(put_element(f, data, i, out));
    }
    return D9D_OK;
}

static d9d_status print_values(d9d_field_list list, const d9d_field_values *v, size_t document,
                               d9d_buf *out)
{
    for (size_t i = 0; i < list.n; i++) {
        const int64_t n = v->rows[i] * d9d_field_elements(&list.v[i]);

        D9D_TRY(d9d_buf_printf(out, "document %zu: %s, %lld row%s: ", document, list.v[i].name,
                               (long long)v->rows[i], D9D_PLURAL(v->rows[i])));
        D9D_TRY(put_elements(&list.v[i], v->data[i], n < SHOWN ? n : SHOWN, " ", out));
        D9D_TRY(d9d_buf_printf(out, "%s\n", n > SHOWN ? " ..." : ""));
    }
    return D9D_OK;
}

static d9d_status put_values(d9d_field_list list, const d9d_field_values *v, size_t document,
                             d9d_buf *out)
{
    D9D_TRY(d9d_buf_printf(out, "%s{", document > 0 ? ", " : ""));
    for (size_t i = 0; i < list.n; i++) {
        D9D_TRY(d9d_buf_printf(out, "%s\"%s\": [", i > 0 ? ", " : "", list.v[i].name));
        D9D_TRY(put_elements(&list.v[i], v->data[i], v->rows[i] * d9d_field_elements(&list.v[i]),
                             ", ", out));
        D9D_TRY(d9d_buf_append(out, "]", 1));
    }
    return d9d_buf_append(out, "}", 1);
}

d9d_status d9di_sample_print_fields(const d9d_dataset *ds, const d9d_sample *s, bool json,
                                    d9d_buf *out)
{
    const d9d_field_list list = ds->manifest.fields;
    d9d_sample_fields *f;
    d9d_status st = D9D_OK;

    if (list.n == 0)
        return D9D_OK;
    D9D_TRY(d9d_sample_fields_open(ds, s, &f));
    if (json)
        D9D_TRY_OR(st, d9d_buf_printf(out, ", \"fields\": ["), out);
    for (size_t k = 0; k < s->n_segments && st == D9D_OK; k++)
        st = (json ? put_values : print_values)(list, d9d_sample_fields_get(f, k), k, out);
    if (json && st == D9D_OK)
        st = d9d_buf_append(out, "]", 1);
out:
    d9d_sample_fields_close(f);
    return st;
}
