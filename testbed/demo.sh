#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause
# The main job, twice: gups over 256 MiB, and a program of this machine as it is.
set -euo pipefail
cd "$(dirname "$0")/.."
ptat=.venv/bin/ptat
out=$(mktemp -d "${TMPDIR:-/tmp}/ptat-demo.XXXXXX")
trap 'rm -rf "$out"' EXIT

run() { # NAME COMMAND…
	local session=$out/$1
	shift
	printf '\n\033[1m$ ptat record -- %s\033[0m\n' "$*"
	"$ptat" record --output "$session" -- "$@"
	"$ptat" report "$session"
	"$ptat" validate "$session"
	verdicts+=("\"$(basename "$session")\": $("$ptat" validate --json "$session")")
}
verdicts=()

run gups gups --bytes 256M --updates 2M
run python python3 -c 'words = {str(n): n for n in range(200_000)}; print(len(words))'

(
	IFS=,
	printf '{%s}\n' "${verdicts[*]}"
)
