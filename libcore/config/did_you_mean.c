/* did_you_mean.c - the nearest word to a misspelled one, by its beginning or by edit distance. */
#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "d9d/config/config.h"

enum {
    MAX_LENGTH = 64, /* longer words are not compared */
    MIN_BEGIN = 3    /* letters that may begin another word */
};

static size_t min3(size_t a, size_t b, size_t c)
{
    size_t m = a < b ? a : b;

    return m < c ? m : c;
}

static int same_letter(char a, char b)
{
    return tolower((unsigned char)a) == tolower((unsigned char)b);
}

/* Optimal string alignment distance (Damerau-Levenshtein): three rows of the matrix. */
static size_t edit_distance(const char *a, size_t na, const char *b, size_t nb)
{
    size_t row[3][MAX_LENGTH + 1];

    for (size_t j = 0; j <= nb; j++)
        row[0][j] = j;
    for (size_t i = 1; i <= na; i++) {
        size_t *now = row[i % 3], *prev = row[(i + 2) % 3], *prev2 = row[(i + 1) % 3];

        now[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            now[j] =
                min3(prev[j] + 1, now[j - 1] + 1, prev[j - 1] + !same_letter(a[i - 1], b[j - 1]));
            if (i > 1 && j > 1 && same_letter(a[i - 1], b[j - 2]) &&
                same_letter(a[i - 2], b[j - 1]))
                now[j] = min3(now[j], prev2[j - 2] + 1, now[j]);
        }
    }
    return row[na % 3][nb];
}

/* "qwen3" begins "qwen3_dense", whatever else is nearer, unless it is a word but for its case. */
static const char *find_longer(const char *given, size_t n, const char *const *candidates)
{
    const char *found = NULL;

    for (; n >= MIN_BEGIN && *candidates != NULL; candidates++) {
        if (strncasecmp(given, *candidates, n) != 0)
            continue;
        if ((*candidates)[n] == '\0')
            return *candidates;
        if ((*candidates)[n] == '_' && found == NULL)
            found = *candidates;
    }
    return found;
}

const char *d9d_config_did_you_mean(const char *given, const char *const *candidates)
{
    size_t n = strnlen(given, MAX_LENGTH + 1), best = SIZE_MAX;
    const char *found = n <= MAX_LENGTH ? find_longer(given, n, candidates) : NULL;

    if (n > MAX_LENGTH || found != NULL)
        return found;
    for (; *candidates != NULL; candidates++) {
        size_t m = strnlen(*candidates, MAX_LENGTH + 1), d;

        if (m > MAX_LENGTH)
            continue;
        d = edit_distance(given, n, *candidates, m);
        if (d < best && d <= (n > m ? n : m) / 3) {
            best = d;
            found = *candidates;
        }
    }
    return found;
}
