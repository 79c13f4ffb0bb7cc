/* device.h - one processor: its memory, its compute stream and its kernels.
 *
 * The layers above ask a device for memory and compute through its kernel tables
 * (d9d/kernels/table.h), so that the same operation runs on a CPU and on a GPU.  Work is enqueued
 * on the device's compute stream in the order of the calls; on the CPU it is complete on return.
 *
 *     d9d_device *dev;
 *     D9D_TRY(d9d_device_open("cpu", &dev));
 *     D9D_TRY(d9d_device_alloc(dev, n, &p));
 *     D9D_TRY(d9d_device_upload(dev, p, host, n));
 *     D9D_TRY(dev->kernels->elementwise->fill(dev->stream, D9D_F32, p, n / 4, 1.0f));
 *
 * Memory comes from a caching allocator (memory pool): a freed block serves the next request of its
 * size class, so a step that repeats allocates nothing from the system.  A class is at most an
 * eighth larger than the request.  The cache holds at most as many bytes as were ever in use at
 * once, or 256 MiB on a GPU if that is more.  When the system or the limit gives no more, a cached
 * block that is up to a quarter larger serves.  Before a request fails, the least recently used
 * blocks are returned to the system.  Fresh memory is not cleared.  Pointers are aligned to 256
 * bytes.
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
    uint64_t in_use;         /* bytes of the blocks handed out now, each the size of its class */
    uint64_t peak;           /* most in use at once since d9d_device_reset_peak(), without what a
                                block is larger than its request's class: that is of cached memory */
    uint64_t reserved;       /* bytes allocated from the system: in_use and cached blocks */
    uint64_t limit;          /* the most that may be reserved; UINT64_MAX: no limit */
    uint64_t requests;       /* allocations from the system since the device was opened */
    uint64_t short_requests; /* those for which there was no memory until cached blocks were
                                returned to the system, which waits for the device */
} d9d_device_stats;

typedef struct d9d_device {
    const char *name; /* "cpu" */
    const d9d_kernels *kernels;
    d9d_stream stream;
    const struct d9d_device_ops *ops; /* raw memory and copies; see libcore/device/backend.h */
    struct d9d_device_pool *pool;
    void *self;                   /* the backend's state */
    double peak_flops;            /* dense bfloat16 FLOP/s of the data sheet; 0: unknown */
    const char *chip;             /* whose data sheet plans take: d9d/kernels/sim.h; NULL: none */
    struct d9d_trace *trace;      /* d9d/device/trace.h; NULL: none */
    uint64_t required;            /* d9d_device_require() */
    uint64_t host_waits;          /* times that the host blocked until the device reached a point */
    struct d9d_storage *storages; /* list of the tensors' storages: d9d/tensor/tensor.h */
    struct d9d_readback *idle_readbacks; /* freed readbacks, reused by the next create */
    const d9d_log
        *log; /* set by the caller that opened it: reports which kernels are chosen; NULL: none */
    /* An op whose asynchronous work is pending calls this before it makes the stream wait: the
     * place to compute something else meanwhile.  NULL: none. */
    d9d_status (*on_wait)(void *arg);
    void *on_wait_arg;
    bool has_fp8; /* multiplies matrices of 8 bits at a rate of their own, or is a CPU */
    char id[33];  /* UUID of a GPU, the same in every process that sees it; "" for others */
} d9d_device;

/* Open "cpu", or "cuda", "cuda:1" (ENOTSUP in a build without CUDA); "auto" is the GPU if there
 * is one, else the CPU.  A memory limit may follow an '@': "auto@20GiB".  Any other text is
 * ECONFIG. */
D9D_API D9D_MUST_USE d9d_status d9d_device_open(const char *which, d9d_device **out);
/* The check of the name that opening makes, without touching a device. */
D9D_API D9D_MUST_USE d9d_status d9d_device_check(const char *which);
/* Close the device; every allocation must have been freed.  NULL is fine. */
D9D_API void d9d_device_close(d9d_device *dev);

/* Announce that at least n bytes will be in use; n 0 withdraws it.  EOOM if the limit or the
 * device's memory makes that impossible.  Later allocation failures name n. */
D9D_API D9D_MUST_USE d9d_status d9d_device_require(d9d_device *dev, uint64_t n);
/* Allocate n bytes (0 gives a valid pointer too).  EOOM names the bytes requested, in use, allowed
 * and required. */
