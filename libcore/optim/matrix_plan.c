/* matrix_plan.c - see optim/matrix_plan.h. */
#include "optim/matrix_plan.h"

#include <stdlib.h>
#include <string.h>

#include "d9d/kernels/sim.h"

/* Elements of an owner's matrices in a round, unless one matrix has more. */
#define ROUND_NUMEL ((int64_t)1 << 27)

/* --- shards ----------------------------------------------------------------------------------- */

static bool has_box(const d9d_param *p)
{
    return p->spec.trainable && p->spec.shape.ndim <= 3;
}

/* The first dimension of a parameter in a stack's. */
static int dims_before(const d9d_shape *s)
{
    return s->ndim == 3 ? 0 : 1;
}

d9di_matrix_box d9di_matrix_box_of_shape(const d9d_shape *shape, const int64_t *first)
{
    d9di_matrix_box b = {.dim = {1, 1, 1}};

    for (int d = 0; d < shape->ndim; d++) {
        b.first[dims_before(shape) + d] = first != NULL ? first[d] : 0;
        b.dim[dims_before(shape) + d] = shape->dim[d];
    }
    return b;
}

static d9di_matrix_box box_make(const d9d_param *p)
{
    return has_box(p) ? d9di_matrix_box_of_shape(&p->shard.shape, p->shard.offset)
                      : (d9di_matrix_box){0};
}

/* A simulated rank knows its own shards only: the others have as much, in the order of ranks. */
static void box_simulate(const d9d_param *p, int from, d9di_matrix_box *b)
{
    const d9di_matrix_box all = d9di_matrix_box_of_shape(&p->spec.shape, NULL);
    int64_t part = from;

    for (int d = 2; d >= 0; d--) {
        const int64_t whole = all.dim[d], n = b->dim[d] > 0 ? b->dim[d] : 1;
        const int64_t parts = (whole + n - 1) / n;

        b->first[d] = (b->first[d] / n + part) % (parts > 0 ? parts : 1) * n;
        b->dim[d] = b->first[d] + n > whole ? whole - b->first[d] : n;
        part = part / (parts > 0 ? parts : 1);
    }
}

static void boxes_simulate(d9di_matrix_shards *s)
{
    for (int r = 0; r < s->ranks; r++)
        for (size_t i = 0; i < s->params->n; i++)
            if (has_box(s->params->p[i]))
                box_simulate(s->params->p[i], (r - s->rank + s->ranks) % s->ranks,
                             &s->boxes[(size_t)r * s->params->n + i]);
}

/* Find copies of each box. */
static void copies_find(d9di_matrix_shards *s)
{
    const size_t n = s->params->n;

    for (size_t i = 0; i < n; i++)
        for (int r = 0; r < s->ranks; r++) {
            int first = 0;

            while (memcmp(&s->boxes[(size_t)first * n + i], &s->boxes[(size_t)r * n + i],
                          sizeof(*s->boxes)) != 0)
                first++;
            s->first_copy[(size_t)r * n + i] = first;
        }
}

static d9d_status boxes_gather(d9di_matrix_shards *s)
{
    const size_t n = s->params->n, bytes = n * sizeof(*s->boxes);
    d9di_matrix_box *own = d9d_arena_alloc(&s->arena, bytes + 1);
    d9d_comm_blob *all = d9d_arena_alloc(&s->arena, (size_t)s->ranks * sizeof(*all));

    s->boxes = d9d_arena_alloc(&s->arena, (size_t)s->ranks * bytes + 1);
    s->first_copy = d9d_arena_alloc(&s->arena, (size_t)s->ranks * n * sizeof(*s->first_copy) + 1);
    if (own == NULL || all == NULL || s->boxes == NULL || s->first_copy == NULL)
        return D9D_FAIL(D9D_ENOMEM, "optimizer: no memory for the shards of %zu parameters", n);
    for (size_t i = 0; i < n; i++)
        own[i] = box_make(s->params->p[i]);
    D9D_TRY(d9d_comm_allgather_bytes(s->group, "shards of matrices", own, bytes, &s->arena, all));
    for (int r = 0; r < s->ranks; r++) {
        if (all[r].n != bytes)
            return D9D_FAIL(D9D_EINVAL,
                            "optimizer: rank %d has %zu bytes of shards, this rank has %zu", r,
                            all[r].n, bytes);
        memcpy(s->boxes + (size_t)r * n, all[r].data, bytes);
    }
    if (s->dev->kernels == d9d_kernels_sim())
        boxes_simulate(s);
    copies_find(s);
    return D9D_OK;
}

