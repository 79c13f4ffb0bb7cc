/* checkpointer_local.c - see checkpointer/checkpointer_local.h. */
#include "checkpointer/checkpointer_local_private.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "d9d/comm/exchange.h"

enum {
    CHUNK = 32 << 20,
    DATA = D9DI_CHECKPOINTER_LOCAL_DATA,
    SLOTS = D9DI_CHECKPOINTER_LOCAL_SLOTS,
    CONNECT_S = 60
};

typedef d9di_checkpointer_local_header header;
typedef d9di_checkpointer_local_file file;
typedef d9di_checkpointer_local_array array;

/* --- the arrays of a rank --------------------------------------------------------------------- */

static d9d_status array_visit(d9di_checkpointer_local *x, array *a, d9di_checkpointer_local_fn *fn,
                              void *arg)
{
    D9D_TRY(fn(x, a, arg));
    a->at += (a->bytes + 15) / 16 * 16;
    return D9D_OK;
}

d9d_status d9di_checkpointer_local_each(d9di_checkpointer_local *x, d9di_checkpointer_local_fn *fn,
                                        void *arg)
{
    const d9d_checkpointer_set *set = x->opts.set;
    array a = {.at = DATA};

    for (a.item = 0; a.item < set->n; a.item++) {
        a.name = set->items[a.item].name;
        a.tensor = set->items[a.item].tensor;
        a.bytes = d9d_tensor_bytes(a.tensor);
        if (d9d_tensor_numel(a.tensor) > 0)
            D9D_TRY(array_visit(x, &a, fn, arg));
    }
    a.tensor = NULL;
    for (size_t i = 0; i < set->n_counts; i++) {
        a.name = set->counts[i].name;
        a.host = set->counts[i].value;
        a.bytes = sizeof(int64_t);
        D9D_TRY(array_visit(x, &a, fn, arg));
    }
    for (size_t i = 0; i < set->n_rank_states; i++) {
        a.name = set->rank_states[i].name;
        a.host = set->rank_states[i].data;
        a.bytes = (uint64_t)set->rank_states[i].n * d9d_dtype_size(set->rank_states[i].dtype);
        D9D_TRY(array_visit(x, &a, fn, arg));
    }
    return D9D_OK;
}

static d9d_status array_measure(d9di_checkpointer_local *x, const array *a, void *arg)
{
    const uint64_t part[3] = {x->layout, d9d_hash_u64(a->name, strlen(a->name)), a->bytes};

    (void)arg;
    x->layout = d9d_hash_u64(part, sizeof(part));
    x->bytes = a->at - DATA + (a->bytes + 15) / 16 * 16;
    return D9D_OK;
}

static d9d_status array_restore(d9di_checkpointer_local *x, const array *a, void *arg)
{
    const file *f = arg;

    if (a->tensor != NULL)
        return d9d_device_upload(x->opts.dev, d9d_tensor_data(a->tensor), f->data + a->at,
                                 a->bytes);
    memcpy(a->host, f->data + a->at, a->bytes);
    return D9D_OK;
}

/* --- hosts ------------------------------------------------------------------------------------ */

/* The hosts are numbered by their first ranks.  Sets the number of each rank's, and returns how
 * many there are. */
static int hosts_number(const d9di_checkpointer_local *x, int *host)
{
    int n = 0;

    for (int r = 0; r < x->ranks; r++) {
        int earlier = 0;

        while (x->members[earlier].host != x->members[r].host)
            earlier++;
        host[r] = earlier < r ? host[earlier] : n++;
    }
    return n;
}

/* The i-th rank of a host that has some, modulo their number. */
static int rank_of_host(const int *host, int ranks, int which, int i)
{
    int n = 0, k = 0, r = 0;

    for (int j = 0; j < ranks; j++)
        n += host[j] == which;
    i = n > 0 ? i % n : 0;
    while (host[r] != which || k++ != i)
        r++;
    return r;
}

/* Copies go from each host to the next. */
static void targets_set(d9di_checkpointer_local *x, int *host)
{
    const int n = hosts_number(x, host);

    for (int r = 0; r < x->ranks; r++) {
        int index = 0;

        for (int j = 0; j < r; j++)
            index += host[j] == host[r];
        x->members[r].target = n > 1 ? rank_of_host(host, x->ranks, (host[r] + 1) % n, index) : r;
    }
}

