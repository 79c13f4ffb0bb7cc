/* engine_step.c - runs micro-batches through the stages of a rank.  See engine/engine.h. */
#include <string.h>

#include "d9d/device/trace.h"
#include "d9d/parallel/tied_weights.h"
#include "engine/document_index.h"
#include "engine/dropout_rng.h"
#include "engine/engine.h"
#include "engine/frozen_model.h"
#include "engine/stage_tuple.h"
#include "engine/token_weights.h"

/* One call's execution. */
typedef struct d9di_engine_run {
    const d9di_engine_callbacks *callbacks;
    int64_t first, n; /* first micro-batch of the program; n in all */
    int loaded;       /* micro-batches of the program that were requested */
    d9d_batch host;   /* the newest of them */
    const d9d_tensor *sums;
} engine_run;

/* --- micro-batches on the device ------------------------------------------------------ */

static void micro_batch_release(d9di_engine_micro_batch *b)
{
    d9d_tensor_release(&b->ids);
    d9d_tensor_release(&b->labels);
    d9d_tensor_release(&b->positions);
    d9d_tensor_release(&b->segments);
    d9d_tensor_release(&b->prefix);
    d9d_op_pool_index_release(&b->pool);
    d9d_op_document_index_release(&b->answers);
    d9d_tensor_release(&b->dropout_rng.token);
    d9d_tensor_release(&b->dropout_rng.query_token);
    d9di_engine_token_weights_release(&b->token_weights);
    d9di_loss_attribution_documents_release(&b->documents);
    for (size_t i = 0; i < b->n_fields; i++) {
        d9d_tensor_release(&b->fields[i].value);
        d9d_tensor_release(&b->fields[i].rows);
    }
    b->n_fields = 0;
}

static d9d_status fields_upload(d9d_device *dev, const d9d_cp_slice *b,
                                d9di_engine_micro_batch *out)
{
    for (size_t i = 0; i < b->n_fields; i++) {
        const d9d_batch_field *x = &b->fields[i];
        d9d_shape shape = {.ndim = x->rank};

        memcpy(shape.dim, x->shape, (size_t)x->rank * sizeof(shape.dim[0]));
        out->fields[i] = (d9d_model_field){.name = x->name};
        out->n_fields = i + 1;
        D9D_TRY(d9d_tensor_from_host(dev, x->dtype, shape, x->data, &out->fields[i].value));
        if (x->rows != NULL)
            D9D_TRY(d9d_tensor_from_host(dev, D9D_I32, D9D_SHAPE(x->shape[0]), x->rows,
                                         &out->fields[i].rows));
    }
    return D9D_OK;
}

static d9d_status cp_slice_upload(d9d_device *dev, const d9d_cp_slice *b,
                                  d9di_engine_micro_batch *out)
{
    const d9d_shape seq_shape = D9D_SHAPE(b->seqs, b->length);
    const struct {
        const void *host;
        d9d_shape shape;
        d9d_tensor *device;
    } arrays[] = {{b->ids, seq_shape, &out->ids},
                  {b->labels, seq_shape, &out->labels},
                  {b->positions, seq_shape, &out->positions},
                  {b->segment, D9D_SHAPE(b->segments, 4), &out->segments},
                  {b->prefix, D9D_SHAPE(b->segments), &out->prefix}};

    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++)
        if (arrays[i].host != NULL)
            D9D_TRY(d9d_tensor_from_host(dev, D9D_I32, arrays[i].shape, arrays[i].host,
                                         arrays[i].device));
    return fields_upload(dev, b, out);
}

d9d_status d9di_engine_pool_upload(d9d_device *dev, const d9d_pooling_index *h,
                                   d9d_op_pool_index *out)
{
    D9D_TRY(d9d_tensor_from_host(dev, D9D_I32, D9D_SHAPE(h->n, h->k), h->token, &out->token));
    D9D_TRY(d9d_tensor_from_host(dev, D9D_F32, D9D_SHAPE(h->n, h->k), h->share, &out->share));
    D9D_TRY(d9d_tensor_from_host(dev, D9D_I32, D9D_SHAPE(h->tokens, 1), h->owner, &out->owner));
    D9D_TRY(d9d_tensor_from_host(dev, D9D_F32, D9D_SHAPE(h->tokens, 1), h->owner_share,
                                 &out->owner_share));
    D9D_TRY(d9d_tensor_from_host(dev, D9D_I32, D9D_SHAPE(h->n_labels), h->labels, &out->labels));
    return d9d_tensor_from_host(dev, D9D_I64, D9D_SHAPE(h->documents), h->number, &out->number);
}

