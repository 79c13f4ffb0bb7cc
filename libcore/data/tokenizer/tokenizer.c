/* tokenizer.c - loads a tokenizer.json, encodes and decodes. */
#include "d9d/data/tokenizer/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/fs.h"
#include "d9d/base/json.h"
#include "data/tokenizer/added_tokens.h"
#include "data/tokenizer/bpe.h"
#include "data/tokenizer/decoder.h"
#include "data/tokenizer/normalize.h"
#include "data/tokenizer/pretok.h"
#include "data/tokenizer/tokenizer_component.h"
#include "data/tokenizer/tokenizer_private.h"

#define MAX_FILE (UINT64_C(64) << 20)

enum {
    LOG2_CACHE_SLOTS = 17, /* cached pre-tokens of a thread: 6 MiB */
    READ_SLACK = D9DI_BPE_SLACK
};

struct added {
    const char *text; /* search text: normalised if the token is */
    size_t len;
    uint32_t id;
    bool special;
};

/* The bytes that decoding writes for an id. */
struct decoded {
    const char *bytes; /* NULL: unused id; READ_SLACK bytes more than `len` are readable */
    uint32_t len;
    bool special;
};

struct d9d_tokenizer {
    d9d_hash hash;
    d9di_bpe model;
    d9di_normalizer *normalizer;
    d9di_pretok *pretok;
    d9di_tokenizer_decoder decoder;
    d9di_added_tokens raw, normalized; /* added tokens, by the text in which they are searched */
    D9D_VEC(struct added) added;
    struct decoded *decoded; /* by id */
    d9d_map by_content;      /* token text to index + 1 */
    d9d_arena arena;
    uint32_t vocab_size;
    const char *ignored; /* ignored parts of the file */
};

struct d9d_tokenizer_scratch {
    d9di_split_pattern_matcher *matcher;
    d9di_normalizer_scratch normalizer;
    d9di_pretok_scratch pretok;
    d9di_bpe_scratch model;
};

/* --- loading ---------------------------------------------------------------------- */

/* The id that HF assigns to the next added token: that of its text if it has one, otherwise the
 * next unused id. */
static uint32_t expected_id(const d9d_tokenizer *tok, const char *content, size_t len)
{
    uint32_t id = d9di_bpe_find_token(&tok->model, content, len), next = tok->model.n_entries;
    size_t i;

    if (id != D9DI_NO_ID)
        return id;
    for (i = 0; i < tok->added.len; i++)
        if (tok->added.data[i].id >= next)
            next = tok->added.data[i].id + 1;
    return next;
}

static d9d_status check_added_id(const d9d_tokenizer *tok, const char *where, const char *content,
                                 size_t len, uint32_t id)
{
    const uint32_t expected = expected_id(tok, content, len);

    if (id != expected)
        return D9D_FAIL(D9D_EFORMAT, "%s: \"%.80s\" has the id %u, its place gives it %u", where,
                        content, id, expected);
    if (id < tok->model.n_tokens && tok->model.tokens[id].text &&
        d9di_bpe_find_token(&tok->model, content, len) != id)
        return D9D_FAIL(D9D_EFORMAT, "%s: \"%.80s\" has the id %u, which is that of \"%.80s\"",
                        where, content, id, tok->model.tokens[id].text);
    return D9D_OK;
}

