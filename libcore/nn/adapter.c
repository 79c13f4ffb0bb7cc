/* adapter.c - see d9d/nn/adapter.h. */
#include "d9d/nn/adapter.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/plugin_call.h"

enum { SOME_COLUMNS = 1024 /* of a row, merged at a time */ };

/* --- kinds --------------------------------------------------------------------------------------
 */

const d9d_adapter_kind d9d_adapter_lora = {
    .size = sizeof(d9d_adapter_kind),
    .name = "lora",
    .params =
        {[D9D_ADAPTER_A] = {.name = "lora_A.weight"}, [D9D_ADAPTER_B] = {.name = "lora_B.weight"}},
};
const d9d_adapter_kind d9d_adapter_dora = {
    .size = sizeof(d9d_adapter_kind),
    .name = "dora",
    .params = {[D9D_ADAPTER_A] = {.name = "lora_A.weight"},
               [D9D_ADAPTER_B] = {.name = "lora_B.weight"},
               [D9D_ADAPTER_MAGNITUDE] = {.name = "lora_magnitude_vector.weight"}},
};
const d9d_adapter_kind d9d_adapter_ia3 = {
    .size = sizeof(d9d_adapter_kind),
    .name = "ia3",
    .params = {[D9D_ADAPTER_OUTPUT] = {.name = "ia3_l"}},
};
const d9d_adapter_kind d9d_adapter_ia3_feedforward = {
    .size = sizeof(d9d_adapter_kind),
    .name = "ia3",
    .params = {[D9D_ADAPTER_INPUT] = {.name = "ia3_l"}},
};

bool d9d_adapter_is_low_rank(const d9d_adapter_kind *kind)
{
    if (kind->forward != NULL)
        return false;
    for (int i = 0; i < D9D_ADAPTER_ROLES; i++)
        if ((kind->params[i].name != NULL) != (i == D9D_ADAPTER_A || i == D9D_ADAPTER_B))
            return false;
    return true;
}

/* --- shapes -------------------------------------------------------------------------------------
 */

/* Parameters by role: dimensions, and how they begin. */
static const d9d_adapter_param roles[D9D_ADAPTER_PARAMS] = {
    [D9D_ADAPTER_A] = {.dim = {D9D_ADAPTER_RANK, D9D_ADAPTER_IN}, .init = D9D_INIT_UNIFORM},
    [D9D_ADAPTER_B] = {.dim = {D9D_ADAPTER_OUT, D9D_ADAPTER_RANK}, .init = D9D_INIT_ZEROS},
    [D9D_ADAPTER_MAGNITUDE] = {.dim = {D9D_ADAPTER_OUT},
                               .init = D9D_INIT_ONES}, /* until it starts */
    [D9D_ADAPTER_OUTPUT] = {.dim = {D9D_ADAPTER_OUT}, .init = D9D_INIT_ONES},
    [D9D_ADAPTER_INPUT] = {.dim = {D9D_ADAPTER_IN}, .init = D9D_INIT_ONES},
};

static const d9d_adapter_param *form_of(const d9d_adapter_kind *kind, int i)
{
    return kind != NULL && kind->forward != NULL ? &kind->params[i] : &roles[i];
}

static bool is_stack(const d9d_shape *matrix)
{
    return matrix->ndim == 3;
}

static int64_t dim_size(d9d_adapter_dim dim, const d9d_shape *matrix, int64_t r)
{
    switch (dim) {
    case D9D_ADAPTER_RANK: return r;
    case D9D_ADAPTER_IN: return matrix->dim[1];
    case D9D_ADAPTER_IN_BLOCKS: return r > 0 ? matrix->dim[1] / r : 0;
    case D9D_ADAPTER_PAIRS: return r * (r - 1) / 2;
    default: return matrix->dim[is_stack(matrix) ? 2 : 0];
    }
}

d9d_shape d9d_adapter_shape(const d9d_adapter_kind *kind, int i, const d9d_shape *matrix, int64_t r)
{
    const d9d_adapter_dim *d = form_of(kind, i)->dim;
    const int64_t first = dim_size(d[0], matrix, r);

    if (d[1] == D9D_ADAPTER_NO_DIM)
        return D9D_SHAPE(first);
    return is_stack(matrix) ? D9D_SHAPE(matrix->dim[0], dim_size(d[1], matrix, r), first)
                            : D9D_SHAPE(first, dim_size(d[1], matrix, r));
}

