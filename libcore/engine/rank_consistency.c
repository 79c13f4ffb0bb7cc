/* rank_consistency.c - see engine/rank_consistency.h, and d9d_job_same() and d9d_job_same_files()
 * in d9d/job/job.h. */
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
    const d9d_status st =
        path != NULL ? d9d_identity_file(path, out) : D9D_FAIL(D9D_ENOMEM, "%s: a name in it", dir);

    d9d_arena_release(&a);
    return st;
}

/* A list of samples, or a file of one: absent is what no rank has, or what one alone lacks. */
static d9d_status hash_if_there(const char *path, d9d_hash *out)
{
    *out = (d9d_hash){0};
    return d9d_fs_exists(path) && !d9d_fs_is_dir(path) ? d9d_identity_file(path, out) : D9D_OK;
}

static void add(d9di_same *s, d9di_same_thing thing)
{
    if (thing.name != NULL && s->st == D9D_OK)
        s->st = D9D_VEC_PUSH(&s->of, thing);
}

void d9di_same_add(d9di_same *s, const char *name, d9d_hash hash)
{
    add(s, (d9di_same_thing){.name = name, .hash = hash});
}

void d9di_same_file(d9di_same *s, const char *path)
{
    add(s, (d9di_same_thing){.name = path, .find = d9d_identity_file});
}

void d9di_same_data(d9di_same *s, const d9di_data *d)
{
    for (size_t i = 0; i < d->n; i++) {
        d9di_same_add(s, d->sections[i].dataset, d9d_dataset_hash(d->datasets[i]));
        add(s, (d9di_same_thing){.name = d->sections[i].skip_samples, .find = hash_if_there});
    }
}

static void add_dir(d9di_same *s, const char *dir, d9d_status (*whole)(const char *, d9d_hash *))
{
    add(s, (d9di_same_thing){.name = dir, .find = d9d_identity_glance, .whole = whole});
}

void d9di_same_saved(d9di_same *s, const char *dir)
{
    add(s, (d9di_same_thing){.name = dir, .find = hash_manifest});
}

static d9d_status checkpoint_hash(const char *dir, d9d_hash *out)
{
    return d9d_identity_checkpoint(dir, 0, out);
}

void d9di_same_engine(d9di_same *s, const d9di_engine *e, const d9di_engine_how *how)
{
    const d9d_plugins *p = how->where->plugins;

    for (size_t i = 0; i < d9d_plugins_count(p); i++)
        d9di_same_file(s, d9d_plugins_file(p, i));
    d9di_same_file(s, e->spec.hf_config);
    add_dir(s, how->initialise ? how->source : NULL, checkpoint_hash);
    add_dir(s, how->adapter, d9d_identity_adapter);
}

d9d_status d9di_same_identity(const d9di_same *s, d9d_hash *out)
{
    d9d_buf all = {0};
    d9d_status st = s->st;

    for (size_t i = 0; i < s->of.len && st == D9D_OK; i++) {
        const d9di_same_thing *t = &s->of.data[i];
        d9d_hash hash = t->hash;

        if (t->whole != NULL || t->find != NULL)
            st = (t->whole != NULL ? t->whole : t->find)(t->name, &hash);
        if (st == D9D_OK)
            st = d9d_buf_append(&all, &hash, sizeof(hash));
    }
    if (st == D9D_OK)
        *out = d9d_hash_bytes(all.data, all.len);
    d9d_buf_release(&all);
    return st;
}

static d9d_status find_all(d9di_same *s)
{
    D9D_TRY(s->st);
    for (size_t i = 0; i < s->of.len; i++)
        if (s->of.data[i].find != NULL)
            D9D_TRY(s->of.data[i].find(s->of.data[i].name, &s->of.data[i].hash));
    return D9D_OK;
}

/* All hashes in a row of digits. */
static d9d_status tell_all(const d9di_same *s, d9d_buf *out)
{
    char hex[D9D_HASH_HEX];

    for (size_t i = 0; i < s->of.len; i++) {
        d9d_hash_hex(s->of.data[i].hash, hex);
        D9D_TRY(d9d_buf_append(out, hex, strlen(hex)));
    }
    return d9d_buf_append(out, "", 1);
}

/* Is it all ranks'? */
static d9d_status agree_hash(d9d_boot *boot, d9d_hash mine, d9d_arena *a, bool *same)
{
    d9d_boot_word *all;

    D9D_TRY(d9d_bootstrap_allgather_arena(boot, &mine, sizeof(mine), a, &all));
    for (int r = 0; r < d9d_boot_size(boot); r++)
        *same = *same && all[r].n == sizeof(mine) &&
                memcmp(all[r].data, all[0].data, sizeof(mine)) == 0;
    return D9D_OK;
}

static d9d_status compare(const d9di_same *s, const char *mine, const char *first)
{
    const size_t one = D9D_HASH_HEX - 1;

    for (size_t i = 0; i < s->of.len; i++)
        if (mine == NULL || first == NULL || strncmp(mine + i * one, first, one) != 0)
            return D9D_FAIL(D9D_ECONFIG, "%s: is another one here than on rank 0",
                            s->of.data[i].name);
        else
            first += one;
    return D9D_OK;
}

