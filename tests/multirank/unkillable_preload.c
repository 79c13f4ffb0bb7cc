/* unkillable_preload.c - before a program: what it kills stays, as a process does that a file
 * system keeps. */
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

int kill(pid_t pid, int number)
{
    return number == SIGKILL && pid > 0 ? 0 : (int)syscall(SYS_kill, pid, number);
}
