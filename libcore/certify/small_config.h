/* small_config.h - the config.json of a small model, from a family's tables or from a large one.
 *
 * A number of config.json that the family reads becomes that of a table of small numbers by the
 * fields' names, if it is larger.  Flags, activations and scalings stay.  Lists of layers are cut;
 * their last place keeps a kind of layer that would be lost.  The arena has what the call needs.
 */
#ifndef D9DI_SMALL_CONFIG_H
#define D9DI_SMALL_CONFIG_H

#include "d9d/model/provider.h"

enum { D9DI_SMALL_VOCAB = 64 };

/* A small model of a family with this head, as far as its files can have it, and the defaults of
 * its other keys; a new reference.  A classifier has a label for each id.  ECONFIG names a required
 * key that is in no table here; ENOTSUP for a provider that reads no config.json. */
d9d_status d9di_small_config_make(const d9d_model_provider *p, d9d_head_kind head, d9d_arena *a,
                                  json_t **out);

/* A copy of `doc`, which the provider reads, made small; a new reference. */
d9d_status d9di_small_config_shrink(const d9d_model_provider *p, const json_t *doc, d9d_arena *a,
                                    json_t **out);

#endif /* D9DI_SMALL_CONFIG_H */
