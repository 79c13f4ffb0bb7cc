/* test_device.c - opening devices, and the caching pool. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/thread.h"
#include "d9d/device/graph.h"
#include "d9d/device/readback.h"
#include "d9d/device/staging.h"
#include "d9d/kernels/sim.h"
#include "device/backend.h"
#include "device/pool.h"
#include "support/unit.h"
#include "support/unit_device.h"

static int open_cpu(void **state)
{
    return d9d_device_open("cpu", (d9d_device **)state) == D9D_OK ? 0 : -1;
}

static int open_any(void **state)
{
    return d9d_device_open(unit_device_name(), (d9d_device **)state) == D9D_OK ? 0 : -1;
}

static int close_cpu(void **state)
{
    d9d_device_close(*state);
    return 0;
}

#define with_cpu(f) cmocka_unit_test_setup_teardown(f, open_cpu, close_cpu)
#define with_any(f) cmocka_unit_test_setup_teardown(f, open_any, close_cpu)

/* A chip of plans is one that they know, with the peak that the device has. */
static void the_chip_of_plans(void **state)
{
    const d9d_device *dev = *state;

    if (dev->chip == NULL)
        return;
    assert_non_null(d9d_sim_chip_find(dev->chip));
    if (unit_device_is_cpu())
        assert_string_equal(dev->chip, "cpu");
    else
        assert_true(dev->peak_flops > 0 &&
                    dev->peak_flops <= 1.2 * d9d_sim_chip_find(dev->chip)->flops);
}

static void names_that_open(void **state)
{
    d9d_device *dev;

    (void)state;
    assert_ok(d9d_device_open("cpu", &dev));
    assert_string_equal(dev->name, "cpu");
    assert_ptr_equal(dev->kernels, d9d_kernels_cpu());
    d9d_device_close(dev);
    assert_ok(d9d_device_open("auto", &dev));
    d9d_device_close(dev);
    d9d_device_close(NULL);
}

static void names_that_do_not(void **state)
{
    static const char *const bad[] = {"",
                                      "gpu",
                                      "cpu:0",
                                      "cpux",
                                      "cuda:",
                                      "cuda:-1",
                                      "cuda:x",
                                      "cuda:1x",
                                      "cuda 1",
                                      "CPU",
                                      "cuda:99999999999999999999"};
    d9d_device *dev = NULL;
    char sentence[128];

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        (void)snprintf(sentence, sizeof(sentence),
                       "device \"%s\": expected auto, cpu, cuda or cuda:N", bad[i]);
        assert_fails(d9d_device_open(bad[i], &dev), D9D_ECONFIG, sentence);
    }
#ifndef D9D_CUDA
    assert_fails(d9d_device_open("cuda", &dev), D9D_ENOTSUP,
                 "device \"cuda\": this build has no cuda");
    assert_fails(d9d_device_open("cuda:1", &dev), D9D_ENOTSUP,
                 "device \"cuda:1\": this build has no cuda");
#else
    /* With a driver, a GPU or none: a device number beyond the last one. */
    assert_fails_like(d9d_device_open("cuda:999", &dev), D9D_ENOTFOUND, "cuda:999: ");
#endif
    assert_null(dev);
}

static void classes_cover_all_sizes_and_waste_an_eighth(void **state)
{
    uint64_t block, last_block = 0;
    int last = -1;

    (void)state;
    for (uint64_t n = 0; n < (UINT64_C(1) << 56); n += 1 + n / 37) {
        const int c = d9di_pool_class(n, &block);

        assert_true(c == last || c > last);
        assert_true((c == last) == (block == last_block));
        assert_true(block >= n && block >= 256 && block % 256 == 0);
        assert_true(block <= 256 || block - n < 256 + n / 8);
        last = c;
        last_block = block;
    }
    assert_int_equal(d9di_pool_class(UINT64_C(1) << 56, &block), 367);
    assert_int_equal(block, UINT64_C(1) << 56);
    assert_int_equal(d9di_pool_class((UINT64_C(1) << 56) + 1, &block), -1);
    assert_int_equal(d9di_pool_class(UINT64_MAX, &block), -1);
}

static void memory_is_aligned_and_apart(void **state)
{
    enum { N = 200 };
    d9d_device *dev = *state;
    unsigned char *p[N];

    for (int i = 0; i < N; i++) {
        assert_ok(d9d_device_alloc(dev, (uint64_t)(i * 37), (void **)&p[i]));
        assert_non_null(p[i]);
        assert_int_equal((uintptr_t)p[i] % 256, 0);
        memset(p[i], i, (size_t)(i * 37));
    }
    for (int i = 0; i < N; i++)
        for (int k = 0; k < i * 37; k++)
            assert_int_equal(p[i][k], i);
    for (int i = 0; i < N; i++)
        d9d_device_free(dev, p[i], (uint64_t)(i * 37));
    d9d_device_free(dev, NULL, 7);
    assert_int_equal(d9d_device_memory(dev).in_use, 0);
}

