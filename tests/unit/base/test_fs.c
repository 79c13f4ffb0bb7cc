/* test_fs.c - names, directories, files and directories that appear whole. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "d9d/base/fs.h"
#include "support/unit.h"

static void put(const char *path, const char *text)
{
    assert_ok(d9d_fs_write_atomic(path, text, strlen(text)));
}

static void put_socket(const char *path)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    assert_true(fd >= 0 && strlen(path) < sizeof(name.sun_path));
    memcpy(name.sun_path, path, strlen(path));
    assert_int_equal(bind(fd, (const struct sockaddr *)&name, sizeof(name)), 0);
    assert_int_equal(close(fd), 0);
}

static void check_text(const char *path, const char *want)
{
    d9d_buf b = {0};

    assert_ok(d9d_fs_read(path, 1 << 20, &b));
    assert_string_equal(b.data, want);
    d9d_buf_release(&b);
}

static size_t count_names(const char *dir)
{
    d9d_arena a = {0};
    d9d_fs_names names = {0};

    assert_ok(d9d_fs_list(dir, &a, &names));
    d9d_arena_release(&a);
    return names.n;
}

static void only_plain_names_pass(void **state)
{
    static const struct {
        const char *name;
        size_t len;
        const char *sentence;
    } bad[] = {
        {"", 0, "i.json: \"\" is not a plain file name: it is empty"},
        {".", 1, "i.json: \".\" is not a plain file name: it names a directory"},
        {"..", 2, "i.json: \"..\" is not a plain file name: it names a directory"},
        {"a/b", 3, "i.json: \"a/b\" is not a plain file name: it has a \"/\""},
        {"a\nb", 3, "i.json: \"a?b\" is not a plain file name: it has a control character"},
        {"a\0b", 3, "i.json: \"a\" is not a plain file name: it has a control character"},
        {"a\x7f", 2, "i.json: \"a?\" is not a plain file name: it has a control character"},
    };
    static const char *const good[] = {"a", "...", ".a", "..a", "model-00001-of-00002.safetensors"};
    char name[257];

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_fails(d9d_fs_check_name(bad[i].name, bad[i].len, "i.json"), D9D_EFORMAT,
                     bad[i].sentence);
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        assert_ok(d9d_fs_check_name(good[i], strlen(good[i]), "i.json"));
    memset(name, 'x', sizeof(name));
    assert_ok(d9d_fs_check_name(name, 255, "i.json"));
    assert_fails_like(d9d_fs_check_name(name, 256, "i.json"), D9D_EFORMAT, "longer than 255");
}

static void paths_join(void **state)
{
    d9d_arena a = {0};

    (void)state;
    assert_string_equal(d9d_fs_join(&a, "a", "b"), "a/b");
    assert_string_equal(d9d_fs_join(&a, "a/", "b"), "a/b");
    assert_string_equal(d9d_fs_join(&a, "/", "b"), "/b");
    assert_string_equal(d9d_fs_join(&a, "", "b"), "b");
    d9d_arena_release(&a);
}

static void directories_are_made_listed_and_removed(void **state)
{
    d9d_arena a = {0};
    d9d_fs_names names = {0};

    (void)state;
    assert_ok(d9d_fs_mkdirs("a//b/c/"));
    assert_ok(d9d_fs_mkdirs("a/b"));
    assert_true(d9d_fs_is_dir("a/b/c"));
    assert_true(d9d_fs_is_empty("a/b/c") && d9d_fs_is_empty("none"));
    put("a/b/z", "1");
    put("a/b/Y", "1");
    put("a/b/.hidden", "1");
    assert_false(d9d_fs_is_empty("a/b"));
    assert_false(d9d_fs_is_empty("a/b/z"));
    assert_ok(d9d_fs_list("a/b", &a, &names));
    assert_int_equal(names.n, 4);
    assert_string_equal(names.name[0], ".hidden");
    assert_string_equal(names.name[1], "Y");
    assert_string_equal(names.name[2], "c");
    assert_string_equal(names.name[3], "z");
    assert_ok(d9d_fs_list("a/b/c", &a, &names));
    assert_int_equal(names.n, 0);
    d9d_arena_release(&a);

    assert_fails(d9d_fs_mkdirs(""), D9D_EINVAL, "cannot create a directory without a name");
    assert_fails(d9d_fs_mkdirs("a/b/z/q"), D9D_EPATH,
                 "a/b/z: cannot create the directory: File exists");
    assert_int_equal(symlink("nowhere", "a/gone"), 0);
    assert_fails(d9d_fs_mkdirs("a/gone/q"), D9D_EPATH,
                 "a/gone: cannot create the directory: a link to nothing has its name");
    assert_fails(d9d_fs_list("none", &a, &names), D9D_ENOTFOUND,
                 "none: cannot open the directory: No such file or directory");
    assert_ok(d9d_fs_sync_dir("a"));
    assert_fails(d9d_fs_sync_dir("a/b/z"), D9D_ENOTFOUND,
                 "a/b/z: cannot open the directory: Not a directory");
}

static void removal_does_not_follow_links(void **state)
{
    (void)state;
    assert_ok(d9d_fs_mkdirs("kept"));
    put("kept/x", "1");
    assert_ok(d9d_fs_mkdirs("tree/sub/deep"));
    put("tree/sub/deep/x", "1");
    assert_int_equal(symlink("../../kept", "tree/sub/link"), 0);
    assert_int_equal(symlink("kept", "top"), 0);
    assert_ok(d9d_fs_remove_tree("tree"));
    assert_false(d9d_fs_exists("tree"));
    assert_ok(d9d_fs_remove_tree("top"));
    assert_false(d9d_fs_exists("top"));
    check_text("kept/x", "1");
    assert_ok(d9d_fs_remove_tree("kept/x"));
    assert_ok(d9d_fs_remove_tree("kept/x"));
    assert_true(d9d_fs_is_empty("kept"));
}

static void whole_files_are_read_within_a_limit(void **state)
{
    uint64_t size = 77;
    d9d_buf b = {0};

    (void)state;
    put("f", "hello");
    check_text("f", "hello");
    put("f", "");
    check_text("f", "");
    put("f", "hello");
    assert_ok(d9d_fs_read("f", 5, &b));
    d9d_buf_release(&b);
    assert_fails(d9d_fs_read("f", 4, &b), D9D_EFORMAT, "f: has 5 bytes, at most 4 are read");
    assert_fails(d9d_fs_read("g", 4, &b), D9D_ENOTFOUND,
                 "g: cannot open: No such file or directory");
    assert_fails(d9d_fs_read(".", 4, &b), D9D_EPATH, ".: is a directory, must be a file");
    put_socket("socket");
    assert_fails(d9d_fs_read("socket", 4, &b), D9D_EPATH,
                 "socket: cannot open: No such device or address");
    /* A file without a size. */
    assert_fails(d9d_fs_read("/dev/zero", 100, &b), D9D_EFORMAT,
                 "/dev/zero: has more than 100 bytes, the most that is read");
    assert_null(b.data);
    assert_ok(d9d_fs_size("f", &size));
    assert_int_equal(size, 5);
    assert_fails(d9d_fs_size("g", &size), D9D_ENOTFOUND,
                 "g: cannot find its size: No such file or directory");
}

