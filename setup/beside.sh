#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause
# Makes a target and, beside it, another one whose output is kept until both are done: what failed
# is told last.
# usage: beside.sh TARGET OTHER
set -euo pipefail

log=$(mktemp)
"${MAKE:-make}" --no-print-directory "$2" >"$log" 2>&1 &
other=$!
trap 'kill "$other" 2>/dev/null || true; rm -f "$log"' EXIT

failed=()
"${MAKE:-make}" "$1" || failed+=("$1")
if wait "$other"; then
	((${#failed[@]})) || tail -n 1 "$log"
else
	tail -n 100 "$log"
	failed+=("$2")
fi
if ((${#failed[@]})); then
	echo "failed: ${failed[*]}" >&2
	exit 1
fi
