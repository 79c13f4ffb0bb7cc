/* test_slices.c - slices at equal distances as runs: joining changes no slice, visits find what a
 * plain search finds, and runs that overlap or leave their tensor are refused. */
#include <stdlib.h>
#include <string.h>

#include "ckpt/dir/slice_runs.h"
#include "d9d/base/rng.h"
#include "support/unit.h"

enum { MAX_SLICES = 4096 };

typedef struct slice_list {
    d9d_slice slices[MAX_SLICES];
    size_t n;
} slice_list;

static d9d_status list_slice(void *arg, const d9d_slice *slice)
{
    slice_list *l = arg;

    assert_true(l->n < MAX_SLICES);
    l->slices[l->n++] = *slice;
    return D9D_OK;
}

static int compare_slices(const void *a, const void *b)
{
    const d9d_slice *x = a, *y = b;

    return x->rank != y->rank ? (x->rank > y->rank) - (x->rank < y->rank)
                              : memcmp(&x->box, &y->box, sizeof(x->box));
}

/* The slices of a tensor, by rank. */
static void list_slices(const d9d_sliced_tensor *t, const d9d_box *within, slice_list *out)
{
    out->n = 0;
    assert_ok(d9d_sliced_tensor_visit(t, within, list_slice, out));
    qsort(out->slices, out->n, sizeof(out->slices[0]), compare_slices);
}

static void assert_same_slices(const slice_list *a, const slice_list *b)
{
    assert_int_equal(a->n, b->n);
    for (size_t i = 0; i < a->n; i++)
        assert_int_equal(compare_slices(&a->slices[i], &b->slices[i]), 0);
}

/* --- a tensor that a mesh cuts ------------------------------------------------------------- */

/* A tensor of which `ranks` ranks have a slice each.  Axis k of the mesh has degree[k], the last
 * varies fastest; it cuts dimension dim[k] of the tensor (-1: none; rank 0 of it writes), an axis
 * that comes first cuts first. */
typedef struct mesh_cut {
    d9d_shape whole;
    int degree[4], dim[4];
} mesh_cut;

static void split_even(int64_t n, int parts, int i, int64_t *first, int64_t *count)
{
    *count = n / parts + (i < n % parts);
    *first = i * (n / parts) + (i < n % parts ? i : n % parts);
}

static bool cut_box(const mesh_cut *m, int rank, d9d_box *box)
{
    int index[4];

    *box = (d9d_box){.ndim = m->whole.ndim};
    memcpy(box->size, m->whole.dim, sizeof(box->size));
    for (int k = 3; k >= 0; k--) {
        index[k] = rank % m->degree[k];
        rank /= m->degree[k];
    }
    for (int k = 0; k < 4; k++) {
        int64_t first, count;

        if (m->dim[k] < 0 && index[k] > 0)
            return false;
        if (m->dim[k] < 0)
            continue;
        split_even(box->size[m->dim[k]], m->degree[k], index[k], &first, &count);
        box->start[m->dim[k]] += first;
        box->size[m->dim[k]] = count;
    }
    return d9d_box_volume(box) > 0;
}

/* As ranks and then directories of `per` ranks do: merged twice. */
static void make_cut(const mesh_cut *m, int ranks, int per, d9d_slices *whole, slice_list *plain)
{
    *whole = (d9d_slices){0};
    plain->n = 0;
    for (int first = 0; first < ranks; first += per) {
        d9d_slices part = {0};

        for (int rank = first; rank < first + per && rank < ranks; rank++) {
            d9d_slice_run run = {.rank = rank};
            d9d_sliced_tensor t = {.name = "w",
                                   .group = "model",
                                   .dtype = D9D_F32,
                                   .whole = m->whole,
                                   .runs = &run,
                                   .n_runs = 1};
            const d9d_slices one = {.tensors = &t, .n = 1, .ranks = ranks, .ranks_per_dir = per};

            if (!cut_box(m, rank, &run.box))
                continue;
            assert_ok(d9d_slices_add(&part, &one));
            plain->slices[plain->n++] = (d9d_slice){.rank = rank, .box = run.box};
        }
        assert_ok(d9d_slices_join_runs(&part));
        assert_ok(d9d_slices_add(whole, &part));
        d9d_slices_release(&part);
    }
    assert_ok(d9d_slices_join_runs(whole));
}

static int product(const mesh_cut *m)
{
    return m->degree[0] * m->degree[1] * m->degree[2] * m->degree[3];
}

