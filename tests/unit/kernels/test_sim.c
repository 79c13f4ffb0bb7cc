/* test_sim.c - a device that counts, its clocks, and groups of ranks that are not there. */
#include <math.h>
#include <string.h>

#include "d9d/comm/mesh.h"
#include "d9d/device/readback.h"
#include "d9d/device/simulated.h"
#include "d9d/tensor/tensor.h"
#include "support/unit.h"

static int open_gpu(void **state)
{
    return d9d_device_simulate("h200", (d9d_device **)state) == D9D_OK ? 0 : -1;
}
static int open_ampere(void **state)
{
    return d9d_device_simulate("a100", (d9d_device **)state) == D9D_OK ? 0 : -1;
}
static int open_cpu(void **state)
{
    return d9d_device_simulate("cpu", (d9d_device **)state) == D9D_OK ? 0 : -1;
}
static int close_any(void **state)
{
    d9d_device_close(*state);
    return 0;
}

/* The same requests on the CPU and on the simulated device. */
static void memory_counts_as_on_a_device(void **state)
{
    static const uint64_t sizes[] = {0, 1, 257, 4000, 70000, 3 << 20, 17 << 20, 40 << 20};
    enum { N = sizeof(sizes) / sizeof(sizes[0]) };
    d9d_device *dev[2] = {*state, NULL};
    void *p[2][N];

    assert_ok(d9d_device_open("cpu", &dev[1]));
    for (int d = 0; d < 2; d++) {
        for (int i = 0; i < N; i++) {
            assert_ok(d9d_device_alloc(dev[d], sizes[i], &p[d][i]));
            assert_int_equal((uintptr_t)p[d][i] % 16, 0);
        }
        for (int i = 0; i < N; i += 2)
            d9d_device_free(dev[d], p[d][i], sizes[i]);
        assert_ok(d9d_device_alloc(dev[d], 60 << 20, &p[d][0]));
    }
    assert_int_equal(d9d_device_memory(dev[0]).peak, d9d_device_memory(dev[1]).peak);
    assert_int_equal(d9d_device_memory(dev[0]).in_use, d9d_device_memory(dev[1]).in_use);
    for (int d = 0; d < 2; d++) {
        d9d_device_free(dev[d], p[d][0], 60 << 20);
        for (int i = 1; i < N; i += 2)
            d9d_device_free(dev[d], p[d][i], sizes[i]);
    }
    d9d_device_close(dev[1]);
}

/* Terabytes are addresses that differ; nothing is there. */
static void large_blocks_are_nowhere(void **state)
{
    d9d_device *dev = *state;
    unsigned char byte = 7;
    void *a, *b;

    assert_ok(d9d_device_alloc(dev, UINT64_C(1) << 40, &a));
    assert_ok(d9d_device_alloc(dev, UINT64_C(1) << 40, &b));
    assert_false(d9d_sim_is_real(a));
    assert_true((char *)a + (UINT64_C(1) << 40) <= (char *)b);
    assert_ok(d9d_device_upload(dev, b, &byte, 1));
    assert_ok(d9d_device_copy(dev, a, b, 1));
    assert_ok(d9d_device_download(dev, &byte, a, 1));
    assert_int_equal(byte, 0);
    d9d_device_free(dev, a, UINT64_C(1) << 40);
    d9d_device_free(dev, b, UINT64_C(1) << 40);
    assert_fails_like(d9d_device_alloc(dev, UINT64_C(1) << 62, &a), D9D_EOOM, "out of memory");
}

static void small_blocks_are_memory(void **state)
{
    const int32_t in[2] = {3, 4};
    int32_t out[2] = {0, 0};
    void *a, *b;

    assert_ok(d9d_device_alloc(*state, sizeof(in), &a));
    assert_ok(d9d_device_alloc(*state, sizeof(in), &b));
    assert_ok(d9d_device_upload(*state, a, in, sizeof(in)));
    assert_ok(d9d_device_copy(*state, b, a, sizeof(in)));
    assert_ok(d9d_device_download(*state, out, b, sizeof(out)));
    assert_memory_equal(in, out, sizeof(in));
    d9d_device_free(*state, a, sizeof(in));
    d9d_device_free(*state, b, sizeof(in));
}

static void names_of_chips(void **state)
{
    d9d_device *dev;

    (void)state;
    for (const char *const *name = d9d_sim_chip_names(); *name != NULL; name++) {
        const d9d_sim_chip *c = d9d_sim_chip_find(*name);

        assert_non_null(c);
        assert_true(c->flops > 0 && c->memory_rate > 0 && c->per_node > 0);
        for (int k = 0; k < D9D_SIM_KIND_COUNT; k++)
            assert_true(c->efficiency[k] > 0 && c->efficiency[k] < 1);
    }
    assert_fails(d9d_device_simulate("h300", &dev), D9D_ECONFIG,
                 "unknown chip \"h300\"; expected one of h200, h100, a100, b200, cpu");
}

