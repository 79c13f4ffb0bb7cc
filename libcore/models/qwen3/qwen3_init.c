/* qwen3_init.c - random weights as a tensor source.  See d9d/models/qwen3/qwen3_map.h.
 */
#include <stdlib.h>
#include <string.h>

#include "d9d/base/hash.h"
#include "d9d/base/rng.h"
#include "d9d/kernels/table.h"
#include "d9d/models/qwen3/qwen3_map.h"
#include "models/qwen3/qwen3_names.h"

struct init_tensor {
    d9d_safetensors_tensor t;
    uint64_t id;
    bool norm;
};

struct d9d_qwen3_init {
    const d9d_qwen3_config *c;
    d9d_dtype dtype;
    uint64_t seed;
    float std;
    d9d_arena arena;
    D9D_VEC(struct init_tensor) tensors;
};

static d9d_status tensor_add(void *arg, const d9di_qwen3_tensor *t)
{
    d9d_qwen3_init *r = arg;
    struct init_tensor x = {.t.dtype = r->dtype, .norm = t->row->norm};
    char name[D9DI_QWEN3_NAME_MAX];

    d9di_qwen3_name(t, t->row->d9d, 0, name);
    x.t.name = d9d_arena_strdup(&r->arena, name);
    x.t.ndim = d9di_qwen3_shape(r->c, t, t->row->d9d_shape, x.t.shape);
    x.id = d9d_hash_u64(name, strlen(name));
    if (x.t.name == NULL)
        return D9D_FAIL(D9D_ENOMEM, "random weights: out of memory");
    if (!d9d_safetensors_shape_bytes(r->dtype, x.t.ndim, x.t.shape, &x.t.bytes))
        return D9D_FAIL(D9D_ECONFIG, "tensor %s: its size overflows", name);
    return D9D_VEC_PUSH(&r->tensors, x);
}

d9d_status d9d_qwen3_init_open(const d9d_qwen3_config *c, d9d_dtype dtype, uint64_t seed,
                               d9d_qwen3_init **out)
{
    d9d_qwen3_init *r;
    d9d_status st;

    if (dtype != D9D_F32 && dtype != D9D_BF16)
        return D9D_FAIL(D9D_ENOTSUP, "random weights: %s; float32 and bfloat16 are made",
                        d9d_dtype_name(dtype));
    /* No draw exceeds seven standard deviations. */
    if (c->init_std > 1e37)
        return D9D_FAIL(D9D_ECONFIG,
                        "random weights: initializer_range is %g, at most 1e+37: numbers of %s end "
                        "at 3.4e+38",
                        c->init_std, d9d_dtype_name(dtype));
    r = calloc(1, sizeof(*r));
    if (r == NULL)
        return D9D_FAIL(D9D_ENOMEM, "random weights: out of memory");
    r->c = c;
    r->dtype = dtype;
    r->seed = seed;
    r->std = c->init_std > 0 ? (float)c->init_std : 0.02f;
    D9D_TRY_OR(st, d9di_qwen3_each(c, D9D_WHOLE_MODEL, tensor_add, r), out);
    *out = r;
    r = NULL;
out:
    d9d_qwen3_init_close(r);
    return st;
}

void d9d_qwen3_init_close(d9d_qwen3_init *r)
{
    if (r == NULL)
        return;
    D9D_VEC_RELEASE(&r->tensors);
    d9d_arena_release(&r->arena);
    free(r);
}

static const d9d_safetensors_tensor *tensor_at(void *self, size_t i)
{
    return &((d9d_qwen3_init *)self)->tensors.data[i].t;
}

static const char *tensor_place(void *self, size_t i)
{
    (void)self, (void)i;
    return "random weights";
}

/* In blocks small enough that the kernel starts no threads: this thread is one of many already. */
static d9d_status tensor_read(void *self, size_t i, uint64_t from, void *dst, uint64_t n)
{
    const d9d_qwen3_init *r = self;
    const struct init_tensor *x = &r->tensors.data[i];
    const d9d_rng rng = {r->seed, x->id};
    const int64_t width = (int64_t)d9d_dtype_size(r->dtype), whole = INT64_MAX, block = 1024;
    const int64_t first = (int64_t)from / width, count = (int64_t)n / width;

    for (int64_t tensor_at = 0; tensor_at < count; tensor_at += block) {
        const int64_t k = count - tensor_at < block ? count - tensor_at : block,
                      start = first + tensor_at;

        D9D_TRY(d9d_kernels_cpu()->elementwise->random(
            NULL, r->dtype, (char *)dst + tensor_at * width,
            x->norm ? D9D_INIT_ONES : D9D_INIT_NORMAL, r->std, rng, 1, &k, &start, &whole));
    }
    return D9D_OK;
}

static void source_identify(void *self, d9d_hasher *h)
{
    const d9d_qwen3_init *r = self;

    d9d_hasher_add(h, &r->seed, sizeof(r->seed));
    d9d_hasher_add(h, &r->std, sizeof(r->std));
    for (size_t i = 0; i < r->tensors.len; i++)
        d9d_hasher_add(h, &r->tensors.data[i].id, sizeof(r->tensors.data[i].id));
}

d9d_tensor_source d9d_qwen3_init_source(d9d_qwen3_init *r)
{
    return (d9d_tensor_source){.self = r,
                               .n = r->tensors.len,
                               .at = tensor_at,
                               .path = tensor_place,
                               .read = tensor_read,
                               .fingerprint = source_identify};
}
