/* stream.c - a stream and what belongs to it.  See d9d/kernels/cuda.h. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "cuda/attention/attention_simt.h"

enum { OLDEST = 8 }; /* compute capability 8.0 */

d9d_status d9di_cuda_fail(const char *op, cudaError_t e)
{
    const d9d_status st = e == cudaErrorMemoryAllocation ? D9D_EOOM : D9D_ECUDA;

    return D9D_FAIL(st, "%s: %s", op, cudaGetErrorString(e));
}

cudaStream_t d9di_queue(d9d_stream s)
{
    (void)cudaSetDevice(s->index); /* it was set before, when the stream was made */
    return s->queue;
}

d9d_status d9di_take(d9d_stream s, int64_t bytes, void **out)
{
    return s->owner.take(s->owner.self, (uint64_t)bytes, out);
}

void d9di_give(d9d_stream s, void *p, int64_t bytes)
{
    s->owner.give(s->owner.self, p, (uint64_t)bytes);
}

void d9di_say(d9d_stream s, d9d_log_level level, const char *fmt, ...)
{
    char text[1024];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    s->owner.say(s->owner.self, level, text);
}

d9d_status d9di_allow_shared(const char *op, const void *kernel, int64_t bytes)
{
    const cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);

    return e == cudaSuccess ? D9D_OK : d9di_cuda_fail(op, e);
}

static d9d_status describe(d9d_stream s)
{
    int minor = 0, shared = 0;
    const struct {
        enum cudaDeviceAttr what;
        int *out;
    } facts[] = {
        {cudaDevAttrMultiProcessorCount, &s->sms},
        {cudaDevAttrComputeCapabilityMajor, &s->major},
        {cudaDevAttrComputeCapabilityMinor, &minor},
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, &shared},
    };

    for (size_t i = 0; i < sizeof(facts) / sizeof(*facts); i++) {
        const cudaError_t e = cudaDeviceGetAttribute(facts[i].out, facts[i].what, s->index);

        if (e != cudaSuccess)
            return d9di_cuda_fail("cuda", e);
    }
    s->shared = shared;
    s->encode_map = d9di_wgmma_encoder(s->major);
    if (s->major < OLDEST)
        return D9D_FAIL(D9D_ENOTFOUND, "cuda:%d: its compute capability is %d.%d, %d.0 is needed",
                        s->index, s->major, minor, OLDEST);
    return D9D_OK;
}

d9d_status d9d_cuda_stream_create(int index, const d9d_cuda_owner *owner,
                                  const d9d_cuda_options *options, d9d_stream *out)
{
    d9d_stream s = calloc(1, sizeof(*s));
    int highest = 0;
    cudaError_t e;
    d9d_status st;

    if (s == NULL)
        return D9D_FAIL(D9D_ENOMEM, "cuda:%d: no memory for a stream", index);
    s->index = index;
    s->owner = *owner;
    s->options = *options;
    D9D_TRY_OR(st, describe(s), out);
    e = cudaSetDevice(index);
    if (e == cudaSuccess)
        e = cudaDeviceGetStreamPriorityRange(NULL, &highest);
    if (e == cudaSuccess)
        e = cudaStreamCreateWithPriority(&s->queue, cudaStreamNonBlocking,
                                         options->urgent ? highest : 0);
    if (e != cudaSuccess) {
        s->queue = NULL;
        st = d9di_cuda_fail("cuda", e);
        goto out;
    }
    D9D_TRY_OR(st, d9di_blas_open(&s->blas), out);
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
    d9di_blas_close(s->blas);
    d9di_sdpa_free(s->sdpa);
    if (s->queue != NULL) {
        (void)cudaSetDevice(s->index);
        (void)cudaStreamDestroy(s->queue);
    }
    free(s);
}

struct CUstream_st *d9d_cuda_stream_queue(d9d_stream s)
{
    return d9di_queue(s);
}
