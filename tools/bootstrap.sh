#!/usr/bin/env bash
# Set up what the Makefile's targets need, on a bare Debian or Ubuntu machine.
#
#   tools/bootstrap.sh python   .venv with Suture, its extras and the developer's tools
#   tools/bootstrap.sh java     print the home of a Java runtime that Spark accepts
#   tools/bootstrap.sh programs install what tests start: a browser, mkfs.btrfs, rpmbuild and others
#   tools/bootstrap.sh promtool print the folder of promtool, which tries the alerts
#   tools/bootstrap.sh buf      print the folder of buf, which checks the wire contract
#
# What is already there is used as it is, and nothing is said. What is missing is installed with
# apt when we are root or sudo asks no password; otherwise the command to run is printed and the
# exit code is 1. Progress goes to standard error.

set -euo pipefail

readonly PYTHON_MINOR_MIN=11 # 3.11: StrEnum, tomllib, Self
readonly JAVA_MAJOR_MIN=17   # Spark 4 starts on nothing older
readonly BUF_VERSION=1.75.0  # another one may have other rules
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
readonly ROOT
readonly VENV="$ROOT/.venv"
readonly STAMP="$VENV/suture-ready"
apt_lists_are_fresh=no

say() { printf 'bootstrap: %s\n' "$*" >&2; }
fail() {
    say "$@"
    exit 1
}

# --- apt -----------------------------------------------------------------------------------------

may_install() {
    command -v apt-get >/dev/null || return 1
    [ "$(id -u)" -eq 0 ] || { command -v sudo && sudo -n true; } >/dev/null 2>&1
}

apt() { # apt talks a lot: show it only if it failed. Its lock may be held by an unattended upgrade
    local command=(apt-get -qq -o DPkg::Lock::Timeout=300 "$@") log
    [ "$(id -u)" -eq 0 ] || command=(sudo -n env DEBIAN_FRONTEND=noninteractive "${command[@]}")
    log="$(mktemp)"
    if ! DEBIAN_FRONTEND=noninteractive "${command[@]}" </dev/null >"$log" 2>&1; then
        cat "$log" >&2
        rm -f "$log"
        return 1
    fi
    rm -f "$log"
}

refresh_lists() {
    [ "$apt_lists_are_fresh" = no ] || return 0
    apt update || say "the package lists could not be refreshed; using those at hand"
    apt_lists_are_fresh=yes
}

