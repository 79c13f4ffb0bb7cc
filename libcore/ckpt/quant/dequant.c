/* dequant.c - see d9d/ckpt/quant/dequant.h.  Finds by name what belongs together, and presents it.
 */
#include <stdlib.h>
#include <string.h>

#include "ckpt/quant/dequant_method.h"
#include "ckpt/quant/dequant_numbers.h"

enum { MAX_GAP = 2048 /* bytes between two runs that are cheaper to read than a second call */ };

/* A tensor that is presented. */
struct entry {
    size_t index;            /* in the source, unless it is decoded */
    d9di_dequant_item *item; /* NULL: as it is stored */
};

struct d9d_dequant {
    const d9di_dequant_method *method; /* NULL: none */
    d9d_quantization q;
    d9d_dtype to;
    d9d_tensor_source src;
    struct entry *entries;
    size_t n, n_items;
    d9d_map numbers; /* of the source's tensors: name to index, plus 1, as a pointer */
    d9d_map items;   /* by decoded name */
    d9d_arena arena;
};

static d9d_status no_memory(const d9d_dequant *d)
{
    return D9D_FAIL(D9D_ENOMEM, "decoding: no memory for records of %zu tensors", d->src.n);
}

/* --- what methods call ------------------------------------------------------------------------ */

d9d_status d9di_dequant_no_memory(const d9di_dequant_item *p)
{
    return D9D_FAIL(D9D_ENOMEM, "tensor %s: no memory to decode it", p->decoded.name);
}

d9d_status d9di_dequant_fail(const d9di_dequant_item *p, int place, const char *need)
{
    char a[D9D_SAFETENSORS_DESCRIBE], b[D9D_SAFETENSORS_DESCRIBE];
    const d9d_safetensors_tensor *v = d9di_dequant_stored(p, D9DI_DEQUANT_VALUES),
                                 *s = d9di_dequant_stored(p, place);

    return D9D_FAIL(D9D_EFORMAT, "%s: tensor %s is %s and %s is %s, which must be %s",
                    p->src->path(p->src->self, p->stored[D9DI_DEQUANT_VALUES]), v->name,
                    d9d_safetensors_describe(v, a), s->name, d9d_safetensors_describe(s, b), need);
}

d9d_status d9di_dequant_read(const d9di_dequant_item *p, int place, uint64_t at, void *dst,
                             uint64_t n)
{
    return p->src->read(p->src->self, p->stored[place], at, dst, n);
}

bool d9di_dequant_is_float(d9d_dtype type)
{
    return type == D9D_F32 || type == D9D_BF16 || type == D9D_F16;
}

d9d_status d9di_dequant_read_floats(const d9di_dequant_item *p, int place, uint64_t first,
                                    uint64_t n, float *out)
{
    const d9d_dtype type = d9di_dequant_stored(p, place)->dtype;
    const uint64_t width = d9d_dtype_size(type);
    unsigned char *raw = (unsigned char *)out + n * (sizeof(*out) - width); /* widened in place */
    const uint16_t *half = (const uint16_t *)(const void *)raw;

    D9D_TRY(d9di_dequant_read(p, place, first * width, raw, n * width));
    for (uint64_t i = 0; type != D9D_F32 && i < n; i++)
        out[i] = type == D9D_BF16      ? d9d_bf16_to_f32(half[i])
                 : type == D9D_F16     ? d9d_f16_to_f32(half[i])
                 : type == D9D_F8_E4M3 ? d9di_dequant_byte(type, raw[i])
                                       : d9di_dequant_e8m0(raw[i]);
    return D9D_OK;
}

void d9di_dequant_span_of_bits(const d9di_dequant_item *p, uint64_t first, uint64_t n, uint64_t *at,
                               uint64_t *bytes)
{
    const uint64_t per = 8 / (uint64_t)p->q->bits;

    *at = first / per;
    *bytes = (first + n - 1) / per + 1 - *at;
}

static bool is_one_call(const d9di_dequant_columns *c)
{
    return c->stride - c->n <= MAX_GAP;
}

uint64_t d9di_dequant_columns_bytes(const d9di_dequant_columns *c)
{
    return c->rows > 0 ? (uint64_t)(c->rows - 1) * (is_one_call(c) ? c->stride : c->n) + c->n : 0;
}

