/* dequant.c - see d9d/ckpt/quant/dequant.h.  Finds the pairs by name, and presents them. */
#include <stdlib.h>
#include <string.h>

#include "ckpt/quant/dequant_method.h"

/* A tensor that is presented. */
struct entry {
    size_t index;            /* in the source, unless it is decoded */
    d9di_dequant_pair *pair; /* NULL: as it is stored */
};

struct d9d_dequant {
    const d9di_dequant_method *method; /* NULL: none */
    d9d_quantization q;
    d9d_dtype to;
    d9d_tensor_source src;
    struct entry *entries;
    size_t n, n_pairs;
    d9d_map numbers; /* of the source's tensors: name to index, plus 1, as a pointer */
    d9d_map pairs;   /* decoded name to its pair */
    d9d_arena arena;
};

static d9d_status no_memory(const d9d_dequant *d)
{
    return D9D_FAIL(D9D_ENOMEM, "decoding: no memory for records of %zu tensors", d->src.n);
}

d9d_status d9di_dequant_fail_pair(const d9di_dequant_pair *p, const char *need)
{
    char a[D9D_SAFETENSORS_DESCRIBE], b[D9D_SAFETENSORS_DESCRIBE];
    const d9d_safetensors_tensor *v = d9di_dequant_values(p), *s = d9di_dequant_scales(p);

    return D9D_FAIL(D9D_EFORMAT, "%s: tensor %s is %s and %s is %s, which must be %s",
                    p->src->path(p->src->self, p->values), v->name, d9d_safetensors_describe(v, a),
                    s->name, d9d_safetensors_describe(s, b), need);
}

d9d_status d9di_dequant_read_scales(const d9di_dequant_pair *p, uint64_t first, uint64_t n,
                                    float *out)
{
    const d9d_safetensors_tensor *s = d9di_dequant_scales(p);
    const uint64_t width = d9d_dtype_size(s->dtype);
    const uint16_t *half = (const uint16_t *)out + n; /* bfloat16 is widened in place */

    D9D_TRY(p->src->read(p->src->self, p->scales, first * width,
                         s->dtype == D9D_F32 ? (void *)out : (uint16_t *)out + n, n * width));
    for (uint64_t i = 0; s->dtype == D9D_BF16 && i < n; i++)
        out[i] = d9d_bf16_to_f32(half[i]);
    return D9D_OK;
}

/* --- names ------------------------------------------------------------------------------------ */

static bool has_suffix(const char *name, const char *suffix)
{
    const size_t n = strlen(name), k = strlen(suffix);

    return n > k && strcmp(name + n - k, suffix) == 0;
}

/* The source's index of the tensor whose name is this with another suffix; src.n: none. */
static d9d_status find_other(d9d_dequant *d, const char *name, const char *suffix,
                             const char *other, const char **full, size_t *out)
{
    const size_t n = strlen(name) - strlen(suffix);
    uintptr_t at;

    *full = d9d_arena_printf(&d->arena, "%.*s%s", (int)n, name, other);
    if (*full == NULL)
        return no_memory(d);
    at = (uintptr_t)d9d_map_get(&d->numbers, *full, strlen(*full));
    *out = at != 0 ? (size_t)at - 1 : d->src.n;
    return D9D_OK;
}

static d9d_status fail_half(const d9d_dequant *d, size_t i, const char *other)
{
    return D9D_FAIL(D9D_EFORMAT, "%s: tensor %s is quantised (%s), and %s is not there",
                    d->src.path(d->src.self, i), d->src.at(d->src.self, i)->name, d->method->name,
                    other);
}

static bool is_hidden(const d9di_dequant_method *m, const char *name)
{
    for (const char *const *s = m->hidden; s != NULL && *s != NULL; s++)
        if (has_suffix(name, *s))
            return true;
    return false;
}

/* --- pairs ------------------------------------------------------------------------------------ */

static bool is_loaded(const d9d_safetensors_tensor *t)
{
    return t->bytes > 0 || t->ndim > 0;
}