d9d_status d9di_matrix_shards_create(const d9d_optimizer_open_opts *opts, d9di_matrix_shards **out)
{
    d9di_matrix_shards *s = calloc(1, sizeof(*s));
    d9d_status st;

    if (s == NULL)
        return D9D_FAIL(D9D_ENOMEM, "optimizer: %zu bytes", sizeof(*s));
    s->dev = opts->dev;
    s->group = opts->group;
    s->ranks = d9d_comm_size(opts->group);
    s->rank = d9d_comm_rank(opts->group);
    s->params = opts->params;
    st = boxes_gather(s);
    if (st == D9D_OK)
        *out = s;
    else
        d9di_matrix_shards_free(s);
    return st;
}

void d9di_matrix_shards_free(d9di_matrix_shards *s)
{
    if (s == NULL)
        return;
    d9d_arena_release(&s->arena);
    free(s);
}

d9d_status d9di_matrix_shards_open(const d9d_optimizer_open_opts *opts, void **self)
{
    d9di_matrix_shards *s;

    D9D_TRY(d9di_matrix_shards_create(opts, &s));
    *self = s;
    return D9D_OK;
}

void d9di_matrix_shards_close(void *self)
{
    d9di_matrix_shards_free(self);
}

/* Index of a parameter, looked for from *at on. */
static d9d_status param_find(const d9di_matrix_shards *s, const d9d_param *p, size_t *at)
{
    for (size_t k = 0; k < s->params->n; k++) {
        const size_t i = (*at + k) % s->params->n;

        if (s->params->p[i] == p) {
            *at = i;
            return D9D_OK;
        }
    }
    return D9D_FAIL(D9D_EINVAL, "optimizer: %s is none of its %zu parameters", p->name,
                    s->params->n);
}

d9d_status d9di_matrix_shards_is_first_copy(const d9di_matrix_shards *s, const d9d_param *p,
                                            size_t *at, bool *out)
{
    D9D_TRY(param_find(s, p, at));
    *out = s->first_copy[(size_t)s->rank * s->params->n + *at] == s->rank;
    return D9D_OK;
}

const d9di_matrix_box *d9di_matrix_box_of(const d9di_matrix_shards *s, const d9di_matrix *m,
                                          int rank, bool *has_part)
{
    const d9di_matrix_box *b = &s->boxes[(size_t)rank * s->params->n + m->param];

    *has_part = m->index >= b->first[0] && m->index < b->first[0] + b->dim[0] && b->dim[1] > 0 &&
                b->dim[2] > 0;
    return b;
}

int d9di_matrix_sender(const d9di_matrix_shards *s, const d9di_matrix *m, int rank)
{
    const size_t n = s->params->n;
    const int first = s->first_copy[(size_t)rank * n + m->param];

    return s->first_copy[(size_t)m->owner * n + m->param] == first ? m->owner : first;
}

/* --- plan ------------------------------------------------------------------------------------- */

/* The class of an update's matrices among those so far; the next one, empty, if it is new. */
static d9di_matrix_class *class_find(d9di_matrix_plan *p, const d9d_optimizer_update *u)
{
    const d9d_param *x = u->param;
    const bool stacked = x->spec.shape.ndim == 3;
    const int64_t rows = x->spec.shape.dim[stacked], cols = x->spec.shape.dim[stacked + 1];

    for (size_t i = 0; i < p->n_classes; i++) {
        d9di_matrix_class *c = &p->classes[i];

        if (c->rows == rows && c->cols == cols && c->stacked == stacked && c->u->lr == u->lr &&
            c->u->param->spec.dtype == x->spec.dtype &&
            c->u->param->spec.grad_dtype == x->spec.grad_dtype)
            return c;
    }
    p->classes[p->n_classes] =
        (d9di_matrix_class){.u = u, .stacked = stacked, .rows = rows, .cols = cols};
    return &p->classes[p->n_classes++];
}

static int64_t matrices_of(const d9d_optimizer_update *u)
{
    return u->param->spec.shape.ndim == 3 ? u->param->spec.shape.dim[0] : 1;
}

/* How much work a rank has: of the class, and in all. */
typedef struct owner_load {
    int64_t matrices;
    double work;
} owner_load;

