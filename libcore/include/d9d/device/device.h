/* device.h - one processor: its memory, and the kernels that run on it.
 *
 * Everything above asks a device for memory and calls arithmetic through its kernel
 * table (d9d/kernels/table.h), so that the same op runs on a CPU and on a GPU.  Work
 * is queued on the device's compute stream in the order of the calls; on the CPU it
 * is done when the call returns.
 *
 *     d9d_device *dev;
 *     D9D_TRY(d9d_device_open("cpu", &dev));
 *     D9D_TRY(d9d_device_alloc(dev, n, &p));
 *     D9D_TRY(d9d_device_upload(dev, p, host, n));
 *     D9D_TRY(dev->kernels->fill(dev->stream, D9D_F32, p, n / 4, 1.0f));
 *
 * Memory comes from a caching pool: a freed block is kept for the next request of
 * its size class, so a step that repeats allocates nothing from the system.  Classes
 * are at most an eighth larger than what was asked.  The cache never holds more than
 * was once in use, or 256 MiB of a GPU; when the system or the limit gives no more, a cached block
 * that is up to a quarter larger serves, and before a request fails those that were not asked for
 * the longest are given back.  Fresh memory is not cleared.  Pointers are aligned to 256 bytes.
 *
 * A device, and what is allocated on it, belongs to one thread at a time.
 */
#ifndef D9D_DEVICE_DEVICE_H
#define D9D_DEVICE_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#include "d9d/base/log.h"
#include "d9d/base/status.h"
#include "d9d/kernels/table.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_device_stats {
    uint64_t in_use;   /* bytes of the blocks handed out now, each the size of its class */
    uint64_t peak;     /* most of them at once since d9d_device_reset_peak() */
    uint64_t reserved; /* bytes taken from the system: in_use and cached blocks */
    uint64_t limit;    /* most that may be reserved; UINT64_MAX: no limit */
    uint64_t requests; /* to the system, since the device was opened */
} d9d_device_stats;

typedef struct d9d_device {
    const char *name; /* "cpu" */
    const d9d_kernels *kernels;
    d9d_stream stream;
    const struct d9d_device_ops *ops; /* raw memory and copies; see libcore/device/backend.h */
    struct d9d_device_pool *pool;
    void *self;        /* the backend's own */
    double peak_flops; /* of dense bfloat16 products a second, from the data sheet; 0: unknown */
    struct d9d_trace *trace; /* d9d/device/trace.h; NULL: none */
    uint64_t required;       /* d9d_device_require() */
    uint64_t host_waits; /* times that the host stood still until the device had come somewhere */
    struct d9d_storage *storages;        /* of the tensors on it: d9d/tensor/tensor.h */
    struct d9d_readback *idle_readbacks; /* freed ones, for the next that is created */
    const d9d_log *log; /* set by who opened it: hears which kernels are chosen; NULL: nobody */
    /* There is something else to compute while what an op has queued aside goes on: the op calls it
     * before it has the stream wait.  NULL: nothing. */
    d9d_status (*on_wait)(void *arg);
    void *on_wait_arg;
    char id[33]; /* of a GPU, the same in every process that sees it; "" of others */
} d9d_device;

/* "cpu"; "cuda", "cuda:1" where the build has CUDA, else ENOTSUP; "auto" is the GPU if
 * there is one, else the CPU.  After an '@' a limit of its memory: "auto@20GiB".  Another word is
 * ECONFIG. */
D9D_API D9D_MUST_USE d9d_status d9d_device_open(const char *which, d9d_device **out);
/* What opening says of the word, without touching a device. */
D9D_API D9D_MUST_USE d9d_status d9d_device_check(const char *which);
/* Every allocation must have been freed; NULL is fine. */
D9D_API void d9d_device_close(d9d_device *dev);

/* So many bytes will be in use at least; n 0 takes it back.  EOOM when the limit, or what the
 * processor has, says that this cannot be; and what allocation says when it fails names n. */
D9D_API D9D_MUST_USE d9d_status d9d_device_require(d9d_device *dev, uint64_t n);
/* n bytes (0 gives a valid pointer too).  EOOM names what was asked, what is in use, what may be
 * used and what is expected. */
