/* test_checkpointer_local.c - local checkpoints of a job of one rank: what they hold, that two
 * saves never run at once, and that an older one stays whole whatever becomes of the next.  Copies
 * to the host wait for the test. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpointer/checkpointer_local_private.h"
#include "d9d/base/fs.h"
#include "device/backend.h"
#include "support/unit.h"

enum { N = 100 };

static const d9di_checkpointer_local_mesh job = {.job = 7, .replicas = 1, .ranks = 1};

static struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool shut;
} gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void gate_is(bool shut)
{
    (void)pthread_mutex_lock(&gate.lock);
    gate.shut = shut;
    (void)pthread_cond_broadcast(&gate.changed);
    (void)pthread_mutex_unlock(&gate.lock);
}

static d9d_status gated_copy(d9d_device *dev, void *pinned, const void *src, uint64_t n)
{
    (void)dev;
    (void)pthread_mutex_lock(&gate.lock);
    while (gate.shut)
        (void)pthread_cond_wait(&gate.changed, &gate.lock);
    (void)pthread_mutex_unlock(&gate.lock);
    memcpy(pinned, src, n);
    return D9D_OK;
}

typedef struct run {
    d9d_device *dev;
    d9d_device_ops ops;
    d9d_bootstrap *bootstrap;
    d9d_mesh *mesh;
    d9d_tensor weights;
    d9d_checkpointer_tensor item;
    int64_t steps;
    d9d_checkpointer_count count;
    d9d_checkpointer_set set;
    d9d_checkpointer_state state;
    char said[2048];
    d9d_log log;
    d9d_arena arena;
    d9di_checkpointer_local_found found;
    d9di_checkpointer_local *local;
} run;

static void keep_line(void *arg, d9d_log_level level, const char *text)
{
    run *r = arg;
    const size_t len = strlen(r->said);

    (void)level;
    (void)snprintf(r->said + len, sizeof(r->said) - len, "%s\n", text);
}

static void run_open(run *r, double timeout_s)
{
    const d9d_parallel_degrees alone = {1, 1, 1, 1, 1, 1, 1, 1, D9D_CP_ALL_GATHER};
    const d9d_mesh_opts opts = {.timeout_s = 600};

    *r = (run){.state = {.finite = true, .parent = -1}};
    assert_ok(d9d_device_open("cpu", &r->dev));
    r->ops = *r->dev->ops;
    r->ops.d2h = gated_copy;
    r->dev->ops = &r->ops;
    assert_ok(d9d_bootstrap_single(&r->bootstrap));
    assert_ok(d9d_mesh_open(r->bootstrap, &alone, "cpu", r->dev->stream, &opts, &r->mesh));
    assert_ok(d9d_tensor_alloc(r->dev, D9D_F32, D9D_SHAPE(N), &r->weights));
    r->item = (d9d_checkpointer_tensor){.name = "w", .tensor = &r->weights};
    r->count = (d9d_checkpointer_count){"w", &r->steps};
    r->set = (d9d_checkpointer_set){.items = &r->item, .n = 1, .counts = &r->count, .n_counts = 1};
    r->log = (d9d_log){.line = keep_line, .arg = r, .level = D9D_LOG_WARN};
    assert_ok(d9di_checkpointer_local_find(r->bootstrap, "abc", &job, &r->arena, &r->found));
    assert_ok(
        d9di_checkpointer_local_open(&(d9di_checkpointer_local_opts){.id = "abc",
                                                                     .job = job,
                                                                     .set = &r->set,
                                                                     .dev = r->dev,
                                                                     .mesh = r->mesh,
                                                                     .timeout_s = timeout_s,
                                                                     .timeout_name = "the limit",
                                                                     .log = &r->log},
                                     &r->found, &r->local));
}

static void run_close(run *r)
{
    gate_is(false);
    d9di_checkpointer_local_close(r->local);
    d9d_tensor_release(&r->weights);
    d9d_mesh_close(r->mesh);
    d9d_bootstrap_close(r->bootstrap);
    d9d_device_close(r->dev);
    d9d_arena_release(&r->arena);
}

/* All elements and counts are the number of the step. */
static void run_step(run *r)
{
    float *w = d9d_tensor_data(&r->weights);

    assert_ok(d9di_checkpointer_local_wait_copy(r->local));
    r->steps = ++r->state.step;
    for (int i = 0; i < N; i++)
        w[i] = (float)r->steps;
}

/* Another start finds that step, or none, which is -1. */
static void check_found(int64_t step)
{
    d9d_checkpointer_state state;
    run r;

    run_open(&r, 0);
    assert_int_equal(r.found.step, step);
    if (step >= 0) {
        assert_ok(d9di_checkpointer_local_restore(r.local, &r.found, &state));
        assert_int_equal(state.step, step);
        assert_int_equal(r.steps, step);
        for (int i = 0; i < N; i++)
            assert_true(((float *)d9d_tensor_data(&r.weights))[i] == (float)step);
    }
    run_close(&r);
}

/* --- tests ------------------------------------------------------------------------------------ */

