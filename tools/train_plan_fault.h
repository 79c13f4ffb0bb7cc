/* train_plan_fault.h - SIGSEGV handler for plans: reports a plugin that touches arrays that do not
 * exist.
 *
 * In a plan (simulated device) arrays are addresses without memory (d9d/device/simulated.h).  An
 * operation of a plugin that computes outside d9d_device_launch() accesses them: there is no error
 * code, only a signal (SIGSEGV).
 */
#ifndef D9D_TRAIN_PLAN_FAULT_H
#define D9D_TRAIN_PLAN_FAULT_H

/* Installs the handler: the fault becomes a message with the plugin's file and exit code 2.  A
 * fault outside plugins is not caught. */
void plan_fault_handler_install(void);

#endif /* D9D_TRAIN_PLAN_FAULT_H */