/* Uploads the pooling index, if the task pools documents. */
static d9d_status pool_upload(d9di_engine *e, const d9d_batch *b, d9d_op_pool_index *out)
{
    const d9d_groups *cut = &e->stages[0].model->groups;
    const d9d_pooling_opts opts = {.pooling = d9di_task_pooling(e->task),
                                   .cp = d9d_comm_rank(cut->cp),
                                   .cp_ranks = d9d_comm_size(cut->cp),
                                   .tp = d9d_comm_rank(cut->tp),
                                   .tp_ranks = d9d_comm_size(cut->tp),
                                   .paired = d9di_task_has_pairs(e->task),
                                   .max_positions = e->stages[0].model->max_positions};
    d9d_pooling_index h;

    if (opts.pooling == D9D_POOLING_NONE)
        return D9D_OK;
    D9D_TRY(d9d_batch_pooling_index(b, &opts, &e->step.pool_buffer, &h));
    return d9di_engine_pool_upload(e->dev, &h, out);
}

/* Do some of this rank's stages need it?  A micro-batch is loaded once for all of them. */
static bool stages_need(const d9di_engine *e, bool (*needs)(const d9d_model *m))
{
    for (size_t k = 0; k < e->n_stages; k++)
        if (needs(e->stages[k].model))
            return true;
    return false;
}

/* True if this execution's losses are attributed to documents. */
static bool needs_loss_attribution(const d9di_engine *e)
{
    return e->step.loss_attribution != NULL && e->step.loss_attribution->max_n > 0 &&
           e->exec.program.backward && d9di_engine_has_last_stage(e);
}

/* The documents that the losses are of. */
static d9d_status losses_list(const d9di_engine *e, const d9d_batch *b,
                              d9di_loss_attribution_documents *out)
{
    if (d9di_task_is_of_answers(e->task))
        return d9di_loss_attribution_records_list(b, d9di_answers_width(d9di_task_answers(e->task)),
                                                  out);
    return d9di_loss_attribution_documents_list(b, d9di_task_loses_by_document(e->task),
                                                d9di_task_has_pairs(e->task), out);
}

/* The one switch between training and everything else: a forward that a backward follows has
 * dropout, others do not. */
static bool drops(const d9di_engine *e)
{
    return e->exec.program.backward &&
           d9di_engine_needs_dropout_rng(e->models, e->n_stages, &e->whole.adapters);
}

/* This rank's positions of the newest micro-batch, and the documents of the positions that its
 * attention computes. */
static d9d_status slice_make(d9di_engine *e, const d9d_batch *b, d9d_cp_slice *out)
{
    const d9d_groups *groups = &e->stages[0].model->groups;
    const d9d_comm *keys = d9d_groups_cp_keys(groups);
    const int rank = d9d_comm_rank(keys), ranks = d9d_comm_size(keys);
    d9d_cp_slice_buffer *buffer = &e->step.cp_buffer;

    D9D_TRY(
        d9d_cp_slice_make(b, d9d_comm_rank(groups->cp), d9d_comm_size(groups->cp), buffer, out));
    if (groups->cp_heads != NULL)
        D9D_TRY(d9d_cp_slice_set_segments(b, rank, ranks, buffer, out));
    if (e->stages[0].model->bidirectional)
        D9D_TRY(d9d_cp_slice_set_bidirectional(b, rank, ranks, buffer, out));
    return e->spec.opts.prefix_mask ? d9d_cp_slice_add_prefixes(b, rank, ranks, buffer, out)
                                    : D9D_OK;
}

