/* generate_opts.c - see infer/generate_opts.h. */
#include "infer/generate_opts.h"

#include <math.h>

enum { MAX_NEW_TOKENS = 128, SAMPLED_TOP_K = 50 };

/* The section's value, else the file's, of which `text` gets a note, else the usual one. */
static d9d_status choose_real(const char *name, double own, double file, double otherwise,
                              d9d_buf *text, double *out)
{
    *out = !isnan(own) ? own : !isnan(file) ? file : otherwise;
    if (!isnan(own) || isnan(file))
        return D9D_OK;
    return d9d_buf_printf(text, "%s%s %.9g", text->len > 0 ? ", " : "", name, file);
}

static d9d_status choose_int(const char *name, int64_t own, int64_t file, int64_t otherwise,
                             d9d_buf *text, int64_t *out)
{
    const bool is_own = own != D9D_INT_NULL, is_said = file != D9D_INT_NULL;

    *out = is_own ? own : is_said ? file : otherwise;
    if (is_own || !is_said)
        return D9D_OK;
    return d9d_buf_printf(text, "%s%s %lld", text->len > 0 ? ", " : "", name, (long long)file);
}

static d9d_status choose_draws(const d9d_job_generate_section *s, const d9di_generation_config *g,
                               d9d_buf *text, d9di_token_sampler_opts *out)
{
    const int64_t usual_k = g->do_sample ? SAMPLED_TOP_K : 0;

    if (isnan(s->temperature) && g->do_sample && g->temperature == 0)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: temperature is 0 and do_sample true: nothing is drawn at 0; "
                        "task.temperature says what is meant",
                        g->path);
    if (isnan(s->temperature) && g->do_sample)
        D9D_TRY(d9d_buf_printf(text, "do_sample true"));
    D9D_TRY(choose_real("temperature", s->temperature, g->do_sample ? g->temperature : (double)NAN,
                        g->do_sample ? 1 : 0, text, &out->temperature));
    if (out->temperature == 0) /* the others would say nothing */
        return D9D_OK;
    D9D_TRY(choose_int("top_k", s->top_k, g->top_k, usual_k, text, &out->top_k));
    D9D_TRY(choose_real("top_p", s->top_p, g->top_p, 1, text, &out->top_p));
    return choose_real("min_p", s->min_p, g->min_p, 0, text, &out->min_p);
}

/* max_length counts where nobody says max_new_tokens. */
static d9d_status choose_lengths(const d9d_job_generate_section *s, const d9di_generation_config *g,
                                 d9d_buf *text, d9di_generate_opts *out)
{
    const bool whole = s->max_new_tokens == D9D_INT_NULL && g->max_new_tokens == D9D_INT_NULL;

    out->max_length = INT64_MAX;
    if (whole && g->max_length != D9D_INT_NULL) {
        out->max_new = g->max_length;
        return choose_int("max_length", D9D_INT_NULL, g->max_length, 0, text, &out->max_length);
    }
    return choose_int("max_new_tokens", s->max_new_tokens, g->max_new_tokens, MAX_NEW_TOKENS, text,
                      &out->max_new);
}

d9d_status d9di_generate_opts_choose(const d9d_job_generate_section *s,
                                     const d9di_generation_config *g, d9d_buf *from_file,
                                     d9di_generate_opts *out)
{
    d9di_generate_opts o = {.sampler = {.top_p = 1}};

    D9D_TRY(choose_draws(s, g, from_file, &o.sampler));
    D9D_TRY(choose_real("repetition_penalty", s->repetition_penalty, g->repetition_penalty, 1,
                        from_file, &o.sampler.repetition_penalty));
    D9D_TRY(choose_lengths(s, g, from_file, &o));
    *out = o;
    return D9D_OK;
}

d9d_hash d9di_generate_opts_hash(const d9di_generate_opts *o)
{
    const d9di_token_sampler_opts *s = &o->sampler;
    const double reals[] = {s->temperature, s->top_p, s->min_p, s->repetition_penalty};
    const int64_t counts[] = {s->top_k, o->max_new, o->max_length};
    const d9d_hash both[] = {d9d_hash_bytes(reals, sizeof(reals)),
                             d9d_hash_bytes(counts, sizeof(counts))};

    return d9d_hash_bytes(both, sizeof(both));
}