static d9d_status members_gather(d9di_checkpointer_local *x)
{
    d9d_bootstrap *bootstrap = d9d_mesh_bootstrap(x->opts.mesh);
    int *numbers = calloc((size_t)x->ranks, sizeof(*numbers));
    char host[PATH_MAX + 300];
    d9d_arena a = {0};
    d9d_bootstrap_blob *all;
    d9di_checkpointer_local_member own;
    d9d_status st = D9D_OK;

    if (numbers == NULL)
        st = D9D_FAIL(D9D_ENOMEM, "no memory for the local checkpoints of %d ranks", x->ranks);
    D9D_TRY_OR(st, d9d_bootstrap_agree_status(bootstrap, st), out);
    (void)snprintf(host, sizeof(host), "%s:%s", d9d_bootstrap_node(bootstrap),
                   d9di_checkpointer_local_dir());
    own = (d9di_checkpointer_local_member){.host = d9d_hash_u64(host, strlen(host)),
                                           .bytes = x->bytes};
    st = d9d_bootstrap_allgather_arena(bootstrap, &own, sizeof(own), &a, &all);
    for (int r = 0; st == D9D_OK && r < x->ranks; r++)
        if (all[r].n == sizeof(own))
            memcpy(&x->members[r], all[r].data, sizeof(own));
    if (st == D9D_OK)
        targets_set(x, numbers);
out:
    free(numbers);
    d9d_arena_release(&a);
    return st;
}

static bool has_targets(const d9di_checkpointer_local *x)
{
    return x->members[0].target != 0; /* which is on the first host */
}

/* --- opening ---------------------------------------------------------------------------------- */

/* Nothing to do for one that is open. */
static d9d_status file_open(d9di_checkpointer_local *x, file *f, int rank, const char *kind,
                            int slot)
{
    if (f->data != NULL)
        return D9D_OK;
    (void)snprintf(f->path, sizeof(f->path), "%s/d9d-%s-%d-%d-%s-%d", d9di_checkpointer_local_dir(),
                   x->id, x->ranks, rank, kind, slot);
    return d9di_checkpointer_local_file_create(f, DATA + x->members[rank].bytes);
}

static d9d_status files_open(d9di_checkpointer_local *x)
{
    for (int s = 0; s < SLOTS; s++) {
        D9D_TRY(file_open(x, &x->own[s], x->rank, "own", s));
        for (int r = 0; has_targets(x) && r < x->ranks; r++)
            if (x->members[r].target == x->rank)
                D9D_TRY(file_open(x, &x->peer[s][r], r, "peer", s));
    }
    return D9D_OK;
}

static d9d_status target_connect(d9di_checkpointer_local *x, const int *target)
{
    const d9d_status st =
        d9d_links_open(d9d_mesh_bootstrap(x->opts.mesh), target, CONNECT_S, &x->links);
    d9d_err_copy why;

    if (st == D9D_OK)
        return D9D_OK;
    d9d_err_save(&why, st);
    return D9D_FAIL(st, "trainer.checkpointing.local_period_steps: %.1900s", why.text);
}

