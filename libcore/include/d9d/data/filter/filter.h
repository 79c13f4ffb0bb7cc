/* filter.h - removes documents from a corpus before it is tokenised: the work of d9d-shard filter.
 *
 *     inputs -> rules on each text -> exact duplicates -> near duplicates -> OUT/documents.jsonl
 *                                                                            OUT/report.json
 *
 * The inputs are those of d9d-shard: JSON lines, JSON arrays, tables, texts; gzip and zstd.  They
 * are read twice, so stdin and pipes are refused.  A document that is kept is written as it was,
 * one JSON object a line, in the order of the inputs.  A removed one counts for the first rule that
 * it breaks.  d9d_filter_rules() lists the rules in their order:
 *
 *     unreadable, empty            bad records (with on_error SKIP); no word at all
 *     gopher_...                   quality: Rae et al., 2112.11446, with the names and defaults of
 *                                  datatrove's GopherQualityFilter
 *     dup_..., top_..., duplicated_...   repetition: GopherRepetitionFilter, Table A1
 *     contaminated                 has an n-gram of words that an evaluation has
 *     exact_duplicate              the same text as an earlier document
 *     near_duplicate               MinHash LSH finds an earlier document, directly or by others
 *
 * --- words ---
 *
 * The Gopher rules count words between white space, of which datatrove has tokenizers for each
 * language.  Shingles and n-grams of evaluations have words of letters, digits and "_" in lower
 * case, as text-dedup has, so that punctuation and spacing do not hide a copy.
 *
 * --- near duplicates ---
 *
 * A text is the set of its shingles: `ngram` consecutive words each; all words if it has fewer.
 * A signature has num_perm minima of random hashes, divided into bands of so many rows.  Two texts
 * with Jaccard similarity s share a band with probability 1 - (1 - s^rows)^bands.  From a threshold
 * the bands and rows follow as in datasketch: the least sum of false positives below it and false
 * negatives above.  Documents that share a band are joined, and of each group the first one stays.
 *
 * --- memory ---
 *
 * Texts: four chunks of 1 MiB a thread, or one of a longer document.  Then at most 64 bytes a
 * document that passes the other rules, one byte for each that does not, 32 bytes an n-gram of the
 * evaluations and 2 MiB a band.  Keys of bands are spooled beside the output, 8 bytes a band and
 * document.  At most 2^32 - 2 documents.
 *
 * The output depends on the inputs and options alone, not on threads.  The order of inputs decides
 * which of several duplicates stays. */
#ifndef D9D_DATA_FILTER_FILTER_H
#define D9D_DATA_FILTER_FILTER_H

#include "d9d/base/mem.h"
#include "d9d/data/build/shard.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum d9d_filter_group {
    D9D_FILTER_ALWAYS,
    D9D_FILTER_QUALITY,
    D9D_FILTER_REPETITION,
    D9D_FILTER_CONTAMINATION,
    D9D_FILTER_DUPLICATES
} d9d_filter_group;

typedef struct d9d_filter_rule {
    const char *name;
    d9d_filter_group group;
    double threshold; /* its default; 0 and below: the rule has none */
    const char *what; /* what is removed, in a few words */
} d9d_filter_rule;

enum { D9D_FILTER_MAX_RULES = 40 };
/* All rules, in the order in which they are tried; *n is at most D9D_FILTER_MAX_RULES. */
D9D_API const d9d_filter_rule *d9d_filter_rules(size_t *n);

/* Strings and arrays are borrowed. */
typedef struct d9d_filter_opts {
    const char *const *inputs;
    size_t n_inputs;
    const char *out;         /* the directory to make */
    d9d_shard_format format; /* BY_NAME, JSONL or TEXT */
    bool lines;
    const char *text_key; /* NULL: "text" */
    bool quality, repetition;
    const char *thresholds; /* "dup_line_frac=0.4,gopher_short_doc=20"; 0 turns a rule off; NULL:
                               the defaults */
    const char *const *evaluations; /* JSON lines or an array of objects, of which every string
                                       counts, tables, or lines of text */
    size_t n_evaluations;
    int64_t evaluation_ngram; /* words; 0: 13 */
    bool exact;
    double similarity;   /* the threshold of near duplicates, 0 < s < 1; 0: they stay */
    int64_t num_perm;    /* of a signature; 0: 256 */
    int64_t bands, rows; /* 0: both follow from `similarity` */
    int64_t ngram;       /* words of a shingle; 0: 5 */
    int64_t seed;        /* of the hashes */
    int64_t jobs;        /* threads; 0: one a processor */
    d9d_shard_on_error on_error;
    bool replace;
} d9d_filter_opts;

typedef struct d9d_filter_report {
    int64_t read, kept;
    int64_t read_bytes, kept_bytes; /* of records, as they stand in the inputs */
    int64_t removed[D9D_FILTER_MAX_RULES];
    int64_t bands, rows; /* of near duplicates */
} d9d_filter_report;

/* ECONFIG: the options ask for nothing or contradict each other, or `out` is not empty.  EFORMAT
 * names the file and the line. */
D9D_API D9D_MUST_USE d9d_status d9d_filter_run(const d9d_filter_opts *opts, const d9d_log *log,
                                               d9d_filter_report *out);

/* The bands and rows, of at most num_perm hashes, for this threshold: datasketch's. */
D9D_API void d9d_filter_bands(double similarity, int64_t num_perm, int64_t *bands, int64_t *rows);

#ifdef __cplusplus
}
#endif
#endif /* D9D_DATA_FILTER_FILTER_H */
