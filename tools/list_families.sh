#!/bin/sh
# list_families.sh - the families that are built in, in a manual page.
#
#     tools/list_families.sh LIST PAGE
#
# LIST has a line D9DI_FAMILY(name) for each.  They take the place of the lines between the comments
# "Families" and "End of families" of PAGE.  `make schemas` runs it.
set -eu
list=$1 page=$2
{
    sed '/^\.\\" Families/q' "$page"
    sed 's/.*(\(.*\))/.Dq \1 ,/; $s/,$/;/' "$list"
    sed -n '/^\.\\" End of families/,$p' "$page"
} >"$page.new"
mv "$page.new" "$page"
