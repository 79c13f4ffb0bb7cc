/* params_io.h - the parameters of a model as a tensor source and as a tensor sink.
 *
 * Loading, export, and the comparison of gradients under another framework's names then are one
 * mechanism, a checkpoint mapping that ends or begins in a model.  The sink takes the box of each
 * tensor that this rank stores; nothing else is computed or read.  A source gives whole tensors.
 * Quantised matrices are filled from whole rows of elements (d9d/kernels/quant.h), and give none.
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

/* Borrows io.  ENOTSUP names a parameter of which this rank stores a shard only. */
D9D_API D9D_MUST_USE d9d_status d9d_params_io_source(d9d_params_io *io, d9d_tensor_source *out);
/* Borrows io.  Its begin requires exactly the model's own parameters, each with its dtype and
 * global shape; parameters that a task added are not expected.  EMISMATCH names the first that is
 * missing, unknown or different. */
D9D_API d9d_tensor_sink d9d_params_io_sink(d9d_params_io *io);

#ifdef __cplusplus
}
#endif
#endif /* D9D_MODEL_PARAMS_IO_H */
