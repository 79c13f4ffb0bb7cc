/* tasks.c - the built-in training tasks, and calls into any task.  See d9d/tasks/task.h. */
#include "tasks/tasks.h"

#include <string.h>

#include "d9d/base/num_format.h"
#include "d9d/base/plugin_call.h"
#include "d9d/op/op.h"

const char *const d9d_train_task_tag[] = {"name", NULL};
const d9d_table *const d9d_train_task_choices[] = {&d9di_causal_lm_table,
                                                   &d9di_head_task_train_classification_table,
                                                   &d9di_head_task_train_embedding_table,
                                                   &d9di_masked_lm_train_table,
                                                   &d9di_preference_table,
                                                   &d9di_distillation_table,
                                                   &d9di_reward_table,
                                                   &d9di_grpo_table,
                                                   &d9di_heads_train_table,
                                                   NULL};

/* The body of an inference task is named by the inference section. */
static const char *task_name(const d9d_train_task *kind)
{
    return kind->table != NULL ? kind->table->name : "task";
}

d9d_status d9di_task_open_kind(const d9d_train_task *kind, const void *section, d9di_task *out)
{
    d9di_task t = {.kind = kind, .self = (void *)(uintptr_t)section};

    if (kind->open != NULL)
        D9D_TRY(D9D_PLUGIN_CALL(task_name(kind), kind, open, section, &t.self));
    *out = t;
    return D9D_OK;
}

d9d_status d9di_task_open(const d9d_union *section, d9di_task *out)
{
    return d9di_task_open_kind(section->choice->row, section->value, out);
}

void d9di_task_close(d9di_task *t)
{
    if (t->kind != NULL && t->kind->close != NULL)
        t->kind->close(t->self);
    *t = (d9di_task){0};
}

static d9d_status mark_from_task(void *arg, d9d_param *p)
{
    (void)arg;
    p->spec.from_task = true;
    return D9D_OK;
}

d9d_head d9di_task_head(const d9di_task *t)
{
    d9d_head head = {.kind = D9D_HEAD_CAUSAL_LM};

    if (t != NULL && t->kind->head != NULL)
        t->kind->head(t->self, &head);
    return head;
}

d9d_pooling d9di_task_pooling(const d9di_task *t)
{
    return t != NULL && t->kind->pooling != NULL ? t->kind->pooling(t->self) : D9D_POOLING_NONE;
}

d9d_task_reference d9di_task_reference(const d9di_task *t)
{
    d9d_task_reference r = {.wanted = false};

    if (t != NULL && t->kind->reference != NULL)
        t->kind->reference(t->self, &r);
    return r;
}

const d9d_grpo_section *d9di_task_generation(const d9di_task *t)
{
    return t != NULL && t->kind->generation != NULL ? t->kind->generation(t->self) : NULL;
}

void d9di_task_select(const d9di_task *t, int64_t iteration)
{
    if (t->kind->select != NULL)
        t->kind->select(t->self, iteration);
}

d9d_task_answers d9di_task_answers(const d9di_task *t)
{
    return t != NULL && t->kind->answers != NULL ? t->kind->answers(t->self)
                                                 : D9D_TASK_ANSWERS_NONE;
}

bool d9di_task_is_of_answers(const d9di_task *t)
{
    return d9di_task_answers(t) != D9D_TASK_ANSWERS_NONE;
}

/* Its samples 2k and 2k + 1 are a pair. */
static bool pairs_samples(const d9di_task *t)
{
    return t->kind->has_pairs != NULL ? t->kind->has_pairs(t->self) : t->kind->paired;
}

bool d9di_task_has_pairs(const d9di_task *t)
{
    return t != NULL && (pairs_samples(t) || d9di_task_answers(t) == D9D_TASK_ANSWERS_PAIRS);
}

size_t d9di_task_parts(const d9di_task *t, const d9d_batch *b, int64_t seq, int64_t *n)
{
    return t != NULL && t->kind->parts != NULL ? t->kind->parts(t->self, b, seq, n) : 0;
}

bool d9di_task_loses_by_document(const d9di_task *t)
{
    return d9di_task_is_of_answers(t) || d9di_task_pooling(t) != D9D_POOLING_NONE;
}

