/* pipeline_driver.c - runs a schedule's program on its ranks and compares the result with the
 * undivided model: `pipeline_driver KIND [STAGES [FLAG...]]`.
 *
 * KIND is a schedule's name, STAGES of 1f1b and looped_bfs are those of a rank, flags are
 *
 *     split    1f1b: zero_bubble          deep     1f1b: the deeper warm-up
 *     tied     one embedding              frozen   the first stage trains nothing
 *     again    activation checkpointing
 *
 * Micro-batches have different lengths, and the program runs three times.  Gradients and losses
 * must equal those of the whole model, which every rank computes alone, to 1e-5 (2-norms of each
 * parameter).  No rank may hold more tapes than the timeline says.  D9D_TEST_DEVICE names the
 * device; on GPUs each rank takes the GPU of its number.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/comm/mesh.h"
#include "d9d/model/model.h"
#include "d9d/parallel/tied_weights.h"
#include "d9d/pipe/executor.h"
#include "d9d/pipe/timeline.h"
#include "support/family.h"

enum { LAYERS = 16, HIDDEN = 32, VOCAB = 61, ROWS = 2, PLAYS = 3, MAX_STAGES = 64 };

struct job {
    d9d_bootstrap *bootstrap;
    d9d_mesh *mesh;
    d9d_device *dev;
    d9d_comm *down, *up;
    d9d_arena arena;
    d9d_family_config config;
    d9d_model_opts options;
    d9d_pipe_schedule_opts pipe;
    bool frozen;
    d9d_program program;
    d9d_executor *executor;
    int rank, ranks;
    d9d_model *whole, *stage[MAX_STAGES]; /* those of this rank */
    double *losses;                       /* [micros], on the device; of the stages */
    double want[MAX_STAGES];
};

/* --- a model ---------------------------------------------------------------------------------- */

static d9d_status freeze(void *arg, d9d_param *p)
{
    (void)arg;
    p->spec.trainable = false;
    return D9D_OK;
}

static bool is_first_layers(const struct job *j, const d9d_param *p)
{
    const char *layer = strstr(p->name, "layers.");

    return strstr(p->name, "embed_tokens") != NULL ||
           (layer != NULL && atoi(layer + 7) < LAYERS / j->program.stages);
}

static d9d_status freeze_first(void *arg, d9d_param *p)
{
    return is_first_layers(arg, p) ? freeze(NULL, p) : D9D_OK;
}

static d9d_status make_model(struct job *j, d9d_stage stage, d9d_model **out)
{
    D9D_TRY(d9d_family_create(&j->config, stage, &j->options, out));
    D9D_TRY(d9d_module_bind((*out)->module));
    if (j->frozen)
        D9D_TRY(d9d_module_each((*out)->module, freeze_first, j));
    D9D_TRY(d9d_module_materialise((*out)->module, j->dev, true));
    return d9d_module_reset((*out)->module, 7);
}

/* --- a micro-batch ---------------------------------------------------------------------------- */

static int64_t length_of(int micro)
{
    return 4 + 3 * (micro % 4);
}

/* `what`: 0 ids, 1 labels, 2 positions. */
static d9d_status make_input(const struct job *j, int micro, int what, d9d_tensor *out)
{
    const int64_t length = length_of(micro);
    int32_t v[ROWS * 16];

    for (int64_t i = 0; i < ROWS * length; i++) {
        const int32_t some = (int32_t)((micro * 97 + i * 31 + what * 17 + i * i) % VOCAB);

        v[i] = what == 2                 ? (int32_t)(i % length)
               : what == 1 && i % 5 == 0 ? D9D_IGNORE_INDEX
                                         : some;
    }
    return d9d_tensor_from_host(j->dev, D9D_I32, D9D_SHAPE(ROWS, length), v, out);
}

