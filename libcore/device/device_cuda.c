/* device_cuda.c - the CUDA backend: one compute stream for work and copies, in the order of the
 * calls.
 *
 * Copies go through a pinned ring buffer of our own, so that they are fast from and to pageable
 * memory too.  An upload returns when its bytes are in the ring; the GPU copies them later:
 *
 *     | in flight | in flight | being filled ... | free |    a part is reused when the GPU has
 *                                                           reached its event
 *
 * Small uploads between steps therefore do not block.  A download blocks until its bytes have
 * arrived; a chunk is copied out of the ring while the next one arrives.  Each address says where
 * it lies (cudaMemcpyDefault), since a tensor may be in pinned host memory.  Threads that load a
 * checkpoint copy concurrently: a lock keeps each copy whole in its ring.
 */
#include <cuda_runtime_api.h>
#include <nvtx3/nvToolsExt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/environment.h"
#include "d9d/base/hex.h"
#include "device/backend.h"
#include "device/cache_dir.h"
#include "device/cuda_options.h"

enum { RING_BUFFERS = 4, RING_BUFFER_BYTES = 8 << 20, RING_ALIGN = 256 };

/* cudaFree() waits for the GPU, which small models whose steps differ in size would do all the
 * time. */
#define CACHE_SLACK (UINT64_C(256) << 20)

typedef struct ring {
    char *data; /* PARTS * PART pinned bytes */
    cudaEvent_t copied[RING_BUFFERS];
    int current;
    uint64_t used; /* bytes of the current part */
} ring;

typedef struct cuda_device {
    int index;
    char name[16];
    cudaStream_t stream;      /* the compute stream */
    cudaStream_t side_stream; /* for copies outside the compute stream's order */
    ring up, down;
    pthread_mutex_t copy_lock; /* held while a ring is used */
    bool recording;            /* a graph: nothing is copied from or to the host, or waited for */
} cuda_device;

static d9d_status cuda_fail(const d9d_device *dev, const char *what, cudaError_t e)
{
    const cuda_device *self = dev->self;

    return D9D_FAIL(e == cudaErrorMemoryAllocation ? D9D_EOOM : D9D_ECUDA, "%s: %s: %s", self->name,
                    what, cudaGetErrorString(e));
}

static cudaError_t set_current(const d9d_device *dev)
{
    const cuda_device *self = dev->self;

    return cudaSetDevice(self->index);
}

/* A copy would be recorded with what the host memory has now. */
static d9d_status refuse_recording(const d9d_device *dev, const char *what)
{
    const cuda_device *self = dev->self;

    return self->recording
               ? D9D_FAIL(D9D_ENOTSUP, "%s: %s while a graph is recorded", self->name, what)
               : D9D_OK;
}

/* --- memory -------------------------------------------------------------------------- */

static void *cuda_alloc(d9d_device *dev, uint64_t n)
{
    void *p = NULL;

    if (set_current(dev) == cudaSuccess && cudaMalloc(&p, n) == cudaSuccess)
        return p;
    (void)cudaGetLastError(); /* the pool reports it; the next launch must not */
    return NULL;
}

static void cuda_free(d9d_device *dev, void *p, uint64_t n)
{
    const cuda_device *self = dev->self;

    (void)n;
    (void)set_current(dev);
    d9di_device_count_wait(dev);
    (void)cudaStreamSynchronize(self->stream); /* pending work may still use it */
    (void)cudaFree(p);
}

static void cuda_mem_info(d9d_device *dev, uint64_t *has, uint64_t *left)
{
    size_t all = 0, unused = 0;

    if (set_current(dev) != cudaSuccess || cudaMemGetInfo(&unused, &all) != cudaSuccess)
        (void)cudaGetLastError();
    *has = all;
    *left = unused;
}

/* --- copies -------------------------------------------------------------------------- */

static cudaError_t ring_open(ring *r)
{
    cudaError_t e = cudaHostAlloc((void **)&r->data, (size_t)RING_BUFFERS * RING_BUFFER_BYTES,
                                  cudaHostAllocDefault);

    for (int i = 0; i < RING_BUFFERS && e == cudaSuccess; i++)
        e = cudaEventCreateWithFlags(&r->copied[i], cudaEventDisableTiming);
    return e;
}

