/* jinja_run.h - one rendering: limits, memory, output; calls of functions, filters, tests and
 * methods. */
#ifndef D9DI_DATA_JINJA_JINJA_RUN_H
#define D9DI_DATA_JINJA_JINJA_RUN_H

#include "d9d/data/jinja/jinja.h"
#include "data/jinja/jinja_value.h"

enum {
    D9DI_JINJA_MAX_NESTING = 100, /* of a template's text and of values */
    D9DI_JINJA_MAX_DEPTH = 1000,  /* of evaluation, calls of macros included */
    D9DI_JINJA_MAX_ARGS = 8,      /* parameters of a builtin */
    D9DI_JINJA_MAX_BLOCKS = 32    /* each is larger than the one before */
};

/* Memory of strings that have text of opts->data: of each byte text[i], text[size + i] is the mark
 * of such text, or 0. */
typedef struct d9di_jinja_block {
    char *text;
    size_t used, size;
} d9di_jinja_block;

struct d9di_jinja_run {
    const char *where; /* begins messages */
    int line;
    const d9d_jinja_opts *opts; /* without zeros */
    d9d_arena *arena;
    uint64_t steps, memory;
    int depth;
    d9d_buf *out;           /* output, and above it strings being built */
    size_t base;            /* where the output begins */
    int captures;           /* macros, block sets and others whose output is a string */
    d9d_jinja_trace *trace; /* or NULL */
    size_t traced;          /* length of trace->data before */
    char data_mark;         /* of values of opts->data that are being made; 0: of others */
    d9di_jinja_block blocks[D9DI_JINJA_MAX_BLOCKS];
    size_t n_blocks;
    const d9di_jinja_dict *context;
    const d9d_jinja_template *template;
    const d9di_jinja_value *block; /* the text that a block's filters are applied to */
};

/* Fails with EFORMAT, "WHERE: line N: " and the sentence. */
d9d_status d9di_jinja_fail(const d9di_jinja_run *r, const char *fmt, ...) D9D_PRINTF(2, 3);
/* Fails since v is undefined, saying why. */
d9d_status d9di_jinja_fail_undefined(const d9di_jinja_run *r, const d9di_jinja_value *v);

/* Counts n steps. */
d9d_status d9di_jinja_step(d9di_jinja_run *r, uint64_t n);
/* Zeroed memory for the rest of the rendering. */
d9d_status d9di_jinja_alloc(d9di_jinja_run *r, size_t n, size_t size, void *out);

/* --- output, and strings that are built at its end -------------------------------------------- *
 *
 *     const size_t mark = d9di_jinja_mark(r);
 *     D9D_TRY(d9di_jinja_put(r, "abc", 3));
 *     return d9di_jinja_take(r, mark, out);        // "abc" is a value, the output is as before
 */

size_t d9di_jinja_mark(const d9di_jinja_run *r);
d9d_status d9di_jinja_put(d9di_jinja_run *r, const char *text, size_t n);
d9d_status d9di_jinja_put_text(d9di_jinja_run *r, const char *text);
d9d_status d9di_jinja_take(d9di_jinja_run *r, size_t mark, d9di_jinja_value *out);

/* Appends text that was made of the character at `from`, and comes from where that does. */
d9d_status d9di_jinja_put_made(d9di_jinja_run *r, const char *text, size_t n, const char *from);

/* --- where text comes from: jinja_trace.c ----------------------------------------------------- */

/* Copies text[0, n) to where its origins are kept; marks NULL: all of it has r->data_mark. */
d9d_status d9di_jinja_hold(d9di_jinja_run *r, const char *text, const char *marks, size_t n,
                           const char **out);
/* Says of the last bytes of the output, which were appended, that they come from where from[0, n)
 * does. */
d9d_status d9di_jinja_trace_output(d9di_jinja_run *r, const char *from, size_t n);
/* Takes the last n bytes off the output's origins; *marks NULL: none is of the data. */
d9d_status d9di_jinja_trace_take(d9di_jinja_run *r, size_t n, const char **marks);
/* Records that an iteration over v wrote the output since `begin`. */
d9d_status d9di_jinja_trace_visit(d9di_jinja_run *r, const d9di_jinja_value *v, size_t begin);

/* --- values as text --------------------------------------------------------------------------- */

/* Appends str(v), repr(v). */
d9d_status d9di_jinja_put_str(d9di_jinja_run *r, const d9di_jinja_value *v);
d9d_status d9di_jinja_put_repr(d9di_jinja_run *r, const d9di_jinja_value *v);
/* repr(v) with escapes in place of what is not ASCII. */
d9d_status d9di_jinja_put_ascii(d9di_jinja_run *r, const d9di_jinja_value *v);
/* str(v) as a value; a string is itself. */
d9d_status d9di_jinja_to_str(d9di_jinja_run *r, const d9di_jinja_value *v, d9di_jinja_value *out);

