/* still.c - before a program: a file system that takes what is written to memory, and never writes
 * it out. */
#include <sys/mman.h>
#include <unistd.h>

int msync(void *p, size_t n, int flags)
{
    (void)p, (void)n, (void)flags;
    for (;;)
        (void)pause();
}
