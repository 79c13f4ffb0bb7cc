/* sink_command.c - the sink `command`: records to any program.  See d9d/track/sink.h. */
#include <stdlib.h>
#include <string.h>

#include "track/sink_kinds.h"
#include "track/sink_program.h"

typedef struct command_config {
    d9d_list command; /* const char * */
    int64_t patience;
} command_config;

static const d9d_key arg_elem = {.kind = D9D_KIND_STR, .min = 1, .doc = "a word"};
static const d9d_key command_keys[] = {
    D9D_KEY_LIST(command_config, command, D9D_REQUIRED, &arg_elem,
                 "program and arguments; it reads JSON lines", .min = 1),
    D9D_KEY_INT(command_config, patience, "30", 0, 86400,
                "seconds that it has to leave, when the run ends"),
    D9D_KEY_END,
};

static d9d_status command_open(const void *config, const d9d_sink_run *run, void **self)
{
    const command_config *c = config;
    const char **args = calloc(c->command.n + 1, sizeof(*args));
    d9d_status st;

    if (args == NULL)
        return D9D_FAIL(D9D_ENOMEM, "run %s: a program for its records", run->name);
    memcpy(args, c->command.items, c->command.n * sizeof(*args));
    st = d9di_sink_program_open(
        &(d9di_sink_program_opts){.kind = "command", .args = args, .patience = c->patience}, run,
        self);
    free(args);
    return st;
}

static const d9d_sink_kind command_kind = {.size = sizeof(d9d_sink_kind),
                                           .table = &d9di_sink_command_table,
                                           .open = command_open,
                                           .put = d9di_sink_program_put,
                                           .close = d9di_sink_program_close};
const d9d_table d9di_sink_command_table = D9D_TABLE(
    command_config, "command", command_keys, "JSON lines to a program", .row = &command_kind);
