/* host_reduce.c - reductions for arrays in host memory, see host_call.h. */
#include "host_call.h"

static d9d_status on_sum_squares(d9d_stream s, double *y, d9d_dtype t,
                                 const d9d_sum_squares_array *list, int64_t count)
{
    d9d_sum_squares_array there[HOST_MAX_ARRAYS];
    host_call c = host_begin();

    (void)s;
    for (int64_t i = 0; i < count; i++)
        there[i] = (d9d_sum_squares_array){host_in(&c, t, list[i].x, list[i].n), list[i].n};
    return host_end(
        &c, c.k->reduce->sum_squares(c.s, host_out(&c, D9D_F64, y, count), t, there, count));
}

static d9d_status on_sum_ordered(d9d_stream s, double *y, const double *x, int64_t n)
{
    host_call c = host_begin();

    (void)s;
    return host_end(&c, c.k->reduce->sum_ordered(c.s, host_out(&c, D9D_F64, y, 1),
                                                 host_in(&c, D9D_F64, x, n), n));
}

static d9d_status on_sum(d9d_stream s, double *y, double beta, d9d_dtype t, const void *x,
                         int64_t n)
{
    host_call c = host_begin();

    (void)s;
    return host_end(
        &c, c.k->reduce->sum(c.s, host_out(&c, D9D_F64, y, 1), beta, t, host_in(&c, t, x, n), n));
}

static d9d_status on_find_nonfinite(d9d_stream s, int64_t *y, d9d_dtype t, const void *x, int64_t n)
{
    host_call c = host_begin();

    (void)s;
    return host_end(&c, c.k->reduce->find_nonfinite(c.s, host_out(&c, D9D_I64, y, 1), t,
                                                    host_in(&c, t, x, n), n));
}

static d9d_status on_checksum(d9d_stream s, uint64_t *y, const d9d_checksum_array *list,
                              int64_t count)
{
    d9d_checksum_array there[HOST_MAX_ARRAYS];
    host_call c = host_begin();

    (void)s;
    for (int64_t i = 0; i < count; i++)
        there[i] =
            (d9d_checksum_array){host_in(&c, D9D_U8, list[i].x, list[i].bytes), list[i].bytes};
    return host_end(&c, c.k->reduce->checksum(c.s, host_out(&c, D9D_I64, y, count), there, count));
}

HOST_KERNELS(reduce, D9D_REDUCE_KERNELS)
