/* test_fs_faults.c - system call faults: short writes, interruption, full disk, no copy_file_range,
 * no rename exchange, a stop in the middle.
 *
 * The wrappers below stand before libc's; each passes calls on to the kernel except where the fault
 * says otherwise. */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "d9d/base/fs.h"
#include "support/unit.h"

static struct fault {
    size_t max_write; /* limit of bytes per write; 0: none */
    uint64_t space;   /* bytes of free disk space */
    int interrupts;   /* calls interrupted by a signal, before each that succeeds */
    int broken_so_far;
    int copy_errno;    /* errno of copy_file_range; 0: it works */
    size_t copy_space; /* bytes that it copies before it fails */
    int mkdir_errno;
    int exchange_errno; /* errno of renameat2; 0: it works */
    int link_errno;
    int renames; /* calls so far; those of [bad_from, bad_to) fail */
    int bad_from, bad_to;
    int syncs_left; /* calls of fsync that work; -1: all */
    int syncs;      /* calls so far */
    long fs_type;   /* type of every file system; 0: the real one */
} fault;

static int no_fault(void **state)
{
    fault = (struct fault){.space = UINT64_MAX, .syncs_left = -1};
    return unit_dir_setup(state);
}

static int clear_fault(void **state)
{
    fault = (struct fault){.space = UINT64_MAX, .syncs_left = -1};
    return unit_dir_teardown(state);
}

static bool interrupted(void)
{
    if (fault.broken_so_far < fault.interrupts) {
        fault.broken_so_far++;
        errno = EINTR;
        return true;
    }
    fault.broken_so_far = 0;
    return false;
}

/* Bytes of a write of n that succeed; 0 with errno if none do. */
static size_t admit(size_t n)
{
    if (n > 0 && fault.space == 0) {
        errno = ENOSPC;
        return 0;
    }
    if (fault.max_write > 0 && n > fault.max_write)
        n = fault.max_write;
    if (n > fault.space)
        n = (size_t)fault.space;
    if (fault.space != UINT64_MAX)
        fault.space -= n;
    return n;
}

ssize_t write(int fd, const void *p, size_t n)
{
    if (fd > 2 && n > 0) {
        if (interrupted())
            return -1;
        n = admit(n);
        if (n == 0)
            return -1;
    }
    return syscall(SYS_write, fd, p, n);
}

ssize_t pwrite(int fd, const void *p, size_t n, off_t at)
{
    if (interrupted())
        return -1;
    n = admit(n);
    return n == 0 ? -1 : syscall(SYS_pwrite64, fd, p, n, at);
}

ssize_t copy_file_range(int in, off_t *in_at, int out, off_t *out_at, size_t n, unsigned flags)
{
    if (interrupted())
        return -1;
    if (fault.copy_errno != 0 && fault.copy_space == 0) {
        errno = fault.copy_errno;
        return -1;
    }
    if (fault.copy_errno != 0 && n > fault.copy_space)
        n = fault.copy_space;
    if (fault.copy_errno != 0)
        fault.copy_space -= n;
    return syscall(SYS_copy_file_range, in, in_at, out, out_at, n, flags);
}

int fstatfs(int fd, struct statfs *s)
{
    const int rc = (int)syscall(SYS_fstatfs, fd, s);

    if (fault.fs_type != 0)
        s->f_type = fault.fs_type;
    return rc;
}

int mkdir(const char *path, mode_t mode)
{
    if (fault.mkdir_errno != 0) {
        errno = fault.mkdir_errno;
        return -1;
    }
    return (int)syscall(SYS_mkdirat, -100, path, mode);
}

int rename(const char *from, const char *to)
{
    const int call = fault.renames++;

    if (call >= fault.bad_from && call < fault.bad_to) {
        errno = EIO;
        return -1;
    }
    return (int)syscall(SYS_renameat2, -100, from, -100, to, 0);
}

int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
    if (fault.exchange_errno != 0) {
        errno = fault.exchange_errno;
        return -1;
    }
    return (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
}

int link(const char *from, const char *to)
{
    if (fault.link_errno != 0) {
        errno = fault.link_errno;
        return -1;
    }
    return (int)syscall(SYS_linkat, -100, from, -100, to, 0);
}

