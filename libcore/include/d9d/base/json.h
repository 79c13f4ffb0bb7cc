/* json.h - strict reading and plain writing of JSON, over Jansson.
 *
 * Reading refuses duplicate keys, comments, trailing text, nesting deeper than 64, and files over a
 * size that the caller names; the message has file, line and column.  Getters take the JSON path
 * for their messages, so a reader of a manifest is a list of calls:
 *
 *     D9D_TRY(d9d_json_read("manifest.json", 1 << 20, &root));
 *     st = d9d_json_get_i64(root, "manifest.json", "step", 0, INT64_MAX, &step);
 *
 * Writing appends to a d9d_buf, with one way to print each kind of value.
 */
#ifndef D9D_BASE_JSON_H
#define D9D_BASE_JSON_H

#include <jansson.h>
#include <stdint.h>

#include "d9d/base/mem.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { D9D_JSON_MAX_DEPTH = 64 };

/* Parse; *out is a new reference, which the caller frees with json_decref().  ENOTFOUND for an
 * absent file, EFORMAT for anything that is not one JSON value.  `name` replaces the path in
 * messages. */
D9D_API D9D_MUST_USE d9d_status d9d_json_read(const char *path, uint64_t max_bytes, json_t **out);
D9D_API D9D_MUST_USE d9d_status d9d_json_parse(const char *name, const char *text, size_t n,
                                               json_t **out);

/* Required members of an object.  `where` begins the message ("a/manifest.json", "a/manifest.json:
 * files[3]").  EFORMAT if absent, of another type or out of range.  Strings and children are
 * borrowed from `obj`. */
D9D_API D9D_MUST_USE d9d_status d9d_json_get_i64(const json_t *obj, const char *where,
                                                 const char *key, int64_t min, int64_t max,
                                                 int64_t *out);
D9D_API D9D_MUST_USE d9d_status d9d_json_get_f64(const json_t *obj, const char *where,
                                                 const char *key, double *out);
D9D_API D9D_MUST_USE d9d_status d9d_json_get_str(const json_t *obj, const char *where,
                                                 const char *key, const char **out);
D9D_API D9D_MUST_USE d9d_status d9d_json_get_bool(const json_t *obj, const char *where,
                                                  const char *key, int *out);
D9D_API D9D_MUST_USE d9d_status d9d_json_get_obj(const json_t *obj, const char *where,
                                                 const char *key, json_t **out);
D9D_API D9D_MUST_USE d9d_status d9d_json_get_arr(const json_t *obj, const char *where,
                                                 const char *key, json_t **out);

/* Check "schema": "d9d.<name>.v<major>".  Another name or major version is EFORMAT; the message
 * says which versions this build reads. */
D9D_API D9D_MUST_USE d9d_status d9d_json_check_schema(const json_t *obj, const char *where,
                                                      const char *name, int major);

/* A new JSON string for building a value.  Bytes that are not UTF-8, as in a file name, become
 * U+FFFD, one for the beginning of a character that does not end; Jansson's json_string() and the
 * "s" of json_pack() fail for them.  NULL gives null; returns NULL if memory is out. */
D9D_API json_t *d9d_json_str(const char *s);

/* Building a value with one check at the end: if memory is out, the whole becomes NULL and stays
 * NULL, and json_pack() and d9d_json_put() of NULL fail.  Takes over the reference `v`.
 *
 *     json_t *list = json_array();
 *
 *     for (size_t i = 0; i < n; i++)
 *         d9d_json_add(&list, json_integer(of[i]));
 *     return json_pack("{s:o}", "of", list);
 */
D9D_API void d9d_json_add(json_t **list, json_t *v);
D9D_API void d9d_json_set(json_t **obj, const char *key, json_t *v);

/* Redeclared so that the compiler warns if their result, -1 on failure, is ignored. */
D9D_MUST_USE int json_array_append_new(json_t *array, json_t *value);
D9D_MUST_USE int json_array_extend(json_t *array, json_t *other);
D9D_MUST_USE int json_object_set_new(json_t *object, const char *key, json_t *value);
D9D_MUST_USE int json_object_update(json_t *object, json_t *other);

/* Append a string with its quotes; a number; or a whole value with an indent (-1: on one line),
 * keys in their order.  A number has the shortest form that reads back to the same double; NaN and
 * infinities are null.  A real number stays one ("3.0"), and bytes that are not UTF-8 become
 * U+FFFD as above.  EINVAL if nested too deep.  A NULL value, Jansson's result when memory is out,
 * is ENOMEM. */
D9D_API D9D_MUST_USE d9d_status d9d_json_put_str(d9d_buf *b, const char *s, size_t n);
D9D_API D9D_MUST_USE d9d_status d9d_json_put_f64(d9d_buf *b, double v);
D9D_API D9D_MUST_USE d9d_status d9d_json_put(d9d_buf *b, const json_t *v, int indent);

/* --- documents with a checksum of their own ------------------------------------------ *
 *
 *     {
 *       "schema": "d9d.dataset.v1",
 *       ...
 *       "xxh3": "<32 hex digits>"      the XXH3-128 of all bytes before this line
 *     }
 *
 * A change of any byte is detected, also of members that no reader uses. */

/* Add that member to the text of an object, which must end in a line with its closing brace. */
D9D_API D9D_MUST_USE d9d_status d9d_json_checksum_append(d9d_buf *b);
/* EFORMAT if the checksum does not match the text. */
D9D_API D9D_MUST_USE d9d_status d9d_json_checksum_verify(const char *name, const char *text,
                                                         size_t n);

#ifdef __cplusplus
}
#endif
#endif /* D9D_BASE_JSON_H */
