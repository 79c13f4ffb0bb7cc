/* d9d-shard - builds, inspects and verifies datasets. */
#include "d9d/data/dataset/dataset.h"
#include "d9d/data/loader/loader.h"
#include "shard_filter.h"
#include "shard_make.h"

/* --- inspecting a dataset ------------------------------------------------------------ */

struct inspect_opts {
    int64_t sample, batch, pad_to_multiple_of;
    bool text;
    const char *split;
};
static const struct inspect_opts inspect_default = {.sample = -1, .pad_to_multiple_of = 1};

static const tool_option inspect_options[] = {
    TOOL_OPT(struct inspect_opts, sample, INT, "sample", 'n', "N",
             "show sample N: ids, targets, tokens", .min = 0, .max = 0x1p62),
    TOOL_OPT(struct inspect_opts, text, FLAG, "text", 0, NULL,
             "show the sample as text, what is trained in brackets"),
    TOOL_OPT(struct inspect_opts, batch, INT, "batch", 'b', "N",
             "show how much of batches of N samples would be padding", .min = 1, .max = 1 << 30),
    TOOL_OPT(struct inspect_opts, pad_to_multiple_of, INT, "pad-to-multiple-of", 0, "N",
             "with --batch: lengths are rounded up to a multiple of N (default 1)", .min = 1,
             .max = 1 << 30, .former = "multiple"),
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

    if (o->text && (o->sample < 0 || r->json))
        return D9D_FAIL(D9D_ECONFIG, "--text is for --sample, and no JSON");
    D9D_TRY(d9d_dataset_open(r->args[0], o->split, &ds));
    if (o->text)
        st = d9d_sample_print_text(ds, o->sample, &text);
    else if (o->batch > 0)
        st = d9d_dataset_print_padding(ds, o->batch, o->pad_to_multiple_of, r->json, &text);
    else if (o->sample >= 0)
        st = d9d_sample_print(ds, o->sample, r->json, &text);
    else
        st = (r->json ? d9d_dataset_describe : d9d_dataset_print)(ds, &text);
    if (st == D9D_OK)
        tool_put_sanitized(&text);
    d9d_buf_release(&text);
    d9d_dataset_close(ds);
    return st;
}

static d9d_status run_verify(tool_run *r, const void *given)
{
    (void)given;
    D9D_TRY(d9d_dataset_verify(r->args[0], r->log));
    if (r->json)
        return tool_put_json(
            json_pack("{s:o, s:b}", "dataset", d9d_json_str(r->args[0]), "verified", 1));
    d9d_log_info(r->log, "%s: every byte is as it was written", r->args[0]);
    return D9D_OK;
}

struct export_opts {
    int to;
    const char *split;
    bool force;
};
static const char *const export_formats[] = {"megatron", NULL};
static const tool_option export_options[] = {
    TOOL_OPT(struct export_opts, to, WORD, "to", 0, "FORMAT",
             "megatron (default): OUT.bin and OUT.idx", .names = export_formats),
    TOOL_OPT(struct export_opts, split, STRING, "split", 0, "NAME",
             "write this split (default: the first)"),
    TOOL_OPT(struct export_opts, force, FLAG, "force", 0, NULL, "replace files that are there"),
    TOOL_END,
};

static d9d_status run_export(tool_run *r, const void *given)
{
    const struct export_opts *o = given;

    return d9d_dataset_export_megatron(r->args[0], o->split, r->args[1], o->force, r->log);
}

static const tool_command commands[] = {
    {.operands = "INPUT...",
     .min = 1,
     .max = -1,
     .about = "Make a dataset from text, JSON lines or tokens; inputs may be compressed with gzip "
              "or zstd, and - is stdin.",
     .options = shard_make_options,
     .size = sizeof(shard_make),
     .defaults = &shard_make_default,
     .run = shard_make_run},
    {.name = "merge",
     .operands = "OUT PART...",
     .min = 2,
     .max = -1,
     .about = "Make one dataset of the parts that --task or --array made.",
     .options = shard_merge_options,
     .size = sizeof(shard_merge),
     .run = shard_merge_run},
    {.name = "filter",
     .operands = "INPUT...",
     .min = 1,
     .max = -1,
     .about = "Remove duplicates, bad texts and texts of evaluations from a corpus.",
     .options = shard_filter_options,
     .size = sizeof(shard_filter),
     .defaults = &shard_filter_default,
     .run = shard_filter_run},
    {.name = "inspect",
     .operands = "DIR",
     .min = 1,
     .max = 1,
     .about = "Show what a dataset has.",
     .options = inspect_options,
     .size = sizeof(struct inspect_opts),
     .defaults = &inspect_default,
     .run = run_inspect},
    {.name = "export",
     .operands = "DIR OUT",
     .min = 2,
     .max = 2,
     .about = "Write a dataset in the format of another framework.",
     .options = export_options,
     .size = sizeof(struct export_opts),
     .run = run_export},
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
