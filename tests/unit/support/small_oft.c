/* small_oft.c - see small_adapters.h. */
#define SMALL_PLUGIN small_oft_plugin
#include "small_plugin.h"

#include "../../../examples/plugins/oft.c"

#include "small_adapters.h"

const d9d_adapter_kind *const small_oft_kind = &oft;