/* Rank 0's hashes, of which this rank's differ somewhere, or another's do. */
static d9d_status judge_all(const d9di_same *s, d9d_boot *boot, const char *mine, d9d_arena *a)
{
    const char *first = mine;

    D9D_TRY(d9d_bootstrap_broadcast_text(boot, a, &first));
    return d9d_boot_agree(boot, compare(s, mine, first));
}

/* All tell the hash of what they have, and the hashes only where those differ. */
d9d_status d9di_same_agree(d9di_same *s, d9d_boot *boot)
{
    d9d_buf mine = {0};
    d9d_arena a = {0};
    bool same = true;
    d9d_status st = D9D_OK;

    if (d9d_boot_size(boot) == 1)
        goto out;
    st = find_all(s);
    if (st == D9D_OK)
        st = tell_all(s, &mine);
    D9D_TRY_OR(st, d9d_boot_agree(boot, st), out);
    D9D_TRY_OR(st, agree_hash(boot, d9d_hash_bytes(mine.data, mine.len), &a, &same), out);
    if (!same)
        st = judge_all(s, boot, mine.data, &a);
out:
    D9D_VEC_RELEASE(&s->of);
    d9d_buf_release(&mine);
    d9d_arena_release(&a);
    return st;
}

d9d_status d9d_job_same_files(d9d_boot *boot, const char *const *paths, size_t n)
{
    d9di_same same = {0};

    for (size_t i = 0; i < n; i++)
        if (paths[i] != NULL && d9d_fs_is_dir(paths[i]))
            add_dir(&same, paths[i], NULL);
        else
            d9di_same_file(&same, paths[i]);
    return d9di_same_agree(&same, boot);
}

/* --- configurations --------------------------------------------------------------------------- */

static bool tell_first(void *self, const char *path, const json_t *mine, const json_t *first)
{
    d9d_status *st = self;
    d9d_buf a = {0}, b = {0};

    *st = D9D_FAIL(D9D_ECONFIG, "%s is %s here and %s on rank 0; a job has one configuration", path,
                   d9di_differ_shown(mine, &a), d9di_differ_shown(first, &b));
    d9d_buf_release(&a);
    d9d_buf_release(&b);
    return true;
}

static d9d_status refuse(json_t *mine, const char *first)
{
    json_t *theirs = NULL;
    d9d_status st = D9D_OK;

    if (first == NULL || d9d_json_parse("rank 0", first, strlen(first), &theirs) != D9D_OK ||
        !d9di_differ(mine, theirs, tell_first, &st))
        st = D9D_FAIL(D9D_ECONFIG, "the configuration is another one here than on rank 0");
    json_decref(theirs);
    return st;
}

/* Behind a gather of what all have, of which rank 0's is `first`. */
static d9d_status judge(d9d_boot *boot, const char *what, const d9d_hash *mine,
                        const d9d_boot_word *first, json_t *doc, d9d_arena *a)
{
    const char *program =
        first->n > sizeof(*mine) ? (const char *)first->data + sizeof(*mine) : "?";
    d9d_buf text = {0};
    const char *told;
    d9d_status st = d9d_json_put(&text, doc, -1);

    told = st == D9D_OK ? d9d_arena_strndup(a, text.data, text.len) : NULL;
    d9d_buf_release(&text);
    D9D_TRY(d9d_bootstrap_broadcast_text(boot, a, &told));
    if (strcmp(program, what) != 0)
        st = D9D_FAIL(D9D_ECONFIG, "this is %s, and rank 0 is %s", what, program);
    else if (memcmp(first->data, mine, sizeof(*mine)) != 0)
        st = refuse(doc, told);
    return st;
}

d9d_status d9d_job_same(d9d_boot *boot, const char *what, json_t *doc)
{
    d9d_buf text = {0}, mine = {0};
    d9d_arena a = {0};
    d9d_boot_word *all;
    bool same = true;
    d9d_hash hash;
    d9d_status st;

    D9D_TRY_OR(st, d9d_json_put(&text, doc, -1), out);
    hash = d9d_hash_bytes(text.data, text.len);
    D9D_TRY_OR(st, d9d_buf_append(&mine, &hash, sizeof(hash)), out);
    D9D_TRY_OR(st, d9d_buf_append(&mine, what, strlen(what)), out);
    D9D_TRY_OR(st, d9d_bootstrap_allgather_arena(boot, mine.data, mine.len, &a, &all), out);
    for (int r = 1; r < d9d_boot_size(boot); r++)
        same = same && all[r].n == all[0].n && memcmp(all[r].data, all[0].data, all[0].n) == 0;
    if (!same)
        st = d9d_boot_agree(boot, judge(boot, what, &hash, &all[0], doc, &a));
out:
    d9d_buf_release(&text);
    d9d_buf_release(&mine);
    d9d_arena_release(&a);
    return st;
}
