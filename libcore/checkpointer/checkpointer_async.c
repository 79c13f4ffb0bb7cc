/* checkpointer_async.c - see checkpointer/checkpointer_async.h. */
#include "checkpointer/checkpointer_async.h"

#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpointer/checkpointer_private.h"
#include "d9d/base/thread.h"
#include "d9d/device/readback.h"

enum { PAGE = 4096 };

typedef enum phase { IDLE, WRITING, COMMITTING } phase;

struct d9di_saver {
    d9di_saver_how how;
    int ranks;
    d9d_save_set here;   /* what this rank writes */
    d9d_save_set staged; /* the same, as it was when the save began */
    int64_t *counts;     /* of it */
    void *host;          /* its bytes; NULL: every save is waited for */
    d9d_arena arena;

    phase phase;
    bool waited;            /* this save is, from its beginning: done by the caller, uncopied */
    int64_t queued, since;  /* the newest step; the first whose number speaks of this phase */
    d9di_save save;         /* unless IDLE */
    int64_t begun, blocked; /* ns: when; how long training stood still for it */

    pthread_t thread;
    bool running;
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t moved;
    bool copied, ended;
    int64_t end;         /* ns: when the phase's work ended */
    d9d_err_copy result; /* of it */
};

/* --- opening ---------------------------------------------------------------------------- */

/* What a rank asks its node for. */
typedef struct asked {
    uint64_t bytes;
    char node[256];
} asked;

/* Is there memory for what the ranks of this node ask for? */
static d9d_status node_check(const d9di_saver *s, uint64_t bytes, d9d_arena *a)
{
    d9d_boot *boot = s->how.mesh != NULL ? d9d_mesh_boot(s->how.mesh) : NULL;
    const uint64_t left = d9d_mem_left();
    asked mine = {.bytes = bytes};
    d9d_boot_word *all = d9d_arena_alloc(a, (size_t)s->ranks * sizeof(*all));
    uint64_t sum = 0;

    if (all == NULL)
        return D9D_FAIL(D9D_ENOMEM, "checkpoint: words of %d ranks", s->ranks);
    all[0] = (d9d_boot_word){&mine, sizeof(mine)};
    if (boot != NULL) {
        (void)snprintf(mine.node, sizeof(mine.node), "%s", d9d_boot_node(boot));
        D9D_TRY(d9d_boot_gather(boot, &mine, sizeof(mine), a, all));
    }
    for (int r = 0; r < s->ranks; r++) {
        asked one;

        memcpy(&one, all[r].data, sizeof(one)); /* words lie anywhere */
        sum += strcmp(one.node, mine.node) == 0 ? one.bytes : 0;
    }
    if (sum > left)
        return D9D_FAIL(D9D_ENOMEM,
                        "%s%scopies of what is saved take %.0f MB of host memory, and %.0f MB are "
                        "left",
                        mine.node, mine.node[0] != '\0' ? ": " : "", (double)sum * 1e-6,
                        (double)left * 1e-6);
    return D9D_OK;
}

/* The memory, touched: what the host does not have shows now. */
static d9d_status host_take(d9di_saver *s, uint64_t bytes)
{
    d9d_arena a = {0};
    void *host = NULL;
    d9d_status st = node_check(s, bytes, &a);

    d9d_arena_release(&a);
    if (st == D9D_OK)
        st = d9d_device_pin(s->how.dev, bytes, &host);
    if (s->how.mesh != NULL)
        st = d9d_boot_agree(d9d_mesh_boot(s->how.mesh), st);
    if (st != D9D_OK) {
        d9d_device_unpin(s->how.dev, host);
        return st;
    }
    assert(host != NULL || bytes == 0);
    for (uint64_t at = 0; at < bytes; at += PAGE)
        ((volatile char *)host)[at] = 0;
    s->host = host;
    return D9D_OK;
}

/* The set again, with its bytes in the copy. */
static d9d_status stage_place(d9di_saver *s)
{
    d9d_save_set *to = &s->staged;
    char *at = s->host;

    *to = s->here;
    to->items = d9d_arena_alloc(&s->arena, (to->n + 1) * sizeof(*to->items));
    to->counts = d9d_arena_alloc(&s->arena, (to->n_counts + 1) * sizeof(*to->counts));
    s->counts = d9d_arena_alloc(&s->arena, (to->n_counts + 1) * sizeof(*s->counts));
    if (to->items == NULL || to->counts == NULL || s->counts == NULL)
        return D9D_FAIL(D9D_ENOMEM, "checkpoint: records of %zu tensors", to->n);
    for (size_t i = 0; i < to->n; i++) {
        to->items[i] = s->here.items[i];
        to->items[i].host = at;
        at += d9d_tensor_bytes(to->items[i].tensor);
    }
    for (size_t i = 0; i < to->n_counts; i++)
        to->counts[i] = (d9d_save_count){s->here.counts[i].name, &s->counts[i]};
    return d9di_save_cells_copy(&s->here, &s->arena, to);
}

