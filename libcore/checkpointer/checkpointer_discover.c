/* checkpointer_discover.c - finds checkpoints, and removes old ones.  See
 * d9d/checkpointer/checkpointer.h. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "checkpointer/checkpointer_private.h"
#include "d9d/base/thread.h"
#include "d9d/comm/exchange.h"

enum { ABANDONED_S = 24 * 3600 };

/* --- validation ------------------------------------------------------------------------------- */

/* How much of a checkpoint is looked at. */
typedef enum check_depth {
    ROOT_ONLY, /* the root manifest and the files that it lists itself */
    ALL_FILES  /* the sizes of all files */
} check_depth;

static d9d_status check_all_sizes(const char *path)
{
    d9d_manifest *m;
    d9d_status st;

    D9D_TRY(d9d_manifest_open(path, &m));
    st = d9d_manifest_check_sizes(m);
    d9d_manifest_close(m);
    return st;
}

static d9d_status check_manifest(const d9di_checkpointer_manifest *s, int64_t step,
                                 check_depth depth)
{
    if (s->state.step != step)
        return D9D_FAIL(D9D_EVERIFY, "%s: says step %" PRId64 ", its directory step %" PRId64,
                        s->path, s->state.step, step);
    if (!s->state.finite)
        return D9D_FAIL(D9D_EVERIFY, "%s: loss or gradient of step %" PRId64 " was not finite",
                        s->dir, step);
    return depth == ALL_FILES ? check_all_sizes(s->dir) : d9d_manifest_check_sizes(s->manifest);
}

/* Checks everything but the hashes.  An error other than ENOMEM says why it is not usable. */
static d9d_status check_usable(const char *path, int64_t step, check_depth depth)
{
    d9di_checkpointer_manifest s;
    d9d_status st;

    D9D_TRY(d9di_checkpointer_manifest_open(path, &s));
    st = check_manifest(&s, step, depth);
    d9di_checkpointer_manifest_release(&s);
    return st;
}

/* --- the newest checkpoint -------------------------------------------------------------------- */

typedef struct candidate_search {
    const char *dir;
    check_depth depth;
    const d9d_log *log;
    d9d_arena *a;
    d9di_checkpointer_steps steps;
    size_t next;
    d9d_err_copy first; /* why the newest one is not usable */
} candidate_search;

static void skip_candidate(candidate_search *s, d9d_status why)
{
    d9d_log_warn(s->log, "checkpoint passed over: %s", d9d_err_message());
    if (s->first.st == D9D_OK)
        d9d_err_save(&s->first, why);
}

/* The next candidate that is usable apart from its hashes; *path is NULL if there was none at
 * all. */
static d9d_status next_usable(candidate_search *s, const char **path)
{
    *path = NULL;
    while (s->next < s->steps.n) {
        const int64_t step = s->steps.step[s->next++];
        char *one = d9d_checkpointer_path(s->a, s->dir, step);
        d9d_status st = D9D_ENOMEM;

        if (one == NULL)
            return D9D_FAIL(st, "%s: no memory for the name of a checkpoint", s->dir);
        st = check_usable(one, step, s->depth);
        if (st == D9D_OK) {
            *path = one;
            return D9D_OK;
        }
        if (st == D9D_ENOMEM)
            return st;
        skip_candidate(s, st);
    }
    if (s->steps.n > 0)
        return D9D_FAIL(D9D_EVERIFY, "%s: none of %zu checkpoints can be used; the newest: %s",
                        s->dir, s->steps.n, s->first.text);
    return D9D_OK;
}

d9d_status d9d_checkpointer_latest_unverified(const char *dir, d9d_arena *a, const char **path)
{
    candidate_search s = {.dir = dir, .depth = ALL_FILES, .a = a};

    D9D_TRY(d9di_checkpointer_steps_list(dir, a, &s.steps));
    return next_usable(&s, path);
}

/* --- verification of the hashes --------------------------------------------------------------- */

static void record_first_error(void *arg, const char *sentence)
{
    d9d_err_copy *first = arg;

    if (first->text[0] == '\0')
        (void)snprintf(first->text, sizeof(first->text), "%s", sentence);
}

static d9d_status verify_rank_part(const char *path, size_t index, size_t count, const d9d_log *log,
                                   uint64_t *bytes)
{
    d9d_err_copy first = {.st = D9D_EVERIFY, .text = ""};
    d9d_manifest *m;
    d9d_status st;

    *bytes = 0;
    D9D_TRY(d9d_manifest_open_root(path, &m));
    st = d9d_manifest_check_share(m, index, count, 0, log, record_first_error, &first, bytes);
    d9d_manifest_close(m);
    return st == D9D_EVERIFY && first.text[0] != '\0' ? d9d_err_restore(&first) : st;
}

