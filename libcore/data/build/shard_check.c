/* shard_check.c - checks the options of a run and parses the shares of splits. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/num_format.h"
#include "d9d/base/rng.h"
#include "data/build/assemble.h"
#include "data/build/shard_private.h"

#define MAX_COUNT (INT64_C(1) << 40)
enum { MAX_PACK = 1 << 20, MAX_WINDOW = 10000000 };

int64_t d9di_shard_record_documents(const d9d_shard_opts *opts)
{
    return opts->format == D9D_SHARD_PREFERENCE ? 2 : opts->format == D9D_SHARD_UNPAIRED ? 4 : 0;
}

bool d9di_shard_has_chats(const d9d_shard_opts *opts)
{
    return opts->format == D9D_SHARD_CHAT || d9di_shard_record_documents(opts) > 0;
}

d9d_shard_overflow d9di_shard_resolve_overflow(const d9d_shard_opts *opts)
{
    if (opts->overflow != D9D_SHARD_OVERFLOW_BY_FORMAT)
        return opts->overflow;
    if (d9di_shard_record_documents(opts) > 0)
        return D9D_SHARD_OVERFLOW_DROP;
    return opts->format == D9D_SHARD_CHAT ? D9D_SHARD_OVERFLOW_TRUNCATE : D9D_SHARD_OVERFLOW_SPLIT;
}

int64_t d9di_shard_max_document(const d9d_shard_opts *opts)
{
    if (opts->max_length > 0)
        return opts->max_length;
    return opts->pack > 0 && opts->pack_mode == D9D_SHARD_PACK_BEST_FIT ? opts->pack
                                                                        : D9DI_MAX_LENGTH - 1;
}

static d9d_status add_split(d9di_shard_splits *out, const char *name, size_t n, double upto,
                            int64_t count)
{
    d9d_err_copy copy;

    if (d9d_fs_check_name(name, n, "--split") != D9D_OK) {
        d9d_err_save(&copy, D9D_ECONFIG); /* an error of the command line, not of a file */
        return d9d_err_restore(&copy);
    }
    if (out->n == D9DI_MAX_SPLITS)
        return D9D_FAIL(D9D_ECONFIG, "--split: more than %d splits", D9DI_MAX_SPLITS);
    for (size_t i = 0; i < out->n; i++)
        if (strlen(out->split[i].name) == n && memcmp(out->split[i].name, name, n) == 0)
            return D9D_FAIL(D9D_ECONFIG, "--split: \"%.*s\" is given twice", (int)n, name);
    memcpy(out->split[out->n].name, name, n);
    out->counts[out->n] = count;
    out->split[out->n++].upto = upto;
    return D9D_OK;
}

static bool has_train(const d9di_shard_splits *shares)
{
    for (size_t i = 0; i < shares->n; i++)
        if (strcmp(shares->split[i].name, "train") == 0)
            return true;
    return false;
}

/* Adds the split that takes what splits of given size leave. */
static d9d_status add_rest(d9di_shard_splits *out)
{
    const char *name = has_train(out) ? "rest" : "train";

    return add_split(out, name, strlen(name), 2, D9DI_ASSEMBLE_REST);
}

/* Parses NAME=SHARE, adding it to *sum, or NAME=COUNT. */
static d9d_status parse_share(const char *text, size_t n, double *sum, d9di_shard_splits *out)
{
    const char *eq = memchr(text, '=', n);
    const size_t name = eq ? (size_t)(eq - text) : n;
    char number[32] = "", *end = number;
    double share = 0;
    bool counts;

    if (eq && n - name - 1 < sizeof(number)) {
        memcpy(number, eq + 1, n - name - 1);
        share = d9d_num_parse(number, &end);
    }
    counts = share > 1 && share == floor(share) && share <= (double)MAX_COUNT;
    if (name == 0 || name >= sizeof(out->split[0].name) || end == number || *end || !(share > 0) ||
        (share > 1 && !counts))
        return D9D_FAIL(D9D_ECONFIG,
                        "--split: \"%.*s\" must be NAME=SHARE with a share above 0, up to 1, or "
                        "NAME=COUNT with a whole number from 2 on",
                        (int)(n < 80 ? n : 80), text);
    *sum += counts ? 0 : share;
    return add_split(out, text, name, *sum, counts ? (int64_t)share : 0);
}