int d9d_adapter_shared_dim(const d9d_adapter_kind *kind, int i, const d9d_shape *matrix, int dim)
{
    const d9d_adapter_param *of = form_of(kind, i);

    if (is_stack(matrix))
        return dim == 0 ? 0 : -1;
    for (int k = 0; k < 2; k++)
        if (dim == 0 ? of->dim[k] == D9D_ADAPTER_OUT
                     : of->dim[k] == D9D_ADAPTER_IN || of->dim[k] == D9D_ADAPTER_IN_BLOCKS)
            return k;
    return -1;
}

/* --- a module's adapter -------------------------------------------------------------------------
 */

typedef struct adapter_record {
    d9d_param_adapter adapter;
    d9d_param params[D9D_ADAPTER_PARAMS];
} adapter_record;

static d9d_param *param_find(const d9d_module *m, const char *name)
{
    for (size_t i = 0; i < m->entries.len; i++)
        if (m->entries.data[i].param != NULL && strcmp(m->entries.data[i].name, name) == 0)
            return m->entries.data[i].param;
    return NULL;
}

d9d_param *d9d_adapter_matrix(const d9d_module *m)
{
    for (size_t i = 0; i < m->entries.len; i++)
        if (m->entries.data[i].param != NULL && m->entries.data[i].param->spec.adaptable)
            return m->entries.data[i].param;
    return NULL;
}

bool d9d_adapter_is_table(const d9d_module *m)
{
    return d9d_adapter_matrix(m) != NULL && d9d_adapter_matrix(m) != param_find(m, "weight");
}

/* Blocks of r inputs are whole. */
static d9d_status blocks_check(const d9d_param *w, const d9d_adapter_kind *kind, int64_t r)
{
    for (int i = 0; i < D9D_ADAPTER_PARAMS; i++)
        for (int k = 0; k < 2 && kind->params[i].name != NULL; k++)
            if (kind->params[i].dim[k] == D9D_ADAPTER_IN_BLOCKS &&
                (r < 1 || w->spec.shape.dim[1] % r != 0))
                return D9D_FAIL(D9D_ECONFIG, "%s: blocks of %lld do not divide %lld inputs",
                                kind->name, (long long)r, (long long)w->spec.shape.dim[1]);
    return D9D_OK;
}

static d9d_status fit_check(const d9d_module *m, const d9d_param *w, const d9d_adapter_kind *kind,
                            const d9d_adapter_opts *opts)
{
    const bool by_role = kind->forward == NULL;

    D9D_TRY(d9d_adapter_kind_check(kind));
    if (w == NULL || w->peft.adapter != NULL)
        return D9D_FAIL(D9D_EINVAL, "%s: the module has %s", kind->name,
                        w == NULL ? "no matrix" : "an adapter already");
    if (w->peft.refused != NULL)
        return D9D_FAIL(D9D_ENOTSUP, "%s: %s", kind->name, w->peft.refused);
    if (opts->dropout > 0 && w->peft.dropout_refused != NULL)
        return D9D_FAIL(D9D_ENOTSUP, "%s: dropout is %g: %s", kind->name, opts->dropout,
                        w->peft.dropout_refused);
    if (d9d_adapter_is_table(m) && !d9d_adapter_is_low_rank(kind))
        return D9D_FAIL(D9D_ENOTSUP, "%s: adapters of embeddings and heads are LoRA alone",
                        kind->name);
    if (is_stack(&w->spec.shape) && !d9d_adapter_is_low_rank(kind))
        return D9D_FAIL(D9D_EINVAL, "%s: adapters of experts are LoRA alone", kind->name);
    if (by_role && kind->params[D9D_ADAPTER_OUTPUT].name != NULL &&
        w->spec.parallel.style == D9D_ROWWISE && param_find(m, "bias") != NULL)
        return D9D_FAIL(D9D_ENOTSUP,
                        "%s: a layer whose inputs tensor parallelism divides and that has a bias "
                        "cannot have factors of its output",
                        kind->name);
    return blocks_check(w, kind, opts->r);
}

