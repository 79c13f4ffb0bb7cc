/* config.h - key tables: one table is the parser, the defaults, the help and the schema of a
 * configuration struct.
 *
 *     struct batching { int64_t global_batch_size, microbatch_size; };
 *
 *     static const d9d_key batching_keys[] = {
 *         D9D_KEY_INT(struct batching, global_batch_size, D9D_REQUIRED, 1, INT64_MAX,
 *                     "samples that one optimizer step takes"),
 *         D9D_KEY_INT(struct batching, microbatch_size, "1", 1, INT64_MAX,
 *                     "samples in one forward and backward pass"),
 *         D9D_KEY_END,
 *     };
 *     const d9d_table batching_table = D9D_TABLE(struct batching, "batching", batching_keys,
 *                                                "how samples make a step");
 *
 *     struct batching b;
 *     D9D_TRY(d9d_config_bind(&batching_table, json, "config.json", &log, &arena, &b));
 *
 * Binding is strict.  An unknown key, a wrong type, a value out of range, a missing required key or
 * a union without its discriminator is D9D_ECONFIG.  The message has the JSON path and, for unknown
 * keys and enum words, the nearest right one:
 *
 *     config.json: trainer.batching.global_batchsize: unknown key; did you mean
 *     "global_batch_size"?
 *
 * Defaults are JSON text and go through the same checks.  Members that a macro does not set follow
 * the doc line: `"where to", .flags = D9D_NULLABLE`.  A key that has been renamed
 * says `.former = "old_name"` for one version: the old name is bound as the new one, with a line in
 * the log, and an object that has both is D9D_ECONFIG.  A table may contain itself through a list,
 * a union or a nullable key; nesting stops at 64.
 *
 * A tool reads a document, applies --set, resolves it, and binds the result.  One walk does both,
 * so what resolves also binds.
 */
#ifndef D9D_CONFIG_CONFIG_H
#define D9D_CONFIG_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "d9d/base/json.h"
#include "d9d/base/log.h"
#include "d9d/base/mem.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The C type of each kind; "null:" is the value that null becomes if the key is D9D_NULLABLE.
 * [min, max] bounds numbers, and the values of a map. */
typedef enum d9d_key_kind {
    D9D_KIND_BOOL,  /* bool; never null */
    D9D_KIND_INT,   /* int64_t; null: D9D_INT_NULL */
    D9D_KIND_REAL,  /* double; null: NaN */
    D9D_KIND_STR,   /* const char *, in the arena; min and max bound the bytes, max 0: any;
                       null: NULL */
    D9D_KIND_ENUM,  /* int: index into `names`; null: -1 */
    D9D_KIND_TABLE, /* an embedded struct of `table`; D9D_NULLABLE: a pointer to one */
    D9D_KIND_UNION, /* d9d_union: one of `choices`, selected by the key `names[0]`; null: which is
                       -1 */
    D9D_KIND_LIST,  /* d9d_list of `elem`; min and max bound n, max 0: any; null: empty */
    D9D_KIND_STR_INT_MAP, /* d9d_str_int_map: object of integers, order kept; null: empty */
    D9D_KIND_JSON,        /* json_t *, borrowed from the document; NULL where the key is not
                             given (its default shows in the resolved document only) */
    D9D_KIND_CUSTOM       /* read by `custom`, null too */
} d9d_key_kind;

#define D9D_INT_NULL INT64_MIN

typedef struct d9d_key d9d_key;
typedef struct d9d_table d9d_table;

typedef struct d9d_list {
    void *items; /* n elements of the element's C type, in the arena */
    size_t n;
} d9d_list;

typedef struct d9d_union {
    int which;                       /* index into choices */
    void *value;                     /* struct of that choice's table, in the arena */
    const d9d_table *choice;         /* the table */
    const d9d_table *const *choices; /* all choices; ends with NULL */
} d9d_union;

typedef struct d9d_str_int_map {
    const char **names;
    int64_t *values;
    size_t n;
} d9d_str_int_map;

/* A kind of its own for values that the generic ones cannot describe, such as a step period (a
 * number or a word). */
typedef struct d9d_key_custom {
    /* Read `v` into `field`.  `path` is the whole JSON path for error messages. */
    d9d_status (*parse)(const json_t *v, const char *path, d9d_arena *a, void *field);
    const char *schema; /* JSON text of its schema, without the description */
    size_t size;        /* of the field */
} d9d_key_custom;

