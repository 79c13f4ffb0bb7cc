/* shard_make.c - the commands of d9d-shard that make datasets. */
#include "shard_make.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "d9d/base/fs.h"

/* --- making a dataset -------------------------------------------------------- */

#define OPT(field, ...) TOOL_OPT(shard_make, field, __VA_ARGS__)

static const char *const formats[] = {"auto",     "jsonl",  "text",       "tokens",   "chat",
                                      "megatron", "arrays", "preference", "unpaired", NULL};
static const char *const overflows[] = {"auto", "split", "truncate", "drop", NULL};
static const char *const pack_modes[] = {"best-fit", "concat", NULL};
static const char *const add_specials[] = {"auto", "yes", "no", NULL};
static const char *const on_errors[] = {"stop", "skip", NULL};
const shard_make shard_make_default = {.opts = {.seed = -1}};

const tool_option shard_make_options[] = {
    OPT(opts.tokenizer, STRING, "tokenizer", 't', "FILE",
        "HuggingFace tokenizer.json (BPE), or the directory that has it"),
    OPT(opts.out, STRING, "out", 'o', "DIR",
        "the dataset directory to make, or with --task a part"),
    OPT(opts.format, WORD, "format", 'f', "FORMAT",
        "jsonl, text (a document a file), tokens (JSON lines with input_ids and perhaps labels), "
        "chat (JSON lines with messages, or as ShareGPT, Alpaca or prompt and completion), "
        "megatron (NAME.bin of NAME.idx), arrays (JSON lines with the members of --fields alone), "
        "preference (prompt, chosen and rejected) or unpaired (prompt, completion and label); "
        "default auto: text for *.txt, else jsonl. JSON may be "
        "one array, and *.csv and *.tsv are tables",
        .names = formats),
    OPT(opts.lines, FLAG, "lines", 0, NULL, "with --format text: a document a line"),
    OPT(opts.text_key, STRING, "text-key", 0, "KEY",
        "member of a JSON line that has the text (default text)"),
    OPT(opts.text_pair_key, STRING, "text-pair-key", 0, "KEY",
        "member of a JSON line that has a second text, behind the first one"),
    OPT(opts.add_special, WORD, "add-special-tokens", 0, "WHEN",
        "put what the tokenizer's post_processor says around a text, such as <s> or [CLS] and "
        "[SEP]: yes or no; default auto: around texts, not chats and ids",
        .names = add_specials),
    OPT(opts.label_key, STRING, "label-key", 0, "KEY",
        "member of a JSON line that has the text's class, an integer from 0"),
    OPT(opts.fields, STRING, "fields", 0, "FILE",
        "a JSON file that declares named tensors of each sample, {\"fields\": [...]}; JSON lines "
        "have their values"),
    OPT(opts.chat_template, STRING, "template", 0, "FILE",
        "with --format chat: the chat template, in Jinja (default: the one beside the tokenizer)"),
    OPT(opts.chat_kwargs, STRING, "template-kwargs", 0, "JSON",
        "an object with more variables of the template, such as {\"enable_thinking\": false}"),
    OPT(opts.chat_date, STRING, "template-date", 0, "YYYY-MM-DD",
        "what the template's strftime_now() prints"),
    OPT(opts.append_eos, STRING, "append-eos", 0, "TOKEN", "append this token to every document"),
    OPT(opts.max_length, INT, "max-length", 'm', "N",
        "most positions of a sample (default: any, or those of a pack)", .min = 1,
        .max = 0x7ffffffe),
    OPT(opts.overflow, WORD, "overflow", 0, "HOW",
        "what becomes of longer documents: split, truncate (a chat by whole turns) or drop; "
        "default "
        "auto: truncate for chats, else split",
        .names = overflows),
    OPT(edges, COMMAS, "bucket-edges", 0, "N,N,...",
        "ascending lengths that bound the buckets of samples"),
    OPT(opts.pack, INT, "pack", 0, "N", "put documents together to samples of at most N positions",
        .min = 1, .max = 1 << 20),
    OPT(opts.pack_mode, WORD, "pack-mode", 0, "MODE",
        "best-fit (default): whole documents; concat: one behind the other, cut at N",
        .names = pack_modes),
    OPT(opts.pack_window, INT, "pack-window", 0, "N",
        "documents that best-fit chooses among (default 10000)", .min = 1, .max = 10000000),
    OPT(opts.seed, INT, "shuffle-seed", 0, "S",
        "number the samples of each split in a random order", .min = 0, .max = 0x1p62),
    OPT(opts.split, STRING, "split", 0, "NAME=SHARE,...",
        "deal documents to splits at random, such as train=0.99,valid=0.01, or numbers of "
        "samples, such as valid=500"),
    OPT(opts.shard_bytes, SIZE, "shard-size", 0, "SIZE",
        "most bytes of a tokens file (default 1GB)", .min = 1),
    OPT(opts.unit_bytes, SIZE, "unit-size", 0, "SIZE",
        "bytes of input that are worked off apart, with shards of their own (default 256MiB)",
        .min = 1, .former = "part-size"),
    OPT(task, STRING, "task", 0, "I/N", "make part I = 0, ... of N; then merge them"),
    OPT(array, FLAG, "array", 0, NULL, "the same, as this task of a Slurm array"),
    OPT(opts.jobs, INT, "jobs", 'j', "N", "threads (default: one a processor)", .min = 1,
        .max = 1024),
    OPT(opts.on_error, WORD, "on-error", 0, "DO",
        "what to do about a record that cannot be read: stop (default), or skip it, count it by "
        "reason and list it in skipped.jsonl",
        .names = on_errors),
    OPT(opts.replace, FLAG, "force", 0, NULL, "replace a directory that is there"),
    TOOL_END,
};

