/* train_rerun.c - computes a step's gradients again, and compares.  See train/train_integrity.h.
 *
 * Nothing is updated meanwhile, so the weights, samples and random numbers are the same, and so
 * must be every bit of the result.  If it is not, a third run tells which of the first two was
 * wrong. The own gradients of each rank, before any reduction, say where.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/comm/exchange.h"
#include "train/train_integrity.h"
#include "train/train_step.h"

typedef d9di_train_integrity_capture capture;

static d9d_status capture_alloc(const d9di_train_integrity *it, const d9di_train_run *run,
                                d9d_arena *a, capture *out)
{
    const size_t n = it->engine->params.n + 1, micros = (size_t)run->n_micro;

    out->own = d9d_arena_alloc(a, n * sizeof(*out->own));
    out->reduced = d9d_arena_alloc(a, n * sizeof(*out->reduced));
    out->losses = d9d_arena_alloc(a, micros * sizeof(*out->losses));
    if (out->own == NULL || out->reduced == NULL || out->losses == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory to compare %zu gradients", n);
    memset(out->losses, 0, micros * sizeof(*out->losses));
    return D9D_OK;
}

d9d_status d9di_train_rerun_open(d9di_train_integrity *it, const d9di_train_run *run, d9d_arena *a)
{
    const int64_t n = (int64_t)it->engine->params.n;

    for (int i = 0; i < D9DI_TRAIN_INTEGRITY_RUNS; i++)
        D9D_TRY(capture_alloc(it, run, a, &it->runs[i]));
    it->on_peer = it->c->rerun_on_peer && d9di_train_run_dp_size(run) > 1 &&
                  run->c->mesh.expert_parallel == 1;
    if (it->c->rerun_on_peer && !it->on_peer)
        d9d_log_warn(run->log,
                     "trainer.integrity.rerun_on_peer: needs several data-parallel ranks, "
                     "and no expert parallelism, which mixes their samples; steps are "
                     "repeated on the same rank");
    it->list = d9d_arena_alloc(a, (size_t)(n + 1) * sizeof(*it->list));
    if (it->list == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory to compare %lld gradients", (long long)n);
    D9D_TRY(d9d_tensor_alloc(it->engine->dev, D9D_I64, D9D_SHAPE(n + 1), &it->own));
    return d9d_tensor_alloc(it->engine->dev, D9D_I64, D9D_SHAPE(n + 1), &it->reduced);
}

/* --- what a run gives ------------------------------------------------------------------------- */

static d9d_status sums_clear(const d9di_train_integrity *it, const d9d_tensor *sums)
{
    const d9d_device *dev = it->engine->dev;

    return dev->kernels->elementwise->fill(dev->stream, D9D_I64, d9d_tensor_data(sums),
                                           d9d_tensor_numel(sums), 0.0f);
}

/* Parameters come in the reverse of their order, so the search begins near the last one. */
static size_t param_index(d9di_train_integrity *it, const d9d_param *p)
{
    const d9d_params *params = &it->engine->params;

    for (size_t k = 0; k < params->n; k++) {
        const size_t i = (it->last + params->n - k) % params->n;

        if (params->p[i] == p)
            return it->last = i;
    }
    return params->n; /* none of the engine's */
}

static d9d_checksum_array bytes_of(const d9d_tensor *t)
{
    return (d9d_checksum_array){d9d_tensor_data(t), (int64_t)d9d_tensor_bytes(t)};
}

/* Gradients of experts are no evidence against a rank that has tokens of others. */
static bool is_evidence(const d9d_param *p)
{
    return p->spec.parallel.style != D9D_EXPERT_PARALLEL;
}

static d9d_status on_own_grad(void *arg, const d9d_param *p, const d9d_tensor *grad)
{
    d9di_train_integrity *it = arg;
    const d9d_device *dev = it->engine->dev;
    const d9d_checksum_array one = bytes_of(grad);

    return is_evidence(p) ? dev->kernels->reduce->checksum(
                                dev->stream,
                                (uint64_t *)d9d_tensor_data(&it->own) + param_index(it, p), &one, 1)
                          : D9D_OK;
}

static void hook_set(d9di_train_integrity *it, d9d_fsdp_grad_hook *hook)
{
    for (size_t k = 0; k < it->engine->n_stages; k++)
        d9d_fsdp_set_grad_hook(it->engine->stages[k].sharded, hook, it);
}

static d9d_status watch(d9di_train_integrity *it)
{
    hook_set(it, on_own_grad);
    return sums_clear(it, &it->own);
}

/* Adds the checksums of the gradients of those parameters. */
static d9d_status grads_enqueue(d9di_train_integrity *it, bool (*takes)(const d9d_param *p),
                                const d9d_tensor *sums)
{
    const d9d_params *params = &it->engine->params;
    const d9d_device *dev = it->engine->dev;

    for (size_t i = 0; i < params->n; i++) {
        const d9d_param *p = params->p[i];

        it->list[i] = d9d_param_has_shard_grad(p) && takes(p) ? bytes_of(&p->shard.grad)
                                                              : (d9d_checksum_array){0};
    }
    return dev->kernels->reduce->checksum(dev->stream, d9d_tensor_data(sums), it->list,
                                          (int64_t)params->n);
}

static bool any_param(const d9d_param *p)
{
    return p != NULL;
}

