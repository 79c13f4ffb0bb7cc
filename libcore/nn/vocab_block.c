/* vocab_block.c - embedding and language-model head in several tables.  See d9d/nn/block.h.
 */
#include "d9d/op/math.h"
#include "nn/block_init.h"

d9d_status d9d_block_vocab_init(d9d_block_vocab *b, const d9d_block_opts *opts,
                                d9d_block_vocab_kind kind, const d9d_block_vocab_split *splits,
                                size_t n_splits, int64_t hidden)
{
    static const char *const kinds[] = {"token_embedding", "lm_head"};
    d9d_arena *a = &b->module.names;
    float scale;
    d9d_init_kind init = d9di_block_init(opts, hidden, &scale);

    if (kind == D9D_VOCAB_EMBEDDING && init == D9D_INIT_UNIFORM) {
        init = D9D_INIT_NORMAL;
        scale = 1.0f;
    }
    d9d_module_init(&b->module);
    b->n_splits = 0;
    b->softcap = b->embedding_scale = b->logit_scale = 0;
    b->bias = NULL;
    b->has_padding = false;
    b->groups = opts->groups;
    b->table = d9d_arena_alloc(a, n_splits * sizeof(d9d_param *));
    if (b->table == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %zu splits", kinds[kind], n_splits);
    for (size_t i = 0; i < n_splits; i++) {
        char *name = d9d_arena_printf(a, "%s.%s.weight", kinds[kind], splits[i].name);

        b->table[i] = d9d_arena_alloc(a, sizeof(d9d_param));
        if (name == NULL || b->table[i] == NULL)
            return D9D_FAIL(D9D_ENOMEM, "%s: split %s", kinds[kind], splits[i].name);
        D9D_TRY(d9d_module_param(&b->module, name, b->table[i], opts->dtype,
                                 D9D_SHAPE(splits[i].size, hidden), init, scale));
        d9di_block_divide(b->table[i], opts, (d9d_param_parallel){.style = D9D_COLWISE});
        b->table[i]->spec.adaptable = n_splits == 1;
        b->table[i]->spec.is_head = kind == D9D_VOCAB_HEAD;
        b->n_splits++;
    }
    return D9D_OK;
}

/* y = x times a factor, 0 for 1. */
static d9d_status rows_scale(d9d_tape *t, d9d_var *x, float factor, d9d_var **y)
{
    return d9d_op_scale(t, x, factor == 0 ? 1.0f : factor, y);
}

d9d_status d9d_block_vocab_embed(d9d_block_vocab *b, d9d_tape *t, const d9d_tensor *ids,
                                 d9d_var **y)
{
    d9d_var *all;

    D9D_TRY(b->has_padding
                ? d9d_op_embedding_padded(t, ids, b->padding, b->table, b->n_splits, &all)
                : d9d_op_embedding(t, ids, b->table, b->n_splits, &all));
    D9D_TRY(d9d_op_reduce_scatter_rows(t, all, d9d_groups_tp(b->groups), b->table[0]->name, y));
    return rows_scale(t, *y, b->embedding_scale, y);
}

d9d_status d9d_block_vocab_rows(d9d_block_vocab *b, d9d_tape *t, d9d_var *h, d9d_var **rows)
{
    D9D_TRY(rows_scale(t, h, b->logit_scale, &h));
    return d9d_op_all_gather_rows(t, h, d9d_groups_tp(b->groups), b->table[0]->name, rows);
}

static d9d_op_vocab_opts op_opts(const d9d_block_vocab *b)
{
    return (d9d_op_vocab_opts){
        .comm = d9d_groups_tp(b->groups), .softcap = b->softcap, .bias = b->bias};
}

d9d_status d9d_block_vocab_loss(d9d_block_vocab *b, d9d_tape *t, d9d_var *h,
                                const d9d_tensor *targets, int32_t ignore, bool root,
                                d9d_var **loss)
{
    d9d_op_vocab_opts opts = op_opts(b);
    d9d_var *rows;

    opts.ignore = ignore;
    D9D_TRY(d9d_block_vocab_rows(b, t, h, &rows));
    return (root ? d9d_op_linear_cross_entropy_root : d9d_op_linear_cross_entropy)(
        t, rows, b->table, b->n_splits, targets, &opts, loss);
}

d9d_status d9d_block_vocab_rows_logits(d9d_block_vocab *b, d9d_tape *t, d9d_var *rows,
                                       const d9d_tensor *pick, d9d_var **logits)
{
    const d9d_op_vocab_opts opts = op_opts(b);

    return d9d_op_logits(t, rows, pick, b->table, b->n_splits, &opts, logits);
}

d9d_status d9d_block_vocab_logits(d9d_block_vocab *b, d9d_tape *t, d9d_var *h,
                                  const d9d_tensor *pick, d9d_var **logits)
{
    d9d_var *rows;

    D9D_TRY(d9d_block_vocab_rows(b, t, h, &rows));
    return d9d_block_vocab_rows_logits(b, t, rows, pick, logits);
}

d9d_status d9d_block_vocab_local_logits(d9d_block_vocab *b, d9d_tape *t, d9d_var *h,
                                        d9d_var **logits)
{
    d9d_op_concat_input part[D9D_NODE_MAX] = {{0}};
    int64_t v = 0;

    if (b->bias != NULL || b->n_splits > D9D_NODE_MAX)
        return D9D_FAIL(D9D_ENOTSUP, "%s: logits of a head of %zu tables%s have no backward",
                        b->table[0]->name, b->n_splits, b->bias != NULL ? " with a bias" : "");
    D9D_TRY(rows_scale(t, h, b->logit_scale, &h));
    for (size_t i = 0; i < b->n_splits; i++) {
        part[i] = (d9d_op_concat_input){.n = b->table[i]->local.data.shape.dim[0]};
        D9D_TRY(d9d_op_linear(t, h, b->table[i], &part[i].x));
        v += part[i].n;
    }
    *logits = part[0].x;
    if (b->n_splits > 1)
        D9D_TRY(d9d_op_concat(t, part, b->n_splits, D9D_SHAPE(d9d_var_tensor(h)->shape.dim[0], v),
                              logits));
    return b->softcap > 0.0f ? d9d_op_softcap(t, *logits, b->softcap, logits) : D9D_OK;
}
