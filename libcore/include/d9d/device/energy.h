/* energy.h - the electric energy that a device takes.
 *
 *     d9d_energy_meter *m = d9d_energy_meter_open(dev);    // NULL: nothing measures it
 *     ... train ...
 *     d9d_energy_meter_read(m);                            // joules since it was opened
 *     d9d_energy_meter_close(m);
 *
 * GPUs since Volta count it, and NVML, which comes with the driver, reads the counter: some ten
 * microseconds, without a wait for the GPU.  It counts the whole board, and every process on it.
 */
#ifndef D9D_DEVICE_ENERGY_H
#define D9D_DEVICE_ENERGY_H

#include "d9d/device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_energy_meter d9d_energy_meter;

/* NULL for a device without a counter, or where NVML does not read it. */
D9D_API d9d_energy_meter *d9d_energy_meter_open(const d9d_device *dev);
/* Joules since the meter was opened or last read; NaN for NULL, or when the counter cannot be read.
 */
D9D_API double d9d_energy_meter_read(d9d_energy_meter *m);
D9D_API void d9d_energy_meter_close(d9d_energy_meter *m);

#ifdef __cplusplus
}
#endif
#endif /* D9D_DEVICE_ENERGY_H */
