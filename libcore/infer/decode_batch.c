/* decode_batch.c - see infer/decode_batch.h. */
#include "infer/decode_batch.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* True if samples of a group share the prefill of their prompt. */
static bool shares(const d9di_decode_batch *a)
{
    return a->source.group > 1;
}

d9d_status d9di_decode_batch_init(int64_t n, d9di_decode_batch *a)
{
    a->n = n;
    a->seqs = calloc((size_t)n, sizeof(*a->seqs));
    a->inputs = calloc((size_t)n, sizeof(*a->inputs));
    a->nexts = calloc((size_t)n, sizeof(*a->nexts));
    a->streams = calloc((size_t)n, sizeof(*a->streams));
    a->shared = (d9di_decode_batch_shared){.group = -1};
    if (a->seqs == NULL || a->inputs == NULL || a->nexts == NULL || a->streams == NULL)
        return D9D_FAIL(D9D_ENOMEM, "generate: no memory for %lld sequences", (long long)n);
    for (int64_t i = 0; i < n; i++)
        a->seqs[i].k = -1;
    return D9D_OK;
}

void d9di_decode_batch_release(d9di_decode_batch *a)
{
    for (int64_t i = 0; a->seqs != NULL && i < a->n; i++) {
        D9D_VEC_RELEASE(&a->seqs[i].ids);
        D9D_VEC_RELEASE(&a->seqs[i].stats);
    }
    free(a->seqs);
    free(a->inputs);
    free(a->nexts);
    free(a->streams);
    D9D_VEC_RELEASE(&a->stop_tokens);
}

bool d9di_decode_batch_is_busy(const d9di_decode_batch *a)
{
    bool busy = a->next < a->source.n || a->n_in_flight > 0;

    for (int64_t i = 0; i < a->n; i++)
        busy = busy || a->seqs[i].k >= 0;
    return busy;
}

static int64_t max_length(const d9di_decode_batch_seq *row)
{
    return (int64_t)row->ids.len;
}

/* --- sequences ------------------------------------------------------------------------ */

static d9d_status start_seq(d9di_decode_batch *a, d9di_decode_batch_seq *row)
{
    row->ids.len = row->stats.len = 0;
    D9D_TRY(a->source.get(a->source.arg, a->next, &row->ids, &row->item));
    row->k = a->next;
    row->prompt = max_length(row);
    row->n_cached = 0;
    row->max_tokens = row->prompt + a->max_new;
    if (row->max_tokens > a->positions)
        row->max_tokens = a->positions;
    row->finish = row->prompt == 0 ? "skipped" : row->prompt >= row->max_tokens ? "length" : NULL;
    a->next += a->step;
    return D9D_OK;
}

static d9d_status finish_seq(d9di_decode_batch_seq *row, d9di_decode_batch_done_fn *done, void *arg)
{
    D9D_TRY(done(arg, row));
    row->k = -1;
    return D9D_OK;
}

static d9d_status fill_free_slots(d9di_decode_batch *a, d9di_decode_batch_done_fn *done, void *arg)
{
    for (int64_t i = 0; i < a->n; i++)
        while (a->seqs[i].k < 0 && a->next < a->source.n) {
            D9D_TRY(start_seq(a, &a->seqs[i]));
            if (a->seqs[i].finish != NULL)
                D9D_TRY(finish_seq(&a->seqs[i], done, arg));
        }
    return D9D_OK;
}

/* --- a step ---- */

static uint64_t stream_of(const d9di_decode_batch *a, const d9di_decode_batch_seq *row)
{
    return a->first_stream + (uint64_t)row->k;
}

/* What `row` has and the cache has not, in row `place` of the decoder: all, or one chunk. */
static d9di_kv_decoder_input next_input(const d9di_decode_batch *a, int64_t place,
                                        const d9di_decode_batch_seq *row)
{
    const int64_t left = max_length(row) - row->n_cached;
    const bool whole = left < D9DI_PREFILL_TOKENS || a->prefix_mask;

    return (d9di_kv_decoder_input){.row = place,
                                   .first = row->n_cached,
                                   .n = whole ? left : D9DI_PREFILL_TOKENS,
                                   .ids = row->ids.data + row->n_cached,
                                   .stream = stream_of(a, row),
                                   .prefix = a->prefix_mask && row->n_cached == 0 ? left : 0};
}

/* The sequence that waits for its prompt and began first; NULL: none. */
static const d9di_decode_batch_seq *first_waiting(const d9di_decode_batch *a)
{
    const d9di_decode_batch_seq *first = NULL;

    for (int64_t i = 0; i < a->n; i++) {
        const d9di_decode_batch_seq *row = &a->seqs[i];

        if (row->k >= 0 && row->n_cached == 0 && (first == NULL || row->k < first->k))
            first = row;
    }
    return first;
}

