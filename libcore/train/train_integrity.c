/* train_integrity.c - replicas and memory, and how a run ends.  See train/train_integrity.h. */
#include "train/train_integrity.h"

#include <stdio.h>
#include <string.h>

#include "d9d/base/fs.h"
#include "d9d/base/num_format.h"

/* --- opening ---------------------------------------------------------------------------------- */

static bool is_on(const struct d9d_job_integrity_section *c)
{
    return c->period_steps != D9D_PERIOD_DISABLE || c->rerun_period_steps != D9D_PERIOD_DISABLE ||
           c->memory;
}

d9d_status d9di_train_integrity_check_task(const d9d_train_config *c, const d9di_task *task)
{
    if (c->trainer.integrity.rerun_period_steps == D9D_PERIOD_DISABLE || task->kind->state == NULL)
        return D9D_OK;
    return D9D_FAIL(
        D9D_ECONFIG,
        "trainer.integrity.rerun_period_steps: the task %s has a state, which a repeated "
        "step would change twice",
        c->task.choice->name);
}

/* Handlers that may change weights after the end of a step, and before the next forward. */
static bool has_handlers_between_steps(const d9di_train_run *run)
{
    static const char *const between[] = {
        "train.evaluation.pre", "train.evaluation.post",
        "train.sleep.pre",      "train.sleep.post",
        "train.wake.pre",       "train.wake.post",
        "train.step.pre",       "train.forward_backward.pre",
    };

    for (size_t i = 0; i < sizeof(between) / sizeof(between[0]) && run->events != NULL; i++)
        if (d9d_job_events_has_subscriber(run->events, between[i]))
            return true;
    return false;
}

static d9d_status memory_open(d9di_train_integrity *it, const d9di_train_run *run)
{
    const int64_t n = (int64_t)it->arrays.n;

    it->keeps_late = has_handlers_between_steps(run);
    D9D_TRY(d9d_tensor_alloc(it->engine->dev, D9D_I64, D9D_SHAPE(2, n + 1), &it->passes));
    for (int i = 0; i < 2; i++)
        D9D_TRY(
            d9d_readback_create(it->engine->dev, d9d_tensor_bytes(&it->passes), &it->pending[i]));
    return D9D_OK;
}

d9d_status d9di_train_integrity_open(d9di_train_integrity *it, const d9di_train_run *run,
                                     d9di_engine *e, d9d_optimizer *optimizer,
                                     const d9d_tensor *scale, d9d_arena *a)
{
    const struct d9d_job_integrity_section *c = &run->c->trainer.integrity;

    if (!is_on(c) || run->where->trial > 0)
        return D9D_OK;
    it->c = c;
    it->engine = e;
    D9D_TRY(d9di_integrity_open(e, c->optimizer_state ? optimizer : NULL, scale, a, &it->arrays));
    if (c->period_steps != D9D_PERIOD_DISABLE && !it->arrays.replicated)
        d9d_log_warn(run->log, "trainer.integrity.period_steps: no rank stores what another one "
                               "does, so there are no replicas to compare; memory and "
                               "rerun_period_steps need none");
    D9D_TRY(c->memory ? memory_open(it, run) : D9D_OK);
    return c->rerun_period_steps != D9D_PERIOD_DISABLE ? d9di_train_rerun_open(it, run, a) : D9D_OK;
}

void d9di_train_integrity_close(d9di_train_integrity *it)
{
    for (int i = 0; i < 2; i++)
        d9d_readback_free(it->pending[i]);
    d9d_tensor_release(&it->passes);
    d9d_tensor_release(&it->own);
    d9d_tensor_release(&it->reduced);
    d9di_integrity_release(&it->arrays);
}

/* --- the end of a run ------------------------------------------------------------------------- */

void d9di_train_integrity_exclude(const d9di_train_run *run, const char *node, const char *sentence)
{
    d9d_arena a = {0};
    const char *dir = d9d_fs_join(&a, run->dir.path, "excluded_nodes");
    d9d_status st = dir != NULL ? d9d_fs_check_name(node, strlen(node), "the name of a node")
                                : D9D_FAIL(D9D_ENOMEM, "excluded_nodes: its name");

    if (st == D9D_OK)
        st = d9d_fs_mkdirs(dir);
    if (st == D9D_OK)
        st = d9d_fs_write_in(dir, node, sentence, strlen(sentence));
    if (st != D9D_OK)
        d9d_log_warn(run->log, "%s is not excluded: %s", node, d9d_err_message());
    d9d_arena_release(&a);
}

