/* text_table.h - text in columns. */
#ifndef D9DI_REPORT_TEXT_TABLE_H
#define D9DI_REPORT_TEXT_TABLE_H

#include "d9d/base/mem.h"

/* Cells row by row; the first column is to the left, the others to the right. */
typedef struct d9di_grid {
    d9d_arena arena;
    size_t columns;
    D9D_VEC(const char *) cells;
} d9di_grid; /* zero-initialised but for `columns` */

d9d_status d9di_grid_text(d9di_grid *g, const char *text);
d9d_status d9di_grid_int(d9di_grid *g, int64_t v);
/* Six digits; "-" for NaN. */
d9d_status d9di_grid_real(d9di_grid *g, double v);

/* All rows as lines, two blanks between columns; releases the grid in any case. */
d9d_status d9di_grid_finish(d9di_grid *g, d9d_buf *out);

#endif /* D9DI_REPORT_TEXT_TABLE_H */
