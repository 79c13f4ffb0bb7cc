/* test_mapper.c - mappings against a plain evaluation of the same operations on arrays. */
#include "support/unit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/recast.h"
#include "d9d/base/rng.h"
#include "d9d/ckpt/mapper.h"

/* --- arrays ------------------------------------------------------------------- */

enum { MAX_ARRAYS = 64 };

struct array {
    char name[32];
    d9d_st_tensor t;
    unsigned char *data;
};

struct memory { /* a source and a sink */
    struct array a[MAX_ARRAYS];
    size_t n;
    uint64_t piece; /* sink: elements that are made at once; 0: all */
};

static struct array *add_array(struct memory *m, const char *name, d9d_dtype t, int ndim,
                               const int64_t *shape)
{
    struct array *a = &m->a[m->n++];

    assert_true(m->n <= MAX_ARRAYS);
    (void)snprintf(a->name, sizeof(a->name), "%s", name);
    a->t = (d9d_st_tensor){.name = a->name, .dtype = t, .ndim = ndim};
    for (int d = 0; d < ndim; d++)
        a->t.shape[d] = shape[d];
    assert_true(d9d_st_shape_bytes(t, ndim, shape, &a->t.bytes));
    a->data = calloc(1, a->t.bytes + 1);
    assert_non_null(a->data);
    return a;
}

static void free_arrays(struct memory *m)
{
    for (size_t i = 0; i < m->n; i++)
        free(m->a[i].data);
    m->n = 0;
}

static const d9d_st_tensor *mem_at(void *self, size_t i)
{
    return &((struct memory *)self)->a[i].t;
}

static const char *mem_place(void *self, size_t i)
{
    (void)self;
    (void)i;
    return "memory";
}

static d9d_status mem_read(void *self, size_t i, uint64_t at, void *dst, uint64_t n)
{
    const struct array *a = &((struct memory *)self)->a[i];

    assert_true(at + n <= a->t.bytes);
    memcpy(dst, a->data + at, n);
    return D9D_OK;
}

static d9d_status mem_begin(void *self, const d9d_st_tensor *outputs, size_t n, size_t *pieces,
                            uint64_t *bytes)
{
    *pieces = n;
    *bytes = 0;
    for (size_t i = 0; i < n; i++) {
        (void)add_array(self, outputs[i].name, outputs[i].dtype, outputs[i].ndim, outputs[i].shape);
        *bytes += outputs[i].bytes;
    }
    return D9D_OK;
}

static d9d_status mem_fill(void *self, size_t i, d9d_maker *make)
{
    struct memory *m = self;
    struct array *a = &m->a[i];
    const uint64_t each = m->piece > 0 ? m->piece * d9d_dtype_size(a->t.dtype) : a->t.bytes;

    for (uint64_t at = 0, n; at < a->t.bytes; at += n) {
        n = a->t.bytes - at < each ? a->t.bytes - at : each;
        d9d_make_soon(make, i, at, n);
        D9D_TRY(d9d_make(make, i, at, a->data + at, n));
    }
    d9d_maker_done(make, a->t.bytes);
    return D9D_OK;
}

static d9d_source source_of(struct memory *m)
{
    return (d9d_source){.self = m, .n = m->n, .at = mem_at, .place = mem_place, .read = mem_read};
}

static d9d_sink sink_of(struct memory *m)
{
    return (d9d_sink){m, mem_begin, mem_fill};
}

static void run(const d9d_mapper *m, struct memory *from, struct memory *to, int jobs)
{
    d9d_source src = source_of(from);
    d9d_sink sink = sink_of(to);
    d9d_map_plan *p;

    assert_ok(d9d_plan_create(m, &src, NULL, &p));
    assert_ok(d9d_plan_run(p, &sink, jobs, NULL));
    d9d_plan_free(p);
}

