/* token_weights.h - what the tokens of a batch weigh where routers count them and are kept even.
 *
 * The tokens of a row weigh the same, and together as much as the row has labels that count; those
 * of padding, and of rows without such labels, 0.  A mean over the tokens of a row then has the
 * part in a step's mean loss that the row has, in whatever micro-batch and on whatever ranks it is.
 */
#ifndef D9DI_ENGINE_TOKEN_WEIGHTS_H
#define D9DI_ENGINE_TOKEN_WEIGHTS_H

#include "d9d/data/loader/loader.h"
#include "d9d/model/model.h"

/* Does a forward of this model ask for them? */
bool d9di_engine_needs_token_weights(const d9d_model *m);
/* Of the tokens that this rank has of a batch, as its model is cut.  weight.storage is NULL before;
 * whoever calls releases it. */
d9d_status d9di_engine_make_token_weights(const d9d_model *m, d9d_device *dev, const d9d_batch *b,
                                          d9d_token_weights *out);

#endif /* D9DI_ENGINE_TOKEN_WEIGHTS_H */
