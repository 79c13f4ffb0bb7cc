/* pool.c - the caching allocator.  See device/pool.h. */
#include "device/pool.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/mem.h"
#include "device/backend.h"

enum {
    UNIT_SHIFT = 8, /* 256 bytes */
    STEP_SHIFT = 3, /* classes between two powers of two */
    STEPS = 1 << STEP_SHIFT,
    MAX_SHIFT = 48, /* units of the largest class: 2^56 bytes */
    CLASSES = STEPS * (MAX_SHIFT - STEP_SHIFT + 1),
    CRUMB_SHARE = 16
};

/* How much larger than its request a block may be where no other is left, and what all such blocks
 * may waste: 1 / reserved_share of what is reserved, or 1 / unused_share of what was never in use
 * at once, whichever is more. */
typedef struct fit {
    int classes;
    uint64_t reserved_share, unused_share; /* 0: nothing */
} fit;
static const fit near_fit = {STEPS / 4, 64, 0}, loose_fit = {STEPS, 64, 2};

typedef struct cached {
    void *p;
    uint64_t since; /* age: frees before this one */
} cached;

typedef struct size_class {
    D9D_VEC(cached) cached; /* oldest first */
    size_t blocks;  /* cached or handed out; `cached` has room for all, so a free cannot fail */
    uint64_t block; /* bytes of one */
} size_class;

/* A block that serves a request of a smaller class. */
typedef struct oversized {
    void *p;
    int class;
} oversized;

