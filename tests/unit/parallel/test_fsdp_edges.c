/* test_fsdp_edges.c - the ends of a step on a slow backend: reduced and gathered data are ready
 * when waited for and not before, and nothing that a collective uses may change or be freed until
 * then; also where an operation of the backend fails.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm_private.h"
#include "d9d/base/json.h"
#include "d9d/optim/optim.h"
#include "d9d/parallel/fsdp.h"
#include "support/optimizer_config.h"
#include "support/unit.h"

/* --- the wire: of two ranks the first is here, and the other has the same ------------------ */

enum { CALLS = 64, EVENTS = 512 };

typedef struct late_call {
    d9di_comm_call call;
    void *source; /* as it was when the call was made */
    size_t bytes;
    int64_t counts[2];
} late_call;

/* The calls of all groups; a point is a number of them. */
static struct wire {
    late_call calls[CALLS];
    int made, done;
    char said[EVENTS]; /* what was queued where, in order: see say() */
    int fail_in;       /* this operation fails, counted down; 0: none */
    bool stays_down;   /* and so do all after it */
    bool eager;        /* calls run when they are made: kernels of a CPU wait for no stream */
} wire;

static d9d_status fails(void)
{
    if (wire.fail_in == 0 || --wire.fail_in > 0)
        return D9D_OK;
    wire.fail_in = wire.stays_down;
    return D9D_FAIL(D9D_ECOMM, "the planted failure");
}

static void say(char what, const char *of)
{
    const size_t n = strlen(wire.said);

    assert_true(n + strlen(of) + 3 < EVENTS);
    wire.said[n] = what;
    strcpy(wire.said + n + 1, of);
    strcat(wire.said, " ");
}

static void run(late_call *l);

static d9d_status later(d9d_comm *c, const d9di_comm_call *k)
{
    const int64_t *counts = k->coll == D9DI_COLL_ALL_GATHER ? k->recv : k->send;
    const size_t size = d9d_dtype_size(k->t);
    int64_t all = k->n;
    late_call *l;

    D9D_TRY(fails());
    l = &wire.calls[wire.made++];
    assert_true(wire.made < CALLS && c->size == 2);
    *l = (late_call){.call = *k};
    if (counts != NULL) {
        memcpy(l->counts, counts, sizeof(l->counts));
        all = k->coll == D9DI_COLL_ALL_GATHER ? counts[0] : counts[0] + counts[1];
    }
    l->bytes = (size_t)all * size;
    l->source = malloc(l->bytes + 1);
    memcpy(l->source, k->src, l->bytes);
    assert_true(k->t == D9D_F32 || k->coll == D9DI_COLL_ALL_TO_ALL ||
                k->coll == D9DI_COLL_ALL_GATHER);
    say(k->coll == D9DI_COLL_ALL_GATHER   ? 'g'
        : k->coll == D9DI_COLL_ALL_TO_ALL ? 'x'
                                          : 's',
        k->label);
    if (wire.eager)
        run(&wire.calls[wire.done++]);
    return D9D_OK;
}

/* Both ranks have the same, so that sums are twice this one's. */
static void run(late_call *l)
{
    const d9di_comm_call *k = &l->call;
    const size_t size = d9d_dtype_size(k->t), first = (size_t)l->counts[0] * size;
    const float *src = l->source;
    float *dst = k->dst;

    assert_memory_equal(k->src, l->source, l->bytes); /* nobody has touched it since */
    if (k->coll == D9DI_COLL_ALL_GATHER || k->coll == D9DI_COLL_ALL_TO_ALL) {
        assert_int_equal(l->counts[0], l->counts[1]);
        memcpy(dst, src, first);
        memcpy((char *)dst + first, src, first);
    } else {
        const int64_t n = k->coll == D9DI_COLL_ALL_REDUCE ? k->n : l->counts[0];

        for (int64_t i = 0; i < n; i++)
            dst[i] = 2 * src[i];
    }
    free(l->source);
}