static struct array *find_array(struct memory *m, const char *name)
{
    for (size_t i = 0; i < m->n; i++)
        if (strcmp(m->a[i].name, name) == 0)
            return &m->a[i];
    fail_msg("no array %s", name);
    return NULL;
}

/* --- the plain evaluation: int64 elements, index by index ----------------------- */

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

/* Parts lie along `dim` from `at` on; copies between a part and the whole. */
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

/* --- random mappings ----------------------------------------------------------------- */

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
    struct plain now[MAX_ARRAYS]; /* live tensors */
    char name[MAX_ARRAYS][32];
    int n, fresh;
    d9d_mapper *m;
};

static void put(struct world *w, struct plain p, const char *name)
{
    assert_true(w->n < MAX_ARRAYS);
    w->now[w->n] = p;
    memcpy(w->name[w->n++], name, strlen(name) + 1);
}

static void take(struct world *w, int i)
{
    free(w->now[i].v);
    w->n--;
    w->now[i] = w->now[w->n];
    memcpy(w->name[i], w->name[w->n], sizeof(w->name[0]));
}

static void split(struct world *w, d9d_mapper *m, int i, bool unstack)
{
    struct plain *in = &w->now[i], parts[8];
    char names[8][32];
    const char *to[8];
    int dim = pick(&w->r, in->ndim), n = unstack ? (int)in->shape[dim] : 2;
    int64_t each = unstack ? 1 : (in->shape[dim] + 1) / 2;

    if (n > 8 || n < 1 || w->n + n > 24 || (!unstack && in->shape[dim] < 2))
        n = 0;
    for (int k = 0; k < n; k++) {
        parts[k] = *in;
        parts[k].shape[dim] = unstack ? 1 : k == 0 ? each : in->shape[dim] - each;
        plain_alloc(&parts[k]);
        plain_part(in, &parts[k], dim, k * each, false);
        if (unstack)
            plain_remove(&parts[k], dim);
        (void)snprintf(names[k], sizeof(names[k]), "x%d", w->fresh++);
        to[k] = names[k];
    }
    if (n == 0) {
        assert_ok(d9d_mapper_identity(m, w->name[i]));
        return;
    }
    assert_ok(unstack ? d9d_mapper_unstack(m, w->name[i], to, (size_t)n, dim)
                      : d9d_mapper_chunk(m, w->name[i], to, (size_t)n, dim - in->ndim));
    take(w, i);
    for (int k = 0; k < n; k++)
        put(w, parts[k], names[k]);
}

/* Stack or concatenate a tensor with every later one of its shape. */
static void merge(struct world *w, d9d_mapper *m, int i, bool stack)
{
    struct plain out = w->now[i];
    const char *from[MAX_ARRAYS];
    int at[MAX_ARRAYS], n = 0, dim;
    char to[32];

    for (int k = i; k < w->n; k++)
        if (w->now[k].ndim == out.ndim &&
            memcmp(w->now[k].shape, out.shape, (size_t)out.ndim * sizeof(int64_t)) == 0) {
            from[n] = w->name[k];
            at[n++] = k;
        }
    if ((stack && out.ndim >= 4) || (!stack && out.ndim == 0)) {
        assert_ok(d9d_mapper_identity(m, w->name[i]));
        return;
    }
    dim = pick(&w->r, out.ndim + (stack ? 1 : 0));
    (void)snprintf(to, sizeof(to), "x%d", w->fresh++);
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
}

/* One more stage: something happens to one tensor. */
static void stage(struct world *w)
{
    d9d_mapper *m;
    int i = pick(&w->r, w->n), j, k;
    struct plain *p = &w->now[i];

    assert_ok(d9d_mapper_create(&m));
    switch (pick(&w->r, p->ndim > 0 ? 6 : 4)) {
    case 5:
    case 4: split(w, m, i, pick(&w->r, 2) == 0); break;
    case 2: merge(w, m, i, true); break;
    case 3: merge(w, m, i, false); break;
    default:
        if (p->ndim > 1) {
            struct plain out;

            j = pick(&w->r, p->ndim);
            k = pick(&w->r, p->ndim);
            assert_ok(d9d_mapper_transpose(m, w->name[i], j, k));
            out = plain_transpose(p, j, k);
            free(p->v);
            *p = out;
        } else if (p->ndim == 1) {
            assert_ok(d9d_mapper_unsqueeze(m, w->name[i], -1));
            plain_insert(p, p->ndim, 1);
        }
    }
    assert_ok(d9d_mapper_then(w->m, m));
}

