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

static d9d_status on_own_grad(void *arg, const d9d_param *p, const d9d_tensor *grad)
{
    d9di_train_integrity *it = arg;
    const d9d_device *dev = it->engine->dev;
    const d9d_checksum_array one = {d9d_tensor_data(grad), (int64_t)d9d_tensor_bytes(grad)};

    return dev->kernels->reduce->checksum(
        dev->stream, (uint64_t *)d9d_tensor_data(&it->own) + param_index(it, p), &one, 1);
}

static void hook_set(d9di_train_integrity *it, d9d_fsdp_grad_hook *hook)
{
    for (size_t k = 0; k < it->engine->n_stages; k++)
        d9d_fsdp_set_grad_hook(it->engine->stages[k].sharded, hook, it);
}

d9d_status d9di_train_rerun_watch(d9di_train_integrity *it)
{
    hook_set(it, on_own_grad);
    return sums_clear(it, &it->own);
}

static d9d_status reduced_enqueue(d9di_train_integrity *it)
{
    const d9d_params *params = &it->engine->params;
    const d9d_device *dev = it->engine->dev;

    for (size_t i = 0; i < params->n; i++) {
        const d9d_tensor *grad = &params->p[i]->shard.grad;

        it->list[i] = (d9d_checksum_array){0};
        if (d9d_param_has_shard_grad(params->p[i]))
            it->list[i] =
                (d9d_checksum_array){d9d_tensor_data(grad), (int64_t)d9d_tensor_bytes(grad)};
    }
    D9D_TRY(sums_clear(it, &it->reduced));
    return dev->kernels->reduce->checksum(dev->stream, d9d_tensor_data(&it->reduced), it->list,
                                          (int64_t)params->n);
}

static d9d_status capture_run(d9di_train_integrity *it, const d9di_train_stepper *s,
                              const d9di_train_run *run, capture *out)
{
    d9d_device *dev = it->engine->dev;
    const uint64_t bytes = it->engine->params.n * sizeof(uint64_t);

    D9D_TRY(d9di_engine_wait_grads(it->engine));
    D9D_TRY(reduced_enqueue(it));
    D9D_TRY(d9d_device_download(dev, out->own, d9d_tensor_data(&it->own), bytes));
    D9D_TRY(d9d_device_download(dev, out->reduced, d9d_tensor_data(&it->reduced), bytes));
    return d9di_engine_has_last_stage(it->engine)
               ? d9d_device_download(dev, out->losses, d9d_tensor_data(&s->grad_finalize.loss),
                                     (uint64_t)run->n_micro * sizeof(*out->losses))
               : D9D_OK;
}

/* The same samples again; nobody counts them, or times them. */
static d9d_status run_again(d9di_train_integrity *it, d9di_train_stepper *s,
                            const d9di_train_run *run, capture *out)
{
    d9di_engine *e = it->engine;
    const d9di_task *task = e->task;
    d9di_task quiet = *task;
    d9di_loss_attribution *losses = e->step.loss_attribution;
    d9d_stage_timer *timer = e->exec.stage_timer;
    int64_t targets;
    double flops;
    d9d_status st;

    D9D_TRY(d9di_train_stepper_open_prefetcher(s, run));
    D9D_TRY(d9di_train_rerun_watch(it));
    quiet.metrics = NULL;
    e->task = &quiet;
    e->step.loss_attribution = NULL;
    e->exec.stage_timer = NULL;
    st = d9di_train_stepper_forward_backward(s, run, &targets, &flops);
    e->task = task;
    e->step.loss_attribution = losses;
    e->exec.stage_timer = timer;
    return st == D9D_OK ? capture_run(it, s, run, out) : st;
}

/* --- comparison ------------------------------------------------------------------------------- */

/* What of two runs differs on a rank. */
enum { LOSS = 1, OWN = 2, REDUCED = 4 };

static size_t first_difference(const uint64_t *a, const uint64_t *b, size_t n)
{
    size_t i = 0;

    while (i < n && a[i] == b[i])
        i++;
    return i;
}

static unsigned differences(const d9di_train_integrity *it, const d9di_train_run *run,
                            const capture *a, const capture *b)
{
    const size_t n = it->engine->params.n;
    unsigned d = 0;

    if (memcmp(a->losses, b->losses, (size_t)run->n_micro * sizeof(*a->losses)) != 0)
        d |= LOSS;
    if (first_difference(a->own, b->own, n) < n)
        d |= OWN;
    return first_difference(a->reduced, b->reduced, n) < n ? d | REDUCED : d;
}

/* True if no rank has a difference. */
static d9d_status agree_equal(const d9di_train_integrity *it, unsigned differs, bool *equal)
{
    d9d_device *dev = it->engine->dev;
    void *device = d9d_tensor_data(&it->reduced);
    int64_t sum = differs != 0;

    D9D_TRY(d9d_device_upload(dev, device, &sum, sizeof(sum)));
    D9D_TRY(d9d_comm_all_reduce(it->engine->world, dev->stream, "rerun", D9D_I64, device, 1,
                                D9D_COMM_SUM));
    D9D_TRY(d9d_device_download(dev, &sum, device, sizeof(sum)));
    *equal = sum == 0;
    return D9D_OK;
}

/* --- the verdict ------------------------------------------------------------------------------ */

/* What a rank says of its three runs. */
typedef struct statement {
    uint32_t differs, with_first, with_second; /* of runs 1 and 2; 3 and 1; 3 and 2 */
    char node[D9DI_INTEGRITY_NODE], where[D9DI_INTEGRITY_NODE], name[D9DI_INTEGRITY_NODE];
} statement;

