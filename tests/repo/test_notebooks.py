"""Notebooks are kept as they are written: without outputs, in code that compiles."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_has_no_outputs_and_compiles(path):
    cells = json.loads(path.read_text())["cells"]
    codes = [cell for cell in cells if cell["cell_type"] == "code"]
    assert codes
    for cell in codes:
        assert (cell["outputs"], cell["execution_count"], cell["metadata"]) == ([], None, {})
        compile("".join(cell["source"]), path.name, "exec")