/* --- kernels ------------------------------------------------------------------------------ */

static void a_product_takes_its_time(void **state)
{
    d9d_device *dev = *state;
    const d9d_sim_chip *c = d9d_sim_chip_find("h200");
    const d9d_gemm g = {.t = D9D_BF16, .ct = D9D_BF16, .m = 8192, .n = 8192, .k = 8192};
    const d9d_sim_tally *t = d9d_sim_get_tally(d9d_sim_of_stream(dev->stream));

    assert_ok(dev->kernels->gemm->dense(dev->stream, &g, NULL, NULL, NULL));
    assert_int_equal(t->work[D9D_SIM_GEMM].calls, 1);
    assert_true(t->work[D9D_SIM_GEMM].flops == 2.0 * 8192 * 8192 * 8192);
    assert_true(fabs(d9d_sim_now(dev->stream) -
                     2.0 * 8192 * 8192 * 8192 / (c->flops * c->efficiency[D9D_SIM_GEMM])) < 1e-9);
    assert_true(t->max_scratch >= 2 * 8192 * 8192 * 2); /* a trial */
    assert_int_equal(d9d_device_memory(dev).in_use, 0);
    d9d_device_reset_peak(dev);
    assert_ok(dev->kernels->gemm->dense(dev->stream, &g, NULL, NULL, NULL));
    assert_true(d9d_device_memory(dev).peak <= 64 << 20); /* no second one */
    d9d_sim_reset_tally(d9d_sim_of_stream(dev->stream));
    assert_int_equal(t->work[D9D_SIM_GEMM].calls, 0);
}

/* Small, it takes as long as a launch; a copy as long as its bytes. */
static void a_kernel_takes_at_least_a_launch(void **state)
{
    d9d_device *dev = *state;
    const d9d_sim_chip *c = d9d_sim_chip_find("h200");
    double before;

    assert_ok(dev->kernels->elementwise->fill(dev->stream, D9D_F32, NULL, 1, 0));
    assert_true(fabs(d9d_sim_now(dev->stream) - c->launch_s) < 1e-12);
    before = d9d_sim_now(dev->stream);
    assert_ok(dev->kernels->elementwise->add(dev->stream, D9D_BF16, NULL, NULL, 2, 1 << 30));
    assert_true(fabs(d9d_sim_now(dev->stream) - before -
                     6.0 * (1 << 30) / (c->memory_rate * c->memory_efficiency)) < 1e-9);
}

static double memory_bytes(const d9d_device *dev)
{
    return d9d_sim_get_tally(d9d_sim_of_stream(dev->stream))->work[D9D_SIM_MEMORY].bytes;
}

/* What is broadcast is read once, what a formula does not read not at all. */
static void functions_of_elements_read_their_inputs(void **state)
{
    enum { T = 1024, D = 512 };
    const d9d_device *dev = *state;
    const d9d_pointwise_dims d = {.f = D9D_POINTWISE_MUL,
                                  .of = D9D_POINTWISE_VALUE,
                                  .ndim = 2,
                                  .dim = {T, D},
                                  .yt = D9D_F32,
                                  .x = {{D9D_BF16, {D, 1}}, {D9D_F32, {0, 1}}}};
    float array[1];

    assert_ok(dev->kernels->math->pointwise(dev->stream, &d, array,
                                            (const void *const[4]){array, array}));
    assert_true(memory_bytes(dev) == 4.0 * T * D + 2.0 * T * D + 4.0 * D);
    assert_ok(
        dev->kernels->math->pointwise(dev->stream, &d, array, (const void *const[4]){array, NULL}));
    assert_true(memory_bytes(dev) == 2 * (4.0 * T * D + 2.0 * T * D) + 4.0 * D);
}

/* A long axis has partial results on a GPU, and the gradient of a maximum the counts of ties. */
static void reductions_use_scratch(void **state)
{
    enum { R = 1 << 20 };
    const d9d_device *dev = *state;
    const d9d_sim_tally *t = d9d_sim_get_tally(d9d_sim_of_stream(dev->stream));
    const d9d_reduce_axis_dims sum = {D9D_REDUCE_SUM, D9D_BF16, 1, R, 3, NULL},
                               max = {D9D_REDUCE_MAX, D9D_BF16, R, 8, 1, NULL};

    assert_ok(dev->kernels->math->reduce_axis(dev->stream, &sum, NULL, NULL));
    assert_true(t->max_scratch == 4 * 3 * (R / 1024));
    assert_true(memory_bytes(dev) == 2.0 * 3 * R);
    assert_ok(dev->kernels->math->reduce_axis_bwd(dev->stream, &max, NULL, NULL, NULL, NULL));
    assert_true(t->max_scratch == 4 * R);
}

