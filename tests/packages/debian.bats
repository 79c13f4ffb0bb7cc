#!/usr/bin/env bats
# The Debian packages: built as the README of packaging says, checked by lintian, installed, used, removed.

load ../tools/helper
load helper

setup_file() {
    work=$(mktemp -d)
    export work
    command -v dpkg-buildpackage >/dev/null && command -v dh >/dev/null || return 0
    source_tree "$work/d9d-0.1.0"
    cd "$work/d9d-0.1.0" || return 1
    cp -r packaging/debian .
    dpkg-buildpackage -b -us -uc -j"$(nproc)" >"$work/log" 2>&1 || { tail -n 40 "$work/log" >&2 && return 1; }
}
teardown_file() { rm -rf "$work"; }
setup() { needs dpkg-buildpackage dh; }

packages=(d9d libd9d0 libd9d-mpi0 libd9d-dev)

@test "four packages are built, and lintian finds nothing" {
    for name in "${packages[@]}"; do [ -s "$(echo "$work/${name}"_0.1.0-1_*.deb)" ] || fail "no $name"; done
    needs lintian
    # Of no bug of Debian: nobody asked there for this package.
    run -0 lintian --allow-root --suppress-tags initial-upload-closes-no-bugs --fail-on error,warning "$work"/*.changes
    refute_output --regexp '^[EW]:'
}

@test "installed into an empty root they shard, train and infer, and removed they leave nothing" {
    [ "$(id -u)" -eq 0 ] || skip "dpkg installs for root alone"
    root=$work/root
    mkdir -p "$root/var/lib/dpkg"
    touch "$root/var/lib/dpkg/status"
    files_of "$root" >"$work/before"
    for name in "${packages[@]}"; do debs+=("$work/${name}"_0.1.0-1_*.deb); done
    run -0 dpkg --root="$root" --force-depends --force-script-chrootless -i "${debs[@]}"
    export D9D_BIN=$root/usr/bin LD_LIBRARY_PATH
    LD_LIBRARY_PATH=$(dirname "$root"/usr/lib/*/libd9d.so.0)
    run -0 "$root/usr/share/d9d/reference/check"
    assert_line "1..13"
    # a plugin is compiled with what libd9d-dev brings
    sed -n 's/^Cflags: *//p' "$LD_LIBRARY_PATH/pkgconfig/d9d.pc" | grep -q include
    run -0 gcc -shared -fPIC -I"$root/usr/include" -o "$work/brier.so" "$root/usr/share/doc/d9d/examples/plugins/brier.c"
    run -0 dpkg --root="$root" --force-script-chrootless --purge "${packages[@]}"
    refute_output --partial "not empty"
    files_of "$root" | diff "$work/before" -
}

@test "apt installs them in a bare Debian, somebody uses them, and purged they leave nothing" {
    [ "${D9D_LONG:-0}" = 1 ] || skip "set D9D_LONG=1"
    [ "$(id -u)" -eq 0 ] || skip "chroot needs root"
    needs debootstrap
    root=$work/bookworm
    debootstrap --variant=minbase bookworm "$root" >"$work/log" 2>&1 || skip "debootstrap: $(tail -n 1 "$work/log")"
    inside() { unshare -m sh -c 'mount -t proc proc "$0/proc" && exec chroot "$0" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"' "$root" "$@"; }
    files_of "$root" >"$work/before"
    mkdir "$root/debs"
    for name in "${packages[@]}"; do cp "$work/${name}"_0.1.0-1_*.deb "$root/debs"; done
    inside sh -c 'apt-get install -y --no-install-recommends /debs/*.deb' >&2
    rm -r "$root/debs"
    run -0 inside setpriv --reuid=65534 --clear-groups /usr/share/d9d/reference/check
    assert_line "1..13"
    inside apt-get purge -y --autoremove "${packages[@]}" >&2
    inside find / -xdev -name '*d9d*' ! -path '/proc/*' ! -path '/var/log/*' >"$work/left"
    assert_equal "$(cat "$work/left")" ""
    # other packages keep caches of their own
    files_of "$root" | comm -13 "$work/before" - >&2
}
