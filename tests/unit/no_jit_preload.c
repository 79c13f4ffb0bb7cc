/* no_jit_preload.c - LD_PRELOAD library: PCRE2 compiles no pattern to machine code.
 *
 * That code reads whole vectors beyond the end of a text and drops what is not the text's.
 * valgrind takes the branches for branches on values that nobody set, in code without a name by
 * which they could be suppressed.  Patterns are interpreted instead, with the same matches. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

int pcre2_jit_compile(pcre2_code *code, uint32_t options)
{
    (void)code;
    (void)options;
    return PCRE2_ERROR_JIT_BADOPTION;
}