static d9d_status load_added_token(d9d_tokenizer *tok, const json_t *v, const char *where,
                                   d9di_normalizer_scratch *s)
{
    d9di_added_tokens_entry token;
    const char *content;
    bool normalized;
    char *copy;
    int64_t id;
    size_t len;

    if (!json_is_object(v))
        return D9D_FAIL(D9D_EFORMAT, "%s: must be an object", where);
    D9D_TRY(d9di_tokenizer_component_check_keys(
        v, where, "id content single_word lstrip rstrip normalized special"));
    D9D_TRY(d9d_json_get_i64(v, where, "id", 0, D9DI_MAX_VOCAB - 1, &id));
    D9D_TRY(d9d_json_get_str(v, where, "content", &content));
    D9D_TRY(d9di_tokenizer_component_get_flag(v, where, "special", false, &token.special));
    D9D_TRY(d9di_tokenizer_component_get_flag(v, where, "normalized", !token.special, &normalized));
    D9D_TRY(d9di_tokenizer_component_get_flag(v, where, "lstrip", false, &token.lstrip));
    D9D_TRY(d9di_tokenizer_component_get_flag(v, where, "rstrip", false, &token.rstrip));
    D9D_TRY(d9di_tokenizer_component_get_flag(v, where, "single_word", false, &token.single_word));
    len = strlen(content);
    if (len == 0)
        return D9D_OK; /* HF skips it too */
    if (d9d_map_has(&tok->by_content, content, len))
        return D9D_FAIL(D9D_EFORMAT, "%s: \"%.80s\" is given twice", where, content);
    token.id = (uint32_t)id;
    D9D_TRY(check_added_id(tok, where, content, len, token.id));

    /* The map stores the index as a pointer value. */
    D9D_TRY(d9d_map_put(&tok->by_content, content, len, (void *)(uintptr_t)(tok->added.len + 1)));
    if (normalized)
        D9D_TRY(d9di_normalizer_apply(tok->normalizer, s, content, len, &content, &len));
    copy = d9d_arena_alloc(&tok->arena, len + READ_SLACK);
    if (!copy)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", where);
    memcpy(copy, content, len);
    D9D_TRY(D9D_VEC_PUSH(&tok->added, ((struct added){copy, len, token.id, token.special})));
    return d9di_added_tokens_add(normalized ? &tok->normalized : &tok->raw, copy, len, token);
}

static d9d_status load_added(d9d_tokenizer *tok, const char *name, const json_t *list)
{
    d9di_normalizer_scratch s = {0};
    d9d_status st = D9D_OK;
    size_t i;

    if (!list || json_is_null(list))
        return D9D_OK;
    if (!json_is_array(list))
        return D9D_FAIL(D9D_EFORMAT, "%s: added_tokens: must be an array", name);
    D9D_TRY(d9di_split_pattern_matcher_create(&s.matcher));
    for (i = 0; i < json_array_size(list) && st == D9D_OK; i++) {
        char where[320];

        snprintf(where, sizeof(where), "%.255s: added_tokens[%zu]", name, i);
        st = load_added_token(tok, json_array_get(list, i), where, &s);
    }
    d9di_split_pattern_matcher_free(s.matcher);
    d9di_normalizer_scratch_release(&s);
    return st;
}

/* `bytes` stays readable beyond its end. */
static d9d_status set_decoded(d9d_tokenizer *tok, uint32_t id, const char *bytes, size_t n,
                              bool special)
{
    d9d_buf out = {0};
    d9d_status st;
    char *copy;

    if (!tok->model.chars && !tok->decoder.joins) { /* already spelled out */
        tok->decoded[id] = (struct decoded){bytes, (uint32_t)n, special};
        return D9D_OK;
    }
    D9D_TRY_OR(st, d9di_tokenizer_decoder_apply(&tok->decoder, bytes, n, &out), out);
    copy = d9d_arena_alloc(&tok->arena, out.len + READ_SLACK);
    if (!copy) {
        st = D9D_FAIL(D9D_ENOMEM, "no memory for %u tokens", tok->vocab_size);
        goto out;
    }
    memcpy(copy, out.data, out.len);
    tok->decoded[id] = (struct decoded){copy, (uint32_t)out.len, special};
out:
    d9d_buf_release(&out);
    return st;
}

static d9d_status index_decoded(d9d_tokenizer *tok, const char *name)
{
    const d9di_bpe *b = &tok->model;
    size_t i;

    tok->vocab_size = b->n_tokens;
    for (i = 0; i < tok->added.len; i++)
        if (tok->added.data[i].id >= tok->vocab_size)
            tok->vocab_size = tok->added.data[i].id + 1;
    if (tok->vocab_size == 0)
        return D9D_FAIL(D9D_EFORMAT, "%s: has no tokens", name);
    tok->decoded = calloc(tok->vocab_size, sizeof(*tok->decoded));
    if (!tok->decoded)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for %u tokens", name, tok->vocab_size);
    for (i = 0; i < b->n_tokens; i++) {
        const bool as_written = tok->decoder.joins;

        if (b->tokens[i].text)
            D9D_TRY(set_decoded(
                tok, (uint32_t)i, as_written ? b->tokens[i].text : b->bytes + b->byte_offset[i],
                as_written ? b->tokens[i].len : b->byte_offset[i + 1] - b->byte_offset[i], false));
    }
    for (i = 0; i < tok->added.len; i++) {
        const struct added *a = &tok->added.data[i];

        D9D_TRY(set_decoded(tok, a->id, a->text, a->len, a->special));
    }
    return D9D_OK;
}

