"""The conformance suite of every store, wrappers included: subclass ``StoreSuite`` in a test file.

    class TestMyStore(StoreSuite):
        def make_store(self): ...
        def reopen(self, store): ...

Each test checks one sentence of ``sinks/store.py``. The other hooks are in ``testing/store/harness.py``.
Hooks that read or change a store from outside must not use the store's own methods.
"""

from __future__ import annotations

from pathlib import Path

import pytest

# Before they are imported: without this their failed asserts would show no values.
pytest.register_assert_rewrite(
    "tidegate.testing.concurrency",
    *(f"{__package__}.{path.stem}" for path in Path(__file__).parent.glob("*_tests.py")),
    f"{__package__}.harness",
)

from tidegate.testing.store.alias_tests import AliasTests  # noqa: E402
from tidegate.testing.store.attempt_tests import AttemptTests  # noqa: E402
from tidegate.testing.store.diff_tests import DiffTests  # noqa: E402
from tidegate.testing.store.fill_tests import FillTests  # noqa: E402
from tidegate.testing.store.harness import ManualClock, Row, StorePlace  # noqa: E402
from tidegate.testing.store.lease_tests import LeaseTests  # noqa: E402
from tidegate.testing.store.pointer_tests import PointerTests  # noqa: E402
from tidegate.testing.store.read_tests import ReadTests  # noqa: E402
from tidegate.testing.store.repair_tests import RepairTests  # noqa: E402
from tidegate.testing.store.retire_tests import RetireTests  # noqa: E402
from tidegate.testing.store.ttl_tests import TtlTests  # noqa: E402
from tidegate.testing.store.upkeep_tests import UpkeepTests  # noqa: E402
from tidegate.testing.store.write_tests import WriteTests  # noqa: E402

__all__ = ["ManualClock", "Row", "StorePlace", "StoreSuite"]


class StoreSuite(
    PointerTests,
    WriteTests,
    AttemptTests,
    ReadTests,
    RetireTests,
    RepairTests,
    LeaseTests,
    UpkeepTests,
    FillTests,
    TtlTests,
    DiffTests,
    AliasTests,
):
    """The guarantees of ``sinks/store.py``, one test each or nearly so."""
