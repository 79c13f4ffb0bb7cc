/* host_kernels.h - the kernel table of the tests' device, for arrays in host memory.
 *
 * On the CPU it is the CPU's own table.  On another device each entry copies its arrays to the
 * device (outputs too, so that an unwritten element shows), runs the device's kernel, and copies
 * the outputs back.  The stream argument is ignored.
 */
#ifndef D9D_HOST_KERNELS_H
#define D9D_HOST_KERNELS_H

#include "d9d/kernels/table.h"

const d9d_kernels *host_kernels(void);

/* How often `text` is in what the device has said yet: of its libraries, and what they refuse. */
int host_kernels_said(const char *text);

#endif /* D9D_HOST_KERNELS_H */
