/* spec_expect.c - checks the shapes that a description expects.  See d9d/ckpt/mapper/mapper_spec.h.
 *
 * The first size with no other unknown letter binds a letter; the value holds from there on. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/mapper/spec_match.h"
#include "ckpt/mapper/spec_tables.h"

struct size_letters {
    d9d_arena *a;
    d9d_map known; /* name to struct letter */
};

struct size_letter {
    int64_t value;
    const char *tensor; /* the tensor that bound it */
};

/* The product of a size's known factors, and its unknown letter. */
struct size_product {
    int64_t known;
    const char *unknown;
    size_t length;
};

/* Appends each letter with its size and the tensor that bound it: "with H = 64 (a.weight)". */
static void put_letters(const struct size_letters *l, d9d_buf *b)
{
    for (size_t i = 0; i < l->known.len; i++) {
        const struct size_letter *one = l->known.entries[i].value;

        if (d9d_buf_printf(b, "%s%s = %" PRId64 " (%s)", i == 0 ? " with " : ", ",
                           l->known.entries[i].key, one->value, one->tensor) != D9D_OK)
            return;
    }
}

static d9d_status fail_shape(const struct size_letters *l, const char *where,
                             const d9d_safetensors_tensor *t, const d9di_mapper_spec_shape *shape)
{
    char text[D9D_SAFETENSORS_DESCRIBE];
    d9d_buf b = {0};
    d9d_status st = d9d_buf_printf(&b, "[");

    for (int d = 0; d < shape->ndim && st == D9D_OK; d++)
        st = d9d_buf_printf(&b, "%s%s", d > 0 ? ", " : "", shape->size[d]);
    if (st == D9D_OK)
        st = d9d_buf_printf(&b, "]");
    put_letters(l, &b);
    if (st == D9D_OK)
        st = D9D_FAIL(D9D_EMISMATCH, "%s: tensor %s is %s, expected %s", where, t->name,
                      d9d_safetensors_describe(t, text), b.data);
    d9d_buf_release(&b);
    return st;
}

/* False if the product overflows. */
static bool parse_product(const struct size_letters *l, const char *size, struct size_product *out,
                          size_t *n_unknown)
{
    *out = (struct size_product){.known = 1};
    *n_unknown = 0;
    for (const char *s = size; *s != '\0'; s += *s == '*') {
        const size_t n = strcspn(s, "*");
        const struct size_letter *one = d9d_map_get(&l->known, s, n);
        int64_t value = one != NULL ? one->value : 1;

        if (*s >= '0' && *s <= '9') {
            value = strtoll(s, NULL, 10);
        } else if (one == NULL) {
            out->unknown = s;
            out->length = n;
            ++*n_unknown;
        }
        if (__builtin_mul_overflow(out->known, value, &out->known))
            return false;
        s += n;
    }
    return true;
}

static d9d_status check_size(struct size_letters *l, const char *where,
                             const d9d_safetensors_tensor *t, const d9di_mapper_spec_shape *shape,
                             int d)
{
    struct size_product p;
    struct size_letter *one;
    size_t n;

    if (!parse_product(l, shape->size[d], &p, &n))
        return fail_shape(l, where, t, shape);
    if (n > 1)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: \"%s\": %s has more than one letter that no shape before it defines",
                        where, shape->pattern, shape->size[d]);
    if (n == 0)
        return p.known == t->shape[d] ? D9D_OK : fail_shape(l, where, t, shape);
    if (p.known == 0 || t->shape[d] % p.known != 0)
        return fail_shape(l, where, t, shape);
    one = d9d_arena_alloc(l->a, sizeof(*one));
    if (one == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", where);
    *one = (struct size_letter){t->shape[d] / p.known, t->name};
    return d9d_map_put(&l->known, p.unknown, p.length, one);
}

static d9d_status check_tensor(struct size_letters *l, const char *where,
                               const d9d_safetensors_tensor *t, const d9di_mapper_spec_shape *shape)
{
    if (t->ndim != shape->ndim)
        return fail_shape(l, where, t, shape);
    for (int d = 0; d < shape->ndim; d++)
        D9D_TRY(check_size(l, where, t, shape, d));
    return D9D_OK;
}

static d9d_status check_shape_rule(struct size_letters *l, const char *where,
                                   const d9di_mapper_spec_shape *shape,
                                   const d9d_tensor_source *src, const d9d_map *names)
{
    const char *values[D9DI_MAX_CAPTURES];
    d9di_glob p;
    size_t length, found = 0;
    d9d_status st = D9D_OK;
    bool matches;

    D9D_TRY(d9di_glob_parse(shape->pattern, where, l->a, &p));
    D9D_TRY(d9di_glob_compile(&p, where, false));
    for (size_t i = 0; i < src->n; i++) {
        const d9d_safetensors_tensor *t = src->at(src->self, i);

        D9D_TRY_OR(st, d9di_glob_match(&p, t->name, l->a, values, &length, &matches), out);
        found += matches;
        if (matches)
            D9D_TRY_OR(st, check_tensor(l, where, t, shape), out);
    }
    if (found == 0)
        st = d9di_mapper_spec_fail_no_match(where, shape->pattern, names);
out:
    d9di_glob_release(&p);
    return st;
}

d9d_status d9di_mapper_spec_check_shapes(const d9d_mapper_spec *s, const d9d_tensor_source *src,
                                         const d9d_map *names)
{
    d9d_arena a = {0};
    struct size_letters l = {.a = &a};
    char *where = d9d_arena_printf(&a, "%s: expect", s->name);
    d9d_status st = where != NULL ? D9D_OK : D9D_FAIL(D9D_ENOMEM, "%s: out of memory", s->name);

    for (size_t i = 0; i < s->expect.n && st == D9D_OK; i++)
        st = check_shape_rule(&l, where, &s->expect.shape[i], src, names);
    d9d_map_release(&l.known);
    d9d_arena_release(&a);
    return st;
}
