#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause
# Records the session that the notebooks, and the screenshots of the documentation, are of.
set -euo pipefail
cd "$(dirname "$0")/../.."
rm -rf docs/notebooks/session
.venv/bin/ptat record --output docs/notebooks/session --granularity 8 --heap 64K -- \
	bfs --scale 15 --roots 2
.venv/bin/ptat validate docs/notebooks/session
