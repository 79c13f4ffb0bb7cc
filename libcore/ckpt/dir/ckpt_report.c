/* ckpt_report.c - prints the results of verify and diff as text or JSON.  See
 * d9d/ckpt/dir/checkpoint.h. */
#include <inttypes.h>

#include "d9d/base/json.h"
#include "d9d/ckpt/dir/checkpoint.h"

/* Callbacks return nothing, so the first failure is kept here and stops the output. */
struct report_writer {
    d9d_buf *out;
    bool json;
    size_t start; /* offset of the report in `out` */
    uint64_t n, equal;
    d9d_status st;
};

#define PUT(r, ...)                                                                                \
    do {                                                                                           \
        if ((r)->st == D9D_OK)                                                                     \
            (r)->st = d9d_buf_printf((r)->out, __VA_ARGS__);                                       \
    } while (0)

static void put_string(struct report_writer *r, const char *s)
{
    if (r->st == D9D_OK)
        r->st = d9d_json_put_str(r->out, s, strlen(s));
}

static void put_separator(struct report_writer *r)
{
    PUT(r, "%s\n  ", r->n++ > 0 ? "," : "");
}

/* Returns a failure of the verification or comparison first, then one of the output.  After either,
 * `out` holds no partial report. */
static d9d_status put_summary(const struct report_writer *r, d9d_status st)
{
    if (st == D9D_OK || st == D9D_EVERIFY)
        st = r->st != D9D_OK ? r->st : st;
    if (st != D9D_OK && st != D9D_EVERIFY)
        r->out->len = r->start;
    return st;
}

/* --- verify --------------------------------------------------------------------------- */

static void put_finding(void *arg, const char *sentence)
{
    struct report_writer *r = arg;

    if (!r->json) {
        PUT(r, "%s\n", sentence);
        return;
    }
    put_separator(r);
    put_string(r, sentence);
}

d9d_status d9d_checkpoint_verify_print(const char *dir, const d9d_checkpoint_verify_opts *opt,
                                       bool json, d9d_buf *out)
{
    struct report_writer r = {.out = out, .json = json, .start = out->len};
    d9d_checkpoint_verify_opts o = *opt;
    d9d_checkpoint_verify_report v = {0};
    d9d_status st;

    if (json)
        PUT(&r, "{\"findings\": [");
    o.on_finding = put_finding;
    o.arg = &r;
    st = d9d_checkpoint_verify(dir, &o, &v);
    if (json)
        PUT(&r,
            "],\n \"files\": %" PRIu64 ", \"tensors\": %" PRIu64 ", \"bytes\": %" PRIu64
            ", \"hashed\": %s}\n",
            v.files, v.tensors, v.bytes, v.hashed ? "true" : "false");
    else if (st == D9D_OK)
        PUT(&r, "%s: %" PRIu64 " files, %" PRIu64 " tensors, %" PRIu64 " bytes are sound%s\n", dir,
            v.files, v.tensors, v.bytes,
            v.hashed ? "" : "; there was no manifest.json to compare with");
    return put_summary(&r, st);
}

/* --- diff -------------------------------------------------------------------------------- */

static const char *const kind_names[] = {"equal", "values",    "dtype",
                                         "shape", "only in A", "only in B"};

static void put_json_diff(struct report_writer *r, const d9d_checkpoint_tensor_diff *t)
{
    put_separator(r);
    PUT(r, "{\"name\": ");
    put_string(r, t->name);
    PUT(r, ", \"kind\": \"%s\"", kind_names[t->kind]);
    if (t->kind == D9D_CHECKPOINT_DIFF_VALUES) {
        PUT(r, ", \"different\": %" PRIu64 ", \"max_abs\": ", t->n_different);
        if (r->st == D9D_OK)
            r->st = d9d_json_put_f64(r->out, t->max_abs);
    }
    PUT(r, "}");
}

static void put_text_diff(struct report_writer *r, const d9d_checkpoint_tensor_diff *t)
{
    char a[D9D_SAFETENSORS_DESCRIBE] = "-", b[D9D_SAFETENSORS_DESCRIBE] = "-";

    if (t->a != NULL)
        (void)d9d_safetensors_describe(t->a, a);
    if (t->b != NULL)
        (void)d9d_safetensors_describe(t->b, b);
    PUT(r, "%s: %s", t->name, kind_names[t->kind]);
    if (t->kind == D9D_CHECKPOINT_DIFF_VALUES)
        PUT(r, ": %" PRIu64 " elements differ, by %g at most", t->n_different, t->max_abs);
    if (strcmp(a, b) != 0)
        PUT(r, ": %s, %s", a, b);
    PUT(r, "\n");
}

static void put_diff(void *arg, const d9d_checkpoint_tensor_diff *t)
{
    struct report_writer *r = arg;

    r->equal += t->kind == D9D_CHECKPOINT_DIFF_EQUAL;
    if (r->json)
        put_json_diff(r, t);
    else if (t->kind != D9D_CHECKPOINT_DIFF_EQUAL)
        put_text_diff(r, t);
}

d9d_status d9d_checkpoint_diff_print(const char *a, const char *b, int jobs, const d9d_log *log,
                                     bool json, d9d_buf *out)
{
    struct report_writer r = {.out = out, .json = json, .start = out->len};
    uint64_t n = 0;
    d9d_status st;

    if (json)
        PUT(&r, "{\"tensors\": [");
    st = d9d_checkpoint_diff(a, b, jobs, log, put_diff, &r, &n);
    PUT(&r,
        json ? "],\n \"equal\": %" PRIu64 ", \"different\": %" PRIu64 "}\n"
             : "%" PRIu64 " tensors equal, %" PRIu64 " different\n",
        r.equal, n);
    if (st == D9D_OK && n > 0)
        st = D9D_FAIL(D9D_EVERIFY, "%s and %s: %" PRIu64 " of %" PRIu64 " tensors differ", a, b, n,
                      n + r.equal);
    return put_summary(&r, st);
}
