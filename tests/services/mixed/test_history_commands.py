"""diff, tail, restore, export and import on a log and on stores of real servers."""

import json
import uuid

import pytest
from typer.testing import CliRunner

import tidegate
from tidegate.cli import app
from tidegate.options import Options
from tidegate.testing.example import BATCHES, Example

OPTIONS = Options(key_groups=4, keep_versions=9, allow_unsafe=True)  # one broker


@pytest.fixture(params=["redis", pytest.param("redis_cluster", marks=pytest.mark.slow), "cassandra_tables"])
def store(request):
    """The URL of a store in which the test makes namespaces of its own."""
    found = request.getfixturevalue(request.param)
    return found if isinstance(found, str) else found.url


@pytest.fixture
def place(kafka, store):
    """A log, a store, and a new name in them; what has it is dropped with the test."""
    options = [f"--wal={kafka.url}", f"--store={store}", f"--namespace=n{uuid.uuid4().hex}"]
    yield options
    run(options, "drop", "--yes", "--force")


@pytest.fixture
def written(place, kafka, store):
    """The options of a namespace with the example's three versions."""
    example = Example(kafka.url, store, place[2].partition("=")[2], options=OPTIONS)
    for rows in BATCHES:
        example.write(rows)
    example.close()
    return place


def run(options, *arguments, wal=True):
    mine = [option for option in options if wal or not option.startswith("--wal=")]
    result = CliRunner().invoke(app, [*map(str, arguments), *mine], prog_name="tidegate")
    assert result.exit_code == 0, result.output
    return result.stdout


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def content(options, version=None):
    _, store, namespace = (option.partition("=")[2] for option in options)
    with tidegate.connect(store, namespace) as gate, gate.snapshot(version=version) as snapshot:
        return {name: dict(snapshot.table(name).scan()) for name in snapshot.tables()}


def test_a_restored_version_is_the_old_one_again_and_tail_and_diff_tell_what_it_undid(written):
    first, third = content(written, 1), content(written, 3)
    told = lines(run(written, "tail", "--after", 1, "--limit", 2, "--json", wal=False))
    assert [line["version"] for line in told if "kind" not in line] == [2, 3]

    run(written, "restore", "--to", 1, "--yes", "--allow-unsafe")

    restored = content(written)
    assert {name: rows for name, rows in restored.items() if rows} == first
    assert content(written, 3) == third, "nothing is taken back"
    undone = lines(run(written, "diff", 3, 4, "--json", wal=False))
    done = lines(run(written, "diff", 1, 3, "--json", wal=False))
    turned = [{**line, "before": line["after"], "after": line["before"]} for line in done]
    kinds = {"added": "removed", "removed": "added", "changed": "changed"}

    def by_key(lines):
        return sorted(
            (
                (line["table"], str(line["key"]), line["before"], line["after"], line["kind"])
                for line in lines
            ),
            key=str,
        )

    assert by_key(undone) == by_key([{**line, "kind": kinds[line["kind"]]} for line in turned])
    assert json.loads(run(written, "verify", "--json"))


def test_an_export_is_imported_with_other_key_groups_and_once(written, kafka, store, tmp_path):
    folder = tmp_path / "exported"
    run(written, "export", folder, "--at", 2, "--json", wal=False)
    other = [f"--wal={kafka.url}", f"--store={store}", f"--namespace=n{uuid.uuid4().hex}"]
    try:
        run(other, "import", folder, "--key-groups", 7, "--yes", "--allow-unsafe")
        assert content(other, 1) == content(written, 2)
        run(other, "import", folder, "--yes", "--allow-unsafe")
        with tidegate.connect(store, other[2].partition("=")[2]) as gate:
            assert gate.version() == 1
    finally:
        run(other, "drop", "--yes", "--force")
