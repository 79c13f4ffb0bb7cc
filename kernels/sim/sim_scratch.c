/* sim_scratch.c - the scratch memory of the CUDA kernels, by their own rules. See sim_private.h.
 *
 * Each rule repeats that of the file named above it. Scratch of a few MiB is ignored.
 */
#include "common/kernel_common.h"
#include "common/sampling.h"
#include "sim/sim_private.h"

static bool on_gpu(d9d_stream s)
{
    return s != NULL && d9d_sim_get_chip(d9d_sim_of_stream(s))->is_gpu;
}

/* --- GEMM: cuda/gemm/cublaslt.c ------------------------------------------------------------- */

#define MAX_SCRATCH ((int64_t)64 << 20)
#define TRIAL_BYTES ((int64_t)256 << 20)
#define TRIAL_FLOP  1e10

/* Split-K algorithms keep float32 partial results; the heuristic chooses them for small outputs
 * only. */
d9d_status d9di_sim_gemm_scratch(d9d_stream s, const d9d_gemm *g)
{
    const int64_t result = g->m * g->n * (int64_t)d9d_dtype_size(g->ct);
    bool first;

    if (!on_gpu(s))
        return D9D_OK;
    D9D_TRY(d9di_sim_is_new_shape(s, g, &first));
    if (first && result <= TRIAL_BYTES &&
        2.0 * (double)g->m * (double)g->n * (double)g->k >= TRIAL_FLOP)
        D9D_TRY(d9di_sim_use_scratch(s, 2 * d9di_i64_round_up(result, 256)));
    return d9di_sim_use_scratch(s, d9di_i64_min(MAX_SCRATCH, 16 * g->m * g->n));
}

d9d_status d9di_sim_fp8_quantise_scratch(d9d_stream s, int64_t m, int64_t n)
{
    return on_gpu(s) ? d9di_sim_use_scratch(s, (1 + m + n) * (int64_t)sizeof(uint32_t)) : D9D_OK;
}

d9d_status d9di_sim_quant_scratch(d9d_stream s, const d9d_gemm *g, const d9d_quant_matrix *w)
{
    return d9di_sim_use_scratch(s, w->rows * w->cols * (int64_t)d9d_dtype_size(g->t));
}

/* --- attention: attention_cudnn.c, _padded.c, attention_bwd_simt.cu, attention_bwd_sm90.cu ---- */

enum { MIN_CHUNK = 64, MIN_PROMPT = 256 };

static int64_t largest_divisor(int64_t n, int64_t limit)
{
    int64_t d = d9di_i64_max(1, d9di_i64_min(n, limit));

    while (n % d != 0)
        d--;
    return d;
}

/* Bytes of the scores of `b` rows of `s` queries and `z` keys, split until they fit: by rows,
 * unless `together`, then by heads. */
static int64_t score_bytes(const d9d_attention_dims *n, int64_t b, int64_t s, int64_t z,
                           bool together)
{
    const int64_t head = 2 * (n->a / n->kv) * s * z;
    const int64_t rows =
        together ? b : largest_divisor(b, D9DI_ATTENTION_MAX_SCORE_BYTES / head / n->kv);

    return rows * head * largest_divisor(n->kv, D9DI_ATTENTION_MAX_SCORE_BYTES / head / rows);
}

/* Documents in classes of length, halving; each class has the capacity for as many as there can be.
 * Chunks of rows also have documents with more keys than queries. */
static int64_t score_bytes_packed(const d9d_attention_dims *n)
{
    const int64_t chunk_len = d9di_attention_chunk_len(n);
    const bool whole = n->segments == n->b * n->s / chunk_len;
    int64_t max_bytes = 0, longest = D9DI_ATTENTION_PLAN_MIN_LEN;

    if (whole)
        max_bytes = score_bytes(n, n->segments, d9di_attention_plan_len(chunk_len),
                                d9di_attention_plan_len(chunk_len), true);
    while (longest < chunk_len)
        longest *= 2;
    for (; !whole && longest >= D9DI_ATTENTION_PLAN_MIN_LEN; longest /= 2)
        max_bytes = d9di_i64_max(
            max_bytes,
            score_bytes(n, d9di_i64_round_up(d9di_i64_ceil_div(n->b * n->s, longest / 2 + 1), 8),
                        longest, longest, true));
    if (n->s == n->z)
        return max_bytes;
    return d9di_i64_max(max_bytes, score_bytes(n, n->b, d9di_attention_plan_len(chunk_len),
                                               d9di_attention_plan_len(n->z), false));
}

/* True if chunks of whole rows run as two slices in backward: their own keys, and earlier keys. */
static bool splits_bwd(const d9d_attention_dims *n)
{
    return n->segments == 0 && n->chunks > 0 && n->window == 0;
}

