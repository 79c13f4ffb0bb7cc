/* tool_sigbus.h - SIGBUS handler: reports a mapped file that was truncated or cannot be read.
 *
 * Datasets and their index are memory-mapped.  If such a file is truncated while it is mapped, or
 * its disk fails, there is no error code, only a signal (SIGBUS).
 */
#ifndef D9D_TOOL_SIGBUS_H
#define D9D_TOOL_SIGBUS_H

/* Installs the handler: SIGBUS becomes a message with the file's name and exit code 1.  Call it
 * first, since MPI keeps handlers that it finds. */
void sigbus_handler_install(void);

#endif /* D9D_TOOL_SIGBUS_H */