static void freed_blocks_are_used_again(void **state)
{
    d9d_device *dev = *state;
    uint64_t requests;
    void *a, *b, *c;

    assert_ok(d9d_device_alloc(dev, 1000, &a));
    assert_ok(d9d_device_alloc(dev, 100000, &b));
    requests = d9d_device_memory(dev).requests;
    assert_int_equal(requests, 2);
    d9d_device_free(dev, a, 1000);
    assert_ok(d9d_device_alloc(dev, 1024, &c));
    assert_ptr_equal(a, c);
    assert_int_equal(d9d_device_memory(dev).requests, requests);
    d9d_device_free(dev, b, 100000);
    d9d_device_free(dev, c, 1024);
}

/* What is freed while blocks are held serves nobody before it is released. */
static void held_blocks_serve_nobody(void **state)
{
    d9d_device *dev = *state;
    d9di_pool_hold hold;
    void *a, *b, *c;

    assert_ok(d9d_device_alloc(dev, 1000, &a));
    d9di_pool_hold_begin(dev);
    d9d_device_free(dev, a, 1000);
    assert_ok(d9d_device_alloc(dev, 1000, &b));
    assert_ptr_not_equal(a, b);
    d9di_pool_hold_end(dev, &hold);
    assert_int_equal(hold.blocks.len, 1);
    d9d_device_free(dev, b, 1000);
    assert_ok(d9d_device_alloc(dev, 1000, &c));
    assert_ptr_equal(b, c);
    d9d_device_free(dev, c, 1000);
    assert_true(d9d_device_memory(dev).in_use >= 1000);
    d9di_pool_hold_release(dev, &hold);
    assert_int_equal(d9d_device_memory(dev).in_use, 0);
    assert_ok(d9d_device_alloc(dev, 1000, &c));
    assert_ptr_equal(a, c);
    d9d_device_free(dev, c, 1000);
}

/* x = 2 x, recorded: nothing runs, and each launch doubles. */
static void a_graph_repeats_what_was_recorded(void **state)
{
    enum { N = 64 };
    d9d_device *dev = *state;
    float host[N];
    d9d_graph *g;
    void *x;

    if (!d9d_graph_is_supported(dev))
        skip();
    for (int i = 0; i < N; i++)
        host[i] = (float)(i + 1);
    assert_ok(d9d_device_alloc(dev, sizeof(host), &x));
    assert_ok(d9d_device_upload(dev, x, host, sizeof(host)));
    assert_ok(d9d_graph_begin(dev));
    assert_ok(d9d_graph_end(
        dev, dev->kernels->elementwise->accumulate(dev->stream, D9D_F32, x, 1.0f, D9D_F32, x, N),
        &g));
    for (int k = 0; k < 4; k++) {
        assert_ok(d9d_device_download(dev, host, x, sizeof(host)));
        for (int i = 0; i < N; i++)
            assert_true(host[i] == (float)((i + 1) << k));
        assert_ok(d9d_graph_launch(g));
    }
    d9d_graph_free(g);
    assert_ok(d9d_graph_begin(dev));
    assert_int_equal(d9d_graph_end(dev, d9d_device_upload(dev, x, host, sizeof(host)), &g),
                     D9D_ENOTSUP);
    assert_ok(d9d_device_upload(dev, x, host, sizeof(host)));
    d9d_device_free(dev, x, sizeof(host));
    assert_int_equal(d9d_device_memory(dev).in_use, 0);
}

static void statistics_follow(void **state)
{
    d9d_device *dev = *state;
    void *a, *b;

    assert_int_equal(d9d_device_memory(dev).reserved, 0);
    assert_int_equal(d9d_device_memory(dev).limit, UINT64_MAX);
    assert_ok(d9d_device_alloc(dev, 4096, &a));
    assert_ok(d9d_device_alloc(dev, 1, &b));
    assert_int_equal(d9d_device_memory(dev).in_use, 4096 + 256);
    d9d_device_free(dev, a, 4096);
    assert_int_equal(d9d_device_memory(dev).in_use, 256);
    assert_int_equal(d9d_device_memory(dev).peak, 4096 + 256);
    assert_int_equal(d9d_device_memory(dev).reserved, 4096 + 256);
    d9d_device_reset_peak(dev);
    assert_int_equal(d9d_device_memory(dev).peak, 256);
    d9d_device_trim(dev);
    assert_int_equal(d9d_device_memory(dev).reserved, 256);
    d9d_device_free(dev, b, 1);
}