static void ring_close(ring *r)
{
    for (int i = 0; i < RING_BUFFERS; i++)
        if (r->copied[i] != NULL)
            (void)cudaEventDestroy(r->copied[i]);
    if (r->data != NULL)
        (void)cudaFreeHost(r->data);
}

/* Reserve ring space of at least one byte: *at is where, *fits how much of n fits. */
static cudaError_t ring_reserve(d9d_device *dev, uint64_t n, char **at, uint64_t *fits)
{
    cuda_device *self = dev->self;
    ring *r = &self->up;
    cudaError_t e = cudaSuccess;

    if (r->used == RING_BUFFER_BYTES) {
        e = cudaEventRecord(r->copied[r->current], self->stream);
        r->current = (r->current + 1) % RING_BUFFERS;
        r->used = 0;
        if (cudaEventQuery(r->copied[r->current]) == cudaErrorNotReady)
            d9di_device_count_wait(dev);
        if (e == cudaSuccess)
            e = cudaEventSynchronize(
                r->copied[r->current]); /* returns at once if it was never recorded */
    }
    *fits = n < RING_BUFFER_BYTES - r->used ? n : RING_BUFFER_BYTES - r->used;
    *at = r->data + (size_t)r->current * RING_BUFFER_BYTES + r->used;
    r->used += (*fits + RING_ALIGN - 1) / RING_ALIGN * RING_ALIGN;
    return e;
}

static d9d_status cuda_upload(d9d_device *dev, void *dst, const void *host, uint64_t n)
{
    cuda_device *self = dev->self;
    cudaError_t e = set_current(dev);
    uint64_t fits;
    char *at;

    D9D_TRY(refuse_recording(dev, "upload"));
    (void)pthread_mutex_lock(&self->copy_lock);
    for (uint64_t done = 0; done < n && e == cudaSuccess; done += fits) {
        e = ring_reserve(dev, n - done, &at, &fits);
        if (e != cudaSuccess)
            break;
        memcpy(at, (const char *)host + done, fits);
        e = cudaMemcpyAsync((char *)dst + done, at, fits, cudaMemcpyDefault, self->stream);
    }
    (void)pthread_mutex_unlock(&self->copy_lock);
    return e == cudaSuccess ? D9D_OK : cuda_fail(dev, "upload", e);
}

/* Chunk i of a download: enqueue the copy into its part, or copy it out. */
static cudaError_t chunk_enqueue(cuda_device *self, const char *src, uint64_t i, uint64_t n)
{
    ring *r = &self->down;
    cudaError_t e =
        cudaMemcpyAsync(r->data + i % RING_BUFFERS * RING_BUFFER_BYTES, src + i * RING_BUFFER_BYTES,
                        n, cudaMemcpyDefault, self->stream);

    return e == cudaSuccess ? cudaEventRecord(r->copied[i % RING_BUFFERS], self->stream) : e;
}

static cudaError_t chunk_copy_out(cuda_device *self, char *host, uint64_t i, uint64_t n)
{
    ring *r = &self->down;
    cudaError_t e = cudaEventSynchronize(r->copied[i % RING_BUFFERS]);

    if (e == cudaSuccess)
        memcpy(host + i * RING_BUFFER_BYTES, r->data + i % RING_BUFFERS * RING_BUFFER_BYTES, n);
    return e;
}

static uint64_t chunk_size(uint64_t i, uint64_t n)
{
    return n - i * RING_BUFFER_BYTES < RING_BUFFER_BYTES ? n - i * RING_BUFFER_BYTES
                                                         : RING_BUFFER_BYTES;
}

static d9d_status cuda_download(d9d_device *dev, void *host, const void *src, uint64_t n)
{
    const uint64_t chunks = (n + RING_BUFFER_BYTES - 1) / RING_BUFFER_BYTES,
                   ahead = RING_BUFFERS - 1;
    cuda_device *self = dev->self;
    cudaError_t e = set_current(dev);

    D9D_TRY(refuse_recording(dev, "download"));
    (void)pthread_mutex_lock(&self->copy_lock);
    for (uint64_t i = 0; i < chunks + ahead && e == cudaSuccess; i++) {
        if (i < chunks)
            e = chunk_enqueue(self, src, i, chunk_size(i, n));
        if (i >= ahead && e == cudaSuccess)
            e = chunk_copy_out(self, host, i - ahead, chunk_size(i - ahead, n));
    }
    (void)pthread_mutex_unlock(&self->copy_lock);
    return e == cudaSuccess ? D9D_OK : cuda_fail(dev, "download", e);
}

