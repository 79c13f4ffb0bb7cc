/* cudnn.c - see cudnn.h. */
#if __has_include(<cudnn.h>)
#include "cuda/common/cudnn.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define STR_(x) #x
#define STR(x)  STR_(x)
#define LIBRARY "libcudnn.so." STR(CUDNN_MAJOR)

/* --- the library ------------------------------------------------------------------------------ */

/* cuDNN loads its sub-libraries and the run-time compiler itself. */
static d9d_status library_load(d9di_cudnn *lib)
{
    static const char *const paths[] = {LIBRARY, D9D_CUDNN_LIB "/" LIBRARY};

    for (size_t i = 0; i < sizeof(paths) / sizeof(*paths) && lib->library == NULL; i++)
        lib->library = dlopen(paths[i], RTLD_NOW | RTLD_LOCAL);
    if (lib->library == NULL)
        return D9D_FAIL(D9D_ENOTSUP, "%s is neither on the library path nor in %s", LIBRARY,
                        D9D_CUDNN_LIB);
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

    D9D_TRY(library_load(&lib));
    (void)d9di_cuda_stream(s);
    e = lib.cudnnCreate(&lib.handle);
    if (e == CUDNN_STATUS_SUCCESS)
        e = lib.cudnnSetStream(lib.handle, s->stream);
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

/* --- descriptors ------------------------------------------------------------------------------ */

static void graph_fail(d9di_cudnn_graph *g, cudnnStatus_t st, const char *where)
{
    if (g->st != CUDNN_STATUS_SUCCESS || st == CUDNN_STATUS_SUCCESS)
        return;
    g->st = st;
    g->failed_at = where;
}

static cudnnBackendDescriptor_t desc_create(d9di_cudnn_graph *g, cudnnBackendDescriptorType_t type,
                                            const char *what)
{
    cudnnBackendDescriptor_t d = NULL;

    if (g->st != CUDNN_STATUS_SUCCESS)
        return NULL;
    if (g->n_descs == D9DI_CUDNN_GRAPH_MAX_NODES) {
        graph_fail(g, CUDNN_STATUS_INTERNAL_ERROR, "too many descriptors");
        return NULL;
    }
    graph_fail(g, g->lib->cudnnBackendCreateDescriptor(type, &d), what);
    if (d != NULL)
        g->descs[g->n_descs++] = d;
    return d;
}

static void desc_set(d9di_cudnn_graph *g, cudnnBackendDescriptor_t d,
                     cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t n,
                     const void *v)
{
    if (g->st == CUDNN_STATUS_SUCCESS)
        graph_fail(g, g->lib->cudnnBackendSetAttribute(d, name, type, n, v), "an attribute");
}

static void desc_set_desc(d9di_cudnn_graph *g, cudnnBackendDescriptor_t d,
                          cudnnBackendAttributeName_t name, cudnnBackendDescriptor_t v)
{
    desc_set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &v);
}

static void desc_set_tensor(d9di_cudnn_graph *g, cudnnBackendDescriptor_t d,
                            cudnnBackendAttributeName_t name, const d9di_cudnn_tensor *v)
{
    if (v != NULL)
        desc_set_desc(g, d, name, v->desc);
}

static void desc_set_type(d9di_cudnn_graph *g, cudnnBackendDescriptor_t d,
                          cudnnBackendAttributeName_t name, cudnnDataType_t t)
{
    desc_set(g, d, name, CUDNN_TYPE_DATA_TYPE, 1, &t);
}

static void desc_finalize(d9di_cudnn_graph *g, cudnnBackendDescriptor_t d, const char *what)
{
    if (g->st == CUDNN_STATUS_SUCCESS)
        graph_fail(g, g->lib->cudnnBackendFinalize(d), what);
}

static void op_finalize(d9di_cudnn_graph *g, cudnnBackendDescriptor_t d, const char *what)
{
    desc_finalize(g, d, what);
    if (g->st == CUDNN_STATUS_SUCCESS)
        g->ops[g->n_ops++] = d; /* never exceeds the capacity */
}

/* --- tensors ---------------------------------------------------------------------------------- */

enum storage_kind { IN_MEMORY, VIRTUAL, VALUE };

