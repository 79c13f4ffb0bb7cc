/* test_loader.c - orders and batches of one dataset and of blends: the same samples for any number
 * of ranks and threads and any resumed step. */
#include "support/unit.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/fs.h"
#include "d9d/data/build/shard.h"
#include "d9d/data/loader/blend.h"
#include "d9d/data/loader/prefetch.h"
#include "d9d/data/loader/sampler.h"

/* A dataset of n documents; document i has 2 + i % 7 tokens, the first of which is base + i. */
static d9d_dataset *made(const char *dir, int n, int base, int64_t pack)
{
    const char *const inputs[] = {"docs.jsonl"};
    d9d_shard_report report;
    d9d_dataset *ds;
    d9d_buf b = {0};

    for (int i = 0; i < n; i++) {
        assert_ok(d9d_buf_printf(&b, "{\"input_ids\": [%d", base + i));
        for (int j = 1; j < 2 + i % 7; j++)
            assert_ok(d9d_buf_printf(&b, ", %d", 10000 + j));
        assert_ok(d9d_buf_printf(&b, "]}\n"));
    }
    assert_ok(d9d_fs_write_atomic("docs.jsonl", b.data, b.len));
    d9d_buf_release(&b);
    assert_ok(d9d_shard_run(&(d9d_shard_opts){.inputs = inputs,
                                              .n_inputs = 1,
                                              .out = dir,
                                              .format = D9D_SHARD_TOKENS,
                                              .seed = -1,
                                              .pack = pack,
                                              .replace = true},
                            NULL, &report));
    assert_ok(d9d_dataset_open(dir, NULL, &ds));
    return ds;
}

static d9d_loader *opened(d9d_dataset *ds, d9d_loader_order order, int64_t epochs, int64_t multiple)
{
    const d9d_loader_source s = {.dataset = ds, .order = order, .seed = 7, .epochs = epochs};
    d9d_loader *l;

    assert_ok(
        d9d_loader_open(&s, 1, &(d9d_loader_opts){.pack = 6, .pad_to_multiple_of = multiple}, &l));
    return l;
}

static int64_t sample_at(d9d_loader *l, int64_t k)
{
    d9d_sample_ref draw;

    assert_ok(d9d_loader_sample_ref(l, k, &draw));
    return draw.sample;
}

/* --- orders ----------------------------------------------------------------------------------- */

/* Every sample as often as there are epochs; once in each epoch, except where buffers continue over
 * epochs. */
static void check_epochs(d9d_loader *l, int64_t n, int64_t epochs, bool each)
{
    int *seen = calloc((size_t)n, sizeof(*seen));
    d9d_sample_ref draw;

    assert_int_equal(d9d_loader_samples(l), n * epochs);
    assert_non_null(seen);
    for (int64_t k = 0; k < n * epochs; k++) {
        const int64_t s = sample_at(l, k);

        assert_in_range(s, 0, n - 1);
        assert_in_range(seen[s]++, each ? k / n : 0, each ? k / n : epochs - 1);
    }
    free(seen);
    assert_fails_like(d9d_loader_sample_ref(l, n * epochs, &draw), D9D_EINVAL, "the stream has");
}

static void test_orders(void **state)
{
    const int64_t n = 5003;
    d9d_dataset *ds = made("data", (int)n, 0, 0);

    (void)state;
    for (d9d_loader_order order = D9D_LOADER_SEQUENTIAL; order <= D9D_LOADER_BUCKETED; order++) {
        d9d_loader *l = opened(ds, order, 2, 1), *other = opened(ds, order, 2, 1);

        check_epochs(l, n, 2, order != D9D_LOADER_BUCKETED);
        /* Earlier requests do not matter. */
        for (int64_t k = 2 * n - 1; k >= 0; k -= 331)
            assert_int_equal(sample_at(other, k), sample_at(l, k));
        if (order != D9D_LOADER_SEQUENTIAL)
            assert_int_not_equal(sample_at(l, 0) * 7919 + sample_at(l, 1),
                                 sample_at(l, n) * 7919 + sample_at(l, n + 1));
        else
            assert_int_equal(sample_at(l, n + 5), 5);
        d9d_loader_close(l);
        d9d_loader_close(other);
    }
    d9d_dataset_close(ds);
}

