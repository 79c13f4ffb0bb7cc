/* test_dataset_splits.c - no document, and no copy of one, is in two splits: random corpora,
 * packings and kinds of split, built by one run and by tasks. */
#include "support/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/fs.h"
#include "d9d/base/rng.h"
#include "d9d/data/build/shard.h"
#include "d9d/data/dataset/dataset.h"

enum { MAX_GROUPS = 400, ROUNDS = 30, LONG_ROUNDS = 300 };

/* A corpus: documents of group g consist of token g, and are copies of each other. */
struct corpus {
    int groups;
    int64_t longest, max_copies; /* positions of a document; of all copies of it */
    int64_t positions;
};

struct draw {
    d9d_rng rng;
    uint64_t at;
};

static int64_t below(struct draw *d, int64_t n)
{
    return (int64_t)(d9d_rng_u64(d->rng, d->at++) % (uint64_t)n);
}

static void put_document(d9d_buf *b, int group, int64_t tokens)
{
    assert_ok(d9d_buf_printf(b, "{\"input_ids\": [%d", group));
    for (int64_t i = 1; i < tokens; i++)
        assert_ok(d9d_buf_printf(b, ", %d", group));
    assert_ok(d9d_buf_printf(b, "]}\n"));
}

/* Copies are anywhere; where documents are truncated, copies of their heads count too. */
static struct corpus write_corpus(struct draw *d, int64_t size, bool heads)
{
    struct corpus c = {.groups = 20 + (int)below(d, MAX_GROUPS - 20)};
    int64_t length[MAX_GROUPS], copies[MAX_GROUPS] = {0};
    const int documents = c.groups * 2;
    d9d_buf b = {0};

    for (int g = 0; g < c.groups; g++)
        length[g] = below(d, 9) == 0 ? size + below(d, size * 3) : 1 + below(d, size / 2 + 1);
    for (int i = 0; i < documents; i++) {
        const int g = i < c.groups       ? i
                      : below(d, 3) == 0 ? (int)below(d, 3)
                                         : (int)below(d, c.groups);
        const int64_t more = heads && length[g] > size ? below(d, size) : 0;
        const int64_t n = length[g] + more;

        put_document(&b, g, n + 1);
        copies[g] += n;
        c.positions += n;
        c.longest = n > c.longest ? n : c.longest;
        c.max_copies = copies[g] > c.max_copies ? copies[g] : c.max_copies;
    }
    assert_ok(d9d_fs_write_atomic("docs.jsonl", b.data, b.len));
    d9d_buf_release(&b);
    return c;
}

static d9d_status make(const d9d_shard_opts *given, const char *out, int64_t task, int64_t tasks)
{
    static const char *const inputs[] = {"docs.jsonl"};
    d9d_shard_opts opts = *given;
    d9d_shard_report report;

    opts.inputs = inputs;
    opts.n_inputs = 1;
    opts.out = out;
    opts.format = D9D_SHARD_TOKENS;
    opts.replace = true;
    opts.task = task;
    opts.tasks = tasks;
    opts.jobs = 1 + task % 3;
    return d9d_shard_run(&opts, NULL, &report);
}

static d9d_hash hash_of(const char *dir)
{
    d9d_dataset *ds;
    d9d_hash h;

    assert_ok(d9d_dataset_open(dir, NULL, &ds));
    h = d9d_dataset_hash(ds);
    d9d_dataset_close(ds);
    return h;
}

static void merge_tasks(const d9d_shard_opts *opts, int64_t tasks)
{
    static const char *const parts[] = {"part0", "part1", "part2", "part3", "part4"};
    d9d_shard_report report;

    for (int64_t i = 0; i < tasks; i++)
        assert_ok(make(opts, parts[i], i, tasks));
    assert_ok(d9d_shard_merge(parts, (size_t)tasks, "merged", true, NULL, &report));
}

/* Number of samples of a split, -1 if absent; and the groups in it. */
static int64_t look_at(const char *dir, const char *split, int number, int *in, int64_t *positions)
{
    d9d_dataset *ds;
    int64_t n;

    if (d9d_dataset_open(dir, split, &ds) != D9D_OK)
        return -1;
    n = d9d_dataset_count(ds);
    for (int64_t k = 0; k < n; k++) {
        int32_t ids[1024], labels[1024], places[1024];
        size_t at = 0;
        d9d_sample s;

        assert_ok(d9d_dataset_sample(ds, k, &s));
        assert_in_range(s.length, 1, 1024);
        assert_ok(d9d_sample_expand(ds, &s, ids, labels, places, NULL));
        *positions += s.length;
        for (uint32_t i = 0; i < s.n_segments; at += s.segments[i++] - 1) {
            int *where = &in[ids[at]];

            if (*where != 0 && *where != number)
                fail_msg("document %d is in splits %d and %d", ids[at], *where, number);
            *where = number;
        }
    }
    d9d_dataset_close(ds);
    return n;
}

static const struct {
    const char *split;
    const char *names[4];
    int64_t counts[4]; /* 0: given as a share or the rest */
} splits[] = {{"valid=7", {"train", "valid"}, {0, 7}},
              {"train=0.7,valid=0.3", {"train", "valid"}, {0, 0}},
              {"a=5,b=3", {"a", "b", "train"}, {5, 3, 0}},
              {"c=4,train=0.5,b=0.5", {"c", "train", "b"}, {4, 0, 0}},
              {"train=9,b=2", {"train", "b", "rest"}, {9, 2, 0}}};
