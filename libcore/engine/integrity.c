/* integrity.c - see engine/integrity.h. */
#include "engine/integrity.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- the list of arrays ----------------------------------------------------------------------- */

/* Equal for the same box of the array of that name. */
static uint64_t box_key(const char *name, const d9d_param_part *part)
{
    struct {
        uint64_t name;
        int64_t offset[D9D_MAX_DIMS], dim[D9D_MAX_DIMS];
    } box = {.name = d9d_hash_u64(name, strlen(name))};

    for (int d = 0; d < part->shape.ndim; d++) {
        box.offset[d] = part->offset[d];
        box.dim[d] = part->shape.dim[d];
    }
    return d9d_hash_u64(&box, sizeof(box));
}

static void array_add(d9di_integrity *x, const char *name, const d9d_param *p,
                      const d9d_tensor *tensor)
{
    if (tensor->storage != NULL && d9d_tensor_numel(tensor) > 0)
        x->arrays[x->n++] =
            (d9di_integrity_array){.name = name, .tensor = tensor, .key = box_key(name, &p->shard)};
}

static d9d_status arrays_list(d9di_integrity *x, d9d_optimizer *o, const d9d_tensor *scale,
                              d9d_arena *a)
{
    const d9d_params *params = &x->engine->params;
    const size_t states = o != NULL ? d9d_optimizer_state_count(o) : 0,
                 most = params->n + states + 1;

    x->arrays = d9d_arena_alloc(a, (most + 1) * sizeof(*x->arrays));
    x->list = d9d_arena_alloc(a, (most + 1) * sizeof(*x->list));
    x->sums = d9d_arena_alloc(a, (most + 1) * sizeof(*x->sums));
    if (x->arrays == NULL || x->list == NULL || x->sums == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for the checksums of %zu arrays", most);
    for (size_t i = 0; i < params->n; i++)
        array_add(x, params->p[i]->name, params->p[i], &params->p[i]->shard.data);
    for (size_t i = 0; i < states; i++) {
        const d9d_optimizer_state s = d9d_optimizer_state_at(o, i);

        array_add(x, s.name, s.param, s.tensor);
    }
    x->n_state = x->n;
    x->arrays[x->n++] = (d9di_integrity_array){.name = "the scale of the gradients",
                                               .tensor = scale,
                                               .key = d9d_hash_u64("scale", sizeof("scale"))};
    return d9d_tensor_alloc(x->engine->dev, D9D_I64, D9D_SHAPE((int64_t)x->n + 1), &x->device);
}

static int by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

/* How often a sorted list has the key. */
static int64_t key_count(const uint64_t *keys, size_t n, uint64_t key)
{
    size_t low = 0, high = n;
    int64_t count = 0;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;

        if (keys[middle] < key)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < n && keys[low] == key; low++)
        count++;
    return count;
}

/* Keys of the ranks from `first` to before `end`, sorted; freed by the caller. */
static uint64_t *keys_of_ranks(const d9d_comm_blob *all, int first, int end, size_t *n)
{
    uint64_t *keys;

    *n = 0;
    for (int r = first; r < end; r++)
        *n += all[r].n / sizeof(*keys);
    keys = calloc(*n + 1, sizeof(*keys));
    *n = 0;
    for (int r = first; keys != NULL && r < end; r++) {
        memcpy(keys + *n, all[r].data, all[r].n);
        *n += all[r].n / sizeof(*keys);
    }
    if (keys != NULL)
        qsort(keys, *n, sizeof(*keys), by_value);
    return keys;
}

/* False for a second copy on this rank: a tied embedding, of a rank with the first and the last
 * stage. */
static bool is_first_here(const d9di_integrity *x, const uint64_t *own, size_t n_own, size_t i)
{
    size_t first = 0;

    if (key_count(own, n_own, x->arrays[i].key) == 1)
        return true;
    while (x->arrays[first].key != x->arrays[i].key)
        first++;
    return first == i;
}

/* The factor of each array in the sum over the ranks, from everybody's keys: of n copies the first
 * has 1 - n, and the others 1. */
