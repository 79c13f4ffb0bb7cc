/* cublaslt.c - GEMM by cuBLASLt, which is loaded with dlopen when a device is opened.
 *
 * cuBLASLt is column-major: our row-major C [M, N] is its C' [N, M]. So it computes C' = op(B)'
 * op(A)', which needs no transposed copy. Sums are float32; TF32 is never used. The heuristic is
 * queried once per shape, so that the same shape always gives the same bits. Split-K algorithms
 * must reduce in float32 in scratch. A bias is an epilogue (CUBLASLT_EPILOGUE_BIAS).
 *
 * Operands of 8 bits are K-major on both sides, as Hopper's FP8 asks; their scales are read on the
 * device.
 *
 * Autotuning: the heuristic's first choice is not always the fastest. So the first large product of
 * a shape is a trial: the heuristic's first few algorithms compute it in turn into scratch, between
 * events, and a kernel compares their bits with those of the first. Nothing waits for the trial.
 * Once its events have completed, the fastest algorithm with the same bits replaces the first
 * choice if it is much faster. So tuning never changes a result.
 *
 * What a shape uses in the end is kept for later runs (tuning_cache.c), which then ask no heuristic
 * and try nothing. The library checks a kept algorithm before it is used.
 */
#include <cublasLt.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/common/bitwise_compare.h"
#include "cuda/common/common.h"
#include "d9d/base/disk_cache.h"

#define STR_(x) #x
#define STR(x)  STR_(x)
#define LIBRARY "libcublasLt.so." STR(CUBLAS_VER_MAJOR)

enum {
    MAX_SCRATCH = 64 << 20,
    MAX_ALIGNMENT = 256,
    MAX_ALGOS = 7,          /* algorithms in a trial */
    MAX_TRIALS = 256,       /* per stream; later shapes use the first choice */
    TRIAL_BYTES = 256 << 20 /* largest result that is tried */
};
static const double TRIAL_FLOP = 1e10; /* enough to take longer than a few launches */

/* clang-format off */
#define FUNCTIONS(X)                                                                               \
    X(cublasLtCreate)                                                                              \
    X(cublasLtDestroy)                                                                             \
    X(cublasLtGetVersion)                                                                          \
    X(cublasLtGetStatusString) X(cublasLtMatmul) X(cublasLtMatmulAlgoGetHeuristic)                 \
        X(cublasLtMatmulAlgoCheck)                                                                 \
        X(cublasLtMatmulDescCreate) X(cublasLtMatmulDescDestroy) X(cublasLtMatmulDescSetAttribute) \
            X(cublasLtMatrixLayoutCreate) X(cublasLtMatrixLayoutDestroy)                           \
                X(cublasLtMatrixLayoutSetAttribute)                                                \
                X(cublasLtMatmulPreferenceCreate) X(cublasLtMatmulPreferenceDestroy)               \
                    X(cublasLtMatmulPreferenceSetAttribute)
/* clang-format on */

/* What selects an algorithm. Without padding, since its bytes are a hash key. */
typedef struct plan_key {
    int64_t m, n, k, count;
    d9di_gemm_strides strides;
    int32_t at, bt, ct, trans_a, trans_b, accumulate, align_a, align_b, align_c, scaling;
    int32_t biased, none; /* none: 0, to a multiple of 8 bytes */
} plan_key;

/* How operands are scaled. */
enum { UNSCALED, SCALE_TENSOR, SCALE_ROWS, SCALE_KINDS, FAST_ACCUM = SCALE_KINDS };

typedef struct choice {
    cublasLtMatmulAlgo_t algo;
    int64_t scratch;
} choice;

typedef struct plan {
    plan_key key;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c; /* in cuBLASLt's terms: a is our B */
    choice choice[MAX_ALGOS];
    int n, best;                       /* number of choices, 0: no algorithm; the choice to use */
    bool trial_done;                   /* finished, or not to be tried */
    bool settled;                      /* in the cache, or not to be kept */
    cudaEvent_t events[2 * MAX_ALGOS]; /* before and after each choice of a trial in flight */
    int *mismatch;                     /* 1 for choices whose bits differ from the first's */
    struct plan *next;                 /* list of all plans, to free them */
} plan;

