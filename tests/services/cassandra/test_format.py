"""The page on the format in Cassandra: its example is run by cqlsh, and its lists are whole."""

import re
import subprocess
import sys
import uuid

import pytest

from services.support.servers import ROOT
from tidegate.sinks.cassandra.client.statements import shapes
from tidegate.sinks.records import Identity
from tidegate.testing.example import write_flights

FORMAT = Identity("", "", 1).format
PAGE = (ROOT / "docs" / "storage-format.md").read_text().partition(f"## Cassandra, format {FORMAT}\n")[2]
STEPS = (ROOT / "docs" / "write-a-reader.md").read_text()
BLOCK = re.search(r"^```cqlsh\n(.*?)^```", STEPS, re.MULTILINE | re.DOTALL)[1]


@pytest.fixture
def keyspace(cassandra, monkeypatch, tmp_path):
    """With the example in it."""
    name = f"k{uuid.uuid4().hex[:12]}"
    replication = "{'class': 'NetworkTopologyStrategy', 'datacenter1': 1}"
    cassandra.ask(f"CREATE KEYSPACE {name} WITH replication = {replication}", timeout_s=60)
    for made in (ROOT / "sinks" / "cassandra" / "cql" / "schema.cql").read_text().split(";"):
        if "CREATE TABLE" in made:
            with cassandra.session(name, timeout_s=60) as session:
                session.execute(made)
    write_flights(f"file://{tmp_path}/wal", cassandra.url_for(name), alias="live")
    yield name
    cassandra.ask(f"DROP KEYSPACE {name}", timeout_s=60)


def cqlsh(server, keyspace, *statements):
    """What it prints."""
    where = [server.address, str(server.port), "-k", keyspace]
    command = [sys.executable, "-m", "cqlshlib", *where, "--no-color"]
    script = "".join(f"{statement}\n" for statement in statements)
    done = subprocess.run(command, input=script, capture_output=True, text=True, timeout=60, check=False)
    assert not done.stderr.replace("WARNING: cqlsh was built", ""), done.stderr
    return done.stdout


def steps():
    """Each statement with what is shown below it."""
    for part in re.split(r"^cqlsh> ", BLOCK, flags=re.MULTILINE)[1:]:
        statement, _, shown = part.partition("\n")
        yield statement, shown


def pattern_of(shown):
    """``...`` is anything: of a line of its own, any lines. Blanks at the ends of lines do not count."""
    escaped = re.escape(shown.strip())
    escaped = re.sub(r"(?m)^\\\.\\\.\\\.\\\n", r"(?:.*\\n)+?", escaped)
    return re.compile(escaped.replace(r"\.\.\.", ".*"))


def test_the_example_line_by_line(cassandra, keyspace):
    asked = f"SELECT space FROM {keyspace}.tidegate_namespaces WHERE name = 'flights'"
    space = str(cassandra.ask(asked)[0].space)
    known = [tuple(part.replace("$SPACE", space) for part in step) for step in steps()]
    mark = "SELECT (int)0 AS mark FROM system.local;"
    said = cqlsh(cassandra, keyspace, *(f"{statement}\n{mark}" for statement, _ in known))
    parts = re.split(r"\n mark\n-+\n +\d+\n\n\(1 rows\)\n", re.sub(r" +$", "", said, flags=re.MULTILINE))
    assert len(parts) == len(known) + 1, said
    for (statement, shown), part in zip(known, parts, strict=False):
        assert pattern_of(shown).search(part), f"{statement}\nsaid:\n{part}\nshown:\n{shown}"
    assert len(known) >= 13


def test_every_table_and_column_stands_there():
    for table, columns in shapes().items():
        row = re.search(rf"^\| `{table}` \|.*$", PAGE, re.MULTILINE)
        assert row, table
        assert not [column for column in columns if f"`{column}`" not in row[0]], table
