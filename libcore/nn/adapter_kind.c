/* adapter_kind.c - has a kind of adapters what it needs?  See d9d/nn/adapter.h. */
#include <math.h>
#include <string.h>

#include "d9d/nn/adapter.h"

static bool is_of_inputs(d9d_adapter_dim dim)
{
    return dim == D9D_ADAPTER_IN || dim == D9D_ADAPTER_IN_BLOCKS;
}

/* Does its size follow from r? */
static bool has_rank(const d9d_adapter_param *p)
{
    for (int k = 0; k < 2; k++)
        if (p->dim[k] == D9D_ADAPTER_RANK || p->dim[k] == D9D_ADAPTER_IN_BLOCKS ||
            p->dim[k] == D9D_ADAPTER_PAIRS)
            return true;
    return false;
}

/* --- parameters --------------------------------------------------------------------------------
 */

static d9d_status dims_check(const d9d_adapter_kind *kind, const d9d_adapter_param *p)
{
    for (int k = 0; k < 2; k++)
        if ((unsigned)p->dim[k] >= D9D_ADAPTER_DIMS)
            return D9D_FAIL(D9D_ECONFIG,
                            "%s: parameter %s has %d as dimension %d, and those are below %d",
                            kind->name, p->name, (int)p->dim[k], k, D9D_ADAPTER_DIMS);
    if (p->dim[0] == D9D_ADAPTER_NO_DIM || p->dim[1] == D9D_ADAPTER_OUT)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: parameter %s needs a dimension, and that of outputs comes first",
                        kind->name, p->name);
    if (is_of_inputs(p->dim[0]) && is_of_inputs(p->dim[1]))
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: both dimensions of parameter %s are those of inputs, and ranks that "
                        "divide these divide one",
                        kind->name, p->name);
    return D9D_OK;
}

static d9d_status init_check(const d9d_adapter_kind *kind, const d9d_adapter_param *p)
{
    if ((unsigned)p->init > D9D_INIT_UNIFORM)
        return D9D_FAIL(D9D_ECONFIG, "%s: parameter %s begins in way %d, and those are up to %d",
                        kind->name, p->name, (int)p->init, (int)D9D_INIT_UNIFORM);
    if (!isfinite(p->init_scale) || p->init_scale < 0)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: parameter %s begins with the scale %g, which is no number from 0 on",
                        kind->name, p->name, (double)p->init_scale);
    return D9D_OK;
}

/* One dimension grows with the matrix, so that the largest array has all others. */
static d9d_status shared_check(const d9d_adapter_kind *kind, const d9d_adapter_param *p)
{
    const d9d_adapter_dim *d = p->dim;
    const bool grows = d[0] == D9D_ADAPTER_IN || d[0] == D9D_ADAPTER_OUT || d[1] == D9D_ADAPTER_IN;
    const bool fits =
        d[0] == D9D_ADAPTER_RANK || d[1] == D9D_ADAPTER_RANK || d[1] == D9D_ADAPTER_NO_DIM;

    if (!grows || !fits)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: parameter %s is shared, and one of its dimensions is not that of "
                        "inputs or outputs and the other r",
                        kind->name, p->name);
    if (!p->frozen)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: parameter %s is shared and trained; what matrices share stays as it "
                        "is",
                        kind->name, p->name);
    if (kind->draw == NULL)
        return D9D_FAIL(D9D_ECONFIG, "%s: parameter %s is shared, and the kind has no draw()",
                        kind->name, p->name);
    if (kind->files != NULL && p->file == NULL)
        return D9D_FAIL(D9D_ECONFIG, "%s: parameter %s is shared, and has no name in peft's files",
                        kind->name, p->name);
    return D9D_OK;
}

/* In peft's files. */
static const char *file_name(const d9d_adapter_param *p)
{
    return p->file != NULL ? p->file : p->name;
}

static d9d_status names_check(const d9d_adapter_kind *kind, int i)
{
    const d9d_adapter_param *p = kind->params;

    for (int k = 0; k < i; k++) {
        if (p[k].name == NULL)
            continue;
        if (strcmp(p[k].name, p[i].name) == 0)
            return D9D_FAIL(D9D_ECONFIG, "%s: parameters %d and %d are both called %s", kind->name,
                            k, i, p[i].name);
        if (strcmp(file_name(&p[k]), file_name(&p[i])) == 0)
            return D9D_FAIL(D9D_ECONFIG,
                            "%s: parameters %s and %s are both called %s in peft's files",
                            kind->name, p[k].name, p[i].name, file_name(&p[i]));
    }
    return D9D_OK;
}

