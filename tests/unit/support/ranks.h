/* ranks.h - for multi-rank drivers: the world of ranks, arrays that are equal on all of them,
 * comparisons. */
#ifndef D9D_TEST_RANKS_H
#define D9D_TEST_RANKS_H

#include "d9d/comm/mesh.h"
#include "d9d/tensor/tensor.h"
#include "unit.h"

typedef struct ranks {
    d9d_bootstrap *bootstrap;
    d9d_mesh *mesh;
    d9d_comm *comm; /* of the axes that were asked for; NULL in a world of one */
    d9d_device *dev;
    int rank, size;
    struct ranks_drawn **drawn; /* what ranks_numbers() has drawn so far */
} ranks;

/* All ranks of `bootstrap`, which is taken: `degrees` make their number.  On the tests' device; of
 * GPUs rank r has number r. */
d9d_status ranks_open(d9d_bootstrap *bootstrap, const d9d_parallel_degrees *degrees, unsigned axes,
                      ranks *out);
/* All that were started, as tensor-parallel ranks; ends the program where that fails. */
void ranks_open_tensor(ranks *out);
void ranks_close(ranks *r);

/* The n tests in order, then ranks_close(); what main() returns. A failure ends all ranks, as the
 * others may wait for this one. */
int ranks_run(ranks *r, const char *name, const struct CMUnitTest *tests, size_t n);

/* Normal numbers that are the same on every rank. */
d9d_tensor ranks_numbers(const ranks *r, d9d_dtype t, d9d_shape shape, uint64_t stream);
/* All elements on the host, freed by the caller. */
float *ranks_host(const d9d_tensor *x);
/* |got - want| <= tolerance |want| in the 2-norm; the numbers of one array have one scale. */
void ranks_close_to(const char *what, const float *got, const float *want, int64_t n,
                    double tolerance);

#endif /* D9D_TEST_RANKS_H */