/* Pairs are neighbours in the dataset.  Other orders separate them, and so does an epoch that
 * begins at an odd position of the stream. */
static d9d_status check_pairs(const d9di_task *t, const d9di_run_data *d, int64_t taken)
{
    static const char rule[] = "learns from samples 2k and 2k + 1, which stand side by side where";
    const char *reordered;
    int64_t pass;

    if (!pairs_samples(t))
        return D9D_OK;
    if (d->n > 1)
        return D9D_FAIL(D9D_ECONFIG, "task %s %s there is one dataset; %zu are blended here",
                        task_name(t->kind), rule, d->n);
    if (d->sections[0].order != D9D_LOADER_SEQUENTIAL)
        return D9D_FAIL(D9D_ECONFIG, "task %s %s data.order is sequential; that of %s is not",
                        task_name(t->kind), rule, d->sections[0].dataset);
    reordered = d9d_dataset_reordered(d->datasets[0]);
    if (reordered != NULL)
        return D9D_FAIL(D9D_ECONFIG, "task %s %s d9d-shard leaves them; of %s %s",
                        task_name(t->kind), rule, d->sections[0].dataset, reordered);
    pass = d9d_dataset_count(d->datasets[0]);
    if (pass % 2 != 0 && taken > pass)
        return D9D_FAIL(
            D9D_ECONFIG,
            "task %s %s a pass has an even number of samples; %s has %lld, and %lld are "
            "taken",
            task_name(t->kind), rule, d->sections[0].dataset, (long long)pass, (long long)taken);
    return D9D_OK;
}

/* Samples are whole texts. */
static bool takes_whole_texts(const d9di_task *t)
{
    return d9di_task_pooling(t) != D9D_POOLING_NONE || t->kind->collate != NULL ||
           (t->kind->parts != NULL && !d9d_head_is_lm(d9di_task_head(t).kind));
}

/* Soft labels take the place of the dataset's. */
static bool needs_labels(const d9di_task *t)
{
    size_t n = 0;

    if (t->kind->fields != NULL)
        (void)t->kind->fields(t->self, &n);
    return t->kind->labels && n == 0;
}

/* The datasets have the records that the task is of. */
static d9d_status check_records(const d9di_task *t, const d9di_run_data *d)
{
    static const char *const formats[] = {"", "preference", "unpaired"};
    const d9d_task_answers kind = d9di_task_answers(t);

    for (size_t i = 0; kind != D9D_TASK_ANSWERS_NONE && i < d->n; i++)
        if (d9d_dataset_record_documents(d->datasets[i]) != d9di_answers_width(kind))
            return D9D_FAIL(D9D_ECONFIG, "task %s: %s is no dataset of d9d-shard --format %s",
                            task_name(t->kind), d->sections[i].dataset, formats[kind]);
    return D9D_OK;
}

/* A language model's head beside heads of texts. */
static bool learns_next_tokens(const d9di_task *t)
{
    return t->kind->parts != NULL && d9d_head_is_lm(d9di_task_head(t).kind) &&
           d9di_task_pooling(t) != D9D_POOLING_NONE;
}

d9d_status d9di_task_set_data(const d9di_task *t, const d9di_run_data *data, int64_t taken)
{
    const d9d_loader_collator collator = {t->kind->collate, t->self};

    D9D_TRY(check_pairs(t, data, taken));
    D9D_TRY(check_records(t, data));
    for (size_t i = 0; i < data->n && learns_next_tokens(t); i++)
        d9d_dataset_set_last_token(data->datasets[i]);
    if (t->kind->set_data != NULL)
        D9D_TRY(D9D_PLUGIN_CALL(task_name(t->kind), t->kind, set_data, t->self, data->datasets,
                                data->n));
    d9d_loader_set_collator(data->loader, &collator);
    if (!takes_whole_texts(t))
        return D9D_OK;
    return d9di_run_data_set_no_targets(data, false, needs_labels(t), task_name(t->kind));
}

/* Of two, where 0 is none. */
static int64_t least_limit(int64_t a, int64_t b)
{
    return a == 0 || (b > 0 && b < a) ? b : a;
}

