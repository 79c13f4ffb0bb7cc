/* fs_sweep.c - removal of temporary files of killed processes.  See d9d/base/fs.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/fs_private.h"

static const char temp_tag[] = ".tmp-";

/* ".tmp-PID-n", as d9di_fs_temp_path() adds it. */
static bool is_temp_suffix(const char *tail)
{
    static const char digits[] = "0123456789";
    size_t pid, n;

    if (strncmp(tail, temp_tag, sizeof(temp_tag) - 1) != 0)
        return false;
    tail += sizeof(temp_tag) - 1;
    pid = strspn(tail, digits);
    if (pid == 0 || tail[pid] != '-')
        return false;
    n = strspn(tail + pid + 1, digits);
    return n > 0 && tail[pid + 1 + n] == '\0';
}

int d9di_fs_try_lock(const char *path)
{
    /* A lock that other hosts see (NFS) needs a file that is open for writing. */
    const int flags = O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    int fd = open(path, O_RDWR | flags);

    if (fd < 0 && errno == EISDIR)
        fd = open(path, O_RDONLY | O_DIRECTORY | flags);
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
        return fd;
    if (fd >= 0)
        (void)close(fd);
    return -1;
}

/* Local file systems, whose locks every writer sees; and NFS, which asks the server for the lock of
 * a file, not of a directory.  On others, such as Lustre, it depends on the mount options: what
 * another host may be writing stays. */
static bool has_reliable_locks(int fd)
{
    static const struct {
        unsigned type;
        bool files_alone;
    } known[] = {
        {0xef53, false},     /* ext2, ext3, ext4 */
        {0x58465342, false}, /* xfs */
        {0x9123683e, false}, /* btrfs */
        {0x01021994, false}, /* tmpfs */
        {0x858458f6, false}, /* ramfs */
        {0x794c7630, false}, /* overlayfs */
        {0x2fc12fc1, false}, /* zfs */
        {0xf2f52010, false}, /* f2fs */
        {0x6969, true},      /* nfs */
    };
    struct statfs fs;
    struct stat s;

    if (fstatfs(fd, &fs) != 0 || fstat(fd, &s) != 0)
        return false;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (known[i].type == (unsigned)fs.f_type)
            return !known[i].files_alone || S_ISREG(s.st_mode);
    return false;
}

/* The suffix after this name, or after any name (NULL); "" if there is none. */
static const char *suffix_after(const char *name, const char *base)
{
    const char *tail = base == NULL ? strstr(name, temp_tag) : NULL;

    if (base != NULL && strncmp(name, base, strlen(base)) == 0)
        tail = name + strlen(base);
    return tail != NULL ? tail : "";
}

static void remove_stale_in_dir(const char *parent, const char *base)
{
    d9d_arena a = {0};
    d9d_fs_names names = {0};

    if (d9d_fs_list(parent, &a, &names) != D9D_OK)
        names.n = 0;
    for (size_t i = 0; i < names.n; i++) {
        const char *name = names.name[i];
        const char *path = d9d_fs_join(&a, parent, name);
        int fd;

        if (path == NULL || !is_temp_suffix(suffix_after(name, base)))
            continue;
        fd = d9di_fs_try_lock(path);
        if (fd < 0)
            continue;
        /* A failed removal is ignored. */
        if (has_reliable_locks(fd) && d9d_fs_remove_tree(path) != D9D_OK)
            path = NULL;
        (void)close(fd);
    }
    d9d_arena_release(&a);
}

void d9d_fs_remove_stale(const char *path)
{
    const char *slash = strrchr(path, '/');
    d9d_err_copy first;
    char *parent = NULL;

    d9d_err_save(&first, D9D_OK);
    if (d9di_fs_parent(path, &parent) == D9D_OK)
        remove_stale_in_dir(parent, slash != NULL ? slash + 1 : path);
    (void)d9d_err_restore(&first);
    free(parent);
}

void d9d_fs_remove_stale_in(const char *dir)
{
    d9d_err_copy first;

    d9d_err_save(&first, D9D_OK);
    remove_stale_in_dir(dir, NULL);
    (void)d9d_err_restore(&first);
}