static d9d_stream queue(d9d_comm *c)
{
    return (d9d_stream)c; /* no kernel of a CPU looks at it */
}
static d9d_status fork_queue(d9d_comm *c, d9d_stream s)
{
    (void)c, (void)s;
    return fails();
}
static d9d_status point_set(d9d_comm *c, d9d_comm_event **at)
{
    int *n;

    (void)c;
    D9D_TRY(fails());
    n = *at != NULL ? (int *)*at : malloc(sizeof(*n));
    *n = wire.made;
    *at = (d9d_comm_event *)n;
    return D9D_OK;
}
static d9d_status join_at(d9d_comm *c, d9d_comm_event *at, d9d_stream s)
{
    (void)c, (void)s;
    D9D_TRY(fails());
    while (wire.done < *(const int *)at) {
        late_call *l = &wire.calls[wire.done++];

        run(l);
        say('.', l->call.label);
    }
    return D9D_OK;
}
static d9d_status join_queue(d9d_comm *c, d9d_stream s)
{
    return join_at(c, (d9d_comm_event *)&wire.made, s);
}
static void point_free(d9d_comm_event *at)
{
    free(at);
}

static const d9di_comm_backend_ops late_wire = {
    .run = {[D9DI_COLL_ALL_REDUCE] = later,
            [D9DI_COLL_ALL_GATHER] = later,
            [D9DI_COLL_REDUCE_SCATTER] = later,
            [D9DI_COLL_ALL_TO_ALL] = later},
    .stream = queue,
    .wait_stream = fork_queue,
    .stream_wait = join_queue,
    .event_record = point_set,
    .stream_wait_event = join_at,
    .event_free = point_free,
};

/* --- a model of three units: "a.w", "b.w" and "c.w" [4, 3] in parts, "b.v" [5] whole ---------- */

enum { UNITS = 3 };

typedef struct rig {
    d9d_device *dev;
    d9d_kernels kernels; /* of the CPU; reduce and optim say what they do */
    d9d_reduce_kernels reduce;
    d9d_optim_kernels optim;
    d9d_comm parts, copies;
    bool failed;
    d9d_module root, module[UNITS], *units[UNITS];
    d9d_param w[UNITS], v;
    d9d_params params;
    d9d_model model;
    d9d_fsdp *sharded;
    d9d_optimizer *opt;
    d9d_grad_finalize end;
    d9d_arena arena;
    json_t *doc;
} rig;

static const char *const names[UNITS] = {"a", "b", "c"};
static rig *now;

static const char *name_of(const void *own)
{
    for (size_t i = 0; i < now->params.n; i++)
        if (d9d_tensor_data(&now->params.p[i]->shard.data) == own ||
            d9d_tensor_data(&now->params.p[i]->shard.grad) == own)
            return now->params.p[i]->name;
    return "?";
}

static d9d_status say_squares(d9d_stream s, double *out, d9d_dtype t,
                              const d9d_sum_squares_array *list, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        say('n', name_of(list[i].x));
    return d9d_kernels_cpu()->reduce->sum_squares(s, out, t, list, count);
}

static d9d_status say_sgd(d9d_stream s, const d9d_sgd_step *c, d9d_dtype t, void *p,
                          int16_t *residual, d9d_dtype gt, const void *g, const float *scale,
                          d9d_dtype st, void *momentum, int64_t n)
{
    say('u', name_of(p));
    return d9d_kernels_cpu()->optim->sgd(s, c, t, p, residual, gt, g, scale, st, momentum, n);
}

static void optimizer_open(rig *r)
{
    d9d_union optimizer;

    assert_ok(
        optimizer_config_bind("{\"name\": \"sgd\", \"lr\": 1.0}", &r->arena, &r->doc, &optimizer));
    assert_ok(d9d_optimizer_create(&optimizer, r->dev, &r->params, NULL, 1, &r->opt));
}