/* Appends a request, unless it is there. */
static d9d_status add_request(const d9d_field_request *r, d9d_field_request *out, size_t *n)
{
    for (size_t i = 0; i < *n; i++) {
        const d9d_field_request *x = &out[i];

        if (strcmp(x->name, r->name) != 0)
            continue;
        if (x->per == r->per && x->dtype == r->dtype && x->spread == r->spread &&
            x->classes == r->classes && x->drops_labels == r->drops_labels &&
            x->elements == r->elements) {
            out[i].limit = least_limit(x->limit, r->limit);
            return D9D_OK;
        }
        return D9D_FAIL(D9D_ECONFIG, "%s and %s want the field \"%s\" differently", x->where,
                        r->where, r->name);
    }
    if (*n == D9D_FIELDS_MAX)
        return D9D_FAIL(D9D_ECONFIG, "%s: more than %d fields are wanted", r->where,
                        D9D_FIELDS_MAX);
    out[(*n)++] = *r;
    return D9D_OK;
}

d9d_status d9di_task_fields(const d9di_task *t, const d9d_model *m, d9d_field_request *out,
                            size_t *n)
{
    size_t own = 0;
    const d9d_field_request *list = t != NULL && t->kind != NULL && t->kind->fields != NULL
                                        ? t->kind->fields(t->self, &own)
                                        : NULL;

    *n = 0;
    for (size_t i = 0; list != NULL && i < own; i++)
        D9D_TRY(add_request(&list[i], out, n));
    for (size_t i = 0; i < m->n_fields; i++)
        D9D_TRY(add_request(&m->fields[i], out, n));
    return D9D_OK;
}

d9d_status d9di_task_set_fields(const d9di_task *t, const d9d_model *m, const d9di_run_data *data)
{
    d9d_field_request wanted[D9D_FIELDS_MAX];
    int64_t n_classes;
    size_t n;

    if (data->loader == NULL)
        return D9D_OK;
    D9D_TRY(d9di_task_fields(t, m, wanted, &n));
    D9D_TRY(d9d_loader_set_fields(data->loader, wanted, n));
    n_classes =
        t != NULL && t->kind != NULL && t->kind->classes != NULL ? t->kind->classes(t->self) : 0;
    return d9d_loader_check_values(data->loader, n_classes);
}

const char *d9di_task_micro_batch_term(const d9di_task *t)
{
    const char *term =
        t->kind->micro_batch_term != NULL ? t->kind->micro_batch_term(t->self) : NULL;

    return term != NULL || !pairs_samples(t) ? term : "what a pair is told from";
}

d9d_status d9di_task_put_micro_batch_term(const char *term, int64_t rows, d9d_buf *out)
{
    return d9d_buf_printf(out,
                          "%s is over the %lld sample%s of a micro-batch: another "
                          "trainer.batching.microbatch_size is another loss",
                          term, (long long)rows, D9D_PLURAL(rows));
}

d9d_status d9di_task_check_micro_batch(const d9di_task *t, const char *where, int64_t micro)
{
    if (!pairs_samples(t) || (micro >= 4 && micro % 2 == 0))
        return D9D_OK;
    return D9D_FAIL(
        D9D_ECONFIG,
        "%s.microbatch_size is %lld: the task %s tells pairs of a micro-batch apart, so "
        "that it is an even number, 4 or more",
        where, (long long)micro, task_name(t->kind));
}

d9d_status d9di_task_check_batch(const d9di_task *t, const d9d_batch *b)
{
    return t != NULL && t->kind->check != NULL
               ? D9D_PLUGIN_CALL(task_name(t->kind), t->kind, check, t->self, b)
               : D9D_OK;
}

d9d_status d9di_task_extend(const d9di_task *t, d9d_model *m, const d9d_model_opts *options)
{
    const size_t own = m->n_units;

    if (t == NULL || t->kind->extend == NULL)
        return D9D_OK;
    D9D_TRY(D9D_PLUGIN_CALL(task_name(t->kind), t->kind, extend, t->self, m, options));
    for (size_t i = own; i < m->n_units; i++)
        D9D_TRY(d9d_module_each(m->units[i], mark_from_task, NULL));
    return D9D_OK;
}

