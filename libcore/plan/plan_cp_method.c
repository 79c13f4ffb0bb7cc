/* plan_cp_method.c - which method of context parallelism "auto" is: see d9d_plan_cp_choice in
 * d9d/plan/plan.h. */
#include <string.h>

#include "d9d/comm/exchange.h"
#include "d9d/device/device.h"
#include "plan/plan_private.h"

/* A later method must be so much faster. */
#define MIN_GAIN 0.01

/* --- the choice ----------------------------------------------------------------------------- */

/* Methods over two axes need both. */
static bool is_candidate(const d9d_parallel_degrees *d, d9d_cp_method m)
{
    const bool two_axes = m == D9D_CP_HYBRID || m == D9D_CP_HYBRID_RING;

    return !two_axes || (d->context_parallel_shard > 1 && d->context_parallel_replicate > 1);
}

/* What the model, the mesh or the batches do not allow is no failure. */
static d9d_status plan_candidate(const d9d_train_config *c, const d9d_plan_opts *opts,
                                 const d9di_plan_data *data, const d9di_plan_lengths *measured,
                                 d9d_arena *a, d9d_plan_cp_candidate *x)
{
    d9d_train_config with = *c;
    d9d_plan p;
    d9d_status st;

    with.mesh.context_parallel_method = (int)x->method;
    st = d9di_plan_estimate(&with, opts, data, measured, a, &p);
    if (st == D9D_ECONFIG || st == D9D_ENOTSUP || st == D9D_EMISMATCH) {
        x->refused = d9d_arena_strdup(a, d9d_err_message());
        return x->refused != NULL ? D9D_OK : D9D_FAIL(D9D_ENOMEM, "plan: no memory for a reason");
    }
    D9D_TRY(st);
    x->step_s = p.step_s;
    x->bytes = d9d_plan_rank_bytes(d9d_plan_largest_rank(&p));
    x->fits = d9d_plan_fits(&p);
    return D9D_OK;
}

static bool is_better(const d9d_plan_cp_candidate *x, const d9d_plan_cp_candidate *best)
{
    if (x->refused != NULL || best == NULL)
        return x->refused == NULL;
    if (x->fits != best->fits)
        return x->fits;
    return x->fits ? x->step_s < (1 - MIN_GAIN) * best->step_s : x->bytes < best->bytes;
}

d9d_status d9di_plan_choose_cp_method(const d9d_train_config *c, const d9d_plan_opts *opts,
                                      const d9di_plan_data *data, const d9di_plan_lengths *measured,
                                      d9d_arena *a, d9d_plan_cp_choice *out)
{
    d9d_plan_cp_choice all = {.method = D9D_CP_ALL_GATHER};
    const d9d_plan_cp_candidate *best = NULL;

    *out = all;
    if (c->mesh.context_parallel_shard * c->mesh.context_parallel_replicate == 1)
        return D9D_OK;
    for (int m = 0; m < D9D_N_CP_METHODS; m++) {
        d9d_plan_cp_candidate *x = &all.item[all.n];

        if (!is_candidate(&c->mesh, (d9d_cp_method)m))
            continue;
        x->method = (d9d_cp_method)m;
        D9D_TRY(plan_candidate(c, opts, data, measured, a, x));
        best = is_better(x, best) ? x : best;
        all.n++;
    }
    if (best == NULL) /* so the configuration is wrong, whatever the method */
        return D9D_FAIL(D9D_ECONFIG, "%s", all.item[0].refused);
    all.method = best->method;
    *out = all;
    return D9D_OK;
}

/* --- a job that begins ---------------------------------------------------------------------- */

/* Rank 0's device, as plans know it; chip NULL: they do not. */
static d9d_status plan_opts_of_device(const d9d_job *where, d9d_plan_opts *out)
{
    d9d_device *dev;
    d9d_device_stats stats;

    D9D_TRY(d9d_device_open(where->device, &dev));
    stats = d9d_device_memory(dev);
    *out =
        (d9d_plan_opts){.chip = dev->chip, .memory = stats.limit != UINT64_MAX ? stats.limit : 0};
    d9d_device_close(dev);
    return D9D_OK;
}

static d9d_status choose_with(const d9d_plan_opts *opts, const d9d_job *where,
                              const d9d_train_config *c, int *method)
{
    d9d_arena a = {0};
    d9d_buf text = {0};
    d9d_plan p;
    d9d_status st;

    D9D_TRY_OR(st, d9d_plan_estimate(c, opts, &a, &p), out);
    D9D_TRY_OR(st, d9d_plan_print_cp_choice(&p.cp_choice, &text), out);
    d9d_log_info(where->log, "context_parallel_method auto is %s", text.data);
    *method = p.mesh.context_parallel_method;
out:
    d9d_buf_release(&text);
    d9d_arena_release(&a);
    return st;
}

/* The default for one rank, and where plans do not know the GPU. */
static d9d_status choose_for_job(const d9d_job *where, const d9d_train_config *c, int *method)
{
    d9d_plan_opts opts;

    *method = D9D_CP_ALL_GATHER;
    if (c->mesh.context_parallel_shard * c->mesh.context_parallel_replicate == 1)
        return D9D_OK;
    D9D_TRY(plan_opts_of_device(where, &opts));
    if (opts.chip != NULL)
        return choose_with(&opts, where, c, method);
    d9d_log_warn(where->log,
                 "context_parallel_method auto is all_gather: plans do not know this GPU");
    return D9D_OK;
}

/* Rank 0's number. */
static d9d_status send_to_all(d9d_bootstrap *bootstrap, int *number)
{
    d9d_bootstrap_blob *all;
    d9d_arena a = {0};
    d9d_status st = d9d_bootstrap_allgather_arena(bootstrap, number, sizeof(*number), &a, &all);

    if (st == D9D_OK && all[0].n != sizeof(*number))
        st = D9D_FAIL(D9D_ECOMM, "bootstrap: rank 0 sent %zu bytes as its method", all[0].n);
    if (st == D9D_OK)
        memcpy(number, all[0].data, sizeof(*number));
    d9d_arena_release(&a);
    return st;
}

d9d_status d9d_plan_settle_cp_method(const d9d_job *where, d9d_train_config *config)
{
    int method = D9D_CP_ALL_GATHER;
    d9d_status st = D9D_OK;

    if (config->mesh.context_parallel_method != D9D_CP_AUTO)
        return D9D_OK;
    if (d9d_bootstrap_rank(where->bootstrap) == 0)
        st = choose_for_job(where, config, &method);
    D9D_TRY(d9d_bootstrap_agree_status(where->bootstrap, st));
    D9D_TRY(send_to_all(where->bootstrap, &method));
    config->mesh.context_parallel_method = method;
    return D9D_OK;
}
