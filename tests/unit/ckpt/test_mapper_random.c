/* test_mapper_random.c - random graphs of every leaf and composer against a direct evaluation of
 * the same operations on arrays. */
#include "support/mem_tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/rng.h"

/* --- direct evaluation: int64 elements, index by index ---------------------------------------- */

struct plain {
    int ndim;
    int64_t shape[D9D_MAX_DIMS];
    int64_t *v;
};

static int64_t count(const struct plain *p)
{
    int64_t n = 1;

    for (int d = 0; d < p->ndim; d++)
        n *= p->shape[d];
    return n;
}

static int64_t offset(const struct plain *p, const int64_t *x)
{
    int64_t at = 0;

    for (int d = 0; d < p->ndim; d++)
        at = at * p->shape[d] + x[d];
    return at;
}

static void index_of(const struct plain *p, int64_t at, int64_t *x)
{
    for (int d = p->ndim - 1; d >= 0; d--) {
        x[d] = at % p->shape[d];
        at /= p->shape[d];
    }
}

static void plain_alloc(struct plain *p)
{
    p->v = calloc((size_t)count(p) + 1, sizeof(*p->v));
    assert_non_null(p->v);
}

static struct plain plain_transpose(const struct plain *in, int i, int j)
{
    struct plain out = *in;
    int64_t x[D9D_MAX_DIMS], t;

    out.shape[i] = in->shape[j];
    out.shape[j] = in->shape[i];
    plain_alloc(&out);
    for (int64_t k = 0; k < count(in); k++) {
        index_of(in, k, x);
        t = x[i];
        x[i] = x[j];
        x[j] = t;
        out.v[offset(&out, x)] = in->v[k];
    }
    return out;
}

/* Parts are along `dim` from `at` on; copies between a part and the whole. */
static void plain_part(struct plain *whole, struct plain *part, int dim, int64_t at, bool into)
{
    int64_t x[D9D_MAX_DIMS];

    for (int64_t k = 0; k < count(part); k++) {
        index_of(part, k, x);
        x[dim] += at;
        if (into)
            whole->v[offset(whole, x)] = part->v[k];
        else
            part->v[k] = whole->v[offset(whole, x)];
    }
}

static void plain_insert(struct plain *p, int dim, int64_t n)
{
    for (int d = p->ndim; d > dim; d--)
        p->shape[d] = p->shape[d - 1];
    p->shape[dim] = n;
    p->ndim++;
}

static void plain_remove(struct plain *p, int dim)
{
    for (int d = dim; d + 1 < p->ndim; d++)
        p->shape[d] = p->shape[d + 1];
    p->ndim--;
}

static struct plain plain_slice(struct plain *in, int dim, int64_t lo, int64_t hi)
{
    struct plain out = *in;

    out.shape[dim] = hi - lo;
    plain_alloc(&out);
    plain_part(in, &out, dim, lo, false);
    return out;
}

static struct plain plain_copy(struct plain *in)
{
    struct plain out = *in;

    plain_alloc(&out);
    memcpy(out.v, in->v, (size_t)count(in) * sizeof(*in->v));
    return out;
}

/* --- random mappings -------------------------------------------------------------------------- */

enum { MAX_TENSORS = 24, PARTS = 8, NAME = 48 };

struct random {
    d9d_rng rng;
    uint64_t i;
};

static int pick(struct random *r, int n)
{
    return (int)d9d_rng_below(r->rng, r->i++, (uint64_t)n);
}

struct world {
    struct random r;
    struct plain now[MEM_TENSORS]; /* live tensors */
    char name[MEM_TENSORS][NAME];
    bool busy[MEM_TENSORS]; /* of the stage under construction */
    int n, fresh;
    d9d_mapper *m;
};

/* Random step of a stage on tensor i, whose dimensions are at least one; false: not applicable. */
typedef bool happening(struct world *w, d9d_mapper *m, int i);

static void fresh_name(struct world *w, char name[NAME])
{
    (void)snprintf(name, NAME, "x%d", w->fresh++);
}

