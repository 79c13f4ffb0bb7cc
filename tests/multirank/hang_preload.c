/* hang_preload.c - LD_PRELOAD library: rank HANG_RANK hangs, silently, when it opens a file whose
 * name contains HANG_AT. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void hang_at(const char *path)
{
    const char *at = getenv("HANG_AT"), *who = getenv("HANG_RANK");
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");

    if (at != NULL && who != NULL && rank != NULL && strcmp(who, rank) == 0 &&
        strstr(path, at) != NULL)
        for (;;)
            (void)pause();
}

int open(const char *path, int flags, ...)
{
    int (*next)(const char *, int, mode_t) =
        (int (*)(const char *, int, mode_t))dlsym(RTLD_NEXT, "open");
    va_list ap;
    mode_t mode;

    va_start(ap, flags);
    mode = va_arg(ap, mode_t);
    va_end(ap);
    hang_at(path);
    return next(path, flags, mode);
}