/* Fraction of padding of epochs in rows of 6. */
static double padding_of(d9d_dataset *ds, d9d_loader_order order)
{
    d9d_loader *l = opened(ds, order, 3, 1); /* n is not a multiple of 6 */
    int64_t n_padded, positions;

    assert_ok(d9d_loader_measure_padding(l, 0, d9d_loader_samples(l), 6, &n_padded, &positions));
    d9d_loader_close(l);
    return (double)(n_padded - positions) / (double)n_padded;
}

static void test_batches(void **state)
{
    d9d_dataset *ds = made("data", 1199, 0, 0);
    d9d_loader *l = opened(ds, D9D_LOADER_SEQUENTIAL, 1, 4);
    int64_t n_padded, positions;
    d9d_batch b;

    (void)state;
    assert_ok(d9d_loader_batch(l, 3, 2, &b)); /* lengths 4 and 5 */
    assert_int_equal(b.length, 8);
    assert_int_equal(b.tokens, 9);
    assert_int_equal(b.targets, 9);
    assert_int_equal(b.lengths[1], 5);
    assert_int_equal(b.refs[1].sample, 4);
    assert_int_equal(b.ids[8], 4);
    assert_int_equal(b.ids[8 + 5], 0);
    assert_int_equal(b.labels[8 + 4], 10005);
    assert_int_equal(b.labels[8 + 5], -100);
    assert_null(b.cu_seqlens);
    assert_fails_like(d9d_loader_batch(l, 1198, 2, &b), D9D_EINVAL, "the stream has 1199");
    assert_ok(d9d_loader_measure_padding(l, 0, 5, 2, &n_padded, &positions)); /* 1 2 | 3 4 */
    assert_int_equal(n_padded, 2 * 4 + 2 * 4);
    assert_int_equal(positions, 1 + 2 + 3 + 4);
    d9d_loader_close(l);
    l = opened(ds, D9D_LOADER_SEQUENTIAL, 1, 1);
    assert_ok(d9d_loader_measure_padding(l, 0, 5, 2, &n_padded, &positions));
    assert_int_equal(n_padded, 2 * 2 + 2 * 4);
    d9d_loader_close(l);
    assert_true(padding_of(ds, D9D_LOADER_BUCKETED) * 10 < padding_of(ds, D9D_LOADER_SHUFFLED));
    d9d_dataset_close(ds);
}

/* Ids behind the vocabulary begin each sequence; they have positions and no targets. */
static void test_virtual_tokens(void **state)
{
    enum { FIRST = 90000, N = 3 };
    d9d_dataset *ds = made("data", 30, 0, 0);
    d9d_loader *l = opened(ds, D9D_LOADER_SEQUENTIAL, 1, 4), *plain;
    int64_t n_padded, positions;
    d9d_batch b, p;

    (void)state;
    assert_ok(d9d_loader_set_virtual_tokens(l, FIRST, N));
    plain = opened(ds, D9D_LOADER_SEQUENTIAL, 1, 4);
    assert_ok(d9d_loader_batch(plain, 3, 2, &p)); /* lengths 4 and 5 */
    assert_ok(d9d_loader_batch(l, 3, 2, &b));
    assert_int_equal(b.length, 8);
    assert_int_equal(b.targets, p.targets);
    for (int64_t r = 0; r < 2; r++) {
        assert_int_equal(b.lengths[r], N + p.lengths[r]);
        for (int64_t i = 0; i < b.length; i++) {
            const int64_t at = r * b.length + i, from = r * p.length + i - N;
            const bool is_text = i >= N && i < b.lengths[r];

            assert_int_equal(b.ids[at], i < N ? FIRST + i : is_text ? p.ids[from] : 0);
            assert_int_equal(b.labels[at], is_text ? p.labels[from] : -100);
            assert_int_equal(b.positions[at], i < b.lengths[r] ? i : 0);
        }
    }
    assert_ok(d9d_loader_measure_padding(l, 0, 4, 2, &n_padded, &positions));
    assert_int_equal(n_padded, 2 * 8 + 2 * 8);
    assert_int_equal(positions, 1 + 2 + 3 + 4 + 4 * N);
    d9d_loader_close(plain);
    d9d_loader_close(l);
    d9d_dataset_close(ds);
}