/* Components that do not change the ids of a text: only their names are checked.  Truncation and
 * padding happen elsewhere. */
static d9d_status parse_ignored(const json_t *v, const char *where, void *into)
{
    (void)v;
    (void)where;
    (void)into;
    return D9D_OK;
}

static d9d_status parse_post_sequence(const json_t *v, const char *where, void *into);

static const d9di_tokenizer_component post_processors[] = {
    {"ByteLevel", "add_prefix_space trim_offsets use_regex", parse_ignored},
    {"TemplateProcessing", "single pair special_tokens", parse_ignored},
    {"Sequence", "processors", parse_post_sequence},
    {NULL, NULL, NULL},
};

static d9d_status parse_post_sequence(const json_t *v, const char *where, void *into)
{
    return d9di_tokenizer_component_parse_sequence(post_processors, v, where, "processors", into);
}

static d9d_status check_ignored(d9d_tokenizer *tok, const json_t *root, const char *name)
{
    static const struct {
        const char *key;
        const d9di_tokenizer_component *table; /* NULL: ignored */
    } parts[] = {{"post_processor", post_processors}, {"truncation", NULL}, {"padding", NULL}};
    char where[320];
    size_t i;

    for (i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        const json_t *v = json_object_get(root, parts[i].key);

        if (!v || json_is_null(v))
            continue;
        snprintf(where, sizeof(where), "%.255s: %s", name, parts[i].key);
        if (parts[i].table)
            D9D_TRY(d9di_tokenizer_component_parse(parts[i].table, v, where, NULL));
        else
            tok->ignored = tok->ignored ? "truncation and padding" : parts[i].key;
    }
    return D9D_OK;
}

static d9d_status load_components(d9d_tokenizer *tok, const char *name, const json_t *root)
{
    char where[320];

    if (!json_is_object(root))
        return D9D_FAIL(D9D_EFORMAT, "%s: must be an object", name);
    D9D_TRY(d9di_tokenizer_component_check_keys(
        root, name,
        "version truncation padding added_tokens normalizer pre_tokenizer "
        "post_processor decoder model"));
    D9D_TRY(check_ignored(tok, root, name));
    snprintf(where, sizeof(where), "%.255s: normalizer", name);
    D9D_TRY(d9di_normalizer_parse(json_object_get(root, "normalizer"), where, &tok->normalizer));
    snprintf(where, sizeof(where), "%.255s: pre_tokenizer", name);
    D9D_TRY(d9di_pretok_parse(json_object_get(root, "pre_tokenizer"), where, &tok->pretok));
    snprintf(where, sizeof(where), "%.255s: model", name);
    D9D_TRY(d9di_bpe_init(json_object_get(root, "model"), where,
                          !d9di_pretok_is_bytelevel(tok->pretok), &tok->model));
    snprintf(where, sizeof(where), "%.255s: decoder", name);
    D9D_TRY(d9di_tokenizer_decoder_parse(json_object_get(root, "decoder"), where, &tok->decoder));
    D9D_TRY(load_added(tok, name, json_object_get(root, "added_tokens")));
    return index_decoded(tok, name);
}

d9d_status d9d_tokenizer_parse(const char *name, const char *json, size_t n, d9d_tokenizer **out)
{
    json_t *root = NULL;
    d9d_tokenizer *tok = calloc(1, sizeof(*tok));
    d9d_status st;

    if (!tok)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", name);
    tok->hash = d9d_hash_bytes(json, n);
    D9D_TRY_OR(st, d9d_json_parse(name, json, n, &root), out);
    D9D_TRY_OR(st, load_components(tok, name, root), out);
    *out = tok;
    tok = NULL;
out:
    json_decref(root);
    d9d_tokenizer_free(tok);
    return st;
}

d9d_status d9d_tokenizer_load(const char *path, d9d_tokenizer **out)
{
    d9d_buf text = {0};
    d9d_status st;

    D9D_TRY(d9d_fs_read(path, MAX_FILE, &text));
    st = d9d_tokenizer_parse(path, text.data ? text.data : "", text.len, out);
    d9d_buf_release(&text);
    return st;
}

