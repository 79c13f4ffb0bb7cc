/* decode_batch.h - continuous batching: each place decodes one sample, then the next one.
 *
 * The decoder chooses tokens on the device.  If no other rank depends on this one's calls, the next
 * call is enqueued before the last call's tokens are known on the host.  So the GPU is never idle.
 * A sequence that turns out to be finished then has computed one extra token, which is discarded.
 *
 * Where `group` consecutive samples of the source have one prompt, it is prefilled once, in a row
 * of the decoder's behind those of the places.  A sample that begins gets a copy of that row, and
 * its first token is drawn from the same logits, with the sample's own random numbers:
 *
 *     rows   0..n-1   | p p p g g | p p p g . | p p p . . |      n places
 *            n        | p p p |                                  the prompt that they began with
 */
#ifndef D9DI_INFER_DECODE_BATCH_H
#define D9DI_INFER_DECODE_BATCH_H

#include "infer/kv_decoder.h"
#include "infer/prompt_source.h"

enum { D9DI_PREFILL_TOKENS = 8192 }; /* prefill chunk: the most tokens of a prompt per call */

/* What is continued: n prompts; those of k and j are equal where k / group and j / group are (0: as
 * 1).  get() appends the tokens of prompt k, and says what it is. */
typedef struct d9di_decode_batch_source {
    int64_t n;
    d9d_status (*get)(void *arg, int64_t k, d9d_token_ids *ids, d9di_prompt_source_item *out);
    void *arg;
    int64_t group;
} d9di_decode_batch_source;

typedef struct d9di_decode_batch_seq {
    int64_t k; /* its number in the source; -1: the place is free */
    d9di_prompt_source_item item;
    d9d_token_ids ids;        /* the prompt and the generated tokens */
    int64_t prompt, n_cached; /* tokens of the prompt; tokens in the KV cache once the calls in
                                 flight are done */
    int64_t max_tokens;       /* maximum length of ids */
    const char *finish;       /* NULL: not finished */
    D9D_VEC(d9di_token_sampler_stats) stats; /* of each generated token, if the decoder has them */
} d9di_decode_batch_seq;

/* The next token of a sequence. */
typedef struct d9di_decode_batch_next {
    d9di_decode_batch_seq *row; /* NULL: its prompt is not read yet */
    uint32_t token;
    float largest; /* logit of the sequence */
    d9di_token_sampler_stats stats;
} d9di_decode_batch_next;

/* The prompt in row n. */
typedef struct d9di_decode_batch_shared {
    int64_t group;    /* k / source.group of its samples; -1: none */
    int64_t n_cached; /* its tokens in the KV cache */
    bool is_whole;    /* it has all, and the decoder keeps the logits of its last token */
} d9di_decode_batch_shared;

typedef struct d9di_decode_batch {
    d9di_decode_batch_source source;
    d9di_kv_decoder *decoder; /* with a group above 1 it has n + 1 rows, and keeps logits */
    uint64_t first_stream;    /* prompt k has the random numbers of stream first_stream + k */
    d9d_token_ids stop_tokens;
    int64_t max_new, positions; /* positions: the model's maximum length */
    int64_t next, step;         /* this rank's next sample; the distance to the one after it */
    bool prefix_mask;           /* a prompt's tokens see each other: it is prefilled in one call */
    bool decodes_ahead;         /* may enqueue a call while one is in flight */
    bool has_stats;             /* of the tokens in `nexts` */
    int64_t n;
    d9di_decode_batch_seq *seqs;   /* [n] */
    d9di_decode_batch_next *nexts; /* [n]: tokens that the call in hand gives */
    uint64_t *streams;             /* [n]: of sequences that begin */
    d9di_kv_decoder_input *inputs; /* [n]: inputs of the oldest call in flight, */
    size_t n_in_flight;            /* their number */
    d9di_decode_batch_shared shared;
    int64_t prefilled; /* tokens of prompts that calls were given */
} d9di_decode_batch;

d9d_status d9di_decode_batch_init(int64_t n, d9di_decode_batch *a);
void d9di_decode_batch_release(d9di_decode_batch *a);

/* True if any sequence is unfinished or any call in flight. */
bool d9di_decode_batch_is_busy(const d9di_decode_batch *a);
/* One step: fills free places with prompts, and collects one call: a part of one prompt (chunked
 * prefill), or one token of every sequence (decode).  It is always one call.  Passes each finished
 * sequence to `done`, and frees its place.  ENUMERIC names the sample. */
typedef d9d_status d9di_decode_batch_done_fn(void *arg, const d9di_decode_batch_seq *row);
d9d_status d9di_decode_batch_step(d9di_decode_batch *a, d9di_decode_batch_done_fn *done, void *arg);

#endif /* D9DI_INFER_DECODE_BATCH_H */
