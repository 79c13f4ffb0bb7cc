/* test_mem.c - arenas, buffers, arrays, maps. */
#include <stdio.h>
#include <string.h>

#include "d9d/base/mem.h"
#include "support/unit.h"

static void arena_blocks_are_aligned_zeroed_and_apart(void **state)
{
    static const size_t sizes[] = {0, 1, 15, 16, 17, 100, 2048, 2049, 5000, 100000};
    enum { N = 400 };
    d9d_arena a = {0};
    unsigned char *p[N];
    size_t size[N];

    (void)state;
    for (size_t i = 0; i < N; i++) {
        size[i] = sizes[i % (sizeof(sizes) / sizeof(sizes[0]))];
        p[i] = d9d_arena_alloc(&a, size[i]);
        assert_non_null(p[i]);
        assert_int_equal((uintptr_t)p[i] % 16, 0);
        for (size_t k = 0; k < size[i]; k++)
            assert_int_equal(p[i][k], 0);
        memset(p[i], (int)(i % 255) + 1, size[i]);
    }
    for (size_t i = 0; i < N; i++)
        for (size_t k = 0; k < size[i]; k++)
            assert_int_equal(p[i][k], i % 255 + 1);
    d9d_arena_release(&a);
    assert_non_null(d9d_arena_alloc(&a, 8));
    d9d_arena_release(&a);
    d9d_arena_release(&a);
}

static void arena_refuses_what_no_memory_holds(void **state)
{
    d9d_arena a = {0};

    (void)state;
    assert_null(d9d_arena_alloc(&a, SIZE_MAX));
    assert_null(d9d_arena_alloc(&a, (size_t)PTRDIFF_MAX));
    assert_null(d9d_arena_strndup(&a, "", SIZE_MAX));
    d9d_arena_release(&a);
}

static void arena_keeps_text(void **state)
{
    char big[10000];
    d9d_arena a = {0};

    (void)state;
    memset(big, 'x', sizeof(big) - 1);
    big[sizeof(big) - 1] = '\0';
    assert_string_equal(d9d_arena_strdup(&a, "abc"), "abc");
    assert_string_equal(d9d_arena_strndup(&a, "abc", 2), "ab");
    assert_string_equal(d9d_arena_strndup(&a, NULL, 0), "");
    assert_string_equal(d9d_arena_printf(&a, "%s/%d", "dir", 7), "dir/7");
    assert_int_equal(strlen(d9d_arena_printf(&a, "%s", big)), sizeof(big) - 1);
    d9d_arena_release(&a);
}

static void buf_grows_and_stays_terminated(void **state)
{
    d9d_buf b = {0};

    (void)state;
    assert_ok(d9d_buf_append(&b, NULL, 0));
    assert_string_equal(b.data, "");
    for (int i = 0; i < 1000; i++) {
        assert_ok(d9d_buf_append(&b, "ab", 2));
        assert_ok(d9d_buf_printf(&b, "%03d", i));
        assert_int_equal(strlen(b.data), b.len);
    }
    assert_int_equal(b.len, 5000);
    assert_memory_equal(b.data + 4995, "ab999", 6);
    assert_ok(d9d_buf_append(&b, "\0x", 2));
    assert_int_equal(b.len, 5002);
    assert_fails_like(d9d_buf_reserve(&b, SIZE_MAX), D9D_ENOMEM, "5002 and 18446744073709551615");
    assert_fails_like(d9d_buf_reserve(&b, SIZE_MAX - 1), D9D_ENOMEM, "overflow");
    assert_fails_like(d9d_buf_reserve(&b, (size_t)PTRDIFF_MAX), D9D_ENOMEM, "overflow");
    assert_memory_equal(b.data, "ab000", 5);
    d9d_buf_release(&b);
    assert_null(b.data);
    d9d_buf_release(&b);
}

struct pair {
    int a;
    double b;
};