/* Documents of a pack see less than a row. */
static void attention_counts_what_is_seen(void **state)
{
    d9d_device *dev = *state;
    const d9d_sim_tally *t = d9d_sim_get_tally(d9d_sim_of_stream(dev->stream));
    const d9d_segment two[] = {{0, 2, 0, 2}, {2, 2, 2, 2}};
    const int32_t prefix[] = {2, 1};
    d9d_attention_dims n = {
        .t = D9D_F32, .b = 1, .s = 4, .z = 4, .a = 1, .kv = 1, .d = 8, .causal = true};
    void *list;

    assert_ok(dev->kernels->attention->fwd(dev->stream, &n, NULL, NULL, NULL, NULL, NULL));
    assert_true(t->work[D9D_SIM_ATTENTION].flops == 4.0 * 8 * 10);
    assert_ok(d9d_device_alloc(dev, sizeof(two), &list));
    assert_ok(d9d_device_upload(dev, list, two, sizeof(two)));
    n.segments = 2;
    n.segment = list;
    assert_ok(dev->kernels->attention->fwd(dev->stream, &n, NULL, NULL, NULL, NULL, NULL));
    assert_true(t->work[D9D_SIM_ATTENTION].flops == 4.0 * 8 * (10 + 6));
    n.window = 1;
    assert_ok(dev->kernels->attention->fwd(dev->stream, &n, NULL, NULL, NULL, NULL, NULL));
    assert_true(t->work[D9D_SIM_ATTENTION].flops == 4.0 * 8 * (10 + 6 + 4));
    n.window = 0;
    n.prefix = prefix; /* all 4 pairs of one, the 3 of the other */
    assert_ok(dev->kernels->attention->fwd(dev->stream, &n, NULL, NULL, NULL, NULL, NULL));
    assert_true(t->work[D9D_SIM_ATTENTION_BUILTIN].flops == 4.0 * 8 * 7);
    n.prefix = NULL;
    n.segment = NULL;
    n.segments = 0;
    for (n.window = 2; n.window < 9; n.window += 2) /* 7 pairs, then all 10 */
        assert_ok(dev->kernels->attention->fwd(dev->stream, &n, NULL, NULL, NULL, NULL, NULL));
    assert_true(t->work[D9D_SIM_ATTENTION].flops == 4.0 * 8 * (10 + 6 + 4 + 7 + 3 * 10));
    n.z = 9;
    for (n.window = 2; n.window < 14; n.window += 5) /* 8, 27 and all 30 */
        assert_ok(dev->kernels->attention->fwd(dev->stream, &n, NULL, NULL, NULL, NULL, NULL));
    assert_true(t->work[D9D_SIM_ATTENTION_BUILTIN].flops == 4.0 * 8 * (7 + 8 + 27 + 30));
    n.causal = false;
    for (n.window = 0; n.window < 4; n.window += 2) /* all 36 and, of 3, 3, 3 and 2 keys, 11 */
        assert_ok(dev->kernels->attention->fwd(dev->stream, &n, NULL, NULL, NULL, NULL, NULL));
    assert_true(t->work[D9D_SIM_ATTENTION_BUILTIN].flops == 4.0 * 8 * (7 + 8 + 27 + 30 + 36 + 11));
    d9d_device_free(dev, list, sizeof(two));
}

/* Pairs of queries [q, q + nq) and keys in [first, end) of a segment's, one by one: segment.h. */
static int64_t pairs_seen(const d9d_attention_dims *n, int64_t nq, int64_t nk, int64_t prefix,
                          int64_t first, int64_t end)
{
    const int64_t keys = nk > prefix ? nk : prefix;
    int64_t sum = 0;

    for (int64_t i = 0; i < nq; i++)
        for (int64_t k = 0; k < keys; k++) {
            const int64_t back = nk - nq + i - k, far = back > 0 ? back : -back;

            sum += k >= first && k < end && (!n->causal || back >= 0 || k < prefix) &&
                   (n->window == 0 || far < n->window);
        }
    return sum;
}

