/* gpu_tests.c - the GPU tests and benchmarks as one program, for copying to a GPU machine.
 *
 * Called by a test's name, through a link, it runs that test.  `gpu-tests NAME...` runs several in
 * one process, which opens the driver once, and `gpu-tests` lists all.  The
 * Makefile defines GPU_TESTS(X) with the names, and renames the main() of each.  D9D_TEST_ONLY
 * names the functions of a test to run; "*" matches any part of a name.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#ifndef GPU_TESTS
#define GPU_TESTS(X)
#endif

#define X(name) int main_##name(int argc, char **argv);
GPU_TESTS(X)
#undef X

typedef struct gpu_test {
    const char *name;
    int (*run)(int argc, char **argv);
} gpu_test;

static const gpu_test tests[] = {
#define X(name) {#name, main_##name},
    GPU_TESTS(X)
#undef X
        {NULL, NULL},
};

static const gpu_test *find_test(const char *name)
{
    const gpu_test *t = tests;

    while (t->name != NULL && strcmp(t->name, name) != 0)
        t++;
    return t->name != NULL ? t : NULL;
}

/* Each begins in this directory, whatever the one before left.  Returns how many failed. */
static int run_several(int n, char **names)
{
    const int here = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int failed = 0;

    for (int i = 0; i < n; i++) {
        const gpu_test *t = find_test(names[i]);

        printf("# %s\n", names[i]);
        fflush(stdout);
        if (fchdir(here) != 0 || t == NULL || t->run(1, &names[i]) != 0) {
            printf("not ok - %s\n", names[i]);
            failed++;
        }
        fflush(stdout);
    }
    (void)close(here);
    return failed;
}

int main(int argc, char **argv)
{
    const char *slash = strrchr(argv[0], '/');
    const gpu_test *t = find_test(slash != NULL ? slash + 1 : argv[0]);

    cmocka_set_test_filter(getenv("D9D_TEST_ONLY"));
    if (t != NULL)
        return t->run(argc, argv);
    for (t = tests; argc == 1 && t->name != NULL; t++)
        printf("%s\n", t->name);
    return run_several(argc - 1, argv + 1) > 0;
}
