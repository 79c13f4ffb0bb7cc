/* watchdog.h - the thread beside the computation: shows that this process lives, and ends it when
 * a call between ranks has taken too long, or a rank of this host is dead and the launcher lets the
 * others be. */
#ifndef D9DI_DIST_WATCHDOG_H
#define D9DI_DIST_WATCHDOG_H

#include "dist/neighbours.h"

typedef struct d9di_watchdog d9di_watchdog;

/* `ring`, `neighbours` (or NULL) and what `how` points to must live as long. */
d9d_status d9di_watchdog_start(d9di_ring *ring, d9d_boot *boot, const d9d_mesh_how *how,
                               const d9di_neighbours *neighbours, d9di_watchdog **out);
/* Calls that are queued on a device are asked for there; NULL: none are. */
void d9di_watchdog_ask(d9di_watchdog *w, const d9di_net *net);
void d9di_watchdog_stop(d9di_watchdog *w);
void d9di_watchdog_set(d9di_watchdog *w, double seconds);
/* What is no call of a ring and may wait for others as well: the network opens, or it has. */
void d9di_watchdog_opens(d9di_watchdog *w, bool opens);

#endif /* D9DI_DIST_WATCHDOG_H */
