/* small_model.c - see small_model.h. */
#include "certify/small_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/fs.h"
#include "d9d/base/hash.h"
#include "d9d/base/plugin_call.h"
#include "d9d/base/rng.h"
#include "d9d/convert/model_export.h"
#include "d9d/model/hf/hf_config.h"
#include "d9d/model/weights/weights.h"
#include "engine/engine.h"

/* A stream of random numbers, beside those of parameters. */
static const char ids_stream[] = "certify.ids";

static uint64_t stream_of(const char *name)
{
    return d9d_hash_u64(name, strlen(name));
}

/* --- random weights --------------------------------------------------------------------------- */

/* Standard deviations of the random weights: sharp logits, and experts well apart. */
static double deviation(const d9d_param *p)
{
    const d9d_shape *s = &p->spec.shape;
    const double inputs = (double)(s->ndim > 2 ? s->dim[1] : s->dim[s->ndim - 1]);

    if (p->spec.is_buffer)
        return 0.1;
    if (s->ndim < 2)
        return 0.25;
    if (strstr(p->name, "embed") != NULL)
        return 0.7;
    return (strstr(p->name, "router.") != NULL ? 2.0 : 1.2) / sqrt(inputs);
}

static d9d_status fill_param(const d9d_param *p, uint64_t seed)
{
    const size_t n = (size_t)d9d_shape_numel(&p->spec.shape);
    const d9d_rng rng = {seed, p->id};
    const double std = deviation(p), mean = p->spec.init == D9D_INIT_ONES ? 1 : 0;
    float *host;
    d9d_status st;

    if (p->spec.init == D9D_INIT_UNIFORM) /* such as decays, of which not every number is good */
        return D9D_OK;
    host = calloc(n + 1, sizeof(*host));
    if (host == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: its random weights", p->name);
    for (size_t i = 0; i < n; i++)
        host[i] = (float)(mean + std * (double)d9d_rng_normal(rng, i));
    st = d9d_device_upload(d9d_tensor_device(&p->shard.data), d9d_tensor_data(&p->shard.data), host,
                           n * sizeof(*host));
    free(host);
    return st;
}

/* --- the model -------------------------------------------------------------------------------- */

/* The head of a task in place of the model's own. */
static d9d_status head_set(d9di_small_model *m, const json_t *doc,
                           const d9di_small_model_opts *opts)
{
    const d9d_head base = {.kind = D9D_HEAD_EMBEDDING};
    d9d_head head;

    if (opts->base)
        return d9d_model_spec_set_head(&m->spec, &m->arena, &base);
    if (opts->head == NULL || d9d_head_is_lm(*opts->head))
        return D9D_OK;
    m->n_ids = d9di_small_task_ids(&m->spec, *opts->head,
                                   json_integer_value(json_object_get(doc, "vocab_size")));
    D9D_TRY(d9di_small_task_open(*opts->head, m->n_ids, &m->arena, &m->task));
    head = d9di_task_head(&m->task);
    return d9d_model_spec_set_head(&m->spec, &m->arena, &head);
}

static d9d_status model_create(d9di_small_model *m, const char *config,
                               const d9di_small_model_opts *opts, bool with_grads)
{
    json_t *doc;
    d9d_status st;

    D9D_TRY(d9d_hf_config_load(config, &doc));
    st = d9d_model_spec_of(opts->choices, doc, config, &m->arena, &m->spec);
    if (st == D9D_OK)
        st = head_set(m, doc, opts);
    json_decref(doc);
    D9D_TRY(st);
    m->spec.opts.dtype = D9D_F32;
    m->spec.opts.recompute = opts->recompute;
    D9D_TRY(D9D_PLUGIN_CALL(m->spec.provider->table->name, m->spec.provider, create, m->spec.config,
                            D9D_WHOLE_MODEL, &m->spec.opts, &m->model));
    if (m->task.kind != NULL)
        D9D_TRY(d9di_task_extend(&m->task, m->model, &m->spec.opts));
    D9D_TRY(d9d_module_bind(m->model->module));
    D9D_TRY(d9d_module_params(m->model->module, &m->arena, &m->params));
    D9D_TRY(d9d_device_open(opts->device != NULL ? opts->device : "cpu", &m->dev));
    return d9d_module_materialise(m->model->module, m->dev, with_grads);
}

static d9d_status write_random(d9di_small_model *m, const char *config, const char *folder,
                               const d9di_small_model_opts *opts)
{
    D9D_TRY(model_create(m, config, opts, false));
    D9D_TRY(d9d_module_reset(m->model->module, opts->seed));
    for (size_t i = 0; i < m->params.n; i++)
        D9D_TRY(fill_param(m->params.p[i], opts->seed));
    return d9d_model_export_params(&m->spec, &m->params, NULL, folder, NULL);
}

d9d_status d9di_small_model_write(const char *config, const d9di_small_model_opts *opts,
                                  const char *folder)
{
    d9di_small_model m = {.rows = 0};
    const d9d_status st = write_random(&m, config, folder, opts);

    (void)d9di_small_model_close(&m);
    return st;
}

/* --- tokens ----------------------------------------------------------------------------------- */

/* Each row is a document, of which a task makes a loss, or of two. */
static d9d_status documents_upload(d9di_small_model *m, const int32_t *ids)
{
    const int64_t n = m->rows * m->length;
    const d9d_batch b = {.seqs = m->rows,
                         .length = m->length,
                         .ids = ids,
                         .labels = ids + n,
                         .positions = ids + 2 * n,
                         .lengths = d9d_arena_alloc(&m->arena, (size_t)m->rows * sizeof(int64_t))};
    const d9d_pooling_opts opts = {.pooling = d9di_task_pooling(&m->task),
                                   .cp_ranks = 1,
                                   .tp_ranks = 1,
                                   .paired = d9di_task_has_pairs(&m->task)};
    int64_t *lengths = (int64_t *)(uintptr_t)b.lengths;
    d9d_pooling_buffer buffer = {0};
    d9d_pooling_index h;
    d9d_status st;

    if (lengths == NULL)
        return D9D_FAIL(D9D_ENOMEM, "documents of a small model");
    for (int64_t i = 0; i < m->rows; i++)
        lengths[i] = m->length;
    st = d9d_batch_pooling_index(&b, &opts, &buffer, &h);
    if (st == D9D_OK)
        st = d9di_engine_pool_upload(m->dev, &h, &m->pool);
    d9d_pooling_buffer_release(&buffer);
    m->targets = m->losses = m->rows / (opts.paired ? 2 : 1);
    return st;
}

/* A token of a random number.  None is padding, whose row has no gradient to compare. */
static int32_t token_of(const d9di_small_model *m, uint32_t number)
{
    const d9d_block_vocab *b = m->model->embedding;
    const uint32_t n = (uint32_t)(m->n_ids > 0 ? m->n_ids : m->model->vocab), id = number % n;

    return (int32_t)(b != NULL && b->has_padding && b->padding == id ? (id + 1) % n : id);
}

/* Random tokens, and as labels the next ones, of which some do not count. */
static d9d_status tokens_upload(d9di_small_model *m, uint64_t seed)
{
    const d9d_shape shape = D9D_SHAPE(m->rows, m->length);
    const int64_t n = m->rows * m->length;
    const d9d_rng rng = {seed, stream_of(ids_stream)};
    int32_t *ids = d9d_arena_alloc(&m->arena, (size_t)(3 * n) * sizeof(*ids));
    int32_t *labels = ids + n, *positions = labels + n; /* documents_upload() takes them so */

    if (ids == NULL)
        return D9D_FAIL(D9D_ENOMEM, "tokens of a small model");
    for (int64_t i = 0; i < n; i++)
        ids[i] = token_of(m, d9d_rng_u32(rng, (uint64_t)i));
    for (int64_t i = 0; i < n; i++) {
        positions[i] = (int32_t)(i % m->length);
        labels[i] = positions[i] == m->length - 1 || i == 3 ? D9D_IGNORE_INDEX : ids[i + 1];
        m->targets += labels[i] != D9D_IGNORE_INDEX;
    }
    D9D_TRY(d9d_tensor_from_host(m->dev, D9D_I32, shape, ids, &m->ids));
    m->losses = n;
    D9D_TRY(d9d_tensor_from_host(m->dev, D9D_I32, shape, labels, &m->labels));
    D9D_TRY(d9d_tensor_from_host(m->dev, D9D_I32, shape, positions, &m->positions));
    return m->task.kind != NULL ? documents_upload(m, ids) : D9D_OK;
}

/* The weights of the losses: their mean. */
static d9d_status weights_upload(d9di_small_model *m)
{
    const int64_t n = m->losses;

    m->weight = d9d_arena_alloc(&m->arena, (size_t)n * sizeof(*m->weight));
    m->value = d9d_arena_alloc(&m->arena, (size_t)n * sizeof(*m->value));
    if (m->weight == NULL || m->value == NULL)
        return D9D_FAIL(D9D_ENOMEM, "losses of a small model");
    for (int64_t i = 0; i < n; i++)
        m->weight[i] = (float)(1.0 / (double)m->targets);
    return d9d_tensor_from_host(m->dev, D9D_F32, D9D_SHAPE(n), m->weight, &m->seed);
}

/* A head that the folder may lack. */
static d9d_status task_params_fill(d9di_small_model *m, uint64_t seed)
{
    for (size_t i = 0; i < m->params.n; i++) {
        d9d_param *p = m->params.p[i];

        if (!p->spec.from_task || p->spec.is_buffer)
            continue;
        D9D_TRY(d9d_module_reset_param(p, seed));
        D9D_TRY(fill_param(p, seed));
    }
    return D9D_OK;
}

d9d_status d9di_small_model_load(d9di_small_model *m, const char *folder,
                                 const d9di_small_model_opts *opts)
{
    d9d_weights *weights;
    const char *config;
    d9d_status st;

    *m = (d9di_small_model){.rows = 0};
    config = d9d_fs_join(&m->arena, folder, D9D_HF_CONFIG_NAME);
    if (config == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: names in it", folder);
    D9D_TRY(model_create(m, config, opts, true));
    D9D_TRY(task_params_fill(m, opts->seed));
    D9D_TRY(d9d_weights_open(&m->spec, D9D_WHOLE_MODEL, folder, NULL, &weights));
    st = d9d_weights_read(weights, &m->params, NULL);
    d9d_weights_close(weights);
    D9D_TRY(st);
    return d9d_tape_create(m->dev, &m->tape);
}

d9d_status d9di_small_model_open(d9di_small_model *m, const char *folder,
                                 const d9di_small_model_opts *opts)
{
    D9D_TRY(d9di_small_model_load(m, folder, opts));
    m->rows = opts->rows > 0 ? opts->rows : D9DI_SMALL_ROWS;
    if (opts->head != NULL)
        m->rows = d9di_small_task_rows(*opts->head, m->rows);
    m->length =
        m->model->max_positions < D9DI_SMALL_LENGTH ? m->model->max_positions : D9DI_SMALL_LENGTH;
    D9D_TRY(tokens_upload(m, opts->seed));
    return weights_upload(m);
}

uint64_t d9di_small_model_close(d9di_small_model *m)
{
    uint64_t left = 0;

    d9d_tensor_release(&m->ids);
    d9d_tensor_release(&m->labels);
    d9d_tensor_release(&m->positions);
    d9d_tensor_release(&m->seed);
    d9d_op_pool_index_release(&m->pool);
    d9d_tape_free(m->tape);
    d9di_task_close(&m->task);
    d9d_model_free(m->model);
    if (m->dev != NULL)
        left = d9d_device_memory(m->dev).in_use;
    d9d_device_close(m->dev);
    d9d_arena_release(&m->arena);
    return left;
}

/* --- loss and gradient ------------------------------------------------------------------------ */

static d9d_status forward(d9di_small_model *m, bool record, d9d_var **root, double *loss)
{
    const d9d_model_in in = {
        .ids = &m->ids, .positions = &m->positions, .labels = &m->labels, .pool = &m->pool};
    d9d_model_out out = {.loss = NULL};
    int64_t n;

    d9d_tape_set_recording(m->tape, record);
    D9D_TRY(
        d9di_task_forward(m->task.kind != NULL ? &m->task : NULL, m->model, m->tape, &in, &out));
    *root = out.loss;
    if (*root == NULL)
        return D9D_FAIL(D9D_ENOTSUP, "%s: its forward has no losses",
                        m->spec.provider->table->name);
    n = d9d_tensor_numel(d9d_var_tensor(*root));
    D9D_TRY(d9d_tensor_to_f32(d9d_var_tensor(*root), m->value));
    *loss = 0;
    for (int64_t i = 0; i < n; i++)
        *loss += (double)m->weight[i] * (double)m->value[i];
    return D9D_OK;
}

d9d_status d9di_small_model_loss(d9di_small_model *m, double *loss)
{
    d9d_var *root;
    const d9d_status st = forward(m, false, &root, loss);

    d9d_tape_reset(m->tape);
    return st;
}

d9d_status d9di_small_model_backward(d9di_small_model *m, double *loss)
{
    d9d_var *root;
    d9d_status st;

    d9d_module_clear_grads(m->model->module);
    st = forward(m, true, &root, loss);
    if (st == D9D_OK)
        st = d9d_tape_backward(m->tape, &root, &m->seed, 1, D9D_BACKWARD_FULL);
    d9d_tape_reset(m->tape);
    return st;
}

/* --- gradients on the host -------------------------------------------------------------------- */

d9d_status d9di_small_gradients_read(const d9di_small_model *m, d9di_small_gradients *out)
{
    const size_t n = m->params.n;

    *out = (d9di_small_gradients){
        .of = calloc(n + 1, sizeof(*out->of)), .count = calloc(n + 1, sizeof(*out->count)), .n = n};
    if (out->of == NULL || out->count == NULL)
        return D9D_FAIL(D9D_ENOMEM, "gradients of a small model");
    for (size_t i = 0; i < n; i++) {
        const d9d_param *p = m->params.p[i];

        if (!p->spec.trainable)
            continue;
        out->count[i] = (size_t)d9d_shape_numel(&p->spec.shape);
        out->of[i] = calloc(out->count[i] + 1, sizeof(**out->of));
        if (out->of[i] == NULL)
            return D9D_FAIL(D9D_ENOMEM, "%s: its gradient", p->name);
        if (d9d_param_has_shard_grad(p))
            D9D_TRY(d9d_tensor_to_f32(&p->shard.grad, out->of[i]));
    }
    return D9D_OK;
}

void d9di_small_gradients_release(d9di_small_gradients *g)
{
    for (size_t i = 0; g->of != NULL && i < g->n; i++)
        free(g->of[i]);
    free(g->of);
    free(g->count);
}
