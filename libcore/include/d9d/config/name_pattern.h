/* name_pattern.h - regular expressions that dotted names of a configuration are matched with.
 *
 *     d9d_name_pattern *p;
 *     D9D_TRY(d9d_name_pattern_create("optimizer.groups[0].pattern", ".*\\.bias", &p));
 *     D9D_TRY(d9d_name_pattern_match(p, "layers.3.mlp.up.bias", &yes));
 *     d9d_name_pattern_free(p);
 *
 * PCRE2, which agrees with Python's expressions for common patterns.  The whole name must match.
 */
#ifndef D9D_CONFIG_NAME_PATTERN_H
#define D9D_CONFIG_NAME_PATTERN_H

#include <stdbool.h>

#include "d9d/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_name_pattern d9d_name_pattern;

/* Compile an expression.  `key` begins every message: the key that has the pattern.  Both strings
 * are borrowed.  ECONFIG: it is no expression. */
D9D_API D9D_MUST_USE d9d_status d9d_name_pattern_create(const char *key, const char *text,
                                                        d9d_name_pattern **out);
/* Does the whole name match?  ECONFIG: the match needs too many steps. */
D9D_API D9D_MUST_USE d9d_status d9d_name_pattern_match(const d9d_name_pattern *p, const char *name,
                                                       bool *out);
D9D_API void d9d_name_pattern_free(d9d_name_pattern *p);

/* The three for one name: does it match `text`, perhaps after the names of modules that contain it,
 * as `(.*\.)?(text)`?  So peft reads rank_pattern and alpha_pattern. */
D9D_API D9D_MUST_USE d9d_status d9d_name_pattern_ends(const char *key, const char *text,
                                                      const char *name, bool *out);

#ifdef __cplusplus
}
#endif
#endif /* D9D_CONFIG_NAME_PATTERN_H */
