/* device.c - opening a device by its name, and copies.  See d9d/device/device.h. */
#include "d9d/device/device.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "device/ops.h"
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
static bool names(const char *which, const backend *b, int *index)
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

static d9d_status open_first(d9d_device **out)
{
    d9d_status st = D9D_ENOTFOUND;

    for (int i = 0; i < BACKENDS && st == D9D_ENOTFOUND; i++) {
        if (backends[i].open != NULL)
            st = open_backend(&backends[i], 0, out);
    }
    return st;
}

/* The backend that a word other than "auto" names. */
static d9d_status find_backend(const char *which, const backend **out, int *index)
{
    for (int i = 0; i < BACKENDS; i++) {
        const backend *b = &backends[i];

        if (!names(which, b, index))
            continue;
        if (b->open == NULL)
            return D9D_FAIL(D9D_ENOTSUP, "device \"%s\": this build has no %s", which, b->name);
        *out = b;
        return D9D_OK;
    }
    return D9D_FAIL(D9D_ECONFIG, "device \"%s\": expected auto, cpu, cuda or cuda:N", which);
}

d9d_status d9d_device_check(const char *which)
{
    const backend *b;
    int index;

    return strcmp(which, "auto") == 0 ? D9D_OK : find_backend(which, &b, &index);
}

d9d_status d9d_device_open(const char *which, d9d_device **out)
{
    const backend *b;
    int index;

    if (strcmp(which, "auto") == 0)
        return open_first(out);
    D9D_TRY(find_backend(which, &b, &index));
    return open_backend(b, index, out);
}

void d9d_device_close(d9d_device *dev)
{
    if (dev == NULL)
        return;
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
    d9di_device_waited(dev);
    return dev->ops->download(dev, host, src, n);
}

d9d_status d9d_device_copy(d9d_device *dev, void *dst, const void *src, uint64_t n)
{
    return n == 0 ? D9D_OK : dev->ops->copy(dev, dst, src, n);
}

d9d_status d9d_device_sync(d9d_device *dev)
{
    d9di_device_waited(dev);
    return dev->ops->sync(dev);
}
