"""The state machine of tests/conformance/test_store_machine.py, for stores on servers."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

_place = Path(__file__).parents[3] / "conformance" / "test_store_machine.py"
_spec = importlib.util.spec_from_file_location("store_machine_of_all", _place)
assert _spec is not None
assert _spec.loader is not None
machine: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(machine)
