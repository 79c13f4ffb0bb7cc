/* small_adapters.h - kinds of adapters of examples/plugins, and what every kind promises.
 *
 *     assert_string_equal(adapter_kind_fault(small_loha_kind, 3, text), "");
 *
 * certifies a kind with a forward of its own, with r or blocks of that size, which divides 12:
 *   - its gradients, against central differences of its forward, of all rows of W and of some;
 *   - a new adapter changes no bit of y;
 *   - the forward is that of the matrix that merge() makes, whatever the numbers are.
 */
#ifndef D9D_TEST_SMALL_ADAPTERS_H
#define D9D_TEST_SMALL_ADAPTERS_H

#include "d9d/nn/adapter.h"

extern const d9d_adapter_kind *const small_loha_kind, *const small_oft_kind, *const small_vera_kind;

/* What it breaks of these, in `text`; "": nothing. */
enum { ADAPTER_FAULT_MAX = 200 };
const char *adapter_kind_fault(const d9d_adapter_kind *kind, int64_t r,
                               char text[ADAPTER_FAULT_MAX]);

#endif /* D9D_TEST_SMALL_ADAPTERS_H */
