/* save_find.c - which checkpoints there are, and which of them stay.  See d9d/loop/save.h. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "loop/save_parts.h"

enum { ABANDONED_S = 24 * 3600 };

/* --- is it usable? ------------------------------------------------------------------ */

static void keep_first(void *arg, const char *sentence)
{
    d9d_err_copy *first = arg;

    if (first->text[0] == '\0')
        (void)snprintf(first->text, sizeof(first->text), "%s", sentence);
}

static d9d_status check_hashes(const d9d_manifest *m, const d9d_log *log)
{
    d9d_err_copy first = {.st = D9D_EVERIFY, .text = ""};
    const d9d_status st = d9d_manifest_check(m, 0, log, keep_first, &first);

    return st == D9D_EVERIFY && first.text[0] != '\0' ? d9d_err_restore(&first) : st;
}

static d9d_status check_saved(const d9di_saved *s, int64_t step)
{
    if (s->state.step != step)
        return D9D_FAIL(D9D_EVERIFY, "%s: says step %" PRId64 ", its directory step %" PRId64,
                        s->path, s->state.step, step);
    if (!s->state.finite)
        return D9D_FAIL(D9D_EVERIFY, "%s: loss or gradient of step %" PRId64 " was not finite",
                        s->dir, step);
    return d9d_manifest_check_sizes(s->manifest);
}

/* A failure says why it is not, but for ENOMEM. */
static d9d_status check_usable(const char *path, int64_t step, bool hashes, const d9d_log *log)
{
    d9di_saved s;
    d9d_status st;

    D9D_TRY(d9di_saved_open(path, &s));
    D9D_TRY_OR(st, check_saved(&s, step), out);
    if (hashes)
        st = check_hashes(s.manifest, log);
out:
    d9di_saved_release(&s);
    return st;
}

static d9d_status newest(const char *dir, bool hashes, const d9d_log *log, d9d_arena *a,
                         const char **path)
{
    d9d_err_copy first = {.st = D9D_OK};
    d9di_save_steps steps;

    D9D_TRY(d9di_save_steps_list(dir, a, &steps));
    for (size_t i = 0; i < steps.n; i++) {
        char *one = d9d_save_path(a, dir, steps.step[i]);
        d9d_status st = D9D_ENOMEM;

        if (one == NULL)
            return D9D_FAIL(st, "%s: no memory for the name of a checkpoint", dir);
        st = check_usable(one, steps.step[i], hashes, log);
        if (st == D9D_OK) {
            *path = one;
            return D9D_OK;
        }
        if (st == D9D_ENOMEM)
            return st;
        d9d_log_warn(log, "checkpoint passed over: %s", d9d_err_message());
        if (i == 0)
            d9d_err_save(&first, st);
    }
    if (steps.n > 0)
        return D9D_FAIL(D9D_EVERIFY, "%s: none of %zu checkpoints can be used; the newest: %s", dir,
                        steps.n, first.text);
    *path = NULL;
    return D9D_OK;
}

d9d_status d9d_save_likely(const char *dir, d9d_arena *a, const char **path)
{
    return newest(dir, false, NULL, a, path);
}

d9d_status d9d_save_newest(const char *dir, const d9d_log *log, d9d_arena *a, const char **path)
{
    return newest(dir, true, log, a, path);
}

/* --- removing ------------------------------------------------------------------------- */

/* Seconds since something in the directory changed; 0 when that cannot be said. */
static int64_t idle_seconds(const char *path, d9d_arena *a)
{
    d9d_fs_names names;
    struct stat s;
    time_t last;

    if (stat(path, &s) != 0 || d9d_fs_list(path, a, &names) != D9D_OK)
        return 0;
    last = s.st_mtime;
    for (size_t i = 0; i < names.n; i++) {
        const char *one = d9d_fs_join(a, path, names.name[i]);

        if (one == NULL || stat(one, &s) != 0)
            return 0;
        last = s.st_mtime > last ? s.st_mtime : last;
    }
    return (int64_t)(time(NULL) - last);
}

/* What killed saves and removals left behind. */
static d9d_status sweep(const char *dir, const d9di_save_lock *lock, d9d_arena *a,
                        const d9d_log *log)
{
    d9d_fs_names names;

    D9D_TRY(d9d_fs_list(dir, a, &names));
    for (size_t i = 0; i < names.n; i++) {
        const char *path = d9d_fs_join(a, dir, names.name[i]);

        if (path == NULL)
            return D9D_FAIL(D9D_ENOMEM, "%s: no memory for a name", dir);
        if (!d9di_save_is_unfinished(names.name[i]) ||
            (!lock->held && idle_seconds(path, a) < ABANDONED_S))
            continue;
        d9d_log_info(log, "%s: left by a process that ended while it was written; removed", path);
        D9D_TRY(d9d_fs_remove_tree(path));
    }
    return D9D_OK;
}

/* Out of sight in one step, then piece by piece: what is called step-N is never half gone. */
static d9d_status remove_step(const char *path, d9d_arena *a, const d9d_log *log)
{
    const char *aside = d9d_arena_printf(a, "%s.tmp-%ld-old", path, (long)getpid());

    if (aside == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for a name", path);
    if (rename(path, aside) != 0)
        return D9D_FAIL(D9D_EIO, "%s: cannot move it aside: %s", path, strerror(errno));
    d9d_log_debug(log, "%s: removed, as newer ones are kept", path);
    return d9d_fs_remove_tree(aside);
}

/* Everything older than the `keep` newest usable ones. */
static d9d_status retire(const char *dir, int64_t keep, d9d_arena *a, const d9d_log *log)
{
    d9di_save_steps steps;
    int64_t kept = 0;

    D9D_TRY(d9di_save_steps_list(dir, a, &steps));
    for (size_t i = 0; i < steps.n; i++) {
        const char *path = d9d_save_path(a, dir, steps.step[i]);
        const char *manifest = path != NULL ? d9d_fs_join(a, path, D9D_MANIFEST_NAME) : NULL;

        if (manifest == NULL)
            return D9D_FAIL(D9D_ENOMEM, "%s: no memory for a name", dir);
        if (kept < keep)
            kept += check_usable(path, steps.step[i], false, log) == D9D_OK;
        else if (d9d_fs_exists(manifest))
            D9D_TRY(remove_step(path, a, log));
    }
    return D9D_OK;
}

d9d_status d9d_save_prune(const char *dir, int64_t keep, const d9d_log *log)
{
    d9di_save_lock lock = {.fd = -1};
    d9d_arena a = {0};
    d9d_status st;

    if (!d9d_fs_exists(dir))
        return D9D_OK;
    D9D_TRY_OR(st, d9di_save_lock_take(dir, &lock), out);
    D9D_TRY_OR(st, sweep(dir, &lock, &a, log), out);
    if (keep > 0)
        st = retire(dir, keep, &a, log);
out:
    d9di_save_lock_release(&lock);
    d9d_arena_release(&a);
    return st;
}
