/* checkpointer_async.c - see checkpointer/checkpointer_async.h. */
#include "checkpointer/checkpointer_async.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpointer/checkpointer_copy.h"
#include "checkpointer/checkpointer_private.h"
#include "checkpointer/checkpointer_worker.h"
#include "d9d/base/thread.h"

enum { PAGE_BYTES = 4096 };

typedef enum save_phase { IDLE, WRITING, MERGING, COMMITTING } save_phase;

struct d9di_checkpointer_async {
    d9di_checkpointer_async_opts opts;
    int ranks;
    d9d_checkpointer_set local;  /* what this rank writes */
    d9d_checkpointer_set staged; /* the same, as of the beginning of the save */
    int64_t *counts;             /* its step counts */
    void *host;                  /* its bytes; NULL: every save is synchronous */
    d9d_arena arena;

    save_phase current_phase;
    bool synchronous;      /* this save is written by the caller, without a copy */
    int64_t queued, since; /* newest enqueued step; first step whose number refers to this phase */
    d9di_checkpointer_save save; /* unless IDLE */
    int64_t committed;           /* step of the newest complete one; -1: none */
    int64_t begun, blocked;      /* in ns: start of the save; how long it blocked training */

    d9di_checkpointer_copy copy;     /* into `host` */
    d9di_checkpointer_worker worker; /* of the phase */
};

/* --- opening ---------------------------------------------------------------------------- */

/* The host memory that a rank asks its node for. */
typedef struct copy_request {
    uint64_t bytes;
    char node[256];
} copy_request;

/* Checks that the node has memory for the copies of its ranks. */
static d9d_status check_node_memory(const d9di_checkpointer_async *s, uint64_t bytes, d9d_arena *a)
{
    d9d_bootstrap *bootstrap = s->opts.mesh != NULL ? d9d_mesh_bootstrap(s->opts.mesh) : NULL;
    const uint64_t left = d9d_mem_available();
    copy_request local = {.bytes = bytes};
    d9d_bootstrap_blob *all = d9d_arena_alloc(a, (size_t)s->ranks * sizeof(*all));
    uint64_t sum = 0;

    if (all == NULL)
        return D9D_FAIL(D9D_ENOMEM, "checkpoint: no memory for records of %d ranks", s->ranks);
    all[0] = (d9d_bootstrap_blob){&local, sizeof(local)};
    if (bootstrap != NULL) {
        (void)snprintf(local.node, sizeof(local.node), "%s", d9d_bootstrap_node(bootstrap));
        D9D_TRY(d9d_bootstrap_allgather(bootstrap, &local, sizeof(local), a, all));
    }
    for (int r = 0; r < s->ranks; r++) {
        copy_request one;

        memcpy(&one, all[r].data, sizeof(one)); /* blobs may be unaligned */
        sum += strcmp(one.node, local.node) == 0 ? one.bytes : 0;
    }
    if (sum > left)
        return D9D_FAIL(D9D_ENOMEM,
                        "%s%scopies of the saved tensors take %.0f MB of host memory, and %.0f MB "
                        "are available",
                        local.node, local.node[0] != '\0' ? ": " : "", (double)sum * 1e-6,
                        (double)left * 1e-6);
    return D9D_OK;
}

/* Allocates and touches the copy, so that a lack of memory shows now. */
static d9d_status alloc_host_copy(d9di_checkpointer_async *s, uint64_t bytes)
{
    d9d_arena a = {0};
    void *host = NULL;
    d9d_status st = check_node_memory(s, bytes, &a);

    d9d_arena_release(&a);
    if (st == D9D_OK)
        st = d9d_device_pin(s->opts.dev, bytes, &host);
    if (s->opts.mesh != NULL)
        st = d9d_bootstrap_agree_status(d9d_mesh_bootstrap(s->opts.mesh), st);
    if (st != D9D_OK) {
        d9d_device_unpin(s->opts.dev, host);
        return st;
    }
    assert(host != NULL || bytes == 0);
    for (uint64_t at = 0; at < bytes; at += PAGE_BYTES)
        ((volatile char *)host)[at] = 0;
    s->host = host;
    return D9D_OK;
}