/* Sources t0..: U16 elements that are all different. */
static void start(struct world *w, struct memory *from, uint64_t seed)
{
    int64_t next = 0;

    *w = (struct world){.r = {{seed, 0}, 0}};
    assert_ok(d9d_mapper_create(&w->m));
    for (int i = 0; i < 2 + pick(&w->r, 4); i++) {
        struct plain p = {.ndim = pick(&w->r, 4)};
        struct array *a;
        char name[32];

        for (int d = 0; d < p.ndim; d++)
            p.shape[d] = 1 + (i % 2 == 0 ? d + 2 : pick(&w->r, 5));
        plain_alloc(&p);
        (void)snprintf(name, sizeof(name), "t%d", i);
        a = add_array(from, name, D9D_U16, p.ndim, p.shape);
        for (int64_t k = 0; k < count(&p); k++) {
            uint16_t u = (uint16_t)next;

            memcpy(a->data + 2 * k, &u, 2);
            p.v[k] = next++;
        }
        assert_ok(d9d_mapper_identity(w->m, name));
        put(w, p, name);
    }
}

static void random_chains_agree_with_plain_evaluation(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 400; seed++) {
        struct memory from = {.n = 0}, to = {.n = 0};
        struct world w;

        start(&w, &from, seed);
        for (int i = 0; i < 8; i++)
            stage(&w);
        to.piece = seed % 8; /* every way to cut an output */
        run(w.m, &from, &to, 1 + (int)(seed % 3));
        assert_int_equal(to.n, w.n);
        for (int i = 0; i < w.n; i++) {
            const struct array *a = find_array(&to, w.name[i]);

            assert_int_equal(a->t.ndim, w.now[i].ndim);
            assert_memory_equal(a->t.shape, w.now[i].shape, (size_t)a->t.ndim * sizeof(int64_t));
            for (int64_t k = 0; k < count(&w.now[i]); k++) {
                uint16_t u;

                memcpy(&u, a->data + 2 * k, 2);
                assert_int_equal(u, (uint16_t)w.now[i].v[k]);
            }
        }
        while (w.n > 0)
            take(&w, 0);
        d9d_mapper_free(w.m);
        free_arrays(&from);
        free_arrays(&to);
    }
}

/* --- large tensors are cut ------------------------------------------------------------- */

enum { R = 1500, C = 2100 }; /* 12.6 MB of float32: a few bands */