int fsync(int fd)
{
    if (interrupted())
        return -1;
    fault.syncs++;
    if (fault.syncs_left == 0) {
        errno = EIO;
        return -1;
    }
    if (fault.syncs_left > 0)
        fault.syncs_left--;
    return (int)syscall(SYS_fsync, fd);
}

static void fail_renames(int from, int to)
{
    fault.renames = 0;
    fault.bad_from = from;
    fault.bad_to = to;
}

/* --- checks ----------------------------------------------------------------------------------- */

enum { N = 100000 };

static char *make_bytes(void)
{
    char *p = malloc(N);

    assert_non_null(p);
    for (size_t i = 0; i < N; i++)
        p[i] = (char)(i * 2654435761u >> 24);
    return p;
}

static void check_bytes(const char *path, const char *want)
{
    d9d_buf b = {0};

    assert_ok(d9d_fs_read(path, N, &b));
    assert_int_equal(b.len, N);
    assert_memory_equal(b.data, want, N);
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

static void short_and_interrupted_writes_lose_nothing(void **state)
{
    char *bytes = make_bytes();
    d9d_file f = {.fd = -1};

    (void)state;
    fault.max_write = 777;
    fault.interrupts = 2;
    assert_ok(d9d_fs_write_atomic("a", bytes, N));
    check_bytes("a", bytes);
    assert_ok(d9d_file_create("b", &f));
    assert_ok(d9d_file_write_at(&f, bytes + 500, N - 500, 500));
    assert_ok(d9d_file_write(&f, bytes, 500));
    assert_ok(d9d_file_close(&f));
    check_bytes("b", bytes);
    free(bytes);
}

static void a_full_disk_is_reported_with_its_numbers(void **state)
{
    char *bytes = make_bytes();
    d9d_file f = {.fd = -1};

    (void)state;
    assert_ok(d9d_file_create("a", &f));
    assert_ok(d9d_file_write(&f, bytes, 1000));
    fault.space = 5000;
    assert_fails(d9d_file_write(&f, bytes, N - 1000), D9D_EIO,
                 "a: cannot write 94000 bytes at 6000: No space left on device");
    assert_int_equal(f.offset, 6000);
    fault.space = 10;
    assert_fails(d9d_file_write_at(&f, bytes, 11, 50), D9D_EIO,
                 "a: cannot write 1 bytes at 60: No space left on device");
    d9d_file_release(&f);
    free(bytes);
}

static void a_failed_atomic_write_keeps_the_old_file(void **state)
{
    char *bytes = make_bytes();
    char want[200];

    (void)state;
    assert_ok(d9d_fs_write_atomic("a", bytes, N));
    fault.space = 100;
    (void)snprintf(want, sizeof(want),
                   "a.tmp-%ld-0: cannot write 99900 bytes at 100: No space left on device",
                   (long)getpid());
    assert_fails(d9d_fs_write_atomic("a", bytes, N), D9D_EIO, want);
    fault.space = UINT64_MAX;
    check_bytes("a", bytes);
    fault.syncs_left = 0;
    assert_fails_like(d9d_fs_write_atomic("a", "x", 1), D9D_EIO, "cannot sync: Input/output error");
    fault.syncs_left = -1;
    fail_renames(0, 1);
    assert_fails(d9d_fs_write_atomic("a", "x", 1), D9D_EIO,
                 "a: cannot replace: Input/output error");
    check_bytes("a", bytes);
    assert_int_equal(count_names("."), 1);
    free(bytes);
}

static void copies_go_on_where_the_kernel_stops(void **state)
{
    static const struct {
        int err;
        size_t space;
    } rows[] = {{0, 0}, {EXDEV, 0}, {ENOSYS, 0}, {EINVAL, 0}, {EIO, 12345}};
    char *bytes = make_bytes();

    (void)state;
    assert_ok(d9d_fs_write_atomic("a", bytes, N));
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        fault.interrupts = 1;
        fault.copy_errno = rows[i].err;
        fault.copy_space = rows[i].space;
        assert_ok(d9d_fs_copy("a", "b"));
        fault.interrupts = 0;
        check_bytes("b", bytes);
        assert_int_equal(unlink("b"), 0);
    }
    fault.space = 3000;
    fault.copy_errno = ENOSPC;
    fault.copy_space = 1000;
    assert_fails(d9d_fs_copy("a", "b"), D9D_EIO,
                 "b: cannot write 96000 bytes at 4000: No space left on device");
    assert_false(d9d_fs_exists("b"));
    free(bytes);
}