d9d_status d9di_dequant_read_columns(const d9di_dequant_item *p, int place,
                                     const d9di_dequant_columns *c, void *dst)
{
    unsigned char *to = dst;

    if (is_one_call(c)) {
        D9D_TRY(d9di_dequant_read(p, place, c->at, to, d9di_dequant_columns_bytes(c)));
        for (int64_t k = 1; c->stride > c->n && k < c->rows; k++)
            memmove(to + (uint64_t)k * c->n, to + (uint64_t)k * c->stride, c->n);
        return D9D_OK;
    }
    for (int64_t k = 0; k < c->rows; k++)
        D9D_TRY(d9di_dequant_read(p, place, c->at + (uint64_t)k * c->stride,
                                  to + (uint64_t)k * c->n, c->n));
    return D9D_OK;
}

/* --- names ------------------------------------------------------------------------------------ */

static bool has_suffix(const char *name, const char *suffix)
{
    const size_t n = strlen(name), k = strlen(suffix);

    return n > k && strcmp(name + n - k, suffix) == 0;
}

/* The source's index of the tensor whose name is this with another suffix; NONE: there is none. */
static d9d_status find_other(d9d_dequant *d, const char *name, const char *suffix,
                             const char *other, const char **full, size_t *out)
{
    const size_t n = strlen(name) - strlen(suffix);
    uintptr_t at;

    *full = d9d_arena_printf(&d->arena, "%.*s%s", (int)n, name, other);
    if (*full == NULL)
        return no_memory(d);
    at = (uintptr_t)d9d_map_get(&d->numbers, *full, strlen(*full));
    *out = at != 0 ? (size_t)at - 1 : D9DI_DEQUANT_NONE;
    return D9D_OK;
}

static d9d_status fail_missing(const d9d_dequant *d, size_t i, const char *other)
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

/* --- items ------------------------------------------------------------------------------------ */

static bool is_loaded(const d9d_safetensors_tensor *t)
{
    return t->bytes > 0 || t->ndim > 0;
}

/* Find what belongs to the values i, and whether all their headers are read. */
static d9d_status stored_find(d9d_dequant *d, size_t i, d9di_dequant_item *p, bool *loaded)
{
    const d9di_dequant_method *m = d->method;
    const char *other;

    *loaded = true;
    for (int k = 0; k < D9D_DEQUANT_MAX_STORED; k++)
        p->stored[k] = D9DI_DEQUANT_NONE;
    for (int k = 0; m->suffix[k] != NULL; k++) {
        D9D_TRY(find_other(d, d->src.at(d->src.self, i)->name, m->suffix[D9DI_DEQUANT_VALUES],
                           m->suffix[k], &other, &p->stored[k]));
        if (d9di_dequant_has(p, k))
            *loaded = *loaded && is_loaded(d9di_dequant_stored(p, k));
        else if ((m->optional >> k & 1) == 0)
            return fail_missing(d, i, other);
    }
    return D9D_OK;
}

/* Set the type and the shape of a decoded tensor. */
static d9d_status item_shape(d9d_dequant *d, d9di_dequant_item *p)
{
    p->decoded.dtype = d->to;
    p->decoded.offset = d9di_dequant_stored(p, D9DI_DEQUANT_VALUES)->offset;
    D9D_TRY(p->method->shape(p, &d->arena));
    return d9d_safetensors_shape_bytes(d->to, p->decoded.ndim, p->decoded.shape, &p->decoded.bytes)
               ? D9D_OK
               : d9di_dequant_fail(p, D9DI_DEQUANT_SCALES, "of numbers whose bytes can be counted");
}

/* Add the tensor of the values i under its plain name. */
static d9d_status item_add(d9d_dequant *d, size_t i)
{
    const d9di_dequant_method *m = d->method;
    const char *values = d->src.at(d->src.self, i)->name;
    const int n = (int)(strlen(values) - strlen(m->suffix[D9DI_DEQUANT_VALUES]));
    const char *name =
        d9d_arena_printf(&d->arena, "%.*s%s", n, values, m->decoded != NULL ? m->decoded : "");
    d9di_dequant_item *p = d9d_arena_alloc(&d->arena, sizeof(*p));
    bool loaded;

    if (p == NULL || name == NULL)
        return no_memory(d);
    if (strcmp(name, values) != 0 && d9d_map_has(&d->numbers, name, strlen(name)))
        return D9D_FAIL(D9D_EFORMAT, "%s: tensor %s is there, and quantised as %s too",
                        d->src.path(d->src.self, i), name, values);
    *p = (d9di_dequant_item){.src = &d->src,
                             .method = m,
                             .q = &d->q,
                             .block = {d->q.block[0], d->q.block[1]},
                             .decoded = {.name = name}};
    D9D_TRY(stored_find(d, i, p, &loaded));
    if (loaded)
        D9D_TRY(item_shape(d, p));
    d->entries[d->n++].item = p;
    d->n_items++;
    return d9d_map_put(&d->items, name, strlen(name), p);
}