enum { N_SPLITS = sizeof(splits) / sizeof(splits[0]) };

static d9d_shard_opts draw_opts(struct draw *d, int which)
{
    static const d9d_shard_overflow overflows[] = {
        D9D_SHARD_OVERFLOW_SPLIT, D9D_SHARD_OVERFLOW_TRUNCATE, D9D_SHARD_OVERFLOW_DROP};
    d9d_shard_opts opts = {.seed = below(d, 3) - 1,
                           .split = splits[which].split,
                           .overflow = overflows[below(d, 3)],
                           .shard_bytes = 200 + below(d, 4000),
                           .unit_bytes = 4096 + below(d, 20000)};

    switch (below(d, 3)) {
    case 0: opts.max_length = 8 + below(d, 40); break;
    case 1: opts.pack = 8 + below(d, 40); break;
    default:
        opts.pack = 8 + below(d, 40);
        opts.pack_mode = D9D_SHARD_PACK_CONCAT;
        break;
    }
    opts.pack_window = opts.pack && below(d, 2) ? 5 + below(d, 40) : 0;
    return opts;
}

/* The change that one document can make: all its copies, and a partial sample. */
static int64_t slack(const struct corpus *c, int64_t size)
{
    return c->max_copies / size * 2 + 3;
}

static void test_disjoint(void **state)
{
    const int rounds = unit_is_long() ? LONG_ROUNDS : ROUNDS;

    (void)state;
    for (int round = 0; round < rounds; round++) {
        struct draw d = {{(uint64_t)round, 77}, 0};
        const int which = round % N_SPLITS;
        const d9d_shard_opts opts = draw_opts(&d, which);
        const int64_t size = opts.pack ? opts.pack : opts.max_length;
        const struct corpus c =
            write_corpus(&d, size, opts.overflow == D9D_SHARD_OVERFLOW_TRUNCATE && !opts.pack_mode);
        int in[MAX_GROUPS] = {0};
        int64_t positions = 0;

        assert_ok(make(&opts, "one", round % 2, 0));
        assert_ok(d9d_dataset_verify("one", NULL));
        for (int i = 0; i < 4 && splits[which].names[i]; i++) {
            const int64_t n = look_at("one", splits[which].names[i], i + 1, in, &positions);
            const int64_t want = splits[which].counts[i];

            if (want > 0 && (n < 1 || llabs((long long)(n - want)) > slack(&c, size)))
                fail_msg("round %d: %s has %lld samples", round, splits[which].names[i],
                         (long long)n);
        }
        if (opts.overflow == D9D_SHARD_OVERFLOW_SPLIT ||
            (opts.pack_mode == D9D_SHARD_PACK_CONCAT && opts.max_length == 0))
            assert_int_equal(positions, c.positions);
        merge_tasks(&opts, 1 + round % 5);
        assert_true(d9d_hash_equal(hash_of("one"), hash_of("merged")));
    }
}

/* If every document is short and unique, the number is exact. */
static void test_exact(void **state)
{
    static const int64_t counts[] = {2, 3, 10, 31, 100};
    d9d_buf b = {0};

    (void)state;
    for (int g = 0; g < 3000; g++)
        put_document(&b, g, 2 + g % 5);
    assert_ok(d9d_fs_write_atomic("docs.jsonl", b.data, b.len));
    d9d_buf_release(&b);
    for (size_t i = 0; i < 5; i++)
        for (int mode = 0; mode < 3; mode++) {
            char split[32];
            const d9d_shard_opts opts = {.seed = 1,
                                         .split = split,
                                         .pack = mode ? 32 : 0,
                                         .unit_bytes = 10000,
                                         .pack_mode = mode == 2 ? D9D_SHARD_PACK_CONCAT
                                                                : D9D_SHARD_PACK_BEST_FIT};
            int in[3000] = {0};
            int64_t positions = 0;

            snprintf(split, sizeof(split), "valid=%lld", (long long)counts[i]);
            assert_ok(make(&opts, "one", 0, 0));
            assert_int_equal(look_at("one", "valid", 1, in, &positions), counts[i]);
            look_at("one", "train", 2, in, &positions);
        }
}

static void test_too_few(void **state)
{
    struct draw d = {{1, 2}, 0};
    const d9d_shard_opts opts = {.seed = -1, .split = "valid=100000", .pack = 16};
    const d9d_shard_opts max = {
        .seed = -1, .split = "valid=100000", .pack = 16, .pack_mode = D9D_SHARD_PACK_CONCAT};

    (void)state;
    write_corpus(&d, 16, false);
    assert_fails_like(make(&opts, "one", 0, 0), D9D_EFORMAT,
                      "are to have 100000 samples, there are");
    assert_fails_like(make(&max, "one", 0, 0), D9D_EFORMAT,
                      "are to have 100000 samples, there are");
    assert_false(d9d_fs_exists("one.partial"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        unit_test_in_dir(test_disjoint),
        unit_test_in_dir(test_exact),
        unit_test_in_dir(test_too_few),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
