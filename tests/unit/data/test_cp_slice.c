/* test_cp_slice.c - the slice of a batch of a context-parallel rank. */
#include <stdlib.h>
#include <string.h>

#include "d9d/base/rng.h"
#include "d9d/data/loader/cp_slice.h"
#include "d9d/kernels/table.h"
#include "support/unit.h"

enum { MAX_ROWS = 3, MAX_LENGTH = 96, MAX_POSITIONS = MAX_ROWS * MAX_LENGTH };

/* A batch whose ids are the indices of its positions. */
typedef struct made {
    d9d_batch b;
    int32_t ids[MAX_POSITIONS], labels[MAX_POSITIONS], positions[MAX_POSITIONS],
        bounds[MAX_POSITIONS + 1];
} made;

/* Documents of 1 to `longest` positions, some empty; longest 0: not packed. */
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

/* The first position of a position's document. */
static int64_t first_of(const d9d_batch *b, int64_t position)
{
    int64_t i = 0;

    if (b->cu_seqlens == NULL)
        return position / b->length * b->length;
    while (b->cu_seqlens[i + 1] <= position)
        i++;
    return b->cu_seqlens[i];
}

/* Segment i of the slice: of its list or, without packed documents, a chunk of a row. */
static d9d_segment segment_at(const d9d_batch *b, const d9d_cp_slice *part, int rank, int n,
                              int64_t i)
{
    const int64_t size = part->length / 2, row = i / 2,
                  chunk = i % 2 == 0 ? rank : 2 * n - 1 - rank;

    if (b->cu_seqlens != NULL)
        return part->segment[i];
    assert_null(part->segment);
    return (d9d_segment){(int32_t)(i * size), (int32_t)size, (int32_t)(row * b->length),
                         (int32_t)((chunk + 1) * size)};
}

/* The prompt of a position's document, as the labels say: the tokens before its first target. */
static int64_t prompt_of(const d9d_batch *b, int64_t position)
{
    const int64_t first = first_of(b, position);
    int64_t n = 0;

    while (first + n < b->seqs * b->length && first_of(b, first + n) == first) {
        if (b->labels[first + n++] != -100)
            break;
    }
    return n;
}

/* Query `position` must see the keys from its document's first to its own, and does by segment `x`,
 * of which it is query j. */
static void check_sight(const d9d_batch *b, int64_t position, const d9d_segment *x, int64_t j)
{
    assert_int_equal(x->k, first_of(b, position));
    assert_int_equal(x->k + x->nk - x->nq + j, position);
}

/* The kernel accepts the list. */
static void check_formed(const d9d_batch *b, const d9d_cp_slice *part, int rank, int n_ranks)
{
    const int64_t size = part->length / 2;
    static float x[MAX_POSITIONS], lse[MAX_POSITIONS];
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
                                  .prefix = part->prefix,
                                  .chunks = part->length < b->length ? 2 : 0,
                                  .chunk_end = {(rank + 1) * size, (2 * n_ranks - rank) * size}};

    assert_ok(d9d_kernels_cpu()->attention->fwd(NULL, &n, x, lse, x, x, x));
}

/* Each position of the batch is on one rank, and sees what it saw. */
static void check_parts(const d9d_batch *b, int n)
{
    const int64_t size = b->length / (2 * n);
    d9d_cp_slice_buffer buffer = {0};
    int64_t seen = 0;

    for (int rank = 0; rank < n; rank++) {
        d9d_cp_slice part;
        int64_t i = 0;

        assert_ok(d9d_cp_slice_make(b, rank, n, &buffer, &part));
        assert_int_equal(part.seqs, b->seqs);
        assert_int_equal(part.length, 2 * size);
        check_formed(b, &part, rank, n);
        for (int64_t s = 0; s < (b->cu_seqlens != NULL ? part.segments : 2 * b->seqs); s++) {
            const d9d_segment x = segment_at(b, &part, rank, n, s);

            for (int64_t j = 0; j < x.nq; j++, i++) {
                const int64_t at = i % part.length, chunk = at < size ? rank : 2 * n - 1 - rank;
                const int64_t position = i / part.length * b->length + chunk * size + at % size;

                assert_int_equal(part.ids[i], position);
                assert_int_equal(part.labels[i], b->labels[position]);
                assert_int_equal(part.positions[i], b->positions[position]);
                check_sight(b, position, &x, j);
            }
        }
        assert_int_equal(i, part.seqs * part.length);
        seen += i;
    }
    assert_int_equal(seen, b->seqs * b->length);
    d9d_cp_slice_buffer_release(&buffer);
}

