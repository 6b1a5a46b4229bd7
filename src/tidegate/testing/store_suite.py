"""What every store has to pass, wrappers included: subclass ``StoreSuite`` in a test file.

    class TestMyStore(StoreSuite):
        def make_store(self): ...
        def reopen(self, store): ...

Each test stands for one sentence of ``sinks/store.py``. The other hooks are in
``store_harness.py``; those that look behind a store must not use the store's own methods.
"""

from __future__ import annotations

import pytest

# Before they are imported: without this their asserts would say nothing.
pytest.register_assert_rewrite(
    "tidegate.testing.store_alias_tests",
    "tidegate.testing.store_attempt_tests",
    "tidegate.testing.store_diff_tests",
    "tidegate.testing.store_fill_tests",
    "tidegate.testing.store_harness",
    "tidegate.testing.store_lease_tests",
    "tidegate.testing.store_pointer_tests",
    "tidegate.testing.store_read_tests",
    "tidegate.testing.store_repair_tests",
    "tidegate.testing.store_retire_tests",
    "tidegate.testing.store_ttl_tests",
    "tidegate.testing.store_upkeep_tests",
    "tidegate.testing.store_write_tests",
)

from tidegate.testing.store_alias_tests import AliasTests  # noqa: E402
from tidegate.testing.store_attempt_tests import AttemptTests  # noqa: E402
from tidegate.testing.store_diff_tests import DiffTests  # noqa: E402
from tidegate.testing.store_fill_tests import FillTests  # noqa: E402
from tidegate.testing.store_harness import ManualClock, Row, StorePlace  # noqa: E402
from tidegate.testing.store_lease_tests import LeaseTests  # noqa: E402
from tidegate.testing.store_pointer_tests import PointerTests  # noqa: E402
from tidegate.testing.store_read_tests import ReadTests  # noqa: E402
from tidegate.testing.store_repair_tests import RepairTests  # noqa: E402
from tidegate.testing.store_retire_tests import RetireTests  # noqa: E402
from tidegate.testing.store_ttl_tests import TtlTests  # noqa: E402
from tidegate.testing.store_upkeep_tests import UpkeepTests  # noqa: E402
from tidegate.testing.store_write_tests import WriteTests  # noqa: E402

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
