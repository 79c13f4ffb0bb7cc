/* energy_nvml.h - the calls of NVML that a meter makes.  0 is success in all of them. */
#ifndef D9DI_DEVICE_ENERGY_NVML_H
#define D9DI_DEVICE_ENERGY_NVML_H

#include "d9d/device/energy.h"

typedef struct d9di_energy_nvml {
    int (*init)(void);
    int (*shutdown)(void);
    int (*handle_by_uuid)(const char *uuid, void **device); /* "GPU-0a1b2c3d-...": 8-4-4-4-12 */
    int (*total_energy)(void *device, unsigned long long *millijoules);
} d9di_energy_nvml;

/* A meter of the GPU with this id (d9d_device), or NULL. */
d9d_energy_meter *d9di_energy_meter_open_nvml(const d9di_energy_nvml *nvml, const char *id);

#endif /* D9DI_DEVICE_ENERGY_NVML_H */
