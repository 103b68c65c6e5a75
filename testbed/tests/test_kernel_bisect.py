# SPDX-License-Identifier: BSD-2-Clause
"""What is compiled after each patch of the series."""

from __future__ import annotations

from pathlib import Path

from ptat_testbed.suites import kernel_bisect

PATCHES = (
    "--- a/kernel/fork.c\n+++ b/kernel/fork.c\n@@\n--- a/mm/memory.c\n+++ b/mm/memory.c\n",
    "--- a/include/linux/mm.h\n+++ b/include/linux/mm.h\n@@\n+#include <linux/ptat.h>\n",
    "--- /dev/null\n+++ b/tools/testing/selftests/mm/ptat_test.c\n@@\n"
    "--- /dev/null\n+++ b/mm/ptat/core.c\n@@\n--- a/fs/exec.c\n+++ b/fs/exec.c\n"
    "--- /dev/null\n+++ b/drivers/misc/ptat/ring.c\n@@\n",
)


def test_what_any_patch_touches_is_compiled_after_each(tmp_path: Path) -> None:
    for number, text in enumerate(PATCHES):
        (tmp_path / f"{number}.patch").write_text(text)
    targets = kernel_bisect.objects(sorted(tmp_path.iterdir()))
    assert targets == ["mm/", "arch/x86/mm/", "drivers/misc/ptat/", "fs/exec.o", "kernel/fork.o"]
