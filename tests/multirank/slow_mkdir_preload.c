/* slow_mkdir_preload.c - LD_PRELOAD library: creating a directory named "alone" takes three
 * seconds.
 */
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int mkdir(const char *path, mode_t mode)
{
    const struct timespec a_while = {.tv_sec = 3};
    const size_t n = strlen(path);

    if (n > 6 && strcmp(path + n - 6, "/alone") == 0)
        (void)nanosleep(&a_while, NULL);
    return (int)syscall(SYS_mkdir, path, mode);
}