/* Whole rows, or their slices one after the other: of a part of the keys a chunk of queries each.
 */
static int64_t score_bytes_rows(const d9d_attention_dims *n, bool part)
{
    int64_t max_bytes = n->chunks > 0 ? 0 : score_bytes(n, n->b, n->s, n->s, false);

    if (part)
        return score_bytes(n, n->b, n->s / n->chunks, n->z, false);
    for (int64_t i = 0; i < n->chunks; i++) {
        const int64_t size = n->s / n->chunks, own = splits_bwd(n) ? size : n->chunk_end[i];

        max_bytes = d9di_i64_max(max_bytes, score_bytes(n, n->b, size, own, false));
        if (n->chunk_end[i] > own)
            max_bytes =
                d9di_i64_max(max_bytes, score_bytes(n, n->b, size, n->chunk_end[i] - own, false));
    }
    return max_bytes;
}

static bool keys_supported(const d9d_attention_dims *n)
{
    if (n->chunks == 0)
        return n->z == n->s;
    if (n->decode)
        return n->s >= MIN_PROMPT;
    return n->s % n->chunks == 0 && (n->segments > 0 || n->s / n->chunks >= MIN_CHUNK);
}

/* Causal over all keys without softcap or dropout, in bfloat16, with head sizes that are multiples
 * of 8 up to 256. */
static bool head_supported(const d9d_attention_dims *n)
{
    return n->t == D9D_BF16 && n->causal && n->prefix == NULL && n->softcap == 0.0f &&
           n->dropout.p == 0.0f && n->d % 8 == 0 && n->d <= 256 && n->dv % 8 == 0 && n->dv <= 256;
}

/* True if cuDNN's gradient is right for whole rows only. */
static bool needs_whole_rows(const d9d_attention_dims *n, bool backward)
{
    return backward && d9di_i64_max(n->d, n->dv) > 128;
}

/* A call as cuDNN and the Hopper backward get it: a part of the keys (ring attention) is rows of
 * its own. */
typedef struct library_call {
    d9d_attention_dims n;
    bool part, possible;
} library_call;

static library_call library_call_of(const d9d_attention_dims *n)
{
    library_call c = {.n = *n, .part = n->part.n > 0, .possible = true};

    if (c.part)
        c.possible = d9di_attention_part_as_rows(n, &c.n);
    return c;
}

/* True if cuDNN supports these rows or context-parallel chunks, perhaps padded. */
static bool cudnn_supported(const library_call *c, bool backward)
{
    const d9d_attention_dims *n = &c->n;

    return c->possible && head_supported(n) && keys_supported(n) &&
           (!c->part || d9di_attention_part_is_blocks(n)) &&
           (!needs_whole_rows(n, backward) ||
            (n->segments == 0 && n->chunks == 0 && n->window == 0));
}

/* True if the Hopper backward supports the call. */
static bool sm90_bwd_supported(d9d_stream s, const library_call *c)
{
    return c->possible && d9d_sim_get_chip(d9d_sim_of_stream(s))->is_sm90 &&
           head_supported(&c->n) && (!c->part || d9di_attention_part_is_tiles(&c->n));
}

bool d9di_sim_attention_on_tensor_cores(d9d_stream s, const d9d_attention_dims *n, bool backward)
{
    const library_call c = library_call_of(n);

    return cudnn_supported(&c, backward) || (backward && sm90_bwd_supported(s, &c));
}

/* Rows without a list, as the kernels process them. */
static d9d_attention_dims as_segments(const d9d_attention_dims *n, bool backward)
{
    d9d_attention_dims x = *n;

    if (n->segments == 0 && !needs_whole_rows(n, backward) && !d9di_attention_plan_fits(n))
        x.segments = n->b * d9di_i64_max(1, n->chunks);
    return x;
}

/* The call that cuDNN computes: keys and values of one size, unless its forward has narrower
 * values. */
static d9d_attention_dims as_padded(const d9d_attention_dims *n, bool backward)
{
    d9d_attention_dims x = *n;

    if (backward || n->dv > n->d)
        x.d = x.dv = d9di_i64_max(n->d, n->dv);
    return x;
}

/* Bytes of padded copies: in the forward of keys and queries or of values and outputs, in the
 * backward of these and their gradients. */
static int64_t padded_bytes(const d9d_attention_dims *n, const d9d_attention_dims *padded,
                            bool backward)
{
    const int64_t queries = n->b * n->s * n->a, keys = n->b * n->z * n->kv;
    const int64_t arrays = padded->d == n->d && padded->dv == n->dv ? 0 : backward ? 2 : 1;

    return arrays * (queries + keys) * padded->d * 2;
}