/* The next part of the shared prompt that `row` waits for. */
static d9di_kv_decoder_input next_shared_input(d9di_decode_batch *a,
                                               const d9di_decode_batch_seq *row)
{
    const int64_t group = row->k / a->source.group;
    const int64_t begun = a->shared.group == group ? a->shared.n_cached : 0;
    const d9di_decode_batch_seq prompt = {.k = row->k, .ids = row->ids, .n_cached = begun};
    d9di_kv_decoder_input input = next_input(a, a->n, &prompt);

    a->shared.group = group;
    a->shared.n_cached = begun;
    a->shared.is_whole = false;
    input.keeps = true;
    return input;
}

/* A prompt is prefilled alone, so that its result does not depend on other sequences. */
static size_t choose_inputs(d9di_decode_batch *a)
{
    const d9di_decode_batch_seq *waiting = shares(a) ? first_waiting(a) : NULL;
    size_t n = 0;

    if (waiting != NULL) {
        a->inputs[0] = next_shared_input(a, waiting);
        return 1;
    }
    for (int64_t i = 0; i < a->n; i++) {
        if (a->seqs[i].k < 0)
            continue;
        a->inputs[n] = next_input(a, i, &a->seqs[i]);
        if (a->inputs[n].n > 1) {
            a->inputs[0] = a->inputs[n];
            return 1;
        }
        n++;
    }
    return n;
}

static bool is_stop_token(const d9di_decode_batch *a, uint32_t token)
{
    bool found = false;

    for (size_t i = 0; i < a->stop_tokens.len; i++)
        found = found || a->stop_tokens.data[i] == token;
    return found;
}

static d9d_status check_token(const d9di_decode_batch_next *x)
{
    d9d_err_copy why;
    const d9d_status st = d9di_token_sampler_check_logit(x->token, x->largest);

    if (st == D9D_OK)
        return D9D_OK;
    d9d_err_save(&why, st);
    return D9D_FAIL(st, "sample %lld: position %lld: %s", (long long)x->row->item.sample,
                    (long long)max_length(x->row), why.text);
}

/* Token i of a call; row NULL: it is not used. */
static void take_token(d9di_decode_batch *a, const d9di_kv_decoder_output *out, size_t i,
                       d9di_decode_batch_seq *row)
{
    a->nexts[i] = (d9di_decode_batch_next){
        .row = row, .token = (uint32_t)out->token[i], .largest = out->largest[i]};
    a->has_stats = out->stats != NULL;
    if (a->has_stats)
        a->nexts[i].stats = out->stats[i];
}

/* What a call of n inputs gives. */
static void take_output(d9di_decode_batch *a, const d9di_kv_decoder_output *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        d9di_decode_batch_seq *row = &a->seqs[a->inputs[i].row];

        take_token(a, out, i, row->k < 0 || row->n_cached < max_length(row) ? NULL : row);
    }
}

static d9d_status append_token(const d9di_decode_batch *a, const d9di_decode_batch_next *x)
{
    d9di_decode_batch_seq *row = x->row;

    D9D_TRY(D9D_VEC_PUSH(&row->ids, x->token));
    if (a->has_stats)
        D9D_TRY(D9D_VEC_PUSH(&row->stats, x->stats));
    if (is_stop_token(a, x->token))
        row->finish = "stop";
    else if (max_length(row) == row->max_tokens)
        row->finish = "length";
    return D9D_OK;
}

/* Appends the tokens of nexts [n]. */
static d9d_status append_tokens(d9di_decode_batch *a, size_t n, d9di_decode_batch_done_fn *done,
                                void *arg)
{
    for (size_t i = 0; i < n; i++)
        if (a->nexts[i].row != NULL)
            D9D_TRY(check_token(&a->nexts[i]));
    for (size_t i = 0; i < n; i++) {
        d9di_decode_batch_seq *row = a->nexts[i].row;

        if (row == NULL)
            continue;
        D9D_TRY(append_token(a, &a->nexts[i]));
        if (row->finish != NULL)
            D9D_TRY(finish_seq(row, done, arg));
    }
    return D9D_OK;
}

/* --- shared prompts ---- */

/* After a call for the shared prompt, whose last logits the decoder keeps. */
static void take_prompt(d9di_decode_batch *a)
{
    const d9di_decode_batch_seq *waiting = first_waiting(a);

    assert(waiting != NULL);
    a->shared.n_cached += a->inputs[0].n;
    a->shared.is_whole = a->shared.n_cached == waiting->prompt;
}

