/* find_key.c - a key of a table by its name. */
#include <string.h>

#include "d9d/config/config.h"

const d9d_key *d9d_config_find_key(const d9d_table *table, const char *name, size_t len)
{
    for (const d9d_key *k = table->keys; k->name != NULL; k++)
        if (strncmp(k->name, name, len) == 0 && k->name[len] == '\0')
            return k;
    return NULL;
}
