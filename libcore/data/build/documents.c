/* documents.c - see documents.h. */
#include "data/build/documents.h"

#include <stdlib.h>
#include <string.h>

#include "data/dataset/megatron.h"
#include "data/io/input_stream.h"
#include "data/tokenizer/utf8.h"

enum { READ_BYTES = 1 << 20 };

struct d9di_documents_reader {
    const d9d_shard_opts *opts;
    const d9di_input_splits *input_splits;
    int64_t unit_bytes;

    size_t input_split;
    int64_t unit;
    d9di_document_pos pos;
    int64_t block;             /* units of the source already read */
    d9di_input_stream *source; /* NULL: the next source is not open yet, or it is */
    d9di_megatron *megatron;
    d9d_buf pending; /* bytes read but not yet returned as documents, from `used` on */
    size_t used;
    bool end;          /* end of the source */
    uint64_t consumed; /* bytes of finished sources */
    uint64_t skipped;  /* bytes of this source */
    struct d9di_document_source_lines lines_read;
};

void d9di_document_chunk_release(d9di_document_chunk *c)
{
    d9d_buf_release(&c->text);
    D9D_VEC_RELEASE(&c->docs);
    D9D_VEC_RELEASE(&c->ids);
    D9D_VEC_RELEASE(&c->labels);
    D9D_VEC_RELEASE(&c->source_ends);
    D9D_VEC_RELEASE(&c->skipped);
}

static bool ends_with(const char *name, size_t n, const char *end)
{
    const size_t len = strlen(end);

    return n > len && memcmp(name + n - len, end, len) == 0;
}

d9d_shard_format d9di_documents_format(const d9d_shard_opts *opts, size_t source)
{
    const char *name = opts->inputs[source];
    size_t n = strlen(name);

    if (opts->format != D9D_SHARD_BY_NAME)
        return opts->format;
    n -= ends_with(name, n, ".gz") ? 3 : ends_with(name, n, ".zst") ? 4 : 0;
    return ends_with(name, n, ".txt") ? D9D_SHARD_TEXT : D9D_SHARD_JSONL;
}

bool d9di_documents_are_lines(const d9d_shard_opts *opts, size_t source)
{
    const d9d_shard_format format = d9di_documents_format(opts, source);

    return format != D9D_SHARD_MEGATRON && (format != D9D_SHARD_TEXT || opts->lines);
}

static bool reads_lines(const d9di_documents_reader *r)
{
    return d9di_documents_are_lines(r->opts, (size_t)r->pos.source);
}

static const char *source_name(const d9di_documents_reader *r)
{
    const char *name = r->opts->inputs[r->pos.source];

    return strcmp(name, "-") == 0 ? "standard input" : name;
}

static const d9di_input_split *current_split(const d9di_documents_reader *r)
{
    return &r->input_splits->list.data[r->input_split];
}

d9d_status d9di_documents_open(const d9d_shard_opts *opts, const d9di_input_splits *splits,
                               int64_t unit_bytes, d9di_documents_reader **out)
{
    d9di_documents_reader *r = calloc(1, sizeof(*r));

    if (!r)
        return D9D_FAIL(D9D_ENOMEM, "no memory to read with");
    r->opts = opts;
    r->input_splits = splits;
    r->unit_bytes = unit_bytes;
    *out = r;
    return D9D_OK;
}

void d9di_documents_close(d9di_documents_reader *r)
{
    if (!r)
        return;
    d9di_input_stream_close(r->source);
    d9di_megatron_close(r->megatron);
    d9d_buf_release(&r->pending);
    free(r);
}

void d9di_documents_seek(d9di_documents_reader *r, size_t input_split, int64_t unit,
                         const d9di_document_pos *from)
{
    const d9di_input_split *p = &r->input_splits->list.data[input_split];

    r->input_split = input_split;
    r->unit = unit;
    r->pos = from ? *from : (d9di_document_pos){p->source, p->from, 1};
    r->block = r->pos.byte / r->unit_bytes;
}

uint64_t d9di_documents_consumed(const d9di_documents_reader *r)
{
    return r->consumed + (r->source     ? d9di_input_stream_consumed(r->source) - r->skipped
                          : r->megatron ? (uint64_t)r->pos.byte
                                        : 0);
}

