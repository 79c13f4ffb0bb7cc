/* test_offload.c - arrays that wait in host memory: which go, when their memory is free, and that
 * their bits come back. */
#include <string.h>

#include "d9d/device/simulated.h"
#include "d9d/tensor/offload.h"
#include "support/unit.h"
#include "support/unit_device.h"

enum { N = 1 << 14, BYTES = 4 * N, ARRAYS = 6 };

typedef struct rig {
    d9d_device *dev;
    d9d_offload *o;
    d9d_tensor x[ARRAYS];
    uint64_t bare; /* bytes in use without them */
} rig;

static uint64_t in_use(const rig *r)
{
    return d9d_device_memory(r->dev).in_use;
}

static void array_make(rig *r, int i)
{
    static float host[N];

    for (int k = 0; k < N; k++)
        host[k] = (float)(i * N + k);
    assert_ok(d9d_tensor_from_host(r->dev, D9D_F32, D9D_SHAPE(N), host, &r->x[i]));
}

static void array_check(const rig *r, int i)
{
    static float host[N];

    assert_ok(d9d_tensor_to_f32(&r->x[i], host));
    for (int k = 0; k < N; k++)
        assert_true(host[k] == (float)(i * N + k));
}

static void rig_open(rig *r, int depth)
{
    const d9d_offload_opts opts = {
        .name = "tests", .key = "test.offload", .depth = depth, .min_bytes = 4096};

    memset(r, 0, sizeof(*r));
    assert_ok(d9d_device_open(unit_device_name(), &r->dev));
    assert_ok(d9d_offload_create(r->dev, &opts, &r->o));
    r->bare = in_use(r);
    for (int i = 0; i < ARRAYS; i++)
        array_make(r, i);
}

static void rig_close(rig *r)
{
    for (int i = 0; i < ARRAYS; i++)
        d9d_tensor_release(&r->x[i]);
    assert_int_equal(in_use(r), r->bare);
    d9d_offload_free(r->o);
    d9d_device_close(r->dev);
}

/* Array i as a group of its own. */
static d9d_offload_group *send_one(rig *r, int i)
{
    const d9d_tensor *const refs[] = {&r->x[i]};
    d9d_offload_group *g;

    assert_ok(d9d_offload_send(r->o, refs, 1, &g));
    return g;
}

static bool is_here(const rig *r, int i)
{
    return d9d_tensor_data(&r->x[i]) != NULL;
}

/* The newest `depth` groups are on their way, the others away. */
static void memory_is_free_after_depth_more_groups(void **state)
{
    (void)state;
    for (int depth = 1; depth <= 3; depth++) {
        d9d_offload_group *g[ARRAYS];
        rig r;

        rig_open(&r, depth);
        for (int i = 0; i < ARRAYS; i++) {
            g[i] = send_one(&r, i);
            for (int k = 0; k <= i; k++)
                assert_int_equal(is_here(&r, k), k + depth > i);
        }
        assert_int_equal(in_use(&r) - r.bare, (uint64_t)depth * BYTES);
        assert_int_equal(d9d_offload_get_stats(r.o).host, ARRAYS * BYTES);
        assert_int_equal(d9d_offload_get_stats(r.o).sent, ARRAYS * BYTES);
        for (int i = ARRAYS; i-- > 0;) {
            assert_ok(d9d_offload_wait(g[i]));
            if (i > 0)
                assert_ok(d9d_offload_fetch(g[i - 1]));
            array_check(&r, i);
            d9d_offload_group_free(g[i]);
        }
        rig_close(&r);
    }
}

static void what_another_refers_to_stays(void **state)
{
    const d9d_tensor *refs[4];
    d9d_tensor again, view, own;
    d9d_offload_group *g, *last;
    rig r;

    (void)state;
    rig_open(&r, 1);
    again = d9d_tensor_ref(&r.x[1]);
    view = d9d_tensor_rows(&r.x[2], 8, 8);
    own = d9d_tensor_ref(&r.x[0]);
    refs[0] = &r.x[0], refs[1] = &r.x[1], refs[2] = &r.x[2], refs[3] = &view;
    assert_ok(d9d_offload_send(r.o, refs, 4, &g));
    assert_ok(d9d_offload_send(r.o, NULL, 0, &last)); /* an empty one is one more */
    assert_true(is_here(&r, 0));
    assert_true(is_here(&r, 1));
    assert_false(is_here(&r, 2)); /* both its references were given; it goes once */
    assert_null(d9d_tensor_data(&view));
    assert_int_equal(d9d_offload_get_stats(r.o).sent, BYTES);
    assert_ok(d9d_offload_wait(g));
    array_check(&r, 2);
    assert_ptr_equal(d9d_tensor_data(&view), (char *)d9d_tensor_data(&r.x[2]) + 32);
    d9d_offload_group_free(g);
    d9d_offload_group_free(last);
    d9d_tensor_release(&again);
    d9d_tensor_release(&view);
    d9d_tensor_release(&own);
    rig_close(&r);
}