/* No hook sees what is not reduced. */
static bool is_unreduced_evidence(const d9d_param *p)
{
    return p->placement.shard_group == NULL && p->placement.grad_group == NULL && is_evidence(p);
}

static d9d_status capture_run(d9di_train_integrity *it, const d9di_train_stepper *s,
                              const d9di_train_run *run, capture *out)
{
    d9d_device *dev = it->engine->dev;
    const uint64_t bytes = it->engine->params.n * sizeof(uint64_t);

    D9D_TRY(d9di_engine_wait_grads(it->engine));
    D9D_TRY(sums_clear(it, &it->reduced));
    D9D_TRY(grads_enqueue(it, any_param, &it->reduced));
    D9D_TRY(grads_enqueue(it, is_unreduced_evidence, &it->own));
    D9D_TRY(d9d_device_download(dev, out->own, d9d_tensor_data(&it->own), bytes));
    D9D_TRY(d9d_device_download(dev, out->reduced, d9d_tensor_data(&it->reduced), bytes));
    return d9di_engine_has_last_stage(it->engine)
               ? d9d_device_download(dev, out->losses, d9d_tensor_data(&s->grad_finalize.loss),
                                     (uint64_t)run->n_micro * sizeof(*out->losses))
               : D9D_OK;
}

/* The same samples again; nobody counts them, or times them. */
static d9d_status run_again(d9di_train_integrity *it, d9di_train_stepper *s,
                            const d9di_train_run *run, int i)
{
    d9di_engine *e = it->engine;
    const d9di_task *task = e->task;
    d9di_task quiet = *task;
    d9di_loss_attribution *losses = e->step.loss_attribution;
    d9d_stage_timer *timer = e->exec.stage_timer;
    int64_t targets;
    double flops;
    d9d_status st;

    D9D_TRY(d9di_train_stepper_open_prefetcher(s, run, i >= D9DI_TRAIN_INTEGRITY_PEER));
    D9D_TRY(watch(it));
    quiet.metrics = NULL;
    e->task = &quiet;
    e->step.loss_attribution = NULL;
    e->exec.stage_timer = NULL;
    st = d9di_train_stepper_forward_backward(s, run, &targets, &flops);
    e->task = task;
    e->step.loss_attribution = losses;
    e->exec.stage_timer = timer;
    return st == D9D_OK ? capture_run(it, s, run, &it->runs[i]) : st;
}

/* --- comparison ------------------------------------------------------------------------------- */

d9d_status d9di_train_rerun_begin(d9di_train_integrity *it, d9di_train_stepper *s,
                                  const d9di_train_run *run)
{
    if (it->c == NULL || !it->reruns)
        return D9D_OK;
    if (it->on_peer) {
        D9D_TRY(run_again(it, s, run, D9DI_TRAIN_INTEGRITY_PEER));
        D9D_TRY(d9di_train_stepper_open_prefetcher(s, run, 0));
    }
    return watch(it);
}

/* Adds up over the ranks what is 0 on all if nothing differs. */
static d9d_status sum_differences(const d9di_train_integrity *it, const d9di_train_run *run,
                                  bool *repeats, bool *peers_agree)
{
    d9d_device *dev = it->engine->dev;
    void *device = d9d_tensor_data(&it->reduced);
    uint64_t sums[2] = {d9di_train_rerun_differences(it, run, D9DI_TRAIN_INTEGRITY_FIRST,
                                                     D9DI_TRAIN_INTEGRITY_SECOND) != 0};

    if (it->on_peer)
        sums[1] = d9di_train_rerun_digest(it, run, D9DI_TRAIN_INTEGRITY_FIRST) -
                  d9di_train_rerun_digest(it, run, D9DI_TRAIN_INTEGRITY_PEER);
    D9D_TRY(d9d_device_upload(dev, device, sums, sizeof(sums)));
    D9D_TRY(d9d_comm_all_reduce(it->engine->world, dev->stream, "rerun", D9D_I64, device, 2,
                                D9D_COMM_SUM));
    D9D_TRY(d9d_device_download(dev, sums, device, sizeof(sums)));
    *repeats = sums[0] == 0;
    *peers_agree = sums[1] == 0;
    return D9D_OK;
}

d9d_status d9di_train_rerun_check(d9di_train_integrity *it, d9di_train_stepper *s,
                                  const d9di_train_run *run)
{
    const int64_t step = s->state.step + 1;
    bool repeats = true, peers_agree = true;

    if (it->c == NULL || !it->reruns)
        return D9D_OK;
    D9D_TRY(capture_run(it, s, run, &it->runs[D9DI_TRAIN_INTEGRITY_FIRST]));
    D9D_TRY(run_again(it, s, run, D9DI_TRAIN_INTEGRITY_SECOND));
    D9D_TRY(sum_differences(it, run, &repeats, &peers_agree));
    if (!repeats) {
        D9D_TRY(run_again(it, s, run, D9DI_TRAIN_INTEGRITY_THIRD));
        return d9di_train_rerun_fail(it, run, step);
    }
    if (!peers_agree) {
        D9D_TRY(run_again(it, s, run, D9DI_TRAIN_INTEGRITY_PEER_AGAIN));
        return d9di_train_rerun_fail_peer(it, run, step);
    }
    hook_set(it, NULL);
    return D9D_OK;
}
