/* spec_match.h - which names of a source a description's patterns match, and in what order. */
#ifndef D9DI_CKPT_MAPPER_SPEC_MATCH_H
#define D9DI_CKPT_MAPPER_SPEC_MATCH_H

#include "ckpt/mapper/name_glob.h"
#include "d9d/ckpt/safetensors/safetensors.h"

/* A name and what its captures are, in the order that the caller chose. */
typedef struct d9di_mapper_spec_match {
    const char *name;
    const d9d_safetensors_tensor *tensor; /* of the source; NULL where a step made it */
    size_t n;
    const char *value[D9DI_MAX_CAPTURES];
    size_t length; /* of what was matched, for a prefix */
} d9di_mapper_spec_match;

typedef struct d9di_mapper_spec_matches {
    D9D_VEC(d9di_mapper_spec_match) v;
} d9di_mapper_spec_matches;

/* The captures of a pattern in its order, `over` last: how many come before it. */
size_t d9di_mapper_spec_capture_order(const d9di_glob *p, const char *over, const char **order);
/* Append every name that matches, its captures in this order; strings are in the arena.  Names are
 * the keys of `live`, its values their tensors in the source, or NULL. */
d9d_status d9di_mapper_spec_find_matches(d9d_arena *a, const d9di_glob *p, const d9d_map *live,
                                         const char *const *order, d9di_mapper_spec_matches *out);
/* ECONFIG: the pattern matches none of the names; with the nearest one. */
d9d_status d9di_mapper_spec_fail_no_match(const char *where, const char *pattern,
                                          const d9d_map *names);
/* By their captures, the first one first. */
void d9di_mapper_spec_sort_matches(d9di_mapper_spec_matches *m);
/* Are the first n captures the same? */
bool d9di_mapper_spec_same_captures(const d9di_mapper_spec_match *x,
                                    const d9di_mapper_spec_match *y, size_t n);
/* The first n captures of a match, to fill templates in. */
d9di_glob_bindings d9di_mapper_spec_bind_match(const char *const *names,
                                               const d9di_mapper_spec_match *m, size_t n);

#endif /* D9DI_CKPT_MAPPER_SPEC_MATCH_H */
