/* test_cp_slice.c - the slice of a batch of a context-parallel rank. */
#include <stdlib.h>
#include <string.h>

#include "d9d/base/rng.h"
#include "d9d/data/loader/cp_slice.h"
#include "d9d/kernels/table.h"
#include "support/unit.h"

enum { MOST_ROWS = 3, MOST_LENGTH = 96, CELLS = MOST_ROWS * MOST_LENGTH };

/* A batch whose ids are the numbers of its cells. */
typedef struct made {
    d9d_batch b;
    int32_t ids[CELLS], labels[CELLS], positions[CELLS], bounds[CELLS + 1];
} made;

/* Documents of 1 to `longest` positions, some of none; longest 0: not packed. */
static void make(made *m, int64_t rows, int64_t length, int longest, uint64_t seed)
{
    int64_t documents = 0;
    uint64_t draw = 0;

    for (int64_t i = 0; i < rows * length; i++) {
        m->ids[i] = (int32_t)i;
        m->labels[i] = (int32_t)(1000 + i);
        m->positions[i] = (int32_t)(i % length);
    }
    for (int64_t i = 0; i < rows * length && longest > 0; i++) {
        const int64_t last = documents > 0 ? m->bounds[documents - 1] : -1;
        const uint32_t word = d9d_rng_u32((d9d_rng){seed, 1}, draw++);

        if (i % length == 0 || i - last >= longest || word % 4 == 0)
            m->bounds[documents++] = (int32_t)i;
        if (word % 16 == 0)
            m->bounds[documents++] = (int32_t)i;
    }
    m->bounds[documents] = (int32_t)(rows * length);
    m->b = (d9d_batch){.seqs = rows,
                       .length = length,
                       .ids = m->ids,
                       .labels = m->labels,
                       .positions = m->positions,
                       .documents = longest > 0 ? documents : 0,
                       .cu_seqlens = longest > 0 ? m->bounds : NULL};
}

/* The first cell of a cell's document. */
static int64_t first_of(const d9d_batch *b, int64_t cell)
{
    int64_t i = 0;

    if (b->cu_seqlens == NULL)
        return cell / b->length * b->length;
    while (b->cu_seqlens[i + 1] <= cell)
        i++;
    return b->cu_seqlens[i];
}

/* Segment i of the part: of its list, or, without packed documents, a piece of a row. */
static d9d_segment segment_at(const d9d_batch *b, const d9d_cp_slice *part, int rank, int n,
                              int64_t i)
{
    const int64_t size = part->length / 2, row = i / 2,
                  piece = i % 2 == 0 ? rank : 2 * n - 1 - rank;

    if (b->cu_seqlens != NULL)
        return part->segment[i];
    assert_null(part->segment);
    return (d9d_segment){(int32_t)(i * size), (int32_t)size, (int32_t)(row * b->length),
                         (int32_t)((piece + 1) * size)};
}

/* Query `cell` must see the keys from its document's first to its own, and does by segment `x`, of
 * which it is query j. */
static void check_sight(const d9d_batch *b, int64_t cell, const d9d_segment *x, int64_t j)
{
    assert_int_equal(x->k, first_of(b, cell));
    assert_int_equal(x->k + x->nk - x->nq + j, cell);
}

/* The kernel takes the list for one. */
static void check_formed(const d9d_batch *b, const d9d_cp_slice *part, int rank, int n_ranks)
{
    const int64_t size = part->length / 2;
    static float x[CELLS], lse[CELLS];
    const d9d_attention_dims n = {.t = D9D_F32,
                                  .b = part->seqs,
                                  .s = part->length,
                                  .z = b->length,
                                  .a = 1,
                                  .kv = 1,
                                  .d = 1,
                                  .causal = true,
                                  .segments = part->segments,
                                  .segment = part->segment,
                                  .chunks = part->length < b->length ? 2 : 0,
                                  .chunk_end = {(rank + 1) * size, (2 * n_ranks - rank) * size}};

    assert_ok(d9d_kernels_cpu()->attention->fwd(NULL, &n, x, lse, x, x, x));
}