static void every_position_is_on_a_rank(void **state)
{
    static const int ranks[] = {2, 3, 4, 8};
    static made m;

    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++)
        for (int i = 0; i < 4; i++)
            for (int longest = 0; longest <= 64; longest += 8) {
                const int64_t max_length = MAX_LENGTH / (2 * ranks[i]);

                make(&m, 1 + (int64_t)seed % MAX_ROWS,
                     (1 + (int64_t)seed % max_length) * 2 * ranks[i], longest, seed);
                check_parts(&m.b, ranks[i]);
            }
}

/* Every segment has the prompt of its document, on whichever ranks that lies; rows that are not
 * packed are documents. */
static void check_prefixes(const d9d_batch *b, int n)
{
    d9d_cp_slice_buffer buffer = {0};

    for (int rank = 0; rank < n; rank++) {
        d9d_cp_slice part;
        int64_t queries = 0;

        assert_ok(d9d_cp_slice_make(b, rank, n, &buffer, &part));
        assert_ok(d9d_cp_slice_add_prefixes(b, rank, n, &buffer, &part));
        check_formed(b, &part, rank, n);
        for (int64_t s = 0; s < part.segments; s++) {
            assert_int_equal(part.prefix[s], prompt_of(b, part.segment[s].k));
            queries += part.segment[s].nq;
        }
        assert_int_equal(queries, part.seqs * part.length);
    }
    d9d_cp_slice_buffer_release(&buffer);
}

static void prompts_are_prefixes(void **state)
{
    static const int ranks[] = {1, 2, 3, 4};
    static made m;

    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++)
        for (int i = 0; i < 4; i++)
            for (int longest = 0; longest <= 64; longest += 16) {
                make(&m, 1 + (int64_t)seed % MAX_ROWS, (1 + (int64_t)seed % 12) * 2 * ranks[i],
                     longest, seed);
                for (int64_t p = 0; p < m.b.seqs * m.b.length; p++)
                    if (d9d_rng_u32((d9d_rng){seed, 2}, (uint64_t)p) % 8 != 0)
                        m.labels[p] = -100;
                check_prefixes(&m.b, ranks[i]);
            }
}

/* One rank: the batch's own arrays, with no segments or its documents, of any length. */
static void alone_is_the_batch(void **state)
{
    static made m;
    d9d_cp_slice_buffer buffer = {0};
    d9d_cp_slice part;

    (void)state;
    make(&m, 3, 7, 0, 1);
    assert_ok(d9d_cp_slice_make(&m.b, 0, 1, &buffer, &part));
    assert_ptr_equal(part.ids, m.b.ids);
    assert_ptr_equal(part.labels, m.b.labels);
    assert_ptr_equal(part.positions, m.b.positions);
    assert_int_equal(part.length, 7);
    assert_null(part.segment);
    for (uint64_t seed = 0; seed < 20; seed++) {
        int64_t position = 0;

        make(&m, 3, 7, 5, seed);
        assert_ok(d9d_cp_slice_make(&m.b, 0, 1, &buffer, &part));
        assert_ptr_equal(part.ids, m.b.ids);
        check_formed(&m.b, &part, 0, 1);
        for (int64_t s = 0; s < part.segments; s++)
            for (int64_t j = 0; j < part.segment[s].nq; j++)
                check_sight(&m.b, position++, &part.segment[s], j);
        assert_int_equal(position, 21);
    }
    d9d_cp_slice_buffer_release(&buffer);
}

/* A rank's own positions, and the documents of whole sequences. */
static void documents_of_whole_sequences(void **state)
{
    static made m;
    d9d_cp_slice_buffer buffer = {0}, alone = {0};
    d9d_cp_slice part, whole;

    (void)state;
    make(&m, 3, 8, 5, 4);
    assert_ok(d9d_cp_slice_make(&m.b, 1, 2, &buffer, &part));
    assert_ok(d9d_cp_slice_set_segments(&m.b, 0, 1, &buffer, &part));
    assert_ok(d9d_cp_slice_make(&m.b, 0, 1, &alone, &whole));
    assert_int_equal(part.length, 4);
    assert_int_equal(part.ids[0], m.b.ids[2]);
    assert_int_equal(part.segments, whole.segments);
    assert_memory_equal(part.segment, whole.segment,
                        (size_t)whole.segments * sizeof(*whole.segment));
    make(&m, 3, 8, 0, 4);
    assert_ok(d9d_cp_slice_make(&m.b, 1, 2, &buffer, &part));
    assert_ok(d9d_cp_slice_set_segments(&m.b, 0, 1, &buffer, &part));
    assert_null(part.segment);
    d9d_cp_slice_buffer_release(&buffer);
    d9d_cp_slice_buffer_release(&alone);
}

