/* pretok.c - see pretok.h.
 *
 * A stage finds stretches in a span (matches, and the text between them) and joins them to
 * pre-tokens by its behaviour.  Each result goes straight to the next stage, so the text is never
 * held as a list.  The caller receives the final pre-tokens in groups.
 */
#include "data/tokenizer/pretok.h"

#include <stdlib.h>
#include <string.h>

#include "data/tokenizer/bytelevel.h"
#include "data/tokenizer/fast_split.h"
#include "data/tokenizer/tokenizer_component.h"
#include "data/tokenizer/unicode_tables.h"
#include "data/tokenizer/utf8.h"

enum behaviour { ISOLATED, REMOVED, MERGED_WITH_PREVIOUS, MERGED_WITH_NEXT, CONTIGUOUS };

static const char *const behaviour_names[] = {"Isolated",       "Removed",    "MergedWithPrevious",
                                              "MergedWithNext", "Contiguous", NULL};

enum prepend { NEVER, FIRST, ALWAYS }; /* FIRST: at the beginning of the whole text */

static const char *const prepend_names[] = {"never", "first", "always", NULL};

/* A span of the text and of its shadow (see split_pattern.h). */
struct span {
    const char *text, *shadow;
    size_t n;
};

struct run;
struct joiner;

struct stage {
    /* Reports the stretches of `span` to `j`; NULL: the span is one pre-token. */
    d9d_status (*find)(const struct stage *stage, struct run *run, struct span span,
                       struct joiner *j);
    enum behaviour behaviour;
    bool invert;
    enum prepend prepend;
    char replacement[5];          /* prepended, unless the text begins with it */
    bool replaces_spaces;         /* and it replaces spaces */
    bool encodes_bytes;           /* later stages see the byte alphabet */
    d9di_fast_split *fast_split;  /* for a known pattern, */
    d9di_split_pattern *pattern;  /* for another, */
    bool (*in_class)(uint32_t c); /* or for characters of a kind */
};

struct d9di_pretok {
    D9D_VEC(struct stage) stages;
    bool bytelevel; /* there is a ByteLevel */
    bool spelled;   /* and stages follow it */
    bool rewrites;  /* some stage rewrites the text */
    bool shadowed;  /* some stage matches a regular expression */
};

enum { MAX_STAGES = 64 };

struct run {
    const d9di_pretok *pretok;
    d9di_pretok_scratch *scratch;
    const char *first; /* start of the whole text; the end of the buffer: not in it */
    size_t n;          /* pending pre-tokens */
    const char *end;   /* end of their buffer */
    const char *raw;   /* the raw bytes of `spelled` from here on; NULL: nothing is spelled */
    const char *spelled;
    d9di_pretok_fn fn;
    void *arg;
};

static d9d_status run_stage(struct run *run, size_t stage, struct span span);

/* --- pending pre-tokens --------------------------------------------------------- */

static d9d_status flush_pretokens(struct run *run)
{
    const size_t n = run->n;

    run->n = 0;
    return n > 0 ? run->fn(run->arg, run->scratch->pretokens, n, run->end) : D9D_OK;
}

/* Number of raw bytes that n bytes of the byte alphabet stand for. */
static size_t count_bytes(const char *spelled, size_t n)
{
    size_t count = 0;

    for (size_t i = 0; i < n; i++)
        count += ((unsigned char)spelled[i] & 0xc0) != 0x80;
    return count;
}

/* The raw bytes that are spelled as text[0, n). */
static __attribute__((noinline, cold)) d9di_pretoken decode_bytelevel(struct run *run,
                                                                      const char *text, size_t n)
{
    d9di_pretoken of;

    run->raw += count_bytes(run->spelled, (size_t)(text - run->spelled));
    of = (d9di_pretoken){run->raw, count_bytes(text, n)};
    run->raw += of.n;
    run->spelled = text + n;
    return of;
}

