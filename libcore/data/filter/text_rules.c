/* text_rules.c - see text_rules.h. */
#include "data/filter/text_rules.h"

#include <stdlib.h>
#include <string.h>

#include "d9d/base/hash.h"
#include "data/tokenizer/unicode_tables.h"
#include "data/tokenizer/utf8.h"

typedef d9di_text_measures measures;

/* What datatrove calls punctuation: words of nothing else are no words to its quality rules. */
static const struct d9di_unicode_range symbols[] = {
    {0x0, 0x8},         {0xb, 0x1f},        {0x21, 0x2f},       {0x3a, 0x40},
    {0x5b, 0x60},       {0x7b, 0x9f},       {0xab, 0xab},       {0xb4, 0xb4},
    {0xbb, 0xbb},       {0x589, 0x589},     {0x61d, 0x61f},     {0x6d4, 0x6d4},
    {0x700, 0x702},     {0x7f9, 0x7f9},     {0x837, 0x837},     {0x839, 0x839},
    {0x83d, 0x83e},     {0x964, 0x965},     {0x104a, 0x104b},   {0x1362, 0x1362},
    {0x1367, 0x1368},   {0x166e, 0x166e},   {0x1735, 0x1736},   {0x17d4, 0x17d6},
    {0x17d9, 0x17da},   {0x1803, 0x1803},   {0x1809, 0x1809},   {0x1944, 0x1945},
    {0x1aa8, 0x1aab},   {0x1b5a, 0x1b5b},   {0x1b5e, 0x1b5f},   {0x1b7d, 0x1b7e},
    {0x1c3b, 0x1c3c},   {0x1c7e, 0x1c7f},   {0x2013, 0x2014},   {0x2019, 0x2019},
    {0x201c, 0x201e},   {0x2026, 0x2026},   {0x203c, 0x203d},   {0x2047, 0x2049},
    {0x2236, 0x2236},   {0x2501, 0x2501},   {0x25ba, 0x25ba},   {0x2e2e, 0x2e2e},
    {0x2e3c, 0x2e3c},   {0x2e53, 0x2e54},   {0x3001, 0x3002},   {0x3008, 0x300d},
    {0x3010, 0x3011},   {0xa4ff, 0xa4ff},   {0xa60e, 0xa60f},   {0xa6f3, 0xa6f3},
    {0xa6f7, 0xa6f7},   {0xa876, 0xa877},   {0xa8ce, 0xa8cf},   {0xa92f, 0xa92f},
    {0xa9c8, 0xa9c9},   {0xaa5d, 0xaa5f},   {0xaaf0, 0xaaf1},   {0xabeb, 0xabeb},
    {0xfe52, 0xfe52},   {0xfe56, 0xfe57},   {0xff01, 0xff01},   {0xff05, 0xff05},
    {0xff08, 0xff09},   {0xff0c, 0xff0c},   {0xff0e, 0xff0e},   {0xff11, 0xff11},
    {0xff1a, 0xff1b},   {0xff1f, 0xff1f},   {0xff5e, 0xff5e},   {0xff61, 0xff61},
    {0x10a56, 0x10a57}, {0x10f55, 0x10f59}, {0x10f86, 0x10f89}, {0x11047, 0x11048},
    {0x110be, 0x110c1}, {0x11141, 0x11143}, {0x111c5, 0x111c6}, {0x111cd, 0x111cd},
    {0x111de, 0x111df}, {0x11238, 0x11239}, {0x1123b, 0x1123c}, {0x112a9, 0x112a9},
    {0x1144b, 0x1144c}, {0x115c2, 0x115c3}, {0x115c9, 0x115d7}, {0x11641, 0x11642},
    {0x1173c, 0x1173e}, {0x11944, 0x11944}, {0x11946, 0x11946}, {0x11a42, 0x11a43},
    {0x11a9b, 0x11a9c}, {0x11c41, 0x11c42}, {0x11ef7, 0x11ef8}, {0x11f43, 0x11f44},
    {0x16a6e, 0x16a6f}, {0x16af5, 0x16af5}, {0x16b37, 0x16b38}, {0x16b44, 0x16b44},
    {0x16e98, 0x16e98}, {0x1bc9f, 0x1bc9f}, {0x1da88, 0x1da88}};

/* --- words ----------------------------------------------------------------------------------- */

