/* shard.c - a run from inputs to a dataset directory, or to one task's part of it. */
#include "d9d/data/build/shard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/num_format.h"
#include "data/build/assemble.h"
#include "data/build/shard_private.h"

struct shard_run {
    d9di_shard_plan plan;
    d9d_outdir work;
    const d9d_log *log;
    const char **split_dir; /* [input splits] */
    d9di_assemble_opts assemble;
    bool progressed;
};

/* --- the working directory ----------------------------------------------------------------- */

static bool file_exists(const char *dir, const char *name)
{
    char *path = NULL;
    bool is;

    if (asprintf(&path, "%s/%s", dir, name) < 0)
        return false;
    is = d9d_fs_exists(path);
    free(path);
    return is;
}

/* The job of all tasks is one, and so are their units; but a part has those of its task alone. */
static bool is_same_run(const d9di_shard_plan *p, const d9di_shard_plan_file *before)
{
    return d9d_hash_equal(before->job, p->job) && before->task == p->opts->task &&
           before->tasks == (p->opts->tasks > 0 ? p->opts->tasks : 1);
}

/* Resumes if the directory has the same plan; otherwise starts over. */
static d9d_status open_workdir(struct shard_run *r, const char *out, bool replace)
{
    d9di_shard_plan_file before = {0};
    const char *dir;
    bool same;
    size_t i;

    D9D_TRY(d9di_shard_workdir_open(&r->work, out, replace));
    dir = r->work.tmp;
    same = r->plan.repeatable && file_exists(dir, "plan.json") &&
           d9di_shard_plan_read(dir, &before) == D9D_OK && is_same_run(&r->plan, &before);
    d9di_shard_plan_file_release(&before);
    if (!same)
        D9D_TRY(d9di_shard_workdir_clear(&r->work));
    D9D_TRY(d9di_shard_plan_write(&r->plan, dir));
    r->plan.unit.dir = dir;
    r->assemble = (d9di_assemble_opts){.unit = r->plan.unit,
                                       .n_input_splits = r->plan.input_splits.list.len,
                                       .counts = r->plan.splits.counts,
                                       .packer = r->plan.packs,
                                       .check = same};
    r->split_dir = calloc(r->assemble.n_input_splits + 1, sizeof(*r->split_dir));
    if (!r->split_dir)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for %zu input splits", dir,
                        r->assemble.n_input_splits);
    for (i = 0; i < r->assemble.n_input_splits; i++)
        r->split_dir[i] = d9di_shard_plan_has_split(&r->plan, i) ? dir : NULL;
    r->assemble.dir = r->split_dir;
    return D9D_OK;
}

/* --- the end ------------------------------------------------------------------------------- */

d9d_status d9di_dataset_manifest_write(const d9di_dataset_manifest *m, const char *dir)
{
    d9d_buf text = {0};
    d9d_status st;

    D9D_TRY_OR(st, d9di_dataset_manifest_print(m, &text), out);
    st = d9d_fs_write_in(dir, "manifest.json", text.data, text.len);
out:
    d9d_buf_release(&text);
    return st;
}

static void log_losses(const d9di_dataset_documents *d, const d9d_log *log)
{
    if (d->empty || d->dropped || d->truncated || d->split)
        d9d_log_info(log,
                     "%lld document%s too short to have a target, %lld dropped, %lld truncated, "
                     "%lld split, %lld turns and %lld targets lost",
                     (long long)d->empty, D9D_PLURAL(d->empty), (long long)d->dropped,
                     (long long)d->truncated, (long long)d->split, (long long)d->turns_lost,
                     (long long)d->targets_lost);
}

/* Such texts have them twice, as with HF, which is seldom meant. */
static void log_special_twice(const d9di_dataset_documents *d, const d9d_log *log)
{
    if (d->special_twice > 0)
        d9d_log_warn(log,
                     "%lld of %lld text%s begin with the special tokens that the tokenizer puts "
                     "before every text, and have them twice now; --add-special-tokens no",
                     (long long)d->special_twice, (long long)d->read, D9D_PLURAL(d->read));
}

/* Logs skipped records as the last line, where it is seen. */
static void log_skipped(const d9di_dataset_manifest *m, const char *out, const d9d_log *log)
{
    const int64_t n = d9di_skipped_total(m->documents.skipped);
    d9d_buf why = {0};

    if (n > 0 && d9di_skipped_counts_print(m->documents.skipped, &why) == D9D_OK)
        d9d_log_warn(log, "%lld of %lld record%s skipped: %s; %s%s%s lists %s", (long long)n,
                     (long long)m->documents.read, D9D_PLURAL(m->documents.read), why.data,
                     m->n_files > 0 ? out : "", m->n_files > 0 ? "/" D9DI_SKIPPED_FILE : "",
                     m->n_files > 0 ? "" : D9DI_SKIPPED_FILE " of the merged dataset",
                     n > D9DI_MAX_SKIPPED ? "the first 1000" : "them");
    d9d_buf_release(&why);
}