/* Each cell of the batch is one rank's, and sees what it saw. */
static void check_parts(const d9d_batch *b, int n)
{
    const int64_t size = b->length / (2 * n);
    d9d_cp_slice_buffer room = {0};
    int64_t seen = 0;

    for (int rank = 0; rank < n; rank++) {
        d9d_cp_slice part;
        int64_t i = 0;

        assert_ok(d9d_cp_slice_make(b, rank, n, &room, &part));
        assert_int_equal(part.seqs, b->seqs);
        assert_int_equal(part.length, 2 * size);
        check_formed(b, &part, rank, n);
        for (int64_t s = 0; s < (b->cu_seqlens != NULL ? part.segments : 2 * b->seqs); s++) {
            const d9d_segment x = segment_at(b, &part, rank, n, s);

            for (int64_t j = 0; j < x.nq; j++, i++) {
                const int64_t at = i % part.length, piece = at < size ? rank : 2 * n - 1 - rank;
                const int64_t cell = i / part.length * b->length + piece * size + at % size;

                assert_int_equal(part.ids[i], cell);
                assert_int_equal(part.labels[i], b->labels[cell]);
                assert_int_equal(part.positions[i], b->positions[cell]);
                check_sight(b, cell, &x, j);
            }
        }
        assert_int_equal(i, part.seqs * part.length);
        seen += i;
    }
    assert_int_equal(seen, b->seqs * b->length);
    d9d_cp_slice_buffer_release(&room);
}

static void every_cell_is_somewhere(void **state)
{
    static const int ranks[] = {2, 3, 4, 8};
    static made m;

    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++)
        for (int i = 0; i < 4; i++)
            for (int longest = 0; longest <= 64; longest += 8) {
                const int64_t most = MOST_LENGTH / (2 * ranks[i]);

                make(&m, 1 + (int64_t)seed % MOST_ROWS, (1 + (int64_t)seed % most) * 2 * ranks[i],
                     longest, seed);
                check_parts(&m.b, ranks[i]);
            }
}

/* One of one: the batch's own arrays, no segments or its documents, of any length. */
static void alone_is_the_batch(void **state)
{
    static made m;
    d9d_cp_slice_buffer room = {0};
    d9d_cp_slice part;

    (void)state;
    make(&m, 3, 7, 0, 1);
    assert_ok(d9d_cp_slice_make(&m.b, 0, 1, &room, &part));
    assert_ptr_equal(part.ids, m.b.ids);
    assert_ptr_equal(part.labels, m.b.labels);
    assert_ptr_equal(part.positions, m.b.positions);
    assert_int_equal(part.length, 7);
    assert_null(part.segment);
    for (uint64_t seed = 0; seed < 20; seed++) {
        int64_t cell = 0;

        make(&m, 3, 7, 5, seed);
        assert_ok(d9d_cp_slice_make(&m.b, 0, 1, &room, &part));
        assert_ptr_equal(part.ids, m.b.ids);
        check_formed(&m.b, &part, 0, 1);
        for (int64_t s = 0; s < part.segments; s++)
            for (int64_t j = 0; j < part.segment[s].nq; j++)
                check_sight(&m.b, cell++, &part.segment[s], j);
        assert_int_equal(cell, 21);
    }
    d9d_cp_slice_buffer_release(&room);
}

static void refuses(void **state)
{
    static made m;
    d9d_cp_slice_buffer room = {0};
    d9d_cp_slice part;

    (void)state;
    make(&m, 2, 10, 0, 1);
    assert_fails(d9d_cp_slice_make(&m.b, 1, 3, &room, &part), D9D_EINVAL,
                 "a batch of sequences of 10 positions cannot be cut into 6 chunks for 3 ranks");
    d9d_cp_slice_buffer_release(&room);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_cell_is_somewhere),
        cmocka_unit_test(alone_is_the_batch),
        cmocka_unit_test(refuses),
    };

    return cmocka_run_group_tests_name("part", tests, NULL, NULL);
}