int64_t d9di_documents_line(const d9d_shard_opts *opts, const d9di_input_split *input_split,
                            const d9di_document_pos *place)
{
    d9di_input_stream *source = NULL;
    int64_t line = 1, left = place->byte;
    char bytes[4096];

    if (input_split->from == 0)
        return place->line;
    if (d9di_input_stream_open(opts->inputs[place->source], NULL, &source) != D9D_OK)
        return place->line;
    while (left > 0) {
        size_t got = 0, i;

        if (d9di_input_stream_read(source, bytes, left < 4096 ? (size_t)left : 4096, &got) !=
                D9D_OK ||
            got == 0)
            break;
        for (i = 0; i < got; i++)
            line += bytes[i] == '\n';
        left -= (int64_t)got;
    }
    d9di_input_stream_close(source);
    return line;
}

/* --- one source ------------------------------------------------------------------------------ */

static d9d_status read_more(d9di_documents_reader *r, d9d_buf *b);
static d9d_status skip_partial_line(d9di_documents_reader *r);

static bool is_open(const d9di_documents_reader *r)
{
    return r->source || r->megatron;
}

static bool is_megatron(const d9di_documents_reader *r)
{
    return d9di_documents_format(r->opts, (size_t)r->pos.source) == D9D_SHARD_MEGATRON;
}

/* An input split that begins inside a file begins with the first line that starts in it. */
static d9d_status open_source(d9di_documents_reader *r)
{
    const char *path = r->opts->inputs[r->pos.source];
    const d9di_input_stat *seen = r->input_splits->stats[r->pos.source];
    const bool inside = r->pos.byte > 0 && r->pos.byte == current_split(r)->from;

    if (is_megatron(r))
        return d9di_megatron_open(path, seen, &r->megatron);
    D9D_TRY(d9di_input_stream_open(path, seen, &r->source));
    r->pending.len = r->used = 0;
    r->end = false;
    if (inside)
        r->pos.byte--;
    if (r->pos.byte > 0)
        D9D_TRY(d9di_input_stream_skip(r->source, (uint64_t)r->pos.byte));
    r->skipped = r->pos.byte > 0 ? d9di_input_stream_consumed(r->source) : 0;
    return inside ? skip_partial_line(r) : D9D_OK;
}

static void close_source(d9di_documents_reader *r)
{
    r->consumed = d9di_documents_consumed(r);
    d9di_input_stream_close(r->source);
    d9di_megatron_close(r->megatron);
    r->source = NULL;
    r->megatron = NULL;
    r->lines_read = (struct d9di_document_source_lines){r->pos.source, r->pos.line - 1};
    r->pos = (d9di_document_pos){.source = r->pos.source + 1, .line = 1};
    r->block = 0;
}

static d9d_status finish_source(d9di_documents_reader *r, d9di_document_chunk *c)
{
    D9D_TRY(D9D_VEC_PUSH(&c->source_ends,
                         (struct d9di_document_source_end){r->pos.source, r->pos.byte}));
    close_source(r);
    return D9D_OK;
}

/* Appends more bytes to `b`. */
static d9d_status read_more(d9di_documents_reader *r, d9d_buf *b)
{
    size_t got;

    D9D_TRY(d9d_buf_reserve(b, READ_BYTES));
    D9D_TRY(d9di_input_stream_read(r->source, b->data + b->len, READ_BYTES, &got));
    b->len += got;
    r->end = got == 0;
    return D9D_OK;
}

static d9d_status check_size(const d9di_documents_reader *r, size_t n)
{
    if (n <= D9DI_MAX_DOCUMENT)
        return D9D_OK;
    return D9D_FAIL(D9D_EFORMAT, "%s: line %lld: a document of more than %zu bytes%s",
                    source_name(r), (long long)r->pos.line, D9DI_MAX_DOCUMENT,
                    reads_lines(r) ? "" : "; --lines takes each line as one");
}

static d9d_status read_whole_file(d9di_documents_reader *r, d9di_document_chunk *c)
{
    d9di_document_record doc = {.offset = c->text.len, .pos = r->pos};
    size_t mark;

    while (!r->end) {
        D9D_TRY(read_more(r, &c->text));
        D9D_TRY(check_size(r, c->text.len - doc.offset));
    }
    doc.len = c->text.len - doc.offset;
    r->pos.byte = (int64_t)doc.len;
    mark = d9di_utf8_bom(c->text.data ? c->text.data + doc.offset : "", doc.len);
    doc.offset += mark;
    doc.len -= mark;
    doc.pos.byte = (int64_t)mark;
    D9D_TRY(finish_source(r, c));
    return D9D_VEC_PUSH(&c->docs, doc);
}

