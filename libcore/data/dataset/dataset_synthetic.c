/* dataset_synthetic.c - synthetic datasets: samples computed by a table of functions.  See
 * d9d/data/dataset/dataset_kind.h. */
#include "d9d/data/dataset/dataset_kind.h"

#include <stdlib.h>
#include <string.h>

#include "d9d/base/num_format.h"
#include "d9d/base/plugin_call.h"
#include "d9d/base/rng.h"
#include "data/dataset/dataset_private.h"
#include "data/dataset/text_stream.h"

/* --- random tokens -------------------------------------------------------------------- */

typedef struct random_section {
    int64_t samples, length, vocab, seed;
} random_section;

static d9d_status random_info(void *self, d9d_dataset_info *out)
{
    const random_section *s = self;

    out->samples = s->samples;
    out->longest = s->length;
    out->vocab = s->vocab;
    out->hash.lo = (uint64_t)s->seed;
    return D9D_OK;
}

/* The target is the next token. */
static d9d_status random_sample(void *self, int64_t k, int64_t length, int32_t *ids,
                                int32_t *labels)
{
    const random_section *s = self;
    const d9d_rng r = {.seed = (uint64_t)s->seed, .stream = (uint64_t)k};
    int32_t next = (int32_t)d9d_rng_below(r, 0, (uint64_t)s->vocab);

    for (int64_t i = 0; i < length; i++) {
        ids[i] = next;
        labels[i] = next = (int32_t)d9d_rng_below(r, (uint64_t)i + 1, (uint64_t)s->vocab);
    }
    return D9D_OK;
}

static const d9d_key random_keys[] = {
    D9D_KEY_INT(random_section, samples, D9D_REQUIRED, 1, INT64_C(1) << 40, "how many"),
    D9D_KEY_INT(random_section, length, D9D_REQUIRED, 1, INT64_C(1) << 30, "positions of each"),
    D9D_KEY_INT(random_section, vocab, D9D_REQUIRED, 1, INT32_MAX, "tokens are below it"),
    D9D_KEY_INT(random_section, seed, "0", 0, INT64_C(1) << 53, "of the tokens"),
    D9D_KEY_END,
};
static const d9d_dataset_kind random_kind;
static const d9d_table random_table = {.name = "random",
                                       .size = sizeof(random_section),
                                       .keys = random_keys,
                                       .doc = "random tokens, for measuring without data",
                                       .row = &random_kind};
static const d9d_dataset_kind random_kind = {.size = sizeof(random_kind),
                                             .table = &random_table,
                                             .info = random_info,
                                             .sample = random_sample};

const char *const d9d_dataset_tag[] = {"name", NULL};
const d9d_table *const d9d_dataset_choices[] = {&random_table, &d9di_text_stream_table, NULL};

/* --- any kind ------------------------------------------------------------------------------ */

static d9d_status check_fields(const d9d_dataset *ds, d9d_field_list fields)
{
    const d9d_dataset_kind *kind = ds->kind;
    const bool writes = D9DI_DATASET_KIND_HAS(kind, fields);

    D9D_TRY(d9d_field_list_check(fields, ds->dir));
    for (size_t i = 0; i < fields.n; i++)
        if (!writes || fields.v[i].ragged)
            return D9D_FAIL(D9D_ECONFIG, "%s: the dataset %s declares the field \"%s\", %s",
                            ds->dir, kind->table->name, fields.v[i].name,
                            writes ? "which is ragged" : "and has no function that writes it");
    return D9D_OK;
}

#define ENDLESS (INT64_C(1) << 62) /* samples of a stream, as far as numbers of samples go */

static d9d_status check_stream(d9d_dataset *ds, const d9d_dataset_info *f)
{
    const d9d_dataset_kind *kind = ds->kind;

    ds->is_stream = f->samples == D9D_DATASET_STREAM;
    if (ds->is_stream && !D9DI_DATASET_KIND_HAS(kind, poll))
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: the dataset %s is a stream, and has no function that polls it",
                        ds->dir, kind->table->name);
    if (ds->is_stream && D9DI_DATASET_KIND_HAS(kind, seek) != D9DI_DATASET_KIND_HAS(kind, tell))
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: the stream %s has one of tell() and seek(); it needs both, or none",
                        ds->dir, kind->table->name);
    if (ds->is_stream &&
        (D9DI_DATASET_KIND_HAS(kind, share) != D9DI_DATASET_KIND_HAS(kind, survey) ||
         D9DI_DATASET_KIND_HAS(kind, survey) != D9DI_DATASET_KIND_HAS(kind, set_surveys)))
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: the stream %s has some of share(), survey() and set_surveys(); it "
                        "needs all, or none",
                        ds->dir, kind->table->name);
    return D9D_OK;
}

