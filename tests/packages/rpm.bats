#!/usr/bin/env bats
# The RPM packages: built of the spec, listed, installed into an empty root, used, removed.

load ../tools/helper
load helper

setup_file() {
    work=$(mktemp -d)
    export work
    command -v rpmbuild >/dev/null || return 0
    mkdir -p "$work/SOURCES"
    source_tree "$work/d9d-0.1.0"
    tar -C "$work" -czf "$work/SOURCES/d9d-0.1.0.tar.gz" d9d-0.1.0
    # The libraries may be another manager's.
    rpmbuild -bb --nodeps --define "_topdir $work" "$work/d9d-0.1.0/packaging/rpm/d9d.spec" >"$work/log" 2>&1 ||
        { tail -n 40 "$work/log" >&2 && return 1; }
}
teardown_file() { rm -rf "$work"; }
setup() { needs rpmbuild; }

list() { rpm -qpl "$work/RPMS"/*/"$1"-0.1.0-*.rpm; }

@test "three packages, each with what is its own, and no warning" {
    run ! grep -E '^ *(warning|error):' "$work/log"
    [ "$(grep -cE '(-c -o|^  CC) +build/libcore/base/status\.o' "$work/log")" = 1 ] # %install builds nothing again
    run -0 list d9d
    assert_line /usr/bin/d9d-train
    assert_line --regexp '^/usr/share/man/man1/d9d-train\.1'
    refute_output --partial /usr/include
    refute_output --partial libd9d
    run -0 list d9d-libs
    assert_line --regexp '^/usr/lib(64)?/libd9d\.so\.0$'
    refute_output --partial /usr/bin
    run -0 list d9d-devel
    assert_line /usr/include/d9d/tasks/plugin.h
    assert_line --regexp '/pkgconfig/d9d\.pc$'
    run -0 rpm -qpR "$work/RPMS"/*/d9d-0.1.0-*.rpm
    assert_output --partial "d9d-libs("
}

@test "installed into an empty root they shard, train and infer, and removed they leave nothing" {
    [ "$(id -u)" -eq 0 ] || skip "rpm installs for root alone"
    root=$work/root
    mkdir "$root"
    by=(rpm --root "$root")
    ! rpm --help | grep -q force-debian || by+=(--force-debian)
    run -0 "${by[@]}" --nodeps -i "$work"/RPMS/*/d9d{,-libs,-devel}-0.1.0-*.rpm
    export D9D_BIN=$root/usr/bin LD_LIBRARY_PATH
    LD_LIBRARY_PATH=$(dirname "$root"/usr/lib*/libd9d.so.0)
    run -0 "$root/usr/share/d9d/reference/check"
    assert_line "1..13"
    run -0 "${by[@]}" -e d9d d9d-libs d9d-devel
    assert_equal "$(find "$root/usr" ! -type d)" ""
    assert_equal "$(find "$root/usr" -name '*d9d*')" ""
}
