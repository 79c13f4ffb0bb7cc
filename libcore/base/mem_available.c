/* mem_available.c - how much memory the host can still give.  See d9d/base/mem.h. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "d9d/base/fs.h"

enum { TEXT_MAX = 1 << 20, PATH_ROOM = 4096 + 64 };

/* Control groups, of either version: where /proc/self/cgroup says which one this process is in,
 * and what its files are called. */
static const struct version {
    const char *line, *root, *max, *used, *cached;
} versions[] = {
    {"0::", "/sys/fs/cgroup", "memory.max", "memory.current", "file "},
    {":memory:", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
     "cache "},
};

/* The text of a file; "" where it cannot be read, which is nobody's mistake. */
static void read_text(const char *path, d9d_buf *out)
{
    d9d_err_copy before;

    d9d_err_save(&before, D9D_OK);
    if (d9d_fs_read(path, TEXT_MAX, out) != D9D_OK)
        (void)d9d_err_restore(&before);
}

/* The number behind the first `key` of a file; `none` where there is none. */
static uint64_t number_in(const char *path, const char *key, uint64_t none)
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

static uint64_t group_number(const struct version *v, const char *group, const char *file,
                             const char *key, uint64_t none)
{
    char path[PATH_ROOM];

    (void)snprintf(path, sizeof(path), "%s%s/%s", v->root, group, file);
    return number_in(path, key, none);
}

/* What a group's limit leaves; files that are only cached do not count. */
static uint64_t group_left(const struct version *v, const char *group)
{
    const uint64_t max = group_number(v, group, v->max, "", UINT64_MAX);
    const uint64_t used = group_number(v, group, v->used, "", 0);
    const uint64_t cached = group_number(v, group, "memory.stat", v->cached, 0);
    const uint64_t held = used > cached ? used - cached : 0;

    return max == UINT64_MAX ? max : max > held ? max - held : 0;
}

/* The least that the group of this process, and those that it is in, leave. */
static uint64_t groups_left(const struct version *v, const char *groups)
{
    const char *line = strstr(groups, v->line);
    uint64_t left = UINT64_MAX;
    char group[4096] = "";

    if (line == NULL || sscanf(line + strlen(v->line), "%4000[^\n]", group) != 1)
        return left;
    for (char *end = group + strlen(group); end != NULL; end = strrchr(group, '/')) {
        uint64_t one;

        *end = '\0';
        one = group_left(v, group);
        left = one < left ? one : left;
    }
    return left;
}

uint64_t d9d_mem_left(void)
{
    const uint64_t kb = number_in("/proc/meminfo", "MemAvailable:", UINT64_MAX >> 10);
    uint64_t left = kb << 10;
    d9d_buf groups = {0};

    read_text("/proc/self/cgroup", &groups);
    for (size_t i = 0; groups.len > 0 && i < sizeof(versions) / sizeof(versions[0]); i++) {
        const uint64_t one = groups_left(&versions[i], groups.data);

        left = one < left ? one : left;
    }
    d9d_buf_release(&groups);
    return left;
}