static int64_t attention_scratch(const d9d_attention_dims *n, bool part, bool backward)
{
    const int64_t sums = n->b * n->s * n->a * 4, keys = n->b * n->z * n->d * 4;
    const bool packed = n->segments > 0, grouped = packed && n->a != n->kv;
    const bool added = n->z != n->s && n->chunks > 1;
    const int64_t slices = splits_bwd(n) ? n->b * n->s * n->a * n->d * 2 : 0;

    if (!backward)
        return packed ? sums : 0;
    return (packed ? score_bytes_packed(n) : score_bytes_rows(n, part)) + sums * (packed ? 2 : 1) +
           (grouped ? keys * n->a : 0) + (added ? keys * n->kv : 0) + slices;
}

/* dS that the Hopper backward stores at a time, and the sums of a head between its parts. */
static int64_t sm90_bwd_scratch(d9d_stream s, const d9d_attention_dims *n)
{
    const d9di_attention_bwd_parts x = d9di_attention_bwd_parts_of(
        n, D9DI_ATTENTION_MAX_SCORE_BYTES, d9d_sim_get_chip(d9d_sim_of_stream(s))->sms);

    const int64_t sums = n->b * (n->s * (n->a / n->kv) * n->d + n->z * (n->d + n->dv)) * 4;

    return x.ds_blocks * x.ds_block_bytes + (x.query_chunks * x.key_chunks > 1 ? sums : 0);
}

d9d_status d9di_sim_attention_scratch(d9d_stream s, const d9d_attention_dims *n, bool backward)
{
    const int64_t sums = n->b * n->s * n->a * 4;
    const library_call c = library_call_of(n);
    d9d_attention_dims padded, x;

    if (!on_gpu(s) || n->b * n->s * n->a * n->d == 0)
        return D9D_OK;
    if (backward && sm90_bwd_supported(s, &c))
        return d9di_sim_use_scratch(s, 2 * sums + sm90_bwd_scratch(s, &c.n));
    if (!cudnn_supported(&c, backward))
        return d9di_sim_use_scratch(s, backward ? sums : 0);
    padded = as_padded(&c.n, backward);
    x = c.part ? padded : as_segments(&padded, backward);
    return d9di_sim_use_scratch(s, padded_bytes(&c.n, &padded, backward) +
                                       attention_scratch(&x, c.part, backward));
}

/* --- gated delta rule: gated_delta.cu, gated_delta_scan.cu, gated_delta_bwd.cu ------------- */

/* Per token: inverse lengths of keys and queries; backward also values written and without decay,
 * gradients of queries and keys per head, and of the states. In bfloat16 also the state-independent
 * results of chunks: three C x C matrices and four rows, some of it twice. Otherwise, per token,
 * what it reads from the state; forward what it writes; backward a row of a C x C matrix. */
d9d_status d9di_sim_gated_delta_scratch(d9d_stream s, const d9d_gated_delta_dims *n, bool backward)
{
    const int64_t tokens = n->docs.b * n->docs.s, keys = tokens * n->a * n->d;
    const int64_t values = tokens * n->a * n->f;
    const int64_t squares = tokens * n->a * D9D_GATED_DELTA_CHUNK;
    const int64_t chunks =
        d9d_gated_delta_states(&n->docs) + (n->docs.segment != NULL ? n->docs.segments : n->docs.b);
    const int64_t ready =
        chunks * n->a * (D9D_GATED_DELTA_CHUNK * (3 * D9D_GATED_DELTA_CHUNK / 2 + 4) + 4);
    const bool walks = n->t == D9D_BF16 && n->d <= 128 && n->d % 8 == 0 && n->f % 8 == 0;
    const int64_t of_states = d9d_gated_delta_states(&n->docs) * n->a * n->d * n->f;
    const int64_t more = backward ? 2 * keys + 2 * values + of_states : 0;
    const int64_t rest = walks ? ready : keys + (backward ? squares : values);

    if (!on_gpu(s))
        return D9D_OK;
    return d9di_sim_use_scratch(s, 4 * (2 * tokens * n->k + more + rest));
}

/* --- reductions along an axis: reduce_axis.cu ---------------------------------------------- */

d9d_status d9di_sim_reduce_axis_scratch(d9d_stream s, const d9d_reduce_axis_dims *d, bool ties)
{
    const d9di_reduce_parts parts = d9di_reduce_parts_of(d);
    const int64_t results = d->m * d->n;

    if (!on_gpu(s))
        return D9D_OK;
    return d9di_sim_use_scratch(s, 4 * results *
                                       ((ties ? 1 : 0) + (parts.parts > 1 ? parts.parts : 0)));
}

/* --- sampling: sample_tokens.cu ------------------------------------------------------------- */

enum { SPLITS = 64, SPLIT_SUM = 32, DIGIT_BIN = 12, ROW_STATE = 40 };

/* Sums of splits; with top_k or top_p a count and a sum for each value of a digit, and the row's
 * state. */
