#!/usr/bin/env bats
# The recipes of packaging/: versions and libraries are those of the Makefile and of tools/setup.sh,
# and each recipe is read by its own tool, or by a parser of its language.

load helper

top=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)

setup() { cd "$top/packaging" || return 1; }

# packages COLUMN: what the build needs, by a manager's names in the table of tools/setup.sh.
packages() {
    awk -v column="$1" '/^(build|part) +lib:/ && $column != "-" { print $column }' ../tools/setup.sh
}

@test "every recipe has the version of the Makefile" {
    version=$(sed -n 's/^VERSION *:= *//p' ../Makefile)
    [ -n "$version" ]
    grep -qxF "    version(\"$version\")" spack/package.py
    grep -qE "^Version: +$version\$" rpm/d9d.spec
    grep -qE "^\* .* - $version-1\$" rpm/d9d.spec
    grep -qF "d9d ($version-1) " <(head -n 1 debian/changelog)
    grep -qxF "  version: \"$version\"" conda/recipe.yaml
    grep -qxF "version: $version" ../CITATION.cff
    grep -qF "d9d@$version" README.md
}

@test "every recipe has the soname of the Makefile" {
    so=$(sed -n 's/^SOVERSION *:= *//p' ../Makefile)
    grep -qxF "%{_libdir}/libd9d.so.$so" rpm/d9d.spec
    grep -qxF "Package: libd9d$so" debian/control
    grep -qxF "usr/lib/*/libd9d.so.$so" "debian/libd9d$so.install"
}

@test "every recipe has the libraries that the build looks for" {
    [ "$(packages 4 | wc -l)" -ge 9 ]
    for name in $(packages 4); do grep -qwF -e "$name" debian/control || fail "debian: $name"; done
    for name in $(packages 7); do grep -qxF -e "    - $name" conda/recipe.yaml || fail "conda: $name"; done
    for name in $(packages 8); do grep -qE "depends_on\(\"${name}[\"@+-]" spack/package.py || fail "spack: $name"; done
    while read -r name; do
        grep -qxE "BuildRequires: +pkgconfig\($name\)" rpm/d9d.spec || fail "rpm: $name"
    done < <(awk '/^(build|part) +lib:/ { sub(/lib:/, "", $2); print $2 }' ../tools/setup.sh)
}

@test "the Spack recipe and the ReFrame check are Python" {
    command -v python3 >/dev/null || skip "no python3"
    for file in spack/package.py reframe/d9d_check.py; do
        python3 -c 'import ast, sys; ast.parse(open(sys.argv[1]).read())' "$file"
    done
}

@test "the conda recipe and the citation are YAML" {
    python3 -c 'import yaml' 2>/dev/null || skip "no python3 with yaml"
    run -0 python3 -c 'import yaml, sys
conda, cite = (yaml.safe_load(open(f)) for f in sys.argv[1:])
assert set(conda) >= {"package", "source", "build", "requirements", "tests", "about"}, conda
assert {"cff-version", "title", "message", "authors"} <= set(cite), cite' conda/recipe.yaml ../CITATION.cff
}

@test "rpmspec reads the spec" {
    command -v rpmspec >/dev/null || skip "no rpmspec"
    run -0 rpmspec -q --qf '%{name} %{version}\n' --nodebuginfo rpm/d9d.spec
    assert_line "d9d-libs 0.1.0"
    assert_line "d9d-devel 0.1.0"
}

@test "dpkg reads the Debian package" {
    command -v dpkg-parsechangelog >/dev/null || skip "no dpkg-dev"
    run -0 dpkg-parsechangelog -l debian/changelog -S Version
    assert_output 0.1.0-1
    mkdir "$BATS_TEST_TMPDIR/d9d" && cp -r debian "$BATS_TEST_TMPDIR/d9d" && cd "$BATS_TEST_TMPDIR/d9d"
    run -0 dpkg-source --before-build .
    run -0 make -n -f debian/rules override_dh_auto_install
    assert_output --partial "LIBDIR=lib/"
}

@test "what the Debian packages and the spec list is what make install makes" {
    stage=$(workplace)
    make -s --no-print-directory -C "$top" install DESTDIR="$stage" PREFIX=/usr LIBDIR=lib/x >&2
    cat debian/*.install | while read -r from _; do
        (cd "$stage" && compgen -G "$from" >/dev/null) || fail "debian: $from"
    done
    # each installed file is of a package
    patterns=$(cat debian/*.install | sed 's/ .*//')
    (cd "$stage" && find usr ! -type d) | while read -r file; do
        for pattern in $patterns; do
            # shellcheck disable=SC2053 # a pattern
            [[ $file == $pattern || $file == $pattern/* ]] && continue 2
        done
        fail "debian: no package has $file"
    done
    rm -rf "$stage"
}

@test "the image has sections of Apptainer alone" {
    run -0 grep -E '^%' apptainer/d9d.def
    while read -r section _; do
        case $section in
        %files | %post | %environment | %test | %runscript | %help) ;;
        *) fail "no section of Apptainer: $section" ;;
        esac
    done <<<"$output"
    for command in d9d-train d9d-map; do [ -e "../tools/$command.c" ]; done
}
