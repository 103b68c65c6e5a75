# SPDX-License-Identifier: BSD-2-Clause
"""Fixtures shared by the host's tests."""

import subprocess
from pathlib import Path

import pytest

WORKLOADS = Path(__file__).parent.parent / "workloads"


@pytest.fixture(scope="session")
def workloads(tmp_path_factory) -> Path:
    """The directory of the built workloads."""
    out = tmp_path_factory.mktemp("workloads")
    subprocess.run(["make", "--silent", "-C", WORKLOADS, f"OUT={out}"], check=True)
    return out
