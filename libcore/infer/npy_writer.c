/* npy_writer.c - see infer/npy_writer.h.
 *
 *     "\x93NUMPY" 1 0, u16 length of the rest, a Python dictionary, blanks, a newline
 */
#include "infer/npy_writer.h"

#include <string.h>

enum { MAGIC_BYTES = 10, ALIGN = 64 };

d9d_status d9di_npy_writer_header(int ndim, const int64_t *shape, d9d_buf *out)
{
    const size_t start = out->len;
    size_t n;

    D9D_TRY(d9d_buf_append(out, "\x93NUMPY\x01\x00\x00\x00", MAGIC_BYTES));
    D9D_TRY(d9d_buf_printf(out, "{'descr': '<f4', 'fortran_order': False, 'shape': ("));
    for (int i = 0; i < ndim; i++)
        D9D_TRY(d9d_buf_printf(out, "%lld%s", (long long)shape[i],
                               ndim == 1      ? ","
                               : i + 1 < ndim ? ", "
                                              : ""));
    D9D_TRY(d9d_buf_printf(out, "), }"));
    while ((out->len - start + 1) % ALIGN != 0)
        D9D_TRY(d9d_buf_append(out, " ", 1));
    D9D_TRY(d9d_buf_append(out, "\n", 1));
    n = out->len - start - MAGIC_BYTES;
    out->data[start + 8] = (char)(n & 0xff);
    out->data[start + 9] = (char)(n >> 8);
    return D9D_OK;
}
