/* plugin_op_sim.c - the check for plugins' operations on a simulated device: they must compute by
 * d9d_device_launch(), or a plan would miss their cost. */
#include <dlfcn.h>
#include <string.h>

#include "d9d/kernels/sim.h"
#include "tape/record.h"

/* The shared object of a plugin's operation; NULL if the operation is this library's. */
static const char *plugin_path(const d9d_node_ops *ops)
{
    Dl_info its, ours;

    if (dladdr(ops, &its) == 0 || dladdr(d9d_tape_create, &ours) == 0 ||
        its.dli_fbase == ours.dli_fbase)
        return NULL;
    return its.dli_fname;
}

/* dladdr() searches the symbols of a library; a plan asks a hundred thousand times about the same
 * operations. */
static const char *recall_plugin_path(d9d_tape *t, const d9d_node_ops *ops)
{
    const d9d_node_ops **own = &t->own[(uintptr_t)ops / sizeof(*ops) % D9DI_TAPE_OWN_OPS];
    const char *plugin;

    if (*own == ops)
        return NULL;
    plugin = plugin_path(ops);
    if (plugin == NULL)
        *own = ops;
    return plugin;
}

d9d_status d9di_tape_check_simulated(d9d_tape *t, const d9d_node_ops *ops, int64_t *launches)
{
    const int64_t before = *launches;
    const char *plugin;

    if (t->dev->kernels != d9d_kernels_sim())
        return D9D_OK;
    *launches = d9d_sim_launches(d9d_sim_of_stream(t->dev->stream));
    plugin = *launches == before ? recall_plugin_path(t, ops) : NULL;
    if (plugin == NULL)
        return D9D_OK;
    return D9D_FAIL(D9D_ENOTSUP,
                    "%s: its operation \"%s\" cannot be planned: what it computes does not go "
                    "through d9d_device_launch()",
                    plugin, ops->name);
}
