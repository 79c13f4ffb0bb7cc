/* version.h - the version of the library that runs. */
#ifndef D9D_BASE_VERSION_H
#define D9D_BASE_VERSION_H

#include "d9d/base/export.h"

#ifdef __cplusplus
extern "C" {
#endif

/* "0.1.0"; static. */
D9D_API const char *d9d_version(void);

#ifdef __cplusplus
}
#endif
#endif /* D9D_BASE_VERSION_H */
