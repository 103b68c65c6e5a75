#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# Builds the QEMU plugin, or finds it in the cache, and prints the path of ptat.so.
#
#   build.sh          progress on stderr, the path on stdout
#   build.sh --key    only the directory that would hold it; builds nothing
#
# qemu-plugin.h is in no Debian package: it is taken from the source package of the QEMU that is
# installed, whose original tarball (39 MB) is downloaded once.
#
# PTAT_CACHE    where results are kept (default: $XDG_CACHE_HOME/ptat or ~/.cache/ptat)

set -eu

here=$(cd "$(dirname "$0")" && pwd)
cache=${PTAT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/ptat}

say() {
	echo "plugin: $*" >&2
}

die() {
	say "$*"
	exit 2
}

need() {
	command -v "$1" >/dev/null || die "$1 is missing: apt-get install $2"
}

# Version of the source package of the installed QEMU, e.g. 1:10.0.2+ds-2+deb13u1~bpo12+1.
qemu_source_version() {
	dpkg-query -W -f '${source:Version}' qemu-system-x86 2>/dev/null || true
}

key_dir() {
	key=$(
		cd "$here"
		{
			echo "$qemu_version"
			${CC:-cc} --version
			cat build.sh Makefile ./*.c ./*.h
			cat ../../parser/ptat_parser/wire.py ../../parser/ptat_parser/formats/truth.py \
				../../parser/ptat_parser/formats/access_log.py \
				../../parser/ptat_parser/formats/kernel_misses.py
		} | sha256sum | cut -c 1-16
	)
	echo "$cache/plugin-$key"
}

# apt-get with source entries for all Debian-like repositories that the system already uses,
# whether or not it has deb-src lines; the system's own files and lists stay as they are.
apt_sources() {
	apt-get -o Dir::Etc::SourceList="$work/sources.list" -o Dir::Etc::SourceParts=/dev/null \
		-o Dir::State::Lists="$work/lists" -o Dir::Cache="$work/cache" \
		-o APT::Sandbox::User=root -o Acquire::Languages=none -q "$@"
}

write_sources_list() {
	mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
	options=
	for keyring in /usr/share/keyrings/debian-archive-keyring.pgp \
		/usr/share/keyrings/debian-archive-keyring.gpg \
		/usr/share/keyrings/ubuntu-archive-keyring.gpg; do
		[ -n "$options" ] || [ ! -f "$keyring" ] || options="[signed-by=$keyring] "
	done
	# Literal $(…): fields that apt-get fills in.
	# shellcheck disable=SC2016
	apt-get indextargets --format '$(ORIGIN)|$(REPO_URI)|$(RELEASE)|$(COMPONENT)' \
		'Created-By: Packages' | sort -u |
		sed -nE 's/^(Debian|Debian Backports|Ubuntu)\|([^|]*)\|([^|]*)\|(main|universe)$/\2 \3 \4/p' |
		sed "s|^|deb-src $options|" >"$work/sources.list"
	[ -s "$work/sources.list" ] || die "apt knows no Debian repository to fetch QEMU's source from"
}

# Prints the source version to fetch: the installed one, or another packaging of the same
# upstream version if the archive has replaced it; the original tarball is the same.
pick_source_version() {
	upstream=${qemu_version%-*}
	apt-cache -o Dir::Etc::SourceList="$work/sources.list" -o Dir::Etc::SourceParts=/dev/null \
		-o Dir::State::Lists="$work/lists" -o Dir::Cache="$work/cache" \
		showsrc --only-source qemu |
		awk -v exact="$qemu_version" -v upstream="$upstream" '
			$1 == "Version:" {
				version = $2
				sub(/-[^-]*$/, "", version)
				if ($2 == exact || (version == upstream && !found))
					found = $2
			}
			END { print found }'
}

fetch_header() {
	header_dir=$cache/qemu-plugin-$(echo "$qemu_version" | tr -c '[:alnum:].+~\n-' _)
	[ -f "$header_dir/qemu-plugin.h" ] && return

	say "fetching the source of QEMU $qemu_version for qemu-plugin.h"
	write_sources_list
	apt_sources update >&2 || die "cannot read the package lists: is the network there?"
	version=$(pick_source_version)
	[ -n "$version" ] || die "no source package for QEMU $qemu_version: upgrade qemu-system-x86"
	(cd "$work" && apt_sources --only-source --download-only --tar-only source "qemu=$version" >&2) ||
		die "cannot fetch the source of QEMU $version"
	tar -xf "$work"/qemu_*.orig.tar.* -C "$work" --wildcards '*/include/qemu/qemu-plugin.h' \
		--strip-components=3
	mkdir -p "$header_dir"
	mv "$work/qemu-plugin.h" "$header_dir/"
}

need qemu-system-x86_64 qemu-system-x86
need "${CC:-cc}" gcc
need make make
need python3 python3
need pkg-config pkg-config
need xz xz-utils
pkg-config --exists glib-2.0 || die "glib is missing: apt-get install libglib2.0-dev"
pkg-config --exists zlib || die "zlib is missing: apt-get install zlib1g-dev"
qemu_version=$(qemu_source_version)
[ -n "$qemu_version" ] || die "QEMU must come from the package qemu-system-x86"

target=$(key_dir)
if [ "${1:-}" = --key ]; then
	echo "$target"
	exit
fi
if [ -f "$target/ptat.so" ]; then
	echo "$target/ptat.so"
	exit
fi

mkdir -p "$cache"
work=$(mktemp -d "$cache/plugin-build.XXXXXX")
trap 'rm -rf "$work"' EXIT

fetch_header
grep -Eq '^#define QEMU_PLUGIN_VERSION ([4-9]|[1-9][0-9])' "$header_dir/qemu-plugin.h" ||
	die "QEMU $qemu_version is too old: 10.0 or later is needed"
say "building"
make -s -C "$here" BUILD="$work/out" QEMU_INCLUDE="$header_dir" ptat.so floor.so >&2
# Another build of the same key may have been faster.
mv -T "$work/out" "$target" 2>/dev/null || [ -f "$target/ptat.so" ]
echo "$target/ptat.so"
