/* test_flight.c - flight recorder: analysis of the rings, which rank the others wait for. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm/watch/flight_ring.h"
#include "d9d/base/fs.h"
#include "d9d/base/thread.h"
#include "support/json_memory.h"
#include "support/unit.h"

enum { RANKS = 4, WORLD = 0, TP = 1, BESIDE = 2 };

#define SECOND INT64_C(1000000000)

/* Four ranks of dp_shard 2, tp 2 on another host, all alive, with two collectives of the world
 * done. */
struct job {
    d9di_flight_ring *ring[RANKS];
};

static void add(d9di_flight_ring *r, int group, d9di_comm_coll verb, d9di_flight_call_state step,
                const char *what)
{
    d9di_flight_call *x = &r->call[r->header.calls % D9DI_FLIGHT_CALLS];

    *x = (d9di_flight_call){.number = ++r->header.calls,
                            .begin = (100 + r->header.calls) * SECOND,
                            .n = 10,
                            .group = (uint8_t)group,
                            .coll = (uint8_t)verb,
                            .state = (int32_t)step};
    x->seq = verb == D9DI_COLL_SEND_RECV ? 1 : ++r->header.group[group].seq;
    x->end = step == D9DI_FLIGHT_CALL_COMPLETED ? x->begin + SECOND / 2 : 0;
    (void)snprintf(x->label, sizeof(x->label), "%s", what);
}

static void job_open(struct job *j)
{
    for (int i = 0; i < RANKS; i++) {
        d9di_flight_ring *r = calloc(1, sizeof(*r));

        assert_non_null(r);
        r->header = (d9di_flight_header){.job = 7,
                                         .rank = i,
                                         .size = RANKS,
                                         .degrees = {.pipeline_parallel = 1,
                                                     .data_parallel_replicate = 1,
                                                     .data_parallel_shard = 2,
                                                     .context_parallel_replicate = 1,
                                                     .context_parallel_shard = 1,
                                                     .tensor_parallel = 2,
                                                     .expert_parallel = 2},
                                         .heartbeat = 200 * SECOND,
                                         .clock_offset = INT64_C(1700000000) * SECOND, /* in 2023 */
                                         .groups = 2,
                                         .host = "elsewhere"};
        memcpy(r->header.magic, D9DI_FLIGHT_MAGIC, sizeof(r->header.magic));
        (void)snprintf(r->header.node, sizeof(r->header.node), "n%d", i / 2);
        r->header.group[WORLD].axes = D9D_AXIS(DP_SHARD) | D9D_AXIS(TP);
        r->header.group[TP].axes = D9D_AXIS(TP);
        add(r, WORLD, D9DI_COLL_ALL_REDUCE, D9DI_FLIGHT_CALL_COMPLETED, "one");
        add(r, WORLD, D9DI_COLL_ALL_REDUCE, D9DI_FLIGHT_CALL_COMPLETED, "two");
        j->ring[i] = r;
    }
}

static void write_ring(const d9di_flight_ring *r, int rank)
{
    char path[64];

    (void)snprintf(path, sizeof(path), "rank-%d.bin", rank);
    assert_ok(d9d_fs_write_atomic(path, r, sizeof(*r)));
}

/* Analyses the rings, and frees them. */
static void check(struct job *j, d9d_flight_fault fault, int culprit, const char *part)
{
    d9d_flight_diagnosis v;
    d9d_buf text = {0};
    d9d_flight *f;
    json_t *json;

    for (int i = 0; i < RANKS; i++)
        write_ring(j->ring[i], i);
    assert_ok(d9d_flight_open(".", &f));
    assert_int_equal(d9d_flight_size(f), RANKS);
    assert_ok(d9d_flight_diagnose(f, &v, &text));
    unit_check_has(text.data, part, __FILE__, __LINE__);
    assert_int_equal(v.fault, fault);
    assert_int_equal(v.n_culprits > 0 ? v.culprit[0] : -1, culprit);
    assert_ok(d9d_flight_json(f, 3, &json));
    json_decref(json);
    d9d_buf_release(&text);
    d9d_flight_close(f);
    for (int i = 0; i < RANKS; i++)
        free(j->ring[i]);
}

static void nobody_waits(void **state)
{
    struct job j;

    (void)state;
    job_open(&j);
    check(&j, D9D_FLIGHT_HEALTHY, -1, "no rank waits for another");
}