D9D_API D9D_MUST_USE d9d_status d9d_device_alloc(d9d_device *dev, uint64_t n, void **out);
/* The same for memory that comes and goes in every step, as that of gradients on demand: on a full
 * device it may be in a cached block of up to twice its size, so that the pool need not return
 * blocks to the system each time, which waits for the device. */
D9D_API D9D_MUST_USE d9d_status d9d_device_alloc_loose(d9d_device *dev, uint64_t n, void **out);
D9D_API void d9d_device_free(d9d_device *dev, void *p, uint64_t n);

/* Copies between host and device, and on the device.  upload returns when the host memory may be
 * reused, download when it may be read; both may be called from several threads at once. */
D9D_API D9D_MUST_USE d9d_status d9d_device_upload(d9d_device *dev, void *dst, const void *host,
                                                  uint64_t n);
D9D_API D9D_MUST_USE d9d_status d9d_device_download(d9d_device *dev, void *host, const void *src,
                                                    uint64_t n);
D9D_API D9D_MUST_USE d9d_status d9d_device_copy(d9d_device *dev, void *dst, const void *src,
                                                uint64_t n);
D9D_API D9D_MUST_USE d9d_status d9d_device_sync(d9d_device *dev);

/* Host memory that the device copies from and to in stream order without blocking, and that kernels
 * reach at the same address: pinned on a GPU.  EOOM.  Free it when the device is done with it.  The
 * copies of this header take it in the place of device memory too. */
D9D_API D9D_MUST_USE d9d_status d9d_device_pin(d9d_device *dev, uint64_t n, void **out);
D9D_API void d9d_device_unpin(d9d_device *dev, void *pinned); /* NULL is fine */
D9D_API D9D_MUST_USE d9d_status d9d_device_d2h_async(d9d_device *dev, void *pinned, const void *src,
                                                     uint64_t n);
/* Copy now, outside stream order, and return when the bytes have arrived; thread-safe.  The caller
 * must know that the bytes were written, for example from a readback enqueued later. */
D9D_API D9D_MUST_USE d9d_status d9d_device_d2h(d9d_device *dev, void *pinned, const void *src,
                                               uint64_t n);
D9D_API D9D_MUST_USE d9d_status d9d_device_h2d_async(d9d_device *dev, void *dst, const void *pinned,
                                                     uint64_t n);

/* --- kernels outside the kernel table ------------------------------------------------ *
 *
 * The way for a plugin's operation to compute, on every kind of device.  A plan (`--plan`) runs the
 * operation on a simulated device whose arrays have no memory: it calls no kernel and adds the
 * kernel's cost instead.  An operation must therefore read and write arrays in kernels only.
 *
 *     static d9d_status relu_cpu(d9d_stream s, void *args) { ... }
 *     static const d9d_device_kernel relu = {sizeof(relu), "relu", .cpu = relu_cpu};
 *
 *     D9D_TRY(d9d_device_launch(dev, &relu, &args, (d9d_device_kernel_cost){D9D_F32, n, 8.0 * n}));
 */
typedef struct d9d_device_kernel {
    size_t size;      /* sizeof(d9d_device_kernel) */
    const char *name; /* in error messages */
    /* `args` is the caller's and valid until the call returns: a GPU launch must copy what it
     * needs.  On a GPU `s` is the CUDA stream (d9d/kernels/cuda.h).  NULL: not implemented for this
     * device.
     */
    d9d_status (*cpu)(d9d_stream s, void *args);
    d9d_status (*cuda)(d9d_stream s, void *args);
} d9d_device_kernel;

typedef struct d9d_device_kernel_cost {
    d9d_dtype dtype;     /* type of most elements */
    double flops, bytes; /* FLOP; bytes read and written */
} d9d_device_kernel_cost;

/* Launch a kernel.  ENOTSUP if it has no function for this device or, in a plan, for the simulated
 * one. */
D9D_API D9D_MUST_USE d9d_status d9d_device_launch(d9d_device *dev, const d9d_device_kernel *kernel,
                                                  void *args, d9d_device_kernel_cost cost);

D9D_API d9d_device_stats d9d_device_memory(const d9d_device *dev);
D9D_API void d9d_device_reset_peak(d9d_device *dev);
/* Limit the memory reserved from the system (UINT64_MAX: no limit); cached blocks above the limit
 * are returned at once. */
D9D_API void d9d_device_set_limit(d9d_device *dev, uint64_t bytes);
/* Return every cached block to the system. */
D9D_API void d9d_device_trim(d9d_device *dev);

#ifdef __cplusplus
}
#endif
#endif /* D9D_DEVICE_DEVICE_H */
