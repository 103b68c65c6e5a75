#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause
#
# Builds a Debian package of a kernel with the series, for this machine or another,
# and prints its path.  With a distribution's configuration it takes hours on two cores.
#
#   deb.sh [--version V] [--source FILE] [--config FILE] [--only-config]
#
# The configuration is the running kernel's or FILE, plus CONFIG_PTAT.  --only-config prints it.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${PTAT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/ptat}
say() { echo "kernel-deb: $*" >&2; }
die() {
	say "$*"
	exit 2
}

version=6.12 tarball='' config='' only_config=''
while [ $# -gt 0 ]; do
	case $1 in
	--version) version=$2 && shift ;;
	--source) tarball=$2 && shift ;;
	--config) config=$2 && shift ;;
	--only-config) only_config=1 ;;
	*) die "unknown argument '$1'; the first lines of deb.sh have the usage" ;;
	esac
	shift
done
tarball=${tarball:-/usr/src/linux-source-$version.tar.xz}
[ -r "$tarball" ] || die "no $tarball: apt-get install linux-source-$version"
if [ -z "$config" ]; then
	for config in "/boot/config-$(uname -r)" /proc/config.gz ''; do
		[ ! -r "$config" ] || break
	done
fi
[ -n "$config" ] || die "this kernel does not tell its configuration: give one with --config FILE"
[ -r "$config" ] || die "cannot read $config"
config=$(realpath "$config")
for tool in dpkg-buildpackage rsync dh_testdir; do
	command -v "$tool" >/dev/null || die "no $tool: apt-get install dpkg-dev rsync debhelper"
done

mkdir -p "$cache"
work=$(mktemp -d "$cache/kernel-deb.XXXXXX")
trap 'rm -rf "$work"' EXIT
say "unpacking $tarball"
mkdir "$work/src"
tar -xJf "$tarball" -C "$work/src" --strip-components=1
python3 "$here/series.py" write "$version" "$work/series"
for patch in "$work"/series/*.patch; do
	patch -d "$work/src" -p1 -s -f -F0 --no-backup-if-mismatch -i "$patch" >&2 ||
		die "${patch##*/} does not apply to $tarball"
done

cd "$work/src"
case $config in
*.gz) zcat "$config" ;;
*.xz) xzcat "$config" ;;
*) cat "$config" ;;
esac >.config
# Xen's paravirtual guests exclude PTAT.  Debian's keys and BTF need what only Debian's build has.
scripts/config --enable PTAT --disable XEN_PV --disable DEBUG_INFO_BTF \
	--set-str SYSTEM_TRUSTED_KEYS '' --set-str SYSTEM_REVOCATION_KEYS '' --set-str LOCALVERSION -ptat
make -s olddefconfig >&2
grep -qx CONFIG_PTAT=y .config ||
	die "CONFIG_PTAT did not take effect: it needs x86-64, SMP and TRACING, and excludes PREEMPT_RT"
if [ -n "$only_config" ]; then
	cat .config
	exit
fi
make -j"$(nproc)" DPKG_FLAGS=-d bindeb-pkg >"$work/log" 2>&1 || {
	tail -n 20 "$work/log" >&2
	die "the build failed"
}
out=$cache/kernel-deb-$(make -s kernelrelease)
mkdir -p "$out"
mv "$work"/linux-*.deb "$out"
package=$(find "$out" -name 'linux-image-*.deb' ! -name '*-dbg_*' | sort | tail -n 1)
say "install it with: apt install $package"
say "then boot it with ptat=64M on its command line (GRUB_CMDLINE_LINUX in /etc/default/grub)"
echo "$package"
