/* dataset_stream.c - datasets whose samples nobody has counted.  See
 * d9d/data/dataset/dataset_kind.h. */
#include <time.h>

#include "d9d/base/plugin_call.h"
#include "d9d/data/dataset/dataset_kind.h"
#include "data/dataset/dataset_private.h"

enum { POLL_NS = 50 * 1000 * 1000 };

bool d9d_dataset_is_stream(const d9d_dataset *ds)
{
    return ds->is_stream;
}

d9d_status d9d_dataset_poll(d9d_dataset *ds, int64_t k, d9d_dataset_presence *out)
{
    *out = D9D_DATASET_PENDING;
    return D9D_PLUGIN_CALL(ds->kind->table->name, ds->kind, poll, ds->self, k, out);
}

void d9d_dataset_interrupt(d9d_dataset *ds, bool on)
{
    __atomic_store_n(&ds->interrupted, on, __ATOMIC_RELEASE);
}

d9d_status d9d_dataset_wait(d9d_dataset *ds, int64_t k)
{
    const struct timespec pause = {0, POLL_NS};

    for (;;) {
        d9d_dataset_presence there;

        D9D_TRY(d9d_dataset_poll(ds, k, &there));
        if (there == D9D_DATASET_PRESENT)
            return D9D_OK;
        if (there == D9D_DATASET_ENDED)
            return D9D_FAIL(D9D_ECONFIG, "%s: the stream has ended before sample %lld", ds->dir,
                            (long long)k);
        if (__atomic_load_n(&ds->interrupted, __ATOMIC_ACQUIRE))
            return D9D_FAIL(D9D_EINVAL, "%s: nobody waits for sample %lld any more", ds->dir,
                            (long long)k);
        (void)nanosleep(&pause, NULL);
    }
}

bool d9d_dataset_share(d9d_dataset *ds)
{
    const d9d_dataset_kind *kind = ds->kind;

    if (!ds->is_stream || !D9DI_DATASET_KIND_HAS(kind, share))
        return false;
    kind->share(ds->self);
    return true;
}

d9d_status d9d_dataset_survey_make(d9d_dataset *ds, int rank, int ranks, bool needed, d9d_buf *out)
{
    return D9D_PLUGIN_CALL(ds->kind->table->name, ds->kind, survey, ds->self, rank, ranks, needed,
                           out);
}

d9d_status d9d_dataset_survey_set(d9d_dataset *ds, const d9d_dataset_survey *all, int ranks,
                                  bool *more)
{
    return D9D_PLUGIN_CALL(ds->kind->table->name, ds->kind, set_surveys, ds->self, all, ranks,
                           more);
}

void d9d_dataset_forget(d9d_dataset *ds, int64_t k)
{
    if (D9DI_DATASET_KIND_HAS(ds->kind, forget))
        ds->kind->forget(ds->self, k);
}

static d9d_status check_resumable(const d9d_dataset *ds, int64_t k)
{
    if (D9DI_DATASET_KIND_HAS(ds->kind, seek))
        return D9D_OK;
    return D9D_FAIL(D9D_ENOTSUP,
                    "%s: the stream %s cannot be read again from sample %lld on, so that no run of "
                    "it resumes; begin another one",
                    ds->dir, ds->kind->table->name, (long long)k);
}

d9d_status d9d_dataset_tell(d9d_dataset *ds, int64_t k, d9d_buf *state)
{
    const size_t before = state->len;

    D9D_TRY(check_resumable(ds, k));
    D9D_TRY(D9D_PLUGIN_CALL(ds->kind->table->name, ds->kind, tell, ds->self, k, state));
    if (state->len < before || state->len - before > D9D_DATASET_STATE_MAX)
        return D9D_FAIL(D9D_EINVAL, "%s: the state of the stream %s has %zu bytes, not up to %d",
                        ds->dir, ds->kind->table->name, state->len - before, D9D_DATASET_STATE_MAX);
    return D9D_OK;
}

d9d_status d9d_dataset_seek(d9d_dataset *ds, int64_t k, const void *state, size_t n)
{
    D9D_TRY(check_resumable(ds, k));
    return D9D_PLUGIN_CALL(ds->kind->table->name, ds->kind, seek, ds->self, k, state, n);
}
