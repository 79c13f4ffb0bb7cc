/* no_memory_preload.c - LD_PRELOAD library: a host without free memory. */
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The content of /proc/meminfo on such a host. */
static int nothing_left(void)
{
    static const char text[] = "MemAvailable: 0 kB\n";
    const int fd = memfd_create("meminfo", MFD_CLOEXEC);

    if (fd >= 0 && write(fd, text, sizeof(text) - 1) < 0)
        return -1;
    return fd >= 0 && lseek(fd, 0, SEEK_SET) == 0 ? fd : -1;
}

int open(const char *path, int flags, ...)
{
    mode_t mode = 0;
    va_list ap;

    va_start(ap, flags);
    if ((flags & O_CREAT) != 0)
        mode = va_arg(ap, mode_t);
    va_end(ap);
    if (strcmp(path, "/proc/meminfo") == 0)
        return nothing_left();
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}
