/* tool_job.c - loads configurations and runs the jobs of d9d-* programs.  See tool.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "d9d/base/version.h"
#include "tool.h"

enum { CONFIG_MAX = 64 << 20 };

/* --- configurations ------------------------------------------------------------------ */

/* A configuration that is not JSON is a usage error, not a failure. */
static d9d_status to_econfig(d9d_status st)
{
    d9d_err_copy copy;

    if (st != D9D_EFORMAT)
        return st;
    d9d_err_save(&copy, D9D_ECONFIG);
    return d9d_err_restore(&copy);
}

static d9d_status read_stdin(json_t **out)
{
    d9d_buf b = {0};
    d9d_status st = D9D_OK;
    char chunk[1 << 14];
    size_t n;

    while (st == D9D_OK && (n = fread(chunk, 1, sizeof(chunk), stdin)) > 0)
        st = b.len + n <= CONFIG_MAX
                 ? d9d_buf_append(&b, chunk, n)
                 : D9D_FAIL(D9D_ECONFIG, "standard input: more than %d bytes", CONFIG_MAX);
    if (st == D9D_OK && ferror(stdin))
        st = D9D_FAIL(D9D_EIO, "standard input: %s", strerror(errno));
    if (st == D9D_OK)
        st = d9d_json_parse("standard input", b.data != NULL ? b.data : "", b.len, out);
    d9d_buf_release(&b);
    return st;
}

const char *tool_input_name(const char *path)
{
    return strcmp(path, "-") == 0 ? "standard input" : path;
}

static d9d_status apply_set(const d9d_table *table, json_t *doc, const char *path,
                            const tool_list *set)
{
    if (!json_is_object(doc))
        return D9D_FAIL(D9D_ECONFIG, "%s: expected a JSON object", tool_input_name(path));
    for (size_t i = 0; i < set->n; i++)
        D9D_TRY(d9d_config_set(table, doc, set->item[i]));
    return D9D_OK;
}

d9d_status tool_config_read(const char *path, const d9d_table *table, const tool_list *set,
                            json_t **out)
{
    json_t *doc = NULL;
    d9d_status st =
        strcmp(path, "-") == 0 ? read_stdin(&doc) : d9d_json_read(path, CONFIG_MAX, &doc);

    D9D_TRY(to_econfig(st));
    st = apply_set(table, doc, path, set);
    if (st != D9D_OK) {
        json_decref(doc);
        return st;
    }
    *out = doc;
    return D9D_OK;
}

static d9d_status print_schema(const d9d_table *table, const char *schema_id)
{
    d9d_buf b = {0};
    d9d_status st = d9d_config_schema(table, schema_id, &b);

    if (st == D9D_OK)
        tool_put(&b);
    d9d_buf_release(&b);
    return st;
}

/* Opens the document, and the table including its plugins' keys. */
static d9d_status open_config(tool_run *r, const tool_config_options *o, const d9d_table **table,
                              d9d_plugins **plugins, json_t **doc)
{
    D9D_TRY(tool_config_read(r->args[0], *table, &o->set, doc));
    D9D_TRY(d9d_job_translate_reference(*doc, r->log));
    D9D_TRY(d9d_job_fill_hf_config(*doc));
    D9D_TRY(d9d_plugins_open(*doc, tool_input_name(r->args[0]), plugins));
    return d9d_plugins_table(*plugins, *table, table);
}

d9d_status tool_config_load(tool_run *r, const char *schema_id, const tool_config_options *o,
                            const d9d_table **table, d9d_plugins **plugins, json_t **out)
{
    json_t *doc = NULL, *full = NULL;
    d9d_status st = r->n_args > 0 ? open_config(r, o, table, plugins, &doc) : D9D_OK;

    *out = NULL;
    if (st == D9D_OK && o->print_schema)
        st = print_schema(*table, schema_id);
    else if (st == D9D_OK)
        st = d9d_config_resolve(*table, doc, tool_input_name(r->args[0]), r->log, &full);
    json_decref(doc);
    D9D_TRY(st);
    if (full != NULL && o->print_config)
        return tool_put_json(full);
    *out = full;
    return D9D_OK;
}

/* --- jobs ------------------------------------------------------------------------ */