/* What a run that generates cannot have. */
static d9d_status check_generation(const d9d_train_config *c, const char *name)
{
    if (c->evaluation.n > 0)
        return D9D_FAIL(D9D_ENOTSUP,
                        "task %s: evaluation: losses of given answers are not what it learns; "
                        "evaluate its checkpoints with d9d-infer",
                        name);
    if (c->trainer.integrity.rerun_period_steps != D9D_PERIOD_DISABLE)
        return D9D_FAIL(D9D_ENOTSUP,
                        "trainer.integrity.rerun_period_steps: the task %s samples what it learns "
                        "from, which another rank cannot repeat",
                        name);
    return D9D_OK;
}

d9d_status d9di_task_check_config(const d9di_task *t, const d9d_train_config *c)
{
    const d9d_job_trainer_section *s = &c->trainer;

    D9D_TRY(d9di_task_check_micro_batch(t, "trainer.batching", s->batching.microbatch_size));
    if (d9di_task_generation(t) != NULL)
        D9D_TRY(check_generation(c, task_name(t->kind)));
    D9D_TRY(d9d_job_check_batching(&c->mesh, &s->batching));
    D9D_TRY(d9d_job_check_optimizer_in_backward(c));
    if (t->kind->parts != NULL && s->logging.documents > 0)
        return D9D_FAIL(D9D_ECONFIG,
                        "trainer.logging.documents: the loss of the task %s is a sum over heads, "
                        "and not of documents",
                        task_name(t->kind));
    return d9d_job_check_profiling(s->profiling);
}

static d9d_status fail_no_logits(const d9di_task *t, const char *where)
{
    return D9D_FAIL(D9D_ECONFIG, "%s: the task %s gives no predictions%s", where,
                    task_name(t->kind),
                    t->kind->heads != NULL ? "; each of its heads has metrics of its own" : "");
}

bool d9di_task_predicts_tokens(const d9di_task *t)
{
    return d9d_head_is_lm(d9di_task_head(t).kind) && t->kind->heads == NULL &&
           (t->kind->forward == NULL || t->kind->no_logits);
}

const d9d_task_head_record *d9di_task_heads(const d9di_task *t, size_t *n)
{
    *n = 0;
    return t->kind != NULL && t->kind->heads != NULL ? t->kind->heads(t->self, n) : NULL;
}

d9d_status d9di_task_head_sources(const d9di_task *t, const char *where, bool has_loss,
                                  d9d_arena *a, d9di_run_metrics_source *out, size_t *n)
{
    const d9d_task_head_record *heads = d9di_task_heads(t, n);

    for (size_t i = 0; i < *n; i++) {
        const char *of = d9d_arena_printf(a, "%s.%s", where, heads[i].name);

        if (of == NULL)
            return D9D_FAIL(D9D_ENOMEM, "%s: names of %zu heads", where, *n);
        out[i] = (d9di_run_metrics_source){.list = heads[i].metrics,
                                           .where = of,
                                           .head = heads[i].name,
                                           .has_loss = has_loss,
                                           .columns = heads[i].columns,
                                           .targets = heads[i].targets};
    }
    return D9D_OK;
}

d9d_status d9di_task_open_metrics(const d9di_task *t, const d9d_list *list, const char *where,
                                  d9d_arena *a, d9di_run_metrics *out)
{
    d9di_run_metrics_source sources[1 + D9D_TASK_PARTS_MAX] = {
        {.list = list, .where = where, .of_tokens = d9di_task_predicts_tokens(t)}};
    size_t n;

    D9D_TRY(d9di_task_head_sources(t, where, true, a, sources + 1, &n));
    D9D_TRY(d9di_run_metrics_open(sources, 1 + n, a, out));
    return list->n > 0 && !sources[0].of_tokens && (t->kind->forward == NULL || t->kind->no_logits)
               ? fail_no_logits(t, where)
               : D9D_OK;
}