static d9d_status cuda_copy(d9d_device *dev, void *dst, const void *src, uint64_t n)
{
    const cuda_device *self = dev->self;
    cudaError_t e = set_current(dev);

    if (e == cudaSuccess)
        e = cudaMemcpyAsync(dst, src, n, cudaMemcpyDefault, self->stream);
    return e == cudaSuccess ? D9D_OK : cuda_fail(dev, "copy", e);
}

static d9d_status cuda_sync(d9d_device *dev)
{
    const cuda_device *self = dev->self;
    cudaError_t e;

    D9D_TRY(refuse_recording(dev, "a wait"));
    e = cudaStreamSynchronize(self->stream);
    return e == cudaSuccess ? D9D_OK : cuda_fail(dev, "work on the GPU", e);
}

/* --- events and readback ------------------------------------------------------------- */

static d9d_status cuda_pin(d9d_device *dev, uint64_t n, void **out)
{
    cudaError_t e = set_current(dev);

    if (e == cudaSuccess)
        e = cudaHostAlloc(out, n > 0 ? n : 1, cudaHostAllocDefault);
    return e == cudaSuccess ? D9D_OK : cuda_fail(dev, "pinned memory", e);
}

static void cuda_unpin(d9d_device *dev, void *host)
{
    (void)set_current(dev);
    (void)cudaFreeHost(host);
}

static d9d_status cuda_d2h_async(d9d_device *dev, void *pinned, const void *src, uint64_t n,
                                 d9d_stream stream)
{
    const cuda_device *self = dev->self;
    cudaError_t e = set_current(dev);

    D9D_TRY(refuse_recording(dev, "a copy to the host"));
    if (e == cudaSuccess)
        e = cudaMemcpyAsync(pinned, src, n, cudaMemcpyDefault,
                            stream != NULL ? d9d_cuda_stream_handle(stream) : self->stream);
    return e == cudaSuccess ? D9D_OK : cuda_fail(dev, "copy to the host", e);
}

static d9d_status cuda_d2h(d9d_device *dev, void *pinned, const void *src, uint64_t n)
{
    const cuda_device *self = dev->self;
    cudaError_t e = set_current(dev);

    if (e == cudaSuccess)
        e = cudaMemcpyAsync(pinned, src, n, cudaMemcpyDefault, self->side_stream);
    if (e == cudaSuccess)
        e = cudaStreamSynchronize(self->side_stream);
    return e == cudaSuccess ? D9D_OK : cuda_fail(dev, "copy to the host", e);
}

static d9d_status cuda_h2d_async(d9d_device *dev, void *dst, const void *pinned, uint64_t n)
{
    const cuda_device *self = dev->self;
    cudaError_t e = set_current(dev);

    D9D_TRY(refuse_recording(dev, "a copy from the host"));
    if (e == cudaSuccess)
        e = cudaMemcpyAsync(dst, pinned, n, cudaMemcpyDefault, self->stream);
    return e == cudaSuccess ? D9D_OK : cuda_fail(dev, "copy from the host", e);
}

static d9d_status cuda_event_create(d9d_device *dev, void **out)
{
    cudaError_t e = set_current(dev);
    cudaEvent_t event = NULL;

    if (e == cudaSuccess)
        e = cudaEventCreate(&event);
    *out = event;
    return e == cudaSuccess ? D9D_OK : cuda_fail(dev, "an event", e);
}

static void cuda_event_free(d9d_device *dev, void *event_handle)
{
    (void)set_current(dev);
    (void)cudaEventDestroy(event_handle);
}

static d9d_status cuda_event_record(d9d_device *dev, void *event_handle, d9d_stream stream)
{
    const cuda_device *self = dev->self;
    const cudaError_t e = cudaEventRecord(
        event_handle, stream != NULL ? d9d_cuda_stream_handle(stream) : self->stream);

    return e == cudaSuccess ? D9D_OK : cuda_fail(dev, "an event", e);
}

