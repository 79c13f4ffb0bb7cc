/* test_tb_event.c - TensorBoard event files, byte by byte.
 *
 * The bytes below are those of protobuf's own serialisation framed by TensorBoard 2.21's
 * checksum, which also reads them back. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "d9d/track/tb_event.h"

static void crc32c_has_its_known_values(void **state)
{
    static const unsigned char zeros[32];

    (void)state;
    assert_int_equal(d9d_tb_event_crc32c(0, "", 0), 0);
    assert_int_equal(d9d_tb_event_crc32c(0, "123456789", 9), 0xe3069283u);
    assert_int_equal(d9d_tb_event_crc32c(0, zeros, 32), 0x8a9136aau); /* RFC 3720, B.4 */
    assert_int_equal(d9d_tb_event_crc32c(d9d_tb_event_crc32c(0, "1234", 4), "56789", 5),
                     0xe3069283u);
}

static void the_bytes_are_these(void **state)
{
    static const char *const tags[] = {"loss", "lr"};
    static const double values[] = {2.5, 0.001};
    static const unsigned char golden[] = {
        0x18, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xa3, 0x7f, 0x4b, 0x22, 0x09, 0x00,
        0x00, 0x00, 0x00, 0x00, 0x00, 0xf8, 0x3f, 0x1a, 0x0d, 0x62, 0x72, 0x61, 0x69, 0x6e,
        0x2e, 0x45, 0x76, 0x65, 0x6e, 0x74, 0x3a, 0x32, 0x2a, 0x28, 0x64, 0x6c, 0x26, 0x00,
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x73, 0x4f, 0xe3, 0x00, 0x09, 0x00, 0x00, 0x00,
        0x00, 0x00, 0x00, 0x00, 0x40, 0x10, 0xac, 0x02, 0x2a, 0x18, 0x0a, 0x0b, 0x0a, 0x04,
        0x6c, 0x6f, 0x73, 0x73, 0x15, 0x00, 0x00, 0x20, 0x40, 0x0a, 0x09, 0x0a, 0x02, 0x6c,
        0x72, 0x15, 0x6f, 0x12, 0x83, 0x3a, 0x4c, 0x60, 0x01, 0x7c};
    d9d_buf b = {0};

    (void)state;
    assert_int_equal(d9d_tb_event_version(&b, 1.5), D9D_OK);
    assert_int_equal(d9d_tb_event_scalars(&b, 2.0, 300, tags, values, 2), D9D_OK);
    assert_int_equal(b.len, sizeof(golden));
    assert_memory_equal(b.data, golden, sizeof(golden));
    d9d_buf_release(&b);
}

static void a_record_without_values_is_an_empty_summary(void **state)
{
    d9d_buf b = {0};

    (void)state;
    assert_int_equal(d9d_tb_event_scalars(&b, 0, 1, NULL, NULL, 0), D9D_OK);
    assert_int_equal(b.len, 12 + 9 + 2 + 2 + 4);
    d9d_buf_release(&b);
}

static void a_start_has_its_step(void **state)
{
    static const unsigned char event[] = {0x09, 0,    0, 0,    0,    0,    0,   0xf8,
                                          0x3f, 0x10, 5, 0x3a, 0x02, 0x08, 0x01};
    d9d_buf b = {0};

    (void)state;
    assert_int_equal(d9d_tb_event_start(&b, 1.5, 5), D9D_OK);
    assert_int_equal(b.len, 12 + sizeof(event) + 4);
    assert_memory_equal(b.data + 12, event, sizeof(event));
    d9d_buf_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crc32c_has_its_known_values),
        cmocka_unit_test(the_bytes_are_these),
        cmocka_unit_test(a_start_has_its_step),
        cmocka_unit_test(a_record_without_values_is_an_empty_summary),
    };

    return cmocka_run_group_tests_name("event", tests, NULL, NULL);
}
