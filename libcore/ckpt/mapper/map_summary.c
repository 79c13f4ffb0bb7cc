/* map_summary.c - the summary format of a plan: groups whose names differ only by numbers are one
 * entry.
 *
 *     48 x stack(0), transpose(1, 2)                                  9.66 GB
 *       < model.layers.{0-47}.mlp.experts.{0-127}.up_proj.weight      6144 x BF16 [768, 2048]
 *       > model.layers.{0-47}.mlp.grouped_experts.up_proj.weight        48 x BF16 [128, 2048, 768]
 *
 * A group's signature is its operations and, for each run of similar tensors, the name without
 * numbers, the dtype and the shape.  Groups with one signature are one entry, in the order of the
 * first. */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "ckpt/mapper/map_print.h"
#include "d9d/base/num_format.h"

enum { MAX_NUMBERS = 8, MAX_RUNS = 4, WIDEST = 88 };

/* Tensors whose names differ only by numbers. */
struct summary_row {
    char mark; /* '<' or '>' */
    const d9d_safetensors_tensor *first;
    uint64_t count;
    D9D_VEC(uint64_t) numbers[MAX_NUMBERS]; /* numbers of all names, by position in the name */
    d9d_map files;                          /* of inputs */
    const char *name;                       /* shown name */
};

struct entry {
    const char *operations;
    uint64_t groups, read, written;
    size_t first_row, n_rows;
};

struct d9di_map_summary {
    d9d_map signatures; /* index of the entry, plus 1 */
    D9D_VEC(struct entry) entries;
    D9D_VEC(struct summary_row) rows;
    d9d_buf signature, operations;
};

void d9di_map_summary_free(struct d9di_map_summary *b)
{
    if (b == NULL)
        return;
    for (size_t i = 0; i < b->rows.len; i++) {
        for (int k = 0; k < MAX_NUMBERS; k++)
            D9D_VEC_RELEASE(&b->rows.data[i].numbers[k]);
        d9d_map_release(&b->rows.data[i].files);
    }
    D9D_VEC_RELEASE(&b->rows);
    D9D_VEC_RELEASE(&b->entries);
    d9d_map_release(&b->signatures);
    d9d_buf_release(&b->signature);
    d9d_buf_release(&b->operations);
    free(b);
}

static d9d_status summary_begin(d9di_map_print *x)
{
    x->summary = calloc(1, sizeof(*x->summary));
    return x->summary != NULL ? D9D_OK : D9D_FAIL(D9D_ENOMEM, "plan: out of memory");
}

/* --- names and their numbers --------------------------------------------------------- */

/* Parses the number at s, of *n digits; false if there is none or it is too long. */
static bool read_number(const char *s, size_t *n, uint64_t *out)
{
    *n = strspn(s, "0123456789");
    if (*n == 0 || *n > 18)
        return false;
    *out = strtoull(s, NULL, 10);
    return true;
}

/* Appends the name with # for its first MAX_NUMBERS numbers, and adds the numbers to `summary_row`
 * unless it is NULL. */
static d9d_status put_name_pattern(const char *name, d9d_buf *b, struct summary_row *summary_row)
{
    uint64_t value;
    size_t n;
    int k = 0;

    for (const char *s = name; *s != '\0'; s += n) {
        if (k < MAX_NUMBERS && read_number(s, &n, &value)) {
            if (summary_row != NULL)
                D9D_TRY(D9D_VEC_PUSH(&summary_row->numbers[k], value));
            k++;
            D9D_TRY(b != NULL ? d9d_buf_printf(b, "#") : D9D_OK);
            continue;
        }
        n = n > 0 && isdigit((unsigned char)*s) ? strspn(s, "0123456789")
                                                : strcspn(s, "0123456789");
        D9D_TRY(b != NULL ? d9d_buf_append(b, s, n) : D9D_OK);
    }
    return D9D_OK;
}

static d9d_status put_tensor(d9d_buf *b, const d9d_safetensors_tensor *t)
{
    char text[D9D_SAFETENSORS_DESCRIBE];

    D9D_TRY(put_name_pattern(t->name, b, NULL));
    return d9d_buf_printf(b, " %s", d9d_safetensors_describe(t, text));
}

static bool same_layout(const d9d_safetensors_tensor *a, const d9d_safetensors_tensor *b)
{
    const char *x = a->name, *y = b->name;

    if (a->dtype != b->dtype || a->ndim != b->ndim ||
        memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof(*a->shape)) != 0)
        return false;
    while (*x != '\0' && (*x == *y || (isdigit((unsigned char)*x) && isdigit((unsigned char)*y)))) {
        size_t n = strspn(x, "0123456789"), k = strspn(y, "0123456789");

        x += n > 0 ? n : 1;
        y += k > 0 ? k : 1;
    }
    return *x == *y;
}

