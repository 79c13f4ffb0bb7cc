/* The gradient of attention has the same bits whatever scratch it may take. */
#include "d9d/device/device.h"
#include "d9d/kernels/table.h"
#include "support/attention_call.h"
#include "support/unit.h"
#include "support/unit_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { A = 4, KV = 2, MOST_BLOCKS = 16 };

/* What a test has on a device. */
typedef struct blocks {
    d9d_device *dev;
    int n;
    struct {
        void *p;
        uint64_t bytes;
    } block[MOST_BLOCKS];
} blocks;

static void *take(blocks *x, const void *host, uint64_t bytes)
{
    void *p;

    assert_int_equal(d9d_device_alloc(x->dev, bytes, &p), D9D_OK);
    if (host != NULL)
        assert_int_equal(d9d_device_upload(x->dev, p, host, bytes), D9D_OK);
    x->block[x->n].p = p;
    x->block[x->n++].bytes = bytes;
    return p;
}

static void *take_random(blocks *x, int64_t n, uint64_t seed)
{
    void *host = array_random(D9D_BF16, n, seed, 1.0), *p = take(x, host, (uint64_t)n * 2);

    free(host);
    return p;
}

static void open_with(blocks *x, const char *scratch_mb)
{
    char text[64];

    (void)snprintf(text, sizeof(text), "{\"kind\": \"cudnn\", \"scratch_mb\": %s}", scratch_mb);
    assert_int_equal(setenv("D9D_BACKEND_AUTO_SDPA", text, 1), 0);
    assert_int_equal(d9d_device_open(unit_device_name(), &x->dev), D9D_OK);
}

static void close_all(blocks *x)
{
    while (x->n-- > 0)
        d9d_device_free(x->dev, x->block[x->n].p, x->block[x->n].bytes);
    d9d_device_close(x->dev);
}

/* dq, dk and dv, one behind the other, freed by the caller. */
static void *gradients(const d9d_attention_dims *dims, const char *scratch_mb)
{
    const int64_t nq = attention_q_size(dims), nk = attention_k_size(dims),
                  no = attention_o_size(dims), nv = attention_v_size(dims);
    const uint64_t bytes = (uint64_t)(nq + nk + nv) * 2;
    blocks x = {0};
    d9d_attention_dims n = *dims;
    char *g;
    void *out = calloc(1, bytes);

    open_with(&x, scratch_mb);
    if (n.segment != NULL)
        n.segment = take(&x, n.segment, (uint64_t)n.segments * sizeof(*n.segment));
    const void *q = take_random(&x, nq, 1), *k = take_random(&x, nk, 2),
               *v = take_random(&x, nv, 3);
    const void *dout = take_random(&x, no, 4);
    void *o = take(&x, NULL, (uint64_t)no * 2);
    float *lse = take(&x, NULL, (uint64_t)(n.b * n.s * n.a) * 4);

    g = take(&x, NULL, bytes);
    assert_int_equal(x.dev->kernels->attention->fwd(x.dev->stream, &n, o, lse, q, k, v), D9D_OK);
    assert_int_equal(x.dev->kernels->attention->bwd(x.dev->stream, &n, g, g + 2 * nq,
                                                    g + 2 * (nq + nk), dout, q, k, v, o, lse),
                     D9D_OK);
    assert_int_equal(d9d_device_download(x.dev, out, g, bytes), D9D_OK);
    close_all(&x);
    return out;
}

/* Are plain kernels asked for, which take none? */
static int look(void **state)
{
    static bool plain;
    const char *asked = getenv("D9D_BACKEND_AUTO_SDPA");

    plain = asked != NULL && strstr(asked, "eager") != NULL;
    *state = &plain;
    return 0;
}

/* Elements of dq, dk and dv that differ. */
static int count_different(const d9d_attention_dims *n, const uint16_t *x, const uint16_t *y,
                           const char *scratch_mb)
{
    const struct {
        const char *name;
        int64_t size;
    } arrays[] = {
        {"dq", attention_q_size(n)}, {"dk", attention_k_size(n)}, {"dv", attention_v_size(n)}};
    int all = 0;

    for (size_t i = 0; i < sizeof(arrays) / sizeof(*arrays); i++) {
        int64_t first = -1;
        int count = 0;

        for (int64_t j = 0; j < arrays[i].size; j++)
            if (x[j] != y[j]) {
                first = count == 0 ? j : first;
                count++;
            }
        if (count > 0)
            print_error(
                "heads of %lld, values of %lld, %s MiB: %d elements of %s differ, the first "
                "is %lld\n",
                (long long)n->d, (long long)n->dv, scratch_mb, count, arrays[i].name,
                (long long)first);
        all += count;
        x += arrays[i].size;
        y += arrays[i].size;
    }
    return all;
}

/* A second run, and runs with less. */
static void check(void **state, const d9d_attention_dims *n)
{
    static const char *const less[] = {"4096", "1", "3"};
    int different = 0;
    void *want;

    if (*(const bool *)*state)
        skip();
    want = gradients(n, "4096");

    for (size_t i = 0; i < sizeof(less) / sizeof(*less); i += (size_t)unit_step(3)) {
        void *got = gradients(n, less[i]);

        different += count_different(n, got, want, less[i]);
        free(got);
    }
    free(want);
    assert_int_equal(different, 0);
}

/* Scratch for all heads, for those of one key head, and for a chunk of its queries. */
static const d9d_attention_dims rows = {.t = D9D_BF16,
                                        .b = 2,
                                        .s = 700,
                                        .z = 700,
                                        .a = A,
                                        .kv = KV,
                                        .d = 128,
                                        .causal = true,
                                        .scale = 0.1f};

static void whole_rows(void **state)
{
    d9d_attention_dims n = rows;

    check(state, &n);
    if (unit_is_wrapped())
        return;
    n.d = 64;
    check(state, &n);
    n.d = 192;
    check(state, &n);
    n.d = 256;
    check(state, &n);
}

/* Wider and narrower than keys. */
static void values(void **state)
{
    static const int64_t sizes[][2] = {{192, 128}, {64, 128}, {128, 64}, {136, 224}};
    d9d_attention_dims n = rows;

    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i += (size_t)unit_step(4)) {
        n.d = sizes[i][0];
        n.dv = sizes[i][1];
        check(state, &n);
    }
}

static void windows(void **state)
{
    d9d_attention_dims n = rows;

    n.window = 200;
    check(state, &n);
}

static void documents(void **state)
{
    static const d9d_segment list[] = {{0, 500, 0, 500},     {500, 0, 500, 0},
                                       {500, 1, 500, 1},     {501, 199, 501, 199},
                                       {700, 650, 700, 650}, {1350, 50, 1350, 50}};
    d9d_attention_dims n = rows;

    n.segments = sizeof(list) / sizeof(*list);
    n.segment = list;
    check(state, &n);
}

static void chunks(void **state)
{
    d9d_attention_dims n = rows;

    n.s = 352;
    n.z = 704;
    n.chunks = 2;
    n.chunk_end[0] = 176;
    n.chunk_end[1] = 704;
    check(state, &n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_rows), cmocka_unit_test(values), cmocka_unit_test(windows),
        cmocka_unit_test(documents),  cmocka_unit_test(chunks),
    };

    return cmocka_run_group_tests(tests, look, NULL);
}
