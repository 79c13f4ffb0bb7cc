/* event.h - what an event is, for the files that record one and wait for it. */
#ifndef D9DI_DEVICE_EVENT_H
#define D9DI_DEVICE_EVENT_H

#include "d9d/device/readback.h"

struct d9d_device_event {
    d9d_device *dev;
    void *event; /* the backend's event */
};

#endif /* D9DI_DEVICE_EVENT_H */