/* A forward; the sum of its losses, if any, is added to *sum. */
static d9d_status run(struct job *j, d9d_model *m, int micro, d9d_tape *t, d9d_var *in,
                      d9d_var **out, double *sum)
{
    d9d_tensor x[3] = {{0}};
    d9d_model_out o = {0};
    d9d_status st = D9D_OK;

    for (int i = 0; i < 3 && st == D9D_OK; i++)
        st = make_input(j, micro, i, &x[i]);
    if (st == D9D_OK)
        st = m->ops->forward(m, t,
                             &(d9d_model_in){.ids = &x[0],
                                             .labels = &x[1],
                                             .positions = &x[2],
                                             .hidden = in,
                                             .loss_is_root = true},
                             &o);
    if (st == D9D_OK && d9d_stage_is_last(m->stage))
        st = j->dev->kernels->reduce->sum(j->dev->stream, sum, 0, D9D_F32,
                                          d9d_tensor_data(d9d_var_tensor(o.loss)),
                                          d9d_tensor_numel(d9d_var_tensor(o.loss)));
    for (int i = 0; i < 3; i++)
        d9d_tensor_release(&x[i]);
    if (out != NULL)
        *out = o.hidden;
    return st;
}

/* --- the whole model -------------------------------------------------------------------------- */

static d9d_status learn_whole(struct job *j)
{
    d9d_tape *t;
    d9d_status st = D9D_OK;

    D9D_TRY(d9d_tape_create(j->dev, &t));
    for (int m = 0; m < j->program.micros && st == D9D_OK; m++) {
        st = run(j, j->whole, m, t, NULL, NULL, j->losses);
        if (st == D9D_OK)
            st = d9d_tape_backward(t, NULL, NULL, 0, D9D_BACKWARD_FULL);
        if (st == D9D_OK)
            st = d9d_device_download(j->dev, &j->want[m], j->losses, sizeof(double));
        d9d_tape_reset(t);
    }
    d9d_tape_free(t);
    return st;
}

/* --- stages ----------------------------------------------------------------------------------- */

static d9d_status forward(void *self, int stage, int micro, d9d_tape *t, d9d_var *const *in,
                          d9d_var **out)
{
    struct job *j = self;

    return run(j, j->stage[stage / j->ranks], micro, t, in[0], out, j->losses + micro);
}

static d9d_status tensors(void *self, int stage, int micro, d9d_stage_tensor *out, size_t *n)
{
    (void)self, (void)stage;
    *out = (d9d_stage_tensor){.name = D9D_STAGE_HIDDEN,
                              .dtype = D9D_F32,
                              .shape = D9D_SHAPE(ROWS, length_of(micro), HIDDEN)};
    *n = 1;
    return D9D_OK;
}

static d9d_status sum_tied(struct job *j)
{
    const int n = j->program.stages / j->ranks;
    d9d_model *first = j->stage[0], *last = j->stage[n - 1];
    const int peer = d9d_program_rank_of(&j->program, j->rank == 0 ? j->program.stages - 1 : 0);

    if (first->tied != NULL && last->tied != NULL && first != last)
        return d9d_tied_weights_sum_grads(first->tied, last->tied, NULL, 0, j->dev);
    if (first->tied != NULL || last->tied != NULL)
        return d9d_tied_weights_sum_grads(first->tied != NULL ? first->tied : last->tied, NULL,
                                          j->down, peer, j->dev);
    return D9D_OK;
}

static d9d_status learn_stages(struct job *j)
{
    for (int play = 0; play < PLAYS; play++) {
        for (int k = 0; k < j->program.stages / j->ranks; k++)
            d9d_module_clear_grads(j->stage[k]->module);
        D9D_TRY(d9d_executor_run(j->executor));
        D9D_TRY(sum_tied(j));
    }
    return D9D_OK;
}

/* --- comparison ------------------------------------------------------------------------------- */

static d9d_status far(const d9d_tensor *a, const d9d_tensor *b, double *out)
{
    const int64_t n = d9d_tensor_numel(a);
    float *x = calloc((size_t)n + 1, sizeof(*x)), *y = calloc((size_t)n + 1, sizeof(*y));
    double distance = 0, size = 0;

    if (x == NULL || y == NULL)
        exit(99);
    D9D_TRY(d9d_tensor_to_f32(a, x));
    D9D_TRY(d9d_tensor_to_f32(b, y));
    for (int64_t i = 0; i < n; i++) {
        distance += pow((double)x[i] - (double)y[i], 2);
        size += pow((double)y[i], 2);
    }
    *out = distance == 0 ? 0 : sqrt(distance / size);
    free(x);
    free(y);
    return D9D_OK;
}

