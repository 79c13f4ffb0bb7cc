/* kv_decoder.h - a model that goes on with rows: each row has its cells of one cache.
 *
 *     D9D_TRY(d9di_kv_decoder_open(&engine, rows, room, true, &stepper));
 *     piece = {.row = 0, .first = 0, .n = 5, .ids = prompt};
 *     D9D_TRY(d9di_kv_decoder_enqueue(stepper, &piece, 1));
 *     piece = {.row = 0, .first = 5, .n = 1, .ids = NULL};     // what that call will have chosen
 *     D9D_TRY(d9di_kv_decoder_enqueue(stepper, &piece, 1));
 *     D9D_TRY(d9di_kv_decoder_wait(stepper, &next));              // of the first, while the second
 * goes
 *
 * Pieces of one call do not see each other, and on the CPU what follows a piece is the same, to
 * the bit, with any others beside it and however its row was cut.
 */
#ifndef D9DI_INFER_KV_DECODER_H
#define D9DI_INFER_KV_DECODER_H

#include "d9d/model/kv_cache.h"
#include "engine/engine.h"

typedef struct d9di_kv_decoder d9di_kv_decoder;

/* Some tokens of a row, behind the `first` that it has. */
typedef struct d9di_kv_decoder_input {
    int64_t row, first, n;
    const uint32_t *ids; /* [n] */
} d9di_kv_decoder_input;

/* What may follow each piece of a call; the arrays are the host's. */
typedef struct d9di_kv_decoder_output {
    const int32_t *token; /* [n]: the likeliest, by d9d_kernels' largest */
    const float *largest; /* [n]: its logit */
    const float *logits;  /* [n, V] in place of both where the stepper does not choose */
} d9di_kv_decoder_output;

/* What `rows` rows of at most `max_tokens` tokens keep. */
uint64_t d9di_kv_decoder_bytes(const d9di_engine *e, int64_t rows, int64_t max_tokens);

/* chooses: the likeliest token is found where the logits are, which stay there.  EOOM. */
d9d_status d9di_kv_decoder_open(d9di_engine *e, int64_t rows, int64_t max_tokens, bool chooses,
                                d9di_kv_decoder **out);
void d9di_kv_decoder_close(d9di_kv_decoder *d); /* NULL is fine */

/* Queue a call.  Rows ascending, each at most once.  A stepper that chooses takes a second call
 * while one is under way, with the same rows, one token each and no ids: those that it chooses.
 * Collective: over the ranks that share the model's parameters, stages or experts; one that has
 * nothing to do calls with n = 0. */
d9d_status d9di_kv_decoder_enqueue(d9di_kv_decoder *d, const d9di_kv_decoder_input *inputs,
                                   size_t n);
/* What the oldest call under way has made, valid until the next send; the same on all tp ranks and
 * all stages of a pipeline, which have it one after the other. */
d9d_status d9di_kv_decoder_wait(d9di_kv_decoder *d, d9di_kv_decoder_output *out);

#endif /* D9DI_INFER_KV_DECODER_H */
