/* test_checkpointer_async.c - asynchronous checkpoints while their arrays change: content, waiting,
 * full disks. pwrite() is interposed and copies to the host are slow, so that a missing wait
 * shows. */
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "checkpointer/checkpointer_async.h"
#include "device/backend.h"
#include "support/unit.h"

enum { N = 1000 };

static struct disk {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool stuck, full;
} disk = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void disk_is(bool stuck, bool full)
{
    (void)pthread_mutex_lock(&disk.lock);
    disk.stuck = stuck;
    disk.full = full;
    (void)pthread_cond_broadcast(&disk.changed);
    (void)pthread_mutex_unlock(&disk.lock);
}

ssize_t pwrite(int fd, const void *p, size_t n, off_t at)
{
    bool full;

    (void)pthread_mutex_lock(&disk.lock);
    while (disk.stuck)
        (void)pthread_cond_wait(&disk.changed, &disk.lock);
    full = disk.full;
    (void)pthread_mutex_unlock(&disk.lock);
    if (full)
        errno = ENOSPC;
    return full ? -1 : syscall(SYS_pwrite64, fd, p, n, at);
}

static d9d_status slow_peek(d9d_device *dev, void *pinned, const void *src, uint64_t n)
{
    (void)dev;
    (void)usleep(20000);
    memcpy(pinned, src, n);
    return D9D_OK;
}

static d9d_status no_pin(d9d_device *dev, uint64_t n, void **out)
{
    (void)out;
    return D9D_FAIL(D9D_ENOMEM, "%s: out of memory: %llu bytes requested", dev->name,
                    (unsigned long long)n);
}

/* --- a run of two tensors, whose elements all are its state's step ------------------------- */

typedef struct run {
    d9d_device *dev;
    d9d_device_ops ops;
    d9d_tensor model, moment;
    d9d_checkpointer_tensor items[2];
    int64_t steps;
    d9d_checkpointer_count count;
    int64_t counted[2];
    d9d_checkpointer_rank_state rank_state;
    d9d_checkpointer_set set;
    d9d_checkpointer_state state;
    char outbox[4096];
    d9d_log log;
    d9di_checkpointer_async *saver;
} run;

static void keep_line(void *arg, d9d_log_level level, const char *text)
{
    run *r = arg;
    const size_t len = strlen(r->outbox);

    (void)level;
    (void)snprintf(r->outbox + len, sizeof(r->outbox) - len, "%s\n", text);
}

/* What training does to the arrays. */
static void run_step(run *r)
{
    float *model = d9d_tensor_data(&r->model), *moment = d9d_tensor_data(&r->moment);

    r->steps = r->counted[1] = ++r->state.step;
    for (int i = 0; i < N; i++)
        model[i] = moment[i] = (float)r->state.step;
}

static void run_open(run *r, bool behind, bool pins)
{
    d9di_checkpointer_async_opts opts = {.dir = "c", .keep = 2, .async = behind, .patience_s = 600};

    *r = (run){.state = {.finite = true, .parent = -1}};
    disk_is(false, false);
    assert_ok(d9d_device_open("cpu", &r->dev));
    r->ops = *r->dev->ops;
    r->ops.d2h = slow_peek;
    r->ops.pin = pins ? r->ops.pin : no_pin;
    r->dev->ops = &r->ops;
    assert_ok(d9d_tensor_alloc(r->dev, D9D_F32, D9D_SHAPE(N), &r->model));
    assert_ok(d9d_tensor_alloc(r->dev, D9D_F32, D9D_SHAPE(N), &r->moment));
    r->items[0] = (d9d_checkpointer_tensor){
        .name = "w", .group = "model", .tensor = &r->model, .global_shape = r->model.shape};
    r->items[1] = (d9d_checkpointer_tensor){
        .name = "w.m", .group = "optimizer", .tensor = &r->moment, .global_shape = r->moment.shape};
    r->count = (d9d_checkpointer_count){"w", &r->steps};
    r->rank_state = (d9d_checkpointer_rank_state){"counted", D9D_I64, 2, D9D_COMM_SUM, r->counted};
    r->set = (d9d_checkpointer_set){.items = r->items,
                                    .n = 2,
                                    .counts = &r->count,
                                    .n_counts = 1,
                                    .rank_states = &r->rank_state,
                                    .n_rank_states = 1};
    r->log = (d9d_log){.line = keep_line, .arg = r, .level = D9D_LOG_WARN};
    opts.set = &r->set;
    opts.dev = r->dev;
    opts.log = &r->log;
    assert_ok(d9di_checkpointer_async_open(&opts, &r->saver));
}

static d9d_status save_begin(run *r, bool wait)
{
    bool begun = false;

    D9D_TRY(d9di_checkpointer_async_begin(r->saver, &r->state, wait, &begun));
    return begun ? D9D_OK : D9D_FAIL(D9D_ETIMEOUT, "step %d is left out", (int)r->state.step);
}

static void run_close(run *r)
{
    d9di_checkpointer_async_close(r->saver);
    d9d_tensor_release(&r->model);
    d9d_tensor_release(&r->moment);
    d9d_device_close(r->dev);
}

