# SPDX-License-Identifier: BSD-2-Clause
"""Fixtures of the studies' tests."""

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def workloads(tmp_path_factory) -> Path:
    """The directory of the built workloads."""
    out = tmp_path_factory.mktemp("workloads")
    command = ["make", "--silent", "-C", REPOSITORY / "host" / "workloads", f"OUT={out}"]
    subprocess.run(command, check=True)
    return out


@pytest.fixture(scope="session")
def synthetic() -> ModuleType:
    """The parser's synthetic machine, which writes sessions."""
    path = REPOSITORY / "parser" / "tests" / "synthetic.py"
    spec = importlib.util.spec_from_file_location("synthetic", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def session(tmp_path, synthetic) -> Callable[..., Path]:
    """Makes the session of a synthetic machine; `steps` random things happen in it."""

    def make(steps: int = 150, **options) -> Path:
        return synthetic.Machine(**options).run(steps).write(tmp_path / "session")

    return make
