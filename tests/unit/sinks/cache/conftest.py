"""Buffers over folders of the test."""

import pytest

from support.cache.buffers import SMALL
from tidegate.base.local_dir import LocalDir
from tidegate.sinks.cache.buffer.buffer import Buffer


@pytest.fixture
def opened(tmp_path):
    """Opens a buffer over folders of the test; each call as another process would."""
    locals_ = []

    def make(limits=SMALL, disks=2, memory=True):
        def local(name):
            locals_.append(LocalDir(str(tmp_path / name), "flights", "u1"))
            return locals_[-1]

        return Buffer(
            local("memory") if memory else None, [local(f"disk{number}") for number in range(disks)], limits
        )

    yield make
    for local in locals_:
        local.close()