/* The set again, with its bytes in the host copy. */
static d9d_status layout_host_copy(d9di_checkpointer_async *s)
{
    d9d_checkpointer_set *to = &s->staged;
    char *at = s->host;

    *to = s->local;
    to->items = d9d_arena_alloc(&s->arena, (to->n + 1) * sizeof(*to->items));
    to->counts = d9d_arena_alloc(&s->arena, (to->n_counts + 1) * sizeof(*to->counts));
    s->counts = d9d_arena_alloc(&s->arena, (to->n_counts + 1) * sizeof(*s->counts));
    if (to->items == NULL || to->counts == NULL || s->counts == NULL)
        return D9D_FAIL(D9D_ENOMEM, "checkpoint: no memory for records of %zu tensors", to->n);
    for (size_t i = 0; i < to->n; i++) {
        to->items[i] = s->local.items[i];
        to->items[i].host = at;
        at += d9d_tensor_bytes(to->items[i].tensor);
    }
    for (size_t i = 0; i < to->n_counts; i++)
        to->counts[i] = (d9d_checkpointer_count){s->local.counts[i].name, &s->counts[i]};
    return d9di_checkpointer_rank_state_copy(&s->local, &s->arena, to);
}

static d9d_status open_host_copy(d9di_checkpointer_async *s)
{
    const uint64_t bytes = d9d_checkpointer_set_bytes(&s->local);
    const d9d_status st = alloc_host_copy(s, bytes);

    if (st == D9D_ECOMM)
        return st;
    if (st != D9D_OK) {
        d9d_log_warn(s->opts.log, "%s: training will wait for every checkpoint", d9d_err_message());
        if (s->opts.mesh != NULL)
            d9d_bootstrap_clear_failure(d9d_mesh_bootstrap(s->opts.mesh));
        return D9D_OK;
    }
    d9d_log_info(s->opts.log,
                 "checkpoints are written asynchronously, from %.3g MB of host memory%s",
                 (double)bytes * 1e-6, s->ranks > 1 ? " on this rank" : "");
    D9D_TRY(d9di_checkpointer_copy_open(&s->copy, &s->local, s->opts.dev, &s->arena));
    return layout_host_copy(s);
}

d9d_status d9di_checkpointer_async_open(const d9di_checkpointer_async_opts *opts,
                                        d9di_checkpointer_async **out)
{
    d9di_checkpointer_async *s = calloc(1, sizeof(*s));
    d9d_status st;

    if (s == NULL)
        return D9D_FAIL(D9D_ENOMEM, "checkpoint: no memory to save");
    s->opts = *opts;
    s->committed = -1;
    s->ranks = opts->mesh != NULL ? d9d_mesh_size(opts->mesh) : 1;
    s->queued = -1;
    d9di_checkpointer_worker_init(&s->worker);
    D9D_TRY_OR(st, d9d_checkpointer_set_local(opts->set, &s->arena, &s->local), out);
    if (opts->async)
        D9D_TRY_OR(st, open_host_copy(s), out);
    *out = s;
    s = NULL;
out:
    d9di_checkpointer_async_close(s);
    return st;
}

/* --- this rank's work --------------------------------------------------------------------- */

static d9d_status copy_to_host(d9di_checkpointer_async *s)
{
    char *to = s->host;

    for (size_t i = 0; i < s->local.n; i++) {
        const uint64_t n = d9d_tensor_bytes(s->local.items[i].tensor);

        if (n > 0)
            D9D_TRY(d9di_checkpointer_copy_tensor(&s->copy, i, to));
        to += n;
    }
    d9di_checkpointer_worker_set_copied(&s->worker);
    return D9D_OK;
}

static d9d_status write_rank_files(void *arg)
{
    d9di_checkpointer_async *s = arg;
    const d9d_checkpointer_set *set = s->synchronous ? &s->local : &s->staged;
    const bool tells = s->synchronous && s->save.rank == 0; /* otherwise the steps' reports do */
    d9d_progress progress;
    char label[64];

    if (!s->synchronous)
        D9D_TRY(copy_to_host(s));
    (void)snprintf(label, sizeof(label), "save step %lld", (long long)s->save.state.step);
    d9d_progress_start(&progress, tells ? s->opts.log : NULL, label, "B",
                       d9d_checkpointer_set_bytes(set));
    D9D_TRY(d9di_checkpointer_save_write_rank(&s->save, set, &progress));
    d9d_progress_end(&progress);
    return D9D_OK;
}

static d9d_status merge_part(void *arg)
{
    d9di_checkpointer_async *s = arg;
    return d9di_checkpointer_save_write_part(&s->save);
}

static d9d_status commit_checkpoint(void *arg)
{
    d9di_checkpointer_async *s = arg;
    const bool first = s->save.rank == 0;
    const int64_t step = s->save.state.step;

    D9D_TRY(d9di_checkpointer_save_commit(&s->save));
    d9di_checkpointer_save_release(&s->save);
    return first ? d9d_checkpointer_prune(s->opts.dir, step, s->opts.keep, s->opts.log) : D9D_OK;
}

