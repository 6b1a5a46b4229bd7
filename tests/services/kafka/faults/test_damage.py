"""What others did to the topics: cut too far, deleted and made again, forgotten by age, flipped bits (I10).

Refused loudly: the error names the place and what happened, nothing is published, what was visible stays.
"""

import datetime
import json

import pytest
from typer.testing import CliRunner

from services.support.kafka.world import DEADLINE_S, NAMESPACE, PARTITIONS, world_on
from support.wait import wait_until
from tidegate.cli import app
from tidegate.cli.core import parameters
from tidegate.committers.operations.verify import verify
from tidegate.errors import CorruptError, TidegateError, WalGapError
from tidegate.wal.kafka.address import parse_address
from tidegate.wal.record import Open, Summary


@pytest.fixture
def world(kafka):
    with world_on(kafka.bootstrap, timeout_s=10.0) as made:
        yield made


def refused(world, error, *named, by=None, times=2):
    """Whoever opens it (or goes on with it) is refused, again and again, and what is visible stays."""
    before = world.store().pointer()
    content = [world.content(one) for one in world.store().catalog()]
    said = []
    for _ in range(times):
        with pytest.raises(error) as raised:
            (by or world.open)()
        said.append(str(raised.value))
    after = world.store().pointer()
    assert (after.visible, after.digest) == (before.visible, before.digest)
    assert [world.content(one) for one in world.store().catalog()] == content
    for name in named:
        assert name in said[0]
    return said


# -- cut too far -------------------------------------------------------------------------------------


def test_blobs_that_an_unapplied_version_needs_were_cut(world):
    driver = world.open()
    world.commit(driver, 0, 1)
    world.decide_only(driver, 2)
    for partition in range(PARTITIONS):
        world.delete_records(world.changelog, world.ends(world.changelog, partition)[1], partition)
    refused(world, WalGapError, f"{world.changelog}, partition", "offset")


def test_decisions_were_cut_behind_the_last_summary(world):
    driver = world.open()
    world.commit(driver, 0, 1, 2)
    kinds = [type(one) for one in world.records()]
    assert kinds.index(Summary) > kinds.index(Open)
    world.delete_records(world.decisions, kinds.index(Summary) + 1)
    refused(world, CorruptError, f"position {kinds.index(Summary) + 1}", "the log starts with a Decided")


def test_all_decisions_were_cut(world):
    driver = world.open()
    world.commit(driver, 0, 1, 2)
    end = world.ends(world.decisions)[1]
    world.delete_records(world.decisions, end)
    refused(world, WalGapError, "the log is empty", "restore the log")
    assert world.ends(world.decisions) == (end, end)


def test_decisions_were_cut_behind_where_a_running_driver_stands(world):
    driver, other = world.open(), world.driver()
    world.commit(driver, 0)
    other.decisions.catch_up()
    world.commit(driver, 1, 2)
    world.delete_records(world.decisions, world.ends(world.decisions)[1] - 1)
    refused(world, CorruptError, "the log starts with a Decided", by=other.decisions.catch_up)


# -- deleted and made again ----------------------------------------------------------------------------


AS_LONG = pytest.mark.parametrize("filled", [False, True], ids=["empty", "as long"])


@pytest.mark.parametrize(
    "which, filled",
    [
        ("decisions", False),
        ("decisions", True),
        ("changelog", True),
        pytest.param("changelog", False, marks=pytest.mark.slow),
        pytest.param("both", False, marks=pytest.mark.slow),
        pytest.param("both", True, marks=pytest.mark.slow),
    ],
)
def test_topics_were_made_again_while_no_driver_ran(world, which, filled):
    driver = world.open()
    world.commit(driver, 0, 1)
    world.decide_only(driver, 2)
    topics = remake(world, which, filled)
    made = {topic: ends_of(world, topic) for topic in topics}
    if which == "changelog":
        refused(world, WalGapError, world.changelog, "was deleted and made again")
    elif filled:
        refused(world, CorruptError, world.prefix, "position 0")
    else:
        refused(world, WalGapError, "the log is empty", "restore the log")
    assert {topic: ends_of(world, topic) for topic in topics} == made


@AS_LONG
@pytest.mark.parametrize("which", ["decisions", pytest.param("both", marks=pytest.mark.slow)])
def test_topics_were_made_again_under_a_running_driver(world, which, filled):
    driver = world.open()
    world.commit(driver, 0, 1)
    remake(world, which, filled)
    end = world.ends(world.decisions)[1]
    first = world.changelog if which == "both" else world.decisions  # staging comes before deciding
    named = first, "was deleted and made again"
    refused(world, WalGapError, *named, by=lambda: world.commit(driver, 2), times=1)
    assert world.ends(world.decisions)[1] <= end + 1  # it was sent before the broker could tell
    refused(world, TidegateError)


