/* text_table.h - text in aligned columns. */
#ifndef D9DI_REPORT_TEXT_TABLE_H
#define D9DI_REPORT_TEXT_TABLE_H

#include "d9d/base/mem.h"

/* Cells in row-major order; the first column is left-aligned, the others right-aligned. */
typedef struct d9di_text_table {
    d9d_arena arena;
    size_t columns;
    D9D_VEC(const char *) entries;
} d9di_text_table; /* zero-initialise all but `columns` */

d9d_status d9di_text_table_add_text(d9di_text_table *g, const char *text);
d9d_status d9di_text_table_add_int(d9di_text_table *g, int64_t v);
/* Six digits; "-" for NaN. */
d9d_status d9di_text_table_add_real(d9di_text_table *g, double v);

/* Appends all rows as lines, two blanks between columns.  Releases the table in any case. */
d9d_status d9di_text_table_finish(d9di_text_table *g, d9d_buf *out);

#endif /* D9DI_REPORT_TEXT_TABLE_H */
