/* csv.c - see csv.h. */
#include "data/io/csv.h"

#include <stdio.h>
#include <string.h>

#include "data/io/framing.h"

/* The unread fields of a row. */
typedef struct row {
    const char *text;
    size_t at, n;
    bool more; /* a field is left, perhaps an empty one at the end */
} row;

static row row_of(const char *text, size_t n)
{
    n -= n > 0 && text[n - 1] == '\r';
    return (row){text, 0, n, true};
}

/* Appends the next field as a JSON string; `value` is scratch.  *whole: the field ends. */
static d9d_status append_field(row *r, char separator, d9d_buf *value, d9d_buf *out, bool *whole)
{
    enum d9di_csv_state state = D9DI_CSV_START, next;

    value->len = 0;
    for (; r->at < r->n && (r->text[r->at] != separator || state == D9DI_CSV_QUOTED); r->at++) {
        const bool opens = state == D9DI_CSV_START;

        next = d9di_csv_next(state, separator, r->text[r->at]);
        if (next == D9DI_CSV_PLAIN || (next == D9DI_CSV_QUOTED && !opens))
            D9D_TRY(d9d_buf_append(value, r->text + r->at, 1));
        state = next;
    }
    *whole = state != D9DI_CSV_QUOTED;
    r->more = r->at++ < r->n;
    return d9d_json_put_str(out, value->data ? value->data : "", value->len);
}

static size_t count_fields(row r, char separator)
{
    enum d9di_csv_state state = D9DI_CSV_START;
    size_t n = 1;

    for (; r.at < r.n; r.at++) {
        n += r.text[r.at] == separator && state != D9DI_CSV_QUOTED;
        state = d9di_csv_next(state, separator, r.text[r.at]);
    }
    return n;
}

static d9d_status fail_row(d9di_jsonl_error *error, const char *what)
{
    snprintf(error->message, sizeof(error->message), "%s", what);
    error->offset = 0;
    error->reason = D9D_SHARD_BAD_JSON;
    return D9D_EFORMAT;
}

static d9d_status check_counts(const row *names, const row *values, char separator,
                               d9di_jsonl_error *error)
{
    const size_t want = count_fields(*names, separator), has = count_fields(*values, separator);
    char what[80];

    if (has == want)
        return D9D_OK;
    snprintf(what, sizeof(what), "has %zu fields, and the header %zu", has, want);
    return fail_row(error, what);
}

static d9d_status append_members(row *names, row *values, char separator, d9d_buf *value,
                                 d9d_buf *out, bool *whole)
{
    bool named;

    *whole = true;
    for (const char *before = "{"; values->more && *whole; before = ", ") {
        D9D_TRY(d9d_buf_append(out, before, strlen(before)));
        D9D_TRY(append_field(names, separator, value, out, &named));
        D9D_TRY(d9d_buf_append(out, ": ", 2));
        D9D_TRY(append_field(values, separator, value, out, whole));
    }
    return d9d_buf_append(out, "}", 1);
}

d9d_status d9di_csv_row_to_json(char separator, const char *header, size_t header_len,
                                const char *text, size_t n, d9d_buf *out, d9di_jsonl_error *error)
{
    row names = row_of(header, header_len), values = row_of(text, n);
    d9d_buf value = {0};
    bool whole;
    d9d_status st;

    D9D_TRY(check_counts(&names, &values, separator, error));
    st = append_members(&names, &values, separator, &value, out, &whole);
    d9d_buf_release(&value);
    D9D_TRY(st);
    return whole ? D9D_OK : fail_row(error, "a quoted field has no end");
}
