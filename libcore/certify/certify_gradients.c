/* certify_gradients.c - gradients against finite differences of the loss.  See certify_parts.h.
 *
 * Along a direction d the derivative of the loss f is, of the quotients q of two steps,
 *
 *     g.d  ~  (4 q(h) - q(2h)) / 3        q(h) = (f(h) - f(-h)) / 2h        Richardson 1911
 *
 * A random d of unit scale has g.d of the size of |g|, by which differences are measured.  Where a
 * token crosses to another expert the loss jumps, and with small steps its rounding shows: then
 * quotients of neighbouring steps differ, and smaller steps, other directions and other tokens are
 * tried. A gradient of less than a hundredth of the whole is measured by that, since losses in
 * float32 tell no more.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "certify/certify_parts.h"
#include "d9d/base/rng.h"

enum {
    TOKENS = 4,
    WANTED = 2,
    TRIES = 16,
    STEPS = 8
}; /* batches; directions that tell; all; steps */
static const double limit = 1e-2, agreement = 2.5e-3, first_step = 2e-2, least_share = 1e-2;

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
    double all; /* norm of all gradients */
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

static d9d_status probes_init(probes *s, d9di_small_model *m, const d9di_small_gradients *g)
{
    double sum = 0;

    *s = (probes){.m = m, .of = calloc(g->n + 1, sizeof(*s->of))};
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

/* The quotient q(h). */
static d9d_status quotient(d9di_small_model *m, const probe *p, double h, double *out)
{
    double above, below;

    D9D_TRY(move(p, h));
    D9D_TRY(d9di_small_model_loss(m, &above));
    D9D_TRY(move(p, -h));
    D9D_TRY(d9di_small_model_loss(m, &below));
    *out = (above - below) / (2 * h);
    return D9D_OK;
}

/* The error along the direction, relative to `unit`; *tells is false if no three steps in a row
 * agree. */
static d9d_status measure_direction(d9di_small_model *m, const probe *p, double unit, double *error,
                                    bool *tells)
{
    const double wanted = along(p);
    double h = first_step, q[3] = {NAN, NAN, NAN}; /* of h, 2 h, 4 h */

    *tells = false;
    for (int i = 0; i < STEPS && !*tells; i++, h /= 2) {
        q[2] = q[1];
        q[1] = q[0];
        D9D_TRY(quotient(m, p, h, &q[0]));
        *tells = fabs(q[0] - q[1]) <= agreement * unit && fabs(q[1] - q[2]) <= agreement * unit;
        *error = fabs((4 * q[0] - q[1]) / 3 - wanted) / unit;
    }
    return move(p, 0);
}

/* What is found of all tensors. */
typedef struct finding {
    double error; /* the worst */
    const char *name;
    size_t tensors, unmeasured; /* of the latter no step tells */
} finding;

/* By some directions that tell. */
static d9d_status measure_probe(const probes *s, probe *p, uint64_t seed, finding *out)
{
    const double least = least_share * s->all;
    const double unit = p->scale * (p->norm > least ? p->norm : least);
    int measured = 0;

    for (uint64_t k = 0; k < TRIES && measured < WANTED; k++) {
        double error;
        bool tells;

        draw_direction(p, seed, k);
        D9D_TRY(measure_direction(s->m, p, unit, &error, &tells));
        measured += tells;
        if (tells && (out->name == NULL || !(error <= out->error))) {
            out->error = error;
            out->name = p->param->name;
        }
    }
    out->unmeasured += measured == 0;
    return D9D_OK;
}

static d9d_status measure_probes(const probes *s, uint64_t seed, finding *out)
{
    out->tensors = s->n;
    for (size_t i = 0; i < s->n; i++)
        D9D_TRY(measure_probe(s, &s->of[i], seed, out));
    return D9D_OK;
}

static d9d_status measure_model(d9di_small_model *m, uint64_t seed, finding *out)
{
    d9di_small_gradients g = {.n = 0};
    probes s = {.n = 0};
    double loss;
    d9d_status st;

    D9D_TRY_OR(st, d9di_small_model_backward(m, &loss), done);
    D9D_TRY_OR(st, d9di_small_gradients_read(m, &g), done);
    D9D_TRY_OR(st, probes_init(&s, m, &g), done);
    st = measure_probes(&s, seed, out);
done:
    probes_release(&s);
    d9di_small_gradients_release(&g);
    return st;
}

/* With the tokens of a seed.  The finding's name is in the certificate's arena. */
static d9d_status measure_tokens(d9di_certify *c, uint64_t seed, finding *out)
{
    const d9di_small_model_opts opts = {
        .choices = c->choices, .seed = seed, .rows = c->has_experts ? 1 : 0, .head = &c->head};
    d9di_small_model m;
    d9d_status st = d9di_small_model_open(&m, c->folder, &opts);

    *out = (finding){.error = 0};
    if (st == D9D_OK)
        st = measure_model(&m, seed, out);
    if (st == D9D_OK && out->name != NULL)
        out->name = d9d_arena_strdup(c->arena, out->name);
    (void)d9di_small_model_close(&m);
    return st;
}

d9d_status d9di_certify_gradients(d9di_certify *c, d9d_certificate_check *out)
{
    finding f = {.unmeasured = 1};

    for (uint64_t k = 0; k < TOKENS && f.unmeasured > 0 && f.error <= limit; k++)
        D9D_TRY(measure_tokens(c, c->opts->seed + k, &f));
    out->figure = f.unmeasured > 0 && f.error <= limit ? INFINITY : f.error;
    out->limit = limit;
    return isinf(out->figure)
               ? d9di_certify_detail(c, out, "of %zu of %zu tensors no step tells", f.unmeasured,
                                     f.tensors)
               : d9di_certify_detail(c, out, "%zu tensors, the worst %s", f.tensors, f.name);
}
