/* masked_lm.c - masked language modelling.  See d9d/tasks/masked_lm.h. */
#include "d9d/tasks/masked_lm.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/rng.h"
#include "d9d/data/tokenizer/tokenizer.h"
#include "tasks/tasks.h"

/* --- the choice ------------------------------------------------------------------------------- */

/* True with this probability, for a random word. */
static bool is_below(uint32_t word, double probability)
{
    return (double)word < probability * 0x1p32;
}

void d9d_masked_lm_mask(const d9d_masked_lm_opts *o, int64_t sample, int64_t vocab, int64_t n,
                        int32_t *ids, int32_t *labels)
{
    const uint64_t k = (uint64_t)sample;
    const uint32_t key[] = {(uint32_t)o->seed, (uint32_t)(o->seed >> 32)};

    for (int64_t i = 0; i < n; i++) {
        const uint32_t counter[] = {(uint32_t)i, (uint32_t)((uint64_t)i >> 32), (uint32_t)k,
                                    (uint32_t)(k >> 32)};
        const bool special = ids[i] < o->n_special && o->special[ids[i]];
        uint32_t word[4];

        d9d_philox(counter, key, word);
        labels[i] = D9D_IGNORE_INDEX;
        if (special || !is_below(word[0], o->mlm_probability))
            continue;
        labels[i] = ids[i];
        if (is_below(word[1], o->mask_replace_prob))
            ids[i] = o->mask_id;
        else if (is_below(word[1], o->mask_replace_prob + o->random_replace_prob))
            ids[i] = (int32_t)((uint64_t)word[2] * (uint64_t)vocab >> 32);
    }
}

/* --- the task --------------------------------------------------------------------------------- */

typedef struct masked_lm {
    const d9d_masked_lm_section *c;
    d9d_masked_lm_opts opts;
    bool *special; /* opts.special */
    bool has_data; /* opts are complete */
} masked_lm;

static void masked_lm_close(void *self)
{
    masked_lm *m = self;

    free(m->special);
    free(m);
}

static d9d_status masked_lm_open(const void *config, void **self)
{
    const d9d_masked_lm_section *c = config;
    masked_lm *m = calloc(1, sizeof(*m));

    if (m == NULL)
        return D9D_FAIL(D9D_ENOMEM, "task: %zu bytes", sizeof(*m));
    m->c = c;
    m->opts = (d9d_masked_lm_opts){.mlm_probability = c->mlm_probability,
                                   .mask_replace_prob = c->mask_replace_prob,
                                   .random_replace_prob = c->random_replace_prob,
                                   .seed = (uint64_t)c->seed};
    *self = m;
    return D9D_OK;
}

static void masked_lm_head(void *self, d9d_head *out)
{
    (void)self;
    *out = (d9d_head){.kind = D9D_HEAD_MASKED_LM};
}

static d9di_masked_lm_mask mask_of(const masked_lm *m)
{
    return (d9di_masked_lm_mask){m->c->mask_token, m->c->mask_token_id};
}

d9d_status d9di_masked_lm_check_mask(const d9di_masked_lm_mask *m, const d9d_model *model)
{
    return m->id == D9D_INT_NULL || m->id < model->vocab
               ? D9D_OK
               : D9D_FAIL(D9D_ECONFIG,
                          "task.mask_token_id is %lld, and the model's vocabulary has %lld ids",
                          (long long)m->id, (long long)model->vocab);
}

static d9d_status masked_lm_extend(void *self, d9d_model *model, const d9d_model_opts *options)
{
    const d9di_masked_lm_mask mask = mask_of(self);

    (void)options;
    return d9di_masked_lm_check_mask(&mask, model);
}

/* The mask's id by the section or the tokenizer. */
static d9d_status mask_id_find(const d9di_masked_lm_mask *m, const d9d_dataset *ds,
                               const d9d_tokenizer *tok, int32_t *out)
{
    static const char *const usual[] = {"[MASK]", "<mask>"};
    uint32_t id;

    if (m->id != D9D_INT_NULL) {
        *out = (int32_t)m->id;
        return D9D_OK;
    }
    if (tok == NULL)
        return D9D_FAIL(
            D9D_ECONFIG,
            "task.mask_token_id: must be given: %s was made of ids, without a tokenizer "
            "that tells the mask",
            d9d_dataset_dir(ds));
    for (size_t i = 0; i < (m->token != NULL ? 1 : sizeof(usual) / sizeof(usual[0])); i++) {
        const char *token = m->token != NULL ? m->token : usual[i];

        if (!d9d_tokenizer_find(tok, token, strlen(token), &id))
            continue;
        *out = (int32_t)id;
        return D9D_OK;
    }
    return D9D_FAIL(D9D_ECONFIG, "task.mask_token: %s: its tokenizer has no token \"%.64s\"%s",
                    d9d_dataset_dir(ds), m->token != NULL ? m->token : usual[0],
                    m->token != NULL ? "" : " or \"<mask>\"");
}

