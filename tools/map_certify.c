/* map_certify.c - see map_certify.h. */
#include "map_certify.h"

#include "d9d/certify/certify.h"

static d9d_status put_certificate(const tool_run *r, const d9d_certificate *c)
{
    d9d_buf text = {0};
    d9d_status st;

    if (r->json)
        return tool_put_json(d9d_certificate_json(c));
    if (r->quiet)
        return D9D_OK;
    st = d9d_certificate_print(c, &text);
    if (st == D9D_OK)
        tool_put_sanitized(&text);
    d9d_buf_release(&text);
    return st;
}

/* Prints the certificate also if the status is a failure because of it. */
static d9d_status certify(tool_run *r, const d9d_certify_opts *opts)
{
    const bool prints = d9d_bootstrap_rank(opts->bootstrap) == 0;
    d9d_certificate c = {.n = 0};
    d9d_err_copy failure;
    d9d_status st = d9d_certify(r->args[0], opts, &r->arena, &c), put = D9D_OK;

    d9d_err_save(&failure, st);
    if (prints && c.n > 0 && (st == D9D_OK || st == D9D_EVERIFY))
        put = put_certificate(r, &c);
    d9d_certificate_release(&c);
    if (put != D9D_OK)
        return put;
    return st == D9D_OK ? D9D_OK : d9d_err_restore(&failure);
}

d9d_status map_certify(tool_run *r, const void *options)
{
    const struct map_opts *o = options;
    d9d_certify_opts opts = {.golden = o->golden, .task = o->task, .seed = (uint64_t)o->seed};
    d9d_status st;

    D9D_TRY(tool_join(r, &opts.bootstrap));
    opts.log = r->log;
    D9D_TRY_OR(st, rank_args_check_options(r, opts.bootstrap, o), out);
    D9D_TRY_OR(st, d9d_bootstrap_agree_status(opts.bootstrap, map_plugins_open(o, &opts.plugins)),
               out);
    st = certify(r, &opts);
    d9d_plugins_close(opts.plugins);
out:
    return tool_leave(r, opts.bootstrap, st);
}