static d9d_comm group(rig *r, char *name)
{
    static uint64_t sent[2];
    static const d9di_comm_wait_observer nobody = {0};

    return (d9d_comm){.ops = &late_wire,
                      .name = name,
                      .size = 2,
                      .failed = &r->failed,
                      .sent = sent,
                      .waits = &nobody};
}

/* Gradients that are final: their squares and their update. */
static d9d_status update_some(void *arg, const d9d_params *some)
{
    rig *r = arg;

    D9D_TRY(d9d_grad_finalize_add(&r->end, some));
    return d9d_optimizer_step_some(r->opt, some, 0.5, &r->end.scale);
}

/* `dim`: along which "w" is divided; by columns it is [2, 64], whose shards are not contiguous.
 * `release`: gradients are, when they have been used. */
static void rig_open(rig *r, bool frozen, int dim, d9d_dtype reduce, bool release)
{
    const d9d_fsdp_opts opts = {.with_grads = true,
                                .prefetch = 1,
                                .bucket_bytes = 1 << 20,
                                .reduce_dtype = reduce,
                                .release_grads = release};
    static char parts[] = "parts", copies[] = "copies";

    *r = (rig){.failed = false};
    wire = (struct wire){.eager = reduce == D9D_BF16};
    now = r;
    assert_ok(d9d_device_open("cpu", &r->dev));
    r->kernels = *r->dev->kernels;
    r->reduce = *r->kernels.reduce;
    r->reduce.sum_squares = say_squares;
    r->kernels.reduce = &r->reduce;
    r->optim = *r->kernels.optim;
    r->optim.sgd = say_sgd;
    r->kernels.optim = &r->optim;
    r->dev->kernels = &r->kernels;
    r->parts = group(r, parts);
    r->copies = group(r, copies);
    d9d_module_init(&r->root);
    for (int i = 0; i < UNITS; i++) {
        d9d_module_init(&r->module[i]);
        assert_ok(d9d_module_param(&r->module[i], "w", &r->w[i], D9D_F32,
                                   dim == 0 ? D9D_SHAPE(4, 3) : D9D_SHAPE(2, 64), D9D_INIT_NORMAL,
                                   1));
        r->units[i] = &r->module[i];
        if (i == 1)
            assert_ok(d9d_module_param(&r->module[i], "v", &r->v, D9D_F32, D9D_SHAPE(5),
                                       D9D_INIT_NORMAL, 1));
        assert_ok(d9d_module_child(&r->root, names[i], &r->module[i]));
    }
    r->w[0].spec.trainable = !frozen;
    assert_ok(d9d_module_bind(&r->root));
    for (int i = 0; i < UNITS; i++)
        d9d_param_shard(&r->w[i], &r->parts, dim, 2, 0);
    r->v.placement.grad_group = &r->copies;
    for (int i = 0; i < UNITS; i++)
        r->w[i].placement.is_primary = true;
    r->model = (d9d_model){.module = &r->root, .units = r->units, .n_units = UNITS};
    assert_ok(d9d_fsdp_create(&r->model, r->dev, &opts, &r->sharded));
    assert_ok(d9d_module_materialise(&r->root, r->dev, true));
    assert_ok(d9d_module_reset(&r->root, 7));
    assert_ok(d9d_module_params(&r->root, &r->arena, &r->params));
    assert_ok(d9d_grad_finalize_init(r->dev, 1, 0, NULL, &r->end));
    *(double *)d9d_tensor_data(&r->end.loss) = 0;
    optimizer_open(r);
    if (!release)
        return;
    d9d_fsdp_set_post_accumulate_grad_hook(r->sharded, update_some, r);
    assert_ok(d9d_grad_finalize_set_released(&r->end, &r->params));
}

static void rig_close(rig *r)
{
    d9d_fsdp_free(r->sharded);
    d9d_optimizer_free(r->opt);
    d9d_grad_finalize_release(&r->end);
    d9d_module_release(&r->root);
    for (int i = 0; i < UNITS; i++)
        d9d_module_release(&r->module[i]);
    assert_int_equal(wire.made, wire.done);
    json_decref(r->doc);
    d9d_arena_release(&r->arena);
    d9d_device_close(r->dev);
}

