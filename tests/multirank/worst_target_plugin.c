/* worst_target_plugin.c - a plugin for plugin.bats: an inference task that reports the
 * log-probability of each sample's worst predicted target. */
#include <d9d/tasks/plugin.h>

static const d9d_key keys[] = {
    D9D_KEY_STR(d9d_job_output_section, output, D9D_REQUIRED, "file to write", .min = 1),
    D9D_KEY_END,
};
static const d9d_table table = D9D_TABLE(d9d_job_output_section, "worst", keys, "the worst target");

static d9d_status row(const void *config, const d9d_infer_task_row *x, d9d_buf *line)
{
    double worst = 0;

    (void)config;
    for (int64_t i = 0; i < x->length; i++)
        if (x->labels[i] != D9D_IGNORE_INDEX && (double)x->loss[i] > worst)
            worst = (double)x->loss[i];
    return d9d_buf_printf(line, "%lld %.6f\n", (long long)x->sample, -worst);
}

static const d9d_infer_task_kind worst = {.size = sizeof(worst), .table = &table, .row = row};
static const d9d_infer_task_kind *const tasks[] = {&worst, NULL};
D9D_PLUGIN(.infer_tasks = tasks);