static void a_limit_gives_cached_blocks_back_before_it_fails(void **state)
{
    d9d_device *dev = *state;
    void *a, *b, *c = NULL;

    d9d_device_set_limit(dev, 8192);
    assert_ok(d9d_device_alloc(dev, 4096, &a));
    assert_ok(d9d_device_alloc(dev, 4096, &b));
    assert_fails(d9d_device_alloc(dev, 100, &c), D9D_EOOM,
                 "cpu: out of memory: 100 bytes requested, 8192 in use, limit 8192");
    assert_null(c);
    d9d_device_free(dev, b, 4096);
    assert_ok(d9d_device_alloc(dev, 100, &c)); /* b's block was returned to the system */
    assert_int_equal(d9d_device_memory(dev).reserved, 4096 + 256);
    assert_fails_like(d9d_device_alloc(dev, 8193, &b), D9D_EOOM,
                      "out of memory: 8193 bytes requested");
    d9d_device_free(dev, a, 4096);
    d9d_device_set_limit(dev, 300);
    assert_int_equal(d9d_device_memory(dev).reserved, 256);
    d9d_device_set_limit(dev, UINT64_MAX);
    d9d_device_free(dev, c, 100);
}

/* Allocations that fill the device and change from step to step.  Fragmentation may lose a
 * little. */
static void a_full_device_lends_blocks_that_are_little_larger(void **state)
{
    enum { BLOCKS = 16, LARGE = 9 << 13, SMALL = 8 << 13, OTHER = 4 * LARGE };
    d9d_device *dev = *state;
    void *p[BLOCKS], *q, *far, *other;
    uint64_t requests;

    d9d_device_set_limit(dev, BLOCKS * LARGE + OTHER);
    assert_ok(d9d_device_alloc(dev, OTHER, &other));
    d9d_device_free(dev, other, OTHER);
    for (int i = 0; i < BLOCKS; i++)
        assert_ok(d9d_device_alloc(dev, LARGE, &p[i]));
    requests = d9d_device_memory(dev).requests;
    for (int again = 0; again < 2; again++) {
        d9d_device_free(dev, p[0], LARGE);
        d9d_device_reset_peak(dev);
        assert_ok(d9d_device_alloc(dev, SMALL, &q));
        assert_ptr_equal(q, p[0]);
        assert_int_equal(d9d_device_memory(dev).in_use, BLOCKS * LARGE);
        assert_int_equal(d9d_device_memory(dev).peak, (BLOCKS - 1) * LARGE + SMALL);
        d9d_device_reset_peak(dev);
        assert_int_equal(d9d_device_memory(dev).peak, (BLOCKS - 1) * LARGE + SMALL);
        d9d_device_free(dev, q, SMALL);
        assert_ok(d9d_device_alloc(dev, LARGE, &q));
        assert_ptr_equal(q, p[0]);
    }
    assert_int_equal(d9d_device_memory(dev).requests, requests);
    assert_int_equal(d9d_device_memory(dev).reserved, BLOCKS * LARGE + OTHER);

    d9d_device_free(dev, p[0], LARGE);
    assert_ok(d9d_device_alloc(dev, SMALL / 2, &far)); /* too small for the block */
    assert_int_equal(d9d_device_memory(dev).requests, requests + 1);
    assert_int_equal(d9d_device_memory(dev).reserved, BLOCKS * LARGE + SMALL / 2);
    d9d_device_free(dev, far, SMALL / 2);
    for (int i = 1; i < BLOCKS; i++)
        d9d_device_free(dev, p[i], LARGE);
    d9d_device_set_limit(dev, UINT64_MAX);
}

enum { LOOSE_BLOCKS = 16, LOOSE_LARGE = 16 << 13, LOOSE_SMALL = 9 << 13, LENT = 4 };

/* Large blocks, and so much cached memory that half of it is what LENT small requests in such
 * blocks waste. */
static void loose_open(d9d_device *dev, void **p)
{
    const uint64_t unused = 2 * LENT * (LOOSE_LARGE - LOOSE_SMALL);
    void *other;

    d9d_device_set_limit(dev, LOOSE_BLOCKS * LOOSE_LARGE + unused);
    assert_ok(d9d_device_alloc(dev, unused, &other));
    d9d_device_free(dev, other, unused);
    for (int i = 0; i < LOOSE_BLOCKS; i++)
        assert_ok(d9d_device_alloc(dev, LOOSE_LARGE, &p[i]));
}

