/* fsdp.c - the keeper of a model's units.  See d9d/parallel/fsdp.h. */
#include "d9d/parallel/fsdp.h"

#include <stdlib.h>
#include <string.h>

#include "d9d/device/trace.h"
#include "parallel/buckets.h"
#include "parallel/fsdp_param.h"

/* Where the whole parameters of a unit are. */
typedef enum state { AWAY, COMING, HERE } state;

/* Ranks over which parameters lie, and whether they read each other's parts by themselves. */
typedef struct reach {
    d9d_comm *comm;
    d9d_comm_shared *shared; /* NULL: parts are sent */
    bool current;            /* all ranks' parts are what they will be in this step */
    bool read;               /* and some may have been read by others since they changed */
    d9d_comm_point *passed;  /* behind it nobody reads them any more */
} reach;

/* Parameters of a unit that lie over the same ranks: one behind the other, moved together. */
typedef struct bundle {
    d9d_comm *comm;
    reach *reach;
    size_t first, n; /* of the unit's parts */
    d9d_comm_point *gathered;
    d9d_late reduced;
} bundle;

typedef struct unit {
    d9d_unit base;
    d9d_sharded *owner;
    d9d_module *module;
    size_t number;      /* among the units */
    d9d_params all;     /* of the module */
    d9d_params parts;   /* of those, the ones that are kept in parts */
    d9di_parts *moving; /* [parts.n] */
    bundle *bundles;
    size_t n_bundles;
    state state;
    int open;            /* how many times, now */
    int visits, visited; /* by a forward; by this micro-batch's backward */
    bool done;           /* with the step's last backward */
    bool reducing;       /* sums of gradients are under way */
} unit;

struct d9d_sharded {
    d9d_sharded_how how;
    d9d_device *dev;
    unit *units;
    size_t n_units;
    unit **order; /* as forward opens them; a unit may stand there twice */
    size_t n_order, at;
    reach *reaches;
    size_t n_reaches;
    bool reached;      /* what can be shared is */
    bool learns;       /* a backward follows this forward, */
    bool back_at_once; /* and right behind it */
    bool last;         /* this backward is the step's last one */
    d9di_buckets buckets;
    d9d_arena arena;
};

/* --- moving ------------------------------------------------------------------------------ */

typedef d9d_status part_fn(d9di_parts *t, d9d_param *p, d9d_device *dev);

/* Of those that have a gradient, or of all. */
static d9d_status each_part(unit *u, const bundle *b, bool with_grad, part_fn *fn)
{
    for (size_t i = b->first; i < b->first + b->n; i++)
        if (!with_grad || u->parts.p[i]->has_grad)
            D9D_TRY(fn(&u->moving[i], u->parts.p[i], u->owner->dev));
    return D9D_OK;
}

/* As one call of the bundle's ranks, on their queue; the first failure counts. */
static d9d_status together(unit *u, const bundle *b, bool with_grad, part_fn *fn)
{
    d9d_err_copy why;
    d9d_status st;

    D9D_TRY(d9d_comm_begin(b->comm));
    st = each_part(u, b, with_grad, fn);
    if (st == D9D_OK)
        return d9d_comm_end(b->comm);
    d9d_err_save(&why, st);
    (void)!d9d_comm_end(b->comm);
    return d9d_err_restore(&why);
}

/* --- reading others' parts ---------------------------------------------------------------- */

/* Every part that lies over these ranks, in the order of units: the places of all, or `mine`. */
static size_t each_place(d9d_sharded *s, const reach *r, void **mine)
{
    size_t n = 0;

    for (size_t i = 0; i < s->n_units; i++)
        for (size_t k = 0; k < s->units[i].parts.n; k++) {
            const d9d_param *p = s->units[i].parts.p[k];
            d9di_parts *t = &s->units[i].moving[k];

            if (p->shard != r->comm)
                continue;
            if (mine != NULL)
                mine[n] = d9d_tensor_data(&p->own);
            t->shared = r->shared;
            t->place = n++;
        }
    return n;
}

