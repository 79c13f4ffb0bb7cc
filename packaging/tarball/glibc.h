/* glibc.h - included first in what a tarball holds: names of glibc 2.29 by their older versions.
 *
 * These differ in errno alone, which nothing here reads.  packaging/tarball/needs checks the result.
 */
#ifdef __x86_64__
__asm__(".symver exp,exp@GLIBC_2.2.5");
__asm__(".symver exp2,exp2@GLIBC_2.2.5");
__asm__(".symver log,log@GLIBC_2.2.5");
__asm__(".symver log2,log2@GLIBC_2.2.5");
__asm__(".symver pow,pow@GLIBC_2.2.5");
#endif
