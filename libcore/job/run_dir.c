/* run_dir.c - see job/run_dir.h. */
#include "job/run_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "d9d/base/fs.h"
#include "d9d/base/hex.h"
#include "d9d/base/thread.h"
#include "d9d/base/version.h"

enum { MAX_MANIFEST_BYTES = 1 << 20 };

d9d_status d9di_run_dir_set_paths(const d9d_job_trainer_section *t, d9d_arena *a, d9di_run_dir *out)
{
    const d9d_job_run_section *run = &t->run;

    if (d9d_fs_check_name(run->name, strlen(run->name), "trainer.run.name") != D9D_OK)
        return D9D_FAIL(D9D_ECONFIG, "%s", d9d_err_message());
    out->path = run->dir != NULL ? run->dir : d9d_fs_join(a, "runs", run->name);
    if (out->path == NULL)
        return D9D_FAIL(D9D_ENOMEM, "run %s: its directory's name", run->name);
    out->checkpoints = t->checkpointing.save_dir != NULL ? t->checkpointing.save_dir
                                                         : d9d_fs_join(a, out->path, "checkpoints");
    out->metrics = d9d_fs_join(a, out->path, "metrics.jsonl");
    out->samples = d9d_fs_join(a, out->path, "samples.jsonl");
    out->completions = d9d_fs_join(a, out->path, "completions.jsonl");
    out->flight = d9d_fs_join(a, out->path, "flight");
    out->export = d9d_fs_join(a, out->path, "export");
    out->adapter = d9d_fs_join(a, out->path, "adapter");
    out->config = d9d_fs_join(a, out->path, "config.json");
    out->manifest = d9d_fs_join(a, out->path, "manifest.json");
    out->events = d9d_fs_join(a, out->path, "tensorboard");
    if (out->checkpoints == NULL || out->metrics == NULL || out->samples == NULL ||
        out->completions == NULL || out->flight == NULL || out->export == NULL ||
        out->adapter == NULL || out->config == NULL || out->manifest == NULL || out->events == NULL)
        return D9D_FAIL(D9D_ENOMEM, "run %s: names of its files", run->name);
    return D9D_OK;
}

/* --- overlapping paths ------------------------------------------------------------------------ */

/* The next component of a path, of *n bytes; NULL at the end. */
static const char *next_component(const char *p, size_t *n)
{
    for (;; p += *n) {
        p += strspn(p, "/");
        *n = strcspn(p, "/");
        if (*n != 1 || *p != '.')
            return *n > 0 ? p : NULL;
    }
}

/* If `path` is `dir` or inside it by name, returns the rest of the path, which may be ""; else
 * NULL. Does not resolve links. */
static const char *path_inside(const char *path, const char *dir)
{
    size_t n = 0, k = 0;

    for (;;) {
        dir = next_component(dir + k, &k);
        path = next_component(path + n, &n);
        if (dir == NULL)
            return path != NULL ? path : "";
        if (path == NULL || n != k || memcmp(path, dir, n) != 0)
            return NULL;
    }
}

static const char *absolute_path(const char *path, d9d_arena *a)
{
    char here[PATH_MAX];

    return path[0] == '/' || getcwd(here, sizeof(here)) == NULL ? path : d9d_fs_join(a, here, path);
}

/* True if `path` is inside `dir`, under a name that begins with `first`. */
static bool path_leads_into(const char *path, const char *dir, const char *first)
{
    d9d_arena a = {0};
    const char *from = absolute_path(path, &a), *to = absolute_path(dir, &a);
    const char *rest = from != NULL && to != NULL ? path_inside(from, to) : NULL;
    const bool is = rest != NULL && strncmp(rest, first, strlen(first)) == 0;

    d9d_arena_release(&a);
    return is;
}

