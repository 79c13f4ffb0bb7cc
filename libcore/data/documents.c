/* documents.c - see documents.h. */
#include "data/documents.h"

#include <stdlib.h>
#include <string.h>

#include "data/source.h"

enum { READ_BYTES = 1 << 20 };

struct d9di_documents_reader {
    const d9d_shard_how *how;
    d9di_place place;
    d9di_source_reader *source; /* NULL: the next is not open yet */
    d9d_buf pending;            /* read but not yet a document, from `used` on */
    size_t used;
    bool end;          /* of the source */
    uint64_t consumed; /* by sources that are behind */
    int64_t *bytes;    /* [n_inputs] */
};

void d9di_chunk_release(d9di_chunk *c)
{
    d9d_buf_release(&c->text);
    D9D_VEC_RELEASE(&c->docs);
    D9D_VEC_RELEASE(&c->ids);
    D9D_VEC_RELEASE(&c->labels);
}

static bool ends_with(const char *name, size_t n, const char *end)
{
    const size_t len = strlen(end);

    return n > len && memcmp(name + n - len, end, len) == 0;
}

d9d_shard_format d9di_format_of(const d9d_shard_how *how, size_t source)
{
    const char *name = how->inputs[source];
    size_t n = strlen(name);

    if (how->format != D9D_SHARD_BY_NAME)
        return how->format;
    n -= ends_with(name, n, ".gz") ? 3 : ends_with(name, n, ".zst") ? 4 : 0;
    return ends_with(name, n, ".txt") ? D9D_SHARD_TEXT : D9D_SHARD_JSONL;
}

static bool by_lines(const d9di_documents_reader *r)
{
    return d9di_format_of(r->how, (size_t)r->place.source) != D9D_SHARD_TEXT || r->how->lines;
}

static const char *name_of(const d9di_documents_reader *r)
{
    const char *name = r->how->inputs[r->place.source];

    return strcmp(name, "-") == 0 ? "standard input" : name;
}

d9d_status d9di_documents_open(const d9d_shard_how *how, const d9di_place *from,
                               d9di_documents_reader **out)
{
    d9di_documents_reader *r = calloc(1, sizeof(*r));

    if (r)
        r->bytes = calloc(how->n_inputs, sizeof(*r->bytes));
    if (!r || !r->bytes) {
        free(r);
        return D9D_FAIL(D9D_ENOMEM, "no memory to read with");
    }
    r->how = how;
    r->place = from ? *from : (d9di_place){.line = 1};
    *out = r;
    return D9D_OK;
}

void d9di_documents_close(d9di_documents_reader *r)
{
    if (!r)
        return;
    d9di_source_close(r->source);
    d9d_buf_release(&r->pending);
    free(r->bytes);
    free(r);
}

d9di_place d9di_documents_at(const d9di_documents_reader *r)
{
    return r->place;
}

uint64_t d9di_documents_consumed(const d9di_documents_reader *r)
{
    return r->consumed + (r->source ? d9di_source_consumed(r->source) : 0);
}

int64_t d9di_documents_bytes(const d9di_documents_reader *r, size_t source)
{
    return r->bytes[source];
}

void d9di_documents_set_bytes(d9di_documents_reader *r, size_t source, int64_t bytes)
{
    r->bytes[source] = bytes;
}

/* --- one source ------------------------------------------------------------------------------ */

static d9d_status open_source(d9di_documents_reader *r)
{
    D9D_TRY(d9di_source_open(r->how->inputs[r->place.source], &r->source));
    r->pending.len = r->used = 0;
    r->end = false;
    return r->place.byte > 0 ? d9di_source_skip(r->source, (uint64_t)r->place.byte) : D9D_OK;
}

static void close_source(d9di_documents_reader *r)
{
    r->consumed += d9di_source_consumed(r->source);
    d9di_source_close(r->source);
    r->source = NULL;
    r->bytes[r->place.source] = r->place.byte;
    r->place = (d9di_place){.source = r->place.source + 1, .line = 1};
}

