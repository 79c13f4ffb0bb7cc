/* test_line_stream.c - lines of files and folders that grow. */
#include "support/unit.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "d9d/base/fs.h"
#include "data/io/line_stream.h"

static void add(const char *path, const char *text)
{
    FILE *f = fopen(path, "ab");

    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    assert_int_equal(fclose(f), 0);
}

static d9di_line_stream *opened(const char *path, bool follow)
{
    d9di_line_stream *s;

    assert_ok(d9di_line_stream_open(path, follow, &s));
    return s;
}

static void expect(d9di_line_stream *s, const char *file, int64_t offset, const char *text)
{
    d9di_line line;

    assert_ok(d9di_line_stream_next(s, &line));
    assert_int_equal(line.state, D9DI_LINE_FOUND);
    assert_string_equal(line.file, file);
    assert_int_equal(line.offset, offset);
    assert_int_equal(line.n, strlen(text));
    assert_memory_equal(line.text, text, line.n);
}

static void expect_none(d9di_line_stream *s, d9di_line_state state)
{
    d9di_line line;

    assert_ok(d9di_line_stream_next(s, &line));
    assert_int_equal(line.state, state);
}

static void lines_of_a_file(void **state)
{
    d9di_line_stream *s;

    (void)state;
    add("a", "one\r\n\ntwo\nlast");
    s = opened("a", false);
    expect(s, "a", 0, "one");
    expect(s, "a", 5, "");
    expect(s, "a", 6, "two");
    expect(s, "a", 10, "last");
    expect_none(s, D9DI_LINE_ENDED);
    expect_none(s, D9DI_LINE_ENDED);
    d9di_line_stream_close(s);
    s = opened("a", false);
    assert_ok(d9di_line_stream_seek(s, "a", 6));
    expect(s, "a", 6, "two");
    d9di_line_stream_close(s);
    s = opened("a", false);
    assert_int_equal(d9di_line_stream_seek(s, "a", 15), D9D_EMISMATCH);
    d9di_line_stream_close(s);
}

static void a_file_that_grows(void **state)
{
    d9di_line_stream *s;

    (void)state;
    add("b", "one\nha");
    s = opened("b", true);
    expect(s, "b", 0, "one");
    expect_none(s, D9DI_LINE_PENDING);
    add("b", "lf\ntail");
    expect(s, "b", 4, "half");
    expect_none(s, D9DI_LINE_PENDING);
    add("b.end", "");
    expect(s, "b", 9, "tail");
    expect_none(s, D9DI_LINE_ENDED);
    d9di_line_stream_close(s);
}

/* Lines longer than what is read at a time. */
static void long_lines(void **state)
{
    enum { N = 700000 };
    static char text[N + 2];
    d9di_line_stream *s;
    d9di_line line;

    (void)state;
    memset(text, 'x', N);
    text[N] = '\n';
    add("c", "short\n");
    add("c", text);
    add("c", "next\n");
    s = opened("c", false);
    expect(s, "c", 0, "short");
    assert_ok(d9di_line_stream_next(s, &line));
    assert_int_equal(line.n, N);
    assert_int_equal(line.offset, 6);
    expect(s, "c", 6 + N + 1, "next");
    d9di_line_stream_close(s);
}

static void a_folder_that_grows(void **state)
{
    d9di_line_stream *s;

    (void)state;
    assert_ok(d9d_fs_mkdirs("d"));
    s = opened("d", true);
    expect_none(s, D9DI_LINE_PENDING);
    add("d/1.jsonl", "one\ntwo"); /* whole: its last line needs no end */
    add("d/notes", "none\n");
    add("d/.2.jsonl", "hidden\n");
    expect(s, "1.jsonl", 0, "one");
    expect(s, "1.jsonl", 4, "two");
    expect_none(s, D9DI_LINE_PENDING);
    add("d/empty-3.jsonl", "");
    add("d/x.jsonl", "three\n");
    add("d/END", "");
    expect(s, "x.jsonl", 0, "three");
    expect_none(s, D9DI_LINE_ENDED);
    d9di_line_stream_close(s);
    s = opened("d", true);
    assert_ok(d9di_line_stream_seek(s, "1.jsonl", 4));
    expect(s, "1.jsonl", 4, "two");
    expect(s, "x.jsonl", 0, "three");
    d9di_line_stream_close(s);
    s = opened("d", true);
    assert_int_equal(d9di_line_stream_seek(s, "0.jsonl", 4), D9D_EMISMATCH);
    d9di_line_stream_close(s);
}

static void files_that_change(void **state)
{
    d9di_line_stream *s;
    d9di_line line;

    (void)state;
    assert_ok(d9d_fs_mkdirs("e"));
    add("e/1.jsonl", "one\n");
    s = opened("e", true);
    expect(s, "1.jsonl", 0, "one");
    add("e/1.jsonl", "more\n");
    assert_int_equal(d9di_line_stream_next(s, &line), D9D_EIO);
    assert_non_null(strstr(d9d_err_message(),
                           "e/1.jsonl: has 9 bytes, and had 4; files of a stream "
                           "get their names when they are complete"));
    d9di_line_stream_close(s);
    add("f", "one\ntwo\n");
    s = opened("f", true);
    expect(s, "f", 0, "one");
    expect(s, "f", 4, "two");
    assert_ok(d9d_fs_write_atomic("g", "", 0));
    assert_int_equal(truncate("f", 2), 0);
    assert_int_equal(d9di_line_stream_next(s, &line), D9D_EIO);
    assert_non_null(strstr(d9d_err_message(), "f: has 2 bytes, and had 8; a stream may only grow"));
    d9di_line_stream_close(s);
    add("h", "one\n");
    s = opened("h", true);
    expect(s, "h", 0, "one");
    assert_ok(
        d9d_fs_write_atomic("h", "two\nthree\n", 10)); /* in its place: nothing will be added */
    assert_int_equal(d9di_line_stream_next(s, &line), D9D_EIO);
    assert_non_null(
        strstr(d9d_err_message(), "h: another file has its name; a stream may only grow"));
    d9di_line_stream_close(s);
}

static void what_is_no_stream(void **state)
{
    d9di_line_stream *s;
    d9di_line line;

    (void)state;
    assert_int_equal(d9di_line_stream_open("absent", true, &s), D9D_ENOTFOUND);
    assert_int_equal(mkfifo("pipe", 0600), 0);
    assert_int_equal(d9di_line_stream_open("pipe", true, &s), D9D_ECONFIG);
    assert_non_null(strstr(d9d_err_message(), "pipe: is no file; a pipe can be read once"));
    add("h.jsonl.gz", "");
    assert_int_equal(d9di_line_stream_open("h.jsonl.gz", true, &s), D9D_ECONFIG);
    assert_ok(d9d_fs_mkdirs("i"));
    add("i/a.jsonl.zst", "");
    s = opened("i", false);
    assert_int_equal(d9di_line_stream_next(s, &line), D9D_ECONFIG);
    assert_non_null(strstr(d9d_err_message(), "i/a.jsonl.zst: is compressed"));
    d9di_line_stream_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        unit_test_in_dir(lines_of_a_file),   unit_test_in_dir(a_file_that_grows),
        unit_test_in_dir(long_lines),        unit_test_in_dir(a_folder_that_grows),
        unit_test_in_dir(files_that_change), unit_test_in_dir(what_is_no_stream),
    };

    return cmocka_run_group_tests_name("line_stream", tests, NULL, NULL);
}
