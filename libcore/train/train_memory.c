/* train_memory.c - see train/train_memory.h. */
#include "train/train_memory.h"
#include "d9d/base/num_format.h"

void d9di_train_memory_collect(d9di_train_memory *m, const d9d_device *dev, const d9d_log *log)
{
    const uint64_t now = d9d_device_memory(dev).short_requests;

    if (now == m->requests)
        m->steps = 0;
    else if (m->steps++ == 0)
        m->first = m->requests;
    m->requests = now;
    if (m->has_warned || m->steps < D9DI_TRAIN_MEMORY_STEPS)
        return;
    d9d_log_warn(
        log,
        "%s: memory is short: %llu time%s in the last %d steps it was there only after other "
        "blocks were returned to the system, which waits for the device; with smaller "
        "micro-batches or recomputation (checkpointing) steps may be faster",
        dev->name, (unsigned long long)(now - m->first), D9D_PLURAL(now - m->first),
        (int)D9DI_TRAIN_MEMORY_STEPS);
    m->has_warned = true;
}
