/* own_values.c - the newest own values of a run.  See d9d/report/report.h. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "d9d/report/report.h"
#include "report/rows.h"

enum { MAX_CONTENT = 60 }; /* bytes of a text that a line shows */

/* {"name", "kind": "scalar", "step", "value"} of a column; NULL where it has no value. */
static json_t *scalar_json(const d9d_run_reader *r, const d9d_run_reader_column *c)
{
    size_t i = r->n;

    while (i > 0 && isnan(c->values[i - 1]))
        i--;
    return i > 0 ? json_pack("{s:o, s:s, s:I, s:o}", "name", d9d_json_str(c->name), "kind",
                             "scalar", "step", (json_int_t)r->step[i - 1], "value",
                             d9di_report_rows_json(c->values[i - 1]))
                 : NULL;
}

/* The line of another value, with its name and kind in place of the kind's key. */
static json_t *other_json(const char *name, json_t *line)
{
    static const char *const kinds[] = {"histogram", "text", "picture"};
    json_t *v = json_pack("{s:o}", "name", d9d_json_str(name));

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (json_object_get(line, kinds[i]) != NULL)
            d9d_json_set(&v, "kind", json_string(kinds[i]));
    if (v != NULL && json_object_update_missing(v, line) != 0)
        json_decref(v), v = NULL;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]) && v != NULL; i++)
        (void)json_object_del(v, kinds[i]);
    return v;
}

d9d_status d9d_report_values_json(const d9d_run_reader *r, json_t **out)
{
    json_t *list = json_array(), *line;
    const char *name;

    for (size_t i = 0; i < r->n_columns; i++) {
        json_t *v = r->columns[i].is_own ? scalar_json(r, &r->columns[i]) : NULL;

        if (v != NULL)
            d9d_json_add(&list, v);
    }
    json_object_foreach(r->own, name, line) d9d_json_add(&list, other_json(name, line));
    *out = json_pack("{s:o, s:o}", "run", d9d_json_str(r->name), "values", list);
    return *out != NULL ? D9D_OK : D9D_FAIL(D9D_ENOMEM, "%s: its own values", r->path);
}

/* What a line shows: the number, the bins and counts, the beginning of a text, or the file. */
static d9d_status append_shown(const json_t *v, d9d_buf *out)
{
    const char *content = json_string_value(json_object_get(v, "content"));
    const char *file = json_string_value(json_object_get(v, "file"));
    const json_t *counts = json_object_get(v, "counts"), *value = json_object_get(v, "value");
    double sum = 0;

    if (file != NULL)
        return d9d_buf_printf(out, "%s", file);
    if (content != NULL) {
        const size_t n = strcspn(content, "\n");

        return d9d_buf_printf(out, "%.*s%s", n < MAX_CONTENT ? (int)n : MAX_CONTENT, content,
                              n < MAX_CONTENT && content[n] == '\0' ? "" : "...");
    }
    if (counts == NULL)
        return value != NULL ? d9d_json_put(out, value, -1) : D9D_OK;
    for (size_t i = 0; i < json_array_size(counts); i++)
        sum += json_number_value(json_array_get(counts, i));
    return d9d_buf_printf(out, "%zu bins, sum of counts %g", json_array_size(counts), sum);
}

static d9d_status append_line(const json_t *v, int width, d9d_buf *out)
{
    D9D_TRY(d9d_buf_printf(out, "%-*s  %-9s  step %" PRId64 "  ", width,
                           json_string_value(json_object_get(v, "name")),
                           json_string_value(json_object_get(v, "kind")),
                           (int64_t)json_integer_value(json_object_get(v, "step"))));
    D9D_TRY(append_shown(v, out));
    return d9d_buf_append(out, "\n", 1);
}

static d9d_status append_lines(const d9d_run_reader *r, const json_t *list, d9d_buf *out)
{
    size_t i, width = 0;
    json_t *v;

    json_array_foreach((json_t *)(uintptr_t)list, i, v)
    {
        const size_t n = json_string_length(json_object_get(v, "name"));

        width = n > width ? n : width;
    }
    json_array_foreach((json_t *)(uintptr_t)list, i, v) D9D_TRY(append_line(v, (int)width, out));
    return i > 0 ? D9D_OK : d9d_buf_printf(out, "%s has recorded no own values\n", r->name);
}

d9d_status d9d_report_values(const d9d_run_reader *r, d9d_buf *out)
{
    json_t *all;
    d9d_status st;

    D9D_TRY(d9d_report_values_json(r, &all));
    st = append_lines(r, json_object_get(all, "values"), out);
    json_decref(all);
    return st;
}
