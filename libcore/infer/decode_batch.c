/* decode_batch.c - see infer/decode_batch.h. */
#include "infer/decode_batch.h"

#include <stdlib.h>

#include "d9d/base/thread.h"

d9d_status d9di_decode_batch_init(int64_t n, d9di_decode_batch *a)
{
    a->n = n;
    a->seqs = calloc((size_t)n, sizeof(*a->seqs));
    a->inputs = calloc((size_t)n, sizeof(*a->inputs));
    a->samplers = calloc((size_t)n, sizeof(*a->samplers));
    a->nexts = calloc((size_t)n, sizeof(*a->nexts));
    if (a->seqs == NULL || a->inputs == NULL || a->samplers == NULL || a->nexts == NULL)
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
    for (int64_t i = 0; a->samplers != NULL && i < a->n; i++)
        d9di_token_sampler_release(&a->samplers[i]);
    free(a->seqs);
    free(a->inputs);
    free(a->samplers);
    free(a->nexts);
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

static d9di_kv_decoder_input next_input(const d9di_decode_batch *a, int64_t i)
{
    const d9di_decode_batch_seq *row = &a->seqs[i];
    const int64_t left = max_length(row) - row->n_cached;
    const bool whole = left < D9DI_PREFILL_TOKENS || a->prefix_mask;

    return (d9di_kv_decoder_input){.row = i,
                                   .first = row->n_cached,
                                   .n = whole ? left : D9DI_PREFILL_TOKENS,
                                   .ids = row->ids.data + row->n_cached,
                                   .prefix = a->prefix_mask && row->n_cached == 0 ? left : 0};
}

/* A prompt is prefilled alone, so that its result does not depend on other sequences. */
static size_t choose_inputs(d9di_decode_batch *a)
{
    size_t n = 0;

    for (int64_t i = 0; i < a->n; i++) {
        if (a->seqs[i].k < 0)
            continue;
        a->inputs[n] = next_input(a, i);
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

/* A call's outputs, of which each thread takes one at a time. */
typedef struct next_call {
    d9di_decode_batch *a;
    const d9di_kv_decoder_output *out;
} next_call;

/* The next token of a sequence: chosen by the decoder, or sampled here from its logits. */
static d9d_status next_token(const next_call *c, size_t i)
{
    d9di_decode_batch *a = c->a;
    d9di_decode_batch_next *x = &a->nexts[i];
    const d9d_rng r = {a->seed, a->first_stream + (uint64_t)x->row->k};
    const float *logits = c->out->logits;

    if (logits == NULL) {
        x->token = (uint32_t)c->out->token[i];
        return d9di_token_sampler_check_logit(x->token, c->out->largest[i]);
    }
    return d9di_token_sampler_sample(&a->samplers[i], &a->sampler, r, x->row->ids.data,
                                     max_length(x->row), logits + (int64_t)i * a->vocab, a->vocab,
                                     &x->token, a->wants_stats ? &x->stats : NULL);
}

static d9d_status next_token_named(void *arg, int worker, size_t i)
{
    const next_call *c = arg;
    const d9di_decode_batch_seq *row = c->a->nexts[i].row;
    d9d_err_copy why;
    d9d_status st;

    (void)worker;
    if (row == NULL)
        return D9D_OK;
    st = next_token(c, i);
    if (st == D9D_OK)
        return D9D_OK;
    d9d_err_save(&why, st);
    return D9D_FAIL(st, "sample %lld: position %lld: %s", (long long)row->item.sample,
                    (long long)max_length(row), why.text);
}

/* The tokens of a call.  Sampling from many logits is divided among threads: each sequence has its
 * own random numbers. */
static d9d_status next_tokens(d9di_decode_batch *a, const d9di_kv_decoder_output *out, size_t n)
{
    enum { LOGITS_OF_A_THREAD = 1 << 16 };
    next_call c = {a, out};
    const int64_t work = out->logits != NULL ? (int64_t)n * a->vocab : 0;
    const int64_t useful =
        work / LOGITS_OF_A_THREAD < (int64_t)n ? work / LOGITS_OF_A_THREAD : (int64_t)n;
    const int cpus = d9d_thread_cpus(), jobs = useful < cpus ? (int)useful : cpus;

    for (size_t i = 0; i < n; i++) {
        d9di_decode_batch_seq *row = &a->seqs[a->inputs[i].row];

        a->nexts[i].row = row->k < 0 || row->n_cached < max_length(row) ? NULL : row;
    }
    return d9d_thread_run(jobs > 1 ? jobs : 1, n, next_token_named, &c);
}

static d9d_status append_token(const d9di_decode_batch *a, const d9di_decode_batch_next *x)
{
    d9di_decode_batch_seq *row = x->row;

    D9D_TRY(D9D_VEC_PUSH(&row->ids, x->token));
    if (a->wants_stats)
        D9D_TRY(D9D_VEC_PUSH(&row->stats, x->stats));
    if (is_stop_token(a, x->token))
        row->finish = "stop";
    else if (max_length(row) == row->max_tokens)
        row->finish = "length";
    return D9D_OK;
}

/* True if, unless it stops, each sequence of the call in flight continues after it, and no other
 * begins. */
static bool can_decode_ahead(const d9di_decode_batch *a)
{
    size_t going = 0, alive = 0;

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

        *p = (d9di_kv_decoder_input){.row = p->row, .first = a->seqs[p->row].n_cached, .n = 1};
    }
    return d9di_kv_decoder_enqueue(a->decoder, a->inputs, a->n_in_flight);
}

d9d_status d9di_decode_batch_step(d9di_decode_batch *a, d9di_decode_batch_done_fn *done, void *arg)
{
    d9di_kv_decoder_output next;
    size_t n;

    if (a->n_in_flight == 0) {
        D9D_TRY(fill_free_slots(a, done, arg));
        a->n_in_flight = choose_inputs(a);
        D9D_TRY(d9di_kv_decoder_enqueue(a->decoder, a->inputs, a->n_in_flight));
    }
    n = a->n_in_flight;
    for (size_t i = 0; i < n; i++)
        a->seqs[a->inputs[i].row].n_cached += a->inputs[i].n;
    if (a->decodes_ahead && n > 0 && can_decode_ahead(a))
        D9D_TRY(enqueue_ahead(a));
    else
        a->n_in_flight = 0;
    D9D_TRY(d9di_kv_decoder_wait(a->decoder, &next));
    D9D_TRY(next_tokens(a, &next, n));
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
