/* unigram.c - Unigram: the tokens whose scores have the largest sum.
 *
 * Viterbi's algorithm over the ends of characters: best[i] is the best path that ends at byte i.
 *
 *     best[to] = max over tokens text[from, to) of best[from].score + score(token)
 *
 * Scores are added from the left in float64, and the first of equal paths stays, in the order in
 * which HF tries them: so ids are equal where sums are nearly so.  A character that is no token
 * costs 10 more than the worst token; neighbours of that kind are one unknown token, or their
 * bytes' tokens. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/tokenizer/tokenizer_component.h"
#include "data/tokenizer/tokenizer_model.h"
#include "data/tokenizer/trie.h"
#include "data/tokenizer/utf8.h"

#define UNK_PENALTY 10.0

#define NOT_REACHED UINT32_MAX

/* Longest pre-token; one needs up to 32 bytes of memory per byte. */
#define MAX_PRETOKEN ((size_t)16 << 20)

struct unigram {
    d9di_vocab vocab;
    double *scores; /* by id */
    double unk_score;
    d9di_trie trie;
    uint32_t unk; /* D9DI_NO_ID: none */
    bool byte_fallback, chars;
    uint32_t byte_id[256]; /* of fallback bytes; D9DI_NO_ID: none */
};

/* The best path that ends at a byte: its score, and where its last token begins. */
struct best {
    double score;
    uint32_t from, id;
};

/* A token of the best path, or several unknown characters. */
struct piece {
    uint32_t from, to, id;
};

struct unigram_scratch {
    D9D_VEC(struct best) best;
    D9D_VEC(struct piece) pieces; /* last first */
    d9d_buf spelled;
};

/* --- loading ---------------------------------------------------------------------- */

static void unigram_free(void *model)
{
    struct unigram *u = model;

    d9di_vocab_release(&u->vocab);
    d9di_trie_release(&u->trie);
    free(u->scores);
    free(u);
}

static d9d_status build_trie(struct unigram *u)
{
    const d9di_vocab *v = &u->vocab;
    struct d9di_trie_key *keys = malloc(((size_t)v->n_tokens + 1) * sizeof(*keys));
    size_t n = 0;
    d9d_status st;

    if (!keys)
        return D9D_FAIL(D9D_ENOMEM, "no memory for %u tokens", v->n_tokens);
    for (uint32_t id = 0; id < v->n_tokens; id++) {
        const struct d9di_vocab_token *t = &v->tokens[id];

        if (t->len > 0 && d9di_vocab_find(v, t->text, t->len) == id) /* the last of equal ones */
            keys[n++] = (struct d9di_trie_key){t->text, t->len, id, false};
    }
    st = d9di_trie_build(&u->trie, keys, n);
    free(keys);
    return st;
}

static d9d_status load_unk(struct unigram *u, const json_t *m, const char *where)
{
    const json_t *unk = json_object_get(m, "unk_id");
    double lowest = INFINITY;
    int64_t id;

    for (uint32_t i = 0; i < u->vocab.n_tokens; i++)
        if (u->scores[i] < lowest)
            lowest = u->scores[i];
    u->unk_score = lowest - UNK_PENALTY;
    u->unk = D9DI_NO_ID;
    if (!unk || json_is_null(unk))
        return D9D_OK;
    D9D_TRY(d9d_json_get_i64(m, where, "unk_id", 0, D9DI_MAX_VOCAB - 1, &id));
    if (id >= u->vocab.n_tokens)
        return D9D_FAIL(D9D_EFORMAT, "%s: unk_id is %lld, the vocabulary has %u tokens", where,
                        (long long)id, u->vocab.n_tokens);
    u->unk = (uint32_t)id;
    return D9D_OK;
}

static d9d_status unigram_load(struct unigram *u, const json_t *m, const char *where)
{
    json_t *vocab;

    D9D_TRY(d9d_json_get_arr(m, where, "vocab", &vocab));
    D9D_TRY(d9di_vocab_load_scored(vocab, where, &u->vocab, &u->scores));
    D9D_TRY(load_unk(u, m, where));
    D9D_TRY(d9di_tokenizer_component_get_flag(m, where, "byte_fallback", false, &u->byte_fallback));
    for (unsigned i = 0; i < 256; i++)
        u->byte_id[i] = d9di_vocab_find_byte(&u->vocab, (unsigned char)i);
    return build_trie(u);
}

static d9d_status unigram_create(const json_t *m, const char *where, bool chars, void **out)
{
    struct unigram *u = calloc(1, sizeof(*u));
    d9d_status st;

    if (!u)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", where);
    u->chars = chars;
    st = unigram_load(u, m, where);
    if (st != D9D_OK) {
        unigram_free(u);
        return st;
    }
    *out = u;
    return D9D_OK;
}

static const d9di_vocab *unigram_vocab(const void *model)
{
    return &((const struct unigram *)model)->vocab;
}

static d9d_status scratch_create(void **out)
{
    *out = calloc(1, sizeof(struct unigram_scratch));
    return *out ? D9D_OK : D9D_FAIL(D9D_ENOMEM, "no memory to tokenise with");
}

static void scratch_free(void *scratch)
{
    struct unigram_scratch *s = scratch;

    if (!s)
        return;
    D9D_VEC_RELEASE(&s->best);
    D9D_VEC_RELEASE(&s->pieces);
    d9d_buf_release(&s->spelled);
    free(s);
}

/* --- the best path ------------------------------------------------------------------ */

