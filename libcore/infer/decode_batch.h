/* decode_batch.h - rows that are being generated: each place is one sample's until that is done,
 * then the next one's.
 *
 * Where the stepper chooses tokens, and no other rank waits for this one's calls, the next call is
 * sent before what the last one chose is known here, so that a GPU has always something to do.  A
 * row that turns out to be done has had one token too many then, which nobody sees.
 */
#ifndef D9DI_INFER_DECODE_BATCH_H
#define D9DI_INFER_DECODE_BATCH_H

#include "infer/kv_decoder.h"
#include "infer/prompt_source.h"
#include "infer/token_sampler.h"

typedef struct d9di_decode_batch_seq {
    int64_t k; /* of the stream; -1: the place is free */
    d9di_prompt_source_item item;
    d9d_token_ids ids; /* the prompt, and what was generated */
    int64_t prompt,
        n_cached;       /* tokens of the prompt; tokens that the cache has when calls are through */
    int64_t max_tokens; /* tokens that ids may have */
    const char *finish; /* NULL: not done */
} d9di_decode_batch_seq;

typedef struct d9di_decode_batch {
    d9di_prompt_source *source;
    d9di_kv_decoder *decoder;
    d9di_token_sampler sampler;
    uint64_t seed;
    d9d_token_ids stop_tokens;
    int64_t vocab, max_new, positions; /* positions: of the model */
    int64_t next, step;                /* this rank's next sample; how far to the one behind it */
    bool decodes_ahead;                /* may send a call while one is under way */
    int64_t n;
    d9di_decode_batch_seq *seqs;   /* [n] */
    d9di_kv_decoder_input *inputs; /* [n]: of the oldest call under way, */
    size_t n_in_flight;            /* how many */
} d9di_decode_batch;

d9d_status d9di_decode_batch_init(int64_t n, d9di_decode_batch *a);
void d9di_decode_batch_release(d9di_decode_batch *a);

/* Anything left to do here, or under way? */
bool d9di_decode_batch_is_busy(const d9di_decode_batch *a);
/* Fill free places, and take what one call has made: of a part of one prompt, or of a token of
 * every row.  Each row that is done then is given to `done`, and its place is free.  ENUMERIC names
 * the sample. */
typedef d9d_status d9di_decode_batch_done_fn(void *arg, const d9di_decode_batch_seq *row);
d9d_status d9di_decode_batch_step(d9di_decode_batch *a, d9di_decode_batch_done_fn *done, void *arg);

#endif /* D9DI_INFER_DECODE_BATCH_H */