/* Parses the numbers of --bucket-edges. */
static d9d_status read_edges(tool_run *r, const tool_list *words, int64_t **out)
{
    size_t i;

    *out = d9d_arena_alloc(&r->arena, (words->n + 1) * sizeof(**out));
    if (!*out)
        return D9D_FAIL(D9D_ENOMEM, "no memory for %zu bucket edges", words->n);
    for (i = 0; i < words->n; i++) {
        char *end;

        errno = 0;
        (*out)[i] = strtoll(words->item[i], &end, 10);
        if (errno || end == words->item[i] || *end)
            return D9D_FAIL(D9D_ECONFIG, "--bucket-edges: \"%s\" is no length", words->item[i]);
    }
    return D9D_OK;
}

/* Parses digits up to `end` and advances *text past it; false if there is no such number. */
static bool parse_number_until(const char **text, char end, int64_t *out)
{
    char *behind;

    if (**text < '0' || **text > '9')
        return false;
    errno = 0;
    *out = strtoll(*text, &behind, 10);
    *text = behind + (end != '\0');
    return errno == 0 && *behind == end;
}

/* Reads a Slurm array variable from the environment. */
static d9d_status read_array(const char *what, int64_t *out)
{
    char name[32];
    const char *text, *rest;

    snprintf(name, sizeof(name), "SLURM_ARRAY_TASK_%s", what);
    rest = text = getenv(name);
    if (!text)
        return D9D_FAIL(D9D_ECONFIG, "--array: %s is not set", name);
    if (!parse_number_until(&rest, '\0', out))
        return D9D_FAIL(D9D_ECONFIG, "--array: %s is %s, must be a number", name, text);
    return D9D_OK;
}

static d9d_status read_array_task(d9d_shard_opts *opts)
{
    int64_t id, min, step;

    D9D_TRY(read_array("ID", &id));
    D9D_TRY(read_array("MIN", &min));
    D9D_TRY(read_array("STEP", &step));
    D9D_TRY(read_array("COUNT", &opts->tasks));
    if (step < 1)
        return D9D_FAIL(D9D_ECONFIG, "--array: SLURM_ARRAY_TASK_STEP is 0, must be at least 1");
    if (id < min || (id - min) % step != 0)
        return D9D_FAIL(D9D_ECONFIG,
                        "--array: SLURM_ARRAY_TASK_ID %lld is not %lld and steps of %lld",
                        (long long)id, (long long)min, (long long)step);
    opts->task = (id - min) / step;
    return D9D_OK;
}