static void a_directory_that_cannot_be_made_says_why(void **state)
{
    d9d_outdir o;

    (void)state;
    assert_ok(d9d_fs_mkdirs("there"));
    fault.mkdir_errno = EROFS; /* also for an existing path */
    assert_ok(d9d_fs_mkdirs("there"));
    fault.mkdir_errno = ENOSPC;
    assert_fails(d9d_fs_mkdirs("there/a/b"), D9D_EIO,
                 "there/a: cannot create the directory: No space left on device");
    assert_fails_like(d9d_outdir_begin(&o, "out", 0, NULL), D9D_EIO,
                      "cannot create the directory: No space left on device");
}

static void put_in(const d9d_outdir *o, const char *name)
{
    d9d_arena a = {0};
    d9d_file f = {.fd = -1};

    assert_ok(d9d_file_create(d9d_fs_join(&a, o->tmp, name), &f));
    assert_ok(d9d_file_write(&f, "x", 1));
    assert_ok(d9d_file_close(&f));
    d9d_arena_release(&a);
}

static d9d_status write_out(const char *name)
{
    d9d_outdir o;
    d9d_status st;

    assert_ok(d9d_outdir_begin(&o, "out", D9D_OUTDIR_REPLACE, NULL));
    put_in(&o, name);
    st = d9d_outdir_commit(&o);
    d9d_outdir_release(&o);
    return st;
}

static void every_file_and_directory_is_synced(void **state)
{
    d9d_outdir o;
    d9d_arena a = {0};

    (void)state;
    assert_ok(d9d_outdir_begin(&o, "out", 0, NULL));
    put_in(&o, "a");
    assert_ok(d9d_fs_mkdirs(d9d_fs_join(&a, o.tmp, "sub/deep")));
    put_in(&o, "sub/b");
    put_in(&o, "sub/deep/c");
    assert_int_equal(symlink("a", d9d_fs_join(&a, o.tmp, "link")), 0);
    fault.syncs = 0;
    assert_ok(d9d_outdir_commit(&o));
    assert_int_equal(fault.syncs, 3 + 3 + 1); /* files, directories, their parent */
    d9d_outdir_release(&o);
    d9d_arena_release(&a);
}

static void a_failed_sync_stops_the_commit(void **state)
{
    (void)state;
    assert_ok(write_out("old"));
    for (int n = 0; n < 2; n++) {
        fault.syncs_left = n;
        assert_fails_like(write_out("new"), D9D_EIO, ": cannot sync: Input/output error");
        assert_true(d9d_fs_exists("out/old"));
        assert_int_equal(count_names("."), 1);
    }
}

static void without_an_exchange_the_old_one_steps_aside(void **state)
{
    (void)state;
    assert_ok(write_out("old"));
    fault.exchange_errno = EINVAL;
    assert_ok(write_out("new"));
    assert_true(d9d_fs_exists("out/new"));
    assert_false(d9d_fs_exists("out/old"));
    assert_int_equal(count_names("."), 1);
}

/* Renames: the new one into place, the old one aside, the new one into place, the old one back. */
static void a_failed_rename_keeps_the_old_directory(void **state)
{
    char aside[100];

    (void)state;
    assert_ok(write_out("old"));
    fault.exchange_errno = ENOSYS;
    for (int n = 0; n < 3; n++) {
        fail_renames(n, n + 1);
        assert_fails_like(write_out("new"), D9D_EIO, "out: cannot ");
        assert_true(d9d_fs_exists("out/old"));
        assert_int_equal(count_names("."), 1);
    }
    fail_renames(2, 4);
    (void)snprintf(aside, sizeof(aside), "out.tmp-%ld-0.old-%ld-0", (long)getpid(), (long)getpid());
    assert_fails_like(write_out("new"), D9D_EIO, "; what was there is now ");
    unit_check_has(d9d_err_message(), aside, __FILE__, __LINE__);
    assert_int_equal(rename(aside, "out"), 0);
    assert_true(d9d_fs_exists("out/old"));
    assert_int_equal(count_names("."), 1);
}

