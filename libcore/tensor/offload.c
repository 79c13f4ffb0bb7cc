/* offload.c - see d9d/tensor/offload.h.
 *
 * Who waits for whom, so that no block serves anew while a copy reads or writes it:
 *
 *     a device block that left     is freed after the compute stream waits for its copy;
 *     a device block that returns  is written after what was enqueued when it was allocated;
 *     a host block                 is freed after the compute stream waits for the copy back, and
 *                                  the next copy into it follows the compute stream.
 */
#include "d9d/tensor/offload.h"

#include <stdlib.h>

#include "d9d/base/mem.h"
#include "d9d/device/copy_stream.h"
#include "d9d/device/pinned_pool.h"
#include "tensor/storage.h"

typedef enum group_state { HERE, LEAVING, AWAY, RETURNING } group_state;

typedef struct item {
    d9d_tensor x; /* its storage; counted */
    void *host;
} item;

struct d9d_offload_group {
    d9d_offload *of;
    group_state state;
    uint64_t number;         /* of its sending */
    d9d_device_event *moved; /* after its copies */
    D9D_VEC(item) items;
    struct d9d_offload_group *next; /* idle one */
};

struct d9d_offload {
    d9d_device *dev;
    d9d_offload_opts opts;
    d9d_copy_stream *out, *back;
    d9d_pinned_pool *host;
    D9D_VEC(d9d_offload_group *) leaving; /* oldest first */
    d9d_offload_group *idle;
    uint64_t groups, bytes; /* sent */
};

