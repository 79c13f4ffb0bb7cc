/* documents.c - see documents.h. */
#include "data/build/documents.h"

#include <stdlib.h>
#include <string.h>

#include "data/dataset/megatron.h"
#include "data/io/framing.h"
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
    d9di_framing framing; /* of the open source */
    d9d_buf header;       /* of the source, if it is a table */
    d9d_buf pending;      /* bytes read but not yet returned as documents, from `used` on */
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
    d9d_buf_release(&c->fields);
    D9D_VEC_RELEASE(&c->source_ends);
    D9D_VEC_RELEASE(&c->skipped);
}

d9d_shard_format d9di_documents_format(const d9d_shard_opts *opts, size_t source)
{
    if (opts->format != D9D_SHARD_BY_NAME)
        return opts->format;
    return d9di_framing_name_ends(opts->inputs[source], ".txt") ? D9D_SHARD_TEXT : D9D_SHARD_JSONL;
}

/* The framing of an input that begins with text[0, n). */
static d9di_framing framing_of(const d9d_shard_opts *opts, size_t source, const char *text,
                               size_t n)
{
    switch (d9di_documents_format(opts, source)) {
    case D9D_SHARD_MEGATRON: return D9DI_FRAMING_FILE;
    case D9D_SHARD_TEXT: return opts->lines ? D9DI_FRAMING_LINES : D9DI_FRAMING_FILE;
    default: return d9di_framing_of(opts->inputs[source], text, n);
    }
}

/* The first bytes of an input; nothing if it cannot be read. */
static size_t read_start(const char *path, char *start, size_t n)
{
    d9di_input_stream *source = NULL;
    size_t got = 0;

    if (d9di_input_stream_open(path, NULL, &source) != D9D_OK)
        return 0;
    if (d9di_input_stream_read(source, start, n, &got) != D9D_OK)
        got = 0;
    d9di_input_stream_close(source);
    return got;
}

bool d9di_documents_are_lines(const d9d_shard_opts *opts, size_t source)
{
    char start[4096];
    const size_t n = read_start(opts->inputs[source], start, sizeof(start));

    return framing_of(opts, source, start, n) == D9DI_FRAMING_LINES;
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
    d9d_buf_release(&r->header);
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
        size_t got = 0;

        if (d9di_input_stream_read(source, bytes, left < 4096 ? (size_t)left : 4096, &got) !=
                D9D_OK ||
            got == 0)
            break;
        line += d9di_framing_count_lines(bytes, got);
        left -= (int64_t)got;
    }
    d9di_input_stream_close(source);
    return line;
}

/* --- one source ------------------------------------------------------------------------------ */

static d9d_status read_framing(d9di_documents_reader *r);
static d9d_status read_header(d9di_documents_reader *r);
static d9d_status skip_partial_line(d9di_documents_reader *r);

static bool is_open(const d9di_documents_reader *r)
{
    return r->source || r->megatron;
}

static bool is_megatron(const d9di_documents_reader *r)
{
    return d9di_documents_format(r->opts, (size_t)r->pos.source) == D9D_SHARD_MEGATRON;
}

/* Goes to `byte` of the source, of which the first bytes are pending. */
static d9d_status seek_byte(d9di_documents_reader *r, size_t byte)
{
    if (byte <= r->pending.len) {
        r->used = byte;
        return D9D_OK;
    }
    D9D_TRY(d9di_input_stream_skip(r->source, byte - r->pending.len));
    r->pending.len = r->used = 0;
    return D9D_OK;
}

/* Reads what the framing of the source is known by, and a table's header, and goes to `r->pos`.  An
 * input split that begins inside a file begins with the first line that starts in it. */
static d9d_status begin_source(d9di_documents_reader *r)
{
    const bool inside = r->pos.byte > 0 && r->pos.byte == current_split(r)->from;
    const size_t byte = (size_t)(r->pos.byte - inside);

    r->pending.len = r->used = r->header.len = 0;
    r->framing = D9DI_FRAMING_LINES;
    r->end = false;
    if (!inside) {
        D9D_TRY(read_framing(r));
        if (d9di_framing_separator(r->framing))
            D9D_TRY(read_header(r));
    }
    if (byte > 0)
        D9D_TRY(seek_byte(r, byte));
    r->pos.byte -= inside;
    r->skipped = byte > 0 ? d9di_input_stream_consumed(r->source) : 0;
    return inside ? skip_partial_line(r) : D9D_OK;
}

static d9d_status open_source(d9di_documents_reader *r)
{
    const char *path = r->opts->inputs[r->pos.source];
    const d9di_input_stat *seen = r->input_splits->stats[r->pos.source];

    if (is_megatron(r))
        return d9di_megatron_open(path, seen, &r->megatron);
    D9D_TRY(d9di_input_stream_open(path, seen, &r->source));
    return begin_source(r);
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
                    r->framing == D9DI_FRAMING_FILE ? "; --lines takes each line as one" : "");
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

static d9d_status fail_frame(const d9di_documents_reader *r, d9d_status st)
{
    d9d_err_copy why;

    if (st != D9D_EFORMAT)
        return st;
    d9d_err_save(&why, st);
    return D9D_FAIL(D9D_EFORMAT, "%s: line %lld: %s", source_name(r), (long long)r->pos.line,
                    why.text);
}

