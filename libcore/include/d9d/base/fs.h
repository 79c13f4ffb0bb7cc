/* fs.h - files that appear whole or not at all.
 *
 * Errors name the path, what was being done and, for a write, the offset and the
 * bytes that did not fit ("runs/a/metrics.jsonl: cannot write 4096 bytes at
 * 81920: No space left on device").  ENOTFOUND where nothing is, EPATH where what is
 * there is of another kind or not allowed, else EIO.  New files follow the umask.
 */
#ifndef D9D_BASE_FS_H
#define D9D_BASE_FS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "d9d/base/mem.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Names found inside files (an index, a manifest) must be one plain path
 * component: not empty, not "." or "..", no '/', no control characters, at most
 * 255 bytes of UTF-8, no NUL.  `where` begins the sentence.  EFORMAT. */
D9D_API D9D_MUST_USE d9d_status d9d_fs_check_name(const char *name, size_t len, const char *where);

/* "dir/name" from the arena; NULL when memory is out. */
D9D_API char *d9d_fs_join(d9d_arena *a, const char *dir, const char *name);

D9D_API bool d9d_fs_exists(const char *path);
D9D_API bool d9d_fs_is_dir(const char *path);
/* True for a directory without entries, and where nothing is or what is cannot be looked at. */
D9D_API bool d9d_fs_is_empty(const char *path);
D9D_API D9D_MUST_USE d9d_status d9d_fs_size(const char *path, uint64_t *out);
/* EPATH for a directory, a pipe or a device, which opening or reading might wait for. */
D9D_API D9D_MUST_USE d9d_status d9d_fs_check_regular(const char *path);
/* Is `name` in `dir` a regular file, with this text in its first 4096 bytes? */
D9D_API bool d9d_fs_head_has(const char *dir, const char *name, const char *text);
/* Is something there that may be read? */
D9D_API D9D_MUST_USE d9d_status d9d_fs_check_readable(const char *path);
/* EPATH where a directory `path` could not be made, or nothing in the one that is there: what of it
 * exists is no directory, or may not be written to. */
D9D_API D9D_MUST_USE d9d_status d9d_fs_check_creatable(const char *path);
/* Can a file be made there?  ECONFIG where something is already, also a link to nothing; else what
 * its directory says. */
D9D_API D9D_MUST_USE d9d_status d9d_fs_check_new(const char *path);

/* Create a directory and its parents; existing ones are fine. */
D9D_API D9D_MUST_USE d9d_status d9d_fs_mkdirs(const char *path);
/* The same for the directory that `path` is in. */
D9D_API D9D_MUST_USE d9d_status d9d_fs_make_parents(const char *path);
/* Remove a tree without following links; an absent path is fine. */
D9D_API D9D_MUST_USE d9d_status d9d_fs_remove_tree(const char *path);
/* Make the directory's entries durable. */
D9D_API D9D_MUST_USE d9d_status d9d_fs_sync_dir(const char *path);

/* Names in a directory without ".", ".." and the mark of an unfinished directory
 * (D9D_PARTIAL_MARK), which is nobody's but its own; sorted by strcmp, in the arena. */
typedef struct d9d_fs_names {
    char **name;
    size_t n;
} d9d_fs_names;
D9D_API D9D_MUST_USE d9d_status d9d_fs_list(const char *dir, d9d_arena *a, d9d_fs_names *out);

/* The whole file into `out` (released by the caller).  A file of more than `max`
 * bytes is EFORMAT before it is read, naming both numbers.  An absent one is
 * ENOTFOUND; what is no regular file EPATH, but for streams of this process
 * ("/dev/stdin", "/dev/fd/63"): nothing waits for a pipe that nobody writes to. */
D9D_API D9D_MUST_USE d9d_status d9d_fs_read(const char *path, uint64_t max, d9d_buf *out);

/* Write beside, sync, rename over.  Readers see the old file or the new one.  A link is followed;
 * a device, a pipe or a directory there is ECONFIG, a link to nothing EPATH. */