/* --- builtins --------------------------------------------------------------------------------- */

typedef struct d9di_jinja_keyword {
    const char *name;
    d9di_jinja_value value;
    const d9di_jinja_value *key; /* of a dict behind "**": the name, as it was there; or NULL */
} d9di_jinja_keyword;
/* The name as a key of a dict. */
d9di_jinja_value d9di_jinja_keyword_key(const d9di_jinja_keyword *kw);

/* A call: the arguments as they are written, and bound to the parameters of a builtin. */
typedef struct d9di_jinja_call {
    d9di_jinja_run *run;
    d9di_jinja_value self; /* what a filter or a test is applied to; a method's object */
    const d9di_jinja_value *pos;
    size_t n;
    const d9di_jinja_keyword *kw;
    size_t n_kw;
    d9di_jinja_value arg[D9DI_JINJA_MAX_ARGS]; /* UNSET: not given */
} d9di_jinja_call;

typedef struct d9di_jinja_builtin {
    const char *name;
    d9d_status (*call)(const d9di_jinja_call *c, d9di_jinja_value *out); /* NULL: refused */
    const char *params; /* names separated by blanks; NULL: `call` reads pos and kw */
    size_t required;
} d9di_jinja_builtin;

/* A method bound to its object. */
struct d9di_jinja_method {
    const d9di_jinja_builtin *of;
    d9di_jinja_value self;
};

/* Tables that end with a NULL name. */
extern const d9di_jinja_builtin d9di_jinja_text_filters[], d9di_jinja_seq_filters[],
    d9di_jinja_number_filters[], d9di_jinja_select_filters[], d9di_jinja_tests[],
    d9di_jinja_functions[], d9di_jinja_str_methods[], d9di_jinja_dict_methods[],
    d9di_jinja_list_methods[], d9di_jinja_loop_methods[];

/* NULL: there is none. */
const d9di_jinja_builtin *d9di_jinja_find(const d9di_jinja_builtin *table, const char *name,
                                          size_t n);
const d9di_jinja_builtin *d9di_jinja_find_filter(const char *name, size_t n);

/* Binds the arguments of c and calls. */
d9d_status d9di_jinja_apply(const d9di_jinja_builtin *f, d9di_jinja_call *c, d9di_jinja_value *out);
/* Applies a filter or test with positional arguments. */
d9d_status d9di_jinja_apply_to(d9di_jinja_run *r, const d9di_jinja_builtin *f,
                               const d9di_jinja_value *self, const d9di_jinja_value *pos, size_t n,
                               d9di_jinja_value *out);
/* Calls any callable value. */
d9d_status d9di_jinja_call_value(const d9di_jinja_value *f, d9di_jinja_call *c,
                                 d9di_jinja_value *out);

/* `v.name` and `v[key]` of the sandbox. */
d9d_status d9di_jinja_get_attr(d9di_jinja_run *r, const d9di_jinja_value *v, const char *name,
                               size_t n, d9di_jinja_value *out);
d9d_status d9di_jinja_get_item(d9di_jinja_run *r, const d9di_jinja_value *v,
                               const d9di_jinja_value *key, d9di_jinja_value *out);
/* v[part[0]:part[1]:part[2]], UNSET or None where nothing is written. */
d9d_status d9di_jinja_get_slice(d9di_jinja_run *r, const d9di_jinja_value *v,
                                const d9di_jinja_value part[3], d9di_jinja_value *out);

/* Binary operators: + - * / // % **.  `op` is the first character, '/' doubled 'F', '**' 'P'. */
d9d_status d9di_jinja_binary(d9di_jinja_run *r, int op, const d9di_jinja_value *a,
                             const d9di_jinja_value *b, d9di_jinja_value *out);
/* `a op b` of the comparisons E N < > L G I O, as tokens have them. */
d9d_status d9di_jinja_compare(d9di_jinja_run *r, int op, const d9di_jinja_value *a,
                              const d9di_jinja_value *b, bool *out);
d9d_status d9di_jinja_negate(d9di_jinja_run *r, const d9di_jinja_value *v, d9di_jinja_value *out);

d9d_status d9di_jinja_from_json(d9di_jinja_run *r, const json_t *from, d9di_jinja_value *out);
d9d_status d9di_jinja_tojson(const d9di_jinja_call *c, d9di_jinja_value *out);

#endif