/* Sets task and tasks from --task I/N, or from Slurm's array variables. */
static d9d_status read_task(const shard_make *o, d9d_shard_opts *opts)
{
    const char *rest = o->task;

    if (o->task && o->array)
        return D9D_FAIL(D9D_ECONFIG, "--task and --array both say which part is made; give one");
    if (o->task && (!parse_number_until(&rest, '/', &opts->task) ||
                    !parse_number_until(&rest, '\0', &opts->tasks)))
        return D9D_FAIL(D9D_ECONFIG, "--task: \"%s\" must be I/N, such as 0/16", o->task);
    if (o->array)
        D9D_TRY(read_array_task(opts));
    if ((o->task || o->array) && opts->tasks < 1)
        return D9D_FAIL(D9D_ECONFIG, "task %lld of %lld: there is none", (long long)opts->task,
                        (long long)opts->tasks);
    return D9D_OK;
}

static json_t *skipped_json(const d9d_shard_report *s)
{
    json_t *v = json_object();
    int bad = v == NULL;

    for (int i = 0; i < D9D_SHARD_BAD_REASONS && !bad; i++)
        bad = json_object_set_new(v, d9d_shard_bad_record_name((d9d_shard_bad_record)i),
                                  json_integer(s->skipped[i]));
    if (!bad)
        return v;
    json_decref(v);
    return NULL;
}

static d9d_status put_report(const tool_run *r, const char *dir, const d9d_shard_report *s)
{
    if (!r->json)
        return D9D_OK;
    return tool_put_json(
        json_pack("{s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o}",
                  "dataset", d9d_json_str(dir), "documents", (json_int_t)s->documents, "too_short",
                  (json_int_t)s->too_short, "dropped", (json_int_t)s->dropped, "truncated",
                  (json_int_t)s->truncated, "split", (json_int_t)s->split, "turns_lost",
                  (json_int_t)s->turns_lost, "targets_lost", (json_int_t)s->targets_lost,
                  "special_twice", (json_int_t)s->special_twice, "samples", (json_int_t)s->samples,
                  "tokens", (json_int_t)s->tokens, "positions", (json_int_t)s->positions, "shards",
                  (json_int_t)s->shards, "skipped", skipped_json(s)));
}

/* Finds tokenizer.json if the path is a directory. */
static d9d_status find_tokenizer(tool_run *r, const char **path)
{
    if (*path && d9d_fs_is_dir(*path) && !(*path = d9d_fs_join(&r->arena, *path, "tokenizer.json")))
        return D9D_FAIL(D9D_ENOMEM, "no memory for the name of the tokenizer");
    return D9D_OK;
}

d9d_status shard_make_run(tool_run *r, const void *given)
{
    const shard_make *o = given;
    d9d_shard_opts opts = o->opts;
    d9d_shard_report made;
    int64_t *edges;

    if (!opts.out)
        return D9D_FAIL(D9D_ECONFIG, "--out DIR is missing");
    D9D_TRY(read_edges(r, &o->edges, &edges));
    D9D_TRY(read_task(o, &opts));
    D9D_TRY(find_tokenizer(r, &opts.tokenizer));
    opts.inputs = (const char *const *)r->args;
    opts.n_inputs = (size_t)r->n_args;
    opts.edges = edges;
    opts.n_edges = o->edges.n;
    D9D_TRY(d9d_shard_run(&opts, r->log, &made));
    return put_report(r, opts.out, &made);
}

/* --- merging parts -------------------------------------------------------- */

const tool_option shard_merge_options[] = {
    TOOL_OPT(shard_merge, force, FLAG, "force", 0, NULL, "replace a directory that is there"),
    TOOL_END,
};

d9d_status shard_merge_run(tool_run *r, const void *given)
{
    const shard_merge *o = given;
    d9d_shard_report made;

    D9D_TRY(d9d_shard_merge((const char *const *)r->args + 1, (size_t)r->n_args - 1, r->args[0],
                            o->force, r->log, &made));
    return put_report(r, r->args[0], &made);
}
