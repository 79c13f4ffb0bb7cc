/* prompts.c - see d9d/data/chat/prompts.h. */
#include "d9d/data/chat/prompts.h"

#include <stdio.h>
#include <string.h>

#include "data/chat/chat_private.h"
#include "data/io/input_stream.h"
#include "data/tokenizer/utf8.h"

enum { READ_BYTES = 1 << 20, MAX_LINE = 256 << 20 };

typedef struct reader {
    const d9d_prompts_opts *opts;
    d9d_prompts *out;
    D9D_VEC(size_t) ends;
    d9d_tokenizer_scratch *scratch;
    d9di_chat *chat; /* NULL: there was no chat yet */
    d9d_buf text;    /* scratch */
    d9di_chat_rendering rendering;
    d9d_token_ids ids;   /* ids of this line */
    d9d_token_ids words; /* of its text, without special tokens */
    d9di_token_labels labels;
    d9di_jsonl_error error;
} reader;

/* --- one line: one function per key ------------------------------------- */

static d9d_status fail_no_tokenizer(const reader *r, const char *what)
{
    return r->opts->tokenizer != NULL
               ? D9D_OK
               : D9D_FAIL(D9D_ECONFIG, "%s needs a tokenizer: tokenizer.json beside the model",
                          what);
}

static d9d_status encode_text_line(reader *r, const char *line, size_t n)
{
    const d9d_tokenizer *tok = r->opts->tokenizer;

    D9D_TRY(fail_no_tokenizer(r, "a prompt of text"));
    r->text.len = 0;
    D9D_TRY(d9di_jsonl_get_text(line, n, "prompt", &r->text, &r->error));
    r->out->texts++;
    r->words.len = 0;
    D9D_TRY(d9d_tokenizer_encode(tok, r->scratch, r->text.len > 0 ? r->text.data : "", r->text.len,
                                 r->opts->add_special_tokens ? &r->words : &r->ids));
    if (!r->opts->add_special_tokens)
        return D9D_OK;
    r->out->special_twice += d9d_tokenizer_has_special(tok, r->words.data, r->words.len);
    return d9d_tokenizer_add_special(tok, &r->words, NULL, &r->ids);
}

static d9d_status encode_chat_line(reader *r, const char *line, size_t n)
{
    json_t *chat;
    d9d_status st;

    D9D_TRY(fail_no_tokenizer(r, "a chat"));
    if (r->chat == NULL)
        D9D_TRY(d9di_chat_load(&r->opts->chat, r->opts->tokenizer, &r->chat));
    D9D_TRY(d9di_jsonl_get_chat(line, n, NULL, &chat, &r->error));
    st = d9di_chat_encode_prompt(r->chat, r->scratch, chat, &r->rendering, &r->ids);
    json_decref(chat);
    return st;
}

static d9d_status parse_ids_line(reader *r, const char *line, size_t n)
{
    bool has_labels = false;

    return d9di_jsonl_get_tokens(line, n, (uint32_t)r->opts->vocab, &r->ids, &r->labels,
                                 &has_labels, &r->error);
}

static const char *const keys[] = {"input_ids", "messages", "prompt", NULL};
static d9d_status (*const line_readers[])(reader *r, const char *line, size_t n) = {
    parse_ids_line, encode_chat_line, encode_text_line};

static d9d_status read_line(reader *r, const char *line, size_t n)
{
    int which;

    D9D_TRY(d9di_jsonl_find_key(line, n, keys, &which, &r->error));
    if (which >= 0)
        return line_readers[which](r, line, n);
    return D9D_FAIL(D9D_EFORMAT, "has no \"prompt\", \"messages\" or \"input_ids\"");
}

/* --- all lines -------------------------------------------------------------------------------- */

/* Appends the ids of the line to those of the other lines. */
static d9d_status append_ids(reader *r)
{
    d9d_prompts *p = r->out;
    const size_t n = r->ids.len;

    if (n == 0)
        return D9D_FAIL(D9D_EFORMAT, "the prompt has no token");
    for (size_t i = 0; i < n; i++)
        if (r->ids.data[i] >= r->opts->vocab)
            return D9D_FAIL(D9D_EMISMATCH, "token %u is not in the model's vocabulary of %lld",
                            r->ids.data[i], (long long)r->opts->vocab);
    D9D_TRY(D9D_VEC_RESERVE(&p->ids, n));
    memcpy(p->ids.data + p->ids.len, r->ids.data, n * sizeof(*r->ids.data));
    p->ids.len += n;
    p->longest = (int64_t)n > p->longest ? (int64_t)n : p->longest;
    return D9D_VEC_PUSH(&r->ends, p->ids.len);
}

