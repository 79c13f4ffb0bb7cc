/* device_sim.c - see d9d/device/simulated.h. */
#include "d9d/device/simulated.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "d9d/base/mem.h"
#include "device/backend.h"
#include "device/pool.h"

/* Blocks up to here are memory, of which what nobody writes costs nothing: numbers per expert and
 * rank that the host waits for.  Of these arrays copies are made up to COPY_MOST. */
#define REAL_MOST (UINT64_C(4) << 20)
#define MAP_FROM  (UINT64_C(32) << 10)
#define COPY_MOST (UINT64_C(64) << 10)
/* As of the chip: device_cuda.c. */
#define GPU_SLACK (UINT64_C(256) << 20)

typedef struct paper_device {
    d9d_paper *paper;
    uint64_t next;          /* address of the next block that is none */
    uint64_t scratch, peak; /* the last scratch that reached a peak, and which */
} paper_device;

static void *paper_take(d9d_device *dev, uint64_t n)
{
    paper_device *self = dev->self;
    uint64_t at = self->next;
    void *p;

    if (n < MAP_FROM)
        return calloc(1, n);
    if (n <= REAL_MOST) {
        p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                 0);
        return p != MAP_FAILED ? p : NULL;
    }
    if (n > UINT64_MAX - at)
        return NULL;
    self->next += n;
    return (void *)(uintptr_t)at;
}

static void paper_give(d9d_device *dev, void *p, uint64_t n)
{
    (void)dev;
    if (n < MAP_FROM)
        free(p);
    else if (n <= REAL_MOST)
        (void)munmap(p, n);
}

static d9d_status paper_copy(d9d_device *dev, void *dst, const void *src, uint64_t n)
{
    const paper_device *self = dev->self;

    if (n <= COPY_MOST && d9d_paper_is_real(dst) && d9d_paper_is_real(src))
        memcpy(dst, src, n);
    return d9d_kernels_paper()->cast(d9d_paper_stream(self->paper), D9D_U8, dst, D9D_U8, src,
                                     (int64_t)n);
}

/* Between the host and the device. */
static d9d_status paper_transfer(d9d_device *dev, void *dst, const void *src, uint64_t n)
{
    (void)dev;
    if (d9d_paper_is_real(dst) && d9d_paper_is_real(src))
        memcpy(dst, src, n);
    else if (d9d_paper_is_real(dst))
        memset(dst, 0, n);
    return D9D_OK;
}

static d9d_status paper_fetch(d9d_device *dev, void *dst, const void *src, uint64_t n,
                              d9d_stream queue)
{
    (void)queue;
    return paper_transfer(dev, dst, src, n);
}

static d9d_status paper_sync(d9d_device *dev)
{
    (void)dev;
    return D9D_OK;
}

static d9d_status paper_pin(d9d_device *dev, uint64_t n, void **out)
{
    void *p = calloc(1, n > 0 ? n : 1);

    if (p == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory for %llu bytes", dev->name,
                        (unsigned long long)n);
    *out = p;
    return D9D_OK;
}

static void paper_unpin(d9d_device *dev, void *host)
{
    (void)dev;
    free(host);
}

/* --- marks: the time when one was set ------------------------------------------------------ */

static d9d_status paper_mark_open(d9d_device *dev, void **out)
{
    return paper_pin(dev, sizeof(double), out);
}

static d9d_status paper_mark_set(d9d_device *dev, void *mark, d9d_stream queue)
{
    *(double *)mark = d9d_paper_now(queue != NULL ? queue : dev->stream);
    return D9D_OK;
}

static bool paper_mark_passed(d9d_device *dev, void *mark)
{
    (void)dev, (void)mark;
    return true;
}

static d9d_status paper_mark_wait(d9d_device *dev, void *mark)
{
    (void)dev, (void)mark;
    return D9D_OK;
}

static d9d_status paper_mark_ms(d9d_device *dev, void *from, void *to, double *ms)
{
    (void)dev;
    *ms = (*(double *)to - *(double *)from) * 1e3;
    return D9D_OK;
}

/* --- opening --------------------------------------------------------------------------------- */

static d9d_status lend(void *self, uint64_t n, void **out)
{
    d9d_device *dev = self;
    paper_device *p = dev->self;
    const uint64_t before = d9d_device_memory(dev).peak;

    D9D_TRY(d9d_device_alloc(dev, n, out));
    if (d9d_device_memory(dev).peak > before) {
        p->scratch = n;
        p->peak = d9d_device_memory(dev).peak;
    }
    return D9D_OK;
}

static void take_back(void *self, void *p, uint64_t n)
{
    d9d_device_free(self, p, n);
}

static void paper_close(d9d_device *dev)
{
    paper_device *self = dev->self;

    d9d_paper_free(self->paper);
    free(self);
}

#define PAPER_OPS(cache)                                                                           \
    {                                                                                              \
        .take = paper_take, .give = paper_give, .slack = (cache), .upload = paper_transfer,        \
        .download = paper_transfer, .copy = paper_copy, .sync = paper_sync, .pin = paper_pin,      \
        .unpin = paper_unpin, .fetch = paper_fetch, .send = paper_transfer,                        \
        .mark_open = paper_mark_open, .mark_close = paper_unpin, .mark_set = paper_mark_set,       \
        .mark_passed = paper_mark_passed, .mark_wait = paper_mark_wait, .mark_ms = paper_mark_ms,  \
        .close = paper_close                                                                       \
    }

static d9d_status open_paper(const d9d_paper_chip *chip, d9d_device *dev)
{
    static const d9d_device_ops cpu_ops = PAPER_OPS(0), gpu_ops = PAPER_OPS(GPU_SLACK);
    const d9d_paper_owner owner = {dev, lend, take_back};
    paper_device *self = calloc(1, sizeof(*self));

    if (self == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for the device", chip->name);
    self->next = D9D_PAPER_UNREAL;
    dev->name = chip->name;
    dev->self = self;
    dev->ops = chip->gpu ? &gpu_ops : &cpu_ops; /* from here on close undoes what was made */
    dev->kernels = d9d_kernels_paper();
    dev->peak_flops = chip->gpu ? chip->flops : 0;
    D9D_TRY(d9d_paper_create(chip, &owner, &self->paper));
    dev->stream = d9d_paper_stream(self->paper);
    return d9di_pool_create(dev);
}

d9d_status d9d_device_check_imagined(const char *chip)
{
    char all[256] = "";
    size_t at = 0;

    if (d9d_paper_chip_find(chip) != NULL)
        return D9D_OK;
    for (const char *const *name = d9d_paper_chip_names(); *name != NULL; name++)
        at += (size_t)snprintf(all + at, sizeof(all) - at, "%s%s", at > 0 ? ", " : "", *name);
    return D9D_FAIL(D9D_ECONFIG, "nothing is known of a \"%s\": expected one of %s", chip, all);
}

d9d_status d9d_device_imagine(const char *chip, d9d_device **out)
{
    d9d_device *dev;
    d9d_status st;

    D9D_TRY(d9d_device_check_imagined(chip));
    dev = calloc(1, sizeof(*dev));
    if (dev == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for the device", chip);
    st = open_paper(d9d_paper_chip_find(chip), dev);
    if (st == D9D_OK)
        *out = dev;
    else
        d9d_device_close(dev);
    return st;
}

uint64_t d9d_device_scratch(const d9d_device *dev)
{
    const paper_device *self = dev->self;

    return self->peak == d9d_device_memory(dev).peak ? self->scratch : 0;
}
