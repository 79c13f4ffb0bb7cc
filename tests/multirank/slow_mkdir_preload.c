/* slow_mkdir_preload.c - LD_PRELOAD library: creating a directory named "alone" takes as many
 * seconds as SLOW_MKDIR_S says.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int mkdir(const char *path, mode_t mode)
{
    const char *seconds = getenv("SLOW_MKDIR_S");
    const struct timespec a_while = {.tv_sec = seconds != NULL ? atoi(seconds) : 0};
    const size_t n = strlen(path);

    if (n > 6 && strcmp(path + n - 6, "/alone") == 0)
        (void)nanosleep(&a_while, NULL);
    return (int)syscall(SYS_mkdir, path, mode);
}
