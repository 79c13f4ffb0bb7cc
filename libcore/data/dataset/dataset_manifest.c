/* dataset_manifest.c - see dataset_manifest.h. */
#include "data/dataset/dataset_manifest.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/fs.h"
#include "d9d/base/json.h"
#include "d9d/base/num_format.h"
#include "data/tokenizer/bpe.h"

/* --- reading ------------------------------------------------------------------------ */

/* Gets the array at `key` and zeroed memory for its elements. */
static d9d_status get_list(d9di_dataset_manifest *m, const json_t *root, const char *where,
                           const char *key, size_t elem, json_t **list, void *space, size_t *n)
{
    void *p;

    D9D_TRY(d9d_json_get_arr(root, where, key, list));
    *n = json_array_size(*list);
    p = d9d_arena_alloc(&m->arena, (*n + 1) * elem);
    if (!p)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for %zu %s", where, *n, key);
    memcpy(space, &p, sizeof(p));
    return D9D_OK;
}

/* Copies a name of the manifest. */
static d9d_status get_name(d9di_dataset_manifest *m, const json_t *v, const char *where,
                           const char *key, const char **out)
{
    const char *text;

    D9D_TRY(d9d_json_get_str(v, where, key, &text));
    *out = d9d_arena_strdup(&m->arena, text);
    return *out ? D9D_OK : D9D_FAIL(D9D_ENOMEM, "%s: no memory", where);
}

static d9d_status get_hash(const json_t *v, const char *where, d9d_hash *out)
{
    const char *hex;

    D9D_TRY(d9d_json_get_str(v, where, "xxh3_128", &hex));
    if (d9d_hash_parse(hex, out) != D9D_OK)
        return D9D_FAIL(D9D_EFORMAT, "%s: xxh3_128: must be 32 hexadecimal digits", where);
    return D9D_OK;
}

