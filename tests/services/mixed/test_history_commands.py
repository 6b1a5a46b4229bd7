"""diff, tail, restore, export and import on a log and on stores of real servers."""

import json
import uuid

import pytest
from typer.testing import CliRunner

import tidegate
from tidegate.cli import app
from tidegate.committers.steps.retire import retire_up_to
from tidegate.options import Options
from tidegate.sinks.rules.visible import moment
from tidegate.testing.example import BATCHES, Example

OPTIONS = Options(key_groups=4, keep_versions=9, allow_unsafe=True)  # one broker


SLOW = ("redis_cluster", "cassandra_tables")


@pytest.fixture(params=["redis", *(pytest.param(store, marks=pytest.mark.slow) for store in SLOW)])
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


@pytest.mark.one_in(2)
def test_a_retired_version_comes_back_by_its_time_and_the_undone_batches_after_it_once(place, kafka, store):
    """Bad data from the fifth batch on: the sums come back from the log, and the input is counted again."""
    namespace = place[2].partition("=")[2]
    options = Options(key_groups=4, keep_versions=2, allow_unsafe=True)
    records = [(f"N{number % 5}", number) for number in range(80)]

    def write(example, batch_id, bad=0):
        """Add one batch of ten records to the sums."""
        sums = content(place).get("aircraft", {}) if batch_id else {}
        for key, value in records[10 * batch_id : 10 * batch_id + 10]:
            before = sums.get(key, {"flights": 0})["flights"]
            sums[key] = {"carrier": "UA", "flights": before + value + bad}
        end = 10 * batch_id + 10
        example.write({"aircraft": sums}, source_offsets=f'[{{"in":{{"0":{end}}}}}]', batch_id=batch_id)

    def counted(batches):
        sums = dict.fromkeys((key for key, _ in records), 0)
        for key, value in records[: 10 * batches]:
            sums[key] += value
        return {key: {"carrier": "UA", "flights": total} for key, total in sums.items()}

    example = Example(kafka.url, store, namespace, options=options)
    for batch_id in range(8):
        write(example, batch_id, bad=1_000 * (batch_id > 3))
    driver = example.driver
    retire_up_to(driver.log, driver.store, driver.folded, options, lambda: False)
    assert driver.store.pointer().horizon == 7
    good = moment(driver.folded.recent[3].decided_at_us).isoformat()
    driver.store.end_heartbeat(driver.epoch)
    example.close()

    words = ["restore", "--to", good, "--yes", "--reprocess", "--json", "--allow-unsafe"]
    told = json.loads(run(place, *words))
    assert (told["restored"], told["last_batch"], told["source_offsets"]) == (4, 3, '[{"in":{"0":40}}]')
    assert [each["batch"] for each in told["undone"]] == [4, 5, 6, 7]
    assert content(place)["aircraft"] == counted(4)
    example = Example(kafka.url, store, namespace, options=options)
    for batch_id in range(4, 8):
        write(example, batch_id)
    example.close()
    assert content(place)["aircraft"] == counted(8)
