/* plugin_op_sim.c - operations of plugins on a device that is only imagined.  What they compute
 * there goes through d9d_device_launch(), or a plan would leave it out. */
#include <dlfcn.h>
#include <string.h>

#include "d9d/kernels/sim.h"
#include "tape/record.h"

/* The file of an operation that is not this library's; NULL: it is. */
static const char *plugin_path(const d9d_node_ops *ops)
{
    Dl_info its, ours;

    if (dladdr(ops, &its) == 0 || dladdr(d9d_tape_create, &ours) == 0 ||
        its.dli_fbase == ours.dli_fbase)
        return NULL;
    return its.dli_fname;
}

d9d_status d9di_tape_check_simulated(const d9d_tape *t, const d9d_node_ops *ops, int64_t *launches)
{
    const int64_t before = *launches;
    const char *plugin;

    if (t->dev->kernels != d9d_kernels_sim())
        return D9D_OK;
    *launches = d9d_sim_launches(d9d_sim_of_stream(t->dev->stream));
    plugin = *launches == before ? plugin_path(ops) : NULL;
    if (plugin == NULL)
        return D9D_OK;
    return D9D_FAIL(D9D_ENOTSUP,
                    "%s: its operation \"%s\" cannot be planned: what it computes does not go "
                    "through d9d_device_launch()",
                    plugin, ops->name);
}