static void atomic_writes_replace_and_leave_nothing(void **state)
{
    struct stat s;
    const mode_t old = umask(027);

    (void)state;
    put("f", "one");
    put("f", "two");
    check_text("f", "two");
    assert_int_equal(stat("f", &s), 0);
    assert_int_equal(s.st_mode & 0777, 0640);
    (void)umask(old);
    assert_fails_like(d9d_fs_write_atomic("none/f", "x", 1), D9D_ENOTFOUND,
                      "cannot create: No such file or directory");
    assert_ok(d9d_fs_mkdirs("dir/sub"));
    assert_fails(d9d_fs_write_atomic("dir", "x", 1), D9D_ECONFIG,
                 "dir: is there already and is not a regular file");
    assert_int_equal(count_names("."), 2);
}

static void files_are_written_and_read_by_ranges(void **state)
{
    d9d_file f = {0};
    char got[8] = "";

    (void)state;
    assert_ok(d9d_file_close(&f));
    f = (d9d_file){0};
    d9d_file_release(&f);
    assert_int_not_equal(fcntl(0, F_GETFD), -1); /* a zeroed handle is not file descriptor 0 */
    assert_ok(d9d_file_create("f", &f));
    assert_ok(d9d_file_write(&f, "abc", 3));
    assert_ok(d9d_file_write(&f, NULL, 0));
    assert_ok(d9d_file_write_at(&f, "XY", 2, 1));
    assert_ok(d9d_file_write(&f, "def", 3));
    assert_int_equal(f.offset, 6);
    assert_ok(d9d_file_read_at(&f, got, 6, 0));
    assert_string_equal(got, "aXYdef");
    assert_ok(d9d_file_sync(&f));
    assert_fails(d9d_file_write_at(&f, "x", 1, UINT64_MAX), D9D_EINVAL,
                 "f: 1 bytes at 18446744073709551615 are beyond any file's end");
    assert_ok(d9d_file_close(&f));
    assert_ok(d9d_file_close(&f));
    d9d_file_release(&f);

    assert_ok(d9d_file_open("f", &f));
    assert_ok(d9d_file_read_at(&f, got, 2, 4));
    assert_memory_equal(got, "ef", 2);
    assert_fails(d9d_file_read_at(&f, got, 4, 4), D9D_EFORMAT,
                 "f: needs 4 bytes at 4, the file ends after 2 of them");
    assert_fails(d9d_file_read_at(&f, got, 1, INT64_MAX), D9D_EINVAL,
                 "f: 1 bytes at 9223372036854775807 are beyond any file's end");
    assert_fails(d9d_file_write(&f, "x", 1), D9D_EIO,
                 "f: cannot write 1 bytes at 0: Bad file descriptor");
    d9d_file_release(&f);
    assert_fails(d9d_file_open("g", &f), D9D_ENOTFOUND,
                 "g: cannot open: No such file or directory");
    assert_fails(d9d_file_create("g/h", &f), D9D_ENOTFOUND,
                 "g/h: cannot create: No such file or directory");
}

