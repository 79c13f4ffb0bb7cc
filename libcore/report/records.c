/* records.c - records as tables and JSON. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "report/rows.h"
#include "report/text_table.h"

static d9d_status fill_records(d9di_text_table *g, const d9d_run_reader *r, d9d_report_columns keys,
                               const d9di_report_rows *rows)
{
    D9D_TRY(d9di_text_table_add_text(g, "step"));
    for (size_t k = 0; k < keys.n; k++)
        D9D_TRY(d9di_text_table_add_text(g, keys.key[k]));
    for (size_t i = 0; i < rows->n; i++) {
        D9D_TRY(d9di_text_table_add_int(g, r->step[rows->indices[i]]));
        for (size_t k = 0; k < keys.n; k++)
            D9D_TRY(d9di_text_table_add_real(
                g, d9di_report_rows_value(r, keys.key[k], rows->indices[i])));
    }
    return D9D_OK;
}

static d9d_status append_records(const d9d_run_reader *r, d9d_report_columns keys,
                                 const d9di_report_rows *rows, d9d_buf *out)
{
    d9di_text_table g = {.columns = keys.n + 1};
    const d9d_status st = fill_records(&g, r, keys, rows), put = d9di_text_table_finish(&g, out);

    return st != D9D_OK ? st : put;
}

d9d_status d9d_report_records(d9d_run_reader *r, d9d_report_columns keys, size_t rows, d9d_buf *out)
{
    const d9d_run_reader_list one = {&r, 1};
    d9d_arena a = {0};
    d9d_report_columns shown;
    d9di_report_rows picked;
    d9d_status st =
        d9di_report_rows_columns(&one, keys, d9di_report_rows_default_columns, true, &a, &shown);

    if (st == D9D_OK)
        st = d9di_report_rows_select(r, shown, rows, &a, &picked);
    if (st == D9D_OK)
        st = append_records(r, shown, &picked, out);
    if (st == D9D_OK)
        st = d9d_report_stragglers(r, out);
    d9d_arena_release(&a);
    return st;
}

/* NULL: none. */
static json_t *stragglers_json(const d9d_run_reader *r)
{
    json_t *list = r->n_stragglers > 0 ? json_array() : NULL;

    for (size_t i = 0; i < r->n_stragglers; i++)
        (void)json_array_append(list, r->straggler[i]);
    return list;
}

static json_t *run_json(const d9d_run_reader *r)
{
    json_t *records = json_array();
    int bad = 0;

    for (size_t i = 0; i < r->n; i++) {
        json_t *o = json_pack("{s:I}", "step", (json_int_t)r->step[i]);

        for (size_t k = 0; k < r->n_columns; k++)
            bad |= json_object_set_new(o, r->columns[k].name,
                                       d9di_report_rows_json(r->columns[k].values[i]));
        bad |= json_array_append_new(records, o);
    }
    if (bad == 0)
        return json_pack("{s:o, s:I, s:o, s:o, s:o*}", "run", d9d_json_str(r->name), "restarts",
                         (json_int_t)r->restarts, "end", d9d_json_str(r->end), "records", records,
                         "stragglers", stragglers_json(r));
    json_decref(records);
    return NULL;
}

d9d_status d9d_report_records_json(const d9d_run_reader_list *r, json_t **out)
{
    json_t *list = json_array();

    for (size_t k = 0; k < r->n; k++)
        if (json_array_append_new(list, run_json(r->run[k])) != 0) {
            json_decref(list);
            return D9D_FAIL(D9D_ENOMEM, "%s: no memory for its records, or its name is no UTF-8",
                            r->run[k]->path);
        }
    *out = list;
    return D9D_OK;
}
