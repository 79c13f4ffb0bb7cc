/* pool.c - see device/pool.h. */
#include "device/pool.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "d9d/base/mem.h"
#include "device/ops.h"

enum {
    UNIT_SHIFT = 8, /* 256 bytes */
    STEP_SHIFT = 3, /* classes between two powers of two */
    STEPS = 1 << STEP_SHIFT,
    MAX_SHIFT = 48, /* units of the largest class: 2^56 bytes */
    CLASSES = STEPS * (MAX_SHIFT - STEP_SHIFT + 1)
};

typedef struct size_class {
    D9D_VEC(void *) cached;
    size_t blocks;  /* cached or handed out; `cached` has room for all, so a free cannot fail */
    uint64_t block; /* bytes of one */
} size_class;

struct d9d_device_pool {
    size_class class[CLASSES];
    d9d_device_stats stats;
    uint64_t most; /* in use at once, ever */
};

int d9di_pool_class(uint64_t n, uint64_t *block)
{
    uint64_t units, step;
    int shift;

    if (n > UINT64_C(1) << (MAX_SHIFT + UNIT_SHIFT))
        return -1;
    units = n == 0 ? 1 : (n + (1 << UNIT_SHIFT) - 1) >> UNIT_SHIFT;
    if (units < STEPS) {
        *block = units << UNIT_SHIFT;
        return (int)units - 1;
    }
    shift = 63 - __builtin_clzll(units) - STEP_SHIFT; /* of one step */
    step = (units + (UINT64_C(1) << shift) - 1) >> shift;
    *block = step << (shift + UNIT_SHIFT);
    return shift * STEPS + (int)step - 1;
}

