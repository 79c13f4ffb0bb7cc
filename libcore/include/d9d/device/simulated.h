/* simulated.h - a device that is only imagined: it counts memory as the real one does, and computes
 * nothing.
 *
 *     D9D_TRY(d9d_device_simulate("h200", &dev));
 *     ... the very code that would run on the real one ...
 *     d9d_device_memory(dev).peak                  what it would have needed
 *     d9d_sim_now(dev->stream)                   the seconds: d9d/kernels/sim.h
 *
 * Its pool is the pool of every device (libcore/device/pool.h), so that a block counts as on the
 * chip that it stands for; large blocks are addresses alone, which nobody may touch, small ones are
 * memory, so that what the host reads back is there.  Kernels' scratch counts as it does on a GPU;
 * on the CPU, where it comes from elsewhere, it does not.  What is downloaded from a large block is
 * zeros.  An operation of a plugin computes by d9d_device_launch(), which takes its cost here; one
 * that records a node and has launched nothing is refused (libcore/tape/plugin_op_sim.c).
 */
#ifndef D9D_DEVICE_SIMULATED_H
#define D9D_DEVICE_SIMULATED_H

#include "d9d/device/device.h"
#include "d9d/kernels/sim.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A device that stands for the chip of this name; ECONFIG lists the names. */
D9D_API D9D_MUST_USE d9d_status d9d_device_simulate(const char *chip, d9d_device **out);
/* What imagining says of the name. */
D9D_API D9D_MUST_USE d9d_status d9d_device_check_simulated(const char *chip);
/* Of the peak: scratch of the kernel that reached it; 0 where none did. */
D9D_API uint64_t d9d_device_peak_scratch(const d9d_device *dev);

#ifdef __cplusplus
}
#endif
#endif /* D9D_DEVICE_SIMULATED_H */
