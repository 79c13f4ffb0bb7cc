/* train_plan.c - see train_plan.h. */
#include "train_plan.h"

#include <string.h>

#include "d9d/plan/mesh_search.h"
#include "train_plan_fault.h"

enum {
    MAX_SHOWN = 12, /* most suggestions shown */
    RESTART_S = 300
};

static void put_text(const tool_run *r, const d9d_buf *text)
{
    if (!r->quiet)
        tool_put(text);
}

static d9d_status put_plan(const tool_run *r, const d9d_plan *p)
{
    d9d_buf text = {0};
    d9d_status st;

    if (r->json)
        return tool_put_json(d9d_plan_json(p));
    st = d9d_plan_print_text(p, &text);
    if (st == D9D_OK)
        put_text(r, &text);
    d9d_buf_release(&text);
    return st;
}

static d9d_status run_plan(tool_run *r, const d9d_train_config *config, const d9d_plan_opts *opts,
                           const char *timeline)
{
    d9d_plan p;

    D9D_TRY(d9d_plan_estimate(config, opts, &r->arena, &p));
    if (timeline != NULL)
        D9D_TRY(d9d_plan_write_timeline(&p, timeline));
    D9D_TRY(put_plan(r, &p));
    return d9d_plan_check_memory(&p);
}

static d9d_status run_mesh_search(tool_run *r, const d9d_train_config *config,
                                  const d9d_plan_opts *opts, int64_t ranks)
{
    d9d_mesh_search_results s;
    d9d_buf text = {0};
    d9d_status st;

    D9D_TRY(d9d_mesh_search(config, opts, ranks, r->log, &r->arena, &s));
    if (r->json)
        return tool_put_json(d9d_mesh_search_json(&s));
    st = d9d_mesh_search_print(&s, MAX_SHOWN, &text);
    if (st == D9D_OK)
        put_text(r, &text);
    d9d_buf_release(&text);
    return st;
}

d9d_status train_plan_options_check(const train_plan_options *o, bool selftest)
{
    const char *const given[] = {
        o->gpu != NULL ? "gpu" : NULL,
        o->memory > 0 ? "memory" : NULL,
        o->length > 0 ? "length" : NULL,
        o->timeline != NULL ? "timeline" : NULL,
        o->costs != NULL ? "costs" : NULL,
        o->suggest > 0 ? "suggest" : NULL,
        o->mtbf > 0 ? "mtbf" : NULL,
        o->storage > 0 ? "storage-rate" : NULL,
        o->restart > 0 ? "restart-time" : NULL,
    };

    if (o->plan && selftest)
        return D9D_FAIL(D9D_ECONFIG, "--plan and --selftest: one of them");
    for (size_t i = 0; !o->plan && i < sizeof(given) / sizeof(given[0]); i++)
        if (given[i] != NULL)
            return D9D_FAIL(D9D_ECONFIG, "--%s is for --plan, which is not there; this would train",
                            given[i]);
    if (!(o->mtbf > 0) && (o->storage > 0 || o->restart > 0))
        return D9D_FAIL(D9D_ECONFIG, "--%s says what a failure costs: it goes with --mtbf",
                        o->storage > 0 ? "storage-rate" : "restart-time");
    return D9D_OK;
}

d9d_status train_plan(tool_run *r, const tool_job_options *job, const train_plan_options *o)
{
    const d9d_plan_opts opts = {
        .chip = o->gpu != NULL                    ? o->gpu
                : strcmp(job->device, "cpu") == 0 ? "cpu"
                                                  : "h200",
        .memory = (uint64_t)o->memory,
        .length = o->length,
        .measured_run = o->costs,
        .node_mtbf_h = o->mtbf,
        .storage_rate = (uint64_t)o->storage,
        .restart_s = o->restart > 0 ? o->restart : RESTART_S,
    };
    const d9d_table *table = &d9d_train_config_table;
    d9d_train_config config;
    d9d_plugins *plugins = NULL;
    json_t *doc = NULL;
    d9d_status st;

    D9D_TRY_OR(st, tool_config_load(r, "d9d.train.v1", &job->config, &table, &plugins, &doc), out);
    if (doc == NULL)
        goto out;
    if (d9d_plugins_count(plugins) > 0)
        plan_fault_handler_install();
    D9D_TRY_OR(st,
               d9d_config_bind(table, doc, tool_input_name(r->args[0]), r->log, &r->arena, &config),
               out);
    if (o->suggest > 0 && (o->costs != NULL || o->timeline != NULL || o->mtbf > 0)) {
        st = D9D_FAIL(D9D_ECONFIG, "%s of one mesh, --suggest tries many",
                      o->costs != NULL      ? "--costs are"
                      : o->timeline != NULL ? "--timeline is"
                                            : "--mtbf is");
        goto out;
    }
    st = o->suggest > 0 ? run_mesh_search(r, &config, &opts, o->suggest)
                        : run_plan(r, &config, &opts, o->timeline);
out:
    json_decref(doc);
    d9d_plugins_close(plugins);
    return st;
}
