/* test_checkpointer_faults.c - checkpoints on a disk that is full at any call of a save, and on a
 * file system without locks.  The wrappers below interpose libc's functions; each passes calls on
 * to the kernel except for the injected fault. tests/fault/ kills a process there and injects the
 * same faults from outside. */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "checkpointer/checkpointer_private.h"
#include "support/unit.h"

static struct fault {
    int at;          /* the call that fails, from 1; 0: none */
    int calls;       /* so far */
    const char *hit; /* what failed */
    int flock_errno; /* 0: locks work */
} fault;

/* Does this call fail?  errno says so. */
static bool fails(const char *what)
{
    if (fault.at == 0 || ++fault.calls != fault.at)
        return false;
    fault.hit = what;
    errno = ENOSPC;
    return true;
}

int open(const char *path, int flags, ...)
{
    if ((flags & O_CREAT) != 0 && fails("open"))
        return -1;
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, 0666);
}

ssize_t write(int fd, const void *p, size_t n)
{
    return fd > 2 && fails("write") ? -1 : syscall(SYS_write, fd, p, n);
}

ssize_t pwrite(int fd, const void *p, size_t n, off_t at)
{
    return fails("write") ? -1 : syscall(SYS_pwrite64, fd, p, n, at);
}

int ftruncate(int fd, off_t n)
{
    return fails("ftruncate") ? -1 : (int)syscall(SYS_ftruncate, fd, n);
}

int fsync(int fd)
{
    return fails("fsync") ? -1 : (int)syscall(SYS_fsync, fd);
}

