/* text_table.c - text in columns. */
#include "report/text_table.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/sanitize_text.h"

static d9d_status take(d9di_grid *g, const char *cell)
{
    if (cell == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for a table");
    return D9D_VEC_PUSH(&g->cells, cell);
}

d9d_status d9di_grid_text(d9di_grid *g, const char *text)
{
    d9d_buf b = {0};
    d9d_status st = d9d_text_sanitize(&b, text);

    if (st == D9D_OK)
        st = take(g, d9d_arena_strdup(&g->arena, b.data != NULL ? b.data : ""));
    d9d_buf_release(&b);
    return st;
}

d9d_status d9di_grid_int(d9di_grid *g, int64_t v)
{
    return take(g, d9d_arena_printf(&g->arena, "%" PRId64, v));
}

d9d_status d9di_grid_real(d9di_grid *g, double v)
{
    if (isnan(v))
        return take(g, "-");
    if (v == floor(v) && fabs(v) < 1e15)
        return take(g, d9d_arena_printf(&g->arena, "%.0f", v));
    return take(g, d9d_arena_printf(&g->arena, "%.6g", v));
}

static d9d_status put_rows(const d9di_grid *g, const int *widths, d9d_buf *out)
{
    for (size_t i = 0; i < g->cells.len; i++) {
        const size_t column = i % g->columns;
        const char *cell = g->cells.data[i];
        const int pad = widths[column] - d9d_text_width(cell);

        if (column == 0)
            D9D_TRY(d9d_buf_printf(out, "%s%*s", cell, g->columns > 1 ? pad : 0, ""));
        else
            D9D_TRY(d9d_buf_printf(out, "  %*s%s", pad, "", cell));
        if (column + 1 == g->columns)
            D9D_TRY(d9d_buf_append(out, "\n", 1));
    }
    return D9D_OK;
}

d9d_status d9di_grid_finish(d9di_grid *g, d9d_buf *out)
{
    int *widths = d9d_arena_alloc(&g->arena, g->columns * sizeof(*widths));
    d9d_status st;

    if (widths == NULL) {
        st = D9D_FAIL(D9D_ENOMEM, "no memory for a table");
    } else {
        for (size_t i = 0; i < g->cells.len; i++) {
            const int w = d9d_text_width(g->cells.data[i]);

            if (w > widths[i % g->columns])
                widths[i % g->columns] = w;
        }
        st = put_rows(g, widths, out);
    }
    D9D_VEC_RELEASE(&g->cells);
    d9d_arena_release(&g->arena);
    return st;
}
