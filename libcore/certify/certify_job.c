/* certify_job.c - see certify_job.h. */
#include "certify/certify_job.h"

enum { ROWS_A_PASS = 2, PERIOD = 4, MAX_STEPS = 100 };

/* --- documents -------------------------------------------------------------------------------- */

static json_t *model_section(const d9di_certify *c)
{
    return json_pack("{s:s, s:o}", "name", c->provider->table->name, "hf_config",
                     d9d_json_str(c->folder));
}

static json_t *data_section(const d9di_certify *c)
{
    json_t *source =
        json_pack("{s:s, s:i, s:I, s:I, s:I}", "name", "random", "samples", D9DI_CERTIFY_BATCH,
                  "length", (json_int_t)c->length, "vocab", (json_int_t)c->vocab, "seed",
                  (json_int_t)(c->opts->seed & 0xffffffff));

    return json_pack("{s:s, s:o, s:s, s:i}", "dataset", "rows", "source", source, "order",
                     "sequential", "epochs", MAX_STEPS);
}

json_t *d9di_certify_with_batch(json_t *doc, int64_t batch, int64_t rows)
{
    json_t *more = json_pack("{s:{s:{s:I, s:I}}, s:{s:{s:I}}}", "trainer", "batching",
                             "global_batch_size", (json_int_t)batch, "microbatch_size",
                             (json_int_t)rows, "data", "source", "samples", (json_int_t)batch);

    if (doc == NULL || more == NULL || json_object_update_recursive(doc, more) != 0) {
        json_decref(doc);
        doc = NULL;
    }
    json_decref(more);
    return doc;
}

json_t *d9di_certify_train_doc(const d9di_certify *c, const char *run, int64_t steps, json_t *peft)
{
    json_t *trainer =
        json_pack("{s:{s:s, s:s+++, s:I}, s:{s:i}, s:{s:o}, s:{s:f}}", "run", "name", "certify",
                  "dir", c->dir, "/", run, "", "steps", (json_int_t)steps, "checkpointing",
                  "period_steps", PERIOD, "model_stage_factory", "source_checkpoint",
                  d9d_json_str(c->folder), "gradient_clipping", "max_norm", 1.0);
    json_t *doc = json_pack("{s:o, s:o, s:o, s:{s:s, s:f}, s:o, s:o}", "data", data_section(c),
                            "model_provider", model_section(c), "trainer", trainer, "optimizer",
                            "name", "adamw", "lr", 3e-3, "export_to",
                            json_sprintf("%s/%s-%d", c->dir, run, (int)steps), "task",
                            d9di_small_task_section(c->head, c->vocab));

    doc = d9di_certify_with_batch(doc, D9DI_CERTIFY_BATCH,
                                  d9di_small_task_rows(c->head, ROWS_A_PASS));
    if (peft != NULL)
        d9d_json_set(&doc, "peft", peft);
    return doc;
}

json_t *d9di_certify_generate_doc(const d9di_certify *c, const char *prompts, const char *output,
                                  int64_t tokens)
{
    return json_pack("{s:o, s:{s:{s:i}, s:{s:o}}, s:{s:s, s:o, s:o, s:I, s:b}}", "model_provider",
                     model_section(c), "trainer", "batching", "microbatch_size", ROWS_A_PASS,
                     "model_stage_factory", "source_checkpoint", d9d_json_str(c->folder), "task",
                     "name", "generate", "prompts", d9d_json_str(prompts), "output",
                     d9d_json_str(output), "max_new_tokens", (json_int_t)tokens, "stop_at_eos", 0);
}

/* --- running ---------------------------------------------------------------------------------- */

/* What to do with a bound configuration. */
typedef d9d_status run_fn(const void *config, const json_t *resolved, const d9d_job *where,
                          void *arg);

static d9d_status run_train(const void *config, const json_t *resolved, const d9d_job *where,
                            void *arg)
{
    return d9d_train(config, resolved, where, arg);
}

static d9d_status run_infer(const void *config, const json_t *resolved, const d9d_job *where,
                            void *arg)
{
    return d9d_infer(config, resolved, where, arg);
}

static d9d_status run_selftest(const void *config, const json_t *resolved, const d9d_job *where,
                               void *arg)
{
    return d9d_selftest(config, resolved, where, arg);
}

typedef struct plan_arg {
    d9d_arena *arena;
    d9d_plan *out;
} plan_arg;

static d9d_status run_plan(const void *config, const json_t *resolved, const d9d_job *where,
                           void *arg)
{
    const plan_arg *p = arg;

    (void)resolved;
    (void)where;
    return d9d_plan_estimate(config, &(d9d_plan_opts){.chip = "cpu"}, p->arena, p->out);
}

static d9d_status bind_and_run(d9di_certify *c, const d9d_table *table, json_t *doc,
                               d9d_bootstrap *ranks, run_fn *run, void *arg)
{
    const d9d_job where = {.bootstrap = ranks, .device = "cpu", .plugins = c->opts->plugins};
    d9d_arena a = {0};
    json_t *full = NULL;
    void *config = d9d_arena_alloc(&a, table->size);
    d9d_status st = doc != NULL && config != NULL
                        ? D9D_OK
                        : D9D_FAIL(D9D_ENOMEM, "certificate: a configuration of a job");

    D9D_TRY_OR(st, st, done);
    D9D_TRY_OR(st, d9d_plugins_table(c->opts->plugins, table, &table), done);
    D9D_TRY_OR(st, d9d_config_resolve(table, doc, "certificate", NULL, &full), done);
    D9D_TRY_OR(st, d9d_config_bind(table, full, "certificate", NULL, &a, config), done);
    st = run(config, full, &where, arg);
done:
    json_decref(full);
    json_decref(doc);
    d9d_arena_release(&a);
    return st;
}

static d9d_status run_alone(d9di_certify *c, const d9d_table *table, json_t *doc, run_fn *run,
                            void *arg)
{
    d9d_bootstrap *alone;
    d9d_status st = d9d_bootstrap_single(&alone);

    if (st != D9D_OK) {
        json_decref(doc);
        return st;
    }
    st = bind_and_run(c, table, doc, alone, run, arg);
    d9d_bootstrap_close(alone);
    return st;
}

d9d_status d9di_certify_train(d9di_certify *c, json_t *doc, d9d_train_summary *out)
{
    return run_alone(c, &d9d_train_config_table, doc, run_train, out);
}

d9d_status d9di_certify_infer(d9di_certify *c, json_t *doc, d9d_infer_task_summary *out)
{
    return run_alone(c, &d9d_infer_config_table, doc, run_infer, out);
}

d9d_status d9di_certify_plan(d9di_certify *c, json_t *doc, d9d_arena *a, d9d_plan *out)
{
    plan_arg arg = {a, out};

    return run_alone(c, &d9d_train_config_table, doc, run_plan, &arg);
}

d9d_status d9di_certify_selftest(d9di_certify *c, json_t *doc, d9d_selftest_summary *out)
{
    return bind_and_run(c, &d9d_train_config_table, doc, c->opts->bootstrap, run_selftest, out);
}
