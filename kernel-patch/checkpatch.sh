#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause
# Runs the kernel's own checkpatch.pl --strict over the series.
set -euo pipefail
cd "$(dirname "$0")"

tarball=/usr/src/linux-source-6.12.tar.xz
[ -r "$tarball" ] || {
	echo "checkpatch: $tarball is missing; run setup/packages.sh" >&2
	exit 2
}
cache=${PTAT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/ptat}
scripts=$cache/checkpatch-$(stat -c %s-%Y "$tarball")
if [ ! -d "$scripts" ]; then
	mkdir -p "$cache"
	unpacked=$(mktemp -d "$cache/checkpatch.XXXXXX")
	trap 'rm -rf "$unpacked"' EXIT
	tar -xf "$tarball" -C "$unpacked" --strip-components=2 --wildcards \
		'*/scripts/checkpatch.pl' '*/scripts/spelling.txt' '*/scripts/const_structs.checkpatch' \
		'*/scripts/spdxcheck.py'
	mv -T "$unpacked" "$scripts"
fi
# MAINTAINERS is upstream's business; a patch kept in a repository has no maintainer's file to add to.
perl "$scripts/checkpatch.pl" --strict --no-tree --quiet --summary-file \
	--ignore FILE_PATH_CHANGES linux-6.12/*.patch
