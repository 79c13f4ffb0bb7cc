/* jinja_ast.h - a template as tokens and as a tree. */
#ifndef D9DI_DATA_JINJA_JINJA_AST_H
#define D9DI_DATA_JINJA_JINJA_AST_H

#include "d9d/data/jinja/jinja.h"
#include "data/jinja/jinja_run.h"

/* --- tokens ----------------------------------------------------------------------------------- */

typedef enum d9di_jinja_token_kind {
    D9DI_JINJA_T_DATA, /* text outside of tags */
    D9DI_JINJA_T_VARIABLE_BEGIN,
    D9DI_JINJA_T_VARIABLE_END,
    D9DI_JINJA_T_BLOCK_BEGIN,
    D9DI_JINJA_T_BLOCK_END,
    D9DI_JINJA_T_NAME,
    D9DI_JINJA_T_STRING,
    D9DI_JINJA_T_INT,
    D9DI_JINJA_T_FLOAT,
    D9DI_JINJA_T_OPERATOR,
    D9DI_JINJA_T_END
} d9di_jinja_token_kind;

/* Operators of two characters as one. */
enum {
    D9DI_JINJA_FLOORDIV = 'F',
    D9DI_JINJA_POWER = 'P',
    D9DI_JINJA_EQ = 'E',
    D9DI_JINJA_NE = 'N',
    D9DI_JINJA_GE = 'G',
    D9DI_JINJA_LE = 'L',
    D9DI_JINJA_LT = '<',
    D9DI_JINJA_GT = '>',
    D9DI_JINJA_IN = 'I', /* of comparisons; a name among tokens */
    D9DI_JINJA_NOT_IN = 'O'
};

typedef struct d9di_jinja_token {
    d9di_jinja_token_kind kind;
    int line;
    int op;
    const char *text; /* DATA, NAME, STRING: NUL-terminated; NAME: one pointer for each name */
    size_t n;
    int64_t i;
    double f;
} d9di_jinja_token;

typedef D9D_VEC(d9di_jinja_token) d9di_jinja_tokens;

/* What compiling shares: the arena, names that occur. */
typedef struct d9di_jinja_source {
    const char *where;
    d9d_arena *arena;
    d9d_map names;
} d9di_jinja_source;

d9d_status d9di_jinja_lex(d9di_jinja_source *s, const char *text, size_t n, d9di_jinja_tokens *out);
/* The pointer that stands for a name; NULL: no memory. */
const char *d9di_jinja_intern(d9di_jinja_source *s, const char *name, size_t n);
/* Fails with this status, "WHERE: line N: " and the sentence. */
d9d_status d9di_jinja_fail_at(const d9di_jinja_source *s, d9d_status st, int line, const char *fmt,
                              ...) D9D_PRINTF(4, 5);

/* --- tree ------------------------------------------------------------------------------------- */

typedef enum d9di_jinja_node_kind {
    /* expressions */
    D9DI_JINJA_CONST,
    D9DI_JINJA_NAME,
    D9DI_JINJA_MAKE_LIST, /* list */
    D9DI_JINJA_MAKE_TUPLE,
    D9DI_JINJA_MAKE_DICT, /* list: key, value, key, ... */
    D9DI_JINJA_ATTR,      /* a.name */
    D9DI_JINJA_ITEM,      /* a[b] */
    D9DI_JINJA_SLICE,     /* a[list[0]:list[1]:list[2]], NULL where nothing is written */
    D9DI_JINJA_CALL,      /* a(list, kw, *c, **b) */
    D9DI_JINJA_FILTER,    /* a | builtin(list, kw, *c, **b); a NULL: text of a block */
    D9DI_JINJA_TEST,      /* a is builtin(list, kw, *c, **b) */
    D9DI_JINJA_UNARY,     /* op: '-', '+', '!' */
    D9DI_JINJA_BINARY,
    D9DI_JINJA_AND,
    D9DI_JINJA_OR,
    D9DI_JINJA_CONCAT,  /* list */
    D9DI_JINJA_COMPARE, /* a, and list[i] with ops[i] */
    D9DI_JINJA_COND,    /* a if b else c; c may be NULL */
    /* statements */
    D9DI_JINJA_BODY,         /* list */
    D9DI_JINJA_TEXT,         /* value */
    D9DI_JINJA_OUTPUT,       /* list */
    D9DI_JINJA_IF,           /* list: condition, body, condition, ...; b: else */
    D9DI_JINJA_FOR,          /* for target in a if b; c: else; body */
    D9DI_JINJA_SET,          /* target = a */
    D9DI_JINJA_SET_BLOCK,    /* target; body; a: its filters or NULL */
    D9DI_JINJA_FILTER_BLOCK, /* a: filters; body */
    D9DI_JINJA_WITH,         /* targets and values alternate in list; body */
    D9DI_JINJA_DEFINE_MACRO, /* name, params, body */
    D9DI_JINJA_CALL_BLOCK,   /* a: the call; params and body are those of `caller` */
    D9DI_JINJA_GENERATION,   /* body */
    D9DI_JINJA_BREAK,
    D9DI_JINJA_CONTINUE,
    /* targets */
    D9DI_JINJA_SET_ATTR, /* name.attr */
    D9DI_JINJA_NODE_KINDS
} d9di_jinja_node_kind;

