/* test_shard_memory.c - d9d-shard's memory is bounded, whatever the size of its input: checks the
 * peak resident set, including the making of the index.  D9D_LONG makes the input 1 GB;
 * D9D_SHARD_MB sets another size, such as 20000. */
#include "support/unit.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "d9d/base/fs.h"
#include "d9d/base/rng.h"
#include "support/vectors.h"

enum { SMALL_MB = 48, LARGE_MB = 1000, WORDS = 16 };
/* Two threads' caches of words grow from 12 to 64 MiB each.  Above LARGE_MB pages of the index file
 * count too. */
enum { MAX_MIB = 64, MAX_LARGE_MIB = MAX_MIB + 2 * (64 - 12), MAX_HUGE_MIB = 512 };

static char *tokenizer, *shard;

/* Lines of 10 to 129 words, about 400 bytes. */
static void write_input(const char *path, uint64_t bytes)
{
    static const char *const words[WORDS] = {
        "the",   "of",    "int",       "return", "\\n",    "for (i = 0;", "x",      "\\u00e9",
        "model", "token", "\\\"q\\\"", "1234",   "static", "that",        "we see", "\\t}"};
    const d9d_rng rng = {9, 9};
    FILE *f = fopen(path, "w");
    uint64_t at = 0, k = 0;

    assert_non_null(f);
    for (uint64_t line = 0; at < bytes; line++) {
        at += (uint64_t)fprintf(f, "{\"id\": %llu, \"text\": \"", (unsigned long long)line);
        for (uint32_t n = 10 + d9d_rng_u32(rng, k++) % 120; n > 0; n--) {
            const uint32_t draw = d9d_rng_u32(rng, k++);

            at += (uint64_t)fprintf(f, " %s %u", words[draw % WORDS], draw >> 20);
        }
        at += (uint64_t)fprintf(f, "\"}\n");
    }
    assert_int_equal(fclose(f), 0);
}

/* Peak resident set of one run, in MiB. */
static long run(const char *const *more)
{
    const char *args[24] = {"d9d-shard", "-q", "-j", "2", "-t", tokenizer, "-o", "data"};
    struct rusage use;
    int status, n = 8;
    pid_t pid;

    while (*more)
        args[n++] = *more++;
    args[n] = "in.jsonl";
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        execv(shard, (char **)(uintptr_t)args);
        _exit(127);
    }
    assert_int_equal(wait4(pid, &status, 0, &use), pid);
    assert_int_equal(status, 0);
    return use.ru_maxrss / 1024;
}

static void test_memory(void **state)
{
    static const char *const cases[][8] = {
        {"--shuffle-seed", "1", "--split", "a=0.9,b=0.1", "--max-length", "64", NULL},
        {"--pack", "2048", "--shuffle-seed", "1", NULL}};
    const char *mb = getenv("D9D_SHARD_MB");
    const uint64_t size = mb && *mb ? strtoull(mb, NULL, 10) : unit_is_long() ? LARGE_MB : SMALL_MB;

    const int limit = size > LARGE_MB ? MAX_HUGE_MIB : size > SMALL_MB ? MAX_LARGE_MIB : MAX_MIB;

    (void)state;
    if (!shard || (getenv("D9D_SAN") && *getenv("D9D_SAN")))
        skip(); /* the memory of sanitizers is not bounded */
    write_input("in.jsonl", size * 1000000);
    for (size_t i = 0; i < 2; i++) {
        long peak;

        assert_int_equal(d9d_fs_remove_tree("data"), D9D_OK);
        peak = run(cases[i]);
        if (peak > limit)
            fail_msg("%llu MB of text took %ld MiB, more than %d", (unsigned long long)size, peak,
                     limit);
        print_message("%llu MB of text: peak %ld MiB\n", (unsigned long long)size, peak);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {unit_test_in_dir(test_memory)};
    const char *bin = getenv("D9D_BIN");
    char path[4096];

    if (bin && snprintf(path, sizeof(path), "%s/d9d-shard", bin) > 0)
        shard = realpath(path, NULL);
    tokenizer = realpath(vectors_path("../../examples/tokenizer", "tokenizer.json"), NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
