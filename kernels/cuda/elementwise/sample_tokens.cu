/* sample_tokens.cu - the next token of each row of logits: temperature, top-k, top-p, min-p.
 *
 * Weights are integers, so all sums are those of the CPU, whatever the blocks. A row is read from
 * the L2 cache a few times, each by as many blocks as it has splits:
 *
 *     argmax           its largest logit
 *     count digits     of keys that begin with the digits found so far: tokens and weights by the
 *     find digit       next digit; then the digit of the threshold. Three times for top_k, for
 * top_p sum splits       the weights of each split, and of what remains of it draw             the
 * split and the token at which the sum passes the draw
 *
 * Blocks of a row whose largest logit is not finite do nothing: argmax has its token.
 */
#include "common/sampling.h"
#include "cuda/common/philox.cuh"

enum {
    SPLIT_BLOCK = 512,
    ROW_BLOCK = 1024,
    MIN_SPLIT = 4096, /* tokens */
    MAX_SPLITS = 64,
    BINS = D9DI_SAMPLE_BINS,
    BINS_OF_THREAD = BINS / ROW_BLOCK
};

/* What remains of a row. While digits are searched, key has those that were found. */
struct row_state {
    uint64_t want;  /* tokens or weights that are still to be found */
    uint64_t above; /* weights of larger keys */
    uint64_t mass;  /* weights of all that remains */
    d9di_sampling_threshold threshold;
};

/* Tokens and weights by digit; zero between launches of a row. */
struct row_bins {
    unsigned long long mass[BINS];
    uint32_t count[BINS];
};

struct split_sum {
    uint64_t all, moment; /* of all tokens */
    uint64_t above;       /* weights that remain, of keys above the threshold's */
    uint64_t ties;        /* tokens of the threshold's key */
};

/* kernels/sim/sim_scratch.c repeats these. */
static_assert(sizeof(split_sum) == 32 && sizeof(row_bins) == 12 * BINS && sizeof(row_state) == 40,
              "scratch of a row");

/* A call; arrays of scratch have an element for each row, and `sum` MAX_SPLITS. */
struct sample_call {
    d9d_sample_tokens_args a;
    double scale;
    uint64_t least;
    int64_t split; /* tokens */
    int splits;
    split_sum *sum;
    row_state *state; /* NULL: everything remains */
    row_bins *bins;
};

struct sum_u64 {
    __device__ __forceinline__ uint64_t operator()(uint64_t a, uint64_t b) const { return a + b; }
};

static __device__ __forceinline__ double log2_of(const sample_call &c, float x, float largest)
{
    return d9di_sampling_log2(x, largest, c.scale);
}

static __device__ __forceinline__ d9di_sampling_threshold threshold_of(const sample_call &c,
                                                                       int64_t row)
{
    d9di_sampling_threshold none = {0, 0};

    return c.state != NULL ? c.state[row].threshold : none;
}

/* The sum of the threads before this one, in `total` that of all. For one dimension of N threads.
 */
template <int N> static __device__ __forceinline__ uint64_t block_scan(uint64_t v, uint64_t *total)
{
    __shared__ uint64_t part[N / WARP];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    uint64_t sum = v, before = 0, all = 0;

#pragma unroll
    for (int o = 1; o < WARP; o *= 2) {
        const uint64_t other = __shfl_up_sync(~0u, sum, o);

        sum += lane >= o ? other : 0;
    }
    __syncthreads(); /* the previous scan has been read */
    if (lane == WARP - 1)
        part[warp] = sum;
    __syncthreads();
    for (int w = 0; w < N / WARP; w++) {
        before += w < warp ? part[w] : 0;
        all += part[w];
    }
    *total = all;
    return before + sum - v;
}

/* --- the threshold ------------------------------------------------------------------------- */