/* Two documents of a row of 40 keys, of which a call has some. */
static void attention_counts_what_is_seen_of_a_part(void **state)
{
    d9d_device *dev = *state;
    const d9d_sim_tally *t = d9d_sim_get_tally(d9d_sim_of_stream(dev->stream));
    static const int64_t windows[] = {0, 1, 3, 9, 50};
    void *list, *prefix;
    double all = 0;

    assert_ok(d9d_device_alloc(dev, 2 * sizeof(d9d_segment), &list));
    assert_ok(d9d_device_alloc(dev, 2 * sizeof(int32_t), &prefix));
    for (int64_t i = 0; i < 400; i++) {
        const d9d_segment two[] = {{0, 4, 0, 4 + (int32_t)(i % 9)},
                                   {4, 6, 14, 6 + (int32_t)(i % 7)}};
        const int32_t open[] = {(int32_t)(i % 13), (int32_t)(i % 25)};
        const d9d_attention_dims n = {.t = D9D_F32,
                                      .b = 1,
                                      .s = 10,
                                      .z = 40,
                                      .a = 1,
                                      .kv = 1,
                                      .d = 8,
                                      .causal = true,
                                      .segments = 2,
                                      .segment = list,
                                      .prefix = i % 2 == 0 ? prefix : NULL,
                                      .window = windows[i % 5],
                                      .part = {i % 31, i % 3 == 0 ? 0 : 1 + i % 10}};

        assert_ok(d9d_device_upload(dev, list, two, sizeof(two)));
        assert_ok(d9d_device_upload(dev, prefix, open, sizeof(open)));
        for (int k = 0; k < 2; k++)
            all += (double)pairs_seen(&n, two[k].nq, two[k].nk, n.prefix != NULL ? open[k] : 0,
                                      n.part.n > 0 ? n.part.first - two[k].k : 0,
                                      n.part.n > 0 ? n.part.first + n.part.n - two[k].k : 40);
        assert_ok(dev->kernels->attention->fwd(dev->stream, &n, NULL, NULL, NULL, NULL, NULL));
        assert_true(t->work[D9D_SIM_ATTENTION_BUILTIN].flops == 4.0 * 8 * all);
    }
    d9d_device_free(dev, list, 2 * sizeof(d9d_segment));
    d9d_device_free(dev, prefix, 2 * sizeof(int32_t));
}

/* Blocks of ring attention: full chunks and diagonals by a library, what a window cuts or a list
 * says by plain kernels; on Hopper the backward of a window too. */
static void attention_of_a_ring(void **state)
{
    d9d_device *dev = *state;
    const d9d_sim_tally *t = d9d_sim_get_tally(d9d_sim_of_stream(dev->stream));
    const d9d_sim_work *const out = &t->work[D9D_SIM_ATTENTION],
                              *const back = &t->work[D9D_SIM_ATTENTION_BWD],
                              *const plain = &t->work[D9D_SIM_ATTENTION_BUILTIN];
    static const struct {
        int64_t chunk, window, d;
        bool list;
        int plain_out, plain_back;
    } cases[] = {{0, 0, 128, false, 0, 0}, {1, 0, 128, false, 0, 0}, {2, 0, 256, false, 0, 0},
                 {1, 50, 64, false, 1, 0}, {0, 50, 64, false, 1, 0}, {0, 900, 64, false, 0, 0},
                 {0, 0, 128, true, 1, 1},  {0, 0, 516, false, 1, 1}};
    const d9d_segment one = {0, 256, 0, 512};
    void *list;

    assert_ok(d9d_device_alloc(dev, sizeof(one), &list));
    assert_ok(d9d_device_upload(dev, list, &one, sizeof(one)));
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const int64_t before[] = {out->calls, back->calls, plain->calls};
        const int slow = cases[i].plain_out + cases[i].plain_back;
        const d9d_attention_dims n = {.t = D9D_BF16,
                                      .b = 1,
                                      .s = 256,
                                      .z = 512,
                                      .a = 1,
                                      .kv = 1,
                                      .d = cases[i].d,
                                      .causal = true,
                                      .segments = cases[i].list ? 1 : 0,
                                      .segment = cases[i].list ? list : NULL,
                                      .window = cases[i].window,
                                      .chunks = 2,
                                      .chunk_end = {256, 384},
                                      .part = {cases[i].chunk * 128, 128}};

        assert_ok(dev->kernels->attention->fwd(dev->stream, &n, NULL, NULL, NULL, NULL, NULL));
        assert_ok(dev->kernels->attention->bwd(dev->stream, &n, NULL, NULL, NULL, NULL, NULL, NULL,
                                               NULL, NULL, NULL));
        assert_int_equal(out->calls - before[0], 1 - cases[i].plain_out);
        assert_int_equal(back->calls - before[1], 1 - cases[i].plain_back);
        assert_int_equal(plain->calls - before[2], slow);
    }
    d9d_device_free(dev, list, sizeof(one));
}