/* --- any topology ----------------------------------------------------------------------------- */

enum { GLOBAL = 24, STEPS = 17, SAMPLES = GLOBAL * STEPS };

/* One row of the stream: content, source, documents. */
static d9d_hash row_hash(const d9d_batch *b, int64_t r)
{
    const size_t n = (size_t)b->lengths[r] * sizeof(int32_t);
    const int32_t *const arrays[] = {b->ids, b->labels, b->positions};
    d9d_buf all = {0};
    d9d_hash h;

    for (size_t i = 0; i < 3; i++)
        assert_ok(d9d_buf_append(&all, arrays[i] + r * b->length, n));
    for (int64_t d = 0; b->cu_seqlens != NULL && d < b->documents; d++)
        if (b->cu_seqlens[d] / b->length == r && b->cu_seqlens[d] % b->length < b->lengths[r])
            assert_ok(d9d_buf_printf(&all, "|%lld", (long long)(b->cu_seqlens[d] % b->length)));
    assert_ok(d9d_buf_printf(&all, "#%d:%lld:%d", b->refs[r].source, (long long)b->refs[r].sample,
                             b->refs[r].skipped));
    h = d9d_hash_bytes(all.data, all.len);
    d9d_buf_release(&all);
    return h;
}

/* The rows of steps [from, to) of one rank, at their places in the stream; with batches that are
 * held, those of a step are read once all of them are there. */
static void read_rank(d9d_loader *l, d9d_prefetcher_opts opts, int64_t from, int64_t to,
                      d9d_hash *rows)
{
    const int64_t part = GLOBAL / opts.ranks;
    d9d_prefetcher *f;

    opts.first = from * GLOBAL;
    opts.global = GLOBAL;
    opts.end = to * GLOBAL;
    assert_ok(d9d_prefetcher_open(l, &opts, &f));
    for (int64_t step = from; step < to; step++)
        for (int64_t done = 0; done < part;) {
            d9d_batch b[GLOBAL];
            int64_t n = 0;

            do {
                assert_ok(d9d_prefetcher_next(f, &b[n]));
                assert_int_equal(b[n].first, step * GLOBAL + opts.rank * part + done);
                done += b[n].seqs;
            } while (++n < opts.held && done < part);
            for (int64_t i = 0; i < n; i++)
                for (int64_t r = 0; r < b[i].seqs; r++)
                    rows[b[i].first + r] = row_hash(&b[i], r);
        }
    d9d_prefetcher_close(f);
}

static void read_steps(d9d_loader *l, int64_t ranks, int64_t size, int threads, int64_t from,
                       int64_t to, d9d_hash *rows)
{
    for (int64_t rank = 0; rank < ranks; rank++)
        read_rank(l,
                  (d9d_prefetcher_opts){.rank = rank,
                                        .ranks = ranks,
                                        .micro_batch_size = size,
                                        .threads = threads,
                                        .ahead = threads + 1,
                                        .held = rank % 2 * GLOBAL},
                  from, to, rows);
}

