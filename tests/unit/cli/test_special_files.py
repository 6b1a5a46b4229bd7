"""What is no regular file in the place of one: it is refused in time, and with little memory."""

import pytest

from support.cli import done, options_for, readers_only
from support.special_files import KINDS, PLACES, try_each
from tidegate.testing.example import write_flights
from tidegate.testing.process.forked import Forked

WAIT_S = 120


@pytest.fixture(scope="module")
def namespace(tmp_path_factory):
    """The example, an export and a backup of it, and a folder of each of the other files."""
    root = tmp_path_factory.mktemp("special")
    write_flights(f"file://{root}/wal", f"sqlite://{root}/store", alias="live")
    at = options_for(root)
    done("export", root / "export", *readers_only(at))
    done("backup", root / "backup", *at)
    for name in ("checkpoint", "state/tidegate"):
        (root / name).mkdir(parents=True)
    (root / "tidegate.toml").write_text('namespace = "flights"\n')
    return root


@pytest.mark.parametrize("place", PLACES)
def test_what_is_no_regular_file_is_not_waited_for(namespace, tmp_path, place):
    output = tmp_path / "output"
    child = Forked(try_each, (tmp_path / "root", namespace, place), output)
    has_ended = child.wait(WAIT_S)
    child.kill()
    lines = output.read_text().splitlines()
    print(*lines, sep="\n")
    assert has_ended, f"after {lines}"
    assert [line for line in lines if "FAULT" in line or "Traceback" in line] == []
    refused = {line.partition(",")[0] for line in lines if ": refused" in line}
    assert {"pipe", "zeros", "socket", "folder"} <= refused, "no command reads it"
    assert len(lines) == len(KINDS) * len(PLACES[place])