/* Finds the next line in pending[used, used + *len), without its end of line, which *all counts.
 * *found is false at the end of the source. */
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

static d9d_status skip_partial_line(d9di_documents_reader *r)
{
    size_t len, all = 0;
    bool found;

    D9D_TRY(find_line(r, &len, &all, &found));
    if (found) {
        r->used += all;
        r->pos.byte += (int64_t)all;
    }
    return D9D_OK;
}

static bool is_blank(const char *line, size_t n)
{
    size_t i = 0;

    while (i < n && (line[i] == ' ' || line[i] == '\t' || line[i] == '\r'))
        i++;
    return i == n;
}

static d9d_status read_line_document(d9di_documents_reader *r, d9di_document_chunk *c)
{
    const bool json = d9di_documents_format(r->opts, (size_t)r->pos.source) != D9D_SHARD_TEXT;
    d9di_document_record doc = {.offset = c->text.len, .pos = r->pos};
    size_t len, all;
    const char *line;
    bool found;

    D9D_TRY(find_line(r, &len, &all, &found));
    if (!found)
        return finish_source(r, c);
    line = r->pending.data + r->used;
    r->used += all;
    r->pos.byte += (int64_t)all;
    r->pos.line++;
    if (doc.pos.byte == 0 && d9di_utf8_bom(line, len) > 0) {
        doc.pos.byte = (int64_t)d9di_utf8_bom(line, len);
        line += doc.pos.byte;
        len -= (size_t)doc.pos.byte;
    }
    if (json && is_blank(line, len))
        return D9D_OK;
    if (!json && len > 0 && line[len - 1] == '\r')
        len--;
    doc.len = len;
    D9D_TRY(d9d_buf_append(&c->text, line, len));
    return D9D_VEC_PUSH(&c->docs, doc);
}

/* Documents of token files count as lines; their bytes are what was read so far. */
static d9d_status read_token_document(d9di_documents_reader *r, d9di_document_chunk *c)
{
    d9di_document_record doc = {.offset = c->text.len, .pos = r->pos};

    if (r->pos.line > d9di_megatron_documents(r->megatron))
        return finish_source(r, c);
    D9D_TRY(d9di_megatron_read(r->megatron, r->pos.line - 1, D9DI_MAX_DOCUMENT, &c->text));
    doc.len = c->text.len - doc.offset;
    r->pos.line++;
    r->pos.byte += (int64_t)doc.len - 1;
    return D9D_VEC_PUSH(&c->docs, doc);
}

static d9d_status read_document(d9di_documents_reader *r, d9di_document_chunk *c)
{
    if (r->megatron)
        return read_token_document(r, c);
    return reads_lines(r) ? read_line_document(r, c) : read_whole_file(r, c);
}

/* True if the next document belongs to the chunk's unit; otherwise sets *out to end the unit. */
static bool is_in_unit(d9di_documents_reader *r, d9di_document_chunk *out)
{
    const d9di_input_split *p = current_split(r);

    if (is_open(r) && r->pos.byte >= p->upto)
        close_source(r);
    if (!is_open(r) && r->pos.source == p->source + p->n_sources) {
        out->ends = out->last = true;
    } else if (r->pos.byte / r->unit_bytes != r->block) {
        r->block = r->pos.byte / r->unit_bytes;
        out->ends = true;
    }
    return !out->ends;
}

d9d_status d9di_documents_read(d9di_documents_reader *r, d9di_document_chunk *out)
{
    out->text.len = out->docs.len = out->ids.len = out->labels.len = out->source_ends.len = 0;
    out->skipped.len = 0;
    out->input_split = (int64_t)r->input_split;
    out->unit = r->unit;
    out->ends = out->last = false;
    while (out->text.len < D9DI_CHUNK_BYTES && out->docs.len < D9DI_CHUNK_BYTES &&
           is_in_unit(r, out)) {
        D9D_TRY(is_open(r) ? read_document(r, out) : open_source(r));
    }
    r->unit += out->ends;
    out->next = r->pos;
    out->lines_read = r->lines_read;
    return D9D_OK;
}
