/* degrees.c - the check that the degrees of parallelism give the number of ranks.  See
 * d9d/comm/mesh.h. */
#include <stdio.h>
#include <string.h>

#include "d9d/base/num_format.h"
#include "d9d/comm/mesh.h"

/* The product of the degrees, each below 2^20; INT64_MAX if it overflows. */
static int64_t degrees_product(const int64_t *degrees, int n)
{
    int64_t product = 1;

    for (int i = 0; i < n; i++)
        if (__builtin_mul_overflow(product, degrees[i], &product))
            return INT64_MAX;
    return product;
}

enum { PRODUCT_TEXT = 256 };

/* "pipeline_parallel 2 x tensor_parallel 4": the degrees above 1 by their keys. */
static void product_text(const int64_t *degrees, char out[PRODUCT_TEXT])
{
    static const char *const keys[] = {"pipeline_parallel",          "data_parallel_replicate",
                                       "data_parallel_shard",        "context_parallel_shard",
                                       "context_parallel_replicate", "tensor_parallel"};
    size_t len = 0;

    (void)snprintf(out, PRODUCT_TEXT, "every degree 1");
    for (int i = 0; i < 6; i++)
        if (degrees[i] != 1)
            len += (size_t)snprintf(out + len, PRODUCT_TEXT - len, "%s%s %lld",
                                    len > 0 ? " x " : "", keys[i], (long long)degrees[i]);
}

static d9d_status fail_product(const d9d_parallel_degrees *m, const int64_t *degrees,
                               int64_t product, int64_t ranks)
{
    char text[PRODUCT_TEXT], fits[96] = "";

    product_text(degrees, text);
    if (ranks > product && ranks % product == 0)
        (void)snprintf(fits, sizeof(fits), "; data_parallel_shard %lld would fit",
                       (long long)(m->data_parallel_shard * (ranks / product)));
    return D9D_FAIL(D9D_ECONFIG, "mesh: %s is %lld rank%s, and this job has %lld%s%s", text,
                    (long long)product, D9D_PLURAL(product), (long long)ranks,
                    m->expert_parallel > 1 ? "; expert_parallel adds none" : "", fits);
}

void d9d_parallel_degrees_values(const d9d_parallel_degrees *d, int64_t out[D9D_N_PARALLEL_DEGREES])
{
    const int64_t v[D9D_N_PARALLEL_DEGREES] = {
        d->pipeline_parallel,      d->data_parallel_replicate,
        d->data_parallel_shard,    d->context_parallel_replicate,
        d->context_parallel_shard, d->tensor_parallel,
        d->expert_parallel,        d->expert_parallel_local,
        d->context_parallel_method};

    memcpy(out, v, sizeof(v));
}

bool d9d_parallel_degrees_equal(const d9d_parallel_degrees *a, const d9d_parallel_degrees *b)
{
    int64_t x[D9D_N_PARALLEL_DEGREES], y[D9D_N_PARALLEL_DEGREES];

    d9d_parallel_degrees_values(a, x);
    d9d_parallel_degrees_values(b, y);
    return memcmp(x, y, sizeof(x)) == 0;
}

d9d_status d9d_parallel_degrees_check(const d9d_parallel_degrees *m, int64_t ranks)
{
    const int64_t degrees[] = {m->pipeline_parallel,          m->data_parallel_replicate,
                               m->data_parallel_shard,        m->context_parallel_shard,
                               m->context_parallel_replicate, m->tensor_parallel};
    const int64_t product = degrees_product(degrees, 6), dense = degrees_product(degrees + 1, 5);

    if (product != ranks)
        return fail_product(m, degrees, product, ranks);
    if (m->context_parallel_method == D9D_CP_AUTO)
        return D9D_FAIL(D9D_ECONFIG,
                        "mesh.context_parallel_method \"auto\" is for d9d-train, which plans: here "
                        "it must name a method");
    if (dense % m->expert_parallel != 0)
        return D9D_FAIL(D9D_ECONFIG,
                        "mesh: expert_parallel %lld does not divide the %lld ranks "
                        "of a pipeline stage",
                        (long long)m->expert_parallel, (long long)dense);
    if (m->expert_parallel_local > 1 && m->expert_parallel % m->expert_parallel_local != 0)
        return D9D_FAIL(D9D_ECONFIG,
                        "mesh: expert_parallel_local %lld does not divide expert_parallel %lld",
                        (long long)m->expert_parallel_local, (long long)m->expert_parallel);
    return D9D_OK;
}

int64_t d9d_parallel_degrees_ranks(const d9d_parallel_degrees *d)
{
    const int64_t degrees[] = {d->pipeline_parallel,          d->data_parallel_replicate,
                               d->data_parallel_shard,        d->context_parallel_shard,
                               d->context_parallel_replicate, d->tensor_parallel};
    const int64_t product = degrees_product(degrees, 6);

    return product < INT32_MAX ? product : INT32_MAX;
}

char *d9d_parallel_degrees_text(const d9d_parallel_degrees *d, char *buf, size_t n)
{
    const struct {
        const char *name;
        int64_t degree;
    } all[] = {{"pp", d->pipeline_parallel},
               {"dpr", d->data_parallel_replicate},
               {"dps", d->data_parallel_shard},
               {"cps", d->context_parallel_shard},
               {"cpr", d->context_parallel_replicate},
               {"tp", d->tensor_parallel},
               {"ep", d->expert_parallel},
               {"epl", d->expert_parallel_local}};
    size_t used = 0;

    (void)snprintf(buf, n, "local");
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]) && used < n; i++)
        if (all[i].degree > 1)
            used += (size_t)snprintf(buf + used, n - used, "%s%s %lld", used > 0 ? " " : "",
                                     all[i].name, (long long)all[i].degree);
    if (d->context_parallel_method != D9D_CP_ALL_GATHER && used < n &&
        d->context_parallel_shard * d->context_parallel_replicate > 1)
        (void)snprintf(buf + used, n - used, " %s",
                       d9d_cp_method_name((d9d_cp_method)d->context_parallel_method));
    return buf;
}