static void small_and_pinned_arrays_stay(void **state)
{
    d9d_tensor small, pinned;
    const d9d_tensor *refs[] = {&small, &pinned};
    d9d_offload_group *g, *last;
    rig r;

    (void)state;
    rig_open(&r, 1);
    assert_ok(d9d_tensor_alloc(r.dev, D9D_F32, D9D_SHAPE(1023), &small));
    assert_ok(d9d_tensor_alloc_pinned(r.dev, D9D_F32, D9D_SHAPE(N), &pinned));
    assert_ok(d9d_offload_send(r.o, refs, 2, &g));
    assert_ok(d9d_offload_send(r.o, NULL, 0, &last));
    assert_non_null(d9d_tensor_data(&small));
    assert_non_null(d9d_tensor_data(&pinned));
    d9d_offload_group_free(g);
    d9d_offload_group_free(last);
    d9d_tensor_release(&small);
    d9d_tensor_release(&pinned);
    rig_close(&r);
}

/* Who waits before the memory was given back gets the same memory, and its host's is free. */
static void what_comes_back_at_once_need_not_go(void **state)
{
    d9d_offload_group *g, *other;
    const void *data;
    rig r;

    (void)state;
    rig_open(&r, 1);
    data = d9d_tensor_data(&r.x[0]);
    g = send_one(&r, 0);
    assert_ok(d9d_offload_fetch(g));
    assert_ok(d9d_offload_wait(g));
    assert_ptr_equal(d9d_tensor_data(&r.x[0]), data);
    other = send_one(&r, 1);
    assert_ptr_equal(d9d_tensor_data(&r.x[0]), data); /* no longer queued */
    assert_int_equal(d9d_offload_get_stats(r.o).host, BYTES);
    d9d_offload_group_free(g);
    d9d_offload_group_free(other);
    array_check(&r, 0);
    array_check(&r, 1);
    rig_close(&r);
}

/* Steps of equal form take host memory in the first alone, and device memory as without. */
static void a_second_step_takes_no_more_memory(void **state)
{
    uint64_t host = 0, requests = 0;
    rig r;

    (void)state;
    rig_open(&r, 1);
    for (int step = 0; step < 3; step++) {
        d9d_offload_group *g[ARRAYS];

        for (int i = 0; i < ARRAYS; i++)
            g[i] = send_one(&r, i);
        for (int i = ARRAYS; i-- > 0;) {
            assert_ok(d9d_offload_wait(g[i]));
            d9d_offload_group_free(g[i]);
            array_check(&r, i);
        }
        if (step == 0) {
            host = d9d_offload_get_stats(r.o).host;
            requests = d9d_device_memory(r.dev).requests;
        }
        assert_int_equal(d9d_offload_get_stats(r.o).host, host);
        assert_int_equal(d9d_device_memory(r.dev).requests, requests);
    }
    rig_close(&r);
}

/* As after a step that failed: at any point. */
static void groups_are_freed_in_any_state(void **state)
{
    d9d_offload_group *g[4];
    rig r;

    (void)state;
    rig_open(&r, 1);
    for (int i = 0; i < 4; i++)
        g[i] = send_one(&r, i); /* 3 is on its way */
    assert_ok(d9d_offload_fetch(g[1]));
    for (int i = 0; i < 4; i++)
        d9d_offload_group_free(g[i]);
    d9d_offload_group_free(NULL);
    array_check(&r, 1);
    array_check(&r, 3);
    assert_false(is_here(&r, 0)); /* lost */
    g[0] = send_one(&r, 3);
    g[1] = send_one(&r, 4);
    assert_ok(d9d_offload_wait(g[0]));
    array_check(&r, 3);
    d9d_offload_group_free(g[0]);
    d9d_offload_group_free(g[1]);
    rig_close(&r);
}

