/* checkpointer_dir.c - names in a checkpoint directory, and its lock.  See
 * checkpointer/checkpointer_private.h. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "checkpointer/checkpointer_private.h"
#include "d9d/base/fs.h"
#include "d9d/ckpt/dir/manifest.h"

static const char prefix[] = "step-", unfinished[] = ".tmp-";
enum { PREFIX = sizeof(prefix) - 1, MIN_DIGITS = 8, STEP_NAME = 32 };

/* The step of a name that begins with "step-00001000", and its rest; -1 for other names. */
static int64_t parse_step_name(const char *name, const char **rest)
{
    char again[STEP_NAME];
    size_t digits;
    int64_t step;

    if (strncmp(name, prefix, PREFIX) != 0)
        return -1;
    digits = strspn(name + PREFIX, "0123456789");
    errno = 0;
    step = strtoll(name + PREFIX, NULL, 10);
    if (digits < MIN_DIGITS || errno != 0)
        return -1;
    /* each step has exactly one valid name */
    (void)snprintf(again, sizeof(again), "%s%0*" PRId64, prefix, MIN_DIGITS, step);
    if (strlen(again) != PREFIX + digits)
        return -1;
    *rest = name + PREFIX + digits;
    return step;
}

/* True for "PID-n", the suffix of a directory being written, and "PID-old", of one being
 * removed. */
static bool is_tmp_suffix(const char *tail)
{
    static const char digits[] = "0123456789";
    const size_t pid = strspn(tail, digits);

    if (pid == 0 || tail[pid] != '-')
        return false;
    tail += pid + 1;
    return strcmp(tail, "old") == 0 || (*tail != '\0' && tail[strspn(tail, digits)] == '\0');
}

bool d9di_checkpointer_is_unfinished(const char *name)
{
    const char *rest;

    return parse_step_name(name, &rest) >= 0 &&
           strncmp(rest, unfinished, sizeof(unfinished) - 1) == 0 &&
           is_tmp_suffix(rest + sizeof(unfinished) - 1);
}

/* --- what may be replaced or removed --------------------------------------------------------- */

static bool has_entry(const char *dir, const char *name)
{
    d9d_arena a = {0};
    const char *path = d9d_fs_join(&a, dir, name);
    const bool has = path != NULL && d9d_fs_exists(path);

    d9d_arena_release(&a);
    return has;
}

/* A damaged checkpoint may have lost its manifest.json or the manifest's valid head, but not also
 * the first ranks' directory, or in d9d.checkpoint.v1 the first rank's file. */
static bool looks_saved(const char *dir)
{
    return d9d_fs_head_has(dir, D9D_MANIFEST_NAME, D9DI_CHECKPOINTER_SCHEMA) ||
           has_entry(dir, "ranks-00000") || has_entry(dir, "model-r00000.safetensors");
}

static bool looks_unfinished(const char *dir)
{
    (void)dir;
    return false;
}

const d9d_outdir_kind *d9di_checkpointer_outdir_kind(void)
{
    static const d9d_outdir_kind kind = {"checkpoint of a run", looks_saved, looks_unfinished};

    return &kind;
}

d9d_status d9di_checkpointer_check_names(const char *dir)
{
    d9di_checkpointer_steps steps;
    d9d_arena a = {0};
    d9d_status st = d9di_checkpointer_steps_list(dir, &a, &steps);

    for (size_t i = 0; st == D9D_OK && i < steps.n; i++) {
        const char *path = d9d_checkpointer_path(&a, dir, steps.step[i]);

        if (path == NULL)
            st = D9D_FAIL(D9D_ENOMEM, "%s: no memory for a name", dir);
        else if (!d9d_fs_is_empty(path) && !looks_saved(path))
            st = D9D_FAIL(D9D_ECONFIG,
                          "%s: is no checkpoint of a run, and has the name of one; move it away",
                          path);
    }
    d9d_arena_release(&a);
    return st;
}

char *d9d_checkpointer_path(d9d_arena *a, const char *dir, int64_t step)
{
    char name[STEP_NAME];

    (void)snprintf(name, sizeof(name), "%s%0*" PRId64, prefix, MIN_DIGITS, step);
    return d9d_fs_join(a, dir, name);
}

static int compare_steps_desc(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return x < y ? 1 : x > y ? -1 : 0;
}

d9d_status d9di_checkpointer_steps_list(const char *dir, d9d_arena *a, d9di_checkpointer_steps *out)
{
    d9di_checkpointer_steps steps = {0};
    d9d_fs_names names = {0};
    const char *rest;
    const d9d_status st = d9d_fs_list(dir, a, &names);

    /* A directory that a file system fails to show is not one without checkpoints. */
    if (st != D9D_OK && (st != D9D_ENOTFOUND || d9d_fs_exists(dir)))
        return st;
    steps.step = d9d_arena_alloc(a, (names.n + 1) * sizeof(*steps.step));
    if (steps.step == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for %zu names", dir, names.n);
    for (size_t i = 0; i < names.n; i++) {
        const int64_t step = parse_step_name(names.name[i], &rest);

        if (step >= 0 && *rest == '\0')
            steps.step[steps.n++] = step;
    }
    qsort(steps.step, steps.n, sizeof(*steps.step), compare_steps_desc);
    *out = steps;
    return D9D_OK;
}

/* --- the lock -------------------------------------------------------------------- */

static d9d_status try_flock(int fd, const char *path, bool *held)
{
    int rc;

    do
        rc = flock(fd, LOCK_EX | LOCK_NB);
    while (rc != 0 && errno == EINTR);
    if (rc != 0 && errno == EWOULDBLOCK)
        return D9D_FAIL(D9D_EIO, "%s: another process is writing checkpoints here", path);
    *held = rc == 0;
    return D9D_OK;
}

d9d_status d9di_checkpointer_lock_acquire(const char *dir, d9di_checkpointer_lock *out)
{
    d9di_checkpointer_lock lock = {.fd = -1};
    d9d_arena a = {0};
    char *path = d9d_fs_join(&a, dir, ".lock");
    d9d_status st;

    if (path == NULL) {
        st = D9D_FAIL(D9D_ENOMEM, "%s: no memory for the name of its lock", dir);
        goto out;
    }
    do
        lock.fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    while (lock.fd < 0 && errno == EINTR);
    if (lock.fd < 0) {
        st = D9D_FAIL(D9D_EIO, "%s: cannot create: %s", path, strerror(errno));
        goto out;
    }
    D9D_TRY_OR(st, try_flock(lock.fd, path, &lock.held), out);
    *out = lock;
    lock.fd = -1;
out:
    d9di_checkpointer_lock_release(&lock);
    d9d_arena_release(&a);
    return st;
}

void d9di_checkpointer_lock_release(d9di_checkpointer_lock *l)
{
    if (l->fd >= 0)
        (void)close(l->fd);
    l->fd = -1;
}
