/* params_io.h - the parameters of a model as a source of tensors and as a sink.
 *
 * So that a checkpoint mapping can end in a model or begin there: loading, export, and
 * comparing gradients under another framework's names are one mechanism.  The sink takes of each
 * tensor the box that is kept here, and nothing else is made or read; a source gives whole
 * tensors.
 *
 *     D9D_TRY(d9d_map_plan_create(mapper, &from_disk, &opt, &plan));
 *     D9D_TRY(d9d_params_io_open(&params, D9D_PARAMS_DATA, &io));
 *     sink = d9d_params_io_sink(io);
 *     D9D_TRY(d9d_map_plan_run(plan, &sink, jobs, log));
 */
#ifndef D9D_MODEL_PARAMS_IO_H
#define D9D_MODEL_PARAMS_IO_H

#include "d9d/ckpt/mapper/mapper.h"
#include "d9d/nn/module.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum d9d_params_io_kind { D9D_PARAMS_DATA, D9D_PARAMS_GRADS } d9d_params_io_kind;

typedef struct d9d_params_io d9d_params_io;

/* `params` is borrowed.  With D9D_PARAMS_GRADS frozen parameters are left out. */
D9D_API D9D_MUST_USE d9d_status d9d_params_io_open(const d9d_params *params,
                                                   d9d_params_io_kind which, d9d_params_io **out);
D9D_API void d9d_params_io_close(d9d_params_io *io);

/* Borrows io.  ENOTSUP names a parameter of which only a part is kept here. */
D9D_API D9D_MUST_USE d9d_status d9d_params_io_source(d9d_params_io *io, d9d_tensor_source *out);
/* Borrows io.  Its begin wants every parameter but those that were added, in its dtype and whole
 * shape, and nothing else:
 * EMISMATCH names the first that is missing, strange or different. */
D9D_API d9d_tensor_sink d9d_params_io_sink(d9d_params_io *io);

#ifdef __cplusplus
}
#endif
#endif /* D9D_MODEL_PARAMS_IO_H */