static void loose_close(d9d_device *dev, void **p, int from)
{
    for (int i = from; i < LOOSE_BLOCKS; i++)
        d9d_device_free(dev, p[i], LOOSE_LARGE);
    d9d_device_set_limit(dev, UINT64_MAX);
}

/* Gradients take the places of activations that are freed meanwhile, in blocks of up to twice
 * their size, until half of what was never in use at once is wasted. */
static void a_full_device_lends_large_blocks_to_what_may_be_loose(void **state)
{
    d9d_device *dev = *state;
    void *p[LOOSE_BLOCKS], *q[LOOSE_BLOCKS];
    uint64_t requests;

    loose_open(dev, p);
    requests = d9d_device_memory(dev).requests;
    for (int again = 0; again < 2; again++) {
        for (int i = 0; i < LENT; i++) {
            d9d_device_free(dev, p[i], LOOSE_LARGE);
            assert_ok(d9d_device_alloc_loose(dev, LOOSE_SMALL, &q[i]));
            assert_ptr_equal(q[i], p[i]);
        }
        for (int i = LENT; i-- > 0;) {
            d9d_device_free(dev, q[i], LOOSE_SMALL);
            assert_ok(d9d_device_alloc(dev, LOOSE_LARGE, &q[i]));
            assert_ptr_equal(q[i], p[i]);
        }
    }
    assert_int_equal(d9d_device_memory(dev).requests, requests);

    for (int i = 0; i <= LENT; i++) { /* one too many */
        d9d_device_free(dev, p[i], LOOSE_LARGE);
        assert_ok(d9d_device_alloc_loose(dev, LOOSE_SMALL, &q[i]));
    }
    assert_int_equal(d9d_device_memory(dev).requests, requests + 1);
    for (int i = 0; i <= LENT; i++)
        d9d_device_free(dev, q[i], LOOSE_SMALL);
    loose_close(dev, p, LENT + 1);
}

static void a_full_device_lends_large_blocks_to_nothing_else(void **state)
{
    d9d_device *dev = *state;
    void *p[LOOSE_BLOCKS], *q;
    uint64_t requests;

    loose_open(dev, p);
    requests = d9d_device_memory(dev).requests;
    d9d_device_free(dev, p[0], LOOSE_LARGE);
    assert_ok(d9d_device_alloc(dev, LOOSE_SMALL, &q));
    assert_int_equal(d9d_device_memory(dev).requests, requests + 1);
    d9d_device_free(dev, q, LOOSE_SMALL);
    loose_close(dev, p, 1);
}

/* A block that is too large would use memory that is needed at the peak. */
static void what_was_in_use_at_once_is_never_lost(void **state)
{
    enum { LARGE = 9 << 13, SMALL = 8 << 13, MANY = 64 };
    d9d_device *dev = *state;
    void *p[MANY], *q;

    d9d_device_set_limit(dev, MANY * LARGE);
    for (int i = 0; i < MANY; i++)
        assert_ok(d9d_device_alloc(dev, LARGE, &p[i]));
    d9d_device_free(dev, p[0], LARGE);
    assert_ok(d9d_device_alloc(dev, SMALL, &q));
    assert_int_equal(d9d_device_memory(dev).in_use, (MANY - 1) * LARGE + SMALL);
    assert_int_equal(d9d_device_memory(dev).reserved, (MANY - 1) * LARGE + SMALL);
    d9d_device_free(dev, q, SMALL);
    for (int i = 1; i < MANY; i++)
        d9d_device_free(dev, p[i], LARGE);
    d9d_device_set_limit(dev, UINT64_MAX);
}

static void what_was_not_asked_for_the_longest_goes_first(void **state)
{
    enum { A = 1 << 16, B = 5 << 16, C = 3 << 17 };
    d9d_device *dev = *state;
    void *a, *b, *c, *again;

    d9d_device_set_limit(dev, A + B + C - 1);
    assert_ok(d9d_device_alloc(dev, A, &a));
    assert_ok(d9d_device_alloc(dev, B, &b));
    d9d_device_free(dev, a, A);
    d9d_device_free(dev, b, B);
    assert_ok(d9d_device_alloc(dev, C, &c)); /* one byte too many */
    assert_int_equal(d9d_device_memory(dev).reserved, B + C);
    assert_ok(d9d_device_alloc(dev, B, &again));
    assert_ptr_equal(again, b);
    d9d_device_free(dev, again, B);
    d9d_device_free(dev, c, C);
    d9d_device_set_limit(dev, UINT64_MAX);
}

