/* fsdp.c - FSDP: the state machine of a model's units.  See d9d/parallel/fsdp.h.
 *
 *     SHARDED --unit_unshard_start--> UNSHARDING --unit_unshard_wait--> UNSHARDED
 *        '<---------------- unit_free_unsharded -------------------------'
 *
 * Each unit's sharded parameters are bundled by process group (param_group), so that one coalesced
 * all-gather or reduce-scatter moves them.
 */
#include "d9d/parallel/fsdp.h"

#include <stdlib.h>
#include <string.h>

#include "d9d/device/trace.h"
#include "parallel/buckets.h"
#include "parallel/fsdp_fp8.h"

/* State of a unit's full parameters. */
typedef enum shard_state { SHARDED, UNSHARDING, UNSHARDED } shard_state;

/* A process group over which parameters are sharded, and its peer memory. */
typedef struct peer_memory {
    d9d_comm *comm;
    d9d_peer_memory *shared;      /* NULL: all-gather instead of peer reads */
    bool peers_ready;             /* all ranks' shards are final for this step */
    bool was_read;                /* peers may have read some since they changed */
    d9d_comm_event *readers_done; /* recorded after the last peer's read */
} peer_memory;

/* Parameters of a unit that are sharded over the same ranks: contiguous, moved together. */
typedef struct param_group {
    d9d_comm *comm;
    peer_memory *peer_memory;
    size_t first, n;             /* range in the unit's sharded parameters */
    d9di_fsdp_fp8_maxima maxima; /* of those that are gathered in 8 bits */
    d9d_comm_event *unsharded_event;
    d9d_pending_reduce reduced;
} param_group;

typedef struct fsdp_unit {
    d9d_param_unit base;
    d9d_fsdp *owner;
    d9d_module *module;
    size_t number;              /* index of the unit */
    d9d_params all;             /* all parameters of the module */
    d9d_params sharded;         /* those that are sharded */
    d9di_fsdp_param *transfers; /* [sharded.n] */
    param_group *groups;
    size_t n_groups;
    shard_state shard_state;
    int open;                 /* nesting depth of unshard */
    int visits, visited;      /* visits by a forward; visited by this micro-batch's backward */
    bool done;                /* the step's last backward is done with it */
    bool reducing;            /* reductions of its gradients are in flight */
    d9d_param_unit_pass pass; /* that unsharded it */
} fsdp_unit;

struct d9d_fsdp {
    d9d_fsdp_opts opts;
    d9d_device *dev;
    fsdp_unit *units;
    size_t n_units;
    fsdp_unit **order; /* in the order of forward; a unit may occur twice */
    size_t n_order, at;
    peer_memory *peers;
    size_t n_peers;
    bool peers_mapped;     /* peer memory is mapped where possible */
    bool with_backward;    /* a backward follows this forward */
    bool backward_follows; /* and directly after it */
    bool last;             /* this backward is the step's last */
    d9di_buckets buckets;
    d9d_fsdp_unit_hook *unit_hook; /* NULL: none */
    void *unit_hook_arg;
    d9d_fsdp_post_accumulate_grad_hook *grads_hook; /* NULL: none */
    void *grads_hook_arg;
    d9d_params final; /* those of a call of grads_hook */
    d9d_arena arena;
};

/* --- collectives of a group ------------------------------------------------------------------- */

typedef d9d_status part_fn(d9di_fsdp_param *t, d9d_param *p, d9d_device *dev);

/* Call fn for the group's parameters that have a gradient, or for all. */
static d9d_status group_for_each(fsdp_unit *u, const param_group *b, bool with_grad, part_fn *fn)
{
    for (size_t i = b->first; i < b->first + b->n; i++)
        if (!with_grad || u->sharded.p[i]->local.has_grad)
            D9D_TRY(fn(&u->transfers[i], u->sharded.p[i], u->owner->dev));
    return D9D_OK;
}

/* The same as one coalesced collective on the group's stream; the first failure counts. */
static d9d_status group_coalesced(fsdp_unit *u, const param_group *b, bool with_grad, part_fn *fn)
{
    d9d_err_copy why;
    d9d_status st;

    D9D_TRY(d9d_comm_group_start(b->comm));
    st = group_for_each(u, b, with_grad, fn);
    if (st == D9D_OK)
        return d9d_comm_group_end(b->comm);
    d9d_err_save(&why, st);
    (void)!d9d_comm_group_end(b->comm);
    return d9d_err_restore(&why);
}

/* --- peer memory ------------------------------------------------------------------------------ */

/* Enumerate the shards over these ranks in the order of units: set their indices, and their
 * addresses in `local` unless NULL. */