d9d_status d9di_sim_sample_tokens_scratch(d9d_stream s, int64_t rows, bool limited)
{
    const int64_t limits = limited ? D9DI_SAMPLE_BINS * DIGIT_BIN + ROW_STATE : 0;

    return on_gpu(s) ? d9di_sim_use_scratch(s, rows * (SPLITS * SPLIT_SUM + limits)) : D9D_OK;
}

/* --- linear cross entropy: linear_cross_entropy.cu, _bwd.cu, _fwd_bwd.cu ------------------- */

enum { TOKENS = 2048, COLUMNS = 8192, MIN_COLUMNS = 256, STEP = 128, MAX_SPLIT_PARTS = 32 };
enum { TILE = 256, SIDE = 8 }; /* of the kernel of compute capability 9.0 */
#define WGRAD_SCRATCH ((int64_t)128 << 20)

static int64_t vocab_size(const d9d_linear_cross_entropy_dims *n)
{
    int64_t v = 0;

    for (int i = 0; i < n->n_split; i++)
        v += n->v[i];
    return v;
}

static int64_t block_bytes(const d9d_linear_cross_entropy_dims *n, int64_t elements)
{
    return d9di_i64_round_up(elements, 64) * (n->t == D9D_F32 ? 4 : 6);
}

static int64_t forward_bytes(const d9d_linear_cross_entropy_dims *n, bool token_grad)
{
    const int64_t tokens = d9di_i64_min(n->rows, TOKENS);

    return d9di_i64_round_up(tokens * 16, 256) +
           (token_grad ? d9di_i64_round_up(tokens * n->h * 4, 256) : 0) +
           block_bytes(n, tokens * d9di_i64_min(vocab_size(n), COLUMNS));
}

static int64_t wgrad_bytes(const d9d_linear_cross_entropy_dims *n)
{
    const int64_t elements = WGRAD_SCRATCH / (block_bytes(n, 64) / 64);
    const int64_t tokens = d9di_i64_min(n->rows, elements / MIN_COLUMNS);

    return block_bytes(n, tokens * d9di_i64_min(d9di_i64_min(vocab_size(n), COLUMNS),
                                                elements / d9di_i64_max(tokens, 1)));
}

/* What a part of the vocabulary needs per token besides its p: sums, and float32 logits. */
static void fwd_bwd_add_slice(const d9d_linear_cross_entropy_dims *n, int64_t v, int64_t *parts,
                              int64_t *width)
{
    const bool at_once =
        n->t == D9D_BF16 && n->softcap == 0.0f && n->h % SIDE == 0 && v % SIDE == 0;

    *parts += d9di_i64_ceil_div(v, at_once ? TILE : COLUMNS);
    if (!at_once)
        *width = d9di_i64_max(*width, d9di_i64_min(v, COLUMNS));
}

static int64_t fwd_bwd_layout_bytes(const d9d_linear_cross_entropy_dims *n, int64_t tokens)
{
    const int64_t v = vocab_size(n), size = (int64_t)d9d_dtype_size(n->t);
    const int64_t ranks = n->ranks != NULL ? n->ranks->n : 1;
    int64_t parts = 0, width = 0;

    for (int i = 0; i < n->n_split; i++) {
        fwd_bwd_add_slice(n, n->v[i] / SIDE * SIDE, &parts, &width);
        fwd_bwd_add_slice(n, n->v[i] % SIDE, &parts, &width);
    }
    return tokens * (width * 4 + n->h * (4 + size) + 12 + parts * 8 + ranks * 8 + v * size) +
           n->rows * ranks * 4 + MAX_SPLIT_PARTS * STEP * size;
}

int64_t d9di_sim_cross_entropy_tokens(const d9d_linear_cross_entropy_dims *n)
{
    const int64_t empty = fwd_bwd_layout_bytes(n, 0);

    return d9di_linear_cross_entropy_tokens(n, empty,
                                            (double)(fwd_bwd_layout_bytes(n, STEP) - empty) / STEP);
}

static int64_t fwd_bwd_bytes(const d9d_linear_cross_entropy_dims *n)
{
    return fwd_bwd_layout_bytes(n, d9di_sim_cross_entropy_tokens(n));
}

d9d_status d9di_sim_cross_entropy_scratch(d9d_stream s, const d9d_linear_cross_entropy_dims *n,
                                          d9di_sim_cross_entropy_pass what)
{
    if (!on_gpu(s))
        return D9D_OK;
    return d9di_sim_use_scratch(s,
                                what == D9DI_SIM_CROSS_ENTROPY_FWD_BWD ? fwd_bwd_bytes(n)
                                : what == D9DI_SIM_CROSS_ENTROPY_WGRAD
                                    ? wgrad_bytes(n)
                                    : forward_bytes(n, what == D9DI_SIM_CROSS_ENTROPY_FWD_DGRAD));
}