struct d9d_key {
    const char *name; /* NULL ends the table */
    d9d_key_kind kind;
    unsigned flags;
    size_t offset;   /* of the field; D9D_NO_FIELD: checked, then dropped */
    const char *def; /* JSON text, or D9D_REQUIRED */
    double min, max;
    const char *const *names;        /* ENUM words, or the UNION's discriminator; NULL-ended */
    const d9d_table *table;          /* TABLE */
    const d9d_table *const *choices; /* UNION; each table's `name` is its word; NULL-ended */
    const d9d_key *elem;             /* LIST; its name, offset and default are ignored */
    const d9d_key_custom *custom;
    const char *doc;    /* one line */
    const char *former; /* the key's name until the last version, which is still accepted, and said
                           in the log; NULL: it had no other */
};

struct d9d_table {
    const char *name; /* in the schema's title, or the union's word */
    size_t size;      /* of the C struct */
    const d9d_key *keys;
    const char *doc;
    /* Checks across keys, after binding; NULL when there are none.  Fails with
     * D9D_ECONFIG and a sentence that begins with `path`. */
    d9d_status (*check)(const void *value, const char *path);
    /* What the struct configures, for a choice of a union: a d9d_model_provider,
     * d9d_optimizer_kind, ...  Code that has bound the union uses `choice->row`.  NULL: nothing. */
    const void *row;
    /* sizeof(d9d_table) and sizeof(d9d_key) where this table was compiled; D9D_TABLE sets them.  A
     * plugin may have been built when they were smaller (d9d/tasks/plugin.h).  0: the current
     * sizes. */
    struct {
        uint32_t table, key;
    } bytes;
    const d9d_key *others; /* schema of keys with other names, which are checked and dropped; NULL:
                              other keys are errors */
};

enum {
    D9D_NULLABLE = 1,  /* null is a value */
    D9D_NO_EFFECT = 2, /* accepted and checked for compatibility; binding logs that it has no
                          effect, when given; resolving does not add it */
    D9D_ABOVE_MIN = 4, /* REAL: min itself is out of range */
    D9D_BELOW_MAX = 8, /* REAL: max itself is out of range */
    D9D_OR_ONE = 16,   /* LIST: a value that is not a list is the only element */
    D9D_FLOAT32 = 32,  /* REAL: used as float32; rounding must not make it 0, infinite, or a bound
                          that is out of range */
    D9D_NULL_DEFAULT = 64, /* null is as if the key were left out: its default */
};

#define D9D_REQUIRED ((const char *)0)
#define D9D_NO_FIELD SIZE_MAX
#define D9D_KEY_END                                                                                \
    {                                                                                              \
        .name = NULL                                                                               \
    }
#define D9D_KEY_BOOL(S, f, d, ...)                                                                 \
    {                                                                                              \
        .name = #f, .kind = D9D_KIND_BOOL, .offset = offsetof(S, f), .def = (d),                   \
        .doc = __VA_ARGS__                                                                         \
    }
#define D9D_KEY_INT(S, f, d, lo, hi, ...)                                                          \
    {                                                                                              \
        .name = #f, .kind = D9D_KIND_INT, .offset = offsetof(S, f), .def = (d),                    \
        .min = (double)(lo), .max = (double)(hi), .doc = __VA_ARGS__                               \
    }
#define D9D_KEY_REAL(S, f, d, lo, hi, ...)                                                         \
    {                                                                                              \
        .name = #f, .kind = D9D_KIND_REAL, .offset = offsetof(S, f), .def = (d), .min = (lo),      \
        .max = (hi), .doc = __VA_ARGS__                                                            \
    }
#define D9D_KEY_STR(S, f, d, ...)                                                                  \
    {                                                                                              \
        .name = #f, .kind = D9D_KIND_STR, .offset = offsetof(S, f), .def = (d), .doc = __VA_ARGS__ \
    }
#define D9D_KEY_ENUM(S, f, d, w, ...)                                                              \
    {                                                                                              \
        .name = #f, .kind = D9D_KIND_ENUM, .offset = offsetof(S, f), .def = (d), .names = (w),     \
        .doc = __VA_ARGS__                                                                         \
    }
#define D9D_KEY_TABLE(S, f, t, ...)                                                                \
    {                                                                                              \
        .name = #f, .kind = D9D_KIND_TABLE, .offset = offsetof(S, f), .def = "{}", .table = (t),   \
        .doc = __VA_ARGS__                                                                         \
    }
#define D9D_KEY_UNION(S, f, d, tag, cs, ...)                                                       \
    {                                                                                              \
        .name = #f, .kind = D9D_KIND_UNION, .offset = offsetof(S, f), .def = (d), .names = (tag),  \
        .choices = (cs), .doc = __VA_ARGS__                                                        \
    }
