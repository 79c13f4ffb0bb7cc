/* unit_device.h - the device for tests of arithmetic, from the environment variable
 * D9D_TEST_DEVICE; default "cpu". */
#ifndef D9D_UNIT_DEVICE_H
#define D9D_UNIT_DEVICE_H

#include <stdbool.h>

#include "d9d/device/device.h"

const char *unit_device_name(void);

/* Whether it is the reference, which also refuses data that a GPU cannot look at in time. */
bool unit_device_is_cpu(void);

/* `on_cpu` there, `elsewhere` on other devices, which sum in other orders. */
double unit_device_tolerance(double on_cpu, double elsewhere);

/* memset() on the device. */
d9d_status unit_device_set(d9d_device *dev, void *p, int byte, uint64_t n);

#endif /* D9D_UNIT_DEVICE_H */
