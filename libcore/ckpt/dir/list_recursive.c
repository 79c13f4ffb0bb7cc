/* list_recursive.c - see list_recursive.h. */
#include "ckpt/dir/list_recursive.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef D9D_VEC(char *) path_vec;

static bool is_link(const char *path)
{
    struct stat s;

    return lstat(path, &s) == 0 && S_ISLNK(s.st_mode);
}

/* `within` is "" or ends in "/". */
static d9d_status list_dir(const char *dir, const char *within, d9d_arena *a, path_vec *out)
{
    const char *here = d9d_arena_printf(a, "%s/%s", dir, within);
    d9d_fs_names names = {0};

    if (here == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", dir);
    D9D_TRY(d9d_fs_list(*within != '\0' ? here : dir, a, &names));
    for (size_t i = 0; i < names.n; i++) {
        const char *path = d9d_fs_join(a, here, names.name[i]);
        char *name = d9d_arena_printf(a, "%s%s", within, names.name[i]);

        if (path == NULL || name == NULL)
            return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", dir);
        if (!d9d_fs_is_dir(path)) {
            D9D_TRY(D9D_VEC_PUSH(out, name));
        } else if (names.name[i][0] != '.' && !is_link(path)) {
            name = d9d_arena_printf(a, "%s/", name);
            if (name == NULL)
                return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", dir);
            D9D_TRY(list_dir(dir, name, a, out));
        }
    }
    return D9D_OK;
}

static int compare_paths(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

d9d_status d9di_list_recursive(const char *dir, d9d_arena *a, d9d_fs_names *out)
{
    path_vec found = {0};
    d9d_status st;

    D9D_TRY_OR(st, list_dir(dir, "", a, &found), out);
    out->name = d9d_arena_alloc(a, (found.len + 1) * sizeof(*out->name));
    if (out->name == NULL) {
        st = D9D_FAIL(D9D_ENOMEM, "%s: out of memory", dir);
        goto out;
    }
    out->n = found.len;
    for (size_t i = 0; i < found.len; i++)
        out->name[i] = found.data[i];
    if (out->n > 0)
        qsort(out->name, out->n, sizeof(*out->name), compare_paths);
out:
    D9D_VEC_RELEASE(&found);
    return st;
}

d9d_status d9di_list_recursive_check_path(const char *path, const char *where)
{
    for (size_t n;; path += n + 1) {
        n = strcspn(path, "/");
        D9D_TRY(d9d_fs_check_name(path, n, where));
        if (path[n] == '\0')
            return D9D_OK;
    }
}
