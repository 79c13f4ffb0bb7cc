/* host_kernels.c - see host_kernels.h. */
#include "host_kernels.h"

#include "host_call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "unit_device.h"

static void check(d9d_status st)
{
    if (st == D9D_OK)
        return;
    (void)fprintf(stderr, "%s: %s\n", d9d_status_name(st), d9d_err_message());
    abort();
}

/* What the device has said, line after line. */
static char said[1 << 16];

static void hear(void *arg, d9d_log_level level, const char *text)
{
    const size_t at = strlen(said);

    (void)arg, (void)level;
    (void)snprintf(said + at, sizeof(said) - at, "%s\n", text);
}

host_call host_begin(void)
{
    static const d9d_log log = {.line = hear, .level = D9D_LOG_INFO};
    static d9d_device *dev;

    if (dev == NULL) {
        check(d9d_device_open(unit_device_name(), &dev));
        dev->log = &log;
    }
    return (host_call){.dev = dev, .k = dev->kernels, .s = dev->stream};
}

static void *copy(host_call *c, const void *host, d9d_dtype t, int64_t n, bool out)
{
    const uint64_t bytes = (uint64_t)n * d9d_dtype_size(t);
    size_t i = 0;

    if (host == NULL)
        return NULL;
    while (i < c->n && (c->array[i].host != host || c->array[i].bytes != bytes))
        i++;
    if (i == c->n) {
        if (i == HOST_CALL_ARRAYS)
            abort();
        c->n++;
        memcpy(&c->array[i].host, &host, sizeof(host));
        c->array[i].bytes = bytes;
        c->array[i].out = false;
        check(d9d_device_alloc(c->dev, bytes, &c->array[i].dev));
        check(d9d_device_upload(c->dev, c->array[i].dev, host, bytes));
    }
    c->array[i].out |= out;
    return c->array[i].dev;
}

const void *host_in(host_call *c, d9d_dtype t, const void *host, int64_t n)
{
    return copy(c, host, t, n, false);
}
void *host_out(host_call *c, d9d_dtype t, void *host, int64_t n)
{
    return copy(c, host, t, n, true);
}
const int32_t *host_ints(host_call *c, const int32_t *host, int64_t n)
{
    return copy(c, host, D9D_I32, n, false);
}
const float *host_floats(host_call *c, const float *host, int64_t n)
{
    return copy(c, host, D9D_F32, n, false);
}

d9d_status host_end(host_call *c, d9d_status st)
{
    for (size_t i = 0; i < c->n; i++) {
        if (st == D9D_OK && c->array[i].out)
            check(
                d9d_device_download(c->dev, c->array[i].host, c->array[i].dev, c->array[i].bytes));
        d9d_device_free(c->dev, c->array[i].dev, c->array[i].bytes);
    }
    return st;
}

int64_t host_numel(int ndim, const int64_t *shape)
{
    int64_t n = 1;

    for (int d = 0; d < ndim; d++)
        n *= shape[d];
    return n;
}

int64_t host_rows_reached(const int32_t *at, int64_t m)
{
    int64_t rows = at == NULL ? m : 0;

    for (int64_t i = 0; at != NULL && i < m; i++)
        rows = at[i] >= rows ? at[i] + 1 : rows;
    return rows;
}

const d9d_kernels *host_kernels(void)
{
#define FAMILY(family, list) .family = &host_##family##_kernels,
    static const d9d_kernels table = {.name = "host", D9D_KERNEL_FAMILIES(FAMILY)};
#undef FAMILY

    return unit_device_is_cpu() ? d9d_kernels_cpu() : &table;
}

int host_kernels_said(const char *text)
{
    int n = 0;

    for (const char *at = strstr(said, text); at != NULL; at = strstr(at + 1, text))
        n++;
    return n;
}
