/* sink_clients.c - the sinks wandb, mlflow and aim: forward.py of this folder, which the library
 * holds, run by the Python that has the client.  See d9d/track/sink.h.
 *
 * The three sections begin with the same members; what else is in them goes to the program as JSON.
 */
#include <string.h>

#include "track/sink_kinds.h"
#include "track/sink_program.h"

extern const char d9di_forward_py[];

enum { CHECK_SECONDS = 120 }; /* a first import reads thousands of files */

typedef struct client_config {
    const char *python;
    int64_t patience;
    d9d_list tags; /* const char * */
} client_config;

typedef struct wandb_config {
    client_config client;
    const char *project, *entity, *group, *dir;
    int mode;
    bool capture_terminal_logs;
} wandb_config;

typedef struct mlflow_config {
    client_config client;
    const char *experiment, *tracking_uri;
} mlflow_config;

typedef struct aim_config {
    client_config client;
    const char *repo;
    bool log_system_params, capture_terminal_logs;
    int64_t system_tracking_interval;
} aim_config;

static const d9d_key tag_elem = {.kind = D9D_KIND_STR, .min = 1, .doc = "a tag"};
#define CLIENT_KEYS                                                                                \
    D9D_KEY_LIST(client_config, tags, "[]", &tag_elem, "tags of the run"),                         \
        D9D_KEY_STR(client_config, python, "\"python3\"",                                          \
                    "the Python that has the client installed", .min = 1),                         \
        D9D_KEY_INT(client_config, patience, "60", 0, 86400,                                       \
                    "seconds that the client has for the rest, when the run ends")

static const char *const wandb_modes[] = {"online", "offline", NULL};
static const d9d_key wandb_keys[] = {
    CLIENT_KEYS,
    D9D_KEY_STR(wandb_config, project, D9D_REQUIRED, "the project", .min = 1),
    D9D_KEY_STR(wandb_config, entity, "null", "team or user; null: the default of the API key",
                .flags = D9D_NULLABLE, .min = 1),
    D9D_KEY_STR(wandb_config, group, "null", "group of the run", .flags = D9D_NULLABLE, .min = 1),
    D9D_KEY_ENUM(wandb_config, mode, "\"online\"", wandb_modes,
                 "online: send while the run goes on; offline: to files, for wandb sync"),
    D9D_KEY_STR(wandb_config, dir, "null", "directory of its files; null: the run directory",
                .flags = D9D_NULLABLE, .min = 1),
    D9D_KEY_BOOL(wandb_config, capture_terminal_logs, "false", "record what the client prints"),
    D9D_KEY_END,
};
static const d9d_key mlflow_keys[] = {
    CLIENT_KEYS,
    D9D_KEY_STR(mlflow_config, experiment, D9D_REQUIRED, "the experiment, created where it is new",
                .min = 1),
    D9D_KEY_STR(mlflow_config, tracking_uri, "null",
                "server or store; null: MLFLOW_TRACKING_URI, or MLflow's default",
                .flags = D9D_NULLABLE, .min = 1),
    D9D_KEY_END,
};
static const d9d_key aim_keys[] = {
    CLIENT_KEYS,
    D9D_KEY_STR(aim_config, repo, D9D_REQUIRED, "directory or URL of the repository", .min = 1),
    D9D_KEY_BOOL(aim_config, log_system_params, "true", "record packages, environment and host"),
    D9D_KEY_BOOL(aim_config, capture_terminal_logs, "true", "record what the client prints"),
    D9D_KEY_INT(aim_config, system_tracking_interval, "10", 1, 86400,
                "seconds between readings of the host's load"),
    D9D_KEY_END,
};

static json_t *list_json(const d9d_list *list)
{
    json_t *v = json_array();

    for (size_t i = 0; i < list->n; i++)
        d9d_json_add(&v, d9d_json_str(((const char *const *)list->items)[i]));
    return v;
}

/* The value of a bound key, of the kinds that the tables above have. */
static json_t *key_json(const d9d_key *k, const void *config)
{
    const void *field = (const char *)config + k->offset;

    switch (k->kind) {
    case D9D_KIND_BOOL: return json_boolean(*(const bool *)field);
    case D9D_KIND_INT: return json_integer(*(const int64_t *)field);
    case D9D_KIND_ENUM: return json_string(k->names[*(const int *)field]);
    case D9D_KIND_LIST: return list_json(field);
    default: return d9d_json_str(*(const char *const *)field);
    }
}

static json_t *section_json(const d9d_key *keys, const void *config)
{
    json_t *v = json_object();

    for (const d9d_key *k = keys; k->name != NULL; k++)
        d9d_json_set(&v, k->name, key_json(k, config));
    return v;
}

static d9d_status client_check(const char *name, const client_config *c)
{
    const char *const args[] = {c->python, "-c", d9di_forward_py, name, "check", NULL};

    return d9di_sink_program_ask(name, args, CHECK_SECONDS);
}

static d9d_status client_open(const char *name, const d9d_key *keys, const void *config,
                              const d9d_sink_run *run, void **self)
{
    const client_config *c = config;
    const char *const args[] = {c->python, "-c", d9di_forward_py, name, NULL};
    json_t *section = section_json(keys, config);
    d9d_status st;

    if (section == NULL)
        return D9D_FAIL(D9D_ENOMEM, "run %s: its %s", run->name, name);
    st = d9di_sink_program_open(
        &(d9di_sink_program_opts){
            .kind = name, .args = args, .patience = c->patience, .tracker = section},
        run, self);
    json_decref(section);
    return st;
}

#define CLIENT(word, about)                                                                        \
    static d9d_status word##_check(const void *config)                                             \
    {                                                                                              \
        return client_check(#word, config);                                                        \
    }                                                                                              \
    static d9d_status word##_open(const void *config, const d9d_sink_run *run, void **self)        \
    {                                                                                              \
        return client_open(#word, word##_keys, config, run, self);                                 \
    }                                                                                              \
    static const d9d_sink_kind word##_kind = {.size = sizeof(d9d_sink_kind),                       \
                                              .table = &d9di_sink_##word##_table,                  \
                                              .open = word##_open,                                 \
                                              .put = d9di_sink_program_put,                        \
                                              .close = d9di_sink_program_close,                    \
                                              .check = word##_check};                              \
    const d9d_table d9di_sink_##word##_table =                                                     \
        D9D_TABLE(word##_config, #word, word##_keys, about, .row = &word##_kind)

CLIENT(wandb, "Weights & Biases, by its Python client");
CLIENT(mlflow, "MLflow, by its Python client");
CLIENT(aim, "Aim, by its Python client");
