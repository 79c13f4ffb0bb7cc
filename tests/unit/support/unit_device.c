/* unit_device.c - see unit_device.h. */
#include "unit_device.h"

#include <stdlib.h>
#include <string.h>

const char *unit_device_name(void)
{
    const char *name = getenv("D9D_TEST_DEVICE");

    return name != NULL && *name != '\0' ? name : "cpu";
}

bool unit_device_is_cpu(void)
{
    return strcmp(unit_device_name(), "cpu") == 0;
}

double unit_device_tolerance(double on_cpu, double elsewhere)
{
    return unit_device_is_cpu() ? on_cpu : elsewhere;
}

d9d_status unit_device_set(d9d_device *dev, void *p, int byte, uint64_t n)
{
    void *host = malloc(n + 1);
    d9d_status st;

    if (host == NULL)
        return D9D_FAIL(D9D_ENOMEM, "out of memory: %llu bytes requested", (unsigned long long)n);
    memset(host, byte, n);
    st = d9d_device_upload(dev, p, host, n);
    free(host);
    return st;
}