d9d_status d9di_train_integrity_fail(const d9di_train_integrity *it, const d9di_train_run *run,
                                     const char *sentence)
{
    if (it->good_step < 0)
        return D9D_FAIL(D9D_ECORRUPT, "%s; no checkpoint precedes it", sentence);
    return D9D_FAIL(D9D_ECORRUPT, "%s; the last good checkpoint is step %lld in %s", sentence,
                    (long long)it->good_step, run->dir.checkpoints);
}

/* --- replicas --------------------------------------------------------------------------------- */

bool d9di_train_integrity_is_due(const d9di_train_integrity *it, const d9di_train_run *run,
                                 int64_t step, bool saves)
{
    return it->c != NULL && it->c->period_steps != D9D_PERIOD_DISABLE &&
           (saves || d9d_step_period_due(it->c->period_steps, step, run->total_steps,
                                         D9D_DUE_ON_LAST | D9D_DUE_AFTER_STEP));
}

/* "rank 1 (n1, cpu) or rank 2 (n2, cpu)" */
static d9d_status format_suspects(const d9di_integrity_verdict *v, d9d_buf *b)
{
    for (size_t i = 0; i < v->n_ranks; i++)
        D9D_TRY(d9d_buf_printf(b, "%srank %d (%s)",
                               i == 0    ? ""
                               : v->tied ? " or "
                                         : " and ",
                               v->rank[i], v->where[i]));
    return D9D_OK;
}

static d9d_status format_verdict(const d9di_integrity_verdict *v, int64_t step, d9d_buf *b)
{
    D9D_TRY(d9d_buf_printf(b, "after step %lld", (long long)step));
    if (v->n_ranks == 0)
        return d9d_buf_printf(b, ": a message between ranks: the sum of checksums is wrong, "
                                 "though all replicas are equal");
    D9D_TRY(d9d_buf_printf(b, ": "));
    D9D_TRY(format_suspects(v, b));
    D9D_TRY(d9d_buf_printf(b, ": %s", v->name));
    if (v->n_arrays > 1)
        D9D_TRY(d9d_buf_printf(b, " and %zu more", v->n_arrays - 1));
    return v->tied ? d9d_buf_printf(b, " differ%s between the %d rank%s that store it",
                                    v->n_arrays == 1 ? "s" : "", v->copies, D9D_PLURAL(v->copies))
                   : d9d_buf_printf(b, " differ%s from what %d of %d rank%s store",
                                    v->n_arrays == 1 ? "s" : "", v->others, v->copies,
                                    D9D_PLURAL(v->copies));
}

static d9d_status fail_verdict(const d9di_train_integrity *it, const d9di_train_run *run,
                               const d9di_integrity_verdict *v, int64_t step)
{
    d9d_buf b = {0};
    d9d_status st = format_verdict(v, step, &b);

    for (size_t i = 0; st == D9D_OK && run->rank == 0 && !v->tied && i < v->n_ranks; i++)
        d9di_train_integrity_exclude(run, v->node[i], b.data);
    if (st == D9D_OK)
        st = d9di_train_integrity_fail(it, run, b.data);
    d9d_buf_release(&b);
    return st;
}

d9d_status d9di_train_integrity_check(d9di_train_integrity *it, const d9di_train_run *run,
                                      int64_t step)
{
    d9di_integrity_verdict v;
    bool equal;

    D9D_TRY(d9di_integrity_compare(&it->arrays, &v, &equal));
    return equal
               ? D9D_OK
               : d9d_bootstrap_agree_status(run->where->bootstrap, fail_verdict(it, run, &v, step));
}

/* --- memory ----------------------------------------------------------------------------------- */

static d9d_status pass_enqueue(d9di_train_integrity *it, int64_t which)
{
    return d9di_integrity_enqueue(&it->arrays, (uint64_t *)d9d_tensor_data(&it->passes) +
                                                   which * (int64_t)(it->arrays.n + 1));
}

