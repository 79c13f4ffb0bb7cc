/* stage_costs.c - the stage times that a pipeline measured. */
#include "d9d/base/median.h"
#include "d9d/report/report.h"

/* A stage's median over the kept pipeline lines that have the key, in seconds. */
static double median_stage_seconds(const d9d_run_reader *r, const char *key, size_t stage)
{
    double v[D9D_RUN_READER_PIPELINES_MAX];
    size_t n = 0;

    for (size_t i = 0; i < r->n_pipelines; i++) {
        const json_t *x = json_array_get(json_object_get(r->pipeline[i], key), stage);

        if (json_is_number(x))
            v[n++] = 1e-3 * json_number_value(x);
    }
    return n > 0 ? d9d_median(v, n) : 0;
}

d9d_stage_costs d9d_report_stage_costs(const d9d_run_reader *r, size_t stage)
{
    return (d9d_stage_costs){
        .forward = median_stage_seconds(r, "forward_ms", stage),
        .dgrad = median_stage_seconds(r, "dgrad_ms", stage),
        .wgrad = median_stage_seconds(r, "wgrad_ms", stage),
    };
}