void d9di_shard_log_result(const d9di_dataset_manifest *m, const char *out, const d9d_log *log,
                           d9d_shard_report *report)
{
    const d9di_dataset_documents *d = &m->documents;
    size_t i;

    d9d_log_info(log, "%s: %lld sample%s, %lld token%s in %u shard%s from %lld document%s", out,
                 (long long)m->samples, D9D_PLURAL(m->samples), (long long)m->tokens,
                 D9D_PLURAL(m->tokens), m->n_shards, D9D_PLURAL(m->n_shards), (long long)d->read,
                 D9D_PLURAL(d->read));
    if (m->recipe.pack > 0 && m->samples > 0 && m->n_files > 0) /* not for a task's part */
        d9d_log_info(log, "samples of %lld positions are %.2f %% full", (long long)m->recipe.pack,
                     100.0 * (double)m->positions / (double)m->samples / (double)m->recipe.pack);
    log_losses(d, log);
    log_special_twice(d, log);
    for (i = 0; i < m->n_splits && m->n_files > 0; i++)
        if (m->splits[i].samples == 0)
            d9d_log_warn(log, "the split \"%s\" has no samples: none of %lld document%s fell in it",
                         m->splits[i].name, (long long)d->read, D9D_PLURAL(d->read));
    *report = (d9d_shard_report){.documents = d->read,
                                 .too_short = d->empty,
                                 .dropped = d->dropped,
                                 .truncated = d->truncated,
                                 .split = d->split,
                                 .turns_lost = d->turns_lost,
                                 .targets_lost = d->targets_lost,
                                 .special_twice = d->special_twice,
                                 .samples = m->samples,
                                 .tokens = m->tokens,
                                 .positions = m->positions,
                                 .shards = m->n_shards};
    memcpy(report->skipped, d->skipped, sizeof(report->skipped));
    log_skipped(m, out, log);
}

/* Reads the manifest of a run that was interrupted during cleanup. */
static bool read_finished(const struct shard_run *r, d9di_dataset_manifest *m)
{
    const char *dir = r->work.tmp;
    d9d_buf text = {0};
    char *path = NULL;
    bool done;

    if (!file_exists(dir, "manifest.json") || asprintf(&path, "%s/manifest.json", dir) < 0)
        return false;
    done = d9d_fs_read(path, UINT64_C(256) << 20, &text) == D9D_OK &&
           d9di_dataset_manifest_parse(path, text.data ? text.data : "", text.len, m) == D9D_OK;
    free(path);
    d9d_buf_release(&text);
    return done;
}

/* Discards the units if inputs were changed. */
static d9d_status process_inputs(struct shard_run *r)
{
    const d9d_status st = d9di_shard_make_units(&r->plan, r->log, &r->progressed);
    d9d_err_copy why;
    d9d_status same;

    d9d_err_save(&why, st);
    same = d9di_shard_plan_check_inputs(&r->plan);
    r->progressed = r->progressed && same == D9D_OK;
    return st == D9D_OK ? same : d9d_err_restore(&why);
}

static d9d_status assemble_units(struct shard_run *r, d9di_dataset_manifest *m)
{
    const d9d_status st = d9di_assemble(&r->assemble, r->log, m);

    if (st == D9D_EFORMAT)
        r->progressed = false; /* nothing to resume */
    return st;
}

/* Assembles a dataset from the units; a task leaves its units as they are. */
static d9d_status finish_run(struct shard_run *r, d9d_shard_report *out)
{
    const char *dir = r->work.tmp;
    d9di_dataset_manifest m = {0};
    d9d_status st;

    if (!read_finished(r, &m)) {
        D9D_TRY_OR(st, d9di_shard_plan_manifest(&r->plan, &m), out);
        D9D_TRY_OR(st, process_inputs(r), out);
        D9D_TRY_OR(st, d9di_shard_aux_files_copy(&r->plan, dir), out);
        D9D_TRY_OR(st, d9di_assemble_count(&r->assemble, &m), out);
        if (r->plan.opts->tasks == 0) {
            D9D_TRY_OR(st, assemble_units(r, &m), out);
            D9D_TRY_OR(st, d9di_dataset_manifest_write(&m, dir), out);
        }
    }
    if (r->plan.opts->tasks == 0)
        D9D_TRY_OR(st, d9di_assemble_clean(dir), out);
    D9D_TRY_OR(st, d9d_outdir_commit(&r->work), out);
    d9di_shard_log_result(&m, r->plan.opts->out, r->log, out);
out:
    d9di_dataset_manifest_release(&m);
    return st;
}

static void log_chat(const d9di_chat_template *t, const d9d_log *log)
{
    d9d_log_info(log, "%s renders the chats; trained is what %s", t->where,
                 d9d_jinja_marks_generation(t->template)
                     ? "it encloses in {% generation %}"
                     : "it adds for the assistant to the generation prompt (differences)");
}

d9d_status d9d_shard_run(const d9d_shard_opts *opts, const d9d_log *log, d9d_shard_report *out)
{
    struct shard_run r = {.log = log};
    d9d_status st;

    D9D_TRY(d9di_shard_plan_init(opts, log, &r.plan));
    if (r.plan.tokenizer.tok && d9d_tokenizer_ignored(r.plan.tokenizer.tok))
        d9d_log_info(log, "%s: %s is ignored: it changes no ids here", opts->tokenizer,
                     d9d_tokenizer_ignored(r.plan.tokenizer.tok));
    if (r.plan.tokenizer.chat)
        log_chat(d9di_chat_get_template(r.plan.tokenizer.chat), log);
    if (d9di_shard_has_chats(opts) && opts->pack > 0 && opts->pack_mode == D9D_SHARD_PACK_CONCAT)
        d9d_log_warn(log, "concat cuts chats where a sample is full, in the middle of answers; "
                          "best-fit keeps them whole");
    st = open_workdir(&r, opts->out, opts->replace);
    if (st == D9D_OK)
        st = finish_run(&r, out);
    /* Without a finished unit there is nothing to resume. */
    d9di_shard_workdir_release(&r.work, r.progressed);
    d9di_shard_plan_release(&r.plan);
    free(r.split_dir);
    return st;
}
