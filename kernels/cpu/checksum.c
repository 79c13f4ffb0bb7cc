/* checksum.c - a checksum of the bits of arrays.  Sums of integers have no order. */
#include "common/checksum_word.h"
#include "cpu/common.h"

enum { PART = 1 << 16 }; /* words */

/* Words [first, end) of which all bytes are in the array. */
D9DI_CLONES static uint64_t whole_words(const unsigned char *x, int64_t first, int64_t end)
{
    uint64_t sum = 0;

    for (int64_t i = first; i < end; i++) {
        uint64_t word;

        memcpy(&word, x + i * 8, sizeof(word));
        sum += d9di_checksum_word(word, i);
    }
    return sum;
}

static uint64_t checksum_array(const d9d_checksum_array *a)
{
    const int64_t words = a->bytes / 8, parts = d9di_i64_ceil_div(words, PART);
    const unsigned char *x = a->x;
    uint64_t sum = 0, last = 0;

#pragma omp parallel for reduction(+ : sum) if (words > D9DI_MIN_PARALLEL)
    for (int64_t p = 0; p < parts; p++)
        sum += whole_words(x, p * PART, d9di_i64_min(words, (p + 1) * PART));
    if (a->bytes % 8 == 0)
        return sum;
    memcpy(&last, x + words * 8, (size_t)(a->bytes % 8));
    return sum + d9di_checksum_word(last, words);
}

d9d_status d9d_ref_checksum(d9d_stream s, uint64_t *out, const d9d_checksum_array *list,
                            int64_t count)
{
    (void)s;
    for (int64_t i = 0; i < count; i++)
        out[i] += checksum_array(&list[i]);
    return D9D_OK;
}
