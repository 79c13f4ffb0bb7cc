/* stragglers.c - ranks that computed slower than their peers. */
#include "d9d/base/sanitize_text.h"
#include "d9d/report/report.h"

static double number_of(const json_t *line, const char *key)
{
    return json_number_value(json_object_get(line, key)); /* 0 if it is none */
}

static d9d_status straggler_put(const json_t *line, d9d_buf *out)
{
    D9D_TRY(d9d_buf_printf(out, "step %lld: rank %lld (",
                           json_integer_value(json_object_get(line, "straggler")),
                           json_integer_value(json_object_get(line, "rank"))));
    D9D_TRY(d9d_text_sanitize(out, json_string_value(json_object_get(line, "host"))));
    if (json_is_true(json_object_get(line, "recovered")))
        D9D_TRY(d9d_buf_printf(out, ") computes as fast as its peers"));
    else
        D9D_TRY(d9d_buf_printf(out, ") computes %.2f times slower than its peers",
                               number_of(line, "slower")));
    return d9d_buf_printf(out, " since step %lld: %.3g ms a step, and they %.3g\n",
                          json_integer_value(json_object_get(line, "since")),
                          number_of(line, "compute_ms"), number_of(line, "peers_ms"));
}

d9d_status d9d_report_stragglers(const d9d_run_reader *r, d9d_buf *out)
{
    for (size_t i = 0; i < r->n_stragglers; i++)
        D9D_TRY(straggler_put(r->straggler[i], out));
    return D9D_OK;
}