struct d9di_cublaslt {
    void *library;
    cublasLtHandle_t handle;
    d9d_disk_cache cache; /* plan_key to choice */
    d9d_map plans;
    plan *first;
    int *mismatch; /* [MAX_TRIALS, MAX_ALGOS] of all trials, pinned host memory that the GPU
                      writes; NULL: no trials */
    int n_trials;
#define X(f) __typeof__(f) *f;
    FUNCTIONS(X)
#undef X
};

static d9d_status cublaslt_fail(const d9di_cublaslt *b, const char *op, const char *what,
                                cublasStatus_t e)
{
    const d9d_status st = e == CUBLAS_STATUS_ALLOC_FAILED ? D9D_EOOM : D9D_ECUDA;

    return D9D_FAIL(st, "%s: cuBLASLt, %s: %s", op, what, b->cublasLtGetStatusString(e));
}

static void *library_open(void)
{
    static const char *const places[] = {LIBRARY, D9D_CUDA_LIB "/" LIBRARY};
    void *library = NULL;

    for (size_t i = 0; i < sizeof(places) / sizeof(*places) && library == NULL; i++)
        library = dlopen(places[i], RTLD_NOW | RTLD_LOCAL);
    return library;
}

void d9di_cublaslt_preload(void)
{
    (void)library_open();
}

