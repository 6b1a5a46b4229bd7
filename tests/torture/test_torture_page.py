"""The snippets of docs/torture.md and docs/histories.md, pasted as they stand but for folders and amounts."""

import re

import tidegate
from services.support.servers import ROOT
from tidegate.testing.example import Example


def snippet(page):
    return re.search(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)[1]


def test_a_run_of_torture(tmp_path):
    code = snippet("torture.md").replace(":///tmp", f"://{tmp_path}").replace("cells=20", "cells=2")
    defined = {}
    exec(code, defined)
    assert defined["report"].all_proven


def test_a_recorded_history(tmp_path):
    """Of a namespace that has no version yet: a reader alone proves no version."""
    Example(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store").close()
    with tidegate.connect(f"sqlite://{tmp_path}/store", "flights") as gate:
        defined = {"folder": tmp_path / "history", "gate": gate}
        exec(snippet("histories.md"), defined)
    assert defined["verdict"].findings == []
