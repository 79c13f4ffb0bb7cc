/* pretok_private.h - the stages of a pre-tokeniser: pretok_parse.c makes them, pretok.c runs them.
 */
#ifndef D9DI_DATA_TOKENIZER_PRETOK_PRIVATE_H
#define D9DI_DATA_TOKENIZER_PRETOK_PRIVATE_H

#include "data/tokenizer/fast_split.h"
#include "data/tokenizer/pretok.h"

enum d9di_pretok_behaviour {
    D9DI_PRETOK_ISOLATED,
    D9DI_PRETOK_REMOVED,
    D9DI_PRETOK_MERGED_WITH_PREVIOUS,
    D9DI_PRETOK_MERGED_WITH_NEXT,
    D9DI_PRETOK_CONTIGUOUS
};

/* What is put before a pre-token; FIRST: at the beginning of the whole text. */
enum d9di_pretok_prepend { D9DI_PRETOK_NEVER, D9DI_PRETOK_FIRST, D9DI_PRETOK_ALWAYS };

/* How a stage finds the stretches that it splits at. */
enum d9di_pretok_finder {
    D9DI_PRETOK_WHOLE, /* not at all: the span is one pre-token */
    D9DI_PRETOK_PATTERN,
    D9DI_PRETOK_FAST_SPLIT,
    D9DI_PRETOK_CLASS,
    D9DI_PRETOK_LENGTH,
    D9DI_PRETOK_N_FINDERS
};

struct d9di_pretok_stage {
    enum d9di_pretok_finder finder;
    enum d9di_pretok_behaviour behaviour;
    bool invert;
    enum d9di_pretok_prepend prepend;
    char replacement[5];          /* prepended, unless the text begins with it */
    bool replaces_spaces;         /* and it replaces spaces */
    bool encodes_bytes;           /* later stages see the byte alphabet */
    d9di_fast_split *fast_split;  /* for a known pattern, */
    d9di_split_pattern *pattern;  /* for another, */
    bool (*in_class)(uint32_t c); /* for characters of a kind, */
    size_t length;                /* or for so many characters */
};

struct d9di_pretok {
    D9D_VEC(struct d9di_pretok_stage) stages;
    bool bytelevel; /* there is a ByteLevel */
    bool spelled;   /* and stages follow it */
    bool rewrites;  /* some stage rewrites the text */
    bool shadowed;  /* some stage matches a regular expression */
};

#endif