/* --skip-samples becomes one more --set after the given ones. */
static d9d_status set_skip_samples(tool_run *r, tool_job_options *o)
{
    const char **all = d9d_arena_alloc(&r->arena, (o->config.set.n + 1) * sizeof(*all));
    d9d_buf b = {0};
    d9d_status st;

    D9D_TRY_OR(st, d9d_buf_printf(&b, "data.skip_samples="), out);
    D9D_TRY_OR(st, d9d_json_put_str(&b, o->skip_samples, strlen(o->skip_samples)), out);
    if (all == NULL ||
        (all[o->config.set.n] = d9d_arena_strndup(&r->arena, b.data, b.len)) == NULL) {
        st = D9D_FAIL(D9D_ENOMEM, "--skip-samples: out of memory");
        goto out;
    }
    if (o->config.set.n > 0)
        memcpy(all, o->config.set.item, o->config.set.n * sizeof(*all));
    o->config.set.item = all;
    o->config.set.n++;
out:
    d9d_buf_release(&b);
    return st;
}

static d9d_status put_text(const tool_job *job, const void *summary)
{
    d9d_buf b = {0};
    d9d_status st = job->text(summary, &b);

    if (st == D9D_OK)
        tool_put(&b);
    d9d_buf_release(&b);
    return st;
}

/* Runs a job, from its configuration to the printed summary. */
static d9d_status run_job(tool_run *r, const tool_job *job, const tool_job_options *o,
                          d9d_bootstrap *bootstrap, const d9d_table *table,
                          const d9d_plugins *plugins, json_t *doc)
{
    const d9d_job where = {
        .bootstrap = bootstrap, .device = o->device, .log = r->log, .plugins = plugins};
    void *config = d9d_arena_alloc(&r->arena, job->config_size);
    void *summary = d9d_arena_alloc(&r->arena, job->summary_size);
    d9d_status st;

    if (config == NULL || summary == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", job->schema_id);
    D9D_TRY(d9d_bootstrap_agree_status(
        bootstrap, d9d_config_bind(table, doc, r->args[0], r->log, &r->arena, config)));
    st = job->run(config, doc, &where, summary);
    if (st != D9D_OK && !(job->prints_everify && st == D9D_EVERIFY))
        return st;
    if (r->json && !r->mute)
        D9D_TRY(tool_put_json(job->json(summary)));
    else if (!r->quiet && !r->mute)
        D9D_TRY(put_text(job, summary));
    return st;
}

/* Such a job works, and starts slowly if it is large. */
static void warn_unconnected(const tool_run *r, const d9d_bootstrap *bootstrap)
{
    const char *why = d9d_bootstrap_unconnected(bootstrap);

    if (why != NULL && d9d_bootstrap_rank(bootstrap) == 0)
        d9d_log_warn(r->log,
                     "the ranks have no TCP connections, so that PMIx carries their messages at "
                     "the start: %s",
                     why);
}

d9d_status tool_job_run(tool_run *r, const tool_job *job, const tool_job_options *given)
{
    tool_job_options o = *given;
    const d9d_table *table = job->table;
    d9d_plugins *plugins = NULL;
    json_t *doc = NULL;
    json_int_t wait;
    d9d_bootstrap *bootstrap;
    d9d_status st;

    D9D_TRY(tool_join(r, &bootstrap));
    tool_log_async(r);
    st = o.skip_samples != NULL ? set_skip_samples(r, &o) : D9D_OK;
    if (st == D9D_OK)
        st = tool_config_load(r, job->schema_id, &o.config, &table, &plugins, &doc);
    if (doc != NULL &&
        json_unpack(doc, "{s:{s:{s:I}}}", "trainer", "timeout", "init_timeout", &wait) == 0)
        (void)d9d_bootstrap_set_timeout(bootstrap, (double)wait);
    st = d9d_bootstrap_agree_status(bootstrap, st);
    warn_unconnected(r, bootstrap);
    if (st == D9D_OK && doc != NULL)
        st = rank_args_check(r, bootstrap, job->prints_everify ? "--selftest" : "", doc);
    if (st == D9D_OK && doc != NULL)
        st = run_job(r, job, &o, bootstrap, table, plugins, doc);
    json_decref(doc);
    d9d_plugins_close(plugins);
    return tool_leave(r, bootstrap, st);
}
