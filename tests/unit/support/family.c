/* family.c - see family.h. */
#include "family.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "d9d/model/hf/hf_config.h"
#include "d9d/model/weights/random_weights.h"
#include "d9d/models/models.h"

enum { LONGEST = 4096 };

d9d_status family_parse(const json_t *doc, const char *where, bool inlined, d9d_arena *a,
                        d9d_family_config *c)
{
    const char *type = json_string_value(json_object_get(doc, "model_type"));
    const d9d_model_provider *p = type != NULL ? d9d_model_find(d9d_model_choices, type) : NULL;

    return p != NULL ? d9d_family_read(p->family, doc, where, inlined, a, c)
                     : D9D_FAIL(D9D_ENOTSUP, "%s: no family has this model_type", where);
}

d9d_status family_make(d9d_arena *a, d9d_family_config *c, const char *format, ...)
{
    char text[LONGEST];
    json_t *doc;
    d9d_status st;
    va_list args;
    int n;

    va_start(args, format);
    n = vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (n < 0 || n >= LONGEST)
        return D9D_FAIL(D9D_EINVAL, "a document of %d bytes is too long", n);
    D9D_TRY(d9d_json_parse("c", text, (size_t)n, &doc));
    st = family_parse(doc, "c", true, a, c);
    json_decref(doc);
    return st;
}

d9d_status family_read(const char *path, d9d_arena *a, d9d_family_config *c)
{
    const char *file, *beside;
    json_t *doc;
    d9d_status st;

    D9D_TRY(d9d_hf_config_locate(path, a, &file, &beside));
    D9D_TRY(d9d_hf_config_load(file, &doc));
    st = family_parse(doc, file, false, a, c);
    json_decref(doc);
    return st;
}

d9d_family_dims *family_dims(const d9d_family_config *c)
{
    return (d9d_family_dims *)(uintptr_t)c->dims;
}

d9d_status family_weights(const d9d_family_config *c, d9d_dtype t, uint64_t seed, d9d_arena *a,
                          struct d9d_random_weights **out)
{
    d9d_model_tensors *list = d9d_arena_alloc(a, sizeof(*list));

    if (list == NULL)
        return D9D_FAIL(D9D_ENOMEM, "a list of tensors");
    D9D_TRY(d9d_family_tensors(c, a, list));
    return d9d_random_weights_open(list, t, seed, out);
}