@AS_LONG
def test_a_driver_that_was_refused_for_a_topic_made_again_is_refused_again(world, filled):
    """Else it publishes versions whose decisions no driver can ever open."""
    driver = world.open()
    world.commit(driver, 0, 1)
    remake(world, "decisions", filled)
    refused(world, WalGapError, by=lambda: world.commit(driver, 2))


def test_a_change_log_made_again_under_a_running_driver_is_refused(world):
    """What is visible stays right; whoever needs what is lost is told; a restart goes on in the new topic."""
    driver = world.open()
    world.commit(driver, 0, 1)
    remake(world, "changelog", filled=True)
    named = world.changelog, "was deleted and made again"
    refused(world, WalGapError, *named, by=lambda: world.commit(driver, 2))
    refused(world, WalGapError, *named, by=lambda: world.tidy(driver))
    driver = world.open()
    world.commit(driver, 2, 3)
    with world.readable() as log:
        assert any("was deleted and made again" in str(one) for one in verify(log, world.store()).findings)


def remake(world, which, filled):
    """The topics, with as many messages as before or none."""
    both = {"decisions": world.decisions, "changelog": world.changelog}
    topics = [both[which]] if which in both else [*both.values()]
    for topic in topics:
        count = max(end for _, end in ends_of(world, topic)) if filled else 0
        world.remake(topic, *[b"\x01of somebody else"] * count)
    return topics


def ends_of(world, topic):
    return [
        world.ends(topic, partition) for partition in range(1 if topic == world.decisions else PARTITIONS)
    ]


# -- bits that flipped ------------------------------------------------------------------------------------


def test_a_bit_flipped_in_a_frame_of_an_unapplied_version(world, kafka):
    driver = world.open()
    world.commit(driver, 0)
    world.decide_only(driver, 1)
    manifest = parse_address(driver.folded.recent[-1].manifest_address, "")
    at = {
        (partition, message.offset()): message.value()
        for partition in range(PARTITIONS)
        for message in world.raw(world.changelog, partition)
    }
    attempt = driver.folded.recent[-1].attempt.encode()
    frames = {place: value for place, value in at.items() if attempt in value}
    frames.pop((manifest.partition, manifest.offsets[0]))
    (partition, offset), value = next(iter(frames.items()))
    flip(kafka, world.changelog, partition, value)
    refused(world, CorruptError, f"{world.changelog}, partition {partition}, offset {offset}")


@pytest.mark.parametrize(
    "nth", [pytest.param(0, marks=pytest.mark.slow), 2, pytest.param(-1, marks=pytest.mark.slow)]
)
def test_a_bit_flipped_in_a_decision(world, kafka, nth):
    world.commit(world.open(), 0, 1)
    record = world.raw(world.decisions)[nth]
    flip(kafka, world.decisions, 0, record.value())
    refused(world, CorruptError, f"{world.decisions}, partition 0, offset {record.offset()}")


@pytest.mark.slow
def test_a_consumer_that_met_damage_ends(world, kafka, caplog):
    """Its client asks on behind the damage, at an offset out of range; that answer must not meet its end."""
    world.commit(world.open(), 0, 1)
    flip(kafka, world.decisions, 0, world.raw(world.decisions)[2].value())
    log = world.log()
    for _ in range(400):
        with pytest.raises(CorruptError):
            list(log.decisions())
        assert "did not end" not in caplog.text


def flip(kafka, topic, partition, value):
    (path,) = kafka.data_folder(0).glob(f"{topic}-{partition}/*.log")
    at = path.read_bytes().rindex(value) + len(value) // 2
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 4]))


# -- forgotten by age ---------------------------------------------------------------------------------------


def test_what_is_needed_is_forgotten_by_age_and_status_told_until_when(world, tmp_path, monkeypatch):
    driver = world.open()
    world.commit(driver, 0, 1)
    world.configure(world.changelog, retention_ms=3_600_000)
    world.decide_only(driver, 2)
    monkeypatch.setattr(
        parameters, "PLACES", {}
    )  # the store is this process's memory, the command runs in it
    told = status(world, tmp_path)
    assert told["log_retention_s"] == 3_600
    decided_at = driver.folded.recent[-1].decided_at_us / 1e6
    assert abs(datetime.datetime.fromisoformat(told["apply_before"]).timestamp() - decided_at - 3_600) < 1
    world.configure(world.changelog, retention_ms=1)

    def forgotten():
        return all(first == end for first, end in ends_of(world, world.changelog))

    wait_until(forgotten, "the broker deletes by age", DEADLINE_S)
    refused(world, WalGapError, f"{world.changelog}, partition", "offset")
    assert "may have forgotten it" in " ".join(
        status(world, tmp_path, code=WalGapError.exit_code)["problems"]
    )


def status(world, folder, code=0):
    path = folder / "options"
    path.touch(0o600)
    path.write_text(f"topic_prefix={world.prefix}\n")
    where = [f"--store=memory://{world.prefix}", f"--wal=kafka://{world.direct}", f"--namespace={NAMESPACE}"]
    done = CliRunner().invoke(app, ["status", "--json", f"--wal-config={path}", *where])
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)
