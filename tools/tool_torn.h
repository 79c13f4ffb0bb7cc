/* tool_torn.h - the last words of a program whose mapped file is not there any more.
 *
 * Datasets and their index are files in memory.  Where one is cut under the program, or its disk
 * fails, there is no error to return, but a signal (SIGBUS).
 */
#ifndef D9D_TOOL_TORN_H
#define D9D_TOOL_TORN_H

/* From here on that is a sentence with the file's name, and exit code 1.  First of all: MPI leaves
 * handlers alone that it finds. */
void sigbus_handler_install(void);

#endif /* D9D_TOOL_TORN_H */