static void training_goes_on(void **state)
{
    run r;

    (void)state;
    run_open(&r, 0);
    run_step(&r);
    assert_ok(d9di_checkpointer_local_begin(r.local, &r.state));
    for (int i = 0; i < 3; i++)
        run_step(&r);
    d9di_checkpointer_local_wait(r.local);
    check_found(1);
    assert_ok(d9di_checkpointer_local_begin(r.local, &r.state));
    d9di_checkpointer_local_wait(r.local);
    check_found(4);
    assert_string_equal(r.said, "");
    d9di_checkpointer_local_remove(r.local);
    check_found(-1);
    run_close(&r);
}

static void an_older_one_stays_whole(void **state)
{
    run r;

    (void)state;
    run_open(&r, 0);
    for (int i = 0; i < 2; i++) {
        run_step(&r);
        assert_ok(d9di_checkpointer_local_begin(r.local, &r.state));
    }
    run_step(&r);
    d9di_checkpointer_local_wait(r.local);
    gate_is(true);
    assert_ok(d9di_checkpointer_local_begin(r.local, &r.state));
    check_found(2); /* while the third is copied; its end opens the gate */
    d9di_checkpointer_local_wait(r.local);
    check_found(3);
    run_close(&r);
}

static void a_flipped_bit_is_not_saved(void **state)
{
    run r;

    (void)state;
    run_open(&r, 0);
    run_step(&r);
    assert_ok(d9di_checkpointer_local_begin(r.local, &r.state));
    run_step(&r);
    d9di_checkpointer_local_wait(r.local);
    gate_is(true);
    assert_ok(d9di_checkpointer_local_begin(r.local, &r.state));
    ((unsigned char *)d9d_tensor_data(&r.weights))[9] ^= 1;
    gate_is(false);
    run_step(&r);
    assert_fails_like(d9di_checkpointer_local_begin(r.local, &r.state), D9D_ECORRUPT,
                      "w changed while it was copied for a checkpoint");
    check_found(1);
    run_close(&r);
}

static void *open_soon(void *arg)
{
    (void)usleep(30000);
    gate_is(false);
    return arg;
}

static void a_wait_is_said_once(void **state)
{
    pthread_t thread;
    run r;

    (void)state;
    run_open(&r, 0);
    run_step(&r);
    for (int i = 0; i < 3; i++) {
        d9di_checkpointer_local_wait(r.local);
        gate_is(true);
        assert_ok(d9di_checkpointer_local_begin(r.local, &r.state));
        assert_int_equal(pthread_create(&thread, NULL, open_soon, NULL), 0);
        assert_ok(d9di_checkpointer_local_begin(r.local, &r.state));
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_non_null(strstr(r.said,
                               " s for the local checkpoint of step 1, which had not ended; "
                               "a larger trainer.checkpointing.local_period_steps avoids "
                               "this\n"));
        assert_ptr_equal(strchr(r.said, '\n'), r.said + strlen(r.said) - 1);
    }
    run_close(&r);
}

static void a_save_that_does_not_end_is_an_error(void **state)
{
    run r;

    (void)state;
    run_open(&r, 0.05);
    run_step(&r);
    gate_is(true);
    assert_ok(d9di_checkpointer_local_begin(r.local, &r.state));
    assert_fails_like(d9di_checkpointer_local_begin(r.local, &r.state), D9D_ETIMEOUT,
                      "the local checkpoint of step 1 has not ended after 0.");
    unit_check_has(d9d_err_message(), " s; the limit is 0 s", __FILE__, __LINE__);
    run_close(&r);
}

/* A header whose bits changed is no local checkpoint of that step. */
static void a_changed_header_is_refused(void **state)
{
    enum { SAMPLES = offsetof(d9di_checkpointer_local_header, state.samples) };
    d9d_checkpointer_state got;
    run r;

    (void)state;
    run_open(&r, 0);
    run_step(&r);
    assert_ok(d9di_checkpointer_local_begin(r.local, &r.state));
    d9di_checkpointer_local_wait(r.local);
    r.local->own[0].data[SAMPLES] ^= 4;
    run_close(&r);
    run_open(&r, 0);
    assert_int_equal(r.found.step, 1);
    assert_fails_like(d9di_checkpointer_local_restore(r.local, &r.found, &got), D9D_EVERIFY,
                      ": its bytes are not those that were saved after step 1; it is removed");
    d9di_checkpointer_local_remove(r.local);
    run_close(&r);
}

static void null_is_fine(void **state)
{
    (void)state;
    assert_ok(d9di_checkpointer_local_wait_copy(NULL));
    d9di_checkpointer_local_wait(NULL);
    d9di_checkpointer_local_remove(NULL);
    d9di_checkpointer_local_close(NULL);
}

static int dir_setup(void **state)
{
    const int rc = unit_dir_setup(state);

    return rc == 0 ? setenv("D9D_LOCAL_DIR", *state, 1) : rc;
}

#define test_in_dir(f) cmocka_unit_test_setup_teardown(f, dir_setup, unit_dir_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        test_in_dir(training_goes_on),
        test_in_dir(an_older_one_stays_whole),
        test_in_dir(a_flipped_bit_is_not_saved),
        test_in_dir(a_wait_is_said_once),
        test_in_dir(a_save_that_does_not_end_is_an_error),
        test_in_dir(a_changed_header_is_refused),
        cmocka_unit_test(null_is_fine),
    };

    return cmocka_run_group_tests_name("local", tests, NULL, NULL);
}
