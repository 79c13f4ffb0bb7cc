/* shard_plan.c - the plan of a run: decided before any work, and stored as plan.json. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/json.h"
#include "data/build/assemble.h"
#include "data/build/shard_private.h"
#include "data/build/shard_unit_private.h"
#include "data/tokenizer/vocab.h"

#define DEFAULT_SHARD_BYTES INT64_C(1000000000)
#define DEFAULT_PART_BYTES  INT64_C(268435456)
enum { DEFAULT_WINDOW = 10000, WINDOW_TOKENS = 8 << 20 };

static const char *const overflows[] = {[D9D_SHARD_OVERFLOW_SPLIT] = "split",
                                        [D9D_SHARD_OVERFLOW_TRUNCATE] = "truncate",
                                        [D9D_SHARD_OVERFLOW_DROP] = "drop"};
static const char *const pack_modes[] = {"best-fit", "concat"};
static const char *const on_errors[] = {"stop", "skip"};

/* --- the recipe ------------------------------------------------------------------------------- */

d9di_packer_opts d9di_shard_plan_packer(const d9di_dataset_recipe *recipe, size_t n_splits,
                                        bool wide, d9d_field_list fields)
{
    const size_t least = (size_t)recipe->pack * 4, tokens = WINDOW_TOKENS / n_splits;

    return (d9di_packer_opts){
        .size = recipe->pack,
        .mode =
            recipe->pack_mode && strcmp(recipe->pack_mode, pack_modes[D9D_SHARD_PACK_CONCAT]) == 0
                ? D9D_SHARD_PACK_CONCAT
                : D9D_SHARD_PACK_BEST_FIT,
        .window = (size_t)recipe->pack_window,
        .window_tokens = tokens > least ? tokens : least,
        .wide = wide,
        .fields = fields};
}

/* Of texts; templates write a chat's special tokens, and ids are as they are given. */
static d9d_dataset_special special_of(const d9di_shard_plan *p)
{
    if (!p->tokenizer.tok || p->tokenizer.chat || !d9di_shard_has_texts(p->opts))
        return D9D_DATASET_SPECIAL_UNKNOWN;
    return p->tokenizer.adds_special ? D9D_DATASET_SPECIAL_ADDED : D9D_DATASET_SPECIAL_NONE;
}

/* Makes the recipe, without the splits. */
static d9di_dataset_recipe make_recipe(const d9di_shard_plan *p)
{
    const d9d_shard_opts *opts = p->opts;
    const bool best_fit = opts->pack > 0 && opts->pack_mode == D9D_SHARD_PACK_BEST_FIT;

    d9di_dataset_recipe r = {.overflow = overflows[d9di_shard_resolve_overflow(opts)],
                             .max_length = opts->max_length,
                             .pack = opts->pack,
                             .pack_mode = opts->pack > 0 ? pack_modes[opts->pack_mode] : NULL,
                             .pack_window = !best_fit               ? 0
                                            : opts->pack_window > 0 ? opts->pack_window
                                                                    : DEFAULT_WINDOW,
                             .seed = opts->seed,
                             .unit_bytes = p->unit_bytes,
                             .append_eos = opts->append_eos,
                             .add_special = special_of(p),
                             .on_error = on_errors[opts->on_error],
                             .record_documents = d9di_shard_record_documents(opts)};

    if (p->tokenizer.chat != NULL) {
        const d9di_chat_template *t = d9di_chat_get_template(p->tokenizer.chat);

        r.chat_template = t->where;
        r.chat_masks = d9di_chat_masks(p->tokenizer.chat);
        r.chat_kwargs = opts->chat_kwargs;
        r.chat_date = opts->chat_date;
    }
    return r;
}

/* Units are packed when they are made, unless the documents of a split are known only at the end.
 */
static void plan_packs(d9di_shard_plan *p)
{
    const d9di_dataset_recipe recipe = make_recipe(p);
    const d9di_packer_opts packer =
        d9di_shard_plan_packer(&recipe, p->splits.n, p->unit.wide, p->fields.list);

    if (d9di_assemble_defers_packing(p->opts->pack, p->splits.counts, p->splits.n))
        p->packs = packer;
    else
        p->packer = packer;
}

