/* device_sim.c - the simulated backend: accounts for memory and time.  See
 * d9d/device/simulated.h. */
#include "d9d/device/simulated.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "d9d/base/mem.h"
#include "device/backend.h"
#include "device/pool.h"

/* Blocks up to this size are real memory, of which untouched pages cost nothing: the host reads
 * counts per expert and rank from them.  Copies of such arrays are made up to COPY_MAX. */
#define REAL_MAX (UINT64_C(4) << 20)
#define MAP_FROM (UINT64_C(32) << 10)
#define COPY_MAX (UINT64_C(64) << 10)
/* CACHE_SLACK of device_cuda.c. */
#define GPU_SLACK (UINT64_C(256) << 20)

typedef struct sim_device {
    d9d_sim *sim;
    uint64_t next, next_host; /* next addresses of blocks without memory */
    uint64_t scratch, peak;   /* scratch in the last peak, and that peak */
    double bus_wait_s;        /* in which computation waited for copies of other streams */
} sim_device;

static void *sim_alloc(d9d_device *dev, uint64_t n)
{
    sim_device *self = dev->self;
    uint64_t at = self->next;
    void *p;

    if (n < MAP_FROM)
        return calloc(1, n);
    if (n <= REAL_MAX) {
        p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                 0);
        return p != MAP_FAILED ? p : NULL;
    }
    if (n > UINT64_MAX - at)
        return NULL;
    self->next += n;
    return (void *)(uintptr_t)at;
}

static void sim_free(d9d_device *dev, void *p, uint64_t n)
{
    (void)dev;
    if (n < MAP_FROM)
        free(p);
    else if (n <= REAL_MAX)
        (void)munmap(p, n);
}

static d9d_status sim_copy(d9d_device *dev, void *dst, const void *src, uint64_t n)
{
    const sim_device *self = dev->self;

    if (n <= COPY_MAX && d9d_sim_is_real(dst) && d9d_sim_is_real(src))
        memcpy(dst, src, n);
    return d9d_kernels_sim()->elementwise->cast(d9d_sim_stream(self->sim), D9D_U8, dst, D9D_U8, src,
                                                (int64_t)n);
}

/* A copy between host and device. */
static d9d_status sim_transfer(d9d_device *dev, void *dst, const void *src, uint64_t n)
{
    (void)dev;
    if (d9d_sim_is_real(dst) && d9d_sim_is_real(src))
        memcpy(dst, src, n);
    else if (d9d_sim_is_real(dst))
        memset(dst, 0, n);
    return D9D_OK;
}

static d9d_status sim_d2h_async(d9d_device *dev, void *dst, const void *src, uint64_t n,
                                d9d_stream stream)
{
    (void)stream;
    return sim_transfer(dev, dst, src, n);
}

static d9d_status sim_sync(d9d_device *dev)
{
    (void)dev;
    return D9D_OK;
}

static d9d_status sim_pin(d9d_device *dev, uint64_t n, void **out)
{
    sim_device *self = dev->self;
    void *p;

    if (n > REAL_MAX) {
        *out = (void *)(uintptr_t)self->next_host;
        self->next_host += n;
        return D9D_OK;
    }
    p = calloc(1, n > 0 ? n : 1);
    if (p == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory: %llu bytes requested", dev->name,
                        (unsigned long long)n);
    *out = p;
    return D9D_OK;
}

static void sim_unpin(d9d_device *dev, void *host)
{
    (void)dev;
    if (!d9d_sim_is_host(host))
        free(host);
}

/* --- events: the simulated time at which one was recorded ---------------------------- */

static d9d_status sim_event_create(d9d_device *dev, void **out)
{
    return sim_pin(dev, sizeof(double), out);
}

static d9d_status sim_event_record(d9d_device *dev, void *event, d9d_stream stream)
{
    *(double *)event = d9d_sim_now(stream != NULL ? stream : dev->stream);
    return D9D_OK;
}

static bool sim_event_query(d9d_device *dev, void *event)
{
    (void)dev, (void)event;
    return true;
}

static d9d_status sim_event_wait(d9d_device *dev, void *event)
{
    (void)dev, (void)event;
    return D9D_OK;
}

static d9d_status sim_event_elapsed_ms(d9d_device *dev, void *from, void *to, double *ms)
{
    (void)dev;
    *ms = (*(double *)to - *(double *)from) * 1e3;
    return D9D_OK;
}

/* --- streams of copies ------------------------------------------------------------------ */

typedef struct sim_copy_stream {
    d9d_stream clock;
    const char *name, *direction;
} sim_copy_stream;

