/* family.h - models of families, from the text of a config.json.
 *
 *     d9d_family_config c;
 *
 *     assert_ok(family_make(&arena, &c, "{\"model_type\": \"qwen3\", \"num_hidden_layers\": %d, "
 *                           "...}", layers));
 *     assert_ok(d9d_family_create(&c, D9D_WHOLE_MODEL, &opts, &model));
 *
 * The family is the one among d9d_model_choices that reads the document's "model_type".
 */
#ifndef D9D_TEST_FAMILY_H
#define D9D_TEST_FAMILY_H

#include "d9d/model/family/family.h"

/* A job's "model", made as printf() does. */
__attribute__((format(printf, 3, 4))) d9d_status family_make(d9d_arena *a, d9d_family_config *c,
                                                             const char *format, ...);
/* A document, as a file or as a job's "model"; messages begin with `where`. */
d9d_status family_parse(const json_t *doc, const char *where, bool inlined, d9d_arena *a,
                        d9d_family_config *c);
/* A config.json, or a directory that has one. */
d9d_status family_read(const char *path, d9d_arena *a, d9d_family_config *c);

/* The beginning of its dimensions, which a test may change. */
d9d_family_dims *family_dims(const d9d_family_config *c);
/* Random weights of the whole model, as a source; released with d9d_random_weights_close(). */
struct d9d_random_weights;
d9d_status family_weights(const d9d_family_config *c, d9d_dtype t, uint64_t seed, d9d_arena *a,
                          struct d9d_random_weights **out);

#endif /* D9D_TEST_FAMILY_H */