/* A failure is reported by the wait. */
static bool cuda_event_query(d9d_device *dev, void *event_handle)
{
    return set_current(dev) == cudaSuccess && cudaEventQuery(event_handle) == cudaSuccess;
}

static d9d_status cuda_event_wait(d9d_device *dev, void *event_handle)
{
    cudaError_t e = set_current(dev);

    if (e == cudaSuccess)
        e = cudaEventSynchronize(event_handle);
    return e == cudaSuccess ? D9D_OK : cuda_fail(dev, "work on the GPU", e);
}

static d9d_status cuda_event_elapsed_ms(d9d_device *dev, void *from, void *to, double *ms)
{
    float f = 0;
    const cudaError_t e = cudaEventElapsedTime(&f, from, to);

    *ms = (double)f;
    return e == cudaSuccess ? D9D_OK : cuda_fail(dev, "the time between events", e);
}

/* --- streams of copies ------------------------------------------------------------------ */

static d9d_status cuda_copy_stream_open(d9d_device *dev, const char *name, const char *direction,
                                        void **out)
{
    cudaError_t e = set_current(dev);
    cudaStream_t stream = NULL;

    (void)name, (void)direction;
    if (e == cudaSuccess)
        e = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    *out = stream;
    return e == cudaSuccess ? D9D_OK : cuda_fail(dev, "a stream of copies", e);
}

static void cuda_copy_stream_close(d9d_device *dev, void *stream)
{
    (void)set_current(dev);
    (void)cudaStreamSynchronize(stream);
    (void)cudaStreamDestroy(stream);
}

static d9d_status cuda_copy_stream_copy(d9d_device *dev, void *stream, void *dst, const void *src,
                                        uint64_t n)
{
    cudaError_t e = set_current(dev);

    D9D_TRY(refuse_recording(dev, "a copy beside it"));
    if (e == cudaSuccess)
        e = cudaMemcpyAsync(dst, src, n, cudaMemcpyDefault, stream);
    return e == cudaSuccess ? D9D_OK : cuda_fail(dev, "copy beside the computation", e);
}

static d9d_status cuda_copy_stream_record(d9d_device *dev, void *stream, void *event)
{
    const cudaError_t e = cudaEventRecord(event, stream);

    return e == cudaSuccess ? D9D_OK : cuda_fail(dev, "an event", e);
}

static d9d_status cuda_copy_stream_wait(d9d_device *dev, void *stream, void *event)
{
    const cudaError_t e = cudaStreamWaitEvent(stream, event, 0);

    return e == cudaSuccess ? D9D_OK : cuda_fail(dev, "wait of a stream", e);
}

static d9d_status cuda_compute_wait(d9d_device *dev, void *event)
{
    const cuda_device *self = dev->self;

    return cuda_copy_stream_wait(dev, self->stream, event);
}

/* --- graphs ----------------------------------------------------------------------------- */

/* Relaxed: the pool may ask the system for memory. */
static d9d_status cuda_graph_begin(d9d_device *dev)
{
    cuda_device *self = dev->self;
    const cudaError_t e = cudaStreamBeginCapture(self->stream, cudaStreamCaptureModeRelaxed);

    self->recording = e == cudaSuccess;
    return e == cudaSuccess ? D9D_OK : cuda_fail(dev, "a graph", e);
}

static d9d_status cuda_graph_end(d9d_device *dev, void **graph)
{
    cuda_device *self = dev->self;
    cudaGraph_t recorded = NULL;
    cudaGraphExec_t executable = NULL;
    cudaError_t e = cudaStreamEndCapture(self->stream, &recorded);

    self->recording = false;
    if (e == cudaSuccess)
        e = cudaGraphInstantiate(&executable, recorded, 0);
    if (recorded != NULL)
        (void)cudaGraphDestroy(recorded);
    if (e != cudaSuccess) {
        (void)cudaGetLastError(); /* the next launch must not report it */
        return cuda_fail(dev, "a graph", e);
    }
    *graph = executable;
    return D9D_OK;
}