static void a_work_directory_that_vanished_is_an_error(void **state)
{
    d9d_outdir o;

    (void)state;
    assert_ok(d9d_outdir_begin(&o, "out", 0, NULL));
    assert_ok(d9d_fs_remove_tree(o.tmp));
    assert_fails_like(d9d_outdir_commit(&o), D9D_ENOTFOUND, "No such file or directory");
    d9d_outdir_release(&o);
    assert_int_equal(count_names("."), 0);
}

/* An existing name is never overwritten, whatever the file system supports. */
static void a_new_name_replaces_nothing(void **state)
{
    static const struct {
        int exchange, link;
    } rows[] = {{0, 0}, {EINVAL, 0}, {ENOSYS, 0}, {EINVAL, EPERM}, {ENOTSUP, ENOTSUP}};

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        fault.exchange_errno = rows[i].exchange;
        fault.link_errno = rows[i].link;
        assert_ok(d9d_fs_write_atomic("from", "new", 3));
        assert_ok(d9d_fs_write_atomic("to", "old", 3));
        assert_fails(d9d_fs_rename_new("from", "to"), D9D_ECONFIG,
                     "to: was written by someone else meanwhile");
        assert_int_equal(count_names("."), 2);
        assert_int_equal(unlink("to"), 0);
        assert_int_equal(symlink("nothing", "to"), 0);
        assert_fails_like(d9d_fs_rename_new("from", "to"), D9D_ECONFIG, "meanwhile");
        assert_fails(d9d_fs_write_new("to", "x", 1), D9D_ECONFIG,
                     "to: exists already, as a link to nothing; remove it or name another output");
        assert_int_equal(unlink("to"), 0);
        assert_ok(d9d_fs_rename_new("from", "to"));
        assert_int_equal(unlink("to"), 0);
        assert_ok(d9d_fs_write_new("to", "x", 1));
        assert_int_equal(unlink("to"), 0);
        assert_int_equal(count_names("."), 0);
    }
    fault.exchange_errno = EIO;
    assert_fails(d9d_fs_rename_new("from", "to"), D9D_EIO,
                 "to: cannot be given its name: Input/output error");
}

#define fault_test(f) cmocka_unit_test_setup_teardown(f, no_fault, clear_fault)

/* A lock that no process of this host holds may be held on another. */
static void leftovers_stay_where_locks_may_not_reach(void **state)
{
    static const struct {
        long type;
        bool file_goes, dir_goes;
    } rows[] = {{0x0bd00bd0 /* lustre */, false, false}, {0x6969 /* nfs */, true, false}};

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        fault.fs_type = 0;
        assert_ok(d9d_fs_mkdirs("out.tmp-12-0"));
        assert_ok(d9d_fs_write_atomic("f.tmp-12-0", "x", 1));
        fault.fs_type = rows[i].type;
        d9d_fs_remove_stale_in(".");
        assert_int_equal(d9d_fs_exists("f.tmp-12-0"), !rows[i].file_goes);
        assert_int_equal(d9d_fs_exists("out.tmp-12-0"), !rows[i].dir_goes);
    }
    fault.fs_type = 0;
    d9d_fs_remove_stale_in(".");
    assert_false(d9d_fs_exists("out.tmp-12-0"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        fault_test(short_and_interrupted_writes_lose_nothing),
        fault_test(a_full_disk_is_reported_with_its_numbers),
        fault_test(a_failed_atomic_write_keeps_the_old_file),
        fault_test(copies_go_on_where_the_kernel_stops),
        fault_test(a_directory_that_cannot_be_made_says_why),
        fault_test(every_file_and_directory_is_synced),
        fault_test(a_failed_sync_stops_the_commit),
        fault_test(without_an_exchange_the_old_one_steps_aside),
        fault_test(a_failed_rename_keeps_the_old_directory),
        fault_test(a_work_directory_that_vanished_is_an_error),
        fault_test(a_new_name_replaces_nothing),
        fault_test(leftovers_stay_where_locks_may_not_reach),
    };

    return cmocka_run_group_tests_name("fs_faults", tests, NULL, NULL);
}
