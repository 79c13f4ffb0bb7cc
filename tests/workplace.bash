# shellcheck shell=bash
# workplace: a new directory, in memory where that is possible: these tests sync a lot.
workplace() { mktemp -d "${TMPDIR:-/dev/shm}/d9d-XXXXXX" 2>/dev/null || mktemp -d /tmp/d9d-XXXXXX; }