static void a_rank_has_not_come(void **state)
{
    struct job j;

    (void)state;
    job_open(&j);
    for (int i = 0; i < RANKS; i++)
        if (i != 2)
            add(j.ring[i], WORLD, D9DI_COLL_ALL_REDUCE, D9DI_FLIGHT_CALL_STARTED, "loss");
    check(&j, D9D_FLIGHT_MISSING, 2,
          "dp_shard+tp: all_reduce 3 of loss, float32 [10]: ranks 0 1 3 wait since 97.0 s for "
          "rank 2 (n1, dps 1 tp 0), which is ");
}

/* Live processes of this host: rank 2 has been missing for some seconds. */
static void job_of_now(struct job *j)
{
    d9di_flight_process self;

    job_open(j);
    d9di_flight_process_self(&self);
    for (int i = 0; i < RANKS; i++) {
        d9di_flight_header *h = &j->ring[i]->header;

        if (i != 2)
            add(j->ring[i], WORLD, D9DI_COLL_ALL_REDUCE, D9DI_FLIGHT_CALL_STARTED, "loss");
        memcpy(h->host, self.host, sizeof(h->host));
        h->pid = self.pid;
        h->started = self.started;
        h->heartbeat = 103 * SECOND;
    }
}

/* The last heartbeats were `waited_s` ago; the clock has been set by some hours between them. */
static void check_now(struct job *j, double waited_s, d9d_flight_fault fault, int culprit,
                      const char *part)
{
    const int64_t by = d9d_clock_ns() - 103 * SECOND - (int64_t)(waited_s * 1e9);

    for (int i = 0; i < RANKS; i++) {
        d9di_flight_ring *r = j->ring[i];

        r->header.heartbeat += by;
        r->header.clock_offset += (i - 1) * INT64_C(3600) * SECOND;
        for (int64_t k = 0; k < r->header.calls; k++) {
            r->call[k].begin += by;
            r->call[k].end += r->call[k].end > 0 ? by : 0;
        }
    }
    check(j, fault, culprit, part);
}

/* Setting a host's clock does not make its ranks seem silent. */
static void a_beat_says_what_time_of_day_it_is(void **state)
{
    struct timespec t = {0};
    d9di_flight_ring *r = calloc(1, sizeof(*r));
    int64_t now;

    (void)state;
    assert_non_null(r);
    for (int hours = -1; hours <= 1; hours++) {
        r->header.clock_offset = hours * INT64_C(3600) * SECOND;
        now = d9d_clock_ns();
        d9di_flight_ring_heartbeat(r, now);
        assert_int_equal(clock_gettime(CLOCK_REALTIME, &t), 0);
        assert_int_equal(r->header.heartbeat, now);
        now =
            (int64_t)t.tv_sec * SECOND + t.tv_nsec - (r->header.heartbeat + r->header.clock_offset);
        assert_true(now >= 0 && now < 60 * SECOND);
    }
    free(r);
}

static void a_job_at_work_is_well(void **state)
{
    struct job j;

    (void)state;
    job_of_now(&j);
    check_now(&j, 0.1, D9D_FLIGHT_HEALTHY, -1, "for rank 2 (n1, dps 1 tp 0), which is alive");
    job_of_now(&j);
    check_now(&j, 2, D9D_FLIGHT_MISSING, 2, "for rank 2 (n1, dps 1 tp 0), which is alive");
    /* Ranks seen at different times do not wait for each other, */
    for (int late = 0; late < 2; late++) {
        job_of_now(&j);
        add(j.ring[2], TP, D9DI_COLL_ALL_GATHER, D9DI_FLIGHT_CALL_STARTED, "x");
        check_now(&j, late ? 2 : 0.1, late ? D9D_FLIGHT_CYCLE : D9D_FLIGHT_HEALTHY, late ? 2 : -1,
                  late ? "they wait for each other" : "which waits in tp: all_gather 1 of x");
    }
    /* and a rank that is gone is so at once. */
    job_of_now(&j);
    j.ring[2]->header.started++;
    check_now(&j, 0.1, D9D_FLIGHT_MISSING, 2, "for rank 2 (n1, dps 1 tp 0), which is gone");
}

