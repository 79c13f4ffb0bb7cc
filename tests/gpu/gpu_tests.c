/* gpu_tests.c - the GPU tests and benchmarks as one program, for copying to a GPU machine.
 *
 * Called by a test's name, through a link, it runs that test; otherwise it lists the tests.  The
 * Makefile defines GPU_TESTS(X) with the names, and renames the main() of each.  D9D_TEST_ONLY
 * names the functions of a test to run; "*" matches any part of a name.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifndef GPU_TESTS
#define GPU_TESTS(X)
#endif

#define X(name) int main_##name(int argc, char **argv);
GPU_TESTS(X)
#undef X

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
} tests[] = {
#define X(name) {#name, main_##name},
    GPU_TESTS(X)
#undef X
        {NULL, NULL},
};

int main(int argc, char **argv)
{
    const char *slash = strrchr(argv[0], '/'), *name = slash != NULL ? slash + 1 : argv[0];

    cmocka_set_test_filter(getenv("D9D_TEST_ONLY"));
    for (int i = 0; tests[i].name != NULL; i++)
        if (strcmp(tests[i].name, name) == 0)
            return tests[i].run(argc, argv);
    for (int i = 0; tests[i].name != NULL; i++)
        printf("%s\n", tests[i].name);
    return 0;
}