/* --- steps --------------------------------------------------------------------------------- */

static void pass(d9d_module *m, d9d_param_unit_pass pass, bool open)
{
    assert_ok((open ? m->unit->ops->unshard : m->unit->ops->reshard)(m->unit, pass));
}

/* Whole weights are both ranks' parts as these are now. */
static void forward(rig *r)
{
    d9d_fsdp_pre_forward(r->sharded, true, false);
    for (int i = 0; i < UNITS; i++) {
        const float *own, *data;

        pass(&r->module[i], D9D_PARAM_UNIT_FORWARD, true);
        own = d9d_tensor_data(&r->w[i].shard.data);
        data = d9d_tensor_data(&r->w[i].local.data);
        assert_memory_equal(data, own, 6 * sizeof(float));
        assert_memory_equal(data + 6, own, 6 * sizeof(float));
        pass(&r->module[i], D9D_PARAM_UNIT_FORWARD, false);
    }
}

static void grad_fill(d9d_param *p, float v)
{
    float *g = d9d_tensor_data(&p->local.grad);

    if (!d9d_param_needs_grad(p))
        return;
    for (int64_t i = 0; i < d9d_tensor_numel(&p->local.grad); i++)
        g[i] = v + (float)i;
    (void)d9d_param_grad_beta(&p->local);
    if (p->placement.shard_group != NULL && p->shard.grad.storage != NULL && !p->shard.has_grad)
        ((float *)d9d_tensor_data(&p->shard.grad))[0] = NAN; /* until the sum is there */
}

static void backward(rig *r)
{
    d9d_fsdp_pre_backward(r->sharded, true);
    for (int i = UNITS; i-- > 0;) {
        pass(&r->module[i], D9D_PARAM_UNIT_BACKWARD, true);
        grad_fill(&r->w[i], (float)i);
        if (i == 1)
            grad_fill(&r->v, 9);
        pass(&r->module[i], D9D_PARAM_UNIT_BACKWARD, false);
    }
}

static double norm(rig *r)
{
    d9d_grad_finalize_report report;

    assert_ok(d9d_grad_finalize_enqueue(&r->end, &r->params,
                                        &(d9d_grad_finalize_local){.targets = 1}, 0));
    assert_ok(
        d9d_device_download(r->dev, &report, d9d_tensor_data(&r->end.report), sizeof(report)));
    return report.norm;
}

/* After so many micro-batches. */
static double norm_of(bool frozen, int micros)
{
    double sum = 0;

    for (int i = frozen; i < UNITS; i++)
        for (int k = 0; k < 6; k++)
            sum += pow(2.0 * micros * (i + k), 2);
    for (int k = 0; k < 5; k++)
        sum += pow(2.0 * (9 + k), 2);
    return sqrt(sum);
}

static double norm_wanted(bool frozen)
{
    return norm_of(frozen, 1);
}

/* The norm begins with the last unit while sums of the others are under way, and reads none before
 * it is there; it is to the bit that of gradients that all are. */
static void norm_beside_sums(void **state)
{
    double early, late;
    rig r;

    (void)state;
    rig_open(&r, false, 0, D9D_F32, false);
    forward(&r);
    backward(&r);
    wire.said[0] = '\0';
    assert_ok(d9d_fsdp_post_backward(r.sharded));
    assert_null(r.w[2].shard.pending_reduce);
    assert_true(r.w[0].shard.pending_reduce != NULL && r.w[1].shard.pending_reduce != NULL &&
                r.v.shard.pending_reduce != NULL);
    late = norm(&r);
    assert_string_equal(wire.said, "nc.w .b.w .b.v nb.v nb.w .a.w na.w ");
    assert_true(late == norm_wanted(false));
    assert_ok(d9d_fsdp_wait_grads(r.sharded));
    assert_true(r.w[0].shard.pending_reduce == NULL && r.w[1].shard.pending_reduce == NULL &&
                r.v.shard.pending_reduce == NULL);
    early = norm(&r);
    assert_memory_equal(&early, &late, sizeof(late));
    rig_close(&r);
}