static d9d_status push_pretoken(struct run *run, const char *text, size_t n)
{
    if (run->n == D9DI_PRETOK_BATCH)
        D9D_TRY(flush_pretokens(run));
    run->scratch->pretokens[run->n++] = __builtin_expect(run->raw != NULL, 0)
                                            ? decode_bytelevel(run, text, n)
                                            : (d9di_pretoken){text, n};
    return D9D_OK;
}

/* --- joining stretches to pre-tokens ------------------------------------------- */

struct joiner {
    struct run *run;
    size_t next_stage;
    struct span span;
    enum behaviour behaviour;
    bool invert;
    bool held, last_match;
    size_t start, end; /* the pending pre-token, which a later stretch may extend */
};

static d9d_status emit_span(const struct joiner *j, size_t start, size_t end)
{
    if (start == end)
        return D9D_OK;
    return run_stage(j->run, j->next_stage,
                     (struct span){j->span.text + start, j->span.shadow + start, end - start});
}

static d9d_status emit_held(struct joiner *j)
{
    const bool held = j->held;

    j->held = false;
    return held ? emit_span(j, j->start, j->end) : D9D_OK;
}

/* True if a stretch extends the pending pre-token. */
static bool joins_held(const struct joiner *j, bool match)
{
    switch (j->behaviour) {
    case MERGED_WITH_PREVIOUS: return match && !j->last_match;
    case MERGED_WITH_NEXT: return !match && j->last_match;
    case CONTIGUOUS: return match == j->last_match;
    default: return false;
    }
}

static d9d_status add_stretch(struct joiner *j, size_t start, size_t end, bool match)
{
    match ^= j->invert;
    if (j->behaviour == ISOLATED)
        return emit_span(j, start, end);
    if (j->behaviour == REMOVED)
        return match ? D9D_OK : emit_span(j, start, end);
    if (j->held && joins_held(j, match)) {
        j->end = end;
    } else {
        D9D_TRY(emit_held(j));
        j->held = true;
        j->start = start;
        j->end = end;
    }
    j->last_match = match;
    return D9D_OK;
}

/* --- finding stretches ------------------------------------------------------- */

static d9d_status find_pattern(const struct stage *stage, struct run *run, struct span span,
                               struct joiner *j)
{
    const bool literal = d9di_split_pattern_is_literal(stage->pattern);
    size_t done = 0, start, end;
    d9di_split_pattern_iter search;
    bool found;

    d9di_split_pattern_iter_init(&search, stage->pattern, run->scratch->matcher,
                                 literal ? span.text : span.shadow, span.n);
    for (;;) {
        D9D_TRY(d9di_split_pattern_iter_next(&search, &start, &end, &found));
        if (!found)
            break;
        if (done != start)
            D9D_TRY(add_stretch(j, done, start, false));
        D9D_TRY(add_stretch(j, start, end, true));
        done = end;
    }
    return done != span.n ? add_stretch(j, done, span.n, false) : D9D_OK;
}

static d9d_status find_fast_split(const struct stage *stage, struct run *run, struct span span,
                                  struct joiner *j)
{
    const bool last = j->next_stage == run->pretok->stages.len && j->behaviour == ISOLATED;
    size_t ends[64], start = 0, n, i;

    while ((n = d9di_fast_split_find(stage->fast_split, span.text, span.n, start, ends, 64)) > 0)
        for (i = 0; i < n; start = ends[i++])
            D9D_TRY(last ? push_pretoken(run, span.text + start, ends[i] - start)
                         : add_stretch(j, start, ends[i], true));
    return D9D_OK;
}

/* Every character of a class is a match. */
static d9d_status find_char_class(const struct stage *stage, struct run *run, struct span span,
                                  struct joiner *j)
{
    size_t done = 0, i = 0;

    (void)run;
    while (i < span.n) {
        unsigned w;
        const uint32_t c = d9di_utf8_decode(span.text + i, &w);

        if (stage->in_class(c)) {
            if (done < i)
                D9D_TRY(add_stretch(j, done, i, false));
            D9D_TRY(add_stretch(j, i, i + w, true));
            done = i + w;
        }
        i += w;
    }
    return done < span.n ? add_stretch(j, done, span.n, false) : D9D_OK;
}