/* Activations of expert layers, whose number of rows varies a little from step to step. */
static void step_of_experts(d9d_device *dev, uint64_t step)
{
    enum { LAYERS = 48, ARRAYS = 3 };
    static const uint64_t widths[ARRAYS] = {4096, 3072, 1536};
    uint64_t n[LAYERS][ARRAYS], x = step * 2654435761u + 1;
    void *p[LAYERS][ARRAYS], *more;

    for (uint64_t i = 0; i < LAYERS; i++)
        for (int a = 0; a < ARRAYS; a++) {
            if (a == 0)
                x = (x * 16807) % 2147483647;
            n[i][a] = (244 + i * 7919 % 24 + x % 3) * widths[a];
            assert_ok(d9d_device_alloc(dev, n[i][a], &p[i][a]));
        }
    for (int i = LAYERS; i-- > 0;)
        for (int a = 0; a < ARRAYS; a++) {
            assert_ok(d9d_device_alloc(dev, n[i][a], &more));
            d9d_device_free(dev, p[i][a], n[i][a]);
            d9d_device_free(dev, more, n[i][a]);
        }
}

static void a_full_device_settles(void **state)
{
    enum { STEPS = 40, LAST = 20 };
    d9d_device *dev = *state;
    uint64_t requests = 0;

    for (uint64_t step = 0; step < STEPS; step++)
        step_of_experts(dev, step);
    d9d_device_trim(dev);
    d9d_device_set_limit(dev, d9d_device_memory(dev).peak / 100 * 103);
    for (uint64_t step = 0; step < STEPS; step++) {
        if (step == STEPS - LAST)
            requests = d9d_device_memory(dev).requests;
        step_of_experts(dev, step);
    }
    assert_in_range(d9d_device_memory(dev).requests - requests, 0, LAST / 4);
    d9d_device_set_limit(dev, UINT64_MAX);
}

/* Sizes that never repeat: without trimming the blocks of each step would stay forever. */
static void the_cache_is_bounded_by_what_was_in_use(void **state)
{
    enum { STEPS = 40, BLOCKS = 8 };
    d9d_device *dev = *state;
    uint64_t peak = 0;

    for (uint64_t step = 1; step <= STEPS; step++) {
        const uint64_t n = 4096 + (step * 7919 % STEPS) * 1024;
        void *p[BLOCKS];

        for (int i = 0; i < BLOCKS; i++)
            assert_ok(d9d_device_alloc(dev, n, &p[i]));
        peak = d9d_device_memory(dev).peak;
        for (int i = 0; i < BLOCKS; i++)
            d9d_device_free(dev, p[i], n);
        assert_true(d9d_device_memory(dev).reserved <=
                    peak + (dev->ops->slack > peak ? dev->ops->slack : peak));
    }
}

static void a_limit_comes_with_the_name(void **state)
{
    d9d_device *dev = NULL;
    void *p;

    (void)state;
    assert_ok(d9d_device_check("auto@20GB"));
    assert_ok(d9d_device_open("cpu@16KiB", &dev));
    assert_int_equal(d9d_device_memory(dev).limit, 16384);
    assert_fails(d9d_device_alloc(dev, 16385, &p), D9D_EOOM,
                 "cpu: out of memory: 16385 bytes requested, 0 in use, limit 16384");
    d9d_device_close(dev);
    assert_fails(d9d_device_open("cpu@", &dev), D9D_ECONFIG,
                 "device \"cpu@\": \"\" is not a size such as 4096, 512MB or 4GiB");
    assert_fails(d9d_device_check("cpu@2 bytes"), D9D_ECONFIG,
                 "device \"cpu@2 bytes\": \"2 bytes\" is not a size such as 4096, 512MB or 4GiB");
    assert_fails(d9d_device_check("cpux@1GB"), D9D_ECONFIG,
                 "device \"cpux\": expected auto, cpu, cuda or cuda:N");
}

static void a_failure_says_what_is_expected(void **state)
{
    d9d_device *dev = *state;
    void *a, *b = NULL;

    d9d_device_set_limit(dev, 8192);
    assert_fails(d9d_device_require(dev, 8193), D9D_EOOM,
                 "cpu: out of memory: at least 8193 bytes needed, limit 8192");
    assert_ok(d9d_device_require(dev, 6000));
    assert_ok(d9d_device_alloc(dev, 4096, &a));
    assert_fails(d9d_device_alloc(dev, 5000, &b), D9D_EOOM,
                 "cpu: out of memory: 5000 bytes requested, 4096 in use, limit 8192; at least 6000 "
                 "needed in all");
    assert_ok(d9d_device_require(dev, 0));
    assert_fails(d9d_device_alloc(dev, 5000, &b), D9D_EOOM,
                 "cpu: out of memory: 5000 bytes requested, 4096 in use, limit 8192");
    d9d_device_free(dev, a, 4096);
}