static d9d_status parse_shares(const char *text, d9di_shard_splits *out)
{
    double sum = 0;

    memset(out, 0, sizeof(*out));
    for (;;) {
        const size_t n = strcspn(text, ",");

        D9D_TRY(parse_share(text, n, &sum, out));
        if (text[n] == '\0')
            break;
        text += n + 1;
    }
    if (sum == 0)
        return add_rest(out);
    if (sum < 1 - 1e-6 && !has_train(out))
        return add_split(out, "train", 5, 2, D9DI_ASSEMBLE_SHARE);
    if (fabs(sum - 1) > 1e-6)
        return D9D_FAIL(D9D_ECONFIG, "--split: the shares add up to %g, must be 1", sum);
    for (size_t i = 0; i < out->n; i++)
        if (out->split[i].upto == sum)
            out->split[i].upto = 2; /* regardless of rounding */
    return D9D_OK;
}

/* A hash of the kept tokens, and of the fields where the tokens say nothing. */
static uint64_t document_hash(const d9di_shard_document *d)
{
    uint64_t all[2] = {d9d_hash_u64(d->tokens, d->n * sizeof(*d->tokens)), 0};

    for (size_t i = 0; i < d->n; i++)
        if (d->tokens[i] != 0)
            return all[0];
    if (d->fields_bytes == 0)
        return all[0];
    all[1] = d9d_hash_u64(d->fields, d->fields_bytes);
    return d9d_hash_u64(all, sizeof(all));
}

void d9di_shard_pick_split(const d9di_shard_splits *shares, int64_t seed,
                           const d9di_shard_document *doc, size_t *split, uint32_t *key)
{
    static const char stream[] = "d9d-shard split";
    const d9d_rng rng = {seed < 0 ? 0 : (uint64_t)seed, d9d_hash_u64(stream, sizeof(stream) - 1)};
    uint64_t drawn;

    *split = *key = 0;
    if (shares->n == 1)
        return;
    drawn = d9d_rng_u64(rng, document_hash(doc));
    *key = (uint32_t)drawn;
    while ((double)(drawn >> 11) * 0x1p-53 >= shares->split[*split].upto)
        ++*split;
}

static d9d_status check_lengths(const d9d_shard_opts *opts)
{
    size_t i;

    if (opts->max_length < 0 || opts->max_length >= D9DI_MAX_LENGTH)
        return D9D_FAIL(D9D_ECONFIG, "a length of %lld; it must be from 1 to %lld",
                        (long long)opts->max_length, (long long)D9DI_MAX_LENGTH - 1);
    if (opts->pack < 0 || opts->pack > MAX_PACK)
        return D9D_FAIL(D9D_ECONFIG, "packs of %lld; they must be of 1 to %d positions",
                        (long long)opts->pack, MAX_PACK);
    if (opts->pack > 0 && opts->max_length > opts->pack &&
        opts->pack_mode == D9D_SHARD_PACK_BEST_FIT)
        return D9D_FAIL(D9D_ECONFIG, "documents of up to %lld positions do not fit packs of %lld",
                        (long long)opts->max_length, (long long)opts->pack);
    if (opts->pack > 0 && opts->n_edges > 0)
        return D9D_FAIL(D9D_ECONFIG,
                        "--bucket-edges: has no use with --pack, whose packs are of one length");
    for (i = 0; i < opts->n_edges; i++)
        if (opts->edges[i] <= (i ? opts->edges[i - 1] : 0) || opts->edges[i] > D9DI_MAX_LENGTH)
            return D9D_FAIL(
                D9D_ECONFIG,
                "--bucket-edges: %lld must be above %lld, the one before it, and at most %lld",
                (long long)opts->edges[i], (long long)(i ? opts->edges[i - 1] : 0),
                (long long)D9DI_MAX_LENGTH);
    return D9D_OK;
}

/* A class belongs to a whole document, so documents must not be split. */
static d9d_status check_classes(const d9d_shard_opts *opts)
{
    const bool cut = d9di_shard_resolve_overflow(opts) == D9D_SHARD_OVERFLOW_SPLIT &&
                     (opts->max_length > 0 || opts->pack > 0);

    if (opts->label_key == NULL)
        return D9D_OK;
    for (size_t i = 0; i < opts->n_inputs; i++) {
        const d9d_shard_format f = d9di_documents_format(opts, i);

        if (f != D9D_SHARD_JSONL && f != D9D_SHARD_TOKENS && f != D9D_SHARD_ARRAYS)
            return D9D_FAIL(D9D_ECONFIG, "--label-key: %s is not JSON lines of texts or tokens",
                            opts->inputs[i]);
    }
    if (cut || opts->pack_mode == D9D_SHARD_PACK_CONCAT)
        return D9D_FAIL(D9D_ECONFIG, "--label-key: a part of a text would have no class; %s",
                        cut ? "--overflow truncate or drop" : "--pack-mode best-fit");
    return D9D_OK;
}

