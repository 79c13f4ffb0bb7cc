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

/* A text, from when its line is read until no row needs it. */
typedef struct stream_text {
    place at;
    char *line; /* [n]; NULL once it has tokens */
    size_t n;
    uint32_t *ids;  /* [tokens], or NULL: not tokenised here */
    int64_t tokens; /* -1: not known */
} stream_text;

/* What is before `used` positions of a text is in earlier rows. */
typedef struct row {
    place begin;
    int64_t text; /* its number */
} row;

enum { IDS, LABELS, DOCUMENTS };

typedef struct stream {
    const section *config;
    d9d_arena arena; /* names of files */
    d9d_tokenizer *tokenizer;
    d9d_tokenizer_scratch *scratch;
    int64_t eos; /* -1: none */
    d9d_hash hash;
    pthread_mutex_t lock; /* of what follows */
    d9di_line_stream *lines;
    bool check;                 /* the next line is that of `at`, which the run went on from */
    d9d_buf plain;              /* of the newest text */
    d9d_token_ids raw;          /* its tokens */
    d9d_token_ids ids;          /* and those with others around them */
    D9D_VEC(stream_text) texts; /* numbered from first_text on */
    int64_t first_text;
    int64_t known;     /* texts before this number have a length that all ranks know */
    D9D_VEC(row) rows; /* [first, first + rows.len) of the stream; the last one may be unfinished */
    int64_t first;
    int64_t filled;      /* positions of the last one */
    place at;            /* where the rows end so far */
    int64_t next;        /* number of the text that goes on there */
    bool surveyed;       /* lengths come from surveys: poll() reads nothing */
    bool all_read;       /* there is no further line */
    bool ended;          /* on every rank */
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

static void text_release(stream_text *t)
{
    free(t->line);
    free(t->ids);
    *t = (stream_text){.tokens = -1};
}

static void stream_close(void *self)
{
    stream *s = self;

    d9di_line_stream_close(s->lines);
    d9d_tokenizer_scratch_free(s->scratch);
    d9d_tokenizer_free(s->tokenizer);
    d9d_buf_release(&s->plain);
    D9D_VEC_RELEASE(&s->raw);
    D9D_VEC_RELEASE(&s->ids);
    for (size_t i = 0; i < s->texts.len; i++)
        text_release(&s->texts.data[i]);
    D9D_VEC_RELEASE(&s->texts);
    D9D_VEC_RELEASE(&s->rows);
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

static d9d_status fail_line(const stream *s, const place *at, size_t byte, const char *what)
{
    const bool one = strcmp(at->file, s->config->path) == 0;

    return D9D_FAIL(D9D_EFORMAT, "%s%s%s: byte %lld, in the line at byte %lld: %s", s->config->path,
                    one ? "" : "/", one ? "" : at->file, (long long)(at->offset + (int64_t)byte),
                    (long long)at->offset, what);
}

/* The line's tokens in s->ids. */
static d9d_status line_tokenise(stream *s, const stream_text *x)
{
    const size_t valid = d9d_utf8_valid_up_to(x->line, x->n);
    d9di_jsonl_error error;

    s->plain.len = s->raw.len = s->ids.len = 0;
    if (valid < x->n)
        return fail_line(s, &x->at, valid, "is no UTF-8");
    if (d9di_jsonl_get_text(x->line, x->n, s->config->text_key, &s->plain, &error) != D9D_OK)
        return fail_line(s, &x->at, error.offset, error.message);
    if (d9d_tokenizer_encode(s->tokenizer, s->scratch, s->plain.data != NULL ? s->plain.data : "",
                             s->plain.len, &s->raw) != D9D_OK)
        return fail_line(s, &x->at, 0, d9d_err_message());
    if (s->config->add_special_tokens)
        D9D_TRY(d9d_tokenizer_add_special(s->tokenizer, &s->raw, NULL, &s->ids));
    else
        for (size_t i = 0; i < s->raw.len; i++)
            D9D_TRY(D9D_VEC_PUSH(&s->ids, s->raw.data[i]));
    return s->eos >= 0 ? D9D_VEC_PUSH(&s->ids, (uint32_t)s->eos) : D9D_OK;
}

/* Gives a text its tokens. */
static d9d_status text_tokenise(stream *s, stream_text *x)
{
    uint32_t *ids;

    if (x->ids != NULL || x->tokens == 0)
        return D9D_OK;
    D9D_TRY(line_tokenise(s, x));
    ids = malloc((s->ids.len + 1) * sizeof(*ids));
    if (ids == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: a text of %zu tokens", s->config->path, s->ids.len);
    if (s->ids.len > 0)
        memcpy(ids, s->ids.data, s->ids.len * sizeof(*ids));
    free(x->line);
    x->line = NULL;
    x->ids = ids;
    x->tokens = (int64_t)s->ids.len;
    return D9D_OK;
}

/* The line at which a resumed run goes on must be the one that it was. */
static d9d_status check_line(const stream *s, const d9di_line *line, uint64_t hash)
{
    if (hash == s->at.hash)
        return D9D_OK;
    return D9D_FAIL(D9D_EMISMATCH,
                    "%s: the line at byte %lld of %s is another one than when the run was saved",
                    s->config->path, (long long)line->offset, line->file);
}

static bool is_blank(const d9di_line *line)
{
    size_t i = 0;

    while (i < line->n && strchr(" \t\r", line->text[i]) != NULL)
        i++;
    return i == line->n;
}

/* Keeps a line as the next text; a blank one has no tokens. */
static d9d_status text_add(stream *s, const d9di_line *line)
{
    const char *last = s->texts.len > 0 ? s->texts.data[s->texts.len - 1].at.file : s->at.file;
    stream_text x = {.tokens = is_blank(line) ? 0 : -1, .n = line->n};

    x.at = (place){.file = last, .offset = line->offset, .hash = d9d_hash_u64(line->text, line->n)};
    if (last == NULL || strcmp(last, line->file) != 0)
        x.at.file = d9d_arena_strdup(&s->arena, line->file);
    if (s->check) {
        D9D_TRY(check_line(s, line, x.at.hash));
        s->at.file = x.at.file; /* whatever it was called when the run was saved */
    }
    s->check = false;
    x.line = malloc(line->n + 1);
    if (x.at.file == NULL || x.line == NULL || D9D_VEC_PUSH(&s->texts, x) != D9D_OK) {
        free(x.line);
        return D9D_FAIL(D9D_ENOMEM, "%s: a line of %zu bytes", s->config->path, line->n);
    }
    memcpy(s->texts.data[s->texts.len - 1].line, line->text, line->n);
    return D9D_OK;
}

static int64_t texts_end(const stream *s)
{
    return s->first_text + (int64_t)s->texts.len;
}

static stream_text *text_at(const stream *s, int64_t number)
{
    return &s->texts.data[number - s->first_text];
}

/* Reads lines until there is text number `end` - 1, or `bytes` of them, or nothing more is there.
 */
static d9d_status texts_read(stream *s, int64_t end, size_t bytes)
{
    d9di_line line = {.state = D9DI_LINE_FOUND};
    size_t read = 0;

    while (texts_end(s) < end && read < bytes && line.state == D9DI_LINE_FOUND) {
        D9D_TRY(d9di_line_stream_next(s->lines, &line));
        if (line.state == D9DI_LINE_FOUND)
            D9D_TRY(text_add(s, &line));
        read += line.n;
    }
    s->all_read = s->all_read || line.state == D9DI_LINE_ENDED;
    return D9D_OK;
}

/* --- rows ---------------------------------------------------------------------------------- */

static int64_t last_row(const stream *s)
{
    return s->first + (int64_t)s->rows.len - 1;
}

static d9d_status row_begin(stream *s)
{
    if (D9D_VEC_PUSH(&s->rows, ((row){.begin = s->at, .text = s->next})) != D9D_OK)
        return D9D_FAIL(D9D_ENOMEM, "%s: %zu rows", s->config->path, s->rows.len + 1);
    s->filled = 0;
    return D9D_OK;
}

/* Puts the texts whose length is known into rows. */
static d9d_status rows_fill(stream *s)
{
    const int64_t length = s->config->length;

    while (s->next < s->known) {
        const stream_text *x = text_at(s, s->next);
        int64_t left, n;

        if (s->at.file != x->at.file || s->at.offset != x->at.offset)
            s->at = x->at;
        left = x->tokens - 1 - s->at.used;
        if (left <= 0) {
            s->next++;
            continue;
        }
        if (s->rows.len == 0 || s->filled == length)
            D9D_TRY(row_begin(s));
        n = left < length - s->filled ? left : length - s->filled;
        s->filled += n;
        s->at.used += n;
    }
    return D9D_OK;
}

static d9d_dataset_presence presence_of(const stream *s, int64_t k)
{
    const bool whole = s->filled == s->config->length;

    if (s->rows.len > 0 && (k < last_row(s) || (k == last_row(s) && whole)))
        return D9D_DATASET_PRESENT;
    return s->ended ? D9D_DATASET_ENDED : D9D_DATASET_PENDING;
}

/* Reads on until row k is whole, nothing more is there, or the stream has ended. */
static d9d_status read_to(stream *s, int64_t k)
{
    int64_t before = -1;

    while (presence_of(s, k) == D9D_DATASET_PENDING && before < texts_end(s)) {
        before = texts_end(s);
        D9D_TRY(texts_read(s, s->known + 1, SIZE_MAX));
        if (s->known < texts_end(s))
            D9D_TRY(text_tokenise(s, text_at(s, s->known++)));
        D9D_TRY(rows_fill(s));
        s->ended = s->all_read;
    }
    return D9D_OK;
}

static d9d_status stream_poll(void *self, int64_t k, d9d_dataset_presence *out)
{
    stream *s = self;
    d9d_status st = D9D_OK;

    (void)pthread_mutex_lock(&s->lock);
    if (s->failed.st != D9D_OK)
        st = d9d_err_restore(&s->failed);
    else if (!s->surveyed)
        st = read_to(s, k);
    if (st != D9D_OK)
        d9d_err_save(&s->failed, st);
    else
        *out = presence_of(s, k);
    (void)pthread_mutex_unlock(&s->lock);
    return st;
}

/* Writes the first `length` positions of an array of a row. */
static d9d_status row_write(stream *s, const row *r, int array, int64_t length, int32_t *out)
{
    int64_t number = r->text, used = r->begin.used, at = 0, document = 0;

    for (; at < length; number++, used = 0) {
        stream_text *x = text_at(s, number);

        D9D_TRY(text_tokenise(s, x));
        document += used < x->tokens - 1;
        for (; at < length && used < x->tokens - 1; at++, used++)
            out[at] =
                array == DOCUMENTS ? (int32_t)document : (int32_t)x->ids[used + (array == LABELS)];
    }
    return D9D_OK;
}

static d9d_status copy_array(stream *s, int64_t k, int array, int64_t length, int32_t *out)
{
    d9d_status st;

    (void)pthread_mutex_lock(&s->lock);
    st = k >= s->first && presence_of(s, k) == D9D_DATASET_PRESENT
             ? row_write(s, &s->rows.data[k - s->first], array, length, out)
             : D9D_FAIL(D9D_EINVAL, "%s: row %lld is not there any more", s->config->path,
                        (long long)k);
    (void)pthread_mutex_unlock(&s->lock);
    return st;
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

/* Drops the texts before the first row's. */
static void texts_forget(stream *s)
{
    const size_t n = s->rows.len > 0 ? (size_t)(s->rows.data[0].text - s->first_text) : 0;

    for (size_t i = 0; i < n; i++)
        text_release(&s->texts.data[i]);
    if (n > 0)
        memmove(s->texts.data, s->texts.data + n, (s->texts.len - n) * sizeof(*s->texts.data));
    s->texts.len -= n;
    s->first_text += (int64_t)n;
}

/* All rows but the last one are whole. */
static void stream_forget(void *self, int64_t k)
{
    stream *s = self;
    int64_t n;

    (void)pthread_mutex_lock(&s->lock);
    n = k - s->first < (int64_t)s->rows.len - 1 ? k - s->first : (int64_t)s->rows.len - 1;
    if (n > 0) {
        memmove(s->rows.data, s->rows.data + n, (s->rows.len - (size_t)n) * sizeof(*s->rows.data));
        s->rows.len -= (size_t)n;
        s->first += n;
        texts_forget(s);
    }
    (void)pthread_mutex_unlock(&s->lock);
}

/* --- surveys: lengths of texts that ranks count in turns ----------------------------------------
 *
 * Text number i is counted by rank i mod n.  A rank's message has a count for each text of its own
 * from `known` on, as far as it has read; all ranks read the same lines, some further than others.
 * Known is then what all have read and somebody has counted, up to the first that cannot be
 * counted.  The stream has ended where all ranks have read as far and see no further line. */

typedef struct survey {
    int64_t end;      /* number of the first text that the rank has not read */
    int64_t all_read; /* there is none */
} survey;

typedef struct count {
    int32_t tokens; /* -1: cannot be counted */
    uint32_t hash;  /* of the line */
} count;

static uint32_t short_hash(const stream_text *x)
{
    return (uint32_t)(x->at.hash ^ x->at.hash >> 32);
}

enum { SURVEY_TEXTS = 16, SURVEY_BYTES = 1 << 25 }; /* of each rank; read ahead */

/* The first own text from `known` on. */
static int64_t first_own(const stream *s, int rank, int ranks)
{
    return s->known + (rank - s->known % ranks + ranks) % ranks;
}

/* A text that is damaged is an error where the next row needs it. */
static d9d_status own_count(stream *s, int64_t number, bool needed, count *out)
{
    stream_text *x = text_at(s, number);
    const d9d_status st = text_tokenise(s, x);

    if (st != D9D_OK && (st != D9D_EFORMAT || (needed && number == s->known)))
        return st;
    *out = (count){st == D9D_OK ? (int32_t)x->tokens : -1, short_hash(x)};
    return D9D_OK;
}

static d9d_status survey_make(stream *s, int rank, int ranks, bool needed, d9d_buf *out)
{
    survey head;

    D9D_TRY(texts_read(s, s->known + (int64_t)SURVEY_TEXTS * ranks, SURVEY_BYTES));
    head = (survey){.end = texts_end(s), .all_read = s->all_read};
    D9D_TRY(d9d_buf_append(out, &head, sizeof(head)));
    for (int64_t i = first_own(s, rank, ranks); i < head.end; i += ranks) {
        count n;

        D9D_TRY(own_count(s, i, needed, &n));
        D9D_TRY(d9d_buf_append(out, &n, sizeof(n)));
        if (n.tokens < 0)
            break;
    }
    return D9D_OK;
}

static void stream_share(void *self)
{
    stream *s = self;

    (void)pthread_mutex_lock(&s->lock);
    s->surveyed = true;
    (void)pthread_mutex_unlock(&s->lock);
}

static d9d_status stream_survey(void *self, int rank, int ranks, bool needed, d9d_buf *out)
{
    stream *s = self;
    d9d_status st;

    (void)pthread_mutex_lock(&s->lock);
    st = s->failed.st != D9D_OK ? d9d_err_restore(&s->failed)
                                : survey_make(s, rank, ranks, needed, out);
    if (st != D9D_OK)
        d9d_err_save(&s->failed, st);
    (void)pthread_mutex_unlock(&s->lock);
    return st;
}

/* The count of text `number` by its rank's message; of -1 tokens: it has none. */
static count count_of(const stream *s, const d9d_dataset_survey *all, int ranks, int64_t number)
{
    const int owner = (int)(number % ranks);
    const size_t i = (size_t)((number - first_own(s, owner, ranks)) / ranks);
    count n = {.tokens = -1};

    if (sizeof(survey) + (i + 1) * sizeof(n) <= all[owner].n)
        memcpy(&n, (const char *)all[owner].data + sizeof(survey) + i * sizeof(n), sizeof(n));
    return n;
}

/* How far all ranks have read, and how far the first of them. */
typedef struct extent {
    int64_t all, any;
    bool all_read; /* none of them sees a further line */
} extent;

static d9d_status surveys_extent(const stream *s, const d9d_dataset_survey *all, int ranks,
                                 extent *out)
{
    *out = (extent){.all = INT64_MAX, .all_read = true};
    for (int r = 0; r < ranks; r++) {
        survey head;

        if (all[r].n < sizeof(head))
            return D9D_FAIL(D9D_EINVAL, "%s: rank %d sent %zu bytes about the stream",
                            s->config->path, r, all[r].n);
        memcpy(&head, all[r].data, sizeof(head));
        out->all = head.end < out->all ? head.end : out->all;
        out->any = head.end > out->any ? head.end : out->any;
        out->all_read = out->all_read && head.all_read;
    }
    return D9D_OK;
}

/* Text `number` has as many tokens as its rank says, and is the one that it has. */
static d9d_status set_count(stream *s, int64_t number, const count *n, int ranks)
{
    stream_text *x = text_at(s, number);

    if (n->hash != short_hash(x))
        return D9D_FAIL(D9D_EMISMATCH,
                        "%s: the line at byte %lld of %s is another one on rank %d: all ranks must "
                        "read the same files",
                        s->config->path, (long long)x->at.offset, x->at.file,
                        (int)(number % ranks));
    x->tokens = n->tokens;
    return D9D_OK;
}

static d9d_status surveys_apply(stream *s, const d9d_dataset_survey *all, int ranks, bool *more)
{
    int64_t known = s->known;
    extent e;

    D9D_TRY(surveys_extent(s, all, ranks, &e));
    for (; known < e.all; known++) {
        const count n = count_of(s, all, ranks, known);

        if (n.tokens < 0)
            break;
        D9D_TRY(set_count(s, known, &n, ranks));
    }
    *more = known > s->known;
    s->known = known; /* which the messages count from until here */
    s->ended = e.all_read && known == e.any;
    return rows_fill(s);
}

static d9d_status stream_set_surveys(void *self, const d9d_dataset_survey *all, int ranks,
                                     bool *more)
{
    stream *s = self;
    d9d_status st;

    (void)pthread_mutex_lock(&s->lock);
    st = surveys_apply(s, all, ranks, more);
    if (st != D9D_OK)
        d9d_err_save(&s->failed, st);
    (void)pthread_mutex_unlock(&s->lock);
    return st;
}

/* --- state: "OFFSET USED HASH FILE", of one file that is the stream its name without folders ----
 */

static const char *file_of_state(const char *file)
{
    const char *slash = file != NULL ? strrchr(file, '/') : NULL;

    return slash != NULL ? slash + 1 : file != NULL ? file : "";
}

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
                          p.hash, file_of_state(p.file));
}

static d9d_status stream_seek(void *self, int64_t k, const void *state, size_t n)
{
    stream *s = self;
    const char *text = d9d_arena_strndup(&s->arena, state, n);
    place p = {.file = NULL};
    int name = 0;

    if (text == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: its state", s->config->path);
    if (sscanf(text, "%" SCNd64 " %" SCNd64 " %" SCNx64 "%n", &p.offset, &p.used, &p.hash, &name) !=
            3 ||
        text[name++] != ' ' || p.offset < 0 || p.used < 0)
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
                                             .seek = stream_seek,
                                             .share = stream_share,
                                             .survey = stream_survey,
                                             .set_surveys = stream_set_surveys};