/* Logs how much each rank has read. */
static d9d_status log_bytes_read(d9d_bootstrap *bootstrap, const char *path, uint64_t bytes,
                                 const d9d_log *log, d9d_arena *a)
{
    uint64_t least = UINT64_MAX, max_bytes = 0, sum = 0;
    d9d_bootstrap_blob *all;

    D9D_TRY(d9d_bootstrap_allgather_arena(bootstrap, &bytes, sizeof(bytes), a, &all));
    for (int r = 0; r < d9d_bootstrap_size(bootstrap); r++) {
        uint64_t n = 0;

        memcpy(&n, all[r].data, all[r].n == sizeof(n) ? sizeof(n) : 0);
        least = n < least ? n : least;
        max_bytes = n > max_bytes ? n : max_bytes;
        sum += n;
    }
    d9d_log_info(log,
                 "%s: its %" PRIu64 " bytes are as they were written; each of %d ranks has read "
                 "%" PRIu64 " to %" PRIu64 " of them",
                 path, sum, d9d_bootstrap_size(bootstrap), least, max_bytes);
    return D9D_OK;
}

static d9d_status verify_on_all_ranks(d9d_bootstrap *bootstrap, const char *path,
                                      const d9d_log *log, d9d_arena *a)
{
    uint64_t bytes;

    if (bootstrap == NULL || d9d_bootstrap_size(bootstrap) == 1 ||
        d9d_bootstrap_is_simulated(bootstrap))
        return verify_rank_part(path, 0, 1, log, &bytes);
    D9D_TRY(d9d_bootstrap_agree_status(
        bootstrap, verify_rank_part(path, (size_t)d9d_bootstrap_rank(bootstrap),
                                    (size_t)d9d_bootstrap_size(bootstrap), log, &bytes)));
    return log_bytes_read(bootstrap, path, bytes, log, a);
}

/* Rank 0 searches and broadcasts. */
static d9d_status broadcast_candidate(candidate_search *s, d9d_bootstrap *bootstrap,
                                      const char **path)
{
    d9d_status st = D9D_OK;

    *path = NULL;
    if (bootstrap == NULL)
        return next_usable(s, path);
    if (d9d_bootstrap_rank(bootstrap) == 0)
        st = next_usable(s, path);
    D9D_TRY(d9d_bootstrap_agree_status(bootstrap, st));
    return d9d_bootstrap_broadcast_text(bootstrap, s->a, path);
}

d9d_status d9d_checkpointer_latest(const char *dir, d9d_bootstrap *bootstrap, const d9d_log *log,
                                   d9d_arena *a, const char **path)
{
    /* the ranks look at the files of parts when they verify them */
    candidate_search s = {.dir = dir, .depth = ROOT_ONLY, .log = log, .a = a};
    const char *one;
    d9d_status st = D9D_OK;

    if (bootstrap == NULL || d9d_bootstrap_rank(bootstrap) == 0)
        st = d9di_checkpointer_steps_list(dir, a, &s.steps);
    D9D_TRY(bootstrap != NULL ? d9d_bootstrap_agree_status(bootstrap, st) : st);
    do {
        D9D_TRY(broadcast_candidate(&s, bootstrap, &one));
        st = one != NULL ? verify_on_all_ranks(bootstrap, one, log, a) : D9D_OK;
        if (st == D9D_EVERIFY) {
            skip_candidate(&s, st);
            if (bootstrap != NULL)
                d9d_bootstrap_clear_failure(bootstrap); /* before the next candidate */
        }
    } while (st == D9D_EVERIFY);
    *path = one;
    return st;
}

/* --- removal ---------------------------------------------------------------------------------- */

/* Advances *last to the last change in the directory and, to a depth, the directories in it. */
static bool find_last_change(const char *path, int depth, d9d_arena *a, time_t *last)
{
    d9d_fs_names names;
    struct stat s;

    if (stat(path, &s) != 0)
        return false;
    *last = s.st_mtime > *last ? s.st_mtime : *last;
    if (!S_ISDIR(s.st_mode) || depth == 0)
        return true;
    if (d9d_fs_list(path, a, &names) != D9D_OK)
        return false;
    for (size_t i = 0; i < names.n; i++) {
        const char *one = d9d_fs_join(a, path, names.name[i]);

        if (one == NULL || !find_last_change(one, depth - 1, a, last))
            return false;
    }
    return true;
}

/* Seconds since the last change in a checkpoint's directory; 0 if unknown. */
static int64_t idle_seconds(const char *path, d9d_arena *a)
{
    time_t last = 0;

    return find_last_change(path, 2, a, &last) ? (int64_t)(time(NULL) - last) : 0;
}

static d9d_status remove_entry(void *arg, int worker, size_t i)
{
    const d9d_fs_names *names = arg;

    (void)worker;
    return d9d_fs_remove_tree(names->name[i]);
}

