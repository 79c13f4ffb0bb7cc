/* piecewise.c - piecewise schedules: their key tables, and their phases over a run.
 */
#include "d9d/sched/piecewise.h"
#include "d9d/base/num_format.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* --- curves ---------------------------------------------------------------- */

static const double MIN_EXPONENTIAL = 1e-8; /* lower bound of both ends of an exponential */

static double linear_at(double s, double e, double p, double power)
{
    (void)power;
    return s + (e - s) * p;
}

static double cosine_at(double s, double e, double p, double power)
{
    (void)power;
    return e + (s - e) * (1.0 + cos(M_PI * p)) / 2.0;
}

static double exponential_at(double s, double e, double p, double power)
{
    const double a = log(fmax(s, MIN_EXPONENTIAL)), b = log(fmax(e, MIN_EXPONENTIAL));

    (void)power;
    return exp(a + (b - a) * p);
}

static double poly_at(double s, double e, double p, double power)
{
    return s + (e - s) * pow(p, power);
}

static double (*const curves[])(double s, double e, double p, double power) = {
    [D9D_CURVE_LINEAR] = linear_at,
    [D9D_CURVE_COSINE] = cosine_at,
    [D9D_CURVE_EXPONENTIAL] = exponential_at,
    [D9D_CURVE_POLY] = poly_at,
};

double d9d_piecewise_curve_at(d9d_piecewise_curve_kind kind, double power, double s, double e,
                              double p)
{
    return curves[kind](s, e, p, power);
}

/* --- key tables ---------------------------------------------------------------- */

static const d9d_key plain_curve_keys[] = {D9D_KEY_END};
static const d9d_key poly_keys[] = {
    D9D_KEY_REAL(d9d_piecewise_curve_config, power, "2.0", 0, INFINITY, "exponent of the progress",
                 .flags = D9D_ABOVE_MIN),
    D9D_KEY_END,
};
static const d9d_table linear_table =
    D9D_TABLE(d9d_piecewise_curve_config, "linear", plain_curve_keys, "a straight line");
static const d9d_table cosine_table =
    D9D_TABLE(d9d_piecewise_curve_config, "cosine", plain_curve_keys, "half a period of a cosine");
static const d9d_table exponential_table =
    D9D_TABLE(d9d_piecewise_curve_config, "exponential", plain_curve_keys,
              "a straight line of the logarithm");
static const d9d_table poly_table =
    D9D_TABLE(d9d_piecewise_curve_config, "poly", poly_keys, "a power of the progress");

static const char *const curve_tag[] = {"type", NULL};
static const d9d_table *const curve_choices[] = {
    [D9D_CURVE_LINEAR] = &linear_table,
    [D9D_CURVE_COSINE] = &cosine_table,
    [D9D_CURVE_EXPONENTIAL] = &exponential_table,
    [D9D_CURVE_POLY] = &poly_table,
    NULL,
};

/* With the largest base rate the product is still finite in float32. */
#define MOST 1e6

#define TARGET_AND_CURVE                                                                           \
    D9D_KEY_REAL(d9d_piecewise_phase_config, target_multiplier, D9D_REQUIRED, 0, MOST,             \
                 "multiplier at the end of the phase"),                                            \
        D9D_KEY_UNION(d9d_piecewise_phase_config, curve, "{\"type\": \"linear\"}", curve_tag,      \
                      curve_choices, "the way to it")

static const d9d_key steps_keys[] = {
    D9D_KEY_INT(d9d_piecewise_phase_config, steps, D9D_REQUIRED, 1, INT64_MAX,
                "how long the phase is"),
    TARGET_AND_CURVE,
    D9D_KEY_END,
};
static const d9d_key percentage_keys[] = {
    D9D_KEY_REAL(d9d_piecewise_phase_config, percentage, D9D_REQUIRED, 0, 1,
                 "share of the whole run, 0 to 1, at which the phase ends"),
    TARGET_AND_CURVE,
    D9D_KEY_END,
};
static const d9d_key rest_keys[] = {TARGET_AND_CURVE, D9D_KEY_END};
static const d9d_table steps_table =
    D9D_TABLE(d9d_piecewise_phase_config, "steps", steps_keys, "a phase of so many steps");