static void a_chain_is_followed(void **state)
{
    struct job j;

    (void)state;
    job_open(&j);
    for (int i = 0; i < 2; i++)
        add(j.ring[i], WORLD, D9DI_COLL_ALL_REDUCE, D9DI_FLIGHT_CALL_STARTED, "loss");
    add(j.ring[2], TP, D9DI_COLL_ALL_GATHER, D9DI_FLIGHT_CALL_STARTED, "x");
    check(&j, D9D_FLIGHT_MISSING, 3, "rank 3 (n1, dps 1 tp 1)");
    /* A deadlock of two ranks. */
    job_open(&j);
    for (int i = 0; i < 3; i++)
        add(j.ring[i], WORLD, D9DI_COLL_ALL_REDUCE, D9DI_FLIGHT_CALL_STARTED, "loss");
    add(j.ring[3], TP, D9DI_COLL_ALL_GATHER, D9DI_FLIGHT_CALL_STARTED, "x");
    check(&j, D9D_FLIGHT_CYCLE, 2, "they wait for each other");
}

/* A watchdog has ended the job: who was alive then is not to blame, though the launcher killed it
 * sooner than others. */
static void ranks_that_a_watchdog_ended_were_alive(void **state)
{
    struct job j;

    (void)state;
    job_open(&j);
    for (int i = 0; i < 3; i++)
        add(j.ring[i], WORLD, D9DI_COLL_ALL_REDUCE, D9DI_FLIGHT_CALL_STARTED, "loss");
    add(j.ring[3], TP, D9DI_COLL_ALL_GATHER, D9DI_FLIGHT_CALL_STARTED, "x");
    j.ring[0]->header.state = D9DI_FLIGHT_ABORTED;
    j.ring[1]->header.heartbeat += SECOND;
    j.ring[1]->header.state = D9DI_FLIGHT_ABORTED;
    j.ring[2]->header.heartbeat += 2 * SECOND;
    j.ring[2]->header.clock_offset += INT64_C(3600) * SECOND; /* the clock was set before it */
    check(&j, D9D_FLIGHT_CYCLE, 2, "they wait for each other");
    /* ... unlike one that had died before. */
    job_open(&j);
    for (int i = 0; i < RANKS; i++)
        add(j.ring[i], WORLD, D9DI_COLL_ALL_REDUCE, D9DI_FLIGHT_CALL_STARTED, "loss");
    j.ring[0]->header.state = D9DI_FLIGHT_ABORTED;
    j.ring[3]->header.heartbeat -= 2 * SECOND;
    check(&j, D9D_FLIGHT_LOST, 3, "the first that fell silent is rank 3");
}

/* Two groups over the same axes have separate sequence numbers. */
static void groups_beside_each_other(void **state)
{
    struct job j;

    (void)state;
    job_open(&j);
    for (int i = 0; i < RANKS; i++) {
        j.ring[i]->header.group[BESIDE].axes = D9D_AXIS(TP);
        j.ring[i]->header.groups = 3;
        add(j.ring[i], TP, D9DI_COLL_ALL_REDUCE, D9DI_FLIGHT_CALL_COMPLETED, "x");
        if (i != 3)
            add(j.ring[i], BESIDE, D9DI_COLL_ALL_GATHER, D9DI_FLIGHT_CALL_STARTED, "y");
    }
    j.ring[2]->call[3].begin -= SECOND;
    check(&j, D9D_FLIGHT_MISSING, 3, "tp: all_gather 1 of y, float32 [10]: rank 2 waits since");
}

static void calls_differ(void **state)
{
    struct job j;

    (void)state;
    job_open(&j);
    for (int i = 0; i < RANKS; i++)
        add(j.ring[i], WORLD, i == 1 ? D9DI_COLL_ALL_GATHER : D9DI_COLL_ALL_REDUCE,
            D9DI_FLIGHT_CALL_STARTED, "x");
    check(&j, D9D_FLIGHT_MISMATCH, 1,
          "dp_shard+tp: call 3 differs: rank 1 (n0, dps 0 tp 1) makes all_gather 3 of x, float32 "
          "[10]; ranks 0 2 3 make all_reduce 3 of x, float32 [10]");
    /* Also when it was skipped, and later collectives wait. */
    job_open(&j);
    (void)snprintf(j.ring[3]->call[1].label, sizeof(j.ring[3]->call[1].label), "deux");
    for (int i = 0; i < RANKS; i++)
        add(j.ring[i], WORLD, D9DI_COLL_ALL_REDUCE, D9DI_FLIGHT_CALL_STARTED, "x");
    check(&j, D9D_FLIGHT_MISMATCH, 3, "call 2 differs: rank 3");
    /* ... and when no rank waits. */
    job_open(&j);
    j.ring[0]->call[0].dtype = D9D_F64;
    check(&j, D9D_FLIGHT_MISMATCH, 0, "call 1 differs: rank 0");
}

