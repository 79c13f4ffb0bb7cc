#!/bin/sed -f
# comments.sed - plain comments of a header, as Doxygen takes them.
1s,^/\* \([a-z_0-9]*\.h\) - ,/** \\file\n * ,
2,$s,^/\*  *-\{2\,\}.*\*/$,,
2,$s,^/\*  *-\{2\,\} *\(.*[^- *]\)[- *]*$,/** \1,
2,$s,^/\* ,/** ,
s,\([;\,{]\) *\/\* ,\1 /**< ,