static const d9d_table percentage_table = D9D_TABLE(
    d9d_piecewise_phase_config, "percentage", percentage_keys, "a phase until a share of the run");
static const d9d_table rest_table =
    D9D_TABLE(d9d_piecewise_phase_config, "rest", rest_keys, "a phase until the end of the run");

static const char *const phase_tag[] = {"mode", NULL};
static const d9d_table *const phase_choices[] = {
    [D9D_PHASE_STEPS] = &steps_table,
    [D9D_PHASE_PERCENTAGE] = &percentage_table,
    [D9D_PHASE_REST] = &rest_table,
    NULL,
};
static const d9d_key phase_elem = {
    .kind = D9D_KIND_UNION, .names = phase_tag, .choices = phase_choices};

static const d9d_key piecewise_keys[] = {
    D9D_KEY_REAL(d9d_piecewise_config, initial_multiplier, D9D_REQUIRED, 0, MOST,
                 "multiplier of the first step"),
    D9D_KEY_LIST(d9d_piecewise_config, phases, D9D_REQUIRED, &phase_elem, "the phases in order",
                 .min = 1),
    D9D_KEY_END,
};
const d9d_table d9d_piecewise_table =
    D9D_TABLE(d9d_piecewise_config, "piecewise_scheduler", piecewise_keys,
              "phases of a learning-rate schedule");

static const d9d_key choice_keys[] = {
    {.name = "scheduler",
     .kind = D9D_KIND_TABLE,
     .offset = offsetof(d9d_lr_schedule_config, scheduler),
     .def = D9D_REQUIRED,
     .table = &d9d_piecewise_table,
     .doc = "the schedule"},
    D9D_KEY_END,
};
static const d9d_table choice_table =
    D9D_TABLE(d9d_lr_schedule_config, "piecewise", choice_keys, "the learning rate in phases",
              .row = &d9d_piecewise_kind);
const char *const d9d_lr_schedule_tag[] = {"name", NULL};
const d9d_table *const d9d_lr_schedule_choices[] = {&choice_table, NULL};

/* --- layout ------------------------------------------------------------------------ */

struct phase {
    int64_t begin, end; /* steps [begin, end) */
    double from, to, power;
    d9d_piecewise_curve_kind curve;
};

struct d9d_piecewise {
    double initial;
    size_t n;
    struct phase phase[];
};

/* End of the phase that begins at `begin`. */
static d9d_status phase_end(const d9d_union *u, const char *where, size_t i, int64_t total,
                            int64_t begin, int64_t *out)
{
    const d9d_piecewise_phase_config *p = u->value;
    int64_t end;

    if (u->which == D9D_PHASE_STEPS) {
        if (__builtin_add_overflow(begin, p->steps, out))
            return D9D_FAIL(D9D_ECONFIG,
                            "%s.phases[%zu]: begins at step %" PRId64 " and lasts %" PRId64
                            ", more than can be counted",
                            where, i, begin, p->steps);
        return D9D_OK;
    }
    if (total == D9D_STEPS_UNKNOWN)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s.phases[%zu]: is a part of the run, whose steps are not known", where,
                        i);
    end = u->which == D9D_PHASE_REST ? total : (int64_t)((double)total * p->percentage);
    if (end < begin)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s.phases[%zu]: ends at step %" PRId64 " of %" PRId64
                        ", before it begins at %" PRId64,
                        where, i, end, total, begin);
    *out = end;
    return D9D_OK;
}

