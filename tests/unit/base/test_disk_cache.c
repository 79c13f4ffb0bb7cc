/* test_disk_cache.c - what a run has found, a later one knows; and a file that is not right is
 * none. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "d9d/base/disk_cache.h"
#include "d9d/base/fs.h"
#include "support/unit.h"

#define ENVIRONMENT "library 1, driver 2"

static void put(d9d_disk_cache *c, const char *key, const char *value)
{
    d9d_disk_cache_put(c, key, strlen(key), value, strlen(value));
}

/* A text of `size` bytes; NULL: it must be absent. */
static void expect(d9d_disk_cache *c, const char *key, const char *value)
{
    size_t size = 0;
    const char *got = d9d_disk_cache_get(c, key, strlen(key), &size);

    if (value == NULL) {
        assert_null(got);
        return;
    }
    assert_non_null(got);
    assert_int_equal(size, strlen(value));
    assert_memory_equal(got, value, size);
}

/* A new run finds `value`. */
static void expect_kept(const char *dir, const char *environment, const char *key,
                        const char *value)
{
    d9d_disk_cache c;

    d9d_disk_cache_open(&c, dir, "name", environment, true);
    expect(&c, key, value);
    d9d_disk_cache_close(&c);
}

static void keep(const char *dir, const char *environment, const char *key, const char *value)
{
    d9d_disk_cache c;

    d9d_disk_cache_open(&c, dir, "name", environment, false);
    put(&c, key, value);
    d9d_disk_cache_close(&c);
}

/* The only file of a directory. */
static void path_of(const char *dir, char *path, size_t size)
{
    d9d_arena a = {0};
    d9d_fs_names names;

    assert_int_equal(d9d_fs_list(dir, &a, &names), D9D_OK);
    assert_int_equal(names.n, 1);
    (void)snprintf(path, size, "%s/%s", dir, names.name[0]);
    d9d_arena_release(&a);
}

static void a_later_run_knows(void **state)
{
    const char *dir = *state;
    char deep[600];

    (void)snprintf(deep, sizeof(deep), "%s/not/there", dir);
    keep(deep, ENVIRONMENT, "a", "first");
    expect_kept(deep, ENVIRONMENT, "a", "first");
    expect_kept(deep, ENVIRONMENT, "b", NULL);
    expect_kept(deep, "library 1, driver 3", "a", NULL);
    keep(deep, ENVIRONMENT, "b", "");
    keep(deep, ENVIRONMENT, "a", "second");
    expect_kept(deep, ENVIRONMENT, "a", "second");
    expect_kept(deep, ENVIRONMENT, "b", "");
}

static void two_processes_share_a_file(void **state)
{
    const char *dir = *state;
    d9d_disk_cache one, other;

    d9d_disk_cache_open(&one, dir, "name", ENVIRONMENT, false);
    d9d_disk_cache_open(&other, dir, "name", ENVIRONMENT, false);
    expect(&one, "b", NULL);
    expect(&other, "a", NULL);
    put(&one, "a", "of one");
    put(&other, "b", "of the other");
    put(&other, "a", "of the other");
    d9d_disk_cache_flush(&one);
    d9d_disk_cache_close(&other);
    d9d_disk_cache_close(&one);
    expect_kept(dir, ENVIRONMENT, "a", "of the other");
    expect_kept(dir, ENVIRONMENT, "b", "of the other");
}

static void idle_flush_waits(void **state)
{
    const char *dir = *state;
    d9d_disk_cache c;

    d9d_disk_cache_open(&c, dir, "name", ENVIRONMENT, false);
    put(&c, "a", "x");
    d9d_disk_cache_flush_idle(&c, 1000.0);
    assert_true(d9d_fs_is_empty(dir));
    d9d_disk_cache_flush_idle(&c, 0.0);
    assert_false(d9d_fs_is_empty(dir));
    d9d_disk_cache_close(&c);
}

static void nothing_is_written_that_may_not_be(void **state)
{
    const char *dir = *state;
    char file[600];
    d9d_disk_cache c;

    d9d_disk_cache_open(&c, dir, "name", ENVIRONMENT, true);
    put(&c, "a", "x");
    expect(&c, "a", "x");
    d9d_disk_cache_close(&c);
    assert_true(d9d_fs_is_empty(dir));
    keep(NULL, ENVIRONMENT, "a", "x");
    expect_kept(NULL, ENVIRONMENT, "a", NULL);
    (void)snprintf(file, sizeof(file), "%s/file", dir);
    assert_int_equal(d9d_fs_write_new(file, "x", 1), D9D_OK);
    keep(file, ENVIRONMENT, "a", "x"); /* no directory */
    expect_kept(file, ENVIRONMENT, "a", NULL);
}

/* Each damage alone: a byte, the end, something behind it. */
static void a_damaged_file_is_none(void **state)
{
    const char *dir = *state;
    d9d_buf whole = {0}, spoilt = {0};
    char path[700];

    keep(dir, ENVIRONMENT, "key", "value");
    path_of(dir, path, sizeof(path));
    assert_int_equal(d9d_fs_read(path, 1 << 20, &whole), D9D_OK);
    for (size_t i = 0; i <= whole.len; i++) {
        spoilt.len = 0;
        assert_int_equal(d9d_buf_append(&spoilt, whole.data, whole.len), D9D_OK);
        if (i < whole.len)
            spoilt.data[i] = (char)(spoilt.data[i] ^ 4);
        else
            assert_int_equal(d9d_buf_append(&spoilt, "x", 1), D9D_OK);
        assert_int_equal(d9d_fs_write_atomic(path, spoilt.data, spoilt.len), D9D_OK);
        expect_kept(dir, ENVIRONMENT, "key", NULL);
        assert_int_equal(d9d_fs_write_atomic(path, whole.data, i < whole.len ? i : 0), D9D_OK);
        expect_kept(dir, ENVIRONMENT, "key", NULL);
    }
    keep(dir, ENVIRONMENT, "key", "again");
    expect_kept(dir, ENVIRONMENT, "key", "again");
    d9d_buf_release(&whole);
    d9d_buf_release(&spoilt);
}

static void a_link_is_none(void **state)
{
    const char *dir = *state;
    char path[700], other[720];

    keep(dir, ENVIRONMENT, "key", "value");
    path_of(dir, path, sizeof(path));
    (void)snprintf(other, sizeof(other), "%s.real", path);
    assert_int_equal(rename(path, other), 0);
    assert_int_equal(symlink(other, path), 0);
    expect_kept(dir, ENVIRONMENT, "key", NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        unit_test_in_dir(a_later_run_knows),
        unit_test_in_dir(two_processes_share_a_file),
        unit_test_in_dir(idle_flush_waits),
        unit_test_in_dir(nothing_is_written_that_may_not_be),
        unit_test_in_dir(a_damaged_file_is_none),
        unit_test_in_dir(a_link_is_none),
    };

    return cmocka_run_group_tests_name("disk_cache", tests, NULL, NULL);
}
