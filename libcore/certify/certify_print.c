/* certify_print.c - a certificate as text and as d9d.certificate.v1.  See d9d/certify/certify.h. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "d9d/base/num_format.h"
#include "d9d/base/version.h"
#include "d9d/certify/certify.h"

static const char *const results[] = {
    [D9D_CERTIFICATE_OK] = "ok",
    [D9D_CERTIFICATE_FAILED] = "FAILED",
    [D9D_CERTIFICATE_SKIPPED] = "skipped",
};

static void number_text(double v, char text[32])
{
    if (isnan(v))
        (void)snprintf(text, 32, "-");
    else
        (void)snprintf(text, 32, v != 0 && fabs(v) < 0.01 ? "%.1e" : "%.3g", v);
}

static d9d_status put_check(const d9d_certificate_check *c, d9d_buf *out)
{
    const bool measured = c->result != D9D_CERTIFICATE_SKIPPED;
    char figure[32], limit[32];

    number_text(measured ? c->figure : NAN, figure);
    number_text(measured ? c->limit : NAN, limit);
    return d9d_buf_printf(out, "%-11s  %-7s  %-8s  %-8s  %s\n", c->name, results[c->result], figure,
                          limit, c->detail != NULL ? c->detail : "");
}

d9d_status d9d_certificate_print(const d9d_certificate *c, d9d_buf *out)
{
    D9D_TRY(d9d_buf_printf(out, "%s: %s, %s%s, %lld layer%s, %lld parameter%s, %s weights\n",
                           c->source, c->family, c->task, c->shrunk ? ", made smaller" : "",
                           (long long)c->layers, D9D_PLURAL(c->layers), (long long)c->parameters,
                           D9D_PLURAL(c->parameters), c->own_weights ? "its own" : "random"));
    D9D_TRY(d9d_buf_printf(out, "%-11s  %-7s  %-8s  %-8s\n", "check", "result", "figure", "limit"));
    for (size_t i = 0; i < c->n; i++)
        D9D_TRY(put_check(&c->check[i], out));
    return D9D_OK;
}

static json_t *real(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

static json_t *check_json(const d9d_certificate_check *c)
{
    static const char *const words[] = {"ok", "failed", "skipped"};

    return json_pack("{s:s, s:s, s:o, s:o, s:o}", "check", c->name, "result", words[c->result],
                     "figure", real(c->figure), "limit", real(c->limit), "detail",
                     d9d_json_str(c->detail != NULL ? c->detail : ""));
}

json_t *d9d_certificate_json(const d9d_certificate *c)
{
    json_t *checks = json_array();

    for (size_t i = 0; i < c->n; i++)
        d9d_json_add(&checks, check_json(&c->check[i]));
    return json_pack("{s:s, s:s, s:o, s:s, s:s, s:s, s:b, s:b, s:I, s:I, s:I, s:O, s:o}", "schema",
                     "d9d.certificate.v1", "version", d9d_version(), "source",
                     d9d_json_str(c->source), "family", c->family, "task", c->task, "model_type",
                     c->model_type, "shrunk", c->shrunk, "own_weights", c->own_weights, "seed",
                     (json_int_t)c->seed, "layers", (json_int_t)c->layers, "parameters",
                     (json_int_t)c->parameters, "config", c->config, "checks", checks);
}
