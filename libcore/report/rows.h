/* rows.h - which records and values a report shows. */
#ifndef D9DI_REPORT_ROWS_H
#define D9DI_REPORT_ROWS_H

#include <math.h>

#include "d9d/base/json.h"
#include "d9d/report/report.h"

/* Of at most `rows` (0: any number) out of n, how many, and which record is number i. */
size_t d9di_report_rows_count(size_t rows, size_t n);
size_t d9di_report_rows_spread(size_t i, size_t rows, size_t n);

/* The keys, or with n 0 `usual` ones and then the losses of the runs' evaluations, with their
 * metrics too (`all`).  In the arena; names are those of the runs' columns. */
d9d_status d9di_report_rows_columns(const d9d_run_reader_list *r, d9d_report_columns keys,
                                    d9d_report_columns usual, bool all, d9d_arena *a,
                                    d9d_report_columns *out);
/* What d9d-train logs of each step and people look at. */
extern const d9d_report_columns d9di_report_rows_default_columns;

/* What of a run logs one of the keys. */
uint32_t d9di_report_rows_sources(const d9d_run_reader *r, d9d_report_columns keys);

/* Numbers of records of those sources, in the arena: at most `rows` (0: all), evenly spread, the
 * first and the last among them; between them the nearest with an evaluation, where there is one
 * in a row's share. */
typedef struct d9di_report_rows {
    size_t *indices, n;
} d9di_report_rows;
d9d_status d9di_report_rows_select(const d9d_run_reader *r, uint32_t sources, size_t rows,
                                   d9d_arena *a, d9di_report_rows *out);

/* A record's value, NaN where the run has no such column. */
double d9di_report_rows_value(const d9d_run_reader *r, const char *key, size_t i);

/* A value with all its digits; whole numbers without a point, null where not finite. */
json_t *d9di_report_rows_json(double v); /* a new reference */
d9d_status d9di_report_rows_append_value(d9d_buf *out, double v);

#endif /* D9DI_REPORT_ROWS_H */