/* How far from 0 uniform numbers begin: 1 / sqrt(the last dimension), unless the kind says it. */
static float init_scale(const d9d_adapter_param *of, const d9d_shape *matrix, int64_t r)
{
    const d9d_adapter_dim last = of->dim[1] != D9D_ADAPTER_NO_DIM ? of->dim[1] : of->dim[0];

    return of->init == D9D_INIT_UNIFORM && of->init_scale == 0
               ? 1.0f / sqrtf((float)dim_size(last, matrix, r))
               : of->init_scale;
}

static d9d_status param_add(d9d_module *m, const d9d_adapter_kind *kind, int i, d9d_param *w,
                            const d9d_adapter_opts *opts, d9d_param *p)
{
    const d9d_adapter_param *of = form_of(kind, i);

    D9D_TRY(d9d_module_param(m, kind->params[i].name, p, w->spec.dtype,
                             d9d_adapter_shape(kind, i, &w->spec.shape, opts->r), of->init,
                             init_scale(of, &w->spec.shape, opts->r)));
    p->peft.adapts = w;
    p->spec.trainable = !kind->params[i].frozen;
    return D9D_OK;
}

d9d_status d9d_adapter_add(d9d_module *m, const d9d_adapter_kind *kind,
                           const d9d_adapter_opts *opts)
{
    d9d_param *w = d9d_adapter_matrix(m);
    adapter_record *l;

    D9D_TRY(fit_check(m, w, kind, opts));
    l = d9d_arena_alloc(&m->names, sizeof(*l));
    if (l == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for the record of an adapter", kind->name);
    l->adapter = (d9d_param_adapter){
        .r = opts->r,
        .alpha = opts->alpha,
        .scale = opts->r > 0 ? (float)(opts->alpha / (double)opts->r) : 0,
        .dropout = (float)opts->dropout,
        .forward = kind->forward,
        .kind = kind,
        .name = kind->name,
        .reads_matrix = kind->forward != NULL ? kind->reads_matrix
                                              : kind->params[D9D_ADAPTER_MAGNITUDE].name != NULL,
        .seed = opts->seed,
    };
    for (int i = 0; i < D9D_ADAPTER_PARAMS; i++) {
        if (kind->params[i].name == NULL)
            continue;
        D9D_TRY(param_add(m, kind, i, w, opts, &l->params[i]));
        l->adapter.param[i] = &l->params[i];
        l->adapter.by_output |= form_of(kind, i)->dim[0] == D9D_ADAPTER_OUT ? 1u << i : 0;
    }
    w->peft.adapter = &l->adapter;
    return D9D_OK;
}

/* --- magnitudes ---------------------------------------------------------------------------------
 */

/* Add this rank's part of the squares of all rows to sum [out], on the device. */
static d9d_status squares_add(const d9d_param *w, d9d_device *dev, double *sum)
{
    const d9d_param_part *part = &w->shard;
    const int64_t rows = part->shape.dim[0], columns = part->shape.dim[1];
    d9d_sum_squares_array *list;
    d9d_status st;

    if (d9d_shape_numel(&part->shape) == 0)
        return D9D_OK;
    list = calloc((size_t)rows, sizeof(*list));
    if (list == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: the norms of %lld rows", w->name, (long long)rows);
    for (int64_t i = 0; i < rows; i++)
        list[i] =
            (d9d_sum_squares_array){(const char *)d9d_tensor_data(&part->data) +
                                        (uint64_t)(i * columns) * d9d_dtype_size(part->data.dtype),
                                    columns};
    st = dev->kernels->reduce->sum_squares(dev->stream, sum + part->offset[0], part->data.dtype,
                                           list, rows);
    free(list);
    return st;
}

/* The squares of all rows of the whole matrix, to the host. */
static d9d_status squares_all(const d9d_param *w, d9d_device *dev, double *out)
{
    const int64_t n = w->spec.shape.dim[0];
    d9d_comm *const groups[] = {w->placement.shard_group, w->placement.slice_group};
    d9d_tensor sum;
    d9d_status st;

    memset(out, 0, (size_t)n * sizeof(*out));
    D9D_TRY(d9d_tensor_from_host(dev, D9D_F64, D9D_SHAPE(n), out, &sum));
    st = squares_add(w, dev, d9d_tensor_data(&sum));
    for (size_t i = 0; i < 2 && st == D9D_OK; i++)
        if (groups[i] != NULL)
            st = d9d_comm_all_reduce(groups[i], dev->stream, w->name, D9D_F64,
                                     d9d_tensor_data(&sum), n, D9D_COMM_SUM);
    if (st == D9D_OK)
        st = d9d_device_download(dev, out, d9d_tensor_data(&sum), (uint64_t)n * sizeof(*out));
    d9d_tensor_release(&sum);
    return st;
}

/* A row of zeros has no direction that a magnitude could stretch; all ranks see it. */
static d9d_status squares_check(const d9d_param *w, const double *square)
{
    for (int64_t i = 0; i < w->spec.shape.dim[0]; i++)
        if (square[i] == 0)
            return D9D_FAIL(
                D9D_ENOTSUP,
                "%s: row %lld is zero, and a magnitude (DoRA) stretches rows; leave the "
                "matrix out",
                w->name, (long long)i);
    return D9D_OK;
}

/* Put the square roots into a rank's part of the magnitudes. */
static d9d_status magnitudes_put(d9d_param *p, d9d_device *dev, const double *square)
{
    const int64_t first = p->shard.offset[0], n = p->shard.shape.dim[0];
    float *norm = calloc((size_t)n + 1, sizeof(*norm));
    d9d_tensor all;
    d9d_status st;

    if (norm == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %lld numbers", p->name, (long long)n);
    for (int64_t i = 0; i < n; i++)
        norm[i] = (float)sqrt(square[first + i]);
    st = d9d_tensor_from_host(dev, D9D_F32, D9D_SHAPE(n), norm, &all);
    free(norm);
    D9D_TRY(st);
    st = dev->kernels->elementwise->cast(dev->stream, p->shard.data.dtype,
                                         d9d_tensor_data(&p->shard.data), D9D_F32,
                                         d9d_tensor_data(&all), n);
    d9d_tensor_release(&all);
    return st;
}

static d9d_status magnitudes_start(d9d_param *w, d9d_device *dev)
{
    double *square = calloc((size_t)w->spec.shape.dim[0] + 1, sizeof(*square));
    d9d_status st;

    if (square == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: the norms of %lld rows", w->name,
                        (long long)w->spec.shape.dim[0]);
    st = squares_all(w, dev, square);
    if (st == D9D_OK)
        st = squares_check(w, square);
    if (st == D9D_OK)
        st = magnitudes_put(w->peft.adapter->param[D9D_ADAPTER_MAGNITUDE], dev, square);
    free(square);
    return st;
}

d9d_status d9d_adapter_start(d9d_param *w, d9d_device *dev)
{
    const d9d_param_adapter *a = w->peft.adapter;

    if (a == NULL)
        return D9D_OK;
    if (a->forward != NULL)
        return a->kind->start != NULL ? D9D_PLUGIN_CALL(a->name, a->kind, start, w, dev) : D9D_OK;
    return a->param[D9D_ADAPTER_MAGNITUDE] != NULL ? magnitudes_start(w, dev) : D9D_OK;
}

/* --- merging ------------------------------------------------------------------------------------
 */

/* w += scale B_i A, in the order that merging W + scale B A has. */
static void product_add(const d9d_adapter_arrays *a, int64_t row, float *w)
{
    const float *up = a->v[D9D_ADAPTER_B] + row * a->r;
    float sum[SOME_COLUMNS];

    for (int64_t first = 0; first < a->in; first += SOME_COLUMNS) {
        const int64_t n = a->in - first < SOME_COLUMNS ? a->in - first : SOME_COLUMNS;

        memset(sum, 0, sizeof(sum));
        for (int64_t k = 0; k < a->r; k++)
            for (int64_t j = 0; j < n; j++)
                sum[j] += up[k] * a->v[D9D_ADAPTER_A][k * a->in + first + j];
        for (int64_t j = 0; j < n; j++)
            w[first + j] += a->scale * sum[j];
    }
}

d9d_status d9d_adapter_merge_magnitude(const d9d_adapter_arrays *a, int64_t row, float *w)
{
    double square = 0;
    float factor;

    if (a->v[D9D_ADAPTER_A] != NULL)
        product_add(a, row, w);
    for (int64_t j = 0; j < a->in; j++)
        square += (double)w[j] * (double)w[j];
    factor = (float)((double)a->v[D9D_ADAPTER_MAGNITUDE][row] / sqrt(square));
    for (int64_t j = 0; j < a->in; j++)
        w[j] *= factor;
    return D9D_OK;
}