/* --- the job ---------------------------------------------------------------------------------- */

static d9d_status append_stat(d9d_buf *b, const d9di_input_stat *s)
{
    return s->is_file ? d9d_buf_printf(b, " %lld %lld.%09ld\n", (long long)s->bytes,
                                       (long long)s->changed.tv_sec, s->changed.tv_nsec)
                      : D9D_OK;
}

/* Hashes an input; only regular files can be read again by another run. */
static d9d_status append_input(d9d_buf *b, const d9di_shard_plan *p, size_t i)
{
    const d9di_input_stat *seen = p->input_splits.stats[i];

    D9D_TRY(d9d_buf_append(b, p->opts->inputs[i], strlen(p->opts->inputs[i]) + 1));
    D9D_TRY(append_stat(b, &seen[0]));
    return append_stat(b, &seen[1]);
}

static d9d_status append_hash(d9d_buf *b, d9d_hash h)
{
    char hex[D9D_HASH_HEX];

    d9d_hash_hex(h, hex);
    return d9d_buf_printf(b, "%s\n", hex);
}

/* Hashes everything that the content depends on. */
static d9d_status hash_job(d9di_shard_plan *p)
{
    const d9d_shard_opts *opts = p->opts;
    d9d_buf b = {0};
    d9d_status st;
    size_t i;

    p->repeatable = true;
    D9D_TRY_OR(
        st,
        d9d_buf_printf(&b, "%s units v3 %d %d %d %s|%s|%s|%s|%s\n", D9D_VERSION, (int)opts->format,
                       opts->lines, p->tokenizer.adds_special, opts->text_key ? opts->text_key : "",
                       opts->text_pair_key ? opts->text_pair_key : "",
                       opts->label_key ? opts->label_key : "",
                       opts->append_eos ? opts->append_eos : "", opts->split ? opts->split : ""),
        out);
    D9D_TRY_OR(st,
               d9d_buf_printf(&b, "%lld %d %lld %d %lld %lld %lld %llu\n",
                              (long long)opts->max_length, (int)d9di_shard_resolve_overflow(opts),
                              (long long)opts->pack, (int)opts->pack_mode,
                              (long long)make_recipe(p).pack_window, (long long)opts->seed,
                              (long long)p->unit_bytes, (unsigned long long)p->unit.shard_bytes),
               out);
    if (opts->on_error != D9D_SHARD_ON_ERROR_STOP)
        D9D_TRY_OR(st, d9d_buf_printf(&b, "%s\n", on_errors[opts->on_error]), out);
    if (p->fields.list.n > 0)
        D9D_TRY_OR(st, append_hash(&b, p->fields.hash), out);
    if (p->tokenizer.tok)
        D9D_TRY_OR(st, append_hash(&b, d9d_tokenizer_hash(p->tokenizer.tok)), out);
    if (p->tokenizer.chat)
        D9D_TRY_OR(st, append_hash(&b, d9di_chat_get_template(p->tokenizer.chat)->hash), out);
    for (i = 0; i < opts->n_edges; i++)
        D9D_TRY_OR(st, d9d_buf_printf(&b, "%lld,", (long long)opts->edges[i]), out);
    for (i = 0; i < opts->n_inputs; i++) {
        p->repeatable = p->repeatable && p->input_splits.stats[i][0].is_file;
        D9D_TRY_OR(st, append_input(&b, p, i), out);
    }
    p->job = d9d_hash_bytes(b.data, b.len);
out:
    d9d_buf_release(&b);
    return st;
}

/* --- making ----------------------------------------------------------------------------------- */

