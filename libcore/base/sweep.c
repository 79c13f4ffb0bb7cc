/* sweep.c - what killed processes left beside a name.  See d9d/base/fs.h. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/fs_private.h"

static const char tag[] = ".tmp-";

/* ".tmp-PID-n", as d9di_fs_beside() adds it. */
static bool is_leftover(const char *tail)
{
    static const char digits[] = "0123456789";
    size_t pid, n;

    if (strncmp(tail, tag, sizeof(tag) - 1) != 0)
        return false;
    tail += sizeof(tag) - 1;
    pid = strspn(tail, digits);
    if (pid == 0 || tail[pid] != '-')
        return false;
    n = strspn(tail + pid + 1, digits);
    return n > 0 && tail[pid + 1 + n] == '\0';
}

int d9di_fs_hold(const char *path)
{
    const int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
        return fd;
    if (fd >= 0)
        (void)close(fd);
    return -1;
}

/* What is added to this name, or to any (NULL); "" where nothing is. */
static const char *tail_of(const char *name, const char *base)
{
    const char *tail = base == NULL ? strstr(name, tag) : NULL;

    if (base != NULL && strncmp(name, base, strlen(base)) == 0)
        tail = name + strlen(base);
    return tail != NULL ? tail : "";
}

static void sweep_dir(const char *parent, const char *base)
{
    d9d_arena a = {0};
    d9d_fs_names names = {0};

    if (d9d_fs_list(parent, &a, &names) != D9D_OK)
        names.n = 0;
    for (size_t i = 0; i < names.n; i++) {
        const char *name = names.name[i];
        const char *path = d9d_fs_join(&a, parent, name);
        int fd;

        if (path == NULL || !is_leftover(tail_of(name, base)))
            continue;
        fd = d9di_fs_hold(path);
        if (fd < 0)
            continue;
        /* What cannot be removed is in nobody's way. */
        if (d9d_fs_remove_tree(path) != D9D_OK)
            path = NULL;
        (void)close(fd);
    }
    d9d_arena_release(&a);
}

void d9d_fs_sweep(const char *path)
{
    const char *slash = strrchr(path, '/');
    d9d_err_copy first;
    char *parent = NULL;

    d9d_err_save(&first, D9D_OK);
    if (d9di_fs_parent(path, &parent) == D9D_OK)
        sweep_dir(parent, slash != NULL ? slash + 1 : path);
    (void)d9d_err_restore(&first);
    free(parent);
}

void d9d_fs_sweep_in(const char *dir)
{
    d9d_err_copy first;

    d9d_err_save(&first, D9D_OK);
    sweep_dir(dir, NULL);
    (void)d9d_err_restore(&first);
}