static void check_large(uint64_t piece)
{
    static const char *const parts[] = {"a", "b"};
    const int64_t shape[] = {R, C};
    struct memory from = {.n = 0}, to = {.piece = piece};
    d9d_mapper *m, *next;
    d9d_source src;
    d9d_map_plan *p;
    const float *stacked, *joined;

    for (int i = 0; i < 2; i++) {
        float *v = (float *)(void *)add_array(&from, parts[i], D9D_F32, 2, shape)->data;

        for (int k = 0; k < R * C; k++)
            v[k] = (float)(i * R * C + k);
    }
    assert_ok(d9d_mapper_create(&m));
    assert_ok(d9d_mapper_create(&next));
    for (int i = 0; i < 2; i++) {
        const char *names[2][2] = {{"s0", "j0"}, {"s1", "j1"}};

        assert_ok(d9d_mapper_duplicate(m, parts[i], names[i], 2));
    }
    assert_ok(d9d_mapper_stack(next, (const char *const[]){"s0", "s1"}, 2, "stacked", 0));
    assert_ok(d9d_mapper_concat(next, (const char *const[]){"j0", "j1"}, 2, "joined", 1));
    assert_ok(d9d_mapper_then(m, next));
    assert_ok(d9d_mapper_create(&next));
    assert_ok(d9d_mapper_transpose(next, "stacked", -1, -2));
    assert_ok(d9d_mapper_then(m, next));
    src = source_of(&from);
    assert_ok(d9d_plan_create(m, &src, NULL, &p));
    assert_int_equal(d9d_plan_bytes(p), 4ull * 4 * R * C);
    /* A piece and a band; never a matrix. */
    assert_int_equal(d9d_plan_peak_bytes(p, 2), 2 * (D9D_PIECE_BYTES + (1 << 20)));
    d9d_plan_free(p);
    run(m, &from, &to, 2);
    stacked = (const float *)(const void *)find_array(&to, "stacked")->data;
    joined = (const float *)(const void *)find_array(&to, "joined")->data;
    for (int e = 0; e < 2; e++)
        for (int i = 0; i < R; i++)
            for (int j = 0; j < C; j++) {
                float v = (float)(e * R * C + i * C + j);

                if (stacked[(e * C + j) * R + i] != v || joined[i * 2 * C + e * C + j] != v)
                    fail_msg("element %d %d of %d", i, j, e);
            }
    d9d_mapper_free(m);
    free_arrays(&from);
    free_arrays(&to);
}

static void large_tensors_are_made_in_pieces(void **state)
{
    /* Whole; rows and parts of rows; so narrow that a transposed piece is read run by run. */
    static const uint64_t pieces[] = {0, 1000003, 77777};

    (void)state;
    for (size_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++)
        check_large(pieces[i]);
}

/* --- names ---------------------------------------------------------------------------------- */

static void names_that_collide_are_refused(void **state)
{
    d9d_mapper *m, *part;

    (void)state;
    assert_ok(d9d_mapper_create(&m));
    assert_ok(d9d_mapper_rename(m, "a", "b"));
    assert_fails(d9d_mapper_rename(m, "a", "c"), D9D_ECONFIG, "mapper: tensor a is taken twice");
    d9d_mapper_free(m);

    assert_ok(d9d_mapper_create(&m));
    assert_ok(d9d_mapper_rename(m, "a", "b"));
    assert_fails(d9d_mapper_rename(m, "c", "b"), D9D_ECONFIG, "mapper: tensor b is given twice");
    d9d_mapper_free(m);

    /* A name that passes through the second stage meets one that it gives. */
    assert_ok(d9d_mapper_create(&m));
    assert_ok(d9d_mapper_create(&part));
    assert_ok(d9d_mapper_identity(m, "a"));
    assert_ok(d9d_mapper_identity(m, "b"));
    assert_ok(d9d_mapper_rename(part, "a", "b"));
    assert_fails(d9d_mapper_then(m, part), D9D_ECONFIG, "mapper: tensor b is given twice");
    d9d_mapper_free(m);

    /* A name taken by the first stage and wanted from the source by the second. */
    assert_ok(d9d_mapper_create(&m));
    assert_ok(d9d_mapper_create(&part));
    assert_ok(d9d_mapper_rename(m, "a", "b"));
    assert_ok(d9d_mapper_rename(part, "a", "c"));
    assert_fails(d9d_mapper_then(m, part), D9D_ECONFIG, "mapper: tensor a is taken twice");
    d9d_mapper_free(m);
}

