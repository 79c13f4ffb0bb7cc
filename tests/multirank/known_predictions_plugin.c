/* known_predictions_plugin.c - a plugin for metric_state_restart.bats: a task with predictions that
 * are known in advance, whatever the model, mesh or step.  The predictions of a position are
 * functions of its ids alone.  The task also counts, and at the end writes its counts to `counted`,
 * one line per rank. */
#include <stdio.h>
#include <stdlib.h>

#include <d9d/base/rng.h>
#include <d9d/tasks/plugin.h>

typedef struct section {
    int64_t classes;
    const char *write; /* file of predictions, as d9d-metrics eval reads them, or NULL */
} section;
static const d9d_key keys[] = {
    D9D_KEY_INT(section, classes, "5", 1, 64, "columns of a prediction"),
    D9D_KEY_STR(section, write, "null", "file to append predictions to", .flags = D9D_NULLABLE),
    D9D_KEY_END,
};
static const d9d_table table = D9D_TABLE(section, "recite", keys, "predictions from ids");

typedef struct recite {
    const section *c;
    int64_t rows, largest;
    d9d_checkpointer_rank_state states[2];
} recite;

static d9d_status recite_open(const void *config, void **self)
{
    recite *r = calloc(1, sizeof(*r));

    if (r == NULL)
        return D9D_FAIL(D9D_ENOMEM, "recite: %zu bytes", sizeof(*r));
    r->c = config;
    r->largest = -1;
    r->states[0] = (d9d_checkpointer_rank_state){"rows", D9D_I64, 1, D9D_COMM_SUM, &r->rows};
    r->states[1] = (d9d_checkpointer_rank_state){"largest", D9D_I64, 1, D9D_COMM_MAX, &r->largest};
    *self = r;
    return D9D_OK;
}

static const d9d_checkpointer_rank_state *state(void *self, size_t *n)
{
    *n = 2;
    return ((recite *)self)->states;
}

/* Scores of a position; that of the right class is higher on average. */
static void scores(const recite *r, int32_t id, int32_t position, int32_t label, float *out)
{
    const d9d_rng g = {.seed = (uint64_t)id, .stream = (uint64_t)position};

    for (int64_t k = 0; k < r->c->classes; k++)
        out[k] = 0.7F * d9d_rng_uniform(g, (uint64_t)k) + (r->c->classes == 1 ? 0.3F * (float)label
                                                           : k == label       ? 0.3F
                                                                              : 0.0F);
}

static void write_row(FILE *f, const recite *r, int32_t label, const float *p)
{
    fprintf(f, "{\"prediction\": [");
    for (int64_t k = 0; k < r->c->classes; k++)
        fprintf(f, "%s%.17g", k > 0 ? ", " : "", (double)p[k]);
    fprintf(f, "], \"target\": %d}\n", label);
}

/* CPU only: device memory is host memory. */
static d9d_status predict(recite *r, d9d_tape *t, const d9d_model_in *in, d9d_model_out *out)
{
    const int64_t n = d9d_tensor_numel(in->ids), c = r->c->classes;
    const int32_t *ids = d9d_tensor_data(in->ids), *labels = d9d_tensor_data(in->labels);
    const int32_t *positions = d9d_tensor_data(in->positions);
    FILE *f = r->c->write != NULL ? fopen(r->c->write, "a") : NULL;
    d9d_tensor x;
    float *p;
    d9d_status st;

    D9D_TRY(d9d_tensor_alloc(d9d_tape_device(t), D9D_F32, D9D_SHAPE(n, c), &x));
    p = d9d_tensor_data(&x);
    for (int64_t i = 0; i < n; i++) {
        scores(r, ids[i], positions[i], labels[i], p + i * c);
        if (labels[i] == D9D_IGNORE_INDEX || !in->loss_is_root)
            continue;
        r->rows++;
        r->largest = ids[i] > r->largest ? ids[i] : r->largest;
        if (f != NULL)
            write_row(f, r, labels[i], p + i * c);
    }
    st = d9d_tape_leaf(t, &x, false, &out->logits);
    d9d_tensor_release(&x);
    if (f != NULL)
        fclose(f);
    return st;
}

static d9d_status forward(void *self, d9d_model *m, d9d_tape *t, const d9d_model_in *in,
                          d9d_model_out *out)
{
    D9D_TRY(m->ops->forward(m, t, in, out));
    return d9d_stage_is_last(m->stage) ? predict(self, t, in, out) : D9D_OK;
}

static d9d_status finalize(void *self)
{
    const recite *r = self;
    FILE *f = fopen("counted", "a");

    if (f == NULL)
        return D9D_FAIL(D9D_EIO, "counted");
    fprintf(f, "%lld %lld\n", (long long)r->rows, (long long)r->largest);
    fclose(f);
    return D9D_OK;
}

static const d9d_train_task task = {.size = sizeof(task),
                                    .table = &table,
                                    .open = recite_open,
                                    .close = free,
                                    .forward = forward,
                                    .finalize = finalize,
                                    .state = state};
static const d9d_train_task *const tasks[] = {&task, NULL};
D9D_PLUGIN(.train_tasks = tasks);