static d9d_status library_load(d9di_cublaslt *b)
{
    b->library = library_open();
    if (b->library == NULL)
        return D9D_FAIL(D9D_ENOTSUP,
                        "cuda: %s, which GEMMs need, is neither on the library path nor in %s; "
                        "install cuBLAS, or use the device \"cpu\"",
                        LIBRARY, D9D_CUDA_LIB);
#define X(f)                                                                                       \
    *(void **)&b->f = dlsym(b->library, #f);                                                       \
    if (b->f == NULL)                                                                              \
        return D9D_FAIL(D9D_ENOTSUP, "cuda: %s has no function %s", LIBRARY, #f);
    FUNCTIONS(X)
#undef X
    return D9D_OK;
}

d9d_status d9di_cublaslt_open(d9d_stream s, d9di_cublaslt **out)
{
    d9di_cublaslt *b = calloc(1, sizeof(*b));
    cublasStatus_t e;
    d9d_status st;

    if (b == NULL)
        return D9D_FAIL(D9D_ENOMEM, "cuda: no memory for cuBLASLt");
    D9D_TRY_OR(st, library_load(b), out);
    e = b->cublasLtCreate(&b->handle);
    if (e != CUBLAS_STATUS_SUCCESS) {
        b->handle = NULL;
        st = cublaslt_fail(b, "cuda", "cublasLtCreate", e);
        goto out;
    }
    if (cudaHostAlloc((void **)&b->mismatch, MAX_TRIALS * MAX_ALGOS * sizeof(int),
                      cudaHostAllocMapped) != cudaSuccess)
        b->mismatch = NULL;
    d9di_cuda_open_cache(s, "cublaslt", b->cublasLtGetVersion(), &b->cache);
    *out = b;
    b = NULL;
out:
    d9di_cublaslt_close(b);
    return st;
}

static void trial_end(plan *p)
{
    for (int i = 0; i < 2 * MAX_ALGOS; i++)
        if (p->events[i] != NULL)
            (void)cudaEventDestroy(p->events[i]);
    memset(p->events, 0, sizeof(p->events));
    p->mismatch = NULL;
    p->trial_done = true;
}

static void plan_free(const d9di_cublaslt *b, plan *p)
{
    trial_end(p);
    if (p->desc != NULL)
        (void)b->cublasLtMatmulDescDestroy(p->desc);
    if (p->a != NULL)
        (void)b->cublasLtMatrixLayoutDestroy(p->a);
    if (p->b != NULL)
        (void)b->cublasLtMatrixLayoutDestroy(p->b);
    if (p->c != NULL)
        (void)b->cublasLtMatrixLayoutDestroy(p->c);
    free(p);
}

/* The library stays loaded: unloading it would run its teardown while a CUDA context is alive. */
void d9di_cublaslt_close(d9di_cublaslt *b)
{
    if (b == NULL)
        return;
    for (plan *p = b->first, *next; p != NULL; p = next) {
        next = p->next;
        plan_free(b, p);
    }
    d9d_map_release(&b->plans);
    d9d_disk_cache_close(&b->cache);
    if (b->mismatch != NULL)
        (void)cudaFreeHost(b->mismatch);
    if (b->handle != NULL)
        (void)b->cublasLtDestroy(b->handle);
    free(b);
}

static cudaDataType_t cuda_type(d9d_dtype t)
{
    switch (t) {
    case D9D_F32: return CUDA_R_32F;
    case D9D_F8_E4M3: return CUDA_R_8F_E4M3;
    case D9D_F8_E5M2: return CUDA_R_8F_E5M2;
    default: return CUDA_R_16BF;
    }
}

/* The largest power of two that divides the address of every matrix of a batch, which the heuristic
 * takes as a hint. */
static int32_t ptr_alignment(const void *p, int64_t count, int64_t bytes)
{
    const uintptr_t bits = (uintptr_t)p | (count > 1 ? (uintptr_t)bytes : 0) | MAX_ALIGNMENT;

    return (int32_t)(bits & -bits);
}

/* Layout of `count` row-major rows x cols matrices: cols x rows to the library. */
static cublasStatus_t layout_create(const d9di_cublaslt *b, cublasLtMatrixLayout_t *out,
                                    d9d_dtype t, int64_t count, int64_t rows, int64_t cols,
                                    int64_t row_stride, int64_t matrix_stride)
{
    const int32_t batch = (int32_t)count;
    cublasStatus_t e = b->cublasLtMatrixLayoutCreate(out, cuda_type(t), (uint64_t)cols,
                                                     (uint64_t)rows, row_stride);

    if (e == CUBLAS_STATUS_SUCCESS && count > 1)
        e = b->cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch,
                                                sizeof(batch));
    if (e == CUBLAS_STATUS_SUCCESS && count > 1)
        e = b->cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                                &matrix_stride, sizeof(matrix_stride));
    return e;
}

static cublasStatus_t layouts_create(const d9di_cublaslt *b, const d9d_gemm_batched *batch,
                                     const plan_key *key, plan *p)
{
    const d9di_gemm_strides *st = &key->strides;
    const d9d_dtype at = (d9d_dtype)key->at, bt = (d9d_dtype)key->bt;
    const d9d_gemm *g = &batch->gemm;
    const int64_t count = batch->count;
    cublasStatus_t e =
        g->trans_b ? layout_create(b, &p->a, bt, count, g->n, g->k, st->b_row, st->b_matrix)
                   : layout_create(b, &p->a, bt, count, g->k, g->n, st->b_row, st->b_matrix);

    if (e == CUBLAS_STATUS_SUCCESS)
        e = g->trans_a ? layout_create(b, &p->b, at, count, g->k, g->m, st->a_row, st->a_matrix)
                       : layout_create(b, &p->b, at, count, g->m, g->k, st->a_row, st->a_matrix);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = layout_create(b, &p->c, g->ct, count, g->m, g->n, st->c_row, st->c_matrix);
    return e;
}

/* Where the scales are, which is no part of a plan. */
static cublasStatus_t scales_set(const d9di_cublaslt *b, const plan *p,
                                 const d9di_gemm_scales *scales)
{
    const cublasStatus_t e = b->cublasLtMatmulDescSetAttribute(
        p->desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &scales->b, sizeof(scales->b));

    return e != CUBLAS_STATUS_SUCCESS
               ? e
               : b->cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
                                                   &scales->a, sizeof(scales->a));
}

