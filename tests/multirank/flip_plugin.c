/* flip_plugin.c - a plugin for integrity.bats: flips one bit of one rank, silently.
 *
 *     FLIP="WHAT RANK STEP SEED"
 *
 * In step STEP (from 1) of rank RANK, SEED chooses the array, the element and the bit:
 *
 *     weights     of a parameter's shard, between forward and update
 *     optimizer   of an optimizer state, likewise
 *     gradients   of a reduced gradient, likewise
 *     tokens      of an input id of the first micro-batch, once: a computation that goes wrong
 *     stuck       of an input id of every micro-batch from then on: one that always goes wrong
 *
 * The weights are changed in a bit that an update does not round away.  It says what it flipped. */
#include <d9d/tasks/plugin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct flip {
    char what[16];
    int rank, on;
    long step;
    unsigned long seed;
    bool done;
    d9d_model *const *models;
    size_t n_models;
    d9d_optimizer *optimizer;
    long now; /* step in progress */
} flip;

static d9d_status start(void *self, const d9d_job_event *e)
{
    const char *given = getenv("FLIP");

    (void)self;
    flip.on =
        given != NULL &&
        sscanf(given, "%15s %d %ld %lu", flip.what, &flip.rank, &flip.step, &flip.seed) == 4 &&
        d9d_bootstrap_rank(e->bootstrap) == flip.rank;
    flip.now = 1;
    return D9D_OK;
}
static d9d_status keep_models(void *self, const d9d_job_event *e)
{
    (void)self;
    flip.models = e->models;
    flip.n_models = e->n_models;
    return D9D_OK;
}
static d9d_status keep_optimizer(void *self, const d9d_job_event *e)
{
    (void)self;
    flip.optimizer = e->optimizer;
    return D9D_OK;
}

static void flip_bit(const char *name, const d9d_tensor *t, unsigned bit)
{
    const size_t size = d9d_dtype_size(t->dtype);
    unsigned char *x = d9d_tensor_data(t);
    const int64_t at = (int64_t)(flip.seed % (unsigned long)d9d_tensor_numel(t));

    if (bit == 0)
        bit = (unsigned)(flip.seed % (size * 8));
    x[(size_t)at * size + bit / 8] ^= (unsigned char)(1u << bit % 8);
    flip.done = true;
    (void)fprintf(stderr, "flipped bit %u of element %lld of %s\n", bit, (long long)at, name);
}

/* Counts arrays, and flips in the chosen one. */
typedef struct walk {
    unsigned long n, chosen;
} walk;

static const d9d_tensor *array_of(const d9d_param *p)
{
    if (strcmp(flip.what, "weights") == 0)
        return &p->shard.data;
    return d9d_param_has_shard_grad(p) ? &p->shard.grad : NULL;
}

static d9d_status visit(void *arg, d9d_param *p)
{
    walk *w = arg;
    const d9d_tensor *t = array_of(p);

    if (t != NULL && d9d_tensor_numel(t) > 0 && w->n++ == w->chosen)
        flip_bit(p->name, t, 21 + (unsigned)(flip.seed % 8));
    return D9D_OK;
}

static d9d_status flip_param(void)
{
    walk w = {.chosen = (unsigned long)-1};

    for (int pass = 0; pass < 2; pass++) {
        w.n = 0;
        for (size_t i = 0; i < flip.n_models; i++)
            D9D_TRY(d9d_module_each(flip.models[i]->module, visit, &w));
        w.chosen = flip.seed % w.n;
    }
    return D9D_OK;
}

static d9d_status after_backward(void *self, const d9d_job_event *e)
{
    (void)self;
    flip.now = (long)e->step + 2;
    if (!flip.on || flip.done || e->step + 1 != flip.step || strcmp(flip.what, "tokens") == 0 ||
        strcmp(flip.what, "stuck") == 0)
        return D9D_OK;
    if (strcmp(flip.what, "optimizer") != 0)
        return flip_param();
    for (unsigned long k = flip.seed;; k++) {
        const d9d_optimizer_state s =
            d9d_optimizer_state_at(flip.optimizer, k % d9d_optimizer_state_count(flip.optimizer));

        if (d9d_tensor_numel(s.tensor) > 0) {
            flip_bit(s.name, s.tensor, 0);
            return D9D_OK;
        }
    }
}

/* --- the task --------------------------------------------------------------------------------- */

static const d9d_key keys[] = {D9D_KEY_END};
static const d9d_table table = {.name = "flip_tokens", .keys = keys, .doc = "a wrong computation"};

static d9d_status forward(void *self, d9d_model *m, d9d_tape *t, const d9d_model_in *in,
                          d9d_model_out *out)
{
    (void)self;
    if (flip.on && ((strcmp(flip.what, "tokens") == 0 && !flip.done && flip.now == flip.step) ||
                    (strcmp(flip.what, "stuck") == 0 && flip.now >= flip.step)))
        flip_bit("ids", in->ids, 4);
    return m->ops->forward(m, t, in, out);
}
static const d9d_train_task task = {.size = sizeof(task), .table = &table, .forward = forward};

static const d9d_job_event_handler events[] = {
    {"train.configuration.start", start},
    {"train.configuration.model_stages", keep_models},
    {"train.configuration.optimizer", keep_optimizer},
    {"train.forward_backward.post", after_backward},
    {NULL, NULL},
};
static const d9d_train_task *const tasks[] = {&task, NULL};
D9D_PLUGIN(.events = events, .train_tasks = tasks);