static void prefixes_scope_inputs_and_outputs(void **state)
{
    d9d_mapper *m, *part, *next;

    (void)state;
    assert_ok(d9d_mapper_create(&m));
    assert_ok(d9d_mapper_create(&part));
    assert_ok(d9d_mapper_create(&next));
    assert_ok(d9d_mapper_transpose(part, "x", 0, 1));
    assert_ok(d9d_mapper_rename(next, "x", "y"));
    assert_ok(d9d_mapper_then(part, next));
    assert_ok(d9d_mapper_beside(m, part, "src.", "dst."));
    assert_int_equal(d9d_mapper_input_count(m), 1);
    assert_int_equal(d9d_mapper_output_count(m), 1);
    assert_string_equal(d9d_mapper_input(m, 0), "src.x");
    assert_string_equal(d9d_mapper_output(m, 0), "dst.y");
    d9d_mapper_free(m);
}

/* --- problems --------------------------------------------------------------------------------- */

static void count_problem(void *arg, const char *sentence)
{
    d9d_buf *b = arg;

    assert_ok(d9d_buf_printf(b, "%s\n", sentence));
}

static void what_does_not_fit_is_listed(void **state)
{
    const int64_t shape[] = {2, 3}, other[] = {2, 4}, wants[] = {3, 2};
    struct memory from = {.n = 0};
    d9d_buf said = {0};
    d9d_plan_options opt = {
        .source = "ckpt", .mapper = "model", .problem = count_problem, .arg = &said};
    d9d_source src;
    d9d_map_plan *p = NULL;
    d9d_mapper *m;

    (void)state;
    (void)add_array(&from, "a", D9D_F32, 2, shape);
    (void)add_array(&from, "b", D9D_F32, 2, other);
    (void)add_array(&from, "spare", D9D_F32, 2, other);
    src = source_of(&from);
    assert_ok(d9d_mapper_create(&m));
    assert_ok(d9d_mapper_stack(m, (const char *const[]){"a", "b"}, 2, "s", 0));
    assert_ok(d9d_mapper_identity(m, "absent"));
    assert_ok(d9d_mapper_expect(m, "a", 2, wants));
    assert_fails_like(d9d_mapper_expect(m, "s", 2, wants), D9D_ENOTFOUND, "s is not an input");
    assert_fails(d9d_plan_create(m, &src, &opt, &p), D9D_EMISMATCH,
                 "ckpt and model: 1 missing, 1 unused, 2 mis-shaped tensors: "
                 "tensor a is F32 [2, 3], model needs F32 [3, 2]; tensor absent is missing; "
                 "tensor spare is not used (memory); "
                 "tensor b: cannot stack F32 [2, 4] with a, which is F32 [2, 3]");
    assert_null(p);
    assert_string_equal(said.data,
                        "tensor a is F32 [2, 3], model needs F32 [3, 2]\n"
                        "tensor absent is missing\n"
                        "tensor spare is not used (memory)\n"
                        "tensor b: cannot stack F32 [2, 4] with a, which is F32 [2, 3]\n");
    d9d_buf_release(&said);
    d9d_mapper_free(m);
    free_arrays(&from);
}

static void shapes_that_do_not_suit_an_operation_are_mismatches(void **state)
{
    const int64_t shape[] = {2, 3};
    static const char *const three[] = {"x", "y", "z"};
    struct memory from = {.n = 0};
    d9d_source src;

    (void)state;
    (void)add_array(&from, "a", D9D_I32, 2, shape);
    src = source_of(&from);
    for (int i = 0; i < 6; i++) {
        static const char *const sentences[] = {
            "a: cannot transpose dimension 2 of I32 [2, 3]",
            "a: cannot unstack 2 parts into 3",
            "a: cannot chunk a dimension of 2 into 3 parts",
            "a: cannot squeeze dimension 1 of size 3",
            "a: cannot cast int32 to bfloat16",
            "a: cannot concat dimension -3 of I32 [2, 3]",
        };
        d9d_map_plan *p = NULL;
        d9d_mapper *m;

        assert_ok(d9d_mapper_create(&m));
        switch (i) {
        case 0: assert_ok(d9d_mapper_transpose(m, "a", 0, 2)); break;
        case 1: assert_ok(d9d_mapper_unstack(m, "a", three, 3, 0)); break;
        case 2: assert_ok(d9d_mapper_chunk(m, "a", three, 3, 0)); break;
        case 3: assert_ok(d9d_mapper_squeeze(m, "a", -1)); break;
        case 4: assert_ok(d9d_mapper_cast(m, "a", D9D_BF16)); break;
        case 5: assert_ok(d9d_mapper_concat(m, (const char *const[]){"a"}, 1, "b", -3)); break;
        }
        assert_fails_like(d9d_plan_create(m, &src, NULL, &p), D9D_EMISMATCH, sentences[i]);
        assert_null(p);
        d9d_mapper_free(m);
    }
    free_arrays(&from);
}

