/* test_input_stream.c - inputs that change while they are read. */
#include "support/unit.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "d9d/base/fs.h"
#include "data/io/input_stream.h"

enum { BYTES = 3 << 20 };

static void write_input(const char *path, size_t n, char c)
{
    char *text = malloc(n);

    assert_non_null(text);
    memset(text, c, n);
    for (size_t i = 79; i < n; i += 80)
        text[i] = '\n';
    assert_ok(d9d_fs_write_atomic(path, text, n));
    free(text);
}

/* Reads the rest. */
static d9d_status drain(d9di_input_stream *r)
{
    char some[4096];
    size_t got = 1;
    d9d_status st = D9D_OK;

    while (st == D9D_OK && got > 0)
        st = d9di_input_stream_read(r, some, sizeof(some), &got);
    return st;
}

static void cut(const char *path)
{
    assert_int_equal(truncate(path, BYTES / 2), 0);
}

static void append(const char *path)
{
    FILE *f = fopen(path, "a");

    assert_non_null(f);
    assert_true(fputs("more\n", f) >= 0);
    assert_int_equal(fclose(f), 0);
}

/* The same size, with another time. */
static void edit(const char *path)
{
    const struct timespec times[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
    FILE *f = fopen(path, "r+");

    assert_non_null(f);
    assert_int_equal(fseek(f, BYTES - 10, SEEK_SET), 0);
    assert_true(fputs("edit", f) >= 0);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static void replace(const char *path)
{
    write_input("other", BYTES, 'b');
    assert_int_equal(rename("other", path), 0);
}

static const struct {
    void (*change)(const char *path);
    const char *says;
    bool seen; /* by a process that has the file open */
} cases[] = {
    {cut, "in: has 1572864 bytes, had 3145728: it was changed while it was read", true},
    {append, "in: has 3145733 bytes, had 3145728: it was changed while it was read", true},
    {edit, "in: was changed while it was read", true},
    {replace, "in: was changed while it was read", false},
};

static void test_while_open(void **state)
{
    char some[4096];
    size_t got;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        d9di_input_stream *r;

        write_input("in", BYTES, 'a');
        assert_ok(d9di_input_stream_open("in", NULL, &r));
        assert_ok(d9di_input_stream_read(r, some, sizeof(some), &got));
        cases[i].change("in");
        if (cases[i].seen)
            assert_fails_like(drain(r), D9D_EIO, cases[i].says);
        else
            assert_ok(drain(r));
        d9di_input_stream_close(r);
    }
}

/* A change between stat, open and the second stat. */
static void test_planned(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        d9di_input_stream *r;
        d9di_input_stat seen;

        write_input("in", BYTES, 'a');
        assert_ok(d9di_input_stream_stat("in", &seen));
        assert_true(seen.is_file);
        assert_int_equal(seen.bytes, BYTES);
        assert_ok(d9di_input_stream_open("in", &seen, &r));
        assert_ok(drain(r));
        d9di_input_stream_close(r);
        assert_ok(d9di_input_stream_check("in", &seen));
        cases[i].change("in");
        assert_fails_like(d9di_input_stream_check("in", &seen), D9D_EIO, cases[i].says);
        assert_fails_like(d9di_input_stream_open("in", &seen, &r), D9D_EIO, cases[i].says);
    }
    assert_int_equal(unlink("in"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        unit_test_in_dir(test_while_open),
        unit_test_in_dir(test_planned),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
