#!/usr/bin/env bats
# Packages by their own tools: made of the build at hand, installed below a folder, run, removed; and
# modulefiles as both module systems load them.

load ../tools/helper

top=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)

setup_file() {
    work=$(mktemp -d)
    export work
}
teardown_file() { rm -rf "$work"; }

# source_tree DIR: the sources, with what has been built of them.
source_tree() {
    git -C "$top" ls-files -z | tar -C "$top" --null -T - -cf - | tar -C "$1" -x
    mkdir "$1/build"
    cp -a "$D9D_BUILD"/{flags,lib,bin,kernels,libcore} "$1/build"
    cp -a "$D9D_BUILD/tools" "$1/build"
}

@test "Debian: packages are built, have no errors, are installed, run and removed" {
    for tool in dpkg-buildpackage dh lintian; do command -v $tool >/dev/null || skip "no $tool"; done
    mkdir -p "$work/debian/d9d" && cd "$work/debian/d9d"
    source_tree .
    cp -r packaging/debian .
    # flags of the build at hand, so that nothing is compiled again
    run -0 env DEB_CFLAGS_SET= DEB_CPPFLAGS_SET= DEB_LDFLAGS_SET= DEB_BUILD_OPTIONS=noautodbgsym \
        dpkg-buildpackage -b -us -uc -d
    refute_output --partial "CC    build"
    run -0 lintian --no-tag-display-limit --fail-on error --allow-root ../*.changes
    for deb in ../*.deb; do dpkg-deb -x "$deb" "$work/debian/root"; done
    run -0 "$work/debian/root/usr/bin/d9d-map" --version
    # dpkg on a database of its own
    base=$work/debian/base
    mkdir -p "$base/var/lib/dpkg/"{updates,info,triggers}
    touch "$base/var/lib/dpkg/status"
    command -v unshare >/dev/null && [ "$(id -u)" -eq 0 ] || skip "installing needs root"
    run -0 dpkg --root="$base" --force-depends --force-not-root -i ../*.deb
    [ -x "$base/usr/bin/d9d-map" ]
    LD_LIBRARY_PATH=$(echo "$base"/usr/lib/*-linux-gnu) run -0 "$base/usr/bin/d9d-map" --help
    run -0 dpkg --root="$base" --force-depends -r d9d libd9d-dev libd9d-mpi0 libd9d0
    assert_equal "$(find "$base/usr" ! -type d 2>/dev/null)" ""
}

@test "RPM: packages are built and hold what the spec lists" {
    command -v rpmbuild >/dev/null || skip "no rpmbuild"
    mkdir -p "$work/rpm/SOURCES" "$work/rpm/d9d-0.1.0" && cd "$work/rpm"
    source_tree d9d-0.1.0
    # rpmbuild has the flags of the distribution; those of the build at hand compile nothing again
    (cd d9d-0.1.0 && make -s --no-print-directory NVCC= MPICC= NO_INSTALL=1 -o build/flags all)
    tar -czf SOURCES/d9d-0.1.0.tar.gz d9d-0.1.0
    run -0 rpmbuild -bb --nodeps --nocheck --define "_topdir $work/rpm" --define "debug_package %{nil}" \
        --define "set_build_flags :" --define "make_build make -o build/flags" --define "make_install make install -o build/flags DESTDIR=%{buildroot}" \
        d9d-0.1.0/packaging/rpm/d9d.spec
    refute_output --partial "CC    build"
    rpms=$(find RPMS -name '*.rpm' | wc -l)
    assert_equal "$rpms" 3
    run -0 rpm -qpl RPMS/*/d9d-0.1.0-*.rpm
    assert_line /usr/bin/d9d-train
    run -0 rpm -qp --recommends RPMS/*/d9d-libs-*.rpm
    assert_line cairo
}

@test "ReFrame lists both checks" {
    command -v reframe >/dev/null || skip "no reframe"
    cd "$work"
    run -0 reframe -c "$top/packaging/reframe/d9d_check.py" -l
    assert_output --partial "Found 2 check(s)"
}

@test "the conda recipe is one for rattler-build" {
    command -v rattler-build >/dev/null || skip "no rattler-build"
    run -0 rattler-build build --render-only -r "$top/packaging/conda/recipe.yaml" --output-dir "$work/conda"
}

# ---- Modules ------------------------------------------------------------------------------------

installed() {
    [ -e "$work/opt/d9d/bin" ] || make -s --no-print-directory -C "$top" install DESTDIR="$work" PREFIX=/opt/d9d >&2
}
# loads_and_unloads: by a function `module` that is there.
loads_and_unloads() {
    module load d9d/0.1.0
    [[ :$PATH: == *:/opt/d9d/bin:* ]]
    assert_equal "$D9D_BIN" /opt/d9d/bin
    module unload d9d/0.1.0
    [[ :$PATH: != *:/opt/d9d/bin:* ]]
    assert_equal "${D9D_BIN:-}" ""
}

@test "Lmod loads and unloads it" {
    lmod=$(ls /usr/share/lmod/*/libexec/lmod /usr/share/lmod/lmod/libexec/lmod 2>/dev/null | head -n 1) || true
    [ -n "$lmod" ] || skip "no Lmod"
    installed
    unset LOADEDMODULES _LMFILES_ D9D_BIN
    export MODULEPATH=$work/opt/d9d/share/modulefiles LMOD_SYSTEM_DEFAULT_MODULES=
    module() { eval "$("$lmod" bash "$@" 2>/dev/null)"; }
    loads_and_unloads
}