/* True if a phase is work for this rank. */
static bool has_work(const d9di_checkpointer_async *s, save_phase phase)
{
    if (phase == COMMITTING)
        return s->save.rank == 0;
    return phase == WRITING || d9di_checkpointer_save_leads(&s->save);
}

/* In a thread, where there is work to do and training goes on. */
static void start_phase(d9di_checkpointer_async *s, save_phase next)
{
    static d9di_checkpointer_worker_fn *const work[] = {
        [WRITING] = write_rank_files, [MERGING] = merge_part, [COMMITTING] = commit_checkpoint};

    s->current_phase = next;
    s->since = s->queued + 1;
    d9di_checkpointer_worker_start(&s->worker, !s->synchronous && has_work(s, next), work[next], s);
}

/* --- collective ---------------------------------------------------------------------------- */

static d9d_status record_save(const d9di_checkpointer_async *s)
{
    const double blocked = (double)s->blocked * 1e-6,
                 total = (double)(s->worker.end - s->begun) * 1e-6;

    if (!s->synchronous)
        d9d_log_info(s->opts.log, "saved step %lld in %.2f s, of which training waited %.3f s",
                     (long long)s->save.state.step, total * 1e-3, blocked * 1e-3);
    return s->opts.tracker == NULL ? D9D_OK
                                   : d9d_tracker_save(s->opts.tracker, D9D_TRACK_SAVE,
                                                      s->save.state.step, blocked, total);
}

/* Called by all ranks.  `well`: all ranks know that all have done their work. */
static d9d_status finish_phase(d9di_checkpointer_async *s, bool well)
{
    d9d_status st = d9di_checkpointer_worker_join(&s->worker);

    if (!well && s->opts.mesh != NULL)
        st = d9d_bootstrap_agree_status(d9d_mesh_bootstrap(s->opts.mesh), st);
    if (st == D9D_OK && s->current_phase != COMMITTING) {
        start_phase(s, s->current_phase + 1);
        return D9D_OK;
    }
    if (st == D9D_OK)
        s->committed = s->save.state.step;
    d9di_checkpointer_save_release(&s->save);
    s->current_phase = IDLE;
    return st;
}

static d9d_status finish_phases(d9di_checkpointer_async *s)
{
    while (s->current_phase != IDLE)
        D9D_TRY(finish_phase(s, false));
    return D9D_OK;
}

/* Waits for the work of this phase until a deadline. */
static d9d_status wait_worker(d9di_checkpointer_async *s, int64_t deadline)
{
    return d9di_checkpointer_worker_wait_ended(&s->worker, deadline)
               ? D9D_OK
               : D9D_FAIL(D9D_ETIMEOUT, "the checkpoint of step %lld is not complete after %.1f s",
                          (long long)s->save.state.step,
                          (double)(d9d_clock_ns() - s->begun) * 1e-9);
}

/* Finishes the save in flight before a deadline.  *ended is false, on all ranks, if a rank's work
 * did not end by then. */
static d9d_status finish_until(d9di_checkpointer_async *s, int64_t deadline, bool *ended)
{
    d9d_bootstrap *bootstrap = s->opts.mesh != NULL ? d9d_mesh_bootstrap(s->opts.mesh) : NULL;

    *ended = true;
    while (s->current_phase != IDLE) {
        d9d_status st = wait_worker(s, deadline);

        if (bootstrap != NULL)
            st = d9d_bootstrap_agree_status(bootstrap, st);
        if (st == D9D_ETIMEOUT &&
            (bootstrap == NULL || d9d_bootstrap_failure_is_collective(bootstrap))) {
            *ended = false;
            return D9D_OK;
        }
        D9D_TRY(st);
        D9D_TRY(finish_phase(s, false));
    }
    return D9D_OK;
}

/* Adds the time since `since`, in which the current or latest save blocked training. */
static d9d_status add_blocked_time(d9di_checkpointer_async *s, int64_t since, d9d_status st)
{
    s->blocked += d9d_clock_ns() - since;
    return st == D9D_OK && s->current_phase == IDLE ? record_save(s) : st;
}

static d9d_status begin_save(d9di_checkpointer_async *s, const d9d_checkpointer_state *state)
{
    D9D_TRY(d9di_checkpointer_save_begin(s->opts.dir, state, s->opts.mesh,
                                         D9DI_CHECKPOINTER_RANKS_PER_DIR, &s->save));
    for (size_t i = 0; i < s->staged.n_counts; i++)
        s->counts[i] = *s->local.counts[i].value;
    d9di_checkpointer_rank_state_update(&s->local, &s->staged);
    if (!s->synchronous)
        D9D_TRY(d9di_checkpointer_copy_begin(&s->copy));
    start_phase(s, WRITING);
    return s->synchronous ? finish_phases(s) : D9D_OK;
}

