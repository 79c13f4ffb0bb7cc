/* period.c - step periods.  See d9d/config/period.h. */
#include <inttypes.h>
#include <string.h>

#include "d9d/config/period.h"

static const char *const period_names[] = {"last_step", "disable", NULL};
static const d9d_step_period period_values[] = {D9D_PERIOD_LAST_STEP, D9D_PERIOD_DISABLE};

static d9d_status parse_name(const char *word, const char *path, d9d_step_period *out)
{
    const char *near = d9d_config_did_you_mean(word, period_names);

    for (size_t i = 0; period_names[i] != NULL; i++)
        if (strcmp(word, period_names[i]) == 0) {
            *out = period_values[i];
            return D9D_OK;
        }
    if (near != NULL)
        return D9D_FAIL(D9D_ECONFIG, "%s: unknown word \"%.60s\"; did you mean \"%s\"?", path, word,
                        near);
    return D9D_FAIL(D9D_ECONFIG,
                    "%s: unknown word \"%.60s\"; expected a number of steps, last_step or disable",
                    path, word);
}

static d9d_status parse_period(const json_t *v, const char *path, d9d_arena *a, void *field)
{
    (void)a;
    if (json_is_string(v))
        return parse_name(json_string_value(v), path, field);
    if (!json_is_integer(v))
        return D9D_FAIL(D9D_ECONFIG, "%s: expected a number of steps, last_step or disable", path);
    if (json_integer_value(v) < 1)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: %" JSON_INTEGER_FORMAT " is below the minimum of 1; \"disable\" turns "
                        "it off",
                        path, json_integer_value(v));
    *(d9d_step_period *)field = json_integer_value(v);
    return D9D_OK;
}

const d9d_key_custom d9d_step_period_kind = {
    .parse = parse_period,
    .schema = "{\"anyOf\": [{\"type\": \"integer\", \"minimum\": 1},"
              " {\"enum\": [\"last_step\", \"disable\"]}]}",
    .size = sizeof(d9d_step_period),
};

bool d9d_step_period_due(d9d_step_period p, int64_t done, int64_t total, unsigned flags)
{
    const int64_t step = flags & D9D_DUE_AFTER_STEP ? done : done + 1;

    if (p == D9D_PERIOD_DISABLE)
        return false;
    if (p == D9D_PERIOD_LAST_STEP)
        return step == total;
    return step % p == 0 || ((flags & D9D_DUE_ON_LAST) && step == total);
}
