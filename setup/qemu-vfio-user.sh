#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause
# usage: setup/qemu-vfio-user.sh [--key]
#
# Prints the directory with a QEMU that can attach a device in another process
# (vfio-user-pci, QEMU >= 11), as bin/qemu-system-x86_64.  Debian 12 and 13 have
# it in trixie-backports only, so its packages and all that they need are
# unpacked there, once; nothing is installed, and no root is needed.
# With --key: print the directory it would be, and fetch nothing.
set -euo pipefail

cache=${PTAT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/ptat}
mirror=${PTAT_DEBIAN_MIRROR:-http://deb.debian.org/debian}
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
suites=(trixie trixie-updates trixie-backports)
packages=(qemu-system-x86/trixie-backports qemu-system-common/trixie-backports
	qemu-system-data/trixie-backports seabios/trixie-backports)

say() { printf 'qemu: %s\n' "$*" >&2; }
die() {
	printf 'qemu: %s\n' "$@" >&2
	exit 2
}

key=$({
	cat "${BASH_SOURCE[0]}"
	echo "$mirror"
} | sha256sum | cut -c1-16)
out=$cache/qemu-vfio-user-$key
if [ $# -gt 0 ] || [ -d "$out" ]; then
	[ "${1:---key}" = --key ] || die "unknown argument '$1'; usage: setup/qemu-vfio-user.sh [--key]"
	echo "$out"
	exit
fi
command -v apt-get >/dev/null || die "there is no apt-get; use Debian 12 or 13"
[ -r "$keyring" ] || die "there is no $keyring; install Debian's debian-archive-keyring"

mkdir -p "$cache"
work=$(mktemp -d "$cache/qemu-build.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/apt/{lists/partial,archives/partial,empty} "$work/tree/bin"
: >"$work/apt/status"
for suite in "${suites[@]}"; do
	echo "deb [signed-by=$keyring] $mirror $suite main"
done >"$work/apt/sources.list"
# Neither the packages nor the sources of this machine count; how it reaches the network does.
cat >"$work/apt/apt.conf" <<-CONF
	Dir::State "$work/apt";
	Dir::State::status "$work/apt/status";
	Dir::Cache "$work/apt";
	Dir::Etc::sourcelist "$work/apt/sources.list";
	Dir::Etc::sourceparts "$work/apt/empty";
	Dir::Etc::preferencesparts "$work/apt/empty";
	APT::Architecture "amd64";
	APT::Architectures "amd64";
	APT::Install-Recommends "false";
	APT::Sandbox::User "";
	Acquire::Languages "none";
	Acquire::Retries "3";
CONF
export APT_CONFIG=$work/apt/apt.conf

say "fetching QEMU >= 11 and its libraries from trixie-backports (38 MB, once) …"
apt-get -qq update >&2 || die "apt-get update failed: does the network reach $mirror?" \
	"PTAT_DEBIAN_MIRROR names another mirror"
apt-get -qq --yes --download-only install "${packages[@]}" >&2 ||
	die "cannot download ${packages[*]}"
for package in "$work"/apt/archives/*.deb; do
	dpkg-deb --extract "$package" "$work/tree"
done
# With the libraries that it was linked with, on any release.
cat >"$work/tree/bin/qemu-system-x86_64" <<-'RUN'
	#!/bin/sh
	root=$(dirname "$(dirname "$(readlink -f "$0")")")/usr
	exec "$root/lib64/ld-linux-x86-64.so.2" --library-path "$root/lib/x86_64-linux-gnu" \
		"$root/bin/qemu-system-x86_64" -L "$root/share/qemu" -L "$root/share/seabios" "$@"
RUN
chmod +x "$work/tree/bin/qemu-system-x86_64"
version=$("$work/tree/bin/qemu-system-x86_64" --version | head -n 1) ||
	die "the QEMU of trixie-backports does not run here"
say "$version"
mv -T "$work/tree" "$out" 2>/dev/null || [ -d "$out" ] || die "cannot write $out"
echo "$out"