static d9d_status own_param_check(const d9d_adapter_kind *kind, const d9d_adapter_param *p)
{
    D9D_TRY(dims_check(kind, p));
    D9D_TRY(init_check(kind, p));
    return p->shared ? shared_check(kind, p) : D9D_OK;
}

/* A parameter with a role has its size and its beginning from that. */
static d9d_status role_param_check(const d9d_adapter_kind *kind, int i)
{
    const d9d_adapter_param *p = &kind->params[i];

    if (i >= D9D_ADAPTER_ROLES)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: parameter %d, %s, has no role, of which there are %d, and the kind "
                        "no forward of its own",
                        kind->name, i, p->name, D9D_ADAPTER_ROLES);
    if (p->dim[0] != D9D_ADAPTER_NO_DIM || p->dim[1] != D9D_ADAPTER_NO_DIM || p->shared)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: parameter %s has %s, which the role gives unless the kind has a "
                        "forward",
                        kind->name, p->name, p->shared ? "a shared array" : "dimensions");
    return D9D_OK;
}

/* --- the kind ----------------------------------------------------------------------------------
 */

static d9d_status roles_check(const d9d_adapter_kind *kind)
{
    const bool a = kind->params[D9D_ADAPTER_A].name != NULL,
               b = kind->params[D9D_ADAPTER_B].name != NULL;
    const char *more = kind->merge != NULL   ? "merge()"
                       : kind->start != NULL ? "start()"
                       : kind->draw != NULL  ? "draw()"
                       : kind->reads_matrix  ? "reads_matrix"
                                             : NULL;

    if (a != b)
        return D9D_FAIL(D9D_ECONFIG, "%s: has %s and no %s, and a product has two factors",
                        kind->name, a ? "A" : "B", a ? "B" : "A");
    return more == NULL ? D9D_OK
                        : D9D_FAIL(D9D_ECONFIG, "%s: has %s and no forward", kind->name, more);
}

static d9d_status files_check(const d9d_adapter_kind *kind)
{
    const d9d_adapter_files *files = kind->files;
    bool ranked = false, shared = false;

    for (int i = 0; i < D9D_ADAPTER_PARAMS; i++) {
        ranked |= kind->params[i].name != NULL && has_rank(&kind->params[i]);
        shared |= kind->params[i].name != NULL && kind->params[i].shared;
    }
    if (files->rank != NULL && !ranked)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: its files have the rank \"%s\", and no parameter a size from which it "
                        "could be read",
                        kind->name, files->rank);
    if (files->rank == NULL && ranked)
        return D9D_FAIL(D9D_ECONFIG, "%s: a size is that of r, and its files have no rank",
                        kind->name);
    if ((files->seed != NULL || files->has_shared != NULL) && !shared)
        return D9D_FAIL(D9D_ECONFIG, "%s: its files have \"%s\", and no parameter is shared",
                        kind->name, files->seed != NULL ? files->seed : files->has_shared);
    if (shared && !files->one_rank)
        return D9D_FAIL(D9D_ECONFIG, "%s: arrays are shared, and its files have not one rank",
                        kind->name);
    return D9D_OK;
}

d9d_status d9d_adapter_kind_check(const d9d_adapter_kind *kind)
{
    const bool own = kind->forward != NULL;
    bool any = false, own_params = false;

    if (kind->size != sizeof(*kind))
        return D9D_FAIL(D9D_ECONFIG,
                        "a kind of adapters says that it has %zu bytes, here it has %zu; its size "
                        "comes first, sizeof the struct",
                        kind->size, sizeof(*kind));
    if (kind->name == NULL)
        return D9D_FAIL(D9D_ECONFIG, "a kind of adapters has no name");
    for (int i = 0; i < D9D_ADAPTER_PARAMS; i++) {
        if (kind->params[i].name == NULL)
            continue;
        any = true;
        own_params |= !kind->params[i].shared;
        D9D_TRY(names_check(kind, i));
        D9D_TRY(own ? own_param_check(kind, &kind->params[i]) : role_param_check(kind, i));
    }
    if (!any)
        return D9D_FAIL(D9D_ECONFIG, "%s: has no parameters", kind->name);
    if (!own_params)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: shares all its parameters, and a matrix needs one of its own",
                        kind->name);
    if (own && kind->merge == NULL)
        return D9D_FAIL(D9D_ECONFIG, "%s: has a forward and no merge", kind->name);
    D9D_TRY(own ? D9D_OK : roles_check(kind));
    return own && kind->files != NULL ? files_check(kind) : D9D_OK;
}