/* --- casts ---------------------------------------------------------------------------------------
 */

static void every_half_survives_float_and_back(void **state)
{
    const d9d_dtype up = D9D_F32;

    (void)state;
    for (int which = 0; which < 2; which++) {
        d9d_dtype half = which == 0 ? D9D_F16 : D9D_BF16;

        for (unsigned u = 0; u < 65536; u++) {
            uint16_t in = (uint16_t)u, out;
            float f;

            d9di_cast(&in, half, &up, 1, &f, 1);
            d9di_cast(&f, D9D_F32, &half, 1, &out, 1);
            if (isnan(f))
                assert_true(d9di_first_nonfinite(&out, half, 1) == 0);
            else
                assert_int_equal(out, in);
            assert_int_equal(d9di_first_nonfinite(&in, half, 1) == 0, !isfinite(f));
        }
    }
}

static void floats_round_to_the_nearest_half(void **state)
{
    static const struct {
        float in;
        uint16_t f16, bf16;
    } rows[] = {
        {1.0f, 0x3c00, 0x3f80},          {65504.0f, 0x7bff, 0x4780},
        {65519.996f, 0x7bff, 0x4780},    {65520.0f, 0x7c00, 0x4780},
        {5.9604645e-8f, 0x0001, 0x3380}, {2.9802322e-8f, 0x0000, 0x3300},
        {2.9802326e-8f, 0x0001, 0x3300}, {6.1035156e-5f, 0x0400, 0x3880},
        {6.1005350e-5f, 0x03ff, 0x3880}, {1.0004883f, 0x3c00, 0x3f80},
        {1.0014648f, 0x3c02, 0x3f80},    {-0.0f, 0x8000, 0x8000},
        {INFINITY, 0x7c00, 0x7f80},
    };
    const d9d_dtype f16 = D9D_F16, bf16 = D9D_BF16;

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        uint16_t a, b;

        d9di_cast(&rows[i].in, D9D_F32, &f16, 1, &a, 1);
        d9di_cast(&rows[i].in, D9D_F32, &bf16, 1, &b, 1);
        assert_int_equal(a, rows[i].f16);
        assert_int_equal(b, rows[i].bf16);
    }
}

static void casts_of_a_chain_are_all_done(void **state)
{
    const int64_t n = 5000;
    struct memory from = {.n = 0}, to = {.n = 0};
    d9d_plan_options opt = {.cast = true, .cast_to = D9D_F32};
    d9d_source src;
    d9d_sink sink = sink_of(&to);
    d9d_map_plan *p;
    d9d_mapper *m, *next;
    float *in, *out;
    uint32_t *kept;

    (void)state;
    in = (float *)(void *)add_array(&from, "x", D9D_F32, 1, &n)->data;
    kept = (uint32_t *)(void *)add_array(&from, "ids", D9D_U32, 1, &n)->data;
    for (int64_t i = 0; i < n; i++) {
        in[i] = 1.0f + (float)i / 4096;
        kept[i] = (uint32_t)i;
    }
    src = source_of(&from);
    assert_ok(d9d_mapper_create(&m));
    assert_ok(d9d_mapper_cast(m, "x", D9D_BF16));
    assert_ok(d9d_mapper_identity(m, "ids"));
    assert_ok(d9d_mapper_create(&next));
    assert_ok(d9d_mapper_cast(next, "x", D9D_F64));
    assert_ok(d9d_mapper_then(m, next));
    assert_ok(d9d_plan_create(m, &src, &opt, &p));
    assert_ok(d9d_plan_run(p, &sink, 1, NULL));
    d9d_plan_free(p);
    out = (float *)(void *)find_array(&to, "x")->data;
    for (int64_t i = 0; i < n; i++)
        assert_true(out[i] == d9d_bf16_to_f32(d9d_f32_to_bf16(in[i])));
    assert_memory_equal(find_array(&to, "ids")->data, kept, (size_t)n * 4);
    d9d_mapper_free(m);
    free_arrays(&from);
    free_arrays(&to);
}

