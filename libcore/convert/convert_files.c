/* convert_files.c - see convert_files.h. */
#include "convert/convert_files.h"

#include <string.h>

#include "d9d/ckpt/dir/checkpoint.h"
#include "d9d/ckpt/dir/content_hash.h"

static bool has_file(const d9di_convert_files *f, const char *name)
{
    for (size_t i = 0; i < f->name.len; i++)
        if (strcmp(f->name.data[i], name) == 0)
            return true;
    return false;
}

d9d_status d9di_convert_files_add(d9di_convert_files *f, const char *dir, d9d_arena *a,
                                  const d9d_log *log)
{
    d9d_fs_names names = {0};

    D9D_TRY(d9d_checkpoint_aux_files(dir, a, log, &names));
    for (size_t i = 0; i < names.n; i++) {
        const char *path = d9d_fs_join(a, dir, names.name[i]);

        if (path == NULL)
            return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", dir);
        if (has_file(f, names.name[i]))
            continue;
        D9D_TRY(D9D_VEC_PUSH(&f->name, names.name[i]));
        D9D_TRY(D9D_VEC_PUSH(&f->path, path));
    }
    return D9D_OK;
}

d9d_status d9di_convert_files_hash(const d9di_convert_files *f, d9d_hasher *h)
{
    for (size_t i = 0; i < f->path.len; i++) {
        d9d_hash file;

        D9D_TRY(d9d_content_hash_file(f->path.data[i], &file));
        d9d_hasher_add(h, &file, sizeof(file));
    }
    return D9D_OK;
}

void d9di_convert_files_release(d9di_convert_files *f)
{
    D9D_VEC_RELEASE(&f->name);
    D9D_VEC_RELEASE(&f->path);
}