/* A library's, as of whole rows, where the list is known to be of chunks. */
static void attention_of_chunks(void **state)
{
    d9d_device *dev = *state;
    const d9d_sim_tally *t = d9d_sim_get_tally(d9d_sim_of_stream(dev->stream));
    const d9d_segment two[] = {{0, 2, 0, 2}, {2, 2, 0, 8}};
    d9d_attention_dims n = {.t = D9D_BF16,
                            .b = 1,
                            .s = 4,
                            .z = 8,
                            .a = 2,
                            .kv = 1,
                            .d = 64,
                            .causal = true,
                            .segments = 2,
                            .chunks = 2};
    void *list;

    assert_ok(d9d_device_alloc(dev, sizeof(two), &list));
    assert_ok(d9d_device_upload(dev, list, two, sizeof(two)));
    n.segment = list;
    assert_ok(dev->kernels->attention->fwd(dev->stream, &n, NULL, NULL, NULL, NULL, NULL));
    assert_true(t->work[D9D_SIM_ATTENTION].flops == 4.0 * 2 * 64 * (3 + 15));
    assert_int_equal(t->work[D9D_SIM_ATTENTION_BUILTIN].calls, 0);
    assert_ok(dev->kernels->attention->bwd(dev->stream, &n, NULL, NULL, NULL, NULL, NULL, NULL,
                                           NULL, NULL, NULL));
    assert_int_equal(t->work[D9D_SIM_ATTENTION_BWD].calls, 1);
    /* Scores of two documents of 128, two sums of a query; gradients of keys of each head, and of
     * the second chunk. */
    assert_int_equal(t->max_scratch, 2 * 2 * 2 * 128 * 128 + 2 * 32 + 2 * 2048 + 2048);
    n.chunks = 0;
    assert_ok(dev->kernels->attention->fwd(dev->stream, &n, NULL, NULL, NULL, NULL, NULL));
    assert_int_equal(t->work[D9D_SIM_ATTENTION_BUILTIN].calls, 1);
    d9d_device_free(dev, list, sizeof(two));
}

/* ... and the chunks of whole rows, whose lengths need no list. */
static void attention_of_chunks_of_rows(void **state)
{
    d9d_device *dev = *state;
    const d9d_sim_tally *t = d9d_sim_get_tally(d9d_sim_of_stream(dev->stream));
    d9d_attention_dims n = {.t = D9D_BF16,
                            .b = 3,
                            .s = 256,
                            .z = 512,
                            .a = 2,
                            .kv = 1,
                            .d = 64,
                            .causal = true,
                            .chunks = 2,
                            .chunk_end = {128, 512}};
    const double pairs = 128 * 129 / 2.0 + 128 * 384 + 128 * 129 / 2.0;

    assert_ok(dev->kernels->attention->fwd(dev->stream, &n, NULL, NULL, NULL, NULL, NULL));
    assert_true(t->work[D9D_SIM_ATTENTION].flops == 4.0 * 2 * 64 * 3 * pairs);
    assert_int_equal(t->max_scratch, 0);
    assert_ok(dev->kernels->attention->bwd(dev->stream, &n, NULL, NULL, NULL, NULL, NULL, NULL,
                                           NULL, NULL, NULL));
    /* Scores of the second chunk with the keys before it, a sum of a query, gradients of keys of
     * the first chunk, and of queries. */
    assert_int_equal(t->max_scratch, 3 * 2 * 2 * 128 * 384 + 3 * 256 * 2 * 4 +
                                         2 * 3 * 512 * 64 * 2 + 3 * 256 * 2 * 64 * 2);
    n.dropout.p = 0.1f;
    assert_ok(dev->kernels->attention->fwd(dev->stream, &n, NULL, NULL, NULL, NULL, NULL));
    assert_ok(dev->kernels->attention->bwd(dev->stream, &n, NULL, NULL, NULL, NULL, NULL, NULL,
                                           NULL, NULL, NULL));
    assert_int_equal(t->work[D9D_SIM_ATTENTION_BUILTIN].calls, 2);
    n.dropout.p = 0;
    n.chunk_end[0] = 32;
    n.s = 64;
    assert_ok(dev->kernels->attention->fwd(dev->stream, &n, NULL, NULL, NULL, NULL, NULL));
    assert_int_equal(t->work[D9D_SIM_ATTENTION_BUILTIN].calls, 3);
}