/* When a save no longer waits for the one in flight. */
static int64_t end_of_patience(const d9di_checkpointer_async *s, int64_t now)
{
    const double period = (double)(now - s->begun) * 1e-9;
    double patience = period > s->opts.patience_s ? period : s->opts.patience_s;

    if (s->opts.timeout_s > 0 && patience > s->opts.timeout_s / 2)
        patience = s->opts.timeout_s / 2;
    return now + (int64_t)(patience * 1e9);
}

/* Finishes the save in flight, unless that takes too long; *in_time is then false. */
static d9d_status wait_for_previous(d9di_checkpointer_async *s, const d9d_checkpointer_state *next,
                                    bool *in_time)
{
    const int64_t now = d9d_clock_ns();

    if (s->current_phase == IDLE)
        return D9D_OK;
    D9D_TRY(add_blocked_time(s, now, finish_until(s, end_of_patience(s, now), in_time)));
    if (*in_time)
        return D9D_OK;
    d9d_log_warn(s->opts.log,
                 "step %lld is not saved, as one save runs at a time: %s; a larger "
                 "trainer.checkpointing.period_steps, or a faster file system, avoids this",
                 (long long)next->step, d9d_err_message());
    if (s->opts.mesh != NULL)
        d9d_bootstrap_clear_failure(d9d_mesh_bootstrap(s->opts.mesh));
    return D9D_OK;
}

int64_t d9di_checkpointer_async_committed(const d9di_checkpointer_async *s)
{
    return s == NULL ? -1 : s->committed;
}

d9d_status d9di_checkpointer_async_begin(d9di_checkpointer_async *s,
                                         const d9d_checkpointer_state *state, bool wait,
                                         bool *begun)
{
    *begun = true;
    if (s == NULL)
        return D9D_OK;
    if (wait)
        D9D_TRY(d9di_checkpointer_async_finish(s));
    else
        D9D_TRY(wait_for_previous(s, state, begun));
    if (!*begun)
        return D9D_OK;
    s->synchronous = wait || s->host == NULL;
    s->begun = d9d_clock_ns();
    s->blocked = 0;
    return add_blocked_time(s, s->begun, begin_save(s, state));
}

/* Each rank that has finished its work adds 1, so the sum is then the number of ranks; a rank that
 * failed adds more. */
double d9di_checkpointer_async_progress(d9di_checkpointer_async *s, int64_t step)
{
    double progress = 0;

    if (s == NULL)
        return 0;
    s->queued = step;
    if (s->current_phase != IDLE && d9di_checkpointer_worker_wait_ended(&s->worker, 0))
        progress = s->worker.result.st == D9D_OK ? 1 : s->ranks + 1;
    return progress;
}

/* Called where the device has nothing enqueued. */
d9d_status d9di_checkpointer_async_wait_copy(d9di_checkpointer_async *s)
{
    return s == NULL || s->current_phase != WRITING
               ? D9D_OK
               : d9di_checkpointer_worker_wait_copied(&s->worker, s->opts.dev, &s->blocked);
}

d9d_status d9di_checkpointer_async_advance(d9di_checkpointer_async *s, int64_t step, double sum)
{
    const int64_t since = d9d_clock_ns();

    if (s == NULL || s->current_phase == IDLE || step < s->since || sum < s->ranks)
        return D9D_OK;
    if (sum > s->ranks && s->opts.mesh != NULL) /* others may write for long */
        d9d_mesh_set_timeout(s->opts.mesh, s->opts.timeout_s, s->opts.timeout_name);
    return add_blocked_time(s, since, finish_phase(s, sum == s->ranks));
}

d9d_status d9di_checkpointer_async_finish(d9di_checkpointer_async *s)
{
    if (s == NULL || s->current_phase == IDLE)
        return D9D_OK;
    return add_blocked_time(s, d9d_clock_ns(), finish_phases(s));
}

void d9di_checkpointer_async_close(d9di_checkpointer_async *s)
{
    if (s == NULL)
        return;
    if (s->current_phase != IDLE) {
        __atomic_store_n(&s->save.cancelled, true, __ATOMIC_RELAXED);
        d9di_checkpointer_worker_abandon(&s->worker);
        d9di_checkpointer_save_release(&s->save);
    }
    d9d_device_unpin(s->opts.dev, s->host);
    d9di_checkpointer_copy_release(&s->copy);
    d9di_checkpointer_worker_release(&s->worker);
    d9d_arena_release(&s->arena);
    free(s);
}