static void put(struct world *w, struct plain p, const char *name)
{
    assert_true(w->n < MEM_TENSORS);
    w->now[w->n] = p;
    w->busy[w->n] = true;
    memcpy(w->name[w->n++], name, strlen(name) + 1);
}

static void take(struct world *w, int i)
{
    free(w->now[i].v);
    w->n--;
    w->now[i] = w->now[w->n];
    w->busy[i] = w->busy[w->n];
    memmove(w->name[i], w->name[w->n], sizeof(w->name[0]));
}

static void replace(struct world *w, int i, struct plain p)
{
    free(w->now[i].v);
    w->now[i] = p;
    w->busy[i] = true;
}

static bool transposing(struct world *w, d9d_mapper *m, int i)
{
    struct plain *p = &w->now[i];
    int j = pick(&w->r, p->ndim), k = pick(&w->r, p->ndim);

    assert_ok(d9d_mapper_transpose(m, w->name[i], j, k - p->ndim));
    replace(w, i, plain_transpose(p, j, k));
    return true;
}

static bool unsqueezing(struct world *w, d9d_mapper *m, int i)
{
    struct plain *p = &w->now[i];
    int dim = pick(&w->r, p->ndim + 1);

    if (p->ndim >= 4)
        return false;
    assert_ok(d9d_mapper_unsqueeze(m, w->name[i], dim));
    plain_insert(p, dim, 1);
    w->busy[i] = true;
    return true;
}

static bool squeezing(struct world *w, d9d_mapper *m, int i)
{
    struct plain *p = &w->now[i];
    const int dim = pick(&w->r, p->ndim), all = pick(&w->r, 2);

    if (!all && p->shape[dim] != 1)
        return false;
    assert_ok(d9d_mapper_squeeze(m, w->name[i], all ? D9D_SQUEEZE_ALL : dim));
    for (int d = p->ndim - 1; d >= 0; d--)
        if (all ? p->shape[d] == 1 : d == dim)
            plain_remove(p, d);
    w->busy[i] = true;
    return true;
}

/* Splits in two, one of which may be given as the remainder; elements stay in order. */
static bool unflattening(struct world *w, d9d_mapper *m, int i)
{
    struct plain *p = &w->now[i];
    const int dim = pick(&w->r, p->ndim), open = pick(&w->r, 3);
    const int64_t size = p->shape[dim];
    int64_t sizes[2] = {1 + pick(&w->r, size > 0 ? (int)size : 3), 0};

    if (p->ndim == 5)
        return false;
    while (size % sizes[0] != 0)
        sizes[0]--;
    sizes[1] = size / sizes[0];
    plain_insert(p, dim, sizes[0]);
    p->shape[dim + 1] = sizes[1];
    if (open < 2 && size > 0)
        sizes[open] = -1;
    assert_ok(d9d_mapper_unflatten(m, w->name[i], dim, sizes, 2));
    w->busy[i] = true;
    return true;
}

static bool flattening(struct world *w, d9d_mapper *m, int i)
{
    struct plain *p = &w->now[i];
    const int ndim = p->ndim, first = pick(&w->r, ndim), last = first + pick(&w->r, ndim - first);

    assert_ok(d9d_mapper_flatten(m, w->name[i], first, last - ndim));
    for (int d = first; d < last; d++) {
        p->shape[first + 1] *= p->shape[first];
        plain_remove(p, first);
    }
    w->busy[i] = true;
    return true;
}

/* Splits tensor i at bounds [n + 1]; `to` has the names of the parts. */
static void cut(struct world *w, int i, int dim, const int64_t *bounds, int n,
                char names[PARTS][NAME], const char **to, bool remove)
{
    struct plain parts[PARTS];

    for (int k = 0; k < n; k++) {
        parts[k] = plain_slice(&w->now[i], dim, bounds[k], bounds[k + 1]);
        if (remove)
            plain_remove(&parts[k], dim);
        to[k] = names[k];
    }
    take(w, i);
    for (int k = 0; k < n; k++)
        put(w, parts[k], names[k]);
}