/* --- groups ------------------------------------------------------------------------------ */

/* Tensor i of a group: its inputs, then its outputs. */
static const d9d_safetensors_tensor *tensor_at(const d9d_map_plan *p, const d9di_map_print_group *g,
                                               size_t i)
{
    return i < g->n_inputs ? d9di_map_print_input(p, g->inputs[i])
                           : &p->outputs[g->outputs[i - g->n_inputs]];
}

static bool starts_run(const d9d_map_plan *p, const d9di_map_print_group *g, size_t i)
{
    return i == 0 || i == g->n_inputs || !same_layout(tensor_at(p, g, i - 1), tensor_at(p, g, i));
}

static d9d_status put_signature(d9di_map_print *x, const d9di_map_print_group *g)
{
    struct d9di_map_summary *b = x->summary;

    b->signature.len = b->operations.len = 0;
    D9D_TRY(d9di_map_print_operations(x->p, g, &b->operations));
    D9D_TRY(d9d_buf_append(&b->signature, b->operations.data, b->operations.len));
    for (size_t i = 0; i < g->n_inputs + g->n_outputs; i++)
        if (starts_run(x->p, g, i)) {
            D9D_TRY(d9d_buf_printf(&b->signature, "\n%c", i < g->n_inputs ? '<' : '>'));
            D9D_TRY(put_tensor(&b->signature, tensor_at(x->p, g, i)));
        }
    return D9D_OK;
}

static d9d_status add_entry(d9di_map_print *x, const d9di_map_print_group *g, size_t *out)
{
    struct d9di_map_summary *b = x->summary;
    struct entry e = {.first_row = b->rows.len};

    e.operations = d9d_arena_strndup(&x->arena, b->operations.data, b->operations.len);
    if (e.operations == NULL)
        return D9D_FAIL(D9D_ENOMEM, "plan: out of memory");
    for (size_t i = 0; i < g->n_inputs + g->n_outputs; i++)
        if (starts_run(x->p, g, i)) {
            struct summary_row r = {.mark = i < g->n_inputs ? '<' : '>',
                                    .first = tensor_at(x->p, g, i)};

            D9D_TRY(D9D_VEC_PUSH(&b->rows, r));
        }
    e.n_rows = b->rows.len - e.first_row;
    *out = b->entries.len;
    D9D_TRY(d9d_map_put(&b->signatures, b->signature.data, b->signature.len,
                        (void *)(b->entries.len + 1)));
    return D9D_VEC_PUSH(&b->entries, e);
}

static d9d_status add_to_row(d9di_map_print *x, const d9di_map_print_group *g, size_t i,
                             struct summary_row *r)
{
    const char *file;

    r->count++;
    D9D_TRY(put_name_pattern(tensor_at(x->p, g, i)->name, NULL, r));
    if (i >= g->n_inputs)
        return D9D_OK;
    file = d9di_map_print_path(x->p, g->inputs[i]);
    return d9d_map_has(&r->files, file, strlen(file))
               ? D9D_OK
               : d9d_map_put(&r->files, file, strlen(file), NULL);
}

static d9d_status summary_group(d9di_map_print *x, const d9di_map_print_group *g)
{
    struct d9di_map_summary *b = x->summary;
    struct entry *e;
    size_t at, summary_row;

    D9D_TRY(put_signature(x, g));
    at = (size_t)(uintptr_t)d9d_map_get(&b->signatures, b->signature.data, b->signature.len);
    if (at == 0)
        D9D_TRY(add_entry(x, g, &at));
    else
        at--;
    e = &b->entries.data[at];
    e->groups++;
    e->read += g->read;
    e->written += g->written;
    summary_row = e->first_row;
    for (size_t i = 0; i < g->n_inputs + g->n_outputs; i++) {
        summary_row += i > 0 && starts_run(x->p, g, i);
        D9D_TRY(add_to_row(x, g, i, &b->rows.data[summary_row]));
    }
    return D9D_OK;
}

/* --- printing ---------------------------------------------------------------------------- */

