/* host_call.h - a call of a kernel whose arrays are in host memory; for the entries of
 * host_kernels().
 *
 *     static d9d_status on_add(d9d_stream s, d9d_dtype t, void *y, const void *x, int64_t n)
 *     {
 *         host_call c = host_begin();
 *
 *         (void)s;
 *         return host_end(&c, c.k->family->add(c.s, t, host_out(&c, t, y, n),
 *                                              host_in(&c, t, x, n), n));
 *     }
 */
#ifndef D9D_HOST_CALL_H
#define D9D_HOST_CALL_H

#include "d9d/device/device.h"
#include "d9d/kernels/table.h"

enum { HOST_CALL_ARRAYS = 1024, HOST_MAX_SPLITS = 8, HOST_MAX_ARRAYS = 160 };

/* The arrays of one call, and where they are on the device. */
typedef struct host_call {
    d9d_device *dev;
    const d9d_kernels *k;
    d9d_stream s;
    size_t n;
    struct {
        void *host, *dev;
        uint64_t bytes;
        bool out;
    } array[HOST_CALL_ARRAYS];
} host_call;

/* The device stays open for all calls of a program. */
host_call host_begin(void);

/* The device's copies of an input and an output of n elements; an array that is given twice has
 * one.  NULL of NULL. */
const void *host_in(host_call *c, d9d_dtype t, const void *host, int64_t n);
void *host_out(host_call *c, d9d_dtype t, void *host, int64_t n);
const int32_t *host_ints(host_call *c, const int32_t *host, int64_t n);
const float *host_floats(host_call *c, const float *host, int64_t n);

/* Outputs to the host; a call that was refused has written none. */
d9d_status host_end(host_call *c, d9d_status st);

/* The product of a shape. */
int64_t host_numel(int ndim, const int64_t *shape);
/* Rows up to the last of those that `at` [m] names; m without a list. */
int64_t host_rows_reached(const int32_t *at, int64_t m);

/* The entries of a family, which the file has as on_<member>(). */
#define HOST_ENTRY(family, member, op) .member = on_##op,
#define HOST_KERNELS(family, list)                                                                 \
    const d9d_##family##_kernels host_##family##_kernels = {list(HOST_ENTRY)};

#define HOST_DECLARE(family, list) extern const d9d_##family##_kernels host_##family##_kernels;
D9D_KERNEL_FAMILIES(HOST_DECLARE)
#undef HOST_DECLARE

#endif /* D9D_HOST_CALL_H */