/* Like a GPU, which reports its free memory. */
static void seven_hundred_of_a_thousand(d9d_device *dev, uint64_t *has, uint64_t *left)
{
    (void)dev;
    *has = 1000;
    *left = 700;
}

static void a_failure_says_what_there_is(void **state)
{
    d9d_device *dev = *state;
    const d9d_device_ops *own = dev->ops;
    d9d_device_ops ops = *own;
    void *p = NULL;

    ops.mem_info = seven_hundred_of_a_thousand;
    dev->ops = &ops;
    assert_fails(d9d_device_require(dev, 1001), D9D_EOOM,
                 "cpu: out of memory: at least 1001 bytes needed, 700 free of 1000");
    assert_fails(
        d9d_device_alloc(dev, UINT64_MAX, &p), D9D_EOOM,
        "cpu: out of memory: 18446744073709551615 bytes requested, 0 in use, 700 free of 1000");
    d9d_device_set_limit(dev, 600);
    assert_fails(d9d_device_require(dev, 601), D9D_EOOM,
                 "cpu: out of memory: at least 601 bytes needed, limit 600");
    dev->ops = own;
}

static void absurd_sizes_fail(void **state)
{
    d9d_device *dev = *state;
    void *p = NULL;

    assert_fails(d9d_device_alloc(dev, UINT64_MAX, &p), D9D_EOOM,
                 "cpu: out of memory: 18446744073709551615 bytes requested, 0 in use");
#ifndef __SANITIZE_ADDRESS__ /* which rejects such a request to the system */
    assert_fails(d9d_device_alloc(dev, UINT64_C(1) << 56, &p), D9D_EOOM,
                 "cpu: out of memory: 72057594037927936 bytes requested, 0 in use");
#endif
    assert_null(p);
    assert_int_equal(d9d_device_memory(dev).in_use, 0);
}

static void copies_arrive(void **state)
{
    d9d_device *dev = *state;
    const char text[] = "twelve bytes";
    char back[sizeof(text)] = "";
    void *a, *b;

    assert_ok(d9d_device_alloc(dev, sizeof(text), &a));
    assert_ok(d9d_device_alloc(dev, sizeof(text), &b));
    assert_ok(d9d_device_upload(dev, a, text, sizeof(text)));
    assert_ok(d9d_device_copy(dev, b, a, sizeof(text)));
    assert_ok(d9d_device_copy(dev, NULL, NULL, 0));
    assert_ok(d9d_device_sync(dev));
    assert_ok(d9d_device_download(dev, back, b, sizeof(text)));
    assert_string_equal(back, text);
    d9d_device_free(dev, a, sizeof(text));
    d9d_device_free(dev, b, sizeof(text));
}

/* Copies use staging buffers of some megabytes: sizes around theirs, many small copies, and uploads
 * without a wait between them. */
static void copies_of_any_size_arrive(void **state)
{
    enum { MAX_BYTES = (40 << 20) + 5, MIB = 1 << 20 };
    static const uint64_t sizes[] = {1, 255, 257, 8 * MIB - 1, 8 * MIB, 8 * MIB + 1, MAX_BYTES};
    d9d_device *dev = *state;
    unsigned char *host = malloc(MAX_BYTES), *back = malloc(MAX_BYTES);
    void *p;

    assert_true(host != NULL && back != NULL);
    for (uint64_t i = 0; i < MAX_BYTES; i++)
        host[i] = (unsigned char)(i * 2654435761u >> 13);
    assert_ok(d9d_device_alloc(dev, MAX_BYTES, &p));
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        assert_ok(d9d_device_upload(dev, p, host + MAX_BYTES - sizes[i], sizes[i]));
        memset(back, 0, sizes[i]);
        assert_ok(d9d_device_download(dev, back, p, sizes[i]));
        assert_memory_equal(back, host + MAX_BYTES - sizes[i], sizes[i]);
    }
    for (uint64_t at = 0; at < MAX_BYTES; at += 9973)
        assert_ok(d9d_device_upload(dev, (char *)p + at, host + at,
                                    MAX_BYTES - at < 9973 ? MAX_BYTES - at : 9973));
    assert_ok(d9d_device_download(dev, back, p, MAX_BYTES));
    assert_memory_equal(back, host, MAX_BYTES);
    d9d_device_free(dev, p, MAX_BYTES);
    free(host);
    free(back);
}

/* --- staging ---------------------------------------------------------------------------------- */