/* What each head has computed. */
static d9d_status enqueue_heads(const d9di_task *t, const d9d_model_out *out)
{
    for (size_t i = 0; i < out->n_heads; i++) {
        const d9d_model_head_out *h = &out->heads[i];
        const d9d_tensor *mask = d9d_var_tensor(h->mask);

        D9D_TRY(d9di_run_metrics_enqueue_mean(t->metrics, 1 + i, d9d_var_tensor(h->mean_loss),
                                              d9d_var_tensor(h->count)));
        if (h->labels != NULL)
            D9D_TRY(d9di_run_metrics_enqueue(t->metrics, 1 + i, d9d_var_tensor(h->logits),
                                             h->labels, mask));
    }
    return D9D_OK;
}

/* Enqueues the last stage's predictions, on one of the ranks that have the same ones. */
static d9d_status enqueue_metrics(const d9di_task *t, const d9d_model *m, const d9d_model_in *in,
                                  const d9d_model_out *out)
{
    if (t->metrics == NULL || t->metrics->n == 0 || t->metrics->of_tokens ||
        !d9d_stage_is_last(m->stage) || d9d_comm_rank(m->groups.tp) > 0)
        return D9D_OK;
    if (out->n_heads > 0)
        return enqueue_heads(t, out);
    if (out->logits == NULL)
        return fail_no_logits(t, "metrics");
    return d9di_run_metrics_enqueue(t->metrics, 0, d9d_var_tensor(out->logits),
                                    out->labels != NULL ? out->labels : in->labels, NULL);
}

/* Checks that forward has set what the loops need. */
static d9d_status check_output(const d9di_task *t, const d9d_model *m, const d9d_model_in *in,
                               const d9d_model_out *out)
{
    if (!d9d_stage_is_last(m->stage) || !in->loss_is_root)
        return D9D_OK;
    if (out->loss == NULL)
        return D9D_FAIL(D9D_EINVAL, "%s: forward() set no loss", task_name(t->kind));
    if (d9d_var_tensor(out->loss)->dtype != D9D_F32)
        return D9D_FAIL(D9D_EINVAL, "%s: forward() set a loss of %s, not of float32",
                        task_name(t->kind), d9d_dtype_name(d9d_var_tensor(out->loss)->dtype));
    return D9D_OK;
}

static d9d_status check_tensor_field(const d9d_stage_spec *s, const d9d_field_request *fields,
                                     size_t n, const char *where)
{
    for (size_t i = 0; i < n; i++)
        if (s->field != NULL && strcmp(fields[i].name, s->field) == 0)
            return D9D_OK;
    if (s->field == NULL)
        return D9D_OK;
    return D9D_FAIL(
        D9D_ECONFIG,
        "%s: the stage tensor \"%s\" has the rows of the field \"%s\", which neither the "
        "model nor the task reads",
        where, s->name, s->field);
}

d9d_status d9di_task_stage_specs(const d9di_task *t, const d9d_model *m, int stage,
                                 d9d_stage_spec out[D9D_STAGE_TENSORS_MAX], size_t *n)
{
    const bool more = t != NULL && t->kind->stage_tensors != NULL;
    const char *where = more ? task_name(t->kind) : m->ops->name;
    d9d_stage_spec own[D9D_STAGE_TENSORS_MAX];
    d9d_field_request fields[D9D_FIELDS_MAX];
    size_t n_own = 0, n_fields;

    D9D_TRY(d9d_model_stage_specs(m, stage, out, n));
    D9D_TRY(d9di_task_fields(t, m, fields, &n_fields));
    if (more)
        D9D_TRY(D9D_PLUGIN_CALL(where, t->kind, stage_tensors, t->self, m, stage, own, &n_own));
    if (n_own > D9D_STAGE_TENSORS_MAX - *n)
        return D9D_FAIL(
            D9D_ECONFIG, "%s: %zu tensor%s enter stage %d beside %zu of %s, and %d are possible",
            where, n_own, D9D_PLURAL(n_own), stage, *n, m->ops->name, D9D_STAGE_TENSORS_MAX);
    memcpy(out + *n, own, n_own * sizeof(*own));
    *n += n_own;
    for (size_t i = 0; i < *n; i++)
        D9D_TRY(check_tensor_field(&out[i], fields, n_fields, where));
    return d9d_stage_specs_check(out, *n, where);
}

