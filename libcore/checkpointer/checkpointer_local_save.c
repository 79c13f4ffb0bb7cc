/* checkpointer_local_save.c - saves of local checkpoints, beside the steps.  See
 * checkpointer/checkpointer_local.h.
 */
#include <limits.h>
#include <string.h>

#include "checkpointer/checkpointer_local_private.h"
#include "d9d/base/thread.h"

enum { DATA = D9DI_CHECKPOINTER_LOCAL_DATA };

/* Waits for other ranks that are shorter are no reason to say anything. */
#define WAIT_TO_SAY_NS INT64_C(100000000)

typedef d9di_checkpointer_local_header header;
typedef d9di_checkpointer_local_file file;
typedef d9di_checkpointer_local_array array;

/* --- the thread ------------------------------------------------------------------------------- */

static d9d_status tensor_copy(d9di_checkpointer_local *x, const array *a, void *arg)
{
    const file *f = arg;

    return a->tensor != NULL ? d9di_checkpointer_copy_tensor(&x->copy, a->item, f->data + a->at)
                             : D9D_OK;
}

static void own_seal(const d9di_checkpointer_local *x, const file *f)
{
    header *h = (header *)(void *)f->data;

    h->rank = x->rank;
    h->ranks = x->ranks;
    h->job = x->opts.job.job;
    h->layout = x->layout;
    h->bytes = x->bytes;
    h->state = x->save.state;
    h->checksum = d9di_checkpointer_local_checksum(f, h);
    d9di_checkpointer_local_header_validate(h);
}

/* The bytes of a source have come, and then its header. */
static d9d_status peer_seal(const d9di_checkpointer_local *x, int source, const header *received,
                            const file *f)
{
    header *h = (header *)(void *)f->data;

    if (!d9di_checkpointer_local_header_is_valid(received) || received->rank != source ||
        received->state.step != x->save.state.step || received->bytes != f->size - DATA ||
        received->checksum != d9di_checkpointer_local_checksum(f, received))
        return D9D_FAIL(D9D_ECORRUPT,
                        "the local checkpoint of step %lld: rank %d received other bytes than rank "
                        "%d sent",
                        (long long)x->save.state.step, x->rank, source);
    *h = *received;
    memset(h->magic, 0, sizeof(h->magic));
    d9di_checkpointer_local_header_validate(h);
    return D9D_OK;
}

/* This rank's file goes to its target, and those of its sources come. */
static d9d_status copies_exchange(d9di_checkpointer_local *x, const file *own)
{
    const int *sources, n = d9d_links_sources(x->links, &sources);
    const d9d_links_bytes bytes = {own->data + DATA, own->size - DATA},
                          head = {own->data, sizeof(header)};
    const file *peer = x->peer[x->save.slot];

    for (int i = 0; i < n; i++)
        x->incoming[i] =
            (d9d_links_bytes){peer[sources[i]].data + DATA, peer[sources[i]].size - DATA};
    D9D_TRY(d9d_links_exchange(x->links, &bytes, x->incoming));
    for (int i = 0; i < n; i++)
        x->incoming[i] = (d9d_links_bytes){&x->received[i], sizeof(header)};
    D9D_TRY(d9d_links_exchange(x->links, &head, x->incoming));
    for (int i = 0; i < n; i++)
        D9D_TRY(peer_seal(x, sources[i], &x->received[i], &peer[sources[i]]));
    return D9D_OK;
}

static d9d_status save_work(void *arg)
{
    d9di_checkpointer_local *x = arg;
    file *own = &x->own[x->save.slot];

    D9D_TRY(d9di_checkpointer_local_each(x, tensor_copy, own));
    d9di_checkpointer_worker_set_copied(&x->save.worker);
    own_seal(x, own);
    return x->links != NULL ? copies_exchange(x, own) : D9D_OK;
}

/* --- the end of a save ------------------------------------------------------------------------ */

static int64_t deadline_of(const d9di_checkpointer_local *x)
{
    return x->opts.timeout_s > 0 ? d9d_clock_ns() + (int64_t)(x->opts.timeout_s * 1e9) : INT64_MAX;
}

