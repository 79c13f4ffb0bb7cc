/* engine_step.c - micro-batches through the stages of a rank.  See engine/engine.h. */
#include "d9d/device/trace.h"
#include "d9d/parallel/tied_weights.h"
#include "engine/dropout_rng.h"
#include "engine/engine.h"
#include "engine/token_weights.h"

/* What goes through the stages, of one call. */
typedef struct d9di_play {
    const d9di_flow *flow;
    int64_t first, n; /* the first micro-batch of the program, of n in all */
    int loaded;       /* micro-batches of the program that were asked for */
    d9d_batch host;   /* the newest of them */
    const d9d_tensor *sums;
} play;

/* --- micro-batches on the device ------------------------------------------------------ */

static void micro_release(d9di_micro *b)
{
    d9d_tensor_release(&b->ids);
    d9d_tensor_release(&b->labels);
    d9d_tensor_release(&b->positions);
    d9d_tensor_release(&b->segments);
    d9d_pool_release(&b->pool);
    d9d_tensor_release(&b->draws.token);
    d9d_tensor_release(&b->shares.weight);
    d9di_culprits_list_release(&b->documents);
}

static d9d_status part_upload(d9di_engine *e, const d9d_batch_part *b, d9di_micro *out)
{
    const d9d_shape cells = D9D_SHAPE(b->rows, b->length);
    const struct {
        const void *host;
        d9d_shape shape;
        d9d_tensor *device;
    } arrays[] = {{b->ids, cells, &out->ids},
                  {b->labels, cells, &out->labels},
                  {b->positions, cells, &out->positions},
                  {b->segment, D9D_SHAPE(b->segments, 4), &out->segments}};

    for (int i = 0; i < 4; i++)
        if (arrays[i].host != NULL)
            D9D_TRY(d9d_tensor_from_host(e->dev, D9D_I32, arrays[i].shape, arrays[i].host,
                                         arrays[i].device));
    return D9D_OK;
}

/* What stands for each document, where the task asks for that. */
static d9d_status pool_upload(d9di_engine *e, const d9d_batch *b, d9d_pool *out)
{
    const d9d_cut *cut = &e->stages[0].model->cut;
    const d9d_pool_how how = {.pooling = d9di_task_pooling(e->task),
                              .cp = d9d_comm_rank(cut->cp),
                              .cp_ranks = d9d_comm_size(cut->cp),
                              .tp = d9d_comm_rank(cut->tp),
                              .tp_ranks = d9d_comm_size(cut->tp),
                              .paired = e->task != NULL && e->task->kind->paired};
    d9d_pool_host h;

    if (how.pooling == D9D_POOL_NONE)
        return D9D_OK;
    D9D_TRY(d9d_batch_pool(b, &how, &e->pool_room, &h));
    D9D_TRY(d9d_tensor_from_host(e->dev, D9D_I32, D9D_SHAPE(h.n, h.k), h.token, &out->token));
    D9D_TRY(d9d_tensor_from_host(e->dev, D9D_F32, D9D_SHAPE(h.n, h.k), h.share, &out->share));
    D9D_TRY(d9d_tensor_from_host(e->dev, D9D_I32, D9D_SHAPE(h.tokens, 1), h.owner, &out->owner));
    D9D_TRY(d9d_tensor_from_host(e->dev, D9D_F32, D9D_SHAPE(h.tokens, 1), h.part, &out->part));
    return d9d_tensor_from_host(e->dev, D9D_I32, D9D_SHAPE(h.n_labels), h.labels, &out->labels);
}

static bool wants_shares(const d9di_engine *e)
{
    for (size_t k = 0; k < e->n_stages; k++)
        if (d9di_shares_wanted(e->stages[k].model))
            return true;
    return false;
}

/* Do documents hear of the losses of this play? */
static bool wants_culprits(const d9di_engine *e)
{
    return e->culprits != NULL && e->culprits->most > 0 && e->program.backward &&
           d9di_engine_ends(e);
}