/* A block has a row. */
static __global__ void __launch_bounds__(ROW_BLOCK) begin_kernel(sample_call c)
{
    const row_state begin = {};

    pdl_launch_dependents();
    pdl_wait();
    for (int b = threadIdx.x; b < BINS; b += ROW_BLOCK) {
        c.bins[blockIdx.x].mass[b] = 0;
        c.bins[blockIdx.x].count[b] = 0;
    }
    if (threadIdx.x == 0)
        c.state[blockIdx.x] = begin;
}

/* Adds to a sum of two words in shared memory. */
static __device__ __forceinline__ void add_weight(uint32_t *low, uint32_t *high, uint64_t w)
{
    const uint32_t old = atomicAdd(low, (uint32_t)w);
    const uint32_t more = (uint32_t)(w >> 32) + ((uint32_t)(old + (uint32_t)w) < old);

    if (more > 0)
        atomicAdd(high, more);
}

/* Grid: splits, rows. */
static __global__ void __launch_bounds__(SPLIT_BLOCK) count_digits_kernel(sample_call c, int pass)
{
    __shared__ uint32_t count[BINS], low[BINS], high[BINS];
    const int64_t row = blockIdx.y, first = blockIdx.x * c.split;
    const int64_t end = d9di_i64_min(c.a.n, first + c.split);
    const float *x = c.a.x + row * c.a.n;

    pdl_launch_dependents();
    for (int b = threadIdx.x; b < BINS; b += SPLIT_BLOCK)
        count[b] = low[b] = high[b] = 0;
    pdl_wait();
    const float largest = c.a.largest[row];
    const uint32_t found = c.state[row].threshold.key;
    if (!isfinite(largest))
        return;
    __syncthreads();
    for (int64_t i = first + threadIdx.x; i < end; i += SPLIT_BLOCK) {
        const uint32_t key = d9di_sampling_key(x[i]), digit = d9di_sampling_digit(key, pass);

        if (pass > 0 && key >> d9di_sampling_shift(pass - 1) != found)
            continue;
        const uint64_t w = d9di_sampling_weight(log2_of(c, x[i], largest));
        atomicAdd(&count[digit], 1u);
        if (w > 0)
            add_weight(&low[digit], &high[digit], w);
    }
    __syncthreads();
    for (int b = threadIdx.x; b < BINS; b += SPLIT_BLOCK)
        if (count[b] > 0) {
            atomicAdd(&c.bins[row].count[b], count[b]);
            atomicAdd(&c.bins[row].mass[b], (unsigned long long)high[b] << 32 | low[b]);
        }
}

/* What is to be found of a row in the first pass: top_k tokens, or top_p of the weights, which are
 * `sum` unless top_k left less. */
static __device__ __forceinline__ uint64_t first_want(const sample_call &c, const row_state &s,
                                                      bool by_mass, bool limited, uint64_t sum)
{
    return by_mass ? d9di_sampling_mass(c.a.top_p, limited ? s.mass : sum) : (uint64_t)c.a.top_k;
}

/* The digit of the threshold, `bin` of count tokens and of weights `mass`, is found: `before`,
 * tokens or weights, and weights `above` are of larger digits. */
static __device__ void take_digit(row_state *s, bool by_mass, int pass, uint32_t digit,
                                  uint64_t want, uint64_t count, uint64_t mass, uint64_t above)
{
    row_state next = *s;

    next.threshold.key =
        (pass > 0 ? s->threshold.key : 0) << d9di_sampling_digit_bits(pass) | digit;
    next.above = (pass > 0 ? s->above : 0) + above;
    next.want = want;
    if (pass == D9DI_SAMPLE_PASSES - 1) {
        const uint64_t weight = mass / count;

        next.threshold.ties = by_mass ? d9di_sampling_ties(want, weight) : want;
        next.mass = next.above + next.threshold.ties * weight;
    }
    *s = next;
}

