/* copy_dirs.c - what goes with the tensors from below a directory.  See d9d/ckpt/checkpoint.h. */
#include <string.h>
#include <sys/stat.h>

#include "ckpt/others.h"
#include "d9d/ckpt/checkpoint.h"

bool d9di_is_foreign_weights(const char *name)
{
    static const char *const tails[] = {".pt",   ".pth",       ".ckpt", ".gguf",    ".ggml",
                                        ".onnx", ".onnx_data", ".h5",   ".msgpack", ".tflite"};

    for (size_t i = 0; i < sizeof(tails) / sizeof(tails[0]); i++)
        if (d9di_ends_with(name, tails[i]))
            return true;
    return d9di_ends_with(name, ".bin") && strstr(name, "model") != NULL;
}

struct copier {
    d9d_arena arena;
    const d9d_log *log;
    struct stat dst; /* may be below the source */
};

/* A directory, and not a link to one. */
static bool is_dir(const char *path, struct stat *s)
{
    return lstat(path, s) == 0 && S_ISDIR(s->st_mode);
}

static bool has_weights(const d9d_fs_names *names)
{
    for (size_t i = 0; i < names->n; i++)
        if (d9di_ends_with(names->name[i], ".safetensors") ||
            d9di_is_foreign_weights(names->name[i]))
            return true;
    return false;
}

static d9d_status copy_below(struct copier *c, const char *src, const char *dst);

static d9d_status copy_entry(struct copier *c, const char *src, const char *dst, const char *name)
{
    const char *from = d9d_fs_join(&c->arena, src, name), *to = d9d_fs_join(&c->arena, dst, name);
    struct stat s;

    if (from == NULL || to == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", src);
    if (is_dir(from, &s)) {
        bool own = s.st_dev == c->dst.st_dev && s.st_ino == c->dst.st_ino;

        return own || name[0] == '.' ? D9D_OK : copy_below(c, from, to);
    }
    if (stat(from, &s) == 0 && !S_ISREG(s.st_mode))
        return D9D_OK;
    D9D_TRY(d9d_fs_mkdirs(dst));
    return d9d_fs_copy(from, to);
}

static d9d_status copy_below(struct copier *c, const char *src, const char *dst)
{
    d9d_fs_names names;

    D9D_TRY(d9d_fs_list(src, &c->arena, &names));
    if (has_weights(&names)) {
        d9d_log_warn(c->log, "%s: not copied, it has weights of its own", src);
        return D9D_OK;
    }
    for (size_t i = 0; i < names.n; i++)
        D9D_TRY(copy_entry(c, src, dst, names.name[i]));
    return D9D_OK;
}

d9d_status d9d_checkpoint_copy_dirs(const char *src, const char *dst, const d9d_log *log)
{
    struct copier c = {.log = log};
    d9d_fs_names names;
    struct stat s;
    d9d_status st;

    if (stat(dst, &c.dst) != 0)
        return D9D_FAIL(D9D_EIO, "%s: cannot look at it", dst);
    D9D_TRY_OR(st, d9d_fs_list(src, &c.arena, &names), out);
    for (size_t i = 0; i < names.n; i++) {
        const char *path = d9d_fs_join(&c.arena, src, names.name[i]);

        if (path == NULL) {
            st = D9D_FAIL(D9D_ENOMEM, "%s: out of memory", src);
            goto out;
        }
        if (d9di_is_foreign_weights(names.name[i]))
            d9d_log_warn(log, "%s: not copied, it has weights in another format", path);
        else if (is_dir(path, &s))
            D9D_TRY_OR(st, copy_entry(&c, src, dst, names.name[i]), out);
    }
out:
    d9d_arena_release(&c.arena);
    return st;
}
