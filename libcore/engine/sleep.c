/* sleep.c - see engine/sleep.h. */
#include "engine/sleep.h"

#include "d9d/comm/exchange.h"

static double to_mib(uint64_t bytes)
{
    return (double)bytes / (1 << 20);
}

d9d_status d9di_sleep_begin(const d9di_sleep_opts *opts)
{
    const uint64_t held = d9d_device_memory(opts->dev).reserved;

    D9D_TRY(d9d_bootstrap_agree_status(opts->bootstrap, d9d_tensor_offload_all(opts->dev)));
    d9d_mesh_suspend(opts->mesh);
    d9d_device_trim(opts->dev);
    d9d_log_info(opts->log, "asleep: %.1f of %.1f MiB of %s are free; SIGUSR2 wakes",
                 to_mib(held - d9d_device_memory(opts->dev).reserved), to_mib(held),
                 opts->dev->name);
    return D9D_OK;
}

/* The other ranks wait for a broadcast of rank 0, without a timeout. */
d9d_status d9di_sleep_wait(const d9di_sleep_opts *opts)
{
    const double patience = d9d_bootstrap_set_timeout(opts->bootstrap, 0);
    const char *word = "awake";
    d9d_arena a = {0};
    d9d_status st;

    if (d9d_bootstrap_rank(opts->bootstrap) == 0)
        d9d_preemption_wait_wake(opts->preemption);
    st = d9d_bootstrap_broadcast_text(opts->bootstrap, &a, &word);
    (void)d9d_bootstrap_set_timeout(opts->bootstrap, patience);
    d9d_arena_release(&a);
    return st;
}

d9d_status d9di_sleep_end(const d9di_sleep_opts *opts)
{
    D9D_TRY(d9d_bootstrap_agree_status(opts->bootstrap, d9d_tensor_restore_all(opts->dev)));
    D9D_TRY(d9d_mesh_resume(opts->mesh));
    d9d_log_info(opts->log, "awake: %.1f MiB of %s are taken again",
                 to_mib(d9d_device_memory(opts->dev).reserved), opts->dev->name);
    return D9D_OK;
}