void d9d_tokenizer_free(d9d_tokenizer *tok)
{
    if (!tok)
        return;
    d9di_bpe_release(&tok->model);
    d9di_normalizer_free(tok->normalizer);
    d9di_pretok_free(tok->pretok);
    d9di_tokenizer_decoder_release(&tok->decoder);
    d9di_added_tokens_release(&tok->raw);
    d9di_added_tokens_release(&tok->normalized);
    D9D_VEC_RELEASE(&tok->added);
    free(tok->decoded);
    d9d_map_release(&tok->by_content);
    d9d_arena_release(&tok->arena);
    free(tok);
}

uint32_t d9d_tokenizer_vocab_size(const d9d_tokenizer *tok)
{
    return tok->vocab_size;
}

d9d_hash d9d_tokenizer_hash(const d9d_tokenizer *tok)
{
    return tok->hash;
}

const char *d9d_tokenizer_ignored(const d9d_tokenizer *tok)
{
    return tok->ignored;
}

bool d9d_tokenizer_find(const d9d_tokenizer *tok, const char *token, size_t len, uint32_t *out)
{
    const uintptr_t added = (uintptr_t)d9d_map_get(&tok->by_content, token, len);
    const uint32_t id =
        added ? tok->added.data[added - 1].id : d9di_bpe_find_token(&tok->model, token, len);

    if (id == D9DI_NO_ID)
        return false;
    *out = id;
    return true;
}

/* --- encoding ----------------------------------------------------------------------- */

d9d_status d9d_tokenizer_scratch_create(const d9d_tokenizer *tok, d9d_tokenizer_scratch **out)
{
    d9d_tokenizer_scratch *s = calloc(1, sizeof(*s));
    d9d_status st;

    (void)tok;
    if (!s)
        return D9D_FAIL(D9D_ENOMEM, "no memory to tokenise with");
    D9D_TRY_OR(st, d9di_split_pattern_matcher_create(&s->matcher), out);
    D9D_TRY_OR(st, d9di_bpe_scratch_init(&s->model, LOG2_CACHE_SLOTS), out);
    s->normalizer.matcher = s->pretok.matcher = s->matcher;
    *out = s;
    s = NULL;
out:
    d9d_tokenizer_scratch_free(s);
    return st;
}

void d9d_tokenizer_scratch_free(d9d_tokenizer_scratch *s)
{
    if (!s)
        return;
    d9di_normalizer_scratch_release(&s->normalizer);
    d9di_pretok_scratch_release(&s->pretok);
    d9di_bpe_scratch_release(&s->model);
    d9di_split_pattern_matcher_free(s->matcher);
    free(s);
}

struct encoding {
    const d9d_tokenizer *tok;
    d9d_tokenizer_scratch *s;
    d9d_token_ids *out;
    const char *raw;        /* start of the whole text */
    const char *normalized; /* its first stretch after normalisation; otherwise NULL */
    struct tracing *trace;  /* NULL: alignments are not tracked */
};

/* Alignment state for a text with zones. */
struct tracing {
    const d9di_tokenizer_zone *zones;
    size_t n_zones;
    d9di_alignments *spans;
    const char *raw_done; /* end of the last raw stretch or token */
    const char *stretch, *text,
        *done; /* a raw stretch, its normalised text, and the processed part of that */
};

/* The raw bytes that text[0, n), n > 0, comes from; it is part of the normalised stretch or of the
 * pre-tokeniser's rewrite. */
static d9di_alignment raw_range(const struct encoding *e, const char *text, size_t n)
{
    const d9di_pretok_scratch *p = &e->s->pretok;
    const d9di_alignment *normal = e->s->normalizer.input;
    const size_t base = (size_t)(e->trace->stretch - e->raw);
    const uintptr_t at = (uintptr_t)text - (uintptr_t)p->prefixed.data;
    size_t from, to;

    if (at < p->alignments.len) {
        const d9di_alignment *o = p->alignments.data + at;

        from = (size_t)(p->rewritten - e->trace->text) + o[0].from;
        to = (size_t)(p->rewritten - e->trace->text) + o[n - 1].to;
    } else {
        from = (size_t)(text - e->trace->text);
        to = from + n;
    }
    return (d9di_alignment){(uint32_t)(base + (normal ? normal[from].from : from)),
                            (uint32_t)(base + (normal ? normal[to - 1].to : to))};
}

