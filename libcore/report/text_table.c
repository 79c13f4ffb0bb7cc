/* text_table.c - text in columns. */
#include "report/text_table.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/sanitize_text.h"

static d9d_status add_entry(d9di_text_table *g, const char *entry)
{
    if (entry == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for a table");
    return D9D_VEC_PUSH(&g->entries, entry);
}

d9d_status d9di_text_table_add_text(d9di_text_table *g, const char *text)
{
    d9d_buf b = {0};
    d9d_status st = d9d_text_sanitize(&b, text);

    if (st == D9D_OK)
        st = add_entry(g, d9d_arena_strdup(&g->arena, b.data != NULL ? b.data : ""));
    d9d_buf_release(&b);
    return st;
}

d9d_status d9di_text_table_add_int(d9di_text_table *g, int64_t v)
{
    return add_entry(g, d9d_arena_printf(&g->arena, "%" PRId64, v));
}

d9d_status d9di_text_table_add_real(d9di_text_table *g, double v)
{
    if (isnan(v))
        return add_entry(g, "-");
    if (v == floor(v) && fabs(v) < 1e15)
        return add_entry(g, d9d_arena_printf(&g->arena, "%.0f", v));
    return add_entry(g, d9d_arena_printf(&g->arena, "%.6g", v));
}

static d9d_status append_rows(const d9di_text_table *g, const int *widths, d9d_buf *out)
{
    for (size_t i = 0; i < g->entries.len; i++) {
        const size_t column = i % g->columns;
        const char *entry = g->entries.data[i];
        const int pad = widths[column] - d9d_text_width(entry);

        if (column == 0)
            D9D_TRY(d9d_buf_printf(out, "%s%*s", entry, g->columns > 1 ? pad : 0, ""));
        else
            D9D_TRY(d9d_buf_printf(out, "  %*s%s", pad, "", entry));
        if (column + 1 == g->columns)
            D9D_TRY(d9d_buf_append(out, "\n", 1));
    }
    return D9D_OK;
}

d9d_status d9di_text_table_finish(d9di_text_table *g, d9d_buf *out)
{
    int *widths = d9d_arena_alloc(&g->arena, g->columns * sizeof(*widths));
    d9d_status st;

    if (widths == NULL) {
        st = D9D_FAIL(D9D_ENOMEM, "no memory for a table");
    } else {
        for (size_t i = 0; i < g->entries.len; i++) {
            const int w = d9d_text_width(g->entries.data[i]);

            if (w > widths[i % g->columns])
                widths[i % g->columns] = w;
        }
        st = append_rows(g, widths, out);
    }
    D9D_VEC_RELEASE(&g->entries);
    d9d_arena_release(&g->arena);
    return st;
}
