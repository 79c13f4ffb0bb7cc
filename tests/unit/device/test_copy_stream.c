/* test_copy_stream.c - copies beside the compute stream, and the pool of pinned memory. */
#include <string.h>

#include "d9d/device/copy_stream.h"
#include "d9d/device/pinned_pool.h"
#include "d9d/device/simulated.h"
#include "support/unit.h"
#include "support/unit_device.h"

enum { BYTES = 1 << 20 };

typedef struct rig {
    d9d_device *dev;
    d9d_copy_stream *out, *back;
    d9d_device_event *copied;
    d9d_pinned_pool *pool;
    void *x, *host;
} rig;

static void rig_open(rig *r)
{
    memset(r, 0, sizeof(*r));
    assert_ok(d9d_device_open(unit_device_name(), &r->dev));
    assert_ok(d9d_copy_stream_create(r->dev, "tests", "to host", &r->out));
    assert_ok(d9d_copy_stream_create(r->dev, "tests", "from host", &r->back));
    assert_ok(d9d_device_event_create(r->dev, &r->copied));
    assert_ok(d9d_pinned_pool_create(r->dev, &r->pool));
    assert_ok(d9d_device_alloc(r->dev, BYTES, &r->x));
    assert_ok(d9d_pinned_pool_take(r->pool, BYTES, &r->host));
}

static void rig_close(rig *r)
{
    assert_ok(d9d_device_sync(r->dev));
    d9d_pinned_pool_give(r->pool, r->host, BYTES);
    d9d_device_free(r->dev, r->x, BYTES);
    d9d_pinned_pool_free(r->pool);
    d9d_device_event_free(r->copied);
    d9d_copy_stream_free(r->out);
    d9d_copy_stream_free(r->back);
    d9d_device_close(r->dev);
}

static d9d_status array_fill(rig *r, float value)
{
    return r->dev->kernels->elementwise->fill(r->dev->stream, D9D_F32, r->x, BYTES / 4, value);
}

/* Each order between the streams is the one that was asked for: a wrong one shows on a GPU. */
static void copies_keep_their_order(void **state)
{
    static float got[BYTES / 4];
    rig r;

    (void)state;
    rig_open(&r);
    for (int i = 0; i < 20; i++) {
        assert_ok(array_fill(&r, (float)i));
        assert_ok(d9d_copy_stream_follow(r.out));
        assert_ok(d9d_copy_stream_copy(r.out, r.host, r.x, BYTES));
        assert_ok(d9d_copy_stream_record(r.out, r.copied));
        assert_ok(d9d_copy_stream_join(r.copied));
        assert_ok(array_fill(&r, -1));
        assert_ok(d9d_copy_stream_follow(r.back));
        assert_ok(d9d_copy_stream_copy(r.back, r.x, r.host, BYTES));
        assert_ok(d9d_copy_stream_record(r.back, r.copied));
        assert_ok(d9d_copy_stream_join(r.copied));
        assert_ok(d9d_device_download(r.dev, got, r.x, BYTES));
        for (int k = 0; k < BYTES / 4; k++)
            assert_true(got[k] == (float)i);
    }
    rig_close(&r);
}

static void blocks_are_pinned_once(void **state)
{
    void *p, *q;
    rig r;

    (void)state;
    rig_open(&r);
    assert_ok(d9d_pinned_pool_take(r.pool, BYTES, &p));
    assert_int_equal(d9d_pinned_pool_memory(r.pool).requests, 2);
    assert_int_equal(d9d_pinned_pool_memory(r.pool).reserved, 2 * BYTES);
    d9d_pinned_pool_give(r.pool, p, BYTES);
    assert_ok(d9d_pinned_pool_take(r.pool, BYTES, &q));
    assert_ptr_equal(p, q);
    assert_int_equal(d9d_pinned_pool_memory(r.pool).requests, 2);
    d9d_pinned_pool_give(r.pool, q, BYTES);
    d9d_pinned_pool_give(r.pool, NULL, BYTES);
    assert_fails_like(d9d_pinned_pool_take(r.pool, UINT64_C(1) << 50, &q), D9D_EOOM,
                      "pinned memory: out of memory: 1125899906842624 bytes requested");
    rig_close(&r);
}

/* Copies of one stream come one after the other, those of two at once. */
static void a_simulated_bus_takes_time(void **state)
{
    d9d_copy_stream *out, *back;
    d9d_device_event *e;
    d9d_device *dev;
    double one, both;

    (void)state;
    assert_ok(d9d_device_simulate("h100", &dev));
    assert_ok(d9d_copy_stream_create(dev, "tests", "to host", &out));
    assert_ok(d9d_copy_stream_create(dev, "tests", "from host", &back));
    assert_ok(d9d_device_event_create(dev, &e));
    assert_ok(d9d_copy_stream_copy(out, (void *)D9D_SIM_FAKE_HOST_BASE, (void *)D9D_SIM_FAKE_BASE,
                                   1 << 30));
    assert_float_equal(d9d_sim_now(dev->stream), 0, 0);
    assert_ok(d9d_copy_stream_record(out, e));
    assert_ok(d9d_copy_stream_join(e));
    one = d9d_sim_now(dev->stream);
    assert_true(one > 0.01 && one < 0.1);
    assert_float_equal(d9d_device_bus_wait_s(dev), one, 1e-12);
    for (int i = 0; i < 2; i++)
        assert_ok(d9d_copy_stream_copy(out, (void *)D9D_SIM_FAKE_HOST_BASE,
                                       (void *)D9D_SIM_FAKE_BASE, 1 << 30));
    assert_ok(d9d_copy_stream_follow(back));
    assert_ok(d9d_copy_stream_copy(back, (void *)D9D_SIM_FAKE_BASE, (void *)D9D_SIM_FAKE_HOST_BASE,
                                   1 << 30));
    assert_ok(d9d_copy_stream_record(back, e));
    assert_ok(d9d_copy_stream_join(e));
    assert_float_equal(d9d_sim_now(dev->stream), 2 * one, 1e-9);
    assert_ok(d9d_copy_stream_record(out, e));
    assert_ok(d9d_copy_stream_join(e));
    both = d9d_sim_now(dev->stream);
    assert_float_equal(both, 3 * one, 1e-9);
    d9d_device_event_free(e);
    d9d_copy_stream_free(out);
    d9d_copy_stream_free(back);
    d9d_device_close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_keep_their_order),
        cmocka_unit_test(blocks_are_pinned_once),
        cmocka_unit_test(a_simulated_bus_takes_time),
    };

    return cmocka_run_group_tests_name("copy_stream", tests, NULL, NULL);
}