/* The sequences that wait for the prompt in row n get it: their number. */
static d9d_status copy_shared(d9di_decode_batch *a, size_t *n)
{
    *n = 0;
    for (int64_t i = 0; i < a->n && a->shared.is_whole; i++) {
        d9di_decode_batch_seq *row = &a->seqs[i];

        if (row->k < 0 || row->n_cached > 0 || row->k / a->source.group != a->shared.group)
            continue;
        D9D_TRY(d9di_kv_decoder_copy(a->decoder, a->n, i, row->prompt));
        row->n_cached = row->prompt;
        a->streams[*n] = stream_of(a, row);
        a->nexts[(*n)++].row = row;
    }
    return D9D_OK;
}

/* They begin, each with a token of its own: their number. */
static d9d_status begin_with_shared(d9di_decode_batch *a, size_t *n)
{
    d9di_kv_decoder_output out;

    D9D_TRY(copy_shared(a, n));
    if (*n == 0)
        return D9D_OK;
    D9D_TRY(d9di_kv_decoder_draw_kept(a->decoder, a->streams, (int64_t)*n, a->nexts[0].row->prompt,
                                      &out));
    for (size_t i = 0; i < *n; i++)
        take_token(a, &out, i, a->nexts[i].row);
    return D9D_OK;
}

/* Fills free places until each has a sequence that a call goes on with. */
static d9d_status begin_seqs(d9di_decode_batch *a, d9di_decode_batch_done_fn *done, void *arg)
{
    size_t n = 0;

    do {
        D9D_TRY(fill_free_slots(a, done, arg));
        if (shares(a)) {
            D9D_TRY(begin_with_shared(a, &n));
            D9D_TRY(append_tokens(a, n, done, arg));
        }
    } while (n > 0);
    return D9D_OK;
}

/* --- calls ---- */

/* True if the oldest call in flight is a part of a shared prompt. */
static bool reads_shared(const d9di_decode_batch *a, size_t n)
{
    return n == 1 && a->inputs[0].row == a->n;
}

/* True if, unless it stops, each sequence of the call in flight continues after it, and no other
 * begins. */
static bool can_decode_ahead(const d9di_decode_batch *a)
{
    size_t going = 0, alive = 0;

    if (reads_shared(a, a->n_in_flight))
        return false;
    for (int64_t i = 0; i < a->n; i++)
        alive += a->seqs[i].k >= 0;
    for (size_t i = 0; i < a->n_in_flight; i++) {
        const d9di_decode_batch_seq *row = &a->seqs[a->inputs[i].row];

        going += row->k >= 0 && row->n_cached == max_length(row) &&
                 max_length(row) + 1 < row->max_tokens;
    }
    return going == a->n_in_flight && going == alive &&
           (alive == (size_t)a->n || a->next >= a->source.n);
}

/* Enqueues the call after the one in flight, with the tokens that it chooses. */
static d9d_status enqueue_ahead(d9di_decode_batch *a)
{
    for (size_t i = 0; i < a->n_in_flight; i++) {
        d9di_kv_decoder_input *p = &a->inputs[i];

        *p = (d9di_kv_decoder_input){
            .row = p->row, .first = a->seqs[p->row].n_cached, .n = 1, .stream = p->stream};
    }
    return d9di_kv_decoder_enqueue(a->decoder, a->inputs, a->n_in_flight);
}

/* The cache has the call's tokens once it is done. */
static void count_inputs(d9di_decode_batch *a, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const d9di_kv_decoder_input *in = &a->inputs[i];

        if (in->row == a->n || a->seqs[in->row].n_cached < a->seqs[in->row].prompt)
            a->prefilled += in->n;
        if (in->row < a->n)
            a->seqs[in->row].n_cached += in->n;
    }
}

d9d_status d9di_decode_batch_step(d9di_decode_batch *a, d9di_decode_batch_done_fn *done, void *arg)
{
    d9di_kv_decoder_output next;
    size_t n;

    if (a->n_in_flight == 0) {
        D9D_TRY(begin_seqs(a, done, arg));
        a->n_in_flight = choose_inputs(a);
        D9D_TRY(d9di_kv_decoder_enqueue(a->decoder, a->inputs, a->n_in_flight));
    }
    n = a->n_in_flight;
    count_inputs(a, n);
    if (a->decodes_ahead && n > 0 && can_decode_ahead(a))
        D9D_TRY(enqueue_ahead(a));
    else
        a->n_in_flight = 0;
    D9D_TRY(d9di_kv_decoder_wait(a->decoder, &next));
    if (reads_shared(a, n)) {
        take_prompt(a);
        return D9D_OK;
    }
    take_output(a, &next, n);
    return append_tokens(a, n, done, arg);
}