/* Loads micro-batches up to `micro` that are not loaded yet. */
static d9d_status load_micro_batches(d9di_engine *e, int micro)
{
    const d9d_comm *cp = e->stages[0].model->groups.cp;
    engine_run *p = e->step.run;
    d9d_cp_slice slice;

    for (; p->loaded <= micro; p->loaded++) {
        D9D_TRY(p->callbacks->next(p->callbacks->arg, &p->host));
        D9D_TRY(slice_make(e, &p->host, &slice));
        D9D_TRY(cp_slice_upload(e->dev, &slice, &e->step.micros.data[p->loaded]));
        D9D_TRY(d9di_task_check_batch(e->task, &p->host));
        D9D_TRY(pool_upload(e, &p->host, &e->step.micros.data[p->loaded].pool));
        if (d9di_task_is_of_answers(e->task))
            D9D_TRY(d9di_document_index_make(
                e->dev, &p->host, d9di_answers_width(d9di_task_answers(e->task)),
                d9d_comm_rank(cp) == 0, &e->step.micros.data[p->loaded].answers));
        if (drops(e))
            D9D_TRY(d9di_engine_make_dropout_rng(e->stages[0].model, e->dev, &p->host, e->seed,
                                                 &e->step.micros.data[p->loaded].dropout_rng));
        if (e->exec.program.backward && stages_need(e, d9di_engine_needs_token_weights))
            D9D_TRY(d9di_engine_make_token_weights(e->stages[0].model, e->dev, &p->host, e->task,
                                                   stages_need(e, d9di_engine_needs_token_lanes),
                                                   &e->step.micros.data[p->loaded].token_weights));
        if (needs_loss_attribution(e))
            D9D_TRY(losses_list(e, &p->host, &e->step.micros.data[p->loaded].documents));
        d9d_trace_mark(e->dev, "batch", "");
    }
    return D9D_OK;
}

/* --- callbacks of the executor -------------------------------------------------------- */

static d9di_engine_stage *stage_by_index(const d9di_engine *e, int stage)
{
    return &e->stages[stage / e->exec.program.ranks];
}

/* Sums all losses into one number on the device. */
static d9d_status sum_losses(d9d_device *dev, const engine_run *p, int micro,
                             const d9d_tensor *loss)
{
    double *sums = d9d_tensor_data(p->sums);

    return dev->kernels->reduce->sum(dev->stream, sums + p->first + micro, 0, D9D_F32,
                                     loss != NULL ? d9d_tensor_data(loss) : NULL,
                                     loss != NULL ? d9d_tensor_numel(loss) : 0);
}

/* Passes on the losses of whole rows, gathered over context-parallel ranks, or the task's
 * values.
 */
static d9d_status deliver_results(d9di_engine *e, int micro, d9d_tape *t, const d9d_model_out *o)
{
    const engine_run *p = e->step.run;
    d9d_var *loss = o->loss;

    if (p->loaded != micro + 1)
        return D9D_FAIL(D9D_EINVAL, "inference: micro-batch %d of %d comes out of order", micro,
                        p->loaded);
    for (size_t i = 0; i < o->n_values; i++)
        D9D_TRY(p->callbacks->values(p->callbacks->arg, &p->host, d9d_var_tensor(o->values[i].v),
                                     o->values[i].first));
    if (loss == NULL)
        return D9D_OK;
    D9D_TRY(d9d_op_reshape(t, loss, e->step.micros.data[micro].ids.shape, &loss));
    D9D_TRY(d9d_op_cp_gather(t, loss, e->stages[0].model->groups.cp, "loss", &loss));
    return p->callbacks->loss(p->callbacks->arg, &p->host, d9d_var_tensor(loss));
}

/* Passes on the losses of whole rows, in the order of positions, or of documents. */
static d9d_status attribute_losses(d9di_engine *e, int micro, d9d_tape *t, const d9d_tensor *loss)
{
    const d9d_groups *cut = &e->stages[0].model->groups;
    d9di_engine_micro_batch *b = &e->step.micros.data[micro];
    const bool whole = d9di_task_loses_by_document(e->task);
    d9d_var *x;

    if (d9d_comm_rank(cut->tp) > 0)
        return D9D_OK;
    D9D_TRY(d9d_tape_leaf(t, loss, false, &x));
    if (!whole && d9d_tensor_numel(loss) == d9d_shape_numel(&b->ids.shape)) {
        D9D_TRY(d9d_op_reshape(t, x, b->ids.shape, &x));
        D9D_TRY(d9d_op_cp_gather(t, x, cut->cp, "losses", &x));
    }
    return e->step.loss_attribution->is_reader
               ? d9di_loss_attribution_enqueue(e->step.loss_attribution, &b->documents,
                                               d9d_var_tensor(x))
               : D9D_OK;
}