/* Every topology, alone and resumed from another one, must read what one rank reads. */
static void check_topologies(d9d_loader *l)
{
    static const int64_t ranks[] = {1, 2, 3, 4, 8};
    static d9d_hash want[SAMPLES], have[SAMPLES];

    read_steps(l, 1, 5, 0, 0, STEPS, want);
    for (size_t i = 0; i < 5; i++)
        for (int threads = 0; threads < 4; threads++) {
            const int64_t resume = (int64_t)(i * 4 + (size_t)threads * 3) % (STEPS + 1);

            memset(have, 0, sizeof(have));
            read_steps(l, ranks[i], 1 + threads, threads, 0, resume, have);
            read_steps(l, ranks[(i + 1 + (size_t)threads) % 5], 2, 3 - threads, resume, STEPS,
                       have);
            assert_memory_equal(have, want, sizeof(want));
        }
}

static void test_topologies(void **state)
{
    d9d_dataset *all[] = {made("a", 131, 0, 0), made("b", 40, 1000, 0), made("c", 90, 2000, 16)};
    d9d_index_set skip = {0};

    (void)state;
    assert_ok(d9d_index_set_read("3, 11-15, 40", &skip));
    for (d9d_loader_order order = D9D_LOADER_SEQUENTIAL; order <= D9D_LOADER_BUCKETED; order++)
        for (size_t n = 1; n <= 3; n++) {
            d9d_loader_source s[3];
            d9d_loader *l;

            for (size_t i = 0; i < n; i++)
                s[i] = (d9d_loader_source){.dataset = all[i],
                                           .order = order,
                                           .seed = 5 + i,
                                           .weight = i == 0 ? 0.7 : 0.2,
                                           .skip = i == 0 ? &skip : NULL};
            assert_ok(
                d9d_loader_open(s, n, &(d9d_loader_opts){.pack = 6, .pad_to_multiple_of = 1}, &l));
            check_topologies(l);
            d9d_loader_close(l);
        }
    d9d_index_set_release(&skip);
    for (size_t i = 0; i < 3; i++)
        d9d_dataset_close(all[i]);
}

/* --- blends ----------------------------------------------------------------------------------- */

static void test_blend(void **state)
{
    d9d_dataset *a = made("a", 100, 0, 0), *b = made("b", 10, 1000, 0);
    d9d_loader_source s[] = {{.dataset = a, .epochs = 1, .weight = 3},
                             {.dataset = b, .epochs = 2, .weight = 1}};
    int64_t given[2] = {0};
    d9d_hash data, order, other;
    d9d_loader *l;

    (void)state;
    assert_ok(d9d_loader_open(s, 2, &(d9d_loader_opts){.pad_to_multiple_of = 1}, &l));
    /* b ends after 20 of its samples; at the 21st the stream ends. */
    assert_in_range(d9d_loader_samples(l), 80, 83);
    assert_int_equal(d9d_loader_last_source(l), 1);
    for (int64_t k = 0; k < d9d_loader_samples(l); k++) {
        d9d_sample_ref d;

        assert_ok(d9d_loader_sample_ref(l, k, &d));
        assert_int_equal(d.sample, given[d.source]++ % (d.source == 0 ? 100 : 10));
        assert_in_range(4 * given[0] - 3 * (k + 1) + 4, 1, 7);
    }
    assert_int_equal(given[1], 20);
    data = d9d_loader_data_hash(l);
    assert_ok(d9d_loader_order_hash(l, &order));
    d9d_loader_close(l);

    s[1].epochs = 0; /* repeated as often as a needs it */
    assert_ok(d9d_loader_open(s, 2, &(d9d_loader_opts){.pad_to_multiple_of = 1}, &l));
    assert_int_equal(d9d_loader_last_source(l), 0);
    assert_in_range(d9d_loader_samples(l), 133, 136);
    assert_true(d9d_hash_equal(d9d_loader_data_hash(l), data));
    assert_ok(d9d_loader_order_hash(l, &other));
    assert_true(d9d_hash_equal(order, other));
    d9d_loader_close(l);

    s[0].epochs = 0;
    s[0].weight = 2;
    assert_ok(d9d_loader_open(s, 2, &(d9d_loader_opts){.pad_to_multiple_of = 1}, &l));
    assert_int_equal(d9d_loader_last_source(l), -1);
    assert_int_equal(d9d_loader_samples(l), INT64_C(1) << 62);
    assert_ok(d9d_loader_order_hash(l, &other));
    assert_false(d9d_hash_equal(order, other));
    d9d_loader_close(l);
    d9d_dataset_close(a);
    d9d_dataset_close(b);
}

