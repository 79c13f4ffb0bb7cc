/* name_glob.h - names of tensors with captures.
 *
 *     model.layers.{l}.mlp.experts.{e}.up_proj.weight
 *
 *     {l}       one or more characters other than a dot
 *     {l:int}   a number: digits, no zero before others
 *     {l:any}   one or more characters, dots too
 *     {{ }}     a brace
 *
 * The whole name must match; where more than one reading would do, captures are as long as
 * they can be, the first one first.  Two captures need text between them, and a name stands
 * once.  In a template, which may have a name more than once, stands what it has captured.
 */
#ifndef D9DI_CKPT_MAPPER_NAME_GLOB_H
#define D9DI_CKPT_MAPPER_NAME_GLOB_H

#include "d9d/base/mem.h"

enum { D9DI_MAX_CAPTURES = 8, D9DI_MAX_PATTERN = 1024 };

typedef enum d9di_glob_capture_class {
    D9DI_CAPTURE_COMPONENT,
    D9DI_CAPTURE_INT,
    D9DI_CAPTURE_ANY
} d9di_glob_capture_class;

/* Text, then a capture (but for the last piece). */
typedef struct d9di_glob_token {
    const char *text;
    const char *capture; /* NULL: none */
    d9di_glob_capture_class capture_class;
} d9di_glob_token;

typedef struct d9di_glob {
    const char *text; /* as written */
    size_t n;         /* captures */
    d9di_glob_token tokens[D9DI_MAX_CAPTURES + 1];
    struct pcre2_real_code_8 *code; /* NULL until it is compiled, and without captures */
    bool prefix;                    /* matches the beginning of a name */
} d9di_glob;

/* Read `text` (where: for sentences); strings are in the arena.  ECONFIG. */
d9d_status d9di_glob_parse(const char *text, const char *where, d9d_arena *a, d9di_glob *out);
/* Get ready for matching, after which it is no template.  Released by d9di_glob_release().
 * ECONFIG where a name is there twice, or two captures have no text between them. */
d9d_status d9di_glob_compile(d9di_glob *p, const char *where, bool prefix);
void d9di_glob_release(d9di_glob *p);
/* The number of a capture, or -1. */
int d9di_glob_find(const d9di_glob *p, const char *capture);

/* Whether `name` matches; *length is what was matched, values are in the arena.  ECONFIG where
 * there are too many ways to try. */
d9d_status d9di_glob_match(const d9di_glob *p, const char *name, d9d_arena *a,
                           const char *values[D9DI_MAX_CAPTURES], size_t *length, bool *matches);

/* Names and what they stand for. */
typedef struct d9di_glob_bindings {
    size_t n;
    /* One more than captures, for a number. */
    const char *name[D9DI_MAX_CAPTURES + 1], *value[D9DI_MAX_CAPTURES + 1];
} d9di_glob_bindings;

const char *d9di_glob_bindings_get(const d9di_glob_bindings *b, const char *name); /* or NULL */
/* The template filled in, in the arena.  Every capture must be bound. */
d9d_status d9di_glob_expand(const d9di_glob *p, const d9di_glob_bindings *b, d9d_arena *a,
                            const char **out);

#endif /* D9DI_CKPT_MAPPER_NAME_GLOB_H */
