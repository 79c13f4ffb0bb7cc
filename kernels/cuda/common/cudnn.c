/* cudnn.c - see cudnn.h. */
#if __has_include(<cudnn.h>)
#include "cuda/common/cudnn.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define STR_(x) #x
#define STR(x)  STR_(x)
#define LIBRARY "libcudnn.so." STR(CUDNN_MAJOR)

/* --- the library ------------------------------------------------------------------------ */

/* It opens its parts, and the run-time compiler, by itself. */
static d9d_status load(d9di_cudnn *lib)
{
    static const char *const places[] = {LIBRARY, D9D_CUDA_LIB "/" LIBRARY};

    for (size_t i = 0; i < sizeof(places) / sizeof(*places) && lib->library == NULL; i++)
        lib->library = dlopen(places[i], RTLD_NOW | RTLD_LOCAL);
    if (lib->library == NULL)
        return D9D_FAIL(D9D_ENOTSUP, "%s is neither on the library path nor in %s", LIBRARY,
                        D9D_CUDA_LIB);
#define X(f)                                                                                       \
    *(void **)&lib->f = dlsym(lib->library, #f);                                                   \
    if (lib->f == NULL)                                                                            \
        return D9D_FAIL(D9D_ENOTSUP, "%s has no function %s", LIBRARY, #f);
    D9DI_CUDNN_FUNCTIONS(X)
#undef X
    return D9D_OK;
}

d9d_status d9di_cudnn_open(d9d_stream s, d9di_cudnn *out)
{
    d9di_cudnn lib = {0};
    cudnnStatus_t e;

    D9D_TRY(load(&lib));
    (void)d9di_queue(s);
    e = lib.cudnnCreate(&lib.handle);
    if (e == CUDNN_STATUS_SUCCESS)
        e = lib.cudnnSetStream(lib.handle, s->queue);
    if (e != CUDNN_STATUS_SUCCESS) {
        d9di_cudnn_close(&lib);
        return D9D_FAIL(D9D_ENOTSUP, "%s: %s", LIBRARY, lib.cudnnGetErrorString(e));
    }
    *out = lib;
    return D9D_OK;
}

/* The library stays loaded, as cuBLASLt does. */
void d9di_cudnn_close(d9di_cudnn *lib)
{
    if (lib->handle != NULL)
        (void)lib->cudnnDestroy(lib->handle);
    lib->handle = NULL;
}

/* --- descriptors -------------------------------------------------------------------------- */

static void note(d9di_graph *g, cudnnStatus_t st, const char *where)
{
    if (g->st != CUDNN_STATUS_SUCCESS || st == CUDNN_STATUS_SUCCESS)
        return;
    g->st = st;
    g->where = where;
}

static cudnnBackendDescriptor_t make(d9di_graph *g, cudnnBackendDescriptorType_t type,
                                     const char *what)
{
    cudnnBackendDescriptor_t d = NULL;

    if (g->st != CUDNN_STATUS_SUCCESS)
        return NULL;
    if (g->n_made == D9DI_GRAPH_MOST) {
        note(g, CUDNN_STATUS_INTERNAL_ERROR, "too many descriptors");
        return NULL;
    }
    note(g, g->lib->cudnnBackendCreateDescriptor(type, &d), what);
    if (d != NULL)
        g->made[g->n_made++] = d;
    return d;
}

static void set(d9di_graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t n, const void *v)
{
    if (g->st == CUDNN_STATUS_SUCCESS)
        note(g, g->lib->cudnnBackendSetAttribute(d, name, type, n, v), "an attribute");
}

static void set_desc(d9di_graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                     cudnnBackendDescriptor_t v)
{
    set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &v);
}

static void set_node(d9di_graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                     const d9di_node4 *v)
{
    if (v != NULL)
        set_desc(g, d, name, v->desc);
}

static void set_type(d9di_graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                     cudnnDataType_t t)
{
    set(g, d, name, CUDNN_TYPE_DATA_TYPE, 1, &t);
}

static void finish(d9di_graph *g, cudnnBackendDescriptor_t d, const char *what)
{
    if (g->st == CUDNN_STATUS_SUCCESS)
        note(g, g->lib->cudnnBackendFinalize(d), what);
}

static void finish_op(d9di_graph *g, cudnnBackendDescriptor_t d, const char *what)
{
    finish(g, d, what);
    if (g->st == CUDNN_STATUS_SUCCESS)
        g->ops[g->n_ops++] = d; /* no more than were made */
}

/* --- tensors ---------------------------------------------------------------------------------- */

enum kind { IN_MEMORY, VIRTUAL, VALUE };

static d9di_node4 tensor(d9di_graph *g, enum kind kind, int64_t id, cudnnDataType_t t,
                         d9di_shape4 shape, const d9di_node4 *offset)
{
    const int64_t aligned = 16;
    const bool yes = true;
    cudnnBackendDescriptor_t d = make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR, "a tensor");

    set_type(g, d, CUDNN_ATTR_TENSOR_DATA_TYPE, t);
    set(g, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, shape.dim);
    set(g, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, shape.stride);
    set(g, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    set(g, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &aligned);
    if (kind == VIRTUAL)
        set(g, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &yes);
    if (kind == VALUE)
        set(g, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &yes);
    set_node(g, d, CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, offset);
    finish(g, d, "a tensor");
    return (d9di_node4){d, shape};
}

d9di_shape4 d9di_shape4_dense(int64_t a, int64_t b, int64_t c, int64_t d)
{
    return (d9di_shape4){{a, b, c, d}, {b * c * d, c * d, d, 1}};
}

d9di_node4 d9di_graph_tensor(d9di_graph *g, int64_t id, cudnnDataType_t t, d9di_shape4 shape,
                             const d9di_node4 *offset)
{
    return tensor(g, IN_MEMORY, id, t, shape, offset);
}

d9di_node4 d9di_graph_virtual(d9di_graph *g, cudnnDataType_t t, d9di_shape4 shape)
{
    return tensor(g, VIRTUAL, D9DI_GRAPH_IDS + g->next_id++, t, shape, NULL);
}

d9di_node4 d9di_graph_value(d9di_graph *g, int64_t id)
{
    return tensor(g, VALUE, id, CUDNN_DATA_FLOAT, d9di_shape4_dense(1, 1, 1, 1), NULL);
}

d9di_node4 d9di_graph_count(d9di_graph *g, int64_t id)
{
    return tensor(g, VALUE, id, CUDNN_DATA_INT32, d9di_shape4_dense(1, 1, 1, 1), NULL);
}

/* --- operations ---------------------------------------------------------------------------------
 */

void d9di_graph_multiply(d9di_graph *g, const d9di_node4 *a, const d9di_node4 *b,
                         const d9di_node4 *c, d9di_extent extent)
{
    cudnnBackendDescriptor_t how = make(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR, "a product"), d;

    set_type(g, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
    finish(g, how, "a product");
    d = make(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, "a product");
    set_node(g, d, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    set_node(g, d, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    set_node(g, d, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    set_desc(g, d, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
    set_node(g, d, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, extent.m);
    set_node(g, d, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, extent.n);
    set_node(g, d, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, extent.k);
    finish_op(g, d, "a product");
}

/* y = mode(x, b, t), computed in the type `in`; `axis` is of CUDNN_POINTWISE_GEN_INDEX. */
static void pointwise(d9di_graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t in, int64_t axis,
                      const d9di_node4 *x, const d9di_node4 *b, const d9di_node4 *t,
                      const d9di_node4 *y)
{
    cudnnBackendDescriptor_t how = make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, "a function"), d;

    set(g, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set_type(g, how, CUDNN_ATTR_POINTWISE_MATH_PREC, in);
    if (mode == CUDNN_POINTWISE_GEN_INDEX)
        set(g, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    finish(g, how, "a function");
    d = make(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, "a function");
    set_desc(g, d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    set_node(g, d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    set_node(g, d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    set_node(g, d, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
    set_node(g, d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    finish_op(g, d, "a function");
}

void d9di_graph_apply_to(d9di_graph *g, cudnnPointwiseMode_t mode, const d9di_node4 *x,
                         const d9di_node4 *b, const d9di_node4 *y)
{
    pointwise(g, mode, CUDNN_DATA_FLOAT, 0, x, b, NULL, y);
}

static d9di_node4 like(d9di_graph *g, const d9di_node4 *x, cudnnDataType_t t)
{
    const int64_t *n = x->shape.dim;

    return d9di_graph_virtual(g, t, d9di_shape4_dense(n[0], n[1], n[2], n[3]));
}

d9di_node4 d9di_graph_apply(d9di_graph *g, cudnnPointwiseMode_t mode, const d9di_node4 *x,
                            const d9di_node4 *b)
{
    d9di_node4 y = like(g, x, CUDNN_DATA_FLOAT);

    d9di_graph_apply_to(g, mode, x, b, &y);
    return y;
}

/* The row or the column of each element. */
static d9di_node4 number_of(d9di_graph *g, const d9di_node4 *x, int64_t axis)
{
    d9di_node4 y = like(g, x, CUDNN_DATA_INT32);

    pointwise(g, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, axis, x, NULL, NULL, &y);
    return y;
}

/* x where mode(a, b), else `other`. */
static d9di_node4 select_where(d9di_graph *g, cudnnPointwiseMode_t mode, const d9di_node4 *a,
                               const d9di_node4 *b, const d9di_node4 *x, const d9di_node4 *other)
{
    d9di_node4 seen = like(g, x, CUDNN_DATA_BOOLEAN), y = like(g, x, CUDNN_DATA_FLOAT);

    pointwise(g, mode, CUDNN_DATA_BOOLEAN, 0, a, b, NULL, &seen);
    pointwise(g, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, 0, x, other, &seen, &y);
    return y;
}

/* Each element's number, more or less that of its entry, where there is one. */
static d9di_node4 number_moved(d9di_graph *g, d9di_node4 x, cudnnPointwiseMode_t mode,
                               const d9di_node4 *by)
{
    d9di_node4 y;

    if (by == NULL)
        return x;
    y = like(g, &x, CUDNN_DATA_INT32);
    pointwise(g, mode, CUDNN_DATA_INT32, 0, &x, by, NULL, &y);
    return y;
}

/* In just these forms, columns added before rows are taken away, cuDNN knows the mask as causal,
 * with a window or not, and skips what it hides; column <= row is right too, and takes twice as
 * long. */
d9di_node4 d9di_graph_causal(d9di_graph *g, const d9di_node4 *x, const d9di_node4 *other,
                             d9di_extent of)
{
    d9di_node4 row = number_of(g, x, 2), column = number_of(g, x, 3);

    row = number_moved(g, row, CUDNN_POINTWISE_ADD, of.n);
    row = number_moved(g, row, CUDNN_POINTWISE_SUB, of.m);
    return select_where(g, CUDNN_POINTWISE_CMP_GE, &row, &column, x, other);
}

d9di_node4 d9di_graph_window(d9di_graph *g, const d9di_node4 *x, const d9di_node4 *window,
                             const d9di_node4 *other, d9di_extent of)
{
    d9di_node4 row = number_of(g, x, 2), column = number_of(g, x, 3);
    d9di_node4 end = d9di_graph_apply(g, CUDNN_POINTWISE_ADD, &column, window);

    end = number_moved(g, end, CUDNN_POINTWISE_SUB, of.n);
    end = number_moved(g, end, CUDNN_POINTWISE_ADD, of.m);
    return select_where(g, CUDNN_POINTWISE_CMP_GT, &end, &row, x, other);
}

void d9di_graph_reduce_to(d9di_graph *g, cudnnReduceTensorOp_t op, const d9di_node4 *x,
                          const d9di_node4 *y)
{
    cudnnBackendDescriptor_t how = make(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR, "a sum"), d;

    set_type(g, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
    set(g, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &op);
    finish(g, how, "a sum");
    d = make(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, "a sum");
    set_node(g, d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    set_node(g, d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    set_desc(g, d, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    finish_op(g, d, "a sum");
}

d9di_node4 d9di_graph_reduce_row(d9di_graph *g, cudnnReduceTensorOp_t op, const d9di_node4 *x)
{
    const int64_t *n = x->shape.dim;
    d9di_node4 y = d9di_graph_virtual(g, CUDNN_DATA_FLOAT, d9di_shape4_dense(n[0], n[1], n[2], 1));

    d9di_graph_reduce_to(g, op, x, &y);
    return y;
}

d9di_node4 d9di_graph_transpose(d9di_graph *g, const d9di_node4 *x, const d9di_node4 *offset)
{
    const int64_t *n = x->shape.dim, *step = x->shape.stride;
    const d9di_shape4 turned = {{n[0], n[1], n[3], n[2]}, {step[0], step[1], step[3], step[2]}};
    d9di_node4 y =
        tensor(g, VIRTUAL, D9DI_GRAPH_IDS + g->next_id++, CUDNN_DATA_BFLOAT16, turned, offset);
    cudnnBackendDescriptor_t d = make(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, "a transpose");

    set_node(g, d, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    set_node(g, d, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, &y);
    finish_op(g, d, "a transpose");
    return y;
}

/* --- plans ------------------------------------------------------------------------------------ */

/* Why, in the library's words: the reason that it found first. */
static d9d_status refuse(const d9di_graph *g, const char *op)
{
    char text[4096] = "", *why, *end;

    g->lib->cudnnGetLastErrorString(text, sizeof(text));
    why = strstr(text, "Reason: ");
    why = why != NULL ? why + strlen("Reason: ") : text;
    end = strchr(why, '\n');
    if (end != NULL)
        *end = '\0';
    return D9D_FAIL(D9D_ENOTSUP, "%s: cuDNN %zu, %s: %s%s%s", op, g->lib->cudnnGetVersion(),
                    g->where, g->lib->cudnnGetErrorString(g->st), *why != '\0' ? ": " : "", why);
}

/* A plan of the engine and its settings in `config`. */
static cudnnStatus_t plan_of(d9di_graph *g, cudnnBackendDescriptor_t config)
{
    const d9di_cudnn *lib = g->lib;
    cudnnBackendDescriptor_t p;
    int64_t n = 0;
    cudnnStatus_t st =
        lib->cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &p);

    if (st != CUDNN_STATUS_SUCCESS)
        return st;
    st = lib->cudnnBackendSetAttribute(p, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1,
                                       &lib->handle);
    if (st == CUDNN_STATUS_SUCCESS)
        st = lib->cudnnBackendSetAttribute(p, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                                           CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &config);
    if (st == CUDNN_STATUS_SUCCESS)
        st = lib->cudnnBackendFinalize(p);
    if (st == CUDNN_STATUS_SUCCESS)
        st = lib->cudnnBackendGetAttribute(p, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                           CUDNN_TYPE_INT64, 1, &n, &g->workspace);
    if (st == CUDNN_STATUS_SUCCESS)
        g->plan = p;
    else
        (void)lib->cudnnBackendDestroyDescriptor(p);
    return st;
}

/* The first of the heuristics' engines that builds; one that is listed may not. */
static void choose(d9di_graph *g, cudnnBackendDescriptor_t graph, cudnnBackendHeurMode_t mode)
{
    enum { MOST = 8 };
    cudnnBackendDescriptor_t ask = make(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, "the choice");
    cudnnBackendDescriptor_t config[MOST];
    int64_t n = 0;

    set_desc(g, ask, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    set(g, ask, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    finish(g, ask, "the choice of an engine");
    for (int i = 0; i < MOST; i++)
        config[i] = make(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, "the choice of an engine");
    if (g->st != CUDNN_STATUS_SUCCESS)
        return;
    note(g,
         g->lib->cudnnBackendGetAttribute(ask, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                          CUDNN_TYPE_BACKEND_DESCRIPTOR, MOST, &n, config),
         "the choice of an engine");
    for (int64_t i = 0; i < n && i < MOST && g->plan == NULL; i++)
        (void)plan_of(g, config[i]);
    if (g->plan == NULL)
        note(g, CUDNN_STATUS_NOT_SUPPORTED, "the choice of an engine");
}

d9d_status d9di_graph_plan(d9di_graph *g, const char *op)
{
    cudnnBackendDescriptor_t graph = make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, "the graph");

    set(g, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->n_ops, g->ops);
    set(g, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->lib->handle);
    finish(g, graph, "the graph");
    if (g->st == CUDNN_STATUS_SUCCESS)
        choose(g, graph, CUDNN_HEUR_MODE_A);
    return g->plan != NULL ? D9D_OK : refuse(g, op);
}

static cudnnStatus_t execute(const d9di_graph *g, const int64_t *id, void *const *at, int n,
                             void *scratch)
{
    const d9di_cudnn *lib = g->lib;
    cudnnBackendDescriptor_t pack;
    cudnnStatus_t st =
        lib->cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);

    if (st != CUDNN_STATUS_SUCCESS)
        return st;
    st = lib->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64,
                                       n, id);
    if (st == CUDNN_STATUS_SUCCESS)
        st = lib->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
                                           CUDNN_TYPE_VOID_PTR, n, at);
    if (st == CUDNN_STATUS_SUCCESS)
        st = lib->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE,
                                           CUDNN_TYPE_VOID_PTR, 1, &scratch);
    if (st == CUDNN_STATUS_SUCCESS)
        st = lib->cudnnBackendFinalize(pack);
    if (st == CUDNN_STATUS_SUCCESS)
        st = lib->cudnnBackendExecute(lib->handle, g->plan, pack);
    (void)lib->cudnnBackendDestroyDescriptor(pack);
    return st;
}

d9d_status d9di_graph_run(const d9di_graph *g, const char *op, d9d_stream s, const int64_t *id,
                          void *const *at, int n)
{
    void *scratch = NULL;
    cudnnStatus_t e;

    (void)d9di_queue(s);
    D9D_TRY(d9di_take(s, g->workspace, &scratch));
    e = execute(g, id, at, n, scratch);
    d9di_give(s, scratch, g->workspace);
    return e == CUDNN_STATUS_SUCCESS
               ? D9D_OK
               : D9D_FAIL(D9D_ECUDA, "%s: cuDNN: %s", op, g->lib->cudnnGetErrorString(e));
}

void d9di_graph_release(d9di_graph *g)
{
    if (g->plan != NULL)
        (void)g->lib->cudnnBackendDestroyDescriptor(g->plan);
    while (g->n_made > 0)
        (void)g->lib->cudnnBackendDestroyDescriptor(g->made[--g->n_made]);
    *g = (d9di_graph){0};
}
#else
typedef int d9di_no_cudnn; /* a file is not empty */
#endif
