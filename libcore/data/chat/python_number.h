/* python_number.h - numbers of JSON as Python writes them back. */
#ifndef D9DI_DATA_CHAT_PYTHON_NUMBER_H
#define D9DI_DATA_CHAT_PYTHON_NUMBER_H

#include "d9d/base/mem.h"

/* Append the number text[0, n), of JSON's grammar, as json.dumps(json.loads(text)) has it: whole
 * ones with all their digits, others as repr() has the nearest double. */
d9d_status d9di_python_number(const char *text, size_t n, d9d_buf *out);

#endif