static void copies_are_equal_and_never_overwrite(void **state)
{
    (void)state;
    put("a", "some text");
    assert_ok(d9d_fs_copy("a", "b"));
    check_text("b", "some text");
    put("a", "");
    assert_fails(d9d_fs_copy("a", "b"), D9D_EPATH, "b: cannot create: File exists");
    check_text("b", "some text");
    assert_ok(d9d_fs_copy("a", "c"));
    check_text("c", "");
    assert_fails(d9d_fs_copy(".", "d"), D9D_EPATH, ".: is a directory, must be a file");
    assert_false(d9d_fs_exists("d"));
}

static void write_out(const char *path, unsigned flags, const char *text)
{
    d9d_outdir o;
    d9d_arena a = {0};

    assert_ok(d9d_outdir_begin(&o, path, flags, NULL));
    assert_ok(d9d_fs_mkdirs(d9d_fs_join(&a, o.tmp, "sub")));
    put(d9d_fs_join(&a, o.tmp, "sub/f"), text);
    assert_ok(d9d_outdir_commit(&o));
    d9d_outdir_release(&o);
    d9d_arena_release(&a);
}

static void outdir_appears_whole(void **state)
{
    d9d_outdir o;

    (void)state;
    write_out("x/y/out/", 0, "one");
    check_text("x/y/out/sub/f", "one");
    assert_int_equal(count_names("x/y"), 1);
    assert_fails(d9d_outdir_begin(&o, "x/y/out", 0, NULL), D9D_ECONFIG,
                 "x/y/out: is there already and is not empty; --force replaces it");
    assert_int_equal(count_names("x/y"), 1);
    assert_ok(d9d_fs_mkdirs("empty"));
    write_out("empty", 0, "two");
    check_text("empty/sub/f", "two");
}

static void outdir_swaps_the_old_one_out(void **state)
{
    (void)state;
    write_out("out", 0, "one");
    put("out/stale", "1");
    write_out("out", D9D_OUTDIR_REPLACE, "two");
    check_text("out/sub/f", "two");
    assert_false(d9d_fs_exists("out/stale"));
    assert_int_equal(count_names("."), 1);
}

