/* document_index.h - the documents of a micro-batch on the device, for tasks over answers. */
#ifndef D9DI_ENGINE_DOCUMENT_INDEX_H
#define D9DI_ENGINE_DOCUMENT_INDEX_H

#include "d9d/data/loader/loader.h"
#include "d9d/op/op.h"

/* Uploads it (d9d/op/op.h), in records of `width` documents: 2, of which both must have targets to
 * count, or 4, of which the first or the second.  `counts`: this rank is the first of those that
 * share the documents.  A batch without whole records ends with empty documents. */
d9d_status d9di_document_index_make(d9d_device *dev, const d9d_batch *b, int64_t width, bool counts,
                                    d9d_op_document_index *out);

#endif /* D9DI_ENGINE_DOCUMENT_INDEX_H */