static d9d_status cuda_graph_launch(d9d_device *dev, void *graph)
{
    const cuda_device *self = dev->self;
    const cudaError_t e = cudaGraphLaunch(graph, self->stream);

    return e == cudaSuccess ? D9D_OK : cuda_fail(dev, "a graph", e);
}

/* Waits for its last launch. */
static void cuda_graph_free(d9d_device *dev, void *graph)
{
    const cuda_device *self = dev->self;

    (void)set_current(dev);
    (void)cudaStreamSynchronize(self->stream);
    (void)cudaGraphExecDestroy(graph);
}

/* --- properties ---------------------------------------------------------------------- */

/* Dense bfloat16 TFLOP/s, and the chip of plans that is most like it, by a part of the device's
 * name; the first match counts. */
typedef struct data_sheet {
    const char *name;
    double tflops;
    const char *chip;
} data_sheet;
static const data_sheet data_sheets[] = {
    {"GB300", 2500, "b200"}, {"B300", 2250, "b200"},     {"GB200", 2500, "b200"},
    {"B200", 2250, "b200"},  {"H100 PCIe", 756, "h100"}, {"H100 NVL", 835, "h100"},
    {"H100", 989, "h100"},   {"GH200", 989, "h200"},     {"H200", 989, "h200"},
    {"H20", 148, NULL},      {"H800", 989, "h100"},      {"A100", 312, "a100"},
    {"A800", 312, "a100"},   {"L40S", 362, NULL},        {"L40", 181, NULL},
    {"L4", 121, NULL},       {"A40", 150, NULL},         {"A10", 125, NULL},
};

/* Zeros of others. */
static data_sheet find_data_sheet(int index)
{
    struct cudaDeviceProp p;

    if (cudaGetDeviceProperties(&p, index) != cudaSuccess)
        return (data_sheet){0};
    for (size_t i = 0; i < sizeof(data_sheets) / sizeof(data_sheets[0]); i++)
        if (strstr(p.name, data_sheets[i].name) != NULL)
            return data_sheets[i];
    return (data_sheet){0};
}

/* From Ada on. */
static bool find_fp8(int index)
{
    struct cudaDeviceProp p;

    return cudaGetDeviceProperties(&p, index) == cudaSuccess && 10 * p.major + p.minor >= 89;
}

/* The UUID of GPU `index` in hexadecimal; "" if it is all zeros. */
static void find_uuid(int index, char out[33])
{
    static const char none[16];
    struct cudaDeviceProp p;

    if (cudaGetDeviceProperties(&p, index) != cudaSuccess ||
        memcmp(p.uuid.bytes, none, sizeof(none)) == 0)
        return;
    d9d_hex_format(p.uuid.bytes, sizeof(p.uuid.bytes), out);
}

static void cuda_range_push(d9d_device *dev, const char *name)
{
    (void)dev;
    (void)nvtxRangePushA(name);
}

static void cuda_range_pop(d9d_device *dev)
{
    (void)dev;
    (void)nvtxRangePop();
}

/* --- opening ------------------------------------------------------------------------- */

/* Kernels' scratch comes from the device's pool, so limits and peaks count it. */
static d9d_status scratch_alloc(void *self, uint64_t n, void **out)
{
    return d9d_device_alloc(self, n, out);
}

static void scratch_free(void *self, void *p, uint64_t n)
{
    d9d_device_free(self, p, n);
}

static void forward_log(void *self, d9d_log_level level, const char *line)
{
    const d9d_device *dev = self;

    d9d_log_write(dev->log, level, "%s: %s", dev->name, line);
}

static void cuda_close(d9d_device *dev)
{
    cuda_device *self = dev->self;

    if (self->stream != NULL)
        (void)cuda_sync(dev);
    if (self->side_stream != NULL)
        (void)cudaStreamDestroy(self->side_stream);
    ring_close(&self->up);
    ring_close(&self->down);
    d9d_cuda_stream_free(dev->stream);
    (void)pthread_mutex_destroy(&self->copy_lock);
    free(self);
}