static bool unstacking(struct world *w, d9d_mapper *m, int i)
{
    int dim = pick(&w->r, w->now[i].ndim), n = (int)w->now[i].shape[dim];
    int64_t bounds[PARTS + 1];
    char names[PARTS][NAME], of[NAME];
    const char *to[PARTS];

    if (n > PARTS || n < 1 || w->n + n > MAX_TENSORS)
        return false;
    memcpy(of, w->name[i], NAME);
    for (int k = 0; k <= n; k++)
        bounds[k] = k;
    for (int k = 0; k < n; k++)
        fresh_name(w, names[k]);
    cut(w, i, dim, bounds, n, names, to, true);
    assert_ok(d9d_mapper_unstack(m, of, to, (size_t)n, dim));
    return true;
}

static bool chunking(struct world *w, d9d_mapper *m, int i)
{
    int ndim = w->now[i].ndim, dim = pick(&w->r, ndim);
    const int64_t size = w->now[i].shape[dim], bounds[3] = {0, (size + 1) / 2, size};
    char names[PARTS][NAME], of[NAME];
    const char *to[PARTS];

    if (size < 2 || w->n + 2 > MAX_TENSORS)
        return false;
    memcpy(of, w->name[i], NAME);
    fresh_name(w, names[0]);
    fresh_name(w, names[1]);
    cut(w, i, dim, bounds, 2, names, to, false);
    assert_ok(d9d_mapper_chunk(m, of, to, 2, dim - ndim));
    return true;
}

static bool splitting(struct world *w, d9d_mapper *m, int i)
{
    int dim = pick(&w->r, w->now[i].ndim), n = 1 + pick(&w->r, 4);
    int64_t sizes[PARTS], bounds[PARTS + 1] = {0}, left = w->now[i].shape[dim];
    char names[PARTS][NAME], of[NAME];
    const char *to[PARTS];

    if (w->n + n > MAX_TENSORS)
        return false;
    memcpy(of, w->name[i], NAME);
    for (int k = 0; k < n; k++) {
        sizes[k] = k == n - 1 ? left : pick(&w->r, (int)left + 1);
        left -= sizes[k];
        bounds[k + 1] = bounds[k] + sizes[k];
        fresh_name(w, names[k]);
    }
    cut(w, i, dim, bounds, n, names, to, false);
    assert_ok(d9d_mapper_split(m, of, to, sizes, (size_t)n, dim));
    return true;
}

/* Stacks or concatenates a tensor with every later one of its shape. */
static bool joining(struct world *w, d9d_mapper *m, int i, bool stack)
{
    struct plain out = w->now[i];
    const char *from[MEM_TENSORS];
    int at[MEM_TENSORS], n = 0, dim;
    char to[NAME];

    if (stack && out.ndim >= 4)
        return false;
    for (int k = i; k < w->n; k++)
        if (!w->busy[k] && w->now[k].ndim == out.ndim &&
            memcmp(w->now[k].shape, out.shape, (size_t)out.ndim * sizeof(int64_t)) == 0) {
            from[n] = w->name[k];
            at[n++] = k;
        }
    dim = pick(&w->r, out.ndim + (stack ? 1 : 0));
    fresh_name(w, to);
    assert_ok(stack ? d9d_mapper_stack(m, from, (size_t)n, to, dim)
                    : d9d_mapper_concat(m, from, (size_t)n, to, dim));
    if (stack)
        plain_insert(&out, dim, n);
    else
        out.shape[dim] *= n;
    plain_alloc(&out);
    for (int k = 0; k < n; k++) {
        struct plain part = w->now[at[k]];
        int64_t each = stack ? 1 : part.shape[dim];

        if (stack)
            plain_insert(&part, dim, 1);
        plain_part(&out, &part, dim, k * each, true);
    }
    for (int k = n - 1; k >= 0; k--)
        take(w, at[k]);
    put(w, out, to);
    return true;
}

