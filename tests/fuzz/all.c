/* all.c - every target as one program for libFuzzer; D9D_FUZZ names the one that runs.
 *
 * The Makefile gives FUZZ_TARGETS(X), which has the names, and renames the entry of each.
 * Without D9D_FUZZ the program lists them. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef FUZZ_TARGETS
#define FUZZ_TARGETS(X)
#endif

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

#define X(name) int fuzz_##name(const uint8_t *data, size_t size);
FUZZ_TARGETS(X)
#undef X

static const struct target {
    const char *name;
    int (*run)(const uint8_t *data, size_t size);
} targets[] = {
#define X(name) {#name, fuzz_##name},
    FUZZ_TARGETS(X)
#undef X
        {NULL, NULL},
};
static const struct target *chosen;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    const char *name = getenv("D9D_FUZZ");

    (void)argc;
    (void)argv;
    for (chosen = targets; chosen->name != NULL; chosen++)
        if (name == NULL)
            puts(chosen->name);
        else if (strcmp(chosen->name, name) == 0)
            return 0;
    exit(name != NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return chosen->run(data, size);
}
