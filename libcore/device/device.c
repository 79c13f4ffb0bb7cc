/* device.c - opening a device by its name, copies, and kernel launches.  See
 * d9d/device/device.h. */
#include "d9d/device/device.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/size.h"
#include "d9d/kernels/sim.h"
#include "device/backend.h"
#include "device/pool.h"

typedef struct backend {
    const char *name;
    d9d_status (*open)(int index, d9d_device *dev); /* NULL: not in this build */
    bool numbered;                                  /* "name:1" is the second one */
} backend;

enum { BACKENDS = 2, MAX_INDEX = 999 };

/* In the order in which "auto" tries them. */
static const backend backends[BACKENDS] = {
    {"cuda", d9di_device_open_cuda, true},
    {"cpu", d9di_device_open_cpu, false},
};

/* "cuda:12" names backend "cuda" and index 12; no number is 0. */
static bool name_matches(const char *which, const backend *b, int *index)
{
    const size_t n = strlen(b->name);
    char *end;
    long v;

    if (strncmp(which, b->name, n) != 0)
        return false;
    *index = 0;
    if (which[n] == '\0')
        return true;
    if (!b->numbered || which[n] != ':' || which[n + 1] < '0' || which[n + 1] > '9')
        return false;
    v = strtol(which + n + 1, &end, 10);
    *index = (int)v;
    return *end == '\0' && v <= MAX_INDEX;
}

static d9d_status open_backend(const backend *b, int index, d9d_device **out)
{
    d9d_device *dev = calloc(1, sizeof(*dev));
    d9d_status st = D9D_ENOMEM;

    if (dev == NULL)
        return D9D_FAIL(st, "%s: no memory for the device", b->name);
    st = b->open(index, dev);
    if (st == D9D_OK)
        st = d9di_pool_create(dev);
    if (st == D9D_OK)
        *out = dev;
    else
        d9d_device_close(dev);
    return st;
}

static d9d_status open_auto(d9d_device **out)
{
    d9d_status st = D9D_ENOTFOUND;

    for (int i = 0; i < BACKENDS && st == D9D_ENOTFOUND; i++) {
        if (backends[i].open != NULL)
            st = open_backend(&backends[i], 0, out);
    }
    return st;
}

/* The backend that a name other than "auto" selects. */
static d9d_status find_backend(const char *which, const backend **out, int *index)
{
    for (int i = 0; i < BACKENDS; i++) {
        const backend *b = &backends[i];

        if (!name_matches(which, b, index))
            continue;
        if (b->open == NULL)
            return D9D_FAIL(D9D_ENOTSUP, "device \"%s\": this build has no %s", which, b->name);
        *out = b;
        return D9D_OK;
    }
    return D9D_FAIL(D9D_ECONFIG, "device \"%s\": expected auto, cpu, cuda or cuda:N", which);
}

/* "auto@20GiB" is the name "auto" and a limit of 20 x 2^30 bytes. */
typedef struct device_spec {
    char word[64];
    uint64_t limit;
} device_spec;

static d9d_status parse_spec(const char *which, device_spec *out)
{
    const char *at = strchr(which, '@');
    const size_t n = at != NULL ? (size_t)(at - which) : strlen(which);

    *out = (device_spec){.limit = UINT64_MAX};
    (void)snprintf(out->word, sizeof(out->word), "%.*s", (int)n, which);
    if (at != NULL && !d9d_size_parse(at + 1, &out->limit))
        return D9D_FAIL(D9D_ECONFIG,
                        "device \"%s\": \"%s\" is not a size such as 4096, 512MB or 4GiB", which,
                        at + 1);
    if (out->limit == 0)
        return D9D_FAIL(D9D_ECONFIG, "device \"%s\": a limit of 0 bytes leaves nothing", which);
    return D9D_OK;
}

d9d_status d9d_device_check(const char *which)
{
    const backend *b;
    device_spec c;
    int index;

    D9D_TRY(parse_spec(which, &c));
    return strcmp(c.word, "auto") == 0 ? D9D_OK : find_backend(c.word, &b, &index);
}

d9d_status d9d_device_open(const char *which, d9d_device **out)
{
    const backend *b;
    d9d_device *dev;
    device_spec c;
    int index;

    D9D_TRY(parse_spec(which, &c));
    if (strcmp(c.word, "auto") == 0) {
        D9D_TRY(open_auto(&dev));
    } else {
        D9D_TRY(find_backend(c.word, &b, &index));
        D9D_TRY(open_backend(b, index, &dev));
    }
    d9d_device_set_limit(dev, c.limit);
    *out = dev;
    return D9D_OK;
}

void d9d_device_close(d9d_device *dev)
{
    if (dev == NULL)
        return;
    d9di_readback_free_idle(dev);
    d9di_pool_free(dev);
    if (dev->ops != NULL && dev->ops->close != NULL)
        dev->ops->close(dev);
    free(dev);
}

d9d_status d9d_device_upload(d9d_device *dev, void *dst, const void *host, uint64_t n)
{
    return n == 0 ? D9D_OK : dev->ops->upload(dev, dst, host, n);
}

d9d_status d9d_device_download(d9d_device *dev, void *host, const void *src, uint64_t n)
{
    if (n == 0)
        return D9D_OK;
    d9di_device_count_wait(dev);
    return dev->ops->download(dev, host, src, n);
}

d9d_status d9d_device_copy(d9d_device *dev, void *dst, const void *src, uint64_t n)
{
    return n == 0 ? D9D_OK : dev->ops->copy(dev, dst, src, n);
}

d9d_status d9d_device_sync(d9d_device *dev)
{
    d9di_device_count_wait(dev);
    return dev->ops->sync(dev);
}

d9d_status d9d_device_pin(d9d_device *dev, uint64_t n, void **out)
{
    return dev->ops->pin(dev, n, out);
}

void d9d_device_unpin(d9d_device *dev, void *pinned)
{
    if (pinned != NULL)
        dev->ops->unpin(dev, pinned);
}

d9d_status d9d_device_d2h_async(d9d_device *dev, void *pinned, const void *src, uint64_t n)
{
    return n == 0 ? D9D_OK : dev->ops->fetch(dev, pinned, src, n, NULL);
}

d9d_status d9d_device_d2h(d9d_device *dev, void *pinned, const void *src, uint64_t n)
{
    return n == 0 ? D9D_OK : dev->ops->d2h(dev, pinned, src, n);
}

d9d_status d9d_device_h2d_async(d9d_device *dev, void *dst, const void *pinned, uint64_t n)
{
    return n == 0 ? D9D_OK : dev->ops->h2d_async(dev, dst, pinned, n);
}

/* --- kernels outside the kernel table ------------------------------------------------ */

d9d_status d9d_device_launch(d9d_device *dev, const d9d_device_kernel *kernel, void *args,
                             d9d_device_kernel_cost cost)
{
    const bool planned = dev->kernels == d9d_kernels_sim();
    const bool gpu = planned ? d9d_sim_get_chip(d9d_sim_of_stream(dev->stream))->is_gpu
                             : strcmp(dev->kernels->name, "cuda") == 0;
    d9d_status (*const run)(d9d_stream, void *) = gpu ? kernel->cuda : kernel->cpu;

    if (run == NULL)
        return D9D_FAIL(D9D_ENOTSUP, "%s: has no kernel for %s", kernel->name,
                        gpu ? "GPUs" : "the CPU");
    return planned ? d9d_sim_launch(dev->stream, cost.dtype, cost.flops, cost.bytes)
                   : run(dev->stream, args);
}