/* The place of a tensor beside the values, by the longest suffix of its name; 0: it has none. */
static int place_of(const d9di_dequant_method *m, const char *name)
{
    size_t longest = 0;
    int place = 0;

    for (int k = D9DI_DEQUANT_SCALES; m->suffix[k] != NULL; k++)
        if (has_suffix(name, m->suffix[k]) && strlen(m->suffix[k]) > longest) {
            longest = strlen(m->suffix[k]);
            place = k;
        }
    return place;
}

/* Present tensor i of the source: decoded, as it is, or, if it belongs to another, not at all. */
static d9d_status tensor_add(d9d_dequant *d, size_t i)
{
    const d9d_safetensors_tensor *t = d->src.at(d->src.self, i);
    const d9di_dequant_method *m = d->method;
    const char *values = m->suffix[D9DI_DEQUANT_VALUES], *other;
    const int place = place_of(m, t->name);
    size_t k;

    if (is_hidden(m, t->name))
        return D9D_OK;
    if (place != 0) {
        D9D_TRY(find_other(d, t->name, m->suffix[place], values, &other, &k));
        return k != D9DI_DEQUANT_NONE ? D9D_OK : fail_missing(d, i, other);
    }
    if (has_suffix(t->name, values) || values[0] == '\0') {
        D9D_TRY(find_other(d, t->name, values, m->suffix[D9DI_DEQUANT_SCALES], &other, &k));
        if (k != D9DI_DEQUANT_NONE)
            return item_add(d, i);
        if ((m->is_values == NULL || m->is_values(t->dtype)) && is_loaded(t))
            return fail_missing(d, i, other);
    }
    d->entries[d->n++].index = i;
    return D9D_OK;
}

/* Does any tensor have the name of this method's scales? */
static bool has_scales(const d9d_dequant *d, const d9di_dequant_method *m)
{
    for (size_t i = 0; i < d->src.n; i++)
        if (has_suffix(d->src.at(d->src.self, i)->name, m->suffix[D9DI_DEQUANT_SCALES]))
            return true;
    return false;
}

/* The first of the methods that are configured alike whose names the tensors have. */
static void choose_names(d9d_dequant *d)
{
    for (const d9di_dequant_method *m = d->method; m->or_else != NULL; m = m->or_else)
        if (!has_scales(d, m) && has_scales(d, m->or_else))
            d->method = m->or_else;
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
    choose_names(d);
    for (size_t i = 0; i < d->src.n; i++)
        D9D_TRY(tensor_add(d, i));
    return D9D_OK;
}