static inline void offer_path(struct best *best, size_t from, size_t to, uint32_t id, double score)
{
    if (best[to].from == NOT_REACHED || score > best[to].score)
        best[to] = (struct best){score, (uint32_t)from, id};
}

/* Offers the paths through each token at text[at, n); *single: one of them is the character there,
 * w bytes wide. */
static inline void offer_tokens(const struct unigram *u, const char *text, size_t n, size_t at,
                                unsigned w, struct best *best, bool *single)
{
    const double score = best[at].score;
    uint32_t base = u->trie.root;

    *single = false;
    for (size_t i = at; i < n; i++) {
        const uint64_t entry = d9di_trie_entry(&u->trie, base, (unsigned char)text[i]);
        const uint32_t id = d9di_trie_value(entry);

        if (!d9di_trie_has_label(entry, (unsigned char)text[i]))
            break;
        if (id != D9DI_TRIE_NONE) {
            offer_path(best, at, i + 1, id, u->scores[id] + score);
            *single |= i + 1 - at == w;
        }
        base = d9di_trie_base(entry);
    }
}

static d9d_status find_best(const struct unigram *u, const char *text, size_t n, struct best *best)
{
    best[0].score = 0;
    for (size_t i = 0; i <= n; i++)
        best[i].from = NOT_REACHED;
    for (size_t at = 0; at < n;) {
        const unsigned w = d9di_utf8_width((unsigned char)text[at]);
        bool single;

        offer_tokens(u, text, n, at, w, best, &single);
        if (!single) {
            if (u->unk == D9DI_NO_ID)
                return D9D_FAIL(D9D_EFORMAT, "\"%.*s\" is no token, and the model has no unk_id",
                                (int)w, text + at);
            offer_path(best, at, at + w, u->unk, u->unk_score + best[at].score);
        }
        at += w;
    }
    return D9D_OK;
}

/* Lists the path's tokens, neighbours that are unknown as one. */
static d9d_status list_pieces(const struct unigram *u, struct unigram_scratch *s, size_t n)
{
    const struct best *best = s->best.data;
    bool unk_after = false;

    s->pieces.len = 0;
    for (size_t end = n; end > 0; end = best[end].from) {
        const struct piece piece = {best[end].from, (uint32_t)end, best[end].id};
        const bool unk = piece.id == u->unk;

        if (unk && unk_after)
            s->pieces.data[s->pieces.len - 1].from = piece.from;
        else
            D9D_TRY(D9D_VEC_PUSH(&s->pieces, piece));
        unk_after = unk;
    }
    return D9D_OK;
}

/* --- ids ---------------------------------------------------------------------------- */

/* True if each byte of an unknown piece has a token. */
static bool falls_back(const struct unigram *u, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (u->byte_id[(unsigned char)text[i]] == D9DI_NO_ID)
            return false;
    return u->byte_fallback;
}

static d9d_status push_piece(const struct unigram *u, const char *text, const struct piece *p,
                             d9d_token_ids *out, d9di_alignments *spans)
{
    uint32_t id = p->id;

    if (id == u->unk) { /* the text of several may be a token by chance */
        id = d9di_vocab_find(&u->vocab, text + p->from, p->to - p->from);
        if (id == D9DI_NO_ID && falls_back(u, text + p->from, p->to - p->from)) {
            for (size_t i = p->from; i < p->to; i++)
                D9D_TRY(d9di_tokenizer_model_push(u->byte_id[(unsigned char)text[i]], i, i + 1, out,
                                                  spans));
            return D9D_OK;
        }
        id = id != D9DI_NO_ID ? id : u->unk;
    }
    return d9di_tokenizer_model_push(id, p->from, p->to, out, spans);
}

static d9d_status encode_pretoken(const void *model, void *scratch, const d9di_pretoken *pretoken,
                                  d9d_token_ids *out, d9di_alignments *spans)
{
    const struct unigram *u = model;
    struct unigram_scratch *s = scratch;

    if (pretoken->n > MAX_PRETOKEN)
        return D9D_FAIL(D9D_EFORMAT,
                        "%zu bytes without a place to split at; at most %zu can be tokenised",
                        pretoken->n, MAX_PRETOKEN);
    s->best.len = 0;
    D9D_TRY(D9D_VEC_RESERVE(&s->best, pretoken->n + 1));
    D9D_TRY(find_best(u, pretoken->text, pretoken->n, s->best.data));
    D9D_TRY(list_pieces(u, s, pretoken->n));
    for (size_t i = s->pieces.len; i-- > 0;)
        D9D_TRY(push_piece(u, pretoken->text, &s->pieces.data[i], out, spans));
    return D9D_OK;
}

static d9d_status unigram_encode(const void *model, void *scratch, const d9di_pretoken *pretokens,
                                 size_t n, const char *end, d9d_token_ids *out,
                                 d9di_alignments *spans)
{
    struct unigram_scratch *s = scratch;

    (void)end;
    return d9di_tokenizer_model_each(pretokens, n, ((const struct unigram *)model)->chars,
                                     &s->spelled, encode_pretoken, model, scratch, out, spans);
}

const d9di_tokenizer_model_kind d9di_unigram_kind = {
    .type = "Unigram",
    .keys = "vocab unk_id byte_fallback",
    .create = unigram_create,
    .free = unigram_free,
    .vocab = unigram_vocab,
    .scratch_create = scratch_create,
    .scratch_free = scratch_free,
    .encode = unigram_encode,
};
