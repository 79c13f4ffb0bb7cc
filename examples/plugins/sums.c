/* sums.c - a custom synthetic dataset as a plugin: additions, generated on demand.
 *
 *     {"plugin": "libsums.so",
 *      "data": {"dataset": "sums", "source": {"name": "sums", "digits": 2, "samples": 9999}}, ...}
 *
 * A sample is "3+9=12" or "17+25=042", one token per character: ten digits, plus, equals.  The
 * answer has one digit more than its terms and is the only target.  Sample k is a function of the
 * seed and k, so any rank can generate it, and nothing is stored or saved.
 */
#include <d9d/base/rng.h>
#include <d9d/tasks/plugin.h>

enum { PLUS = 10, EQUALS = 11, TOKENS = 12, DIGITS_MAX = 9 };

typedef struct section {
    int64_t digits, samples, seed;
} section;
static const d9d_key keys[] = {
    D9D_KEY_INT(section, digits, "2", 1, DIGITS_MAX, "most digits of a term"),
    D9D_KEY_INT(section, samples, D9D_REQUIRED, 1, INT64_C(1) << 40, "how many additions"),
    D9D_KEY_INT(section, seed, "0", 0, INT64_C(1) << 53, "of the terms"),
    D9D_KEY_END,
};
static const d9d_table table = D9D_TABLE(section, "sums", keys, "additions");

/* Positions of a sample with terms of n digits: "a+b=c" has 3 n + 3 tokens, and a position for each
 * but the last. */
static int64_t positions(int64_t n)
{
    return 3 * n + 2;
}

static int64_t digits_of(const section *s, int64_t k)
{
    return 1 + k % s->digits;
}

static d9d_status facts(void *self, d9d_dataset_info *out)
{
    const section *s = self;

    out->samples = s->samples;
    out->longest = positions(s->digits);
    out->vocab = TOKENS;
    out->hash.lo = (uint64_t)s->seed;
    return D9D_OK;
}

static d9d_status length(void *self, int64_t k, int64_t *out)
{
    *out = positions(digits_of(self, k));
    return D9D_OK;
}

/* Writes the last n digits of v with leading zeros; returns the position after them. */
static int32_t *put(int32_t *at, int64_t n, uint64_t v)
{
    for (int64_t i = n - 1; i >= 0; i--, v /= 10)
        at[i] = (int32_t)(v % 10);
    return at + n;
}

static d9d_status sample(void *self, int64_t k, int64_t length, int32_t *ids, int32_t *labels)
{
    const section *s = self;
    const d9d_rng r = {.seed = (uint64_t)s->seed, .stream = (uint64_t)k};
    const int64_t n = digits_of(s, k), answer = 2 * n + 2; /* index of the answer's first digit */
    int32_t text[3 * DIGITS_MAX + 3], *at = text;
    uint64_t below = 1, a, b;

    for (int64_t i = 0; i < n; i++)
        below *= 10;
    a = d9d_rng_below(r, 0, below);
    b = d9d_rng_below(r, 1, below);
    at = put(at, n, a);
    *at++ = PLUS;
    at = put(at, n, b);
    *at++ = EQUALS;
    (void)put(at, n + 1, a + b);
    for (int64_t i = 0; i < length; i++) {
        ids[i] = text[i];
        labels[i] = i + 1 >= answer ? text[i + 1] : -100;
    }
    return D9D_OK;
}

static const d9d_dataset_kind sums = {
    .size = sizeof(sums), .table = &table, .info = facts, .length = length, .sample = sample};
static const d9d_dataset_kind *const datasets[] = {&sums, NULL};
D9D_PLUGIN(.datasets = datasets);