static bool stacking(struct world *w, d9d_mapper *m, int i)
{
    return joining(w, m, i, true);
}

static bool concatenating(struct world *w, d9d_mapper *m, int i)
{
    return joining(w, m, i, false);
}

static bool duplicating(struct world *w, d9d_mapper *m, int i)
{
    char names[2][NAME];
    const char *to[2] = {names[0], names[1]};
    struct plain a = plain_copy(&w->now[i]), b = plain_copy(&w->now[i]);

    fresh_name(w, names[0]);
    fresh_name(w, names[1]);
    assert_ok(d9d_mapper_duplicate(m, w->name[i], to, 2));
    take(w, i);
    put(w, a, names[0]);
    put(w, b, names[1]);
    return true;
}

static bool dropping(struct world *w, d9d_mapper *m, int i)
{
    if (w->n < 6)
        return false;
    assert_ok(d9d_mapper_drop(m, w->name[i]));
    take(w, i);
    return true;
}

/* Renames "x12" to "y12", in a scope that sees only "12". */
static bool scoping(struct world *w, d9d_mapper *m, int i)
{
    d9d_mapper *part;
    char to[3] = {w->name[i][0], 'y', '\0'}, from[2] = {w->name[i][0], '\0'};

    assert_ok(d9d_mapper_create(&part));
    assert_ok(d9d_mapper_identity(part, w->name[i] + 1));
    assert_ok(d9d_mapper_union(m, part, from, to));
    memmove(w->name[i] + 2, w->name[i] + 1, strlen(w->name[i]));
    w->name[i][1] = 'y';
    w->busy[i] = true;
    return true;
}

/* --- placements as in DTensor: one mesh dimension after the other ----------------------------- */

static int random_mesh(struct world *w, int ndim, d9d_mapper_placement *mesh, int64_t *size)
{
    int n = 1 + pick(&w->r, 2);

    *size = 1;
    for (int k = 0; k < n; k++) {
        mesh[k] = (d9d_mapper_placement){1 + pick(&w->r, 3), pick(&w->r, 3) > 0, pick(&w->r, ndim)};
        *size *= mesh[k].mesh_size;
    }
    return n;
}

static struct plain place(struct plain *whole, const d9d_mapper_placement *mesh, const int64_t *at,
                          int n)
{
    struct plain now = plain_copy(whole), next;

    for (int k = 0; k < n; k++) {
        int64_t size = now.shape[mesh[k].dim];
        int64_t each = (size + mesh[k].mesh_size - 1) / mesh[k].mesh_size;
        int64_t lo = at[k] * each < size ? at[k] * each : size;
        int64_t hi = lo + each < size ? lo + each : size;

        if (!mesh[k].shard)
            continue;
        next = plain_slice(&now, mesh[k].dim, lo, hi);
        free(now.v);
        now = next;
    }
    return now;
}

static void coordinate(const d9d_mapper_placement *mesh, int n, int64_t i, int64_t *at)
{
    for (int k = n - 1; k >= 0; k--) {
        at[k] = i % mesh[k].mesh_size;
        i /= mesh[k].mesh_size;
    }
}

static bool distributing(struct world *w, d9d_mapper *m, int i)
{
    d9d_mapper_placement mesh[2];
    int64_t at[2], size;
    int n = random_mesh(w, w->now[i].ndim, mesh, &size);

    coordinate(mesh, n, pick(&w->r, (int)size), at);
    assert_ok(d9d_mapper_distribute(m, w->name[i], mesh, at, n));
    replace(w, i, place(&w->now[i], mesh, at, n));
    return true;
}