static bool is_symbol(uint32_t c)
{
    return d9di_unicode_in(symbols, sizeof(symbols) / sizeof(symbols[0]), c);
}

static bool is_letter(uint32_t c)
{
    if (c < 0x80)
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    return d9di_unicode_in(d9di_unicode_letter, d9di_unicode_letter_n, c);
}

static bool is_no_symbol(uint32_t c)
{
    return !is_symbol(c);
}

static const char *word_of(const measures *m, size_t i, size_t *n)
{
    const uint32_t from = m->words.at.data[i].tight;

    *n = m->words.at.data[i + 1].tight - from;
    return m->words.tight.data + from;
}

/* True if a character of word i is such. */
static bool has_char(const measures *m, size_t i, bool (*is)(uint32_t c))
{
    size_t n;
    const char *word = word_of(m, i, &n);
    unsigned w;

    for (size_t k = 0; k < n; k += w)
        if (is(d9di_utf8_decode(word + k, &w)))
            return true;
    return false;
}

/* Words with other characters than symbols, and the characters of them. */
static void count_words(const measures *m, double *words, double *chars)
{
    *words = *chars = 0;
    for (size_t i = 0; i < m->words.n; i++)
        if (has_char(m, i, is_no_symbol)) {
            (*words)++;
            *chars += m->words.at.data[i + 1].chars - m->words.at.data[i].chars;
        }
}

static double word_count(measures *m, int unused)
{
    double words, chars;

    (void)unused;
    count_words(m, &words, &chars);
    return words;
}

static double word_length(measures *m, int unused)
{
    double words, chars;

    (void)unused;
    count_words(m, &words, &chars);
    return words > 0 ? chars / words : 0;
}

/* How often a text occurs, without overlaps. */
static double count_text(const measures *m, const char *what)
{
    const size_t len = strlen(what);
    double found = 0;

    for (const char *p = m->text, *end = p + m->n; (p = memmem(p, (size_t)(end - p), what, len));
         p += len)
        found++;
    return found;
}

static double hash_ratio(measures *m, int unused)
{
    (void)unused;
    return count_text(m, "#") / (double)m->words.n;
}

static double ellipsis_ratio(measures *m, int unused)
{
    (void)unused;
    return (count_text(m, "...") + count_text(m, "\xe2\x80\xa6")) / (double)m->words.n;
}

static double letter_ratio(measures *m, int unused)
{
    double found = 0;

    (void)unused;
    for (size_t i = 0; i < m->words.n; i++)
        found += has_char(m, i, is_letter);
    return found / (double)m->words.n;
}

/* How many of the stop words occur. */
static double stop_words(measures *m, int unused)
{
    static const char *const stops[] = {"the", "be", "to", "of", "and", "that", "have", "with"};
    bool seen[8] = {false};
    double found = 0;

    (void)unused;
    for (size_t i = 0; i < m->words.n; i++) {
        size_t n;
        const char *word = word_of(m, i, &n);

        for (size_t k = 0; k < 8 && n <= 4; k++)
            if (!seen[k] && strlen(stops[k]) == n && memcmp(stops[k], word, n) == 0) {
                seen[k] = true;
                found++;
            }
    }
    return found;
}

/* --- lines ----------------------------------------------------------------------------------- */

/* Line ends of Python's str.splitlines(). */
static bool is_line_end(uint32_t c)
{
    return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
           c == 0x2029;
}

/* The line that begins at `from`: its end, and where the next one begins. */
static size_t line_end(const measures *m, size_t from, size_t *next)
{
    unsigned w;

    for (size_t i = from; i < m->n; i += w) {
        const uint32_t c = d9di_utf8_decode(m->text + i, &w);

        if (!is_line_end(c))
            continue;
        *next = i + w + (c == '\r' && i + 1 < m->n && m->text[i + 1] == '\n');
        return i;
    }
    *next = m->n;
    return m->n;
}

static bool has_at(const char *text, size_t n, size_t at, const char *what)
{
    const size_t len = strlen(what);

    return at + len <= n && memcmp(text + at, what, len) == 0;
}

static bool is_bullet(const char *line, size_t n)
{
    size_t i = 0;
    unsigned w;

    while (i < n && d9di_text_words_is_space(d9di_utf8_decode(line + i, &w)))
        i += w;
    return has_at(line, n, i, "\xe2\x80\xa2") || has_at(line, n, i, "-");
}