static d9d_status compare_param(void *arg, d9d_param *p)
{
    struct job *j = arg;
    d9d_param *q = d9d_module_find(j->whole->module, p->name);
    double apart = 0;

    if (q == NULL || d9d_param_has_shard_grad(p) != d9d_param_has_shard_grad(q))
        return D9D_FAIL(D9D_EVERIFY, "%s: %s", p->name,
                        q == NULL ? "is in no model" : "has a gradient in one way alone");
    if (!d9d_param_has_shard_grad(p))
        return D9D_OK;
    D9D_TRY(far(&p->shard.grad, &q->shard.grad, &apart));
    return apart <= 1e-5
               ? D9D_OK
               : D9D_FAIL(D9D_EVERIFY, "%s: its gradient differs by %.2g", p->name, apart);
}

static d9d_status compare_losses(struct job *j)
{
    double got[MAX_STAGES];

    if (!d9d_stage_is_last(j->stage[j->program.stages / j->ranks - 1]->stage))
        return D9D_OK;
    D9D_TRY(
        d9d_device_download(j->dev, got, j->losses, (size_t)j->program.micros * sizeof(double)));
    for (int m = 0; m < j->program.micros; m++)
        if (!(fabs(got[m] - j->want[m]) <= 1e-5 * fabs(j->want[m])))
            return D9D_FAIL(D9D_EVERIFY, "micro-batch %d: loss %.9g, not %.9g", m, got[m],
                            j->want[m]);
    return D9D_OK;
}

static d9d_status compare_live(struct job *j)
{
    d9d_stage_costs prices[MAX_STAGES];
    d9d_timeline t;
    int want;

    for (int s = 0; s < j->program.stages; s++)
        prices[s] = (d9d_stage_costs){1, 1, 1};
    D9D_TRY(d9d_timeline_make(&j->program, &(d9d_pipe_costs){.stages = prices}, &t));
    want = t.live[j->rank];
    d9d_timeline_release(&t);
    if (d9d_executor_max_live(j->executor) != want)
        return D9D_FAIL(D9D_EVERIFY, "rank %d held %d tapes, the timeline says %d", j->rank,
                        d9d_executor_max_live(j->executor), want);
    return D9D_OK;
}

static d9d_status compare(struct job *j)
{
    for (int k = 0; k < j->program.stages / j->ranks; k++)
        D9D_TRY(d9d_module_each(j->stage[k]->module, compare_param, j));
    D9D_TRY(compare_losses(j));
    return compare_live(j);
}

/* --- main ------------------------------------------------------------------------------------- */

static d9d_status read_words(struct job *j, int argc, char **argv)
{
    int kind = 0;

    while (kind < D9D_PIPE_SCHEDULE_COUNT &&
           strcmp(d9d_pipe_schedule_name((d9d_pipe_schedule)kind), argv[1]))
        kind++;
    if (kind == D9D_PIPE_SCHEDULE_COUNT || kind == D9D_PIPE_INFERENCE)
        return D9D_FAIL(D9D_EINVAL, "no schedule to learn by: %s", argv[1]);
    j->pipe.kind = (d9d_pipe_schedule)kind;
    j->pipe.stages_per_rank = argc > 2 ? atoi(argv[2]) : 1;
    for (int i = 3; i < argc; i++) {
        j->pipe.zero_bubble |= strcmp(argv[i], "split") == 0;
        j->pipe.deep_warmup |= strcmp(argv[i], "deep") == 0;
        family_dims(&j->config)->tie_word_embeddings |= strcmp(argv[i], "tied") == 0;
        j->frozen |= strcmp(argv[i], "frozen") == 0;
        if (strcmp(argv[i], "again") == 0)
            j->options.recompute = D9D_RECOMPUTE_FULL;
    }
    return D9D_OK;
}

