/* tool_rank_args.c - rank_args_check(): checks that all ranks were started with the same command
 * line, since otherwise the result would be meaningless.  See tool.h. */
#include <stdio.h>
#include <string.h>

#include "d9d/base/version.h"
#include "tool.h"

d9d_status rank_args_check(const tool_run *r, d9d_bootstrap *bootstrap, const char *as, json_t *doc)
{
    char what[80];

    (void)snprintf(what, sizeof(what), "%s %s%s%s", r->tool->name, d9d_version(),
                   as[0] != '\0' ? " " : "", as);
    return d9d_job_check_same_config(bootstrap, what, doc);
}

static json_t *list_json(const tool_list *list)
{
    json_t *words = json_array();

    for (size_t i = 0; i < list->n; i++)
        d9d_json_add(&words, d9d_json_str(list->item[i]));
    return words;
}

static json_t *value_json(const tool_option *o, const void *field)
{
    switch (o->kind) {
    case TOOL_FLAG: return json_boolean(*(const bool *)field);
    case TOOL_STRING: return d9d_json_str(*(const char *const *)field);
    case TOOL_INT:
    case TOOL_SIZE: return json_integer(*(const int64_t *)field);
    case TOOL_REAL: return json_real(*(const double *)field);
    case TOOL_WORD: return json_string(o->names[*(const int *)field]);
    case TOOL_LIST:
    case TOOL_COMMAS: return list_json(field);
    }
    return NULL;
}

/* Operands by position, from 1. */
static json_t *operands_json(const tool_run *r)
{
    json_t *operands = json_object();

    for (int i = 0; i < r->n_args; i++) {
        char place[16];

        (void)snprintf(place, sizeof(place), "%d", i + 1);
        d9d_json_set(&operands, place, d9d_json_str(r->args[i]));
    }
    return operands;
}

/* All options, and the command that they belong to. */
static json_t *command_json(const tool_run *r, const void *options)
{
    json_t *line = json_object();

    for (const tool_option *o = r->command->options; o->name != NULL; o++) {
        json_t *v = value_json(o, (const char *)options + o->offset);

        d9d_json_set(&line, o->name, v != NULL ? v : json_null());
    }
    d9d_json_set(&line, "operand", operands_json(r));
    return line;
}

d9d_status rank_args_check_options(const tool_run *r, d9d_bootstrap *bootstrap, const void *options)
{
    const char *command = r->command->name;
    json_t *line = command_json(r, options);
    const d9d_status st = rank_args_check(r, bootstrap, command != NULL ? command : "", line);

    json_decref(line);
    return st;
}