/* Add the pair of values i and scales k under its plain name. */
static d9d_status pair_add(d9d_dequant *d, size_t i, size_t k)
{
    const d9d_safetensors_tensor *v = d->src.at(d->src.self, i), *s = d->src.at(d->src.self, k);
    const size_t n = strlen(v->name) - strlen(d->method->values);
    d9di_dequant_pair *p = d9d_arena_alloc(&d->arena, sizeof(*p));
    const char *name = d9d_arena_strndup(&d->arena, v->name, n);

    if (p == NULL || name == NULL)
        return no_memory(d);
    if (n < strlen(v->name) && d9d_map_has(&d->numbers, name, n))
        return D9D_FAIL(D9D_EFORMAT, "%s: tensor %s is there, and quantised as %s too",
                        d->src.path(d->src.self, i), name, v->name);
    *p = (d9di_dequant_pair){.src = &d->src,
                             .values = i,
                             .scales = k,
                             .block = {d->q.block[0], d->q.block[1]},
                             .decoded = {.name = name}};
    if (is_loaded(v) && is_loaded(s)) {
        p->decoded.dtype = d->to;
        p->decoded.offset = v->offset;
        D9D_TRY(d->method->shape(p));
        if (!d9d_safetensors_shape_bytes(d->to, p->decoded.ndim, p->decoded.shape,
                                         &p->decoded.bytes))
            return d9di_dequant_fail_pair(p, "of numbers whose bytes can be counted");
    }
    d->entries[d->n++].pair = p;
    d->n_pairs++;
    return d9d_map_put(&d->pairs, name, n, p);
}

/* Present tensor i of the source: decoded, as it is, or, if it is scales, not at all. */
static d9d_status tensor_add(d9d_dequant *d, size_t i)
{
    const d9d_safetensors_tensor *t = d->src.at(d->src.self, i);
    const d9di_dequant_method *m = d->method;
    const char *other;
    size_t k;

    if (has_suffix(t->name, m->scales)) {
        D9D_TRY(find_other(d, t->name, m->scales, m->values, &other, &k));
        return k < d->src.n ? D9D_OK : fail_half(d, i, other);
    }
    if (has_suffix(t->name, m->values) || m->values[0] == '\0') {
        D9D_TRY(find_other(d, t->name, m->values, m->scales, &other, &k));
        if (k < d->src.n)
            return pair_add(d, i, k);
        if (m->is_values(t->dtype) && is_loaded(t))
            return fail_half(d, i, other);
    }
    if (!is_hidden(m, t->name))
        d->entries[d->n++].index = i;
    return D9D_OK;
}

static d9d_status tensors_add(d9d_dequant *d)
{
    d->entries = d9d_arena_alloc(&d->arena, (d->src.n + 1) * sizeof(*d->entries));
    if (d->entries == NULL)
        return no_memory(d);
    for (size_t i = 0; i < d->src.n; i++) {
        const char *name = d->src.at(d->src.self, i)->name;

        D9D_TRY(d9d_map_put(&d->numbers, name, strlen(name), (void *)(uintptr_t)(i + 1)));
    }
    for (size_t i = 0; i < d->src.n; i++)
        D9D_TRY(tensor_add(d, i));
    return D9D_OK;
}

d9d_status d9d_dequant_create(const d9d_quantization *q, d9d_dtype to, const d9d_tensor_source *src,
                              d9d_dequant **out)
{
    d9d_dequant *d = calloc(1, sizeof(*d));
    d9d_status st;

    if (d == NULL)
        return D9D_FAIL(D9D_ENOMEM, "decoding: out of memory");
    if (to != D9D_F32 && to != D9D_BF16) {
        st = D9D_FAIL(D9D_EINVAL, "decoding: to %s, must be float32 or bfloat16",
                      d9d_dtype_name(to));
        goto out;
    }
    d->method = d9di_dequant_method_of(q->method);
    d->q = *q;
    d->to = to;
    d->src = *src;
    if (d->method == NULL) {
        st = D9D_FAIL(D9D_EINVAL, "decoding: without a method");
        goto out;
    }
    D9D_TRY_OR(st, tensors_add(d), out);
    *out = d;
    d = NULL;
out:
    d9d_dequant_free(d);
    return st;
}

