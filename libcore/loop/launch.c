/* launch.c - see loop/launch.h. */
#include "loop/launch.h"

d9d_status d9di_launch_checked(d9d_status st)
{
    return st == D9D_ENOTFOUND ? D9D_FAIL(D9D_ECONFIG, "%s", d9d_err_message()) : st;
}