/* More bytes behind `b`. */
static d9d_status read_more(d9di_documents_reader *r, d9d_buf *b)
{
    size_t got;

    D9D_TRY(d9d_buf_reserve(b, READ_BYTES));
    D9D_TRY(d9di_source_read(r->source, b->data + b->len, READ_BYTES, &got));
    b->len += got;
    r->end = got == 0;
    return D9D_OK;
}

static d9d_status check_size(const d9di_documents_reader *r, size_t n)
{
    if (n <= D9DI_MAX_DOCUMENT)
        return D9D_OK;
    return D9D_FAIL(D9D_EFORMAT, "%s: line %lld: a document of more than %zu bytes%s", name_of(r),
                    (long long)r->place.line, D9DI_MAX_DOCUMENT,
                    by_lines(r) ? "" : "; --lines takes each line as one");
}

static d9d_status whole_file(d9di_documents_reader *r, d9di_chunk *c)
{
    d9di_document doc = {.at = c->text.len, .place = r->place};

    while (!r->end) {
        D9D_TRY(read_more(r, &c->text));
        D9D_TRY(check_size(r, c->text.len - doc.at));
    }
    doc.len = c->text.len - doc.at;
    r->place.byte = (int64_t)doc.len;
    close_source(r);
    return D9D_VEC_PUSH(&c->docs, doc);
}

/* The next line in pending[used, used + *len), its end of line taken off but counted in *all;
 * *found false at the end of the source. */
static d9d_status find_line(d9di_documents_reader *r, size_t *len, size_t *all, bool *found)
{
    size_t looked = 0;

    for (;;) {
        const size_t have = r->pending.len - r->used;
        const char *line = have ? r->pending.data + r->used : "";
        const char *nl = have > looked ? memchr(line + looked, '\n', have - looked) : NULL;

        if (nl || (r->end && have > 0)) {
            *len = nl ? (size_t)(nl - line) : have;
            *all = *len + (nl != NULL);
            *found = true;
            return check_size(r, *len);
        }
        *found = false;
        if (r->end)
            return D9D_OK;
        D9D_TRY(check_size(r, have));
        looked = have;
        if (r->used > 0) {
            memmove(r->pending.data, line, have);
            r->pending.len = have;
            r->used = 0;
        }
        D9D_TRY(read_more(r, &r->pending));
    }
}

static bool is_blank(const char *line, size_t n)
{
    size_t i = 0;

    while (i < n && (line[i] == ' ' || line[i] == '\t' || line[i] == '\r'))
        i++;
    return i == n;
}

static d9d_status next_line(d9di_documents_reader *r, d9di_chunk *c)
{
    const bool json = d9di_format_of(r->how, (size_t)r->place.source) != D9D_SHARD_TEXT;
    d9di_document doc = {.at = c->text.len, .place = r->place};
    size_t len, all;
    const char *line;
    bool found;

    D9D_TRY(find_line(r, &len, &all, &found));
    if (!found) {
        close_source(r);
        return D9D_OK;
    }
    line = r->pending.data + r->used;
    r->used += all;
    r->place.byte += (int64_t)all;
    r->place.line++;
    if (json && doc.place.byte == 0 && len >= 3 && memcmp(line, "\xef\xbb\xbf", 3) == 0) {
        line += 3; /* a byte order mark */
        len -= 3;
        doc.place.byte = 3;
    }
    if (json && is_blank(line, len))
        return D9D_OK;
    if (!json && len > 0 && line[len - 1] == '\r')
        len--;
    doc.len = len;
    D9D_TRY(d9d_buf_append(&c->text, line, len));
    return D9D_VEC_PUSH(&c->docs, doc);
}

d9d_status d9di_documents_read(d9di_documents_reader *r, d9di_chunk *out)
{
    out->text.len = out->docs.len = out->ids.len = out->labels.len = 0;
    while (out->text.len < D9DI_CHUNK_BYTES && out->docs.len < D9DI_CHUNK_BYTES) {
        if (!r->source) {
            if (r->place.source == (int64_t)r->how->n_inputs)
                break;
            D9D_TRY(open_source(r));
        }
        D9D_TRY(by_lines(r) ? next_line(r, out) : whole_file(r, out));
    }
    return D9D_OK;
}
