/* test_hash.c - XXH3 whole, streamed and over files. */
#include <stdlib.h>
#include <string.h>

#include "d9d/base/fs.h"
#include "d9d/base/hash.h"
#include "support/unit.h"

/* The empty input's hashes are in the XXH3 specification's test vectors. */
static void known_hashes(void **state)
{
    char hex[D9D_HASH_HEX];

    (void)state;
    d9d_hash_hex(d9d_hash_bytes(NULL, 0), hex);
    assert_string_equal(hex, "99aa06d3014798d86001c324468d497f");
    assert_true(d9d_hash_u64(NULL, 0) == 0x2d06800538d394c2);
}

static void hex_goes_both_ways(void **state)
{
    const d9d_hash h = {.hi = 0x0123456789abcdef, .lo = 0xfedcba9876543210};
    d9d_hash back = {0};
    char hex[D9D_HASH_HEX];

    (void)state;
    d9d_hash_hex(h, hex);
    assert_string_equal(hex, "0123456789abcdeffedcba9876543210");
    assert_ok(d9d_hash_parse("0123456789ABCDEFfedcba9876543210", &back));
    assert_true(d9d_hash_equal(h, back));
    back.lo ^= 1;
    assert_false(d9d_hash_equal(h, back));
}

static void bad_hex_is_refused(void **state)
{
    d9d_hash h = {.hi = 1, .lo = 2};

    (void)state;
    assert_fails(d9d_hash_parse("", &h), D9D_EFORMAT, "hash \"\" has 0 characters, must have 32");
    assert_fails(d9d_hash_parse("0123456789abcdeffedcba98765432100", &h), D9D_EFORMAT,
                 "hash \"0123456789abcdeffedcba98765432100\" has 33 characters, must have 32");
    assert_fails(d9d_hash_parse("0123456789abcdeffedcba987654321g", &h), D9D_EFORMAT,
                 "hash \"0123456789abcdeffedcba987654321g\": character 32 is not a hexadecimal "
                 "digit");
    assert_true(h.hi == 1 && h.lo == 2);
}

static void chunks_and_files_hash_like_the_whole(void **state)
{
    enum { N = (5 << 19) + 17 };
    unsigned char *bytes = malloc(N);
    d9d_hasher *h = NULL;
    d9d_hash whole, file = {0};
    uint64_t size = 0;

    (void)state;
    assert_non_null(bytes);
    for (size_t i = 0; i < N; i++)
        bytes[i] = (unsigned char)(i * 2654435761u >> 24);
    whole = d9d_hash_bytes(bytes, N);

    assert_ok(d9d_hasher_create(&h));
    d9d_hasher_add(h, "other", 5);
    d9d_hasher_reset(h);
    for (size_t at = 0, n = 1; at < N; at += n, n = n * 3 + 1 < N - at ? n * 3 + 1 : N - at)
        d9d_hasher_add(h, bytes + at, n);
    assert_true(d9d_hash_equal(d9d_hasher_digest(h), whole));
    d9d_hasher_free(h);
    d9d_hasher_free(NULL);

    assert_ok(d9d_fs_write_atomic("data", bytes, N));
    assert_ok(d9d_hash_file("data", &file, &size));
    assert_true(d9d_hash_equal(file, whole));
    assert_int_equal(size, N);
    assert_fails(d9d_hash_file("nothing", &file, NULL), D9D_ENOTFOUND,
                 "nothing: cannot open: No such file or directory");
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_hashes),
        cmocka_unit_test(hex_goes_both_ways),
        cmocka_unit_test(bad_hex_is_refused),
        unit_test_in_dir(chunks_and_files_hash_like_the_whole),
    };

    return cmocka_run_group_tests_name("hash", tests, NULL, NULL);
}