/* A block has a row, a thread BINS_OF_THREAD bins, the largest digits first. */
static __global__ void __launch_bounds__(ROW_BLOCK)
    find_digit_kernel(sample_call c, bool by_mass, bool limited, int pass)
{
    const int64_t row = blockIdx.x;
    const int last = BINS - 1 - BINS_OF_THREAD * threadIdx.x;
    uint64_t count[BINS_OF_THREAD], mass[BINS_OF_THREAD], masses = 0, amounts = 0;
    uint64_t before, above, all_amounts, all_masses;

    pdl_launch_dependents();
    pdl_wait();
    if (!isfinite(c.a.largest[row]))
        return;
#pragma unroll
    for (int j = 0; j < BINS_OF_THREAD; j++) {
        count[j] = c.bins[row].count[last - j];
        mass[j] = c.bins[row].mass[last - j];
        c.bins[row].count[last - j] = 0;
        c.bins[row].mass[last - j] = 0;
        masses += mass[j];
        amounts += by_mass ? mass[j] : count[j];
    }
    const row_state s = c.state[row];
    before = block_scan<ROW_BLOCK>(amounts, &all_amounts);
    above = block_scan<ROW_BLOCK>(masses, &all_masses);
    const uint64_t want = pass > 0 ? s.want : first_want(c, s, by_mass, limited, all_masses);
    /* One thread has the digit: all have read the state before the second scan. */
    if (want <= before || want > before + amounts)
        return;
#pragma unroll
    for (int j = 0; j < BINS_OF_THREAD; j++) {
        const uint64_t amount = by_mass ? mass[j] : count[j];

        if (want > before && want <= before + amount)
            take_digit(&c.state[row], by_mass, pass, (uint32_t)(last - j), want - before, count[j],
                       mass[j], above);
        before += amount;
        above += mass[j];
    }
}

/* --- the draw -------------------------------------------------------------------------------- */

/* Grid: splits, rows. */
static __global__ void __launch_bounds__(SPLIT_BLOCK) sum_splits_kernel(sample_call c)
{
    const int64_t row = blockIdx.y, first = blockIdx.x * c.split;
    const int64_t end = d9di_i64_min(c.a.n, first + c.split);
    const float *x = c.a.x + row * c.a.n;
    split_sum sum = {};

    pdl_launch_dependents();
    pdl_wait();
    const float largest = c.a.largest[row];
    const d9di_sampling_threshold t = threshold_of(c, row);
    if (!isfinite(largest))
        return;
    for (int64_t i = first + threadIdx.x; i < end; i += SPLIT_BLOCK) {
        const uint32_t key = d9di_sampling_key(x[i]);
        const double z = log2_of(c, x[i], largest);
        const uint64_t w = d9di_sampling_weight(z);

        sum.all += w;
        sum.moment += w > 0 ? d9di_sampling_moment(w, z) : 0;
        sum.above += key > t.key && w >= c.least ? w : 0;
        sum.ties += key == t.key;
    }
    sum.all = group_reduce<SPLIT_BLOCK>(sum.all, sum_u64());
    sum.moment = group_reduce<SPLIT_BLOCK>(sum.moment, sum_u64());
    sum.above = group_reduce<SPLIT_BLOCK>(sum.above, sum_u64());
    sum.ties = group_reduce<SPLIT_BLOCK>(sum.ties, sum_u64());
    if (threadIdx.x == 0)
        c.sum[row * MAX_SPLITS + blockIdx.x] = sum;
}

/* d9d_rng_u64() */
static __device__ __forceinline__ uint64_t random_u64(d9d_rng r, uint64_t index)
{
    const uint4 w = philox(r, index / 2);

    return index % 2 ? (uint64_t)w.w << 32 | w.z : (uint64_t)w.y << 32 | w.x;
}

/* Where the draw falls. */
struct draw_place {
    int split;
    uint64_t target; /* weights of the split before it */
    uint64_t ties;   /* tokens of the threshold's key that remain in the split */
};

/* A tie's weight; 0 if none remains. */
static __device__ __forceinline__ uint64_t tie_weight(const sample_call &c, uint32_t key,
                                                      float largest)
{
    const uint64_t w =
        key > 0 ? d9di_sampling_weight(log2_of(c, d9di_sampling_logit(key), largest)) : 0;

    return w >= c.least ? w : 0;
}

