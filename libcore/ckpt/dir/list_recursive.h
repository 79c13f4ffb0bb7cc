/* list_recursive.h - the files of a directory and of the directories in it. */
#ifndef D9DI_CKPT_DIR_LIST_RECURSIVE_H
#define D9DI_CKPT_DIR_LIST_RECURSIVE_H

#include "d9d/base/fs.h"

/* Lists everything but directories, as paths relative to `dir` ("1_Pooling/config.json"), sorted by
 * strcmp.  Links to directories and directories whose name begins with a dot are not entered. */
d9d_status d9di_list_recursive(const char *dir, d9d_arena *a, d9d_fs_names *out);
/* Checks a relative path: plain names (d9d_fs_check_name) separated by "/".  EFORMAT. */
d9d_status d9di_list_recursive_check_path(const char *path, const char *where);

#endif /* D9DI_CKPT_DIR_LIST_RECURSIVE_H */
