/* tokenizer.h - tokenizers from a HuggingFace tokenizer.json.
 *
 *     d9d_tokenizer *tok;
 *     d9d_tokenizer_scratch *s;             // one a thread
 *     d9d_token_ids ids = {0};
 *
 *     D9D_TRY(d9d_tokenizer_load("tokenizer.json", &tok));
 *     D9D_TRY(d9d_tokenizer_scratch_create(tok, &s));
 *     D9D_TRY(d9d_tokenizer_encode(tok, s, "Hello world", 11, &ids));
 *     ... ids.data[0 .. ids.len) ...
 *
 * The stages of encoding, each as in HF tokenizers 0.23:
 *
 *     text -> added tokens, raw -> normaliser -> added tokens, normalised
 *          -> pre-tokeniser -> model -> ids -> post-processor
 *
 * Ids equal those of HF's encode(text, add_special_tokens=False) for any valid UTF-8, and those of
 * add_special_tokens=True behind d9d_tokenizer_add_special().  Where the
 * underlying libraries differ (Unicode versions, the meaning of \s), the tables decide:
 * libcore/data/tokenizer/unicode_tables.c.
 *
 * Read from the file:
 *   model           BPE: vocab, merges as "a b" or ["a", "b"], ignore_merges,
 *                   unk_token with fuse_unk, byte_fallback,
 *                   continuing_subword_prefix and end_of_word_suffix (not beside
 *                   byte_fallback); dropout null or 0
 *                   Unigram, with byte_fallback or without; WordPiece; WordLevel
 *   added_tokens    special, lstrip, rstrip, single_word, normalized
 *   normalizer      null, NFC, NFD, NFKC, NFKD, Lowercase, StripAccents,
 *                   BertNormalizer, Nmt, Precompiled, ByteLevel, Prepend, Replace,
 *                   Strip, Sequence
 *   pre_tokenizer   null, Split (Regex or String; all behaviours; invert), Digits,
 *                   Punctuation, Whitespace, WhitespaceSplit, BertPreTokenizer,
 *                   CharDelimiterSplit, FixedLength, ByteLevel, Metaspace, Sequence;
 *                   no Metaspace or second ByteLevel comes behind a ByteLevel, which
 *                   makes the model's tokens be spelled in the alphabet of bytes
 *   post_processor  null, ByteLevel, TemplateProcessing, BertProcessing,
 *                   RobertaProcessing, Sequence: ids only, no offsets and types
 *   decoder         null, ByteLevel, Metaspace, WordPiece, BPEDecoder, Replace of a
 *                   String, ByteFallback, Fuse, Strip, Sequence
 * Anything else is ENOTSUP with its name (truncation and padding are ignored); a file
 * that contradicts itself (two tokens with one id, a merge of unknown tokens, an added token whose
 * id is not the one that HF would give it) is EFORMAT.
 *
 * A tokenizer is immutable and shared by all threads; a scratch (12 MiB) belongs to one thread.
 * Cost is linear in the length of a text, and O(n log n) with BPE that is not byte-level, whatever
 * it holds; no memory is allocated per token once the scratch is warm.  The patterns of
 * GPT-2, Qwen and Llama 3 are matched by hand (libcore/data/tokenizer/fast_split.c), others by
 * PCRE2, some times slower.
 */
#ifndef D9D_DATA_TOKENIZER_TOKENIZER_H
#define D9D_DATA_TOKENIZER_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "d9d/base/hash.h"
#include "d9d/base/mem.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_tokenizer d9d_tokenizer;
typedef struct d9d_tokenizer_scratch d9d_tokenizer_scratch;

typedef D9D_VEC(uint32_t) d9d_token_ids; /* zero-initialised is empty; D9D_VEC_RELEASE() it */

/* Loads a file of at most 64 MiB.  ENOTFOUND, EFORMAT, ENOTSUP, and what d9d_tokenizer_check()
 * says; messages begin with the path. */
D9D_API D9D_MUST_USE d9d_status d9d_tokenizer_load(const char *path, d9d_tokenizer **out);
/* The same from memory; `name` replaces the path in messages. */
D9D_API D9D_MUST_USE d9d_status d9d_tokenizer_parse(const char *name, const char *json, size_t n,
                                                    d9d_tokenizer **out);
D9D_API void d9d_tokenizer_free(d9d_tokenizer *tok);

/* ECONFIG with what to do if the path names a file of another tokenizer (SentencePiece's
 * tokenizer.model, tekken.json, tiktoken's), or nothing, and such a file lies beside. */
D9D_API D9D_MUST_USE d9d_status d9d_tokenizer_check(const char *path);

/* Vocabulary size: the largest id plus one.  Less than 2^24. */
D9D_API uint32_t d9d_tokenizer_vocab_size(const d9d_tokenizer *tok);
/* XXH3-128 of the file's bytes, which identifies the tokenizer. */
D9D_API d9d_hash d9d_tokenizer_hash(const d9d_tokenizer *tok);

/* The settings of the file that are ignored, because d9d truncates and pads elsewhere:
 * "truncation", "padding", "truncation and padding"; NULL: none. */