d9d_status d9di_run_dir_check(const d9d_train_config *c, const d9di_run_dir *r)
{
    const d9d_job_profiling_section *p = c->trainer.profiling;
    const char *export = c->export_to != NULL ? c->export_to : r->export;
    d9d_arena a = {0};
    const char *traces = p != NULL && p->traces_dir[0] != '/'
                             ? d9d_fs_join(&a, r->path, p->traces_dir)
                         : p != NULL ? p->traces_dir
                                     : NULL;
    const struct {
        const char *key, *inner, *outer, *why, *first;
    } pairs[] = {
        {"trainer.profiling.traces_dir", traces, r->checkpoints,
         "where names that begin with \"step-\" are checkpoints", ""},
        {"trainer.profiling.traces_dir", traces, export, "where the finished model alone is to be",
         ""},
        {"trainer.profiling.traces_dir", traces, r->adapter, "where adapters alone are to be", ""},
        {"trainer.checkpointing.save_dir", r->checkpoints, export,
         "where the finished model alone is to be", ""},
        {"trainer.checkpointing.save_dir", r->checkpoints, r->adapter,
         "where adapters alone are to be", ""},
        {"export_to", export, r->checkpoints,
         "where names that begin with \"step-\" are checkpoints", "step-"},
        {"export_to", export, r->checkpoints, "where the lock of the checkpoints is", ".lock"},
        {"export_to", export, r->adapter, "where adapters alone are to be", ""},
        {"export_to", export, r->flight, "where the flight recorder is", ""},
        {"export_to", export, r->metrics, "where records are", ""},
        {"export_to", export, r->samples, "where records are", ""},
        {"export_to", export, r->completions, "where completions are", ""},
        {"export_to", export, r->config, "where the configuration is", ""},
        {"export_to", export, r->manifest, "where the run is described", ""},
        {"export_to", export, r->events, "where event files are", ""},
    };
    d9d_status st = D9D_OK;

    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]) && st == D9D_OK; i++)
        if (pairs[i].inner != NULL &&
            path_leads_into(pairs[i].inner, pairs[i].outer, pairs[i].first))
            st = D9D_FAIL(D9D_ECONFIG, "%s: %s leads into %s, %s", pairs[i].key, pairs[i].inner,
                          pairs[i].outer, pairs[i].why);
    d9d_arena_release(&a);
    return st;
}

/* --- watching the directory ------------------------------------------------------------------- */

struct d9di_run_dir_watch {
    dev_t device; /* identity of the directory, whatever its name is later */
    ino_t inode;
    char path[];
};

