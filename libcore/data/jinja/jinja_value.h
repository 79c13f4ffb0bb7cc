/* jinja_value.h - the values of a template: immutable but for namespaces, in the arena of a
 * rendering. */
#ifndef D9DI_DATA_JINJA_JINJA_VALUE_H
#define D9DI_DATA_JINJA_JINJA_VALUE_H

#include "d9d/base/mem.h"

typedef struct d9di_jinja_run d9di_jinja_run;

typedef enum d9di_jinja_kind {
    D9DI_JINJA_UNSET, /* no value: an argument that is not given, a variable without one */
    D9DI_JINJA_UNDEFINED,
    D9DI_JINJA_NONE,
    D9DI_JINJA_BOOL,
    D9DI_JINJA_INT,
    D9DI_JINJA_FLOAT,
    D9DI_JINJA_STRING,
    D9DI_JINJA_LIST,
    D9DI_JINJA_TUPLE,
    D9DI_JINJA_RANGE,
    D9DI_JINJA_VIEW,      /* dict.keys(), .values(), .items() */
    D9DI_JINJA_GENERATOR, /* what map, select and others return: can be iterated once */
    D9DI_JINJA_DICT,
    D9DI_JINJA_NAMESPACE,
    D9DI_JINJA_LOOP,
    D9DI_JINJA_MACRO,
    D9DI_JINJA_FUNCTION,
    D9DI_JINJA_METHOD,
    D9DI_JINJA_KINDS /* the number of kinds */
} d9di_jinja_kind;

/* Why a value is undefined. */
typedef enum d9di_jinja_missing {
    D9DI_JINJA_NO_VARIABLE,
    D9DI_JINJA_NO_ATTRIBUTE,
    D9DI_JINJA_NO_ITEM, /* text says of what */
    D9DI_JINJA_NO_ELSE,
    D9DI_JINJA_NO_ARGUMENT,
    D9DI_JINJA_NOT_SAFE /* a method that changes its object */
} d9di_jinja_missing;

typedef struct d9di_jinja_seq d9di_jinja_seq;
typedef struct d9di_jinja_dict d9di_jinja_dict;

typedef struct d9di_jinja_value {
    d9di_jinja_kind kind;
    uint8_t missing; /* d9di_jinja_missing of UNDEFINED */
    bool markup;     /* of STRING: `safe`, so that + escapes the other operand */
    union {
        bool b;
        int64_t i;
        double f;
        struct {
            const char *text; /* STRING; UNDEFINED: the name */
            size_t n;
        };
        d9di_jinja_seq *seq;   /* LIST to GENERATOR */
        d9di_jinja_dict *dict; /* DICT, NAMESPACE */
        struct d9di_jinja_loop *loop;
        const struct d9di_jinja_macro *macro;
        const struct d9di_jinja_builtin *function;
        const struct d9di_jinja_method *method;
    };
} d9di_jinja_value;

struct d9di_jinja_seq {
    d9di_jinja_value *items;
    size_t n, cap;
    const char *name;    /* VIEW: "dict_items" and so on */
    int64_t start, step; /* RANGE; it ends at `stop` */
    int64_t stop;
    bool spent; /* GENERATOR */
};

/* Members in order of insertion. */
struct d9di_jinja_dict {
    d9di_jinja_value *keys, *values;
    size_t n, cap;
    size_t item; /* its index in opts->items, + 1; 0: it is not of them */
};

/* --- constructors ----------------------------------------------------------------------------- */

static inline d9di_jinja_value d9di_jinja_none(void)
{
    return (d9di_jinja_value){.kind = D9DI_JINJA_NONE};
}

static inline d9di_jinja_value d9di_jinja_bool(bool b)
{
    return (d9di_jinja_value){.kind = D9DI_JINJA_BOOL, .b = b};
}

static inline d9di_jinja_value d9di_jinja_int(int64_t i)
{
    return (d9di_jinja_value){.kind = D9DI_JINJA_INT, .i = i};
}

static inline d9di_jinja_value d9di_jinja_float(double f)
{
    return (d9di_jinja_value){.kind = D9DI_JINJA_FLOAT, .f = f};
}