enum { CHUNK = 1000, CHUNKS = 500, PARTS = 3 };

typedef struct filling {
    d9d_staging *staging;
    unsigned char *to;
} filling;

/* Part i of bytes that begin with its number; every seventh part is first started in vain. */
static d9d_status fill_chunk(void *arg, int worker, size_t i)
{
    const filling *f = arg;
    unsigned char *to = f->to + i * CHUNK;
    void *part;

    (void)worker;
    if (i % 7 == 0) {
        D9D_TRY(d9d_staging_acquire(f->staging, to, CHUNK, &part));
        memset(part, 0xee, CHUNK);
        d9d_staging_cancel(f->staging, part);
    }
    D9D_TRY(d9d_staging_acquire(f->staging, to, CHUNK, &part));
    memset(part, (int)i & 0xff, CHUNK);
    memcpy(part, &i, sizeof(i));
    return d9d_staging_submit(f->staging, to, CHUNK, part);
}

static void check_staging(d9d_device *dev)
{
    unsigned char *back = malloc(CHUNK * CHUNKS), want[CHUNK];
    filling f;

    assert_non_null(back);
    assert_ok(d9d_device_alloc(dev, CHUNK * CHUNKS, (void **)&f.to));
    assert_ok(d9d_staging_open(dev, PARTS, CHUNK, &f.staging));
    assert_ok(d9d_thread_run(8, CHUNKS, fill_chunk, &f));
    assert_ok(d9d_device_download(dev, back, f.to, CHUNK * CHUNKS));
    d9d_staging_close(f.staging);
    for (size_t i = 0; i < CHUNKS; i++) {
        memset(want, (int)i & 0xff, CHUNK);
        memcpy(want, &i, sizeof(i));
        assert_memory_equal(back + i * CHUNK, want, CHUNK);
    }
    d9d_device_free(dev, f.to, CHUNK * CHUNKS);
    free(back);
}

static void threads_fill_memory(void **state)
{
    d9d_staging_close(NULL);
    check_staging(*state);
}

static d9d_status refuse(d9d_device *dev, void *dst, const void *pinned, uint64_t n)
{
    (void)dst, (void)pinned, (void)n;
    return D9D_FAIL(D9D_ECUDA, "%s: gone", dev->name);
}

/* With the parts that a separate device needs, with fewer parts than threads. */
static void threads_fill_memory_by_parts(void **state)
{
    d9d_device *dev = *state;
    const d9d_device_ops *own = dev->ops;
    d9d_device_ops ops = *own;

    ops.host_accessible = false;
    dev->ops = &ops;
    check_staging(dev);
    dev->ops = own;
}

static void a_part_that_cannot_be_sent_is_free_again(void **state)
{
    d9d_device *dev = *state;
    const d9d_device_ops *own = dev->ops;
    d9d_device_ops ops = *own;
    d9d_staging *s;
    void *part, *to;

    ops.host_accessible = false;
    ops.h2d_async = refuse;
    dev->ops = &ops;
    assert_ok(d9d_device_alloc(dev, CHUNK, &to));
    assert_ok(d9d_staging_open(dev, 1, CHUNK, &s));
    for (int i = 0; i < 3; i++) {
        assert_ok(d9d_staging_acquire(s, to, CHUNK, &part));
        assert_fails(d9d_staging_submit(s, to, CHUNK, part), D9D_ECUDA, "cpu: gone");
    }
    d9d_staging_close(s);
    d9d_device_free(dev, to, CHUNK);
    dev->ops = own;
}

/* --- reading back ----------------------------------------------------------------------------- */

/* Two readbacks in flight; each has the content at the time that it was enqueued. */
static void what_was_queued_comes_back(void **state)
{
    enum { N = 1000 };
    d9d_device *dev = *state;
    d9d_readback *r[2];
    const uint64_t waits = dev->host_waits;
    void *x;

    assert_ok(d9d_device_alloc(dev, N * sizeof(float), &x));
    for (int i = 0; i < 2; i++) {
        assert_ok(d9d_readback_create(dev, N * sizeof(float), &r[i]));
        assert_true(d9d_readback_ready(r[i])); /* nothing is in flight */
    }
    for (int i = 0; i < 2; i++) {
        assert_ok(dev->kernels->elementwise->fill(dev->stream, D9D_F32, x, N, (float)i + 1));
        assert_ok(d9d_readback_enqueue(r[i], x));
    }
    assert_ok(dev->kernels->elementwise->fill(dev->stream, D9D_F32, x, N, 9.0f));
    assert_int_equal(dev->host_waits, waits);
    for (int i = 1; i >= 0; i--) {
        const void *back;

        assert_ok(d9d_readback_wait(r[i], &back));
        assert_true(d9d_readback_ready(r[i]));
        for (int k = 0; k < N; k++)
            assert_true(((const float *)back)[k] == (float)i + 1);
        d9d_readback_free(r[i]);
    }
    d9d_device_free(dev, x, N * sizeof(float));
}

