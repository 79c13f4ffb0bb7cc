/* d9d-shard - text to dataset. */
#include <errno.h>
#include <stdlib.h>

#include "d9d/data/dataset.h"
#include "d9d/data/shard.h"
#include "tool.h"

/* --- making a dataset -------------------------------------------------------- */

struct opts {
    const char *tokenizer, *out, *text_key, *append_eos, *split;
    int format, overflow;
    bool lines, force;
    int64_t max_length, pack, shard_size, jobs, seed;
    tool_list edges;
};

static const char *const formats[] = {"auto", "jsonl", "text", "tokens", NULL};
static const char *const overflows[] = {"split", "truncate", "drop", NULL};
static const struct opts opts_default = {.text_key = "text", .seed = -1, .shard_size = 1000000000};

static const tool_option options[] = {
    TOOL_OPT(struct opts, tokenizer, STRING, "tokenizer", 't', "FILE",
             "HuggingFace tokenizer.json (byte-level BPE)"),
    TOOL_OPT(struct opts, out, STRING, "out", 'o', "DIR", "the dataset directory to make"),
    TOOL_OPT(struct opts, format, WORD, "format", 'f', "FORMAT",
             "jsonl, text (a document a file) or tokens (JSON lines with input_ids and perhaps "
             "labels); default auto: text for *.txt, else jsonl",
             .words = formats),
    TOOL_OPT(struct opts, lines, FLAG, "lines", 0, NULL, "with --format text: a document a line"),
    TOOL_OPT(struct opts, text_key, STRING, "text-key", 0, "KEY",
             "member of a JSON line that has the text (default text)"),
    TOOL_OPT(struct opts, append_eos, STRING, "append-eos", 0, "TOKEN",
             "append this token to every document"),
    TOOL_OPT(struct opts, max_length, INT, "max-length", 'm', "N",
             "most positions of a sample (default: any, or those of a pack)", .min = 1,
             .max = 0x7ffffffe),
    TOOL_OPT(struct opts, overflow, WORD, "overflow", 0, "HOW",
             "what becomes of longer documents: split (default), truncate or drop",
             .words = overflows),
    TOOL_OPT(struct opts, edges, COMMAS, "bucket-edges", 0, "N,N,...",
             "ascending lengths that bound the buckets of samples"),
    TOOL_OPT(struct opts, pack, INT, "pack", 0, "N",
             "put whole documents together to samples of at most N positions", .min = 1,
             .max = 1 << 20),
    TOOL_OPT(struct opts, seed, INT, "shuffle-seed", 0, "S",
             "number the samples of each split in a random order", .min = 0, .max = 0x1p62),
    TOOL_OPT(struct opts, split, STRING, "split", 0, "NAME=SHARE,...",
             "deal documents to splits at random, such as train=0.99,valid=0.01"),
    TOOL_OPT(struct opts, shard_size, SIZE, "shard-size", 0, "SIZE",
             "most bytes of a tokens file (default 1GB)", .min = 1),
    TOOL_OPT(struct opts, jobs, INT, "jobs", 'j', "N", "threads (default: one a processor)",
             .min = 1, .max = 1024),
    TOOL_OPT(struct opts, force, FLAG, "force", 0, NULL, "replace a directory that is there"),
    TOOL_END,
};

/* The numbers of --bucket-edges. */
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

static d9d_status put_report(const char *dir, const d9d_shard_report *s)
{
    return tool_put_json(json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "dataset", dir, "documents",
        (json_int_t)s->documents, "too_short", (json_int_t)s->too_short, "dropped",
        (json_int_t)s->dropped, "truncated", (json_int_t)s->truncated, "split",
        (json_int_t)s->split, "samples", (json_int_t)s->samples, "tokens", (json_int_t)s->tokens,
        "positions", (json_int_t)s->positions, "shards", (json_int_t)s->shards));
}

static d9d_status run_shard(tool_run *r, const void *given)
{
    const struct opts *o = given;
    d9d_shard_how how = {.inputs = (const char *const *)r->args,
                         .n_inputs = (size_t)r->n_args,
                         .out = o->out,
                         .tokenizer = o->tokenizer,
                         .format = (d9d_shard_format)o->format,
                         .lines = o->lines,
                         .text_key = o->text_key,
                         .append_eos = o->append_eos,
                         .max_length = o->max_length,
                         .overflow = (d9d_overflow)o->overflow,
                         .n_edges = o->edges.n,
                         .pack = o->pack,
                         .seed = o->seed,
                         .split = o->split,
                         .shard_bytes = o->shard_size,
                         .jobs = (int)o->jobs,
                         .replace = o->force};
    d9d_shard_report made;
    int64_t *edges;

    if (!o->out)
        return D9D_FAIL(D9D_ECONFIG, "--out DIR is missing");
    D9D_TRY(read_edges(r, &o->edges, &edges));
    how.edges = edges;
    D9D_TRY(d9d_shard_run(&how, r->log, &made));
    return r->json ? put_report(o->out, &made) : D9D_OK;
}

/* --- looking at one ------------------------------------------------------------ */

struct inspect_opts {
    int64_t sample;
    const char *split;
};
static const struct inspect_opts inspect_default = {.sample = -1};

static const tool_option inspect_options[] = {
    TOOL_OPT(struct inspect_opts, sample, INT, "sample", 'n', "N",
             "show sample N: ids, targets, tokens", .min = 0, .max = 0x1p62),
    TOOL_OPT(struct inspect_opts, split, STRING, "split", 0, "NAME",
             "count samples in this split (default: the first)"),
    TOOL_END,
};

static d9d_status run_inspect(tool_run *r, const void *given)
{
    const struct inspect_opts *o = given;
    d9d_dataset *ds;
    d9d_buf text = {0};
    d9d_status st;

    D9D_TRY(d9d_dataset_open(r->args[0], o->split, &ds));
    if (o->sample >= 0)
        st = d9d_sample_print(ds, o->sample, r->json, &text);
    else
        st = (r->json ? d9d_dataset_describe : d9d_dataset_print)(ds, &text);
    if (st == D9D_OK)
        tool_put(&text);
    d9d_buf_release(&text);
    d9d_dataset_close(ds);
    return st;
}

static d9d_status run_verify(tool_run *r, const void *given)
{
    (void)given;
    D9D_TRY(d9d_dataset_verify(r->args[0], r->log));
    if (r->json)
        return tool_put_json(json_pack("{s:s, s:b}", "dataset", r->args[0], "verified", 1));
    d9d_log_info(r->log, "%s: every byte is as it was written", r->args[0]);
    return D9D_OK;
}

static const tool_command commands[] = {
    {.operands = "INPUT...",
     .min = 1,
     .max = -1,
     .about = "Make a dataset from text, JSON lines or tokens; inputs may be compressed with gzip "
              "or zstd, and - is stdin.",
     .options = options,
     .size = sizeof(struct opts),
     .defaults = &opts_default,
     .run = run_shard},
    {.name = "inspect",
     .operands = "DIR",
     .min = 1,
     .max = 1,
     .about = "Show what a dataset has.",
     .options = inspect_options,
     .size = sizeof(struct inspect_opts),
     .defaults = &inspect_default,
     .run = run_inspect},
    {.name = "verify",
     .operands = "DIR",
     .min = 1,
     .max = 1,
     .about = "Check every byte of a dataset.",
     .run = run_verify},
    {.name = NULL, .run = NULL},
};
static const tool shard = {"d9d-shard", "Make datasets of tokens, and look at them.", commands};

int main(int argc, char **argv)
{
    return tool_main(&shard, argc, argv);
}