int mkdir(const char *path, mode_t mode)
{
    return fails("mkdir") ? -1 : (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

int rename(const char *from, const char *to)
{
    return fails("rename") ? -1 : (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int flock(int fd, int operation)
{
    if (fault.flock_errno != 0) {
        errno = fault.flock_errno;
        return -1;
    }
    return (int)syscall(SYS_flock, fd, operation);
}

static int setup(void **state)
{
    fault = (struct fault){0};
    return unit_dir_setup(state);
}

static int teardown(void **state)
{
    fault = (struct fault){0};
    return unit_dir_teardown(state);
}

/* --- the run: two tensors on the CPU -------------------------------------------------- */

typedef struct run {
    d9d_device *dev;
    d9d_tensor model, moment;
    d9d_checkpointer_tensor items[2];
    d9d_checkpointer_set set;
} run;

static void run_make(run *r)
{
    *r = (run){0};
    assert_ok(d9d_device_open("cpu", &r->dev));
    assert_ok(d9d_tensor_alloc(r->dev, D9D_F32, D9D_SHAPE(3, 5), &r->model));
    assert_ok(d9d_tensor_alloc(r->dev, D9D_F32, D9D_SHAPE(3, 5), &r->moment));
    memset(d9d_tensor_data(&r->model), 1, d9d_tensor_bytes(&r->model));
    memset(d9d_tensor_data(&r->moment), 2, d9d_tensor_bytes(&r->moment));
    r->items[0] = (d9d_checkpointer_tensor){
        .name = "w", .group = "model", .tensor = &r->model, .global_shape = r->model.shape};
    r->items[1] = (d9d_checkpointer_tensor){
        .name = "w.m", .group = "optimizer", .tensor = &r->moment, .global_shape = r->moment.shape};
    r->set = (d9d_checkpointer_set){.items = r->items, .n = 2};
}

static void run_release(run *r)
{
    d9d_tensor_release(&r->model);
    d9d_tensor_release(&r->moment);
    d9d_device_close(r->dev);
}

static d9d_status save(const run *r, int64_t step)
{
    const d9d_checkpointer_state at = {.step = step, .finite = true, .parent = -1};

    return d9d_checkpointer_write("c", &at, &r->set, NULL, NULL);
}

static int64_t newest(void)
{
    d9d_arena a = {0};
    const char *path = NULL;
    int64_t step = -1;

    assert_ok(d9d_checkpointer_latest("c", NULL, NULL, &a, &path));
    if (path != NULL)
        assert_int_equal(sscanf(path, "c/step-%ld", &step), 1);
    d9d_arena_release(&a);
    return step;
}

static size_t entries(void)
{
    d9d_arena a = {0};
    d9d_fs_names names;
    size_t n;

    assert_ok(d9d_fs_list("c", &a, &names));
    n = names.n;
    d9d_arena_release(&a);
    return n;
}

/* --- a full disk ------------------------------------------------------------------------ */

static void check_sentence(void)
{
    const char *text = d9d_err_message();

    assert_true(strncmp(text, "c/", 2) == 0 || strncmp(text, "c:", 2) == 0);
    unit_check_has(text, "No space left on device", __FILE__, __LINE__);
    if (strcmp(fault.hit, "write") == 0 || strcmp(fault.hit, "ftruncate") == 0)
        unit_check_has(text, " bytes ", __FILE__, __LINE__);
}

static void with_older(const run *r)
{
    assert_ok(save(r, 1));
}

static void with_damaged(const run *r)
{
    assert_ok(save(r, 1));
    assert_ok(save(r, 2));
    assert_int_equal(truncate("c/step-00000002/manifest.json", 9), 0);
}

/* Let every call of a save of step 2 fail in turn; `before` makes what is there. */
static int sweep_calls(const run *r, void (*before)(const run *r))
{
    int n = 0;

    for (;;) {
        d9d_status st;

        assert_ok(d9d_fs_remove_tree("c"));
        before(r);
        fault = (struct fault){.at = n + 1};
        st = save(r, 2);
        fault.at = 0;
        if (fault.hit == NULL) {
            assert_ok(st);
            assert_int_equal(newest(), 2);
            return n;
        }
        n++;
        if (st == D9D_OK) { /* of a directory that is there */
            assert_string_equal(fault.hit, "mkdir");
            assert_int_equal(newest(), 2);
            continue;
        }
        assert_string_equal(d9d_status_name(st), "D9D_EIO");
        check_sentence();
        /* Nothing half written, the older one intact.  Only the last sync fails when the
         * directory has its name, and then what it replaced is kept aside. */
        if (newest() == 2)
            assert_string_equal(fault.hit, "fsync");
        else
            assert_int_equal(entries(), before == with_damaged ? 3 : 2);
    }
}

static void test_full_disk_at_every_call(void **state)
{
    run r;
    int n;

    (void)state;
    run_make(&r);
    n = sweep_calls(&r, with_older);
    print_message("%d calls failed in turn\n", n);
    assert_true(n >= 20);
    n = sweep_calls(&r, with_damaged);
    assert_true(n >= 20);
    run_release(&r);
}

/* --- no locks ------------------------------------------------------------------------------- */

static void age(const char *path, int64_t seconds)
{
    const struct timespec then[2] = {{time(NULL) - seconds, 0}, {time(NULL) - seconds, 0}};

    assert_int_equal(utimensat(AT_FDCWD, path, then, 0), 0);
}

/* A leftover is then told from a save that goes on by its age: that of its youngest file. */
static void test_without_locks(void **state)
{
    run r;

    (void)state;
    run_make(&r);
    fault.flock_errno = ENOLCK;
    assert_ok(save(&r, 1));
    assert_ok(d9d_fs_mkdirs("c/step-00000002.tmp-1-0"));
    assert_ok(d9d_fs_write_atomic("c/step-00000002.tmp-1-0/model", "x", 1));
    assert_ok(d9d_checkpointer_prune("c", INT64_MAX, 1, NULL));
    assert_true(d9d_fs_exists("c/step-00000002.tmp-1-0"));
    age("c/step-00000002.tmp-1-0", 2 * 24 * 3600);
    assert_ok(d9d_checkpointer_prune("c", INT64_MAX, 1, NULL));
    assert_true(d9d_fs_exists("c/step-00000002.tmp-1-0"));
    age("c/step-00000002.tmp-1-0/model", 2 * 24 * 3600);
    assert_ok(d9d_checkpointer_prune("c", INT64_MAX, 1, NULL));
    assert_false(d9d_fs_exists("c/step-00000002.tmp-1-0"));
    assert_int_equal(newest(), 1);
    run_release(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_full_disk_at_every_call, setup, teardown),
        cmocka_unit_test_setup_teardown(test_without_locks, setup, teardown),
    };

    return cmocka_run_group_tests_name("save_faults", tests, NULL, NULL);
}