static bool ends_in_ellipsis(const char *line, size_t n)
{
    while (n > 0) {
        const size_t before = d9di_utf8_prev(line, n);
        unsigned w;

        if (!d9di_text_words_is_space(d9di_utf8_decode(line + before, &w)))
            break;
        n = before;
    }
    return n >= 3 && (has_at(line, n, n - 3, "...") || has_at(line, n, n - 3, "\xe2\x80\xa6"));
}

/* The share of such lines. */
static double line_ratio(const measures *m, bool (*is)(const char *line, size_t n))
{
    double lines = 0, found = 0;
    size_t next;

    for (size_t at = 0; at < m->n; at = next, lines++)
        found += is(m->text + at, line_end(m, at, &next) - at);
    return lines > 0 ? found / lines : 0;
}

static double bullet_ratio(measures *m, int unused)
{
    (void)unused;
    return line_ratio(m, is_bullet);
}

static double end_ellipsis_ratio(measures *m, int unused)
{
    (void)unused;
    return line_ratio(m, ends_in_ellipsis);
}

/* --- repetition ------------------------------------------------------------------------------ */

/* Of the stretches of text[from, upto) between runs of `least` line feeds or more: those that
 * occurred before, as a share of all, or their characters. */
struct repeated {
    double found, chars, all;
};

static struct repeated count_repeated(measures *m, size_t from, size_t upto, size_t least)
{
    struct repeated r = {0, 0, 0};
    size_t start = from, run;

    for (size_t i = from; i <= upto; i += run) {
        run = 0;
        while (i + run < upto && m->text[i + run] == '\n')
            run++;
        if (i < upto && run < least) {
            run = run > 0 ? run : 1;
            continue;
        }
        if (d9di_hash_counter_add(&m->counter, d9d_hash_u64(m->text + start, i - start)) > 1) {
            r.found++;
            r.chars += (double)d9di_text_words_chars(m->text + start, i - start);
        }
        r.all++;
        start = i + run;
        run = run > 0 ? run : 1;
    }
    return r;
}

/* The text is stripped before it is divided into paragraphs. */
static struct repeated count_paragraphs(measures *m)
{
    size_t from = 0, upto = m->n;
    unsigned w;

    while (from < upto && d9di_text_words_is_space(d9di_utf8_decode(m->text + from, &w)))
        from += w;
    while (upto > from) {
        const size_t before = d9di_utf8_prev(m->text, upto);

        if (!d9di_text_words_is_space(d9di_utf8_decode(m->text + before, &w)))
            break;
        upto = before;
    }
    return count_repeated(m, from, upto, 2);
}

static double paragraph_ratio(measures *m, int of_chars)
{
    const struct repeated r = count_paragraphs(m);

    return of_chars ? r.chars / m->chars : r.found / r.all;
}

static double repeated_line_ratio(measures *m, int of_chars)
{
    const struct repeated r = count_repeated(m, 0, m->n, 1);

    return of_chars ? r.chars / m->chars : r.found / r.all;
}

static double ngram_chars(const measures *m, size_t i, size_t n, bool spaced)
{
    return (double)(m->words.at.data[i + n].chars - m->words.at.data[i].chars) +
           (spaced ? (double)n - 1 : 0);
}

/* The characters of the most frequent n-gram, all its occurrences; of several the first. */
static double top_ngram(measures *m, int n)
{
    const size_t words = m->words.n, len = (size_t)n;
    uint32_t most = 0;
    size_t top = 0;

    for (size_t i = 0; i + len <= words; i++) {
        const uint32_t count =
            d9di_hash_counter_add(&m->counter, d9di_text_words_hash(&m->words, i, len));

        most = count > most ? count : most;
    }
    if (most == 0)
        return 0;
    for (; d9di_hash_counter_get(&m->counter, d9di_text_words_hash(&m->words, top, len)) < most;)
        top++;
    return ngram_chars(m, top, len, true) * most / m->chars;
}