/* What models and meshes do; however many ranks, a few runs. */
static void test_meshes_are_few_runs(void **state)
{
    static const struct {
        mesh_cut cut;
        size_t runs;
    } rows[] = {
        {{{2, {4096, 512}}, {1, 1, 1, 1024}, {-1, -1, -1, 0}}, 1}, /* FSDP */
        {{{2, {4100, 512}}, {1, 1, 1, 1024}, {-1, -1, -1, 0}}, 3}, /* uneven */
        {{{1, {128}}, {1, 1, 1, 1024}, {-1, -1, -1, 0}}, 1},       /* fewer rows than ranks */
        {{{2, {4096, 512}}, {1, 1, 128, 8}, {-1, -1, 0, 1}}, 1},   /* FSDP, rows of TP */
        {{{2, {4096, 512}}, {1, 1, 8, 128}, {-1, -1, 0, 0}}, 1},   /* both along one dimension */
        {{{2, {4096, 512}}, {1, 16, 8, 8}, {-1, 0, -1, 0}}, 1},    /* copies between them */
        {{{3, {128, 64, 32}}, {1, 16, 1, 64}, {-1, 1, -1, 0}}, 1}, /* experts, then their rows */
        {{{3, {128, 60, 32}}, {1, 16, 1, 64}, {-1, 1, -1, 0}}, 3},
        {{{2, {4096, 512}}, {4, 1, 1, 256}, {-1, -1, -1, 0}}, 1}, /* HSDP: one copy */
    };
    static slice_list plain, joined;

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        d9d_slices s;

        make_cut(&rows[i].cut, product(&rows[i].cut), 64, &s, &plain);
        assert_true(s.tensors[0].n_runs <= rows[i].runs);
        list_slices(&s.tensors[0], NULL, &joined);
        assert_same_slices(&joined, &plain);
        assert_int_equal(d9d_sliced_tensor_count(&s.tensors[0]), plain.n);
        assert_int_equal(d9d_sliced_tensor_volume(&s.tensors[0]),
                         d9d_shape_numel(&rows[i].cut.whole));
        d9d_slices_release(&s);
    }
}

/* TP of the slow axis and FSDP of the fast one interleave within a directory. */
static void test_interleaved_axes(void **state)
{
    /* the first axis cuts first, and varies fastest when the mesh is listed the other way round */
    static slice_list plain, joined;
    d9d_slices s = {0};

    (void)state;
    plain.n = 0;
    for (int part = 0; part < 16; part++) {
        d9d_slices own = {0};

        for (int rank = part * 64; rank < part * 64 + 64; rank++) {
            const int64_t tp = rank % 8, dps = rank / 8;
            d9d_slice_run run = {.rank = rank, .box = {1, {tp * 128 * 4 + dps * 4}, {4}}};
            d9d_sliced_tensor t = {"w", "model", D9D_F32, {1, {8 * 128 * 4}}, &run, 1};
            const d9d_slices one = {.tensors = &t, .n = 1, .ranks = 1024, .ranks_per_dir = 64};

            assert_ok(d9d_slices_add(&own, &one));
            plain.slices[plain.n++] = (d9d_slice){.rank = rank, .box = run.box};
        }
        assert_ok(d9d_slices_join_runs(&own));
        assert_int_equal(own.tensors[0].n_runs, 1);
        assert_ok(d9d_slices_add(&s, &own));
        d9d_slices_release(&own);
    }
    assert_ok(d9d_slices_join_runs(&s));
    assert_int_equal(s.tensors[0].n_runs, 1);
    assert_int_equal(s.tensors[0].runs[0].n_steps, 2);
    list_slices(&s.tensors[0], NULL, &joined);
    assert_same_slices(&joined, &plain);
    d9d_slices_release(&s);
}

static int64_t draw(uint64_t *at, int64_t n)
{
    return (int64_t)d9d_rng_below((d9d_rng){7, 0}, (*at)++, (uint64_t)n);
}

