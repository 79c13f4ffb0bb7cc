/* random_weights.c - see d9d/model/weights/random_weights.h. */
#include "d9d/model/weights/random_weights.h"

#include <stdlib.h>
#include <string.h>

#include "d9d/base/hash.h"
#include "d9d/base/rng.h"
#include "d9d/kernels/table.h"

struct d9d_random_weights {
    const d9d_model_tensor *items;
    size_t n;
    uint64_t seed;
    d9d_safetensors_tensor *tensors; /* [n] */
};

static d9d_status tensor_set(const d9d_model_tensor *of, d9d_dtype dtype, d9d_safetensors_tensor *t)
{
    *t = (d9d_safetensors_tensor){.name = of->name, .dtype = dtype, .ndim = of->shape.ndim};
    for (int d = 0; d < t->ndim; d++)
        t->shape[d] = of->shape.dim[d];
    /* No draw exceeds seven standard deviations. */
    if ((double)of->init_scale > 1e37)
        return D9D_FAIL(D9D_ECONFIG,
                        "random weights: initializer_range is %g, at most 1e+37: numbers of %s end "
                        "at 3.4e+38",
                        (double)of->init_scale, d9d_dtype_name(dtype));
    return d9d_safetensors_shape_bytes(dtype, t->ndim, t->shape, &t->bytes)
               ? D9D_OK
               : D9D_FAIL(D9D_ECONFIG, "tensor %s: its size overflows", of->name);
}

d9d_status d9d_random_weights_open(const d9d_model_tensors *of, d9d_dtype dtype, uint64_t seed,
                                   d9d_random_weights **out)
{
    d9d_random_weights *r;
    d9d_status st = D9D_OK;

    if (dtype != D9D_F32 && dtype != D9D_BF16)
        return D9D_FAIL(D9D_ENOTSUP, "random weights: %s; float32 and bfloat16 are made",
                        d9d_dtype_name(dtype));
    r = calloc(1, sizeof(*r));
    if (r == NULL)
        return D9D_FAIL(D9D_ENOMEM, "random weights: out of memory");
    *r = (d9d_random_weights){.items = of->items, .n = of->n, .seed = seed};
    r->tensors = calloc(of->n + 1, sizeof(*r->tensors));
    if (r->tensors == NULL)
        st = D9D_FAIL(D9D_ENOMEM, "random weights: out of memory");
    for (size_t i = 0; i < of->n && st == D9D_OK; i++)
        st = tensor_set(&of->items[i], dtype, &r->tensors[i]);
    if (st == D9D_OK)
        *out = r;
    else
        d9d_random_weights_close(r);
    return st;
}

void d9d_random_weights_close(d9d_random_weights *r)
{
    if (r == NULL)
        return;
    free(r->tensors);
    free(r);
}

static const d9d_safetensors_tensor *tensor_at(void *self, size_t i)
{
    return &((d9d_random_weights *)self)->tensors[i];
}

static const char *tensor_path(void *self, size_t i)
{
    (void)self, (void)i;
    return "random weights";
}

/* In blocks small enough that the kernel starts no threads: this thread is one of many already. */
static d9d_status tensor_read(void *self, size_t i, uint64_t from, void *dst, uint64_t n)
{
    const d9d_random_weights *r = self;
    const d9d_model_tensor *of = &r->items[i];
    const d9d_dtype dtype = r->tensors[i].dtype;
    const d9d_rng rng = {r->seed, d9d_hash_u64(of->name, strlen(of->name))};
    const int64_t width = (int64_t)d9d_dtype_size(dtype), whole = INT64_MAX, block = 1024;
    const int64_t first = (int64_t)from / width, count = (int64_t)n / width;

    for (int64_t at = 0; at < count; at += block) {
        const int64_t k = count - at < block ? count - at : block, start = first + at;

        D9D_TRY(d9d_kernels_cpu()->elementwise->random(NULL, dtype, (char *)dst + at * width,
                                                       of->init, of->init_scale, rng, 1, &k, &start,
                                                       &whole));
    }
    return D9D_OK;
}

static void source_fingerprint(void *self, d9d_hasher *h)
{
    const d9d_random_weights *r = self;

    d9d_hasher_add(h, &r->seed, sizeof(r->seed));
    for (size_t i = 0; i < r->n; i++) {
        const uint64_t id = d9d_hash_u64(r->items[i].name, strlen(r->items[i].name));
        const int32_t init = (int32_t)r->items[i].init;

        d9d_hasher_add(h, &id, sizeof(id));
        d9d_hasher_add(h, &init, sizeof(init));
        d9d_hasher_add(h, &r->items[i].init_scale, sizeof(r->items[i].init_scale));
    }
}

d9d_tensor_source d9d_random_weights_source(d9d_random_weights *r)
{
    return (d9d_tensor_source){.self = r,
                               .n = r->n,
                               .at = tensor_at,
                               .path = tensor_path,
                               .read = tensor_read,
                               .fingerprint = source_fingerprint};
}
