/* test_tensor.c - shapes, counted storage, views, reading as floats. */
#include <math.h>
#include <string.h>

#include "d9d/tensor/tensor.h"
#include "support/unit.h"
#include "support/unit_device.h"

static int open_cpu(void **state)
{
    return d9d_device_open("cpu", (d9d_device **)state) == D9D_OK ? 0 : -1;
}

static int close_cpu(void **state)
{
    const int rc = d9d_device_memory(*state).in_use == 0 ? 0 : -1;

    d9d_device_close(*state);
    return rc;
}

static int open_any(void **state)
{
    return d9d_device_open(unit_device_name(), (d9d_device **)state) == D9D_OK ? 0 : -1;
}

#define with_any(f) cmocka_unit_test_setup_teardown(f, open_any, close_cpu)
#define with_cpu(f) cmocka_unit_test_setup_teardown(f, open_cpu, close_cpu)

static void shapes_are_counted(void **state)
{
    (void)state;
    assert_int_equal(d9d_shape_numel(&D9D_SCALAR), 1);
    assert_int_equal(d9d_shape_numel(&D9D_SHAPE(4, 8)), 32);
    assert_int_equal(d9d_shape_numel(&D9D_SHAPE(INT64_MAX, 0, 2)), 0);
    assert_int_equal(d9d_shape_numel(&D9D_SHAPE(INT64_MAX, 2, 0)), 0);
    assert_int_equal(d9d_shape_numel(&D9D_SHAPE(INT64_MAX, 2)), -1);
    assert_int_equal(d9d_shape_numel(&D9D_SHAPE(0, -1)), -1);
    assert_true(d9d_shape_equal(&D9D_SHAPE(1, 2), &D9D_SHAPE(1, 2)));
    assert_false(d9d_shape_equal(&D9D_SHAPE(1, 2), &D9D_SHAPE(2, 1)));
    assert_false(d9d_shape_equal(&D9D_SHAPE(1, 2), &D9D_SHAPE(1, 2, 1)));
}

static void shapes_are_written(void **state)
{
    char text[64], small[6];

    (void)state;
    assert_string_equal(d9d_shape_text(&D9D_SCALAR, text, sizeof(text)), "[]");
    assert_string_equal(d9d_shape_text(&D9D_SHAPE(7), text, sizeof(text)), "[7]");
    assert_string_equal(d9d_shape_text(&D9D_SHAPE(4, 8, 0), text, sizeof(text)), "[4, 8, 0]");
    assert_string_equal(d9d_shape_text(&D9D_SHAPE(4, 8, 0), small, sizeof(small)), "[4, 8");
    assert_string_equal(d9d_shape_text(&D9D_SHAPE(4, 888, 0), small, sizeof(small)), "[4, 8");
    assert_string_equal(d9d_shape_text(&D9D_SHAPE(4), small, 1), "");
}

static void views_share_storage(void **state)
{
    const float host[6] = {0, 1, 2, 3, 4, 5};
    d9d_device *dev = *state;
    d9d_tensor x, rows, flat;
    float got[6];

    assert_ok(d9d_tensor_from_host(dev, D9D_F32, D9D_SHAPE(3, 2), host, &x));
    assert_true(d9d_tensor_is_unique(&x));
    rows = d9d_tensor_rows(&x, 1, 2);
    assert_false(d9d_tensor_is_unique(&x));
    flat = d9d_tensor_reshape(&rows, D9D_SHAPE(4));
    d9d_tensor_release(&rows);
    d9d_tensor_release(&x);
    assert_null(x.storage);
    d9d_tensor_release(&x);
    assert_true(d9d_tensor_is_unique(&flat));
    assert_int_equal(d9d_tensor_numel(&flat), 4);
    assert_int_equal(d9d_tensor_bytes(&flat), 16);
    assert_ptr_equal(d9d_tensor_device(&flat), dev);
    assert_ok(d9d_tensor_to_f32(&flat, got));
    assert_memory_equal(got, host + 2, 16);
    d9d_tensor_release(&flat);
    assert_int_equal(d9d_device_memory(dev).in_use, 0);
}

static void empty_tensors_are_tensors(void **state)
{
    d9d_device *dev = *state;
    d9d_tensor x, rows;

    assert_ok(d9d_tensor_from_host(dev, D9D_BF16, D9D_SHAPE(0, 5), NULL, &x));
    assert_non_null(d9d_tensor_data(&x));
    rows = d9d_tensor_rows(&x, 0, 0);
    assert_ok(d9d_tensor_to_f32(&rows, NULL));
    d9d_tensor_release(&rows);
    d9d_tensor_release(&x);
    assert_fails(d9d_tensor_to_f32(&x, NULL), D9D_EINVAL,
                 "a tensor without storage has no elements to read");
    assert_null(d9d_tensor_data(&x));
    assert_null(d9d_tensor_device(&x));
}

/* Two tensors leave, another takes their room, and they come back to other places: views see what
 * they saw, and what was written before and behind the copies is in order. */
