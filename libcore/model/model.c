/* model.c - functions that all models share.  See d9d/model/model.h.
 */
#include "d9d/model/model.h"

#include <stdlib.h>
#include <string.h>

#include "d9d/data/loader/pooling.h"
#include "d9d/op/math.h"

const char *d9d_head_name(d9d_head_kind kind)
{
    static const char *const words[] = {"causal_lm", "classification", "embedding", "masked_lm"};

    return words[kind];
}

static bool has_unit(const d9d_model *m, const d9d_module *child)
{
    for (size_t i = 0; i < m->n_units; i++)
        if (m->units[i] == child)
            return true;
    return false;
}

d9d_status d9d_model_add_unit(d9d_model *m, const char *name, d9d_module *child)
{
    const bool again = has_unit(m, child);
    d9d_module **units = realloc(m->units, (m->n_units + 1) * sizeof(d9d_module *));

    if (units == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for its %zu FSDP units", m->ops->name,
                        m->n_units + 1);
    m->units = units;
    m->units[m->n_units++] = child;
    if (name == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for the name of an FSDP unit", m->ops->name);
    return again ? D9D_OK : d9d_module_child(m->module, name, child);
}

/* --- added matrices ---------------------------------------------------------------------- */

struct d9d_model_added {
    struct d9d_model_added *next;
    const char *name;
    d9d_block_linear linear;
    d9d_param bias;
    bool has_bias;
    char text[];
};

d9d_status d9d_model_add_linear(d9d_model *m, const char *name, d9d_dtype dtype, double init_std,
                                int64_t in, int64_t out)
{
    const d9d_block_opts opts = {.dtype = dtype, .init_std = init_std > 0 ? init_std : 0.02};
    const size_t n = strlen(name) + 1;
    struct d9d_model_added *a = calloc(1, sizeof(*a) + n);

    if (a == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %s", m->ops->name, name);
    a->next = m->added;
    m->added = a;
    a->name = memcpy(a->text, name, n);
    D9D_TRY(d9d_block_linear_init(&a->linear, &opts, in, out));
    return d9d_model_add_unit(m, a->name, &a->linear.module);
}

d9d_status d9d_model_add_prompt(d9d_model *m, int64_t n)
{
    d9d_param *p;

    if (!m->takes_prompt)
        return D9D_FAIL(D9D_ENOTSUP,
                        "%s: takes no virtual tokens: its embedding is scaled or not a decoder's",
                        m->ops->name);
    m->virtual_tokens = n;
    if (!d9d_stage_is_first(m->stage))
        return D9D_OK;
    D9D_TRY(d9d_model_add_linear(m, D9D_MODEL_PROMPT, m->dtype, 1.0, m->hidden, n));
    p = &d9d_model_find_linear(m, D9D_MODEL_PROMPT)->weight;
    p->spec.from_task = true;
    p->spec.adaptable = false;
    return D9D_OK;
}

const d9d_model_field *d9d_model_find_field(const d9d_model_in *in, const char *name)
{
    for (size_t i = 0; i < in->n_fields; i++)
        if (strcmp(in->fields[i].name, name) == 0)
            return &in->fields[i];
    return NULL;
}

static struct d9d_model_added *added_find(const d9d_model *m, const char *name)
{
    struct d9d_model_added *a = m->added;

    while (a != NULL && strcmp(a->name, name) != 0)
        a = a->next;
    return a;
}

d9d_block_linear *d9d_model_find_linear(const d9d_model *m, const char *name)
{
    struct d9d_model_added *a = added_find(m, name);

    return a != NULL ? &a->linear : NULL;
}

d9d_status d9d_model_add_bias(d9d_model *m, const char *name)
{
    struct d9d_model_added *a = added_find(m, name);
    const d9d_param_spec *w = &a->linear.weight.spec;

    a->has_bias = true;
    return d9d_module_param(&a->linear.module, "bias", &a->bias, w->dtype,
                            D9D_SHAPE(w->shape.dim[0]), D9D_INIT_ZEROS, 0);
}

d9d_param *d9d_model_find_bias(const d9d_model *m, const char *name)
{
    struct d9d_model_added *a = added_find(m, name);

    return a != NULL && a->has_bias ? &a->bias : NULL;
}

/* Freeing the model walks its tree, so the added parts are freed after it. */
void d9d_model_free(d9d_model *m)
{
    struct d9d_model_added *a = m != NULL ? m->added : NULL, *next;

    if (m != NULL)
        m->ops->free(m);
    for (; a != NULL; a = next) {
        next = a->next;
        free(a);
    }
}

/* --- ends of models ------------------------------------------------------------------------ */

/* The sums over the ranks that share the documents, on the first of them. */
static d9d_status pooled_rows_reduce(const d9d_model *m, d9d_tape *t, d9d_var *rows, d9d_var **y)
{
    static const char what[] = "pooled documents";

    D9D_TRY(d9d_op_reduce_scatter_rows(t, rows, m->groups.tp, what, &rows));
    return d9d_op_reduce_scatter_rows(t, rows, m->groups.cp, what, y);
}

/* A document's shares are 1 in sum. */
d9d_status d9d_model_pool_mask(const d9d_model *m, d9d_tape *t, const d9d_op_pool_index *pool,
                               d9d_var **y)
{
    d9d_var *share;

    D9D_TRY(d9d_tape_leaf(t, &pool->share, false, &share));
    D9D_TRY(d9d_op_sum(t, share, -1, &share));
    D9D_TRY(pooled_rows_reduce(m, t, share, &share));
    return d9d_op_ge(t, share, 0.5f, y);
}

d9d_status d9d_model_pool(const d9d_model *m, d9d_tape *t, d9d_var *x,
                          const d9d_op_pool_index *pool, d9d_var **y)
{
    d9d_var *rows;

    D9D_TRY(d9d_op_reshape(
        t, x, D9D_SHAPE(d9d_tensor_numel(d9d_var_tensor(x)) / m->hidden, m->hidden), &rows));
    D9D_TRY(d9d_op_pool(t, rows, pool, &rows));
    return pooled_rows_reduce(m, t, rows, y);
}

d9d_status d9d_model_call_lm_head_hook(const d9d_model_in *in, d9d_block_vocab *head, d9d_var *rows)
{
    const d9d_model_lm_head_hook *hook = in->lm_head_hook;

    return hook != NULL ? hook->call(hook->arg, head, rows) : D9D_OK;
}

/* Loss and logits of hidden rows [T, H]. */
static d9d_status head_forward(d9d_block_vocab *head, d9d_tape *t, const d9d_model_in *in,
                               d9d_var *h, d9d_model_out *out)
{
    d9d_tensor targets;
    d9d_status st = D9D_OK;

    if (in->labels != NULL) {
        targets = d9d_tensor_reshape(in->labels, D9D_SHAPE(d9d_tensor_numel(in->labels)));
        st = d9d_block_vocab_loss(head, t, h, &targets, D9D_IGNORE_INDEX, in->loss_is_root,
                                  &out->loss);
        d9d_tensor_release(&targets);
    }
    if (st == D9D_OK && in->pick != NULL)
        st = d9d_block_vocab_logits(head, t, h, in->pick, &out->logits);
    return st;
}

d9d_status d9d_model_loss(d9d_block_vocab *head, d9d_tape *t, const d9d_model_in *in,
                          d9d_model_out *out)
{
    const d9d_shape *s = &d9d_var_tensor(out->hidden)->shape;
    const int64_t features = s->dim[s->ndim - 1];
    d9d_var *h;

    if (in->labels == NULL && in->pick == NULL)
        return D9D_OK;
    D9D_TRY(d9d_op_reshape(t, out->hidden, D9D_SHAPE(d9d_shape_numel(s) / features, features), &h));
    D9D_TRY(d9d_param_unit_unshard(&head->module, t));
    D9D_TRY(head_forward(head, t, in, h, out));
    if (in->labels != NULL)
        D9D_TRY(d9d_model_call_lm_head_hook(in, head, h));
    return d9d_param_unit_reshard(&head->module, t);
}

/* --- layers --------------------------------------------------------------------------------- */

/* Inputs after x; with a cache they end with its slots. */
enum { IN_POSITIONS = 1, IN_SEGMENTS, IN_TOKEN_SLOTS, IN_SEQ_SLOTS, IN_CACHE_ENTRIES };

d9d_status d9d_model_layer_pack(d9d_tape *t, const d9d_model_in *in, int64_t layer,
                                d9d_var *v[D9D_MODEL_LAYER_INPUTS], size_t *n)
{
    const d9d_tensor *all[D9D_MODEL_LAYER_INPUTS] = {NULL, in->positions, in->segments,
                                                     in->token_slots, in->seq_slots};

    for (int i = 0; in->cache != NULL && i < D9D_BLOCK_CACHE_MAX; i++)
        if (in->cache->entry[layer][i].storage != NULL)
            all[IN_CACHE_ENTRIES + i] = &in->cache->entry[layer][i];
    for (*n = IN_POSITIONS;
         *n < (in->cache != NULL ? D9D_MODEL_LAYER_INPUTS : IN_TOKEN_SLOTS) && all[*n] != NULL;
         ++*n)
        D9D_TRY(d9d_tape_leaf(t, all[*n], false, &v[*n]));
    return D9D_OK;
}

void d9d_model_layer_unpack(d9d_var *const *v, size_t n, d9d_block_cache *entries,
                            d9d_model_layer_in *out)
{
    *out =
        (d9d_model_layer_in){.x = v[0],
                             .positions = d9d_var_tensor(v[IN_POSITIONS]),
                             .segments = n > IN_SEGMENTS ? d9d_var_tensor(v[IN_SEGMENTS]) : NULL};
    if (n <= IN_SEQ_SLOTS)
        return;
    *entries = (d9d_block_cache){.token_slots = d9d_var_tensor(v[IN_TOKEN_SLOTS]),
                                 .seq_slots = d9d_var_tensor(v[IN_SEQ_SLOTS])};
    for (size_t i = IN_CACHE_ENTRIES; i < n; i++)
        entries->entry[i - IN_CACHE_ENTRIES] = d9d_var_tensor(v[i]);
    out->cache = entries;
}

/* --- FLOP ------------------------------------------------------------------------------------ */

double d9d_model_matrix_flops(double elements, bool trained, bool before)
{
    return elements * (2 + (before ? 2 : 0) + (trained ? 2 : 0));
}

static d9d_status trained_find(void *any, d9d_param *p)
{
    *(bool *)any |= p->spec.trainable;
    return D9D_OK;
}

bool d9d_model_is_trained(d9d_module *m)
{
    bool any = false;

    (void)!d9d_module_each(m, trained_find, &any);
    return any;
}

/* The sum over the matrices of a model, in their order. */
typedef struct matrix_sum {
    double flops;
    bool before; /* a parameter of those that were seen is trained */
} matrix_sum;

static d9d_status matrix_add(void *arg, d9d_param *p)
{
    matrix_sum *sum = arg;

    if (p->spec.shape.ndim > 1 && p->peft.adapts == NULL)
        sum->flops += d9d_model_matrix_flops((double)d9d_shape_numel(&p->spec.shape),
                                             p->spec.trainable, sum->before);
    sum->before |= p->spec.trainable;
    return D9D_OK;
}

double d9d_model_flops(const d9d_model *m, int64_t s)
{
    const size_t first = d9d_stage_is_first(m->stage);
    matrix_sum sum = {0};

    if (m->ops->flops_per_token != NULL)
        return m->ops->flops_per_token(m, s);
    sum.before = first > 0 && m->n_units > 0 && d9d_model_is_trained(m->units[0]);
    for (size_t i = first; i < m->n_units; i++)
        (void)!d9d_module_each(m->units[i], matrix_add, &sum);
    return sum.flops;
}

double d9d_model_batch_flops(const d9d_model *m, const d9d_batch *b)
{
    d9d_batch_document d = D9D_BATCH_DOCUMENT_NONE;
    double sum = 0;

    while (d9d_batch_next_document(b, &d))
        sum += (double)(d.end - d.first) * d9d_model_flops(m, d.end - d.first);
    return sum;
}