/* Any mesh, any cut, any number of ranks a directory: the same slices, found by any box. */
static void test_random_cuts(void **state)
{
    static slice_list plain, joined, found;
    uint64_t at = 0;

    (void)state;
    for (int round = 0; round < 300; round++) {
        mesh_cut m = {.whole.ndim = 1 + (int)draw(&at, 3)};
        d9d_box box = {.ndim = m.whole.ndim}, own = {0};
        d9d_slices s;

        for (int d = 0; d < m.whole.ndim; d++)
            m.whole.dim[d] = 1 + (int64_t)draw(&at, 40);
        for (int k = 0; k < 4; k++) {
            m.degree[k] = 1 + (int)draw(&at, 5);
            m.dim[k] = (int)draw(&at, m.whole.ndim + 1) - 1;
        }
        make_cut(&m, product(&m), 1 + (int)draw(&at, 20), &s, &plain);
        list_slices(&s.tensors[0], NULL, &joined);
        assert_same_slices(&joined, &plain);
        assert_false(d9di_slice_runs_overlap(&s.tensors[0], &box, &own));
        for (int look = 0; look < 10; look++) {
            d9d_box both;
            size_t want = 0;

            box = (d9d_box){.ndim = m.whole.ndim};
            for (int d = 0; d < m.whole.ndim; d++) {
                box.start[d] = draw(&at, m.whole.dim[d]);
                box.size[d] = 1 + draw(&at, m.whole.dim[d] - box.start[d]);
            }
            for (size_t i = 0; i < plain.n; i++)
                if (d9d_box_intersect(&plain.slices[i].box, &box, &both))
                    plain.slices[want++] = plain.slices[i];
            plain.n = want;
            list_slices(&s.tensors[0], &box, &found);
            assert_same_slices(&found, &plain);
            plain = joined;
        }
        d9d_slices_release(&s);
    }
}

/* --- what is refused ------------------------------------------------------------------------ */

static void test_runs_that_do_not_fit(void **state)
{
    const d9d_shape whole = D9D_SHAPE(64, 8);
    static const struct {
        d9d_slice_step steps[2];
        size_t n;
        bool fits;
    } rows[] = {
        {{{4, 0, 16, 1}}, 1, true},
        {{{4, 0, 16, 2}, {2, 1, 4, 1}}, 2, true},
        {{{2, 1, 4, 1}, {4, 0, 16, 2}}, 2, true},
        {{{4, 0, 15, 1}}, 1, false}, /* overlaps */
        {{{5, 0, 16, 1}}, 1, false}, /* leaves the tensor */
        {{{2, 0, INT64_MAX, 1}}, 1, false},
        {{{1, 0, 16, 1}}, 1, false},
        {{{2, 2, 16, 1}}, 1, false}, /* no such dimension */
        {{{2, -1, 16, 1}}, 1, false},
        {{{4, 0, 16, 3}}, 1, false}, /* leaves the ranks */
        {{{4, 0, 16, -1}}, 1, false},
        {{{2, 0, 32, 1}, {2, 0, 16, 1}}, 2, false}, /* not from near to far */
        {{{2, 0, 16, 1}, {2, 0, 32, 1}}, 2, true},
        {{{2, 0, 16, 1}, {2, 0, 17, 1}}, 2, false},
        {{{INT64_MAX, 0, 16, 0}}, 1, false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        d9d_slice_step steps[2] = {rows[i].steps[0], rows[i].steps[1]};
        const d9d_slice_run run = {
            .box = {2, {0, 0}, {16, 4}}, .steps = steps, .n_steps = rows[i].n};

        if (d9di_slice_run_fits(&run, &whole, 8) != rows[i].fits)
            fail_msg("row %zu", i);
    }
}

/* Runs between each other's slices are disjoint; one that meets a slice is not. */
static void test_overlaps_of_runs(void **state)
{
    d9d_slice_step far = {4, 0, 16, 1}, near = {2, 0, 16, 1};
    d9d_slice_run runs[2] = {{.box = {1, {0}, {8}}, .steps = &far, .n_steps = 1},
                             {.box = {1, {8}, {8}}, .steps = &near, .n_steps = 1}};
    d9d_sliced_tensor t = {"w", "model", D9D_F32, D9D_SHAPE(64), runs, 2};
    d9d_box one, other, both;

    (void)state;
    assert_false(d9di_slice_runs_overlap(&t, &one, &other));
    runs[1].box.start[0] = 9; /* 9..16 and 25..32 meet 16.. and 32.. */
    assert_true(d9di_slice_runs_overlap(&t, &one, &other));
    assert_true(d9d_box_intersect(&one, &other, &both));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_meshes_are_few_runs), cmocka_unit_test(test_interleaved_axes),
        cmocka_unit_test(test_random_cuts),         cmocka_unit_test(test_runs_that_do_not_fit),
        cmocka_unit_test(test_overlaps_of_runs),
    };

    return cmocka_run_group_tests_name("slices", tests, NULL, NULL);
}