static void what_was_offloaded_comes_back(void **state)
{
    enum { N = 5000 };
    d9d_device *dev = *state;
    const d9d_kernels *k = dev->kernels;
    d9d_tensor x, y, between, rows;
    static float got[N];

    assert_ok(d9d_tensor_alloc(dev, D9D_F32, D9D_SHAPE(5, N / 5), &x));
    assert_ok(d9d_tensor_alloc(dev, D9D_F32, D9D_SHAPE(N), &y));
    rows = d9d_tensor_rows(&x, 3, 2);
    assert_ok(k->elementwise->fill(dev->stream, D9D_F32, d9d_tensor_data(&x), N, 1.0f));
    assert_ok(k->elementwise->fill(dev->stream, D9D_F32, d9d_tensor_data(&rows), 2 * N / 5, 2.0f));
    assert_ok(k->elementwise->fill(dev->stream, D9D_F32, d9d_tensor_data(&y), N, 3.0f));
    assert_false(d9d_tensor_is_offloaded(&rows));
    assert_ok(d9d_tensor_offload(&rows)); /* whichever tensor is named */
    assert_ok(d9d_tensor_offload(&y));
    assert_true(d9d_tensor_is_offloaded(&x));
    assert_null(d9d_tensor_data(&x));
    assert_null(d9d_tensor_data(&rows));
    assert_ptr_equal(d9d_tensor_device(&x), dev);
    assert_int_equal(d9d_device_memory(dev).in_use, 0);
    assert_ok(d9d_tensor_alloc(dev, D9D_F32, D9D_SHAPE(N), &between));
    assert_ok(k->elementwise->fill(dev->stream, D9D_F32, d9d_tensor_data(&between), N, 9.0f));
    assert_ok(d9d_tensor_restore(&x));
    assert_ok(d9d_tensor_restore(&y));
    assert_ok(d9d_tensor_to_f32(&x, got));
    for (int i = 0; i < N; i++)
        assert_true(got[i] == (i < 3 * N / 5 ? 1.0f : 2.0f));
    assert_ok(d9d_tensor_to_f32(&rows, got));
    assert_true(got[0] == 2.0f && got[2 * N / 5 - 1] == 2.0f);
    assert_ok(d9d_tensor_to_f32(&y, got));
    assert_true(got[0] == 3.0f && got[N - 1] == 3.0f);
    assert_ok(k->elementwise->fill(dev->stream, D9D_F32, d9d_tensor_data(&rows), 1,
                                   4.0f)); /* still x's */
    assert_ok(d9d_tensor_to_f32(&x, got));
    assert_true(got[3 * N / 5] == 4.0f);
    assert_ok(d9d_tensor_offload(&y)); /* and is not fetched again */
    d9d_tensor_release(&y);
    d9d_tensor_release(&rows);
    d9d_tensor_release(&x);
    d9d_tensor_release(&between);
}

static void offloading_out_of_turn_is_refused(void **state)
{
    d9d_device *dev = *state;
    d9d_tensor x = {0}, more;

    assert_fails(d9d_tensor_offload(&x), D9D_EINVAL,
                 "a tensor without storage cannot be offloaded or restored");
    assert_ok(d9d_tensor_alloc(dev, D9D_F32, D9D_SHAPE(8, 8), &x));
    assert_fails(d9d_tensor_restore(&x), D9D_EINVAL, "a tensor of shape [8, 8] is not offloaded");
    assert_ok(d9d_tensor_offload(&x));
    assert_fails(d9d_tensor_offload(&x), D9D_EINVAL,
                 "a tensor of shape [8, 8] is offloaded already");
    d9d_device_set_limit(dev, 256);
    assert_ok(d9d_tensor_alloc(dev, D9D_F32, D9D_SHAPE(64), &more));
    assert_fails_like(d9d_tensor_restore(&x), D9D_EOOM, "out of memory: 256 bytes requested");
    assert_true(d9d_tensor_is_offloaded(&x));
    d9d_tensor_release(&more);
    assert_ok(d9d_tensor_restore(&x));
    d9d_tensor_release(&x);
}

/* Tensors that have no bytes leave and come back too. */
static void nothing_is_offloaded(void **state)
{
    d9d_tensor x;

    assert_ok(d9d_tensor_alloc(*state, D9D_F32, D9D_SHAPE(0, 4), &x));
    assert_ok(d9d_tensor_offload(&x));
    assert_true(d9d_tensor_is_offloaded(&x));
    assert_ok(d9d_tensor_restore(&x));
    assert_non_null(d9d_tensor_data(&x));
    d9d_tensor_release(&x);
}

