/* test_checkpointer_rank_state.c - rank state (counters) in checkpoints: restored on the same ranks
 * or merged on one; missing or mismatched state. */
#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "checkpointer/checkpointer_private.h"
#include "support/save_ranks.h"
#include "support/unit.h"

typedef struct run {
    double sums[3];
    int64_t most[2];
    d9d_checkpointer_rank_state states[2];
    d9d_checkpointer_set set;
    d9d_checkpointer_state state;
    char outbox[2048];
    d9d_log log;
} run;

static void keep_line(void *arg, d9d_log_level level, const char *text)
{
    run *r = arg;
    const size_t len = strlen(r->outbox);

    if (level <= D9D_LOG_WARN)
        (void)snprintf(r->outbox + len, sizeof(r->outbox) - len, "%s\n", text);
}

static void run_begin(run *r)
{
    *r = (run){.most = {INT64_MIN, INT64_MIN}, .state = {.step = 1, .parent = -1, .finite = true}};
    r->states[0] = (d9d_checkpointer_rank_state){"sums", D9D_F64, 3, D9D_COMM_SUM, r->sums};
    r->states[1] = (d9d_checkpointer_rank_state){"most", D9D_I64, 2, D9D_COMM_MAX, r->most};
    r->set = (d9d_checkpointer_set){.rank_states = r->states, .n_rank_states = 2};
    r->log = (d9d_log){.line = keep_line, .arg = r, .level = D9D_LOG_WARN};
}

/* What rank `rank` has counted. */
static void run_count(run *r, int rank)
{
    for (int i = 0; i < 3; i++)
        r->sums[i] = 0.1 * (rank + 1) * (i + 1);
    r->most[0] = 10 * rank;
    r->most[1] = -10 * rank;
}

/* A checkpoint of `ranks` ranks, one after the other in this process, two in a directory. */
static void save(int ranks, const char *dir)
{
    const d9d_checkpointer_state state = {.step = 1, .parent = -1, .finite = true};
    d9di_checkpointer_save s = save_of_ranks(dir, ranks, 2, &state);
    d9d_progress untold = {.log = NULL};

    for (int rank = 0; rank < ranks; rank++) {
        run r;

        run_begin(&r);
        run_count(&r, rank);
        save_as_rank(&s, rank);
        assert_ok(d9di_checkpointer_save_write_rank(&s, &r.set, &untold));
    }
    save_merge(&s);
    d9di_checkpointer_save_release(&s);
}

/* The members of a manifest of d9d.checkpoint.v1 without tensors. */
static json_t *former_members(void)
{
    const d9d_checkpointer_state state = {.step = 1, .parent = -1, .finite = true};
    json_t *root = json_object();

    assert_ok(d9di_checkpointer_state_add(root, &state));
    d9d_json_set(&root, "optimizer_steps", json_object());
    d9d_json_set(&root, "tensors", json_array());
    return root;
}

static void each_rank_has_its_own_again(void **state)
{
    (void)state;
    save(3, "c");
    for (int rank = 0; rank < 3; rank++) {
        run r, own;

        run_begin(&own);
        run_count(&own, rank);
        run_begin(&r);
        assert_ok(d9d_checkpointer_read_rank_state("c", &r.set, rank, 3, &r.log));
        assert_memory_equal(r.sums, own.sums, sizeof(r.sums));
        assert_memory_equal(r.most, own.most, sizeof(r.most));
        assert_string_equal(r.outbox, "");
    }
}

/* The checkpoint as an earlier version wrote it: a list `key` of files `key`-rNNNNN, all files in
 * one directory. */
static void make_former(const char *dir, const char *key, const char *group)
{
    static char names[3][64];
    d9d_manifest_file files[3];
    d9d_manifest *m;
    json_t *root = former_members(), *list = json_array();

    assert_ok(d9d_manifest_open(dir, &m));
    for (size_t i = 0; i < 3; i++) {
        char from[64], to[128];

        (void)snprintf(from, sizeof(from), "ranks-%05zu/state-r%05zu.safetensors", i / 2 * 2, i);
        assert_non_null(d9d_manifest_find(m, from));
        files[i] = *d9d_manifest_find(m, from);
        (void)snprintf(names[i], sizeof(names[i]), "%s-r%05zu.safetensors", group, i);
        files[i].name = names[i];
        (void)snprintf(from, sizeof(from), "%s/ranks-%05zu/state-r%05zu.safetensors", dir,
                       i / 2 * 2, i);
        (void)snprintf(to, sizeof(to), "%s/%s", dir, names[i]);
        assert_int_equal(rename(from, to), 0);
        d9d_json_add(&list, json_string(names[i]));
    }
    d9d_json_set(&root, key, list);
    assert_ok(d9d_manifest_write_hashed(dir, root, files, 3));
    json_decref(root);
    d9d_manifest_close(m);
}

static void check_former(const char *key, const char *group)
{
    save(3, "c");
    make_former("c", key, group);
    for (int rank = 0; rank < 3; rank++) {
        run r, own;

        run_begin(&own);
        run_count(&own, rank);
        run_begin(&r);
        assert_ok(d9d_checkpointer_read_rank_state("c", &r.set, rank, 3, &r.log));
        assert_memory_equal(r.sums, own.sums, sizeof(r.sums));
        assert_memory_equal(r.most, own.most, sizeof(r.most));
        assert_string_equal(r.outbox, "");
    }
}

