"""Rights in Kafka: the lists of docs/kafka.md are enough, with one less a user is told which is missing.

The users are made from the page itself, so that what it says is what is tried.
"""

import pyarrow as pa
import pytest

from services.support.kafka.query import Query
from services.support.kafka.rights import PASSWORD, READER, WRITER, Users, guarded, rights_of
from support.driver_process import MARKER
from tidegate.committers.opening.open import open_namespace
from tidegate.errors import ConfigError, OutcomeUnknownError
from tidegate.spark.source.change_feed import CHANGE_TYPE, VERSION, Feed, FeedPlanner, encode_works
from tidegate.spark.source.leased_table import lease_table
from tidegate.spark.source.options import SourceOptions

__all__ = ["guarded"]
pytestmark = [pytest.mark.xdist_group("kafka-rights"), pytest.mark.slow]  # a broker of their own


@pytest.fixture
def users(guarded, tmp_path):
    known = {name: value for name, value in guarded.client_settings.items() if name != "bootstrap.servers"}
    query = Query(guarded.bootstrap, tmp_path, **known)
    yield Users(guarded, query)
    query.close()


def a_life(users):
    """All that a writer does with a log: make, open, commit, look at it, trim, remove."""
    query, me = users.query, users.as_user(WRITER)
    driver = query.run(3, deadline_s=8.0, **me)
    assert driver.log.checks()
    first = next(iter(driver.log.decisions()))
    driver.log.trim_decisions(first.next_position)
    driver.log.trim_blobs([], 2**60)
    assert query.log(**me).drop()


def test_the_rights_of_the_page_are_enough(users):
    users.grant(WRITER, rights_of(WRITER))
    a_life(users)


@pytest.mark.parametrize("less", rights_of(WRITER))
def test_with_one_right_less_a_writer_is_refused_and_told_which(users, less):
    users.grant(WRITER, [name for name in rights_of(WRITER) if name != less])
    with pytest.raises(ConfigError, match=rf"lacks the right {less} on") as told:
        a_life(users)
    assert PASSWORD not in str(told.value)


def test_a_safe_writer_without_the_right_to_write_is_refused_before_it_opens(users):
    query = users.query
    query.run(1)
    before = len(list(query.log().decisions()))
    users.grant(WRITER, [name for name in rights_of(WRITER) if name != "Write"])
    found = {c.found for c in query.log(**users.as_user(WRITER)).checks() if c.outcome == "fail"}
    assert any(line.startswith("this user lacks the right Write on the topic") for line in found)
    driver = query.driver(8.0, safe=True, **users.as_user(WRITER))
    with pytest.raises(ConfigError, match="lacks the right Write on the topic"):
        open_namespace(driver, "lineage")
    assert len(list(query.log().decisions())) == before


BUT_WRITE = [name for name in rights_of(WRITER) if name != "Write"]
LONG_S = 600.0
"""Whoever waits for this long has not seen that it is refused."""


def counted(log, most=3):
    """Every append of the log is noted; one that comes again and again ends the test."""
    tries, append = [], log.append_decision

    def noted(content):
        tries.append(content)
        assert len(tries) <= most, "it tries on, though it is refused"
        return append(content)

    log.append_decision = noted
    return tries


@pytest.mark.parametrize("made", [True, False])
def test_without_write_on_the_decisions_a_writer_is_refused_at_once_whatever_is_allowed(users, made):
    query = users.query
    if made:
        query.run(1)
    users.grant(WRITER, BUT_WRITE, changelog="Write")
    driver = query.driver(LONG_S, **users.as_user(WRITER, timeout_s=30.0))
    tries = counted(driver.log, 0 if made else 1)  # a log that is made now is asked by its first record
    with pytest.raises(ConfigError) as told:
        open_namespace(driver, "lineage")
    command = f" --add --allow-principal User:{WRITER} --operation Write --topic {query.decisions}"
    assert f"this user lacks the right Write on the topic; grant it: `{command}`" in str(told.value)
    assert "allow_unsafe" not in str(told.value)
    assert len(tries) <= (not made)
    users.grant(WRITER, rights_of(WRITER))
    query.run(2, **users.as_user(WRITER))
    query.check(2)


def test_a_right_that_is_taken_away_in_a_query_ends_it_at_once(users):
    """An earlier copy may be there for all that the driver knows: it does not say that nothing is."""
    query, me = users.query, users.as_user(WRITER)
    users.grant(WRITER, rights_of(WRITER))
    driver = query.driver(LONG_S, **me)
    open_namespace(driver, "lineage")
    query.commit(driver, 0)
    users.grant(WRITER, BUT_WRITE, changelog="Write")
    tries = counted(driver.log)
    with pytest.raises(OutcomeUnknownError, match="lacks the right Write on") as told:
        query.commit(driver, 1)
    command = f" --add --allow-principal User:{WRITER} --operation Write --topic {query.decisions}"
    assert command in str(told.value)
    assert PASSWORD not in str(told.value)
    assert len(tries) == 2, "the decision, and the fence"
    users.grant(WRITER, rights_of(WRITER))
    query.run(2, **me)
    query.check(2)


WRITES = {
    "create": lambda log, _: log.create(),
    "append_decision": lambda log, _: log.append_decision(b"record"),
    "stage": lambda log, _: log.stage("segment", [b"blob"]),
    "trim_decisions": lambda log, at: log.trim_decisions(at),
    "trim_blobs": lambda log, _: log.trim_blobs([], 2**60),
    "drop": lambda log, _: log.drop(),
}


def test_a_reader_of_the_log_reads_all_of_it_and_can_change_nothing(users):
    query = users.query
    query.run()
    users.grant(READER, rights_of(READER))
    log = query.log(**users.as_user(READER, timeout_s=6.0))
    whole = list(query.log().decisions())
    assert list(log.decisions()) == whole
    assert log.size() == query.log().size()
    query.check()  # as a writer; then all of it as the reader
    facts = query.decided().recent
    assert [blob.address for fact in facts for blob in log.read([fact.manifest_address])]
    for name, write in WRITES.items():
        with pytest.raises(
            (ConfigError, OutcomeUnknownError), match=r"lacks the right (Create|Write|Delete) on"
        ):
            write(log, whole[1].position)
        assert list(query.log().decisions()) == whole, name
    query.check()


def test_the_feed_of_changes_needs_no_more_than_a_reader_may(users):
    query, mine = users.query, users.as_user(READER, timeout_s=6.0)
    query.run(2)
    users.grant(READER, rights_of(READER))
    options = SourceOptions.of(
        {"namespace": query.namespace, "store": query.store_url, "wal": query.wal, "table": MARKER}
    )
    log = query.log(**mine)
    feed = Feed(lease_table(options), query.wal, query._client | mine, options.exact)
    works = [encode_works(part) for part in FeedPlanner(feed, log, query.store(), 2).works(0, 2)]
    kinds = {"key": pa.binary(), "value": pa.binary(), CHANGE_TYPE: pa.string(), VERSION: pa.int64()}
    batches = [some for part in works for some in feed.rows(part, pa.schema(kinds))]
    assert {version for some in batches for version in some[VERSION].to_pylist()} == {1, 2}


def test_who_may_only_describe_cannot_read(users):
    users.query.run(1)
    users.grant(READER, ["Describe"])
    log = users.query.log(**users.as_user(READER, timeout_s=6.0))
    with pytest.raises(ConfigError, match="lacks the right Read on"):
        list(log.decisions())