static d9di_cudnn_tensor tensor(d9di_cudnn_graph *g, enum storage_kind storage_kind, int64_t id,
                                cudnnDataType_t t, d9di_cudnn_shape shape,
                                const d9di_cudnn_tensor *offset)
{
    const int64_t aligned = 16;
    const bool enabled = true;
    cudnnBackendDescriptor_t d = desc_create(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR, "a tensor");

    desc_set_type(g, d, CUDNN_ATTR_TENSOR_DATA_TYPE, t);
    desc_set(g, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, shape.dim);
    desc_set(g, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, shape.stride);
    desc_set(g, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    desc_set(g, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &aligned);
    if (storage_kind == VIRTUAL)
        desc_set(g, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &enabled);
    if (storage_kind == VALUE)
        desc_set(g, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &enabled);
    desc_set_tensor(g, d, CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, offset);
    desc_finalize(g, d, "a tensor");
    return (d9di_cudnn_tensor){d, shape};
}

d9di_cudnn_shape d9di_cudnn_shape_dense(int64_t a, int64_t b, int64_t c, int64_t d)
{
    return (d9di_cudnn_shape){{a, b, c, d}, {b * c * d, c * d, d, 1}};
}

d9di_cudnn_tensor d9di_cudnn_graph_tensor(d9di_cudnn_graph *g, int64_t id, cudnnDataType_t t,
                                          d9di_cudnn_shape shape, const d9di_cudnn_tensor *offset)
{
    return tensor(g, IN_MEMORY, id, t, shape, offset);
}

d9di_cudnn_tensor d9di_cudnn_graph_virtual(d9di_cudnn_graph *g, cudnnDataType_t t,
                                           d9di_cudnn_shape shape)
{
    return tensor(g, VIRTUAL, D9DI_CUDNN_GRAPH_MAX_IDS + g->next_id++, t, shape, NULL);
}

d9di_cudnn_tensor d9di_cudnn_graph_scalar_f32(d9di_cudnn_graph *g, int64_t id)
{
    return tensor(g, VALUE, id, CUDNN_DATA_FLOAT, d9di_cudnn_shape_dense(1, 1, 1, 1), NULL);
}

d9di_cudnn_tensor d9di_cudnn_graph_scalar_i32(d9di_cudnn_graph *g, int64_t id)
{
    return tensor(g, VALUE, id, CUDNN_DATA_INT32, d9di_cudnn_shape_dense(1, 1, 1, 1), NULL);
}

/* --- operations ------------------------------------------------------------------------------- */

void d9di_cudnn_graph_matmul(d9di_cudnn_graph *g, const d9di_cudnn_tensor *a,
                             const d9di_cudnn_tensor *b, const d9di_cudnn_tensor *c,
                             d9di_cudnn_extent extent)
{
    cudnnBackendDescriptor_t operation =
                                 desc_create(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR, "a product"),
                             d;

    desc_set_type(g, operation, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
    desc_finalize(g, operation, "a product");
    d = desc_create(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, "a product");
    desc_set_tensor(g, d, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    desc_set_tensor(g, d, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    desc_set_tensor(g, d, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    desc_set_desc(g, d, CUDNN_ATTR_OPERATION_MATMUL_DESC, operation);
    desc_set_tensor(g, d, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, extent.m);
    desc_set_tensor(g, d, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, extent.n);
    desc_set_tensor(g, d, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, extent.k);
    op_finalize(g, d, "a product");
}

/* y = mode(x, b, t), computed in type `in`; `axis` applies to CUDNN_POINTWISE_GEN_INDEX. */
static void op_pointwise(d9di_cudnn_graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t in,
                         int64_t axis, const d9di_cudnn_tensor *x, const d9di_cudnn_tensor *b,
                         const d9di_cudnn_tensor *t, const d9di_cudnn_tensor *y)
{
    cudnnBackendDescriptor_t operation =
                                 desc_create(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, "a function"),
                             d;

    desc_set(g, operation, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    desc_set_type(g, operation, CUDNN_ATTR_POINTWISE_MATH_PREC, in);
    if (mode == CUDNN_POINTWISE_GEN_INDEX)
        desc_set(g, operation, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    desc_finalize(g, operation, "a function");
    d = desc_create(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, "a function");
    desc_set_desc(g, d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, operation);
    desc_set_tensor(g, d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    desc_set_tensor(g, d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    desc_set_tensor(g, d, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
    desc_set_tensor(g, d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    op_finalize(g, d, "a function");
}

void d9di_cudnn_graph_pointwise_to(d9di_cudnn_graph *g, cudnnPointwiseMode_t mode,
                                   const d9di_cudnn_tensor *x, const d9di_cudnn_tensor *b,
                                   const d9di_cudnn_tensor *y)
{
    op_pointwise(g, mode, CUDNN_DATA_FLOAT, 0, x, b, NULL, y);
}

static d9di_cudnn_tensor tensor_like(d9di_cudnn_graph *g, const d9di_cudnn_tensor *x,
                                     cudnnDataType_t t)
{
    const int64_t *n = x->shape.dim;

    return d9di_cudnn_graph_virtual(g, t, d9di_cudnn_shape_dense(n[0], n[1], n[2], n[3]));
}

d9di_cudnn_tensor d9di_cudnn_graph_pointwise(d9di_cudnn_graph *g, cudnnPointwiseMode_t mode,
                                             const d9di_cudnn_tensor *x, const d9di_cudnn_tensor *b)
{
    d9di_cudnn_tensor y = tensor_like(g, x, CUDNN_DATA_FLOAT);

    d9di_cudnn_graph_pointwise_to(g, mode, x, b, &y);
    return y;
}

/* The row or column index of each element. */
static d9di_cudnn_tensor scalar_of(d9di_cudnn_graph *g, const d9di_cudnn_tensor *x, int64_t axis)
{
    d9di_cudnn_tensor y = tensor_like(g, x, CUDNN_DATA_INT32);

    op_pointwise(g, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, axis, x, NULL, NULL, &y);
    return y;
}

/* x where mode(a, b), else `other`. */
static d9di_cudnn_tensor op_select(d9di_cudnn_graph *g, cudnnPointwiseMode_t mode,
                                   const d9di_cudnn_tensor *a, const d9di_cudnn_tensor *b,
                                   const d9di_cudnn_tensor *x, const d9di_cudnn_tensor *other)
{
    d9di_cudnn_tensor seen = tensor_like(g, x, CUDNN_DATA_BOOLEAN),
                      y = tensor_like(g, x, CUDNN_DATA_FLOAT);

    op_pointwise(g, mode, CUDNN_DATA_BOOLEAN, 0, a, b, NULL, &seen);
    op_pointwise(g, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, 0, x, other, &seen, &y);
    return y;
}

/* Each index, plus or minus the entry's offset, if there is one. */
static d9di_cudnn_tensor tensor_set_offset(d9di_cudnn_graph *g, d9di_cudnn_tensor x,
                                           cudnnPointwiseMode_t mode, const d9di_cudnn_tensor *by)
{
    d9di_cudnn_tensor y;

    if (by == NULL)
        return x;
    y = tensor_like(g, &x, CUDNN_DATA_INT32);
    op_pointwise(g, mode, CUDNN_DATA_INT32, 0, &x, by, NULL, &y);
    return y;
}

/* cuDNN recognises only these forms as causal, with or without a window, and then skips masked
 * tiles: columns are added before rows are subtracted. `column <= row` is correct too, and takes
 * twice as long. */
d9di_cudnn_tensor d9di_cudnn_graph_causal_mask(d9di_cudnn_graph *g, const d9di_cudnn_tensor *x,
                                               const d9di_cudnn_tensor *other, d9di_cudnn_extent of)
{
    d9di_cudnn_tensor row = scalar_of(g, x, 2), column = scalar_of(g, x, 3);

    row = tensor_set_offset(g, row, CUDNN_POINTWISE_ADD, of.n);
    row = tensor_set_offset(g, row, CUDNN_POINTWISE_SUB, of.m);
    return op_select(g, CUDNN_POINTWISE_CMP_GE, &row, &column, x, other);
}

d9di_cudnn_tensor d9di_cudnn_graph_window_mask(d9di_cudnn_graph *g, const d9di_cudnn_tensor *x,
                                               const d9di_cudnn_tensor *window,
                                               const d9di_cudnn_tensor *other, d9di_cudnn_extent of)
{
    d9di_cudnn_tensor row = scalar_of(g, x, 2), column = scalar_of(g, x, 3);
    d9di_cudnn_tensor end = d9di_cudnn_graph_pointwise(g, CUDNN_POINTWISE_ADD, &column, window);

    end = tensor_set_offset(g, end, CUDNN_POINTWISE_SUB, of.n);
    end = tensor_set_offset(g, end, CUDNN_POINTWISE_ADD, of.m);
    return op_select(g, CUDNN_POINTWISE_CMP_GT, &end, &row, x, other);
}

void d9di_cudnn_graph_reduce_to(d9di_cudnn_graph *g, cudnnReduceTensorOp_t op,
                                const d9di_cudnn_tensor *x, const d9di_cudnn_tensor *y)
{
    cudnnBackendDescriptor_t operation =
                                 desc_create(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR, "a sum"),
                             d;

    desc_set_type(g, operation, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
    desc_set(g, operation, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1,
             &op);
    desc_finalize(g, operation, "a sum");
    d = desc_create(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, "a sum");
    desc_set_tensor(g, d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    desc_set_tensor(g, d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    desc_set_desc(g, d, CUDNN_ATTR_OPERATION_REDUCTION_DESC, operation);
    op_finalize(g, d, "a sum");
}

d9di_cudnn_tensor d9di_cudnn_graph_reduce_row(d9di_cudnn_graph *g, cudnnReduceTensorOp_t op,
                                              const d9di_cudnn_tensor *x)
{
    const int64_t *n = x->shape.dim;
    d9di_cudnn_tensor y =
        d9di_cudnn_graph_virtual(g, CUDNN_DATA_FLOAT, d9di_cudnn_shape_dense(n[0], n[1], n[2], 1));

    d9di_cudnn_graph_reduce_to(g, op, x, &y);
    return y;
}

d9di_cudnn_tensor d9di_cudnn_graph_transpose(d9di_cudnn_graph *g, const d9di_cudnn_tensor *x,
                                             const d9di_cudnn_tensor *offset)
{
    const int64_t *n = x->shape.dim, *step = x->shape.stride;
    const d9di_cudnn_shape transposed = {{n[0], n[1], n[3], n[2]},
                                         {step[0], step[1], step[3], step[2]}};
    d9di_cudnn_tensor y = tensor(g, VIRTUAL, D9DI_CUDNN_GRAPH_MAX_IDS + g->next_id++,
                                 CUDNN_DATA_BFLOAT16, transposed, offset);
    cudnnBackendDescriptor_t d =
        desc_create(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, "a transpose");

    desc_set_tensor(g, d, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    desc_set_tensor(g, d, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, &y);
    op_finalize(g, d, "a transpose");
    return y;
}

/* --- plans ------------------------------------------------------------------------------------ */

/* The reason in cuDNN's words: the first that it found. */
static d9d_status plan_unsupported(const d9di_cudnn_graph *g, const char *op)
{
    char text[4096] = "", *why, *end;

    g->lib->cudnnGetLastErrorString(text, sizeof(text));
    why = strstr(text, "Reason: ");
    why = why != NULL ? why + strlen("Reason: ") : text;
    end = strchr(why, '\n');
    if (end != NULL)
        *end = '\0';
    return D9D_FAIL(D9D_ENOTSUP, "%s: cuDNN %zu, %s: %s%s%s", op, g->lib->cudnnGetVersion(),
                    g->failed_at, g->lib->cudnnGetErrorString(g->st), *why != '\0' ? ": " : "",
                    why);
}

/* A finished plan of the engine and its settings in a descriptor, or of a text: what `attribute`
 * is of. */
static cudnnStatus_t plan_create(d9di_cudnn_graph *g, cudnnBackendAttributeName_t attribute,
                                 cudnnBackendAttributeType_t type, int64_t n, const void *of)
{
    const d9di_cudnn *lib = g->lib;
    cudnnBackendDescriptor_t p;
    int64_t count = 0;
    cudnnStatus_t st =
        lib->cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &p);

    if (st != CUDNN_STATUS_SUCCESS)
        return st;
    st = lib->cudnnBackendSetAttribute(p, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1,
                                       &lib->handle);
    if (st == CUDNN_STATUS_SUCCESS)
        st = lib->cudnnBackendSetAttribute(p, attribute, type, n, of);
    if (st == CUDNN_STATUS_SUCCESS)
        st = lib->cudnnBackendFinalize(p);
    if (st == CUDNN_STATUS_SUCCESS)
        st = lib->cudnnBackendGetAttribute(p, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                           CUDNN_TYPE_INT64, 1, &count, &g->workspace);
    if (st == CUDNN_STATUS_SUCCESS)
        g->plan = p;
    else
        (void)lib->cudnnBackendDestroyDescriptor(p);
    return st;
}

/* The first of the heuristic's engines that builds; a listed engine may fail. */
static void select_engine(d9di_cudnn_graph *g, cudnnBackendDescriptor_t graph,
                          cudnnBackendHeurMode_t mode)
{
    enum { MAX_ENGINES = 8 };
    cudnnBackendDescriptor_t heuristic =
        desc_create(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, "the choice");
    cudnnBackendDescriptor_t config[MAX_ENGINES];
    int64_t n = 0;

    desc_set_desc(g, heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    desc_set(g, heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    desc_finalize(g, heuristic, "the choice of an engine");
    for (int i = 0; i < MAX_ENGINES; i++)
        config[i] = desc_create(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, "the choice of an engine");
    if (g->st != CUDNN_STATUS_SUCCESS)
        return;
    graph_fail(g,
               g->lib->cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                CUDNN_TYPE_BACKEND_DESCRIPTOR, MAX_ENGINES, &n,
                                                config),
               "the choice of an engine");
    for (int64_t i = 0; i < n && i < MAX_ENGINES && g->plan == NULL; i++)
        (void)plan_create(g, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                          1, &config[i]);
    if (g->plan == NULL)
        graph_fail(g, CUDNN_STATUS_NOT_SUPPORTED, "the choice of an engine");
}

d9d_status d9di_cudnn_graph_build(d9di_cudnn_graph *g, const char *op)
{
    cudnnBackendDescriptor_t graph =
        desc_create(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, "the graph");

    desc_set(g, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->n_ops,
             g->ops);
    desc_set(g, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->lib->handle);
    desc_finalize(g, graph, "the graph");
    if (g->st == CUDNN_STATUS_SUCCESS)
        select_engine(g, graph, CUDNN_HEUR_MODE_A);
    return g->plan != NULL ? D9D_OK : plan_unsupported(g, op);
}

bool d9di_cudnn_graph_restore(d9di_cudnn_graph *g, const void *json, size_t size)
{
    return plan_create(g, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                       (int64_t)size, json) == CUDNN_STATUS_SUCCESS;
}

bool d9di_cudnn_graph_serialize(const d9di_cudnn_graph *g, d9d_buf *out)
{
    const cudnnBackendAttributeName_t attribute = CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION;
    int64_t n = 0;

    if (g->lib->cudnnBackendGetAttribute(g->plan, attribute, CUDNN_TYPE_CHAR, 0, &n, NULL) !=
            CUDNN_STATUS_SUCCESS ||
        n <= 0 || d9d_buf_reserve(out, (size_t)n) != D9D_OK ||
        g->lib->cudnnBackendGetAttribute(g->plan, attribute, CUDNN_TYPE_CHAR, n, &n, out->data) !=
            CUDNN_STATUS_SUCCESS)
        return false;
    out->len = (size_t)n;
    return true;
}

static cudnnStatus_t graph_execute(const d9di_cudnn_graph *g, const int64_t *id, void *const *at,
                                   int n, void *scratch)
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

d9d_status d9di_cudnn_graph_run(const d9di_cudnn_graph *g, const char *op, d9d_stream s,
                                const int64_t *id, void *const *at, int n)
{
    void *scratch = NULL;
    cudnnStatus_t e;

    (void)d9di_cuda_stream(s);
    D9D_TRY(d9di_cuda_scratch_alloc(s, g->workspace, &scratch));
    e = graph_execute(g, id, at, n, scratch);
    d9di_cuda_scratch_free(s, scratch, g->workspace);
    return e == CUDNN_STATUS_SUCCESS
               ? D9D_OK
               : D9D_FAIL(D9D_ECUDA, "%s: cuDNN: %s", op, g->lib->cudnnGetErrorString(e));
}

void d9di_cudnn_graph_release(d9di_cudnn_graph *g)
{
    if (g->plan != NULL)
        (void)g->lib->cudnnBackendDestroyDescriptor(g->plan);
    while (g->n_descs > 0)
        (void)g->lib->cudnnBackendDestroyDescriptor(g->descs[--g->n_descs]);
    *g = (d9di_cudnn_graph){0};
}
#else
typedef int d9di_cudnn_absent; /* avoids an empty translation unit */
#endif
