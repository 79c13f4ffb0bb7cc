/* unkillable_preload.c - LD_PRELOAD library: processes survive this program's kill(), like a
 * process blocked in a file system. */
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

int kill(pid_t pid, int number)
{
    return number == SIGKILL && pid > 0 ? 0 : (int)syscall(SYS_kill, pid, number);
}