static d9d_status load_chat(const d9d_shard_opts *opts, d9di_shard_tokenizer *t)
{
    d9d_chat_opts chat = {.chat_template = opts->chat_template,
                          .tokenizer = opts->tokenizer,
                          .date = opts->chat_date};
    json_t *kwargs = NULL;
    d9d_status st = D9D_OK;

    if (opts->chat_kwargs != NULL)
        st = d9d_json_parse("--template-kwargs", opts->chat_kwargs, strlen(opts->chat_kwargs),
                            &kwargs);
    chat.kwargs = kwargs;
    if (st == D9D_OK)
        st = d9di_chat_load(&chat, t->tok, &t->chat);
    if (st == D9D_OK)
        st = d9di_chat_check_trains(t->chat);
    json_decref(kwargs);
    return st;
}

static d9d_status load_tokenizer(const d9d_shard_opts *opts, d9di_shard_tokenizer *t)
{
    d9d_tokenizer *tok;

    *t = (d9di_shard_tokenizer){.opts = opts, .vocab = D9DI_MAX_VOCAB};
    if (!opts->tokenizer)
        return D9D_OK;
    D9D_TRY(d9d_tokenizer_check(opts->tokenizer));
    D9D_TRY(d9d_fs_check_readable(opts->tokenizer));
    D9D_TRY(d9d_tokenizer_load(opts->tokenizer, &tok));
    t->tok = tok;
    t->vocab = d9d_tokenizer_vocab_size(tok);
    t->has_eos = opts->append_eos != NULL;
    if (opts->append_eos &&
        !d9d_tokenizer_find(tok, opts->append_eos, strlen(opts->append_eos), &t->eos))
        return D9D_FAIL(D9D_ECONFIG, "--append-eos: %s has no token \"%s\"", opts->tokenizer,
                        opts->append_eos);
    D9D_TRY(d9di_shard_special_plan(t));
    return d9di_shard_has_chats(opts) ? load_chat(opts, t) : D9D_OK;
}

/* Say where the tokenizer's folder says otherwise of special tokens. */
static d9d_status log_special(const d9di_shard_tokenizer *t, const d9d_log *log)
{
    d9d_buf text = {0};
    d9d_status st = D9D_OK;

    if (t->adds_special)
        st = d9d_tokenizer_explain_config(t->tok, t->opts->tokenizer, &text);
    if (text.len > 0)
        d9d_log_warn(log, "%s", text.data);
    d9d_buf_release(&text);
    return st;
}

static d9d_status make_plan(d9di_shard_plan *p, const d9d_log *log)
{
    const d9d_shard_opts *opts = p->opts;

    D9D_TRY(d9di_shard_check(opts, &p->splits));
    D9D_TRY(d9di_shard_fields_load(opts, log, &p->fields));
    D9D_TRY(d9di_shard_check_fields(opts, p->fields.list));
    D9D_TRY(load_tokenizer(opts, &p->tokenizer));
    D9D_TRY(log_special(&p->tokenizer, log));
    p->unit_bytes = opts->unit_bytes > 0 ? opts->unit_bytes : DEFAULT_PART_BYTES;
    D9D_TRY(d9di_input_splits_make(opts, p->unit_bytes, &p->input_splits));
    p->tokenizer.input_splits = &p->input_splits;
    p->tokenizer.fields = &p->fields;
    p->unit = (d9di_shard_unit_opts){
        .wide = p->tokenizer.vocab > 65536,
        .find_bound = p->tokenizer.tok == NULL,
        .shard_bytes = (uint64_t)(opts->shard_bytes > 0 ? opts->shard_bytes : DEFAULT_SHARD_BYTES),
        .edges = opts->edges,
        .n_edges = opts->n_edges,
        .n_splits = p->splits.n,
        .fields = p->fields.list};
    plan_packs(p);
    D9D_TRY(d9di_shard_aux_files_find(p));
    D9D_TRY(hash_job(p));
    p->unit.job = p->job;
    return D9D_OK;
}

d9d_status d9di_shard_plan_init(const d9d_shard_opts *opts, const d9d_log *log,
                                d9di_shard_plan *out)
{
    d9d_status st;

    memset(out, 0, sizeof(*out));
    out->opts = opts;
    st = make_plan(out, log);
    if (st != D9D_OK)
        d9di_shard_plan_release(out);
    return st;
}