D9D_API D9D_MUST_USE d9d_status d9d_fs_write_atomic(const char *path, const void *data, size_t n);
/* The same to the file `name` of a directory. */
D9D_API D9D_MUST_USE d9d_status d9d_fs_write_in(const char *dir, const char *name, const void *data,
                                                size_t n);

/* The same where nothing may be there: ECONFIG, and nothing is changed, for whatever appeared. */
D9D_API D9D_MUST_USE d9d_status d9d_fs_write_new(const char *path, const void *data, size_t n);

/* Give the file `from` the name `to`, which nothing may have: ECONFIG, and `from` stays, where
 * something has it, whoever was first.  Where the file system knows neither this nor links, one
 * that comes between looking and renaming is replaced.  Does not sync the directory. */
D9D_API D9D_MUST_USE d9d_status d9d_fs_rename_new(const char *from, const char *to);

/* Remove what was left beside `path` by writers of it that were killed: files and directories
 * "<path>.tmp-<pid>-<n>" that no process holds.  Only where a lock tells of every writer: on file
 * systems of this host, and files of NFS.  Elsewhere another host may be writing, and they stay.
 * Best effort: says nothing. */
D9D_API void d9d_fs_remove_stale(const char *path);
D9D_API void d9d_fs_remove_stale_in(
    const char *dir); /* likewise, beside every name in a directory */

/* Copy a regular file, in the kernel where it can; `dst` must not exist. */
D9D_API D9D_MUST_USE d9d_status d9d_fs_copy(const char *src, const char *dst);

/* --- one file, written once -------------------------------------------- */

/* Zero-initialised, or with fd -1, it is closed. */
typedef struct d9d_file {
    int fd; /* -1 when closed */
    char *path;
    uint64_t offset; /* bytes written so far by d9d_file_write */
} d9d_file;

/* Create for writing (an existing file is truncated) or open for reading.  What is written to is
 * never a link, what is read is a regular file or a link to one: EPATH.  Nothing waits for a pipe
 * that nobody writes to. */
D9D_API D9D_MUST_USE d9d_status d9d_file_create(const char *path, d9d_file *out);
D9D_API D9D_MUST_USE d9d_status d9d_file_open(const char *path, d9d_file *out);
/* The same where it may also be a pipe or a device: waits for who writes to a pipe. */
D9D_API D9D_MUST_USE d9d_status d9d_file_open_stream(const char *path, d9d_file *out);
/* Open for reading where a regular file has the name, and how many bytes that has: EPATH for a
 * link, which is not followed. */
D9D_API D9D_MUST_USE d9d_status d9d_file_open_regular(const char *path, d9d_file *out,
                                                      uint64_t *bytes);
/* Create for writing where nothing has the name, no link either. */
D9D_API D9D_MUST_USE d9d_status d9d_file_create_new(const char *path, d9d_file *out);
/* Open for reading and writing as it is; make it, empty, where it is absent. */
D9D_API D9D_MUST_USE d9d_status d9d_file_open_rw(const char *path, d9d_file *out);
/* The same of a file that must be this user's own: EPATH for a symbolic link, which is not
 * followed, for what is no regular file, and for the file of another user.  Writing begins at its
 * start. */
D9D_API D9D_MUST_USE d9d_status d9d_file_open_rw_owned(const char *path, d9d_file *out);
/* Take the file's lock, which is kept until it is closed: EIO when another process has it.  File
 * systems without locks are fine. */
D9D_API D9D_MUST_USE d9d_status d9d_file_lock(const d9d_file *f);
/* Open for writing behind the first `at` bytes, making the file if it is absent; what is
 * beyond `at` is cut off.  EFORMAT when the file is shorter. */
D9D_API D9D_MUST_USE d9d_status d9d_file_open_append(const char *path, uint64_t at, d9d_file *out);
/* The same of one that is open. */
D9D_API D9D_MUST_USE d9d_status d9d_file_truncate(d9d_file *f, uint64_t at);
D9D_API D9D_MUST_USE d9d_status d9d_file_write(d9d_file *f, const void *p, size_t n);
D9D_API D9D_MUST_USE d9d_status d9d_file_write_at(d9d_file *f, const void *p, size_t n,
                                                  uint64_t at);