static d9d_status gather(void *arg, size_t i)
{
    return d9d_fsdp_prefetch(((rig *)arg)->sharded, i);
}

static void look_ahead(rig *r)
{
    const d9d_params *first[D9D_FSDP_PREFETCH_MAX];

    assert_int_equal(d9d_fsdp_first_units(r->sharded, first), 2);
    assert_true(first[0]->p[0] == &r->w[0] && first[1]->p[0] == &r->w[1]);
    assert_ok(d9d_optimizer_set_order(r->opt, first, 2, gather, r));
}

static void step(rig *r)
{
    d9d_module_clear_grads(&r->root);
    forward(r);
    backward(r);
    assert_ok(d9d_fsdp_post_backward(r->sharded));
    (void)norm(r);
    assert_ok(d9d_fsdp_wait_grads(r->sharded));
    wire.said[0] = '\0';
    assert_ok(d9d_optimizer_step(r->opt, 0.5, &r->end.scale));
}

/* Small integers are bfloat16 numbers, so the norm is exact: gradients of shards are exchanged,
 * those of the bucket also gathered. */
static void gradients_that_travel_as_bfloat16(void **state)
{
    rig r;

    (void)state;
    rig_open(&r, false, 0, D9D_BF16, false);
    forward(&r);
    wire.said[0] = '\0';
    backward(&r);
    assert_ok(d9d_fsdp_post_backward(r.sharded));
    assert_true(norm(&r) == norm_wanted(false));
    assert_string_equal(wire.said, "gc.w gb.w xc.w ga.w xb.w xb.v gb.v xa.w nc.w nb.v nb.w na.w ");
    rig_close(&r);
}

/* The first units are gathered behind their own update and before that of the last, and used.
 */
static void weights_beside_the_update(void **state)
{
    (void)state;
    for (int frozen = 0; frozen < 2; frozen++) {
        rig r;

        rig_open(&r, frozen, 0, D9D_F32, false);
        look_ahead(&r);
        step(&r);
        assert_string_equal(wire.said, frozen ? "ga.w ub.w ub.v gb.w uc.w "
                                              : "ua.w ga.w ub.w ub.v gb.w uc.w ");
        wire.said[0] = '\0';
        forward(&r);
        assert_string_equal(wire.said, ".a.w .b.w gc.w .c.w ");
        step(&r);
        assert_ok(d9d_fsdp_reshard(r.sharded)); /* and for nobody */
        assert_int_equal(wire.made, wire.done);
        wire.said[0] = '\0';
        forward(&r);
        assert_string_equal(wire.said, "ga.w .a.w gb.w .b.w gc.w .c.w ");
        step(&r); /* it ends with gathers under way */
        assert_int_equal(wire.made, wire.done + 2);
        rig_close(&r);
    }
}

/* --- a whole step --------------------------------------------------------------------------
 */

static d9d_status passes(rig *r, d9d_param_unit_pass pass)
{
    for (int k = 0; k < UNITS; k++) {
        const int i = pass == D9D_PARAM_UNIT_FORWARD ? k : UNITS - 1 - k;
        d9d_param_unit *u = r->module[i].unit;

        D9D_TRY(u->ops->unshard(u, pass));
        if (pass == D9D_PARAM_UNIT_BACKWARD) {
            grad_fill(&r->w[i], (float)i);
            if (i == 1)
                grad_fill(&r->v, 9);
        }
        D9D_TRY(u->ops->reshard(u, pass));
    }
    return D9D_OK;
}

