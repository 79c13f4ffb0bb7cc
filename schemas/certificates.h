/* certificates.h - the table of what every family's certificate found, for families.md.
 */
#ifndef D9DI_SCHEMAS_CERTIFICATES_H
#define D9DI_SCHEMAS_CERTIFICATES_H

#include "d9d/base/mem.h"
#include "d9d/base/status.h"

/* Appends a row for each certificate of a file, a line of which is a d9d.certificate.v1, and one
 * for each family that has none.  EMISMATCH for a certificate of another small model than the
 * family's tables make now, and for one that failed: the page says nothing that no longer holds. */
D9D_MUST_USE d9d_status d9di_certificates_append(const char *path, d9d_buf *out);

#endif /* D9DI_SCHEMAS_CERTIFICATES_H */
