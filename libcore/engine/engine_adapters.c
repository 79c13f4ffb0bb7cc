/* engine_adapters.c - the complete adapters of a trained model.  See engine/engine.h. */
#include "d9d/ckpt/dir/checkpoint.h"
#include "engine/engine.h"

static d9d_status adapters_from_model(const d9di_engine *e, bool whole, d9d_adapters **out)
{
    d9d_params_io *io;
    d9d_tensor_source src;
    d9d_status st;

    D9D_TRY(d9d_params_io_open(&e->whole.params, D9D_PARAMS_DATA, &io));
    st = d9d_params_io_source(io, &src);
    if (st == D9D_OK)
        st = d9d_adapters_from_model(&e->whole.params, &src, whole, out);
    d9d_params_io_close(io);
    return st;
}

static d9d_status adapters_make(const d9di_engine *e, const char *saved, bool whole,
                                d9d_adapters **out)
{
    d9d_checkpoint *ckpt;
    d9d_tensor_source src;
    d9d_status st;

    if (saved == NULL)
        return adapters_from_model(e, whole, out);
    D9D_TRY(d9d_checkpoint_open(saved, &ckpt));
    src = d9d_checkpoint_source(ckpt);
    st = d9d_adapters_from_model(&e->whole.params, &src, whole, out);
    d9d_checkpoint_close(ckpt);
    return st;
}

d9d_status d9di_engine_adapters(const d9di_engine *e, const char *saved, d9d_adapters **out)
{
    return adapters_make(e, saved, false, out);
}

d9d_status d9di_engine_adapters_write(const d9di_engine *e, const char *saved, const char *base,
                                      const char *dir, const d9d_log *log)
{
    d9d_arena a = {0};
    d9d_adapters *ad = NULL;
    d9d_model_matrices of;
    d9d_status st = d9d_model_spec_matrices(&e->spec, &a, &of);

    if (st == D9D_OK)
        st = d9d_adapters_check_writable(&e->whole.params, &of);
    if (st == D9D_OK)
        st = adapters_make(e, saved, true, &ad);
    if (st == D9D_OK)
        st = d9d_adapters_write(ad, &of, base, dir, log);
    d9d_adapters_free(ad);
    d9d_arena_release(&a);
    if (st != D9D_ENOTSUP)
        return st;
    d9d_log_warn(log, "%s: not written: %s", dir, d9d_err_message());
    return D9D_OK;
}