/* The characters of n-grams that occurred before, none counted twice. */
static double repeated_ngrams(measures *m, int n)
{
    const size_t words = m->words.n, len = (size_t)n;
    double chars = 0;

    for (size_t i = 0; i + len <= words;) {
        const uint64_t key = d9di_text_words_hash_tight(&m->words, i, len);
        const bool before = d9di_hash_counter_get(&m->counter, key) > 0;

        if (before)
            chars += ngram_chars(m, i, len, false);
        else
            d9di_hash_counter_add(&m->counter, key);
        i += before ? len : 1;
    }
    return chars / m->chars;
}

/* --- the table ------------------------------------------------------------------------------- */

/* A measure and its argument; `below`: the rule is broken below the threshold, otherwise above. */
struct measure {
    double (*of)(measures *m, int argument);
    int argument;
    bool below;
    enum { NOTHING, LINES, NGRAMS } counts; /* what it counts hashes of */
};

#define QUALITY(name, threshold, what, ...)                                                        \
    X(name, D9D_FILTER_QUALITY, threshold, what, __VA_ARGS__)
#define REPETITION(name, threshold, what, ...)                                                     \
    X(name, D9D_FILTER_REPETITION, threshold, what, __VA_ARGS__)
#define RULES                                                                                      \
    X("unreadable", D9D_FILTER_ALWAYS, 0, "a record without a text", {.of = NULL})                 \
    X("empty", D9D_FILTER_ALWAYS, 0, "a text without a word", {.of = NULL})                        \
    QUALITY("gopher_short_doc", 50, "fewer words", {.of = word_count, .below = true})              \
    QUALITY("gopher_long_doc", 100000, "more words", {.of = word_count})                           \
    QUALITY("gopher_below_avg_threshold", 3, "words of fewer characters, on average",              \
            {.of = word_length, .below = true})                                                    \
    QUALITY("gopher_above_avg_threshold", 10, "words of more characters, on average",              \
            {.of = word_length})                                                                   \
    QUALITY("gopher_too_many_hashes", 0.1, "more \"#\" a word", {.of = hash_ratio})                \
    QUALITY("gopher_too_many_ellipsis", 0.1, "more ellipses a word", {.of = ellipsis_ratio})       \
    QUALITY("gopher_too_many_bullets", 0.9, "more of the lines begin with a bullet",               \
            {.of = bullet_ratio})                                                                  \
    QUALITY("gopher_too_many_end_ellipsis", 0.3, "more of the lines end in an ellipsis",           \
            {.of = end_ellipsis_ratio})                                                            \
    QUALITY("gopher_below_alpha_threshold", 0.8, "fewer of the words have a letter",               \
            {.of = letter_ratio, .below = true})                                                   \
    QUALITY("gopher_enough_stop_words", 2,                                                         \
            "fewer of the stop words (the be to of and that have "                                 \
            "with)",                                                                               \
            {.of = stop_words, .below = true})                                                     \
    REPETITION("dup_para_frac", 0.3, "more of the paragraphs are repeated",                        \
               {.of = paragraph_ratio, .argument = 0, .counts = LINES})                            \
    REPETITION("dup_para_char_frac", 0.2, "more characters in repeated paragraphs",                \
               {.of = paragraph_ratio, .argument = 1, .counts = LINES})                            \
    REPETITION("dup_line_frac", 0.3, "more of the lines are repeated",                             \
               {.of = repeated_line_ratio, .argument = 0, .counts = LINES})                        \
    REPETITION("dup_line_char_frac", 0.2, "more characters in repeated lines",                     \
               {.of = repeated_line_ratio, .argument = 1, .counts = LINES})                        \
    REPETITION("top_2_gram", 0.2, "more characters in the most frequent 2 words",                  \
               {.of = top_ngram, .argument = 2, .counts = NGRAMS})                                 \
    REPETITION("top_3_gram", 0.18, "more in the most frequent 3 words",                            \
               {.of = top_ngram, .argument = 3, .counts = NGRAMS})                                 \
    REPETITION("top_4_gram", 0.16, "more in the most frequent 4 words",                            \
               {.of = top_ngram, .argument = 4, .counts = NGRAMS})                                 \
    DUPLICATED(5, 0.15)                                                                            \
    DUPLICATED(6, 0.14)                                                                            \
    DUPLICATED(7, 0.13)                                                                            \
    DUPLICATED(8, 0.12)                                                                            \
    DUPLICATED(9, 0.11)                                                                            \
    DUPLICATED(10, 0.10)                                                                           \
    X("contaminated", D9D_FILTER_CONTAMINATION, 0, "an n-gram of an evaluation", {.of = NULL})     \
    X("exact_duplicate", D9D_FILTER_DUPLICATES, 0, "the text of an earlier document",              \
      {.of = NULL})                                                                                \
    X("near_duplicate", D9D_FILTER_DUPLICATES, 0, "nearly that of an earlier document",            \
      {.of = NULL})