static void vec_holds_any_type(void **state)
{
    D9D_VEC(struct pair) v = {0};

    (void)state;
    for (int i = 0; i < 1000; i++)
        assert_ok(D9D_VEC_PUSH(&v, (struct pair){.a = i, .b = i / 2.0}));
    assert_int_equal(v.len, 1000);
    for (int i = 0; i < 1000; i++)
        assert_true(v.data[i].a == i && v.data[i].b == i / 2.0);
    assert_fails_like(D9D_VEC_RESERVE(&v, SIZE_MAX / 4), D9D_ENOMEM, "of 16 bytes overflow");
    assert_fails_like(D9D_VEC_RESERVE(&v, SIZE_MAX), D9D_ENOMEM, "1000 and");
    assert_int_equal(v.len, 1000);
    D9D_VEC_RELEASE(&v);
    assert_null(v.data);
}

static void map_finds_every_key_in_order(void **state)
{
    enum { N = 5000 };
    static int values[N];
    d9d_map m = {0};
    char key[32];

    (void)state;
    assert_null(d9d_map_get(&m, "x", 1));
    for (int i = 0; i < N; i++) {
        const int n = snprintf(key, sizeof(key), "layers.%d.weight", i * 7919 % N);

        assert_ok(d9d_map_put(&m, key, (size_t)n, &values[i]));
    }
    assert_int_equal(m.len, N);
    for (int i = 0; i < N; i++) {
        const int n = snprintf(key, sizeof(key), "layers.%d.weight", i * 7919 % N);

        assert_ptr_equal(d9d_map_get(&m, key, (size_t)n), &values[i]);
        assert_string_equal(m.entries[i].key, key);
        assert_false(d9d_map_has(&m, key, (size_t)n - 1));
    }
    d9d_map_release(&m);
    assert_false(d9d_map_has(&m, key, strlen(key)));
}

static void map_tells_null_empty_and_embedded_zero_apart(void **state)
{
    int v = 0;
    d9d_map m = {0};

    (void)state;
    assert_ok(d9d_map_put(&m, "", 0, &v));
    assert_ok(d9d_map_put(&m, "a", 1, NULL));
    assert_ok(d9d_map_put(&m, "a\0b", 3, &v));
    assert_ptr_equal(d9d_map_get(&m, NULL, 0), &v);
    assert_null(d9d_map_get(&m, "a", 1));
    assert_true(d9d_map_has(&m, "a", 1));
    assert_false(d9d_map_has(&m, "a\0c", 3));
    assert_fails(d9d_map_put(&m, "a", 1, &v), D9D_EINVAL, "map: the key \"a\" is there already");
    assert_null(d9d_map_get(&m, "a", 1));
    d9d_map_release(&m);
}

static void checked_arithmetic_sees_overflow(void **state)
{
    uint64_t v = 0;

    (void)state;
    assert_true(d9d_checked_mul_u64(UINT32_MAX, UINT32_MAX, &v) && v == 18446744065119617025u);
    assert_false(d9d_checked_mul_u64(UINT64_C(1) << 32, UINT64_C(1) << 32, &v));
    assert_true(d9d_checked_add_u64(UINT64_MAX, 0, &v) && v == UINT64_MAX);
    assert_false(d9d_checked_add_u64(UINT64_MAX, 1, &v));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arena_blocks_are_aligned_zeroed_and_apart),
        cmocka_unit_test(arena_refuses_what_no_memory_holds),
        cmocka_unit_test(arena_keeps_text),
        cmocka_unit_test(buf_grows_and_stays_terminated),
        cmocka_unit_test(vec_holds_any_type),
        cmocka_unit_test(map_finds_every_key_in_order),
        cmocka_unit_test(map_tells_null_empty_and_embedded_zero_apart),
        cmocka_unit_test(checked_arithmetic_sees_overflow),
    };

    return cmocka_run_group_tests_name("mem", tests, NULL, NULL);
}
