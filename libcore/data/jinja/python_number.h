/* python_number.h - formats numbers as Python does. */
#ifndef D9DI_DATA_JINJA_PYTHON_NUMBER_H
#define D9DI_DATA_JINJA_PYTHON_NUMBER_H

#include "d9d/base/mem.h"

/* Appends repr() of a double, as json.dumps() prints it. */
d9d_status d9di_python_number(double v, d9d_buf *out);

#endif