/* The order follows from sizes alone, after the datasets are closed. */
static void test_sampler(void **state)
{
    d9d_dataset *a = made("a", 100, 0, 0), *b = made("b", 10, 1000, 0);
    const d9d_loader_source s[] = {
        {.dataset = a, .order = D9D_LOADER_SHUFFLED, .seed = 7, .weight = 2.5},
        {.dataset = b, .order = D9D_LOADER_SEQUENTIAL, .seed = 8, .weight = 1}};
    d9d_sampler_source from[D9D_BLEND_SOURCES];
    d9d_sample_ref want[300], got;
    d9d_sampler *sampler;
    d9d_loader *l;

    (void)state;
    for (size_t n = 1; n <= 2; n++) {
        assert_ok(d9d_loader_open(s, n, &(d9d_loader_opts){.pad_to_multiple_of = 1}, &l));
        assert_false(d9d_loader_has_skips(l));
        for (int64_t k = 0; k < 300; k++)
            assert_ok(d9d_loader_sample_ref(l, k, &want[k]));
        assert_int_equal(d9d_loader_sampler_sources(l, from), n);
        d9d_loader_close(l);
        assert_ok(d9d_sampler_create(from, n, &sampler));
        for (int64_t k = 0; k < 300; k++) {
            got = d9d_sampler_at(sampler, k);
            assert_int_equal(got.source, want[k].source);
            assert_int_equal(got.sample, want[k].sample);
        }
        d9d_sampler_free(sampler);
    }
    l = opened(a, D9D_LOADER_BUCKETED, 1, 1);
    assert_int_equal(d9d_loader_sampler_sources(l, from), 0);
    d9d_loader_close(l);
    from[0].samples = 0;
    assert_fails_like(d9d_sampler_create(from, 1, &sampler), D9D_EINVAL, "has 0 samples");
    d9d_dataset_close(a);
    d9d_dataset_close(b);
}

/* A skipped sample leaves an empty row and changes nothing else. */
static void test_skipping(void **state)
{
    d9d_dataset *ds = made("data", 30, 0, 0);
    d9d_loader_source s = {.dataset = ds, .order = D9D_LOADER_SHUFFLED, .seed = 1, .epochs = 2};
    d9d_loader *all, *some;
    d9d_index_set skip;

    (void)state;
    assert_ok(d9d_loader_open(&s, 1, &(d9d_loader_opts){.pad_to_multiple_of = 1}, &all));
    assert_ok(d9d_index_set_read("4 20-23", &skip));
    s.skip = &skip;
    assert_ok(d9d_loader_open(&s, 1, &(d9d_loader_opts){.pad_to_multiple_of = 1}, &some));
    assert_int_equal(d9d_loader_samples(some), 60);
    for (int64_t k = 0; k < 60; k++) {
        d9d_batch a, b;

        assert_ok(d9d_loader_batch(all, k, 1, &a));
        assert_ok(d9d_loader_batch(some, k, 1, &b));
        assert_int_equal(a.refs[0].sample, b.refs[0].sample);
        assert_int_equal(b.refs[0].skipped, d9d_index_set_has(&skip, b.refs[0].sample));
        assert_int_equal(b.lengths[0], b.refs[0].skipped ? 0 : a.lengths[0]);
        assert_int_equal(b.targets, b.refs[0].skipped ? 0 : a.targets);
        assert_int_equal(b.length, b.refs[0].skipped ? 1 : a.length);
        if (!b.refs[0].skipped)
            assert_memory_equal(a.ids, b.ids, (size_t)a.length * sizeof(*a.ids));
    }
    d9d_loader_close(all);
    d9d_loader_close(some);
    d9d_index_set_release(&skip);
    d9d_dataset_close(ds);
}

