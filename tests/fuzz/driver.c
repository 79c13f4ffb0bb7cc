/* driver.c - replays inputs through a fuzz target where there is no fuzzer.
 *
 *     fuzz_index tests/fuzz/index [FILE]...
 *
 * Every argument is an input, or a directory of inputs.  With clang the target can be built
 * for libFuzzer instead: -fsanitize=fuzzer in place of this file. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/fs.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The input at the very end of its block, so that a checker sees one byte too many. */
static d9d_status replay(const char *path)
{
    d9d_buf text = {0};
    uint8_t *exact;

    D9D_TRY(d9d_fs_read(path, 1 << 26, &text));
    exact = malloc(text.len + 1);
    if (exact == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", path);
    memcpy(exact + 1, text.len > 0 ? text.data : "", text.len);
    (void)LLVMFuzzerTestOneInput(exact + 1, text.len);
    free(exact);
    d9d_buf_release(&text);
    return D9D_OK;
}

static d9d_status replay_all(const char *path, d9d_arena *a, size_t *n)
{
    d9d_fs_names names = {0};

    if (!d9d_fs_is_dir(path)) {
        (*n)++;
        return replay(path);
    }
    D9D_TRY(d9d_fs_list(path, a, &names));
    for (size_t i = 0; i < names.n; i++) {
        char *file = d9d_fs_join(a, path, names.name[i]);

        if (file == NULL)
            return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", path);
        D9D_TRY(replay(file));
        (*n)++;
    }
    return D9D_OK;
}

int main(int argc, char **argv)
{
    d9d_arena a = {0};
    size_t n = 0;
    d9d_status st = D9D_OK;

    for (int i = 1; i < argc && st == D9D_OK; i++)
        st = replay_all(argv[i], &a, &n);
    if (st != D9D_OK)
        printf("not ok 1 - %s\n", d9d_err_message());
    else if (n == 0)
        printf("not ok 1 - no inputs\n");
    else
        printf("ok 1 - %zu inputs\n", n);
    printf("1..1\n");
    d9d_arena_release(&a);
    return st != D9D_OK || n == 0;
}