/* Newton-Schulz takes 4 m^2 n + 2 m^3 FLOP per iteration, with m the smaller side. */
static double work_of(const d9di_matrix_class *c)
{
    const double m = (double)(c->rows < c->cols ? c->rows : c->cols),
                 n = (double)(c->rows < c->cols ? c->cols : c->rows);

    return 4 * m * m * n + 2 * m * m * m;
}

static bool has_whole(const d9di_matrix_shards *s, const d9di_matrix_class *c, const d9di_matrix *m,
                      int rank)
{
    bool has_part;
    const d9di_matrix_box *b = d9di_matrix_box_of(s, m, rank, &has_part);

    return has_part && b->dim[1] == c->rows && b->dim[2] == c->cols;
}

/* The least loaded of the ranks that have a whole copy, or else a part. */
static int owner_choose(const d9di_matrix_shards *s, const d9di_matrix_class *c,
                        const d9di_matrix *m, const owner_load *load)
{
    bool best_whole = false;
    int best = -1;

    for (int r = 0; r < s->ranks; r++) {
        const bool whole = has_whole(s, c, m, r);
        bool has_part;

        (void)d9di_matrix_box_of(s, m, r, &has_part);
        if (!has_part || (best_whole && !whole))
            continue;
        if (best < 0 || whole != best_whole || load[r].matrices < load[best].matrices ||
            (load[r].matrices == load[best].matrices && load[r].work < load[best].work)) {
            best = r;
            best_whole = whole;
        }
    }
    return best;
}

/* Choose the owners of a class, and divide it into rounds. */
static d9d_status class_assign(const d9di_matrix_shards *s, d9di_matrix_class *c, owner_load *load)
{
    int64_t most = 0;

    for (int r = 0; r < s->ranks; r++)
        load[r].matrices = 0;
    for (size_t i = 0; i < c->n; i++) {
        d9di_matrix *m = &c->matrices[i];

        m->owner = owner_choose(s, c, m, load);
        if (m->owner < 0)
            return D9D_FAIL(D9D_EINVAL, "optimizer: none of %d ranks has a part of %s", s->ranks,
                            s->params->p[m->param]->name);
        m->place = load[m->owner].matrices++;
        load[m->owner].work += work_of(c);
        if (m->place >= most)
            most = m->place + 1;
    }
    c->per_round = ROUND_NUMEL / (c->rows * c->cols);
    if (c->per_round < 1)
        c->per_round = 1;
    c->n_rounds = (size_t)((most + c->per_round - 1) / c->per_round);
    return D9D_OK;
}

/* List the matrices of each class. */
static d9d_status matrices_list(const d9di_matrix_shards *s, const d9d_optimizer_update *u,
                                size_t n, d9d_arena *a, d9di_matrix_plan *p)
{
    size_t at = 0;

    for (size_t i = 0; i < n; i++)
        class_find(p, &u[i])->n += (size_t)matrices_of(&u[i]);
    for (size_t k = 0; k < p->n_classes; k++) {
        p->classes[k].matrices = d9d_arena_alloc(a, p->classes[k].n * sizeof(d9di_matrix) + 1);
        if (p->classes[k].matrices == NULL)
            return D9D_FAIL(D9D_ENOMEM, "optimizer: no memory for %zu matrices", p->classes[k].n);
        p->classes[k].n = 0;
    }
    for (size_t i = 0; i < n; i++) {
        d9di_matrix_class *c = class_find(p, &u[i]);

        D9D_TRY(param_find(s, u[i].param, &at));
        for (int64_t e = 0; e < matrices_of(&u[i]); e++)
            c->matrices[c->n++] = /* allocated above: NOLINT(clang-analyzer-core.NullDereference) */
                (d9di_matrix){.update = i, .param = at, .index = e};
    }
    return D9D_OK;
}

d9d_status d9di_matrix_plan_make(const d9di_matrix_shards *s, const d9d_optimizer_update *u,
                                 size_t n, d9d_arena *a, d9di_matrix_plan *out)
{
    owner_load *load = d9d_arena_alloc(a, (size_t)s->ranks * sizeof(*load));

    *out =
        (d9di_matrix_plan){.shards = s, .classes = d9d_arena_alloc(a, n * sizeof(*out->classes))};
    if (load == NULL || out->classes == NULL)
        return D9D_FAIL(D9D_ENOMEM, "optimizer: no memory for the matrices of %zu parameters", n);
    D9D_TRY(matrices_list(s, u, n, a, out));
    for (size_t k = 0; k < out->n_classes; k++)
        D9D_TRY(class_assign(s, &out->classes[k], load));
    return D9D_OK;
}
