/* cudnn.h - cuDNN, loaded at run time, and its backend API's graphs of operations.
 *
 * A graph consists of tensors and operations. The first failure is kept in the graph, and later
 * calls do nothing:
 *
 *     d9di_cudnn_graph g = {.lib = lib};
 *     x = d9di_cudnn_graph_tensor(&g, id, type, dim, stride);
 *     y = d9di_cudnn_graph_pointwise(&g, CUDNN_POINTWISE_EXP, &x, NULL);
 *     st = d9di_cudnn_graph_build(&g, "attention");   // selects an engine; may compile for 0.1 s
 *     st = d9di_cudnn_graph_run(&g, "attention", s, id, pointers, n);
 *     d9di_cudnn_graph_release(&g);
 *
 * A plan can be written as JSON and restored from it in another run, in a tenth of the time and
 * without a graph.
 *
 * Tensors have four dimensions. A tensor with an id is in memory, and run() is given its address; a
 * virtual tensor lives between operations; a scalar is a float32 or int32 on the host.
 */
#ifndef D9DI_CUDA_COMMON_CUDNN_H
#define D9DI_CUDA_COMMON_CUDNN_H

#include <cudnn.h>

#include "cuda/common/common.h"
#include "d9d/base/mem.h"

/* clang-format off */
#define D9DI_CUDNN_FUNCTIONS(X)                                                                    \
    X(cudnnCreate) X(cudnnDestroy) X(cudnnSetStream) X(cudnnGetVersion) X(cudnnGetErrorString)     \
    X(cudnnGetLastErrorString) X(cudnnBackendCreateDescriptor) X(cudnnBackendDestroyDescriptor)    \
    X(cudnnBackendSetAttribute) X(cudnnBackendGetAttribute) X(cudnnBackendFinalize)                \
    X(cudnnBackendExecute)
/* clang-format on */

typedef struct d9di_cudnn {
    void *library;
    cudnnHandle_t handle;
#define X(f) __typeof__(f) *f;
    D9DI_CUDNN_FUNCTIONS(X)
#undef X
} d9di_cudnn;

/* ENOTSUP, with a reason, if no suitable library is found. */
d9d_status d9di_cudnn_open(d9d_stream s, d9di_cudnn *out);
void d9di_cudnn_close(d9di_cudnn *lib);

typedef struct d9di_cudnn_shape {
    int64_t dim[4], stride[4];
} d9di_cudnn_shape;

typedef struct d9di_cudnn_tensor {
    cudnnBackendDescriptor_t desc;
    d9di_cudnn_shape shape;
} d9di_cudnn_tensor;

enum {
    D9DI_CUDNN_GRAPH_MAX_NODES = 160,
    D9DI_CUDNN_GRAPH_MAX_IDS = 1000
}; /* ids are below MAX_IDS */

typedef struct d9di_cudnn_graph {
    const d9di_cudnn *lib;
    cudnnBackendDescriptor_t descs[D9DI_CUDNN_GRAPH_MAX_NODES], ops[D9DI_CUDNN_GRAPH_MAX_NODES],
        plan;
    int n_descs, n_ops;
    int64_t next_id, workspace;
    cudnnStatus_t st;
    const char *failed_at; /* the step that failed */
} d9di_cudnn_graph;

/* --- tensors ------------------------------------------------------------------------ */

/* A dense row-major shape: the last dimension is contiguous. */
d9di_cudnn_shape d9di_cudnn_shape_dense(int64_t a, int64_t b, int64_t c, int64_t d);

/* `offset` (ragged), if not NULL, is an int64 tensor [a + 1, 1, 1, 1]: where each entry of the
 * first dimension begins, in elements. */
d9di_cudnn_tensor d9di_cudnn_graph_tensor(d9di_cudnn_graph *g, int64_t id, cudnnDataType_t t,
                                          d9di_cudnn_shape shape, const d9di_cudnn_tensor *offset);
d9di_cudnn_tensor d9di_cudnn_graph_virtual(d9di_cudnn_graph *g, cudnnDataType_t t,
                                           d9di_cudnn_shape shape);
