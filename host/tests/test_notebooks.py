# SPDX-License-Identifier: BSD-2-Clause
"""The notebooks, which `make docs` runs, and the session that they are of."""

import json
import shutil
from pathlib import Path

import pytest

from ptat_host.cli import main

NOTEBOOKS = Path(__file__).parents[2] / "docs" / "notebooks"


def test_the_session_is_small_and_exact(tmp_path, capsys):
    """A session of then is read by the ptat of now."""
    session = tmp_path / "session"
    shutil.copytree(NOTEBOOKS / "session", session, ignore=shutil.ignore_patterns("results"))
    assert sum(file.stat().st_size for file in session.rglob("*") if file.is_file()) <= 2 << 20
    assert main(["validate", str(session), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["matched"] > 20_000


@pytest.mark.parametrize("notebook", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_are_kept_without_outputs(notebook):
    cells = json.loads(notebook.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
