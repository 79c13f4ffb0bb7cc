/* copy_others.c - what goes with the tensors.  See d9d/ckpt/checkpoint.h. */
#include "ckpt/others.h"
#include "d9d/ckpt/checkpoint.h"
#include "d9d/ckpt/manifest.h"

static bool ends_with(const char *name, const char *tail)
{
    size_t n = strlen(name), k = strlen(tail);

    return n >= k && strcmp(name + n - k, tail) == 0;
}

static bool is_listed(const char *name, const char *const *list)
{
    for (; list != NULL && *list != NULL; list++)
        if (strcmp(name, *list) == 0)
            return true;
    return false;
}

static d9d_status copy_all(const char *src, const char *dst, const char *const *except,
                           d9d_arena *a)
{
    d9d_fs_names names = {0};

    D9D_TRY(d9d_fs_list(src, a, &names));
    for (size_t i = 0; i < names.n; i++) {
        const char *name = names.name[i];
        char *from = d9d_fs_join(a, src, name), *to = d9d_fs_join(a, dst, name);

        if (from == NULL || to == NULL)
            return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", src);
        if (ends_with(name, ".safetensors") || ends_with(name, ".safetensors.index.json") ||
            strcmp(name, D9D_MANIFEST_NAME) == 0 || is_listed(name, except) ||
            d9di_is_foreign_weights(name) || d9d_fs_is_dir(from))
            continue;
        D9D_TRY(d9d_fs_copy(from, to));
    }
    return D9D_OK;
}

d9d_status d9d_checkpoint_copy_others(const char *src, const char *dst, const char *const *except)
{
    d9d_arena a = {0};
    d9d_status st = copy_all(src, dst, except, &a);

    d9d_arena_release(&a);
    return st;
}
