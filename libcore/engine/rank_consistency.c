/* rank_consistency.c - see engine/rank_consistency.h, and d9d_job_check_same_config() and
 * d9d_job_check_same_files() in d9d/job/job.h. */
#include "engine/rank_consistency.h"

#include <stdio.h>
#include <string.h>

#include "d9d/base/version.h"
#include "d9d/ckpt/dir/content_hash.h"
#include "d9d/ckpt/dir/manifest.h"
#include "d9d/comm/exchange.h"
#include "d9d/job/job.h"
#include "d9d/tasks/plugin.h"
#include "job/config_diff.h"

/* --- files --------------------------------------------------------------------------------- */

static d9d_status hash_manifest(const char *dir, d9d_hash *out)
{
    d9d_arena a = {0};
    const char *path = d9d_fs_join(&a, dir, D9D_MANIFEST_NAME);
    const d9d_status st = path != NULL ? d9d_content_hash_file(path, out)
                                       : D9D_FAIL(D9D_ENOMEM, "%s: a name in it", dir);

    d9d_arena_release(&a);
    return st;
}

/* A list of samples, or a file with one: a missing file hashes differently from any content, so it
 * must be missing everywhere. */
static d9d_status hash_if_there(const char *path, d9d_hash *out)
{
    *out = (d9d_hash){0};
    return d9d_fs_exists(path) && !d9d_fs_is_dir(path) ? d9d_content_hash_file(path, out) : D9D_OK;
}

static void add_item(d9di_rank_consistency *s, d9di_rank_consistency_item thing)
{
    if (thing.name != NULL && s->st == D9D_OK)
        s->st = D9D_VEC_PUSH(&s->items, thing);
}

void d9di_rank_consistency_add(d9di_rank_consistency *s, const char *name, d9d_hash hash)
{
    add_item(s, (d9di_rank_consistency_item){.name = name, .hash = hash});
}

void d9di_rank_consistency_add_file(d9di_rank_consistency *s, const char *path)
{
    add_item(s, (d9di_rank_consistency_item){.name = path, .hash_fn = d9d_content_hash_file});
}

void d9di_rank_consistency_add_data(d9di_rank_consistency *s, const d9di_run_data *d)
{
    for (size_t i = 0; i < d->n; i++) {
        d9di_rank_consistency_add(s, d->sections[i].dataset, d9d_dataset_hash(d->datasets[i]));
        add_item(s, (d9di_rank_consistency_item){.name = d->sections[i].skip_samples,
                                                 .hash_fn = hash_if_there});
    }
}

static void add_dir(d9di_rank_consistency *s, const char *dir,
                    d9d_status (*whole)(const char *, d9d_hash *))
{
    add_item(s, (d9di_rank_consistency_item){
                    .name = dir, .hash_fn = d9d_content_hash_quick, .content_hash_fn = whole});
}

void d9di_rank_consistency_add_checkpoint(d9di_rank_consistency *s, const char *dir)
{
    add_item(s, (d9di_rank_consistency_item){.name = dir, .hash_fn = hash_manifest});
}

static d9d_status checkpoint_hash(const char *dir, d9d_hash *out)
{
    return d9d_content_hash_checkpoint(dir, 0, out);
}

void d9di_rank_consistency_add_engine(d9di_rank_consistency *s, const d9di_engine *e,
                                      const d9di_engine_opts *opts)
{
    const d9d_plugins *p = opts->where->plugins;

    for (size_t i = 0; i < d9d_plugins_count(p); i++)
        d9di_rank_consistency_add_file(s, d9d_plugins_file(p, i));
    d9di_rank_consistency_add_file(s, e->spec.hf_config);
    add_dir(s, opts->initialise ? opts->source : NULL, checkpoint_hash);
    add_dir(s, opts->adapter, d9d_content_hash_adapter);
    add_dir(s, e->frozen.source, checkpoint_hash);
}

