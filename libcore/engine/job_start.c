/* job_start.c - see engine/job_start.h. */
#include "engine/job_start.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "d9d/base/environment.h"
#include "d9d/comm/exchange.h"
#include "d9d/comm/flight.h"
#include "d9d/device/simulated.h"

d9d_status d9di_job_start_runtime_status(d9d_status st)
{
    return st == D9D_ENOTFOUND || st == D9D_EPATH ? D9D_FAIL(D9D_EIO, "%s", d9d_err_message()) : st;
}

/* The number of ranks with lower numbers on this rank's node. */
static d9d_status local_rank(d9d_bootstrap *bootstrap, int *out)
{
    const char *node = d9d_bootstrap_node(bootstrap);
    d9d_bootstrap_blob *all;
    d9d_arena a = {0};
    d9d_status st = d9d_bootstrap_allgather_arena(bootstrap, node, strlen(node), &a, &all);

    *out = 0;
    for (int r = 0; st == D9D_OK && r < d9d_bootstrap_rank(bootstrap); r++)
        *out += strcmp(all[r].data, node) == 0;
    d9d_arena_release(&a);
    return st;
}

d9d_status d9di_job_start_check_device(const d9d_bootstrap *bootstrap, const char *which)
{
    return d9d_bootstrap_is_simulated(bootstrap) ? d9d_device_check_simulated(which)
                                                 : d9d_device_check(which);
}

d9d_status d9di_job_start_check_distinct(const d9di_job_start_device_id *all, int rank)
{
    const d9di_job_start_device_id *local = &all[rank];

    if (strcmp(local->kind, all[0].kind) != 0)
        return D9D_FAIL(D9D_ECONFIG,
                        "computes on %s, and rank 0 on %s: all ranks of a job do alike",
                        local->kind, all[0].kind);
    for (int r = 0; r < rank && local->id[0] != '\0'; r++)
        if (strcmp(local->id, all[r].id) == 0)
            return D9D_FAIL(D9D_ECONFIG,
                            "has the GPU that rank %d has: a node needs one for each of its ranks",
                            r);
    return D9D_OK;
}

/* Gathers the device ids of all ranks. */
static d9d_status gather_device_ids(d9d_bootstrap *bootstrap, const d9d_device *dev, d9d_arena *a,
                                    d9di_job_start_device_id **out)
{
    const int ranks = d9d_bootstrap_size(bootstrap);
    d9di_job_start_device_id local = {.kind = ""};
    d9d_bootstrap_blob *all;

    (void)snprintf(local.kind, sizeof(local.kind), "%s", dev->kernels->name);
    memcpy(local.id, dev->id, sizeof(local.id));
    *out = d9d_arena_alloc(a, (size_t)ranks * sizeof(**out));
    if (*out == NULL)
        return D9D_FAIL(D9D_ENOMEM, "bootstrap: no memory for the devices of %d ranks", ranks);
    D9D_TRY(d9d_bootstrap_allgather_arena(bootstrap, &local, sizeof(local), a, &all));
    for (int r = 0; r < ranks; r++) {
        if (all[r].n != sizeof(local))
            return D9D_FAIL(D9D_ECOMM, "bootstrap: rank %d sent %zu bytes as its device", r,
                            all[r].n);
        memcpy(&(*out)[r], all[r].data, sizeof(local));
    }
    return D9D_OK;
}

static d9d_status check_distinct_devices(d9d_bootstrap *bootstrap, const d9d_device *dev)
{
    d9di_job_start_device_id *all;
    d9d_arena a = {0};
    d9d_status st = gather_device_ids(bootstrap, dev, &a, &all);

    if (st == D9D_OK)
        st = d9d_bootstrap_agree_status(
            bootstrap, d9di_job_start_check_distinct(all, d9d_bootstrap_rank(bootstrap)));
    d9d_arena_release(&a);
    return st;
}

