/* exports.c - runs as CSV and event files. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "d9d/base/fs.h"
#include "d9d/track/tb_event.h"
#include "report/rows.h"

/* The union of all runs' columns, in order of appearance. */
static d9d_status collect_columns(const d9d_run_reader_list *r, d9d_map *out)
{
    for (size_t k = 0; k < r->n; k++)
        for (size_t i = 0; i < r->run[k]->n_columns; i++) {
            const char *name = r->run[k]->columns[i].name;

            if (!d9d_map_has(out, name, strlen(name)))
                D9D_TRY(d9d_map_put(out, name, strlen(name), NULL));
        }
    return D9D_OK;
}

/* Quotes as RFC 4180 requires.  Control characters become "?", since the table may go to a
 * terminal. */
static d9d_status append_csv_text(d9d_buf *out, const char *text)
{
    const char *quote = strpbrk(text, ",\"") != NULL ? "\"" : "";

    D9D_TRY(d9d_buf_printf(out, "%s", quote));
    for (; *text != '\0'; text++) {
        const char c = (unsigned char)*text < ' ' || *text == 0x7f ? '?' : *text;

        D9D_TRY(d9d_buf_printf(out, c == '"' ? "\"%c" : "%c", c));
    }
    return d9d_buf_printf(out, "%s", quote);
}

static d9d_status append_csv_record(d9d_buf *out, const d9d_run_reader *r, size_t i,
                                    const d9d_map *columns)
{
    D9D_TRY(append_csv_text(out, r->name));
    D9D_TRY(d9d_buf_printf(out, ",%" PRId64, r->step[i]));
    for (size_t k = 0; k < columns->len; k++) {
        const double v = d9di_report_rows_value(r, columns->entries[k].key, i);

        D9D_TRY(d9d_buf_append(out, ",", 1));
        if (isfinite(v))
            D9D_TRY(d9di_report_rows_append_value(out, v));
    }
    return d9d_buf_append(out, "\n", 1);
}

static d9d_status append_csv(const d9d_run_reader_list *r, const d9d_map *columns, d9d_buf *out)
{
    D9D_TRY(d9d_buf_printf(out, "run,step"));
    for (size_t k = 0; k < columns->len; k++) {
        D9D_TRY(d9d_buf_append(out, ",", 1));
        D9D_TRY(append_csv_text(out, columns->entries[k].key));
    }
    D9D_TRY(d9d_buf_append(out, "\n", 1));
    for (size_t k = 0; k < r->n; k++)
        for (size_t i = 0; i < r->run[k]->n; i++)
            D9D_TRY(append_csv_record(out, r->run[k], i, columns));
    return D9D_OK;
}

d9d_status d9d_report_csv(const d9d_run_reader_list *r, d9d_buf *out)
{
    d9d_map columns = {0};
    d9d_status st = collect_columns(r, &columns);

    if (st == D9D_OK)
        st = append_csv(r, &columns, out);
    d9d_map_release(&columns);
    return st;
}

d9d_status d9d_report_write_csv(const d9d_run_reader_list *r, const char *path)
{
    d9d_buf text = {0};
    d9d_status st;

    D9D_TRY_OR(st, d9d_run_reader_list_check_output(r, path), out);
    D9D_TRY_OR(st, d9d_report_csv(r, &text), out);
    st = d9d_fs_write_atomic(path, text.data, text.len);
out:
    d9d_buf_release(&text);
    return st;
}

d9d_status d9d_report_events(const d9d_run_reader *r, d9d_buf *out)
{
    const char *tags[D9D_RUN_READER_COLUMNS_MAX];
    double values[D9D_RUN_READER_COLUMNS_MAX];

    D9D_TRY(d9d_tb_event_version(out, r->n > 0 ? r->wall[0] : 0));
    for (size_t i = 0; i < r->n; i++) {
        size_t n = 0;

        for (size_t k = 0; k < r->n_columns; k++)
            if (isfinite(r->columns[k].values[i])) {
                tags[n] = r->columns[k].name;
                values[n++] = r->columns[k].values[i];
            }
        D9D_TRY(d9d_tb_event_scalars(out, r->wall[i], r->step[i], tags, values, n));
    }
    return D9D_OK;
}

static d9d_status write_events(const d9d_run_reader *r, const char *dir, d9d_arena *a,
                               d9d_buf *bytes)
{
    const char *sub = d9d_fs_join(a, dir, r->name);
    const char *file = sub != NULL ? d9d_fs_join(a, sub, "events.out.tfevents.0.d9d") : NULL;

    if (file == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for the name of its event file", r->path);
    bytes->len = 0;
    D9D_TRY(d9d_report_events(r, bytes));
    D9D_TRY(d9d_fs_mkdirs(sub));
    return d9d_fs_write_atomic(file, bytes->data, bytes->len);
}

d9d_status d9d_report_write_events(const d9d_run_reader_list *r, const char *dir)
{
    d9d_arena a = {0};
    d9d_buf bytes = {0};
    d9d_status st = D9D_OK;

    for (size_t i = 0; i < r->n; i++)
        for (size_t k = 0; k < i; k++)
            if (strcmp(r->run[i]->name, r->run[k]->name) == 0)
                return D9D_FAIL(D9D_ECONFIG, "%s and %s are both called %s", r->run[k]->path,
                                r->run[i]->path, r->run[i]->name);
    for (size_t i = 0; i < r->n && st == D9D_OK; i++)
        st = write_events(r->run[i], dir, &a, &bytes);
    d9d_buf_release(&bytes);
    d9d_arena_release(&a);
    return st;
}