static d9d_model_in model_in(const d9di_engine_micro_batch *b, bool learn)
{
    return (d9d_model_in){.ids = &b->ids,
                          .positions = &b->positions,
                          .labels = &b->labels,
                          .segments = b->segments.storage != NULL ? &b->segments : NULL,
                          .pool = b->pool.token.storage != NULL ? &b->pool : NULL,
                          .documents = b->answers.offset.storage != NULL ? &b->answers : NULL,
                          .fields = b->fields,
                          .n_fields = b->n_fields,
                          .loss_is_root = learn};
}

/* What the stage before has passed on. */
static void set_passed(d9d_model_in *in, const d9d_model_passed *passed, size_t n)
{
    in->passed = passed;
    in->n_passed = n;
    in->hidden = d9d_model_find_passed(in, D9D_STAGE_HIDDEN);
}

/* What a forward of this micro-batch finds on its tape. */
static void prepare_tape(const d9di_engine_micro_batch *b, d9d_tape *t)
{
    if (b->dropout_rng.token.storage != NULL)
        d9d_tape_set_dropout_rng(t, &b->dropout_rng);
    if (b->token_weights.weight.storage != NULL)
        d9d_tape_set_token_weights(t, &b->token_weights);
    if (b->prefix.storage != NULL)
        d9d_tape_set_prefix(t, &b->prefix);
}

/* The losses and values of a stage's forward, and what it passes on. */
static d9d_status pass_results(d9di_engine *e, int stage, int micro, d9d_tape *t,
                               const d9d_model_out *o, const d9d_model_reference *reference,
                               d9d_var **out)
{
    const bool last = stage + 1 == e->exec.program.stages;

    if (!last)
        D9D_TRY(d9di_stage_tuple_give(e, stage, o, e->frozen.is_on ? &reference->out : NULL, out));
    if (e->step.run->sums == NULL)
        return deliver_results(e, micro, t, o);
    if (!last)
        return D9D_OK;
    if (needs_loss_attribution(e))
        D9D_TRY(attribute_losses(e, micro, t, d9d_var_tensor(o->loss)));
    return sum_losses(e->dev, e->step.run, micro, d9d_var_tensor(o->loss));
}

static d9d_status stage_forward(void *self, int stage, int micro, d9d_tape *t, d9d_var *const *in,
                                d9d_var **out)
{
    d9di_engine *e = self;
    const d9di_engine_stage *s = stage_by_index(e, stage);
    const bool learn = e->exec.program.backward;
    const d9di_engine_micro_batch *b;
    d9d_model_reference reference;
    d9di_stage_tuple_in passed;
    d9d_model_in given;
    d9d_model_out o;

    D9D_TRY(load_micro_batches(e, micro));
    b = &e->step.micros.data[micro];
    given = model_in(b, learn);
    given.part_targets = e->step.part_targets;
    given.micro = e->step.run->first + micro;
    prepare_tape(b, t);
    if (learn && e->step.offload.to != NULL)
        d9d_tape_set_offload(t, &e->step.offload);
    d9di_stage_tuple_take(e, stage, in, &passed);
    if (e->frozen.is_on) {
        set_passed(&given, passed.frozen, passed.n_frozen);
        D9D_TRY(d9di_frozen_model_forward(e, (size_t)(s - e->stages), t, &given, &reference));
        given.reference = &reference;
    }
    set_passed(&given, passed.own, passed.n_own);
    d9d_fsdp_pre_forward(s->sharded, learn, e->exec.program.stages == 1);
    D9D_TRY(d9di_task_forward(e->task, s->model, t, &given, &o));
    return pass_results(e, stage, micro, t, &o, &reference, out);
}

static d9d_status stage_tensors(void *self, int stage, int micro, d9d_stage_tensor *out, size_t *n)
{
    d9di_engine *e = self;
    d9d_model_in in;

    D9D_TRY(load_micro_batches(e, micro));
    in = model_in(&e->step.micros.data[micro], false);
    return d9di_stage_tuple_tensors(e, stage, &in, out, n);
}