static bool is_numeric(uint32_t c)
{
    return d9di_unicode_in(d9di_unicode_numeric, d9di_unicode_numeric_n, c);
}

static bool is_punctuation(uint32_t c)
{
    return d9di_unicode_in(d9di_unicode_punct, d9di_unicode_punct_n, c);
}

static bool is_word(uint32_t c)
{
    return d9di_unicode_in(d9di_unicode_word, d9di_unicode_word_n, c);
}

/* Records n bytes that come from bytes [from, to). */
static d9d_status trace_alignment(d9di_alignments *origins, size_t n, size_t from, size_t to)
{
    D9D_TRY(D9D_VEC_RESERVE(origins, n));
    while (n-- > 0)
        origins->data[origins->len++] = (d9di_alignment){(uint32_t)from, (uint32_t)to};
    return D9D_OK;
}

/* Records the alignment of what rewrite_spaces() writes. */
static d9d_status trace_rewrite(const struct stage *stage, bool prepends, const char *text,
                                size_t n, d9di_alignments *origins)
{
    const size_t len = strlen(stage->replacement);

    origins->len = 0;
    if (prepends)
        D9D_TRY(trace_alignment(origins, len, 0, d9di_utf8_width((unsigned char)text[0])));
    for (size_t i = 0; i < n; i++)
        D9D_TRY(
            trace_alignment(origins, stage->replaces_spaces && text[i] == ' ' ? len : 1, i, i + 1));
    return D9D_OK;
}

/* Appends text[0, n) to `out` with the stage's prefix and its replacement for spaces. */
static d9d_status rewrite_spaces(const struct stage *stage, bool prepends, const char *text,
                                 size_t n, d9d_buf *out)
{
    const size_t len = strlen(stage->replacement);
    const char *space;

    out->len = 0;
    if (prepends)
        D9D_TRY(d9d_buf_append(out, stage->replacement, len));
    while (stage->replaces_spaces && (space = memchr(text, ' ', n)) != NULL) {
        D9D_TRY(d9d_buf_append(out, text, (size_t)(space - text)));
        D9D_TRY(d9d_buf_append(out, stage->replacement, len));
        n -= (size_t)(space + 1 - text);
        text = space + 1;
    }
    return d9d_buf_append(out, text, n);
}

static bool begins_with(const char *text, size_t n, const char *with)
{
    const size_t len = strlen(with);

    return n >= len && memcmp(text, with, len) == 0;
}

static d9d_status apply_replacement(const struct stage *stage, struct run *run, struct span *span)
{
    d9di_pretok_scratch *s = run->scratch;
    const bool there = begins_with(span->text, span->n, stage->replacement) ||
                       (stage->replaces_spaces && begins_with(span->text, span->n, " "));
    const bool asked =
        stage->prepend == ALWAYS || (stage->prepend == FIRST && span->text == run->first);
    const bool prepends = asked && !there;

    if (!prepends && !(stage->replaces_spaces && memchr(span->text, ' ', span->n)))
        return D9D_OK;
    D9D_TRY(flush_pretokens(run));
    s->rewritten = span->text;
    if (s->tracks_alignments)
        D9D_TRY(trace_rewrite(stage, prepends, span->text, span->n, &s->alignments));
    D9D_TRY(rewrite_spaces(stage, prepends, span->text, span->n, &s->prefixed));
    D9D_TRY(rewrite_spaces(stage, prepends, span->shadow, span->n, &s->prefixed_shadow));
    *span = (struct span){s->prefixed.data, s->prefixed_shadow.data, s->prefixed.len};
    run->end = span->text + span->n;
    return D9D_OK;
}

