/* json.h - strict reading and plain writing of JSON, over Jansson.
 *
 * Reading refuses duplicate keys, comments, trailing text, nesting deeper than 64
 * and files over a size that the caller names; the sentence has file, line and
 * column.  Getters take the JSON path for their sentence, so a reader of a
 * manifest is a list of calls:
 *
 *     D9D_TRY(d9d_json_read("manifest.json", 1 << 20, &root));
 *     st = d9d_json_get_i64(root, "manifest.json", "step", 0, INT64_MAX, &step);
 *
 * Writing goes through d9d_buf: text, one way to print each kind of value.
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

/* Parse; *out is a new reference, to be given to json_decref().  ENOTFOUND for an
 * absent file, EFORMAT for anything that is not one JSON value. `name` stands in
 * for the path in sentences. */
D9D_API D9D_MUST_USE d9d_status d9d_json_read(const char *path, uint64_t max_bytes, json_t **out);
D9D_API D9D_MUST_USE d9d_status d9d_json_parse(const char *name, const char *text, size_t n,
                                               json_t **out);

/* Required members of an object.  `where` begins the sentence ("a/manifest.json",
 * "a/manifest.json: files[3]").  EFORMAT when absent, of another type or out of
 * range.  Strings and children are borrowed from `obj`. */
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

/* "schema": "d9d.<name>.v<major>"; another name or major is EFORMAT with a
 * sentence that says which versions this build reads. */
D9D_API D9D_MUST_USE d9d_status d9d_json_check_schema(const json_t *obj, const char *where,
                                                      const char *name, int major);

/* A string for a value that is put together: bytes that are not UTF-8, of a file's name for
 * instance, become U+FFFD, where Jansson's json_string() and the "s" of json_pack() give nothing at
 * all.  NULL for NULL is null; NULL when memory is out. */
D9D_API json_t *d9d_json_str(const char *s);

/* Values that are put together, checked once, at the end: where memory is out, the whole becomes
 * NULL and stays so, and json_pack() and d9d_json_put() of NULL fail.  `v` is taken.
 *
 *     json_t *list = json_array();
 *
 *     for (size_t i = 0; i < n; i++)
 *         d9d_json_add(&list, json_integer(of[i]));
 *     return json_pack("{s:o}", "of", list);
 */
D9D_API void d9d_json_add(json_t **list, json_t *v);
D9D_API void d9d_json_set(json_t **obj, const char *key, json_t *v);

/* Jansson's own say by -1 that a value is not there; the compiler names who does not look. */
D9D_MUST_USE int json_array_append_new(json_t *array, json_t *value);
D9D_MUST_USE int json_array_extend(json_t *array, json_t *other);
D9D_MUST_USE int json_object_set_new(json_t *object, const char *key, json_t *value);
D9D_MUST_USE int json_object_update(json_t *object, json_t *other);

/* Append a string with its quotes, a number in its shortest form that reads back
 * to the same double (NaN and infinities as null), a whole value with an indent
 * (-1: on one line) and keys in their order.  Bytes that are not UTF-8 become
 * U+FFFD; a real number stays one ("3.0").  EINVAL when nested too deep.  A value of NULL, which is
 * what Jansson gives when memory is out, is ENOMEM. */
D9D_API D9D_MUST_USE d9d_status d9d_json_put_str(d9d_buf *b, const char *s, size_t n);
D9D_API D9D_MUST_USE d9d_status d9d_json_put_f64(d9d_buf *b, double v);
D9D_API D9D_MUST_USE d9d_status d9d_json_put(d9d_buf *b, const json_t *v, int indent);

/* --- documents that know their own hash ----------------------------------- *
 *
 *     {
 *       "schema": "d9d.dataset.v1",
 *       ...
 *       "xxh3": "<32 hex digits>"      the XXH3-128 of all bytes before this line
 *     }
 *
 * so that a change of any byte is found, of those too that nobody reads. */

/* Add that member to the text of an object, which ends in a line with its brace. */
D9D_API D9D_MUST_USE d9d_status d9d_json_checksum_append(d9d_buf *b);
/* EFORMAT when a byte of the text is not as it was sealed. */
D9D_API D9D_MUST_USE d9d_status d9d_json_checksum_verify(const char *name, const char *text,
                                                         size_t n);

#ifdef __cplusplus
}
#endif
#endif /* D9D_BASE_JSON_H */