static cublasStatus_t scaling_describe(const d9di_cublaslt *b, const d9di_gemm_scales *scales,
                                       plan *p)
{
    const int8_t fast = scales->fast_accum;
    cublasStatus_t e = b->cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM,
                                                         &fast, sizeof(fast));

    if (scales->by_row) {
#if CUBLAS_VERSION >= 120900
        const int32_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;

        if (e == CUBLAS_STATUS_SUCCESS)
            e = b->cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &mode,
                                                  sizeof(mode));
        if (e == CUBLAS_STATUS_SUCCESS)
            e = b->cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &mode,
                                                  sizeof(mode));
#else
        e = CUBLAS_STATUS_NOT_SUPPORTED;
#endif
    }
    return e == CUBLAS_STATUS_SUCCESS ? scales_set(b, p, scales) : e;
}

/* Where the bias is, which is no part of a plan. */
static cublasStatus_t bias_set(const d9di_cublaslt *b, const plan *p, const void *bias)
{
    return b->cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                             sizeof(bias));
}

static cublasStatus_t bias_describe(const d9di_cublaslt *b, const d9d_gemm *g, const plan *p)
{
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    const cudaDataType_t type = cuda_type(g->ct);
    cublasStatus_t e = b->cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE,
                                                         &epilogue, sizeof(epilogue));

    if (e == CUBLAS_STATUS_SUCCESS)
        e = b->cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type,
                                              sizeof(type));
    return e == CUBLAS_STATUS_SUCCESS ? bias_set(b, p, g->bias) : e;
}

static cublasStatus_t plan_describe(const d9di_cublaslt *b, const d9d_gemm_batched *batch,
                                    const d9di_gemm_scales *scales, const plan_key *key, plan *p)
{
    const cublasOperation_t ta = batch->gemm.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t tb = batch->gemm.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasStatus_t e;

    e = b->cublasLtMatmulDescCreate(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = b->cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &ta,
                                              sizeof(ta));
    if (e == CUBLAS_STATUS_SUCCESS)
        e = b->cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSB, &tb,
                                              sizeof(tb));
    if (e == CUBLAS_STATUS_SUCCESS && scales != NULL)
        e = scaling_describe(b, scales, p);
    if (e == CUBLAS_STATUS_SUCCESS && batch->gemm.bias != NULL)
        e = bias_describe(b, &batch->gemm, p);
    return e == CUBLAS_STATUS_SUCCESS ? layouts_create(b, batch, key, p) : e;
}

static cublasStatus_t preference_set(const d9di_cublaslt *b, const plan_key *key,
                                     cublasLtMatmulPreference_t pref)
{
    const size_t scratch = MAX_SCRATCH;
    const uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const uint32_t align[] = {(uint32_t)key->align_b, (uint32_t)key->align_a,
                              (uint32_t)key->align_c};
    const struct {
        cublasLtMatmulPreferenceAttributes_t what;
        const void *value;
        size_t size;
    } wish[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &scratch, sizeof(scratch)},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction, sizeof(reduction)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align[0], sizeof(align[0])},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align[1], sizeof(align[1])},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align[2], sizeof(align[2])},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align[2], sizeof(align[2])},
    };
    cublasStatus_t e = CUBLAS_STATUS_SUCCESS;

    for (size_t i = 0; i < sizeof(wish) / sizeof(*wish) && e == CUBLAS_STATUS_SUCCESS; i++)
        e = b->cublasLtMatmulPreferenceSetAttribute(pref, wish[i].what, wish[i].value,
                                                    wish[i].size);
    return e;
}

