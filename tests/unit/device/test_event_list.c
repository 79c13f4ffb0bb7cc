/* test_event_list.c - events in order, and used again. */
#include "d9d/device/event_list.h"
#include "support/unit.h"

static void events_are_reused(void **state)
{
    d9d_event_list l = {.n = 0};
    d9d_device *dev;
    double ms;

    (void)state;
    assert_ok(d9d_device_open("cpu", &dev));
    assert_false(d9d_event_list_is_done(&l));
    for (size_t round = 0; round < 3; round++) {
        l.n = 0;
        for (size_t i = 0; i < 5 - round; i++)
            assert_ok(d9d_event_list_record(&l, dev));
        assert_int_equal(l.n, 5 - round);
        assert_int_equal(l.made.len, 5);
        assert_true(d9d_event_list_is_done(&l));
        for (size_t i = 0; i + 1 < l.n; i++) {
            assert_ok(d9d_event_list_elapsed_ms(&l, i, &ms));
            assert_true(ms >= 0);
        }
    }
    d9d_event_list_release(&l);
    assert_int_equal(l.n, 0);
    d9d_device_close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_are_reused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