static statement statement_make(const d9di_train_integrity *it, const d9di_train_run *run)
{
    const capture *r = it->runs;
    const d9d_params *params = &it->engine->params;
    statement s = {.differs = differences(it, run, &r[0], &r[1]),
                   .with_first = differences(it, run, &r[2], &r[0]),
                   .with_second = differences(it, run, &r[2], &r[1])};
    size_t at = first_difference(r[0].own, r[1].own, params->n);

    if (at == params->n)
        at = first_difference(r[0].reduced, r[1].reduced, params->n);
    if (at < params->n)
        (void)snprintf(s.name, sizeof(s.name), "the gradient of %.200s", params->p[at]->name);
    else
        (void)snprintf(s.name, sizeof(s.name), "the loss");
    d9di_integrity_where(it->engine, s.node, s.where);
    return s;
}

/* The ranks that differ in `what`. */
static d9d_status format_ranks(const statement *all, int ranks, unsigned what, d9d_buf *b)
{
    const char *between = "";

    for (int r = 0; r < ranks; r++)
        if ((all[r].differs & what) != 0) {
            D9D_TRY(d9d_buf_printf(b, "%srank %d (%s)", between, r, all[r].where));
            between = " and ";
        }
    return D9D_OK;
}

static const char *third_run(const statement *s)
{
    if (s->with_first == 0)
        return "the second was wrong, says a third";
    return s->with_second == 0 ? "the first was wrong, says a third" : "a third gave another one";
}

static d9d_status format_statements(const statement *all, int ranks, int first, unsigned what,
                                    int64_t step, d9d_buf *b)
{
    D9D_TRY(d9d_buf_printf(b, "step %lld: ", (long long)step));
    D9D_TRY(format_ranks(all, ranks, what, b));
    D9D_TRY(d9d_buf_printf(b, ": %s was another one when computed again", all[first].name));
    if (what == REDUCED)
        D9D_TRY(
            d9d_buf_printf(b, ", though every rank's own was the same: a message or sum is wrong"));
    return d9d_buf_printf(b, " (%s); nothing was updated", third_run(&all[first]));
}

/* One node is to blame, or several of which it is unknown which. */
static void exclude_node(const d9di_train_run *run, const statement *all, int ranks, int first,
                         unsigned what, const char *sentence)
{
    for (int r = first; r < ranks; r++)
        if ((all[r].differs & what) != 0 && strcmp(all[r].node, all[first].node) != 0)
            return;
    d9di_train_integrity_exclude(run, all[first].node, sentence);
}

static d9d_status fail_statements(const d9di_train_integrity *it, const d9di_train_run *run,
                                  const statement *all, int ranks, int64_t step)
{
    unsigned any = 0, what;
    int first = 0;
    d9d_buf b = {0};
    d9d_status st;

    for (int r = 0; r < ranks; r++)
        any |= all[r].differs;
    what = (any & (LOSS | OWN)) != 0 ? LOSS | OWN : REDUCED;
    while (first < ranks - 1 && (all[first].differs & what) == 0)
        first++;
    st = format_statements(all, ranks, first, what, step, &b);
    if (st == D9D_OK && run->rank == 0)
        exclude_node(run, all, ranks, first, what, b.data);
    if (st == D9D_OK)
        st = d9di_train_integrity_fail(it, run, b.data);
    d9d_buf_release(&b);
    return st;
}

static d9d_status gather_and_fail(const d9di_train_integrity *it, const d9di_train_run *run,
                                  int64_t step)
{
    d9d_bootstrap *bootstrap = run->where->bootstrap;
    const int ranks = d9d_bootstrap_size(bootstrap);
    const statement own = statement_make(it, run);
    d9d_arena a = {0};
    d9d_bootstrap_blob *blobs;
    statement *all = d9d_arena_alloc(&a, (size_t)ranks * sizeof(*all));
    d9d_status st = all != NULL ? D9D_OK : D9D_FAIL(D9D_ENOMEM, "no memory for %d ranks", ranks);

    D9D_TRY_OR(st, d9d_bootstrap_agree_status(bootstrap, st), out);
    D9D_TRY_OR(st, d9d_bootstrap_allgather_arena(bootstrap, &own, sizeof(own), &a, &blobs), out);
    for (int r = 0; r < ranks && all != NULL; r++) {
        all[r] = (statement){0};
        if (blobs[r].n == sizeof(*all))
            memcpy(&all[r], blobs[r].data, sizeof(*all));
    }
    st = d9d_bootstrap_agree_status(bootstrap, fail_statements(it, run, all, ranks, step));
out:
    d9d_arena_release(&a);
    return st;
}

d9d_status d9di_train_rerun_check(d9di_train_integrity *it, struct d9di_train_stepper *s,
                                  const d9di_train_run *run)
{
    bool equal = true;
    d9d_status st;

    if (it->c == NULL || !it->reruns)
        return D9D_OK;
    D9D_TRY(capture_run(it, s, run, &it->runs[0]));
    D9D_TRY(run_again(it, s, run, &it->runs[1]));
    D9D_TRY(agree_equal(it, differences(it, run, &it->runs[0], &it->runs[1]), &equal));
    st = equal ? D9D_OK : run_again(it, s, run, &it->runs[2]);
    if (st == D9D_OK && !equal)
        st = gather_and_fail(it, run, s->state.step + 1);
    hook_set(it, NULL);
    return st;
}
