/* shard_merge.c - merges the parts that the tasks of an array job made into one dataset. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/build/assemble.h"
#include "data/build/shard_private.h"

struct merge {
    const char *const *parts;
    size_t n_parts;
    const char *out;
    bool replace;
    d9di_shard_plan_file plan; /* plan.json of the first part */
    const char **split_dir;    /* [input splits] directory of the part that has it */
    d9di_assemble_opts assemble;
    d9d_outdir work;
    d9d_arena arena;
};

/* The input split whose first unit has this state file; -1 for other names. */
static int64_t parse_unit_name(const char *name)
{
    long long input_split;
    int end = 0;

    return sscanf(name, "unit-%lld-0000.json%n", &input_split, &end) == 1 && end > 0 && !name[end]
               ? (int64_t)input_split
               : -1;
}

static d9d_status note_input_splits(struct merge *m, const char *part)
{
    d9d_fs_names names;
    size_t i;

    D9D_TRY(d9d_fs_list(part, &m->arena, &names));
    for (i = 0; i < names.n; i++) {
        const int64_t input_split = parse_unit_name(names.name[i]);

        if (input_split < 0)
            continue;
        if (input_split >= m->plan.n_input_splits)
            return D9D_FAIL(D9D_EFORMAT, "%s: has input split %lld of %lld", part,
                            (long long)input_split, (long long)m->plan.n_input_splits);
        if (m->split_dir[input_split])
            return D9D_FAIL(D9D_ECONFIG, "%s: has input split %lld, and so has %s", part,
                            (long long)input_split, m->split_dir[input_split]);
        m->split_dir[input_split] = part;
    }
    return D9D_OK;
}

static d9d_status read_parts(struct merge *m)
{
    size_t i;

    D9D_TRY(d9di_shard_plan_read(m->parts[0], &m->plan));
    m->split_dir = calloc((size_t)m->plan.n_input_splits, sizeof(*m->split_dir));
    if (!m->split_dir)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for %lld input splits", m->out,
                        (long long)m->plan.n_input_splits);
    for (i = 0; i < m->n_parts; i++) {
        d9di_shard_plan_file plan;
        bool same;

        if (m->replace)
            D9D_TRY(d9d_outdir_check_disjoint(m->out, m->parts[i]));
        D9D_TRY(d9di_shard_plan_read(m->parts[i], &plan));
        same =
            d9d_hash_equal(plan.job, m->plan.job) && plan.n_input_splits == m->plan.n_input_splits;
        d9di_shard_plan_file_release(&plan);
        if (!same)
            return D9D_FAIL(D9D_EMISMATCH, "%s: is of other inputs or options than %s", m->parts[i],
                            m->parts[0]);
        D9D_TRY(note_input_splits(m, m->parts[i]));
    }
    for (i = 0; i < (size_t)m->plan.n_input_splits; i++)
        if (!m->split_dir[i])
            return D9D_FAIL(
                D9D_ECONFIG,
                "no part has input split %zu of %lld: are the parts of all %lld tasks given?", i,
                (long long)m->plan.n_input_splits, (long long)m->plan.tasks);
    return D9D_OK;
}

static d9d_status copy_file(struct merge *m, const char *name, const d9d_hash *want)
{
    const char *from = d9d_fs_join(&m->arena, m->parts[0], name);
    const char *to = d9d_fs_join(&m->arena, m->work.tmp, name);

    if (!from || !to)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", m->out);
    return want ? d9di_shard_aux_file_copy(from, to, *want) : d9d_fs_copy(from, to);
}

/* Copies auxiliary files of parts from 0.1, which do not list them but name their tokenizer. */
static d9d_status copy_unlisted(struct merge *m)
{
    const d9di_dataset_manifest *plan = &m->plan.manifest;
    d9d_fs_names names;

    D9D_TRY(d9d_fs_list(m->parts[0], &m->arena, &names));
    for (size_t i = 0; i < names.n; i++) {
        const bool is_tokenizer = strcmp(names.name[i], "tokenizer.json") == 0;

        if (!d9di_assemble_is_temp(names.name[i]))
            D9D_TRY(copy_file(m, names.name[i],
                              is_tokenizer && plan->has_tokenizer ? &plan->tokenizer_hash : NULL));
    }
    return D9D_OK;
}

/* Copies the auxiliary files that the first part's plan lists. */
static d9d_status copy_aux_files(struct merge *m)
{
    const d9di_dataset_manifest *plan = &m->plan.manifest;

    if (m->plan.shard_bytes == 0)
        return copy_unlisted(m);
    for (size_t i = 0; i < plan->n_files; i++)
        D9D_TRY(copy_file(m, plan->files[i].name, &plan->files[i].hash));
    return D9D_OK;
}

/* Plans packing, if the parts' documents are not packed yet. */
static d9d_status plan_packs(struct merge *m)
{
    const d9di_dataset_manifest *made = &m->plan.manifest;

    if (!d9di_assemble_defers_packing(made->recipe.pack, m->plan.counts, made->n_splits))
        return D9D_OK;
    if (m->plan.shard_bytes == 0)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: is of an earlier version, which packed documents before it knew their "
                        "splits; make the parts again",
                        m->parts[0]);
    m->assemble.packer =
        d9di_shard_plan_packer(&made->recipe, made->n_splits, made->wide, made->fields);
    return D9D_OK;
}

static d9d_status merge_all(struct merge *m, const d9d_log *log, d9d_shard_report *report)
{
    d9di_dataset_manifest *made = &m->plan.manifest;

    D9D_TRY(read_parts(m));
    D9D_TRY(plan_packs(m));
    D9D_TRY(d9di_shard_workdir_open(&m->work, m->out, m->replace));
    D9D_TRY(d9di_shard_workdir_clear(&m->work));
    m->assemble.unit = (d9di_shard_unit_opts){.dir = m->work.tmp,
                                              .job = m->plan.job,
                                              .wide = made->wide,
                                              .shard_bytes = (uint64_t)m->plan.shard_bytes,
                                              .n_splits = made->n_splits,
                                              .fields = made->fields};
    m->assemble.dir = m->split_dir;
    m->assemble.counts = m->plan.counts;
    m->assemble.n_input_splits = (size_t)m->plan.n_input_splits;
    m->assemble.check = true;
    D9D_TRY(copy_aux_files(m));
    D9D_TRY(d9di_assemble(&m->assemble, log, made));
    D9D_TRY(d9di_dataset_manifest_write(made, m->work.tmp));
    D9D_TRY(d9di_assemble_clean(m->work.tmp));
    D9D_TRY(d9d_outdir_commit(&m->work));
    d9di_shard_log_result(made, m->out, log, report);
    return D9D_OK;
}

d9d_status d9d_shard_merge(const char *const *parts, size_t n_parts, const char *out, bool replace,
                           const d9d_log *log, d9d_shard_report *report)
{
    struct merge m = {.parts = parts, .n_parts = n_parts, .out = out, .replace = replace};
    d9d_status st;

    if (n_parts == 0)
        return D9D_FAIL(D9D_ECONFIG, "%s: no parts to merge", out);
    st = merge_all(&m, log, report);
    d9di_shard_workdir_release(&m.work, false);
    d9di_shard_plan_file_release(&m.plan);
    free(m.split_dir);
    d9d_arena_release(&m.arena);
    return st;
}
