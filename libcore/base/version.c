/* version.c - see d9d/base/version.h. */
#include "d9d/base/version.h"

#ifndef D9D_VERSION
#error "compile with -DD9D_VERSION"
#endif

const char *d9d_version(void)
{
    return D9D_VERSION;
}