void d9di_shard_plan_release(d9di_shard_plan *p)
{
    d9di_chat_free(p->tokenizer.chat);
    d9di_shard_fields_release(&p->fields);
    d9d_tokenizer_free((d9d_tokenizer *)(uintptr_t)p->tokenizer.tok);
    d9di_input_splits_release(&p->input_splits);
    memset(p, 0, sizeof(*p));
}

bool d9di_shard_plan_has_split(const d9di_shard_plan *p, size_t input_split)
{
    return p->opts->tasks == 0 ||
           d9di_input_split_task(&p->input_splits, input_split, p->opts->tasks) == p->opts->task;
}

d9d_status d9di_shard_plan_check_inputs(const d9di_shard_plan *p)
{
    for (size_t i = 0; i < p->input_splits.list.len; i++)
        if (d9di_shard_plan_has_split(p, i))
            D9D_TRY(d9di_input_split_check(p->opts, &p->input_splits, i));
    return D9D_OK;
}

d9d_status d9di_shard_plan_manifest(const d9di_shard_plan *p, d9di_dataset_manifest *m)
{
    const d9d_shard_opts *opts = p->opts;
    size_t i;

    memset(m, 0, sizeof(*m));
    m->vocab_size = p->tokenizer.vocab;
    m->wide = p->unit.wide;
    m->fields = p->fields.list;
    m->has_tokenizer = p->tokenizer.tok != NULL;
    if (m->has_tokenizer)
        m->tokenizer_hash = d9d_tokenizer_hash(p->tokenizer.tok);
    m->recipe = make_recipe(p);
    m->n_edges = opts->n_edges;
    m->n_sources = opts->n_inputs;
    m->n_splits = p->splits.n;
    m->edges = d9d_arena_alloc(&m->arena, (m->n_edges + 1) * sizeof(*m->edges));
    m->sources = d9d_arena_alloc(&m->arena, m->n_sources * sizeof(*m->sources));
    m->splits = d9d_arena_alloc(&m->arena, m->n_splits * sizeof(*m->splits));
    if (!m->edges || !m->sources || !m->splits)
        return D9D_FAIL(D9D_ENOMEM, "no memory for a manifest of %zu inputs", m->n_sources);
    for (i = 0; i < m->n_edges; i++)
        m->edges[i] = opts->edges[i];
    for (i = 0; i < m->n_sources; i++)
        m->sources[i] = (d9di_dataset_source){opts->inputs[i], 0};
    for (i = 0; i < m->n_splits; i++)
        m->splits[i].name = p->splits.split[i].name;
    return D9D_OK;
}

/* --- plan.json -------------------------------------------------------------------------------- */

static d9d_status print_plan(const d9di_shard_plan *p, const d9di_dataset_manifest *m, d9d_buf *out)
{
    json_t *root = NULL, *dataset = NULL, *counts = json_array();
    char hex[D9D_HASH_HEX];
    d9d_buf text = {0};
    d9d_status st;

    D9D_TRY_OR(st, d9di_dataset_manifest_print(m, &text), out);
    D9D_TRY_OR(st, d9d_json_parse("plan.json", text.data, text.len, &dataset), out);
    d9d_hash_hex(p->job, hex);
    for (size_t i = 0; i < p->splits.n; i++)
        d9d_json_add(&counts, json_integer(p->splits.counts[i]));
    root =
        json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:O, s:O}", "schema", "d9d.part.v2", "job", hex,
                  "pieces", (json_int_t)p->input_splits.list.len, "task", (json_int_t)p->opts->task,
                  "tasks", (json_int_t)(p->opts->tasks > 0 ? p->opts->tasks : 1), "shard_bytes",
                  (json_int_t)p->unit.shard_bytes, "counts", counts, "dataset", dataset);
    D9D_TRY_OR(st, root ? d9d_json_put(out, root, 1) : D9D_FAIL(D9D_ENOMEM, "plan.json: no memory"),
               out);
    D9D_TRY_OR(st, d9d_buf_append(out, "\n", 1), out);
    st = d9d_json_checksum_append(out);