static d9d_status check_texts(const d9d_shard_opts *opts)
{
    const bool special = opts->add_special == D9D_SHARD_ADD_SPECIAL_YES;

    for (size_t i = 0; i < opts->n_inputs && (special || opts->text_pair_key); i++) {
        const d9d_shard_format f = d9di_documents_format(opts, i);

        if (opts->text_pair_key && f != D9D_SHARD_JSONL)
            return D9D_FAIL(D9D_ECONFIG, "--text-pair-key: %s is not JSON lines of texts",
                            opts->inputs[i]);
        if (special &&
            (f == D9D_SHARD_CHAT || f == D9D_SHARD_PREFERENCE || f == D9D_SHARD_UNPAIRED))
            return D9D_FAIL(D9D_ECONFIG,
                            "--add-special-tokens yes: %s: the template writes a chat's own",
                            opts->inputs[i]);
        if (special && f != D9D_SHARD_JSONL && f != D9D_SHARD_TEXT)
            return D9D_FAIL(D9D_ECONFIG, "--add-special-tokens yes: %s: its ids are given",
                            opts->inputs[i]);
    }
    return D9D_OK;
}

/* The documents of a record stay together. */
static d9d_status check_records(const d9d_shard_opts *opts)
{
    if (d9di_shard_record_documents(opts) == 0)
        return D9D_OK;
    if (d9di_shard_resolve_overflow(opts) != D9D_SHARD_OVERFLOW_DROP)
        return D9D_FAIL(D9D_ECONFIG,
                        "--overflow: one side of a record would lose its end; records of answers "
                        "that are too long are dropped");
    if (opts->pack > 0 && opts->pack_mode == D9D_SHARD_PACK_CONCAT)
        return D9D_FAIL(D9D_ECONFIG, "--pack-mode concat: would cut records of answers");
    if (opts->fields)
        return D9D_FAIL(D9D_ECONFIG, "--fields: records of answers have none");
    return D9D_OK;
}

static d9d_status check_inputs(const d9d_shard_opts *opts)
{
    size_t i, stdins = 0;

    if (opts->n_inputs == 0)
        return D9D_FAIL(D9D_ECONFIG, "no inputs");
    for (i = 0; i < opts->n_inputs; i++)
        stdins += strcmp(opts->inputs[i], "-") == 0;
    if (stdins > 1)
        return D9D_FAIL(D9D_ECONFIG, "standard input is given %zu times", stdins);
    if (opts->lines && opts->format != D9D_SHARD_TEXT)
        return D9D_FAIL(D9D_ECONFIG, "--lines is for --format text");
    if (opts->format == D9D_SHARD_ARRAYS && (opts->tokenizer || !opts->fields))
        return D9D_FAIL(D9D_ECONFIG, "--format arrays: has %s",
                        opts->fields ? "no ids, and no use of a --tokenizer"
                                     : "nothing but fields, which --fields declares");
    if (!opts->tokenizer && opts->format != D9D_SHARD_TOKENS &&
        opts->format != D9D_SHARD_MEGATRON && opts->format != D9D_SHARD_ARRAYS)
        return D9D_FAIL(D9D_ECONFIG, "text needs a --tokenizer");
    if (opts->append_eos && !opts->tokenizer)
        return D9D_FAIL(D9D_ECONFIG, "--append-eos needs a --tokenizer");
    if (!d9di_shard_has_chats(opts) &&
        (opts->chat_template || opts->chat_kwargs || opts->chat_date))
        return D9D_FAIL(D9D_ECONFIG, "%s is for --format chat, preference or unpaired",
                        opts->chat_template ? "--template"
                        : opts->chat_kwargs ? "--template-kwargs"
                                            : "--template-date");
    D9D_TRY(check_texts(opts));
    D9D_TRY(check_classes(opts));
    D9D_TRY(check_records(opts));
    if (d9di_shard_has_chats(opts) && opts->append_eos)
        return D9D_FAIL(D9D_ECONFIG, "--append-eos: the template says how a chat ends");
    return D9D_OK;
}