D9D_API D9D_MUST_USE d9d_status d9d_device_alloc(d9d_device *dev, uint64_t n, void **out);
D9D_API void d9d_device_free(d9d_device *dev, void *p, uint64_t n);

/* Copies; upload and download return when the host memory may be reused or read, and may be
 * called from several threads at once. */
D9D_API D9D_MUST_USE d9d_status d9d_device_upload(d9d_device *dev, void *dst, const void *host,
                                                  uint64_t n);
D9D_API D9D_MUST_USE d9d_status d9d_device_download(d9d_device *dev, void *host, const void *src,
                                                    uint64_t n);
D9D_API D9D_MUST_USE d9d_status d9d_device_copy(d9d_device *dev, void *dst, const void *src,
                                                uint64_t n);
D9D_API D9D_MUST_USE d9d_status d9d_device_sync(d9d_device *dev);

/* Memory of the host that the device copies from and to in the order of its queue, without waiting:
 * pinned where that matters.  EOOM.  Free it when the device is done with it. */
D9D_API D9D_MUST_USE d9d_status d9d_device_pin(d9d_device *dev, uint64_t n, void **out);
D9D_API void d9d_device_unpin(d9d_device *dev, void *pinned); /* NULL is fine */
D9D_API D9D_MUST_USE d9d_status d9d_device_d2h_async(d9d_device *dev, void *pinned, const void *src,
                                                     uint64_t n);
/* Copies now, beside what is queued, and returns when the bytes are there; from any thread.  They
 * must have been written: who has read back something that was queued later knows that. */
D9D_API D9D_MUST_USE d9d_status d9d_device_d2h(d9d_device *dev, void *pinned, const void *src,
                                               uint64_t n);
D9D_API D9D_MUST_USE d9d_status d9d_device_h2d_async(d9d_device *dev, void *dst, const void *pinned,
                                                     uint64_t n);

/* --- kernels that stand in no table --------------------------------------------------------- *
 *
 * What an operation of a plugin computes with, on every kind of device.  A plan (`--plan`) runs
 * the operation on arrays that are not there: it calls no kernel, and takes its cost instead.  So
 * who reads or writes arrays does it in a kernel, and nowhere else.
 *
 *     static d9d_status relu_cpu(d9d_stream s, void *args) { ... }
 *     static const d9d_device_kernel relu = {sizeof(relu), "relu", .cpu = relu_cpu};
 *
 *     D9D_TRY(d9d_device_launch(dev, &relu, &args, (d9d_device_kernel_cost){D9D_F32, n, 8.0 * n}));
 */
typedef struct d9d_device_kernel {
    size_t size;      /* sizeof(d9d_device_kernel) */
    const char *name; /* in sentences */
    /* `args` is the caller's, and lives until the call returns: what a GPU needs later is copied
     * into its launch.  On a GPU `s` is the CUDA stream (d9d/kernels/cuda.h).  NULL: it has none.
     */
    d9d_status (*cpu)(d9d_stream s, void *args);
    d9d_status (*cuda)(d9d_stream s, void *args);
} d9d_device_kernel;

typedef struct d9d_device_kernel_cost {
    d9d_dtype dtype;     /* of most elements */
    double flops, bytes; /* operations; bytes read and written */
} d9d_device_kernel_cost;

/* ENOTSUP where the kernel has no function for this device, or for the one that a plan is of. */
D9D_API D9D_MUST_USE d9d_status d9d_device_launch(d9d_device *dev, const d9d_device_kernel *kernel,
                                                  void *args, d9d_device_kernel_cost cost);

D9D_API d9d_device_stats d9d_device_memory(const d9d_device *dev);
D9D_API void d9d_device_reset_peak(d9d_device *dev);
/* Reserve at most `bytes` (UINT64_MAX: no limit); cached blocks above it go back at once. */
D9D_API void d9d_device_set_limit(d9d_device *dev, uint64_t bytes);
/* Give every cached block back to the system. */
D9D_API void d9d_device_trim(d9d_device *dev);

#ifdef __cplusplus
}
#endif
#endif /* D9D_DEVICE_DEVICE_H */
