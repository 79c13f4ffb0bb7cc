/* scribe.h - the thread that touches a flight recorder's files, for the watchdog.
 *
 * A file system that stands still keeps whoever reads or writes there, in memory that it keeps too.
 * The watchdog, which is to notice just that, touches none: it asks, and waits for so long.
 */
#ifndef D9DI_DIST_SCRIBE_H
#define D9DI_DIST_SCRIBE_H

#include "d9d/base/mem.h"
#include "dist/flight_file.h"

typedef struct d9di_scribe d9di_scribe;

/* Until it is stopped it shows in the ring that this process lives, and has the ring written to its
 * file's own storage every few seconds.  `ring` and `dir` (NULL: the ring has no file) must live as
 * long. */
d9d_status d9di_scribe_start(d9di_ring *ring, const char *dir, d9di_scribe **out);
void d9di_scribe_stop(d9di_scribe *s);

/* False where the file system has not answered after a while; then nothing was set. */
bool d9di_scribe_sync(d9di_scribe *s);
/* What the rings of all ranks say, appended, unless some rank's watchdog has said it. */
bool d9di_scribe_look(d9di_scribe *s, d9d_buf *text, bool *was_said);
/* This process ends: what it says, "" where another has said it. */
bool d9di_scribe_end(d9di_scribe *s, const char *said);

#endif /* D9DI_DIST_SCRIBE_H */