static void without_device_memory_it_stays_away(void **state)
{
    d9d_offload_group *g[2];
    d9d_tensor block;
    uint64_t limit;
    rig r;

    (void)state;
    rig_open(&r, 1);
    g[0] = send_one(&r, 0);
    g[1] = send_one(&r, 1);
    limit = in_use(&r);
    d9d_device_set_limit(r.dev, limit);
    assert_fails_like(d9d_offload_fetch(g[0]), D9D_EOOM, "65536 bytes requested");
    assert_false(is_here(&r, 0));
    assert_int_equal(in_use(&r), limit);
    d9d_device_set_limit(r.dev, UINT64_MAX);
    assert_ok(d9d_offload_wait(g[0]));
    array_check(&r, 0);
    assert_ok(d9d_tensor_alloc(r.dev, D9D_F32, D9D_SHAPE(N), &block));
    d9d_tensor_release(&block);
    d9d_offload_group_free(g[0]);
    d9d_offload_group_free(g[1]);
    rig_close(&r);
}

/* Sleep walks all storages: those that are away are not its. */
static void sleep_leaves_what_is_away(void **state)
{
    d9d_offload_group *g[2];
    rig r;

    (void)state;
    rig_open(&r, 1);
    g[0] = send_one(&r, 0);
    g[1] = send_one(&r, 1);
    assert_ok(d9d_tensor_offload_all(r.dev));
    assert_ok(d9d_tensor_restore_all(r.dev));
    assert_false(is_here(&r, 0));
    for (int i = 0; i < 2; i++) {
        assert_ok(d9d_offload_wait(g[i]));
        d9d_offload_group_free(g[i]);
    }
    for (int i = 0; i < ARRAYS; i++)
        array_check(&r, i);
    rig_close(&r);
}

/* --- the simulated device ------------------------------------------------------------------- */

enum { BIG = 1 << 28 };

/* Seconds that computation of `compute` seconds between sending and fetching waits for the bus. */
static double simulated_wait(double compute, double *took)
{
    const d9d_offload_opts opts = {.name = "tests", .key = "test.offload", .depth = 1};
    d9d_tensor x[2];
    d9d_offload_group *g[2];
    d9d_offload *o;
    d9d_device *dev;
    double wait;

    assert_ok(d9d_device_simulate("h100", &dev));
    assert_ok(d9d_offload_create(dev, &opts, &o));
    for (int i = 0; i < 2; i++) {
        const d9d_tensor *const refs[] = {&x[i]};

        assert_ok(d9d_tensor_alloc(dev, D9D_U8, D9D_SHAPE(BIG), &x[i]));
        if (i > 0) /* beside the copy of the first */
            d9d_sim_wait_until(dev->stream, compute);
        assert_ok(d9d_offload_send(o, refs, 1, &g[i]));
    }
    wait = d9d_device_bus_wait_s(dev);
    assert_int_equal(d9d_offload_get_stats(o).host, 2 * (uint64_t)BIG);
    assert_ok(d9d_offload_wait(g[0]));
    *took = d9d_device_bus_wait_s(dev) - wait; /* nothing was computed beside its way back */
    for (int i = 0; i < 2; i++) {
        d9d_offload_group_free(g[i]);
        d9d_tensor_release(&x[i]);
    }
    d9d_offload_free(o);
    d9d_device_close(dev);
    return wait;
}

static void a_plan_sees_what_the_bus_takes(void **state)
{
    double took, back;

    (void)state;
    took = simulated_wait(0, &back);
    assert_true(took > 1e-3);
    assert_true(back > 0.99 * took && back < 2.01 * took);
    assert_float_equal(simulated_wait(took / 2, &back), took / 2, 1e-4 * took);
    assert_float_equal(simulated_wait(2 * took, &back), 0, 1e-9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_free_after_depth_more_groups),
        cmocka_unit_test(what_another_refers_to_stays),
        cmocka_unit_test(small_and_pinned_arrays_stay),
        cmocka_unit_test(what_comes_back_at_once_need_not_go),
        cmocka_unit_test(a_second_step_takes_no_more_memory),
        cmocka_unit_test(groups_are_freed_in_any_state),
        cmocka_unit_test(without_device_memory_it_stays_away),
        cmocka_unit_test(sleep_leaves_what_is_away),
        cmocka_unit_test(a_plan_sees_what_the_bus_takes),
    };

    return cmocka_run_group_tests_name("offload", tests, NULL, NULL);
}