static d9d_status stage_open(d9di_saver *s)
{
    const uint64_t bytes = d9d_save_bytes(&s->here);
    const d9d_status st = host_take(s, bytes);

    if (st == D9D_ECOMM)
        return st;
    if (st != D9D_OK) {
        d9d_log_warn(s->how.log, "%s: training will wait for every checkpoint", d9d_err_message());
        if (s->how.mesh != NULL)
            d9d_boot_forgive(d9d_mesh_boot(s->how.mesh));
        return D9D_OK;
    }
    d9d_log_info(s->how.log, "checkpoints are written behind, from %.3g MB of host memory%s",
                 (double)bytes * 1e-6, s->ranks > 1 ? " on this rank" : "");
    return stage_place(s);
}

d9d_status d9di_saver_open(const d9di_saver_how *how, d9di_saver **out)
{
    d9di_saver *s = calloc(1, sizeof(*s));
    d9d_status st;

    if (s == NULL)
        return D9D_FAIL(D9D_ENOMEM, "checkpoint: no memory to save");
    s->how = *how;
    s->ranks = how->mesh != NULL ? d9d_mesh_size(how->mesh) : 1;
    s->queued = -1;
    (void)pthread_mutex_init(&s->lock, NULL);
    (void)pthread_cond_init(&s->moved, NULL);
    D9D_TRY_OR(st, d9d_save_set_here(how->set, &s->arena, &s->here), out);
    if (how->behind)
        D9D_TRY_OR(st, stage_open(s), out);
    *out = s;
    s = NULL;
out:
    d9di_saver_close(s);
    return st;
}

/* --- work: of this rank alone ------------------------------------------------------------- */

static d9d_status copy(d9di_saver *s)
{
    char *to = s->host;

    for (size_t i = 0; i < s->here.n; i++) {
        const d9d_tensor *t = s->here.items[i].tensor;
        const uint64_t n = d9d_tensor_bytes(t);

        D9D_TRY(d9d_device_peek(s->how.dev, to, d9d_tensor_data(t), n));
        to += n;
    }
    (void)pthread_mutex_lock(&s->lock);
    s->copied = true;
    (void)pthread_cond_signal(&s->moved);
    (void)pthread_mutex_unlock(&s->lock);
    return D9D_OK;
}

static d9d_status share(d9di_saver *s)
{
    const d9d_save_set *set = s->waited ? &s->here : &s->staged;
    const bool tells = s->waited && s->save.rank == 0; /* else the steps do */
    d9d_progress progress;
    char what[64];

    if (!s->waited)
        D9D_TRY(copy(s));
    (void)snprintf(what, sizeof(what), "save step %lld", (long long)s->save.state.step);
    d9d_progress_start(&progress, tells ? s->how.log : NULL, what, "B", d9d_save_bytes(set));
    D9D_TRY(d9di_save_share(&s->save, set, &progress));
    d9d_progress_end(&progress);
    return D9D_OK;
}

static d9d_status commit(d9di_saver *s)
{
    const bool first = s->save.rank == 0;

    D9D_TRY(d9di_save_commit(&s->save));
    d9di_save_release(&s->save);
    return first ? d9d_save_prune(s->how.dir, s->how.keep, s->how.log) : D9D_OK;
}