/* The ranges of a split's values, if it has some of its own. */
static d9d_status parse_split_ranges(d9di_dataset_manifest *m, const json_t *v, const char *where,
                                     d9di_dataset_split *s)
{
    const json_t *fields = json_object_get(v, "field_ranges"),
                 *label = json_object_get(v, "label_range");
    d9di_field_ranges *r;

    if (fields == NULL && label == NULL)
        return D9D_OK;
    r = d9d_arena_alloc(&m->arena, sizeof(*r));
    if (r == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", where);
    if (json_array_size(fields) != m->fields.n)
        return D9D_FAIL(D9D_EFORMAT, "%s: field_ranges: has %zu elements, the dataset %zu field%s",
                        where, json_array_size(fields), m->fields.n, D9D_PLURAL(m->fields.n));
    for (size_t i = 0; i < m->fields.n; i++)
        D9D_TRY(d9di_field_range_parse(json_array_get(fields, i), where, &r->field[i]));
    D9D_TRY(d9di_field_range_parse(label, where, &r->label));
    s->ranges = r;
    return D9D_OK;
}

static d9d_status parse_splits(d9di_dataset_manifest *m, const json_t *root, const char *where)
{
    int64_t next = 0, positions = 0;
    json_t *list;
    size_t i;

    D9D_TRY(
        get_list(m, root, where, "splits", sizeof(*m->splits), &list, &m->splits, &m->n_splits));
    for (i = 0; i < m->n_splits; i++) {
        const json_t *v = json_array_get(list, i);
        d9di_dataset_split *s = &m->splits[i];
        char at[512];

        (void)d9d_num_format(at, sizeof(at), "%.440s: splits[%zu]", where, i);
        D9D_TRY(get_name(m, v, at, "name", &s->name));
        D9D_TRY(d9d_json_get_i64(v, at, "first", next, next, &s->first));
        D9D_TRY(d9d_json_get_i64(v, at, "samples", 0, m->samples - next, &s->samples));
        D9D_TRY(d9d_json_get_i64(v, at, "positions", 0, m->positions - positions, &s->positions));
        D9D_TRY(d9d_json_get_i64(v, at, "longest", 0, D9DI_MAX_LENGTH, &s->longest));
        D9D_TRY(parse_split_ranges(m, v, at, s));
        next += s->samples;
        positions += s->positions;
    }
    if (next != m->samples || positions != m->positions)
        return D9D_FAIL(
            D9D_EFORMAT,
            "%s: splits have %lld sample%s and %lld positions, the dataset %lld and %lld", where,
            (long long)next, D9D_PLURAL(next), (long long)positions, (long long)m->samples,
            (long long)m->positions);
    return D9D_OK;
}

static d9d_status parse_edges(d9di_dataset_manifest *m, const json_t *root, const char *where)
{
    json_t *list;
    size_t i;

    D9D_TRY(
        get_list(m, root, where, "bucket_edges", sizeof(*m->edges), &list, &m->edges, &m->n_edges));
    for (i = 0; i < m->n_edges; i++) {
        const json_t *v = json_array_get(list, i);

        m->edges[i] = json_integer_value(v);
        if (!json_is_integer(v) || m->edges[i] <= (i ? m->edges[i - 1] : 0) ||
            m->edges[i] > D9DI_MAX_LENGTH)
            return D9D_FAIL(D9D_EFORMAT, "%s: bucket_edges[%zu]: must be above the one before",
                            where, i);
    }
    return D9D_OK;
}

/* Parses a list of names, sizes and hashes. */
static d9d_status parse_list(d9di_dataset_manifest *m, const json_t *root, const char *where)
{
    json_t *list;
    size_t i;

    D9D_TRY(get_list(m, root, where, "files", sizeof(*m->files), &list, &m->files, &m->n_files));
    for (i = 0; i < m->n_files; i++) {
        const json_t *v = json_array_get(list, i);
        d9di_dataset_file *f = &m->files[i];
        char at[512];

        (void)d9d_num_format(at, sizeof(at), "%.440s: files[%zu]", where, i);
        D9D_TRY(get_name(m, v, at, "name", &f->name));
        D9D_TRY(d9d_fs_check_name(f->name, strlen(f->name), at));
        D9D_TRY(d9d_json_get_i64(v, at, "bytes", 0, INT64_MAX, &f->bytes));
        D9D_TRY(get_hash(v, at, &f->hash));
    }
    return D9D_OK;
}

/* Files must be sorted by name, which also excludes duplicates. */
static d9d_status parse_files(d9di_dataset_manifest *m, const json_t *root, const char *where)
{
    D9D_TRY(parse_list(m, root, where));
    for (size_t i = 1; i < m->n_files; i++)
        if (strcmp(m->files[i - 1].name, m->files[i].name) >= 0)
            return D9D_FAIL(D9D_EFORMAT, "%.440s: files[%zu]: \"%s\" comes after \"%s\"", where, i,
                            m->files[i].name, m->files[i - 1].name);
    return D9D_OK;
}

/* Checks that a shard has the files of its fields, and of whole entries. */
static d9d_status check_field_files(const d9di_dataset_manifest *m, uint32_t shard,
                                    const char *where)
{
    static const char *const kinds[] = {"fields", "documents"};
    static const int64_t units[] = {8, sizeof(struct d9di_field_document)};

    for (int i = 0; i < 2; i++) {
        char name[32];
        const d9di_dataset_file *f;

        (void)snprintf(name, sizeof(name), "%s-%05u.bin", kinds[i], shard);
        f = d9di_dataset_manifest_file(m, name);
        if (f == NULL)
            return D9D_FAIL(D9D_EFORMAT, "%s: files: %s is not among them", where, name);
        if (f->bytes == 0 || f->bytes % units[i] != 0)
            return D9D_FAIL(D9D_EFORMAT, "%s: %s: %lld bytes, must be a multiple of %lld", where,
                            name, (long long)f->bytes, (long long)units[i]);
    }
    return D9D_OK;
}

/* Checks that the files' sizes fit `tokens` tokens in `n_shards` shards. */
static d9d_status check_shards(d9di_dataset_manifest *m, const char *where)
{
    const int64_t elem = m->wide ? 4 : 2;
    int64_t total = 0;
    uint32_t i;

    m->shard_tokens = d9d_arena_alloc(&m->arena, ((size_t)m->n_shards + 1) * sizeof(int64_t));
    if (!m->shard_tokens)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for %u shards", where, m->n_shards);
    for (i = 0; i < m->n_shards; i++) {
        char name[2][32];
        const d9di_dataset_file *tokens, *labels;

        snprintf(name[0], sizeof(name[0]), "tokens-%05u.bin", i);
        snprintf(name[1], sizeof(name[1]), "labels-%05u.bin", i);
        tokens = d9di_dataset_manifest_file(m, name[0]);
        labels = d9di_dataset_manifest_file(m, name[1]);
        if (!tokens || (m->labels && !labels))
            return D9D_FAIL(D9D_EFORMAT, "%s: files: %s is not among them", where,
                            tokens ? name[1] : name[0]);
        m->shard_tokens[i] = tokens->bytes / elem;
        if (tokens->bytes == 0 || tokens->bytes % elem != 0)
            return D9D_FAIL(D9D_EFORMAT, "%s: %s: %lld bytes are no number of tokens of %lld bytes",
                            where, name[0], (long long)tokens->bytes, (long long)elem);
        if (m->labels && (labels->bytes % 4 != 0 || labels->bytes / 4 != m->shard_tokens[i]))
            return D9D_FAIL(D9D_EFORMAT, "%s: %s: %lld bytes, must have 4 for each of %lld tokens",
                            where, name[1], (long long)labels->bytes,
                            (long long)m->shard_tokens[i]);
        if (m->fields.n > 0)
            D9D_TRY(check_field_files(m, i, where));
        if (__builtin_add_overflow(total, m->shard_tokens[i], &total))
            return D9D_FAIL(D9D_EFORMAT, "%s: files: their sizes cannot be added", where);
    }
    if (total != m->tokens)
        return D9D_FAIL(D9D_EFORMAT, "%s: shards have %lld tokens, the dataset %lld", where,
                        (long long)total, (long long)m->tokens);
    return D9D_OK;
}

static d9d_status parse_tokenizer(d9di_dataset_manifest *m, const json_t *root, const char *where)
{
    const json_t *v = json_object_get(root, "tokenizer");
    char at[512];

    if (json_is_null(v))
        return D9D_OK;
    (void)d9d_num_format(at, sizeof(at), "%.440s: tokenizer", where);
    m->has_tokenizer = true;
    return get_hash(v, at, &m->tokenizer_hash);
}

static d9d_status get_opt_name(d9di_dataset_manifest *m, const json_t *v, const char *where,
                               const char *key, const char **out)
{
    *out = NULL;
    return json_is_string(json_object_get(v, key)) ? get_name(m, v, where, key, out) : D9D_OK;
}

/* A number, or `none` for null and for a missing key. */
static d9d_status get_opt_i64(const json_t *v, const char *where, const char *key, int64_t none,
                              int64_t *out)
{
    const json_t *x = json_object_get(v, key);

    *out = none;
    return !x || json_is_null(x) ? D9D_OK : d9d_json_get_i64(v, where, key, 0, INT64_MAX, out);
}

/* true or false; absent where it is unknown, as in older manifests. */
static d9d_status get_special(const json_t *v, const char *where, d9d_dataset_special *out)
{
    const json_t *x = json_object_get(v, "add_special_tokens");
    int yes = 0;

    *out = D9D_DATASET_SPECIAL_UNKNOWN;
    if (!x)
        return D9D_OK;
    D9D_TRY(d9d_json_get_bool(v, where, "add_special_tokens", &yes));
    *out = yes ? D9D_DATASET_SPECIAL_ADDED : D9D_DATASET_SPECIAL_NONE;
    return D9D_OK;
}

static d9d_status parse_recipe(d9di_dataset_manifest *m, const json_t *root, const char *where)
{
    d9di_dataset_recipe *r = &m->recipe;
    const json_t *v;

    D9D_TRY(d9d_json_get_i64(root, where, "pack", 0, D9DI_MAX_LENGTH, &r->pack));
    v = json_object_get(root, "recipe");
    D9D_TRY(get_opt_name(m, v, where, "overflow", &r->overflow));
    D9D_TRY(get_opt_i64(v, where, "max_length", 0, &r->max_length));
    D9D_TRY(get_opt_name(m, v, where, "pack_mode", &r->pack_mode));
    D9D_TRY(get_opt_i64(v, where, "pack_window", 0, &r->pack_window));
    D9D_TRY(get_opt_i64(v, where, "shuffle_seed", -1, &r->seed));
    D9D_TRY(get_opt_i64(v, where,
                        json_object_get(v, "part_bytes") != NULL ? "part_bytes" : "unit_bytes", 0,
                        &r->unit_bytes)); /* the first: in those of 0.1 */
    D9D_TRY(get_opt_name(m, v, where, "on_error", &r->on_error));
    D9D_TRY(get_special(v, where, &r->add_special));
    D9D_TRY(get_opt_name(m, v, where, "chat_template", &r->chat_template));
    D9D_TRY(get_opt_name(m, v, where, "chat_masks", &r->chat_masks));
    D9D_TRY(get_opt_name(m, v, where, "chat_kwargs", &r->chat_kwargs));
    D9D_TRY(get_opt_name(m, v, where, "chat_date", &r->chat_date));
    D9D_TRY(get_opt_i64(v, where, "record_documents", 0, &r->record_documents));
    return get_opt_name(m, v, where, "append_eos", &r->append_eos);
}

/* All numbers of `documents`, in the order in which they are written. */
#define DOCUMENTS(key, member)                                                                     \
    {                                                                                              \
        key, offsetof(d9di_dataset_documents, member), false                                       \
    }
static const struct documents_number {
    const char *key;
    size_t offset;
    bool left_out; /* if it is 0 */
} documents_numbers[] = {
    DOCUMENTS("read", read),
    DOCUMENTS("kept", kept),
    DOCUMENTS("too_short", empty),
    DOCUMENTS("no_trained_role", untrained),
    DOCUMENTS("dropped", dropped),
    DOCUMENTS("truncated", truncated),
    DOCUMENTS("split", split),
    DOCUMENTS("turns_lost", turns_lost),
    DOCUMENTS("targets_lost", targets_lost),
    {"special_twice", offsetof(d9di_dataset_documents, special_twice), true},
};
enum { N_DOCUMENTS_NUMBERS = sizeof(documents_numbers) / sizeof(documents_numbers[0]) };

/* Numbers that older manifests lack are 0. */
static d9d_status parse_documents(d9di_dataset_manifest *m, const json_t *root, const char *where)
{
    const json_t *v = json_object_get(root, "documents");

    for (size_t i = 0; i < N_DOCUMENTS_NUMBERS; i++)
        D9D_TRY(
            get_opt_i64(v, where, documents_numbers[i].key, 0,
                        (int64_t *)(void *)((char *)&m->documents + documents_numbers[i].offset)));
    return d9di_skipped_counts_parse(json_object_get(v, "skipped"), where, m->documents.skipped);
}

/* Parses the token type. */
static d9d_status parse_token_type(d9di_dataset_manifest *m, const json_t *root, const char *where)
{
    const char *dtype, *targets;

    D9D_TRY(d9d_json_get_i64(root, where, "vocab_size", 1, D9DI_MAX_VOCAB, &m->vocab_size));
    D9D_TRY(d9d_json_get_str(root, where, "dtype", &dtype));
    D9D_TRY(d9d_json_get_str(root, where, "targets", &targets));
    m->wide = strcmp(dtype, "u32") == 0;
    m->labels = strcmp(targets, "labels") == 0;
    if (!m->wide && (strcmp(dtype, "u16") != 0 || m->vocab_size > 65536))
        return D9D_FAIL(D9D_EFORMAT, "%s: dtype: \"%.20s\" does not hold ids below %lld", where,
                        dtype, (long long)m->vocab_size);
    if (!m->labels && strcmp(targets, "next") != 0)
        return D9D_FAIL(D9D_EFORMAT, "%s: targets: \"%.20s\" is neither \"next\" nor \"labels\"",
                        where, targets);
    return D9D_OK;
}

static d9d_status parse_counts(d9di_dataset_manifest *m, const json_t *root, const char *where)
{
    int64_t shards;

    D9D_TRY(d9d_json_get_i64(root, where, "samples", 1, INT64_MAX, &m->samples));
    D9D_TRY(d9d_json_get_i64(root, where, "tokens", 1, INT64_MAX, &m->tokens));
    D9D_TRY(d9d_json_get_i64(root, where, "positions", 1, INT64_MAX, &m->positions));
    D9D_TRY(d9d_json_get_i64(root, where, "shards", 1, D9DI_MAX_SHARDS, &shards));
    m->n_shards = (uint32_t)shards;
    return D9D_OK;
}

static d9d_status parse_fields(d9di_dataset_manifest *m, const json_t *root, const char *where)
{
    char at[512];

    (void)d9d_num_format(at, sizeof(at), "%.480s: label_range", where);
    D9D_TRY(d9di_field_range_parse(json_object_get(root, "label_range"), at, &m->label_range));
    return d9di_field_list_parse(json_object_get(root, "fields"), where, &m->arena, &m->fields);
}

/* Parses names of splits or sources. */
static d9d_status parse_names(d9di_dataset_manifest *m, const json_t *root, const char *where)
{
    json_t *list;
    size_t i;

    D9D_TRY(
        get_list(m, root, where, "splits", sizeof(*m->splits), &list, &m->splits, &m->n_splits));
    for (i = 0; i < m->n_splits; i++)
        D9D_TRY(get_name(m, json_array_get(list, i), where, "name", &m->splits[i].name));
    D9D_TRY(get_list(m, root, where, "sources", sizeof(*m->sources), &list, &m->sources,
                     &m->n_sources));
    for (i = 0; i < m->n_sources; i++)
        D9D_TRY(get_name(m, json_array_get(list, i), where, "name", &m->sources[i].name));
    return D9D_OK;
}

static d9d_status check_files(d9di_dataset_manifest *m, const json_t *root, const char *where)
{
    const d9di_dataset_file *tokenizer = d9di_dataset_manifest_file(m, "tokenizer.json");

    (void)root;
    D9D_TRY(check_shards(m, where));
    if (m->has_tokenizer && tokenizer && !d9d_hash_equal(tokenizer->hash, m->tokenizer_hash))
        return D9D_FAIL(D9D_EFORMAT,
                        "%s: tokenizer: its hash is not that of tokenizer.json among the files",
                        where);
    return d9di_dataset_manifest_file(m, "index.lmdb") != NULL
               ? D9D_OK
               : D9D_FAIL(D9D_EFORMAT, "%s: files: index.lmdb is not among them", where);
}

/* The members of a manifest, in the order in which they are parsed. */
typedef d9d_status parse_fn(d9di_dataset_manifest *m, const json_t *root, const char *where);
static parse_fn *const manifest_parsers[] = {
    parse_token_type, parse_fields, parse_recipe, parse_counts,
    parse_documents,  parse_splits, parse_edges,  parse_files,
    parse_tokenizer,  check_files,  NULL};
static parse_fn *const plan_parsers[] = {parse_token_type, parse_fields, parse_recipe,
                                         parse_names,      parse_edges,  parse_list,
                                         parse_tokenizer,  NULL};

static d9d_status parse_manifest(const char *where, const char *text, size_t n, bool sealed,
                                 parse_fn *const *parts, d9di_dataset_manifest *out)
{
    json_t *root = NULL;
    d9d_status st;

    memset(out, 0, sizeof(*out));
    D9D_TRY(d9d_json_parse(where, text, n, &root));
    D9D_TRY_OR(st, d9d_json_check_schema(root, where, "dataset", 1), out);
    if (sealed)
        D9D_TRY_OR(st, d9d_json_checksum_verify(where, text, n), out);
    for (; *parts != NULL; parts++)
        D9D_TRY_OR(st, (*parts)(out, root, where), out);
out:
    json_decref(root);
    if (st != D9D_OK)
        d9di_dataset_manifest_release(out);
    return st;
}

d9d_status d9di_dataset_manifest_parse(const char *where, const char *text, size_t n,
                                       d9di_dataset_manifest *out)
{
    return parse_manifest(where, text, n, true, manifest_parsers, out);
}

d9d_status d9di_dataset_manifest_parse_plan(const char *where, const char *text, size_t n,
                                            d9di_dataset_manifest *out)
{
    return parse_manifest(where, text, n, false, plan_parsers, out);
}

const d9di_dataset_file *d9di_dataset_manifest_file(const d9di_dataset_manifest *m,
                                                    const char *name)
{
    size_t lo = 0, hi = m->n_files;

    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        const int c = strcmp(m->files[mid].name, name);

        if (c == 0)
            return &m->files[mid];
        if (c < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

void d9di_dataset_manifest_release(d9di_dataset_manifest *m)
{
    d9d_arena_release(&m->arena);
    memset(m, 0, sizeof(*m));
}

/* --- writing ------------------------------------------------------------------------- */

static json_t *hash_json(d9d_hash hash)
{
    char hex[D9D_HASH_HEX];

    d9d_hash_hex(hash, hex);
    return json_string(hex);
}

/* A number, or null for `none`. */
static json_t *number_or_null_json(int64_t v, int64_t none)
{
    return v == none ? json_null() : json_integer(v);
}

static json_t *recipe_json(const d9di_dataset_manifest *m)
{
    const d9di_dataset_recipe *r = &m->recipe;

    return json_pack(
        "{s:o, s:s, s:s?, s:o, s:o, s:o, s:s?, s:o*, s:s?, s:o, s:s?, s:o, s:s?, s:o*}",
        "max_length", number_or_null_json(r->max_length, 0), "overflow", r->overflow, "pack_mode",
        r->pack_mode, "pack_window", number_or_null_json(r->pack_window, 0), "shuffle_seed",
        number_or_null_json(r->seed, -1), "unit_bytes", number_or_null_json(r->unit_bytes, 0),
        "append_eos", r->append_eos, "add_special_tokens",
        r->add_special == D9D_DATASET_SPECIAL_UNKNOWN
            ? NULL /* left out */
            : json_boolean(r->add_special == D9D_DATASET_SPECIAL_ADDED),
        "on_error", r->on_error, "chat_template", d9d_json_str(r->chat_template), "chat_masks",
        r->chat_masks, "chat_kwargs", d9d_json_str(r->chat_kwargs), "chat_date", r->chat_date,
        "record_documents", r->record_documents > 0 ? json_integer(r->record_documents) : NULL);
}

/* Reasons are written if records may be skipped. */
static json_t *documents_json(const d9di_dataset_manifest *m)
{
    const bool skips = m->recipe.on_error && strcmp(m->recipe.on_error, "skip") == 0;
    json_t *v = json_object();
    int bad = v == NULL;

    for (size_t i = 0; i < N_DOCUMENTS_NUMBERS && !bad; i++) {
        const int64_t n = *(const int64_t *)(const void *)((const char *)&m->documents +
                                                           documents_numbers[i].offset);

        if (n != 0 || !documents_numbers[i].left_out)
            bad = json_object_set_new(v, documents_numbers[i].key, json_integer(n));
    }
    if (!bad && skips)
        bad = json_object_set_new(v, "skipped", d9di_skipped_counts_json(m->documents.skipped));
    if (!bad)
        return v;
    json_decref(v);
    return NULL;
}

static json_t *split_json(const d9di_dataset_manifest *m, const d9di_dataset_split *s)
{
    json_t *v = json_pack("{s:s, s:I, s:I, s:I, s:I}", "name", s->name, "first",
                          (json_int_t)s->first, "samples", (json_int_t)s->samples, "positions",
                          (json_int_t)s->positions, "longest", (json_int_t)s->longest);
    json_t *list = s->ranges != NULL ? json_array() : NULL;

    if (s->ranges == NULL)
        return v;
    for (size_t i = 0; i < m->fields.n; i++)
        d9d_json_add(&list, d9di_field_range_json(&s->ranges->field[i]));
    d9d_json_set(&v, "field_ranges", list);
    if (m->labels)
        d9d_json_set(&v, "label_range", d9di_field_range_json(&s->ranges->label));
    return v;
}

static json_t *lists_json(const d9di_dataset_manifest *m)
{
    json_t *sources = json_array(), *splits = json_array(), *edges = json_array();
    json_t *files = json_array();
    size_t i;

    for (i = 0; i < m->n_sources; i++)
        d9d_json_add(&sources, json_pack("{s:o, s:I}", "name", d9d_json_str(m->sources[i].name),
                                         "bytes", (json_int_t)m->sources[i].bytes));
    for (i = 0; i < m->n_splits; i++)
        d9d_json_add(&splits, split_json(m, &m->splits[i]));
    for (i = 0; i < m->n_edges; i++)
        d9d_json_add(&edges, json_integer(m->edges[i]));
    for (i = 0; i < m->n_files; i++)
        d9d_json_add(&files, json_pack("{s:s, s:I, s:o}", "name", m->files[i].name, "bytes",
                                       (json_int_t)m->files[i].bytes, "xxh3_128",
                                       hash_json(m->files[i].hash)));
    return json_pack("{s:o, s:o, s:o, s:o}", "splits", splits, "bucket_edges", edges, "sources",
                     sources, "files", files);
}

d9d_status d9di_dataset_manifest_print(const d9di_dataset_manifest *m, d9d_buf *out)
{
    json_t *lists = lists_json(m);
    json_t *root =
        json_pack("{s:s, s:s, s:o, s:I, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:o, s:o}", "schema",
                  "d9d.dataset.v1", "version", D9D_VERSION, "tokenizer",
                  m->has_tokenizer ? json_pack("{s:s, s:o}", "file", "tokenizer.json", "xxh3_128",
                                               hash_json(m->tokenizer_hash))
                                   : json_null(),
                  "vocab_size", (json_int_t)m->vocab_size, "dtype", m->wide ? "u32" : "u16",
                  "targets", m->labels ? "labels" : "next", "samples", (json_int_t)m->samples,
                  "tokens", (json_int_t)m->tokens, "positions", (json_int_t)m->positions, "shards",
                  (json_int_t)m->n_shards, "pack", (json_int_t)m->recipe.pack, "recipe",
                  recipe_json(m), "documents", documents_json(m));
    d9d_status st = D9D_ENOMEM;

    if (m->label_range.known)
        d9d_json_set(&root, "label_range", d9di_field_range_json(&m->label_range));
    if (m->fields.n > 0)
        d9d_json_set(&root, "fields", d9di_field_list_json(m->fields));
    if (!root || !lists || json_object_update(root, lists) != 0)
        st = D9D_FAIL(D9D_ENOMEM, "manifest.json: no memory");
    else if ((st = d9d_json_put(out, root, 2)) == D9D_OK &&
             (st = d9d_buf_append(out, "\n", 1)) == D9D_OK)
        st = d9d_json_checksum_append(out);
    json_decref(root);
    json_decref(lists);
    return st;
}
