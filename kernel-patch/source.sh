#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause
#
# Fetches the newest source of a kernel series that a Debian suite has, and prints where the
# tarball is. Needs no root and leaves the system's apt alone.
#
#   source.sh 6.1 bookworm            fetch it if need be, print the tarball's path
#   source.sh --newest sid            print the newest series that the suite has
set -euo pipefail

die() {
	echo "source: $*" >&2
	exit 2
}

[ $# = 2 ] || die "usage: source.sh SERIES|--newest SUITE"
series=$1 suite=$2
keys=/usr/share/keyrings/debian-archive-keyring.gpg
[ -r "$keys" ] || die "no $keys: apt-get install debian-archive-keyring"
cache=${PTAT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/ptat}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/state/lists/partial" "$work/cache/archives/partial"
{
	echo "deb [signed-by=$keys] http://deb.debian.org/debian $suite main"
	case $suite in
	sid | *-*) ;;
	*) echo "deb [signed-by=$keys] http://deb.debian.org/debian-security $suite-security main" ;;
	esac
} >"$work/sources.list"
apt=(
	-qq -o "Dir::State=$work/state" -o "Dir::Cache=$work/cache" -o "Dir::State::status=/dev/null"
	-o "Dir::Etc::sourcelist=$work/sources.list" -o "Dir::Etc::sourceparts=-"
	-o "APT::Sandbox::User=$(id -un)"
)
apt-get "${apt[@]}" update >&2 || die "Debian's registry does not answer"

if [ "$series" = --newest ]; then
	apt-cache "${apt[@]}" search --names-only '^linux-source-[0-9.]+$' |
		sed -n 's/^linux-source-\([0-9.]*\) .*/\1/p' | sort -V | tail -n 1
	exit
fi

package=linux-source-$series
version=$(apt-cache "${apt[@]}" madison "$package" | awk 'NR == 1 { print $3 }')
[ -n "$version" ] || die "$suite has no $package"
out=$cache/kernel-source-$version
if [ ! -d "$out" ]; then
	mkdir -p "$cache"
	(cd "$work" && apt-get "${apt[@]}" download "$package" >&2)
	dpkg-deb --fsys-tarfile "$work/$package"_*.deb |
		tar -x -C "$work" --strip-components=3 "./usr/src/$package.tar.xz"
	unpacked=$(mktemp -d "$cache/kernel-source.XXXXXX")
	mv "$work/$package.tar.xz" "$unpacked"
	mv -T "$unpacked" "$out"
fi
echo "$out/$package.tar.xz"
