/* event_list.c - see d9d/device/event_list.h. */
#include "d9d/device/event_list.h"

void d9d_event_list_release(d9d_event_list *l)
{
    for (size_t i = 0; i < l->made.len; i++)
        d9d_device_event_free(l->made.data[i]);
    D9D_VEC_RELEASE(&l->made);
    l->n = 0;
}

d9d_status d9d_event_list_record(d9d_event_list *l, d9d_device *dev)
{
    d9d_device_event *fresh;

    if (l->n == l->made.len) {
        D9D_TRY(D9D_VEC_RESERVE(&l->made, 1));
        D9D_TRY(d9d_device_event_create(dev, &fresh));
        l->made.data[l->made.len++] = fresh;
    }
    D9D_TRY(d9d_device_event_record(l->made.data[l->n]));
    l->n++;
    return D9D_OK;
}

bool d9d_event_list_is_done(const d9d_event_list *l)
{
    return l->n > 0 && d9d_device_event_query(l->made.data[l->n - 1]);
}

d9d_status d9d_event_list_elapsed_ms(const d9d_event_list *l, size_t i, double *ms)
{
    return d9d_device_event_elapsed_ms(l->made.data[i], l->made.data[i + 1], ms);
}
