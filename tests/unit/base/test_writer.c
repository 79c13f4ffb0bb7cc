/* test_writer.c - a file that a thread appends to: order, failures, slow files. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "d9d/base/thread.h"
#include "d9d/base/writer.h"
#include "support/unit.h"

static d9d_writer *open_writer(const char *path, const d9d_writer_opts *opts)
{
    d9d_file f;
    d9d_writer *w;

    assert_ok(d9d_file_open_append(path, 0, &f));
    assert_ok(d9d_writer_open(&f, opts, &w));
    assert_int_equal(f.fd, -1);
    return w;
}

static void check_text(const char *path, const char *want)
{
    d9d_buf text = {0};

    assert_ok(d9d_fs_read(path, 1 << 20, &text));
    assert_string_equal(text.data, want);
    d9d_buf_release(&text);
}

static void what_is_put_is_written_in_order(void **state)
{
    d9d_writer *w = open_writer("f", &(d9d_writer_opts){.log = NULL});
    d9d_buf want = {0};

    (void)state;
    for (int i = 0; i < 1000; i++) {
        char line[16];
        const int n = snprintf(line, sizeof(line), "%d\n", i);

        assert_ok(d9d_writer_put(w, line, (size_t)n));
        assert_ok(d9d_buf_append(&want, line, (size_t)n));
        if (i == 500) {
            assert_ok(d9d_writer_flush(w));
            check_text("f", want.data);
        }
    }
    assert_ok(d9d_writer_sync(w));
    check_text("f", want.data);
    assert_ok(d9d_writer_put(w, "x", 1));
    d9d_writer_close(w);
    assert_ok(d9d_buf_append(&want, "x", 1));
    check_text("f", want.data);
    d9d_buf_release(&want);
}

static void one_that_cannot_be_written_says_so_from_then_on(void **state)
{
    d9d_file full = {.fd = -1};
    d9d_writer *w;

    (void)state;
    assert_ok(d9d_file_open_rw("/dev/full", &full));
    assert_ok(d9d_writer_open(&full, &(d9d_writer_opts){.log = NULL}, &w));
    assert_ok(d9d_writer_put(w, "x", 1));
    assert_fails_like(d9d_writer_flush(w), D9D_EIO, "/dev/full: cannot write 1 bytes at 0");
    assert_fails_like(d9d_writer_put(w, "y", 1), D9D_EIO, "/dev/full: cannot write 1 bytes at 0");
    assert_fails_like(d9d_writer_sync(w), D9D_EIO, "/dev/full: cannot write 1 bytes at 0");
    d9d_writer_close(w);
}

/* A check that blocks until it is released, and then fails or not. */
struct gate {
    int opened, fails, released;
};

static d9d_status pass(void *self)
{
    struct gate *g = self;

    while (__atomic_load_n(&g->opened, __ATOMIC_ACQUIRE) == 0)
        (void)usleep(1000);
    return g->fails ? D9D_FAIL(D9D_EIO, "not this one") : D9D_OK;
}

static void let_go(void *self)
{
    ((struct gate *)self)->released++;
}

static void nobody_waits_for_a_slow_one(void **state)
{
    struct gate g = {0};
    d9d_writer *w =
        open_writer("f", &(d9d_writer_opts){.check = pass, .release = let_go, .self = &g});

    (void)state;
    for (int i = 0; i < 1000; i++) /* a call that blocked would never return */
        assert_ok(d9d_writer_put(w, "abcdefghij", 10));
    __atomic_store_n(&g.opened, 1, __ATOMIC_RELEASE);
    assert_ok(d9d_writer_flush(w));
    g.fails = 1;
    assert_ok(d9d_writer_put(w, "k", 1));
    assert_fails_like(d9d_writer_flush(w), D9D_EIO, "not this one");
    d9d_writer_close(w);
    assert_int_equal(g.released, 1);
}

/* A record is written when the call returns, or later if the file is slow; without space it is
 * dropped. */
static void who_offers_waits_for_so_long(void **state)
{
    static char much[16 << 20];
    struct gate g = {.opened = 1};
    d9d_writer *w =
        open_writer("f", &(d9d_writer_opts){.check = pass, .self = &g, .ignore_errors = true});

    (void)state;
    assert_true(d9d_writer_try_put(w, "a\n", 2, 60000));
    check_text("f", "a\n");
    g.fails = 1; /* and is dropped */
    assert_true(d9d_writer_try_put(w, "b\n", 2, 60000));
    g.fails = 0;
    __atomic_store_n(&g.opened, 0, __ATOMIC_RELEASE);
    assert_true(d9d_writer_try_put(w, "c\n", 2, 100)); /* a call that blocked would never return */
    assert_true(d9d_writer_try_put(w, "d\n", 2, 100));
    assert_false(d9d_writer_try_put(w, much, sizeof(much), 100));
    __atomic_store_n(&g.opened, 1, __ATOMIC_RELEASE);
    assert_ok(d9d_writer_flush(w));
    check_text("f", "a\nc\nd\n");
    d9d_writer_close(w);
}

static void capture_line(void *arg, d9d_log_level level, const char *text)
{
    char *said = arg;

    (void)level;
    (void)snprintf(said + strlen(said), 512 - strlen(said), "%s\n", text);
}

static void one_that_stands_still_is_said_once(void **state)
{
    char said[512] = "";
    const d9d_log log = {.line = capture_line, .arg = said, .level = D9D_LOG_INFO};
    struct gate g = {0};
    d9d_writer *w = open_writer("f", &(d9d_writer_opts){.check = pass, .self = &g, .log = &log});

    (void)state;
    assert_ok(d9d_writer_put(w, "a", 1));
    for (int i = 0; i < 3000 && said[0] == '\0'; i++) {
        (void)usleep(100000);
        assert_ok(d9d_writer_put(w, "b", 1));
    }
    unit_check_has(said, "f: its file system has not answered for 10 s", __FILE__, __LINE__);
    for (int i = 0; i < 10; i++)
        assert_ok(d9d_writer_put(w, "b", 1));
    assert_null(strstr(strchr(said, '\n') + 1, "has not answered"));
    __atomic_store_n(&g.opened, 1, __ATOMIC_RELEASE);
    assert_ok(d9d_writer_flush(w));
    unit_check_has(said, "f: its file system answers again, after ", __FILE__, __LINE__);
    d9d_writer_close(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        unit_test_in_dir(what_is_put_is_written_in_order),
        unit_test_in_dir(one_that_cannot_be_written_says_so_from_then_on),
        unit_test_in_dir(nobody_waits_for_a_slow_one),
        unit_test_in_dir(who_offers_waits_for_so_long),
        unit_test_in_dir(one_that_stands_still_is_said_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