/* --- printing
 * ------------------------------------------------------------------------------------- */

static void plans_are_printed(void **state)
{
    const int64_t shape[] = {2, 3};
    struct memory from = {.n = 0};
    d9d_source src;
    d9d_map_plan *p;
    d9d_mapper *m, *next;
    d9d_buf b = {0};

    (void)state;
    (void)add_array(&from, "a", D9D_F32, 2, shape);
    (void)add_array(&from, "b", D9D_F32, 2, shape);
    (void)add_array(&from, "c", D9D_F32, 2, shape);
    src = source_of(&from);
    assert_ok(d9d_mapper_create(&m));
    assert_ok(d9d_mapper_stack(m, (const char *const[]){"a", "b"}, 2, "s", 0));
    assert_ok(d9d_mapper_drop(m, "c"));
    assert_ok(d9d_mapper_create(&next));
    assert_ok(d9d_mapper_transpose(next, "s", 1, 2));
    assert_ok(d9d_mapper_then(m, next));
    assert_ok(d9d_plan_create(m, &src, NULL, &p));
    assert_ok(d9d_plan_print(p, "text", D9D_PLAN_ALL, &b));
    assert_string_equal(b.data, "group 0: stack(0), transpose(1, 2): 48 bytes\n"
                                "  < a F32 [2, 3] (memory at 0)\n"
                                "  < b F32 [2, 3] (memory at 0)\n"
                                "  > s F32 [2, 3, 2]\n"
                                "group 1: drop: 0 bytes\n"
                                "  < c F32 [2, 3] (memory at 0)\n"
                                "2 groups, 3 tensors in, 1 out, 48 bytes to read, 48 to write, "
                                "72 bytes of memory a job\n");
    b.len = 0;
    assert_ok(d9d_plan_print(p, "json", D9D_PLAN_ALL, &b));
    unit_check_has(b.data, "\"operation\": \"transpose(1, 2)\"", __FILE__, __LINE__);
    b.len = 0;
    assert_ok(d9d_plan_print(p, "dot", D9D_PLAN_ALL, &b));
    unit_check_has(b.data, "s0 -> s2;", __FILE__, __LINE__);
    assert_fails_like(d9d_plan_print(p, "xml", D9D_PLAN_ALL, &b), D9D_EINVAL, "xml");
    d9d_buf_release(&b);
    d9d_plan_free(p);
    d9d_mapper_free(m);
    free_arrays(&from);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_chains_agree_with_plain_evaluation),
        cmocka_unit_test(large_tensors_are_made_in_pieces),
        cmocka_unit_test(names_that_collide_are_refused),
        cmocka_unit_test(prefixes_scope_inputs_and_outputs),
        cmocka_unit_test(what_does_not_fit_is_listed),
        cmocka_unit_test(shapes_that_do_not_suit_an_operation_are_mismatches),
        cmocka_unit_test(every_half_survives_float_and_back),
        cmocka_unit_test(floats_round_to_the_nearest_half),
        cmocka_unit_test(casts_of_a_chain_are_all_done),
        cmocka_unit_test(plans_are_printed),
    };

    return cmocka_run_group_tests_name("mapper", tests, NULL, NULL);
}