/* For saves. */
static d9d_status links_open(d9di_checkpointer_local *x)
{
    int *target = d9d_arena_alloc(&x->arena, (size_t)x->ranks * sizeof(*target));
    const int *sources;
    size_t n;

    if (target == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for the local checkpoints of %d ranks", x->ranks);
    for (int r = 0; r < x->ranks; r++)
        target[r] = x->members[r].target;
    D9D_TRY(target_connect(x, target));
    n = (size_t)d9d_links_sources(x->links, &sources);
    x->incoming = d9d_arena_alloc(&x->arena, (n + 1) * sizeof(*x->incoming));
    x->received = d9d_arena_alloc(&x->arena, (n + 1) * sizeof(*x->received));
    return x->incoming != NULL && x->received != NULL
               ? D9D_OK
               : D9D_FAIL(D9D_ENOMEM, "no memory for the local checkpoints of %zu ranks", n);
}

/* The slot that is not the found one's. */
static int slot_after(const d9di_checkpointer_local_found *found, int rank)
{
    const char *name = found->step >= 0 ? found->place[rank].file : "";
    const size_t n = strlen(name);

    return n > 0 && name[n - 1] == '0' ? 1 : 0;
}

/* True if a job with another number of ranks wrote what is restored.  Its files are then in memory
 * until that is done; so only the one that receives a state is made before. */
static bool is_of_others(const d9di_checkpointer_local *x,
                         const d9di_checkpointer_local_found *found)
{
    return found->step >= 0 && found->ranks != x->ranks;
}

d9d_status d9di_checkpointer_local_open(const d9di_checkpointer_local_opts *opts,
                                        const d9di_checkpointer_local_found *found,
                                        d9di_checkpointer_local **out)
{
    d9d_bootstrap *bootstrap = d9d_mesh_bootstrap(opts->mesh);
    const size_t ranks = (size_t)d9d_bootstrap_size(bootstrap);
    d9di_checkpointer_local *x = calloc(1, sizeof(*x));
    d9d_status st = D9D_OK;

    *out = NULL;
    if (x == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for local checkpoints");
    x->opts = *opts;
    d9di_checkpointer_worker_init(&x->save.worker);
    (void)snprintf(x->id, sizeof(x->id), "%s", opts->id);
    x->rank = d9d_bootstrap_rank(bootstrap);
    x->ranks = (int)ranks;
    x->members = calloc(ranks, sizeof(*x->members));
    for (int s = 0; s < SLOTS; s++)
        x->peer[s] = calloc(ranks, sizeof(*x->peer[s]));
    if (x->members == NULL || x->peer[0] == NULL || x->peer[1] == NULL)
        st = D9D_FAIL(D9D_ENOMEM, "no memory for the local checkpoints of %zu ranks", ranks);
    if (st == D9D_OK)
        st = d9di_checkpointer_local_each(x, array_measure, NULL);
    if (st == D9D_OK)
        st = d9di_checkpointer_copy_open(&x->copy, opts->set, opts->dev, &x->arena);
    D9D_TRY_OR(st, d9d_bootstrap_agree_status(bootstrap, st), out);
    D9D_TRY_OR(st, members_gather(x), out);
    x->next = slot_after(found, x->rank);
    st = is_of_others(x, found) ? file_open(x, &x->own[1 - x->next], x->rank, "own", 1 - x->next)
                                : files_open(x);
    D9D_TRY_OR(st, d9d_bootstrap_agree_status(bootstrap, st), out);
    st = has_targets(x) ? links_open(x) : D9D_OK;
    D9D_TRY_OR(st, d9d_bootstrap_agree_status(bootstrap, st), out);
    if (found->step < 0)
        d9di_checkpointer_local_remove_others(x->id, x->ranks);
    if (x->ranks > 1 && !has_targets(x))
        d9d_log_warn(opts->log, "trainer.checkpointing.local_period_steps: all ranks are on one "
                                "host; what it takes with it is on the disk only");
    *out = x;
    x = NULL;
out:
    d9di_checkpointer_local_close(x);
    return st;
}

void d9di_checkpointer_local_close(d9di_checkpointer_local *x)
{
    if (x == NULL)
        return;
    d9di_checkpointer_local_abandon(x);
    for (int s = 0; s < SLOTS; s++) {
        d9di_checkpointer_local_file_unmap(&x->own[s]);
        for (int r = 0; x->peer[s] != NULL && r < x->ranks; r++)
            d9di_checkpointer_local_file_unmap(&x->peer[s][r]);
        free(x->peer[s]);
    }
    d9d_links_close(x->links);
    d9di_checkpointer_copy_release(&x->copy);
    d9di_checkpointer_worker_release(&x->save.worker);
    d9d_arena_release(&x->arena);
    free(x->members);
    free(x);
}

void d9di_checkpointer_local_remove(d9di_checkpointer_local *x)
{
    d9di_checkpointer_local_abandon(x);
    for (int s = 0; x != NULL && s < SLOTS; s++) {
        (void)unlink(x->own[s].path);
        for (int r = 0; r < x->ranks; r++)
            if (x->peer[s][r].data != NULL)
                (void)unlink(x->peer[s][r].path);
    }
}

/* --- restoring -------------------------------------------------------------------------------- */

/* Moves a file's bytes between two ranks, chunk by chunk.  `from` is NULL on the receiver, `to` on
 * the sender. */
static d9d_status chunk_move(d9di_checkpointer_local *x, void *chunk, const file *from, file *to,
                             int peer, size_t at, size_t n)
{
    d9d_device *dev = x->opts.dev;

    if (from != NULL) {
        D9D_TRY(d9d_device_upload(dev, chunk, from->data + at, n));
        return d9d_comm_send(x->opts.world, dev->stream, "local checkpoint", D9D_U8, chunk,
                             (int64_t)n, peer);
    }
    D9D_TRY(d9d_comm_recv(x->opts.world, dev->stream, "local checkpoint", D9D_U8, chunk, (int64_t)n,
                          peer));
    return d9d_device_download(dev, to->data + at, chunk, n);
}

/* The bytes first, then the header that says they are all there. */
static d9d_status file_move(d9di_checkpointer_local *x, const file *from, file *to, int peer)
{
    const size_t size = from != NULL ? from->size : to->size;
    d9d_tensor chunk = {0};
    d9d_status st = d9d_tensor_alloc(x->opts.dev, D9D_U8, D9D_SHAPE(CHUNK), &chunk);

    if (to != NULL)
        memset(to->data, 0, DATA);
    for (size_t at = DATA; st == D9D_OK && at < size; at += CHUNK)
        st = chunk_move(x, d9d_tensor_data(&chunk), from, to, peer, at,
                        size - at < CHUNK ? size - at : CHUNK);
    if (st == D9D_OK)
        st = chunk_move(x, d9d_tensor_data(&chunk), from, to, peer, 0, DATA);
    d9d_tensor_release(&chunk);
    return st;
}

/* Of a rank whose state another one sees, into this rank's file of the same slot. */
static d9d_status state_fetch(d9di_checkpointer_local *x, int rank,
                              const d9di_checkpointer_local_place *place, int slot)
{
    file f = {.data = NULL};
    d9d_status st;

    if (rank == x->rank)
        return file_move(x, NULL, &x->own[slot], place->holder);
    (void)snprintf(f.path, sizeof(f.path), "%s/%s", d9di_checkpointer_local_dir(), place->file);
    D9D_TRY(d9di_checkpointer_local_file_map(&f));
    st = file_move(x, &f, NULL, rank);
    d9di_checkpointer_local_file_unmap(&f);
    return st;
}

/* Moves the states of ranks that start on another host than before, or whose host is another one.
 */
static d9d_status states_fetch(d9di_checkpointer_local *x,
                               const d9di_checkpointer_local_found *found)
{
    for (int r = 0; r < x->ranks; r++) {
        const d9di_checkpointer_local_place *place = &found->place[r];

        if (place->holder != r && (r == x->rank || place->holder == x->rank))
            D9D_TRY(state_fetch(x, r, place, 1 - slot_after(found, r)));
    }
    return D9D_OK;
}

/* This rank's state: in its own file, in one that it sees as a peer's, or just fetched. */
static d9d_status state_read(d9di_checkpointer_local *x, const file *f,
                             d9d_checkpointer_state *state)
{
    const header *h = (const header *)(const void *)f->data;

    if (h->checksum != d9di_checkpointer_local_checksum(f, h)) {
        (void)unlink(f->path);
        return D9D_FAIL(
            D9D_EVERIFY,
            "%s: its bytes are not those that were saved after step %lld; it is removed, "
            "and the next start takes another copy",
            f->path, (long long)h->state.step);
    }
    D9D_TRY(d9di_checkpointer_local_each(x, array_restore, (void *)(uintptr_t)f));
    *state = h->state;
    return D9D_OK;
}

static d9d_status own_restore(d9di_checkpointer_local *x,
                              const d9di_checkpointer_local_found *found,
                              d9d_checkpointer_state *state)
{
    const d9di_checkpointer_local_place *place = &found->place[x->rank];
    file f = {.data = NULL};
    d9d_status st;

    if (place->holder != x->rank)
        return state_read(x, &x->own[1 - x->next], state);
    (void)snprintf(f.path, sizeof(f.path), "%s/%s", d9di_checkpointer_local_dir(), place->file);
    D9D_TRY(d9di_checkpointer_local_file_map(&f));
    st = state_read(x, &f, state);
    d9di_checkpointer_local_file_unmap(&f);
    return st;
}

/* Before anything is moved between ranks, which must have the same sizes. */
static d9d_status layout_check(const d9di_checkpointer_local *x,
                               const d9di_checkpointer_local_found *found)
{
    const d9di_checkpointer_local_place *place = &found->place[x->rank];

    if (place->layout == x->layout && place->bytes == x->bytes)
        return D9D_OK;
    return D9D_FAIL(D9D_EMISMATCH,
                    "%s/%s of step %lld: has other arrays than this rank: a local checkpoint is of "
                    "the mesh and model that wrote it; remove it to go on from the disk",
                    d9di_checkpointer_local_dir(), place->file, (long long)found->step);
}

d9d_status d9di_checkpointer_local_restore(d9di_checkpointer_local *x,
                                           const d9di_checkpointer_local_found *found,
                                           d9d_checkpointer_state *state)
{
    d9d_bootstrap *bootstrap = d9d_mesh_bootstrap(x->opts.mesh);

    D9D_TRY(d9d_bootstrap_agree_status(bootstrap, layout_check(x, found)));
    D9D_TRY(states_fetch(x, found));
    D9D_TRY(d9d_bootstrap_agree_status(bootstrap, own_restore(x, found, state)));
    if (!is_of_others(x, found))
        return D9D_OK;
    d9di_checkpointer_local_remove_others(x->id, x->ranks);
    return d9d_bootstrap_agree_status(bootstrap, files_open(x));
}
