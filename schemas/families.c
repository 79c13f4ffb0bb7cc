/* families.c - see families.h. */
#include "families.h"

#include <string.h>

#include "certificates.h"
#include "d9d/certify/certify.h"
#include "d9d/models/models.h"

static const char intro[] =
    "# Families of models\n\n"
    "`make schemas` writes this page from the tables of `libcore/models/`. "
    "[Notes on families](family-notes.md) has what a table cannot say.\n\n"
    "`model_provider` names a family, or `\"auto\"`, which takes the one that reads the file's "
    "`model_type`. [A plugin](../howto/write-a-plugin.md) adds one without changing the suite.\n\n"
    "| name | `model_type` | what it is |\n|---|---|---|\n";

static const char certificate[] =
    "\n## What is checked\n\n"
    "`d9d-map certify FAMILY` makes a small model and prints what holds of it, one line a check "
    "with its figure and limit. `make test-long` certifies every family above. `d9d-map certify "
    "--plugin "
    "LIB.so FAMILY` does it for a family of yours.\n\n"
    "| check | what must hold |\n|---|---|\n";

static const char certificates[] =
    "\n## Certificates\n\n"
    "What these checks found: figures, and `-` where one does not apply. "
    "[Each](certificates.jsonl) is "
    "a `d9d.certificate.v1`, of the family's small model on four ranks, with vectors of "
    "`tests/golden`. `make certificates` makes all of them again, in a few minutes, and then this "
    "page. The page is not written from a certificate that failed, or is of another model than the "
    "tables make now; `tests/multirank/certify.bats` makes two again and compares. Figures of "
    "rounding differ a little between processors.\n\n";

static const char fields[] =
    "\n## Fields of config.json\n\n"
    "A field that is not listed is refused by name, with its value. A field with one value is "
    "refused with any other. Fields without effect change no result. What a family says of a field "
    "comes before what all say.\n\n"
    "Fields of transformers' loss change no logits. With `output_router_logits`, transformers adds "
    "`router_aux_loss_coef` times the balancing loss of its routers to the loss of the language "
    "model. That loss is `num_experts_per_tok` where loads are even, over the tokens of all rows "
    "and "
    "all layers of a microbatch at once. No loss here depends on the microbatch, so none has it, "
    "and "
    "`d9d-train` warns. `model_provider.router.aux_loss_coef` adds a loss of each row and each "
    "layer, 1 where loads are even. With one row and one layer it is that of transformers at the "
    "coefficient `router_aux_loss_coef` times `num_experts_per_tok`, where scores are a softmax.\n";

static const char heading[] = "| rule | fields |\n|---|---|\n";

static bool is_first(const d9d_hf_family *f, const d9d_hf_field *of, d9d_hf_rule rule)
{
    for (const d9d_hf_field *r = f->fields; r != of; r++)
        if (r->rule == rule)
            return false;
    return true;
}

static d9d_status put_field(const d9d_hf_field *r, d9d_buf *out)
{
    if (r->rule == D9D_HF_RULE_ONLY)
        return d9d_buf_printf(out, "`%s` %s%s%s", r->name, "`", r->only, "`");
    if (r->rule == D9D_HF_RULE_ALIAS)
        return d9d_buf_printf(out, "`%s` is `%s`", r->name, r->only);
    return d9d_buf_printf(out, "`%s`", r->name);
}

/* A line of the fields with this rule, if there is one. */
static d9d_status put_rule(const d9d_hf_family *f, d9d_hf_rule rule, const char *label,
                           d9d_buf *out)
{
    bool any = false;

    for (const d9d_hf_field *r = f->fields; r != NULL && r->name != NULL; r++) {
        if (r->rule != rule)
            continue;
        D9D_TRY(is_first(f, r, rule) ? d9d_buf_printf(out, "| %s | ", label)
                                     : d9d_buf_printf(out, ", "));
        D9D_TRY(put_field(r, out));
        any = true;
    }
    return any ? d9d_buf_printf(out, " |\n") : D9D_OK;
}

static d9d_status put_keys(const d9d_hf_family *f, d9d_buf *out)
{
    D9D_TRY(d9d_buf_printf(out, "| read |"));
    for (const d9d_key *k = f->dims->keys; k->name != NULL; k++)
        D9D_TRY(d9d_buf_printf(out, "%s `%s`", k == f->dims->keys ? "" : ",", k->name));
    return d9d_buf_printf(out, " |\n");
}

static d9d_status put_fields(const d9d_table *section, d9d_buf *out)
{
    const d9d_hf_family f = d9d_model_hf_family(section->row);

    D9D_TRY(d9d_buf_printf(out, "\n### %s\n\n%s", section->name, heading));
    D9D_TRY(put_keys(&f, out));
    D9D_TRY(put_rule(&f, D9D_HF_RULE_READ, "read too", out));
    D9D_TRY(put_rule(&f, D9D_HF_RULE_ALIAS, "other names", out));
    D9D_TRY(put_rule(&f, D9D_HF_RULE_ONLY, "one value", out));
    D9D_TRY(put_rule(&f, D9D_HF_RULE_IGNORED, "without effect", out));
    D9D_TRY(put_rule(&f, D9D_HF_RULE_ROUTER_LOSS, "of transformers' loss", out));
    return put_rule(&f, D9D_HF_RULE_OWN, "of a job's `model` alone", out);
}

static d9d_status put_row(const d9d_table *section, d9d_buf *out)
{
    const d9d_hf_family f = d9d_model_hf_family(section->row);

    D9D_TRY(d9d_buf_printf(out, "| [`%s`](#%s) | ", section->name, section->name));
    for (size_t i = 0; f.model_types[i] != NULL; i++)
        D9D_TRY(d9d_buf_printf(out, "%s`%s`", i > 0 ? ", " : "", f.model_types[i]));
    return d9d_buf_printf(out, " | %s |\n", section->doc);
}

/* Every family, but not the choice that finds one. */
static d9d_status each_family(d9d_status (*put)(const d9d_table *section, d9d_buf *out),
                              d9d_buf *out)
{
    for (const d9d_table *const *c = d9d_model_choices; *c != NULL; c++)
        if (*c != &d9d_model_auto_section)
            D9D_TRY(put(*c, out));
    return D9D_OK;
}

d9d_status d9di_families_append(d9d_buf *out)
{
    const d9d_hf_family common = {.fields = d9d_hf_common};

    D9D_TRY(d9d_buf_append(out, intro, strlen(intro)));
    D9D_TRY(each_family(put_row, out));
    D9D_TRY(d9d_buf_append(out, certificate, strlen(certificate)));
    for (const d9d_certificate_about *c = d9d_certificate_abouts; c->name != NULL; c++)
        D9D_TRY(d9d_buf_printf(out, "| `%s` | %s |\n", c->name, c->text));
    D9D_TRY(d9d_buf_append(out, certificates, strlen(certificates)));
    D9D_TRY(d9di_certificates_append("docs/reference/certificates.jsonl", out));
    D9D_TRY(d9d_buf_append(out, fields, strlen(fields)));
    D9D_TRY(d9d_buf_printf(out, "\n### all families\n\n%s", heading));
    D9D_TRY(put_rule(&common, D9D_HF_RULE_READ, "read", out));
    D9D_TRY(put_rule(&common, D9D_HF_RULE_ONLY, "one value", out));
    D9D_TRY(put_rule(&common, D9D_HF_RULE_IGNORED, "without effect", out));
    return each_family(put_fields, out);
}