typedef struct d9di_jinja_node d9di_jinja_node;
struct d9di_jinja_node {
    d9di_jinja_node_kind kind;
    int line, op;
    const char *name; /* interned */
    size_t name_n;
    const char *attr;
    size_t attr_n;
    d9di_jinja_value value;
    const d9di_jinja_builtin *builtin;
    d9di_jinja_node *a, *b, *c, *target, *body;
    d9di_jinja_node *outer; /* DEFINE_MACRO, CALL_BLOCK: the macro around it, or NULL */
    d9di_jinja_node **list; /* [n] */
    size_t n;
    char *ops;       /* COMPARE: [n] */
    const char **kw; /* [n_kw]: names of list[n ...]; DEFINE_MACRO: [n_kw] names of parameters */
    size_t n_kw;     /* DEFINE_MACRO: list[i] is the default of kw[i] or NULL */
    bool takes_rest; /* DEFINE_MACRO: `varargs` occurs */
    bool takes_keywords; /* `kwargs` occurs */
    bool takes_caller;   /* `caller` occurs */
    bool recursive;      /* FOR: `loop` can be called */
    bool captured;       /* FOR, WITH: a macro in the body keeps the variables */
};

struct d9d_jinja_template {
    const char *where;
    const d9di_jinja_node *body;
    const char *name_loop, *name_varargs, *name_kwargs, *name_caller; /* interned */
    bool generation;
    const char **words; /* [n_words] all names and strings of the tags */
    size_t n_words;
};

/* --- parser ----------------------------------------------------------------------------------- */

typedef struct d9di_jinja_parser {
    d9di_jinja_source *source;
    const d9di_jinja_token *t; /* the current token; T_END is never passed */
    int depth;
    int loops;              /* open loops of this macro or generation block */
    int all_loops;          /* open ones, with their targets and else */
    int branches;           /* open if statements */
    d9di_jinja_node *macro; /* the innermost one, or NULL */
    bool has_macro, generation;
} d9di_jinja_parser;

d9d_status d9di_jinja_parse(d9di_jinja_source *s, const d9di_jinja_token *tokens,
                            d9d_jinja_template *out);

/* Parts that both files of the parser use. */
d9d_status d9di_jinja_enter(d9di_jinja_parser *p); /* one level deeper; the caller does depth-- */
d9d_status d9di_jinja_new_node(d9di_jinja_parser *p, d9di_jinja_node_kind kind, int line,
                               d9di_jinja_node **out);
/* Copies children into the arena, and releases the vector. */
typedef D9D_VEC(d9di_jinja_node *) d9di_jinja_nodes;
d9d_status d9di_jinja_set_list(d9di_jinja_parser *p, d9di_jinja_node *n,
                               const d9di_jinja_nodes *from);
d9d_status d9di_jinja_copy_array(d9di_jinja_parser *p, const void *from, size_t n, size_t size,
                                 void *out);
bool d9di_jinja_at_op(const d9di_jinja_parser *p, int op);
bool d9di_jinja_at_name(const d9di_jinja_parser *p, const char *name);
bool d9di_jinja_skip_op(d9di_jinja_parser *p, int op);
bool d9di_jinja_skip_name(d9di_jinja_parser *p, const char *name);
d9d_status d9di_jinja_expect_op(d9di_jinja_parser *p, int op);
/* Fails at the current token: "expected X, found Y". */
void d9di_jinja_report_unexpected(const d9di_jinja_parser *p, const char *wanted);
static inline d9d_status d9di_jinja_unexpected(const d9di_jinja_parser *p, const char *wanted)
{
    d9di_jinja_report_unexpected(p, wanted);
    return D9D_EFORMAT;
}

d9d_status d9di_jinja_parse_expr(d9di_jinja_parser *p, d9di_jinja_node **out);
/* Without `x if y else z` at the outermost level. */
d9d_status d9di_jinja_parse_plain(d9di_jinja_parser *p, d9di_jinja_node **out);
/* An expression, or several with commas: a tuple.  plain: as above. */
d9d_status d9di_jinja_parse_tuple(d9di_jinja_parser *p, bool plain, d9di_jinja_node **out);
/* `name | filter | filter`, where p is at a "|" or, if `first`, at the name of a filter. */
d9d_status d9di_jinja_parse_filters(d9di_jinja_parser *p, bool first, d9di_jinja_node *of,
                                    d9di_jinja_node **out);

#endif