static d9d_status check_sizes(const d9d_shard_opts *opts)
{
    if (opts->shard_bytes < 0 || opts->unit_bytes < 0)
        return D9D_FAIL(D9D_ECONFIG, "shards of %lld bytes, parts of %lld",
                        (long long)opts->shard_bytes, (long long)opts->unit_bytes);
    if (opts->unit_bytes > 0 && opts->unit_bytes < D9DI_MIN_SPLIT_BYTES)
        return D9D_FAIL(
            D9D_ECONFIG,
            "--unit-size: units of %lld bytes; each has files of its own, so they are of "
            "%d bytes at least",
            (long long)opts->unit_bytes, D9DI_MIN_SPLIT_BYTES);
    if (opts->pack_window < 0 || opts->pack_window > MAX_WINDOW)
        return D9D_FAIL(D9D_ECONFIG, "a window of %lld document%s; it must be of 1 to %d",
                        (long long)opts->pack_window, D9D_PLURAL(opts->pack_window), MAX_WINDOW);
    if (opts->tasks > D9DI_MAX_TASKS)
        return D9D_FAIL(D9D_ECONFIG, "%lld tasks, must be at most %lld", (long long)opts->tasks,
                        (long long)D9DI_MAX_TASKS);
    if (opts->tasks < 0 || opts->task < 0 || (opts->tasks > 0 && opts->task >= opts->tasks))
        return D9D_FAIL(D9D_ECONFIG, "task %lld of %lld: tasks are numbered from 0",
                        (long long)opts->task, (long long)opts->tasks);
    return D9D_OK;
}

static d9d_status check_replaced(const d9d_shard_opts *opts)
{
    for (size_t i = 0; i < opts->n_inputs; i++)
        D9D_TRY(d9d_outdir_check_disjoint(opts->out, opts->inputs[i]));
    if (opts->chat_template)
        D9D_TRY(d9d_outdir_check_disjoint(opts->out, opts->chat_template));
    if (opts->fields)
        D9D_TRY(d9d_outdir_check_disjoint(opts->out, opts->fields));
    return opts->tokenizer ? d9d_outdir_check_disjoint(opts->out, opts->tokenizer) : D9D_OK;
}

/* Only who gives the ids knows how many rows a field per token must have. */
d9d_status d9di_shard_check_fields(const d9d_shard_opts *opts, d9d_field_list fields)
{
    for (size_t i = 0; i < opts->n_inputs && fields.n > 0; i++) {
        const d9d_shard_format f = d9di_documents_format(opts, i);

        if (f == D9D_SHARD_TEXT || f == D9D_SHARD_MEGATRON)
            return D9D_FAIL(D9D_ECONFIG, "--fields: %s is not JSON lines, which have their values",
                            opts->inputs[i]);
        for (size_t k = 0; k < fields.n; k++) {
            if (fields.v[k].per == D9D_FIELD_PER_SAMPLE)
                continue;
            if (f != D9D_SHARD_TOKENS && f != D9D_SHARD_ARRAYS)
                return D9D_FAIL(D9D_ECONFIG,
                                "%s: the field \"%s\" is per %s, and %s has no ids to count; "
                                "--format tokens gives ids and values side by side",
                                opts->fields, fields.v[k].name,
                                d9d_field_per_names[fields.v[k].per], opts->inputs[i]);
            if (opts->append_eos)
                return D9D_FAIL(D9D_ECONFIG,
                                "--append-eos: the token would have no value of the field \"%s\"",
                                fields.v[k].name);
        }
    }
    return D9D_OK;
}

d9d_status d9di_shard_check(const d9d_shard_opts *opts, d9di_shard_splits *shares)
{
    D9D_TRY(check_inputs(opts));
    D9D_TRY(check_lengths(opts));
    D9D_TRY(check_sizes(opts));
    if (opts->replace)
        D9D_TRY(check_replaced(opts));
    D9D_TRY(parse_shares(opts->split ? opts->split : "train=1", shares));
    if (d9di_shard_record_documents(opts) > 0 &&
        d9di_assemble_defers_packing(opts->pack, shares->counts, shares->n))
        return D9D_FAIL(D9D_ECONFIG,
                        "--pack: records of answers are packed at once, so that splits have shares "
                        "and no numbers of samples");
    return D9D_OK;
}