/* Micro-batches up to this one, as far as they were not there: what this rank computes with. */
static d9d_status load(d9di_engine *e, int micro)
{
    const d9d_comm *cp = e->stages[0].model->cut.cp;
    play *p = e->play;
    d9d_batch_part part;

    for (; p->loaded <= micro; p->loaded++) {
        D9D_TRY(p->flow->next(p->flow->arg, &p->host));
        D9D_TRY(d9d_batch_part_of(&p->host, d9d_comm_rank(cp), d9d_comm_size(cp), &e->room, &part));
        D9D_TRY(part_upload(e, &part, &e->micros.data[p->loaded]));
        D9D_TRY(d9di_task_check(e->task, &p->host));
        D9D_TRY(pool_upload(e, &p->host, &e->micros.data[p->loaded].pool));
        if (e->program.backward && d9di_draws_wanted(&e->adapters))
            D9D_TRY(d9di_draws_make(e->stages[0].model, e->dev, &p->host, e->seed,
                                    &e->micros.data[p->loaded].draws));
        if (e->program.backward && wants_shares(e))
            D9D_TRY(d9di_shares_make(e->stages[0].model, e->dev, &p->host,
                                     &e->micros.data[p->loaded].shares));
        if (wants_culprits(e))
            D9D_TRY(d9di_culprits_of(&p->host, d9di_task_pooling(e->task) != D9D_POOL_NONE,
                                     e->task != NULL && e->task->kind->paired,
                                     &e->micros.data[p->loaded].documents));
        d9d_trace_lap(e->dev, "batch", "");
    }
    return D9D_OK;
}

/* --- what the executor asks for -------------------------------------------------------- */

static d9di_stage *stage_of(const d9di_engine *e, int stage)
{
    return &e->stages[stage / e->program.ranks];
}

/* Of one number on the device: the sum of all losses. */
static d9d_status sum_to(d9di_engine *e, int micro, const d9d_tensor *loss)
{
    double *sums = d9d_tensor_data(e->play->sums);

    return e->dev->kernels->sum(e->dev->stream, sums + e->play->first + micro, 0, D9D_F32,
                                loss != NULL ? d9d_tensor_data(loss) : NULL,
                                loss != NULL ? d9d_tensor_numel(loss) : 0);
}

/* The losses of whole rows, of which other ranks have pieces too; or what the task makes of them.
 */
static d9d_status give(d9di_engine *e, int micro, d9d_tape *t, const d9d_model_out *o)
{
    const play *p = e->play;
    d9d_var *loss = o->loss;

    if (p->loaded != micro + 1)
        return D9D_FAIL(D9D_EINVAL, "inference: micro-batch %d of %d comes out of turn", micro,
                        p->loaded);
    for (size_t i = 0; i < o->n_values; i++)
        D9D_TRY(p->flow->values(p->flow->arg, &p->host, d9d_var_tensor(o->values[i].v),
                                o->values[i].at));
    if (loss == NULL)
        return D9D_OK;
    D9D_TRY(d9d_op_reshape(t, loss, e->micros.data[micro].ids.shape, &loss));
    D9D_TRY(d9d_op_gather_pieces(t, loss, e->stages[0].model->cut.cp, "loss", &loss));
    return p->flow->loss(p->flow->arg, &p->host, d9d_var_tensor(loss));
}

