/* fs_private.h - what the file-system files of this layer share. */
#ifndef D9DI_FS_PRIVATE_H
#define D9DI_FS_PRIVATE_H

#include <dirent.h>
#include <sys/types.h>

#include "d9d/base/fs.h"

/* The status for an errno, never D9D_OK. */
d9d_status d9di_status_from_errno(int err);
#ifdef __clang_analyzer__ /* which does not see that */
#define d9di_status_from_errno(err) D9D_EIO
#endif

/* EPATH unless this is the mode of a regular file. */
d9d_status d9di_fs_check_type(const char *path, mode_t mode);

/* "PATH: WHAT: strerror", for the errno of a call that just failed. */
#define D9DI_FAIL_ERRNO(path, what)                                                                \
    D9D_FAIL(d9di_status_from_errno(errno), "%s: %s: %m", (path), (what))

/* "PATH.TAG-PID-n", malloc'ed, for n = 0, 1, ... of a search for a free name. */
d9d_status d9di_fs_temp_path(const char *path, const char *tag, unsigned n, char **out);
enum { D9DI_FS_TEMP_MAX = 1000 };
/* Lock this file or directory against d9d_fs_remove_stale() until the descriptor is closed.  -1 if
 * another process has the lock or the file system has no locks. */
int d9di_fs_try_lock(const char *path);

/* Check an unfinished directory (partial_dir.c).  ECONFIG if something else is at `path`: a link,
 * or a directory with files and without a mark. */
d9d_status d9di_partial_check(const char *path, const d9d_outdir_kind *kind);
bool d9di_partial_is_marked(const char *dir);
/* Lock and mark it: the caller closes both descriptors.  EIO if another process has the lock. */
d9d_status d9di_partial_lock(const char *path, int *dir, int *mark);
/* Write the mark only, in a directory that is to be removed. */
d9d_status d9di_partial_mark(const char *path);
char *d9di_partial_mark_path(const char *dir); /* malloc'ed; NULL when memory is out */
/* Open without following a link; -1 and errno. */
int d9di_partial_open_dir(const char *dir);

/* The directory that holds the path's last component: "." for "a", "/" for "/a". */
d9d_status d9di_fs_parent(const char *path, char **out);

/* fsync, repeated after a signal; file systems that cannot sync a directory are fine. */
d9d_status d9di_fs_fsync(int fd, const char *path);

/* Sorted names of an open directory. */
d9d_status d9di_fs_names(DIR *d, const char *path, d9d_arena *a, d9d_fs_names *out);

/* fsync every file and directory of a tree, leaves first. */
d9d_status d9di_fs_sync_tree(const char *path);

#endif /* D9DI_FS_PRIVATE_H */
