/* The checksum of arrays against its formula, byte by byte. */
#include "support/arrays.h"
#include "support/host_kernels.h"

#include <stdlib.h>
#include <string.h>

enum { OUT0 = 5 }; /* what a checksum is added to */

static uint64_t slow(const unsigned char *x, int64_t bytes)
{
    uint64_t sum = OUT0;

    for (int64_t i = 0; i * 8 < bytes; i++) {
        uint64_t v = 0;

        for (int64_t j = 0; j < 8 && i * 8 + j < bytes; j++)
            v |= (uint64_t)x[i * 8 + j] << 8 * j;
        v ^= (uint64_t)(i + 1) * UINT64_C(11400714819323198485);
        v = (v ^ (v >> 32)) * UINT64_C(18397679294719823053);
        v = (v ^ (v >> 32)) * UINT64_C(14181476777654086739);
        sum += v ^ (v >> 32);
    }
    return sum;
}

static uint64_t checksum(const void *x, int64_t bytes)
{
    const d9d_checksum_array one = {x, bytes};
    uint64_t out = OUT0;

    assert_int_equal(host_kernels()->reduce->checksum(NULL, &out, &one, 1), D9D_OK);
    return out;
}

static const int64_t sizes[] = {0,  1,    7,     8,     9,      15,    16,
                                17, 4095, 65535, 65536, 131080, 524289 /* several parts */};
enum { N_SIZES = sizeof(sizes) / sizeof(sizes[0]) };

static void every_size_and_address(void **state)
{
    (void)state;
    for (size_t s = 0; s < N_SIZES; s++) {
        unsigned char *x = array_random(D9D_F32, sizes[s] / 4 + 4, 3 + s, 1);

        for (int shift = 0; shift < 5; shift++)
            assert_true(checksum(x + shift, sizes[s]) == slow(x + shift, sizes[s]));
        free(x);
    }
}

/* A list gives what its arrays give alone, and more arrays than a launch takes. */
static void a_list(void **state)
{
    enum { LIST = 150 };
    float *x = array_random(D9D_F32, LIST * 40, 1, 1);
    d9d_checksum_array list[LIST];
    uint64_t out[LIST];

    (void)state;
    for (int i = 0; i < LIST; i++) {
        list[i] = (d9d_checksum_array){x + (size_t)40 * (size_t)i, i % 5 == 0 ? 0 : i};
        out[i] = OUT0;
    }
    assert_int_equal(host_kernels()->reduce->checksum(NULL, out, list, LIST), D9D_OK);
    for (int i = 0; i < LIST; i++)
        assert_true(out[i] == slow(list[i].x, list[i].bytes));
    free(x);
}

/* Any bit of any byte, and the order of words. */
static void every_bit_counts(void **state)
{
    enum { BYTES = 77 };
    unsigned char *x = array_random(D9D_F32, 20, 9, 1);
    const uint64_t whole = checksum(x, BYTES);
    uint64_t word;

    (void)state;
    for (int bit = 0; bit < BYTES * 8; bit++) {
        x[bit / 8] ^= (unsigned char)(1 << bit % 8);
        assert_true(checksum(x, BYTES) != whole);
        x[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    memcpy(&word, x, 8);
    memmove(x, x + 8, 8);
    memcpy(x + 8, &word, 8);
    assert_true(checksum(x, BYTES) != whole);
    free(x);
}

static int by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

/* The same bit flipped in two words must not cancel: no two flips of a bit change the sum by the
 * same number, whatever its sign. */
static void two_flips_do_not_cancel(void **state)
{
    enum { WORDS = 4096 };
    uint64_t *x = array_random(D9D_F32, WORDS * 2, 11, 1), change[WORDS];

    (void)state;
    for (int bit = 0; bit < 64; bit++) {
        for (int i = 0; i < WORDS; i++) {
            const uint64_t flipped = x[i] ^ UINT64_C(1) << bit;
            const uint64_t d = checksum(&flipped, 8) - checksum(&x[i], 8);

            change[i] = d > UINT64_C(1) << 63 ? -d : d;
        }
        qsort(change, WORDS, sizeof(*change), by_value);
        for (int i = 1; i < WORDS; i++)
            assert_true(change[i] != change[i - 1]);
    }
    free(x);
}

typedef struct call {
    const void *x;
    int64_t bytes;
    uint64_t out;
} call;

static void run(void *arg)
{
    call *c = arg;

    c->out = checksum(c->x, c->bytes);
}

static void any_number_of_threads(void **state)
{
    call c = {.bytes = 4 << 20};
    void *x = array_random(D9D_F32, 1 << 20, 4, 1);

    (void)state;
    c.x = x;
    array_same_for_threads(run, &c, &c.out, sizeof(c.out), NULL);
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_size_and_address), cmocka_unit_test(a_list),
        cmocka_unit_test(every_bit_counts),       cmocka_unit_test(two_flips_do_not_cancel),
        cmocka_unit_test(any_number_of_threads),
    };

    return cmocka_run_group_tests_name("kernel_checksum", tests, NULL, NULL);
}
