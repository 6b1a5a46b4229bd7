"""Decoders are made by one function, one at a time: msgspec shares what it knows of a class half-made."""

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tidegate.base.decoders import json_decoder, msgpack_decoder

ROOT = Path(__file__).parents[3]
MADE = re.compile(r"msgspec\.(json|msgpack)\.(Decoder\(|decode\([^;]*type=)|msgspec\.convert\(")
THEIR_OWN = {
    "src/tidegate/base/decoders.py",
    "src/tidegate/values/kinds.py",
    "src/tidegate/values/row_checks.py",
}
"""``values/kinds.py`` makes the class for one decoder, and nobody else has it."""

RACE = """
import sys, threading, types, msgspec
from tidegate.base.decoders import json_decoder, msgpack_decoder
sys.setswitchinterval(1e-6)
TEXT = "import msgspec\\nclass Inner(msgspec.Struct):\\n  a: int\\nclass Row(msgspec.Struct):\\n"
TEXT += "".join(f"  f{at}: 'list[Inner]'\\n" for at in range(20))
ROW = {f"f{at}": [{"a": 1}] for at in range(20)}
for number in range(200):
    made = types.ModuleType(f"made{number}")
    sys.modules[made.__name__] = made
    exec(TEXT, made.__dict__)
    begin = threading.Barrier(3)
    def first(make, content):
        begin.wait()
        assert make(made.Row).decode(content).f19[0].a == 1
    calls = [(json_decoder, msgspec.json.encode(ROW))] * 2 + [(msgpack_decoder, msgspec.msgpack.encode(ROW))]
    threads = [threading.Thread(target=first, args=call) for call in calls]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
print("whole")
"""


def sources():
    return [
        path
        for name in ("src", "wal", "committers", "sinks", "spark")
        for path in (ROOT / name).rglob("*.py")
    ]


def test_nobody_else_makes_one():
    found = {
        f"{path.relative_to(ROOT)}:{number}"
        for path in sources()
        if str(path.relative_to(ROOT)) not in THEIR_OWN
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if MADE.search(line)
    }
    assert found == set()


def test_threads_that_are_the_first_to_decode_a_class_do_not_meet_the_half_of_it():
    done = subprocess.run(
        [sys.executable, "-c", RACE], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "whole\n", "")


@pytest.mark.parametrize("make", [json_decoder, msgpack_decoder])
def test_one_is_made_once(make):
    class Row(msgspec.Struct):
        a: int

    assert make(Row) is make(Row)
    assert make(list[Row]) is make(list[Row])
    assert make(list[Row]) is not make(Row)
