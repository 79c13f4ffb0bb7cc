/* train_memory.h - says once that device memory is so short that every step returns blocks to the
 * system and requests others, which waits for the device. */
#ifndef D9DI_TRAIN_TRAIN_MEMORY_H
#define D9DI_TRAIN_TRAIN_MEMORY_H

#include "d9d/base/log.h"
#include "d9d/device/device.h"

enum { D9DI_TRAIN_MEMORY_STEPS = 10 };

/* Zero-initialised at the start. */
typedef struct d9di_train_memory {
    uint64_t requests; /* short ones of the device, after the last step */
    uint64_t first;    /* the same, before the first of `steps` */
    int64_t steps;     /* successive ones that had such requests */
    bool has_warned;
} d9di_train_memory;

/* Call after each step; warns after so many successive steps with short requests. */
void d9di_train_memory_collect(d9di_train_memory *m, const d9d_device *dev, const d9d_log *log);

#endif /* D9DI_TRAIN_TRAIN_MEMORY_H */
