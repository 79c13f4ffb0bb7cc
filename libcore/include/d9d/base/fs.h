/* fs.h - files and directories, written atomically: they appear complete or not at all.
 *
 * Errors name the path, the operation and, for a write, the offset and the bytes that did not fit
 * ("runs/a/metrics.jsonl: cannot write 4096 bytes at 81920: No space left on device").  ENOTFOUND
 * if nothing is there, EPATH if it is of another kind or access is denied, else EIO.  New files
 * follow the umask.
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

/* Check a name that was read from a file (an index, a manifest).  It must be one plain path
 * component: not empty, not "." or "..", no '/', no control characters, at most 255 bytes of UTF-8,
 * no NUL.  `where` begins the message.  EFORMAT. */
D9D_API D9D_MUST_USE d9d_status d9d_fs_check_name(const char *name, size_t len, const char *where);

/* "dir/name" from the arena; NULL when memory is out. */
D9D_API char *d9d_fs_join(d9d_arena *a, const char *dir, const char *name);

D9D_API bool d9d_fs_exists(const char *path);
D9D_API bool d9d_fs_is_dir(const char *path);
/* True for a directory without entries, and if nothing is there or it cannot be examined. */
D9D_API bool d9d_fs_is_empty(const char *path);
D9D_API D9D_MUST_USE d9d_status d9d_fs_size(const char *path, uint64_t *out);
/* EPATH for a directory, a pipe or a device: opening or reading those might block. */
D9D_API D9D_MUST_USE d9d_status d9d_fs_check_regular(const char *path);
/* True if `name` in `dir` is a regular file with this text in its first 4096 bytes. */
D9D_API bool d9d_fs_head_has(const char *dir, const char *name, const char *text);
/* Fails unless something is there that may be read. */
D9D_API D9D_MUST_USE d9d_status d9d_fs_check_readable(const char *path);
/* EPATH if a directory `path` could not be created, or nothing created in the one that is there.  A
 * component may be no directory, or not writable. */
D9D_API D9D_MUST_USE d9d_status d9d_fs_check_creatable(const char *path);
/* Fails unless a file could be created at `path`: ECONFIG if something is there already, also a
 * dangling link; else the error of its directory. */
D9D_API D9D_MUST_USE d9d_status d9d_fs_check_new(const char *path);

/* Create a directory and its parents; existing ones are fine (mkdir -p). */
D9D_API D9D_MUST_USE d9d_status d9d_fs_mkdirs(const char *path);
/* The same for the directory that `path` is in. */
D9D_API D9D_MUST_USE d9d_status d9d_fs_make_parents(const char *path);
/* Remove a tree without following links; an absent path is fine. */
D9D_API D9D_MUST_USE d9d_status d9d_fs_remove_tree(const char *path);
/* Make the directory's entries durable. */
D9D_API D9D_MUST_USE d9d_status d9d_fs_sync_dir(const char *path);

/* Names in a directory, sorted by strcmp, in the arena.  They exclude ".", ".." and the mark of an
 * unfinished directory (D9D_PARTIAL_MARK), which only this layer reads. */
typedef struct d9d_fs_names {
    char **name;
    size_t n;
} d9d_fs_names;
D9D_API D9D_MUST_USE d9d_status d9d_fs_list(const char *dir, d9d_arena *a, d9d_fs_names *out);

/* Read a whole file into `out`, which the caller releases.  A file of more than `max` bytes is
 * EFORMAT before it is read, with both numbers.  An absent one is ENOTFOUND, anything but a regular
 * file EPATH.  The exception are streams of this process ("/dev/stdin", "/dev/fd/63").  Never
 * blocks on a pipe without a writer. */
D9D_API D9D_MUST_USE d9d_status d9d_fs_read(const char *path, uint64_t max, d9d_buf *out);

/* Atomic replacement: write a temporary file in the same directory, sync it, rename it.  Readers
 * see the old file or the new one.  A link is followed; a device, a pipe or a directory is ECONFIG,
 * a dangling link EPATH. */
