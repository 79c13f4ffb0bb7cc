/* energy.c - see d9d/device/energy.h. */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/energy_nvml.h"

struct d9d_energy_meter {
    d9di_energy_nvml nvml;
    void *device;
    unsigned long long last_mj;
};

/* "0a1b...": 32 hexadecimal digits, as NVML writes them. */
static bool format_uuid(const char *id, char out[48])
{
    return strlen(id) == 32 && snprintf(out, 48, "GPU-%.8s-%.4s-%.4s-%.4s-%.12s", id, id + 8,
                                        id + 12, id + 16, id + 20) == 40;
}

d9d_energy_meter *d9di_energy_meter_open_nvml(const d9di_energy_nvml *nvml, const char *id)
{
    d9d_energy_meter m = {.nvml = *nvml}, *out;
    char uuid[48];

    if (!format_uuid(id, uuid) || nvml->init() != 0)
        return NULL;
    out =
        nvml->handle_by_uuid(uuid, &m.device) == 0 && nvml->total_energy(m.device, &m.last_mj) == 0
            ? malloc(sizeof(*out))
            : NULL;
    if (out == NULL)
        (void)nvml->shutdown();
    else
        *out = m;
    return out;
}

/* The library stays loaded, as the driver's do. */
static bool load_nvml(d9di_energy_nvml *out)
{
    const struct {
        const char *name;
        void *slot;
    } calls[] = {{"nvmlInit_v2", &out->init},
                 {"nvmlShutdown", &out->shutdown},
                 {"nvmlDeviceGetHandleByUUID", &out->handle_by_uuid},
                 {"nvmlDeviceGetTotalEnergyConsumption", &out->total_energy}};
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);

    for (size_t i = 0; library != NULL && i < sizeof(calls) / sizeof(*calls); i++) {
        void *f = dlsym(library, calls[i].name);

        if (f == NULL)
            return false;
        memcpy(calls[i].slot, &f, sizeof(f));
    }
    return library != NULL;
}

d9d_energy_meter *d9d_energy_meter_open(const d9d_device *dev)
{
    d9di_energy_nvml nvml;

    return dev->id[0] != '\0' && load_nvml(&nvml) ? d9di_energy_meter_open_nvml(&nvml, dev->id)
                                                  : NULL;
}

double d9d_energy_meter_read(d9d_energy_meter *m)
{
    unsigned long long now_mj, before_mj;

    if (m == NULL || m->nvml.total_energy(m->device, &now_mj) != 0)
        return NAN;
    before_mj = m->last_mj;
    m->last_mj = now_mj;
    /* The driver counts from zero when it is loaded anew. */
    return now_mj >= before_mj ? (double)(now_mj - before_mj) * 1e-3 : NAN;
}

void d9d_energy_meter_close(d9d_energy_meter *m)
{
    if (m != NULL)
        (void)m->nvml.shutdown();
    free(m);
}
