/* op_logits.c - logits of selected tokens.  h [T, H], pick [N], heads [V_s, H], y [N, V] float32.
 * The bias [V] is added to the sum, and so once.  Quantised heads are read as they are stored.
 *
 * Each table, or under vocabulary parallelism each rank's part of it, is a GEMM of its own into its
 * columns of y.  An adapter of the one table adds (s rows A^T) B^T.  Columns of other ranks are
 * zero, and y is the all-reduce (sum) over ranks.  Then the softcap, if there is one.
 */
#include "op/linear/op_gemm.h"
#include "op/loss/op_head_adapter.h"

enum { QUANT_IDS = 16384 }; /* rows of a quantised table that are dequantised at a time */

static d9d_status logits_check(d9d_tape *t, d9d_var *h, const d9d_tensor *pick,
                               d9d_param *const *heads, size_t n, const d9d_op_vocab_opts *opts)
{
    const d9d_tensor *th = d9d_var_tensor(h);

    D9D_TRY(d9di_op_check_real("logits", "h", th));
    D9D_TRY(d9di_op_check("logits", "pick", pick, D9D_I32));
    if (th->shape.ndim != 2 || pick->shape.ndim != 1)
        return d9di_op_misfit("logits", "h", &th->shape, "pick", &pick->shape,
                              "h is [T, H], pick [N]");
    D9D_TRY(d9di_op_check_splits("logits", heads, n, th->dtype, th->shape.dim[1]));
    D9D_TRY(d9di_op_head_adapter_check("logits", heads, n));
    D9D_TRY(d9di_op_check_vocab_bias("logits", heads, n, th->dtype, opts->bias));
    if (d9d_tape_should_record(t, &h, 1, heads, n))
        return D9D_FAIL(D9D_EINVAL, "logits: have no backward");
    return D9D_OK;
}

/* Gather rows of h by index, with the kernel of embeddings. */
static d9d_status rows_select(d9d_tape *t, const d9d_tensor *h, const d9d_tensor *pick,
                              d9d_tensor *rows)
{
    const int64_t n = pick->shape.dim[0], from = h->shape.dim[0], wide = h->shape.dim[1];

    D9D_TRY(d9d_tensor_alloc(d9d_tape_device(t), h->dtype, D9D_SHAPE(n, wide), rows));
    return D9DI_KERNEL(t, elementwise->embedding, h->dtype, d9d_tensor_data(rows),
                       d9d_tensor_data(pick), d9d_tensor_data(h), n, 0, from, wide, false);
}

/* y += (s rows A^T) B^T */
static d9d_status adapter_add(d9d_tape *t, const d9d_tensor *rows, const d9d_param_adapter *ad,
                              const d9d_tensor *y)
{
    const d9d_tensor *a = &ad->param[D9D_ADAPTER_A]->local.data,
                     *b = &ad->param[D9D_ADAPTER_B]->local.data;
    const int64_t n = rows->shape.dim[0];
    const d9d_gemm down = {.t = rows->dtype,
                           .ct = rows->dtype,
                           .trans_b = true,
                           .m = n,
                           .n = ad->r,
                           .k = rows->shape.dim[1]},
                   up = {.t = rows->dtype,
                         .ct = D9D_F32,
                         .trans_b = true,
                         .m = n,
                         .n = b->shape.dim[0],
                         .k = ad->r,
                         .beta = 1.0f};
    d9d_tensor low;
    void *x;
    d9d_status st;

    D9D_TRY(d9d_tensor_alloc(d9d_tape_device(t), rows->dtype, D9D_SHAPE(n, ad->r), &low));
    x = d9d_tensor_data(&low);
    D9D_TRY_OR(st, D9DI_KERNEL(t, gemm->dense, &down, d9d_tensor_data(rows), d9d_tensor_data(a), x),
               out);
    D9D_TRY_OR(st, D9DI_KERNEL(t, elementwise->axpy, low.dtype, x, ad->scale, x, NULL, n * ad->r),
               out);
    st = D9DI_KERNEL(t, gemm->dense, &up, x, d9d_tensor_data(b), d9d_tensor_data(y));
out:
    d9d_tensor_release(&low);
    return st;
}

/* Ids of a table whose logits are one product.  For many rows a quantised table is dequantised,
 * some of it at a time. */
static int64_t ids_at_once(const d9d_param *head, int64_t n)
{
    const int64_t all = head->local.data.shape.dim[0];

    return head->spec.stored == D9D_QUANT_NONE || n <= D9D_QUANT_FEW_ROWS || all < QUANT_IDS
               ? all
               : QUANT_IDS;
}

/* Rows of a table from `id` on, with its adapter; y [N, g->n]. */
static d9d_status table_logits(d9d_tape *t, const d9d_gemm *g, const d9d_tensor *rows,
                               const d9d_param *head, int64_t id, const d9d_tensor *y)
{
    const d9d_param_adapter *ad = d9d_tape_adapter(t, head);

    D9D_TRY(d9di_op_weight_gemm(t, g, d9d_tensor_data(rows), head, id, d9d_tensor_data(y)));
    return ad != NULL ? adapter_add(t, rows, ad, y) : D9D_OK;
}