D9D_API D9D_MUST_USE d9d_status d9d_fs_write_atomic(const char *path, const void *data, size_t n);
/* The same for the file `name` in a directory. */
D9D_API D9D_MUST_USE d9d_status d9d_fs_write_in(const char *dir, const char *name, const void *data,
                                                size_t n);

/* The same for a new file: ECONFIG, without any change, if something is there. */
D9D_API D9D_MUST_USE d9d_status d9d_fs_write_new(const char *path, const void *data, size_t n);

/* Rename `from` to `to` without replacing: ECONFIG, and `from` stays, if something has the name,
 * whoever created it first.  On a file system that supports neither RENAME_NOREPLACE nor links, a
 * file that appears between the check and the rename is replaced.  Does not sync the directory. */
D9D_API D9D_MUST_USE d9d_status d9d_fs_rename_new(const char *from, const char *to);

/* Remove temporary files and directories of killed writers of `path`: "<path>.tmp-<pid>-<n>" that
 * no process has locked.  Only where locks are reliable: on local file systems, and for files on
 * NFS.  Elsewhere another host may be writing, and they stay.  Best effort: reports nothing. */
D9D_API void d9d_fs_remove_stale(const char *path);
D9D_API void d9d_fs_remove_stale_in(const char *dir); /* the same for every name in a directory */

/* Copy a regular file, in the kernel where it can; `dst` must not exist. */
D9D_API D9D_MUST_USE d9d_status d9d_fs_copy(const char *src, const char *dst);

/* --- one file, written once -------------------------------------------- */

/* Zero-initialised, or with fd -1, it is closed. */
typedef struct d9d_file {
    int fd; /* -1 when closed */
    char *path;
    uint64_t offset; /* bytes written so far by d9d_file_write */
} d9d_file;

/* Create for writing (an existing file is truncated) or open for reading.  A written file is never
 * a link; a read one is a regular file or a link to one: else EPATH.  Never blocks on a pipe
 * without a writer. */
D9D_API D9D_MUST_USE d9d_status d9d_file_create(const char *path, d9d_file *out);
D9D_API D9D_MUST_USE d9d_status d9d_file_open(const char *path, d9d_file *out);
/* The same, also for a pipe or a device: blocks until a pipe has a writer. */
D9D_API D9D_MUST_USE d9d_status d9d_file_open_stream(const char *path, d9d_file *out);
/* Open a regular file for reading, and return its size: EPATH for a link, which is not followed. */
D9D_API D9D_MUST_USE d9d_status d9d_file_open_regular(const char *path, d9d_file *out,
                                                      uint64_t *bytes);
/* Create a new file for writing; fails if the name exists, also as a link. */
D9D_API D9D_MUST_USE d9d_status d9d_file_create_new(const char *path, d9d_file *out);
/* Open for reading and writing without truncating; create it, empty, if it is absent. */
D9D_API D9D_MUST_USE d9d_status d9d_file_open_rw(const char *path, d9d_file *out);
/* The same for a file that must be this user's: EPATH for a symbolic link, which is not followed,
 * for anything but a regular file, and for another user's file.  Writing begins at its start. */
D9D_API D9D_MUST_USE d9d_status d9d_file_open_rw_owned(const char *path, d9d_file *out);
/* Lock the file until it is closed: EIO if another process has the lock.  Succeeds on file systems
 * without locks. */
D9D_API D9D_MUST_USE d9d_status d9d_file_lock(const d9d_file *f);
/* d9d_file_open_rw(), then d9d_file_lock(); released if it fails. */
D9D_API D9D_MUST_USE d9d_status d9d_file_open_locked(const char *path, d9d_file *out);
/* Open for writing after the first `at` bytes, creating the file if it is absent; the rest is
 * truncated.  EFORMAT if the file is shorter. */
D9D_API D9D_MUST_USE d9d_status d9d_file_open_append(const char *path, uint64_t at, d9d_file *out);
/* The same for an open file. */
D9D_API D9D_MUST_USE d9d_status d9d_file_truncate(d9d_file *f, uint64_t at);
D9D_API D9D_MUST_USE d9d_status d9d_file_write(d9d_file *f, const void *p, size_t n);
D9D_API D9D_MUST_USE d9d_status d9d_file_write_at(d9d_file *f, const void *p, size_t n,
                                                  uint64_t at);