out:
    json_decref(root);
    json_decref(counts);
    json_decref(dataset);
    d9d_buf_release(&text);
    return st;
}

d9d_status d9di_shard_plan_write(const d9di_shard_plan *p, const char *dir)
{
    d9di_dataset_manifest m = {0};
    d9d_buf text = {0};
    d9d_status st;

    D9D_TRY_OR(st, d9di_shard_plan_manifest(p, &m), out);
    m.n_files = p->n_aux_files;
    m.files = (d9di_dataset_file *)(uintptr_t)p->aux_files;
    D9D_TRY_OR(st, print_plan(p, &m, &text), out);
    st = d9d_fs_write_in(dir, "plan.json", text.data, text.len);
out:
    d9d_buf_release(&text);
    d9di_dataset_manifest_release(&m);
    return st;
}

static d9d_status parse_counts(const json_t *root, const char *where, d9di_shard_plan_file *out)
{
    const size_t n = out->manifest.n_splits;
    json_t *list;

    D9D_TRY(d9d_json_get_arr(root, where, "counts", &list));
    if (json_array_size(list) != n || n == 0 || n > D9DI_MAX_SPLITS)
        return D9D_FAIL(D9D_EFORMAT, "%s: counts: has %zu numbers, there are %zu splits", where,
                        json_array_size(list), n);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);

        out->counts[i] = json_integer_value(v);
        if (!json_is_integer(v) || out->counts[i] < D9DI_ASSEMBLE_REST ||
            out->counts[i] > INT64_C(1) << 40)
            return D9D_FAIL(D9D_EFORMAT, "%s: counts[%zu]: no number of samples", where, i);
    }
    return D9D_OK;
}

static d9d_status parse_plan(const json_t *root, const char *where, const d9d_buf *whole,
                             d9di_shard_plan_file *out)
{
    json_t *dataset;
    const char *hex;
    d9d_buf text = {0};
    d9d_status st;

    D9D_TRY(d9di_shard_unit_check_sum(root, where, "part", whole));
    D9D_TRY(d9d_json_get_str(root, where, "job", &hex));
    D9D_TRY(d9d_hash_parse(hex, &out->job));
    D9D_TRY(
        d9d_json_get_i64(root, where, "pieces", 1, D9DI_MAX_INPUT_SPLITS, &out->n_input_splits));
    D9D_TRY(d9d_json_get_i64(root, where, "tasks", 1, D9DI_MAX_TASKS, &out->tasks));
    D9D_TRY(d9d_json_get_i64(root, where, "task", 0, out->tasks - 1, &out->task));
    if (json_object_get(root, "shard_bytes"))
        D9D_TRY(d9d_json_get_i64(root, where, "shard_bytes", 1, INT64_MAX, &out->shard_bytes));
    D9D_TRY(d9d_json_get_obj(root, where, "dataset", &dataset));
    D9D_TRY_OR(st, d9d_json_put(&text, dataset, 0), out);
    D9D_TRY_OR(st, d9di_dataset_manifest_parse_plan(where, text.data, text.len, &out->manifest),
               out);
    st = parse_counts(root, where, out);
out:
    d9d_buf_release(&text);
    return st;
}

d9d_status d9di_shard_plan_read(const char *dir, d9di_shard_plan_file *out)
{
    d9d_buf text = {0};
    json_t *root = NULL;
    char *path = NULL;
    d9d_status st;

    memset(out, 0, sizeof(*out));
    if (asprintf(&path, "%s/plan.json", dir) < 0)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", dir);
    D9D_TRY_OR(st, d9d_fs_read(path, UINT64_C(256) << 20, &text), out);
    D9D_TRY_OR(st, d9d_json_parse(path, text.data ? text.data : "", text.len, &root), out);
    st = parse_plan(root, path, &text, out);
out:
    json_decref(root);
    d9d_buf_release(&text);
    free(path);
    return st;
}

void d9di_shard_plan_file_release(d9di_shard_plan_file *f)
{
    d9di_dataset_manifest_release(&f->manifest);
}