/* Bits of a number that no byte cuts. */
static bool is_width(int bits)
{
    return bits == 2 || bits == 4 || bits == 8;
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
    if (d->method->span == d9di_dequant_span_of_bits && !is_width(q->bits)) {
        st = D9D_FAIL(D9D_EINVAL, "decoding: numbers of %d bits, must be 2, 4 or 8", q->bits);
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
    d9d_map_release(&d->items);
    d9d_arena_release(&d->arena);
    free(d);
}

size_t d9d_dequant_count(const d9d_dequant *d)
{
    return d->n_items;
}

size_t d9d_dequant_stored(const d9d_dequant *d, const char *name,
                          const char *stored[D9D_DEQUANT_MAX_STORED])
{
    const d9di_dequant_item *p = d9d_map_get(&d->items, name, strlen(name));
    size_t n = 0;

    for (int k = 0; p != NULL && k < D9D_DEQUANT_MAX_STORED; k++)
        if (d9di_dequant_has(p, k))
            stored[n++] = d9di_dequant_stored(p, k)->name;
    return n;
}

/* --- the source --------------------------------------------------------------------------------
 */

static const d9d_safetensors_tensor *decoded_at(void *self, size_t i)
{
    const d9d_dequant *d = self;
    const struct entry *e = &d->entries[i];

    return e->item != NULL ? &e->item->decoded : d->src.at(d->src.self, e->index);
}

static size_t stored_index(const d9d_dequant *d, size_t i)
{
    const struct entry *e = &d->entries[i];

    return e->item != NULL ? e->item->stored[D9DI_DEQUANT_VALUES] : e->index;
}

static const char *decoded_path(void *self, size_t i)
{
    const d9d_dequant *d = self;

    return d->src.path(d->src.self, stored_index(d, i));
}

static d9d_status decoded_read(void *self, size_t i, uint64_t at, void *dst, uint64_t n)
{
    const d9d_dequant *d = self;
    const d9di_dequant_item *p = d->entries[i].item;
    const uint64_t width = d9d_dtype_size(d->to);

    if (p == NULL)
        return d->src.read(d->src.self, d->entries[i].index, at, dst, n);
    if (at % width != 0 || n % width != 0 || at > p->decoded.bytes || n > p->decoded.bytes - at)
        return D9D_FAIL(D9D_EINVAL,
                        "tensor %s: %llu bytes at %llu, decoded it has %llu of %llu each",
                        p->decoded.name, (unsigned long long)n, (unsigned long long)at,
                        (unsigned long long)p->decoded.bytes, (unsigned long long)width);
    return n > 0 ? p->method->read(p, at / width, n / width, dst) : D9D_OK;
}

static void decoded_prefetch(void *self, size_t i, uint64_t at, uint64_t n)
{
    const d9d_dequant *d = self;
    const d9di_dequant_item *p = d->entries[i].item;
    const uint64_t width = d9d_dtype_size(d->to);
    uint64_t bytes;

    if (p != NULL && n >= width)
        p->method->span(p, at / width, n / width, &at, &bytes);
    else
        bytes = n;
    d->src.prefetch(d->src.self, stored_index(d, i), at, bytes);
}

static void decoded_fingerprint(void *self, d9d_hasher *h)
{
    const d9d_dequant *d = self;
    const int64_t as[] = {(int64_t)d->q.method, d->q.block[0], d->q.block[1], d->q.bits,
                          d->q.zeros_less,      (int64_t)d->to};

    d9d_hasher_add(h, as, sizeof(as));
    d->src.fingerprint(d->src.self, h);
}

/* Is tensor i of the source a bias of a quantised matrix? */
static d9d_status find_bias(d9d_dequant *d, size_t i, bool *out)
{
    static const char bias[] = ".bias";
    const char *name = d->src.at(d->src.self, i)->name, *other;
    size_t values;

    *out = false;
    if (!has_suffix(name, bias))
        return D9D_OK;
    D9D_TRY(find_other(d, name, bias, d->method->suffix[D9DI_DEQUANT_VALUES], &other, &values));
    *out = values != D9DI_DEQUANT_NONE;
    return D9D_OK;
}

/* auto_gptq gave each matrix a bias, which is zero where the model has none. */
static d9d_status decoded_is_spare(void *self, size_t i, bool *out)
{
    d9d_dequant *d = self;
    const size_t at = d->entries[i].index;
    const d9d_safetensors_tensor *t = d->src.at(d->src.self, at);
    unsigned char bytes[4096];

    *out = false;
    if (d->entries[i].item != NULL || !is_loaded(t))
        return D9D_OK;
    D9D_TRY(find_bias(d, at, out));
    for (uint64_t done = 0, n; *out && done < t->bytes; done += n) {
        n = t->bytes - done < sizeof(bytes) ? t->bytes - done : sizeof(bytes);
        D9D_TRY(d->src.read(d->src.self, at, done, bytes, n));
        for (uint64_t k = 0; k < n; k++)
            *out = *out && bytes[k] == 0;
    }
    return D9D_OK;
}

d9d_tensor_source d9d_dequant_source(d9d_dequant *d)
{
    return (d9d_tensor_source){.self = d,
                               .n = d->n,
                               .at = decoded_at,
                               .path = decoded_path,
                               .read = decoded_read,
                               .is_spare = decoded_is_spare,
                               .prefetch = d->src.prefetch != NULL ? decoded_prefetch : NULL,
                               .fingerprint =
                                   d->src.fingerprint != NULL ? decoded_fingerprint : NULL};
}
