/* values.c - own values of a run.  See d9d/track/values.h. */
#include "d9d/track/values.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/fs.h"
#include "d9d/device/readback.h"

enum { PNG_HEAD = 24, LINE_VALUES = 4096 }; /* scalars of a line, which readers limit to 1 MiB */

typedef enum value_kind { SCALAR, HISTOGRAM, TEXT, PICTURE } value_kind;

/* The newest value of a name; the name is the map's. */
typedef struct value_name {
    const char *text;
    int64_t step;
    uint64_t serial; /* of its entry */
} value_name;

typedef struct value_entry {
    value_kind kind;
    int64_t step;
    value_name *name; /* NULL: replaced by a later value of the step */
    double scalar;
    d9d_readback *pending; /* of the scalar or the counts; NULL: they are here */
    d9d_dtype dtype;
    size_t n;               /* bins, or bytes */
    double *counts, *edges; /* owned, as bytes */
    char *bytes;
} value_entry;

struct d9d_values {
    bool recorded;
    const char *dir;
    int64_t step;
    d9d_map names; /* to value_name in the arena */
    d9d_arena arena;
    D9D_VEC(value_entry) entries; /* in the order of their steps */
    uint64_t first_serial;        /* of entries.data[0] */
    D9D_VEC(const char *) line_names;
    D9D_VEC(double) line_values;
};

bool d9d_values_are_recorded(const d9d_values *v)
{
    return v != NULL && v->recorded;
}

