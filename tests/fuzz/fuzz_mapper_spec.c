/* fuzz_mapper_spec.c - any text as a mapper description, for given tensors: matched, planned,
 * printed, run.
 *
 * The first line names the source's tensors, "a.0.w=F32:2,3 n=I64:4"; the rest is the description.
 * A plan that runs must read inside its tensors, and an output must have the same bytes whether it
 * is read whole or in halves. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/ckpt/mapper/mapper_spec.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_SOURCE = 64, MAX_BYTES = 1 << 20 };

static void must(bool holds)
{
    if (!holds)
        abort();
}

/* --- the source ------------------------------------------------------------------- */

struct source {
    d9d_safetensors_tensor t[MAX_SOURCE];
    size_t n;
};

static const d9d_safetensors_tensor *at(void *self, size_t i)
{
    return &((struct source *)self)->t[i];
}

static const char *place(void *self, size_t i)
{
    (void)self;
    (void)i;
    return "fuzz";
}

static d9d_status read_bytes(void *self, size_t i, uint64_t from, void *dst, uint64_t n)
{
    const d9d_safetensors_tensor *t = at(self, i);

    must(from <= t->bytes && n <= t->bytes - from);
    for (uint64_t k = 0; k < n; k++)
        ((unsigned char *)dst)[k] = (unsigned char)((from + k) * 7 + i * 31);
    return D9D_OK;
}

/* "name=F32:2,3": false where it is none. */
static bool add_tensor(struct source *s, char *word)
{
    d9d_safetensors_tensor t = {.name = word};
    char *equals = strrchr(word, '='), *colon = equals != NULL ? strchr(equals, ':') : NULL;
    int dtype;

    if (colon == NULL || equals == word || s->n == MAX_SOURCE)
        return false;
    *equals = *colon = '\0';
    dtype = d9d_dtype_find(equals + 1);
    for (char *p = colon; p == colon || *p == ',';) {
        if (t.ndim == D9D_MAX_DIMS)
            return false;
        t.shape[t.ndim++] = strtoll(p + 1, &p, 10);
        if (*p != ',' && *p != '\0')
            return false;
    }
    t.dtype = (d9d_dtype)dtype;
    if (dtype < 0 || !d9d_safetensors_shape_bytes(t.dtype, t.ndim, t.shape, &t.bytes))
        return false;
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->t[i].name, word) == 0)
            return false;
    s->t[s->n++] = t;
    return true;
}

static void read_source(struct source *s, char *line)
{
    for (char *word = strtok(line, " "); word != NULL; word = strtok(NULL, " "))
        (void)add_tensor(s, word);
}

/* --- the sink ---------------------------------------------------------------------------- */

struct sink {
    const d9d_safetensors_tensor *outputs;
};

static d9d_status begin(void *self, const d9d_safetensors_tensor *outputs, size_t n,
                        size_t *n_items, uint64_t *bytes)
{
    ((struct sink *)self)->outputs = outputs;
    *n_items = n;
    *bytes = 0;
    return D9D_OK;
}

static d9d_status fill(void *self, size_t i, d9d_map_reader *make)
{
    const d9d_safetensors_tensor *t = &((struct sink *)self)->outputs[i];
    uint64_t width = d9d_dtype_size(t->dtype), half = t->bytes / width / 2 * width;
    unsigned char *whole = malloc(t->bytes + 1), *halves = malloc(t->bytes + 1);

    must(whole != NULL && halves != NULL);
    must(t->bytes == 0 || d9d_map_read(make, i, 0, whole, t->bytes) == D9D_OK);
    must(half == 0 || d9d_map_read(make, i, 0, halves, half) == D9D_OK);
    must(half == t->bytes || d9d_map_read(make, i, half, halves + half, t->bytes - half) == D9D_OK);
    must(t->bytes == 0 || memcmp(whole, halves, t->bytes) == 0);
    free(whole);
    free(halves);
    return D9D_OK;
}

/* --- the whole ------------------------------------------------------------------------------ */

static void print(const d9d_map_plan *p)
{
    static const char *const formats[] = {"text", "json", "dot"};

    for (unsigned i = 0; i < 6; i++) {
        d9d_buf out = {0};
        d9d_status st = d9d_map_plan_print(p, formats[i % 3],
                                           i < 3 ? 0 : D9D_MAP_PLAN_ALL | D9D_MAP_PLAN_BOXES, &out);

        must(st == D9D_OK);
        if (i % 3 == 1) {
            json_t *doc = NULL;

            must(d9d_json_parse("plan", out.data, out.len, &doc) == D9D_OK);
            json_decref(doc);
        }
        d9d_buf_release(&out);
    }
}

static void run(const d9d_mapper *m, const d9d_tensor_source *src)
{
    struct sink into = {NULL};
    const d9d_tensor_sink sink = {&into, begin, fill};
    /* The source's numbers may be of any size. */
    const d9d_map_plan_opts opts = {.overflow = D9D_CAST_OVERFLOW_INF};
    d9d_map_plan *p;

    if (d9d_map_plan_create(m, src, &opts, &p) != D9D_OK)
        return;
    if (d9d_map_plan_bytes(p) <= MAX_BYTES && d9d_map_plan_output_count(p) <= 4096) {
        d9d_status st = d9d_map_plan_run(p, &sink, 1, NULL);

        must(st == D9D_OK);
        print(p);
    }
    d9d_map_plan_free(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = size > 0 ? memchr(data, '\n', size) : NULL;
    struct source from = {.n = 0};
    d9d_tensor_source src = {.self = &from, .at = at, .path = place, .read = read_bytes};
    d9d_mapper_spec *spec;
    d9d_mapper *m;
    char *line;

    if (end == NULL)
        return 0;
    line = strndup((const char *)data, (size_t)(end - data));
    must(line != NULL);
    read_source(&from, line);
    src.n = from.n;
    end++;
    if (d9d_mapper_spec_parse("fuzz", (const char *)end, size - (size_t)(end - data), &spec) ==
        D9D_OK) {
        if (d9d_mapper_spec_build(spec, &src, &m) == D9D_OK) {
            run(m, &src);
            d9d_mapper_free(m);
        }
        d9d_mapper_spec_free(spec);
    }
    free(line);
    return 0;
}