/* Queries the heuristic; finding no algorithm is not an error. */
static cublasStatus_t query_heuristic(const d9di_cublaslt *b, const plan_key *key, plan *p)
{
    cublasLtMatmulHeuristicResult_t found[MAX_ALGOS];
    cublasLtMatmulPreference_t pref;
    cublasStatus_t e;
    int n = 0;

    memset(found, 0, sizeof(found));
    e = b->cublasLtMatmulPreferenceCreate(&pref);
    if (e != CUBLAS_STATUS_SUCCESS)
        return e;
    e = preference_set(b, key, pref);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = b->cublasLtMatmulAlgoGetHeuristic(b->handle, p->desc, p->a, p->b, p->c, p->c, pref,
                                              MAX_ALGOS, found, &n);
    (void)b->cublasLtMatmulPreferenceDestroy(pref);
    if (e == CUBLAS_STATUS_NOT_SUPPORTED || e == CUBLAS_STATUS_INVALID_VALUE)
        return CUBLAS_STATUS_SUCCESS; /* the library does not support such types or layouts */
    for (int i = 0; i < n && e == CUBLAS_STATUS_SUCCESS; i++)
        if (found[i].state == CUBLAS_STATUS_SUCCESS)
            p->choice[p->n++] = (choice){found[i].algo, (int64_t)found[i].workspaceSize};
    return e;
}

/* --- choices of earlier runs ------------------------------------------------------------------ */

/* False if there is none that the library takes for this product. */
static bool plan_restore(d9di_cublaslt *b, const plan_key *key, plan *p)
{
    cublasLtMatmulHeuristicResult_t checked;
    size_t size;
    const void *const kept = d9d_disk_cache_get(&b->cache, key, sizeof(*key), &size);

    if (kept == NULL || size != sizeof(choice))
        return false;
    memcpy(&p->choice[0], kept, sizeof(choice));
    if (b->cublasLtMatmulAlgoCheck(b->handle, p->desc, p->a, p->b, p->c, p->c, &p->choice[0].algo,
                                   &checked) != CUBLAS_STATUS_SUCCESS ||
        (int64_t)checked.workspaceSize > p->choice[0].scratch)
        return false;
    p->n = 1;
    p->trial_done = p->settled = true;
    return true;
}

/* Keeps the choice of a plan once nothing will change it. */
static void plan_settle(d9di_cublaslt *b, plan *p)
{
    if (p->settled)
        return;
    d9d_disk_cache_put(&b->cache, &p->key, sizeof(p->key), &p->choice[p->best], sizeof(choice));
    p->settled = true;
}