/* The parts of all coordinates make up the whole. */
static bool gathering(struct world *w, d9d_mapper *m, int i)
{
    d9d_mapper_placement mesh[2];
    int64_t at[2], size;
    int n = random_mesh(w, w->now[i].ndim, mesh, &size);
    char names[9][NAME];
    const char *parts[9];
    d9d_mapper *part, *next;

    assert_ok(d9d_mapper_create(&part));
    assert_ok(d9d_mapper_create(&next));
    for (int64_t k = 0; k < size; k++) {
        fresh_name(w, names[k]);
        parts[k] = names[k];
        coordinate(mesh, n, k, at);
        assert_ok(d9d_mapper_distribute(next, names[k], mesh, at, n));
    }
    assert_ok(d9d_mapper_duplicate(part, w->name[i], parts, (size_t)size));
    assert_ok(d9d_mapper_compose(part, next));
    assert_ok(d9d_mapper_create(&next));
    fresh_name(w, w->name[i]);
    assert_ok(d9d_mapper_gather(next, parts, (size_t)size, w->name[i], mesh, n));
    assert_ok(d9d_mapper_compose(part, next));
    assert_ok(d9d_mapper_union(m, part, "", ""));
    w->busy[i] = true;
    return true;
}

/* --- stages ----------------------------------------------------------------------------------- */

static happening *const happenings[] = {
    transposing,  unsqueezing, squeezing,  unstacking,    chunking,      splitting,
    stacking,     stacking,    stacking,   concatenating, concatenating, duplicating,
    dropping,     scoping,     gathering,  distributing,  unflattening,  unflattening,
    unflattening, flattening,  flattening, flattening,    transposing,   splitting,
};
enum { HAPPENINGS = sizeof(happenings) / sizeof(happenings[0]) };

/* Adds a stage: random steps on some tensors, side by side. */
static void stage(struct world *w)
{
    d9d_mapper *m;

    assert_ok(d9d_mapper_create(&m));
    memset(w->busy, 0, sizeof(w->busy));
    for (int i = 0; i < 3; i++) {
        int at = pick(&w->r, w->n);
        happening *one = happenings[pick(&w->r, HAPPENINGS)];

        if (!w->busy[at] && w->now[at].ndim > 0)
            (void)one(w, m, at);
    }
    assert_ok(d9d_mapper_compose(w->m, m));
}

/* Sources t0..: U16 elements that are all different; some tensors have none. */
static void start(struct world *w, mem_tensors *from, uint64_t seed)
{
    int64_t next = 0;

    *w = (struct world){.r = {{seed, 0}, 0}};
    assert_ok(d9d_mapper_create(&w->m));
    for (int i = 0; i < 2 + pick(&w->r, 4); i++) {
        struct plain p = {.ndim = pick(&w->r, 4)};
        mem_tensor *a;
        char name[NAME];

        for (int d = 0; d < p.ndim; d++)
            p.shape[d] = i % 2 == 0 ? d + 3 : pick(&w->r, 6);
        plain_alloc(&p);
        (void)snprintf(name, sizeof(name), "t%d", i);
        a = mem_tensors_add(from, name, D9D_U16, p.ndim, p.shape);
        for (int64_t k = 0; k < count(&p); k++) {
            uint16_t u = (uint16_t)next;

            memcpy(a->data + 2 * k, &u, 2);
            p.v[k] = next++;
        }
        if (pick(&w->r, 2) == 0)
            assert_ok(d9d_mapper_identity(w->m, name));
        put(w, p, name);
    }
}

static bool has(const d9d_mapper *m, const char *name)
{
    for (size_t i = 0; i < d9d_mapper_output_count(m); i++)
        if (strcmp(d9d_mapper_output(m, i), name) == 0)
            return true;
    return false;
}

static void build(struct world *w, mem_tensors *from, uint64_t seed)
{
    from->n = 0;
    start(w, from, seed);
    for (int i = 0; i < 8; i++)
        stage(w);
    for (int i = 0; i < w->n; i++) /* tensors that no step names */
        if (!has(w->m, w->name[i]))
            assert_ok(d9d_mapper_identity(w->m, w->name[i]));
}

static void finish(struct world *w, mem_tensors *from)
{
    while (w->n > 0)
        take(w, 0);
    d9d_mapper_free(w->m);
    mem_tensors_free(from);
}

