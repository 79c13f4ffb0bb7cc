/* certify_adapters.c - LoRA in peft's layout: new adapters change nothing, files keep them, and the
 * merged model is that of base and adapters.  See certify_parts.h. */
#include <math.h>
#include <string.h>

#include "certify/certify_job.h"
#include "d9d/base/fs.h"
#include "d9d/base/num_format.h"

enum { STEPS = 4, RANK = 3, ADAPTER_MAX = 64 << 20 };
static const double limit = 1e-5, no_rate = 1e-30;
static const char adapter_file[] = "adapter_model.safetensors";

/* An expression that matches the names of all matrices with a place in peft's files; a new string,
 * NULL: there is none. */
static d9d_status matrices_pattern(const d9di_certify *c, json_t **out, size_t *n)
{
    d9di_small_model m;
    d9d_model_matrices of = {.n = 0};
    d9d_buf text = {0};
    d9d_status st;

    D9D_TRY_OR(
        st, d9di_small_model_load(&m, c->folder, &(d9di_small_model_opts){.choices = c->choices}),
        done);
    D9D_TRY_OR(st, d9d_model_spec_matrices(&m.spec, &m.arena, &of), done);
    for (size_t i = 0; i < of.n && st == D9D_OK; i++)
        st = d9d_buf_printf(&text, "%s\\Q%s\\E", i > 0 ? "|" : "", of.items[i].name);
    *n = of.n;
    *out = st == D9D_OK && of.n > 0 ? json_stringn(text.data, text.len) : NULL;
done:
    d9d_buf_release(&text);
    (void)d9di_small_model_close(&m);
    return st;
}

static json_t *peft_section(json_t *pattern)
{
    return json_pack("{s:s, s:O, s:{s:i, s:f}}", "kind", "lora", "module_name_pattern", pattern,
                     "params", "r", RANK, "alpha", 2.0 * RANK);
}

static json_t *with_rate(json_t *doc, double lr)
{
    if (doc != NULL)
        (void)json_object_set_new_nocheck(json_object_get(doc, "optimizer"), "lr", json_real(lr));
    return doc;
}

static json_t *with_source(json_t *doc, const char *key, const char *dir)
{
    json_t *factory = json_object_get(json_object_get(doc, "trainer"), "model_stage_factory");

    if (factory != NULL)
        (void)json_object_set_new_nocheck(factory, key, d9d_json_str(dir));
    return doc;
}

static d9d_status compare_files(d9di_certify *c, const char *before, const char *after)
{
    d9d_buf text[2] = {{0}, {0}};
    const char *paths[2] = {d9d_arena_printf(c->arena, "%s/adapter/%s", before, adapter_file),
                            d9d_arena_printf(c->arena, "%s/adapter/%s", after, adapter_file)};
    d9d_status st = paths[0] != NULL && paths[1] != NULL
                        ? D9D_OK
                        : D9D_FAIL(D9D_ENOMEM, "%s: names in it", before);

    for (int i = 0; i < 2 && st == D9D_OK; i++)
        st = d9d_fs_read(paths[i], ADAPTER_MAX, &text[i]);
    if (st == D9D_OK &&
        (text[0].len != text[1].len || memcmp(text[0].data, text[1].data, text[0].len) != 0))
        st = D9D_FAIL(D9D_EVERIFY, "%s is not what it was, after it was loaded", adapter_file);
    d9d_buf_release(&text[0]);
    d9d_buf_release(&text[1]);
    return st;
}

static d9d_status check_adapters(d9di_certify *c, json_t *pattern, d9d_certificate_check *out)
{
    d9d_train_summary base, tuned, loaded, merged;
    const char *adapter;

    D9D_TRY(d9di_certify_train(c, with_rate(d9di_certify_train_doc(c, "base", 1, NULL), no_rate),
                               &base));
    D9D_TRY(d9di_certify_train(c, d9di_certify_train_doc(c, "tuned", STEPS, peft_section(pattern)),
                               &tuned));
    if (base.first_loss != tuned.first_loss)
        return D9D_FAIL(D9D_EVERIFY, "with new adapters the loss is %.9g, without them %.9g",
                        tuned.first_loss, base.first_loss);
    adapter = d9d_arena_printf(c->arena, "%s/adapter", tuned.run_dir);
    if (adapter == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: names in it", tuned.run_dir);
    D9D_TRY(d9di_certify_train(
        c,
        with_source(
            with_rate(d9di_certify_train_doc(c, "loaded", 1, peft_section(pattern)), no_rate),
            "source_adapter", adapter),
        &loaded));
    D9D_TRY(compare_files(c, tuned.run_dir, loaded.run_dir));
    D9D_TRY(d9di_certify_train(
        c,
        with_source(with_rate(d9di_certify_train_doc(c, "merged", 1, NULL), no_rate),
                    "source_checkpoint", tuned.export_dir),
        &merged));
    if (!(fabs(merged.first_loss - base.first_loss) > 10 * limit * fabs(base.first_loss)))
        return D9D_FAIL(D9D_EVERIFY, "%d step%s of adapters leave the loss at %.9g", STEPS,
                        D9D_PLURAL(STEPS), merged.first_loss);
    out->figure = fabs(merged.first_loss - loaded.first_loss) / fabs(merged.first_loss);
    out->limit = limit;
    return D9D_OK;
}

d9d_status d9di_certify_adapters(d9di_certify *c, d9d_certificate_check *out)
{
    json_t *pattern;
    size_t n;
    d9d_status st;

    if (!d9d_head_is_lm(c->head))
        return d9di_certify_skip(out, "the head is a task's, and no matrix of the model");
    if (c->untrainable != NULL)
        return d9di_certify_skip(out, c->untrainable);
    D9D_TRY(matrices_pattern(c, &pattern, &n));
    if (pattern == NULL)
        return d9di_certify_skip(out, "no matrix has a place in peft's files");
    st = check_adapters(c, pattern, out);
    if (st == D9D_OK)
        st = d9di_certify_detail(c, out, "%zu matrices: new, saved and loaded, merged", n);
    json_decref(pattern);
    return st;
}
