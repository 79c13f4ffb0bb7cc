/* text_stream.c - see data/dataset/text_stream.h. */
#include "data/dataset/text_stream.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/fs.h"
#include "d9d/data/dataset/dataset_kind.h"
#include "d9d/data/tokenizer/tokenizer.h"
#include "data/io/jsonl.h"
#include "data/io/line_stream.h"

typedef struct section {
    const char *path, *tokenizer, *text_key, *append_eos;
    int64_t length;
    bool follow, add_special_tokens;
} section;

static const d9d_dataset_kind stream_kind;
static const d9d_key keys[] = {
    D9D_KEY_STR(section, path, D9D_REQUIRED, "a file of JSON lines, or a folder of such files",
                .min = 1),
    D9D_KEY_BOOL(section, follow, "false",
                 "wait for more, until PATH.end exists, or END in the folder"),
    D9D_KEY_STR(section, tokenizer, D9D_REQUIRED, "a tokenizer.json, or the folder that has it",
                .min = 1),
    D9D_KEY_INT(section, length, D9D_REQUIRED, 1, INT64_C(1) << 24, "positions of a row"),
    D9D_KEY_STR(section, text_key, "\"text\"", "the member of a line that is its text", .min = 1),
    D9D_KEY_STR(section, append_eos, "null", "a token behind each text", .flags = D9D_NULLABLE,
                .min = 1),
    D9D_KEY_BOOL(section, add_special_tokens, "true",
                 "put the tokenizer's special tokens around each text"),
    D9D_KEY_END,
};
const d9d_table d9di_text_stream_table = {.name = "stream",
                                          .size = sizeof(section),
                                          .keys = keys,
                                          .doc = "texts that come while the run reads them",
                                          .row = &stream_kind};

/* A place in the stream: behind `used` positions of the text whose line is at `offset` of `file`.
 * file NULL: the beginning. */
typedef struct place {
    const char *file; /* in the arena */
    int64_t offset, used;
    uint64_t hash; /* of the line */
} place;

typedef struct row {
    int32_t *data; /* [3][length]: ids, labels, documents */
    place begin;
} row;

enum { IDS, LABELS, DOCUMENTS, ARRAYS };

typedef struct stream {
    const section *config;
    d9d_arena arena; /* names of files */
    d9d_tokenizer *tokenizer;
    d9d_tokenizer_scratch *scratch;
    int64_t eos; /* -1: none */
    d9d_hash hash;
    pthread_mutex_t lock; /* of what follows */
    d9di_line_stream *lines;
    place at;
    bool check;        /* the next line is that of `at`, which the run went on from */
    d9d_buf text;      /* of the newest line */
    d9d_token_ids raw; /* its tokens */
    d9d_token_ids ids; /* and those with others around them */
    D9D_VEC(row) rows; /* [first, first + rows.len) of the stream; the last one may be unfinished */
    D9D_VEC(int32_t *) idle; /* memory of forgotten rows */
    int64_t first;
    int64_t filled; /* positions of the last one */
    int32_t document;
    bool ended;
    d9d_err_copy failed; /* a stream that failed fails again */
} stream;

/* --- opening ------------------------------------------------------------------------------- */