static void outdir_that_is_not_committed_leaves_nothing(void **state)
{
    d9d_outdir o;

    (void)state;
    write_out("out", 0, "one");
    assert_ok(d9d_outdir_begin(&o, "out", D9D_OUTDIR_REPLACE, NULL));
    assert_ok(d9d_fs_copy("out/sub/f", "f"));
    (void)D9D_FAIL(D9D_EIO, "the cause");
    d9d_outdir_release(&o);
    assert_string_equal(d9d_err_message(), "the cause");
    d9d_outdir_release(&o);
    check_text("out/sub/f", "one");
    assert_int_equal(count_names("."), 2);
}

static void outdir_goes_where_a_link_points(void **state)
{
    struct stat s;
    d9d_outdir o;

    (void)state;
    write_out("real", 0, "one");
    assert_int_equal(symlink("real", "link"), 0);
    write_out("link", D9D_OUTDIR_REPLACE, "two");
    check_text("real/sub/f", "two");
    assert_int_equal(lstat("link", &s), 0);
    assert_true(S_ISLNK(s.st_mode));
    assert_int_equal(symlink("nowhere", "dangling"), 0);
    assert_fails(d9d_outdir_begin(&o, "dangling", 0, NULL), D9D_ENOTFOUND,
                 "dangling: cannot follow the link: No such file or directory");
}

static void outdir_needs_a_name_of_its_own(void **state)
{
    static const char *const bad[] = {".", "..", "/", "a/..", "a/./", "", "///"};
    d9d_outdir o;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_fails_like(d9d_outdir_begin(&o, bad[i], D9D_OUTDIR_REPLACE, NULL), D9D_ECONFIG,
                          "cannot be written whole: name a new directory");
    put("file", "1");
    assert_fails(d9d_outdir_begin(&o, "file/out", 0, NULL), D9D_EPATH,
                 "file: cannot create the directory: File exists");
    assert_fails(d9d_outdir_begin(&o, "file", D9D_OUTDIR_REPLACE, NULL), D9D_ECONFIG,
                 "file: is there already and is not a directory");
    assert_int_equal(count_names("."), 1);
}

static void outdir_does_not_overwrite_who_came_first(void **state)
{
    d9d_outdir o;

    (void)state;
    assert_ok(d9d_outdir_begin(&o, "out", 0, NULL));
    write_out("out", 0, "first");
    assert_fails(d9d_outdir_commit(&o), D9D_ECONFIG, "out: was written by someone else meanwhile");
    d9d_outdir_release(&o);
    check_text("out/sub/f", "first");
    assert_int_equal(count_names("."), 1);
}

static void leftovers_of_the_dead_are_swept(void **state)
{
    d9d_outdir o;
    d9d_file f = {.fd = -1};
    pid_t child;
    int status;

    (void)state;
    /* A child is killed while it writes: its temporary file and directory are removed, similar
     * names are not. */
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (d9d_outdir_begin(&o, "out", 0, NULL) != D9D_OK ||
            d9d_file_create("f.tmp-1-0", &f) != D9D_OK)
            _exit(1);
        (void)kill(getpid(), SIGKILL);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_ok(d9d_fs_mkdirs("out.tmp-12-x"));
    assert_ok(d9d_fs_mkdirs("other.tmp-12-0"));
    assert_int_equal(count_names("."), 4);
    assert_ok(d9d_outdir_begin(&o, "out", 0, NULL)); /* one is removed, one is added */
    assert_int_equal(count_names("."), 4);
    d9d_fs_remove_stale("out"); /* this process's temporary is locked */
    d9d_fs_remove_stale("./f");
    assert_int_equal(count_names("."), 3);
    assert_true(d9d_fs_is_dir(o.tmp));
    d9d_fs_remove_stale_in("."); /* removes the dead process's, not ours, nor similar names */
    assert_int_equal(count_names("."), 2);
    assert_true(d9d_fs_is_dir(o.tmp));
    d9d_outdir_release(&o);
    assert_int_equal(count_names("."), 1);
}

