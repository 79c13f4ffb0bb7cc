/* certify_gradients.c - gradients against finite differences of the loss.  See certify_parts.h.
 *
 * Along a direction d the derivative of the loss f is, of the quotients q of two steps,
 *
 *     g.d  ~  (4 q(h) - q(2h)) / 3        q(h) = (f(h) - f(-h)) / 2h        Richardson 1911
 *
 * A random d of unit scale has g.d of the size of |g|, by which differences are measured.  Where a
 * token crosses to another expert the loss jumps, and with small steps its rounding shows: then
 * quotients of neighbouring steps differ.  Where a clamp has its kink within the step the slopes of
 * the two sides differ, of which q is the mean, for all steps alike if the kink is near enough.  A
 * smooth f has a bend b of O(h), so that without a kink
 *
 *     2 b(h) - b(2h)  ~  0                b(h) = (f(h) - 2 f(0) + f(-h)) / h
 *
 * is the difference of the two slopes.  The first three steps in a row whose quotients agree tell,
 * if their bends show no kink; otherwise other directions and other tokens, fewer of them, are
 * tried.  A gradient of less than a hundredth of the whole is measured by that, since losses in
 * float32 tell no more.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "certify/certify_parts.h"
#include "d9d/base/median.h"
#include "d9d/base/rng.h"

enum {
    TOKENS = 8, /* batches */
    WANTED = 5, /* directions that tell */
    TRIES = 32, /* of a batch */
    STEPS = 10
};
static const double limit = 1e-2, agreement = 2.5e-3, first_step = 8e-2, least_share = 1e-2;

/* --- finite differences ----------------------------------------------------------------------- */

/* A parameter, its gradient, and a direction. */
typedef struct probe {
    const d9d_param *param;
    const float *grad;
    float *start, *direction, *moved;
    size_t n;
    double scale; /* root mean square of its numbers */
    double norm;  /* of its gradient */
} probe;

typedef struct probes {
    d9di_small_model *m;
    probe *of;
    size_t n;
    double loss; /* where the parameters are */
    double all;  /* norm of all gradients */
} probes;