static d9d_status sim_copy_stream_open(d9d_device *dev, const char *name, const char *direction,
                                       void **out)
{
    const sim_device *self = dev->self;
    sim_copy_stream *s = calloc(1, sizeof(*s));
    d9d_status st;

    if (s == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for a stream", dev->name);
    *s = (sim_copy_stream){NULL, name, direction};
    st = d9d_sim_stream_create(self->sim, &s->clock);
    if (st == D9D_OK)
        *out = s;
    else
        free(s);
    return st;
}

static void sim_copy_stream_close(d9d_device *dev, void *stream)
{
    (void)dev;
    free(stream);
}

static d9d_status sim_copy_stream_copy(d9d_device *dev, void *stream, void *dst, const void *src,
                                       uint64_t n)
{
    const sim_copy_stream *s = stream;

    (void)dev;
    if (n <= COPY_MAX && d9d_sim_is_real(dst) && d9d_sim_is_real(src))
        memcpy(dst, src, n);
    return d9d_sim_transfer(s->clock, s->name, s->direction, D9D_SIM_LINK_HOST_COPY, (double)n);
}

static d9d_status sim_copy_stream_record(d9d_device *dev, void *stream, void *event)
{
    return sim_event_record(dev, event, ((const sim_copy_stream *)stream)->clock);
}

static d9d_status sim_copy_stream_wait(d9d_device *dev, void *stream, void *event)
{
    (void)dev;
    d9d_sim_wait_until(((const sim_copy_stream *)stream)->clock, *(const double *)event);
    return D9D_OK;
}

static d9d_status sim_compute_wait(d9d_device *dev, void *event)
{
    const double until = *(const double *)event, now = d9d_sim_now(dev->stream);
    sim_device *self = dev->self;

    self->bus_wait_s += until > now ? until - now : 0;
    d9d_sim_wait_until(dev->stream, until);
    return D9D_OK;
}

/* --- opening --------------------------------------------------------------------------------- */

static d9d_status scratch_alloc(void *self, uint64_t n, void **out)
{
    d9d_device *dev = self;
    sim_device *p = dev->self;
    const uint64_t before = d9d_device_memory(dev).peak;

    D9D_TRY(d9d_device_alloc(dev, n, out));
    if (d9d_device_memory(dev).peak > before) {
        p->scratch = n;
        p->peak = d9d_device_memory(dev).peak;
    }
    return D9D_OK;
}

static void scratch_free(void *self, void *p, uint64_t n)
{
    d9d_device_free(self, p, n);
}

static void sim_close(d9d_device *dev)
{
    sim_device *self = dev->self;

    d9d_sim_free(self->sim);
    free(self);
}

#define SIM_OPS(cache)                                                                             \
    {                                                                                              \
        .alloc = sim_alloc, .free = sim_free, .slack = (cache), .upload = sim_transfer,            \
        .download = sim_transfer, .copy = sim_copy, .sync = sim_sync, .pin = sim_pin,              \
        .unpin = sim_unpin, .fetch = sim_d2h_async, .h2d_async = sim_transfer,                     \
        .event_create = sim_event_create, .event_free = sim_unpin,                                 \
        .event_record = sim_event_record, .event_query = sim_event_query,                          \
        .event_wait = sim_event_wait, .event_elapsed_ms = sim_event_elapsed_ms,                    \
        .copy_stream_open = sim_copy_stream_open, .copy_stream_close = sim_copy_stream_close,      \
        .copy_stream_copy = sim_copy_stream_copy, .copy_stream_record = sim_copy_stream_record,    \
        .copy_stream_wait = sim_copy_stream_wait, .compute_wait = sim_compute_wait,                \
        .close = sim_close                                                                         \
    }

static d9d_status sim_open(const d9d_sim_chip *chip, d9d_device *dev)
{
    static const d9d_device_ops cpu_ops = SIM_OPS(0), gpu_ops = SIM_OPS(GPU_SLACK);
    const d9d_sim_owner owner = {dev, scratch_alloc, scratch_free};
    sim_device *self = calloc(1, sizeof(*self));

    if (self == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for the device", chip->name);
    self->next = D9D_SIM_FAKE_BASE;
    self->next_host = D9D_SIM_FAKE_HOST_BASE;
    dev->name = chip->name;
    dev->self = self;
    dev->ops = chip->is_gpu ? &gpu_ops : &cpu_ops; /* from here on close frees what was made */
    dev->kernels = d9d_kernels_sim();
    dev->peak_flops = chip->is_gpu ? chip->flops : 0;
    dev->chip = chip->name;
    dev->has_fp8 = chip->flops_fp8 > 0;
    D9D_TRY(d9d_sim_create(chip, &owner, &self->sim));
    dev->stream = d9d_sim_stream(self->sim);
    return d9di_pool_create(dev);
}

d9d_status d9d_device_check_simulated(const char *chip)
{
    char all[256] = "";
    size_t at = 0;

    if (d9d_sim_chip_find(chip) != NULL)
        return D9D_OK;
    for (const char *const *name = d9d_sim_chip_names(); *name != NULL; name++)
        at += (size_t)snprintf(all + at, sizeof(all) - at, "%s%s", at > 0 ? ", " : "", *name);
    return D9D_FAIL(D9D_ECONFIG, "unknown chip \"%s\"; expected one of %s", chip, all);
}

d9d_status d9d_device_simulate(const char *chip, d9d_device **out)
{
    d9d_device *dev;
    d9d_status st;

    D9D_TRY(d9d_device_check_simulated(chip));
    dev = calloc(1, sizeof(*dev));
    if (dev == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for the device", chip);
    st = sim_open(d9d_sim_chip_find(chip), dev);
    if (st == D9D_OK)
        *out = dev;
    else
        d9d_device_close(dev);
    return st;
}

uint64_t d9d_device_peak_scratch(const d9d_device *dev)
{
    const sim_device *self = dev->self;

    return self->peak == d9d_device_memory(dev).peak ? self->scratch : 0;
}

double d9d_device_bus_wait_s(const d9d_device *dev)
{
    return ((const sim_device *)dev->self)->bus_wait_s;
}