static d9d_status work_end(d9di_checkpointer_local *x)
{
    if (d9di_checkpointer_worker_wait_ended(&x->save.worker, deadline_of(x)))
        return d9di_checkpointer_worker_join(&x->save.worker);
    return D9D_FAIL(D9D_ETIMEOUT,
                    "the local checkpoint of step %lld has not ended after %.1f s; %s "
                    "is %.0f s",
                    (long long)x->save.state.step, (double)(d9d_clock_ns() - x->save.begun) * 1e-9,
                    x->opts.timeout_name, x->opts.timeout_s);
}

/* Said once: how long training waited. */
static void wait_say(d9di_checkpointer_local *x, int64_t step, int64_t waited)
{
    if (x->save.wait_is_said)
        return;
    x->save.wait_is_said = true;
    d9d_log_warn(x->opts.log,
                 "step %lld waited %.3f s for the local checkpoint of step %lld, which had not "
                 "ended; a larger trainer.checkpointing.local_period_steps avoids this",
                 (long long)step, (double)waited * 1e-9, (long long)x->save.state.step);
}

/* All ranks know that the save in progress has ended on all. */
static d9d_status previous_end(d9di_checkpointer_local *x, int64_t step)
{
    d9di_checkpointer_local_save *s = &x->save;
    const int64_t since = d9d_clock_ns();
    int64_t waited;
    bool late;

    if (!s->open)
        return D9D_OK;
    late = !d9di_checkpointer_worker_wait_ended(&s->worker, 0);
    D9D_TRY(d9d_bootstrap_agree_status(d9d_mesh_bootstrap(x->opts.mesh), work_end(x)));
    s->open = false;
    waited = d9d_clock_ns() - since;
    s->blocked += waited;
    if (late || (x->ranks > 1 && waited > WAIT_TO_SAY_NS))
        wait_say(x, step, waited);
    return x->opts.tracker == NULL ? D9D_OK
                                   : d9d_tracker_save(x->opts.tracker, D9D_TRACK_LOCAL_SAVE,
                                                      s->state.step, (double)s->blocked * 1e-6,
                                                      (double)(s->worker.end - s->begun) * 1e-6);
}

/* --- the main thread -------------------------------------------------------------------------- */

static d9d_status host_copy(d9di_checkpointer_local *x, const array *a, void *arg)
{
    const file *f = arg;

    (void)x;
    if (a->host != NULL)
        memcpy(f->data + a->at, a->host, a->bytes);
    return D9D_OK;
}

static void files_invalidate(d9di_checkpointer_local *x)
{
    memset(x->own[x->save.slot].data, 0, DATA);
    for (int r = 0; r < x->ranks; r++)
        if (x->peer[x->save.slot][r].data != NULL)
            memset(x->peer[x->save.slot][r].data, 0, DATA);
}

static d9d_status save_start(d9di_checkpointer_local *x, const d9d_checkpointer_state *state)
{
    x->save.state = *state;
    x->save.slot = x->next;
    x->next = 1 - x->next;
    files_invalidate(x);
    D9D_TRY(d9di_checkpointer_local_each(x, host_copy, &x->own[x->save.slot]));
    D9D_TRY(d9di_checkpointer_copy_begin(&x->copy));
    x->save.open = true;
    d9di_checkpointer_worker_start(&x->save.worker, true, save_work, x);
    return D9D_OK;
}

d9d_status d9di_checkpointer_local_begin(d9di_checkpointer_local *x,
                                         const d9d_checkpointer_state *state)
{
    D9D_TRY(previous_end(x, state->step));
    x->save.begun = d9d_clock_ns();
    D9D_TRY(save_start(x, state));
    x->save.blocked = d9d_clock_ns() - x->save.begun;
    return D9D_OK;
}

d9d_status d9di_checkpointer_local_wait_copy(d9di_checkpointer_local *x)
{
    return x == NULL || !x->save.open ? D9D_OK
                                      : d9di_checkpointer_worker_wait_copied(
                                            &x->save.worker, x->opts.dev, &x->save.blocked);
}

void d9di_checkpointer_local_wait(d9di_checkpointer_local *x)
{
    if (x != NULL && x->save.open)
        (void)d9di_checkpointer_worker_wait_ended(&x->save.worker, deadline_of(x));
}

void d9di_checkpointer_local_abandon(d9di_checkpointer_local *x)
{
    if (x == NULL || !x->save.open)
        return;
    d9d_links_cancel(x->links);
    d9di_checkpointer_worker_abandon(&x->save.worker);
    x->save.open = false;
}