static void what_0_1_wrote_is_read(void **state)
{
    (void)state;
    check_former("cells", "cells");
}

static void what_v1_wrote_is_read(void **state)
{
    (void)state;
    check_former("rank_state", "state");
}

static void on_another_number_one_has_all(void **state)
{
    (void)state;
    save(3, "c");
    for (int ranks = 1; ranks < 6; ranks++)
        for (int rank = 0; rank < ranks && ranks != 3; rank++) {
            run r, fresh;

            run_begin(&fresh);
            run_begin(&r);
            assert_ok(d9d_checkpointer_read_rank_state("c", &r.set, rank, ranks, &r.log));
            if (rank > 0) {
                assert_memory_equal(r.sums, fresh.sums, sizeof(r.sums));
                assert_memory_equal(r.most, fresh.most, sizeof(r.most));
                continue;
            }
            for (int i = 0; i < 3; i++)
                assert_true(r.sums[i] == 0.1 * (i + 1) + 0.2 * (i + 1) + 0.1 * 3 * (i + 1));
            assert_int_equal(r.most[0], 20);
            assert_int_equal(r.most[1], 0);
        }
}

static void what_is_not_there_begins_anew(void **state)
{
    run r;

    (void)state;
    save(1, "c");
    run_begin(&r);
    r.states[0].n = 2;
    r.states[1].name = "least";
    assert_ok(d9d_checkpointer_read_rank_state("c", &r.set, 0, 1, &r.log));
    assert_true(r.sums[0] == 0 && r.most[0] == INT64_MIN);
    assert_non_null(
        strstr(r.outbox, "has other than 2 numbers of sums, which starts from its initial state"));
    assert_non_null(
        strstr(r.outbox, "has no 2 numbers of least, which starts from its initial state"));
}

static void an_older_checkpoint_says_so_once(void **state)
{
    d9d_checkpointer_state saved = {.step = 7, .parent = -1, .finite = true};
    d9d_checkpointer_set none = {.partial = true};
    run r;

    (void)state;
    assert_ok(d9d_checkpointer_write("old", &saved, &none, NULL, NULL));
    run_begin(&r);
    assert_ok(d9d_checkpointer_read_rank_state("old/step-00000007", &r.set, 0, 1, &r.log));
    assert_non_null(
        strstr(r.outbox, "has no rank state, so sums and others start from their initial state"));
    assert_ptr_equal(strchr(r.outbox, '\n'), r.outbox + strlen(r.outbox) - 1);
    assert_true(r.sums[0] == 0 && r.most[0] == INT64_MIN);
}

static void files_that_are_not_there_are_refused(void **state)
{
    static const char *const lists[] = {"[\"other.safetensors\"]", "[7]", "7",
                                        "[\"../state-r00000.safetensors\"]"};
    static const char *const keys[] = {"rank_state", "cells"}; /* the second: in those of 0.1 */

    (void)state;
    for (size_t i = 0; i < 2 * sizeof(lists) / sizeof(lists[0]); i++) {
        json_t *root = former_members();
        run r;

        assert_int_equal(
            json_object_set_new(root, keys[i % 2], json_loads(lists[i / 2], JSON_DECODE_ANY, NULL)),
            0);
        (void)mkdir("bad", 0777);
        assert_ok(d9d_manifest_write_hashed("bad", root, NULL, 0));
        json_decref(root);
        run_begin(&r);
        assert_int_equal(d9d_checkpointer_read_rank_state("bad", &r.set, 0, 1, &r.log),
                         D9D_EFORMAT);
        assert_non_null(strstr(d9d_err_message(), "bad/manifest.json: "));
        assert_non_null(strstr(d9d_err_message(), keys[i % 2]));
    }
}

static void what_is_no_rank_state_is_refused(void **state)
{
    int64_t x = 0;
    const d9d_checkpointer_rank_state none = {"x", D9D_I64, 0, D9D_COMM_SUM, &x};
    const d9d_checkpointer_rank_state narrow = {"x", D9D_F32, 1, D9D_COMM_SUM, &x};
    d9d_arena a = {0};
    d9d_checkpointer_set set = {.n = 0};

    (void)state;
    assert_fails(D9D_EINVAL, d9d_checkpointer_set_add_rank_state(&set, &none, 1, &a),
                 "checkpoint: rank state x: 0 of type int64");
    assert_fails(D9D_EINVAL, d9d_checkpointer_set_add_rank_state(&set, &narrow, 1, &a),
                 "checkpoint: rank state x: 1 of type float32");
    assert_int_equal(set.n_rank_states, 0);
    d9d_arena_release(&a);
}

#define in_dir(f) cmocka_unit_test_setup_teardown(f, unit_dir_setup, unit_dir_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_dir(each_rank_has_its_own_again),
        in_dir(what_0_1_wrote_is_read),
        in_dir(what_v1_wrote_is_read),
        in_dir(on_another_number_one_has_all),
        in_dir(what_is_not_there_begins_anew),
        in_dir(an_older_checkpoint_says_so_once),
        in_dir(files_that_are_not_there_are_refused),
        in_dir(what_is_no_rank_state_is_refused),
    };

    return cmocka_run_group_tests_name("checkpointer_rank_state", tests, NULL, NULL);
}