/* The checkpoint of a step, by its name or by what is newest, holds that step. */
static void check_saved(int64_t step)
{
    d9d_arena a = {0};
    const char *path;
    d9d_checkpointer_state got;
    run other;

    assert_ok(d9d_checkpointer_latest("c", NULL, NULL, &a, &path));
    assert_non_null(path);
    run_open(&other, false, true);
    assert_ok(d9d_checkpointer_read(path, &other.set, NULL, &got));
    assert_int_equal(got.step, step);
    assert_int_equal(other.steps, step);
    assert_ok(d9d_checkpointer_read_rank_state(path, &other.set, 0, 1, &other.log));
    assert_int_equal(other.counted[0], 0);
    assert_int_equal(other.counted[1], step);
    for (int i = 0; i < N; i++) {
        assert_true(((float *)d9d_tensor_data(&other.model))[i] == (float)step);
        assert_true(((float *)d9d_tensor_data(&other.moment))[i] == (float)step);
    }
    run_close(&other);
    d9d_arena_release(&a);
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

/* A step whose report comes at once. */
static d9d_status run_steps(run *r)
{
    const int64_t step = r->state.step;
    const double number = d9di_checkpointer_async_progress(r->saver, step);

    assert_ok(d9di_checkpointer_async_wait_copy(r->saver));
    run_step(r);
    return d9di_checkpointer_async_advance(r->saver, step, number);
}

/* Steps until `step` has its name. */
static void run_until_saved(run *r, int64_t step)
{
    d9d_arena a = {0};
    const char *path = d9d_checkpointer_path(&a, "c", step);

    for (int i = 0; i < 60000 && !d9d_fs_exists(path); i++) {
        assert_ok(run_steps(r));
        (void)usleep(1000);
    }
    assert_true(d9d_fs_exists(path));
    d9d_arena_release(&a);
}

/* --- tests -------------------------------------------------------------------------------- */

static void it_holds_what_was_there_when_it_began(void **state)
{
    run r;

    (void)state;
    run_open(&r, true, true);
    run_step(&r);
    assert_ok(save_begin(&r, false));
    assert_false(d9d_fs_exists("c/step-00000001"));
    run_until_saved(&r, 1);
    assert_true(r.state.step > 2);
    check_saved(1);
    /* And again, over the same copy. */
    assert_ok(save_begin(&r, false));
    assert_ok(d9di_checkpointer_async_wait_copy(r.saver));
    const int64_t saved = r.state.step;
    run_step(&r);
    assert_ok(d9di_checkpointer_async_finish(r.saver));
    check_saved(saved);
    assert_int_equal(entries(), 3); /* two and the lock */
    run_close(&r);
}

static void a_stuck_disk_keeps_nobody_waiting(void **state)
{
    run r;

    (void)state;
    run_open(&r, true, true);
    run_step(&r);
    disk_is(true, false);
    assert_ok(save_begin(&r, false));
    for (int i = 0; i < 20; i++)
        assert_ok(run_steps(&r));
    assert_true(d9di_checkpointer_async_progress(r.saver, r.state.step) == 0);
    assert_int_equal(r.state.step, 21);
    disk_is(false, false);
    assert_ok(d9di_checkpointer_async_finish(r.saver));
    check_saved(1);
    run_close(&r);
}

/* Nobody waits for longer than a period for a save, and two never run at once. */
static void a_save_that_outlasts_its_period_is_not_joined_by_another(void **state)
{
    d9di_checkpointer_async_opts opts;
    bool begun = true;
    run r;

    (void)state;
    run_open(&r, true, true);
    d9di_checkpointer_async_close(r.saver);
    opts = (d9di_checkpointer_async_opts){.dir = "c",
                                          .keep = 2,
                                          .async = true,
                                          .patience_s = 0.01,
                                          .set = &r.set,
                                          .dev = r.dev,
                                          .log = &r.log};
    assert_ok(d9di_checkpointer_async_open(&opts, &r.saver));
    run_step(&r);
    disk_is(true, false);
    assert_ok(save_begin(&r, false));
    assert_ok(run_steps(&r));
    assert_ok(d9di_checkpointer_async_begin(r.saver, &r.state, false, &begun));
    assert_false(begun);
    assert_non_null(strstr(r.outbox, "step 2 is not saved, as one save runs at a time: the "
                                     "checkpoint of step 1 is not complete after "));
    disk_is(false, false);
    run_until_saved(&r, 1);
    check_saved(1);
    assert_int_equal(entries(), 2);  /* the first alone, and the lock */
    assert_ok(save_begin(&r, true)); /* what is waited for is saved in any case */
    assert_int_equal(entries(), 3);
    run_close(&r);
}

/* Numbers of steps that were queued before a part of the work began do not speak of its end. */
static void old_numbers_say_nothing(void **state)
{
    run r;

    (void)state;
    run_open(&r, true, true);
    run_step(&r);
    disk_is(true, false);
    assert_true(d9di_checkpointer_async_progress(r.saver, 7) == 0);
    assert_ok(save_begin(&r, false));
    assert_ok(d9di_checkpointer_async_advance(r.saver, 7, 1));
    disk_is(false, false);
    for (int i = 0; i < 60000 && d9di_checkpointer_async_progress(r.saver, 8) == 0; i++)
        (void)usleep(1000);
    assert_true(d9di_checkpointer_async_progress(r.saver, 8) == 1);
    assert_false(d9d_fs_exists("c/step-00000001"));
    assert_ok(d9di_checkpointer_async_advance(r.saver, 7, 1));
    (void)usleep(20000);
    assert_false(d9d_fs_exists("c/step-00000001"));
    assert_ok(d9di_checkpointer_async_advance(r.saver, 8, 1)); /* all have written */
    assert_ok(d9di_checkpointer_async_advance(r.saver, 8, 1)); /* said of the writing alone */
    assert_ok(d9di_checkpointer_async_finish(r.saver));
    check_saved(1);
    run_close(&r);
}

static void one_is_under_way_at_a_time(void **state)
{
    run r;

    (void)state;
    run_open(&r, true, true);
    for (int i = 0; i < 4; i++) {
        run_step(&r);
        assert_ok(save_begin(&r, i == 3));
        assert_ok(d9di_checkpointer_async_wait_copy(r.saver));
        if (i > 0)
            check_saved(i == 3 ? 4 : i);
    }
    assert_int_equal(entries(), 3);
    run_close(&r);
}

static void what_is_waited_for_is_there(void **state)
{
    bool begun = false;
    run r;

    (void)state;
    for (int behind = 0; behind < 2; behind++) {
        run_open(&r, behind == 1, true);
        run_step(&r);
        assert_ok(save_begin(&r, behind == 1));
        check_saved(1);
        assert_ok(d9di_checkpointer_async_finish(r.saver));
        run_close(&r);
        assert_ok(d9d_fs_remove_tree("c"));
    }
    assert_ok(d9di_checkpointer_async_begin(NULL, &r.state, true, &begun));
    assert_ok(d9di_checkpointer_async_wait_copy(NULL));
    assert_ok(d9di_checkpointer_async_advance(NULL, 1, 1));
    assert_true(d9di_checkpointer_async_progress(NULL, 1) == 0);
}

static void no_memory_for_a_copy_is_a_warning(void **state)
{
    run r;

    (void)state;
    run_open(&r, true, false);
    unit_check_has(
        r.outbox,
        "cpu: out of memory: 8000 bytes requested: training will wait for every checkpoint",
        __FILE__, __LINE__);
    run_step(&r);
    assert_ok(save_begin(&r, false));
    check_saved(1);
    run_close(&r);
}

static void a_full_disk_is_reported_after_the_step(void **state)
{
    d9d_status st = D9D_OK;
    run r;

    (void)state;
    run_open(&r, true, true);
    run_step(&r);
    assert_ok(save_begin(&r, true));
    run_step(&r);
    disk_is(false, true);
    assert_ok(save_begin(&r, false));
    for (int i = 0; i < 60000 && st == D9D_OK; i++) {
        st = run_steps(&r);
        (void)usleep(1000);
    }
    assert_fails_like(st, D9D_EIO, "c/step-00000002.tmp-");
    unit_check_has(d9d_err_message(), ": cannot write 4000 bytes at ", __FILE__, __LINE__);
    unit_check_has(d9d_err_message(), ": No space left on device", __FILE__, __LINE__);
    check_saved(1);
    assert_int_equal(entries(), 2);
    /* With room again the next one succeeds. */
    disk_is(false, false);
    assert_ok(save_begin(&r, false));
    assert_ok(d9di_checkpointer_async_finish(r.saver));
    check_saved(r.state.step);
    run_close(&r);
}

static void what_is_given_up_leaves_nothing(void **state)
{
    run r;

    (void)state;
    run_open(&r, true, true);
    run_step(&r);
    assert_ok(save_begin(&r, true));
    run_step(&r);
    assert_ok(save_begin(&r, false));
    run_close(&r);
    check_saved(1);
    assert_int_equal(entries(), 2);
}

static void memory_is_left(void **state)
{
    (void)state;
    assert_true(d9d_mem_available() > 1 << 20);
    assert_true(d9d_mem_available() < UINT64_C(1) << 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        unit_test_in_dir(it_holds_what_was_there_when_it_began),
        unit_test_in_dir(a_save_that_outlasts_its_period_is_not_joined_by_another),
        unit_test_in_dir(a_stuck_disk_keeps_nobody_waiting),
        unit_test_in_dir(old_numbers_say_nothing),
        unit_test_in_dir(one_is_under_way_at_a_time),
        unit_test_in_dir(what_is_waited_for_is_there),
        unit_test_in_dir(no_memory_for_a_copy_is_a_warning),
        unit_test_in_dir(a_full_disk_is_reported_after_the_step),
        unit_test_in_dir(what_is_given_up_leaves_nothing),
        cmocka_unit_test(memory_is_left),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
