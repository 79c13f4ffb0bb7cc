/* jinja.h - renders the chat templates of checkpoints, which are written in Jinja.
 *
 *     {%- for message in messages %}
 *         {{- '<|im_start|>' + message.role + '\n' }}
 *         {%- generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}
 *     {% endfor %}
 *
 * A template is compiled once and rendered with a JSON object, whose members are its variables:
 *
 *     D9D_TRY(d9d_jinja_compile(text, n, "chat_template.jinja", &arena, &t));
 *     D9D_TRY(d9d_jinja_render(t, context, NULL, &out, &trace));
 *
 * The output has the same bytes as that of HuggingFace transformers, which uses jinja2's immutable
 * sandbox with trim_blocks, lstrip_blocks and loop controls.
 *
 * Statements: if, elif, else; for with a filter, else and recursion, break, continue; set of names,
 * tuples, namespace attributes and blocks; macro, call; with; filter; raw; print; generation.
 *
 * Expressions: all literals and operators, slices, calls with keyword arguments, `*` and `**`,
 * filters and tests. `libcore/data/jinja/README.md` lists the names.
 *
 * Functions: range, namespace, dict, raise_exception, strftime_now.
 *
 * Values behave as in Python: `str()` of lists and floats, indices of characters, order of dict
 * members, equality of 1 and True.  A missing name or member is undefined: it prints nothing, and
 * a member of it is an error.
 *
 * Differences from Python:
 *
 *     integers       64 bits; an overflow is an error
 *     generators     are computed where they are made
 *     refused        import, include, extends, block, autoescape, str.format of members or with
 *                    a format specification
 *
 * What is refused is an error that names the line and the construct.  A filter or test that is not
 * known is one at compile time, but within an if statement where it runs, as in jinja2.
 *
 * Templates are untrusted.  They reach nothing but their context, and run within limits: steps,
 * bytes of output, bytes of memory, depth of nesting.  A compiled template is immutable, so several
 * threads may render it.
 */
#ifndef D9D_DATA_JINJA_JINJA_H
#define D9D_DATA_JINJA_JINJA_H

#include <time.h>

#include "d9d/base/json.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_jinja_template d9d_jinja_template;

/* Compiles text[0, n), UTF-8 without NUL.  Messages begin with `where` and the line.  The template
 * lives in the arena, a copy of `where` included.  EFORMAT: a mistake; ENOTSUP: a construct that is
 * refused. */
D9D_API D9D_MUST_USE d9d_status d9d_jinja_compile(const char *text, size_t n, const char *where,
                                                  d9d_arena *arena, const d9d_jinja_template **out);

/* Does the template mark generated text with `{% generation %}`? */
D9D_API bool d9d_jinja_marks_generation(const d9d_jinja_template *t);
/* Is this word a name or a string in the template's tags? */
D9D_API bool d9d_jinja_mentions(const d9d_jinja_template *t, const char *word);

/* 0 or NULL: the default. */
typedef struct d9d_jinja_opts {
    uint64_t max_steps;   /* evaluated nodes and copied kilobytes; 20 million */
    uint64_t max_output;  /* bytes; 256 MiB */
    uint64_t max_memory;  /* bytes of values, none of which is freed before the end; 1 GiB */
    const struct tm *now; /* what strftime_now() prints; by default a call of it is an error */
    const json_t *data;   /* an object: more variables, whose text the trace tells apart */
    const json_t *items;  /* a list within `data` whose iterations the trace has */
    const char *marks;    /* a byte for each item, not 0: the trace has it for the item's text */
} d9d_jinja_opts;

/* Bytes [begin, end) of the output. */
typedef struct d9d_jinja_span {
    size_t begin, end;
} d9d_jinja_span;
typedef D9D_VEC(d9d_jinja_span) d9d_jinja_spans;

/* What an iteration over an object of opts->items wrote, if it wrote anything. */
typedef struct d9d_jinja_visit {
    size_t item;
    d9d_jinja_span span;
} d9d_jinja_visit;

/* Where the output comes from.  Spans count from the beginning of the buffer.
 *
 *     {% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}
 *
 *     <user>Hi<assistant>Ho
 *     ~~~~~~~~~~~~~~~~~~~~~     visits: items 0 and 1
 *      ==== == ========= ==     data
 */
typedef struct d9d_jinja_trace {
    d9d_jinja_spans generation; /* of each generation block */
    D9D_VEC(d9d_jinja_visit) visits;
    d9d_buf
        data; /* a byte for each of the output: 0, or if opts->data has it, 1 or the item's mark */
} d9d_jinja_trace; /* zero-initialised is empty */
D9D_API void d9d_jinja_trace_release(d9d_jinja_trace *t);

/* Appends the output to *out and its origins to *trace (NULL: not wanted).  On failure both are as
 * they were.  The context is an object, borrowed during the call, as is opts->data.  EFORMAT: the
 * template and the context do not fit, the template raised an exception, or a limit was reached. */
D9D_API D9D_MUST_USE d9d_status d9d_jinja_render(const d9d_jinja_template *t, const json_t *context,
                                                 const d9d_jinja_opts *opts, d9d_buf *out,
                                                 d9d_jinja_trace *trace);

#ifdef __cplusplus
}
#endif
#endif /* D9D_DATA_JINJA_JINJA_H */
