/* child.c - see d9d/base/child.h. */
#include "d9d/base/child.h"

#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <unistd.h>

extern char **environ;

int d9d_child_start(const char *const *args, int input, int output, bool own_group, pid_t *pid)
{
    const int group = own_group ? POSIX_SPAWN_SETPGROUP : 0;
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    sigset_t none;
    pid_t started;
    int e;

    (void)sigemptyset(&none);
    (void)posix_spawn_file_actions_init(&files);
    (void)posix_spawnattr_init(&attr);
    (void)posix_spawnattr_setsigmask(&attr, &none);
    (void)posix_spawnattr_setpgroup(&attr, 0);
    (void)posix_spawnattr_setflags(&attr, (short)(POSIX_SPAWN_SETSIGMASK | group));
    e = posix_spawn_file_actions_adddup2(&files, input, STDIN_FILENO);
    if (e == 0)
        e = posix_spawn_file_actions_adddup2(&files, output, STDOUT_FILENO);
    if (e == 0)
        e = posix_spawnp(&started, args[0], &files, &attr, (char *const *)(uintptr_t)args, environ);
    (void)posix_spawnattr_destroy(&attr);
    (void)posix_spawn_file_actions_destroy(&files);
    if (e == 0)
        *pid = started;
    return e;
}