static void check(const struct world *w, int i, mem_tensors *made)
{
    const mem_tensor *a = mem_tensors_find(made, w->name[i]);
    const struct plain *p = &w->now[i];

    assert_int_equal(a->t.ndim, p->ndim);
    assert_memory_equal(a->t.shape, p->shape, (size_t)p->ndim * sizeof(int64_t));
    for (int64_t k = 0; k < count(p); k++) {
        uint16_t u;

        memcpy(&u, a->data + 2 * k, 2);
        assert_int_equal(u, (uint16_t)p->v[k]);
    }
}

static struct world world; /* large: one test at a time */
static mem_tensors from, to;

static void random_graphs_agree_with_plain_evaluation(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 1000; seed++) {
        build(&world, &from, seed);
        to = (mem_tensors){.slice = seed % 8}; /* every way to slice an output */
        mem_tensors_run(world.m, &from, &to, 1 + (int)(seed % 3));
        assert_int_equal(to.n, world.n);
        for (int i = 0; i < world.n; i++)
            check(&world, i, &to);
        mem_tensors_free(&to);
        finish(&world, &from);
    }
}

/* Each share computes its slice of the whole, and every tensor is in one share. */
static void shares_make_up_the_whole(void **state)
{
    const d9d_map_plan_opts opt = {.allow_unused = true};

    (void)state;
    for (uint64_t seed = 0; seed < 200; seed++) {
        uint64_t total = 1 + seed % 4;
        size_t made = 0;
        int wanted = 0;

        for (uint64_t k = 0; k < total; k++) {
            d9d_tensor_source src;
            d9d_tensor_sink sink = mem_tensors_sink(&to);
            d9d_map_plan *p;

            build(&world, &from, seed);
            wanted = world.n;
            assert_fails_like(d9d_mapper_shard(world.m, k, k), D9D_ECONFIG, "share");
            assert_ok(d9d_mapper_shard(world.m, total, k));
            src = mem_tensors_source(&from);
            to = (mem_tensors){.n = 0};
            assert_ok(d9d_map_plan_create(world.m, &src, &opt, &p));
            assert_ok(d9d_map_plan_run(p, &sink, 1, NULL));
            d9d_map_plan_free(p);
            made += to.n;
            for (int i = 0; i < world.n; i++)
                if (has(world.m, world.name[i]))
                    check(&world, i, &to);
            mem_tensors_free(&to);
            finish(&world, &from);
        }
        assert_int_equal(made, wanted);
    }
}

static void shares_are_dealt_in_the_order_of_their_inputs(void **state)
{
    static const char *const names[] = {"d", "b", "a", "c", "e"};
    const char *pair[] = {"z", "aa"};
    d9d_mapper *m, *same;

    (void)state;
    assert_ok(d9d_mapper_create(&m));
    assert_ok(d9d_mapper_create(&same));
    for (size_t i = 0; i < 5; i++)
        assert_ok(d9d_mapper_identity(m, names[i]));
    assert_ok(d9d_mapper_stack(m, pair, 2, "y", 0));
    /* In order of their smallest inputs: a, aa z, b, c, d, e. */
    assert_ok(d9d_mapper_shard(m, 2, 1));
    assert_int_equal(d9d_mapper_input_count(m), 4);
    assert_string_equal(d9d_mapper_input(m, 0), "c");
    assert_string_equal(d9d_mapper_input(m, 1), "e");
    assert_string_equal(d9d_mapper_input(m, 2), "z");
    assert_string_equal(d9d_mapper_input(m, 3), "aa");
    assert_string_equal(d9d_mapper_output(m, 2), "y");
    assert_ok(d9d_mapper_identities(same, m));
    assert_int_equal(d9d_mapper_input_count(same), 3);
    assert_false(d9d_mapper_is_empty(same));
    assert_ok(d9d_mapper_shard(same, 4, 3));
    assert_true(d9d_mapper_is_empty(same));
    /* Composing with an empty mapping changes nothing. */
    assert_ok(d9d_mapper_compose(m, same));
    assert_int_equal(d9d_mapper_input_count(m), 4);
    assert_int_equal(d9d_mapper_output_count(m), 3);
    d9d_mapper_free(m);
}