static d9d_status add_line(reader *r, const char *line, size_t n)
{
    const size_t valid = d9d_utf8_valid_up_to(line, n);
    d9d_status st;

    r->error.message[0] = '\0';
    r->ids.len = r->labels.len = 0;
    if (valid < n)
        return D9D_FAIL(D9D_EFORMAT, "byte %zu is not valid UTF-8", valid);
    st = read_line(r, line, n);
    if (st != D9D_OK && r->error.message[0] != '\0')
        st = D9D_FAIL(st, "byte %zu: %s", r->error.offset, r->error.message);
    D9D_TRY(st);
    return append_ids(r);
}

/* Adds the complete lines of b and, at the end of the file, the rest; *done: bytes consumed. */
static d9d_status add_lines(reader *r, const d9d_buf *b, bool end, int64_t *number, size_t *done)
{
    while (*done < b->len) {
        const char *line = b->data + *done, *stop = memchr(line, '\n', b->len - *done);
        const size_t n = stop != NULL ? (size_t)(stop - line) : b->len - *done;
        d9d_err_copy why;
        d9d_status st;
        size_t mark;

        if (stop == NULL && !end)
            return D9D_OK;
        ++*number;
        *done += n + (stop != NULL);
        if (strspn(line, " \t\r") >= n)
            continue;
        mark = *number == 1 ? d9di_utf8_bom(line, n) : 0;
        st = add_line(r, line + mark, n - mark);
        if (st == D9D_OK)
            continue;
        d9d_err_save(&why, st);
        return D9D_FAIL(st, "%s: line %lld: %s", r->opts->path, (long long)*number, why.text);
    }
    return D9D_OK;
}

static d9d_status read_file(reader *r, d9di_input_stream *from, d9d_buf *b)
{
    int64_t number = 0;
    size_t done = 0, got = 1;

    while (got > 0) {
        D9D_TRY(d9d_buf_reserve(b, READ_BYTES));
        D9D_TRY(d9di_input_stream_read(from, b->data + b->len, READ_BYTES, &got));
        b->len += got;
        b->data[b->len] = '\0';
        D9D_TRY(add_lines(r, b, got == 0, &number, &done));
        if (b->len - done > MAX_LINE)
            return D9D_FAIL(D9D_EFORMAT, "%s: line %lld is longer than %d bytes", r->opts->path,
                            (long long)number + 1, MAX_LINE);
        memmove(b->data, b->data + done, b->len - done);
        b->len -= done;
        done = 0;
    }
    return D9D_OK;
}

static d9d_status finish_prompts(reader *r)
{
    d9d_prompts *p = r->out;
    d9d_hash h[2];

    if (r->ends.len == 0)
        return D9D_FAIL(D9D_EFORMAT, "%s: has no prompts", r->opts->path);
    p->n = (int64_t)r->ends.len;
    p->start = calloc(r->ends.len + 1, sizeof(*p->start));
    if (p->start == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %zu prompts", r->opts->path, r->ends.len);
    memcpy(p->start + 1, r->ends.data, r->ends.len * sizeof(*p->start));
    h[0] = d9d_hash_bytes(p->ids.data, p->ids.len * sizeof(*p->ids.data));
    h[1] = d9d_hash_bytes(p->start, (r->ends.len + 1) * sizeof(*p->start));
    p->hash = d9d_hash_bytes(h, sizeof(h));
    return D9D_OK;
}

d9d_status d9d_prompts_read(const d9d_prompts_opts *opts, d9d_prompts *out)
{
    d9d_prompts p = {0};
    reader r = {.opts = opts, .out = &p};
    d9di_input_stream *from = NULL;
    d9d_buf lines = {0};
    d9d_status st = D9D_OK;

    if (opts->tokenizer != NULL)
        D9D_TRY_OR(st, d9d_tokenizer_scratch_create(opts->tokenizer, &r.scratch), out);
    if (opts->tokenizer != NULL && opts->chat.chat_template != NULL)
        D9D_TRY_OR(st, d9di_chat_load(&opts->chat, opts->tokenizer, &r.chat), out);
    D9D_TRY_OR(st, d9di_input_stream_open(opts->path, NULL, &from), out);
    D9D_TRY_OR(st, read_file(&r, from, &lines), out);
    D9D_TRY_OR(st, finish_prompts(&r), out);
    *out = p;
    p = (d9d_prompts){0};
out:
    d9di_input_stream_close(from);
    d9di_chat_free(r.chat);
    d9d_tokenizer_scratch_free(r.scratch);
    d9di_chat_rendering_release(&r.rendering);
    d9d_buf_release(&r.text);
    d9d_buf_release(&lines);
    D9D_VEC_RELEASE(&r.ids);
    D9D_VEC_RELEASE(&r.words);
    D9D_VEC_RELEASE(&r.labels);
    D9D_VEC_RELEASE(&r.ends);
    d9d_prompts_release(&p);
    return st;
}

void d9d_prompts_release(d9d_prompts *p)
{
    D9D_VEC_RELEASE(&p->ids);
    free(p->start);
    *p = (d9d_prompts){0};
}
