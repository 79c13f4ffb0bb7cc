/* test_local_peers.c - detects ranks of this host that died without a message. */
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/watch/local_peers.h"
#include "support/unit.h"

/* Rank 1 of two: a sleeping process, whose flight ring this one maps. */
struct other {
    pid_t pid;
    d9d_bootstrap *bootstrap;
    d9di_flight_ring *ring;
    d9di_local_peers_address all[2];
};

static pid_t start(d9di_flight_process *out)
{
    int end[2];
    pid_t pid;

    assert_int_equal(pipe(end), 0);
    pid = fork();
    if (pid == 0) {
        d9di_flight_process self;

        d9di_flight_process_self(&self);
        (void)!write(end[1], &self, sizeof(self));
        for (;;)
            (void)pause();
    }
    assert_true(pid > 0);
    assert_int_equal(read(end[0], out, sizeof(*out)), sizeof(*out));
    (void)close(end[0]);
    (void)close(end[1]);
    return pid;
}

static void end(pid_t pid)
{
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void other_open(struct other *o)
{
    const d9d_parallel_degrees two = {1, 1, 2, 1, 1, 1, 1, 1, D9D_CP_ALL_GATHER};

    assert_ok(d9d_bootstrap_simulate(1, 2, &o->bootstrap));
    assert_ok(d9di_flight_ring_create(".", &o->ring));
    d9di_flight_ring_init(o->ring, o->bootstrap, &two, 7);
    memset(o->all, 0, sizeof(o->all));
    d9di_flight_process_self(&o->all[0].self);
    o->pid = start(&o->all[1].self);
    memcpy(o->all[1].shm_path, o->ring->header.shm_path, sizeof(o->all[1].shm_path));
}

static void other_close(struct other *o)
{
    d9di_flight_ring_release(o->ring, false);
    d9d_bootstrap_close(o->bootstrap);
}

static d9di_local_peers *local_peers_of(const struct other *o)
{
    d9di_local_peers *n;

    assert_ok(d9di_local_peers_open(o->all, 2, 0, &n));
    return n;
}

static void one_is_dead(void **state)
{
    struct other o;
    d9di_local_peers *n;

    (void)state;
    other_open(&o);
    n = local_peers_of(&o);
    assert_non_null(n);
    assert_false(d9di_local_peers_poll(n).died);
    end(o.pid);
    assert_true(d9di_local_peers_poll(n).died);
    assert_null(local_peers_of(&o)); /* a rank that was never seen is not missing */
    d9di_local_peers_close(n);
    other_close(&o);
}

static void what_is_left_of_one(void **state)
{
    struct other o;
    d9di_local_peers *n;

    (void)state;
    other_open(&o);
    n = local_peers_of(&o);
    assert_int_equal(kill(o.pid, SIGKILL), 0);
    while (!d9di_flight_process_is_gone(o.all[1].self.pid, o.all[1].self.started, NULL))
        (void)usleep(1000); /* not reaped: a zombie */
    assert_true(d9di_local_peers_poll(n).died);
    assert_int_equal(waitpid(o.pid, NULL, 0), o.pid);
    d9di_local_peers_close(n);
    other_close(&o);
}

static void await_stop(const d9di_flight_process *x, bool stopped)
{
    char state;

    do {
        (void)usleep(1000);
        assert_false(d9di_flight_process_is_gone(x->pid, x->started, &state));
    } while ((state == 'T') != stopped);
}

static void one_is_stopped(void **state)
{
    struct other o;
    d9di_local_peers *n;

    (void)state;
    other_open(&o);
    n = local_peers_of(&o);
    assert_false(d9di_local_peers_poll(n).stopped);
    assert_int_equal(kill(o.pid, SIGSTOP), 0);
    await_stop(&o.all[1].self, true);
    assert_true(d9di_local_peers_poll(n).stopped);
    assert_false(d9di_local_peers_poll(n).died);
    assert_int_equal(kill(o.pid, SIGCONT), 0);
    await_stop(&o.all[1].self, false);
    assert_false(d9di_local_peers_poll(n).stopped);
    end(o.pid);
    assert_false(d9di_local_peers_poll(n).stopped);
    d9di_local_peers_close(n);
    other_close(&o);
}

static void one_has_left(void **state)
{
    struct other o;
    d9di_local_peers *n;

    (void)state;
    other_open(&o);
    n = local_peers_of(&o);
    d9di_flight_ring_set_state(o.ring, D9DI_FLIGHT_CLOSED);
    d9di_flight_ring_release(o.ring, false);
    o.ring = NULL;
    end(o.pid);
    assert_false(d9di_local_peers_poll(n).died);
    d9di_local_peers_close(n);
    other_close(&o);
}

/* The content of the file of rank 1. */
static bool file_has(int64_t job, int64_t calls)
{
    d9d_file f;
    d9di_flight_header h;

    if (d9d_file_open("rank-1.bin", &f) != D9D_OK)
        return false;
    assert_ok(d9d_file_read_at(&f, &h, sizeof(h), 0));
    d9d_file_release(&f);
    return h.job == job && h.calls == calls && h.max_lag == 0;
}

/* The last records of a dead rank are written by another, once; the file of a newer job stays. */
static void what_one_left_is_written_out(void **state)
{
    struct other o;
    d9di_local_peers *n;
    char memory[D9DI_FLIGHT_SHM_PATH_MAX];

    (void)state;
    other_open(&o);
    memcpy(memory, o.ring->header.shm_path, sizeof(memory));
    o.ring->header.calls = 17;
    n = local_peers_of(&o);
    d9di_local_peers_salvage(n, ".");
    assert_false(file_has(7, 17)); /* it is alive */
    end(o.pid);
    d9di_local_peers_salvage(n, ".");
    assert_true(file_has(7, 17));
    if (strncmp(memory, "/proc/", 6) != 0) /* where there is no /dev/shm, nothing is left of it */
        assert_int_equal(access(memory, F_OK), -1);
    o.ring->header.calls = 18;
    d9di_local_peers_salvage(n, ".");
    assert_true(file_has(7, 17));
    d9di_local_peers_close(n);
    o.ring->header.job = 6;
    (void)snprintf(o.ring->header.shm_path, sizeof(o.ring->header.shm_path), "/proc/none");
    assert_ok(d9di_flight_store_salvage(".", o.ring));
    assert_true(file_has(7, 17));
    other_close(&o);
}

/* Without a directory for named memory, others open it through /proc of its process. */
static void memory_without_a_name(void **state)
{
    const d9d_parallel_degrees one = {1, 1, 1, 1, 1, 1, 1, 1, D9D_CP_ALL_GATHER};
    d9di_flight_ring *r, *copy = malloc(sizeof(*copy));
    const d9di_flight_ring *seen;
    d9d_bootstrap *bootstrap;

    (void)state;
    assert_non_null(copy);
    assert_ok(d9d_bootstrap_simulate(0, 1, &bootstrap));
    assert_ok(d9di_flight_ring_create(NULL, &r));
    d9di_flight_ring_init(r, bootstrap, &one, 7);
    seen = d9di_flight_ring_attach(r->header.shm_path);
    assert_non_null(seen);
    assert_true(d9di_flight_ring_read(r->header.shm_path, copy));
    assert_int_equal(copy->header.job, 7);
    d9di_flight_ring_set_state(r, D9DI_FLIGHT_FAILED);
    d9di_flight_ring_release(r, true);
    assert_int_equal(d9di_flight_ring_state(seen), D9DI_FLIGHT_FAILED);
    d9di_flight_ring_detach(seen);
    assert_null(d9di_flight_ring_attach("/etc/passwd"));
    assert_null(d9di_flight_ring_attach("/dev/shm/d9d-flight-../../x"));
    free(copy);
    d9d_bootstrap_close(bootstrap);
}

static void others_live_elsewhere(void **state)
{
    struct other o;

    (void)state;
    other_open(&o);
    o.all[1].self.host[0] ^= 1;
    assert_null(local_peers_of(&o));
    end(o.pid);
    other_close(&o);
}

/* The identity that a process in a container of this host reports; false if none can be made. */
static bool contained(d9di_flight_process *out)
{
    int end[2];
    pid_t pid;
    bool said;

    assert_int_equal(pipe(end), 0);
    pid = fork();
    if (pid == 0) {
        if (unshare(CLONE_NEWPID) == 0 && (pid = fork()) == 0) {
            d9di_flight_process_self(out);
            (void)!write(end[1], out, sizeof(*out));
        } else if (pid > 0) {
            (void)waitpid(pid, NULL, 0);
        }
        _exit(0);
    }
    (void)close(end[1]);
    said = read(end[0], out, sizeof(*out)) == sizeof(*out);
    (void)close(end[0]);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    return said;
}

/* A pid there is another process than here. */
static void others_live_in_a_container(void **state)
{
    d9di_flight_process there;
    struct other o;

    (void)state;
    if (!contained(&there))
        skip();
    other_open(&o);
    memcpy(o.all[1].self.host, there.host, sizeof(there.host));
    assert_null(local_peers_of(&o));
    end(o.pid);
    other_close(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        unit_test_in_dir(one_is_dead),
        unit_test_in_dir(what_is_left_of_one),
        unit_test_in_dir(one_is_stopped),
        unit_test_in_dir(one_has_left),
        unit_test_in_dir(what_one_left_is_written_out),
        unit_test_in_dir(memory_without_a_name),
        unit_test_in_dir(others_live_elsewhere),
        unit_test_in_dir(others_live_in_a_container),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