static bool is_link(const char *path)
{
    struct stat s;

    return lstat(path, &s) == 0 && S_ISLNK(s.st_mode);
}

/* Removes a directory, those in it in parallel; of a link the link alone, as a checkpoint that was
 * moved elsewhere and linked is there to stay. */
static d9d_status remove_dir(const char *path, d9d_arena *a)
{
    d9d_fs_names names;

    if (is_link(path))
        return d9d_fs_remove_tree(path);
    D9D_TRY(d9d_fs_list(path, a, &names));
    for (size_t i = 0; i < names.n; i++) {
        names.name[i] = d9d_fs_join(a, path, names.name[i]);
        if (names.name[i] == NULL)
            return D9D_FAIL(D9D_ENOMEM, "%s: no memory for a name", path);
    }
    D9D_TRY(d9d_thread_run(0, names.n, remove_entry, &names));
    return d9d_fs_remove_tree(path);
}

/* Removes leftovers of killed saves and removals. */
static d9d_status remove_leftovers(const char *dir, const d9di_checkpointer_lock *lock,
                                   d9d_arena *a, const d9d_log *log)
{
    d9d_fs_names names;

    D9D_TRY(d9d_fs_list(dir, a, &names));
    for (size_t i = 0; i < names.n; i++) {
        const char *path = d9d_fs_join(a, dir, names.name[i]);

        if (path == NULL)
            return D9D_FAIL(D9D_ENOMEM, "%s: no memory for a name", dir);
        if (!d9di_checkpointer_is_unfinished(names.name[i]) ||
            (!lock->held && idle_seconds(path, a) < ABANDONED_S))
            continue;
        d9d_log_info(log, "%s: left by a process that ended while it was written; removed", path);
        D9D_TRY(remove_dir(path, a));
    }
    return D9D_OK;
}

/* Renames first, then deletes file by file, so that a step-N is never partly removed. */
static d9d_status remove_step(const char *path, d9d_arena *a, const d9d_log *log)
{
    const char *aside = d9d_arena_printf(a, "%s.tmp-%ld-old", path, (long)getpid());

    if (aside == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for a name", path);
    if (rename(path, aside) != 0)
        return D9D_FAIL(D9D_EIO, "%s: cannot move it aside: %s", path, strerror(errno));
    d9d_log_debug(log, "%s: removed, as newer ones are kept", path);
    return remove_dir(aside, a);
}

d9d_status d9d_checkpointer_remove(const char *dir, int64_t step, const d9d_log *log)
{
    d9d_arena a = {0};
    const char *path = d9d_checkpointer_path(&a, dir, step), *lock = d9d_fs_join(&a, dir, ".lock");
    d9d_status st = path == NULL || lock == NULL
                        ? D9D_FAIL(D9D_ENOMEM, "%s: no memory for a name", dir)
                        : d9d_fs_remove_tree(path);

    if (st == D9D_OK) {
        (void)unlink(lock);
        if (rmdir(dir) != 0)
            d9d_log_info(log, "%s: stays, since other files lie in it", dir);
    }
    d9d_arena_release(&a);
    return st;
}

/* Of the checkpoints up to `last`, removes all that are older than the `keep` newest usable ones.
 */
static d9d_status remove_old(const char *dir, int64_t last, int64_t keep, d9d_arena *a,
                             const d9d_log *log)
{
    d9di_checkpointer_steps steps;
    int64_t n_usable = 0;

    D9D_TRY(d9di_checkpointer_steps_list(dir, a, &steps));
    for (size_t i = 0; i < steps.n; i++) {
        const char *path = d9d_checkpointer_path(a, dir, steps.step[i]);

        if (path == NULL)
            return D9D_FAIL(D9D_ENOMEM, "%s: no memory for a name", dir);
        if (steps.step[i] > last)
            continue;
        if (n_usable < keep)
            n_usable += check_usable(path, steps.step[i], ALL_FILES) == D9D_OK;
        else if (d9d_fs_head_has(path, D9D_MANIFEST_NAME, D9DI_CHECKPOINTER_SCHEMA))
            D9D_TRY(remove_step(path, a, log));
    }
    return D9D_OK;
}

d9d_status d9d_checkpointer_prune(const char *dir, int64_t last, int64_t keep, const d9d_log *log)
{
    d9di_checkpointer_lock lock = {.fd = -1};
    d9d_arena a = {0};
    d9d_status st;

    if (!d9d_fs_exists(dir))
        return D9D_OK;
    D9D_TRY_OR(st, d9di_checkpointer_lock_acquire(dir, &lock), out);
    D9D_TRY_OR(st, remove_leftovers(dir, &lock, &a, log), out);
    if (keep > 0)
        st = remove_old(dir, last, keep, &a, log);
out:
    d9di_checkpointer_lock_release(&lock);
    d9d_arena_release(&a);
    return st;
}
