/* attention_parts.h - attention over parts of the keys, joined as ring attention joins them. */
#ifndef D9D_TEST_ATTENTION_PARTS_H
#define D9D_TEST_ATTENTION_PARTS_H

#include "attention_call.h"

/* Calls the kernels for each of `parts` parts of the rows' keys, and compares with what the
 * definition gives for all keys. */
void attention_parts_check(const attention_call *p, int64_t parts, const double *o,
                           const double *lse, const double *grads);

#endif /* D9D_TEST_ATTENTION_PARTS_H */