static void sizes_without_number_are_refused(void **state)
{
    d9d_tensor x = {0};

    assert_fails(d9d_tensor_alloc(*state, D9D_F32, D9D_SHAPE(INT64_MAX, 3), &x), D9D_EINVAL,
                 "a tensor of shape [9223372036854775807, 3] cannot be counted in bytes");
    assert_fails(d9d_tensor_alloc(*state, D9D_F32, D9D_SHAPE(INT64_MAX), &x), D9D_EINVAL,
                 "a tensor of shape [9223372036854775807] cannot be counted in bytes");
    assert_fails(d9d_tensor_alloc(*state, D9D_F32, D9D_SHAPE(2, -1), &x), D9D_EINVAL,
                 "a tensor of shape [2, -1] cannot be counted in bytes");
    assert_fails_like(d9d_tensor_alloc(*state, D9D_U8, D9D_SHAPE(INT64_MAX), &x), D9D_EOOM,
                      "out of memory");
    assert_null(x.storage);
}

/* A few elements of a type and the floats that they are. */
typedef struct reading {
    d9d_dtype dtype;
    int n;
    const void *host;
    float want[6];
} reading;

static void every_type_is_read_as_floats(void **state)
{
    static const double f64[] = {0.1, 1e300};
    static const int64_t i64[] = {-5, INT64_MAX};
    static const uint64_t u64[] = {UINT64_MAX};
    static const int32_t i32[] = {-7, 16777217};
    static const uint32_t u32[] = {UINT32_MAX};
    static const int16_t i16[] = {-300};
    static const uint16_t u16[] = {65535};
    static const int8_t i8[] = {-8};
    static const uint8_t u8[] = {200}, yes[] = {0, 1, 255};
    static const uint16_t bf16[] = {0x3f80, 0xc000};
    static const uint16_t f16[] = {0x3c00, 0xc000, 0x0001, 0x7c00, 0xfc00, 0x7bff};
    static const uint8_t e4m3[] = {0x38, 0xc0, 0x01, 0x7e, 0x00};
    static const uint8_t e5m2[] = {0x3c, 0xc0, 0x01, 0x7b, 0x7c, 0xfc};
    static const reading all[] = {
        {D9D_F64, 2, f64, {0.1f, INFINITY}},
        {D9D_I64, 2, i64, {-5, 0x1p63f}},
        {D9D_U64, 1, u64, {0x1p64f}},
        {D9D_I32, 2, i32, {-7, 16777216}},
        {D9D_U32, 1, u32, {0x1p32f}},
        {D9D_I16, 1, i16, {-300}},
        {D9D_U16, 1, u16, {65535}},
        {D9D_I8, 1, i8, {-8}},
        {D9D_U8, 1, u8, {200}},
        {D9D_BOOL, 3, yes, {0, 1, 1}},
        {D9D_BF16, 2, bf16, {1, -2}},
        {D9D_F16, 6, f16, {1, -2, 0x1p-24f, INFINITY, -INFINITY, 65504}},
        {D9D_F8_E4M3, 5, e4m3, {1, -2, 0x1p-9f, 448, 0}},
        {D9D_F8_E5M2, 6, e5m2, {1, -2, 0x1p-16f, 57344, INFINITY, -INFINITY}},
    };

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        float got[6];
        d9d_tensor x;

        assert_ok(d9d_tensor_from_host(*state, all[i].dtype, D9D_SHAPE(all[i].n), all[i].host, &x));
        assert_ok(d9d_tensor_to_f32(&x, got));
        for (int k = 0; k < all[i].n; k++)
            if (memcmp(&got[k], &all[i].want[k], sizeof(float)) != 0)
                fail_msg("%s %d: %g, expected %g", d9d_dtype_name(all[i].dtype), k, (double)got[k],
                         (double)all[i].want[k]);
        d9d_tensor_release(&x);
    }
}

static void no_number_stays_no_number(void **state)
{
    static const struct {
        d9d_dtype dtype;
        uint16_t bits;
    } nans[] = {{D9D_F16, 0x7e00},   {D9D_F16, 0xfc01},   {D9D_BF16, 0x7fc0}, {D9D_F8_E4M3, 0x7f},
                {D9D_F8_E4M3, 0xff}, {D9D_F8_E5M2, 0x7d}, {D9D_F8_E5M2, 0xff}};

    for (size_t i = 0; i < sizeof(nans) / sizeof(nans[0]); i++) {
        d9d_tensor x;
        float got;

        assert_ok(d9d_tensor_from_host(*state, nans[i].dtype, D9D_SHAPE(1), &nans[i].bits, &x));
        assert_ok(d9d_tensor_to_f32(&x, &got));
        assert_true(isnan(got));
        d9d_tensor_release(&x);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_are_counted),    cmocka_unit_test(shapes_are_written),
        with_cpu(views_share_storage),           with_cpu(empty_tensors_are_tensors),
        with_any(what_was_offloaded_comes_back), with_any(offloading_out_of_turn_is_refused),
        with_any(nothing_is_offloaded),          with_cpu(sizes_without_number_are_refused),
        with_cpu(every_type_is_read_as_floats),  with_cpu(no_number_stays_no_number),
    };

    return cmocka_run_group_tests_name("tensor", tests, NULL, NULL);
}