#define D9D_KEY_LIST(S, f, d, e, ...)                                                              \
    {                                                                                              \
        .name = #f, .kind = D9D_KIND_LIST, .offset = offsetof(S, f), .def = (d), .elem = (e),      \
        .doc = __VA_ARGS__                                                                         \
    }
#define D9D_KEY_MAP(S, f, d, lo, hi, ...)                                                          \
    {                                                                                              \
        .name = #f, .kind = D9D_KIND_STR_INT_MAP, .offset = offsetof(S, f), .def = (d),            \
        .min = (double)(lo), .max = (double)(hi), .doc = __VA_ARGS__                               \
    }
#define D9D_KEY_JSON(S, f, d, ...)                                                                 \
    {                                                                                              \
        .name = #f, .kind = D9D_KIND_JSON, .offset = offsetof(S, f), .def = (d),                   \
        .doc = __VA_ARGS__                                                                         \
    }
#define D9D_KEY_CUSTOM(S, f, d, c, ...)                                                            \
    {                                                                                              \
        .name = #f, .kind = D9D_KIND_CUSTOM, .offset = offsetof(S, f), .def = (d), .custom = (c),  \
        .doc = __VA_ARGS__                                                                         \
    }
#define D9D_TABLE(S, n, k, ...)                                                                    \
    {                                                                                              \
        .name = (n), .size = sizeof(S), .keys = (k),                                               \
        .bytes = {sizeof(d9d_table), sizeof(d9d_key)}, .doc = __VA_ARGS__                          \
    }

/* Fill *out (table->size bytes) from `doc`.  Strings and nested structs are in the arena; json_t
 * fields are borrowed from `doc`.  `where` begins every message; `log` gets a line for keys without
 * effect and of former names.  ECONFIG; *out is then undefined. */
D9D_API D9D_MUST_USE d9d_status d9d_config_bind(const d9d_table *table, const json_t *doc,
                                                const char *where, const d9d_log *log, d9d_arena *a,
                                                void *out);

/* Apply "a.b.c=VALUE": VALUE is JSON, or a bare word taken as a string.  A number or a boolean for
 * a key of `table` (NULL: none) that is a string is its text: run.dir=2026.  Missing objects on the
 * path are created, also in place of a null, and lists where a bracket follows.  A list element is
 * named by its number, phases.0.steps or phases[0].steps; the number after the last appends.
 * ECONFIG. */
D9D_API D9D_MUST_USE d9d_status d9d_config_set(const d9d_table *table, json_t *doc,
                                               const char *assignment);

/* The document with every default filled in, keys in the table's order and by the names that they
 * have now, checked as binding checks it; a new reference that shares unchanged values with `doc`.
 * `log`, or NULL, hears of former names, of which what is resolved has none. */
D9D_API D9D_MUST_USE d9d_status d9d_config_resolve(const d9d_table *table, const json_t *doc,
                                                   const char *where, const d9d_log *log,
                                                   json_t **out);

/* JSON Schema (2020-12) of a table, with titles, descriptions, defaults and ranges;
 * the text ends with a newline.  `id` is the schema's name, such as "d9d.train.v1".
 * Every table below the root is one entry of "$defs".  A former name is a property that is
 * "deprecated". */
D9D_API D9D_MUST_USE d9d_status d9d_config_schema(const d9d_table *table, const char *id,
                                                  d9d_buf *out);

/* Copy a table and all below it to the arena, in this library's layout, with more choices: a union
 * that has `choices` gets those of `more` after them; both lists end in NULL.  What one table bound
 * has the same meaning in the other.  `n` may be 0.  ECONFIG for an invalid table: one without
 * keys, a key without a member that its kind needs, or a field beyond the end of the struct.
 */
typedef struct d9d_config_extension {
    const d9d_table *const *choices;
    const d9d_table *const *more;
} d9d_config_extension;
D9D_API D9D_MUST_USE d9d_status d9d_config_extend(const d9d_table *table,
                                                  const d9d_config_extension *more, size_t n,
                                                  d9d_arena *a, d9d_table **out);

/* The key of a table whose name is the first `len` characters of `name`, or NULL. */
D9D_API const d9d_key *d9d_config_find_key(const d9d_table *table, const char *name, size_t len);

/* The nearest of `words` (NULL-ended) to `given`, the first of equals, for "did you mean": the one
 * that goes on with '_' behind it, else the one that takes the fewest changes.  NULL if more than a
 * third of the longer one would have to change.  A change is a letter added, dropped,
 * replaced or swapped with the next; case is ignored. */
D9D_API const char *d9d_config_did_you_mean(const char *given, const char *const *words);

#ifdef __cplusplus
}
#endif
#endif /* D9D_CONFIG_CONFIG_H */