static size_t peer_addresses(d9d_fsdp *s, const peer_memory *r, void **local)
{
    size_t n = 0;

    for (size_t i = 0; i < s->n_units; i++)
        for (size_t k = 0; k < s->units[i].sharded.n; k++) {
            const d9d_param *p = s->units[i].sharded.p[k];
            d9di_fsdp_param *t = &s->units[i].transfers[k];

            if (p->placement.shard_group != r->comm || p->fp8.gather != NULL)
                continue;
            if (local != NULL)
                local[n] = d9d_tensor_data(&p->shard.data);
            t->shared = r->shared;
            t->shared_index = n++;
        }
    return n;
}

static d9d_status peer_memory_map(d9d_fsdp *s, peer_memory *r)
{
    const size_t n = peer_addresses(s, r, NULL);
    void **local = calloc(n + 1, sizeof(*local));
    d9d_status st;

    if (local == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for the placements of %zu parameters", n);
    (void)peer_addresses(s, r, local);
    st = d9d_peer_map(r->comm, "weights", local, n, &r->shared);
    (void)peer_addresses(s, r, NULL);
    free(local);
    return st;
}

/* Map peer memory, once the shards are allocated. */
static d9d_status peer_memory_map_all(d9d_fsdp *s)
{
    for (size_t i = 0; !s->peers_mapped && i < s->n_peers; i++)
        D9D_TRY(peer_memory_map(s, &s->peers[i]));
    s->peers_mapped = true;
    return D9D_OK;
}

/* Before peers' shards are read: wait until all ranks' shards are final. */
static d9d_status peers_wait_ready(peer_memory *r, d9d_stream stream)
{
    if (r->shared == NULL)
        return D9D_OK;
    r->was_read = true;
    if (r->peers_ready)
        return D9D_OK;
    r->peers_ready = true;
    return d9d_peer_barrier(r->shared, stream);
}

/* Before this rank's shards change: wait until all peers have read them.  Their reads are on the
 * same stream. */
static d9d_status peers_wait_readers(peer_memory *r)
{
    if (!r->was_read)
        return D9D_OK;
    r->was_read = r->peers_ready = false;
    D9D_TRY(d9d_peer_barrier(r->shared, d9d_comm_stream(r->comm)));
    return d9d_comm_event_record(r->comm, &r->readers_done);
}

/* The device's stream has waited for the group's reduce-scatter; all-reduces of buckets may
 * follow. */
static void group_reduce_done(fsdp_unit *u, const param_group *b)
{
    for (size_t i = b->first; i < b->first + b->n; i++) {
        d9di_fsdp_param_reduce_finish(&u->transfers[i]);
        if (u->sharded.p[i]->shard.pending_reduce == &b->reduced)
            u->sharded.p[i]->shard.pending_reduce = NULL;
    }
}

/* --- unshard ---------------------------------------------------------------------------------- */

static d9d_status param_unshard_start(d9di_fsdp_param *t, d9d_param *p, d9d_device *dev)
{
    if (p->fp8.gather != NULL)
        return d9di_fsdp_fp8_start(t, p, dev);
    return p->local.data.storage != NULL ? D9D_OK : d9di_fsdp_param_unshard_start(t, p, dev);
}

static d9d_status param_unshard_finish(d9di_fsdp_param *t, d9d_param *p, d9d_device *dev)
{
    return p->fp8.gather != NULL ? d9di_fsdp_fp8_finish(t, p, dev)
                                 : d9di_fsdp_param_unshard_finish(t, p, dev);
}

static d9d_status group_unshard(fsdp_unit *u, param_group *b)
{
    d9d_device *dev = u->owner->dev;
    d9d_stream stream = d9d_comm_stream(b->comm);

    D9D_TRY(d9d_comm_wait_stream(b->comm, dev->stream));
    d9d_trace_stream_range_begin(dev, stream, "unshard", u->sharded.p[b->first]->name);
    D9D_TRY(peers_wait_ready(b->peer_memory, stream));
    D9D_TRY(d9di_fsdp_fp8_maxima_find(&b->maxima, &u->transfers[b->first], &u->sharded.p[b->first],
                                      b->n, dev));
    D9D_TRY(group_coalesced(u, b, false, param_unshard_start));
    d9d_trace_stream_range_end(dev, stream);
    return d9d_comm_event_record(b->comm, &b->unsharded_event);
}

/* The copies in 8 bits of parameter i that a pass reads and that are neither there nor coming. */
static unsigned copies_missing(const fsdp_unit *u, size_t i, d9d_param_unit_pass pass)
{
    const d9di_fsdp_param_fp8 *t = &u->transfers[i].fp8;

    return u->sharded.p[i]->fp8.gather == NULL
               ? 0
               : d9di_fsdp_fp8_missing(u->sharded.p[i], t->wanted[pass != D9D_PARAM_UNIT_FORWARD]) &
                     ~t->coming;
}

static bool group_lacks(const fsdp_unit *u, const param_group *b, d9d_param_unit_pass pass)
{
    unsigned missing = 0;

    for (size_t i = b->first; i < b->first + b->n; i++)
        missing |= copies_missing(u, i, pass);
    return u->shard_state == SHARDED || missing != 0;
}

static bool unit_lacks(const fsdp_unit *u, d9d_param_unit_pass pass)
{
    bool lacks = false;

    for (size_t i = 0; i < u->n_groups; i++)
        lacks = lacks || group_lacks(u, &u->groups[i], pass);
    return lacks;
}

/* Staging buffers remain of an unshard that failed. */
static void unit_free_unsharded(fsdp_unit *u)
{
    for (size_t i = 0; i < u->sharded.n; i++) {
        d9d_param *p = u->sharded.p[i];

        d9d_param_forget_quantised(p);
        d9d_tensor_release(&u->transfers[i].staging);
        d9d_tensor_release(&u->transfers[i].fp8.cols_staging);
        u->transfers[i].fp8.coming = 0;
        d9d_tensor_release(&p->local.data);
        p->local.data = d9d_param_stored(p, &p->local);
    }
    u->shard_state = SHARDED;
}

/* A transfer of the unit failed.  What its groups' streams still use may not be freed before they
 * are done with it. */
static d9d_status unit_abandon(fsdp_unit *u, d9d_status st)
{
    d9d_err_copy why;

    d9d_err_save(&why, st);
    for (size_t i = 0; i < u->n_groups; i++)
        (void)!d9d_stream_wait_comm(u->groups[i].comm, u->owner->dev->stream);
    unit_free_unsharded(u);
    for (size_t i = 0; i < u->n_groups; i++)
        group_reduce_done(u, &u->groups[i]);
    u->reducing = false;
    return d9d_err_restore(&why);
}

static d9d_status unit_unshard_wait(fsdp_unit *u)
{
    d9d_device *dev = u->owner->dev;

    if (u->shard_state == UNSHARDED)
        return D9D_OK;
    for (size_t i = 0; i < u->n_groups; i++)
        D9D_TRY(
            d9d_stream_wait_event(u->groups[i].comm, u->groups[i].unsharded_event, dev->stream));
    d9d_trace_mark(dev, "FSDP wait", "unshard");
    for (size_t i = 0; i < u->n_groups; i++)
        D9D_TRY(group_for_each(u, &u->groups[i], false, param_unshard_finish));
    u->shard_state = UNSHARDED;
    return D9D_OK;
}

/* Unshard for a pass.  A unit that is unsharded for another one may lack copies in 8 bits, which
 * are gathered then. */
static d9d_status unit_unshard_start(fsdp_unit *u, d9d_param_unit_pass pass)
{
    d9d_status st = D9D_OK;

    if (!unit_lacks(u, pass))
        return D9D_OK;
    if (u->shard_state == UNSHARDING)
        D9D_TRY(unit_unshard_wait(u));
    D9D_TRY(peer_memory_map_all(u->owner));
    for (size_t i = 0; st == D9D_OK && i < u->n_groups; i++) {
        param_group *b = &u->groups[i];

        if (!group_lacks(u, b, pass))
            continue;
        for (size_t k = b->first; k < b->first + b->n; k++)
            u->transfers[k].fp8.coming = copies_missing(u, k, pass);
        st = group_unshard(u, b);
    }
    if (st != D9D_OK)
        return unit_abandon(u, st);
    u->shard_state = UNSHARDING;
    return D9D_OK;
}

/* A product reads copies that were not foreseen: of a layer that is computed again, for example.
 * From now on they come with the others.  All ranks of the group ask for them in the same order. */
static d9d_status unit_gather_copies(void *unit, d9d_param *p, bool rows, bool cols)
{
    fsdp_unit *u = unit;

    if (u->shard_state == SHARDED)
        return D9D_FAIL(D9D_EINVAL, "%s: a product reads it while its unit is not unsharded",
                        p->name);
    for (size_t i = 0; i < u->sharded.n; i++)
        if (u->sharded.p[i] == p)
            u->transfers[i].fp8.wanted[u->pass != D9D_PARAM_UNIT_FORWARD] |=
                (rows ? D9DI_FSDP_FP8_ROWS : 0u) | (cols ? D9DI_FSDP_FP8_COLS : 0u);
    D9D_TRY(unit_unshard_start(u, u->pass));
    return unit_unshard_wait(u);
}

/* Reshard a unit that was prefetched and not used. */
static d9d_status unit_reshard(fsdp_unit *u)
{
    if (u->shard_state == SHARDED)
        return D9D_OK;
    D9D_TRY(unit_unshard_wait(u));
    unit_free_unsharded(u);
    return D9D_OK;
}

/* Update s->at, the position in the order of the unit that is unsharded now; search from the last
 * position on. */
static void order_follow(d9d_fsdp *s, const fsdp_unit *u, d9d_param_unit_pass pass)
{
    for (size_t k = 0; k < s->n_order; k++) {
        const size_t i =
            (s->at + s->n_order + (pass == D9D_PARAM_UNIT_FORWARD ? k : -k)) % s->n_order;

        if (s->order[i] == u) {
            s->at = i;
            return;
        }
    }
}

/* The unit `ahead` places after the one that computes, in the order of the pass, or NULL. */
static fsdp_unit *next_unit(const d9d_fsdp *s, d9d_param_unit_pass pass, size_t ahead)
{
    if (pass == D9D_PARAM_UNIT_FORWARD)
        return s->at + ahead < s->n_order ? s->order[s->at + ahead] : NULL;
    return s->at >= ahead ? s->order[s->at - ahead] : NULL;
}

/* Prefetch the next units, if that can overlap with computation. */
static d9d_status prefetch_next(d9d_fsdp *s, d9d_param_unit_pass pass)
{
    for (int ahead = 1; ahead <= s->opts.prefetch; ahead++) {
        fsdp_unit *next = next_unit(s, pass, (size_t)ahead);

        if (next != NULL && next->n_groups > 0 && d9d_comm_stream(next->groups[0].comm) != NULL)
            D9D_TRY(unit_unshard_start(next, pass));
    }
    return D9D_OK;
}

/* --- gradients -------------------------------------------------------------------------------- */

static d9d_status grads_alloc(fsdp_unit *u)
{
    if (u->owner->opts.release_grads)
        D9D_TRY(d9di_buckets_alloc_unit(&u->owner->buckets, u->number, u->owner->dev));
    for (size_t i = 0; i < u->sharded.n; i++) {
        d9d_param *p = u->sharded.p[i];

        if (p->spec.trainable && p->local.grad.storage == NULL)
            D9D_TRY(d9d_tensor_alloc(u->owner->dev, p->spec.grad_dtype, p->local.shape,
                                     &p->local.grad));
    }
    return D9D_OK;
}

/* Shards of gradients that are released and have no memory; a bucket brings its own. */
static d9d_status shard_grads_alloc(const fsdp_unit *u)
{
    for (size_t i = 0; i < u->sharded.n; i++) {
        d9d_param *p = u->sharded.p[i];

        if (p->grad_on_demand && p->local.has_grad && p->shard.grad.storage == NULL)
            D9D_TRY(d9d_tensor_alloc(u->owner->dev, p->spec.grad_dtype, p->shard.shape,
                                     &p->shard.grad));
    }
    return D9D_OK;
}

/* What makes a gradient final. */
typedef enum final_by { FINAL_BY_BACKWARD, FINAL_BY_REDUCE_SCATTER, FINAL_BY_BUCKET } final_by;

static final_by final_by_of(const d9d_param *p)
{
    if (p->placement.grad_group != NULL)
        return FINAL_BY_BUCKET;
    return p->placement.shard_group != NULL ? FINAL_BY_REDUCE_SCATTER : FINAL_BY_BACKWARD;
}

/* Of these parameters, the gradients of one kind are final: the hook, then their memory is free. */
static d9d_status grads_finish(d9d_fsdp *s, d9d_param *const *p, size_t n, final_by by)
{
    if (!s->opts.release_grads || s->grads_hook == NULL)
        return D9D_OK;
    s->final.n = 0;
    for (size_t i = 0; i < n; i++)
        if (final_by_of(p[i]) == by && d9d_param_has_shard_grad(p[i]))
            s->final.p[s->final.n++] = p[i];
    if (s->final.n > 0)
        D9D_TRY(s->grads_hook(s->grads_hook_arg, &s->final));
    for (size_t i = 0; i < n; i++)
        if (final_by_of(p[i]) == by)
            d9d_param_grad_clear(p[i]);
    return D9D_OK;
}

static d9d_status unit_grads_finish(fsdp_unit *u, final_by by)
{
    return u->done ? grads_finish(u->owner, u->all.p, u->all.n, by) : D9D_OK;
}

static d9d_status bucket_grads_finish(void *fsdp, d9d_param *const *p, size_t n)
{
    return grads_finish(fsdp, p, n, FINAL_BY_BUCKET);
}

static d9d_status unit_reduce_wait(fsdp_unit *u)
{
    d9d_device *dev = u->owner->dev;

    if (!u->reducing)
        return D9D_OK;
    for (size_t i = 0; i < u->n_groups; i++)
        D9D_TRY(d9d_stream_wait_event(u->groups[i].comm, u->groups[i].reduced.event, dev->stream));
    d9d_trace_mark(dev, "FSDP wait", "reduce_scatter");
    for (size_t i = 0; i < u->n_groups; i++)
        group_reduce_done(u, &u->groups[i]);
    u->reducing = false;
    return unit_grads_finish(u, FINAL_BY_REDUCE_SCATTER);
}

/* Wait for the reductions of earlier units, whose buffers are then free. */
static d9d_status units_reduce_wait(d9d_fsdp *s)
{
    for (size_t i = 0; i < s->n_units; i++)
        D9D_TRY(unit_reduce_wait(&s->units[i]));
    return D9D_OK;
}

/* Wait for those of buckets too. */
static d9d_status all_reduce_wait(d9d_fsdp *s)
{
    D9D_TRY(units_reduce_wait(s));
    return d9di_buckets_wait(&s->buckets, s->dev);
}

static d9d_status group_call_hook(const fsdp_unit *u, const param_group *b)
{
    const d9di_buckets *k = &u->owner->buckets;

    for (size_t i = b->first; k->hook != NULL && i < b->first + b->n; i++)
        if (u->sharded.p[i]->local.has_grad)
            D9D_TRY(k->hook(k->hook_arg, u->sharded.p[i], &u->sharded.p[i]->local.grad));
    return D9D_OK;
}

static d9d_status group_reduce_scatter(fsdp_unit *u, param_group *b)
{
    d9d_device *dev = u->owner->dev;
    d9d_stream stream = d9d_comm_stream(b->comm);

    D9D_TRY(group_call_hook(u, b));
    D9D_TRY(group_for_each(u, b, true, d9di_fsdp_param_reduce_pack));
    D9D_TRY(d9d_comm_wait_stream(b->comm, dev->stream));
    d9d_trace_stream_range_begin(dev, stream, "reduce_scatter", u->sharded.p[b->first]->name);
    D9D_TRY(group_coalesced(u, b, true, d9di_fsdp_param_reduce_start));
    D9D_TRY(group_for_each(u, b, true, d9di_fsdp_param_reduce_accumulate));
    d9d_trace_stream_range_end(dev, stream);
    b->reduced.comm = b->comm;
    for (size_t i = b->first; i < b->first + b->n; i++)
        u->sharded.p[i]->shard.pending_reduce = &b->reduced;
    return d9d_comm_event_record(b->comm, &b->reduced.event);
}

static d9d_status unit_reduce_start(fsdp_unit *u)
{
    d9d_status st = shard_grads_alloc(u);

    for (size_t i = 0; st == D9D_OK && i < u->n_groups; i++)
        st = group_reduce_scatter(u, &u->groups[i]);
    if (st != D9D_OK)
        return unit_abandon(u, st);
    u->reducing = true;
    return D9D_OK;
}

/* Backward has resharded the unit for the last time in this micro-batch.  After the first unit
 * there is no computation left: reductions of the previous unit continue there, and the norm
 * overlaps with them.  Gradients that are released are final when the next unit is done. */
static d9d_status unit_backward_done(fsdp_unit *u)
{
    d9d_fsdp *s = u->owner;

    u->visited = 0;
    u->done = s->last;
    if (s->last && s->unit_hook != NULL)
        D9D_TRY(s->unit_hook(s->unit_hook_arg, &u->all));
    if (s->last && s->opts.release_grads)
        D9D_TRY(all_reduce_wait(s));
    if (u->sharded.n > 0 && (s->last || !s->opts.reduce_once)) {
        if (!s->last || u != s->order[0])
            D9D_TRY(units_reduce_wait(s));
        D9D_TRY(unit_reduce_start(u));
    }
    if (!s->last)
        return D9D_OK;
    D9D_TRY(d9di_buckets_unit_done(&s->buckets, u->number, s->dev));
    return unit_grads_finish(u, FINAL_BY_BACKWARD);
}

/* --- unshard and reshard of a unit ------------------------------------------------------------ */

/* The last unit of a forward is the first of a backward that follows directly; its gradients may be
 * computed in either. */
static bool is_last_before_backward(const fsdp_unit *u, d9d_param_unit_pass pass)
{
    const d9d_fsdp *s = u->owner;

    return pass == D9D_PARAM_UNIT_FORWARD && s->backward_follows && u == s->order[s->n_order - 1];
}

static d9d_status unit_hook_unshard(d9d_param_unit *base, d9d_param_unit_pass pass)
{
    fsdp_unit *u = (fsdp_unit *)base;

    u->pass = pass;
    D9D_TRY(unit_unshard_start(u, pass));
    D9D_TRY(unit_unshard_wait(u));
    if (pass == D9D_PARAM_UNIT_BACKWARD || is_last_before_backward(u, pass)) {
        D9D_TRY(unit_reduce_wait(u));
        D9D_TRY(grads_alloc(u));
    }
    if (u->open++ > 0)
        return D9D_OK;
    order_follow(u->owner, u, pass);
    return prefetch_next(u->owner, pass);
}

/* Do the full parameters stay unsharded after a pass, because backward follows directly or because
 * of the option? */
static bool stays_unsharded(const fsdp_unit *u, d9d_param_unit_pass pass)
{
    const d9d_fsdp *s = u->owner;

    if (pass == D9D_PARAM_UNIT_FORWARD)
        return is_last_before_backward(u, pass) ||
               (s->with_backward && s->opts.reshard != D9D_RESHARD_AFTER_FORWARD);
    return !s->last && s->opts.reshard == D9D_RESHARD_AFTER_STEP;
}

static d9d_status unit_hook_reshard(d9d_param_unit *base, d9d_param_unit_pass pass)
{
    fsdp_unit *u = (fsdp_unit *)base;

    if (--u->open > 0)
        return D9D_OK;
    if (!stays_unsharded(u, pass))
        unit_free_unsharded(u);
    return pass == D9D_PARAM_UNIT_BACKWARD && ++u->visited == u->visits ? unit_backward_done(u)
                                                                        : D9D_OK;
}

static const d9d_param_unit_ops unit_ops = {unit_hook_unshard, unit_hook_reshard};

/* --- creation --------------------------------------------------------------------------------- */

static d9d_status param_add(fsdp_unit *u, param_group *b, d9d_param *p, d9d_arena *a)
{
    d9di_fsdp_param *t = &u->transfers[u->sharded.n];
    int64_t *counts =
        d9d_arena_alloc(a, 3 * (size_t)d9d_comm_size(p->placement.shard_group) * sizeof(*counts));

    if (counts == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for the sizes of its shards", p->name);
    d9di_fsdp_param_init(t, p, u->owner->opts.reduce_dtype, counts);
    if (d9di_fsdp_fp8_is_used(p, u->owner->opts.float8_all_gather)) {
        p->fp8.gather = unit_gather_copies;
        p->fp8.gather_arg = u;
        for (int backward = 0; backward < 2; backward++)
            t->fp8.wanted[backward] = d9di_fsdp_fp8_wanted(p, backward == 0);
        b->maxima.n += d9di_fsdp_fp8_maxima_count(p);
    }
    u->sharded.p[u->sharded.n++] = p;
    return D9D_OK;
}

static bool has_group(const fsdp_unit *u, const d9d_comm *c)
{
    for (size_t i = 0; i < u->n_groups; i++)
        if (u->groups[i].comm == c)
            return true;
    return false;
}

/* Add the group of the parameters that are sharded like the k-th. */
static d9d_status group_add(fsdp_unit *u, size_t k, d9d_arena *a)
{
    param_group *b = &u->groups[u->n_groups++];

    *b = (param_group){.comm = u->all.p[k]->placement.shard_group, .first = u->sharded.n};
    for (size_t i = k; i < u->all.n; i++)
        if (u->all.p[i]->placement.shard_group == b->comm)
            D9D_TRY(param_add(u, b, u->all.p[i], a));
    b->n = u->sharded.n - b->first;
    return D9D_OK;
}

static d9d_status params_list(fsdp_unit *u, d9d_arena *a)
{
    u->sharded.p = d9d_arena_alloc(a, (u->all.n + 1) * sizeof(d9d_param *));
    u->transfers = d9d_arena_alloc(a, (u->all.n + 1) * sizeof(*u->transfers));
    u->groups = d9d_arena_alloc(a, (u->all.n + 1) * sizeof(*u->groups));
    if (u->sharded.p == NULL || u->transfers == NULL || u->groups == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for a unit of %zu parameters", u->all.n);
    for (size_t i = 0; i < u->all.n; i++)
        if (u->all.p[i]->placement.shard_group != NULL &&
            !has_group(u, u->all.p[i]->placement.shard_group))
            D9D_TRY(group_add(u, i, a));
    return D9D_OK;
}

/* The unit of a module, created at its first place in the order. */
static d9d_status unit_at(d9d_fsdp *s, d9d_module *m, fsdp_unit **out)
{
    fsdp_unit *u = &s->units[s->n_units];

    *out = (fsdp_unit *)m->unit;
    if (m->unit != NULL)
        return D9D_OK;
    *u = (fsdp_unit){.base = {.ops = &unit_ops}, .owner = s, .module = m, .number = s->n_units};
    D9D_TRY(d9d_module_params(m, &s->arena, &u->all));
    D9D_TRY(params_list(u, &s->arena));
    s->n_units++;
    m->unit = &u->base;
    *out = u;
    return D9D_OK;
}

/* Build the gradient buckets in the order of backward. */
static d9d_status buckets_build(d9d_fsdp *s)
{
    s->buckets.max_bytes = s->opts.bucket_bytes;
    s->buckets.reduce_dtype = s->opts.reduce_dtype;
    s->buckets.reduced = bucket_grads_finish;
    s->buckets.reduced_arg = s;
    for (size_t k = s->n_units; s->opts.with_grads && k-- > 0;)
        for (size_t i = s->units[k].all.n; i-- > 0;)
            D9D_TRY(d9di_buckets_add(&s->buckets, k, s->units[k].all.p[i]));
    return s->opts.release_grads ? D9D_OK : d9di_buckets_alloc(&s->buckets, s->dev);
}

/* Gradients that are released have memory from backward on, whatever reduces them. */
static d9d_status grads_set_released(d9d_fsdp *s)
{
    size_t n = 0;

    for (size_t k = 0; k < s->n_units; k++) {
        const d9d_params *all = &s->units[k].all;

        for (size_t i = 0; i < all->n; i++)
            all->p[i]->grad_on_demand = all->p[i]->spec.trainable;
        n += all->n;
    }
    s->final.p = d9d_arena_alloc(&s->arena, (n + 1) * sizeof(*s->final.p));
    if (s->final.p == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for a list of %zu gradients", n);
    return D9D_OK;
}

/* The process group of every param_group, once each. */
static d9d_status peers_build(d9d_fsdp *s)
{
    size_t max_groups = 0;

    for (size_t i = 0; i < s->n_units; i++)
        max_groups += s->units[i].n_groups;
    s->peers = d9d_arena_alloc(&s->arena, (max_groups + 1) * sizeof(*s->peers));
    if (s->peers == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for %zu groups of ranks", max_groups);
    for (size_t i = 0; i < s->n_units; i++)
        for (size_t k = 0; k < s->units[i].n_groups; k++) {
            param_group *b = &s->units[i].groups[k];
            size_t at = 0;

            while (at < s->n_peers && s->peers[at].comm != b->comm)
                at++;
            if (at == s->n_peers)
                s->peers[s->n_peers++] = (peer_memory){.comm = b->comm};
            b->peer_memory = &s->peers[at];
        }
    return D9D_OK;
}

/* Count parameters that are sharded or whose gradients are reduced. */
static d9d_status count_managed(void *arg, d9d_param *p)
{
    *(size_t *)arg += p->placement.shard_group != NULL || p->placement.grad_group != NULL;
    return D9D_OK;
}

static d9d_status units_build(d9d_fsdp *s, d9d_model *m, size_t wanted)
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
        D9D_TRY(d9d_module_each(s->units[i].module, count_managed, &have));
    if (have != wanted)
        return D9D_FAIL(D9D_EINVAL, "%s: %zu of %zu placed parameters are in units", m->ops->name,
                        have, wanted);
    D9D_TRY(peers_build(s));
    if (s->opts.release_grads)
        D9D_TRY(grads_set_released(s));
    return buckets_build(s);
}

d9d_status d9d_fsdp_create(d9d_model *m, d9d_device *dev, const d9d_fsdp_opts *opts, d9d_fsdp **out)
{
    size_t wanted = 0;
    d9d_fsdp *s;
    d9d_status st;

    *out = NULL;
    D9D_TRY(d9d_module_each(m->module, count_managed, &wanted));
    if (wanted == 0 && !opts->release_grads)
        return D9D_OK;
    s = calloc(1, sizeof(*s));
    if (s == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for the units of a model");
    s->opts = *opts;
    s->dev = dev;
    st = units_build(s, m, wanted);
    if (st == D9D_OK)
        *out = s;
    else
        d9d_fsdp_free(s);
    return st;
}

void d9d_fsdp_set_grad_hook(d9d_fsdp *s, d9d_fsdp_grad_hook *hook, void *arg)
{
    if (s == NULL)
        return;
    s->buckets.hook = hook;
    s->buckets.hook_arg = arg;
}

void d9d_fsdp_set_unit_hook(d9d_fsdp *s, d9d_fsdp_unit_hook *hook, void *arg)
{
    if (s == NULL)
        return;
    s->unit_hook = hook;
    s->unit_hook_arg = arg;
}

void d9d_fsdp_set_post_accumulate_grad_hook(d9d_fsdp *s, d9d_fsdp_post_accumulate_grad_hook *hook,
                                            void *arg)
{
    if (s == NULL)
        return;
    s->grads_hook = hook;
    s->grads_hook_arg = arg;
}

void d9d_fsdp_forget_scales(d9d_fsdp *s)
{
    for (size_t i = 0; s != NULL && i < s->n_units; i++)
        for (size_t k = 0; k < s->units[i].n_groups; k++)
            s->units[i].groups[k].maxima.is_current = false;
}

void d9d_fsdp_invalidate(d9d_fsdp *s)
{
    d9d_fsdp_forget_scales(s);
    for (size_t i = 0; s != NULL && i < s->n_units; i++) {
        (void)!unit_reshard(&s->units[i]);
        for (size_t k = 0; k < s->units[i].n_groups; k++)
            d9d_tensor_release(&s->units[i].groups[k].maxima.data);
    }
    for (size_t i = 0; s != NULL && i < s->n_peers; i++) {
        peer_memory *r = &s->peers[i];

        d9d_peer_unmap(r->shared);
        *r = (peer_memory){.comm = r->comm, .readers_done = r->readers_done};
    }
    if (s != NULL)
        s->peers_mapped = false;
}

void d9d_fsdp_free(d9d_fsdp *s)
{
    if (s == NULL)
        return;
    s->grads_hook = NULL;
    d9d_fsdp_invalidate(s);
    for (size_t i = 0; i < s->n_units; i++) {
        fsdp_unit *u = &s->units[i];

        u->module->unit = NULL;
        for (size_t k = 0; k < u->sharded.n; k++)
            u->sharded.p[k]->fp8.gather = NULL;
        (void)!unit_reduce_wait(u); /* what a failure left, here and below */
        unit_free_unsharded(u);
        for (size_t k = 0; k < u->n_groups; k++) {
            group_reduce_done(u, &u->groups[k]);
            d9d_comm_event_free(u->groups[k].comm, u->groups[k].unsharded_event);
            d9d_comm_event_free(u->groups[k].comm, u->groups[k].reduced.event);
        }
    }
    for (size_t i = 0; i < s->n_peers; i++)
        d9d_comm_event_free(s->peers[i].comm, s->peers[i].readers_done);
    (void)!d9di_buckets_wait(&s->buckets, s->dev);
    d9di_buckets_release(&s->buckets);
    d9d_arena_release(&s->arena);
    free(s);
}

/* --- a step ----------------------------------------------------------------------------------- */

void d9d_fsdp_pre_forward(d9d_fsdp *s, bool with_backward, bool backward_follows)
{
    if (s == NULL)
        return;
    s->with_backward = with_backward;
    s->backward_follows = with_backward && backward_follows;
    s->at = 0;
}

void d9d_fsdp_pre_backward(d9d_fsdp *s, bool last)
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

/* Finish units that the step did not use, or used less often than the order says, such as a head
 * that a task replaces. */
static d9d_status unused_units_finish(d9d_fsdp *s)
{
    for (size_t i = 0; s->last && i < s->n_units; i++) {
        fsdp_unit *u = &s->units[i];

        if (u->done)
            continue;
        D9D_TRY(u->visited > 0 ? unit_backward_done(u)
                               : d9di_buckets_unit_done(&s->buckets, u->number, s->dev));
    }
    return D9D_OK;
}

d9d_status d9d_fsdp_post_backward(d9d_fsdp *s)
{
    if (s == NULL)
        return D9D_OK;
    D9D_TRY(unused_units_finish(s));
    if (s->last && s->opts.release_grads)
        D9D_TRY(all_reduce_wait(s));
    s->last = false;
    for (size_t i = 0; i < s->n_peers; i++)
        D9D_TRY(peers_wait_readers(&s->peers[i]));
    return D9D_OK;
}

d9d_status d9d_fsdp_wait_grads(d9d_fsdp *s)
{
    D9D_TRY(d9d_fsdp_post_backward(s));
    if (s == NULL)
        return D9D_OK;
    D9D_TRY(units_reduce_wait(s));
    D9D_TRY(d9di_buckets_wait(&s->buckets, s->dev));
    d9d_trace_mark(s->dev, "FSDP wait", "all_reduce");
    D9D_TRY(d9d_fsdp_reshard(s));
    for (size_t i = 0; i < s->n_peers; i++)
        D9D_TRY(d9d_stream_wait_event(s->peers[i].comm, s->peers[i].readers_done, s->dev->stream));
    d9d_trace_mark(s->dev, "FSDP wait", "readers");
    return D9D_OK;
}

/* --- prefetch for the next step --------------------------------------------------------------- */

/* The i-th distinct unit with shards in the order of forward, or NULL. */
static fsdp_unit *first_unit(const d9d_fsdp *s, size_t i)
{
    const fsdp_unit *before = NULL;

    for (size_t k = 0; s != NULL && k < s->n_order; k++) {
        fsdp_unit *u = s->order[k];

        if (u == before || u->sharded.n == 0)
            continue;
        if (i-- == 0)
            return u;
        before = u;
    }
    return NULL;
}

size_t d9d_fsdp_first_units(const d9d_fsdp *s, const d9d_params *first[D9D_FSDP_PREFETCH_MAX])
{
    const fsdp_unit *u;
    size_t n = 0;

    for (; n < D9D_FSDP_PREFETCH_MAX && (u = first_unit(s, n)) != NULL; n++)
        first[n] = &u->all;
    return n;
}

/* Peers' shards are not final yet, so an unshard must wait for them again. */
d9d_status d9d_fsdp_prefetch(d9d_fsdp *s, size_t i)
{
    fsdp_unit *u = first_unit(s, i);

    if (u == NULL)
        return D9D_OK;
    D9D_TRY(unit_unshard_start(u, D9D_PARAM_UNIT_FORWARD));
    for (size_t k = 0; k < s->n_peers; k++)
        s->peers[k].peers_ready = false;
    return D9D_OK;
}

d9d_status d9d_fsdp_reshard(d9d_fsdp *s)
{
    d9d_fsdp_forget_scales(s);
    for (size_t i = 0; s != NULL && i < s->n_units; i++)
        D9D_TRY(unit_reshard(&s->units[i]));
    return D9D_OK;
}