static d9d_status encode_pretokens(void *arg, const d9di_pretoken *pretokens, size_t n,
                                   const char *end)
{
    const struct encoding *e = arg;

    return d9di_bpe_encode(&e->tok->model, &e->s->model, pretokens, n, end, e->out);
}

static d9d_status trace_pretoken(const struct encoding *e, const d9di_pretoken *pretoken,
                                 size_t first_id)
{
    size_t at = 0, skip;

    for (size_t i = first_id; i < e->out->len; i++) {
        const size_t w = d9di_bpe_token_bytes(&e->tok->model, pretoken->text + at, pretoken->n - at,
                                              e->out->data[i], &skip);

        D9D_TRY(D9D_VEC_PUSH(e->trace->spans,
                             w > 0 ? raw_range(e, pretoken->text + at + skip, w)
                                   : raw_range(e, pretoken->text + pretoken->n - 1, 1)));
        at += skip + w;
    }
    return D9D_OK;
}

static d9d_status encode_traced(void *arg, const d9di_pretoken *pretokens, size_t n,
                                const char *end)
{
    const struct encoding *e = arg;

    for (size_t i = 0; i < n; i++) {
        const size_t first_id = e->out->len;

        D9D_TRY(d9di_bpe_encode(&e->tok->model, &e->s->model, &pretokens[i], 1, end, e->out));
        D9D_TRY(trace_pretoken(e, &pretokens[i], first_id));
    }
    return D9D_OK;
}

/* Appends an added token between `done` and `end`. */
static d9d_status push_added_token(const struct encoding *e, uint32_t id, d9di_alignment span)
{
    D9D_TRY(D9D_VEC_PUSH(e->out, id));
    return e->trace ? D9D_VEC_PUSH(e->trace->spans, span) : D9D_OK;
}

static d9d_status encode_normalized(void *arg, const d9di_added_tokens_entry *token,
                                    const char *text, size_t n)
{
    const struct encoding *e = arg;
    const char *done = e->trace ? e->trace->done : NULL;

    if (e->trace)
        e->trace->done = text + n;
    if (token)
        return push_added_token(e, token->id,
                                done ? raw_range(e, done, (size_t)(text - done))
                                     : (d9di_alignment){0, 0});
    return d9di_pretok_run(e->tok->pretok, &e->s->pretok, text, n, text == e->normalized,
                           e->trace ? encode_traced : encode_pretokens, arg);
}

/* True if the bytes are inside one zone with added tokens. */
static bool is_in_added_zone(const struct tracing *t, d9di_alignment bytes)
{
    size_t lo = 0, hi = t->n_zones;

    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;

        if (t->zones[mid].end <= bytes.from)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < t->n_zones && t->zones[lo].added && bytes.to <= t->zones[lo].end;
}

static bool may_match_raw(const void *arg, const char *text, size_t n)
{
    const struct encoding *e = arg;
    const size_t at = (size_t)(text - e->raw);

    return is_in_added_zone(e->trace, (d9di_alignment){(uint32_t)at, (uint32_t)(at + n)});
}

static bool may_match_normalized(const void *arg, const char *text, size_t n)
{
    const struct encoding *e = arg;

    return is_in_added_zone(e->trace, raw_range(e, text, n));
}

static d9d_status encode_raw(void *arg, const d9di_added_tokens_entry *token, const char *text,
                             size_t n)
{
    struct encoding *e = arg;
    struct tracing *t = e->trace;
    const bool first = text == e->raw;
    const char *done = t ? t->raw_done : NULL;

    if (t)
        t->raw_done = text + n;
    if (token)
        return push_added_token(
            e, token->id,
            done ? (d9di_alignment){(uint32_t)(done - e->raw), (uint32_t)(text - e->raw)}
                 : (d9di_alignment){0, 0});
    if (t)
        t->stretch = text;
    D9D_TRY(d9di_normalizer_apply(e->tok->normalizer, &e->s->normalizer, text, n, &text, &n));
    e->normalized = first ? text : NULL;
    if (t)
        t->text = t->done = text;
    return d9di_added_tokens_split(&e->tok->normalized, text, n, t ? may_match_normalized : NULL,
                                   encode_normalized, arg);
}