static void padding_is_a_segment_of_its_own(void **state)
{
    static const d9d_segment want[] = {{0, 5, 0, 5}, {5, 2, 5, 2}, {7, 7, 7, 7}, {14, 7, 14, 7}};
    static const int64_t lengths[] = {5, 7, 0};
    static made m;
    d9d_cp_slice_buffer buffer = {0};
    d9d_cp_slice part;

    (void)state;
    make(&m, 3, 7, 0, 1);
    m.b.lengths = lengths;
    assert_ok(d9d_cp_slice_make(&m.b, 0, 1, &buffer, &part));
    assert_ok(d9d_cp_slice_set_bidirectional(&m.b, 0, 1, &buffer, &part));
    assert_int_equal(part.segments, 4);
    assert_memory_equal(part.segment, want, sizeof(want));
    assert_null(part.prefix);
    /* Packed documents have their padding apart already. */
    make(&m, 3, 7, 5, 2);
    m.b.lengths = lengths;
    assert_ok(d9d_cp_slice_make(&m.b, 0, 1, &buffer, &part));
    assert_ok(d9d_cp_slice_set_bidirectional(&m.b, 0, 1, &buffer, &part));
    check_formed(&m.b, &part, 0, 1);
    d9d_cp_slice_buffer_release(&buffer);
}

/* Two sequences of 8 on two ranks: chunks of 2, of which rank 1 has the inner ones. */
static void chunks_see_whole_documents(void **state)
{
    static const d9d_segment inner[] = {
        {0, 2, 0, 4}, {2, 1, 0, 5}, {3, 1, 5, 1}, {4, 2, 8, 4}, {6, 2, 8, 6}};
    static const int32_t inner_prefix[] = {5, 5, 3, 8, 8};
    static const d9d_segment outer[] = {{0, 2, 0, 2}, {2, 2, 5, 3}, {4, 2, 8, 2}, {6, 2, 8, 8}};
    static const int32_t outer_prefix[] = {5, 3, 8, 8};
    static const int64_t lengths[] = {5, 8};
    static made m;
    d9d_cp_slice_buffer buffer = {0};
    d9d_cp_slice part;

    (void)state;
    make(&m, 2, 8, 0, 1);
    m.b.lengths = lengths;
    assert_ok(d9d_cp_slice_make(&m.b, 1, 2, &buffer, &part));
    assert_ok(d9d_cp_slice_set_bidirectional(&m.b, 1, 2, &buffer, &part));
    assert_int_equal(part.segments, 5);
    assert_memory_equal(part.segment, inner, sizeof(inner));
    assert_memory_equal(part.prefix, inner_prefix, sizeof(inner_prefix));
    assert_ok(d9d_cp_slice_make(&m.b, 0, 2, &buffer, &part));
    assert_ok(d9d_cp_slice_set_bidirectional(&m.b, 0, 2, &buffer, &part));
    assert_int_equal(part.segments, 4);
    assert_memory_equal(part.segment, outer, sizeof(outer));
    assert_memory_equal(part.prefix, outer_prefix, sizeof(outer_prefix));
    d9d_cp_slice_buffer_release(&buffer);
}

static void refuses(void **state)
{
    static made m;
    d9d_cp_slice_buffer buffer = {0};
    d9d_cp_slice part;

    (void)state;
    make(&m, 2, 10, 0, 1);
    assert_fails(d9d_cp_slice_make(&m.b, 1, 3, &buffer, &part), D9D_EINVAL,
                 "a batch of sequences of 10 positions cannot be cut into 6 chunks for 3 ranks");
    d9d_cp_slice_buffer_release(&buffer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_position_is_on_a_rank),
        cmocka_unit_test(prompts_are_prefixes),
        cmocka_unit_test(alone_is_the_batch),
        cmocka_unit_test(documents_of_whole_sequences),
        cmocka_unit_test(padding_is_a_segment_of_its_own),
        cmocka_unit_test(chunks_see_whole_documents),
        cmocka_unit_test(refuses),
    };

    return cmocka_run_group_tests_name("part", tests, NULL, NULL);
}