/* Buffers of the same size are reused; others are made. */
static void a_readback_serves_again(void **state)
{
    d9d_device *dev = *state;
    d9d_readback *r[20], *again;

    for (int i = 0; i < 20; i++)
        assert_ok(d9d_readback_create(dev, (uint64_t)(8 * i), &r[i]));
    for (int i = 0; i < 20; i++)
        d9d_readback_free(r[i]);
    assert_ok(d9d_readback_create(dev, 8 * 19, &again));
    assert_ptr_equal(again, r[19]);
    d9d_readback_free(again);
    assert_ok(d9d_readback_create(dev, 7, &again));
    d9d_readback_free(again);
}

static void waiting_is_counted(void **state)
{
    d9d_device *dev = *state;
    const uint64_t waits = dev->host_waits;
    float host;
    void *x;

    assert_ok(d9d_device_alloc(dev, sizeof(host), &x));
    assert_ok(dev->kernels->elementwise->fill(dev->stream, D9D_F32, x, 1, 2.0f));
    assert_int_equal(dev->host_waits, waits);
    assert_ok(d9d_device_download(dev, &host, x, sizeof(host)));
    assert_int_equal(dev->host_waits, waits + 1);
    assert_ok(d9d_device_sync(dev));
    assert_int_equal(dev->host_waits, waits + 2);
    assert_true(host == 2.0f);
    d9d_device_free(dev, x, sizeof(host));
}

static void events_tell_time(void **state)
{
    enum { N = 1 << 22 };
    d9d_device *dev = *state;
    d9d_device_event *e[2];
    double ms;
    void *x;

    assert_ok(d9d_device_alloc(dev, N * sizeof(float), &x));
    for (int i = 0; i < 2; i++)
        assert_ok(d9d_device_event_create(dev, &e[i]));
    assert_ok(d9d_device_event_record(e[0]));
    assert_ok(dev->kernels->elementwise->fill(dev->stream, D9D_F32, x, N, 1.0f));
    assert_ok(d9d_device_event_record(e[1]));
    assert_ok(d9d_device_event_wait(e[1]));
    assert_true(d9d_device_event_query(e[0]) && d9d_device_event_query(e[1]));
    assert_ok(d9d_device_event_elapsed_ms(e[0], e[1], &ms));
    assert_true(ms > 0 && ms < 10000);
    for (int i = 0; i < 2; i++)
        d9d_device_event_free(e[i]);
    d9d_device_event_free(NULL);
    d9d_readback_free(NULL);
    d9d_device_free(dev, x, N * sizeof(float));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        with_any(threads_fill_memory),
        with_cpu(threads_fill_memory_by_parts),
        with_cpu(a_part_that_cannot_be_sent_is_free_again),
        with_any(what_was_queued_comes_back),
        with_any(a_readback_serves_again),
        with_any(waiting_is_counted),
        with_any(events_tell_time),
        with_cpu(held_blocks_serve_nobody),
        with_any(a_graph_repeats_what_was_recorded),
        cmocka_unit_test(names_that_open),
        with_any(the_chip_of_plans),
        cmocka_unit_test(names_that_do_not),
        cmocka_unit_test(classes_cover_all_sizes_and_waste_an_eighth),
        with_cpu(memory_is_aligned_and_apart),
        with_cpu(freed_blocks_are_used_again),
        with_cpu(statistics_follow),
        with_cpu(a_limit_gives_cached_blocks_back_before_it_fails),
        with_cpu(a_full_device_lends_blocks_that_are_little_larger),
        with_cpu(a_full_device_lends_large_blocks_to_what_may_be_loose),
        with_cpu(a_full_device_lends_large_blocks_to_nothing_else),
        with_cpu(what_was_in_use_at_once_is_never_lost),
        with_cpu(what_was_not_asked_for_the_longest_goes_first),
        with_cpu(a_full_device_settles),
        with_cpu(the_cache_is_bounded_by_what_was_in_use),
        cmocka_unit_test(a_limit_comes_with_the_name),
        with_cpu(a_failure_says_what_is_expected),
        with_cpu(a_failure_says_what_there_is),
        with_cpu(absurd_sizes_fail),
        with_any(copies_arrive),
        with_any(copies_of_any_size_arrive),
    };

    return cmocka_run_group_tests_name("device", tests, NULL, NULL);
}