static d9d_status open_job(struct job *j)
{
    const char *where = getenv("D9D_TEST_DEVICE");
    const bool gpu = where != NULL && strncmp(where, "cuda", 4) == 0;
    d9d_parallel_degrees d = {1, 1, 1, 1, 1, 1, 1, 1, D9D_CP_ALL_GATHER};
    char device[32] = "cpu";

    D9D_TRY(d9d_bootstrap_open(&j->bootstrap));
    j->rank = d9d_bootstrap_rank(j->bootstrap);
    j->ranks = d9d_bootstrap_size(j->bootstrap);
    d.pipeline_parallel = j->ranks;
    if (gpu)
        (void)snprintf(device, sizeof(device), "cuda:%d", j->rank);
    D9D_TRY(d9d_device_open(device, &j->dev));
    D9D_TRY(d9d_mesh_open(j->bootstrap, &d, gpu ? "cuda" : "cpu", j->dev->stream,
                          &(d9d_mesh_opts){.timeout_s = 600}, &j->mesh));
    D9D_TRY(d9d_mesh_group(j->mesh, D9D_AXIS(PP), &j->down));
    return d9d_mesh_group_dup(j->mesh, D9D_AXIS(PP), 1, &j->up);
}

static d9d_status open_models(struct job *j)
{
    static const d9d_executor_ops ops = {.forward = forward, .tensors = tensors};
    const int micros = 2 * j->ranks;

    D9D_TRY(d9d_program_build(&j->pipe, j->ranks, micros, &j->program));
    D9D_TRY(d9d_program_insert_p2p(&j->program));
    D9D_TRY(d9d_program_check(&j->program));
    D9D_TRY(d9d_device_alloc(j->dev, (uint64_t)micros * sizeof(double), (void **)&j->losses));
    D9D_TRY(make_model(j, D9D_WHOLE_MODEL, &j->whole));
    for (int k = 0; k < j->program.stages / j->ranks; k++)
        D9D_TRY(make_model(
            j, (d9d_stage){d9d_program_stage_of(&j->program, j->rank, k), j->program.stages},
            &j->stage[k]));
    return d9d_executor_create(&(d9d_executor_opts){.program = &j->program,
                                                    .rank = j->rank,
                                                    .dev = j->dev,
                                                    .down = j->down,
                                                    .up = j->up,
                                                    .ops = &ops,
                                                    .self = j},
                               &j->executor);
}

static d9d_status all(struct job *j, int argc, char **argv)
{
    D9D_TRY(family_make(
        &j->arena, &j->config,
        "{\"model_type\": \"qwen3\", \"hidden_size\": %d, \"num_hidden_layers\": %d, "
        "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 8, "
        "\"intermediate_size\": 48, \"max_position_embeddings\": 64, \"vocab_size\": %d, "
        "\"initializer_range\": 0}",
        HIDDEN, LAYERS, VOCAB));
    D9D_TRY(read_words(j, argc, argv));
    D9D_TRY(open_job(j));
    D9D_TRY(open_models(j));
    D9D_TRY(learn_whole(j));
    D9D_TRY(learn_stages(j));
    return compare(j);
}

static void close_job(struct job *j)
{
    d9d_executor_free(j->executor);
    for (int k = 0; k < MAX_STAGES; k++)
        d9d_model_free(j->stage[k]);
    d9d_model_free(j->whole);
    if (j->losses != NULL)
        d9d_device_free(j->dev, j->losses, (uint64_t)j->program.micros * sizeof(double));
    d9d_program_release(&j->program);
    d9d_mesh_close(j->mesh);
    d9d_device_close(j->dev);
    d9d_bootstrap_close(j->bootstrap);
    d9d_arena_release(&j->arena);
}

int main(int argc, char **argv)
{
    struct job j = {.options = {.dtype = D9D_F32}};
    d9d_status st = argc < 2
                        ? D9D_FAIL(D9D_EINVAL, "usage: pipeline_driver KIND [STAGES [FLAG...]]")
                        : all(&j, argc, argv);

    if (st != D9D_OK)
        fprintf(stderr, "rank %d: %s\n", j.rank, d9d_err_message());
    else if (j.rank == 0)
        printf("%d stages on %d ranks: as without stages\n", j.program.stages, j.ranks);
    if (st != D9D_OK && j.ranks > 1)
        d9d_bootstrap_abort(j.bootstrap, 1, d9d_err_message());
    close_job(&j);
    return d9d_status_exit_code(st);
}