/* Make the file n bytes long, if it is not. */
D9D_API D9D_MUST_USE d9d_status d9d_file_resize(d9d_file *f, uint64_t n);
/* All n bytes at `at`, or EFORMAT when the file ends before. */
D9D_API D9D_MUST_USE d9d_status d9d_file_read_at(const d9d_file *f, void *p, size_t n, uint64_t at);
D9D_API D9D_MUST_USE d9d_status d9d_file_sync(d9d_file *f);
/* Close; a failing close is an error too.  Closing twice is fine. */
D9D_API D9D_MUST_USE d9d_status d9d_file_close(d9d_file *f);
/* Close on an error path: says nothing. */
D9D_API void d9d_file_release(d9d_file *f);

/* --- one directory that appears whole ----------------------------------- *
 *
 *     D9D_TRY(d9d_outdir_begin(&o, "out/step-00001000", 0));
 *     ... create files in o.tmp ...
 *     st = d9d_outdir_commit(&o);      // syncs every file and directory, renames
 *     d9d_outdir_release(&o);          // removes o.tmp if it was not committed
 *
 * The work is done in "<path>.tmp-<pid>-<n>" beside the final name; beginning sweeps those of
 * killed processes. */

/* What a directory is of, so that nothing else is emptied or replaced. */
typedef struct d9d_outdir_kind {
    const char *label; /* "checkpoint": in sentences */
    /* Is the directory one of these, which may be replaced? */
    bool (*is_complete)(const char *dir);
    /* Is it an unfinished one, of a version that left no mark? */
    bool (*is_partial)(const char *dir);
} d9d_outdir_kind;

typedef struct d9d_outdir {
    char *path, *tmp;
    bool replace, keep;
    int lock; /* descriptor of tmp, plus 1 */
    int mark; /* and of its mark, plus 1; with D9D_OUTDIR_KEEP */
    const d9d_outdir_kind *kind;
} d9d_outdir;

/* In an unfinished "<path>.partial": the file that says so, and is its lock. */
#define D9D_PARTIAL_MARK ".d9d-partial"

enum {
    D9D_OUTDIR_REPLACE = 1, /* allow a non-empty directory there; it is swapped out whole */
    D9D_OUTDIR_KEEP = 2 /* work in "<path>.partial", which may be there from an earlier run, with
                         * its mark, and which release leaves for the next one */
};

/* ECONFIG where `path` has files: without D9D_OUTDIR_REPLACE, naming --force; and with it, unless
 * it is of the kind (borrowed; NULL: any directory).  EPATH where the commit could not replace it.
 * ECONFIG where "<path>.partial" has files and neither a mark nor what the kind begins with, or is
 * a link. */
D9D_API D9D_MUST_USE d9d_status d9d_outdir_begin(d9d_outdir *o, const char *path, unsigned flags,
                                                 const d9d_outdir_kind *kind);
/* Only the names, for those who work in a directory that another process begins and commits;
 * with D9D_OUTDIR_KEEP. */
D9D_API D9D_MUST_USE d9d_status d9d_outdir_join(d9d_outdir *o, const char *path);
/* Take the lock of o->tmp until release, and mark it: EIO when another process has it.  The lock is
 * that of a file in it, which reaches other hosts where those of the file system do (NFS; Lustre
 * mounted with flock).  File systems without locks are fine. */
D9D_API D9D_MUST_USE d9d_status d9d_outdir_lock(d9d_outdir *o);
D9D_API D9D_MUST_USE d9d_status d9d_outdir_commit(d9d_outdir *o);
D9D_API void d9d_outdir_release(d9d_outdir *o);
/* ECONFIG when `input` is the directory `path` or inside it, which would take it along when it is
 * replaced.  What does not exist, or "-", is inside nothing. */
D9D_API D9D_MUST_USE d9d_status d9d_outdir_check_disjoint(const char *path, const char *input);

#ifdef __cplusplus
}
#endif
#endif /* D9D_BASE_FS_H */
