/* certify_meshes.c - the ranks of a job compute what one computes.  See certify_parts.h.
 *
 * MPI begins once in a process, so a certificate has one mesh: the first of a list that the family
 * accepts.  SGD moves the weights, since Adam makes large steps of rounding in small gradients.
 */
#include <string.h>

#include "certify/certify_job.h"
#include "d9d/base/num_format.h"

/* Divides the ranks by these; the rest is data_parallel_shard, over which experts are divided. */
typedef struct mesh {
    int64_t tensor, pipeline, experts;
} mesh;
static const mesh meshes[] = {{2, 2, 2}, {2, 2, 1}, {2, 1, 2}, {2, 1, 1}, {1, 2, 1}, {1, 1, 1}};
enum { N_MESHES = sizeof(meshes) / sizeof(meshes[0]) };

/* Above the self-test's: gradients of some small models amplify rounding. */
static const double limit = 1e-4;
/* Steps are as long as this, since gradients are clipped to 1. With a curvature of 1e3 to 1e4
 * longer ones would multiply a difference of rounding each time; a wrong update still moves the
 * next norm by percents. */
static const double learning_rate = 1e-3;

/* A pipeline only where ranks remain for data parallelism, so that four ranks shard too. */
static bool divides(const mesh *m, int64_t ranks)
{
    const int64_t parts = m->tensor * m->pipeline, rest = ranks / parts;

    return ranks % parts == 0 && rest % m->experts == 0 &&
           (m->pipeline == 1 || m->tensor == 1 || rest > 1);
}

/* The same number of samples for each rank, as few a micro-batch as the task takes. */
static json_t *job_doc(const d9di_certify *c, const mesh *m, int64_t ranks)
{
    const int64_t rows = d9di_small_task_rows(c->head, 1);
    const int64_t least = rows > 1 ? rows * ranks : D9DI_CERTIFY_BATCH;
    json_t *doc =
        d9di_certify_with_batch(d9di_certify_train_doc(c, "mesh", D9D_SELFTEST_STEPS, NULL),
                                (least + ranks - 1) / ranks * ranks, rows);

    if (doc == NULL)
        return NULL;
    d9d_json_set(&doc, "mesh",
                 json_pack("{s:I, s:I, s:I, s:I}", "data_parallel_shard",
                           (json_int_t)(ranks / m->tensor / m->pipeline), "tensor_parallel",
                           (json_int_t)m->tensor, "pipeline_parallel", (json_int_t)m->pipeline,
                           "expert_parallel", (json_int_t)m->experts));
    if (doc != NULL)
        d9d_json_set(&doc, "optimizer",
                     json_pack("{s:s, s:f}", "name", "sgd", "lr", learning_rate));
    return doc;
}

/* The family or its blocks cannot be divided so, and all ranks know. */
static bool is_refused(const d9d_bootstrap *ranks, d9d_status st)
{
    return (st == D9D_ECONFIG || st == D9D_ENOTSUP) && d9d_bootstrap_failure_is_collective(ranks);
}

static d9d_status run_meshes(d9di_certify *c, d9d_selftest_summary *s)
{
    d9d_bootstrap *ranks = c->opts->bootstrap;
    const int64_t n = d9d_bootstrap_size(ranks);
    d9d_status st =
        D9D_FAIL(D9D_ENOTSUP, "no mesh of %lld rank%s is tried", (long long)n, D9D_PLURAL(n));

    for (size_t i = 0; i < N_MESHES; i++) {
        if (!divides(&meshes[i], n) || (meshes[i].experts > 1 && !c->has_experts))
            continue;
        st = d9di_certify_selftest(c, job_doc(c, &meshes[i], n), s);
        if (!is_refused(ranks, st))
            break;
        d9d_bootstrap_clear_failure(ranks);
    }
    return st;
}

/* The self-test ended with a difference, which is a figure here.  Rank 0 has it. */
static bool is_measured(const d9di_certify *c, const d9d_selftest_summary *s)
{
    return d9d_bootstrap_rank(c->opts->bootstrap) != 0 || !(s->worst <= s->allowed);
}

d9d_status d9di_certify_meshes(d9di_certify *c, d9d_certificate_check *out)
{
    const int ranks = d9d_bootstrap_size(c->opts->bootstrap);
    d9d_selftest_summary s = {.allowed = 0};
    d9d_status st;

    if (c->untrainable != NULL)
        return d9di_certify_skip(out, c->untrainable);
    if (ranks == 1) {
        D9D_TRY(d9di_certify_detail(c, out, "one rank: mpirun -n 4 d9d-map certify %s",
                                    c->out->source));
        return d9di_certify_skip(out, out->detail);
    }
    st = run_meshes(c, &s);
    if (st == D9D_EVERIFY && is_measured(c, &s))
        d9d_bootstrap_clear_failure(c->opts->bootstrap);
    else
        D9D_TRY(st);
    out->figure = s.worst;
    out->limit = limit;
    return d9di_certify_detail(c, out, "%d ranks, %s, %d steps", ranks, s.mesh, D9D_SELFTEST_STEPS);
}