d9d_status d9d_offload_create(d9d_device *dev, const d9d_offload_opts *opts, d9d_offload **out)
{
    d9d_offload *o = calloc(1, sizeof(*o));
    d9d_status st;

    if (o == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory to offload %s", dev->name, opts->name);
    o->dev = dev;
    o->opts = *opts;
    D9D_TRY_OR(st, d9d_copy_stream_create(dev, opts->name, "to host", &o->out), out);
    D9D_TRY_OR(st, d9d_copy_stream_create(dev, opts->name, "from host", &o->back), out);
    D9D_TRY_OR(st, d9d_pinned_pool_create(dev, &o->host), out);
    *out = o;
    return D9D_OK;
out:
    d9d_offload_free(o);
    return st;
}

void d9d_offload_free(d9d_offload *o)
{
    if (o == NULL)
        return;
    (void)!d9d_device_sync(o->dev);
    while (o->idle != NULL) {
        d9d_offload_group *g = o->idle;

        o->idle = g->next;
        D9D_VEC_RELEASE(&g->items);
        d9d_device_event_free(g->moved);
        free(g);
    }
    D9D_VEC_RELEASE(&o->leaving);
    d9d_copy_stream_free(o->out);
    d9d_copy_stream_free(o->back);
    d9d_pinned_pool_free(o->host);
    free(o);
}

d9d_offload_stats d9d_offload_get_stats(const d9d_offload *o)
{
    return (d9d_offload_stats){.host = d9d_pinned_pool_memory(o->host).reserved, .sent = o->bytes};
}

/* --- groups -------------------------------------------------------------------------------- */

static d9d_status group_take(d9d_offload *o, d9d_offload_group **out)
{
    d9d_offload_group *g = o->idle;

    if (g == NULL) {
        g = calloc(1, sizeof(*g));
        if (g == NULL)
            return D9D_FAIL(D9D_ENOMEM, "%s: no memory for a group", o->opts.name);
        g->of = o;
        if (d9d_device_event_create(o->dev, &g->moved) != D9D_OK) {
            free(g);
            return D9D_FAIL(D9D_ENOMEM, "%s: no event for a group", o->opts.name);
        }
    } else {
        o->idle = g->next;
    }
    g->next = NULL;
    g->number = o->groups++;
    *out = g;
    return D9D_OK;
}

/* The items are no longer the group's, nor the host's memory. */
static void group_drop_items(d9d_offload_group *g)
{
    for (size_t i = 0; i < g->items.len; i++) {
        item *x = &g->items.data[i];

        d9d_pinned_pool_give(g->of->host, x->host, x->x.storage->bytes);
        d9d_tensor_release(&x->x);
    }
    g->items.len = 0;
    g->state = HERE;
}

static void leaving_remove(d9d_offload *o, const d9d_offload_group *g)
{
    size_t n = 0;

    for (size_t i = 0; i < o->leaving.len; i++)
        if (o->leaving.data[i] != g)
            o->leaving.data[n++] = o->leaving.data[i];
    o->leaving.len = n;
}

void d9d_offload_group_free(d9d_offload_group *g)
{
    if (g == NULL)
        return;
    if (g->state == LEAVING)
        leaving_remove(g->of, g);
    if (g->state == LEAVING || g->state == RETURNING)
        (void)!d9d_copy_stream_join(g->moved);
    group_drop_items(g);
    g->next = g->of->idle;
    g->of->idle = g;
}

/* --- out ------------------------------------------------------------------------------------- */

static bool may_leave(const d9d_offload *o, const d9d_storage *s)
{
    return s != NULL && s->data != NULL && !s->is_pinned && s->counted == s->refs &&
           s->bytes >= o->opts.min_bytes;
}

static d9d_status fail_host(const d9d_offload *o, uint64_t n)
{
    return D9D_FAIL(D9D_EOOM,
                    "%s: %.2f GiB are in the host's memory, %.2f MiB more were asked for, and the "
                    "host has %.2f GiB available",
                    o->opts.key, (double)d9d_pinned_pool_memory(o->host).reserved / 0x1p30,
                    (double)n / 0x1p20, (double)d9d_mem_available() / 0x1p30);
}

static d9d_status item_add(d9d_offload *o, d9d_offload_group *g, const d9d_tensor *x)
{
    item it = {.host = NULL};

    x->storage->counted = 0; /* once */
    D9D_TRY(D9D_VEC_RESERVE(&g->items, 1));
    if (d9d_pinned_pool_take(o->host, x->storage->bytes, &it.host) != D9D_OK)
        return fail_host(o, x->storage->bytes);
    it.x = d9d_tensor_ref(x);
    g->items.data[g->items.len++] = it;
    return D9D_OK;
}

static d9d_status items_choose(d9d_offload *o, d9d_offload_group *g, const d9d_tensor *const *refs,
                               size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (refs[i]->storage != NULL)
            refs[i]->storage->counted = 0;
    for (size_t i = 0; i < n; i++)
        if (refs[i]->storage != NULL)
            refs[i]->storage->counted++;
    for (size_t i = 0; i < n; i++)
        if (may_leave(o, refs[i]->storage))
            D9D_TRY(item_add(o, g, refs[i]));
    return D9D_OK;
}

static d9d_status copy_out(d9d_offload *o, d9d_offload_group *g)
{
    if (g->items.len == 0)
        return D9D_OK;
    D9D_TRY(D9D_VEC_PUSH(&o->leaving, g));
    g->state = LEAVING;
    D9D_TRY(d9d_copy_stream_follow(o->out));
    for (size_t i = 0; i < g->items.len; i++) {
        const d9d_storage *s = g->items.data[i].x.storage;

        D9D_TRY(d9d_copy_stream_copy(o->out, g->items.data[i].host, s->data, s->bytes));
        o->bytes += s->bytes;
    }
    return d9d_copy_stream_record(o->out, g->moved);
}

/* The oldest group's memory belongs to what is enqueued next. */
static d9d_status oldest_leave(d9d_offload *o)
{
    d9d_offload_group *g = o->leaving.data[0];

    leaving_remove(o, g);
    g->state = AWAY;
    D9D_TRY(d9d_copy_stream_join(g->moved));
    for (size_t i = 0; i < g->items.len; i++) {
        d9d_storage *s = g->items.data[i].x.storage;

        d9d_device_free(o->dev, s->data, s->bytes);
        s->data = NULL;
    }
    return D9D_OK;
}

d9d_status d9d_offload_send(d9d_offload *o, const d9d_tensor *const *refs, size_t n,
                            d9d_offload_group **out)
{
    d9d_offload_group *g = NULL;
    d9d_status st;

    D9D_TRY(group_take(o, &g));
    st = items_choose(o, g, refs, n);
    if (st == D9D_OK)
        st = copy_out(o, g);
    while (st == D9D_OK && o->leaving.len > 0 &&
           o->leaving.data[0]->number + (uint64_t)o->opts.depth <= g->number)
        st = oldest_leave(o);
    if (st == D9D_OK)
        *out = g;
    else
        d9d_offload_group_free(g);
    return st;
}

/* --- and back -------------------------------------------------------------------------------- */

static d9d_status blocks_alloc(d9d_offload_group *g)
{
    d9d_device *dev = g->of->dev;
    d9d_status st = D9D_OK;
    size_t n = 0;

    for (; n < g->items.len && st == D9D_OK; n++) {
        d9d_storage *s = g->items.data[n].x.storage;

        st = d9d_device_alloc(dev, s->bytes, &s->data);
    }
    if (st == D9D_OK)
        return D9D_OK;
    for (size_t i = 0; i < n; i++) { /* the last one has none */
        d9d_storage *s = g->items.data[i].x.storage;

        d9d_device_free(dev, s->data, s->bytes);
        s->data = NULL;
    }
    return st;
}

d9d_status d9d_offload_fetch(d9d_offload_group *g)
{
    d9d_offload *o = g->of;

    if (g->state != AWAY)
        return D9D_OK;
    D9D_TRY(blocks_alloc(g));
    g->state = RETURNING;
    D9D_TRY(d9d_copy_stream_follow(o->back));
    for (size_t i = 0; i < g->items.len; i++) {
        const d9d_storage *s = g->items.data[i].x.storage;

        D9D_TRY(d9d_copy_stream_copy(o->back, s->data, g->items.data[i].host, s->bytes));
    }
    return d9d_copy_stream_record(o->back, g->moved);
}

d9d_status d9d_offload_wait(d9d_offload_group *g)
{
    D9D_TRY(d9d_offload_fetch(g));
    if (g->state == LEAVING) /* it need not go */
        leaving_remove(g->of, g);
    if (g->state != HERE)
        D9D_TRY(d9d_copy_stream_join(g->moved));
    group_drop_items(g);
    return D9D_OK;
}
