/* rows.h - selects the records and columns of a report. */
#ifndef D9DI_REPORT_ROWS_H
#define D9DI_REPORT_ROWS_H

#include <math.h>

#include "d9d/base/json.h"
#include "d9d/report/report.h"

/* The number of records to show out of n, at most `rows` (0: all); and the index of the i-th of
 * them. */
size_t d9di_report_rows_count(size_t rows, size_t n);
size_t d9di_report_rows_spread(size_t i, size_t rows, size_t n);

/* The columns to show, in the arena: the caller's keys.  With n 0: the `usual` keys, then the
 * losses of the runs' evaluations, and with `all` their metrics.  Names are borrowed from the
 * runs. */
d9d_status d9di_report_rows_columns(const d9d_run_reader_list *r, d9d_report_columns keys,
                                    d9d_report_columns usual, bool all, d9d_arena *a,
                                    d9d_report_columns *out);
/* The columns of a step that a report shows by default. */
extern const d9d_report_columns d9di_report_rows_default_columns;

/* Indices of the records that log one of the keys, in the arena: at most `rows` (0: all), evenly
 * spaced, the first and the last included.  Each inner index moves to the nearest record with an
 * evaluation within its interval, if there is one. */
typedef struct d9di_report_rows {
    size_t *indices, n;
} d9di_report_rows;
d9d_status d9di_report_rows_select(const d9d_run_reader *r, d9d_report_columns keys, size_t rows,
                                   d9d_arena *a, d9di_report_rows *out);

/* A record's value; NaN if the run has no such column. */
double d9di_report_rows_value(const d9d_run_reader *r, const char *key, size_t i);

/* A value with full precision; integers without a point, null if not finite. */
json_t *d9di_report_rows_json(double v); /* a new reference */
d9d_status d9di_report_rows_append_value(d9d_buf *out, double v);

#endif /* D9DI_REPORT_ROWS_H */
