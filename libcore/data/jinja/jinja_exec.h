/* jinja_exec.h - variables, loops and macros of a rendering; evaluation of the tree. */
#ifndef D9DI_DATA_JINJA_JINJA_EXEC_H
#define D9DI_DATA_JINJA_JINJA_EXEC_H

#include "data/jinja/jinja_ast.h"

/* Variables of the template, a loop's iteration, a macro's call, a block. */
typedef struct d9di_jinja_scope {
    struct d9di_jinja_scope *parent;
    struct d9di_jinja_variable {
        const char *name; /* interned */
        d9di_jinja_value value;
    } * list;
    size_t n, cap;
} d9di_jinja_scope;

d9d_status d9di_jinja_scope_set(d9di_jinja_run *r, d9di_jinja_scope *s, const char *name,
                                d9di_jinja_value v);

/* A loop that runs.  Its filter is applied when an item is wanted, as jinja2 does. */
typedef struct d9di_jinja_loop {
    const d9di_jinja_node *node;
    d9di_jinja_scope *outer;
    d9di_jinja_seq items;
    bool counted_rest;                  /* items are a list of what was left */
    bool completed;                     /* an iteration ran to its end */
    size_t at;                          /* of items, the next to look at */
    d9di_jinja_value before, now, next; /* UNSET: there is none; next: not looked for */
    int64_t index0;                     /* -1: not begun */
    int64_t length;                     /* -1: not counted */
    int64_t depth;                      /* 1, and more in calls of a recursive loop */
    d9di_jinja_value changed;           /* what loop.changed() had last; UNSET: nothing */
} d9di_jinja_loop;

/* Moves to the next item; *out false: there is none. */
d9d_status d9di_jinja_loop_next(d9di_jinja_run *r, d9di_jinja_loop *l, bool *out);
/* `loop.name` */
d9d_status d9di_jinja_loop_attr(d9di_jinja_run *r, d9di_jinja_loop *l, const char *name, size_t n,
                                d9di_jinja_value *out);

/* `loop(items)` of a recursive loop: what it writes of them. */
extern const d9di_jinja_builtin d9di_jinja_loop_call;

typedef struct d9di_jinja_macro {
    const d9di_jinja_node *node;
    d9di_jinja_scope *scope; /* where it is defined */
} d9di_jinja_macro;

d9d_status d9di_jinja_call_macro(const d9di_jinja_macro *m, d9di_jinja_call *c,
                                 d9di_jinja_value *out);

d9d_status d9di_jinja_eval(d9di_jinja_run *r, d9di_jinja_scope *s, const d9di_jinja_node *n,
                           d9di_jinja_value *out);
/* The call n with one more keyword argument, `caller`. */
d9d_status d9di_jinja_eval_call(d9di_jinja_run *r, d9di_jinja_scope *s, const d9di_jinja_node *n,
                                const d9di_jinja_value *caller, d9di_jinja_value *out);
/* Applies the filters of a block to its text. */
d9d_status d9di_jinja_eval_filters(d9di_jinja_run *r, d9di_jinja_scope *s, const d9di_jinja_node *n,
                                   const d9di_jinja_value *text, d9di_jinja_value *out);
/* Sets the names of a target; several are unpacked from v. */
d9d_status d9di_jinja_assign(d9di_jinja_run *r, d9di_jinja_scope *s, const d9di_jinja_node *target,
                             const d9di_jinja_value *v);

/* How a statement ended. */
typedef enum d9di_jinja_flow {
    D9DI_JINJA_GO_ON,
    D9DI_JINJA_LEAVE, /* break */
    D9DI_JINJA_AGAIN  /* continue */
} d9di_jinja_flow;

d9d_status d9di_jinja_exec(d9di_jinja_run *r, d9di_jinja_scope *s, const d9di_jinja_node *n,
                           d9di_jinja_flow *flow);

#endif
