/* faulty_plugin.c - a plugin whose parts fail in the way that $D9D_FAULT names. */
#include <d9d/tasks/plugin.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool at(const char *fault)
{
    const char *now = getenv("D9D_FAULT");

    return now != NULL && strcmp(now, fault) == 0;
}
static d9d_status mute(const char *fault) /* fails without an error message */
{
    return at(fault) ? D9D_EIO : D9D_OK;
}

typedef struct section {
    double lr;
} section;
static const d9d_key keys[] = {D9D_KEY_REAL(section, lr, "0.1", 0, 1, "rate"), D9D_KEY_END};
static const d9d_table table = D9D_TABLE(section, "faulty", keys, "faults");

static int n_states(const void *config)
{
    (void)config;
    return at("states") ? 9 : 1;
}
static d9d_dtype state_dtype(const void *config, const d9d_param *p)
{
    (void)config, (void)p;
    return at("dtype") ? (d9d_dtype)99 : D9D_F32;
}
static d9d_status update(const void *config, const d9d_optimizer_update *u)
{
    (void)config, (void)u;
    return at("number") ? (d9d_status)77 : mute("update");
}
static const d9d_optimizer_kind optimizer = {.size = sizeof(optimizer),
                                             .table = &table,
                                             .states = {"m", NULL},
                                             .n_states = n_states,
                                             .state_dtype = state_dtype,
                                             .update = update};

static d9d_status create(const void *config, const char *where, int64_t total, void **self)
{
    (void)config, (void)where, (void)total;
    *self = NULL;
    return mute("create");
}
static double factor(const void *self, int64_t step)
{
    (void)self, (void)step;
    return at("rate") ? NAN : 1;
}
static const d9d_lr_schedule_kind rate = {
    .size = sizeof(rate), .table = &table, .create = create, .at = factor};

static d9d_status facts(void *self, d9d_dataset_info *out)
{
    (void)self;
    out->samples = 64, out->longest = 8, out->vocab = 90;
    return mute("facts");
}
static d9d_status sample(void *self, int64_t k, int64_t length, int32_t *ids, int32_t *labels)
{
    (void)self;
    for (int64_t i = 0; i < length; i++)
        ids[i] = (int32_t)(k % 90), labels[i] = 3;
    return mute("sample");
}
static const d9d_dataset_kind dataset = {
    .size = sizeof(dataset), .table = &table, .info = facts, .sample = sample};

/* The task holds device memory until it is closed. */
static d9d_status task_open(const void *config, void **self)
{
    (void)config;
    *self = calloc(1, sizeof(d9d_tensor));
    return mute("open");
}
static void task_close(void *self)
{
    d9d_tensor_release(self);
    free(self);
}
static d9d_status forward(void *self, d9d_model *m, d9d_tape *t, const d9d_model_in *in,
                          d9d_model_out *out)
{
    d9d_var *other;

    D9D_TRY(mute("forward"));
    d9d_tensor_release(self);
    D9D_TRY(d9d_tensor_alloc(d9d_tape_device(t), D9D_F32, D9D_SHAPE(1024), self));
    D9D_TRY(m->ops->forward(m, t, in, out));
    D9D_TRY(d9d_tape_output(t, D9D_I32, D9D_SHAPE(3), &other));
    if (at("no loss"))
        out->loss = NULL;
    if (at("loss"))
        out->loss = other;
    if (at("logits"))
        out->logits = other;
    return D9D_OK;
}
static int64_t targets(void *self, const d9d_batch *b)
{
    (void)self;
    return at("targets") ? -7 : b->targets;
}
static const d9d_checkpointer_rank_state *state(void *self, size_t *n)
{
    (void)self;
    *n = at("state") ? 3 : 0;
    return NULL;
}
static const d9d_train_task task = {.size = sizeof(task),
                                    .table = &table,
                                    .open = task_open,
                                    .close = task_close,
                                    .forward = forward,
                                    .targets = targets,
                                    .state = state};

static d9d_status form(const void *config, const char *where, d9d_metric_form *out)
{
    (void)config, (void)where;
    *out = (d9d_metric_form){.dtype = D9D_F64, .state_size = at("state_size") ? -1 : 1, .width = 1};
    return mute("form");
}
static d9d_status metric_update(const void *config, const d9d_predictions *b, void *sums)
{
    (void)config, (void)b, (void)sums;
    return D9D_OK;
}
static void compute(const void *config, const void *sums, double *values)
{
    (void)config, (void)sums;
    values[0] = 1;
}
static const d9d_metric_kind metric = {.size = sizeof(metric),
                                       .table = &table,
                                       .form = form,
                                       .update = metric_update,
                                       .compute = compute};

static d9d_status handle(void *self, const d9d_job_event *e)
{
    (void)self, (void)e;
    return mute("handle");
}
static const d9d_job_event_handler events[] = {{"train.step.pre", handle}, {NULL, NULL}};

static const d9d_optimizer_kind *const optimizers[] = {&optimizer, NULL};
static const d9d_lr_schedule_kind *const rates[] = {&rate, NULL};
static const d9d_dataset_kind *const datasets[] = {&dataset, NULL};
static const d9d_train_task *const tasks[] = {&task, NULL};
static const d9d_metric_kind *const metrics[] = {&metric, NULL};
D9D_PLUGIN(.optimizers = optimizers, .lr_schedulers = rates, .datasets = datasets,
           .train_tasks = tasks, .metrics = metrics, .events = events);