static double norm_of(const float *x, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

static d9d_status probe_init(probe *p, const d9d_param *param, const float *grad, size_t n)
{
    float *all = calloc(3 * n + 1, sizeof(*all));

    if (all == NULL)
        return D9D_FAIL(D9D_ENOMEM, "a direction of %s", param->name);
    *p = (probe){param, grad, all, all + n, all + 2 * n, n, 0, norm_of(grad, n)};
    D9D_TRY(d9d_tensor_to_f32(&param->shard.data, p->start));
    p->scale = norm_of(p->start, n) / sqrt((double)n);
    if (p->scale < 1e-2)
        p->scale = 1e-2; /* such as biases that are zero */
    return D9D_OK;
}

static void probes_release(probes *s)
{
    for (size_t i = 0; s->of != NULL && i < s->n; i++)
        free(s->of[i].start);
    free(s->of);
}

static d9d_status probes_init(probes *s, d9di_small_model *m, double loss,
                              const d9di_small_gradients *g)
{
    double sum = 0;

    *s = (probes){.m = m, .of = calloc(g->n + 1, sizeof(*s->of)), .loss = loss};
    if (s->of == NULL)
        return D9D_FAIL(D9D_ENOMEM, "directions of a small model");
    for (size_t i = 0; i < g->n; i++) {
        if (g->of[i] == NULL)
            continue;
        s->n++;
        D9D_TRY(probe_init(&s->of[s->n - 1], m->params.p[i], g->of[i], g->count[i]));
        sum += pow(s->of[s->n - 1].norm, 2);
    }
    s->all = sqrt(sum);
    return D9D_OK;
}

static void draw_direction(probe *p, uint64_t seed, uint64_t number)
{
    const d9d_rng rng = {seed + 1 + number, p->param->id};

    for (size_t i = 0; i < p->n; i++)
        p->direction[i] = (float)(p->scale * (double)d9d_rng_normal(rng, i));
}

static double along(const probe *p)
{
    double sum = 0;

    for (size_t i = 0; i < p->n; i++)
        sum += (double)p->grad[i] * (double)p->direction[i];
    return sum;
}

/* Move the parameter by h along its direction. */
static d9d_status move(const probe *p, double h)
{
    for (size_t k = 0; k < p->n; k++)
        p->moved[k] = (float)((double)p->start[k] + h * (double)p->direction[k]);
    return d9d_device_upload(d9d_tensor_device(&p->param->shard.data),
                             d9d_tensor_data(&p->param->shard.data), p->moved,
                             p->n * sizeof(*p->moved));
}

/* Of a step. */
typedef struct differences {
    double quotient, bend; /* q(h), b(h) */
} differences;

static d9d_status measure_step(const probes *s, const probe *p, double h, differences *out)
{
    double above, below;

    D9D_TRY(move(p, h));
    D9D_TRY(d9di_small_model_loss(s->m, &above));
    D9D_TRY(move(p, -h));
    D9D_TRY(d9di_small_model_loss(s->m, &below));
    *out = (differences){(above - below) / (2 * h), (above - 2 * s->loss + below) / h};
    return D9D_OK;
}

/* Whether the quotients of h, 2 h and 4 h are one, up to `most`. */
static bool quotients_agree(const differences *q, double most)
{
    return fabs(q[0].quotient - q[1].quotient) <= most &&
           fabs(q[1].quotient - q[2].quotient) <= most;
}

/* Whether their bends are those of a function without a kink. */
static bool bends_agree(const differences *q, double most)
{
    return fabs(2 * q[0].bend - q[1].bend) <= 4 * most &&
           fabs(2 * q[1].bend - q[2].bend) <= 4 * most;
}

/* The error along the direction, relative to `unit`; *tells is false if no three steps in a row
 * agree, or those that do have a kink between them. */
static d9d_status measure_direction(const probes *s, const probe *p, double unit, double *error,
                                    bool *tells)
{
    const double wanted = along(p), most = agreement * unit;
    differences q[3] = {{NAN, NAN}, {NAN, NAN}, {NAN, NAN}}; /* of h, 2 h, 4 h */
    double h = first_step;

    for (int i = 0; i < STEPS && !quotients_agree(q, most); i++, h /= 2) {
        q[2] = q[1];
        q[1] = q[0];
        D9D_TRY(measure_step(s, p, h, &q[0]));
    }
    *tells = quotients_agree(q, most) && bends_agree(q, most);
    *error = fabs((4 * q[0].quotient - q[1].quotient) / 3 - wanted) / unit;
    return move(p, 0);
}

/* Errors along the directions of a tensor that told. */
typedef struct measured {
    double errors[WANTED];
    int n;
} measured;

/* What is found of all tensors. */
typedef struct finding {
    double error; /* the worst */
    const char *name;
    size_t tensors, unmeasured; /* of the latter too few steps tell */
    measured *of;               /* [tensors], in the certificate's arena */
} finding;

/* By the median of directions that tell: kinks that cancel are in few of them, a wrong gradient is
 * in all. */
static d9d_status measure_probe(const probes *s, probe *p, uint64_t seed, measured *out)
{
    const double least = least_share * s->all;
    const double unit = p->scale * (p->norm > least ? p->norm : least);

    for (uint64_t k = 0; k < TRIES && out->n < WANTED; k++) {
        bool tells = false;

        draw_direction(p, seed, k);
        D9D_TRY(measure_direction(s, p, unit, &out->errors[out->n], &tells));
        out->n += tells;
    }
    return D9D_OK;
}

static d9d_status finding_init(finding *f, size_t tensors, d9d_arena *a)
{
    *f = (finding){.tensors = tensors,
                   .unmeasured = tensors,
                   .of = d9d_arena_alloc(a, (tensors + 1) * sizeof(*f->of))};
    return f->of != NULL ? D9D_OK : D9D_FAIL(D9D_ENOMEM, "findings of %zu tensors", tensors);
}

/* Those of which other tokens have not told enough. */
static d9d_status measure_probes(const probes *s, uint64_t seed, d9d_arena *a, finding *out)
{
    if (out->of == NULL)
        D9D_TRY(finding_init(out, s->n, a));
    for (size_t i = 0; i < s->n; i++) {
        measured *m = &out->of[i];
        double error;

        if (m->n == WANTED)
            continue;
        D9D_TRY(measure_probe(s, &s->of[i], seed, m));
        if (m->n < WANTED)
            continue;
        out->unmeasured--;
        error = d9d_median(m->errors, WANTED);
        if (out->name == NULL || !(error <= out->error)) {
            out->error = error;
            out->name = s->of[i].param->name;
        }
    }
    return D9D_OK;
}

static d9d_status measure_model(d9di_small_model *m, uint64_t seed, d9d_arena *a, finding *out)
{
    d9di_small_gradients g = {.n = 0};
    probes s = {.n = 0};
    double loss;
    d9d_status st;

    D9D_TRY_OR(st, d9di_small_model_backward(m, &loss), done);
    D9D_TRY_OR(st, d9di_small_gradients_read(m, &g), done);
    D9D_TRY_OR(st, probes_init(&s, m, loss, &g), done);
    st = measure_probes(&s, seed, a, out);
done:
    probes_release(&s);
    d9di_small_gradients_release(&g);
    return st;
}

/* With the tokens of the try k, fewer than at first.  The finding's name is in the certificate's
 * arena. */
static d9d_status measure_tokens(d9di_certify *c, uint64_t k, finding *out)
{
    const d9di_small_model_opts opts = {.choices = c->choices,
                                        .seed = c->opts->seed + k,
                                        .rows = c->has_experts || k > 0 ? 1 : 0,
                                        .head = &c->head};
    d9di_small_model m;
    d9d_status st = d9di_small_model_open(&m, c->folder, &opts);

    if (st == D9D_OK)
        st = measure_model(&m, opts.seed, c->arena, out);
    if (st == D9D_OK && out->name != NULL)
        out->name = d9d_arena_strdup(c->arena, out->name);
    (void)d9di_small_model_close(&m);
    return st;
}

d9d_status d9di_certify_gradients(d9di_certify *c, d9d_certificate_check *out)
{
    finding f = {.unmeasured = 1};

    for (uint64_t k = 0; k < TOKENS && f.unmeasured > 0 && f.error <= limit; k++)
        D9D_TRY(measure_tokens(c, k, &f));
    out->figure = f.unmeasured > 0 && f.error <= limit ? INFINITY : f.error;
    out->limit = limit;
    return isinf(out->figure)
               ? d9di_certify_detail(c, out, "of %zu of %zu tensors no step tells", f.unmeasured,
                                     f.tensors)
               : d9di_certify_detail(c, out, "%zu tensors, the worst %s", f.tensors, f.name);
}
