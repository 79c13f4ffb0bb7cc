/* json_memory.c - see json_memory.h. */
#include "support/json_memory.h"

#include <jansson.h>
#include <stdlib.h>

static int allocations;
static bool out;

static void *give(size_t n)
{
    out = out || allocations == 0;
    return out ? NULL : (allocations--, malloc(n));
}

void json_memory_begin(int left)
{
    allocations = left;
    out = false;
    json_set_alloc_funcs(give, free);
}

bool json_memory_end(void)
{
    json_set_alloc_funcs(malloc, free);
    return out;
}