d9d_status d9di_rank_consistency_content_hash(const d9di_rank_consistency *s, d9d_hash *out)
{
    d9d_buf all = {0};
    d9d_status st = s->st;

    for (size_t i = 0; i < s->items.len && st == D9D_OK; i++) {
        const d9di_rank_consistency_item *t = &s->items.data[i];
        d9d_hash hash = t->hash;

        if (t->content_hash_fn != NULL || t->hash_fn != NULL)
            st = (t->content_hash_fn != NULL ? t->content_hash_fn : t->hash_fn)(t->name, &hash);
        if (st == D9D_OK)
            st = d9d_buf_append(&all, &hash, sizeof(hash));
    }
    if (st == D9D_OK)
        *out = d9d_hash_bytes(all.data, all.len);
    d9d_buf_release(&all);
    return st;
}

static d9d_status hash_all(d9di_rank_consistency *s)
{
    D9D_TRY(s->st);
    for (size_t i = 0; i < s->items.len; i++)
        if (s->items.data[i].hash_fn != NULL)
            D9D_TRY(s->items.data[i].hash_fn(s->items.data[i].name, &s->items.data[i].hash));
    return D9D_OK;
}

/* Formats all hashes as a row of digits. */
static d9d_status format_hashes(const d9di_rank_consistency *s, d9d_buf *out)
{
    char hex[D9D_HASH_HEX];

    for (size_t i = 0; i < s->items.len; i++) {
        d9d_hash_hex(s->items.data[i].hash, hex);
        D9D_TRY(d9d_buf_append(out, hex, strlen(hex)));
    }
    return d9d_buf_append(out, "", 1);
}

/* True if all ranks have the same hash. */
static d9d_status hash_is_uniform(d9d_bootstrap *bootstrap, d9d_hash local, d9d_arena *a,
                                  bool *same)
{
    d9d_bootstrap_blob *all;

    D9D_TRY(d9d_bootstrap_allgather_arena(bootstrap, &local, sizeof(local), a, &all));
    for (int r = 0; r < d9d_bootstrap_size(bootstrap); r++)
        *same = *same && all[r].n == sizeof(local) &&
                memcmp(all[r].data, all[0].data, sizeof(local)) == 0;
    return D9D_OK;
}

static d9d_status compare_hashes(const d9di_rank_consistency *s, const char *local,
                                 const char *first)
{
    const size_t one = D9D_HASH_HEX - 1;

    for (size_t i = 0; i < s->items.len; i++)
        if (local == NULL || first == NULL || strncmp(local + i * one, first, one) != 0)
            return D9D_FAIL(D9D_ECONFIG, "%s: is another one here than on rank 0",
                            s->items.data[i].name);
        else
            first += one;
    return D9D_OK;
}

/* Compares rank 0's hashes with each rank's, after the combined hash has differed. */
static d9d_status compare_all_ranks(const d9di_rank_consistency *s, d9d_bootstrap *bootstrap,
                                    const char *local, d9d_arena *a)
{
    const char *first = local;

    D9D_TRY(d9d_bootstrap_broadcast_text(bootstrap, a, &first));
    return d9d_bootstrap_agree_status(bootstrap, compare_hashes(s, local, first));
}

/* Compares one combined hash first, and the single hashes only if that differs. */
d9d_status d9di_rank_consistency_check(d9di_rank_consistency *s, d9d_bootstrap *bootstrap)
{
    d9d_buf local = {0};
    d9d_arena a = {0};
    bool same = true;
    d9d_status st = D9D_OK;

    if (d9d_bootstrap_size(bootstrap) == 1)
        goto out;
    st = hash_all(s);
    if (st == D9D_OK)
        st = format_hashes(s, &local);
    D9D_TRY_OR(st, d9d_bootstrap_agree_status(bootstrap, st), out);
    D9D_TRY_OR(st, hash_is_uniform(bootstrap, d9d_hash_bytes(local.data, local.len), &a, &same),
               out);
    if (!same)
        st = compare_all_ranks(s, bootstrap, local.data, &a);
out:
    D9D_VEC_RELEASE(&s->items);
    d9d_buf_release(&local);
    d9d_arena_release(&a);
    return st;
}

