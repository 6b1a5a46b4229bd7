"""Notebooks are stored as they ran: code that compiles, with outputs, and nothing of the machine in them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))
OF_A_MACHINE = re.compile(r"/(?:tmp|home|root|work|usr)/|127\.0\.0\.1|Traceback|WARN")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_stored_as_it_ran(path):
    cells = json.loads(path.read_text())["cells"]
    codes = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in codes] == [*range(1, len(codes) + 1)]
    for cell in codes:
        assert cell["metadata"] == {}
        compile("".join(cell["source"]), path.name, "exec")
    outputs = [output for cell in codes for output in cell["outputs"]]
    assert not OF_A_MACHINE.search(json.dumps(outputs))
    kinds = {kind for output in outputs for kind in output.get("data", ())}
    assert {"text/html", "image/svg+xml"} <= kinds, "tools/notebook.py FILE stores tables and pictures"