void d9d_dequant_free(d9d_dequant *d)
{
    if (d == NULL)
        return;
    d9d_map_release(&d->numbers);
    d9d_map_release(&d->pairs);
    d9d_arena_release(&d->arena);
    free(d);
}

size_t d9d_dequant_count(const d9d_dequant *d)
{
    return d->n_pairs;
}

bool d9d_dequant_stored(const d9d_dequant *d, const char *name, const char *stored[2])
{
    const d9di_dequant_pair *p = d9d_map_get(&d->pairs, name, strlen(name));

    if (p == NULL)
        return false;
    stored[0] = d9di_dequant_values(p)->name;
    stored[1] = d9di_dequant_scales(p)->name;
    return true;
}

/* --- the source --------------------------------------------------------------------------------
 */

static const d9d_safetensors_tensor *decoded_at(void *self, size_t i)
{
    const d9d_dequant *d = self;
    const struct entry *e = &d->entries[i];

    return e->pair != NULL ? &e->pair->decoded : d->src.at(d->src.self, e->index);
}

static size_t stored_index(const d9d_dequant *d, size_t i)
{
    const struct entry *e = &d->entries[i];

    return e->pair != NULL ? e->pair->values : e->index;
}

static const char *decoded_path(void *self, size_t i)
{
    const d9d_dequant *d = self;

    return d->src.path(d->src.self, stored_index(d, i));
}

static d9d_status decoded_read(void *self, size_t i, uint64_t at, void *dst, uint64_t n)
{
    const d9d_dequant *d = self;
    const d9di_dequant_pair *p = d->entries[i].pair;
    const uint64_t width = d9d_dtype_size(d->to);

    if (p == NULL)
        return d->src.read(d->src.self, d->entries[i].index, at, dst, n);
    if (at % width != 0 || n % width != 0 || at > p->decoded.bytes || n > p->decoded.bytes - at)
        return D9D_FAIL(D9D_EINVAL,
                        "tensor %s: %llu bytes at %llu, decoded it has %llu of %llu each",
                        p->decoded.name, (unsigned long long)n, (unsigned long long)at,
                        (unsigned long long)p->decoded.bytes, (unsigned long long)width);
    return n > 0 ? d->method->read(p, at / width, n / width, dst) : D9D_OK;
}

static void decoded_prefetch(void *self, size_t i, uint64_t at, uint64_t n)
{
    const d9d_dequant *d = self;
    const d9di_dequant_pair *p = d->entries[i].pair;
    const uint64_t width = d9d_dtype_size(d->to);
    uint64_t bytes;

    if (p != NULL && n >= width)
        d->method->span(p, at / width, n / width, &at, &bytes);
    else
        bytes = n;
    d->src.prefetch(d->src.self, stored_index(d, i), at, bytes);
}

static void decoded_fingerprint(void *self, d9d_hasher *h)
{
    const d9d_dequant *d = self;
    const int64_t as[] = {(int64_t)d->q.method, d->q.block[0], d->q.block[1], (int64_t)d->to};

    d9d_hasher_add(h, as, sizeof(as));
    d->src.fingerprint(d->src.self, h);
}

d9d_tensor_source d9d_dequant_source(d9d_dequant *d)
{
    return (d9d_tensor_source){.self = d,
                               .n = d->n,
                               .at = decoded_at,
                               .path = decoded_path,
                               .read = decoded_read,
                               .prefetch = d->src.prefetch != NULL ? decoded_prefetch : NULL,
                               .fingerprint =
                                   d->src.fingerprint != NULL ? decoded_fingerprint : NULL};
}