struct d9d_device_pool {
    size_class class[CLASSES];
    D9D_VEC(oversized) oversized;
    uint64_t excess; /* bytes of oversized blocks beyond their requests */
    uint64_t frees;
    bool full; /* the system had nothing left, and nothing was freed since */
    d9d_device_stats stats;
    bool holds; /* what is freed is held */
    d9di_pool_hold hold;
    uint64_t max_in_use; /* the most ever in use at once, without the excess */
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

static void mark_block(d9d_device *dev, void *p, uint64_t n, uint64_t block)
{
    if (dev->ops->mark_block != NULL)
        dev->ops->mark_block(p, n, block);
}

/* Return the oldest cached block of class c to the system. */
static void free_oldest(d9d_device *dev, int c)
{
    struct d9d_device_pool *pool = dev->pool;
    size_class *k = &pool->class[c];
    void *p = k->cached.data[0].p;

    memmove(k->cached.data, k->cached.data + 1, --k->cached.len * sizeof(*k->cached.data));
    mark_block(dev, p, k->block, k->block);
    dev->ops->free(dev, p, k->block);
    k->blocks--;
    pool->stats.reserved -= k->block;
    pool->full = false;
}

/* The class with the least recently used cached block, of blocks of at least `least` bytes; -1:
 * none. */
static int oldest_class(const struct d9d_device_pool *pool, uint64_t least)
{
    int oldest = -1;

    for (int c = 0; c < CLASSES; c++) {
        const size_class *k = &pool->class[c];

        if (k->cached.len > 0 && k->block >= least &&
            (oldest < 0 || k->cached.data[0].since < pool->class[oldest].cached.data[0].since))
            oldest = c;
    }
    return oldest;
}

/* Return least recently used blocks to the system until at most `goal` bytes are reserved.  Blocks
 * that are a small part of what must be freed come last. */
static void trim_to(d9d_device *dev, uint64_t goal)
{
    const d9d_device_stats *s = &dev->pool->stats;

    while (s->reserved > goal) {
        int c = oldest_class(dev->pool, (s->reserved - goal) / CRUMB_SHARE);

        if (c < 0)
            c = oldest_class(dev->pool, 0);
        if (c < 0)
            return;
        free_oldest(dev, c);
    }
}

void d9di_pool_free(d9d_device *dev)
{
    if (dev->pool == NULL)
        return;
    assert(dev->pool->stats.in_use == 0);
    trim_to(dev, 0);
    for (int c = 0; c < CLASSES; c++)
        D9D_VEC_RELEASE(&dev->pool->class[c].cached);
    D9D_VEC_RELEASE(&dev->pool->oversized);
    free(dev->pool);
    dev->pool = NULL;
}

/* The most that may be reserved when `block` bytes more are in use.  It is the limit, or less: the
 * cache may hold as much as was ever in use or `slack`, so that changing sizes do not pile up. */
static uint64_t reserve_ceiling(const struct d9d_device_pool *pool, uint64_t slack, uint64_t block)
{
    const uint64_t next = pool->stats.in_use + block;
    const uint64_t peak = next > pool->max_in_use ? next : pool->max_in_use;

    const uint64_t cache = peak > slack ? peak : slack;

    return pool->stats.limit < cache || pool->stats.limit - cache < peak ? pool->stats.limit
                                                                         : peak + cache;
}

/* A new block from the system; NULL if there is none, or more than `limit` would be reserved. */
static void *alloc_block(d9d_device *dev, uint64_t block, uint64_t limit)
{
    struct d9d_device_pool *pool = dev->pool;
    void *p;

    if (pool->full || block > limit || pool->stats.reserved > limit - block)
        return NULL;
    p = dev->ops->alloc(dev, block);
    pool->full = p == NULL;
    if (p != NULL) {
        pool->stats.reserved += block;
        pool->stats.requests++;
    }
    return p;
}

/* The same after trimming: first what exceeds `limit`, then as much as is requested, then
 * everything.  Without a shortage, trimming only keeps the cache small. */
static void *alloc_after_trim(d9d_device *dev, uint64_t block, uint64_t limit)
{
    const d9d_device_stats *s = &dev->pool->stats;
    const uint64_t less = s->reserved > block ? s->reserved - block : 0;
    const uint64_t goals[] = {limit - block, less, 0};
    const bool is_short = dev->pool->full || limit == s->limit;
    void *p = NULL;

    if (block > limit)
        return NULL;
    for (size_t i = 0; i < sizeof(goals) / sizeof(*goals) && p == NULL; i++) {
        dev->pool->full = false;
        trim_to(dev, goals[i]);
        p = alloc_block(dev, block, limit);
    }
    dev->pool->stats.short_requests += is_short && p != NULL;
    return p;
}

static uint64_t share_of(uint64_t bytes, uint64_t share)
{
    return share > 0 ? bytes / share : 0;
}

/* True if so many more bytes may be wasted in oversized blocks: only of memory that was never in
 * use at once. */
static bool may_waste(const struct d9d_device_pool *pool, const fit *f, uint64_t excess)
{
    const uint64_t all = pool->excess + excess, reserved = pool->stats.reserved;
    const uint64_t unused = reserved > pool->max_in_use ? reserved - pool->max_in_use : 0;

    return all <= unused && (all <= share_of(reserved, f->reserved_share) ||
                             all <= share_of(unused, f->unused_share));
}

/* A cached block of a larger class, the smallest that there is. */
static void *alloc_oversized(d9d_device *dev, int c, uint64_t block, const fit *f, int *of)
{
    struct d9d_device_pool *pool = dev->pool;

    for (int i = c + 1; i <= c + f->classes && i < CLASSES; i++) {
        size_class *k = &pool->class[i];
        const uint64_t excess = k->block - block;

        if (k->cached.len == 0 || !may_waste(pool, f, excess))
            continue;
        if (D9D_VEC_PUSH(&pool->oversized, ((oversized){k->cached.data[k->cached.len - 1].p, i})) !=
            D9D_OK)
            return NULL;
        pool->excess += excess;
        *of = i;
        return k->cached.data[--k->cached.len].p;
    }
    return NULL;
}

/* The class that p belongs to, which served a request of class c. */
static int block_class(struct d9d_device_pool *pool, const void *p, int c)
{
    for (size_t i = pool->oversized.len; i-- > 0;)
        if (pool->oversized.data[i].p == p) {
            const int own = pool->oversized.data[i].class;

            pool->excess -= pool->class[own].block - pool->class[c].block;
            pool->oversized.data[i] = pool->oversized.data[--pool->oversized.len];
            return own;
        }
    return c;
}

/* "limit 5", "3 free of 10", in bytes; 0 and "" if unknown. */
static uint64_t describe_capacity(d9d_device *dev, char *text, size_t n)
{
    const uint64_t limit = dev->pool->stats.limit;
    uint64_t has = 0, left = 0;

    text[0] = '\0';
    if (dev->ops->mem_info != NULL)
        dev->ops->mem_info(dev, &has, &left);
    if (limit != UINT64_MAX && (has == 0 || limit <= has)) {
        (void)snprintf(text, n, "limit %" PRIu64, limit);
        return limit;
    }
    if (has > 0)
        (void)snprintf(text, n, "%" PRIu64 " free of %" PRIu64, left, has);
    return has;
}

static d9d_status fail_oom(d9d_device *dev, uint64_t n)
{
    const uint64_t used = dev->pool->stats.in_use;
    char capacity[80], expected[80] = "";

    (void)describe_capacity(dev, capacity, sizeof(capacity));
    if (dev->required > 0)
        (void)snprintf(expected, sizeof(expected), "; at least %" PRIu64 " needed in all",
                       dev->required);
    return D9D_FAIL(D9D_EOOM,
                    "%s: out of memory: %" PRIu64 " bytes requested, %" PRIu64 " in use%s%s%s",
                    dev->name, n, used, capacity[0] != '\0' ? ", " : "", capacity, expected);
}

d9d_status d9d_device_require(d9d_device *dev, uint64_t n)
{
    char capacity[80];
    const uint64_t has = describe_capacity(dev, capacity, sizeof(capacity));

    if (capacity[0] != '\0' && n > has)
        return D9D_FAIL(D9D_EOOM, "%s: out of memory: at least %" PRIu64 " bytes needed, %s",
                        dev->name, n, capacity);
    dev->required = n;
    return D9D_OK;
}

/* Find a block for class c; *of is the class that it belongs to. */
static d9d_status find_block(d9d_device *dev, int c, uint64_t n, const fit *f, void **out, int *of)
{
    struct d9d_device_pool *pool = dev->pool;
    size_class *k = &pool->class[c];
    const uint64_t limit = reserve_ceiling(pool, dev->ops->slack, k->block);

    *of = c;
    if (k->cached.len > 0) {
        *out = k->cached.data[--k->cached.len].p;
        return D9D_OK;
    }
    D9D_TRY(D9D_VEC_RESERVE(&k->cached, k->blocks + 1));
    *out = alloc_block(dev, k->block, limit);
    if (*out == NULL)
        *out = alloc_oversized(dev, c, k->block, f, of);
    if (*out == NULL)
        *out = alloc_after_trim(dev, k->block, limit);
    if (*out == NULL)
        return fail_oom(dev, n);
    k->blocks += *of == c;
    return D9D_OK;
}

static d9d_status alloc_fit(d9d_device *dev, uint64_t n, const fit *f, void **out)
{
    struct d9d_device_pool *pool = dev->pool;
    d9d_device_stats *s = &pool->stats;
    uint64_t block, used;
    const int c = d9di_pool_class(n, &block);
    int of;

    if (c < 0)
        return fail_oom(dev, n);
    pool->class[c].block = block;
    D9D_TRY(find_block(dev, c, n, f, out, &of));
    mark_block(dev, *out, n, pool->class[of].block);
    s->in_use += pool->class[of].block;
    used = s->in_use - pool->excess;
    s->peak = used > s->peak ? used : s->peak;
    pool->max_in_use = used > pool->max_in_use ? used : pool->max_in_use;
    return D9D_OK;
}

d9d_status d9d_device_alloc(d9d_device *dev, uint64_t n, void **out)
{
    return alloc_fit(dev, n, &near_fit, out);
}

d9d_status d9d_device_alloc_loose(d9d_device *dev, uint64_t n, void **out)
{
    return alloc_fit(dev, n, &loose_fit, out);
}

void d9di_pool_hold_begin(d9d_device *dev)
{
    dev->pool->holds = true;
}

void d9di_pool_hold_end(d9d_device *dev, d9di_pool_hold *out)
{
    *out = dev->pool->hold;
    dev->pool->hold = (d9di_pool_hold){.failed = false};
    dev->pool->holds = false;
}

void d9di_pool_hold_release(d9d_device *dev, d9di_pool_hold *h)
{
    for (size_t i = 0; i < h->blocks.len; i++)
        d9d_device_free(dev, h->blocks.data[i].p, h->blocks.data[i].n);
    D9D_VEC_RELEASE(&h->blocks);
}

static bool hold_block(struct d9d_device_pool *pool, void *p, uint64_t n)
{
    if (!pool->holds)
        return false;
    pool->hold.failed |= D9D_VEC_PUSH(&pool->hold.blocks, ((d9di_pool_held){p, n})) != D9D_OK;
    return !pool->hold.failed;
}

void d9d_device_free(d9d_device *dev, void *p, uint64_t n)
{
    struct d9d_device_pool *pool = dev->pool;
    uint64_t block;
    const int c = d9di_pool_class(n, &block);
    size_class *k;

    if (p == NULL || hold_block(pool, p, n))
        return;
    assert(c >= 0);
    k = &pool->class[block_class(pool, p, c)];
    assert(k->blocks > 0);
    mark_block(dev, p, 0, k->block);
    k->cached.data[k->cached.len++] = (cached){p, pool->frees++};
    pool->stats.in_use -= k->block;
}

d9d_device_stats d9d_device_memory(const d9d_device *dev)
{
    return dev->pool->stats;
}

void d9d_device_reset_peak(d9d_device *dev)
{
    dev->pool->stats.peak = dev->pool->stats.in_use - dev->pool->excess;
}

void d9d_device_set_limit(d9d_device *dev, uint64_t bytes)
{
    dev->pool->stats.limit = bytes;
    trim_to(dev, bytes);
}

void d9d_device_trim(d9d_device *dev)
{
    trim_to(dev, 0);
}
