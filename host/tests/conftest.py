# SPDX-License-Identifier: BSD-2-Clause
"""Fixtures shared by the host's tests."""

import importlib.util
import random
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ptat_parser import wire
from ptat_parser.capture.writer import BlockWriter

HOST = Path(__file__).parent.parent
WORKLOADS = HOST / "workloads"
BOARD = HOST.parent / "testbed" / "board"
PARSER_TESTS = HOST.parent / "parser" / "tests"


@pytest.fixture(scope="session")
def workloads(tmp_path_factory) -> Path:
    """The directory of the built workloads."""
    out = tmp_path_factory.mktemp("workloads")
    subprocess.run(["make", "--silent", "-C", WORKLOADS, f"OUT={out}"], check=True)
    return out


@pytest.fixture(scope="session")
def program(tmp_path_factory) -> Path:
    """A board without hardware: ``program udp PORT FILE [FAULT[:N]]…``."""
    build = tmp_path_factory.mktemp("board")
    subprocess.run(["make", "-s", "-C", BOARD, f"BUILD={build}"], check=True)
    return build / "pretend-board"


@pytest.fixture(scope="session")
def source(tmp_path_factory) -> Path:
    """A capture stream of 120 blocks."""
    path = tmp_path_factory.mktemp("source") / "bus.0.raw"
    numbers = random.Random(5)
    with path.open("wb") as file, BlockWriter(file) as writer:
        ticks = 0
        while writer.blocks < 119:
            ticks += numbers.randrange(100)
            writer.access(ticks, numbers.randrange(1 << 30) * 8)
    assert path.stat().st_size == 120 * wire.BLOCK_BYTES
    return path


@pytest.fixture(scope="session")
def synthetic() -> ModuleType:
    """The parser's synthetic machine, which writes sessions."""
    return _loaded("synthetic")


@pytest.fixture(scope="session")
def trapping(synthetic) -> ModuleType:
    """The same whose misses trap."""
    return _loaded("trapping")


def _loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, PARSER_TESTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
