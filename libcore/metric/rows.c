/* rows.c - which records and values a report shows. */
#include "metric/rows.h"

size_t d9di_rows_count(size_t rows, size_t n)
{
    return rows == 0 || rows > n ? n : rows;
}

size_t d9di_rows_spread(size_t i, size_t rows, size_t n)
{
    if (rows == 0 || rows >= n)
        return i;
    return rows > 1 ? (size_t)((double)i * (double)(n - 1) / (double)(rows - 1) + 0.5) : n - 1;
}

double d9di_rows_value(const d9d_run *r, const char *key, size_t i)
{
    const double *v = d9d_run_values(r, key);

    return v != NULL ? v[i] : (double)NAN;
}

static bool is_whole(double v)
{
    return v == floor(v) && fabs(v) < 0x1p53;
}

json_t *d9di_rows_json(double v)
{
    if (!isfinite(v))
        return json_null();
    return is_whole(v) ? json_integer((json_int_t)v) : json_real(v);
}

d9d_status d9di_rows_put(d9d_buf *out, double v)
{
    return is_whole(v) ? d9d_buf_printf(out, "%.0f", v) : d9d_json_put_f64(out, v);
}

d9d_keys d9di_rows_keys(d9d_keys k)
{
    static const char *const usual[] = {"loss",   "grad_norm",    "lr",
                                        "tokens", "tokens_per_s", "step_ms"};

    return k.n > 0 ? k : (d9d_keys){usual, sizeof(usual) / sizeof(usual[0])};
}