static d9d_status plan_get(d9di_cublaslt *b, const char *op, const d9d_gemm_batched *g,
                           const d9di_gemm_scales *scales, const plan_key *key, plan **out)
{
    cublasStatus_t e;
    d9d_status st;
    plan *p = d9d_map_get(&b->plans, (const char *)key, sizeof(*key));

    if (p != NULL) {
        *out = p;
        return D9D_OK;
    }
    p = calloc(1, sizeof(*p));
    if (p == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for a GEMM's algorithm", op);
    p->key = *key;
    e = plan_describe(b, g, scales, key, p);
    if (e == CUBLAS_STATUS_SUCCESS && !plan_restore(b, key, p))
        e = query_heuristic(b, key, p);
    else if (e == CUBLAS_STATUS_NOT_SUPPORTED)
        e = CUBLAS_STATUS_SUCCESS; /* a plan without algorithms */
    st = e == CUBLAS_STATUS_SUCCESS ? d9d_map_put(&b->plans, (const char *)key, sizeof(*key), p)
                                    : cublaslt_fail(b, op, "choice of an algorithm", e);
    if (st != D9D_OK) {
        plan_free(b, p);
        return st;
    }
    p->next = b->first;
    b->first = p;
    *out = p;
    return D9D_OK;
}

/* --- GEMM ---------------------------------------------------------------------------- */

/* One call's arguments; `to` is where its result goes. */
typedef struct product {
    d9d_stream s;
    const char *op;
    const d9d_gemm_batched *g;
    const d9di_gemm_scales *scales;
    const void *a, *b, *old;
    plan *p;
} product;

static d9d_status gemm_run(const product *x, const choice *algorithm, void *to)
{
    const d9di_cublaslt *lib = x->s->cublaslt;
    const plan *p = x->p;
    cudaStream_t queue = d9di_cuda_stream(x->s);
    void *scratch = NULL;
    cublasStatus_t e = CUBLAS_STATUS_SUCCESS;

    if (algorithm->scratch > 0)
        D9D_TRY(d9di_cuda_scratch_alloc(x->s, algorithm->scratch, &scratch));
    if (x->scales != NULL)
        e = scales_set(lib, p, x->scales);
    if (e == CUBLAS_STATUS_SUCCESS && x->g->gemm.bias != NULL)
        e = bias_set(lib, p, x->g->gemm.bias);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = lib->cublasLtMatmul(lib->handle, p->desc, &x->g->alpha, x->b, p->a, x->a, p->b,
                                &x->g->gemm.beta, x->old, p->c, to, p->c, &algorithm->algo, scratch,
                                (size_t)algorithm->scratch, queue);
    if (scratch != NULL)
        d9di_cuda_scratch_free(x->s, scratch, algorithm->scratch);
    return e == CUBLAS_STATUS_SUCCESS ? D9D_OK : cublaslt_fail(lib, x->op, "cublasLtMatmul", e);
}

/* --- trials --------------------------------------------------------------------------- */

static int64_t result_bytes(const d9d_gemm_batched *g)
{
    return g->count * g->gemm.m * g->gemm.n * (int64_t)d9d_dtype_size(g->gemm.ct);
}

/* Results lie without gaps, as a trial's do. */
static bool is_dense(const d9d_gemm *g, const d9di_gemm_strides *strides, int64_t count)
{
    return strides->c_row == g->n && (count == 1 || strides->c_matrix == g->m * g->n);
}

/* A trial's result is dense. */
static bool trial_is_worthwhile(const d9di_cublaslt *b, const plan *p, const d9d_gemm_batched *g,
                                bool dense)
{
    const double multiply_adds =
        (double)g->count * (double)g->gemm.m * (double)g->gemm.n * (double)g->gemm.k;

    return dense && !p->trial_done && p->mismatch == NULL && p->n > 1 && b->mismatch != NULL &&
           b->n_trials < MAX_TRIALS && result_bytes(g) <= TRIAL_BYTES &&
           2.0 * multiply_adds >= TRIAL_FLOP;
}

/* Runs one choice twice, the second time between events, and compares it with the first's result.
 */
static d9d_status trial_run_algo(const product *x, int i, void *to, const void *first)
{
    plan *p = x->p;
    cudaStream_t queue = d9di_cuda_stream(x->s);

    for (int m = 2 * i; m < 2 * i + 2; m++)
        if (cudaEventCreate(&p->events[m]) != cudaSuccess)
            return d9di_cuda_fail(x->op, cudaErrorMemoryAllocation);
    D9D_TRY(gemm_run(x, &p->choice[i], to));
    (void)cudaEventRecord(p->events[2 * i], queue);
    D9D_TRY(gemm_run(x, &p->choice[i], to));
    (void)cudaEventRecord(p->events[2 * i + 1], queue);
    return to == first
               ? D9D_OK
               : d9di_bitwise_compare(x->s, x->op, first, to, result_bytes(x->g), &p->mismatch[i]);
}

/* Starts a trial; without memory for it the shape has none. */
static void trial_begin(d9di_cublaslt *b, const product *x)
{
    const int64_t half = d9di_i64_round_up(result_bytes(x->g), 256);
    plan *p = x->p;
    d9d_status st = D9D_OK;
    void *workspace;

    if (d9di_cuda_scratch_alloc(x->s, 2 * half, &workspace) != D9D_OK) {
        p->trial_done = p->settled = true; /* a run with more memory may try */
        return;
    }
    p->mismatch = b->mismatch + MAX_ALGOS * b->n_trials++;
    memset(p->mismatch, 0, MAX_ALGOS * sizeof(int));
    for (int i = 0; i < p->n && st == D9D_OK; i++)
        st = trial_run_algo(x, i, i == 0 ? workspace : (char *)workspace + half, workspace);
    d9di_cuda_scratch_free(x->s, workspace, 2 * half);
    if (st != D9D_OK) {
        trial_end(p);
        p->settled = true;
    }
}

/* Another choice replaces the first only below this fraction of its time. A trial is too short to
 * reach the power limit. Smaller tiles are a little faster in it, move more bytes per FLOP, and are
 * up to 6 % slower once the power limit holds. */
#define TRIAL_WIN_RATIO 0.87f

static void trial_conclude(plan *p)
{
    float best, ms;

    if (cudaEventQuery(p->events[2 * p->n - 1]) != cudaSuccess)
        return; /* in flight */
    if (cudaEventElapsedTime(&best, p->events[0], p->events[1]) == cudaSuccess) {
        best *= TRIAL_WIN_RATIO;
        for (int i = 1; i < p->n; i++)
            if (p->mismatch[i] == 0 &&
                cudaEventElapsedTime(&ms, p->events[2 * i], p->events[2 * i + 1]) == cudaSuccess &&
                ms < best) {
                best = ms;
                p->best = i;
            }
    }
    trial_end(p);
}

static int32_t scaling_key(const d9di_gemm_scales *scales)
{
    if (scales == NULL)
        return UNSCALED;
    return (scales->by_row ? SCALE_ROWS : SCALE_TENSOR) + (scales->fast_accum ? FAST_ACCUM : 0);
}

d9d_status d9di_cublaslt_gemm(d9d_stream s, const char *op, const d9d_gemm_batched *batch,
                              const d9di_gemm_strides *strides, const d9di_gemm_scales *scales,
                              const void *a, const void *b, void *c, bool *done)
{
    const d9d_gemm *g = &batch->gemm;
    const int64_t count = batch->count, size = (int64_t)d9d_dtype_size(g->t),
                  c_size = (int64_t)d9d_dtype_size(g->ct);
    const plan_key key = {
        .m = g->m,
        .n = g->n,
        .k = g->k,
        .count = count,
        .strides = *strides,
        .at = (int32_t)(scales != NULL ? scales->at : g->t),
        .bt = (int32_t)(scales != NULL ? scales->bt : g->t),
        .ct = (int32_t)g->ct,
        .trans_a = g->trans_a,
        .trans_b = g->trans_b,
        .accumulate = g->beta != 0.0f,
        .align_a = ptr_alignment(a, count, strides->a_matrix * size),
        .align_b = ptr_alignment(b, count, strides->b_matrix * size),
        .align_c =
            ptr_alignment((const void *)((uintptr_t)c | (uintptr_t)g->addend | (uintptr_t)g->bias),
                          count, strides->c_matrix * c_size),
        .scaling = scaling_key(scales),
        .biased = g->bias != NULL,
    };
    d9di_cublaslt *lib = s->cublaslt;
    product x = {s, op, batch, scales, a, b, g->addend != NULL ? g->addend : c, NULL};

    (void)d9di_cuda_stream(s);
    D9D_TRY(plan_get(lib, op, batch, scales, &key, &x.p));
    *done = x.p->n > 0;
    if (!*done)
        return D9D_OK;
    if (trial_is_worthwhile(lib, x.p, batch, is_dense(g, strides, count)))
        trial_begin(lib, &x);
    else if (x.p->mismatch != NULL)
        trial_conclude(x.p);
    else
        plan_settle(lib, x.p);
    d9d_disk_cache_flush_idle(&lib->cache, D9DI_CUDA_CACHE_IDLE_S);
    return gemm_run(&x, &x.p->choice[x.p->best], c);
}
