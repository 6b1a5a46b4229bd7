"""SIGKILL to `tidegate rekey` at each step: run again, the copy has every version of its source once."""

import os
import signal
import subprocess
import sys

import pytest

from support.rekeyed import MORE, NEW, RekeyedPlace
from tidegate.base import failpoints

DEADLINE_S = 120.0
WORDS = ("rekey", "--namespace=flights", f"--to={NEW}", "--key-groups=32", "--yes", "--force")


def rekey(place, *more, armed=""):
    command = [sys.executable, "-c", "from tidegate.cli import main; main()", *WORDS, *more]
    command += [f"--store={place.store}", f"--wal={place.wal}"]
    environment = {**os.environ, failpoints.ENVIRONMENT_VARIABLE: armed}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", [*failpoints.OF_COMMANDS, "decide.after_append", "apply.after_chunk"])
def test_a_rekey_killed_anywhere_is_repeated(tmp_path, name):
    """The in-process twin, at more places: tests/unit/committers/transfer/test_rekey.py."""
    place = RekeyedPlace(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store")
    assert name.endswith(("_version", "_move", "_whole")) or rekey(place, armed=f"{name}=kill").returncode < 0
    assert rekey(place).returncode == 0
    place.write_all_kinds()
    killed = rekey(place, "--finish", armed=f"{name}=kill")
    reached = not name.endswith(("_record", "_copy"))
    assert killed.returncode == (-signal.SIGKILL if reached else 0), killed.stderr
    expected = place.rows()
    again = rekey(place, "--finish")
    assert again.returncode == 0, again.stderr
    assert place.rows(NEW) == expected
    with place.coordinators(None) as (_, new):
        assert new.decisions.catch_up().last_version == 1 + 6 + 1
    place.writer(NEW).write(MORE)