/* The columns of `ids` rows of a table, from `id` on, which are y's from `first` on. */
static d9d_status ids_logits(d9d_tape *t, const d9d_tensor *rows, const d9d_param *head, int64_t id,
                             int64_t ids, int64_t first, const d9d_tensor *y)
{
    const int64_t n = rows->shape.dim[0], all = y->shape.dim[1];
    const d9d_gemm g = {.t = rows->dtype,
                        .ct = D9D_F32,
                        .trans_b = true,
                        .m = n,
                        .n = ids,
                        .k = rows->shape.dim[1],
                        .b_constant = d9d_tape_is_weight_constant(t, head)};
    d9d_tensor part;
    d9d_status st;

    if (g.n == all)
        return table_logits(t, &g, rows, head, id, y);
    D9D_TRY(d9d_tensor_alloc(d9d_tape_device(t), D9D_F32, D9D_SHAPE(n, g.n), &part));
    st = table_logits(t, &g, rows, head, id, &part);
    if (st == D9D_OK)
        st = D9DI_KERNEL(t, elementwise->scatter_rows, D9D_F32, d9d_tensor_data(y), all, first,
                         NULL, d9d_tensor_data(&part), n, g.n);
    d9d_tensor_release(&part);
    return st;
}

/* The columns of one table. */
static d9d_status split_logits(d9d_tape *t, const d9d_tensor *rows, const d9d_param *head,
                               int64_t first, const d9d_tensor *y)
{
    const int64_t all = head->local.data.shape.dim[0], some = ids_at_once(head, rows->shape.dim[0]);

    for (int64_t id = 0; id < all; id += some)
        D9D_TRY(ids_logits(t, rows, head, id, some < all - id ? some : all - id, first + id, y));
    return D9D_OK;
}

/* y += bias, which is in float32 for that. */
static d9d_status bias_add(d9d_tape *t, const d9d_param *bias, const d9d_tensor *y)
{
    const d9d_tensor *b = &bias->local.data;
    const int64_t v = y->shape.dim[1];
    d9d_tensor as_f32;
    d9d_status st;

    D9D_TRY(d9d_tensor_alloc(d9d_tape_device(t), D9D_F32, b->shape, &as_f32));
    st = D9DI_KERNEL(t, elementwise->cast, D9D_F32, d9d_tensor_data(&as_f32), b->dtype,
                     d9d_tensor_data(b), v);
    if (st == D9D_OK)
        st = D9DI_KERNEL(t, elementwise->add_bias, D9D_F32, d9d_tensor_data(y), d9d_tensor_data(y),
                         d9d_tensor_data(&as_f32), NULL, y->shape.dim[0], 1, v);
    d9d_tensor_release(&as_f32);
    return st;
}

static d9d_status all_logits(d9d_tape *t, const d9d_tensor *rows, d9d_param *const *heads, size_t n,
                             const d9d_op_vocab_opts *opts, const d9d_tensor *y)
{
    const int64_t n_logits = d9d_tensor_numel(y);
    void *at = d9d_tensor_data(y);

    if (opts->comm != NULL)
        D9D_TRY(D9DI_KERNEL(t, elementwise->fill, D9D_F32, at, n_logits, 0.0f));
    for (size_t i = 0; i < n; i++)
        D9D_TRY(split_logits(t, rows, heads[i], d9di_op_split_first_id(heads, i), y));
    D9D_TRY(d9d_comm_all_reduce(opts->comm, d9d_tape_device(t)->stream, heads[0]->name, D9D_F32, at,
                                n_logits, D9D_COMM_SUM));
    if (opts->bias != NULL)
        D9D_TRY(bias_add(t, opts->bias, y));
    return opts->softcap > 0.0f
               ? D9DI_KERNEL(t, elementwise->softcap, D9D_F32, at, at, opts->softcap, n_logits)
               : D9D_OK;
}

d9d_status d9d_op_logits(d9d_tape *t, d9d_var *h, const d9d_tensor *pick, d9d_param *const *heads,
                         size_t n, const d9d_op_vocab_opts *opts, d9d_var **y)
{
    d9d_tensor rows = {0};
    int64_t v = 0;
    d9d_var *out;
    d9d_status st;

    D9D_TRY(logits_check(t, h, pick, heads, n, opts));
    for (size_t i = 0; i < n; i++)
        v += heads[i]->spec.shape.dim[0];
    D9D_TRY(d9d_tape_output(t, D9D_F32, D9D_SHAPE(pick->shape.dim[0], v), &out));
    D9D_TRY_OR(st, rows_select(t, d9d_var_tensor(h), pick, &rows), out);
    D9D_TRY_OR(st, all_logits(t, &rows, heads, n, opts, d9d_var_tensor(out)), out);
    *y = out;
out:
    d9d_tensor_release(&rows);
    return st;
}
