/* copy_others.c - what goes with the tensors.  See d9d/ckpt/checkpoint.h. */
#include "ckpt/others.h"
#include "d9d/ckpt/checkpoint.h"
#include "d9d/ckpt/manifest.h"

static bool is_listed(const char *name, const char *const *list)
{
    for (; list != NULL && *list != NULL; list++)
        if (strcmp(name, *list) == 0)
            return true;
    return false;
}

d9d_status d9d_checkpoint_others(const char *src, const char *const *except, d9d_arena *a,
                                 d9d_fs_names *out)
{
    d9d_fs_names names = {0};
    size_t n = 0;

    D9D_TRY(d9d_fs_list(src, a, &names));
    for (size_t i = 0; i < names.n; i++) {
        char *name = names.name[i], *from = d9d_fs_join(a, src, name);

        if (from == NULL)
            return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", src);
        if (d9di_ends_with(name, ".safetensors") ||
            d9di_ends_with(name, ".safetensors.index.json") ||
            strcmp(name, D9D_MANIFEST_NAME) == 0 || is_listed(name, except) ||
            d9di_is_foreign_weights(name) || d9d_fs_is_dir(from))
            continue;
        names.name[n++] = name;
    }
    names.n = n;
    *out = names;
    return D9D_OK;
}

d9d_status d9d_checkpoint_copy_others(const char *src, const char *dst, const char *const *except)
{
    d9d_arena a = {0};
    d9d_fs_names names = {0};
    d9d_status st;

    D9D_TRY_OR(st, d9d_checkpoint_others(src, except, &a, &names), out);
    for (size_t i = 0; i < names.n; i++) {
        const char *from = d9d_fs_join(&a, src, names.name[i]);
        const char *to = d9d_fs_join(&a, dst, names.name[i]);

        if (from == NULL || to == NULL) {
            st = D9D_FAIL(D9D_ENOMEM, "%s: out of memory", src);
            goto out;
        }
        D9D_TRY_OR(st, d9d_fs_copy(from, to), out);
    }
out:
    d9d_arena_release(&a);
    return st;
}
