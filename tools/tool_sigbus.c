/* tool_sigbus.c - see tool_sigbus.h.  The handler allocates no memory and keeps no state; it reads
 * the process's maps from the kernel. */
#include "tool_sigbus.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINE_SIZE = PATH_MAX + 128 };

/* Reads the next line of a file without its end; truncates it to fit. */
static bool next_line(int fd, char *line)
{
    size_t n = 0;
    char c = 0;

    while (read(fd, &c, 1) == 1 && c != '\n')
        if (n + 1 < LINE_SIZE)
            line[n++] = c;
    line[n] = '\0';
    return n > 0 || c == '\n';
}

/* "55d0a000-55d0b000 r--s 00000000 08:01 1234   /data/index.lmdb": its file, or NULL. */
static const char *mapped_file_at(const char *line, uintptr_t at)
{
    char *end;
    const uintptr_t from = strtoull(line, &end, 16);
    const uintptr_t to = *end == '-' ? strtoull(end + 1, NULL, 16) : 0;

    return at >= from && at < to ? strchr(line, '/') : NULL;
}

static const char *find_mapped_file(uintptr_t at, char *line)
{
    const int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    const char *file = NULL;

    while (file == NULL && fd >= 0 && next_line(fd, line))
        file = mapped_file_at(line, at);
    return file;
}

/* "rank 1 (node7): "; "" without a launcher. */
static void rank_text(char *out, size_t n)
{
    const char *rank = getenv("PMIX_RANK");
    char node[HOST_NAME_MAX + 1] = "";

    out[0] = '\0';
    if (rank == NULL || rank[0] == '\0')
        return;
    (void)gethostname(node, sizeof(node) - 1);
    (void)snprintf(out, n, "rank %s (%s): ", rank, node);
}

/* An address outside mapped files is an ordinary fault: it is raised again without a handler. */
static void on_sigbus(int number, siginfo_t *info, void *context)
{
    char line[LINE_SIZE], rank[HOST_NAME_MAX + 32], text[LINE_SIZE + sizeof(rank) + 128];
    const char *file = find_mapped_file((uintptr_t)info->si_addr, line);
    int n;

    (void)context;
    if (file == NULL) {
        (void)signal(number, SIG_DFL);
        return;
    }
    rank_text(rank, sizeof(rank));
    n = snprintf(text, sizeof(text),
                 "%s: input/output error: %s%s: what is mapped of it cannot be read any more: it "
                 "was changed or cut under the program, or its disk failed\n",
                 program_invocation_short_name, rank, file);
    (void)!write(STDERR_FILENO, text, (size_t)n);
    _exit(1);
}

void sigbus_handler_install(void)
{
    const struct sigaction action = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO};

    (void)sigaction(SIGBUS, &action, NULL);
}
