/* python_number.h - formats JSON numbers as Python's json module does. */
#ifndef D9DI_DATA_CHAT_PYTHON_NUMBER_H
#define D9DI_DATA_CHAT_PYTHON_NUMBER_H

#include "d9d/base/mem.h"

/* Appends the JSON number text[0, n) as json.dumps(json.loads(text)) prints it: integers with all
 * digits, others as repr() of the nearest double. */
d9d_status d9di_python_number(const char *text, size_t n, d9d_buf *out);

/* The same of a double. */
d9d_status d9di_python_number_double(double v, d9d_buf *out);

#endif