static __device__ __forceinline__ uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* `sum` [splits]. */
static __device__ draw_place find_split(const sample_call &c, const split_sum *sum,
                                        d9di_sampling_threshold t, uint64_t tie, int64_t row)
{
    const d9d_rng rng = {c.a.seed, (uint64_t)c.a.draw[2 * row]};
    draw_place at = {0, 0, t.ties};
    uint64_t all = 0, left = t.ties;

    for (int i = 0; i < c.splits; i++) {
        const uint64_t ties = smaller(sum[i].ties, left);

        all += sum[i].above + ties * tie;
        left -= ties;
    }
    at.target = __umul64hi(random_u64(rng, (uint64_t)c.a.draw[2 * row + 1]), all);
    for (; at.split < c.splits - 1; at.split++) {
        const uint64_t ties = smaller(sum[at.split].ties, at.ties);
        const uint64_t here = sum[at.split].above + ties * tie;

        if (at.target < here)
            break;
        at.target -= here;
        at.ties -= ties;
    }
    return at;
}

/* The token of the split: each thread has a run of tokens, and one of them the draw. Returns it, or
 * -1. */
static __device__ int64_t find_token(const sample_call &c, const float *x, draw_place at,
                                     d9di_sampling_threshold t, uint64_t tie, float largest)
{
    const int64_t begin = at.split * c.split, end = d9di_i64_min(c.a.n, begin + c.split);
    const int64_t run = d9di_i64_ceil_div(c.split, ROW_BLOCK);
    const int64_t first = d9di_i64_min(end, begin + threadIdx.x * run);
    const int64_t last = d9di_i64_min(end, first + run);
    uint64_t above = 0, ties = 0, unused;

    for (int64_t i = first; i < last; i++) {
        const uint32_t key = d9di_sampling_key(x[i]);
        const uint64_t w = d9di_sampling_weight(log2_of(c, x[i], largest));

        above += key > t.key && w >= c.least ? w : 0;
        ties += key == t.key;
    }
    uint64_t rank = block_scan<ROW_BLOCK>(ties, &unused);
    uint64_t until = block_scan<ROW_BLOCK>(above, &unused) + smaller(rank, at.ties) * tie;

    for (int64_t i = first; i < last && until <= at.target; i++) {
        const uint32_t key = d9di_sampling_key(x[i]);
        const uint64_t w = d9di_sampling_weight(log2_of(c, x[i], largest));

        until += key > t.key && w >= c.least ? w : 0;
        until += key == t.key && rank < at.ties ? tie : 0;
        rank += key == t.key;
        if (until > at.target)
            return i;
    }
    return -1;
}

static __device__ void store_stats(const sample_call &c, const split_sum *sum, int64_t row,
                                   float logit, float largest)
{
    uint64_t all = 0, moment = 0;

    for (int i = 0; i < c.splits; i++) {
        all += sum[i].all;
        moment += sum[i].moment;
    }
    c.a.stats[2 * row] = d9di_sampling_log_prob(log2_of(c, logit, largest), all);
    c.a.stats[2 * row + 1] = d9di_sampling_entropy(all, moment);
}

/* A block has a row. */
static __global__ void __launch_bounds__(ROW_BLOCK) draw_kernel(sample_call c)
{
    __shared__ split_sum sum[MAX_SPLITS];
    __shared__ draw_place place;
    const int64_t row = blockIdx.x;
    const float *x = c.a.x + row * c.a.n;
    int64_t token = threadIdx.x == 0 ? 0 : -1;

    pdl_launch_dependents();
    pdl_wait();
    const float largest = c.a.largest[row];
    if (!isfinite(largest)) {
        if (c.a.stats != NULL && threadIdx.x < 2)
            c.a.stats[2 * row + threadIdx.x] = __longlong_as_double(0x7ff8000000000000LL);
        return;
    }
    if (threadIdx.x < c.splits)
        sum[threadIdx.x] = c.sum[row * MAX_SPLITS + threadIdx.x];
    __syncthreads();
    if (c.a.temperature > 0) {
        const d9di_sampling_threshold t = threshold_of(c, row);
        const uint64_t tie = tie_weight(c, t.key, largest);

        if (threadIdx.x == 0)
            place = find_split(c, sum, t, tie, row);
        __syncthreads();
        token = find_token(c, x, place, t, tie, largest);
        if (token >= 0)
            c.a.token[row] = (int32_t)token;
    } else if (threadIdx.x == 0) {
        token = c.a.token[row];
    }
    if (token >= 0 && c.a.stats != NULL)
        store_stats(c, sum, row, x[token], largest);
}

