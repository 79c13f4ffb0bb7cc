/* measured_costs.c - see plan/measured_costs.h. */
#include "plan/measured_costs.h"

#include "d9d/base/json.h"
#include "d9d/base/num_format.h"
#include "d9d/report/report.h"

static d9d_status check_run(const d9d_run_reader *r, const d9d_plan *p, size_t stages)
{
    const json_t *newest = r->n_pipelines > 0 ? r->pipeline[r->n_pipelines - 1] : NULL;
    const size_t has = json_array_size(json_object_get(newest, "forward_ms"));
    const json_int_t rows = json_integer_value(json_object_get(newest, "rows"));

    if (newest == NULL)
        return D9D_FAIL(D9D_ECONFIG, "%s: has measured no pipeline", r->path);
    if (has != stages)
        return D9D_FAIL(D9D_ECONFIG, "%s: has measured %zu stage%s, and the plan has %zu", r->path,
                        has, D9D_PLURAL(has), stages);
    if (rows != p->rows)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: has measured micro-batches of %lld row%s, and the plan has %lld",
                        r->path, (long long)rows, D9D_PLURAL(rows), (long long)p->rows);
    return D9D_OK;
}

d9d_status d9di_measured_costs_apply(const char *run, d9d_plan *p)
{
    const size_t stages = p->n_stages * (size_t)d9d_pipe_schedule_stages_per_rank(&p->pipe);
    d9d_run_reader *r;
    d9d_status st;

    D9D_TRY(d9d_run_reader_open(run, NULL, &r));
    st = check_run(r, p, stages);
    for (size_t s = 0; s < stages && st == D9D_OK; s++)
        p->stage_costs[s] = d9d_report_stage_costs(r, s);
    d9d_run_reader_close(r);
    return st;
}
