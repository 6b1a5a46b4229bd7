"""tests/defects.md is made of tests/defects.toml, and its files and tests exist."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _tool():
    spec = importlib.util.spec_from_file_location("defects", ROOT / "tools" / "defects.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its annotations are looked up there
    spec.loader.exec_module(module)
    return module


TOOL = _tool()
DEFECTS = TOOL.defects()
MESSAGE = "after a change of tests/defects.toml run: tools/run python tools/defects.py"


def test_the_page_equals_the_generated_text() -> None:
    assert TOOL.PAGE.read_text() == TOOL.page(DEFECTS), MESSAGE


@pytest.mark.parametrize("path", sorted({path for defect in DEFECTS for path in defect.where}))
def test_each_named_file_exists(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.parametrize("test", sorted({test for defect in DEFECTS for test in defect.test}))
def test_each_named_test_exists(test: str) -> None:
    path, _, name = test.partition("::")
    assert (ROOT / path).exists()
    assert not name or f"def {name}(" in (ROOT / path).read_text()


def test_a_defect_without_a_test_has_the_reason() -> None:
    assert [defect.what for defect in DEFECTS if not defect.test and not defect.note] == []
    assert [defect.what for defect in DEFECTS if not defect.where] == []