is_available() { # a virtual package is known and has no candidate: "(none)"
    [[ "$(apt-cache policy "$1" 2>/dev/null)" =~ Candidate:\ [^\(] ]]
}

install_packages() {
    refresh_lists
    say "installing $* with apt"
    apt install --yes --no-install-recommends "$@"
}

# --- Python --------------------------------------------------------------------------------------

is_new_enough() { # a version manager's shim may exist and still refuse to run
    "$1" -c "import sys; sys.exit(sys.version_info < (3, $PYTHON_MINOR_MIN))" >/dev/null 2>&1
}

find_python() {
    local name
    for name in ${PYTHON:+"$PYTHON"} python3 python3.{11,12,13,14}; do
        if is_new_enough "$name"; then
            command -v "$name"
            return 0
        fi
    done
    return 1
}

install_python() {
    local version
    may_install || fail "Python 3.$PYTHON_MINOR_MIN or newer is needed and none is here; run:" \
        "apt-get install python3 python3-venv   (older distributions: python3.$PYTHON_MINOR_MIN)"
    refresh_lists
    for version in python3 python3.{11,12,13,14}; do
        is_available "$version" || continue
        install_packages "$version"
        ! is_new_enough "$version" || return 0
    done
    fail "this distribution has no Python 3.$PYTHON_MINOR_MIN or newer;" \
        "install one and name it: make PYTHON=/path/to/python3 ..."
}

package_name() { # Debian names packages after the interpreter they belong to: python3.11-venv
    "$1" -c 'import sys; print("python%d.%d-'"$2"'" % sys.version_info[:2])'
}

ensure_venv_module() {
    local package
    "$1" -c 'import ensurepip, venv' >/dev/null 2>&1 && return 0
    package="$(package_name "$1" venv)"
    may_install || fail "$1 cannot create virtual environments; run: apt-get install $package"
    install_packages "$package"
    "$1" -c 'import ensurepip, venv' ||
        fail "$1 still cannot create virtual environments, though $package is installed"
}

ensure_compiler() { # for a library of the tests, which flips bits while a process reads
    { command -v cc || command -v gcc; } >/dev/null 2>&1 && return 0
    if may_install && install_packages gcc libc6-dev; then
        return 0
    fi
    say "no C compiler: tests that need one are skipped; to mend it: apt-get install gcc libc6-dev"
}

setup_kerberos() { # gssapi has no wheels for Linux: it is compiled
    local package
    if may_install; then
        for package in libkrb5-dev "$(package_name "$1" dev)"; do
            ! is_available "$package" || install_packages "$package" || true
        done
    fi
    (cd "$ROOT" && pip_install --editable '.[ozone-secure]' 9<&-) ||
        say "gssapi cannot be built: tests of Kerberos are skipped; to mend it: apt-get install libkrb5-dev"
}

forget_crcmod() { # crcmod-plus brings the same package: what uninstalls the one takes files of both
    [ -z "$(compgen -G "$VENV/lib/python3*/site-packages/crcmod-*.dist-info")" ] ||
        "$VENV/bin/python" -m pip uninstall --quiet --yes crcmod >&2
}

pip_install() { # quiet, unless a person is watching; Python compiles the modules that it imports
    local quiet=(--quiet)
    [ -t 2 ] && quiet=()
    "$VENV/bin/python" -m pip install --no-compile --disable-pip-version-check "${quiet[@]}" "$@" >&2
}

stamp_text() { # the environment is current while these are; a virtual environment cannot be moved
    printf '%s\n' "$ROOT" "$(cksum <"$ROOT/pyproject.toml")" "$(cksum <"$ROOT/tools/bootstrap.sh")"
}

is_ready() {
    [ -f "$STAMP" ] && [ "$(stamp_text)" = "$(cat "$STAMP")" ] && is_new_enough "$VENV/bin/python"
}

setup_python() {
    local python
    ! is_ready || return 0
    exec 9<"$ROOT/tools/bootstrap.sh" # two makes at once: the second waits, then finds it done
    flock 9
    ! is_ready || return 0
    python="$(find_python)" || { install_python && python="$(find_python)"; }
    ensure_venv_module "$python"
    ensure_compiler
    if ! is_new_enough "$VENV/bin/python" || ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1
    then
        say "creating .venv with $python ($("$python" -V))"
        "$python" -m venv --clear "$VENV" 9<&-
    fi
    rm -f "$STAMP"
    say "installing Suture and its tools into .venv (Spark is large: minutes on a slow line)"
    pip_install --upgrade pip 9<&-
    forget_crcmod 9<&-
    (cd "$ROOT" && pip_install --editable '.[ozone,scm,spark]' --group dev 9<&-)
    setup_kerberos "$python"
    stamp_text >"$STAMP"
    say "ready"
}

# --- Java ----------------------------------------------------------------------------------------

java_home() { # the home that a java command reports of itself, if it is new enough
    local settings major
    settings="$("$1" -XshowSettings:properties -version 2>&1)" || return 1
    major="$(sed -n 's/^ *java\.specification\.version = \([0-9]*\).*/\1/p' <<<"$settings")"
    [ "${major:-0}" -ge "$JAVA_MAJOR_MIN" ] || return 1
    sed -n 's/^ *java\.home = //p' <<<"$settings"
}

find_java() { # JAVA_HOME wins, as it does for Spark; one that is too old must not
    local candidate
    for candidate in ${JAVA_HOME:+"$JAVA_HOME/bin/java"} java /usr/lib/jvm/*/bin/java; do
        command -v "$candidate" >/dev/null || continue
        ! java_home "$candidate" || return 0
    done
    return 1
}

setup_java() {
    local package
    ! find_java || return 0
    may_install || fail "Spark needs Java $JAVA_MAJOR_MIN or newer and none is here; run:" \
        "apt-get install openjdk-17-jre-headless   (or default-jre-headless), or set JAVA_HOME"
    refresh_lists
    for package in openjdk-17-jre-headless openjdk-21-jre-headless default-jre-headless; do
        is_available "$package" || continue
        install_packages "$package"
        ! find_java || return 0
    done
    fail "no package of this distribution brings Java $JAVA_MAJOR_MIN or newer;" \
        "install one and set JAVA_HOME"
}

# --- programs that tests start -------------------------------------------------------------------

readonly PROGRAMS=( # a command, and the package that brings it on Debian and Ubuntu
    chromium:chromium mkfs.btrfs:btrfs-progs rpmbuild:rpm filefrag:e2fsprogs man:man-db
    systemd-analyze:systemd setpriv:util-linux gpg:gnupg mmdebstrap:mmdebstrap
    krb5kdc:krb5-kdc kadmin.local:krb5-admin-server kinit:krb5-user
)

setup_programs() { # what cannot be had costs its tests; CI fails for a skip that is not listed
    local program missing=() package
    for program in "${PROGRAMS[@]}"; do
        PATH="$PATH:/usr/sbin:/sbin" command -v "${program%%:*}" >/dev/null || missing+=("${program#*:}")
    done
    [ "${#missing[@]}" -gt 0 ] || return 0
    if ! may_install; then
        say "tests are skipped that need ${missing[*]}; to run them: apt-get install ${missing[*]}"
        return 0
    fi
    refresh_lists
    for package in "${missing[@]}"; do
        { is_available "$package" && install_packages "$package"; } ||
            say "$package cannot be installed here: tests that need it are skipped"
    done
}

# --- promtool ------------------------------------------------------------------------------------

setup_promtool() { # Debian has it, and amtool, in packages of servers, which are only unpacked
    local folder="$VENV/promtool" unpacked
    if command -v promtool >/dev/null && command -v amtool >/dev/null; then
        dirname "$(command -v promtool)"
        return 0
    fi
    if [ ! -x "$folder/usr/bin/promtool" ] || [ ! -x "$folder/usr/bin/amtool" ]; then
        ! may_install || refresh_lists
        unpacked="$(mktemp -d)"
        if ! (cd "$unpacked" && apt-get -qq -o APT::Sandbox::User=root download prometheus prometheus-alertmanager && for each in *.deb; do dpkg-deb -x "$each" . || exit; done) >&2; then
            rm -rf "$unpacked"
            say "promtool is not here and could not be fetched: the alerts are not tried;" \
                "to have them tried: apt-get install prometheus"
            return 0
        fi
        rm -rf "$folder"
        mkdir -p "$folder/usr/bin"
        mv "$unpacked/usr/bin/promtool" "$unpacked/usr/bin/amtool" "$folder/usr/bin/"
        rm -rf "$unpacked"
    fi
    printf '%s\n' "$folder/usr/bin"
}

# --- buf -----------------------------------------------------------------------------------------

setup_buf() { # npm's package is the program itself; with Go it would be compiled for minutes
    local folder="$VENV/buf/$BUF_VERSION"
    if command -v buf >/dev/null; then
        dirname "$(command -v buf)"
        return 0
    fi
    if [ ! -x "$folder/node_modules/.bin/buf" ]; then
        if ! command -v npm >/dev/null ||
            ! npm install --silent --no-fund --no-audit --prefix "$folder" "@bufbuild/buf@$BUF_VERSION" >&2
        then
            rm -rf "$folder"
            say "buf is not here and could not be fetched: the wire contract is not checked by it;" \
                "to have it checked: apt-get install npm, or go install github.com/bufbuild/buf/cmd/buf@v$BUF_VERSION"
            return 0
        fi
    fi
    printf '%s\n' "$folder/node_modules/.bin"
}

case "${1:-}" in
python) setup_python ;;
java) setup_java ;;
programs) setup_programs ;;
promtool) setup_promtool ;;
buf) setup_buf ;;
*) fail "usage: tools/bootstrap.sh python|java|programs|promtool|buf" ;;
esac