static d9d_status find_matches(const struct stage *stage, struct run *run, size_t at,
                               struct span span)
{
    struct joiner j = {.run = run,
                       .next_stage = at + 1,
                       .span = span,
                       .behaviour = stage->behaviour,
                       .invert = stage->invert};

    if (!stage->find)
        return run_stage(run, at + 1, span);
    D9D_TRY(stage->find(stage, run, span, &j));
    return emit_held(&j);
}

/* Encodes the span in the byte alphabet for the stages from `at` on.  All its characters are known
 * to PCRE2. */
static d9d_status encode_bytelevel(struct run *run, size_t at, struct span span)
{
    d9d_buf *spelled = &run->scratch->spelled;
    d9d_status st;

    spelled->len = 0;
    D9D_TRY(d9d_buf_reserve(spelled, 2 * span.n));
    for (size_t i = 0; i < span.n; i++)
        spelled->len += d9di_utf8_encode(d9di_bytelevel_char((unsigned char)span.text[i]),
                                         spelled->data + spelled->len);
    run->raw = span.text;
    run->spelled = spelled->data;
    st = run_stage(run, at, (struct span){spelled->data, spelled->data, spelled->len});
    run->raw = NULL;
    return st;
}

static d9d_status run_stage(struct run *run, size_t at, struct span span)
{
    const char *const end = run->end;
    const struct stage *stage;

    if (at == run->pretok->stages.len)
        return push_pretoken(run, span.text, span.n);
    stage = &run->pretok->stages.data[at];
    if (stage->encodes_bytes)
        return encode_bytelevel(run, at + 1, span);
    if (stage->prepend == NEVER && !stage->replaces_spaces)
        return find_matches(stage, run, at, span);
    D9D_TRY(apply_replacement(stage, run, &span));
    D9D_TRY(find_matches(stage, run, at, span));
    if (run->end != end)
        D9D_TRY(flush_pretokens(run));
    run->end = end;
    return D9D_OK;
}

d9d_status d9di_pretok_run(const d9di_pretok *p, d9di_pretok_scratch *s, const char *text, size_t n,
                           bool first, d9di_pretok_fn fn, void *arg)
{
    struct run run = {.pretok = p,
                      .scratch = s,
                      .first = first ? text : text + n,
                      .end = text + n,
                      .fn = fn,
                      .arg = arg};
    struct span span = {text, text, n};

    if (n == 0)
        return D9D_OK;
    if (p->shadowed)
        D9D_TRY(d9di_split_pattern_shadow(text, n, &s->shadow, &span.shadow));
    D9D_TRY(run_stage(&run, 0, span));
    return flush_pretokens(&run);
}

void d9di_pretok_scratch_release(d9di_pretok_scratch *s)
{
    d9d_buf_release(&s->shadow);
    d9d_buf_release(&s->prefixed);
    d9d_buf_release(&s->spelled);
    d9d_buf_release(&s->prefixed_shadow);
    D9D_VEC_RELEASE(&s->alignments);
}

/* --- parsing ------------------------------------------------------------------ */

static void release_stage(struct stage *stage)
{
    d9di_split_pattern_free(stage->pattern);
    d9di_fast_split_free(stage->fast_split);
}

static d9d_status add_stage(d9di_pretok *p, const char *where, struct stage stage)
{
    const bool leads = stage.prepend != NEVER || stage.replaces_spaces;
    const bool spells = p->bytelevel && !p->spelled;
    d9d_status st;

    if (p->stages.len + spells >= MAX_STAGES)
        st = D9D_FAIL(D9D_ENOTSUP, "%s: more than %d stages", where, MAX_STAGES);
    else if (p->bytelevel && leads)
        st =
            D9D_FAIL(D9D_ENOTSUP, "%s: comes after ByteLevel, behind which spaces are none", where);
    else if (p->rewrites && leads)
        st = D9D_FAIL(D9D_ENOTSUP, "%s: is the second that changes spaces", where);
    else {
        p->spelled |= spells;
        st = spells ? D9D_VEC_PUSH(&p->stages, (struct stage){.encodes_bytes = true}) : D9D_OK;
        if (st == D9D_OK)
            st = D9D_VEC_PUSH(&p->stages, stage);
    }
    if (st != D9D_OK)
        release_stage(&stage);
    p->rewrites |= leads;
    p->shadowed |= st == D9D_OK && stage.pattern && !d9di_split_pattern_is_literal(stage.pattern);
    return st;
}