/* ENOTFOUND unless there is a GPU `index`. */
static d9d_status check_index(int index)
{
    int n = 0;
    const cudaError_t e = cudaGetDeviceCount(&n);

    if (e != cudaSuccess) {
        (void)cudaGetLastError();
        return D9D_FAIL(D9D_ENOTFOUND, "cuda:%d: %s", index, cudaGetErrorString(e));
    }
    if (index >= n)
        return D9D_FAIL(D9D_ENOTFOUND, "cuda:%d: this machine has %d GPU%s", index, n,
                        n == 1 ? "" : "s");
    return D9D_OK;
}

static d9d_status create_stream(int index, const d9d_cuda_owner *owner, d9d_cuda_opts *options,
                                d9d_stream *out)
{
    d9d_arena a = {0};
    const d9di_cache_dir cache = d9di_cache_dir_find(getenv, &a);
    d9d_status st;

    options->cache_dir = cache.path;
    options->cache_read_only = cache.read_only;
    st = d9d_cuda_stream_create(index, owner, options, out);
    options->cache_dir = NULL;
    d9d_arena_release(&a);
    return st;
}

d9d_status d9di_device_open_cuda(int index, d9d_device *dev)
{
    static const d9d_device_ops ops = {
        .alloc = cuda_alloc,
        .free = cuda_free,
        .mem_info = cuda_mem_info,
        .slack = CACHE_SLACK,
        .upload = cuda_upload,
        .download = cuda_download,
        .copy = cuda_copy,
        .sync = cuda_sync,
        .pin = cuda_pin,
        .unpin = cuda_unpin,
        .fetch = cuda_d2h_async,
        .d2h = cuda_d2h,
        .h2d_async = cuda_h2d_async,
        .event_create = cuda_event_create,
        .event_free = cuda_event_free,
        .event_record = cuda_event_record,
        .event_query = cuda_event_query,
        .event_wait = cuda_event_wait,
        .event_elapsed_ms = cuda_event_elapsed_ms,
        .copy_stream_open = cuda_copy_stream_open,
        .copy_stream_close = cuda_copy_stream_close,
        .copy_stream_copy = cuda_copy_stream_copy,
        .copy_stream_record = cuda_copy_stream_record,
        .copy_stream_wait = cuda_copy_stream_wait,
        .compute_wait = cuda_compute_wait,
        .graph_begin = cuda_graph_begin,
        .graph_end = cuda_graph_end,
        .graph_launch = cuda_graph_launch,
        .graph_free = cuda_graph_free,
        .range_push = cuda_range_push,
        .range_pop = cuda_range_pop,
        .close = cuda_close,
    };
    const d9d_cuda_owner owner = {dev, scratch_alloc, scratch_free, forward_log};
    d9d_environment environment;
    d9d_cuda_opts options;
    cuda_device *self;
    data_sheet sheet;
    cudaError_t e;

    d9d_environment_read(D9D_ENVIRONMENT_GPU, getenv,
                         &environment); /* before the driver reads it, next */
    D9D_TRY(d9d_environment_check(&environment));
    d9d_environment_apply(&environment);
    D9D_TRY(check_index(index));
    D9D_TRY(d9di_device_cuda_opts(&options));
    self = calloc(1, sizeof(*self));
    if (self == NULL)
        return D9D_FAIL(D9D_ENOMEM, "cuda:%d: no memory for the device", index);
    self->index = index;
    (void)pthread_mutex_init(&self->copy_lock, NULL);
    (void)snprintf(self->name, sizeof(self->name), "cuda:%d", index);
    dev->name = self->name;
    dev->self = self;
    dev->ops = &ops; /* from here on close frees what was made */
    dev->kernels = d9d_kernels_cuda();
    sheet = find_data_sheet(index);
    dev->peak_flops = sheet.tflops * 1e12;
    dev->chip = sheet.chip;
    dev->has_fp8 = find_fp8(index);
    find_uuid(index, dev->id);
    D9D_TRY(create_stream(index, &owner, &options, &dev->stream));
    self->stream = d9d_cuda_stream_handle(dev->stream);
    e = ring_open(&self->up);
    if (e == cudaSuccess)
        e = ring_open(&self->down);
    if (e == cudaSuccess)
        e = cudaStreamCreateWithFlags(&self->side_stream, cudaStreamNonBlocking);
    return e == cudaSuccess ? D9D_OK : cuda_fail(dev, "pinned memory for copies", e);
}
