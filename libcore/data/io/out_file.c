/* out_file.c - see out_file.h. */
#include "data/io/out_file.h"

enum { WRITE_BYTES = 1 << 20 };

d9d_status d9di_out_file_create_with(d9di_out_file *o, const char *path,
                                     d9d_status (*opts)(const char *path, d9d_file *out))
{
    if (!o->hasher)
        D9D_TRY(d9d_hasher_create(&o->hasher));
    d9d_hasher_reset(o->hasher);
    D9D_TRY(opts(path, &o->file));
    o->open = true;
    return D9D_OK;
}

d9d_status d9di_out_file_create(d9di_out_file *o, const char *path)
{
    return d9di_out_file_create_with(o, path, d9d_file_create);
}

d9d_status d9di_out_file_flush(d9di_out_file *o)
{
    if (o->buf.len > 0) {
        d9d_hasher_add(o->hasher, o->buf.data, o->buf.len);
        D9D_TRY(d9d_file_write(&o->file, o->buf.data, o->buf.len));
    }
    o->buf.len = 0;
    return D9D_OK;
}

d9d_status d9di_out_file_flush_if_full(d9di_out_file *o)
{
    return o->buf.len >= WRITE_BYTES ? d9di_out_file_flush(o) : D9D_OK;
}

d9d_status d9di_out_file_write(d9di_out_file *o, const void *p, size_t n)
{
    D9D_TRY(d9d_buf_append(&o->buf, p, n));
    return d9di_out_file_flush_if_full(o);
}

d9d_status d9di_out_file_close(d9di_out_file *o)
{
    if (!o->open)
        return D9D_OK;
    D9D_TRY(d9di_out_file_flush(o));
    D9D_TRY(d9d_file_sync(&o->file));
    o->open = false;
    return d9d_file_close(&o->file);
}

d9d_hash d9di_out_file_hash(const d9di_out_file *o)
{
    return d9d_hasher_digest(o->hasher);
}

void d9di_out_file_release(d9di_out_file *o)
{
    if (o->open)
        d9d_file_release(&o->file);
    o->open = false;
    d9d_hasher_free(o->hasher);
    o->hasher = NULL;
    d9d_buf_release(&o->buf);
}