static void what_cannot_be_placed_is_refused(void **state)
{
    static const char *const parts[] = {"a", "b"};
    const int64_t shape[] = {5}, other[] = {1}, at[] = {2};
    const d9d_mapper_placement mesh = {2, true, 0}, none = {0, true, 0}, third = {2, true, 2};
    d9d_tensor_source src;
    d9d_map_plan *p = NULL;
    d9d_mapper *m;

    (void)state;
    to = (mem_tensors){.n = 0};
    (void)mem_tensors_add(&to, "a", D9D_U8, 1, shape);
    (void)mem_tensors_add(&to, "b", D9D_U8, 1, other);
    src = mem_tensors_source(&to);
    assert_ok(d9d_mapper_create(&m));
    assert_fails(d9d_mapper_distribute(m, "x", &mesh, at, 1), D9D_ECONFIG,
                 "mapper: x: coordinate 2 in dimension 0 of the mesh, which has the size 2");
    assert_fails(d9d_mapper_gather(m, parts, 2, "x", &none, 1), D9D_ECONFIG,
                 "mapper: x: dimension 0 of the mesh has the size 0");
    assert_fails(d9d_mapper_gather(m, parts, 1, "x", &mesh, 1), D9D_ECONFIG,
                 "mapper: x: 1 parts to gather from a mesh of 2");
    d9d_mapper_free(m);
    assert_ok(d9d_mapper_create(&m));
    assert_ok(d9d_mapper_gather(m, parts, 2, "x", &mesh, 1));
    assert_fails_like(d9d_map_plan_create(m, &src, NULL, &p), D9D_EMISMATCH,
                      "a: cannot gather U8 [5], beside the other parts it must be U8 [3]");
    d9d_mapper_free(m);
    assert_ok(d9d_mapper_create(&m));
    assert_ok(d9d_mapper_gather(m, parts, 2, "x", &third, 1));
    assert_fails_like(d9d_map_plan_create(m, &src, NULL, &p), D9D_EMISMATCH,
                      "a: cannot gather dimension 2 of U8 [5]");
    assert_null(p);
    d9d_mapper_free(m);
    mem_tensors_free(&to);
}

static void of_replicas_one_is_read(void **state)
{
    static const char *const parts[] = {"a", "b"};
    const d9d_mapper_placement mesh = {2, false, 0};
    const int64_t shape[] = {5};
    d9d_tensor_source src;
    d9d_map_plan *p;
    d9d_buf text = {0};
    d9d_mapper *m;

    (void)state;
    to = (mem_tensors){.n = 0};
    (void)mem_tensors_add(&to, "a", D9D_U8, 1, shape);
    (void)mem_tensors_add(&to, "b", D9D_U8, 1, shape);
    src = mem_tensors_source(&to);
    assert_ok(d9d_mapper_create(&m));
    assert_ok(d9d_mapper_gather(m, parts, 2, "x", &mesh, 1));
    assert_ok(d9d_map_plan_create(m, &src, NULL, &p));
    assert_ok(d9d_map_plan_print(p, "text", D9D_MAP_PLAN_ALL, &text));
    unit_check_has(text.data, "gather(replicate /2)", __FILE__, __LINE__);
    unit_check_has(text.data, ", 5 bytes to read, 5 to write,", __FILE__, __LINE__);
    d9d_buf_release(&text);
    d9d_map_plan_free(p);
    d9d_mapper_free(m);
    mem_tensors_free(&to);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_graphs_agree_with_plain_evaluation),
        cmocka_unit_test(shares_make_up_the_whole),
        cmocka_unit_test(shares_are_dealt_in_the_order_of_their_inputs),
        cmocka_unit_test(what_cannot_be_placed_is_refused),
        cmocka_unit_test(of_replicas_one_is_read),
    };

    return cmocka_run_group_tests_name("mapper_random", tests, NULL, NULL);
}
