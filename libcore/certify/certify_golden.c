/* certify_golden.c - the vectors of a folder: values, and ten steps of AdamW.  See
 * certify_parts.h. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "certify/certify_job.h"
#include "d9d/base/fs.h"
#include "d9d/certify/golden.h"
#include "d9d/data/build/shard.h"
#include "d9d/model/hf/hf_config.h"
#include "d9d/models/models.h"
#include "d9d/report/run_reader.h"

enum { STORED_MAX = 1 << 20, ROWS = 3 };

/* The folder must be of the family that is certified. */
d9d_status d9di_certify_golden_check(const d9di_certify *c)
{
    const char *file, *beside, *type;
    const d9d_model_provider *p;
    json_t *doc;
    d9d_status st = D9D_OK;

    if (c->opts->golden == NULL)
        return D9D_OK;
    D9D_TRY(d9d_hf_config_locate(c->opts->golden, c->arena, &file, &beside));
    D9D_TRY(d9d_hf_config_load(file, &doc));
    type = json_string_value(json_object_get(doc, "model_type"));
    p = type != NULL ? d9d_model_find(c->choices, type) : NULL;
    if (p != c->provider)
        st = D9D_FAIL(D9D_ECONFIG, "--golden: %s is of %s, not of %s", c->opts->golden,
                      p != NULL ? p->table->name : "no family", c->provider->table->name);
    json_decref(doc);
    return st;
}

/* --- ten steps -------------------------------------------------------------------------------- */

static d9d_status make_dataset(const char *rows, const char *out)
{
    const d9d_shard_opts opts = {.inputs = &rows,
                                 .n_inputs = 1,
                                 .out = out,
                                 .format = D9D_SHARD_TOKENS,
                                 .seed = -1,
                                 .jobs = 1};
    d9d_shard_report report;

    return d9d_shard_run(&opts, NULL, &report);
}

/* All rows are the batch of every step.  transformers does not move an expert's bias. */
static json_t *training_doc(const d9di_certify *c, const char *data, const char *run, size_t steps)
{
    json_t *model = json_pack("{s:s, s:o}", "name", c->provider->table->name, "hf_config",
                              d9d_json_str(c->opts->golden));
    json_t *trainer =
        json_pack("{s:{s:s, s:o, s:I}, s:{s:i, s:i}, s:{s:o}, s:{s:f}, s:{s:n}}", "run", "name",
                  "golden", "dir", d9d_json_str(run), "steps", (json_int_t)steps, "batching",
                  "global_batch_size", ROWS, "microbatch_size", ROWS, "model_stage_factory",
                  "source_checkpoint", d9d_json_str(c->opts->golden), "gradient_clipping",
                  "max_norm", 1.0, "checkpointing", "save_dir");
    json_t *optimizer = json_pack("{s:s, s:f, s:[f, f], s:f, s:f}", "name", "adamw", "lr", 1e-3,
                                  "betas", 0.9, 0.95, "eps", 1e-8, "weight_decay", 0.1);

    if (model != NULL && c->has_experts)
        d9d_json_set(&model, "router", json_pack("{s:i}", "bias_update_rate", 0));
    return json_pack("{s:{s:o, s:I, s:s}, s:o, s:o, s:o, s:o}", "data", "dataset",
                     d9d_json_str(data), "epochs", (json_int_t)steps, "order", "sequential",
                     "model_provider", model, "trainer", trainer, "optimizer", optimizer, "task",
                     d9di_small_task_section(c->head, c->vocab));
}

/* The largest relative difference of the losses. */
static d9d_status compare_losses(const char *run, const json_t *stored, double *worst)
{
    d9d_run_reader *reader;
    const double *loss;
    d9d_status st = D9D_OK;

    *worst = 0;
    D9D_TRY(d9d_run_reader_open(run, NULL, &reader));
    loss = d9d_run_reader_values(reader, "loss");
    if (loss == NULL || reader->n != json_array_size(stored))
        st = D9D_FAIL(D9D_EVERIFY, "%zu steps were recorded, %zu are stored", reader->n,
                      json_array_size(stored));
    for (size_t i = 0; st == D9D_OK && i < reader->n; i++) {
        const double want = json_number_value(json_object_get(json_array_get(stored, i), "loss"));
        const double d = fabs(loss[i] - want) / fabs(want);

        *worst = d <= *worst ? *worst : d;
    }
    d9d_run_reader_close(reader);
    return st;
}

static d9d_status run_stored(d9di_certify *c, const char *rows, const json_t *stored, double *worst)
{
    const char *data, *run;
    d9d_train_summary summary;

    D9D_TRY(d9di_certify_path(c, "golden-rows", &data));
    D9D_TRY(d9di_certify_path(c, "golden-run", &run));
    D9D_TRY(make_dataset(rows, data));
    D9D_TRY(d9di_certify_train(c, training_doc(c, data, run, json_array_size(stored)), &summary));
    return compare_losses(run, stored, worst);
}

/* The stored steps, if the folder has some; *steps 0: none. */
static d9d_status compare_steps(d9di_certify *c, double *worst, size_t *steps)
{
    const char *file = d9d_fs_join(c->arena, c->opts->golden, "train.json");
    const char *rows = d9d_fs_join(c->arena, c->opts->golden, "train.jsonl");
    json_t *stored;
    d9d_status st;

    *steps = 0;
    *worst = 0;
    if (file == NULL || rows == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: names in it", c->opts->golden);
    if (!d9d_fs_exists(file))
        return D9D_OK;
    D9D_TRY(d9d_json_read(file, STORED_MAX, &stored));
    *steps = json_array_size(stored);
    st = run_stored(c, rows, stored, worst);
    json_decref(stored);
    return st;
}

/* --- the check -------------------------------------------------------------------------------- */

d9d_status d9di_certify_golden(d9di_certify *c, d9d_certificate_check *out)
{
    const d9d_golden_opts opts = {.choices = c->choices};
    d9d_golden_result values;
    double steps;
    size_t n;

    if (c->opts->golden == NULL)
        return d9di_certify_skip(out, "no --golden FOLDER of vectors");
    D9D_TRY(d9d_golden_compare(c->opts->golden, &opts, c->arena, &values));
    D9D_TRY(compare_steps(c, &steps, &n));
    out->figure = values.worst;
    out->limit = values.limit;
    if (!(steps <= values.worst)) {
        out->figure = steps;
        values.name = "a step's loss";
    }
    return d9di_certify_detail(c, out,
                               "%zu arrays and %zu steps of AdamW, outputs %.1e, the worst %s",
                               values.n, n, values.outputs, values.name);
}