/* A task's losses of whole rows, in the order of positions, or those of documents. */
static d9d_status tell(d9di_engine *e, int micro, d9d_tape *t, const d9d_tensor *loss)
{
    const d9d_cut *cut = &e->stages[0].model->cut;
    d9di_micro *b = &e->micros.data[micro];
    const bool whole = d9di_task_pooling(e->task) != D9D_POOL_NONE;
    d9d_var *x;

    if (d9d_comm_rank(cut->tp) > 0)
        return D9D_OK;
    D9D_TRY(d9d_tape_leaf(t, loss, false, &x));
    if (!whole && d9d_tensor_numel(loss) == d9d_shape_numel(&b->ids.shape)) {
        D9D_TRY(d9d_op_reshape(t, x, b->ids.shape, &x));
        D9D_TRY(d9d_op_gather_pieces(t, x, cut->cp, "losses", &x));
    }
    return e->culprits->mine ? d9di_culprits_watch(e->culprits, &b->documents, d9d_var_tensor(x))
                             : D9D_OK;
}

static d9d_status forward(void *self, int stage, int micro, d9d_tape *t, d9d_var *in, d9d_var **out)
{
    d9di_engine *e = self;
    const d9di_stage *s = stage_of(e, stage);
    const bool learn = e->program.backward;
    const d9di_micro *b;
    d9d_model_out o;

    D9D_TRY(load(e, micro));
    b = &e->micros.data[micro];
    if (b->draws.token.storage != NULL)
        d9d_tape_set_draws(t, &b->draws);
    if (b->shares.weight.storage != NULL)
        d9d_tape_set_shares(t, &b->shares);
    d9d_sharded_forward(s->sharded, learn, e->program.stages == 1);
    D9D_TRY(d9di_task_forward(
        e->task, s->model, t,
        &(d9d_model_in){.ids = &b->ids,
                        .hidden = in,
                        .positions = &b->positions,
                        .labels = &b->labels,
                        .segments = b->segments.storage != NULL ? &b->segments : NULL,
                        .pool = b->pool.token.storage != NULL ? &b->pool : NULL,
                        .loss_is_root = learn},
        &o));
    *out = o.hidden;
    if (e->play->sums == NULL)
        return give(e, micro, t, &o);
    if (!d9d_stage_is_last(s->model->stage))
        return D9D_OK;
    if (wants_culprits(e))
        D9D_TRY(tell(e, micro, t, d9d_var_tensor(o.loss)));
    return sum_to(e, micro, d9d_var_tensor(o.loss));
}

/* As d9d_model_in says. */
static d9d_status hidden(void *self, int micro, d9d_dtype *dtype, d9d_shape *shape)
{
    d9di_engine *e = self;
    const d9d_model *m = e->stages[0].model;
    const int tp = d9d_comm_size(m->cut.tp);
    const d9d_shape *ids;

    D9D_TRY(load(e, micro));
    ids = &e->micros.data[micro].ids.shape;
    *dtype = e->spec.options.dtype;
    *shape = tp > 1 ? D9D_SHAPE(d9d_shape_numel(ids) / tp, m->hidden)
                    : D9D_SHAPE(ids->dim[0], ids->dim[1], m->hidden);
    return D9D_OK;
}

static d9d_status backward(void *self, int stage, int micro, bool last)
{
    const d9di_engine *e = self;

    (void)micro;
    d9d_sharded_backward(stage_of(e, stage)->sharded,
                         last && e->play->first + e->program.micros == e->play->n);
    return D9D_OK;
}

static void done(void *self, int micro)
{
    micro_release(&((d9di_engine *)self)->micros.data[micro]);
}

const d9d_executor_ops d9di_engine_ops = {
    .forward = forward, .hidden = hidden, .backward = backward, .done = done};

/* --- many micro-batches ----------------------------------------------------------------- */

/* Has nothing to learn from, and nobody who waits for it. */
static d9d_status is_idle(d9di_engine *e, bool *out)
{
    *out = false;
    if (e->world != NULL || !e->program.backward)
        return D9D_OK;
    D9D_TRY(load(e, 0));
    *out = d9di_task_targets(e->task, &e->play->host) == 0;
    if (*out)
        done(e, 0);
    return *out ? sum_to(e, 0, NULL) : D9D_OK;
}

