/* sink_program.h - a sink that is another program: records to its standard input, without ever
 * waiting for it.  See d9d/track/sink.h. */
#ifndef D9DI_TRACK_SINK_PROGRAM_H
#define D9DI_TRACK_SINK_PROGRAM_H

#include "d9d/track/sink.h"

typedef struct d9di_sink_program_opts {
    const char *kind;        /* of the sink, for messages */
    const char *const *args; /* the program and its arguments; NULL-ended */
    int64_t patience;        /* seconds to leave, when the run ends */
    json_t *tracker;         /* its section, for the first line, with the whole configuration; NULL:
                                neither */
} d9di_sink_program_opts;

/* The functions of a sink. */
d9d_status d9di_sink_program_open(const d9di_sink_program_opts *opts, const d9d_sink_run *run,
                                  void **self);
d9d_status d9di_sink_program_put(void *self, const d9d_sink_record *r);
void d9di_sink_program_close(void *self);

/* Runs a program that ends by itself: ECONFIG with the line that it prints if it fails, or does not
 * end within the time. */
d9d_status d9di_sink_program_ask(const char *kind, const char *const *args, int64_t seconds);

#endif /* D9DI_TRACK_SINK_PROGRAM_H */
