/* unit.c - see unit.h. */
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "d9d/base/fs.h"

void unit_check_has(const char *text, const char *part, const char *file, int line)
{
    if (strstr(text, part) == NULL) {
        print_error("\"%s\" does not have \"%s\"\n", text, part);
        _fail(file, line);
    }
}

/* Make exports some variables empty. */
static bool is_set(const char *name)
{
    const char *value = getenv(name);

    return value != NULL && value[0] != '\0';
}

bool unit_is_wrapped(void)
{
    return is_set("D9D_WRAP");
}

int unit_step(int n)
{
    return unit_is_wrapped() ? n : 1;
}

bool unit_is_long(void)
{
    return is_set("D9D_LONG");
}

int unit_dir_setup(void **state)
{
    const char *base = getenv("TMPDIR");
    char *path = NULL;

    if (asprintf(&path, "%s/d9d-unit-XXXXXX", base != NULL ? base : "/tmp") < 0)
        return -1;
    if (mkdtemp(path) == NULL || chdir(path) != 0) {
        free(path);
        return -1;
    }
    *state = path;
    return 0;
}

int unit_dir_teardown(void **state)
{
    char *path = *state;
    const int rc = chdir("/") == 0 && d9d_fs_remove_tree(path) == D9D_OK ? 0 : -1;

    free(path);
    return rc;
}
