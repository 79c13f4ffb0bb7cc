/* train_planned.h - the last words of a plan whose plugin touches arrays that are not there.
 *
 * In a plan arrays are addresses alone (d9d/device/simulated.h).  An operation of a plugin that
 * computes outside of d9d_device_launch() reads or writes them: there is no error to return, but a
 * signal (SIGSEGV).
 */
#ifndef D9D_TRAIN_PLANNED_H
#define D9D_TRAIN_PLANNED_H

/* From here on that is a sentence with the plugin's file, and exit code 2.  A fault outside of a
 * plugin stays a fault. */
void plan_fault_handler_install(void);

#endif /* D9D_TRAIN_PLANNED_H */
