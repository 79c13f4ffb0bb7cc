/* train_memory.c - see train/train_memory.h. */
#include "train/train_memory.h"

void d9di_train_memory_collect(d9di_train_memory *m, const d9d_device *dev, const d9d_log *log)
{
    const uint64_t now = d9d_device_memory(dev).requests;

    if (now == m->requests)
        m->short_steps = 0;
    else if (m->short_steps++ == 0)
        m->short_before = m->requests;
    m->requests = now;
    if (m->has_warned || m->short_steps < D9DI_TRAIN_MEMORY_STEPS)
        return;
    d9d_log_warn(
        log,
        "%s: memory is short: the last %d steps returned blocks to the system and requested "
        "%llu others, and each waits for the device; with smaller micro-batches or "
        "recomputation (checkpointing) steps may be faster",
        dev->name, (int)D9DI_TRAIN_MEMORY_STEPS, (unsigned long long)(now - m->short_before));
    m->has_warned = true;
}
