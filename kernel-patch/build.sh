#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
#
# Builds a kernel with the series, or finds it in the cache, and prints the
# directory that holds bzImage, System.map, config, and the kernel's own tests of
# PTAT as static programs, ptat_test and ptat_trap_test.  All else goes to stderr.
#
#   build.sh [OPTION]...
#     --key            print the directory it would be, and build nothing
#     --version V      of which kernel (6.12)
#     --source FILE    its tarball (that of the installed package)
#     --config FILE    instead of config/guest.config
#     --patch FILE     apply this after the series; may be repeated
#     --unpatched      leave the series out
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${PTAT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/ptat}
objects=1600 # about what the configuration makes of it, for the progress line

say() { echo "kernel: $*" >&2; }
die() { say "$*"; exit 2; }

key_only='' version=6.12 tarball=${PTAT_KERNEL_SOURCE:-} config=$here/config/guest.config patches=() series=1
while [ $# -gt 0 ]; do
    case $1 in
    --key) key_only=1 ;;
    --unpatched) series='' ;;
    --version) version=$2; shift ;;
    --source) tarball=$2; shift ;;
    --config) config=$2; shift ;;
    --patch) patches+=("$2"); shift ;;
    *) die "unknown argument '$1'; the first lines of build.sh have the usage" ;;
    esac
    shift
done
tarball=${tarball:-/usr/src/linux-source-$version.tar.xz}

# The kernel's sources are big: leave out what no part of this build reads.
# (Every Kconfig file must stay.)
unused=(
    'arch/[!x]*.[chS]' 'arch/*.dts' 'arch/*.dtsi'
    'Documentation/*.yaml' 'Documentation/*.svg' 'Documentation/translations/*'
    'drivers/gpu/*.[ch]' 'drivers/media/*.[ch]' 'drivers/net/*/*.[ch]'
    'drivers/scsi/*.[ch]' 'drivers/staging/*.[ch]' 'drivers/infiniband/*.[ch]'
    'sound/*.[ch]' 'tools/testing/selftests/*/*.[ch]' 'tools/perf/*'
)

[ -r "$config" ] || die "cannot read $config"
[ -r "$tarball" ] || die "no $tarball: apt-get install linux-source-$version" \
    "(Debian 12: from bookworm-backports)"

mkdir -p "$cache"
work=$(mktemp -d "$cache/kernel-build.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir "$work/series"
[ -z "$series" ] || python3 "$here/series.py" write "$version" "$work/series"
key=$({
    cat "${BASH_SOURCE[0]}" "$config" "$work"/series/* "${patches[@]}" /dev/null 2>/dev/null
    sha256sum <"$tarball"
} | sha256sum | cut -c1-16)
out=$cache/kernel-$key

if [ -n "$key_only" ] || [ -f "$out/bzImage" ]; then
    echo "$out"
    exit
fi

missing=()
need() { command -v "$1" >/dev/null || missing+=("$2"); }
need gcc gcc
need make make
need bc bc
need flex flex
need bison bison
need perl perl
need patch patch
need xz xz-utils
need lz4 lz4
need flock util-linux
echo '#include <gelf.h>' | gcc -E - >/dev/null 2>&1 || missing+=(libelf-dev)
[ ${#missing[@]} = 0 ] || die "missing tools: apt-get install ${missing[*]}"

exec 9>"$cache/kernel.lock"
flock -n 9 || { say "waiting for another build"; flock 9; }
if [ -f "$out/bzImage" ]; then
    echo "$out"
    exit
fi

start=$SECONDS
say "building into $out (some minutes, once)"
say "unpacking $tarball"
mkdir "$work/src" "$work/obj" "$work/out"
tar -xJf "$tarball" -C "$work/src" --strip-components=1 \
    "${unused[@]/#/--exclude=linux-source-$version/}"

for patch in "$work"/series/*.patch "${patches[@]}"; do
    [ -f "$patch" ] || continue
    patch -d "$work/src" -p1 -s -f -F0 --no-backup-if-mismatch -i "$patch" >&2 ||
        die "${patch##*/} does not apply to $tarball"
done

# Nothing of the machine or the moment goes into the image.
export KBUILD_BUILD_USER=ptat KBUILD_BUILD_HOST=ptat
KBUILD_BUILD_TIMESTAMP=$(date -u -r "$tarball")
export KBUILD_BUILD_TIMESTAMP

# Variants of the kernel have most objects in common; each is built in a directory of its own.
compiler=()
if command -v ccache >/dev/null; then
    compiler=("CC=ccache gcc")
    export CCACHE_BASEDIR=$work CCACHE_NOHASHDIR=1
fi
run_make() { make -C "$work/src" O="$work/obj" "${compiler[@]}" "$@"; }

say "configuring"
{
    run_make -s tinyconfig
    cat "$config" >>"$work/obj/.config"
    run_make -s olddefconfig
} >"$work/log" 2>&1 || { cat "$work/log" >&2; die "configuration failed"; }
grep -E '^CONFIG_[A-Z0-9_]+=y' "$config" | while read -r line; do
    grep -qxF "$line" "$work/obj/.config" ||
        die "$config: $line did not take effect"
done

progress() {
    local count=0 shown=0 percent
    while read -r line; do
        echo "$line" >>"$work/log"
        [[ $line =~ ^(CC|AS|LD|AR)\  ]] || continue
        count=$((count + 1))
        percent=$((count * 100 / objects))
        ((percent <= 99)) || percent=99
        if [ -t 2 ]; then
            printf '\rkernel: compiling %d%% (%d s)' "$percent" \
                $((SECONDS - start)) >&2
        elif ((percent >= shown + 10)); then
            shown=$percent
            say "compiling $percent% ($((SECONDS - start)) s)"
        fi
    done
    if [ -t 2 ]; then echo >&2; fi
}
if ! run_make -j"$(nproc)" bzImage 2>&1 | progress; then
    grep -E 'error:|\*\*\*|undefined reference' "$work/log" | head -n 20 >&2
    die "the build failed"
fi

for selftest in "$work"/src/tools/testing/selftests/mm/ptat_*test.c; do
    [ -f "$selftest" ] || continue
    program=${selftest##*/}
    ${CC:-gcc} -O2 -static -pthread -o "$work/out/${program%.c}" "$selftest" >&2
done
cp "$work/obj/arch/x86/boot/bzImage" "$work/obj/System.map" "$work/out"
cp "$work/obj/.config" "$work/out/config"
mv -T "$work/out" "$out"
say "built in $((SECONDS - start)) s"
echo "$out"
