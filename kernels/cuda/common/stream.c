/* stream.c - CUDA streams and what belongs to them. See d9d/kernels/cuda.h. */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/attention/attention_call.h"
#include "d9d/base/thread.h"

enum { MIN_MAJOR = 8 }; /* compute capability 8.0 */

d9d_status d9di_cuda_fail(const char *op, cudaError_t e)
{
    const d9d_status st = e == cudaErrorMemoryAllocation ? D9D_EOOM : D9D_ECUDA;

    return D9D_FAIL(st, "%s: %s", op, cudaGetErrorString(e));
}

cudaStream_t d9di_cuda_stream(d9d_stream s)
{
    (void)cudaSetDevice(s->index); /* cannot fail: it succeeded when the stream was created */
    return s->stream;
}

d9d_status d9di_cuda_scratch_alloc(d9d_stream s, int64_t bytes, void **out)
{
    return s->owner.alloc(s->owner.self, (uint64_t)bytes, out);
}

void d9di_cuda_scratch_free(d9d_stream s, void *p, int64_t bytes)
{
    s->owner.free(s->owner.self, p, (uint64_t)bytes);
}

void d9di_cuda_log(d9d_stream s, d9d_log_level level, const char *fmt, ...)
{
    char text[1024];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    s->owner.log(s->owner.self, level, text);
}

void d9di_say_slow(d9d_stream s, d9di_cuda_notice kind, const char *op, int64_t in, int64_t out,
                   const char *why)
{
    if ((s->logged_notices & 1u << kind) != 0)
        return;
    s->logged_notices |= 1u << kind;
    d9di_cuda_log(s, D9D_LOG_INFO, "%s: %lld x %lld in bfloat16 by slower kernels: %s", op,
                  (long long)in, (long long)out, why);
}

d9d_status d9di_cuda_set_max_smem(const char *op, const void *kernel, int64_t bytes)
{
    const cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);

    return e == cudaSuccess ? D9D_OK : d9di_cuda_fail(op, e);
}

static d9d_status query_device(d9d_stream s)
{
    int minor = 0, shared = 0;
    const struct {
        enum cudaDeviceAttr attribute;
        int *out;
    } attributes[] = {
        {cudaDevAttrMultiProcessorCount, &s->sms},
        {cudaDevAttrComputeCapabilityMajor, &s->major},
        {cudaDevAttrComputeCapabilityMinor, &minor},
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, &shared},
    };

    for (size_t i = 0; i < sizeof(attributes) / sizeof(*attributes); i++) {
        const cudaError_t e =
            cudaDeviceGetAttribute(attributes[i].out, attributes[i].attribute, s->index);

        if (e != cudaSuccess)
            return d9di_cuda_fail("cuda", e);
    }
    s->max_smem = shared;
    s->tensor_map_encode = d9di_cuda_tensor_map_encode(s->major);
    if (s->major < MIN_MAJOR)
        return D9D_FAIL(D9D_ENOTFOUND, "cuda:%d: its compute capability is %d.%d, %d.0 is needed",
                        s->index, s->major, minor, MIN_MAJOR);
    return D9D_OK;
}

static void *preload_libraries(void *arg)
{
    d9di_cublaslt_preload();
    return arg;
}

/* Makes the GPU's context, in some tenths of a second, and the stream; meanwhile a thread loads
 * libraries. */
static cudaError_t create_stream(d9d_stream s)
{
    d9d_thread_sigmask before;
    pthread_t thread;
    bool loads;
    int highest = 0;
    cudaError_t e;

    d9d_thread_block_signals(&before);
    loads = pthread_create(&thread, NULL, preload_libraries, NULL) == 0;
    d9d_thread_restore_signals(&before);
    e = cudaSetDevice(s->index);
    if (e == cudaSuccess)
        e = cudaDeviceGetStreamPriorityRange(NULL, &highest);
    if (e == cudaSuccess)
        e = cudaStreamCreateWithPriority(&s->stream, cudaStreamNonBlocking,
                                         s->opts.high_priority ? highest : 0);
    if (e != cudaSuccess)
        s->stream = NULL;
    if (loads)
        (void)pthread_join(thread, NULL);
    return e;
}

d9d_status d9d_cuda_stream_create(int index, const d9d_cuda_owner *owner,
                                  const d9d_cuda_opts *options, d9d_stream *out)
{
    d9d_stream s = calloc(1, sizeof(*s));
    cudaError_t e;
    d9d_status st;

    if (s == NULL)
        return D9D_FAIL(D9D_ENOMEM, "cuda:%d: no memory for a stream", index);
    s->index = index;
    s->owner = *owner;
    s->opts = *options;
    if (options->cache_dir != NULL)
        s->cache_dir = strdup(options->cache_dir); /* without memory nothing is kept */
    D9D_TRY_OR(st, query_device(s), out);
    e = create_stream(s);
    if (e != cudaSuccess) {
        st = d9di_cuda_fail("cuda", e);
        goto out;
    }
    D9D_TRY_OR(st, d9di_cublaslt_open(s, &s->cublaslt), out);
    *out = s;
    s = NULL;
out:
    d9d_cuda_stream_free(s);
    return st;
}

void d9d_cuda_stream_free(d9d_stream s)
{
    if (s == NULL)
        return;
    d9di_cublaslt_close(s->cublaslt);
    d9di_cudnn_attention_free(s->cudnn_attention);
    if (s->stream != NULL) {
        (void)cudaSetDevice(s->index);
        (void)cudaStreamDestroy(s->stream);
    }
    free(s->cache_dir);
    free(s);
}

struct CUstream_st *d9d_cuda_stream_handle(d9d_stream s)
{
    return d9di_cuda_stream(s);
}

void *d9d_cuda_driver_function(const char *name)
{
    enum cudaDriverEntryPointQueryResult found;
    void *f = NULL;
    cudaError_t e;

#if CUDART_VERSION >= 12050
    e = cudaGetDriverEntryPointByVersion(name, &f, 12000, cudaEnableDefault, &found);
#else /* the function of the runtime's version */
    e = cudaGetDriverEntryPoint(name, &f, cudaEnableDefault, &found);
#endif
    return e == cudaSuccess && found == cudaDriverEntryPointSuccess ? f : NULL;
}
