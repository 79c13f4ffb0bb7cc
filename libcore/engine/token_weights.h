/* token_weights.h - weights of a batch's tokens in router statistics and auxiliary losses.
 *
 * All tokens of a row have the same weight; their sum is the number of the row's labels that count,
 * or of its records of answers, or of the targets of all heads.
 * Padding, and rows without such labels, have weight 0.  A mean over tokens then weights each row
 * as the step's mean loss does, whatever its micro-batch and rank.
 */
#ifndef D9DI_ENGINE_TOKEN_WEIGHTS_H
#define D9DI_ENGINE_TOKEN_WEIGHTS_H

#include "d9d/data/loader/loader.h"
#include "d9d/model/model.h"
#include "tasks/tasks.h"

/* True if the model's forward needs them. */
bool d9di_engine_needs_token_weights(const d9d_model *m);
/* And lanes: some of its experts may have copies. */
bool d9di_engine_needs_token_lanes(const d9d_model *m);
/* The weights of this rank's tokens of a batch, given the model's parallel groups.  *out is {0}
 * before; the caller releases it, even on failure. */
d9d_status d9di_engine_make_token_weights(const d9d_model *m, d9d_device *dev, const d9d_batch *b,
                                          const d9di_task *task, bool lanes,
                                          d9d_token_weights *out);
void d9di_engine_token_weights_release(d9d_token_weights *w);

#endif /* D9DI_ENGINE_TOKEN_WEIGHTS_H */
