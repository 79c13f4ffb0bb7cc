/* small_vera.c - see small_adapters.h. */
#define SMALL_PLUGIN small_vera_plugin
#include "small_plugin.h"

#include "../../../examples/plugins/vera.c"

#include "small_adapters.h"

const d9d_adapter_kind *const small_vera_kind = &vera;
