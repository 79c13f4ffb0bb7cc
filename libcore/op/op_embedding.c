/* op_embedding.c - embedding lookup in a vocabulary of several tables.  ids [M], table s [V_s, H].
 *
 * The rows of a table with an adapter are those of W + s B A: y += s B[ids] A.  Rows of a quantised
 * table are looked up as bytes, and dequantised.
 */
#include "d9d/op/math.h"
#include "op/op_common.h"

/* The first id of table i: `from` is that of table 0. */
static int64_t first_id(int64_t from, d9d_param *const *tables, size_t i)
{
    return from + d9di_op_split_first_id(tables, i);
}

/* The id of table 0's first row, and the one whose row has no gradient; NONE: there is none. */
typedef struct embedding_attr {
    int64_t from, padding;
} embedding_attr;
#define NONE (INT64_C(1) << 40) /* an id that no token has */

/* Gradient of the rows [at, end) of a table, of the ids from `first` on, onto beta times it. */
static d9d_status rows_wgrad(d9d_node *n, const d9d_param *p, float beta, int64_t at, int64_t end,
                             int64_t first)
{
    const d9d_tensor *ids = &n->saved[0], *dy = &n->dout[0], *grad = &p->local.grad;
    const int64_t h = p->local.data.shape.dim[1];
    char *rows = d9d_tensor_data(grad);

    return at >= end ? D9D_OK
                     : D9DI_KERNEL(n->tape, elementwise->embedding_wgrad, dy->dtype, grad->dtype,
                                   rows + at * h * (int64_t)d9d_dtype_size(grad->dtype), beta,
                                   d9d_tensor_data(ids), d9d_tensor_data(dy), d9d_tensor_numel(ids),
                                   first, end - at, h);
}

/* Of the whole table; the row of padding gets no token's. */
static d9d_status table_wgrad(d9d_node *n, d9d_param *p, int64_t first, int64_t padding)
{
    const int64_t v = p->local.data.shape.dim[0], row = padding - first;
    const float beta = d9d_param_grad_beta(&p->local);

    if (row < 0 || row >= v)
        return rows_wgrad(n, p, beta, 0, v, first);
    D9D_TRY(rows_wgrad(n, p, beta, 0, row, first));
    D9D_TRY(rows_wgrad(n, p, beta, row, row + 1, NONE));
    return rows_wgrad(n, p, beta, row + 1, v, padding + 1);
}

static d9d_status embedding_wgrad(d9d_node *n)
{
    const embedding_attr *a = n->attr;

    for (int i = 0; i < n->n_param; i++)
        if (d9d_param_needs_grad(n->param[i]))
            D9D_TRY(
                table_wgrad(n, n->param[i], first_id(a->from, n->param, (size_t)i), a->padding));
    return D9D_OK;
}

static const d9d_node_ops embedding_node_ops = {.name = "embedding", .wgrad = embedding_wgrad};

/* Of its elements. */
static d9d_dtype table_type(const d9d_param *table)
{
    return table->spec.stored == D9D_QUANT_NONE ? table->local.data.dtype : table->spec.dtype;
}

static d9d_status embedding_check(const d9d_tensor *ids, d9d_param *const *tables, size_t n)
{
    const d9d_shape *s = n > 0 ? d9di_op_weight_shape(tables[0]) : &ids->shape;

    D9D_TRY(d9di_op_check("embedding", "ids", ids, D9D_I32));
    if (n > 0 && tables[0]->spec.stored == D9D_QUANT_NONE)
        D9D_TRY(
            d9di_op_check_real("embedding", d9di_op_param_name(tables[0]), &tables[0]->local.data));
    if (ids->shape.ndim >= D9D_MAX_DIMS)
        return d9di_op_misfit("embedding", "ids", &ids->shape, "the output", s,
                              "there is no room for one more dimension");
    return d9di_op_check_splits("embedding", tables, n, n > 0 ? table_type(tables[0]) : D9D_F32,
                                s->ndim == 2 ? s->dim[1] : 0);
}

/* y [M, width] of elements of type t: each table's rows of the ids that it has. */
static d9d_status rows_lookup(d9d_tape *t, d9d_dtype type, void *y, int64_t width,
                              const d9d_tensor *ids, int64_t from, d9d_param *const *tables,
                              size_t n)
{
    for (size_t i = 0; i < n; i++)
        D9D_TRY(D9DI_KERNEL(t, elementwise->embedding, type, y, d9d_tensor_data(ids),
                            d9d_tensor_data(&tables[i]->local.data), d9d_tensor_numel(ids),
                            first_id(from, tables, i), tables[i]->local.data.shape.dim[0], width,
                            i == 0));
    return D9D_OK;
}

/* Rows of bytes, which are looked up as floats and dequantised to y.  One of zeros, of an id of
 * another rank's part, stands for zeros. */
