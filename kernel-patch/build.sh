#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
#
# Builds the guest kernel, or finds it in the cache, and prints the directory
# that holds bzImage, System.map, config, and ptat_test, the kernel's own test of
# PTAT as a static program.  All else goes to stderr.
#
#   build.sh          build if need be, print the directory
#   build.sh --key    print the directory it would be
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
series=$here/linux-6.12
tarball=${PTAT_KERNEL_SOURCE:-/usr/src/linux-source-6.12.tar.xz}
cache=${PTAT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/ptat}
objects=1550 # about what the config makes of it, for the progress line

say() { echo "kernel: $*" >&2; }
die() { say "$*"; exit 2; }

# The kernel's sources are big: leave out what no part of this build reads.
# (Every Kconfig file must stay.)
unused=(
    'arch/[!x]*.[chS]' 'arch/*.dts' 'arch/*.dtsi'
    'Documentation/*.yaml' 'Documentation/*.svg' 'Documentation/translations/*'
    'drivers/gpu/*.[ch]' 'drivers/media/*.[ch]' 'drivers/net/*/*.[ch]'
    'drivers/scsi/*.[ch]' 'drivers/staging/*.[ch]' 'drivers/infiniband/*.[ch]'
    'sound/*.[ch]' 'tools/testing/selftests/*/*.[ch]' 'tools/perf/*'
)

for arg; do
    [ "$arg" = --key ] || die "unknown argument '$arg'; usage: build.sh [--key]"
done
[ -r "$tarball" ] || die "no $tarball: apt-get install linux-source-6.12" \
    "(Debian 12: from bookworm-backports)"

key=$({
    cat "${BASH_SOURCE[0]}" "$series"/config "$series"/*.patch
    sha256sum <"$tarball"
} | sha256sum | cut -c1-16)
out=$cache/kernel-$key

if [ "${1:-}" = --key ] || [ -f "$out/bzImage" ]; then
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

mkdir -p "$cache"
exec 9>"$cache/kernel.lock"
flock -n 9 || { say "waiting for another build"; flock 9; }
if [ -f "$out/bzImage" ]; then
    echo "$out"
    exit
fi

work=$(mktemp -d "$cache/kernel-build.XXXXXX")
trap 'rm -rf "$work"' EXIT
start=$SECONDS

say "building into $out (some minutes, once)"
say "unpacking $tarball"
mkdir "$work/src" "$work/obj" "$work/out"
tar -xJf "$tarball" -C "$work/src" --strip-components=1 \
    "${unused[@]/#/--exclude=linux-source-6.12/}"

for patch in "$series"/*.patch; do
    say "applying ${patch##*/}"
    patch -d "$work/src" -p1 -s -f --no-backup-if-mismatch -i "$patch" >&2
done

# Nothing of the machine or the moment goes into the image.
export KBUILD_BUILD_USER=ptat KBUILD_BUILD_HOST=ptat
KBUILD_BUILD_TIMESTAMP=$(date -u -r "$tarball")
export KBUILD_BUILD_TIMESTAMP

run_make() { make -C "$work/src" O="$work/obj" "$@"; }

say "configuring"
{
    run_make -s tinyconfig
    cat "$series/config" >>"$work/obj/.config"
    run_make -s olddefconfig
} >"$work/log" 2>&1 || { cat "$work/log" >&2; die "configuration failed"; }
grep -E '^CONFIG_[A-Z0-9_]+=y' "$series/config" | while read -r line; do
    grep -qxF "$line" "$work/obj/.config" ||
        die "$series/config: $line did not take effect"
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

${CC:-gcc} -O2 -static -pthread -o "$work/out/ptat_test" \
    "$work/src/tools/testing/selftests/mm/ptat_test.c" >&2
cp "$work/obj/arch/x86/boot/bzImage" "$work/obj/System.map" "$work/out"
cp "$work/obj/.config" "$work/out/config"
mv -T "$work/out" "$out"
say "built in $((SECONDS - start)) s"
echo "$out"
