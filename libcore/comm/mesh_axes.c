/* mesh_axes.c - index arithmetic of a mesh.  See comm/mesh_axes.h. */
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

#include "comm/mesh_axes.h"

/* A layout of the ranks, outermost axis first: the dense axes, or those of experts. */
struct layout {
    int n;
    struct {
        unsigned set;
        int64_t degree;
    } dim[D9D_AXIS_COUNT];
};

static const struct {
    unsigned set;
    const char *name, *brief;
} axis_names[] = {
    {D9D_AXIS(PP), "pp", "pp"},
    {D9D_AXIS(DP_REPLICATE), "dp_replicate", "dpr"},
    {D9D_AXIS(DP_SHARD), "dp_shard", "dps"},
    {D9D_AXIS(CP_SHARD), "cp_shard", "cps"},
    {D9D_AXIS(CP_REPLICATE), "cp_replicate", "cpr"},
    {D9D_AXIS(TP), "tp", "tp"},
    {D9D_AXES_EXPERT_ACROSS, "expert", "ep"},
    {D9D_AXES_EXPERT_LOCAL, "expert_local", "epl"},
    {D9D_AXES_EXPERT_REPLICATE, "expert_replicate", "epr"},
    {D9D_AXES_EXPERT_SHARD, "expert_shard", "eps"},
};

enum { AXIS_NAMES = sizeof(axis_names) / sizeof(axis_names[0]) };

static struct layout dense_layout(const d9d_parallel_degrees *d)
{
    const int64_t degree[D9D_AXIS_COUNT] = {
        [D9D_AXIS_PP] = d->pipeline_parallel,
        [D9D_AXIS_DP_REPLICATE] = d->data_parallel_replicate,
        [D9D_AXIS_DP_SHARD] = d->data_parallel_shard,
        [D9D_AXIS_CP_SHARD] = d->context_parallel_shard,
        [D9D_AXIS_CP_REPLICATE] = d->context_parallel_replicate,
        [D9D_AXIS_TP] = d->tensor_parallel,
    };
    struct layout l = {.n = D9D_AXIS_COUNT};

    for (int i = 0; i < l.n; i++) {
        l.dim[i].set = 1u << i;
        l.dim[i].degree = degree[i];
    }
    return l;
}

/* Ranks of a column that are in one replica, which has `replica` ranks. */
static int64_t expert_shards(const d9d_parallel_degrees *d, int64_t replica)
{
    const int64_t ep = d->expert_parallel;

    if (replica % ep == 0)
        return replica / ep;
    return ep % replica == 0 ? 1 : d->data_parallel_replicate * replica / ep;
}

static struct layout expert_layout(const d9d_parallel_degrees *d)
{
    const struct layout l = dense_layout(d);
    const int64_t local = d->expert_parallel_local > 1 ? d->expert_parallel_local : 1;
    int64_t replica = 1, shards;

    for (int i = 0; i < l.n; i++)
        if (l.dim[i].set & (D9D_AXES_STAGE & ~D9D_AXIS(DP_REPLICATE)))
            replica *= l.dim[i].degree;
    shards = expert_shards(d, replica);
    return (struct layout){
        .n = 5,
        .dim = {{D9D_AXIS(PP), d->pipeline_parallel},
                {D9D_AXES_EXPERT_REPLICATE,
                 d->data_parallel_replicate * replica / d->expert_parallel / shards},
                {D9D_AXES_EXPERT_SHARD, shards},
                {D9D_AXES_EXPERT_ACROSS, d->expert_parallel / local},
                {D9D_AXES_EXPERT_LOCAL, local}}};
}

static struct layout mesh_layout(const d9d_parallel_degrees *d, unsigned axes)
{
    assert(!(axes & D9D_AXES_EXPERT_STAGE) || !(axes & ~D9D_AXES_EXPERT_STAGE));
    return axes & D9D_AXES_EXPERT_STAGE ? expert_layout(d) : dense_layout(d);
}

d9di_mesh_place d9di_mesh_axes_place(const d9d_parallel_degrees *d, unsigned axes, int64_t rank)
{
    const struct layout l = mesh_layout(d, axes);
    d9di_mesh_place p = {.count = 1};
    int64_t groups = 1;

    for (int i = l.n - 1; i >= 0; i--) {
        const int64_t at = rank % l.dim[i].degree;

        rank /= l.dim[i].degree;
        if (l.dim[i].set & axes) {
            p.index += at * p.count;
            p.count *= l.dim[i].degree;
        } else {
            p.group += at * groups;
            groups *= l.dim[i].degree;
        }
    }
    return p;
}

unsigned d9di_mesh_axes_normalize(const d9d_parallel_degrees *d, unsigned axes)
{
    const struct layout l = mesh_layout(d, axes);
    unsigned normal = 0;

    for (int i = 0; i < l.n; i++)
        if (l.dim[i].degree > 1)
            normal |= l.dim[i].set & axes;
    return normal;
}

/* --- texts ----------------------------------------------------------------------------- */

static void append_text(char *buf, size_t n, size_t *len, const char *fmt, ...) D9D_PRINTF(4, 5);
static void append_text(char *buf, size_t n, size_t *len, const char *fmt, ...)
{
    va_list ap;
    int more;

    va_start(ap, fmt);
    more = *len < n ? vsnprintf(buf + *len, n - *len, fmt, ap) : 0;
    va_end(ap);
    *len += more > 0 ? (size_t)more : 0;
}

char *d9di_mesh_axes_name(unsigned axes, char *buf, size_t n)
{
    size_t len = 0;

    for (int i = 0; i < AXIS_NAMES; i++)
        if (axes & axis_names[i].set)
            append_text(buf, n, &len, "%s%s", len > 0 ? "+" : "", axis_names[i].name);
    return buf;
}

char *d9di_mesh_axes_text(const d9d_parallel_degrees *d, int64_t rank, char *buf, size_t n)
{
    const unsigned all = d9di_mesh_axes_normalize(d, D9D_AXES_WORLD);
    size_t len = 0;

    for (int i = 0; i < AXIS_NAMES; i++)
        if (all & axis_names[i].set)
            append_text(buf, n, &len, "%s%s %lld", len > 0 ? " " : "", axis_names[i].brief,
                        (long long)d9di_mesh_axes_place(d, axis_names[i].set, rank).index);
    if (len == 0)
        append_text(buf, n, &len, "local");
    return buf;
}