static d9d_status try_step(rig *r)
{
    d9d_fsdp_pre_forward(r->sharded, true, false);
    D9D_TRY(passes(r, D9D_PARAM_UNIT_FORWARD));
    if (r->end.squares != NULL)
        D9D_TRY(d9d_grad_finalize_begin(&r->end, 0, &(d9d_grad_finalize_local){.targets = 1}));
    d9d_fsdp_pre_backward(r->sharded, true);
    D9D_TRY(passes(r, D9D_PARAM_UNIT_BACKWARD));
    D9D_TRY(d9d_fsdp_post_backward(r->sharded));
    D9D_TRY(d9d_fsdp_wait_grads(r->sharded));
    for (size_t i = 0; i < D9D_FSDP_PREFETCH_MAX; i++)
        D9D_TRY(d9d_fsdp_prefetch(r->sharded, i));
    return d9d_fsdp_reshard(r->sharded);
}

/* --- gradients that are released -----------------------------------------------------------
 */

static void no_gradient_has_memory(const rig *r)
{
    for (size_t i = 0; i < r->params.n; i++) {
        assert_null(r->params.p[i]->shard.grad.storage);
        assert_null(r->params.p[i]->local.grad.storage);
    }
}

/* All weights, of 6 or 5 elements each. */
enum { WEIGHTS = 3 * 6 + 5 };
static void weights_take(const rig *r, float out[WEIGHTS])
{
    for (size_t i = 0; i < r->params.n; out += d9d_tensor_numel(&r->params.p[i++]->shard.data))
        memcpy(out, d9d_tensor_data(&r->params.p[i]->shard.data),
               d9d_tensor_bytes(&r->params.p[i]->shard.data));
}

/* Each unit's update comes when the next one's backward is done, after its own sums and before that
 * unit's are sent; then its gradients have no memory.  Norm and weights are those of a plain step.
 */
static void updates_within_backward(void **state)
{
    const d9d_grad_finalize_local one = {.targets = 1};
    float got[WEIGHTS], want[WEIGHTS];
    uint64_t between;
    rig r;

    (void)state;
    rig_open(&r, false, 0, D9D_F32, true);
    between = d9d_device_memory(r.dev).in_use;
    for (int k = 0; k < 2; k++) {
        d9d_module_clear_grads(&r.root);
        forward(&r);
        assert_ok(d9d_grad_finalize_begin(&r.end, k, &one));
        wire.said[0] = '\0';
        backward(&r);
        assert_ok(d9d_fsdp_post_backward(r.sharded));
        assert_string_equal(wire.said, "gc.w .c.w gb.w sc.w .b.w ga.w .c.w nc.w uc.w sb.w sb.v "
                                       ".a.w .b.w nb.w ub.w .b.v nb.v ub.v sa.w .a.w na.w ua.w ");
        no_gradient_has_memory(&r);
        assert_true(norm(&r) == norm_wanted(false));
        assert_ok(d9d_fsdp_wait_grads(r.sharded));
        assert_int_equal(d9d_device_memory(r.dev).in_use, between);
    }
    weights_take(&r, got);
    rig_close(&r);
    rig_open(&r, false, 0, D9D_F32, false);
    step(&r);
    step(&r);
    weights_take(&r, want);
    assert_memory_equal(got, want, sizeof(want));
    rig_close(&r);
}

/* Gradients of several micro-batches are summed, and released after the last one.  Those of the
 * bucket are overwritten here, as grad_fill() does. */
static void the_last_micro_batch_releases(void **state)
{
    const d9d_grad_finalize_local one = {.targets = 1};
    rig r;

    (void)state;
    rig_open(&r, false, 0, D9D_F32, true);
    wire.eager = true;
    forward(&r);
    d9d_fsdp_pre_backward(r.sharded, false);
    assert_ok(passes(&r, D9D_PARAM_UNIT_BACKWARD));
    assert_non_null(r.w[2].shard.grad.storage);
    assert_true(r.w[2].shard.has_grad);
    forward(&r);
    assert_ok(d9d_grad_finalize_begin(&r.end, 0, &one));
    backward(&r);
    assert_ok(d9d_fsdp_post_backward(r.sharded));
    no_gradient_has_memory(&r);
    assert_true(norm(&r) == norm_of(false, 2));
    assert_ok(d9d_fsdp_wait_grads(r.sharded));
    rig_close(&r);
}