static d9d_status parse_behaviour(const json_t *v, const char *where, enum behaviour *out)
{
    const char *name;
    int i = 0;

    D9D_TRY(d9d_json_get_str(v, where, "behavior", &name));
    while (behaviour_names[i] && strcmp(behaviour_names[i], name) != 0)
        i++;
    if (!behaviour_names[i])
        return D9D_FAIL(D9D_ENOTSUP, "%s: the behavior \"%.80s\" is not supported", where, name);
    *out = (enum behaviour)i;
    return D9D_OK;
}

static d9d_status parse_split(const json_t *v, const char *where, void *into)
{
    const json_t *pattern = json_object_get(v, "pattern"), *regex;
    struct stage stage = {.find = find_pattern};

    D9D_TRY(parse_behaviour(v, where, &stage.behaviour));
    D9D_TRY(d9di_tokenizer_component_get_flag(v, where, "invert", false, &stage.invert));
    regex = json_object_get(pattern, "Regex");
    if (json_object_size(pattern) == 1 && json_is_string(regex))
        D9D_TRY(d9di_fast_split_create(json_string_value(regex), json_string_length(regex),
                                       &stage.fast_split));
    if (stage.fast_split)
        stage.find = find_fast_split;
    else
        D9D_TRY(d9di_split_pattern_parse(pattern, where, &stage.pattern));
    return add_stage(into, where, stage);
}

static d9d_status add_chars(d9di_pretok *p, const char *where, bool (*is)(uint32_t c),
                            enum behaviour behaviour)
{
    return add_stage(
        p, where, (struct stage){.find = find_char_class, .in_class = is, .behaviour = behaviour});
}

static d9d_status parse_digits(const json_t *v, const char *where, void *into)
{
    bool individual;

    D9D_TRY(d9di_tokenizer_component_get_flag(v, where, "individual_digits", false, &individual));
    return add_chars(into, where, is_numeric, individual ? ISOLATED : CONTIGUOUS);
}

static d9d_status parse_punctuation(const json_t *v, const char *where, void *into)
{
    enum behaviour behaviour = ISOLATED;

    if (json_object_get(v, "behavior"))
        D9D_TRY(parse_behaviour(v, where, &behaviour));
    return add_chars(into, where, is_punctuation, behaviour);
}

static d9d_status parse_whitespace_split(const json_t *v, const char *where, void *into)
{
    (void)v;
    return add_chars(into, where, d9di_unicode_space, REMOVED);
}

/* \w+ and [^\w\s]+ */
static d9d_status parse_whitespace(const json_t *v, const char *where, void *into)
{
    D9D_TRY(parse_whitespace_split(v, where, into));
    return add_chars(into, where, is_word, CONTIGUOUS);
}

static d9d_status parse_bytelevel(const json_t *v, const char *where, void *into)
{
    struct stage stage = {.behaviour = ISOLATED, .replacement = " "};
    const char *gpt2 = d9di_fast_split_pattern(0);
    bool prefix, use_regex, trim_offsets; /* trim_offsets moves offsets, not ids */
    d9di_pretok *p = into;

    D9D_TRY(d9di_tokenizer_component_get_flag(v, where, "add_prefix_space", true, &prefix));
    D9D_TRY(d9di_tokenizer_component_get_flag(v, where, "trim_offsets", true, &trim_offsets));
    D9D_TRY(d9di_tokenizer_component_get_flag(v, where, "use_regex", true, &use_regex));
    if (p->bytelevel)
        return D9D_FAIL(D9D_ENOTSUP, "%s: is the second ByteLevel", where);
    if (use_regex) {
        stage.find = find_fast_split;
        D9D_TRY(d9di_fast_split_create(gpt2, strlen(gpt2), &stage.fast_split));
    }
    stage.prepend = prefix ? ALWAYS : NEVER;
    if (use_regex || prefix)
        D9D_TRY(add_stage(p, where, stage));
    p->bytelevel = true;
    return D9D_OK;
}