/* The bytes are borrowed. */
static inline d9di_jinja_value d9di_jinja_str(const char *text, size_t n)
{
    return (d9di_jinja_value){.kind = D9DI_JINJA_STRING, .text = text, .n = n};
}

static inline d9di_jinja_value d9di_jinja_undefined(d9di_jinja_missing why, const char *name,
                                                    size_t n)
{
    return (d9di_jinja_value){
        .kind = D9DI_JINJA_UNDEFINED, .missing = (uint8_t)why, .text = name, .n = n};
}

/* An empty LIST, TUPLE or GENERATOR with room for n items; append adds one. */
d9d_status d9di_jinja_seq_new(d9di_jinja_run *r, d9di_jinja_kind kind, size_t n,
                              d9di_jinja_value *out);
d9d_status d9di_jinja_seq_append(d9di_jinja_run *r, d9di_jinja_seq *s, d9di_jinja_value v);
d9d_status d9di_jinja_pair(d9di_jinja_run *r, d9di_jinja_value a, d9di_jinja_value b,
                           d9di_jinja_value *out);

/* An empty DICT or NAMESPACE; put replaces or adds a member.  EFORMAT if the key is not hashable.
 */
d9d_status d9di_jinja_dict_new(d9di_jinja_run *r, d9di_jinja_kind kind, d9di_jinja_value *out);
d9d_status d9di_jinja_dict_put(d9di_jinja_run *r, d9di_jinja_dict *d, d9di_jinja_value key,
                               d9di_jinja_value v);
/* NULL: no such member. */
const d9di_jinja_value *d9di_jinja_dict_find(d9di_jinja_run *r, const d9di_jinja_dict *d,
                                             const d9di_jinja_value *key);
const d9di_jinja_value *d9di_jinja_dict_get(d9di_jinja_run *r, const d9di_jinja_dict *d,
                                            const char *key);

/* --- what Python says of values --------------------------------------------------------------- */

/* The type's name in messages: "str", "int". */
const char *d9di_jinja_type(const d9di_jinja_value *v);
bool d9di_jinja_is_number(const d9di_jinja_value *v);  /* bool, int, float */
bool d9di_jinja_is_integer(const d9di_jinja_value *v); /* bool, int */
bool d9di_jinja_is_hashable(const d9di_jinja_value *v);
/* Of a bool or an int; of those or a float. */
int64_t d9di_jinja_as_int(const d9di_jinja_value *v);
double d9di_jinja_as_double(const d9di_jinja_value *v);
bool d9di_jinja_is(const d9di_jinja_value *v, const char *text); /* this string */

bool d9di_jinja_truth(const d9di_jinja_value *v);
d9d_status d9di_jinja_equal(d9di_jinja_run *r, const d9di_jinja_value *a, const d9di_jinja_value *b,
                            bool *out);
/* *out < 0, 0, > 0; NaN is equal to all. */
d9d_status d9di_jinja_order(d9di_jinja_run *r, const d9di_jinja_value *a, const d9di_jinja_value *b,
                            int *out);
/* The items that a loop over v sees.  A generator is spent by this. */
d9d_status d9di_jinja_iterate(d9di_jinja_run *r, const d9di_jinja_value *v, d9di_jinja_seq *out);
/* What an iteration of v took but the first n items is there for the next one, if v is a generator.
 */
void d9di_jinja_give_back(const d9di_jinja_value *v, const d9di_jinja_seq *taken, size_t n);
/* len(v) */
d9d_status d9di_jinja_length(d9di_jinja_run *r, const d9di_jinja_value *v, size_t *out);
/* `a in b` */
d9d_status d9di_jinja_contains(d9di_jinja_run *r, const d9di_jinja_value *a,
                               const d9di_jinja_value *b, bool *out);

/* Stable merge sort of `seq` by keys[i], and the keys with it. */
d9d_status d9di_jinja_sort(d9di_jinja_run *r, d9di_jinja_value *keys, d9di_jinja_value *items,
                           size_t n, bool reverse);

#endif