static d9d_status phases_lay_out(d9d_piecewise *s, const d9d_piecewise_config *c, const char *where,
                                 int64_t total)
{
    const d9d_union *u = c->phases.items;
    double from = c->initial_multiplier;
    int64_t piecewise_kind_at = 0;

    for (size_t i = 0; i < c->phases.n; i++) {
        const d9d_piecewise_phase_config *p = u[i].value;
        const d9d_piecewise_curve_config *curve = p->curve.value;
        struct phase *ph = &s->phase[i];

        *ph = (struct phase){.begin = piecewise_kind_at,
                             .from = from,
                             .to = p->target_multiplier,
                             .power = curve->power,
                             .curve = (d9d_piecewise_curve_kind)p->curve.which};
        D9D_TRY(phase_end(&u[i], where, i, total, piecewise_kind_at, &ph->end));
        piecewise_kind_at = ph->end;
        from = ph->to;
    }
    if (total != D9D_STEPS_UNKNOWN && piecewise_kind_at > total)
        return D9D_FAIL(D9D_ECONFIG, "%s: its phases last %" PRId64 " step%s, the run has %" PRId64,
                        where, piecewise_kind_at, D9D_PLURAL(piecewise_kind_at), total);
    return D9D_OK;
}

d9d_status d9d_piecewise_create(const d9d_piecewise_config *config, const char *where,
                                int64_t total, d9d_piecewise **out)
{
    d9d_piecewise *s;
    d9d_status st;

    if (config->phases.n == 0)
        return D9D_FAIL(D9D_ECONFIG, "%s.phases: at least one phase is needed", where);
    s = calloc(1, sizeof(*s) + config->phases.n * sizeof(s->phase[0]));
    if (s == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for %zu phases", where, config->phases.n);
    s->initial = config->initial_multiplier;
    s->n = config->phases.n;
    st = phases_lay_out(s, config, where, total);
    if (st != D9D_OK) {
        free(s);
        return st;
    }
    *out = s;
    return D9D_OK;
}

void d9d_piecewise_free(d9d_piecewise *s)
{
    free(s);
}

double d9d_piecewise_at(const d9d_piecewise *s, int64_t k)
{
    if (k < 0)
        return s->initial;
    for (size_t i = 0; i < s->n; i++) {
        const struct phase *p = &s->phase[i];

        if (k < p->end)
            return d9d_piecewise_curve_at(p->curve, p->power, p->from, p->to,
                                          (double)(k - p->begin) / (double)(p->end - p->begin));
    }
    return s->phase[s->n - 1].to;
}

int64_t d9d_piecewise_steps(const d9d_piecewise *s)
{
    return s->phase[s->n - 1].end;
}

int64_t d9d_piecewise_fixed_steps(const d9d_piecewise_config *config, bool *needs_total)
{
    const d9d_union *u = config->phases.items;
    int64_t sum = 0;

    *needs_total = false;
    for (size_t i = 0; i < config->phases.n; i++)
        if (u[i].which != D9D_PHASE_STEPS)
            *needs_total = true;
        else if (__builtin_add_overflow(
                     sum, ((const d9d_piecewise_phase_config *)u[i].value)->steps, &sum))
            return INT64_MAX;
    return sum;
}

/* --- as a kind of learning rate ------------------------------------------------------- */

static d9d_status piecewise_kind_create(const void *config, const char *where, int64_t total,
                                        void **self)
{
    const d9d_lr_schedule_config *c = config;
    d9d_arena a = {0};
    const char *path = d9d_arena_printf(&a, "%s.scheduler", where);
    d9d_piecewise *s;
    d9d_status st = d9d_piecewise_create(&c->scheduler, path != NULL ? path : where, total, &s);

    if (st == D9D_OK)
        *self = s;
    d9d_arena_release(&a);
    return st;
}

static double piecewise_kind_at(const void *self, int64_t step)
{
    return d9d_piecewise_at(self, step);
}

static void piecewise_kind_free(void *self)
{
    d9d_piecewise_free(self);
}

static int64_t piecewise_kind_fixed_steps(const void *config, bool *needs_total)
{
    const d9d_lr_schedule_config *c = config;

    return d9d_piecewise_fixed_steps(&c->scheduler, needs_total);
}

const d9d_lr_schedule_kind d9d_piecewise_kind = {
    sizeof(d9d_lr_schedule_kind), &choice_table,
    piecewise_kind_create,        piecewise_kind_at,
    piecewise_kind_free,          piecewise_kind_fixed_steps};
