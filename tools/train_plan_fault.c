/* train_plan_fault.c - see train_plan_fault.h.  The handler runs when a plugin's own code has
 * faulted, and never returns to it. */
#include "train_plan_fault.h"

#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

enum { MAX_FRAMES = 64 };

static bool is_plugin(const char *file)
{
    void *library = dlopen(file, RTLD_NOW | RTLD_NOLOAD);

    return library != NULL && dlsym(library, "d9d_plugin_table") != NULL;
}

/* Finds the innermost function of a plugin on the stack; false if there is none. */
static bool find_running_plugin(Dl_info *out)
{
    void *frames[MAX_FRAMES];
    const int n = backtrace(frames, MAX_FRAMES);

    for (int i = 0; i < n; i++)
        if (dladdr(frames[i], out) != 0 && out->dli_fname != NULL && is_plugin(out->dli_fname))
            return true;
    return false;
}

/* The threads of an operation fault together: the first reports for the process, the others wait
 * for it to exit.  The handler stays installed until then, since otherwise the second thread would
 * kill the process. */
static void on_sigsegv(int number, siginfo_t *info, void *context)
{
    static atomic_flag spoken_for = ATOMIC_FLAG_INIT;
    char text[PATH_MAX + 512];
    Dl_info at;
    int n;

    (void)info, (void)context;
    while (atomic_flag_test_and_set(&spoken_for))
        (void)pause();
    if (!find_running_plugin(&at)) {
        (void)signal(number, SIG_DFL); /* this thread faults again and kills the process */
        return;
    }
    n = snprintf(text, sizeof(text),
                 "%s: not supported: %s: an operation of it%s%s%s cannot be planned: it touches "
                 "an array outside of d9d_device_launch()\n",
                 program_invocation_short_name, at.dli_fname, at.dli_sname != NULL ? " (" : "",
                 at.dli_sname != NULL ? at.dli_sname : "", at.dli_sname != NULL ? ")" : "");
    (void)!write(STDERR_FILENO, text, (size_t)n);
    _exit(2);
}

void plan_fault_handler_install(void)
{
    const struct sigaction action = {.sa_sigaction = on_sigsegv, .sa_flags = SA_SIGINFO};
    void *first[1];

    (void)backtrace(first, 1); /* loads backtrace's library now, not in the handler */
    (void)sigaction(SIGSEGV, &action, NULL);
}
