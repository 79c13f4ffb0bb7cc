/* convert_into.h - the model folder that a conversion's weights go into: `--into`.
 *
 *     base/   model.language_model.layers...   replaced by the weights of the source
 *             model.vision_tower...            as they are
 *             config.json                      as it is
 *
 * What the family does not compute (d9d_family_is_left_out()) is taken from there: the vision
 * model of a multimodal one, layers for multi-token prediction.
 */
#ifndef D9DI_CONVERT_INTO_H
#define D9DI_CONVERT_INTO_H

#include "d9d/ckpt/mapper/mapper.h"
#include "d9d/model/provider.h"

typedef struct d9di_convert_into d9di_convert_into;

/* Open the folder; headers and config.json are read.  ECONFIG for one in the suite's own layout or
 * of quantised weights. */
d9d_status d9di_convert_into_open(const char *dir, const d9d_table *const *choices,
                                  d9di_convert_into **out);
void d9di_convert_into_close(d9di_convert_into *x);

const char *d9di_convert_into_dir(const d9di_convert_into *x);
d9d_weights_layout d9di_convert_into_layout(const d9di_convert_into *x);
/* Append its whole config.json, with another dtype if that is given. */
d9d_status d9di_convert_into_config(const d9di_convert_into *x, const d9d_dtype *dtype,
                                    d9d_buf *text);

/* ECONFIG unless `m` is the folder's model; `where` is its config.json. */
d9d_status d9di_convert_into_check_model(const d9di_convert_into *x, const d9d_model_spec *m,
                                         const char *where);
/* `m` maps *src to the folder's layout: give its outputs the folder's names and types, and add what
 * it does not make.  *src then has the folder's tensors too; it borrows x. */
d9d_status d9di_convert_into_add(d9di_convert_into *x, d9d_mapper *m, d9d_tensor_source *src);
/* EMISMATCH unless the plan makes each tensor of the folder, in its shape, and no other. */
d9d_status d9di_convert_into_check_plan(const d9di_convert_into *x, const d9d_map_plan *plan);
/* Tensors that were taken, of this part of a model, from 0 to D9D_FAMILY_LEFT_OUT. */
size_t d9di_convert_into_count(const d9di_convert_into *x, size_t part, const char **what);

#endif /* D9DI_CONVERT_INTO_H */