/* Set the file's size to n bytes. */
D9D_API D9D_MUST_USE d9d_status d9d_file_resize(d9d_file *f, uint64_t n);
/* Read all n bytes at `at`; EFORMAT if the file ends before. */
D9D_API D9D_MUST_USE d9d_status d9d_file_read_at(const d9d_file *f, void *p, size_t n, uint64_t at);
D9D_API D9D_MUST_USE d9d_status d9d_file_sync(d9d_file *f);
/* Close; a failing close is an error too.  Closing twice is fine. */
D9D_API D9D_MUST_USE d9d_status d9d_file_close(d9d_file *f);
/* Close on an error path: reports nothing. */
D9D_API void d9d_file_release(d9d_file *f);

/* --- one directory, committed atomically --------------------------------------------- *
 *
 *     D9D_TRY(d9d_outdir_begin(&o, "out/step-00001000", 0, NULL));
 *     ... create files in o.tmp ...
 *     st = d9d_outdir_commit(&o);      // syncs every file and directory, renames
 *     d9d_outdir_release(&o);          // removes o.tmp if it was not committed
 *
 * The work is done in "<path>.tmp-<pid>-<n>" next to the final name; begin removes those of killed
 * processes. */

/* The kind of a directory, so that nothing else is emptied or replaced. */
typedef struct d9d_outdir_kind {
    const char *label; /* "checkpoint": in messages */
    /* True if the directory is a complete one of this kind, which may be replaced. */
    bool (*is_complete)(const char *dir);
    /* True if it is an unfinished one, of a version that wrote no mark. */
    bool (*is_partial)(const char *dir);
} d9d_outdir_kind;

typedef struct d9d_outdir {
    char *path, *tmp;
    bool replace, keep;
    int lock; /* descriptor of tmp, plus 1 */
    int mark; /* descriptor of its mark, plus 1; with D9D_OUTDIR_KEEP */
    const d9d_outdir_kind *kind;
} d9d_outdir;

/* In an unfinished "<path>.partial": the file that marks it, and its lock. */
#define D9D_PARTIAL_MARK ".d9d-partial"

enum {
    D9D_OUTDIR_REPLACE = 1, /* a non-empty directory may be there; it is replaced whole */
    D9D_OUTDIR_KEEP = 2 /* work in "<path>.partial", which may remain from an earlier run, with its
                           mark, and which release leaves for the next one */
};

/* ECONFIG if `path` has files: without D9D_OUTDIR_REPLACE, naming --force; with it, unless it is of
 * the kind (borrowed; NULL: any directory).  EPATH if the commit could not replace it.  ECONFIG if
 * "<path>.partial" is a link, or has files, no mark, and kind->is_partial() is false. */
D9D_API D9D_MUST_USE d9d_status d9d_outdir_begin(d9d_outdir *o, const char *path, unsigned flags,
                                                 const d9d_outdir_kind *kind);
/* Fill in the names only, for a process that works in a directory which another process begins and
 * commits; with D9D_OUTDIR_KEEP. */
D9D_API D9D_MUST_USE d9d_status d9d_outdir_join(d9d_outdir *o, const char *path);
/* Lock and mark o->tmp until release: EIO if another process has the lock.  The lock is on a file
 * in it, so it reaches other hosts if the file system's locks do (NFS; Lustre mounted with flock).
 * Succeeds on file systems without locks. */
D9D_API D9D_MUST_USE d9d_status d9d_outdir_lock(d9d_outdir *o);
D9D_API D9D_MUST_USE d9d_status d9d_outdir_commit(d9d_outdir *o);
D9D_API void d9d_outdir_release(d9d_outdir *o);
/* ECONFIG if `input` is the directory `path` or inside it, because replacing `path` would remove
 * it.  Something absent, or "-", is inside nothing. */
D9D_API D9D_MUST_USE d9d_status d9d_outdir_check_disjoint(const char *path, const char *input);

#ifdef __cplusplus
}
#endif
#endif /* D9D_BASE_FS_H */