d9d_status d9d_job_check_same_files(d9d_bootstrap *bootstrap, const char *const *paths, size_t n)
{
    d9di_rank_consistency same = {0};

    for (size_t i = 0; i < n; i++)
        if (paths[i] != NULL && d9d_fs_is_dir(paths[i]))
            add_dir(&same, paths[i], NULL);
        else
            d9di_rank_consistency_add_file(&same, paths[i]);
    return d9di_rank_consistency_check(&same, bootstrap);
}

/* --- configurations --------------------------------------------------------------------------- */

static bool report_first_difference(void *self, const char *path, const json_t *local,
                                    const json_t *first)
{
    d9d_status *st = self;
    d9d_buf a = {0}, b = {0};

    *st = D9D_FAIL(D9D_ECONFIG, "%s is %s here and %s on rank 0; a job has one configuration", path,
                   d9di_config_diff_format(local, &a), d9di_config_diff_format(first, &b));
    d9d_buf_release(&a);
    d9d_buf_release(&b);
    return true;
}

static d9d_status fail_config_differs(json_t *local, const char *first)
{
    json_t *theirs = NULL;
    d9d_status st = D9D_OK;

    if (first == NULL || d9d_json_parse("rank 0", first, strlen(first), &theirs) != D9D_OK ||
        !d9di_config_diff(local, theirs, report_first_difference, &st))
        st = D9D_FAIL(D9D_ECONFIG, "the configuration is another one here than on rank 0");
    json_decref(theirs);
    return st;
}

/* Called after a gather of all ranks' documents; `first` is rank 0's. */
static d9d_status check_uniform(d9d_bootstrap *bootstrap, const char *label, const d9d_hash *local,
                                const d9d_bootstrap_blob *first, json_t *doc, d9d_arena *a)
{
    const char *program =
        first->n > sizeof(*local) ? (const char *)first->data + sizeof(*local) : "?";
    d9d_buf text = {0};
    const char *root_text;
    d9d_status st = d9d_json_put(&text, doc, -1);

    root_text = st == D9D_OK ? d9d_arena_strndup(a, text.data, text.len) : NULL;
    d9d_buf_release(&text);
    D9D_TRY(d9d_bootstrap_broadcast_text(bootstrap, a, &root_text));
    if (strcmp(program, label) != 0)
        st = D9D_FAIL(D9D_ECONFIG, "this is %s, and rank 0 is %s", label, program);
    else if (memcmp(first->data, local, sizeof(*local)) != 0)
        st = fail_config_differs(doc, root_text);
    return st;
}

d9d_status d9d_job_check_same_config(d9d_bootstrap *bootstrap, const char *label, json_t *doc)
{
    d9d_buf text = {0}, local = {0};
    d9d_arena a = {0};
    d9d_bootstrap_blob *all;
    bool same = true;
    d9d_hash hash;
    d9d_status st;

    D9D_TRY_OR(st, d9d_json_put(&text, doc, -1), out);
    hash = d9d_hash_bytes(text.data, text.len);
    D9D_TRY_OR(st, d9d_buf_append(&local, &hash, sizeof(hash)), out);
    D9D_TRY_OR(st, d9d_buf_append(&local, label, strlen(label)), out);
    D9D_TRY_OR(st, d9d_bootstrap_allgather_arena(bootstrap, local.data, local.len, &a, &all), out);
    for (int r = 1; r < d9d_bootstrap_size(bootstrap); r++)
        same = same && all[r].n == all[0].n && memcmp(all[r].data, all[0].data, all[0].n) == 0;
    if (!same)
        st = d9d_bootstrap_agree_status(bootstrap,
                                        check_uniform(bootstrap, label, &hash, &all[0], doc, &a));
out:
    d9d_buf_release(&text);
    d9d_buf_release(&local);
    d9d_arena_release(&a);
    return st;
}
