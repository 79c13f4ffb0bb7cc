/* mem_available.c - memory that this process may still allocate.  See d9d/base/mem.h. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "d9d/base/fs.h"

enum { TEXT_MAX = 1 << 20, PATH_SIZE = 4096 + 64 };

/* Control groups of version 1 and 2: the prefix in /proc/self/cgroup that names this process's
 * group, and the names of its files. */
static const struct cgroup_version {
    const char *line, *root, *max, *used, *cached;
} cgroup_versions[] = {
    {"0::", "/sys/fs/cgroup", "memory.max", "memory.current", "file "},
    {":memory:", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
     "cache "},
};

/* The text of a file; "" if it cannot be read, which is no error. */
static void read_text(const char *path, d9d_buf *out)
{
    d9d_err_copy before;

    d9d_err_save(&before, D9D_OK);
    if (d9d_fs_read(path, TEXT_MAX, out) != D9D_OK)
        (void)d9d_err_restore(&before);
}

/* The number after the first `key` of a file; `none` if there is none. */
static uint64_t read_number(const char *path, const char *key, uint64_t none)
{
    d9d_buf text = {0};
    const char *at;
    uint64_t v;

    read_text(path, &text);
    at = text.len > 0 ? strstr(text.data, key) : NULL;
    if (at == NULL || sscanf(at + strlen(key), "%" SCNu64, &v) != 1)
        v = none;
    d9d_buf_release(&text);
    return v;
}

static uint64_t cgroup_number(const struct cgroup_version *v, const char *group, const char *file,
                              const char *key, uint64_t none)
{
    char path[PATH_SIZE];

    (void)snprintf(path, sizeof(path), "%s%s/%s", v->root, group, file);
    return read_number(path, key, none);
}

/* What a group's limit leaves; page cache does not count as used. */
static uint64_t cgroup_available(const struct cgroup_version *v, const char *group)
{
    const uint64_t max = cgroup_number(v, group, v->max, "", UINT64_MAX);
    const uint64_t used = cgroup_number(v, group, v->used, "", 0);
    const uint64_t cached = cgroup_number(v, group, "memory.stat", v->cached, 0);
    const uint64_t held = used > cached ? used - cached : 0;

    return max == UINT64_MAX ? max : max > held ? max - held : 0;
}

/* The least that the process's group and its ancestors leave. */
static uint64_t cgroups_available(const struct cgroup_version *v, const char *groups)
{
    const char *line = strstr(groups, v->line);
    uint64_t left = UINT64_MAX;
    char group[4096] = "";

    if (line == NULL || sscanf(line + strlen(v->line), "%4000[^\n]", group) != 1)
        return left;
    for (char *end = group + strlen(group); end != NULL; end = strrchr(group, '/')) {
        uint64_t one;

        *end = '\0';
        one = cgroup_available(v, group);
        left = one < left ? one : left;
    }
    return left;
}

uint64_t d9d_mem_available(void)
{
    const uint64_t kb = read_number("/proc/meminfo", "MemAvailable:", UINT64_MAX >> 10);
    uint64_t left = kb << 10;
    d9d_buf groups = {0};

    read_text("/proc/self/cgroup", &groups);
    for (size_t i = 0; groups.len > 0 && i < sizeof(cgroup_versions) / sizeof(cgroup_versions[0]);
         i++) {
        const uint64_t one = cgroups_available(&cgroup_versions[i], groups.data);

        left = one < left ? one : left;
    }
    d9d_buf_release(&groups);
    return left;
}
