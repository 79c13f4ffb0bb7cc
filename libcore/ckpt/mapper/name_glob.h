/* name_glob.h - patterns of tensor names with captures.
 *
 *     model.layers.{l}.mlp.experts.{e}.up_proj.weight
 *
 *     {l}       one or more characters other than a dot
 *     {l:int}   a number: digits, no zero before others
 *     {l:any}   one or more characters, dots too
 *     {{ }}     a brace
 *
 * The whole name must match.  If several matches are possible, captures are as long as possible,
 * the first one first.  Two captures need text between them, and a capture name may occur once.  In
 * a template a name may occur several times and is replaced by what it captured.
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

/* Literal text, then a capture (except in the last token). */
typedef struct d9di_glob_token {
    const char *text;
    const char *capture; /* NULL: none */
    d9di_glob_capture_class capture_class;
} d9di_glob_token;

typedef struct d9di_glob {
    const char *text; /* the pattern's text */
    size_t n;         /* number of captures */
    d9di_glob_token tokens[D9DI_MAX_CAPTURES + 1];
    struct pcre2_real_code_8 *code; /* NULL before compile, and without captures */
    bool prefix;                    /* matches the beginning of a name */
} d9di_glob;

/* Parses `text` (`where`: for messages); strings are in the arena.  ECONFIG. */
d9d_status d9di_glob_parse(const char *text, const char *where, d9d_arena *a, d9di_glob *out);
/* Compiles a pattern for matching; it is then no template any more.  Release it with
 * d9di_glob_release().  ECONFIG: a name occurs twice, or two captures have no text between them. */
d9d_status d9di_glob_compile(d9di_glob *p, const char *where, bool prefix);
void d9di_glob_release(d9di_glob *p);
/* The index of a capture, or -1. */
int d9di_glob_find(const d9di_glob *p, const char *capture);

/* Matches `name`; *length is the length of the match, values are in the arena.  ECONFIG: the match
 * needs too many steps. */
d9d_status d9di_glob_match(const d9di_glob *p, const char *name, d9d_arena *a,
                           const char *values[D9DI_MAX_CAPTURES], size_t *length, bool *matches);

/* Names and their values. */
typedef struct d9di_glob_bindings {
    size_t n;
    /* One more than the captures, for a number. */
    const char *name[D9DI_MAX_CAPTURES + 1], *value[D9DI_MAX_CAPTURES + 1];
} d9di_glob_bindings;

const char *d9di_glob_bindings_get(const d9di_glob_bindings *b, const char *name); /* or NULL */
/* Expands the template, in the arena.  Every capture must be bound. */
d9d_status d9di_glob_expand(const d9di_glob *p, const d9di_glob_bindings *b, d9d_arena *a,
                            const char **out);

#endif /* D9DI_CKPT_MAPPER_NAME_GLOB_H */