static void messages_wait_for_their_peer(void **state)
{
    struct job j;

    (void)state;
    job_open(&j);
    add(j.ring[0], TP, D9DI_COLL_SEND_RECV, D9DI_FLIGHT_CALL_STARTED, "kv");
    j.ring[0]->call[2].peer[0] = -2; /* from rank 1 */
    check(&j, D9D_FLIGHT_MISSING, 1, "tp: send_recv 1 of kv, float32 [10]: rank 0 waits since");
}

static void all_have_come(void **state)
{
    struct job j;

    (void)state;
    job_open(&j);
    for (int i = 0; i < RANKS; i++)
        add(j.ring[i], WORLD, D9DI_COLL_ALL_REDUCE, D9DI_FLIGHT_CALL_ENQUEUED, "x");
    check(&j, D9D_FLIGHT_STUCK, -1, "all have come: the network or a device stands still");
    /* ... as in a running job, */
    job_open(&j);
    for (int i = 0; i < RANKS; i++) {
        add(j.ring[i], WORLD, D9DI_COLL_ALL_REDUCE, D9DI_FLIGHT_CALL_STARTED, "x");
        j.ring[i]->call[2].begin = 200 * SECOND - SECOND / 4;
    }
    check(&j, D9D_FLIGHT_HEALTHY, -1, "wait since 0.2 s; all have come a moment ago");
    /* ... but one of them became silent two seconds before the others. */
    job_open(&j);
    for (int i = 0; i < RANKS; i++)
        add(j.ring[i], WORLD, D9DI_COLL_ALL_REDUCE, D9DI_FLIGHT_CALL_STARTED, "x");
    j.ring[1]->header.heartbeat -= 2 * SECOND;
    check(&j, D9D_FLIGHT_LOST, 1, "the first that fell silent is rank 1");
}

/* If its call fails, a rank is gone: the other is not to blame. */
static void a_call_fails(void **state)
{
    struct job j;

    (void)state;
    job_open(&j);
    for (int i = 0; i < RANKS; i++) {
        add(j.ring[i], WORLD, D9DI_COLL_ALL_TO_ALL, D9DI_FLIGHT_CALL_FAILED, "rows");
        j.ring[i]->header.state = D9DI_FLIGHT_FAILED;
    }
    j.ring[2]->header.state = D9DI_FLIGHT_RUNNING;
    j.ring[2]->call[2].state = D9DI_FLIGHT_CALL_ENQUEUED;
    j.ring[2]->header.heartbeat -= SECOND;
    check(&j, D9D_FLIGHT_LOST, 2, "the first that fell silent is rank 2");
    /* ... or no rank is, */
    job_open(&j);
    add(j.ring[1], WORLD, D9DI_COLL_ALL_TO_ALL, D9DI_FLIGHT_CALL_FAILED, "rows");
    j.ring[1]->header.state = D9DI_FLIGHT_FAILED;
    check(&j, D9D_FLIGHT_LOST, 1, "rank 1 (n0, dps 0 tp 1), which has failed");
    /* ... or one had failed by itself, and ended the other. */
    job_open(&j);
    add(j.ring[1], WORLD, D9DI_COLL_ALL_TO_ALL, D9DI_FLIGHT_CALL_FAILED, "rows");
    j.ring[1]->header.state = j.ring[3]->header.state = D9DI_FLIGHT_FAILED;
    j.ring[0]->header.heartbeat -= SECOND;
    check(&j, D9D_FLIGHT_LOST, 3, "rank 3 (n1, dps 1 tp 1), which has failed");
}