static d9d_status share(d9d_sharded *s, reach *r)
{
    const size_t n = each_place(s, r, NULL);
    void **mine = calloc(n + 1, sizeof(*mine));
    d9d_status st;

    if (mine == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for the places of %zu parameters", n);
    (void)each_place(s, r, mine);
    st = d9d_comm_share(r->comm, "weights", mine, n, &r->shared);
    (void)each_place(s, r, NULL);
    free(mine);
    return st;
}

/* When they have their memory. */
static d9d_status share_all(d9d_sharded *s)
{
    for (size_t i = 0; !s->reached && i < s->n_reaches; i++)
        D9D_TRY(share(s, &s->reaches[i]));
    s->reached = true;
    return D9D_OK;
}

/* Before others' parts are read: all ranks have theirs. */
static d9d_status fence_in(reach *r, d9d_stream queue)
{
    if (r->shared == NULL)
        return D9D_OK;
    r->read = true;
    if (r->current)
        return D9D_OK;
    r->current = true;
    return d9d_comm_shared_fence(r->shared, queue);
}

/* Before this rank's parts change: all ranks have read them.  Their reads are in the same queue. */
static d9d_status fence_out(reach *r)
{
    if (!r->read)
        return D9D_OK;
    r->read = r->current = false;
    D9D_TRY(d9d_comm_shared_fence(r->shared, d9d_comm_queue(r->comm)));
    return d9d_comm_point_set(r->comm, &r->passed);
}

/* --- gathering -------------------------------------------------------------------------- */

static d9d_status gather_bundle(unit *u, bundle *b)
{
    d9d_device *dev = u->owner->dev;
    d9d_stream queue = d9d_comm_queue(b->comm);

    D9D_TRY(d9d_comm_fork(b->comm, dev->stream));
    d9d_trace_beside(dev, queue, "gather", u->parts.p[b->first]->name);
    D9D_TRY(fence_in(b->reach, queue));
    D9D_TRY(together(u, b, false, d9di_gather_start));
    d9d_trace_beside_end(dev, queue);
    return d9d_comm_point_set(b->comm, &b->gathered);
}

static d9d_status gather_start(unit *u)
{
    if (u->state != AWAY)
        return D9D_OK;
    D9D_TRY(share_all(u->owner));
    for (size_t i = 0; i < u->n_bundles; i++)
        D9D_TRY(gather_bundle(u, &u->bundles[i]));
    u->state = COMING;
    return D9D_OK;
}

static d9d_status gather_finish(unit *u)
{
    d9d_device *dev = u->owner->dev;

    if (u->state == HERE)
        return D9D_OK;
    for (size_t i = 0; i < u->n_bundles; i++)
        D9D_TRY(d9d_comm_join_at(u->bundles[i].comm, u->bundles[i].gathered, dev->stream));
    d9d_trace_lap(dev, "wait", "for weights");
    for (size_t i = 0; i < u->n_bundles; i++)
        D9D_TRY(each_part(u, &u->bundles[i], false, d9di_gather_finish));
    u->state = HERE;
    return D9D_OK;
}

static void drop(unit *u)
{
    for (size_t i = 0; i < u->parts.n; i++) {
        d9d_param *p = u->parts.p[i];

        d9d_tensor_release(&p->data);
        p->data = (d9d_tensor){.dtype = p->dtype, .shape = p->work};
    }
    u->state = AWAY;
}

/* One that was gathered for nobody. */
static d9d_status forget(unit *u)
{
    if (u->state == AWAY)
        return D9D_OK;
    D9D_TRY(gather_finish(u));
    drop(u);
    return D9D_OK;
}

/* Where in the order the unit is that is opened now, looked for from the last one on. */
static void follow(d9d_sharded *s, const unit *u, d9d_unit_pass pass)
{
    for (size_t k = 0; k < s->n_order; k++) {
        const size_t i = (s->at + s->n_order + (pass == D9D_UNIT_FORWARD ? k : -k)) % s->n_order;

        if (s->order[i] == u) {
            s->at = i;
            return;
        }
    }
}

/* The unit that is opened next, where something can be done beside the computation. */
static d9d_status gather_ahead(d9d_sharded *s, d9d_unit_pass pass)
{
    unit *next = NULL;

    if (pass == D9D_UNIT_FORWARD && s->at + 1 < s->n_order)
        next = s->order[s->at + 1];
    else if (pass != D9D_UNIT_FORWARD && s->at > 0)
        next = s->order[s->at - 1];
    if (next == NULL || next->n_bundles == 0 || d9d_comm_queue(next->bundles[0].comm) == NULL)
        return D9D_OK;
    return gather_start(next);
}

/* --- gradients -------------------------------------------------------------------------- */

static d9d_status grads_take(unit *u)
{
    for (size_t i = 0; i < u->parts.n; i++) {
        d9d_param *p = u->parts.p[i];

        if (p->trainable && p->grad.storage == NULL)
            D9D_TRY(d9d_tensor_alloc(u->owner->dev, p->grad_dtype, p->work, &p->grad));
    }
    return D9D_OK;
}

/* The device's stream is behind the bundle's sums; those of buckets may follow. */
static void arrived(unit *u, const bundle *b)
{
    for (size_t i = b->first; i < b->first + b->n; i++) {
        d9di_reduce_finish(&u->moving[i]);
        if (u->parts.p[i]->late == &b->reduced)
            u->parts.p[i]->late = NULL;
    }
}

static d9d_status reduce_finish(unit *u)
{
    d9d_device *dev = u->owner->dev;

    if (!u->reducing)
        return D9D_OK;
    for (size_t i = 0; i < u->n_bundles; i++)
        D9D_TRY(d9d_comm_join_at(u->bundles[i].comm, u->bundles[i].reduced.at, dev->stream));
    d9d_trace_lap(dev, "wait", "for gradients");
    for (size_t i = 0; i < u->n_bundles; i++)
        arrived(u, &u->bundles[i]);
    u->reducing = false;
    return D9D_OK;
}

/* Of the units before: their rooms are free again. */
static d9d_status reduce_finish_others(d9d_sharded *s)
{
    for (size_t i = 0; i < s->n_units; i++)
        D9D_TRY(reduce_finish(&s->units[i]));
    return D9D_OK;
}

static d9d_status reduce_bundle(unit *u, bundle *b)
{
    d9d_device *dev = u->owner->dev;
    d9d_stream queue = d9d_comm_queue(b->comm);

    D9D_TRY(each_part(u, b, true, d9di_reduce_pack));
    D9D_TRY(d9d_comm_fork(b->comm, dev->stream));
    d9d_trace_beside(dev, queue, "reduce", u->parts.p[b->first]->name);
    D9D_TRY(together(u, b, true, d9di_reduce_start));
    D9D_TRY(each_part(u, b, true, d9di_reduce_add));
    d9d_trace_beside_end(dev, queue);
    b->reduced.comm = b->comm;
    for (size_t i = b->first; i < b->first + b->n; i++)
        u->parts.p[i]->late = &b->reduced;
    return d9d_comm_point_set(b->comm, &b->reduced.at);
}

static d9d_status reduce_start(unit *u)
{
    for (size_t i = 0; i < u->n_bundles; i++)
        D9D_TRY(reduce_bundle(u, &u->bundles[i]));
    u->reducing = true;
    return D9D_OK;
}

/* Backward has closed the unit for the last time in this micro-batch.  Behind the first unit it
 * computes nothing: there the sums of the unit before go on, and the norm begins beside them. */
static d9d_status unit_done(unit *u)
{
    d9d_sharded *s = u->owner;

    u->visited = 0;
    u->done = s->last;
    if (u->parts.n > 0 && (s->last || !s->how.reduce_once)) {
        if (!s->last || u != s->order[0])
            D9D_TRY(reduce_finish_others(s));
        D9D_TRY(reduce_start(u));
    }
    return s->last ? d9di_buckets_done(&s->buckets, u->number, s->dev) : D9D_OK;
}

/* --- the unit's table --------------------------------------------------------------------- */

/* The last unit of a forward is the first of a backward that follows at once, and may make
 * gradients in the one as in the other. */
static bool is_turn(const unit *u, d9d_unit_pass pass)
{
    const d9d_sharded *s = u->owner;

    return pass == D9D_UNIT_FORWARD && s->back_at_once && u == s->order[s->n_order - 1];
}

static d9d_status unit_open(d9d_unit *base, d9d_unit_pass pass)
{
    unit *u = (unit *)base;

    D9D_TRY(gather_start(u));
    D9D_TRY(gather_finish(u));
    if (pass == D9D_UNIT_BACKWARD || is_turn(u, pass)) {
        D9D_TRY(reduce_finish(u));
        D9D_TRY(grads_take(u));
    }
    if (u->open++ > 0)
        return D9D_OK;
    follow(u->owner, u, pass);
    return gather_ahead(u->owner, pass);
}

/* Do whole parameters wait for backward, which comes at once or at the price of their memory? */
static bool stays(const unit *u, d9d_unit_pass pass)
{
    const d9d_sharded *s = u->owner;

    return is_turn(u, pass) || (pass == D9D_UNIT_FORWARD && s->how.keep && s->learns);
}

static d9d_status unit_close(d9d_unit *base, d9d_unit_pass pass)
{
    unit *u = (unit *)base;

    if (--u->open > 0)
        return D9D_OK;
    if (!stays(u, pass))
        drop(u);
    return pass == D9D_UNIT_BACKWARD && ++u->visited == u->visits ? unit_done(u) : D9D_OK;
}

static const d9d_unit_ops unit_ops = {unit_open, unit_close};

/* --- making it ---------------------------------------------------------------------------- */

static d9d_status add_part(unit *u, d9d_param *p, d9d_arena *a)
{
    int64_t *counts = d9d_arena_alloc(a, 2 * (size_t)d9d_comm_size(p->shard) * sizeof(*counts));

    if (counts == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for the sizes of its parts", p->name);
    d9di_parts_init(&u->moving[u->parts.n], p, counts);
    u->parts.p[u->parts.n++] = p;
    return D9D_OK;
}

static bool is_bundled(const unit *u, const d9d_comm *c)
{
    for (size_t i = 0; i < u->n_bundles; i++)
        if (u->bundles[i].comm == c)
            return true;
    return false;
}

/* The parameters that lie as the k-th one does. */
static d9d_status add_bundle(unit *u, size_t k, d9d_arena *a)
{
    bundle *b = &u->bundles[u->n_bundles++];

    *b = (bundle){.comm = u->all.p[k]->shard, .first = u->parts.n};
    for (size_t i = k; i < u->all.n; i++)
        if (u->all.p[i]->shard == b->comm)
            D9D_TRY(add_part(u, u->all.p[i], a));
    b->n = u->parts.n - b->first;
    return D9D_OK;
}

static d9d_status parts_list(unit *u, d9d_arena *a)
{
    u->parts.p = d9d_arena_alloc(a, (u->all.n + 1) * sizeof(d9d_param *));
    u->moving = d9d_arena_alloc(a, (u->all.n + 1) * sizeof(*u->moving));
    u->bundles = d9d_arena_alloc(a, (u->all.n + 1) * sizeof(*u->bundles));
    if (u->parts.p == NULL || u->moving == NULL || u->bundles == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for a unit of %zu parameters", u->all.n);
    for (size_t i = 0; i < u->all.n; i++)
        if (u->all.p[i]->shard != NULL && !is_bundled(u, u->all.p[i]->shard))
            D9D_TRY(add_bundle(u, i, a));
    return D9D_OK;
}

/* The unit of a module, made at its first place in the order. */
static d9d_status unit_at(d9d_sharded *s, d9d_module *m, unit **out)
{
    unit *u = &s->units[s->n_units];

    *out = (unit *)m->unit;
    if (m->unit != NULL)
        return D9D_OK;
    *u = (unit){.base = {.ops = &unit_ops}, .owner = s, .module = m, .number = s->n_units};
    D9D_TRY(d9d_module_params(m, &s->arena, &u->all));
    D9D_TRY(parts_list(u, &s->arena));
    s->n_units++;
    m->unit = &u->base;
    *out = u;
    return D9D_OK;
}

/* In the order of backward. */
static d9d_status buckets_make(d9d_sharded *s)
{
    s->buckets.most = s->how.bucket_bytes;
    for (size_t k = s->n_units; s->how.with_grads && k-- > 0;)
        for (size_t i = s->units[k].all.n; i-- > 0;)
            D9D_TRY(d9di_buckets_add(&s->buckets, k, s->units[k].all.p[i]));
    return d9di_buckets_fill(&s->buckets, s->dev);
}

static uint64_t whole_bytes(const d9d_param *p, d9d_dtype t)
{
    return (uint64_t)d9d_shape_numel(&p->work) * d9d_dtype_size(t);
}

/* Of parameters that are put together for a unit. */
typedef struct needed {
    uint64_t data, grads;
} needed;

static d9d_status add_needed(void *arg, d9d_param *p)
{
    needed *b = arg;

    if (p->shard == NULL)
        return D9D_OK;
    b->data += whole_bytes(p, p->dtype);
    b->grads += p->trainable ? whole_bytes(p, p->grad_dtype) : 0;
    return D9D_OK;
}

d9d_status d9d_sharded_bytes(const d9d_model *m, const d9d_sharded_how *how, uint64_t *out)
{
    const bool keep = how->keep && how->with_grads, once = how->reduce_once && how->with_grads;
    needed all = {0};
    uint64_t most = 0;

    D9D_TRY(d9d_module_each(m->module, add_needed, &all));
    for (size_t i = 0; i < m->n_units; i++) {
        needed b = {0};
        uint64_t n;

        D9D_TRY(d9d_module_each(m->units[i], add_needed, &b));
        n = (keep ? 0 : b.data) + (how->with_grads && !once ? b.grads : 0);
        most = n > most ? n : most;
    }
    *out = most + (keep ? all.data : 0) + (once ? all.grads : 0);
    return D9D_OK;
}

/* The ranks of every bundle, once. */
static d9d_status reaches_make(d9d_sharded *s)
{
    size_t most = 0;

    for (size_t i = 0; i < s->n_units; i++)
        most += s->units[i].n_bundles;
    s->reaches = d9d_arena_alloc(&s->arena, (most + 1) * sizeof(*s->reaches));
    if (s->reaches == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for %zu groups of ranks", most);
    for (size_t i = 0; i < s->n_units; i++)
        for (size_t k = 0; k < s->units[i].n_bundles; k++) {
            bundle *b = &s->units[i].bundles[k];
            size_t at = 0;

            while (at < s->n_reaches && s->reaches[at].comm != b->comm)
                at++;
            if (at == s->n_reaches)
                s->reaches[s->n_reaches++] = (reach){.comm = b->comm};
            b->reach = &s->reaches[at];
        }
    return D9D_OK;
}

/* How many parameters are kept in parts, or have gradients to be summed. */
static d9d_status count_kept(void *arg, d9d_param *p)
{
    *(size_t *)arg += p->shard != NULL || p->sum != NULL;
    return D9D_OK;
}

static d9d_status make(d9d_sharded *s, d9d_model *m, size_t wanted)
{
    size_t have = 0;

    s->units = d9d_arena_alloc(&s->arena, m->n_units * sizeof(*s->units));
    s->order = d9d_arena_alloc(&s->arena, m->n_units * sizeof(*s->order));
    if (s->units == NULL || s->order == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for %zu units", m->n_units);
    for (size_t i = 0; i < m->n_units; i++) {
        D9D_TRY(unit_at(s, m->units[i], &s->order[i]));
        s->order[i]->visits++;
        s->n_order++;
    }
    for (size_t i = 0; i < s->n_units; i++)
        D9D_TRY(d9d_module_each(s->units[i].module, count_kept, &have));
    if (have != wanted)
        return D9D_FAIL(D9D_EINVAL, "%s: %zu of %zu placed parameters are in units", m->ops->name,
                        have, wanted);
    D9D_TRY(reaches_make(s));
    return buckets_make(s);
}

d9d_status d9d_sharded_create(d9d_model *m, d9d_device *dev, const d9d_sharded_how *how,
                              d9d_sharded **out)
{
    size_t wanted = 0;
    d9d_sharded *s;
    d9d_status st;

    *out = NULL;
    D9D_TRY(d9d_module_each(m->module, count_kept, &wanted));
    if (wanted == 0)
        return D9D_OK;
    s = calloc(1, sizeof(*s));
    if (s == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for the units of a model");
    s->how = *how;
    s->dev = dev;
    st = make(s, m, wanted);
    if (st == D9D_OK)
        *out = s;
    else
        d9d_sharded_free(s);
    return st;
}

void d9d_sharded_moves(d9d_sharded *s)
{
    for (size_t i = 0; s != NULL && i < s->n_units; i++)
        (void)!forget(&s->units[i]);
    for (size_t i = 0; s != NULL && i < s->n_reaches; i++) {
        reach *r = &s->reaches[i];

        d9d_comm_unshare(r->shared);
        *r = (reach){.comm = r->comm, .passed = r->passed};
    }
    if (s != NULL)
        s->reached = false;
}

void d9d_sharded_free(d9d_sharded *s)
{
    if (s == NULL)
        return;
    d9d_sharded_moves(s);
    for (size_t i = 0; i < s->n_units; i++) {
        unit *u = &s->units[i];

        u->module->unit = NULL;
        for (size_t k = 0; k < u->n_bundles; k++) {
            arrived(u, &u->bundles[k]);
            d9d_comm_point_free(u->bundles[k].comm, u->bundles[k].gathered);
            d9d_comm_point_free(u->bundles[k].comm, u->bundles[k].reduced.at);
        }
    }
    for (size_t i = 0; i < s->n_reaches; i++)
        d9d_comm_point_free(s->reaches[i].comm, s->reaches[i].passed);
    d9di_buckets_release(&s->buckets);
    d9d_arena_release(&s->arena);
    free(s);
}

/* --- a step ------------------------------------------------------------------------------- */

void d9d_sharded_forward(d9d_sharded *s, bool learns, bool back_at_once)
{
    if (s == NULL)
        return;
    s->learns = learns;
    s->back_at_once = learns && back_at_once;
    s->at = 0;
}

void d9d_sharded_backward(d9d_sharded *s, bool last)
{
    if (s == NULL)
        return;
    s->last = last;
    s->at = s->n_order - 1;
    for (size_t i = 0; i < s->n_units; i++)
        s->units[i].visited = 0;
    for (size_t i = 0; last && i < s->n_units; i++)
        s->units[i].done = false;
    if (last)
        d9di_buckets_begin(&s->buckets);
}

/* A unit that the step did not use, or not as often as the model might have: a head in whose place
 * a task has another. */
static d9d_status finish_unused(d9d_sharded *s)
{
    for (size_t i = 0; s->last && i < s->n_units; i++) {
        unit *u = &s->units[i];

        if (u->done)
            continue;
        D9D_TRY(u->visited > 0 ? unit_done(u) : d9di_buckets_done(&s->buckets, u->number, s->dev));
    }
    return D9D_OK;
}

d9d_status d9d_sharded_done(d9d_sharded *s)
{
    if (s == NULL)
        return D9D_OK;
    D9D_TRY(finish_unused(s));
    s->last = false;
    for (size_t i = 0; i < s->n_reaches; i++)
        D9D_TRY(fence_out(&s->reaches[i]));
    return D9D_OK;
}

d9d_status d9d_sharded_end(d9d_sharded *s)
{
    D9D_TRY(d9d_sharded_done(s));
    if (s == NULL)
        return D9D_OK;
    D9D_TRY(reduce_finish_others(s));
    D9D_TRY(d9di_buckets_end(&s->buckets, s->dev));
    d9d_trace_lap(s->dev, "wait", "for sums");
    D9D_TRY(d9d_sharded_drop(s));
    for (size_t i = 0; i < s->n_reaches; i++)
        D9D_TRY(d9d_comm_join_at(s->reaches[i].comm, s->reaches[i].passed, s->dev->stream));
    d9d_trace_lap(s->dev, "wait", "for readers");
    return D9D_OK;
}

/* --- the next one ------------------------------------------------------------------------- */

/* The i-th of different units with parts in the order of forward, or NULL. */
static unit *first_unit(const d9d_sharded *s, size_t i)
{
    const unit *before = NULL;

    for (size_t k = 0; s != NULL && k < s->n_order; k++) {
        unit *u = s->order[k];

        if (u == before || u->parts.n == 0)
            continue;
        if (i-- == 0)
            return u;
        before = u;
    }
    return NULL;
}

size_t d9d_sharded_first(const d9d_sharded *s, const d9d_params *first[D9D_SHARDED_AHEAD])
{
    const unit *u;
    size_t n = 0;

    for (; n < D9D_SHARDED_AHEAD && (u = first_unit(s, n)) != NULL; n++)
        first[n] = &u->all;
    return n;
}

/* Parts of the others are not what they will be, so that a gather of those asks again. */
d9d_status d9d_sharded_ahead(d9d_sharded *s, size_t i)
{
    unit *u = first_unit(s, i);

    if (u == NULL)
        return D9D_OK;
    D9D_TRY(gather_start(u));
    for (size_t k = 0; k < s->n_reaches; k++)
        s->reaches[k].current = false;
    return D9D_OK;
}

d9d_status d9d_sharded_drop(d9d_sharded *s)
{
    for (size_t i = 0; s != NULL && i < s->n_units; i++)
        D9D_TRY(forget(&s->units[i]));
    return D9D_OK;
}