static d9d_status shares_set(d9di_integrity *x, const d9d_comm_blob *all)
{
    const int rank = d9d_comm_rank(x->engine->world), ranks = d9d_comm_size(x->engine->world);
    size_t n_all, n_before, n_own;
    uint64_t *keys = keys_of_ranks(all, 0, ranks, &n_all);
    uint64_t *before = keys_of_ranks(all, 0, rank, &n_before);
    uint64_t *own = keys_of_ranks(all, rank, rank + 1, &n_own);
    d9d_status st = D9D_OK;

    if (keys == NULL || before == NULL || own == NULL) {
        st = D9D_FAIL(D9D_ENOMEM, "no memory for the replicas of %zu arrays", x->n);
        goto out;
    }
    for (size_t i = 0; i < x->n; i++) {
        const uint64_t key = x->arrays[i].key;
        const bool first = key_count(before, n_before, key) == 0 && is_first_here(x, own, n_own, i);

        x->arrays[i].share = first ? 1 - key_count(keys, n_all, key) : 1;
    }
    for (size_t i = 1; i < n_all; i++)
        x->replicated =
            x->replicated || (keys[i] == keys[i - 1] && keys[i] != x->arrays[x->n_state].key);
out:
    free(keys);
    free(before);
    free(own);
    return st;
}

static d9d_status replicas_find(d9di_integrity *x)
{
    d9d_comm *world = x->engine->world;
    d9d_arena a = {0};
    d9d_comm_blob *all;
    d9d_status st;

    if (world == NULL)
        return D9D_OK;
    for (size_t i = 0; i < x->n; i++)
        x->sums[i] = x->arrays[i].key;
    all = d9d_arena_alloc(&a, (size_t)d9d_comm_size(world) * sizeof(*all));
    if (all == NULL) {
        st = D9D_FAIL(D9D_ENOMEM, "no memory for the replicas of %zu arrays", x->n);
        goto out;
    }
    D9D_TRY_OR(
        st, d9d_comm_allgather_bytes(world, "replicas", x->sums, x->n * sizeof(*x->sums), &a, all),
        out);
    st = shares_set(x, all);
out:
    d9d_arena_release(&a);
    return st;
}

d9d_status d9di_integrity_open(d9di_engine *e, d9d_optimizer *optimizer, const d9d_tensor *scale,
                               d9d_arena *a, d9di_integrity *out)
{
    *out = (d9di_integrity){.engine = e};
    D9D_TRY(arrays_list(out, optimizer, scale, a));
    return replicas_find(out);
}

void d9di_integrity_release(d9di_integrity *x)
{
    d9d_tensor_release(&x->device);
}

uint64_t d9di_integrity_bytes(const d9di_integrity *x)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < x->n; i++)
        bytes += d9d_tensor_bytes(x->arrays[i].tensor);
    return bytes;
}

d9d_status d9di_integrity_enqueue(d9di_integrity *x, void *out)
{
    const d9d_device *dev = x->engine->dev;

    for (size_t i = 0; i < x->n; i++)
        x->list[i] = (d9d_checksum_array){d9d_tensor_data(x->arrays[i].tensor),
                                          (int64_t)d9d_tensor_bytes(x->arrays[i].tensor)};
    D9D_TRY(dev->kernels->elementwise->fill(dev->stream, D9D_I64, out, (int64_t)x->n, 0.0f));
    return dev->kernels->reduce->checksum(dev->stream, out, x->list, (int64_t)x->n);
}

/* --- replicas --------------------------------------------------------------------------------- */

/* *out is 0 if all replicas are equal. */
static d9d_status sum_over_ranks(d9di_integrity *x, uint64_t *out)
{
    d9d_device *dev = x->engine->dev;
    void *device = d9d_tensor_data(&x->device);
    uint64_t sum = 0;

    D9D_TRY(d9di_integrity_enqueue(x, device));
    D9D_TRY(d9d_device_download(dev, x->sums, device, x->n * sizeof(*x->sums)));
    for (size_t i = 0; i < x->n; i++)
        sum += x->sums[i] * (uint64_t)x->arrays[i].share;
    D9D_TRY(d9d_device_upload(dev, device, &sum, sizeof(sum)));
    D9D_TRY(d9d_comm_all_reduce(x->engine->world, dev->stream, "checksums", D9D_I64, device, 1,
                                D9D_COMM_SUM));
    return d9d_device_download(dev, out, device, sizeof(*out));
}