d9d_status d9di_masked_lm_find_mask(const d9di_masked_lm_mask *m, d9d_dataset *const *datasets,
                                    size_t n, const d9d_tokenizer **tok, size_t *at, int32_t *id)
{
    *tok = NULL;
    *at = 0;
    for (size_t i = 0; i < n && *tok == NULL; i++) {
        D9D_TRY(d9d_dataset_tokenizer(datasets[i], tok));
        *at = i;
    }
    return mask_id_find(m, datasets[*at], *tok, id);
}

/* Special tokens of the tokenizer, those of the section, and the mask. */
static d9d_status find_special(masked_lm *m, const d9d_tokenizer *tok)
{
    const int64_t *given = m->c->special_ids.items;
    const int64_t vocab = tok != NULL ? (int64_t)d9d_tokenizer_vocab_size(tok) : 0;
    int64_t n = vocab > m->opts.mask_id ? vocab : m->opts.mask_id + 1;

    for (size_t i = 0; i < m->c->special_ids.n; i++)
        n = given[i] >= n ? given[i] + 1 : n;
    m->special = calloc((size_t)n, sizeof(*m->special));
    if (m->special == NULL)
        return D9D_FAIL(D9D_ENOMEM, "task: special tokens of %lld ids", (long long)n);
    for (int64_t i = 0; i < vocab; i++)
        m->special[i] = d9d_tokenizer_is_special(tok, (uint32_t)i);
    for (size_t i = 0; i < m->c->special_ids.n; i++)
        m->special[given[i]] = true;
    m->special[m->opts.mask_id] = true;
    m->opts.special = m->special;
    m->opts.n_special = n;
    return D9D_OK;
}

/* Targets that the dataset brings are learned as they are. */
static bool masks_nothing(const d9d_masked_lm_section *c)
{
    return c->mlm_probability == 0;
}

static d9d_status check_labels(d9d_dataset *const *datasets, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!d9d_dataset_has_labels(datasets[i]))
            return D9D_FAIL(D9D_ECONFIG,
                            "task.mlm_probability is 0, and %s has no labels, which would be the "
                            "targets then",
                            d9d_dataset_dir(datasets[i]));
    return D9D_OK;
}

/* The first dataset with a tokenizer tells what is special; the others may not disagree. */
static d9d_status masked_lm_set_data(void *self, d9d_dataset *const *datasets, size_t n)
{
    masked_lm *m = self;
    const d9di_masked_lm_mask mask = mask_of(m);
    const d9d_tokenizer *tok;
    size_t at;
    int32_t id = 0;

    if (masks_nothing(m->c))
        return check_labels(datasets, n);
    D9D_TRY(d9di_masked_lm_find_mask(&mask, datasets, n, &tok, &at, &id));
    if (m->has_data)
        return id == m->opts.mask_id
                   ? D9D_OK
                   : D9D_FAIL(D9D_EMISMATCH, "task: the mask is id %d in %s, and %d in training",
                              id, d9d_dataset_dir(datasets[at]), m->opts.mask_id);
    m->opts.mask_id = id;
    m->has_data = true;
    return find_special(m, tok);
}

static void masked_lm_collate(void *self, const d9d_dataset *ds, int64_t sample, int64_t n,
                              int32_t *ids, int32_t *labels)
{
    const masked_lm *m = self;

    if (!masks_nothing(m->c))
        d9d_masked_lm_mask(&m->opts, sample, d9d_dataset_vocab(ds), n, ids, labels);
}

#define MASKED_LM_MEMBERS                                                                          \
    .size = sizeof(d9d_train_task), .open = masked_lm_open, .close = masked_lm_close,              \
    .head = masked_lm_head, .extend = masked_lm_extend, .set_data = masked_lm_set_data,            \
    .collate = masked_lm_collate
static const d9d_train_task masked_lm_task = {MASKED_LM_MEMBERS,
                                              .table = &d9di_masked_lm_train_table};