static d9d_status load_info(d9d_dataset *ds)
{
    d9d_dataset_info f = {0};
    struct {
        int64_t numbers[3];
        d9d_hash own, name;
    } all;

    D9D_TRY(D9D_PLUGIN_CALL(ds->kind->table->name, ds->kind, info, ds->self, &f));
    D9D_TRY(check_stream(ds, &f));
    if ((f.samples < 1 && !ds->is_stream) || f.longest < 1 || f.longest > D9DI_MAX_LENGTH ||
        f.vocab < 1 || f.vocab > INT32_MAX)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: the dataset %s says %lld sample%s of at most %lld positions, tokens "
                        "below %lld",
                        ds->dir, ds->kind->table->name, (long long)f.samples, D9D_PLURAL(f.samples),
                        (long long)f.longest, (long long)f.vocab);
    D9D_TRY(check_fields(ds, f.fields));
    ds->manifest.fields = f.fields;
    memset(&all, 0, sizeof(all));
    all.numbers[0] = f.samples;
    all.numbers[1] = f.longest;
    all.numbers[2] = f.vocab;
    all.own = f.hash;
    all.name = d9d_hash_bytes(ds->kind->table->name, strlen(ds->kind->table->name));
    ds->hash = d9d_hash_bytes(&all, sizeof(all));
    ds->manifest.vocab_size = f.vocab;
    ds->manifest.labels = true; /* labels are given */
    if (D9DI_DATASET_KIND_HAS(ds->kind, documents))
        ds->manifest.recipe.pack = f.longest;
    ds->synthetic_split =
        (d9di_dataset_split){.name = ds->kind->table->name,
                             .samples = ds->is_stream ? ENDLESS : f.samples,
                             .longest = f.longest,
                             .positions = ds->is_stream ? 0 : f.samples * f.longest};
    ds->split = &ds->synthetic_split;
    return D9D_OK;
}

d9d_status d9d_dataset_synthesize(const d9d_union *section, const char *name, d9d_dataset **out)
{
    const d9d_dataset_kind *kind = section->choice->row;
    d9d_dataset *ds = calloc(1, sizeof(*ds));
    d9d_status st = D9D_OK;

    if (ds == NULL || (ds->dir = strdup(name)) == NULL) {
        st = D9D_FAIL(D9D_ENOMEM, "%s: no memory", name);
        goto out;
    }
    ds->self = section->value;
    if (kind->open != NULL)
        D9D_TRY_OR(st, D9D_PLUGIN_CALL(kind->table->name, kind, open, section->value, &ds->self),
                   out);
    ds->kind = kind;
    D9D_TRY_OR(st, load_info(ds), out);
    *out = ds;
    ds = NULL;
out:
    d9d_dataset_close(ds);
    return st;
}

d9d_status d9di_dataset_synthetic_sample(const d9d_dataset *ds, int64_t k, d9d_sample *out)
{
    int64_t length = ds->synthetic_split.longest;

    if (ds->kind->length != NULL)
        D9D_TRY(D9D_PLUGIN_CALL(ds->kind->table->name, ds->kind, length, ds->self, k, &length));
    if (length < 1 || length > ds->synthetic_split.longest)
        return D9D_FAIL(D9D_EINVAL, "%s: sample %lld has %lld positions, the longest has %lld",
                        ds->dir, (long long)k, (long long)length,
                        (long long)ds->synthetic_split.longest);
    *out = (d9d_sample){.number = k, .length = length};
    return D9D_OK;
}

/* Positions begin anew with each document. */
static d9d_status expand_documents(const d9d_dataset *ds, const d9d_sample *s, int32_t *positions,
                                   int32_t *segments)
{
    D9D_TRY(D9D_PLUGIN_CALL(ds->kind->table->name, ds->kind, documents, ds->self, s->number,
                            s->length, segments));
    for (int64_t i = 0; i < s->length; i++) {
        const int32_t before = i > 0 ? segments[i - 1] : 0;

        if (segments[i] < 1 || (segments[i] != before && segments[i] != before + 1))
            return D9D_FAIL(D9D_EINVAL,
                            "%s: sample %lld: document %d follows document %d at position %lld",
                            ds->dir, (long long)s->number, segments[i], before, (long long)i);
        positions[i] = segments[i] == before ? positions[i - 1] + 1 : 0;
    }
    return D9D_OK;
}

d9d_status d9di_dataset_synthetic_expand(const d9d_dataset *ds, const d9d_sample *s, int32_t *ids,
                                         int32_t *labels, int32_t *positions, int32_t *segments)
{
    const int64_t vocab = ds->manifest.vocab_size;

    D9D_TRY(D9D_PLUGIN_CALL(ds->kind->table->name, ds->kind, sample, ds->self, s->number, s->length,
                            ids, labels));
    for (int64_t i = 0; i < s->length; i++) {
        const bool id = ids[i] >= 0 && ids[i] < vocab;

        if (!id || (labels[i] != -100 && (labels[i] < 0 || labels[i] >= vocab)))
            return D9D_FAIL(D9D_EINVAL,
                            "%s: sample %lld: the %s of position %lld is %d, the vocabulary has "
                            "%lld",
                            ds->dir, (long long)s->number, id ? "label" : "id", (long long)i,
                            id ? labels[i] : ids[i], (long long)vocab);
        positions[i] = (int32_t)i;
        if (segments != NULL)
            segments[i] = 1;
    }
    return D9DI_DATASET_KIND_HAS(ds->kind, documents) && segments != NULL
               ? expand_documents(ds, s, positions, segments)
               : D9D_OK;
}