/* Makes room before the unread bytes and reads more behind them. */
static d9d_status refill(d9di_documents_reader *r)
{
    const size_t have = r->pending.len - r->used;

    if (r->used > 0 && have > 0)
        memmove(r->pending.data, r->pending.data + r->used, have);
    r->pending.len = have;
    r->used = 0;
    return read_more(r, &r->pending);
}

/* Finds the next document in the pending bytes, from `used` on; none at the end of the source. */
static d9d_status find_frame(d9di_documents_reader *r, d9di_framing_span *out)
{
    d9di_framing_scan scan = {0};

    for (;;) {
        const size_t have = r->pending.len - r->used;
        const char *text = have ? r->pending.data + r->used : "";

        D9D_TRY(fail_frame(
            r, d9di_framing_find(r->framing, text, have, r->pos.byte == 0, r->end, &scan, out)));
        if (out->found)
            return check_size(r, out->len);
        if (r->end)
            return D9D_OK;
        D9D_TRY(check_size(r, have));
        D9D_TRY(refill(r));
    }
}

/* Goes behind a document that was found.  A last line counts without its end. */
static void take_frame(d9di_documents_reader *r, const d9di_framing_span *f)
{
    r->pos.line += r->framing == D9DI_FRAMING_LINES
                       ? 1
                       : d9di_framing_count_lines(r->pending.data + r->used, f->used);
    r->used += f->used;
    r->pos.byte += (int64_t)f->used;
}

static d9d_status skip_partial_line(d9di_documents_reader *r)
{
    d9di_framing_span f;

    D9D_TRY(find_frame(r, &f));
    if (f.found)
        take_frame(r, &f);
    r->pos.line = 1;
    return D9D_OK;
}

/* Reads the start of the source until its framing shows: by its first byte that is no space. */
static d9d_status read_framing(d9di_documents_reader *r)
{
    const bool shows = d9di_documents_format(r->opts, (size_t)r->pos.source) == D9D_SHARD_TEXT;

    while (!shows && !r->end && d9di_framing_is_space(r->pending.data, r->pending.len))
        D9D_TRY(refill(r));
    r->framing = framing_of(r->opts, (size_t)r->pos.source, r->pending.data, r->pending.len);
    return D9D_OK;
}

/* Reads the first row of a table, which stays pending if the source is not read from its start. */
static d9d_status read_header(d9di_documents_reader *r)
{
    const d9di_document_pos pos = r->pos;
    size_t mark;
    d9di_framing_span f;

    r->pos = (d9di_document_pos){.source = pos.source, .line = 1};
    D9D_TRY(find_frame(r, &f));
    if (!f.found)
        return D9D_FAIL(D9D_EFORMAT, "%s: has no header", source_name(r));
    mark = d9di_utf8_bom(r->pending.data, f.len);
    D9D_TRY(d9d_buf_append(&r->header, r->pending.data + mark, f.len - mark));
    if (pos.byte == 0)
        take_frame(r, &f);
    else
        r->pos = pos;
    return D9D_OK;
}

static bool is_blank(const char *line, size_t n)
{
    size_t i = 0;

    while (i < n && (line[i] == ' ' || line[i] == '\t' || line[i] == '\r'))
        i++;
    return i == n;
}

/* The text of a document: without a byte order mark, and without the carriage return of a line of
 * text. */
static void trim_frame(const d9di_documents_reader *r, const char *text, d9di_framing_span *f)
{
    const size_t mark = r->pos.byte == 0 ? d9di_utf8_bom(text + f->begin, f->len) : 0;

    f->begin += mark;
    f->len -= mark;
    if (d9di_documents_format(r->opts, (size_t)r->pos.source) == D9D_SHARD_TEXT && f->len > 0 &&
        text[f->begin + f->len - 1] == '\r')
        f->len--;
}

static bool is_skipped(const d9di_documents_reader *r, const char *text, const d9di_framing_span *f)
{
    return d9di_documents_format(r->opts, (size_t)r->pos.source) != D9D_SHARD_TEXT &&
           is_blank(text + f->begin, f->len);
}

static d9d_status read_framed_document(d9di_documents_reader *r, d9di_document_chunk *c)
{
    d9di_document_record doc = {
        .pos = r->pos, .separator = d9di_framing_separator(r->framing), .header = r->header.len};
    const char *text;
    d9di_framing_span f;

    D9D_TRY(find_frame(r, &f));
    if (!f.found) {
        r->pos.byte += (int64_t)f.used;
        return finish_source(r, c);
    }
    text = r->pending.data + r->used;
    trim_frame(r, text, &f);
    doc.pos.byte += (int64_t)f.begin;
    doc.pos.line += d9di_framing_count_lines(text, f.begin);
    if (!is_skipped(r, text, &f)) {
        D9D_TRY(d9d_buf_append(&c->text, r->header.data, r->header.len));
        doc.offset = c->text.len;
        doc.len = f.len;
        D9D_TRY(d9d_buf_append(&c->text, text + f.begin, f.len));
        D9D_TRY(D9D_VEC_PUSH(&c->docs, doc));
    }
    take_frame(r, &f);
    return D9D_OK;
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
    return r->framing == D9DI_FRAMING_FILE ? read_whole_file(r, c) : read_framed_document(r, c);
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
    out->skipped.len = out->fields.len = 0;
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