static d9d_status keep(d9di_train_integrity *it)
{
    it->has_kept = true;
    return pass_enqueue(it, 0);
}

d9d_status d9di_train_integrity_begin_step(d9di_train_integrity *it, const d9di_train_run *run,
                                           int64_t step)
{
    if (it->c == NULL)
        return D9D_OK;
    it->reruns = d9d_step_period_due(it->c->rerun_period_steps, step, run->total_steps, 0);
    if (it->c->memory && (it->keeps_late || !it->has_kept))
        D9D_TRY(keep(it));
    return D9D_OK;
}

d9d_status d9di_train_integrity_verify(d9di_train_integrity *it, int64_t step)
{
    if (it->c == NULL || !it->c->memory)
        return D9D_OK;
    D9D_TRY(pass_enqueue(it, 1));
    it->is_pending[step % 2] = true;
    return d9d_readback_enqueue(it->pending[step % 2], d9d_tensor_data(&it->passes));
}

d9d_status d9di_train_integrity_end_step(d9di_train_integrity *it)
{
    return it->c != NULL && it->c->memory ? keep(it) : D9D_OK;
}

static d9d_status fail_memory(const d9di_train_integrity *it, const d9di_train_run *run, size_t at,
                              int64_t step)
{
    const char *node = d9d_bootstrap_node(run->where->bootstrap);
    char sentence[1024];

    (void)snprintf(sentence, sizeof(sentence),
                   "the memory of %s%s%s on %s: %.500s changed between the "
                   "updates of steps %lld and %lld",
                   it->engine->dev->name, it->engine->dev->id[0] != '\0' ? " " : "",
                   it->engine->dev->id, node, it->arrays.arrays[at].name, (long long)step,
                   (long long)step + 1);
    d9di_train_integrity_exclude(run, node, sentence);
    return d9di_train_integrity_fail(it, run, sentence);
}

/* The first array of the state of which two passes differ; n_state if there is none. */
static size_t changed_array(const d9di_train_integrity *it, const uint64_t *passes)
{
    const uint64_t *after = passes + it->arrays.n + 1;
    size_t i = 0;

    while (i < it->arrays.n_state && passes[i] == after[i])
        i++;
    return i;
}

static d9d_status passes_compare(const d9di_train_integrity *it, const d9di_train_run *run,
                                 const uint64_t *passes, int64_t step)
{
    const size_t at = changed_array(it, passes);

    return at < it->arrays.n_state ? fail_memory(it, run, at, step) : D9D_OK;
}

static d9d_status memory_check(d9di_train_integrity *it, const d9di_train_run *run, int64_t step,
                               d9d_arena *a)
{
    const uint64_t bytes = 2 * ((uint64_t)it->arrays.n + 1) * sizeof(uint64_t);
    uint64_t *passes = d9d_arena_alloc(a, bytes);

    if (passes == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for the checksums of %zu arrays", it->arrays.n);
    D9D_TRY(pass_enqueue(it, 1));
    D9D_TRY(d9d_device_download(it->engine->dev, passes, d9d_tensor_data(&it->passes), bytes));
    return passes_compare(it, run, passes, step);
}

d9d_status d9di_train_integrity_check_memory(d9di_train_integrity *it, const d9di_train_run *run,
                                             int64_t step)
{
    d9d_arena a = {0};
    d9d_status st;

    if (it->c == NULL || !it->c->memory || !it->has_kept || it->keeps_late)
        return D9D_OK;
    st = memory_check(it, run, step, &a);
    d9d_arena_release(&a);
    return d9d_bootstrap_agree_status(run->where->bootstrap, st);
}

d9d_status d9di_train_integrity_collect(d9di_train_integrity *it, const d9di_train_run *run,
                                        int64_t step)
{
    const void *back;

    if (it->c == NULL || !it->is_pending[step % 2])
        return D9D_OK;
    it->is_pending[step % 2] = false;
    D9D_TRY(d9d_readback_wait(it->pending[step % 2], &back));
    return passes_compare(it, run, back, step);
}