static void rings_wrap(void **state)
{
    struct job j;

    (void)state;
    job_open(&j);
    for (int i = 0; i < RANKS; i++) {
        for (int k = 0; k < 3000; k++)
            add(j.ring[i], k % 2, D9DI_COLL_ALL_REDUCE, D9DI_FLIGHT_CALL_COMPLETED, "x");
        j.ring[i]->header.heartbeat = 4000 * SECOND;
        if (i != 0)
            add(j.ring[i], TP, D9DI_COLL_ALL_REDUCE, D9DI_FLIGHT_CALL_STARTED, "y");
    }
    check(&j, D9D_FLIGHT_MISSING, 0, "tp: all_reduce 1501 of y, float32 [10]: rank 1 waits");
}

static void damage_is_no_record(void **state)
{
    uint32_t seed = 1;
    struct job j;

    (void)state;
    job_open(&j);
    for (int i = 0; i < RANKS; i++)
        write_ring(j.ring[i], i);
    for (int round = 0; round < 300; round++) {
        d9di_flight_ring *r = malloc(sizeof(*r));
        d9d_flight *f;
        d9d_buf text = {0};

        assert_non_null(r);
        memcpy(r, j.ring[1], sizeof(*r));
        for (int k = 0; k < 1 + round % 20; k++) {
            seed = seed * 1664525u + 1013904223u;
            ((unsigned char *)r)[(seed >> 8) % (round % 2 ? 512 : 4096 + 3 * 128)] =
                (unsigned char)(seed >> 24);
        }
        write_ring(r, 1);
        free(r);
        if (d9d_flight_open(".", &f) == D9D_OK) {
            assert_ok(d9d_flight_text(f, &text));
            d9d_flight_close(f);
        }
        d9d_buf_release(&text);
    }
    for (int i = 0; i < RANKS; i++)
        free(j.ring[i]);
}

/* A ring of another version is not read, but gives way to a new one; a file of somebody's does not.
 */
static void a_ring_of_another_version_gives_way(void **state)
{
    struct job j;
    d9d_flight *f;

    (void)state;
    job_open(&j);
    j.ring[1]->header.magic[sizeof(D9DI_FLIGHT_MAGIC) - 2] = '1';
    write_ring(j.ring[1], 1);
    assert_int_equal(d9d_flight_open(".", &f), D9D_EFORMAT);
    assert_true(d9d_flight_remove(".", 1));
    j.ring[1]->header.magic[0] = 'x';
    write_ring(j.ring[1], 1);
    assert_false(d9d_flight_remove(".", 1));
    for (int i = 0; i < RANKS; i++)
        free(j.ring[i]);
}

/* A report is complete or an error, whichever allocation fails. */
static void no_memory_for_a_report(void **state)
{
    json_t *v;
    d9d_flight *f;
    struct job j;
    int left = 0;

    (void)state;
    job_open(&j);
    for (int i = 0; i < RANKS; i++) {
        if (i != 2)
            add(j.ring[i], WORLD, D9DI_COLL_ALL_REDUCE, D9DI_FLIGHT_CALL_STARTED, "loss");
        write_ring(j.ring[i], i);
        free(j.ring[i]);
    }
    assert_ok(d9d_flight_open(".", &f));
    for (;; left++) {
        d9d_status st;

        json_memory_begin(left);
        st = d9d_flight_json(f, 3, &v);
        if (!json_memory_end())
            break;
        assert_int_equal(st, D9D_ENOMEM);
    }
    assert_true(left > 100);
    json_decref(v);
    d9d_flight_close(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        unit_test_in_dir(no_memory_for_a_report),
        unit_test_in_dir(nobody_waits),
        unit_test_in_dir(a_rank_has_not_come),
        unit_test_in_dir(a_beat_says_what_time_of_day_it_is),
        unit_test_in_dir(a_job_at_work_is_well),
        unit_test_in_dir(a_chain_is_followed),
        unit_test_in_dir(ranks_that_a_watchdog_ended_were_alive),
        unit_test_in_dir(groups_beside_each_other),
        unit_test_in_dir(calls_differ),
        unit_test_in_dir(messages_wait_for_their_peer),
        unit_test_in_dir(all_have_come),
        unit_test_in_dir(a_call_fails),
        unit_test_in_dir(rings_wrap),
        unit_test_in_dir(damage_is_no_record),
        unit_test_in_dir(a_ring_of_another_version_gives_way),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