/* Spaces are replaced by a special character, with which pre-tokens begin. */
static d9d_status parse_metaspace(const json_t *v, const char *where, void *into)
{
    struct stage stage = {
        .behaviour = MERGED_WITH_NEXT, .prepend = ALWAYS, .replaces_spaces = true};
    const json_t *scheme = json_object_get(v, "prepend_scheme");
    const char *replacement;
    bool split, prefix;
    unsigned w;

    D9D_TRY(d9d_json_get_str(v, where, "replacement", &replacement));
    D9D_TRY(d9di_tokenizer_component_get_flag(v, where, "split", true, &split));
    D9D_TRY(d9di_tokenizer_component_get_flag(v, where, "add_prefix_space", true, &prefix));
    (void)d9di_utf8_decode(replacement, &w);
    if (strlen(replacement) != w)
        return D9D_FAIL(D9D_EFORMAT, "%s: replacement: must be one character", where);
    memcpy(stage.replacement, replacement, w);
    if (scheme) {
        int i = 0;

        while (prepend_names[i] && (!json_is_string(scheme) ||
                                    strcmp(prepend_names[i], json_string_value(scheme)) != 0))
            i++;
        if (!prepend_names[i])
            return D9D_FAIL(D9D_ENOTSUP, "%s: prepend_scheme: must be always, first or never",
                            where);
        stage.prepend = (enum prepend)i;
    }
    if (!prefix && stage.prepend != NEVER)
        return D9D_FAIL(D9D_EFORMAT, "%s: add_prefix_space contradicts prepend_scheme", where);
    if (split) {
        stage.find = find_pattern;
        D9D_TRY(d9di_split_pattern_create(where, replacement, w, true, &stage.pattern));
    }
    return add_stage(into, where, stage);
}

static d9d_status parse_sequence(const json_t *v, const char *where, void *into);

static const d9di_tokenizer_component components[] = {
    {"Split", "pattern behavior invert", parse_split},
    {"Digits", "individual_digits", parse_digits},
    {"Punctuation", "behavior", parse_punctuation},
    {"Whitespace", "", parse_whitespace},
    {"WhitespaceSplit", "", parse_whitespace_split},
    {"ByteLevel", "add_prefix_space trim_offsets use_regex", parse_bytelevel},
    {"Metaspace", "replacement add_prefix_space prepend_scheme split str_rep", parse_metaspace},
    {"Sequence", "pretokenizers", parse_sequence},
    {NULL, NULL, NULL},
};

static d9d_status parse_sequence(const json_t *v, const char *where, void *into)
{
    return d9di_tokenizer_component_parse_sequence(components, v, where, "pretokenizers", into);
}

d9d_status d9di_pretok_parse(const json_t *v, const char *where, d9di_pretok **out)
{
    d9di_pretok *p = calloc(1, sizeof(*p));
    d9d_status st;

    if (!p)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", where);
    st = v && !json_is_null(v) ? d9di_tokenizer_component_parse(components, v, where, p) : D9D_OK;
    if (st != D9D_OK) {
        d9di_pretok_free(p);
        return d9d_err_pass(st, __FILE__, __LINE__);
    }
    *out = p;
    return D9D_OK;
}

bool d9di_pretok_is_bytelevel(const d9di_pretok *p)
{
    return p->bytelevel;
}

void d9di_pretok_free(d9di_pretok *p)
{
    size_t i;

    if (!p)
        return;
    for (i = 0; i < p->stages.len; i++)
        release_stage(&p->stages.data[i]);
    D9D_VEC_RELEASE(&p->stages);
    free(p);
}
