/* simulated.h - a simulated device: it accounts for memory as the real one does, and computes
 * nothing.
 *
 *     D9D_TRY(d9d_device_simulate("h200", &dev));
 *     ... the same code that runs on the real device ...
 *     d9d_device_memory(dev).peak                the bytes that it would have needed
 *     d9d_sim_now(dev->stream)                   the seconds: d9d/kernels/sim.h
 *
 * It uses the allocator of every device (libcore/device/pool.h), so a block counts as on the chip
 * that it stands for.  Large blocks are addresses without memory, which must not be dereferenced
 * and download as zeros; small blocks are memory, so the host can read them back.  Kernels' scratch
 * counts as on a GPU; on the CPU, where it is not device memory, it does not count.  A plugin's
 * operation computes with d9d_device_launch(), which adds its cost here.  One that records a node
 * and has launched nothing is refused (libcore/tape/plugin_op_sim.c).
 */
#ifndef D9D_DEVICE_SIMULATED_H
#define D9D_DEVICE_SIMULATED_H

#include "d9d/device/device.h"
#include "d9d/kernels/sim.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A simulated device for the chip of this name; ECONFIG lists the names. */
D9D_API D9D_MUST_USE d9d_status d9d_device_simulate(const char *chip, d9d_device **out);
/* The check of the name that simulating makes. */
D9D_API D9D_MUST_USE d9d_status d9d_device_check_simulated(const char *chip);
/* The scratch bytes in the peak, of the kernel that reached it; 0 if no kernel did. */
D9D_API uint64_t d9d_device_peak_scratch(const d9d_device *dev);
/* Seconds since it was opened in which computation waited for copies beside it
 * (d9d/device/copy_stream.h). */
D9D_API double d9d_device_bus_wait_s(const d9d_device *dev);

#ifdef __cplusplus
}
#endif
#endif /* D9D_DEVICE_SIMULATED_H */