/* A float32, or int32, in host memory. */
d9di_cudnn_tensor d9di_cudnn_graph_scalar_f32(d9di_cudnn_graph *g, int64_t id);
d9di_cudnn_tensor d9di_cudnn_graph_scalar_i32(d9di_cudnn_graph *g, int64_t id);

/* --- operations ---------------------------------------------------------------------- */

/* Actual sizes of each entry of the first dimension (padding mask), int32 [a, 1, 1, 1], or NULLs.
 */
typedef struct d9di_cudnn_extent {
    const d9di_cudnn_tensor *m, *n, *k;
} d9di_cudnn_extent;
void d9di_cudnn_graph_matmul(d9di_cudnn_graph *g, const d9di_cudnn_tensor *a,
                             const d9di_cudnn_tensor *b, const d9di_cudnn_tensor *c,
                             d9di_cudnn_extent extent);

/* y = mode(x, b). Without _to, y is a new virtual float32 tensor shaped like x. */
d9di_cudnn_tensor d9di_cudnn_graph_pointwise(d9di_cudnn_graph *g, cudnnPointwiseMode_t mode,
                                             const d9di_cudnn_tensor *x,
                                             const d9di_cudnn_tensor *b);
void d9di_cudnn_graph_pointwise_to(d9di_cudnn_graph *g, cudnnPointwiseMode_t mode,
                                   const d9di_cudnn_tensor *x, const d9di_cudnn_tensor *b,
                                   const d9di_cudnn_tensor *y);
/* x where row >= column, else `other`. With actual sizes, m rows and n columns of each entry or of
 * all, the diagonal is aligned to the bottom right; otherwise to the top left. */
d9di_cudnn_tensor d9di_cudnn_graph_causal_mask(d9di_cudnn_graph *g, const d9di_cudnn_tensor *x,
                                               const d9di_cudnn_tensor *other,
                                               d9di_cudnn_extent of);
/* x where column + window > row, else `other`; both are scalars. Sizes as above. */
d9di_cudnn_tensor d9di_cudnn_graph_window_mask(d9di_cudnn_graph *g, const d9di_cudnn_tensor *x,
                                               const d9di_cudnn_tensor *window,
                                               const d9di_cudnn_tensor *other,
                                               d9di_cudnn_extent of);
/* Reduces over the dimensions of which y has 1, or fewer heads. */
void d9di_cudnn_graph_reduce_to(d9di_cudnn_graph *g, cudnnReduceTensorOp_t op,
                                const d9di_cudnn_tensor *x, const d9di_cudnn_tensor *y);
d9di_cudnn_tensor d9di_cudnn_graph_reduce_row(d9di_cudnn_graph *g, cudnnReduceTensorOp_t op,
                                              const d9di_cudnn_tensor *x);
/* x with its last two dimensions transposed, as bfloat16. */
d9di_cudnn_tensor d9di_cudnn_graph_transpose(d9di_cudnn_graph *g, const d9di_cudnn_tensor *x,
                                             const d9di_cudnn_tensor *offset);

/* --- running -------------------------------------------------------------------------- */

/* ENOTSUP, with the engine's reason, if no engine supports the graph. */
d9d_status d9di_cudnn_graph_build(d9di_cudnn_graph *g, const char *op);
/* A plan that d9di_cudnn_graph_serialize() of the same library, driver and kind of GPU has written;
 * false, with g as it was, if cuDNN refuses it. */
bool d9di_cudnn_graph_restore(d9di_cudnn_graph *g, const void *json, size_t size);
/* The plan as JSON, in `out`, which the caller releases; false if its engine cannot. */
bool d9di_cudnn_graph_serialize(const d9di_cudnn_graph *g, d9d_buf *out);
/* Enqueues the graph, with g->workspace bytes of scratch. */
d9d_status d9di_cudnn_graph_run(const d9di_cudnn_graph *g, const char *op, d9d_stream s,
                                const int64_t *id, void *const *at, int n);
void d9di_cudnn_graph_release(d9di_cudnn_graph *g);

#endif /* D9DI_CUDA_COMMON_CUDNN_H */
