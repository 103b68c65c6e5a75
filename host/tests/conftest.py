# SPDX-License-Identifier: BSD-2-Clause
"""Fixtures shared by the host's tests."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

HOST = Path(__file__).parent.parent
WORKLOADS = HOST / "workloads"
SYNTHETIC = HOST.parent / "parser" / "tests" / "synthetic.py"


@pytest.fixture(scope="session")
def workloads(tmp_path_factory) -> Path:
    """The directory of the built workloads."""
    out = tmp_path_factory.mktemp("workloads")
    subprocess.run(["make", "--silent", "-C", WORKLOADS, f"OUT={out}"], check=True)
    return out


@pytest.fixture(scope="session")
def synthetic() -> ModuleType:
    """The parser's synthetic machine, which writes sessions."""
    spec = importlib.util.spec_from_file_location("synthetic", SYNTHETIC)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
