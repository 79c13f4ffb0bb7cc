/* qwen3_init.c - random weights as a source.  See d9d/models/qwen3/qwen3_map.h. */
#include <stdlib.h>
#include <string.h>

#include "d9d/base/hash.h"
#include "d9d/base/rng.h"
#include "d9d/kernels/table.h"
#include "d9d/models/qwen3/qwen3_map.h"
#include "models/qwen3/qwen3_names.h"

struct tensor {
    d9d_st_tensor t;
    uint64_t id;
    bool norm;
};

struct d9d_qwen3_random {
    const d9d_qwen3_config *c;
    d9d_dtype dtype;
    uint64_t seed;
    float std;
    d9d_arena arena;
    D9D_VEC(struct tensor) tensors;
};

static d9d_status add(void *arg, const d9di_qwen3_tensor *t)
{
    d9d_qwen3_random *r = arg;
    struct tensor x = {.t.dtype = r->dtype, .norm = t->row->norm};
    char name[D9DI_NAME];

    d9di_qwen3_name(t, t->row->d9d, 0, name);
    x.t.name = d9d_arena_strdup(&r->arena, name);
    x.t.ndim = d9di_qwen3_shape(r->c, t, t->row->d9d_shape, x.t.shape);
    x.id = d9d_hash64(name, strlen(name));
    if (x.t.name == NULL)
        return D9D_FAIL(D9D_ENOMEM, "random weights: out of memory");
    if (!d9d_st_shape_bytes(r->dtype, x.t.ndim, x.t.shape, &x.t.bytes))
        return D9D_FAIL(D9D_ECONFIG, "tensor %s: its size overflows", name);
    return D9D_VEC_PUSH(&r->tensors, x);
}

d9d_status d9d_qwen3_random_open(const d9d_qwen3_config *c, d9d_dtype dtype, uint64_t seed,
                                 d9d_qwen3_random **out)
{
    d9d_qwen3_random *r;
    d9d_status st;

    if (dtype != D9D_F32 && dtype != D9D_BF16)
        return D9D_FAIL(D9D_ENOTSUP, "random weights: %s; float32 and bfloat16 are made",
                        d9d_dtype_word(dtype));
    /* No draw is seven deviations from zero. */
    if (c->init_std > 1e37)
        return D9D_FAIL(D9D_ECONFIG,
                        "random weights: initializer_range is %g, at most 1e+37: numbers of %s end "
                        "at 3.4e+38",
                        c->init_std, d9d_dtype_word(dtype));
    r = calloc(1, sizeof(*r));
    if (r == NULL)
        return D9D_FAIL(D9D_ENOMEM, "random weights: out of memory");
    r->c = c;
    r->dtype = dtype;
    r->seed = seed;
    r->std = c->init_std > 0 ? (float)c->init_std : 0.02f;
    D9D_TRY_OR(st, d9di_qwen3_each(c, D9D_WHOLE_MODEL, add, r), out);
    *out = r;
    r = NULL;
out:
    d9d_qwen3_random_close(r);
    return st;
}

void d9d_qwen3_random_close(d9d_qwen3_random *r)
{
    if (r == NULL)
        return;
    D9D_VEC_RELEASE(&r->tensors);
    d9d_arena_release(&r->arena);
    free(r);
}

static const d9d_st_tensor *at(void *self, size_t i)
{
    return &((d9d_qwen3_random *)self)->tensors.data[i].t;
}

static const char *place(void *self, size_t i)
{
    (void)self, (void)i;
    return "random weights";
}

/* By blocks that a kernel does without threads of its own: we are one of many already. */
static d9d_status draw(void *self, size_t i, uint64_t from, void *dst, uint64_t n)
{
    const d9d_qwen3_random *r = self;
    const struct tensor *x = &r->tensors.data[i];
    const d9d_rng rng = {r->seed, x->id};
    const int64_t width = (int64_t)d9d_dtype_size(r->dtype), whole = INT64_MAX, block = 1024;
    const int64_t first = (int64_t)from / width, count = (int64_t)n / width;

    for (int64_t at = 0; at < count; at += block) {
        const int64_t k = count - at < block ? count - at : block, start = first + at;

        D9D_TRY(d9d_kernels_cpu()->random(NULL, r->dtype, (char *)dst + at * width,
                                          x->norm ? D9D_INIT_ONES : D9D_INIT_NORMAL, r->std, rng, 1,
                                          &k, &start, &whole));
    }
    return D9D_OK;
}

static void identify(void *self, d9d_hasher *h)
{
    const d9d_qwen3_random *r = self;

    d9d_hasher_add(h, &r->seed, sizeof(r->seed));
    d9d_hasher_add(h, &r->std, sizeof(r->std));
    for (size_t i = 0; i < r->tensors.len; i++)
        d9d_hasher_add(h, &r->tensors.data[i].id, sizeof(r->tensors.data[i].id));
}

d9d_source d9d_qwen3_random_source(d9d_qwen3_random *r)
{
    return (d9d_source){.self = r,
                        .n = r->tensors.len,
                        .at = at,
                        .place = place,
                        .read = draw,
                        .identify = identify};
}
