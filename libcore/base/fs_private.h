/* fs_private.h - what the file-system files of this layer share. */
#ifndef D9DI_FS_PRIVATE_H
#define D9DI_FS_PRIVATE_H

#include <dirent.h>
#include <sys/types.h>

#include "d9d/base/fs.h"

/* The status for an errno. */
d9d_status d9di_status_from_errno(int err);

/* EPATH unless this is the mode of a regular file. */
d9d_status d9di_fs_check_type(const char *path, mode_t mode);

/* "PATH: WHAT: strerror", for the errno of a call that just failed. */
#define D9DI_FAIL_ERRNO(path, what)                                                                \
    D9D_FAIL(d9di_status_from_errno(errno), "%s: %s: %m", (path), (what))

/* "PATH.TAG-PID-n", malloc'ed, for n = 0, 1, ... of a search for a free name. */
d9d_status d9di_fs_temp_path(const char *path, const char *tag, unsigned n, char **out);
enum { D9DI_FS_TEMP_MAX = 1000 };
/* A descriptor that holds this file or directory against d9d_fs_remove_stale() until it is closed;
 * -1 when another process holds it or the file system knows no locks. */
int d9di_fs_try_lock(const char *path);

/* Whose an unfinished directory is (partial_dir.c).  ECONFIG where something that is not ours lies
 * at `path`: a link, or a directory with files and without a mark. */
d9d_status d9di_partial_check(const char *path, const d9d_outdir_kind *kind);
bool d9di_partial_is_marked(const char *dir);
/* Lock and mark it: descriptors of both, closed by the caller.  EIO when another process has it. */
d9d_status d9di_partial_lock(const char *path, int *dir, int *mark);
/* The mark alone, in a directory that is to be removed. */
d9d_status d9di_partial_mark(const char *path);
char *d9di_partial_mark_path(const char *dir); /* malloc'ed; NULL when memory is out */
/* Not through a link; -1 and errno. */
int d9di_partial_open_dir(const char *dir);

/* The directory that holds the path's last component: "." for "a", "/" for "/a". */
d9d_status d9di_fs_parent(const char *path, char **out);

/* fsync that survives signals; file systems that cannot sync a directory are fine. */
d9d_status d9di_fs_fsync(int fd, const char *path);

/* Sorted names of an open directory. */
d9d_status d9di_fs_names(DIR *d, const char *path, d9d_arena *a, d9d_fs_names *out);

/* fsync every file and directory of a tree, leaves first. */
d9d_status d9di_fs_sync_tree(const char *path);

#endif /* D9DI_FS_PRIVATE_H */