static void where_nothing_can_be_made_is_found(void **state)
{
    (void)state;
    assert_ok(d9d_fs_mkdirs("there"));
    assert_ok(d9d_fs_write_atomic("file", "x", 1));
    assert_ok(d9d_fs_check_creatable("there"));
    assert_ok(d9d_fs_check_creatable("there/a/b"));
    assert_ok(d9d_fs_check_creatable("a"));
    assert_fails(d9d_fs_check_creatable("file"), D9D_EPATH, "file: is no directory");
    assert_fails(d9d_fs_check_creatable("file/a/b"), D9D_EPATH, "file: is no directory");
    assert_fails_like(d9d_fs_check_creatable("/proc/self/a"), D9D_EPATH,
                      "/proc/self: cannot be written to: ");
}

static void what_is_no_file_is_not_opened(void **state)
{
    (void)state;
    assert_int_equal(mkfifo("p", 0666), 0);
    assert_fails(d9d_fs_check_regular("p"), D9D_EPATH, "p: is a pipe, must be a file");
    assert_fails(d9d_fs_check_regular("."), D9D_EPATH, ".: is a directory, must be a file");
    assert_fails(d9d_fs_check_regular("/dev/null"), D9D_EPATH,
                 "/dev/null: is a device, must be a file");
    assert_fails_like(d9d_fs_check_regular("none"), D9D_ENOTFOUND, "none: cannot open");
}

static void only_a_regular_file_is_opened_as_one(void **state)
{
    uint64_t bytes = 0;
    d9d_file f;

    (void)state;
    put("file", "seven b");
    assert_ok(d9d_file_open_regular("file", &f, &bytes));
    assert_int_equal(bytes, 7);
    assert_ok(d9d_file_close(&f));
    assert_int_equal(mkfifo("p", 0666), 0);
    put_socket("s");
    assert_int_equal(symlink("file", "l"), 0);
    assert_int_equal(symlink("none", "dangling"), 0);
    assert_fails(d9d_file_open_regular("p", &f, &bytes), D9D_EPATH, "p: is a pipe, must be a file");
    assert_fails(d9d_file_open("p", &f), D9D_EPATH, "p: is a pipe, must be a file");
    assert_fails(d9d_file_open("/dev/null", &f), D9D_EPATH,
                 "/dev/null: is a device, must be a file");
    assert_fails(d9d_fs_copy("p", "copy"), D9D_EPATH, "p: is a pipe, must be a file");
    assert_fails(d9d_file_open_regular("s", &f, &bytes), D9D_EPATH,
                 "s: is a socket, must be a file");
    assert_fails(d9d_file_open_regular(".", &f, &bytes), D9D_EPATH,
                 ".: is a directory, must be a file");
    assert_fails(d9d_file_open_regular("/dev/null", &f, &bytes), D9D_EPATH,
                 "/dev/null: is a device, must be a file");
    assert_fails(d9d_file_open_regular("l", &f, &bytes), D9D_EPATH, "l: is a link, must be a file");
    assert_fails(d9d_file_open_regular("dangling", &f, &bytes), D9D_EPATH,
                 "dangling: is a link, must be a file");
    assert_fails_like(d9d_file_open_regular("none", &f, &bytes), D9D_ENOTFOUND,
                      "none: cannot open");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_plain_names_pass),
        cmocka_unit_test(paths_join),
        unit_test_in_dir(directories_are_made_listed_and_removed),
        unit_test_in_dir(removal_does_not_follow_links),
        unit_test_in_dir(whole_files_are_read_within_a_limit),
        unit_test_in_dir(atomic_writes_replace_and_leave_nothing),
        unit_test_in_dir(files_are_written_and_read_by_ranges),
        unit_test_in_dir(copies_are_equal_and_never_overwrite),
        unit_test_in_dir(outdir_appears_whole),
        unit_test_in_dir(outdir_swaps_the_old_one_out),
        unit_test_in_dir(outdir_that_is_not_committed_leaves_nothing),
        unit_test_in_dir(outdir_goes_where_a_link_points),
        unit_test_in_dir(outdir_needs_a_name_of_its_own),
        unit_test_in_dir(outdir_does_not_overwrite_who_came_first),
        unit_test_in_dir(leftovers_of_the_dead_are_swept),
        unit_test_in_dir(where_nothing_can_be_made_is_found),
        unit_test_in_dir(what_is_no_file_is_not_opened),
        unit_test_in_dir(only_a_regular_file_is_opened_as_one),
    };

    return cmocka_run_group_tests_name("fs", tests, NULL, NULL);
}