d9d_status d9di_pool_create(d9d_device *dev)
{
    dev->pool = calloc(1, sizeof(*dev->pool));
    if (dev->pool == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for the pool", dev->name);
    dev->pool->stats.limit = UINT64_MAX;
    return D9D_OK;
}

static void mark(d9d_device *dev, void *p, uint64_t n, uint64_t block)
{
    if (dev->ops->mark != NULL)
        dev->ops->mark(p, n, block);
}

/* Give cached blocks back, the largest first, until at most `goal` bytes are reserved. */
static void trim(d9d_device *dev, uint64_t goal)
{
    struct d9d_device_pool *pool = dev->pool;

    for (int c = CLASSES - 1; c >= 0 && pool->stats.reserved > goal; c--) {
        size_class *k = &pool->class[c];

        while (k->cached.len > 0 && pool->stats.reserved > goal) {
            void *p = k->cached.data[--k->cached.len];

            mark(dev, p, k->block, k->block);
            dev->ops->give(dev, p, k->block);
            k->blocks--;
            pool->stats.reserved -= k->block;
        }
    }
}

void d9di_pool_free(d9d_device *dev)
{
    if (dev->pool == NULL)
        return;
    assert(dev->pool->stats.in_use == 0);
    trim(dev, 0);
    for (int c = 0; c < CLASSES; c++)
        D9D_VEC_RELEASE(&dev->pool->class[c].cached);
    free(dev->pool);
    dev->pool = NULL;
}

/* What may be reserved when `block` bytes more come: the limit, and as much in the cache as was
 * ever in use or costs nobody much, so that sizes that change from step to step do not pile up. */
static uint64_t ceiling(const struct d9d_device_pool *pool, uint64_t slack, uint64_t block)
{
    const uint64_t next = pool->stats.in_use + block;
    const uint64_t most = next > pool->most ? next : pool->most;

    const uint64_t cache = most > slack ? most : slack;

    return pool->stats.limit < cache || pool->stats.limit - cache < most ? pool->stats.limit
                                                                         : most + cache;
}

/* A new block from the system, cached ones given back where that makes room; NULL when there is
 * none. */
static void *take(d9d_device *dev, uint64_t block)
{
    d9d_device_stats *s = &dev->pool->stats;
    const uint64_t most = ceiling(dev->pool, dev->ops->slack, block);
    void *p;

    if (block > most)
        return NULL;
    trim(dev, most - block);
    if (s->reserved > most - block)
        return NULL;
    p = dev->ops->take(dev, block);
    if (p == NULL && s->reserved > s->in_use) {
        trim(dev, 0);
        p = dev->ops->take(dev, block);
    }
    if (p != NULL) {
        s->reserved += block;
        s->requests++;
    }
    return p;
}

/* "a limit of 5 bytes", "10 bytes, 3 of them free"; 0 and "" where nobody can tell. */
static uint64_t describe_most(d9d_device *dev, char *text, size_t n)
{
    const uint64_t limit = dev->pool->stats.limit;
    uint64_t has = 0, left = 0;

    text[0] = '\0';
    if (dev->ops->room != NULL)
        dev->ops->room(dev, &has, &left);
    if (limit != UINT64_MAX && (has == 0 || limit <= has)) {
        (void)snprintf(text, n, "a limit of %" PRIu64, limit);
        return limit;
    }
    if (has > 0)
        (void)snprintf(text, n, "%" PRIu64 " free of %" PRIu64, left, has);
    return has;
}

static d9d_status fail_out(d9d_device *dev, uint64_t n)
{
    const uint64_t used = dev->pool->stats.in_use;
    char most[80], expected[80] = "";

    (void)describe_most(dev, most, sizeof(most));
    if (dev->expected > 0)
        (void)snprintf(expected, sizeof(expected), "; at least %" PRIu64 " are needed in all",
                       dev->expected);
    return D9D_FAIL(D9D_EOOM, "%s: no room for %" PRIu64 " bytes with %" PRIu64 " in use%s%s%s",
                    dev->name, n, used, most[0] != '\0' ? " and " : "", most, expected);
}

d9d_status d9d_device_expect(d9d_device *dev, uint64_t n)
{
    char most[80];
    const uint64_t has = describe_most(dev, most, sizeof(most));

    if (most[0] != '\0' && n > has)
        return D9D_FAIL(D9D_EOOM,
                        "%s: no room for the %" PRIu64 " bytes that are needed at least, with %s",
                        dev->name, n, most);
    dev->expected = n;
    return D9D_OK;
}

d9d_status d9d_device_alloc(d9d_device *dev, uint64_t n, void **out)
{
    d9d_device_stats *s = &dev->pool->stats;
    uint64_t block;
    const int c = d9di_pool_class(n, &block);
    size_class *k;
    void *p;

    if (c < 0)
        return fail_out(dev, n);
    k = &dev->pool->class[c];
    k->block = block;
    if (k->cached.len > 0) {
        p = k->cached.data[--k->cached.len];
    } else {
        D9D_TRY(D9D_VEC_RESERVE(&k->cached, k->blocks + 1));
        p = take(dev, block);
        if (p == NULL)
            return fail_out(dev, n);
        k->blocks++;
    }
    mark(dev, p, n, block);
    s->in_use += block;
    s->peak = s->in_use > s->peak ? s->in_use : s->peak;
    dev->pool->most = s->peak > dev->pool->most ? s->peak : dev->pool->most;
    *out = p;
    return D9D_OK;
}

void d9d_device_free(d9d_device *dev, void *p, uint64_t n)
{
    uint64_t block;
    const int c = d9di_pool_class(n, &block);
    size_class *k;

    if (p == NULL)
        return;
    assert(c >= 0 && dev->pool->class[c].blocks > 0);
    k = &dev->pool->class[c];
    mark(dev, p, 0, block);
    k->cached.data[k->cached.len++] = p;
    dev->pool->stats.in_use -= block;
}

d9d_device_stats d9d_device_memory(const d9d_device *dev)
{
    return dev->pool->stats;
}

void d9d_device_reset_peak(d9d_device *dev)
{
    dev->pool->stats.peak = dev->pool->stats.in_use;
}

void d9d_device_set_limit(d9d_device *dev, uint64_t bytes)
{
    dev->pool->stats.limit = bytes;
    trim(dev, bytes);
}

void d9d_device_trim(d9d_device *dev)
{
    trim(dev, 0);
}