/* A unit that backward never comes to counts as zeros, with or without release: other ranks wait
 * for its bucket. */
static void a_unit_without_backward(void **state)
{
    const d9d_grad_finalize_local one = {.targets = 1};

    (void)state;
    for (int release = 0; release < 2; release++) {
        double got;
        rig r;

        rig_open(&r, false, 0, D9D_F32, release);
        wire.eager = true;
        forward(&r);
        if (release)
            assert_ok(d9d_grad_finalize_begin(&r.end, 0, &one));
        d9d_fsdp_pre_backward(r.sharded, true);
        for (int i = UNITS; i-- > 0;) {
            if (i == 1)
                continue;
            pass(&r.module[i], D9D_PARAM_UNIT_BACKWARD, true);
            grad_fill(&r.w[i], (float)i);
            pass(&r.module[i], D9D_PARAM_UNIT_BACKWARD, false);
        }
        assert_ok(d9d_fsdp_post_backward(r.sharded));
        got = norm(&r);
        assert_ok(d9d_fsdp_wait_grads(r.sharded));
        assert_true(isfinite(got));
        if (release)
            no_gradient_has_memory(&r);
        rig_close(&r);
    }
}

/* --- failures of any of them --------------------------------------------------------------
 */

/* A wire that stays down never runs what it has taken. */
static void wire_drop(void)
{
    wire.fail_in = 0;
    for (; wire.done < wire.made; wire.done++)
        free(wire.calls[wire.done].source);
}

/* Whatever operation of a step fails, its sentence stays and all memory comes back: closing the
 * device asserts that none is in use. */
static void a_failure_leaves_no_memory(void **state)
{
    (void)state;
    for (int way = 0; way < 8; way++)
        for (int down = 0; down < 2; down++) {
            d9d_status st = D9D_ECOMM;

            for (int at = 1; st != D9D_OK; at++) {
                rig r;

                rig_open(&r, false, way % 2, way % 4 < 2 ? D9D_F32 : D9D_BF16, way >= 4);
                wire.fail_in = at;
                wire.stays_down = down;
                st = try_step(&r);
                if (st != D9D_OK)
                    assert_string_equal(d9d_err_message(), "the planted failure");
                assert_true(st == D9D_OK ? at > 40 : st == D9D_ECOMM);
                wire.fail_in = down && st != D9D_OK;
                d9d_fsdp_free(r.sharded);
                r.sharded = NULL;
                wire_drop();
                rig_close(&r);
            }
        }
}

/* The same where memory is what fails. */
static void no_memory_leaves_no_memory(void **state)
{
    (void)state;
    for (int way = 0; way < 8; way++) {
        d9d_status st = D9D_EOOM;

        for (uint64_t more = 0; st != D9D_OK; more += 256) {
            rig r;

            rig_open(&r, false, way % 2, way % 4 < 2 ? D9D_F32 : D9D_BF16, way >= 4);
            d9d_device_trim(r.dev);
            d9d_device_set_limit(r.dev, d9d_device_memory(r.dev).in_use + more);
            st = try_step(&r);
            assert_true(st == D9D_OK ? more > 256 : st == D9D_EOOM);
            d9d_fsdp_free(r.sharded);
            r.sharded = NULL;
            wire_drop();
            rig_close(&r);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norm_beside_sums),
        cmocka_unit_test(gradients_that_travel_as_bfloat16),
        cmocka_unit_test(weights_beside_the_update),
        cmocka_unit_test(updates_within_backward),
        cmocka_unit_test(the_last_micro_batch_releases),
        cmocka_unit_test(a_unit_without_backward),
        cmocka_unit_test(a_failure_leaves_no_memory),
        cmocka_unit_test(no_memory_leaves_no_memory),
    };

    return cmocka_run_group_tests_name("edges", tests, NULL, NULL);
}
