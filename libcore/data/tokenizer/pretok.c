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
#include "data/tokenizer/pretok_private.h"
#include "data/tokenizer/utf8.h"

/* A span of the text and of its shadow (see split_pattern.h). */
struct span {
    const char *text, *shadow;
    size_t n;
};

struct run;
struct joiner;

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
    enum d9di_pretok_behaviour behaviour;
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
    case D9DI_PRETOK_MERGED_WITH_PREVIOUS: return match && !j->last_match;
    case D9DI_PRETOK_MERGED_WITH_NEXT: return !match && j->last_match;
    case D9DI_PRETOK_CONTIGUOUS: return match == j->last_match;
    default: return false;
    }
}

static d9d_status add_stretch(struct joiner *j, size_t start, size_t end, bool match)
{
    match ^= j->invert;
    if (j->behaviour == D9DI_PRETOK_ISOLATED)
        return emit_span(j, start, end);
    if (j->behaviour == D9DI_PRETOK_REMOVED)
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

static d9d_status find_pattern(const struct d9di_pretok_stage *stage, struct run *run,
                               struct span span, struct joiner *j)
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

static d9d_status find_fast_split(const struct d9di_pretok_stage *stage, struct run *run,
                                  struct span span, struct joiner *j)
{
    const bool last =
        j->next_stage == run->pretok->stages.len && j->behaviour == D9DI_PRETOK_ISOLATED;
    size_t ends[64], start = 0, n, i;

    while ((n = d9di_fast_split_find(stage->fast_split, span.text, span.n, start, ends, 64)) > 0)
        for (i = 0; i < n; start = ends[i++])
            D9D_TRY(last ? push_pretoken(run, span.text + start, ends[i] - start)
                         : add_stretch(j, start, ends[i], true));
    return D9D_OK;
}

/* Every character of a class is a match. */
static d9d_status find_char_class(const struct d9di_pretok_stage *stage, struct run *run,
                                  struct span span, struct joiner *j)
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

/* Every so many characters are a match. */
static d9d_status find_length(const struct d9di_pretok_stage *stage, struct run *run,
                              struct span span, struct joiner *j)
{
    size_t start = 0, end = 0;

    (void)run;
    while (start < span.n) {
        for (size_t i = 0; i < stage->length && end < span.n; i++)
            end += d9di_utf8_width((unsigned char)span.text[end]);
        D9D_TRY(add_stretch(j, start, end, true));
        start = end;
    }
    return D9D_OK;
}

/* Each reports the stretches of `span` to `j`. */
static d9d_status (*const finders[D9DI_PRETOK_N_FINDERS])(const struct d9di_pretok_stage *stage,
                                                          struct run *run, struct span span,
                                                          struct joiner *j) = {
    [D9DI_PRETOK_PATTERN] = find_pattern,
    [D9DI_PRETOK_FAST_SPLIT] = find_fast_split,
    [D9DI_PRETOK_CLASS] = find_char_class,
    [D9DI_PRETOK_LENGTH] = find_length,
};

/* Records n bytes that come from bytes [from, to). */
static d9d_status trace_alignment(d9di_alignments *origins, size_t n, size_t from, size_t to)
{
    D9D_TRY(D9D_VEC_RESERVE(origins, n));
    while (n-- > 0)
        origins->data[origins->len++] = (d9di_alignment){(uint32_t)from, (uint32_t)to};
    return D9D_OK;
}

/* Records the alignment of what rewrite_spaces() writes. */
static d9d_status trace_rewrite(const struct d9di_pretok_stage *stage, bool prepends,
                                const char *text, size_t n, d9di_alignments *origins)
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
static d9d_status rewrite_spaces(const struct d9di_pretok_stage *stage, bool prepends,
                                 const char *text, size_t n, d9d_buf *out)
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

static d9d_status apply_replacement(const struct d9di_pretok_stage *stage, struct run *run,
                                    struct span *span)
{
    d9di_pretok_scratch *s = run->scratch;
    const bool there = begins_with(span->text, span->n, stage->replacement) ||
                       (stage->replaces_spaces && begins_with(span->text, span->n, " "));
    const bool asked = stage->prepend == D9DI_PRETOK_ALWAYS ||
                       (stage->prepend == D9DI_PRETOK_FIRST && span->text == run->first);
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

static d9d_status find_matches(const struct d9di_pretok_stage *stage, struct run *run, size_t at,
                               struct span span)
{
    struct joiner j = {.run = run,
                       .next_stage = at + 1,
                       .span = span,
                       .behaviour = stage->behaviour,
                       .invert = stage->invert};

    if (stage->finder == D9DI_PRETOK_WHOLE)
        return run_stage(run, at + 1, span);
    D9D_TRY(finders[stage->finder](stage, run, span, &j));
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
    const struct d9di_pretok_stage *stage;

    if (at == run->pretok->stages.len)
        return push_pretoken(run, span.text, span.n);
    stage = &run->pretok->stages.data[at];
    if (stage->encodes_bytes)
        return encode_bytelevel(run, at + 1, span);
    if (stage->prepend == D9DI_PRETOK_NEVER && !stage->replaces_spaces)
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
