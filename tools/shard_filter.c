/* shard_filter.c - d9d-shard filter: removes documents before they are tokenised. */
#include "shard_filter.h"

#define OPT(field, ...) TOOL_OPT(shard_filter, field, __VA_ARGS__)

static const char *const formats[] = {"auto", "jsonl", "text", NULL};
static const char *const on_errors[] = {"stop", "skip", NULL};
const shard_filter shard_filter_default = {.opts = {.seed = 1}};

const tool_option shard_filter_options[] = {
    OPT(opts.out, STRING, "out", 'o', "DIR",
        "the directory to make, with documents.jsonl and report.json"),
    OPT(opts.format, WORD, "format", 'f', "FORMAT",
        "jsonl (lines, one array, or a table) or text (a document a file); default auto: text for "
        "*.txt, else jsonl",
        .names = formats),
    OPT(opts.lines, FLAG, "lines", 0, NULL, "with --format text: a document a line"),
    OPT(opts.text_key, STRING, "text-key", 0, "KEY",
        "member of a JSON line that has the text (default text)"),
    OPT(opts.exact, FLAG, "exact-duplicates", 0, NULL,
        "remove a text that an earlier document has"),
    OPT(opts.similarity, REAL, "near-duplicates", 0, "S",
        "remove a text whose shingles have about this Jaccard similarity with those of an earlier "
        "one, by MinHash LSH; 0.7 is common",
        .min = 0, .max = 1),
    OPT(opts.num_perm, INT, "num-perm", 0, "N", "hashes of a signature (default 256)", .min = 1,
        .max = 4096),
    OPT(opts.ngram, INT, "ngram", 0, "N", "words of a shingle (default 5)", .min = 1, .max = 100),
    OPT(opts.bands, INT, "bands", 0, "N", "bands of a signature (default: by the similarity)",
        .min = 1, .max = 4096),
    OPT(opts.rows, INT, "rows", 0, "N", "hashes of a band (default: by the similarity)", .min = 1,
        .max = 4096),
    OPT(opts.seed, INT, "seed", 0, "N", "seed of the hashes (default 1)", .min = 0, .max = 0x1p62),
    OPT(opts.quality, FLAG, "gopher-quality", 0, NULL,
        "remove texts that break Gopher's quality rules"),
    OPT(opts.repetition, FLAG, "gopher-repetition", 0, NULL,
        "remove texts that repeat themselves, by Gopher's rules"),
    OPT(opts.thresholds, STRING, "threshold", 0, "RULE=N,...",
        "other thresholds of these rules; 0: none"),
    OPT(evaluations, COMMAS, "decontaminate", 0, "FILE,...",
        "remove texts that share an n-gram of words with one of these evaluations"),
    OPT(opts.evaluation_ngram, INT, "decontaminate-ngram", 0, "N",
        "words of such an n-gram (default 13)", .min = 1, .max = 100),
    OPT(rules, FLAG, "rules", 0, NULL, "list the rules and their thresholds, and stop",
        .no_operands = true),
    OPT(opts.jobs, INT, "jobs", 'j', "N", "threads (default: one a processor)", .min = 1,
        .max = 1024),
    OPT(opts.on_error, WORD, "on-error", 0, "DO",
        "what to do about a record without a text: stop (default), or skip it and count it",
        .names = on_errors),
    OPT(opts.replace, FLAG, "force", 0, NULL, "replace a directory that is there"),
    TOOL_END,
};

static d9d_status list_rules(const tool_run *r)
{
    size_t n;
    const d9d_filter_rule *rules = d9d_filter_rules(&n);
    json_t *list = json_array();
    d9d_buf text = {0};
    d9d_status st = D9D_OK;

    for (size_t i = 0; i < n && st == D9D_OK; i++) {
        json_t *threshold = rules[i].threshold > 0 ? json_real(rules[i].threshold) : json_null();

        d9d_json_add(&list, json_pack("{s:s, s:o, s:s}", "rule", rules[i].name, "threshold",
                                      threshold, "removes", rules[i].what));
        st = rules[i].threshold > 0
                 ? d9d_buf_printf(&text, "%-30s %8g  %s\n", rules[i].name, rules[i].threshold,
                                  rules[i].what)
                 : d9d_buf_printf(&text, "%-30s %8s  %s\n", rules[i].name, "", rules[i].what);
    }
    if (st == D9D_OK && r->json)
        return tool_put_json(json_pack("{s:o}", "rules", list));
    if (st == D9D_OK)
        tool_put_sanitized(&text);
    json_decref(list);
    d9d_buf_release(&text);
    return st;
}

static d9d_status put_report(const tool_run *r, const char *dir, const d9d_filter_report *made)
{
    size_t n;
    const d9d_filter_rule *rules = d9d_filter_rules(&n);
    json_t *removed = json_object();

    if (!r->json) {
        json_decref(removed);
        return D9D_OK;
    }
    for (size_t i = 0; i < n; i++)
        d9d_json_set(&removed, rules[i].name, json_integer((json_int_t)made->removed[i]));
    return tool_put_json(json_pack("{s:o, s:I, s:I, s:I, s:I, s:o}", "filtered", d9d_json_str(dir),
                                   "read", (json_int_t)made->read, "kept", (json_int_t)made->kept,
                                   "read_bytes", (json_int_t)made->read_bytes, "kept_bytes",
                                   (json_int_t)made->kept_bytes, "removed", removed));
}

d9d_status shard_filter_run(tool_run *r, const void *given)
{
    const shard_filter *o = given;
    d9d_filter_opts opts = o->opts;
    d9d_filter_report made;

    if (o->rules)
        return list_rules(r);
    if (!opts.out)
        return D9D_FAIL(D9D_ECONFIG, "--out DIR is missing");
    if (opts.evaluation_ngram > 0 && o->evaluations.n == 0)
        return D9D_FAIL(D9D_ECONFIG, "--decontaminate-ngram is for --decontaminate");
    opts.inputs = (const char *const *)r->args;
    opts.n_inputs = (size_t)r->n_args;
    opts.evaluations = (const char *const *)o->evaluations.item;
    opts.n_evaluations = o->evaluations.n;
    D9D_TRY(d9d_filter_run(&opts, r->log, &made));
    return put_report(r, opts.out, &made);
}