static void *work(void *arg)
{
    d9di_saver *s = arg;
    const d9d_status st = (s->phase == WRITING ? share : commit)(s);

    (void)pthread_mutex_lock(&s->lock);
    d9d_err_save(&s->result, st);
    s->end = d9d_clock_ns();
    s->ended = true;
    (void)pthread_cond_signal(&s->moved);
    (void)pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* Begin a phase: by a thread, for which signals are not, or here. */
static void phase_begin(d9di_saver *s, phase next)
{
    const bool much = !s->waited && (next == WRITING || s->save.rank == 0);
    sigset_t all, old;

    s->phase = next;
    s->since = s->queued + 1;
    s->copied = s->ended = false;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    s->running = much && pthread_create(&s->thread, NULL, work, s) == 0;
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (!s->running)
        (void)work(s); /* a thread fewer is slower, not wrong */
}

/* --- together ------------------------------------------------------------------------------ */

/* The work of this phase, waited for. */
static d9d_status work_result(d9di_saver *s)
{
    if (s->running)
        (void)pthread_join(s->thread, NULL);
    s->running = false;
    return d9d_err_restore(&s->result);
}

static d9d_status record(const d9di_saver *s)
{
    const double blocked = (double)s->blocked * 1e-6, total = (double)(s->end - s->begun) * 1e-6;

    if (!s->waited)
        d9d_log_info(s->how.log, "saved step %lld in %.2f s, of which training waited %.3f s",
                     (long long)s->save.state.step, total * 1e-3, blocked * 1e-3);
    return s->how.tracker == NULL
               ? D9D_OK
               : d9d_tracker_save(s->how.tracker, s->save.state.step, blocked, total);
}

/* All ranks are here.  `well`: all of them know that all have done their work. */
static d9d_status phase_end(d9di_saver *s, bool well)
{
    d9d_status st = work_result(s);

    if (!well && s->how.mesh != NULL)
        st = d9d_boot_agree(d9d_mesh_boot(s->how.mesh), st);
    if (st == D9D_OK && s->phase == WRITING) {
        phase_begin(s, COMMITTING);
        return D9D_OK;
    }
    d9di_save_release(&s->save);
    s->phase = IDLE;
    return st;
}

static d9d_status finish(d9di_saver *s)
{
    while (s->phase != IDLE)
        D9D_TRY(phase_end(s, false));
    return D9D_OK;
}

/* Training stood still from `since` on for the save that is under way, or has just ended. */
static d9d_status count(d9di_saver *s, int64_t since, d9d_status st)
{
    s->blocked += d9d_clock_ns() - since;
    return st == D9D_OK && s->phase == IDLE ? record(s) : st;
}

static d9d_status begin(d9di_saver *s, const d9d_save_state *state)
{
    D9D_TRY(d9di_save_begin(s->how.dir, state, s->how.mesh, &s->save));
    for (size_t i = 0; i < s->staged.n_counts; i++)
        s->counts[i] = *s->here.counts[i].value;
    d9di_save_cells_set(&s->here, &s->staged);
    phase_begin(s, WRITING);
    return s->waited ? finish(s) : D9D_OK;
}

d9d_status d9di_saver_begin(d9di_saver *s, const d9d_save_state *state, bool wait)
{
    if (s == NULL)
        return D9D_OK;
    D9D_TRY(d9di_saver_finish(s));
    s->waited = wait || s->host == NULL;
    s->begun = d9d_clock_ns();
    s->blocked = 0;
    return count(s, s->begun, begin(s, state));
}

/* 1 from each that has done its work makes their number; one that cannot do it makes it more. */
double d9di_saver_number(d9di_saver *s, int64_t step)
{
    double mine = 0;

    if (s == NULL)
        return 0;
    s->queued = step;
    (void)pthread_mutex_lock(&s->lock);
    if (s->phase != IDLE && s->ended)
        mine = s->result.st == D9D_OK ? 1 : s->ranks + 1;
    (void)pthread_mutex_unlock(&s->lock);
    return mine;
}

/* Training stands still where the device has nothing more to do. */
static d9d_status hold(d9di_saver *s, d9d_device_event *queued)
{
    const int64_t since = d9d_clock_ns();

    D9D_TRY(d9d_device_event_record(queued));
    (void)pthread_mutex_lock(&s->lock);
    while (!s->copied && !s->ended)
        (void)pthread_cond_wait(&s->moved, &s->lock);
    (void)pthread_mutex_unlock(&s->lock);
    if (d9d_device_event_passed(queued))
        s->blocked += d9d_clock_ns() - since;
    return D9D_OK;
}

d9d_status d9di_saver_hold(d9di_saver *s)
{
    d9d_device_event *queued;
    d9d_status st;

    if (s == NULL || s->phase != WRITING)
        return D9D_OK;
    D9D_TRY(d9d_device_event_create(s->how.dev, &queued));
    st = hold(s, queued);
    d9d_device_event_free(queued);
    return st;
}

d9d_status d9di_saver_told(d9di_saver *s, int64_t step, double sum)
{
    const int64_t since = d9d_clock_ns();

    if (s == NULL || s->phase == IDLE || step < s->since || sum < s->ranks)
        return D9D_OK;
    if (sum > s->ranks && s->how.mesh != NULL) /* some may write for long yet */
        d9d_mesh_set_timeout(s->how.mesh, s->how.timeout_s, s->how.limit);
    return count(s, since, phase_end(s, sum == s->ranks));
}

d9d_status d9di_saver_finish(d9di_saver *s)
{
    if (s == NULL || s->phase == IDLE)
        return D9D_OK;
    return count(s, d9d_clock_ns(), finish(s));
}

void d9di_saver_close(d9di_saver *s)
{
    if (s == NULL)
        return;
    if (s->phase != IDLE) {
        __atomic_store_n(&s->save.given_up, true, __ATOMIC_RELAXED);
        if (s->running)
            (void)pthread_join(s->thread, NULL);
        d9di_save_release(&s->save);
    }
    d9d_device_unpin(s->how.dev, s->host);
    (void)pthread_mutex_destroy(&s->lock);
    (void)pthread_cond_destroy(&s->moved);
    d9d_arena_release(&s->arena);
    free(s);
}