/* --- launches ---------------------------------------------------------------------------- */

static d9d_status launch_threshold(d9d_stream s, const sample_call *c, bool by_mass, bool limited)
{
    const dim3 splits((unsigned)c->splits, (unsigned)c->a.m);

    for (int pass = 0; pass < D9DI_SAMPLE_PASSES; pass++) {
        D9D_TRY(pdl_launch(s, "sample_tokens", count_digits_kernel, splits, SPLIT_BLOCK, *c, pass));
        D9D_TRY(pdl_launch(s, "sample_tokens", find_digit_kernel, (unsigned)c->a.m, ROW_BLOCK, *c,
                           by_mass, limited, pass));
    }
    return D9D_OK;
}

static d9d_status launch_all(d9d_stream s, const sample_call *c, bool by_count, bool by_mass)
{
    if (by_count || by_mass)
        D9D_TRY(pdl_launch(s, "sample_tokens", begin_kernel, (unsigned)c->a.m, ROW_BLOCK, *c));
    if (by_count)
        D9D_TRY(launch_threshold(s, c, false, false));
    if (by_mass)
        D9D_TRY(launch_threshold(s, c, true, by_count));
    D9D_TRY(pdl_launch(s, "sample_tokens", sum_splits_kernel,
                       dim3((unsigned)c->splits, (unsigned)c->a.m), SPLIT_BLOCK, *c));
    return pdl_launch(s, "sample_tokens", draw_kernel, (unsigned)c->a.m, ROW_BLOCK, *c);
}

static d9d_status sample(d9d_stream s, const d9d_sample_tokens_args *a)
{
    const bool draws = a->temperature > 0;
    const bool by_count = draws && a->top_k > 0 && a->top_k < a->n, by_mass = draws && a->top_p < 1;
    const int64_t rows = by_count || by_mass ? a->m : 0, sums = a->m * MAX_SPLITS;
    const int64_t bytes =
        sums * (int64_t)sizeof(split_sum) + rows * (int64_t)(sizeof(row_bins) + sizeof(row_state));
    sample_call c = {};
    d9d_status st;
    void *scratch;

    D9D_TRY(d9di_cuda_scratch_alloc(s, bytes, &scratch));
    c.a = *a;
    c.scale = d9di_sampling_scale(a->temperature);
    c.least = draws ? d9di_sampling_least(a->min_p) : 0;
    c.split = d9di_i64_max(MIN_SPLIT, d9di_i64_ceil_div(a->n, MAX_SPLITS));
    c.splits = (int)d9di_i64_ceil_div(a->n, c.split);
    c.sum = (split_sum *)scratch;
    c.bins = (row_bins *)(c.sum + sums);
    c.state = rows > 0 ? (row_state *)(c.bins + rows) : NULL;
    st = launch_all(s, &c, by_count, by_mass);
    d9di_cuda_scratch_free(s, scratch, bytes);
    return st;
}

d9d_status d9d_k_sample_tokens(d9d_stream s, const d9d_sample_tokens_args *a)
{
    D9D_TRY(d9di_args_check_sample_tokens(a));
    D9D_TRY(d9d_k_argmax(s, a->token, a->largest, a->x, a->m, a->n));
    return a->m == 0 || (a->temperature == 0 && a->stats == NULL) ? D9D_OK : sample(s, a);
}