static d9d_status encode_text(struct encoding *e, size_t n)
{
    const size_t before = e->out->len, valid = d9d_utf8_valid_up_to(e->raw, n);
    d9d_status st;

    if (valid != n)
        return D9D_FAIL(D9D_EFORMAT, "byte %zu (0x%02x) is not valid UTF-8", valid,
                        (unsigned char)e->raw[valid]);
    st = d9di_added_tokens_split(&e->tok->raw, e->raw, n, e->trace ? may_match_raw : NULL,
                                 encode_raw, e);
    if (st != D9D_OK)
        e->out->len = before;
    return st;
}

d9d_status d9d_tokenizer_encode(const d9d_tokenizer *tok, d9d_tokenizer_scratch *s,
                                const char *text, size_t n, d9d_token_ids *out)
{
    struct encoding e = {.tok = tok, .s = s, .out = out, .raw = text};

    return encode_text(&e, n);
}

d9d_status d9di_tokenizer_encode_zones(const d9d_tokenizer *tok, d9d_tokenizer_scratch *s,
                                       const char *text, size_t n, const d9di_tokenizer_zone *zones,
                                       size_t n_zones, d9d_token_ids *out, d9di_alignments *spans)
{
    struct tracing t = {.zones = zones, .n_zones = n_zones, .spans = spans, .raw_done = text};
    struct encoding e = {.tok = tok, .s = s, .out = out, .raw = text, .trace = &t};
    d9d_status st;

    if (n >= UINT32_MAX)
        return D9D_FAIL(D9D_EFORMAT, "a text of %zu bytes; it must be below 4 GiB", n);
    s->normalizer.tracks_alignments = s->pretok.tracks_alignments = true;
    s->pretok.alignments.len = 0;
    st = encode_text(&e, n);
    s->normalizer.tracks_alignments = s->pretok.tracks_alignments = false;
    s->pretok.alignments.len = 0;
    return st;
}

bool d9di_tokenizer_has_added(const d9d_tokenizer *tok, const char *text, size_t n)
{
    return d9d_map_has(&tok->by_content, text, n);
}

/* --- decoding ----------------------------------------------------------------------- */

/* Strips what the decoder strips from the start of data[from, len). */
static void strip_front(const d9di_tokenizer_decoder *d, size_t from, d9d_buf *out)
{
    size_t n = 0;

    while (n < d->strip_count && from + n < out->len && out->data[from + n] == d->strip)
        n++;
    memmove(out->data + from, out->data + from + n, out->len - from - n);
    out->len -= n;
}

d9d_status d9d_tokenizer_decode(const d9d_tokenizer *tok, const uint32_t *ids, size_t n,
                                unsigned flags, d9d_buf *out)
{
    const bool skip_special = flags & D9D_TOKENIZER_SKIP_SPECIAL;
    const size_t from = out->len;
    bool some = false;

    for (size_t i = 0; i < n; i++) {
        const struct decoded *d = &tok->decoded[ids[i] < tok->vocab_size ? ids[i] : 0];

        if (ids[i] >= tok->vocab_size || !d->bytes)
            return D9D_FAIL(D9D_EINVAL, "ids[%zu] is %u, which is no token; the vocabulary has %u",
                            i, ids[i], tok->vocab_size);
        if (d->special && skip_special)
            continue;
        if (tok->decoder.joins && some)
            D9D_TRY(d9d_buf_append(out, " ", 1));
        some = true;
        if (out->cap - out->len <= (size_t)d->len + READ_SLACK)
            D9D_TRY(d9d_buf_reserve(out, (size_t)d->len + READ_SLACK));
        memcpy(out->data + out->len, d->bytes,
               READ_SLACK); /* usually the whole token, in one fixed-size copy */
        if (d->len > READ_SLACK)
            memcpy(out->data + out->len + READ_SLACK, d->bytes + READ_SLACK, d->len - READ_SLACK);
        out->len += d->len;
    }
    if (tok->model.chars && !tok->decoder.joins && out->len > from)
        strip_front(&tok->decoder, from, out);
    return d9d_buf_append(out, "", 0); /* NUL-terminates */
}