static d9d_status tokenizer_open(stream *s)
{
    const char *path = s->config->tokenizer;
    const char *file = d9d_fs_is_dir(path) ? d9d_fs_join(&s->arena, path, "tokenizer.json") : path;
    uint32_t id;

    if (file == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: the name of its tokenizer", path);
    D9D_TRY(d9d_tokenizer_load(file, &s->tokenizer));
    D9D_TRY(d9d_tokenizer_scratch_create(s->tokenizer, &s->scratch));
    s->eos = -1;
    if (s->config->append_eos == NULL)
        return D9D_OK;
    if (!d9d_tokenizer_find(s->tokenizer, s->config->append_eos, strlen(s->config->append_eos),
                            &id))
        return D9D_FAIL(D9D_ECONFIG, "%s: has no token \"%s\", which append_eos names", file,
                        s->config->append_eos);
    s->eos = id;
    return D9D_OK;
}

static void stream_close(void *self)
{
    stream *s = self;

    d9di_line_stream_close(s->lines);
    d9d_tokenizer_scratch_free(s->scratch);
    d9d_tokenizer_free(s->tokenizer);
    d9d_buf_release(&s->text);
    D9D_VEC_RELEASE(&s->raw);
    D9D_VEC_RELEASE(&s->ids);
    for (size_t i = 0; i < s->rows.len; i++)
        free(s->rows.data[i].data);
    for (size_t i = 0; i < s->idle.len; i++)
        free(s->idle.data[i]);
    D9D_VEC_RELEASE(&s->rows);
    D9D_VEC_RELEASE(&s->idle);
    d9d_arena_release(&s->arena);
    (void)pthread_mutex_destroy(&s->lock);
    free(s);
}

/* What decides the rows, beside the texts. */
static d9d_hash hash_of(const stream *s)
{
    const section *c = s->config;
    const struct {
        d9d_hash tokenizer, key;
        int64_t eos, special;
    } all = {.tokenizer = d9d_tokenizer_hash(s->tokenizer),
             .key = d9d_hash_bytes(c->text_key, strlen(c->text_key)),
             .eos = s->eos,
             .special = c->add_special_tokens};

    return d9d_hash_bytes(&all, sizeof(all));
}

static d9d_status stream_open(const void *config, void **self)
{
    stream *s = calloc(1, sizeof(*s));
    d9d_status st;

    if (s == NULL)
        return D9D_FAIL(D9D_ENOMEM, "a stream");
    s->config = config;
    (void)pthread_mutex_init(&s->lock, NULL);
    st = tokenizer_open(s);
    if (st == D9D_OK)
        st = d9di_line_stream_open(s->config->path, s->config->follow, &s->lines);
    if (st != D9D_OK) {
        stream_close(s);
        return st;
    }
    s->hash = hash_of(s);
    *self = s;
    return D9D_OK;
}

static d9d_status stream_info(void *self, d9d_dataset_info *out)
{
    const stream *s = self;

    *out = (d9d_dataset_info){.samples = D9D_DATASET_STREAM,
                              .longest = s->config->length,
                              .vocab = d9d_tokenizer_vocab_size(s->tokenizer),
                              .hash = s->hash};
    return D9D_OK;
}

/* --- texts --------------------------------------------------------------------------------- */

static d9d_status fail_line(const stream *s, const d9di_line *line, size_t at, const char *what)
{
    const bool one = strcmp(line->file, s->config->path) == 0;

    return D9D_FAIL(D9D_EFORMAT, "%s%s%s: byte %lld, in the line at byte %lld: %s", s->config->path,
                    one ? "" : "/", one ? "" : line->file, (long long)(line->offset + (int64_t)at),
                    (long long)line->offset, what);
}

static d9d_status tokenise(stream *s, const d9di_line *line)
{
    const size_t valid = d9d_utf8_valid_up_to(line->text, line->n);
    d9di_jsonl_error error;

    s->text.len = s->raw.len = s->ids.len = 0;
    if (valid < line->n)
        return fail_line(s, line, valid, "is no UTF-8");
    if (d9di_jsonl_get_text(line->text, line->n, s->config->text_key, &s->text, &error) != D9D_OK)
        return fail_line(s, line, error.offset, error.message);
    if (d9d_tokenizer_encode(s->tokenizer, s->scratch, s->text.data != NULL ? s->text.data : "",
                             s->text.len, &s->raw) != D9D_OK)
        return fail_line(s, line, 0, d9d_err_message());
    if (s->config->add_special_tokens)
        D9D_TRY(d9d_tokenizer_add_special(s->tokenizer, &s->raw, NULL, &s->ids));
    else
        for (size_t i = 0; i < s->raw.len; i++)
            D9D_TRY(D9D_VEC_PUSH(&s->ids, s->raw.data[i]));
    return s->eos >= 0 ? D9D_VEC_PUSH(&s->ids, (uint32_t)s->eos) : D9D_OK;
}

/* The line at which a resumed run goes on must be the one that it was. */
static d9d_status check_line(const stream *s, const d9di_line *line)
{
    if (d9d_hash_u64(line->text, line->n) == s->at.hash)
        return D9D_OK;
    return D9D_FAIL(D9D_EMISMATCH,
                    "%s: the line at byte %lld of %s is another one than when the run was saved",
                    s->config->path, (long long)line->offset, line->file);
}

/* Reads the next line; a blank one has no tokens. */
static d9d_status text_next(stream *s, d9di_line_state *state)
{
    d9di_line line;
    size_t i = 0;

    D9D_TRY(d9di_line_stream_next(s->lines, &line));
    *state = line.state;
    if (line.state != D9DI_LINE_FOUND)
        return D9D_OK;
    if (s->check)
        D9D_TRY(check_line(s, &line));
    else
        s->at = (place){.file = s->at.file, .offset = line.offset};
    s->check = false;
    s->at.hash = d9d_hash_u64(line.text, line.n);
    if (s->at.file == NULL || strcmp(s->at.file, line.file) != 0)
        s->at.file = d9d_arena_strdup(&s->arena, line.file);
    if (s->at.file == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: the name of a file", s->config->path);
    while (i < line.n && strchr(" \t\r", line.text[i]) != NULL)
        i++;
    s->ids.len = 0;
    return i == line.n ? D9D_OK : tokenise(s, &line);
}

/* --- rows ---------------------------------------------------------------------------------- */

static int64_t last_row(const stream *s)
{
    return s->first + (int64_t)s->rows.len - 1;
}

static d9d_status row_begin(stream *s)
{
    row r = {.begin = s->at};

    if (s->idle.len > 0)
        r.data = s->idle.data[--s->idle.len];
    else
        r.data = malloc((size_t)(ARRAYS * s->config->length) * sizeof(*r.data));
    if (r.data == NULL || D9D_VEC_PUSH(&s->rows, r) != D9D_OK) {
        free(r.data);
        return D9D_FAIL(D9D_ENOMEM, "%s: %zu rows of %lld positions", s->config->path,
                        s->rows.len + 1, (long long)s->config->length);
    }
    s->filled = 0;
    s->document = 0;
    return D9D_OK;
}

/* Puts what is left of the text into the row, as far as it goes. */
static void row_fill(stream *s)
{
    const int64_t length = s->config->length, left = (int64_t)s->ids.len - 1 - s->at.used,
                  n = left < length - s->filled ? left : length - s->filled;
    int32_t *data = s->rows.data[s->rows.len - 1].data + s->filled;

    if (n <= 0)
        return;
    s->document++;
    for (int64_t i = 0; i < n; i++) {
        data[IDS * length + i] = (int32_t)s->ids.data[s->at.used + i];
        data[LABELS * length + i] = (int32_t)s->ids.data[s->at.used + i + 1];
        data[DOCUMENTS * length + i] = s->document;
    }
    s->filled += n;
    s->at.used += n;
}

/* Reads on until row k is whole, nothing more is there, or the stream has ended. */
static d9d_status read_to(stream *s, int64_t k)
{
    d9di_line_state state = D9DI_LINE_FOUND;

    while (state == D9DI_LINE_FOUND &&
           (last_row(s) < k || (last_row(s) == k && s->filled < s->config->length))) {
        if (s->rows.len == 0 || s->filled == s->config->length)
            D9D_TRY(row_begin(s));
        if ((int64_t)s->ids.len - 1 <= s->at.used)
            D9D_TRY(text_next(s, &state));
        if (state == D9DI_LINE_FOUND)
            row_fill(s);
    }
    s->ended = s->ended || state == D9DI_LINE_ENDED;
    return D9D_OK;
}

static d9d_dataset_presence presence_of(const stream *s, int64_t k)
{
    const bool whole = s->filled == s->config->length;

    if (s->rows.len > 0 && (k < last_row(s) || (k == last_row(s) && whole)))
        return D9D_DATASET_PRESENT;
    return s->ended ? D9D_DATASET_ENDED : D9D_DATASET_PENDING;
}

static d9d_status stream_poll(void *self, int64_t k, d9d_dataset_presence *out)
{
    stream *s = self;
    d9d_status st;

    (void)pthread_mutex_lock(&s->lock);
    st = s->failed.st != D9D_OK                     ? d9d_err_restore(&s->failed)
         : presence_of(s, k) == D9D_DATASET_PENDING ? read_to(s, k)
                                                    : D9D_OK;
    if (st != D9D_OK)
        d9d_err_save(&s->failed, st);
    else
        *out = presence_of(s, k);
    (void)pthread_mutex_unlock(&s->lock);
    return st;
}

/* Copies an array of row k. */
static d9d_status copy_array(stream *s, int64_t k, int array, int64_t length, int32_t *out)
{
    bool there;

    (void)pthread_mutex_lock(&s->lock);
    there = k >= s->first && presence_of(s, k) == D9D_DATASET_PRESENT;
    if (there)
        memcpy(out, s->rows.data[k - s->first].data + array * s->config->length,
               (size_t)length * sizeof(*out));
    (void)pthread_mutex_unlock(&s->lock);
    return there ? D9D_OK
                 : D9D_FAIL(D9D_EINVAL, "%s: row %lld is not there any more", s->config->path,
                            (long long)k);
}

static d9d_status stream_sample(void *self, int64_t k, int64_t length, int32_t *ids,
                                int32_t *labels)
{
    D9D_TRY(copy_array(self, k, IDS, length, ids));
    return copy_array(self, k, LABELS, length, labels);
}

static d9d_status stream_documents(void *self, int64_t k, int64_t length, int32_t *number)
{
    return copy_array(self, k, DOCUMENTS, length, number);
}

/* All rows but the last one are whole. */
static void stream_forget(void *self, int64_t k)
{
    stream *s = self;
    int64_t n;

    (void)pthread_mutex_lock(&s->lock);
    n = k - s->first < (int64_t)s->rows.len - 1 ? k - s->first : (int64_t)s->rows.len - 1;
    for (int64_t i = 0; i < n; i++)
        if (D9D_VEC_PUSH(&s->idle, s->rows.data[i].data) != D9D_OK)
            free(s->rows.data[i].data);
    if (n > 0) {
        memmove(s->rows.data, s->rows.data + n, (s->rows.len - (size_t)n) * sizeof(*s->rows.data));
        s->rows.len -= (size_t)n;
        s->first += n;
    }
    (void)pthread_mutex_unlock(&s->lock);
}

/* --- state: "OFFSET USED HASH FILE" -------------------------------------------------------------
 */

static d9d_status stream_tell(void *self, int64_t k, d9d_buf *state)
{
    stream *s = self;
    place p = {.file = NULL};
    d9d_status st = D9D_OK;

    (void)pthread_mutex_lock(&s->lock);
    if (s->rows.len > 0 && k >= s->first && k <= last_row(s))
        p = s->rows.data[k - s->first].begin;
    else if (k == last_row(s) + 1)
        p = s->at; /* all rows are whole */
    else
        st = D9D_FAIL(D9D_EINVAL, "%s: row %lld, of rows from %lld on", s->config->path,
                      (long long)k, (long long)s->first);
    (void)pthread_mutex_unlock(&s->lock);
    D9D_TRY(st);
    return d9d_buf_printf(state, "%" PRId64 " %" PRId64 " %016" PRIx64 " %s", p.offset, p.used,
                          p.hash, p.file != NULL ? p.file : "");
}

static d9d_status stream_seek(void *self, int64_t k, const void *state, size_t n)
{
    stream *s = self;
    const char *text = d9d_arena_strndup(&s->arena, state, n);
    place p = {.file = NULL};
    int name = 0;

    if (text == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: its state", s->config->path);
    if (sscanf(text, "%" SCNd64 " %" SCNd64 " %" SCNx64 " %n", &p.offset, &p.used, &p.hash,
               &name) != 3 ||
        name == 0 || p.offset < 0 || p.used < 0)
        return D9D_FAIL(D9D_EFORMAT, "%s: \"%s\" is no state of a stream", s->config->path, text);
    s->first = k;
    if (text[name] == '\0')
        return D9D_OK;
    p.file = text + name;
    D9D_TRY(d9di_line_stream_seek(s->lines, p.file, p.offset));
    s->at = p;
    s->check = true;
    return D9D_OK;
}

static const d9d_dataset_kind stream_kind = {.size = sizeof(stream_kind),
                                             .table = &d9di_text_stream_table,
                                             .open = stream_open,
                                             .close = stream_close,
                                             .info = stream_info,
                                             .sample = stream_sample,
                                             .documents = stream_documents,
                                             .poll = stream_poll,
                                             .forget = stream_forget,
                                             .tell = stream_tell,
                                             .seek = stream_seek};