static d9d_status rows_dequantise(d9d_tape *t, const d9d_tensor *y, const d9d_tensor *ids,
                                  int64_t from, d9d_param *const *tables, size_t n)
{
    const int64_t m = d9d_tensor_numel(ids),
                  bytes = tables[0]->local.data.shape.dim[1]; /* of D9D_QUANT_ROW_ALIGN */
    d9d_quant_matrix rows = d9d_param_quant_rows(tables[0], 0, m);
    d9d_tensor x;
    d9d_status st;

    D9D_TRY(d9d_tensor_alloc(d9d_tape_device(t), D9D_U8, D9D_SHAPE(m, bytes), &x));
    rows.data = d9d_tensor_data(&x);
    st = rows_lookup(t, D9D_F32, d9d_tensor_data(&x), bytes / (int64_t)sizeof(float), ids, from,
                     tables, n);
    if (st == D9D_OK)
        st = D9DI_KERNEL(t, quant->dequantise, y->dtype, d9d_tensor_data(y), &rows);
    d9d_tensor_release(&x);
    return st;
}

static d9d_status embedding_rows(d9d_tape *t, const d9d_tensor *ids, embedding_attr a,
                                 d9d_param *const *tables, size_t n, d9d_var **y)
{
    d9d_shape shape = ids->shape;
    d9d_node *node;
    int64_t h;
    d9d_dtype type;
    d9d_var *out;

    D9D_TRY(embedding_check(ids, tables, n));
    h = d9di_op_weight_shape(tables[0])->dim[1];
    type = table_type(tables[0]);
    shape.dim[shape.ndim++] = h;
    D9D_TRY(d9d_tape_output(t, type, shape, &out));
    D9D_TRY(tables[0]->spec.stored != D9D_QUANT_NONE
                ? rows_dequantise(t, d9d_var_tensor(out), ids, a.from, tables, n)
                : rows_lookup(t, type, d9d_tensor_data(d9d_var_tensor(out)), h, ids, a.from, tables,
                              n));
    if (d9d_tape_should_record(t, NULL, 0, tables, n)) {
        D9D_TRY(
            d9d_tape_record(t, &embedding_node_ops, NULL, 0, &out, 1, tables, n, sizeof(a), &node));
        *(embedding_attr *)node->attr = a;
        (void)d9d_node_save(node, ids, D9D_NEED_WGRAD);
    }
    *y = out;
    return D9D_OK;
}

/* *y += s B[ids] A.  Ids of other ranks have rows of zeros in B too. */
static d9d_status adapter_add(d9d_tape *t, const d9d_tensor *ids, int64_t padding,
                              const d9d_param_adapter *ad, d9d_var **y)
{
    d9d_param *down = ad->param[D9D_ADAPTER_A], *const up = ad->param[D9D_ADAPTER_B];
    const d9d_tensor *a = &down->local.data;
    d9d_var *low, *matrix, *sum;

    D9D_TRY(embedding_rows(t, ids, (embedding_attr){0, padding}, &up, 1, &low));
    D9D_TRY(d9d_op_scale(t, low, ad->scale, &low));
    D9D_TRY(d9d_op_reshape(t, low, D9D_SHAPE(d9d_tensor_numel(ids), ad->r), &low));
    D9D_TRY(d9d_op_param(t, down, 0, d9d_tensor_numel(a), &matrix));
    D9D_TRY(d9d_op_reshape(t, matrix, a->shape, &matrix));
    D9D_TRY(d9d_op_matmul(t, low, matrix, &(d9d_op_matmul_opts){0}, &sum));
    D9D_TRY(d9d_op_reshape(t, sum, d9d_var_tensor(*y)->shape, &sum));
    return d9d_op_add(t, *y, sum, y);
}

d9d_status d9d_op_embedding_padded(d9d_tape *t, const d9d_tensor *ids, int64_t padding,
                                   d9d_param *const *tables, size_t n, d9d_var **y)
{
    D9D_TRY(embedding_rows(t, ids, (embedding_attr){0, padding}, tables, n, y));
    for (size_t i = 0; i < n; i++) {
        const d9d_param_adapter *ad = d9d_tape_adapter(t, tables[i]);

        if (ad != NULL && n > 1)
            return D9D_FAIL(
                D9D_ENOTSUP,
                "embedding: %s has an adapter and is one of %zu tables; a vocabulary of "
                "one table can have one",
                d9di_op_param_name(tables[i]), n);
        if (ad != NULL)
            D9D_TRY(adapter_add(t, ids, padding, ad, y));
    }
    return D9D_OK;
}

d9d_status d9d_op_embedding(d9d_tape *t, const d9d_tensor *ids, d9d_param *const *tables, size_t n,
                            d9d_var **y)
{
    return d9d_op_embedding_padded(t, ids, NONE, tables, n, y);
}

d9d_status d9d_op_embedding_from(d9d_tape *t, const d9d_tensor *ids, int64_t from, d9d_param *table,
                                 d9d_var **y)
{
    return embedding_rows(t, ids, (embedding_attr){from, NONE}, &table, 1, y);
}