static const d9d_train_task masked_lm_body = {MASKED_LM_MEMBERS,
                                              .table = &d9di_masked_lm_infer_table};

/* --- inference -------------------------------------------------------------------------------- */

/* A list of what the row's targets have. */
static d9d_status put_targets(const d9d_infer_task_row *x, const char *name, bool positions,
                              d9d_buf *b)
{
    const char *comma = "";

    D9D_TRY(d9d_buf_printf(b, "\"%s\": [", name));
    for (int64_t i = 0; i < x->length; i++) {
        if (x->labels[i] == D9D_IGNORE_INDEX)
            continue;
        D9D_TRY(d9d_buf_printf(b, "%s%lld", comma, positions ? (long long)i : x->labels[i]));
        comma = ", ";
    }
    return d9d_buf_printf(b, "], ");
}

static d9d_status masked_lm_row(const void *config, const d9d_infer_task_row *x, d9d_buf *b)
{
    (void)config;
    D9D_TRY(d9d_buf_printf(b, "{\"sample\": %lld, ", (long long)x->sample));
    if (x->blended)
        D9D_TRY(d9d_buf_printf(b, "\"dataset\": %d, ", x->dataset));
    D9D_TRY(put_targets(x, "positions", true, b));
    D9D_TRY(put_targets(x, "targets", false, b));
    D9D_TRY(d9di_infer_task_put_logprobs(x, b));
    return d9d_buf_append(b, "}\n", 2);
}

static const d9d_infer_task_kind masked_lm_score = {.size = sizeof(d9d_infer_task_kind),
                                                    .table = &d9di_masked_lm_infer_table,
                                                    .body = &masked_lm_body,
                                                    .row = masked_lm_row};

/* --- sections --------------------------------------------------------------------------------- */

#define MAX_EXACT_INT 9007199254740992.0 /* 2^53: every integer below is exact in JSON */

static const d9d_key special_id = {
    .kind = D9D_KIND_INT, .min = 0, .max = INT32_MAX - 1, .doc = "a token"};
#define MASK_KEYS                                                                                  \
    D9D_KEY_REAL(d9d_masked_lm_section, mlm_probability, "0.3", 0, 1,                              \
                 "share of the tokens that are chosen; 0: the targets are the dataset's labels"),  \
        D9D_KEY_REAL(d9d_masked_lm_section, mask_replace_prob, "0.8", 0, 1,                        \
                     "share of the chosen tokens that become the mask"),                           \
        D9D_KEY_REAL(d9d_masked_lm_section, random_replace_prob, "0.1", 0, 1,                      \
                     "share of the chosen tokens that become any token; the rest stays as it is"), \
        D9DI_MASKED_LM_MASK_KEYS(d9d_masked_lm_section),                                           \
        D9D_KEY_LIST(d9d_masked_lm_section, special_ids, "[]", &special_id,                        \
                     "tokens that are never chosen, beside the tokenizer's special ones"),         \
        D9D_KEY_INT(d9d_masked_lm_section, seed, "0", 0, MAX_EXACT_INT, "seed of the choice")

static const d9d_key train_keys[] = {MASK_KEYS, D9D_KEY_END};
static const d9d_key infer_keys[] = {{.name = "output",
                                      .kind = D9D_KIND_STR,
                                      .offset = offsetof(d9d_masked_lm_section, output.output),
                                      .def = D9D_REQUIRED,
                                      .min = 1,
                                      .doc = "JSONL file to write"},
                                     MASK_KEYS,
                                     D9D_KEY_END};

static d9d_status section_check(const void *value, const char *path)
{
    const d9d_masked_lm_section *c = value;

    return c->mask_replace_prob + c->random_replace_prob <= 1 + 1e-12
               ? D9D_OK
               : D9D_FAIL(D9D_ECONFIG,
                          "%s: mask_replace_prob %g and random_replace_prob %g are more than 1 "
                          "together",
                          path, c->mask_replace_prob, c->random_replace_prob);
}

const d9d_table d9di_masked_lm_train_table = {
    .name = "masked_lm",
    .size = sizeof(d9d_masked_lm_section),
    .keys = train_keys,
    .doc = "masked language modelling: the tokens behind masks",
    .check = section_check,
    .row = &masked_lm_task};
const d9d_table d9di_masked_lm_infer_table = {
    .name = "masked_lm",
    .size = sizeof(d9d_masked_lm_section),
    .keys = infer_keys,
    .doc = "log-probability of every masked token, by sample",
    .check = section_check,
    .row = &masked_lm_score};
