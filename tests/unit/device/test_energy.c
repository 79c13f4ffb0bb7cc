/* test_energy.c - joules from a counter of millijoules that stands in for NVML's. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "device/energy_nvml.h"
#include "support/unit.h"
#include "support/unit_device.h"

static struct {
    int opened, refuses; /* refuses: the call that fails, from 1 */
    unsigned long long mj;
    char uuid[64];
} fake;

static int fake_init(void)
{
    fake.opened++;
    return fake.refuses == 1;
}
static int fake_shutdown(void)
{
    fake.opened--;
    return 0;
}
static int fake_handle(const char *uuid, void **device)
{
    (void)snprintf(fake.uuid, sizeof(fake.uuid), "%s", uuid);
    *device = &fake;
    return fake.refuses == 2;
}
static int fake_energy(void *device, unsigned long long *mj)
{
    assert_ptr_equal(device, &fake);
    *mj = fake.mj;
    return fake.refuses == 3;
}

static const d9di_energy_nvml nvml = {fake_init, fake_shutdown, fake_handle, fake_energy};
static const char id[] = "0123456789abcdef0123456789abcdef";

static void test_joules_since_the_last_reading(void **state)
{
    d9d_energy_meter *m;

    (void)state;
    fake.refuses = 0;
    fake.mj = 5000;
    m = d9di_energy_meter_open_nvml(&nvml, id);
    assert_non_null(m);
    assert_string_equal(fake.uuid, "GPU-01234567-89ab-cdef-0123-456789abcdef");
    fake.mj = 6250;
    assert_true(fabs(d9d_energy_meter_read(m) - 1.25) < 1e-12);
    assert_true(d9d_energy_meter_read(m) == 0);
    fake.mj = 10; /* another driver */
    assert_true(isnan(d9d_energy_meter_read(m)));
    fake.mj = 1010;
    assert_true(fabs(d9d_energy_meter_read(m) - 1) < 1e-12);
    fake.refuses = 3;
    assert_true(isnan(d9d_energy_meter_read(m)));
    d9d_energy_meter_close(m);
    assert_int_equal(fake.opened, 0);
}

static void test_no_meter(void **state)
{
    (void)state;
    for (fake.refuses = 2; fake.refuses <= 3; fake.refuses++)
        assert_null(d9di_energy_meter_open_nvml(&nvml, id));
    assert_int_equal(fake.opened, 0);
    fake.refuses = 1;
    assert_null(d9di_energy_meter_open_nvml(&nvml, id));
    assert_null(d9di_energy_meter_open_nvml(&nvml, "mig"));
    assert_true(isnan(d9d_energy_meter_read(NULL)));
    d9d_energy_meter_close(NULL);
}

/* A processor has none; a GPU that counts does so upwards. */
static void test_devices(void **state)
{
    d9d_device *dev;
    d9d_energy_meter *m;

    (void)state;
    if (d9d_device_open(unit_device_name(), &dev) != D9D_OK)
        skip();
    m = d9d_energy_meter_open(dev);
    if (strcmp(dev->kernels->name, "cpu") == 0)
        assert_null(m);
    else
        assert_true(m == NULL || d9d_energy_meter_read(m) >= 0);
    d9d_energy_meter_close(m);
    d9d_device_close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_joules_since_the_last_reading),
        cmocka_unit_test(test_no_meter),
        cmocka_unit_test(test_devices),
    };

    return cmocka_run_group_tests_name("energy", tests, NULL, NULL);
}