#define DUPLICATED(n, threshold)                                                                   \
    REPETITION("duplicated_" #n "_n_grams", threshold, "more characters in repeated " #n "-grams", \
               {.of = repeated_ngrams, .argument = n, .counts = NGRAMS})

#define X(name, group, threshold, what, ...) {name, group, threshold, what},
static const d9d_filter_rule rules[] = {RULES};
#undef X
#define X(name, group, threshold, what, ...) __VA_ARGS__,
static const struct measure rule_measures[] = {RULES};
#undef X
_Static_assert(sizeof(rules) / sizeof(rules[0]) == D9DI_TEXT_RULES, "a place for each rule");
_Static_assert((int)D9DI_TEXT_RULES <= (int)D9D_FILTER_MAX_RULES, "a count for each rule");

const d9d_filter_rule *d9d_filter_rules(size_t *n)
{
    *n = D9DI_TEXT_RULES;
    return rules;
}

/* --- thresholds ------------------------------------------------------------------------------ */

static d9d_status set_threshold(const char *item, size_t n, double *thresholds)
{
    const char *equals = memchr(item, '=', n);
    const size_t len = equals ? (size_t)(equals - item) : n;
    char *end = NULL;
    double value;

    for (int i = 0; i < D9DI_TEXT_RULES; i++) {
        if (!rule_measures[i].of || strlen(rules[i].name) != len ||
            memcmp(rules[i].name, item, len) != 0)
            continue;
        value = equals ? strtod(equals + 1, &end) : -1;
        if (!equals || end != item + n || end == equals + 1 || !(value >= 0 && value < 1e15))
            return D9D_FAIL(D9D_ECONFIG, "--threshold: \"%.*s\" must be %s=NUMBER, 0 for none",
                            (int)n, item, rules[i].name);
        if (thresholds[i] < 0)
            return D9D_FAIL(D9D_ECONFIG, "--threshold: %s is of a group that is not asked for",
                            rules[i].name);
        thresholds[i] = value;
        return D9D_OK;
    }
    return D9D_FAIL(D9D_ECONFIG, "--threshold: there is no rule \"%.*s\"", (int)len, item);
}

d9d_status d9di_text_rules_set(bool quality, bool repetition, const char *given, double *thresholds)
{
    for (int i = 0; i < D9DI_TEXT_RULES; i++) {
        const bool on = rules[i].group == D9D_FILTER_QUALITY ? quality : repetition;

        thresholds[i] = rule_measures[i].of && on ? rules[i].threshold : -1;
    }
    while (given && *given) {
        const size_t n = strcspn(given, ",");

        D9D_TRY(set_threshold(given, n, thresholds));
        given += n + (given[n] == ',');
    }
    return D9D_OK;
}

d9d_status d9di_text_rules_check(const double *thresholds, measures *m, const char *text, size_t n,
                                 int *rule)
{
    m->text = text;
    m->n = n;
    *rule = D9DI_TEXT_RULE_EMPTY;
    D9D_TRY(d9di_text_words_split(&m->words, text, n));
    if (m->words.n == 0)
        return D9D_OK;
    m->chars = (double)d9di_text_words_chars(text, n);
    for (int i = 0; i < D9DI_TEXT_RULES; i++) {
        const struct measure *of = &rule_measures[i];
        double value;

        if (!of->of || thresholds[i] <= 0)
            continue;
        if (of->counts != NOTHING)
            D9D_TRY(
                d9di_hash_counter_begin(&m->counter, of->counts == LINES ? n / 2 + 2 : m->words.n));
        value = of->of(m, of->argument);
        *rule = i;
        if (of->below ? value < thresholds[i] : value > thresholds[i])
            return D9D_OK;
    }
    *rule = D9DI_TEXT_RULE_NONE;
    return D9D_OK;
}

void d9di_text_measures_release(measures *m)
{
    d9di_text_words_release(&m->words);
    d9di_hash_counter_release(&m->counter);
    *m = (measures){.text = NULL};
}