/* Of lengths that have no plan, as documents. */
static void attention_of_any_length(void **state)
{
    d9d_device *dev = *state;
    const d9d_sim_tally *t = d9d_sim_get_tally(d9d_sim_of_stream(dev->stream));
    d9d_attention_dims n = {
        .t = D9D_BF16, .b = 3, .s = 300, .z = 300, .a = 2, .kv = 1, .d = 64, .causal = true};

    assert_ok(dev->kernels->attention->fwd(dev->stream, &n, NULL, NULL, NULL, NULL, NULL));
    assert_int_equal(t->max_scratch, 4 * 3 * 300 * 2);
    assert_true(t->work[D9D_SIM_ATTENTION].flops == 4.0 * 2 * 64 * 3 * 300 * 301 / 2.0);
    assert_ok(dev->kernels->attention->bwd(dev->stream, &n, NULL, NULL, NULL, NULL, NULL, NULL,
                                           NULL, NULL, NULL));
    /* Scores of 320 x 320, two sums of a query, gradients of keys of each head. */
    assert_int_equal(t->max_scratch,
                     3 * 2 * 2 * 320 * 320 + 2 * 4 * 3 * 300 * 2 + 2 * 4 * 3 * 300 * 64);
}

/* On Hopper it is fast whatever keys a query has, and keeps what sees each other: of 64 queries and
 * 128 keys, 4 x 5 + 4 + 2 of each row and head here. */
static void gradients_of_attention_by_tiles(void **state)
{
    d9d_device *dev = *state;
    const d9d_sim_tally *t = d9d_sim_get_tally(d9d_sim_of_stream(dev->stream));
    d9d_attention_dims n = {
        .t = D9D_BF16, .b = 3, .s = 300, .z = 700, .a = 2, .kv = 1, .d = 64, .causal = true};

    assert_ok(dev->kernels->attention->bwd(dev->stream, &n, NULL, NULL, NULL, NULL, NULL, NULL,
                                           NULL, NULL, NULL));
    assert_int_equal(t->work[D9D_SIM_ATTENTION_BWD].calls, 1);
    assert_int_equal(t->max_scratch, 2 * 4 * 3 * 300 * 2 + 26 * 3 * 2 * 64 * 128 * 2);
    n.d = 80;
    assert_ok(dev->kernels->attention->bwd(dev->stream, &n, NULL, NULL, NULL, NULL, NULL, NULL,
                                           NULL, NULL, NULL));
    assert_int_equal(t->work[D9D_SIM_ATTENTION_BWD].calls, 2);
    n.d = 256; /* of which none are kept */
    assert_ok(dev->kernels->attention->bwd(dev->stream, &n, NULL, NULL, NULL, NULL, NULL, NULL,
                                           NULL, NULL, NULL));
    n.window = 70;
    assert_ok(dev->kernels->attention->bwd(dev->stream, &n, NULL, NULL, NULL, NULL, NULL, NULL,
                                           NULL, NULL, NULL));
    assert_int_equal(t->work[D9D_SIM_ATTENTION_BWD].calls, 4);
    n.d = 264;
    assert_ok(dev->kernels->attention->bwd(dev->stream, &n, NULL, NULL, NULL, NULL, NULL, NULL,
                                           NULL, NULL, NULL));
    assert_int_equal(t->work[D9D_SIM_ATTENTION_BUILTIN].calls, 1);
    assert_int_equal(t->work[D9D_SIM_ATTENTION_BWD].calls, 4);
}

/* Values of other features than keys: the GEMMs are as deep as they are, and what no kernel takes
 * is copied. */
static void attention_of_other_values(void **state)
{
    enum { B = 3, S = 320, KEY = 192, VALUE = 128, PAIRS = B * S * (S + 1) / 2 };
    d9d_device *dev = *state;
    const d9d_sim_tally *t = d9d_sim_get_tally(d9d_sim_of_stream(dev->stream));
    d9d_attention_dims n = {.t = D9D_BF16,
                            .b = B,
                            .s = S,
                            .z = S,
                            .a = 2,
                            .kv = 1,
                            .d = KEY,
                            .dv = VALUE,
                            .causal = true};

    assert_ok(dev->kernels->attention->fwd(dev->stream, &n, NULL, NULL, NULL, NULL, NULL));
    assert_true(t->work[D9D_SIM_ATTENTION].flops == 2.0 * 2 * PAIRS * (KEY + VALUE));
    assert_int_equal(t->max_scratch, 0);
    n.d = VALUE;
    n.dv = KEY;
    assert_ok(dev->kernels->attention->fwd(dev->stream, &n, NULL, NULL, NULL, NULL, NULL));
    assert_int_equal(t->max_scratch, B * S * 3 * KEY * 2);
    assert_ok(dev->kernels->attention->bwd(dev->stream, &n, NULL, NULL, NULL, NULL, NULL, NULL,
                                           NULL, NULL, NULL));
    assert_true(t->work[D9D_SIM_ATTENTION_BWD].flops == 2.0 * 2 * PAIRS * (3 * VALUE + 2 * KEY));
}

