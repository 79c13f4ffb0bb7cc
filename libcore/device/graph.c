/* graph.c - see d9d/device/graph.h. */
#include "d9d/device/graph.h"

#include <stdlib.h>

#include "device/backend.h"
#include "device/pool.h"

struct d9d_graph {
    d9d_device *dev;
    void *handle;        /* of the backend */
    d9di_pool_hold hold; /* memory of its launches */
};

bool d9d_graph_is_supported(const d9d_device *dev)
{
    return dev->ops->graph_begin != NULL && dev->trace == NULL;
}

d9d_status d9d_graph_begin(d9d_device *dev)
{
    D9D_TRY(dev->ops->graph_begin(dev));
    d9di_pool_hold_begin(dev);
    return D9D_OK;
}

d9d_status d9d_graph_end(d9d_device *dev, d9d_status enqueued, d9d_graph **out)
{
    d9d_graph *g = calloc(1, sizeof(*g));
    d9di_pool_hold hold;
    void *handle = NULL;
    d9d_err_copy why;
    d9d_status st;

    d9d_err_save(&why, enqueued);
    d9di_pool_hold_end(dev, &hold);
    st = dev->ops->graph_end(dev, &handle);
    if (enqueued != D9D_OK)
        st = D9D_FAIL(enqueued, "%s", why.text);
    else if (st == D9D_OK && (g == NULL || hold.failed))
        st = D9D_FAIL(D9D_ENOMEM, "%s: no memory for a graph", dev->name);
    if (st != D9D_OK) {
        if (handle != NULL)
            dev->ops->graph_free(dev, handle);
        d9di_pool_hold_release(dev, &hold);
        free(g);
        return st;
    }
    *g = (d9d_graph){dev, handle, hold};
    *out = g;
    return D9D_OK;
}

d9d_status d9d_graph_launch(d9d_graph *g)
{
    return g->dev->ops->graph_launch(g->dev, g->handle);
}

void d9d_graph_free(d9d_graph *g)
{
    if (g == NULL)
        return;
    g->dev->ops->graph_free(g->dev, g->handle);
    d9di_pool_hold_release(g->dev, &g->hold);
    free(g);
}