/* A process that sees a single GPU gets it as number 0. */
static d9d_status open_local_device(d9d_bootstrap *bootstrap, const char *which, d9d_device **out)
{
    const size_t n = strcspn(which, "@"); /* a memory limit follows */
    char word[64];
    int local;
    d9d_status st;

    if ((strncmp(which, "auto", n) != 0 && strncmp(which, "cuda", n) != 0) || n != strlen("auto"))
        return d9d_device_open(which, out);
    D9D_TRY(local_rank(bootstrap, &local));
    (void)snprintf(word, sizeof(word), "cuda:%d%.40s", local, which + n);
    st = local > 0 ? d9d_device_open(word, out) : D9D_ENOTFOUND;
    return st == D9D_ENOTFOUND || st == D9D_ENOTSUP ? d9d_device_open(which, out) : st;
}

/* What the CUDA driver reads when a device is opened. */
static d9d_status set_environment(d9d_bootstrap *bootstrap)
{
    d9d_environment e;

    d9d_environment_read(d9d_bootstrap_size(bootstrap) > 1 ? D9D_ENVIRONMENT_GPU_RANKS
                                                           : D9D_ENVIRONMENT_GPU_ALONE,
                         getenv, &e);
    D9D_TRY(d9d_environment_check(&e));
    d9d_environment_apply(&e);
    return D9D_OK;
}

d9d_status d9di_job_start_open_device(d9d_bootstrap *bootstrap, const char *which, d9d_device **out)
{
    d9d_status st;

    if (d9d_bootstrap_is_simulated(bootstrap))
        return d9d_device_simulate(which, out);
    D9D_TRY(set_environment(bootstrap));
    if (d9d_bootstrap_size(bootstrap) == 1)
        return d9d_device_open(which, out);
    D9D_TRY(open_local_device(bootstrap, which, out));
    st = check_distinct_devices(bootstrap, *out);
    if (st == D9D_OK)
        return D9D_OK;
    d9d_device_close(*out);
    *out = NULL;
    return st;
}

d9d_status d9di_job_start_fail_rank(d9d_bootstrap *bootstrap, d9d_mesh *mesh, d9d_status st)
{
    char where[128] = "not placed yet";

    if (st == D9D_OK || d9d_bootstrap_size(bootstrap) == 1 ||
        d9d_bootstrap_failure_is_collective(bootstrap))
        return st;
    if (mesh != NULL)
        (void)d9d_mesh_text(mesh, where, sizeof(where));
    d9d_mesh_abandon(mesh);
    return D9D_FAIL(st, "rank %d of %d (%s, %s): %s", d9d_bootstrap_rank(bootstrap),
                    d9d_bootstrap_size(bootstrap), d9d_bootstrap_node(bootstrap), where,
                    d9d_err_message());
}

d9d_status d9di_job_start_open_events(const d9d_job *where, const d9d_union *model,
                                      const d9di_task *task, d9d_arena *a, d9d_job_events **out)
{
    const d9d_model_provider *p;
    d9d_union section;

    D9D_TRY(d9d_model_section_resolve(model, a, &section));
    p = section.choice->row;
    D9D_TRY(d9d_job_events_create(out));
    D9D_TRY(d9d_job_events_subscribe(*out, p->events, section.value));
    if (task != NULL)
        D9D_TRY(d9d_job_events_subscribe(*out, task->kind->events, task->self));
    return d9d_plugins_subscribe(where->plugins, *out);
}

#define FLIGHT "%s.flight"

d9d_status d9di_job_start_flight_dir(const d9d_bootstrap *bootstrap, const char *output,
                                     d9d_arena *a, const char **out)
{
    *out = NULL;
    if (output == NULL || d9d_bootstrap_size(bootstrap) == 1)
        return D9D_OK;
    *out = d9d_arena_printf(a, FLIGHT, output);
    return *out != NULL ? D9D_OK : D9D_FAIL(D9D_ENOMEM, "%s: its name", output);
}

/* An earlier, interrupted start may have had more ranks. */
void d9di_job_start_remove_flight_dir(const d9d_bootstrap *bootstrap, const char *output)
{
    const int size = d9d_bootstrap_size(bootstrap);
    char path[PATH_MAX];

    if (output == NULL || size == 1)
        return;
    (void)snprintf(path, sizeof(path), FLIGHT, output);
    for (int r = d9d_bootstrap_rank(bootstrap); d9d_flight_remove(path, r);)
        r += size;
    (void)rmdir(path);
}