static int compare_numbers(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* "7", "{0-47}", "{0,2,4-9}" */
static d9d_status put_numbers(d9d_buf *b, uint64_t *v, size_t n)
{
    size_t end;
    int runs = 0;

    qsort(v, n, sizeof(*v), compare_numbers);
    if (v[0] == v[n - 1])
        return d9d_buf_printf(b, "%" PRIu64, v[0]);
    for (size_t i = 0; i < n && runs < MAX_RUNS; i = end, runs++) {
        for (end = i + 1; end < n && v[end] - v[end - 1] <= 1; end++)
            ;
        D9D_TRY(d9d_buf_printf(b, "%s%" PRIu64, runs > 0 ? "," : "{", v[i]));
        if (v[end - 1] != v[i])
            D9D_TRY(d9d_buf_printf(b, "-%" PRIu64, v[end - 1]));
        if (end < n && runs == MAX_RUNS - 1)
            D9D_TRY(d9d_buf_printf(b, ",..."));
    }
    return d9d_buf_printf(b, "}");
}

static d9d_status name_row(struct summary_row *r, d9d_arena *a)
{
    d9d_buf b = {0};
    d9d_status st = d9d_buf_append(&b, "", 0);
    uint64_t value;
    size_t n;
    int k = 0;

    for (const char *s = r->first->name; *s != '\0' && st == D9D_OK; s += n) {
        if (k < MAX_NUMBERS && read_number(s, &n, &value)) {
            st = put_numbers(&b, r->numbers[k].data, r->numbers[k].len);
            k++;
            continue;
        }
        n = isdigit((unsigned char)*s) ? strspn(s, "0123456789") : strcspn(s, "0123456789");
        st = d9d_buf_append(&b, s, n);
    }
    if (st == D9D_OK) {
        r->name = d9d_arena_strndup(a, b.len > 0 ? b.data : "", b.len);
        st = r->name != NULL ? D9D_OK : D9D_FAIL(D9D_ENOMEM, "plan: out of memory");
    }
    d9d_buf_release(&b);
    return st;
}

static const char *format_bytes(uint64_t bytes, char out[24])
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
    double v = (double)bytes;
    int i = 0;

    for (; v >= 1000 && i < 6; i++)
        v /= 1000;
    (void)d9d_num_format(out, 24,
                         i == 0 || v >= 100 ? "%.0f %s"
                         : v >= 10          ? "%.1f %s"
                                            : "%.2f %s",
                         v, units[i]);
    return out;
}

/* Prints the location of a row's tensors: "model.safetensors at 1234", "3 files". */
static d9d_status put_path(d9di_map_print *x, const struct summary_row *r)
{
    if (r->files.len == 0 || r->files.entries[0].key_len == 0)
        return D9D_OK;
    if (r->files.len > 1)
        return d9d_buf_printf(x->out, "  %zu file%s", r->files.len, D9D_PLURAL(r->files.len));
    D9D_TRY(d9d_buf_printf(x->out, "  %s", r->files.entries[0].key));
    return r->count == 1 ? d9d_buf_printf(x->out, " at %" PRIu64, r->first->offset) : D9D_OK;
}

static d9d_status put_row(d9di_map_print *x, const struct summary_row *r, int width, int count)
{
    char text[D9D_SAFETENSORS_DESCRIBE], times[32] = "";

    if (r->count > 1)
        (void)snprintf(times, sizeof(times), "%" PRIu64 " x ", r->count);
    D9D_TRY(d9d_buf_printf(x->out, "  %c %-*s  %*s%s", r->mark, width, r->name, count + 3, times,
                           d9d_safetensors_describe(r->first, text)));
    D9D_TRY(put_path(x, r));
    return d9d_buf_printf(x->out, "\n");
}

static d9d_status put_entry(d9di_map_print *x, const struct entry *e)
{
    char read[24], written[24];

    if (e->groups > 1)
        D9D_TRY(d9d_buf_printf(x->out, "%" PRIu64 " x ", e->groups));
    return d9d_buf_printf(x->out, "%s: %s read, %s written\n", e->operations,
                          format_bytes(e->read, read), format_bytes(e->written, written));
}

static d9d_status end(d9di_map_print *x)
{
    struct d9di_map_summary *b = x->summary;
    int width = 0, count = 1;

    for (size_t i = 0; i < b->rows.len; i++) {
        char digits[24];
        int n;

        D9D_TRY(name_row(&b->rows.data[i], &x->arena));
        n = (int)strnlen(b->rows.data[i].name, WIDEST);
        width = n > width ? n : width;
        n = snprintf(digits, sizeof(digits), "%" PRIu64, b->rows.data[i].count);
        count = n > count ? n : count;
    }
    for (size_t i = 0; i < b->entries.len; i++) {
        const struct entry *e = &b->entries.data[i];

        D9D_TRY(put_entry(x, e));
        for (size_t k = 0; k < e->n_rows; k++)
            D9D_TRY(put_row(x, &b->rows.data[e->first_row + k], width, count));
    }
    return d9di_map_print_totals(x);
}

const d9di_map_print_format d9di_map_print_summary = {"text", summary_begin, summary_group, end};