/* What a rank sends when checksums differ: itself, and its entries. */
typedef struct ballot_header {
    char node[D9DI_INTEGRITY_NODE], where[D9DI_INTEGRITY_NODE];
} ballot_header;

void d9di_integrity_where(const d9di_engine *e, char *node, char *where)
{
    const char *name = d9d_bootstrap_node(d9d_mesh_bootstrap(e->mesh));
    const char *id = e->dev->id;

    (void)snprintf(node, D9DI_INTEGRITY_NODE, "%s", name);
    (void)snprintf(where, D9DI_INTEGRITY_NODE, "%.150s, %.60s%s%s", name, e->dev->name,
                   id[0] != '\0' ? " " : "", id);
}

static char *ballot_make(const d9di_integrity *x, d9d_arena *a, size_t *n)
{
    char *bytes;
    ballot_header *h;
    d9di_integrity_entry *e;

    *n = sizeof(*h) + x->n * sizeof(*e);
    bytes = d9d_arena_alloc(a, *n);
    if (bytes == NULL)
        return NULL;
    memset(bytes, 0, *n);
    h = (ballot_header *)(void *)bytes;
    e = (d9di_integrity_entry *)(void *)(bytes + sizeof(*h));
    d9di_integrity_where(x->engine, h->node, h->where);
    for (size_t i = 0; i < x->n; i++) {
        e[i].key = x->arrays[i].key;
        e[i].sum = x->sums[i];
        (void)snprintf(e[i].name, sizeof(e[i].name), "%s", x->arrays[i].name);
    }
    return bytes;
}

static d9d_status gather_ballots(const d9di_integrity *x, d9d_arena *a, d9di_integrity_rank *out)
{
    d9d_comm *world = x->engine->world;
    const int ranks = d9d_comm_size(world);
    size_t n;
    char *own = ballot_make(x, a, &n);
    d9d_comm_blob *all = d9d_arena_alloc(a, (size_t)ranks * sizeof(*all));

    if (own == NULL || all == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for the checksums of %zu arrays", x->n);
    D9D_TRY(d9d_comm_allgather_bytes(world, "checksums of arrays", own, n, a, all));
    for (int r = 0; r < ranks; r++) {
        /* A blob has no alignment. */
        char *copy = d9d_arena_alloc(a, all[r].n + 1);
        const ballot_header *h = (const ballot_header *)(void *)copy;

        if (copy == NULL || all[r].n < sizeof(*h))
            return D9D_FAIL(D9D_ENOMEM, "no memory for the checksums of rank %d", r);
        memcpy(copy, all[r].data, all[r].n);
        (void)snprintf(out[r].node, sizeof(out[r].node), "%s", h->node);
        (void)snprintf(out[r].where, sizeof(out[r].where), "%s", h->where);
        out[r].entries = (const d9di_integrity_entry *)(void *)(copy + sizeof(*h));
        out[r].n = (all[r].n - sizeof(*h)) / sizeof(*out[r].entries);
    }
    return D9D_OK;
}

static d9d_status vote(const d9di_integrity *x, d9di_integrity_verdict *out)
{
    const int ranks = d9d_comm_size(x->engine->world);
    d9d_arena a = {0};
    d9di_integrity_rank *all = d9d_arena_alloc(&a, (size_t)ranks * sizeof(*all));
    d9d_status st = all != NULL
                        ? gather_ballots(x, &a, all)
                        : D9D_FAIL(D9D_ENOMEM, "no memory for the checksums of %d ranks", ranks);

    if (st == D9D_OK)
        st = d9di_integrity_vote(all, ranks, out);
    d9d_arena_release(&a);
    return st;
}

d9d_status d9di_integrity_compare(d9di_integrity *x, d9di_integrity_verdict *out, bool *equal)
{
    uint64_t sum;

    *equal = true;
    if (x->engine->world == NULL)
        return D9D_OK;
    D9D_TRY(sum_over_ranks(x, &sum));
    *equal = sum == 0;
    return *equal ? D9D_OK : vote(x, out);
}