d9d_status d9di_run_dir_watch_open(const char *path, d9di_run_dir_watch **out)
{
    const size_t n = strlen(path) + 1;
    d9di_run_dir_watch *h = calloc(1, sizeof(*h) + n);
    struct stat s;

    if (h == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: its name", path);
    if (stat(path, &s) != 0) {
        free(h);
        return D9D_FAIL(D9D_EIO, "%s: cannot look at it: %s", path, strerror(errno));
    }
    h->device = s.st_dev;
    h->inode = s.st_ino;
    memcpy(h->path, path, n);
    *out = h;
    return D9D_OK;
}

/* A file system error is ignored: it may be gone when a checkpoint is due. */
d9d_status d9di_run_dir_watch_check(void *held)
{
    const d9di_run_dir_watch *h = held;
    struct stat s;
    const bool found = stat(h->path, &s) == 0;

    if (found ? s.st_dev == h->device && s.st_ino == h->inode : errno != ENOENT && errno != ENOTDIR)
        return D9D_OK;
    return D9D_FAIL(D9D_EIO, "%s: the run directory was removed or renamed under the run", h->path);
}

void d9di_run_dir_watch_free(void *held)
{
    free(held);
}

/* --- manifest and configuration --------------------------------------------------------------- */

static d9d_status write_json(d9d_arena *a, const char *dir, const char *name, const json_t *v)
{
    const char *path = d9d_fs_join(a, dir, name);
    d9d_buf text = {0};
    d9d_status st;

    if (path == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s/%s: its name", dir, name);
    d9d_fs_remove_stale(path);
    D9D_TRY_OR(st, d9d_json_put(&text, v, 2), out);
    D9D_TRY_OR(st, d9d_buf_append(&text, "\n", 1), out);
    st = d9d_fs_write_atomic(path, text.data, text.len);
out:
    d9d_buf_release(&text);
    return st;
}

/* An environment variable as a string, or null. */
static json_t *env_json(const char *name)
{
    return d9d_json_str(getenv(name));
}

d9d_status d9di_run_dir_read_id(const d9di_run_dir *r, char id[D9DI_RUN_DIR_ID_SIZE])
{
    d9d_arena a = {0};
    const char *path = d9d_fs_join(&a, r->path, "manifest.json"), *previous = NULL;
    json_t *v = NULL;

    id[0] = '\0';
    if (path == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s/manifest.json: its name", r->path);
    if (d9d_json_read(path, MAX_MANIFEST_BYTES, &v) == D9D_OK)
        previous = json_string_value(json_object_get(v, "id"));
    if (previous != NULL && strspn(previous, "0123456789abcdef") == D9DI_RUN_DIR_ID_SIZE - 1 &&
        strlen(previous) == D9DI_RUN_DIR_ID_SIZE - 1)
        memcpy(id, previous, D9DI_RUN_DIR_ID_SIZE);
    json_decref(v);
    d9d_arena_release(&a);
    return D9D_OK;
}

/* The id of an earlier start.  A new one if its manifest is missing or foreign. */
static d9d_status find_id(const d9di_run_dir *r, char id[D9DI_RUN_DIR_ID_SIZE])
{
    unsigned char bytes[(D9DI_RUN_DIR_ID_SIZE - 1) / 2];

    D9D_TRY(d9di_run_dir_read_id(r, id));
    if (id[0] != '\0')
        return D9D_OK;
    if (getrandom(bytes, sizeof(bytes), 0) != (ssize_t)sizeof(bytes))
        return D9D_FAIL(D9D_EIO, "run %s: no random numbers for its id", r->path);
    d9d_hex_format(bytes, sizeof(bytes), id);
    return D9D_OK;
}

/* --- files of the ranks ----------------------------------------------------------------------- */

static char *rank_file_path(const d9di_run_dir *r, int rank, d9d_arena *a)
{
    return d9d_arena_printf(a, "%s/.rank-%d", r->checkpoints, rank);
}

d9d_status d9di_run_dir_write_rank_file(const d9di_run_dir *r, int rank, const char *id)
{
    d9d_arena a = {0};
    const char *path = rank_file_path(r, rank, &a);
    d9d_status st = path != NULL ? d9d_fs_write_atomic(path, id, strlen(id))
                                 : D9D_FAIL(D9D_ENOMEM, "%s: a name in it", r->checkpoints);

    d9d_arena_release(&a);
    if (st == D9D_OK)
        return D9D_OK;
    return D9D_FAIL(st, "%s; every rank writes its part of checkpoints there", d9d_err_message());
}

void d9di_run_dir_remove_rank_file(const d9di_run_dir *r, int rank)
{
    d9d_arena a = {0};
    const char *path = rank_file_path(r, rank, &a);

    if (path != NULL)
        (void)unlink(path); /* if this fails, the next start rewrites the file */
    d9d_arena_release(&a);
}

d9d_status d9di_run_dir_lock_checkpoints(const d9di_run_dir *r, d9d_file *out)
{
    d9d_arena a = {0};
    const char *path = d9d_fs_join(&a, r->checkpoints, ".lock-run");
    d9d_status st = d9d_fs_mkdirs(r->checkpoints);

    if (st == D9D_OK)
        st = path != NULL ? d9d_file_open_locked(path, out)
                          : D9D_FAIL(D9D_ENOMEM, "%s: a name in it", r->checkpoints);
    d9d_arena_release(&a);
    if (st == D9D_OK)
        return D9D_OK;
    return D9D_FAIL(st, "%s; each run needs a trainer.checkpointing.save_dir of its own",
                    d9d_err_message());
}

static d9d_status read_rank_file_id(const d9di_run_dir *r, char id[D9DI_RUN_DIR_ID_SIZE])
{
    d9d_arena a = {0};
    const char *path = rank_file_path(r, 0, &a);
    d9d_buf text = {0};

    id[0] = '\0';
    if (path == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: a name in it", r->checkpoints);
    if (d9d_fs_read(path, D9DI_RUN_DIR_ID_SIZE, &text) == D9D_OK &&
        text.len == D9DI_RUN_DIR_ID_SIZE - 1)
        (void)snprintf(id, D9DI_RUN_DIR_ID_SIZE, "%.*s", (int)text.len, text.data);
    d9d_buf_release(&text);
    d9d_arena_release(&a);
    return D9D_OK;
}

/* A network file system may cache a missing name for a minute; opening the directory revalidates
 * it. */
static void refresh_nfs_cache(const char *path)
{
    char dir_part[PATH_MAX];

    for (size_t n = 0; n == 0 || path[n - 1] != '\0'; n++) {
        int fd;

        if (path[n] != '\0' && path[n] != '/' && n > 0)
            continue;
        (void)snprintf(dir_part, sizeof(dir_part), "%.*s", (int)n, path);
        fd = open(n > 0            ? dir_part
                  : path[0] == '/' ? "/"
                                   : ".",
                  O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0)
            return;
        (void)close(fd);
    }
}

d9d_status d9di_run_dir_check_id(const d9di_run_dir *r, const char *id)
{
    const struct timespec a_while = {.tv_nsec = 250000000};
    char run[D9DI_RUN_DIR_ID_SIZE], checkpoints[D9DI_RUN_DIR_ID_SIZE];

    for (int i = 0; i < 20; i++) {
        if (i > 0)
            (void)nanosleep(&a_while, NULL);
        refresh_nfs_cache(r->path);
        refresh_nfs_cache(r->checkpoints);
        D9D_TRY(d9di_run_dir_read_id(r, run));
        D9D_TRY(read_rank_file_id(r, checkpoints));
        if (strcmp(run, id) == 0 && strcmp(checkpoints, id) == 0)
            return D9D_OK;
    }
    return D9D_FAIL(D9D_ECONFIG,
                    "%s: is not the %s directory that rank 0 has under this name; all ranks write "
                    "checkpoints there, so it must be on a disk that they share",
                    strcmp(run, id) != 0 ? r->path : r->checkpoints,
                    strcmp(run, id) != 0 ? "run" : "checkpoint");
}

/* --- creation --------------------------------------------------------------------------------- */

static json_t *make_manifest(const d9d_job_run_section *run, const json_t *hosts, int64_t restarts,
                             const char *id)
{
    char now[24];

    d9d_clock_iso(now);
    return json_pack("{s:s, s:s, s:o, s:o, s:s, s:s, s:O, s:o, s:o, s:I, s:O?}", "schema",
                     D9DI_RUN_DIR_SCHEMA, "id", id, "name", d9d_json_str(run->name), "description",
                     d9d_json_str(run->description), "version", d9d_version(), "started", now,
                     "hosts", hosts, "slurm_job", env_json("SLURM_JOB_ID"), "slurm_restarts",
                     env_json("SLURM_RESTART_COUNT"), "restarts", (json_int_t)restarts, "hparams",
                     run->hparams);
}

d9d_status d9di_run_dir_create(const d9di_run_dir *r, const d9d_job_run_section *run,
                               const json_t *resolved, const json_t *hosts, int64_t restarts,
                               char id[D9DI_RUN_DIR_ID_SIZE])
{
    d9d_arena a = {0};
    json_t *about = NULL;
    d9d_status st;

    D9D_TRY_OR(st, find_id(r, id), out);
    about = make_manifest(run, hosts, restarts, id);
    if (about == NULL) {
        st = D9D_FAIL(D9D_ENOMEM, "%s/manifest.json: cannot be described", r->path);
        goto out;
    }
    D9D_TRY_OR(st, d9d_fs_mkdirs(r->path), out);
    d9d_fs_remove_stale(r->export);
    d9d_fs_remove_stale(r->adapter);
    D9D_TRY_OR(st, write_json(&a, r->path, "config.json", resolved), out);
    st = write_json(&a, r->path, "manifest.json", about);
out:
    json_decref(about);
    d9d_arena_release(&a);
    return st;
}