static void test_refusals(void **state)
{
    d9d_dataset *ds = made("data", 30, 0, 0);
    d9d_index_set skip = {0};
    d9d_loader_source s[] = {{.dataset = ds, .epochs = 1, .weight = 1},
                             {.dataset = ds, .epochs = 1, .weight = 1}};
    const d9d_loader_opts opts = {.pack = 4, .pad_to_multiple_of = 1};
    d9d_prefetcher_opts bad = {
        .global = 8, .ranks = 3, .micro_batch_size = 1, .end = 8, .ahead = 1};
    d9d_loader *l;
    d9d_prefetcher *f;
    d9d_batch b;

    (void)state;
    s[1].order = D9D_LOADER_BUCKETED;
    assert_fails_like(d9d_loader_open(s, 2, &opts, &l), D9D_ECONFIG, "all are bucketed or none");
    assert_fails_like(d9d_loader_open(&s[1], 1, &(d9d_loader_opts){.pad_to_multiple_of = 1}, &l),
                      D9D_ECONFIG, "pack is 0");
    assert_fails_like(d9d_loader_open(s, 1, &(d9d_loader_opts){.pack = 1}, &l), D9D_ECONFIG,
                      "multiple is 0");
    s[1].order = D9D_LOADER_SHUFFLED;
    s[1].weight = 0;
    assert_fails_like(d9d_loader_open(s, 2, &opts, &l), D9D_ECONFIG, "weight 1 of a blend is 0");
    assert_ok(d9d_index_set_read("7,30", &skip));
    s[0].skip = &skip;
    assert_fails_like(d9d_loader_open(s, 1, &opts, &l), D9D_ECONFIG,
                      "sample 30 is to be skipped, the split has 30");
    s[0].skip = NULL;
    assert_ok(d9d_loader_open(s, 1, &opts, &l));
    assert_fails_like(d9d_prefetcher_open(l, &bad, &f), D9D_EINVAL, "of rank 0 of 3");
    for (int threads = 0; threads < 3; threads++) {
        /* The loader would read beyond the stream: reported at the turn of that batch. */
        bad = (d9d_prefetcher_opts){.global = 20,
                                    .ranks = 1,
                                    .micro_batch_size = 20,
                                    .end = 99,
                                    .threads = threads,
                                    .ahead = 4};
        assert_ok(d9d_prefetcher_open(l, &bad, &f));
        assert_ok(d9d_prefetcher_next(f, &b));
        assert_fails_like(d9d_prefetcher_next(f, &b), D9D_EINVAL, "20 samples from 20 on");
        d9d_prefetcher_close(f);
        bad.end = 25; /* a short last step */
        assert_ok(d9d_prefetcher_open(l, &bad, &f));
        assert_ok(d9d_prefetcher_next(f, &b));
        assert_ok(d9d_prefetcher_next(f, &b));
        assert_int_equal(b.seqs, 5);
        assert_fails_like(d9d_prefetcher_next(f, &b), D9D_EINVAL, "prefetching ends at 25");
        d9d_prefetcher_close(f);
    }
    d9d_loader_close(l);
    d9d_index_set_release(&skip);
    d9d_dataset_close(ds);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        unit_test_in_dir(test_orders),         unit_test_in_dir(test_batches),
        unit_test_in_dir(test_virtual_tokens), unit_test_in_dir(test_topologies),
        unit_test_in_dir(test_blend),          unit_test_in_dir(test_skipping),
        unit_test_in_dir(test_refusals),       unit_test_in_dir(test_sampler),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