static d9d_status stage_backward(void *self, int stage, int micro, bool last)
{
    const d9di_engine *e = self;
    const d9di_engine_callbacks *callbacks = e->step.run->callbacks;

    (void)micro;
    if (callbacks->pre_backward != NULL)
        D9D_TRY(callbacks->pre_backward(callbacks->arg));
    d9d_fsdp_pre_backward(stage_by_index(e, stage)->sharded,
                          last && e->step.run->first + e->exec.program.micros == e->step.run->n);
    return D9D_OK;
}

static void release_micro_batch(void *self, int micro)
{
    micro_batch_release(&((d9di_engine *)self)->step.micros.data[micro]);
}

const d9d_executor_ops d9di_engine_executor_ops = {.forward = stage_forward,
                                                   .tensors = stage_tensors,
                                                   .backward = stage_backward,
                                                   .done = release_micro_batch};

/* --- steps of several micro-batches --------------------------------------------------- */

/* True if the step has no targets and no other rank waits for it. */
static d9d_status step_is_idle(d9di_engine *e, bool *out)
{
    *out = false;
    if (e->world != NULL || !e->exec.program.backward)
        return D9D_OK;
    D9D_TRY(load_micro_batches(e, 0));
    *out = d9di_task_targets(e->task, &e->step.run->host) == 0;
    if (*out)
        release_micro_batch(e, 0);
    return *out ? sum_losses(e->dev, e->step.run, 0, NULL) : D9D_OK;
}

static d9d_status run_program(d9di_engine *e, engine_run *p)
{
    bool idle;

    for (; p->first < p->n; p->first += e->exec.program.micros) {
        p->loaded = 0;
        D9D_TRY(step_is_idle(e, &idle));
        if (!idle)
            D9D_TRY(d9d_executor_run(e->exec.executor));
    }
    return D9D_OK;
}

/* A step may change them next.  FSDP drops the copies that it gathered. */
static void weights_may_change(d9di_engine *e)
{
    for (size_t i = 0; i < e->params.n; i++)
        if (e->params.p[i]->fp8.gather == NULL)
            d9d_param_forget_quantised(e->params.p[i]);
    for (size_t k = 0; k < e->n_stages; k++)
        d9d_fsdp_forget_scales(e->stages[k].sharded);
}

static d9d_status run_all(d9di_engine *e, engine_run *p)
{
    const size_t micros = (size_t)e->exec.program.micros;
    d9d_status st;

    while (e->step.micros.len < micros)
        D9D_TRY(D9D_VEC_PUSH(&e->step.micros, (d9di_engine_micro_batch){0}));
    e->step.run = p;
    d9d_executor_set_timer(e->exec.executor, e->exec.stage_timer);
    st = run_program(e, p);
    e->step.run = NULL;
    weights_may_change(e);
    for (size_t i = 0; i < e->step.micros.len; i++)
        micro_batch_release(&e->step.micros.data[i]);
    return st;
}

/* Sums the gradients of weights that the first and the last stage share. */
static d9d_status sum_tied_grads(d9di_engine *e)
{
    const d9d_model *first = e->stages[0].model, *last = e->stages[e->n_stages - 1].model;
    const bool begins = d9d_stage_is_first(first->stage), ends = d9di_engine_has_last_stage(e);
    const int peer = d9d_program_rank_of(&e->exec.program, begins ? e->exec.program.stages - 1 : 0);

    if (first != last && begins && ends && first->tied != NULL)
        return d9d_tied_weights_sum_grads(first->tied, last->tied, NULL, 0, e->dev);
    if (begins && first->tied != NULL)
        return d9d_tied_weights_sum_grads(first->tied, NULL, e->pipe.down, peer, e->dev);
    return ends && last->tied != NULL
               ? d9d_tied_weights_sum_grads(last->tied, NULL, e->pipe.down, peer, e->dev)
               : D9D_OK;
}

d9d_status d9di_engine_forward_backward(d9di_engine *e, const d9di_engine_callbacks *flow,
                                        int64_t n, const d9d_tensor *sums)
{
    engine_run p = {.callbacks = flow, .n = n, .sums = sums};

    for (size_t k = 0; k < e->n_stages; k++)
        d9d_module_clear_grads(e->stages[k].model->module);
    if (e->exec.program.ranks > 1)
        D9D_TRY(d9di_engine_build_pipe(e, n));
    D9D_TRY(run_all(e, &p));
    for (size_t k = 0; k < e->n_stages; k++)
        D9D_TRY(d9d_fsdp_post_backward(e->stages[k].sharded));
    return sum_tied_grads(e);
}

