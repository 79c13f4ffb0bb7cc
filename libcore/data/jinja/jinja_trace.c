/* jinja_trace.c - where output comes from: the template, or the data that it renders.
 *
 * Text is told apart by its address.  Strings of the data, and strings that are made of such ones,
 * are in blocks of their own; beside each block is a byte for each of its bytes.  So parts of
 * strings need no care. */
#include <string.h>

#include "data/jinja/jinja_exec.h"

enum { FIRST_BLOCK = 4096 };

void d9d_jinja_trace_release(d9d_jinja_trace *t)
{
    D9D_VEC_RELEASE(&t->generation);
    D9D_VEC_RELEASE(&t->visits);
    d9d_buf_release(&t->data);
}

/* The origins of the text; NULL: it is not of the data. */
static const char *find_marks(const d9di_jinja_run *r, const char *text)
{
    for (size_t i = r->n_blocks; i-- > 0;) {
        const d9di_jinja_block *b = &r->blocks[i];
        const uintptr_t at = (uintptr_t)text - (uintptr_t)b->text;

        if (at < b->used)
            return b->text + b->size + at;
    }
    return NULL;
}

static d9d_status add_block(d9di_jinja_run *r, size_t n)
{
    const size_t last = r->n_blocks > 0 ? 2 * r->blocks[r->n_blocks - 1].size : FIRST_BLOCK;
    d9di_jinja_block b = {.size = n > last ? n : last};

    if (r->n_blocks == D9DI_JINJA_MAX_BLOCKS)
        return d9di_jinja_fail(r, "the template makes too many strings");
    D9D_TRY(d9di_jinja_alloc(r, b.size, 2, &b.text));
    r->blocks[r->n_blocks++] = b;
    return D9D_OK;
}

d9d_status d9di_jinja_hold(d9di_jinja_run *r, const char *text, const char *marks, size_t n,
                           const char **out)
{
    d9di_jinja_block *b = r->n_blocks > 0 ? &r->blocks[r->n_blocks - 1] : NULL;

    if (b == NULL || n > b->size - b->used) {
        D9D_TRY(add_block(r, n));
        b = &r->blocks[r->n_blocks - 1];
    }
    memcpy(b->text + b->used, text, n);
    if (marks != NULL)
        memcpy(b->text + b->size + b->used, marks, n);
    else
        memset(b->text + b->size + b->used, r->data_mark, n);
    *out = b->text + b->used;
    b->used += n;
    return D9D_OK;
}

/* Appends origins of what else was appended to the output, but for its last n bytes. */
static d9d_status catch_up(d9di_jinja_run *r, size_t n)
{
    d9d_buf *data = &r->trace->data;
    const size_t want = r->traced + (r->out->len - r->base) - n;

    if (data->len >= want)
        return D9D_OK;
    D9D_TRY(d9d_buf_reserve(data, want - data->len));
    memset(data->data + data->len, 0, want - data->len);
    data->len = want;
    return D9D_OK;
}

d9d_status d9di_jinja_trace_output(d9di_jinja_run *r, const char *from, size_t n)
{
    const char *marks = n > 0 ? find_marks(r, from) : NULL;

    D9D_TRY(catch_up(r, n));
    return marks != NULL ? d9d_buf_append(&r->trace->data, marks, n) : catch_up(r, 0);
}

static bool is_zero(const char *bytes, size_t n)
{
    return n == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, n - 1) == 0);
}

d9d_status d9di_jinja_trace_take(d9di_jinja_run *r, size_t n, const char **marks)
{
    d9d_buf *data = &r->trace->data;

    D9D_TRY(catch_up(r, 0));
    data->len -= n;
    *marks = is_zero(data->data + data->len, n) ? NULL : data->data + data->len;
    return D9D_OK;
}

d9d_status d9di_jinja_trace_visit(d9di_jinja_run *r, const d9di_jinja_value *v, size_t begin)
{
    const size_t end = d9di_jinja_mark(r);

    if (r->trace == NULL || r->captures > 0 || v->kind != D9DI_JINJA_DICT || v->dict->item == 0 ||
        end == begin)
        return D9D_OK;
    return D9D_VEC_PUSH(&r->trace->visits, ((d9d_jinja_visit){v->dict->item - 1, {begin, end}}));
}
