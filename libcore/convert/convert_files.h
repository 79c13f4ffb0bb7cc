/* convert_files.h - a model's files besides weights and config.json, of several folders. */
#ifndef D9DI_CONVERT_FILES_H
#define D9DI_CONVERT_FILES_H

#include "d9d/base/fs.h"
#include "d9d/base/hash.h"
#include "d9d/base/log.h"

/* Names in a model's folder, and as many paths, in the arena that they were added with. */
typedef struct d9di_convert_files {
    D9D_VEC(const char *) name, path;
} d9di_convert_files;

/* Add the files of a folder (d9d_checkpoint_aux_files()) whose names are not yet there. */
d9d_status d9di_convert_files_add(d9di_convert_files *f, const char *dir, d9d_arena *a,
                                  const d9d_log *log);
/* Hash their contents, in their order. */
d9d_status d9di_convert_files_hash(const d9di_convert_files *f, d9d_hasher *h);
void d9di_convert_files_release(d9di_convert_files *f);

#endif /* D9DI_CONVERT_FILES_H */
