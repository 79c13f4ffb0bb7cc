/* spec_match.h - finds the source names that a description's patterns match, in order. */
#ifndef D9DI_CKPT_MAPPER_SPEC_MATCH_H
#define D9DI_CKPT_MAPPER_SPEC_MATCH_H

#include "ckpt/mapper/name_glob.h"
#include "d9d/ckpt/safetensors/safetensors.h"

/* A name and the values of its captures, in the caller's order. */
typedef struct d9di_mapper_spec_match {
    const char *name;
    const d9d_safetensors_tensor *tensor; /* the source tensor; NULL if a step made it */
    size_t n;
    const char *value[D9DI_MAX_CAPTURES];
    size_t length; /* length of the match, for a prefix */
} d9di_mapper_spec_match;

typedef struct d9di_mapper_spec_matches {
    D9D_VEC(d9di_mapper_spec_match) v;
} d9di_mapper_spec_matches;

/* Lists the captures of a pattern in order, `over` last.  Returns how many precede `over`. */
size_t d9di_mapper_spec_capture_order(const d9di_glob *p, const char *over, const char **order);
/* Appends every matching name with its captures in this order; strings are in the arena.  The keys
 * of `live` are names, the values their source tensors or NULL. */
d9d_status d9di_mapper_spec_find_matches(d9d_arena *a, const d9di_glob *p, const d9d_map *live,
                                         const char *const *order, d9di_mapper_spec_matches *out);
/* ECONFIG: the pattern matches no name; the message suggests the nearest one. */
d9d_status d9di_mapper_spec_fail_no_match(const char *where, const char *pattern,
                                          const d9d_map *names);
/* Sorts by captures, the first one first. */
void d9di_mapper_spec_sort_matches(d9di_mapper_spec_matches *m);
/* True if the first n captures are equal. */
bool d9di_mapper_spec_same_captures(const d9di_mapper_spec_match *x,
                                    const d9di_mapper_spec_match *y, size_t n);
/* Binds the first n captures of a match, for expanding templates. */
d9di_glob_bindings d9di_mapper_spec_bind_match(const char *const *names,
                                               const d9di_mapper_spec_match *m, size_t n);

#endif /* D9DI_CKPT_MAPPER_SPEC_MATCH_H */