static d9d_status play_programs(d9di_engine *e, play *p)
{
    bool idle;

    for (; p->first < p->n; p->first += e->program.micros) {
        p->loaded = 0;
        D9D_TRY(is_idle(e, &idle));
        if (!idle)
            D9D_TRY(d9d_executor_play(e->executor));
    }
    return D9D_OK;
}

static d9d_status play_all(d9di_engine *e, play *p)
{
    const size_t micros = (size_t)e->program.micros;
    d9d_status st;

    while (e->micros.len < micros)
        D9D_TRY(D9D_VEC_PUSH(&e->micros, (d9di_micro){0}));
    e->play = p;
    d9d_executor_measure(e->executor, e->meter);
    st = play_programs(e, p);
    e->play = NULL;
    for (size_t i = 0; i < e->micros.len; i++)
        micro_release(&e->micros.data[i]);
    return st;
}

/* Sum what the first and the last stage both have. */
static d9d_status tied_sum(d9di_engine *e)
{
    const d9d_model *first = e->stages[0].model, *last = e->stages[e->n_stages - 1].model;
    const bool begins = d9d_stage_is_first(first->stage), ends = d9di_engine_ends(e);
    const int peer = d9d_program_rank_of(&e->program, begins ? e->program.stages - 1 : 0);

    if (first != last && begins && ends && first->tied != NULL)
        return d9d_tied_sum(first->tied, last->tied, NULL, 0, e->dev);
    if (begins && first->tied != NULL)
        return d9d_tied_sum(first->tied, NULL, e->down, peer, e->dev);
    return ends && last->tied != NULL ? d9d_tied_sum(last->tied, NULL, e->down, peer, e->dev)
                                      : D9D_OK;
}

d9d_status d9di_engine_learn(d9di_engine *e, const d9di_flow *flow, int64_t n,
                             const d9d_tensor *sums)
{
    play p = {.flow = flow, .n = n, .sums = sums};

    for (size_t k = 0; k < e->n_stages; k++)
        d9d_module_clear_grads(e->stages[k].model->module);
    if (e->program.ranks > 1)
        D9D_TRY(d9di_engine_pipe(e, n));
    D9D_TRY(play_all(e, &p));
    for (size_t k = 0; k < e->n_stages; k++)
        D9D_TRY(d9d_sharded_done(e->stages[k].sharded));
    return tied_sum(e);
}

d9d_status d9di_engine_settle(d9di_engine *e)
{
    for (size_t k = 0; k < e->n_stages; k++)
        D9D_TRY(d9d_sharded_end(e->stages[k].sharded));
    return D9D_OK;
}

/* --- weights ahead of their turn ---------------------------------------------------------- */

static d9d_status updated(void *arg, size_t i)
{
    const d9di_engine *e = arg;

    return e->ahead ? d9d_sharded_ahead(e->stages[0].sharded, i) : D9D_OK;
}

d9d_status d9di_engine_look_ahead(d9di_engine *e, d9d_optimizer *o)
{
    const d9d_params *first[D9D_SHARDED_AHEAD];
    const size_t n = d9d_sharded_first(e->stages[0].sharded, first);

    return n == 0 ? D9D_OK : d9d_optimizer_first(o, first, n, updated, e);
}

d9d_status d9di_engine_drop(d9di_engine *e)
{
    for (size_t k = 0; k < e->n_stages; k++)
        D9D_TRY(d9d_sharded_drop(e->stages[k].sharded));
    return D9D_OK;
}

d9d_status d9di_engine_measure(d9di_engine *e, const d9di_flow *flow, int64_t n,
                               const d9d_tensor *sums)
{
    play p = {.flow = flow, .n = n, .sums = sums};

    if (e->program.ranks > 1)
        D9D_TRY(d9di_engine_pipe(e, n));
    return play_all(e, &p);
}

d9d_status d9di_engine_losses(d9di_engine *e, const d9di_flow *flow, int64_t n)
{
    return d9di_engine_measure(e, flow, n, NULL);
}