d9d_status d9di_task_linear_of_texts(d9d_tape *t, const d9d_op_pool_index *pool, d9d_var *rows,
                                     d9d_param *w, d9d_var **y)
{
    d9d_status st;

    d9d_tape_begin_rows(t, &pool->number);
    st = d9d_op_linear(t, rows, w, y);
    d9d_tape_end_rows(t);
    return st;
}

/* Next tokens of a micro-batch for the metrics, where the model has its head at hand. */
typedef struct token_metrics {
    const d9di_task *task;
    const d9d_model *model;
    const d9d_tensor *labels;
    bool done;
} token_metrics;

static d9d_status tokens_enqueue(void *arg, d9d_block_vocab *head, d9d_var *rows)
{
    token_metrics *w = arg;

    w->done = true;
    return d9di_run_metrics_enqueue_tokens(w->task->metrics, head, d9d_var_tensor(rows), w->labels,
                                           d9d_comm_rank(w->model->groups.tp) == 0);
}

static d9d_status forward_run(const d9di_task *t, d9d_model *m, d9d_tape *tape,
                              const d9d_model_in *in, d9d_model_out *out)
{
    return t == NULL || t->kind->forward == NULL
               ? D9D_PLUGIN_CALL(m->ops->name, m->ops, forward, m, tape, in, out)
               : D9D_PLUGIN_CALL(task_name(t->kind), t->kind, forward, t->self, m, tape, in, out);
}

static d9d_status forward_with_tokens(const d9di_task *t, d9d_model *m, d9d_tape *tape,
                                      const d9d_model_in *in, d9d_model_out *out)
{
    token_metrics w = {.task = t, .model = m, .labels = in->labels};
    const d9d_model_lm_head_hook hook = {tokens_enqueue, &w};
    d9d_model_in given = *in;

    given.lm_head_hook = &hook;
    D9D_TRY(forward_run(t, m, tape, &given, out));
    return w.done
               ? D9D_OK
               : D9D_FAIL(D9D_ENOTSUP,
                          "metrics: %s computes its losses without d9d_model_loss(), which shows "
                          "what it predicts",
                          m->ops->name);
}

d9d_status d9di_task_forward(const d9di_task *t, d9d_model *m, d9d_tape *tape,
                             const d9d_model_in *in, d9d_model_out *out)
{
    const bool tokens = t != NULL && in->labels != NULL && d9d_stage_is_last(m->stage) &&
                        d9di_run_metrics_wants_tokens(t->metrics);

    *out = (d9d_model_out){0};
    D9D_TRY((tokens ? forward_with_tokens : forward_run)(t, m, tape, in, out));
    if (t == NULL)
        return D9D_OK;
    D9D_TRY(check_output(t, m, in, out));
    D9D_TRY(enqueue_metrics(t, m, in, out));
    return out->loss != NULL && in->loss_is_root ? d9d_op_loss_root(tape, out->loss, &out->loss)
                                                 : D9D_OK;
}

d9d_status d9di_task_rank_state(const d9di_task *t, d9d_arena *a, d9d_checkpointer_set *set)
{
    size_t n = 0;
    const d9d_checkpointer_rank_state *own =
        t->kind->state != NULL ? t->kind->state(t->self, &n) : NULL;

    if (n > 0 && own == NULL)
        return D9D_FAIL(D9D_EINVAL, "%s: state() gave no array, and says %zu", task_name(t->kind),
                        n);
    for (size_t i = 0; i < n; i++) {
        d9d_checkpointer_rank_state c = own[i];

        c.name = d9d_arena_printf(a, "task.%s.%s", task_name(t->kind), own[i].name);
        D9D_TRY(d9d_checkpointer_set_add_rank_state(set, &c, 1, a));
    }
    return D9D_OK;
}

int64_t d9di_task_targets(const d9di_task *t, const d9d_batch *b)
{
    return t != NULL && t->kind->targets != NULL ? t->kind->targets(t->self, b) : b->targets;
}

d9d_status d9di_task_finalize(const d9di_task *t)
{
    return t != NULL && t->kind->finalize != NULL
               ? D9D_PLUGIN_CALL(task_name(t->kind), t->kind, finalize, t->self)
               : D9D_OK;
}
