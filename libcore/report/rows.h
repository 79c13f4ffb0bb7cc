/* rows.h - which records and values a report shows. */
#ifndef D9DI_REPORT_ROWS_H
#define D9DI_REPORT_ROWS_H

#include <math.h>

#include "d9d/base/json.h"
#include "d9d/report/report.h"

/* Of at most `rows` (0: any number) out of n, how many, and which record is number i. */
size_t d9di_rows_count(size_t rows, size_t n);
size_t d9di_rows_spread(size_t i, size_t rows, size_t n);

/* The keys, or with n 0 `usual` ones and then the losses of the runs' evaluations, with their
 * metrics too (`all`).  In the arena; names are those of the runs' columns. */
d9d_status d9di_rows_keys(const d9d_runs *r, d9d_keys keys, d9d_keys usual, bool all, d9d_arena *a,
                          d9d_keys *out);
/* What d9d-train logs of each step and people look at. */
extern const d9d_keys d9di_rows_usual;

/* What of a run logs one of the keys. */
uint32_t d9di_rows_sources(const d9d_run *r, d9d_keys keys);

/* Numbers of records of those sources, in the arena: at most `rows` (0: all), evenly spread, the
 * first and the last among them; between them the nearest with an evaluation, where there is one
 * in a row's share. */
typedef struct d9di_row_list {
    size_t *at, n;
} d9di_row_list;
d9d_status d9di_rows_pick(const d9d_run *r, uint32_t sources, size_t rows, d9d_arena *a,
                          d9di_row_list *out);

/* A record's value, NaN where the run has no such column. */
double d9di_rows_value(const d9d_run *r, const char *key, size_t i);

/* A value with all its digits; whole numbers without a point, null where not finite. */
json_t *d9di_rows_json(double v); /* a new reference */
d9d_status d9di_rows_put(d9d_buf *out, double v);

#endif /* D9DI_REPORT_ROWS_H */