d9d_status d9d_values_create(bool recorded, const char *dir, d9d_values **out)
{
    d9d_values *v = calloc(1, sizeof(*v));

    if (v == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: its own values", dir);
    v->recorded = recorded;
    v->dir = dir;
    *out = v;
    return D9D_OK;
}

static void entry_release(value_entry *e)
{
    d9d_readback_free(e->pending);
    free(e->counts);
    free(e->edges);
    free(e->bytes);
    *e = (value_entry){0};
}

void d9d_values_free(d9d_values *v)
{
    if (v == NULL)
        return;
    for (size_t i = 0; i < v->entries.len; i++)
        entry_release(&v->entries.data[i]);
    D9D_VEC_RELEASE(&v->entries);
    D9D_VEC_RELEASE(&v->line_names);
    D9D_VEC_RELEASE(&v->line_values);
    d9d_map_release(&v->names);
    d9d_arena_release(&v->arena);
    free(v);
}

void d9d_values_set_step(d9d_values *v, int64_t step)
{
    if (v != NULL)
        v->step = step;
}

/* --- recording -------------------------------------------------------------------------- */

/* Parts between slashes name directories of pictures, so that none may be empty, "." or "..". */
static bool is_name(const char *name)
{
    const size_t n = strlen(name);
    size_t parts = 0;

    if (n == 0 || n > D9D_VALUES_NAME_MAX)
        return false;
    for (const char *p = name;; p++) {
        const size_t len = strcspn(p, "/");

        if (len == 0 || (p[0] == '.' && (len == 1 || (len == 2 && p[1] == '.'))))
            return false;
        for (size_t i = 0; i < len; i++)
            if (p[i] < ' ' || p[i] > '~' || p[i] == '"' || p[i] == '\\')
                return false;
        parts++;
        p += len;
        if (*p == '\0')
            return parts > 1;
    }
}

static d9d_status check_name(const char *name)
{
    if (name != NULL && is_name(name))
        return D9D_OK;
    return D9D_FAIL(D9D_EINVAL,
                    "value \"%.200s\": a name is two or more parts with a slash between, such as "
                    "\"mine/entropy\", in at most %d bytes",
                    name != NULL ? name : "", D9D_VALUES_NAME_MAX);
}

static d9d_status find_name(d9d_values *v, const char *text, value_name **out)
{
    const size_t n = strlen(text);
    value_name *name = d9d_map_get(&v->names, text, n);

    if (name == NULL) {
        name = d9d_arena_alloc(&v->arena, sizeof(*name));
        if (name == NULL)
            return D9D_FAIL(D9D_ENOMEM, "value %s: its name", text);
        *name = (value_name){.text = d9d_arena_strdup(&v->arena, text), .step = -1};
        if (name->text == NULL)
            return D9D_FAIL(D9D_ENOMEM, "value %s: its name", text);
        D9D_TRY(d9d_map_put(&v->names, text, n, name));
    }
    *out = name;
    return D9D_OK;
}

/* Takes what the entry owns, also on failure. */
static d9d_status entry_take(d9d_values *v, const char *text, value_entry e)
{
    value_name *name = NULL;
    d9d_status st = find_name(v, text, &name);

    e.step = v->step;
    e.name = name;
    if (st == D9D_OK && name->step == v->step && name->serial >= v->first_serial)
        v->entries.data[name->serial - v->first_serial].name = NULL;
    if (st == D9D_OK && D9D_VEC_PUSH(&v->entries, e) != D9D_OK)
        st = D9D_FAIL(D9D_ENOMEM, "value %s: no memory for it", text);
    if (st != D9D_OK) {
        entry_release(&e);
        return st;
    }
    name->step = v->step;
    name->serial = v->first_serial + v->entries.len - 1;
    return D9D_OK;
}

d9d_status d9d_values_scalar(d9d_values *v, const char *name, double value)
{
    if (v == NULL)
        return D9D_OK;
    D9D_TRY(check_name(name));
    return v->recorded ? entry_take(v, name, (value_entry){.kind = SCALAR, .scalar = value})
                       : D9D_OK;
}

static d9d_status check_tensor(const char *name, const d9d_tensor *t, int64_t min, int64_t max)
{
    const int64_t n = d9d_tensor_numel(t);

    D9D_TRY(check_name(name));
    if (t->dtype != D9D_F32 && t->dtype != D9D_BF16)
        return D9D_FAIL(D9D_EINVAL, "value %s: a tensor of %s, not float32 or bfloat16", name,
                        d9d_dtype_name(t->dtype));
    if (n < min || n > max)
        return D9D_FAIL(D9D_EINVAL, "value %s: a tensor of %lld elements, not %lld to %lld", name,
                        (long long)n, (long long)min, (long long)max);
    return D9D_OK;
}

/* Takes what the entry owns, also on failure. */
static d9d_status tensor_take(d9d_values *v, const char *name, const d9d_tensor *t, value_entry e)
{
    d9d_status st = d9d_readback_create(d9d_tensor_device(t), d9d_tensor_bytes(t), &e.pending);

    e.dtype = t->dtype;
    if (st == D9D_OK)
        st = d9d_readback_enqueue(e.pending, d9d_tensor_data(t));
    if (st == D9D_OK)
        return entry_take(v, name, e);
    entry_release(&e);
    return st;
}

d9d_status d9d_values_scalar_tensor(d9d_values *v, const char *name, const d9d_tensor *value)
{
    if (v == NULL)
        return D9D_OK;
    D9D_TRY(check_tensor(name, value, 1, 1));
    return v->recorded ? tensor_take(v, name, value, (value_entry){.kind = SCALAR}) : D9D_OK;
}

static d9d_status check_edges(const char *name, const double *edges, size_t n)
{
    if (n < 1 || n > D9D_VALUES_BINS_MAX)
        return D9D_FAIL(D9D_EINVAL, "value %s: %zu bins, not 1 to %d", name, n,
                        D9D_VALUES_BINS_MAX);
    for (size_t i = 0; edges != NULL && i <= n; i++)
        if (!isfinite(edges[i]) || (i > 0 && edges[i] <= edges[i - 1]))
            return D9D_FAIL(D9D_EINVAL, "value %s: edge %zu is %g, after %g; edges ascend", name, i,
                            edges[i], i > 0 ? edges[i - 1] : (double)NAN);
    return D9D_OK;
}

/* A copy of the edges, or 0 to n, and room for the counts. */
static d9d_status bins_alloc(const char *name, const double *edges, size_t n, value_entry *e)
{
    e->kind = HISTOGRAM;
    e->n = n;
    e->edges = malloc((n + 1) * sizeof(double));
    e->counts = malloc(n * sizeof(double));
    if (e->edges == NULL || e->counts == NULL) {
        entry_release(e);
        return D9D_FAIL(D9D_ENOMEM, "value %s: %zu bins", name, n);
    }
    for (size_t i = 0; i <= n; i++)
        e->edges[i] = edges != NULL ? edges[i] : (double)i;
    return D9D_OK;
}

d9d_status d9d_values_histogram(d9d_values *v, const char *name, const double *counts,
                                const double *edges, size_t n)
{
    value_entry e = {0};

    if (v == NULL)
        return D9D_OK;
    D9D_TRY(check_name(name));
    D9D_TRY(check_edges(name, edges, n));
    if (!v->recorded)
        return D9D_OK;
    D9D_TRY(bins_alloc(name, edges, n, &e));
    memcpy(e.counts, counts, n * sizeof(double));
    return entry_take(v, name, e);
}

d9d_status d9d_values_histogram_tensor(d9d_values *v, const char *name, const d9d_tensor *counts,
                                       const double *edges)
{
    const size_t n = v != NULL ? (size_t)d9d_tensor_numel(counts) : 0;
    value_entry e = {0};

    if (v == NULL)
        return D9D_OK;
    D9D_TRY(check_tensor(name, counts, 1, D9D_VALUES_BINS_MAX));
    D9D_TRY(check_edges(name, edges, n));
    if (!v->recorded)
        return D9D_OK;
    D9D_TRY(bins_alloc(name, edges, n, &e));
    return tensor_take(v, name, counts, e);
}

/* Takes a copy. */
static d9d_status bytes_take(d9d_values *v, const char *name, value_kind kind, const void *bytes,
                             size_t n)
{
    value_entry e = {.kind = kind, .n = n, .bytes = v->recorded ? malloc(n + 1) : NULL};

    if (!v->recorded)
        return D9D_OK;
    if (e.bytes == NULL)
        return D9D_FAIL(D9D_ENOMEM, "value %s: %zu bytes", name, n);
    if (n > 0)
        memcpy(e.bytes, bytes, n);
    e.bytes[n] = '\0';
    return entry_take(v, name, e);
}

d9d_status d9d_values_text(d9d_values *v, const char *name, const char *text, size_t bytes)
{
    if (v == NULL)
        return D9D_OK;
    D9D_TRY(check_name(name));
    if (bytes > D9D_VALUES_TEXT_MAX)
        return D9D_FAIL(D9D_EINVAL, "value %s: a text of %zu bytes, more than %d", name, bytes,
                        D9D_VALUES_TEXT_MAX);
    return bytes_take(v, name, TEXT, text, bytes);
}

d9d_status d9d_values_picture(d9d_values *v, const char *name, const void *png, size_t bytes)
{
    static const char signature[] = "\x89PNG\r\n\x1a\n";

    if (v == NULL)
        return D9D_OK;
    D9D_TRY(check_name(name));
    if (bytes < PNG_HEAD || memcmp(png, signature, sizeof(signature) - 1) != 0)
        return D9D_FAIL(D9D_EINVAL, "value %s: %zu bytes that are no PNG image", name, bytes);
    return bytes_take(v, name, PICTURE, png, bytes);
}

/* --- writing ----------------------------------------------------------------------------- */

/* What was copied from the device is here. */
static d9d_status entry_receive(value_entry *e)
{
    const size_t n = e->kind == HISTOGRAM ? e->n : 1;
    const void *host;
    float *f;

    if (e->pending == NULL || e->name == NULL)
        return D9D_OK;
    D9D_TRY(d9d_readback_wait(e->pending, &host));
    f = malloc(n * sizeof(*f));
    if (f == NULL)
        return D9D_FAIL(D9D_ENOMEM, "value %s: %zu numbers", e->name->text, n);
    d9d_tensor_elements_to_f32(e->dtype, host, (int64_t)n, f);
    for (size_t i = 0; i < n; i++)
        *(e->kind == HISTOGRAM ? &e->counts[i] : &e->scalar) = (double)f[i];
    free(f);
    return D9D_OK;
}

static uint32_t big_endian(const char *bytes)
{
    const unsigned char *p = (const unsigned char *)bytes;

    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static d9d_status picture_write(const d9d_values *v, const value_entry *e, d9d_tracker *tracker,
                                const d9d_log *log)
{
    d9d_arena a = {0};
    const char *file =
        d9d_arena_printf(&a, "pictures/%s/step-%08lld.png", e->name->text, (long long)e->step);
    const char *path = file != NULL ? d9d_fs_join(&a, v->dir, file) : NULL;
    d9d_status st = path != NULL ? d9d_fs_make_parents(path)
                                 : D9D_FAIL(D9D_ENOMEM, "value %s: its path", e->name->text);

    if (st == D9D_OK)
        st = d9d_fs_write_atomic(path, e->bytes, e->n);
    if (st == D9D_OK)
        st = d9d_tracker_value(tracker, &(d9d_track_value){.kind = D9D_TRACK_PICTURE,
                                                           .name = e->name->text,
                                                           .step = e->step,
                                                           .file = file,
                                                           .bytes = e->bytes,
                                                           .n = e->n,
                                                           .width = big_endian(e->bytes + 16),
                                                           .height = big_endian(e->bytes + 20)});
    else if (st != D9D_ENOMEM) {
        d9d_log_warn(log, "value %s: %s; the picture is left out", e->name->text,
                     d9d_err_message());
        st = D9D_OK;
    }
    d9d_arena_release(&a);
    return st;
}

static d9d_status other_write(const d9d_values *v, const value_entry *e, d9d_tracker *tracker,
                              const d9d_log *log)
{
    if (e->kind == PICTURE)
        return picture_write(v, e, tracker, log);
    return d9d_tracker_value(
        tracker, &(d9d_track_value){.kind = e->kind == TEXT ? D9D_TRACK_TEXT : D9D_TRACK_HISTOGRAM,
                                    .name = e->name->text,
                                    .step = e->step,
                                    .bytes = e->bytes,
                                    .counts = e->counts,
                                    .edges = e->edges,
                                    .n = e->n});
}

static d9d_status scalars_write(d9d_values *v, int64_t step, d9d_tracker *tracker)
{
    const size_t n = v->line_names.len;

    v->line_names.len = v->line_values.len = 0;
    return n > 0 ? d9d_tracker_scalars(tracker, step, v->line_names.data, v->line_values.data, n)
                 : D9D_OK;
}

static d9d_status scalar_add(d9d_values *v, const value_entry *e)
{
    if (D9D_VEC_PUSH(&v->line_names, e->name->text) != D9D_OK ||
        D9D_VEC_PUSH(&v->line_values, e->scalar) != D9D_OK)
        return D9D_FAIL(D9D_ENOMEM, "value %s: its line", e->name->text);
    return D9D_OK;
}

/* Entries [from, to) of one step: scalars in as few lines as may be, then the others. */
static d9d_status step_write(d9d_values *v, size_t from, size_t to, d9d_tracker *tracker,
                             const d9d_log *log)
{
    const int64_t step = v->entries.data[from].step;

    for (size_t i = from; i < to; i++) {
        value_entry *e = &v->entries.data[i];

        D9D_TRY(entry_receive(e));
        if (e->name == NULL || e->kind != SCALAR)
            continue;
        D9D_TRY(scalar_add(v, e));
        if (v->line_names.len == LINE_VALUES)
            D9D_TRY(scalars_write(v, step, tracker));
    }
    D9D_TRY(scalars_write(v, step, tracker));
    for (size_t i = from; i < to; i++)
        if (v->entries.data[i].name != NULL && v->entries.data[i].kind != SCALAR)
            D9D_TRY(other_write(v, &v->entries.data[i], tracker, log));
    return D9D_OK;
}

static void entries_drop(d9d_values *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        entry_release(&v->entries.data[i]);
    v->entries.len -= n;
    v->first_serial += n;
    memmove(v->entries.data, v->entries.data + n, v->entries.len * sizeof(*v->entries.data));
}

d9d_status d9d_values_write(d9d_values *v, int64_t step, d9d_tracker *tracker, const d9d_log *log)
{
    size_t from = 0, to = 0;
    d9d_status st = D9D_OK;

    if (v == NULL || v->entries.len == 0)
        return D9D_OK;
    for (; from < v->entries.len && v->entries.data[from].step <= step && st == D9D_OK; from = to) {
        while (to < v->entries.len && v->entries.data[to].step == v->entries.data[from].step)
            to++;
        st = step_write(v, from, to, tracker, log);
    }
    entries_drop(v, from);
    return st;
}