D9D_API const char *d9d_tokenizer_ignored(const d9d_tokenizer *tok);

/* Looks up the id of a token as spelled in the file: an added token's content ("<|im_end|>") or a
 * vocabulary entry ("\u0120the").  False if there is none. */
D9D_API bool d9d_tokenizer_find(const d9d_tokenizer *tok, const char *token, size_t len,
                                uint32_t *out);

/* True for an added token that the file calls special, such as "[MASK]". */
D9D_API bool d9d_tokenizer_is_special(const d9d_tokenizer *tok, uint32_t id);

/* EMISMATCH with both tokens if an id stands for one token here and for another one there, so that
 * ids of one tokenizer mean nothing to a model of the other.  Ids that only one of them has, and
 * added tokens, which are often given other names, may differ. */
D9D_API D9D_MUST_USE d9d_status d9d_tokenizer_check_same_ids(const d9d_tokenizer *a,
                                                             const char *name_a,
                                                             const d9d_tokenizer *b,
                                                             const char *name_b);

D9D_API D9D_MUST_USE d9d_status d9d_tokenizer_scratch_create(const d9d_tokenizer *tok,
                                                             d9d_tokenizer_scratch **out);
D9D_API void d9d_tokenizer_scratch_free(d9d_tokenizer_scratch *s);

/* Appends the ids of `text` to `out`.  EFORMAT names the byte offset of invalid UTF-8 or of an
 * oversized pre-token.  The limit is 1 GiB, or 16 MiB for Unigram and for BPE that must
 * merge one by one (character-level, or bytes without a token).  After an error `out` has its old
 * length. */
D9D_API D9D_MUST_USE d9d_status d9d_tokenizer_encode(const d9d_tokenizer *tok,
                                                     d9d_tokenizer_scratch *s, const char *text,
                                                     size_t n, d9d_token_ids *out);

/* --- special tokens around a text ---
 *
 * What the post_processor puts around a text when HF is asked to add special tokens: "<s> $A",
 * "[CLS] $A [SEP]", and "[CLS] $A [SEP] $B [SEP]" for a pair of texts.  Chat templates write such
 * tokens themselves; never add them to a rendered chat. */

/* How many tokens are added to a text or to a pair, as num_special_tokens_to_add() of HF.  ENOTSUP
 * or EFORMAT where HF would fail: a token that special_tokens lacks, or an id outside the
 * vocabulary. */
D9D_API D9D_MUST_USE d9d_status d9d_tokenizer_count_special(const d9d_tokenizer *tok, bool pair,
                                                            size_t *out);
/* Appends the ids of a text, or of a text and its pair (NULL: there is none), with the special
 * tokens around them.  `out` is none of the two.  Fails as counting does. */
D9D_API D9D_MUST_USE d9d_status d9d_tokenizer_add_special(const d9d_tokenizer *tok,
                                                          const d9d_token_ids *text,
                                                          const d9d_token_ids *pair,
                                                          d9d_token_ids *out);
/* True if ids[0, n) begin as every text with special tokens does, so that adding them writes the
 * first ones twice.  False if none stands before a text. */
D9D_API bool d9d_tokenizer_has_special(const d9d_tokenizer *tok, const uint32_t *ids, size_t n);
/* Appends the template, as "[CLS] $A [SEP]"; "$A" if nothing is added. */
D9D_API D9D_MUST_USE d9d_status d9d_tokenizer_print_special(const d9d_tokenizer *tok, bool pair,
                                                            d9d_buf *out);

/* Append a sentence where tokenizer_config.json beside the tokenizer's file says otherwise:
 * add_bos_token or add_eos_token of a token that the post_processor does not add, or false of one
 * that it adds.  transformers 4 heeds both in most of its classes; 5 reads neither beside a
 * tokenizer.json, and nor does d9d.  Appends nothing without the file, or where both agree. */
D9D_API D9D_MUST_USE d9d_status d9d_tokenizer_explain_config(const d9d_tokenizer *tok,
                                                             const char *path, d9d_buf *out);

enum { D9D_TOKENIZER_SKIP_SPECIAL = 1 }; /* leave special tokens out */

/* Appends the bytes that `ids` stand for: the encoded text after normalisation.  If the file has no
 * decoder, these are the tokens as spelled in the file, separated by spaces, as in HF.  Ids cut
 * from a longer text may begin or end inside a character, where HF writes U+FFFD.  EINVAL for an
 * unknown id. */
D9D_API D9D_MUST_USE d9d_status d9d_tokenizer_decode(const d9d_tokenizer *tok, const uint32_t *ids,
                                                     size_t n, unsigned flags, d9d_buf *out);

/* Offset of the first byte that is not valid UTF-8; n if all is valid. (No surrogates, no overlong
 * forms, nothing above U+10FFFF.) */
D9D_API size_t d9d_utf8_valid_up_to(const char *text, size_t n);

#ifdef __cplusplus
}
#endif
#endif /* D9D_DATA_TOKENIZER_TOKENIZER_H */
