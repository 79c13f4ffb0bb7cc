/* expert_nodes.c - see engine/expert_nodes.h. */
#include "engine/expert_nodes.h"

#include <string.h>

#include "d9d/base/num_format.h"
#include "d9d/comm/exchange.h"

static bool same_node(const char *const *node, int64_t a, int64_t b)
{
    return strcmp(node[a], node[b]) == 0;
}

int64_t d9di_expert_nodes_local(const char *const *node, int64_t ranks, int64_t expert)
{
    int64_t local = 1;

    while (local < expert && same_node(node, 0, local))
        local++;
    if (local == expert || expert % local != 0)
        return 1;
    for (int64_t r = 0; r < ranks; r++)
        if (!same_node(node, r, r - r % local) ||
            (r % expert >= local && same_node(node, r, r - local)))
            return 1;
    return local;
}

static void log_nodes(const char *const *node, int64_t ranks, const d9d_parallel_degrees *d,
                      const d9d_log *log)
{
    const int64_t wanted = d->expert_parallel_local;
    const int64_t local = d9di_expert_nodes_local(node, ranks, d->expert_parallel);

    if (wanted <= 1 && local > 1)
        d9d_log_info(log,
                     "experts are divided over nodes with %lld rank%s each: "
                     "mesh.expert_parallel_local %lld would send a token once to each node",
                     (long long)local, D9D_PLURAL(local), (long long)local);
    for (int64_t r = 0; r < ranks && wanted > 1; r++) {
        const int64_t first = r - d9d_parallel_degrees_index(d, D9D_AXES_EXPERT_LOCAL, r);

        if (same_node(node, r, first))
            continue;
        d9d_log_warn(log,
                     "mesh.expert_parallel_local %lld: ranks %lld and %lld should be on one node "
                     "and are on %s and %s",
                     (long long)wanted, (long long)first, (long long)r, node[first], node[r]);
        return;
    }
}

static d9d_status gather_and_log(d9d_bootstrap *bootstrap, const d9d_parallel_degrees *d,
                                 const d9d_log *log, d9d_arena *a)
{
    const int ranks = d9d_bootstrap_size(bootstrap);
    const char *own = d9d_bootstrap_node(bootstrap), **node;
    d9d_bootstrap_blob *all;

    D9D_TRY(d9d_bootstrap_allgather_arena(bootstrap, own, strlen(own), a, &all));
    node = d9d_arena_alloc(a, (size_t)ranks * sizeof(*node));
    if (node == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for the nodes of %d ranks", ranks);
    for (int r = 0; r < ranks; r++)
        node[r] = all[r].data;
    if (d9d_bootstrap_rank(bootstrap) == 0)
        log_nodes(node, ranks, d, log);
    return D9D_OK;
}

d9d_status d9di_expert_nodes_check(d9d_bootstrap *bootstrap, const d9d_parallel_degrees *d,
                                   const d9d_log *log)
{
    const bool divided = d->expert_parallel > 1 && !d9d_bootstrap_is_simulated(bootstrap);
    d9d_arena a = {0};
    const d9d_status st = divided ? gather_and_log(bootstrap, d, log, &a) : D9D_OK;

    d9d_arena_release(&a);
    return st;
}