static void experts_get_the_same(void **state)
{
    d9d_device *dev = *state;
    const d9d_kernels *k = dev->kernels;
    int32_t offset[5], rank[16];

    assert_ok(k->moe->sort_by_expert(dev->stream, offset, NULL, NULL, NULL, 10, 4, 2));
    assert_int_equal(offset[0], 0);
    assert_int_equal(offset[1], 5);
    assert_int_equal(offset[4], 20);
    /* 2 of 4 experts on 2 ranks with 2 each: a rank has none of them once in 6 times. */
    assert_ok(k->moe->expert_ranks(dev->stream, rank, NULL, 12, 2, 2, 2));
    assert_ok(k->moe->sort_by_expert(dev->stream, offset, NULL, NULL, rank, 12, 2, 2));
    assert_int_equal(offset[2], 20);
    assert_ok(k->moe->sort_by_expert(dev->stream, offset, NULL, NULL, rank, 12, 2,
                                     2)); /* another array there */
    assert_int_equal(offset[2], 24);
}

/* 2 of 4 experts on 2 nodes with 2 each: a node that gets a row has 2 / (2 5/6) = 1.2 choices of
 * it, so one row in five goes to both of its ranks. */
static void nodes_get_what_is_chosen(void **state)
{
    d9d_device *dev = *state;
    const d9d_kernels *k = dev->kernels;
    int32_t offset[5], rank[16], came[16], there[16];

    assert_ok(k->moe->expert_ranks(dev->stream, rank, NULL, 12, 2, 2, 2));
    assert_ok(k->moe->sort_by_expert(dev->stream, offset, NULL, NULL, rank, 12, 2, 2));
    assert_int_equal(offset[2], 20);
    assert_ok(k->moe->sort_by_expert(dev->stream, offset, NULL, NULL, came, 20, 2, 2));
    assert_int_equal(offset[2], 24);
    assert_ok(k->moe->expert_ranks(dev->stream, there, came, 20, 2, 2, 1));
    assert_ok(k->moe->sort_by_expert(dev->stream, offset, NULL, NULL, there, 20, 2, 2));
    assert_int_equal(offset[2], 24);
}

/* --- ranks ----------------------------------------------------------------------------------- */

static d9d_mesh *imagine(d9d_device *dev, const d9d_parallel_degrees *d, int rank,
                         d9d_bootstrap **bootstrap)
{
    const d9d_mesh_opts opts = {0};
    d9d_mesh *m;

    assert_ok(d9d_bootstrap_simulate(rank, (int)d9d_parallel_degrees_ranks(d), bootstrap));
    assert_true(d9d_bootstrap_is_simulated(*bootstrap));
    assert_ok(d9d_mesh_open(*bootstrap, d, "sim", dev->stream, &opts, &m));
    return m;
}

/* Rank 5 of 16 on nodes of 8: tp within one, dp_shard between both. */
static void groups_count_what_they_move(void **state)
{
    d9d_device *dev = *state;
    const d9d_parallel_degrees d = {1, 1, 8, 1, 1, 2, 1, 1, D9D_CP_ALL_GATHER};
    const d9d_sim_tally *t = d9d_sim_get_tally(d9d_sim_of_stream(dev->stream));
    const int64_t eight[8] = {100, 100, 100, 100, 100, 100, 100, 100};
    d9d_comm *tp, *shard;
    d9d_bootstrap *bootstrap;
    d9d_mesh *m = imagine(dev, &d, 5, &bootstrap);
    double before;

    assert_ok(d9d_mesh_group(m, D9D_AXIS(TP), &tp));
    assert_ok(d9d_mesh_group(m, D9D_AXES_SHARD, &shard));
    assert_int_equal(d9d_comm_rank(shard), 2);
    assert_int_equal(d9d_comm_size(shard), 8);
    assert_ok(d9d_comm_all_reduce(tp, dev->stream, "x", D9D_F32, NULL, 50, D9D_COMM_SUM));
    assert_ok(d9d_comm_wait_stream(shard, dev->stream));
    before = d9d_sim_now(dev->stream);
    assert_ok(d9d_comm_all_gather(shard, d9d_comm_stream(shard), "w", D9D_BF16, NULL, NULL, eight));
    assert_true(d9d_sim_now(dev->stream) == before); /* beside it */
    assert_ok(d9d_stream_wait_comm(shard, dev->stream));
    assert_true(d9d_sim_now(dev->stream) > before);
    assert_int_equal(t->n_traffic, 2);
    assert_string_equal(t->traffic[0].group, "tp");
    assert_int_equal(t->traffic[0].link, D9D_SIM_LINK_NODE);
    assert_true(t->traffic[0].bytes == 200);
    assert_string_equal(t->traffic[1].coll, "all_gather");
    assert_int_equal(t->traffic[1].link, D9D_SIM_LINK_NETWORK);
    assert_true(t->traffic[1].bytes == 1400);
    d9d_mesh_close(m);
    d9d_bootstrap_close(bootstrap);
}

