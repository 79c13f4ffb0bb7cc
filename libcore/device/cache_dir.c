/* cache_dir.c - see device/cache_dir.h. */
#include "device/cache_dir.h"

#include <string.h>

/* The number of a process on its host: Slurm, Open MPI, Intel MPI and MPICH, PALS, Flux. */
static const char *const local_ids[] = {"SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK",
                                        "MPI_LOCALRANKID", "PALS_LOCAL_RANKID",
                                        "FLUX_TASK_LOCAL_ID"};

static bool is_first(char *(*get)(const char *name))
{
    for (size_t i = 0; i < sizeof(local_ids) / sizeof(local_ids[0]); i++) {
        const char *id = get(local_ids[i]);

        if (id != NULL && id[0] != '\0' && strcmp(id, "0") != 0)
            return false;
    }
    return true;
}

/* The specification ignores a path that is relative. */
static const char *absolute(const char *path)
{
    return path != NULL && path[0] == '/' ? path : NULL;
}

static const char *find_path(char *(*get)(const char *name), d9d_arena *a)
{
    const char *const own = get("D9D_CACHE_DIR"), *const cache = absolute(get("XDG_CACHE_HOME")),
                      *const home = absolute(get("HOME"));

    if (own != NULL)
        return own[0] != '\0' ? d9d_arena_strdup(a, own) : NULL;
    if (cache != NULL)
        return d9d_arena_printf(a, "%s/d9d", cache);
    return home != NULL ? d9d_arena_printf(a, "%s/.cache/d9d", home) : NULL;
}

d9di_cache_dir d9di_cache_dir_find(char *(*get)(const char *name), d9d_arena *a)
{
    return (d9di_cache_dir){find_path(get, a), !is_first(get)};
}
