/* ranks.c - what ranks tell each other: a plugin that gathers text and arrays of any length, and an
 * event of its own.
 *
 *     {"plugin": "libranks.so", ...}
 *
 * d9d-metrics values RUN has the text "ranks/hosts", and the scalar "ranks/sum" over the ranks of a
 * tensor-parallel group.
 */
#include <stdio.h>

#include <d9d/comm/bootstrap.h>
#include <d9d/tasks/plugin.h>

enum { MAX_RANKS = 64 };

static d9d_bootstrap *job;

static d9d_status begin(void *self, const d9d_job_event *e)
{
    (void)self;
    job = e->bootstrap;
    return D9D_OK;
}

/* Texts of any length, each rank's, in the order of ranks. */
static d9d_status gather_hosts(d9d_arena *a, d9d_buf *out)
{
    const int size = d9d_bootstrap_size(job);
    d9d_bootstrap_blob *all = d9d_arena_alloc(a, (size_t)size * sizeof(*all));
    char local[300];
    const int n = snprintf(local, sizeof(local), "rank %d is on %.200s", d9d_bootstrap_rank(job),
                           d9d_bootstrap_node(job));

    if (all == NULL)
        return D9D_FAIL(D9D_ENOMEM, "ranks: %d texts", size);
    D9D_TRY(d9d_bootstrap_allgather(job, local, (size_t)n, a, all));
    for (int r = 0; r < size; r++)
        D9D_TRY(d9d_buf_printf(out, "%s\n", (const char *)all[r].data));
    return D9D_OK;
}

/* Rank r of a group has r + 1 numbers on the device: 1, 2, ... r + 1. */
static d9d_status gather_numbers(d9d_device *dev, d9d_comm *group, double *sum)
{
    const int size = d9d_comm_size(group), rank = d9d_comm_rank(group);
    int64_t counts[MAX_RANKS], n = 0, before = 0;
    float x[MAX_RANKS * (MAX_RANKS + 1) / 2] = {0};
    d9d_tensor all;
    d9d_status st;

    if (size > MAX_RANKS)
        return D9D_FAIL(D9D_ENOTSUP, "ranks: %d ranks, at most %d", size, MAX_RANKS);
    for (int r = 0; r < size; r++) {
        counts[r] = r + 1;
        before += r < rank ? counts[r] : 0;
        n += counts[r];
    }
    for (int i = 0; i <= rank; i++)
        x[before + i] = (float)(i + 1);
    D9D_TRY(d9d_tensor_from_host(dev, D9D_F32, D9D_SHAPE(n), x, &all));
    if (size > 1)
        D9D_TRY_OR(st,
                   d9d_comm_all_gather(group, dev->stream, "ranks", D9D_F32, d9d_tensor_data(&all),
                                       (float *)d9d_tensor_data(&all) + before, counts),
                   out);
    st = d9d_tensor_to_f32(&all, x);
    *sum = 0;
    for (int64_t i = 0; i < n; i++)
        *sum += (double)x[i];
out:
    d9d_tensor_release(&all);
    return st;
}

static d9d_status find_device(void *dev, d9d_param *p)
{
    if (p->shard.data.storage != NULL)
        *(d9d_device **)dev = d9d_tensor_device(&p->shard.data);
    return D9D_OK;
}

/* Before the first step.  The result becomes an event, which this and other plugins may handle. */
static d9d_status gather(void *self, const d9d_job_event *e)
{
    d9d_model *m = e->models[0];
    d9d_arena a = {0};
    d9d_buf text = {0};
    d9d_device *dev = NULL;
    double sum = 0;
    d9d_status st = gather_hosts(&a, &text);

    (void)self;
    if (st == D9D_OK)
        st = d9d_module_each(m->module, find_device, &dev);
    if (st == D9D_OK && dev != NULL)
        st = gather_numbers(dev, m->groups.tp, &sum);
    if (st == D9D_OK)
        st = d9d_values_text(e->values, "ranks/hosts", text.data, text.len);
    if (st == D9D_OK)
        st = d9d_job_events_trigger(e->events, &(d9d_job_event){.size = sizeof(d9d_job_event),
                                                                .id = "ranks.gathered",
                                                                .values = e->values,
                                                                .user = &sum});
    d9d_buf_release(&text);
    d9d_arena_release(&a);
    return st;
}

static d9d_status gathered(void *self, const d9d_job_event *e)
{
    (void)self;
    return d9d_values_scalar(e->values, "ranks/sum", *(const double *)e->user);
}

static const d9d_job_event_handler events[] = {{"train.configuration.start", begin},
                                               {"train.configuration.model_stages", gather},
                                               {"ranks.gathered", gathered},
                                               {NULL, NULL}};

D9D_PLUGIN(.events = events);