static void others_say_the_same(void **state)
{
    const d9d_parallel_degrees d = {1, 4, 1, 1, 1, 1, 1, 1, D9D_CP_ALL_GATHER};
    d9d_comm_blob words[4];
    d9d_bootstrap_blob all[4];
    d9d_comm *world;
    d9d_bootstrap *bootstrap;
    d9d_arena a = {0};
    d9d_mesh *m = imagine(*state, &d, 3, &bootstrap);

    assert_ok(d9d_bootstrap_allgather(bootstrap, "hello", 5, &a, all));
    assert_string_equal(all[0].data, "hello");
    assert_fails(d9d_bootstrap_agree_status(bootstrap, D9D_FAIL(D9D_ECONFIG, "mine")), D9D_ECONFIG,
                 "mine");
    assert_ok(d9d_mesh_group(m, D9D_AXES_WORLD, &world));
    assert_ok(d9d_comm_allgather_bytes(world, "names", "abc", 3, &a, words));
    assert_string_equal(words[0].data, "abc");
    assert_int_equal(words[2].n, 3);
    assert_ok(d9d_comm_barrier(world, "all"));
    d9d_mesh_close(m);
    d9d_bootstrap_close(bootstrap);
    d9d_arena_release(&a);
}

/* States in the memory of the host cross the bus, and take none of the device's. */
static void states_in_host_memory(void **state)
{
    enum { ROWS = 4096, COLS = 4096, STATES = ROWS * COLS };
    const int64_t whole[] = {ROWS, COLS}, zero[] = {0, 0};
    const d9d_adam_step step = {.lr = 1, .bias_correction1 = 1, .bias_correction2 = 1};
    d9d_device *dev = *state;
    const uint64_t before = d9d_device_memory(dev).in_use;
    const double rate = d9d_sim_chip_find(dev->name)->link[D9D_SIM_LINK_HOST].rate;
    double seconds[2];

    for (int host = 0; host < 2; host++) {
        d9d_tensor m, v;
        const double start = d9d_sim_now(dev->stream);

        assert_ok((host ? d9d_tensor_alloc_pinned : d9d_tensor_alloc)(dev, D9D_I8,
                                                                      D9D_SHAPE(ROWS, COLS), &m));
        assert_ok((host ? d9d_tensor_alloc_pinned : d9d_tensor_alloc)(dev, D9D_U8,
                                                                      D9D_SHAPE(ROWS, COLS), &v));
        assert_true((d9d_device_memory(dev).in_use == before) == (host == 1));
        const d9d_optim_arrays a = {
            .p = d9d_tensor_data(&m), .m = d9d_tensor_data(&m), .v = d9d_tensor_data(&v)};
        assert_ok(dev->kernels->optim->adam_stochastic(dev->stream, &step, NULL, D9D_BF16, D9D_F32,
                                                       D9D_I8, &a, (d9d_rng){0}, 2, whole, zero,
                                                       whole));
        seconds[host] = d9d_sim_now(dev->stream) - start;
        d9d_tensor_release(&m);
        d9d_tensor_release(&v);
    }
    /* 2 bytes of codes and 4 of scales for 32 elements, one way; the device has less to do. */
    assert_true(seconds[1] > 2.125 * STATES / rate);
    assert_true(seconds[1] < 2.125 * STATES / rate + seconds[0]);
}

int main(void)
{
#define ON(f, chip) cmocka_unit_test_setup_teardown(f, open_##chip, close_any)
    const struct CMUnitTest tests[] = {
        ON(memory_counts_as_on_a_device, cpu),
        ON(large_blocks_are_nowhere, gpu),
        ON(states_in_host_memory, gpu),
        ON(small_blocks_are_memory, gpu),
        cmocka_unit_test(names_of_chips),
        ON(a_product_takes_its_time, gpu),
        ON(a_kernel_takes_at_least_a_launch, gpu),
        ON(functions_of_elements_read_their_inputs, cpu),
        ON(reductions_use_scratch, gpu),
        ON(attention_counts_what_is_seen, cpu),
        ON(attention_counts_what_is_seen_of_a_part, cpu),
        ON(attention_of_a_ring, gpu),
        ON(attention_of_chunks, ampere),
        ON(attention_of_chunks_of_rows, ampere),
        ON(attention_of_any_length, ampere),
        ON(attention_of_other_values, ampere),
        ON(gradients_of_attention_by_tiles, gpu),
        ON(experts_get_the_same, cpu),
        ON(nodes_get_what_is_chosen, cpu),
        ON(groups_count_what_they_move, gpu),
        ON(others_say_the_same, gpu),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