d9d_status d9di_engine_wait_grads(d9di_engine *e)
{
    for (size_t k = 0; k < e->n_stages; k++)
        D9D_TRY(d9d_fsdp_wait_grads(e->stages[k].sharded));
    return D9D_OK;
}

/* --- the optimizer ---------------------------------------------------------------------------- */

d9d_status d9di_engine_create_optimizer(const d9d_train_config *c, const d9d_params *params,
                                        const d9d_params *whole, uint64_t seed, d9d_optimizer **out)
{
    const d9d_job_ema_section *ema = c->trainer.ema;
    d9d_optimizer *o;
    d9d_status st = D9D_OK;

    D9D_TRY(d9d_optimizer_create(&c->optimizer, NULL, params, whole, seed, &o));
    if (c->trainer.offload.optimizer == D9D_JOB_OFFLOAD_HOST)
        d9d_optimizer_set_offload(o);
    st = d9d_optimizer_check_rowwise(o, c->mesh.tensor_parallel);
    if (st == D9D_OK && c->trainer.optimizer_in_backward)
        st = d9d_optimizer_check_step_some(o);
    if (st == D9D_OK && ema != NULL)
        st = d9d_optimizer_set_ema(o,
                                   &(d9d_ema_opts){.decay = ema->decay,
                                                   .every_steps = ema->every_steps,
                                                   .start_step = ema->start_step,
                                                   .dtype = ema->dtype == 0 ? D9D_F32 : D9D_BF16});
    if (st == D9D_OK)
        *out = o;
    else
        d9d_optimizer_free(o);
    return st;
}

d9d_status d9di_engine_fill_optimizer(d9di_engine *e, d9d_optimizer *o)
{
    d9d_comm *stage;

    if (d9d_optimizer_needs_group(o)) {
        D9D_TRY(d9d_mesh_group(e->mesh, D9D_AXES_STAGE, &stage));
        d9d_optimizer_set_group(o, stage);
    }
    return d9d_optimizer_fill(o, e->dev);
}

/* --- prefetch of weights -------------------------------------------------------------- */

static d9d_status on_param_updated(void *arg, size_t i)
{
    const d9di_engine *e = arg;

    return e->step.prefetch ? d9d_fsdp_prefetch(e->stages[0].sharded, i) : D9D_OK;
}

d9d_status d9di_engine_set_prefetch(d9di_engine *e, d9d_optimizer *o)
{
    const d9d_params *first[D9D_FSDP_PREFETCH_MAX];
    const size_t n = d9d_fsdp_first_units(e->stages[0].sharded, first);

    return n == 0 ? D9D_OK : d9d_optimizer_set_order(o, first, n, on_param_updated, e);
}

d9d_status d9di_engine_reshard(d9di_engine *e)
{
    for (size_t k = 0; k < e->n_stages; k++)
        D9D_TRY(d9d_fsdp_reshard(e->stages[k].sharded));
    return D9D_OK;
}

d9d_status d9di_engine_use_averages(d9di_engine *e, d9d_optimizer *o)
{
    D9D_TRY(d9di_engine_reshard(e));
    return d9d_optimizer_use_averages(o);
}

d9d_status d9di_engine_use_weights(d9di_engine *e, d9d_optimizer *o)
{
    D9D_TRY(d9di_engine_reshard(e));
    return d9d_optimizer_use_weights(o);
}

d9d_status d9di_engine_eval_forward(d9di_engine *e, const d9di_engine_callbacks *flow, int64_t n,
                                    const d9d_tensor *sums)
{
    engine_run p = {.callbacks = flow, .n = n, .sums = sums};

    if (e->exec.program.ranks > 1)
        D9D_TRY(d9di_engine_build_pipe(e, n));
    return run_all(e, &p);
}

d9d_status d9di_engine_forward(d9di_engine *e, const d9di_engine_callbacks *flow, int64_t n)
{
    return d9di_engine_eval_forward(e, flow, n, NULL);
}
