/* rows.h - which records and values a report shows. */
#ifndef D9D_METRIC_ROWS_H
#define D9D_METRIC_ROWS_H

#include <math.h>

#include "d9d/base/json.h"
#include "d9d/metric/report.h"

/* Of at most `rows` (0: any number) out of n, how many, and which record is number i. */
size_t d9di_rows_count(size_t rows, size_t n);
size_t d9di_rows_spread(size_t i, size_t rows, size_t n);

/* The keys, or with n 0 those that d9d-train logs and people look at. */
d9d_keys d9di_rows_keys(d9d_keys keys);

/* A record's value, NaN where the run has no such column. */
double d9di_rows_value(const d9d_run *r, const char *key, size_t i);

/* A value with all its digits; whole numbers without a point, null where not finite. */
json_t *d9di_rows_json(double v); /* a new reference */
d9d_status d9di_rows_put(d9d_buf *out, double v);

#endif /* D9D_METRIC_ROWS_H */
