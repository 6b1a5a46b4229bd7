"""Opening a namespace: what is refused before anything is appended, and appends whose outcome is unknown."""

import msgspec
import pytest

from support.places import driver_at, fails, opened
from tidegate.committers.background.finish import finish_decided
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.operations.verify import verify
from tidegate.errors import (
    BadRecordError,
    ConfigError,
    OutcomeUnknownError,
    StoreUnavailableError,
    TidegateError,
    WalGapError,
    WalUnavailableError,
)


def test_a_driver_without_a_log_says_how_to_make_one(place):
    with pytest.raises(TidegateError, match=r"namespace n has no log yet at .*tidegate init"):
        _ = driver_at(place).folded


@pytest.mark.parametrize(
    "call", [lambda driver: open_namespace(driver, "q"), lambda driver: finish_decided(driver, [], "recover")]
)
def test_a_store_whose_log_is_gone_is_not_written_i10(place, call):
    driver = opened(place)
    driver.log.drop()
    with pytest.raises(WalGapError, match="is in the store, the log is empty"):
        call(driver_at(place))
    assert driver.store.pointer().visible == 1


def test_a_query_does_not_begin_where_another_store_has_the_namespace(place, monkeypatch):
    """Log and primary are lost, and the second store is all that is left: `tidegate relog` saves it."""
    left = opened(f"{place}-b")
    driver = driver_at(place)
    driver.others = (left.store,)
    with pytest.raises(WalGapError, match=r"is in the store, the log is empty.*tidegate relog"):
        open_namespace(driver, "q")
    assert driver.store.identity() is None
    assert not list(driver.log.decisions())
    monkeypatch.setattr(left.store, "identity", fails(StoreUnavailableError("away")))
    assert open_namespace(driver, "q") == []


@pytest.mark.parametrize(
    "changed, words",
    [
        ({"visible": 3}, "version 3 is visible, the log ends at version 2"),
        ({"digest": "another"}, "version 2 has digest another in the store"),
    ],
)
def test_a_store_that_shows_what_was_never_decided_is_not_opened_i10(place, changed, words):
    driver = opened(place, 2)
    space = driver.store._space
    space.pointer = msgspec.structs.replace(space.pointer, **changed)
    before = list(driver.log.decisions())
    with pytest.raises(WalGapError, match=words):
        open_namespace(driver_at(place), "q")
    assert list(driver.log.decisions()) == before
    assert verify(driver.log, driver.store).findings


@pytest.mark.parametrize("versions", [0, 1])
def test_another_number_of_key_groups_names_a_rekey_only_where_there_is_a_version_to_copy(place, versions):
    """Red before: a rekey was named in any case, and refused where no version is visible."""
    opened(place, versions)
    with pytest.raises(ConfigError, match="leave the option out") as refusal:
        open_namespace(driver_at(place, key_groups=3), "q")
    assert ("`tidegate rekey --to NAME --key-groups 3`" in str(refusal.value)) is bool(versions)


def test_a_check_of_the_callers_may_refuse_before_anything_is_appended(place):
    driver = opened(place)
    before = list(driver.log.decisions())
    with pytest.raises(BadRecordError, match="not so"):
        open_namespace(driver_at(place), "q", fails(BadRecordError("not so")))
    assert list(driver.log.decisions()) == before


def test_a_log_that_never_takes_its_first_record_says_so(place, monkeypatch):
    driver = driver_at(place, decide_deadline_s=0.05)
    monkeypatch.setattr(driver.log, "append_decision", fails(OutcomeUnknownError("no answer")))
    with pytest.raises(WalUnavailableError, match=r"did not take the first record.*last error: no answer"):
        open_namespace(driver, "q")
    monkeypatch.undo()
    open_namespace(driver, "q")
    assert driver.epoch == 1


def test_an_open_that_the_log_did_not_take_is_appended_again(place):
    driver, lost = driver_at(place), []
    append = driver.log.append_decision

    def append_decision(content):
        if b"open" in content.lower() and not lost:
            lost.append(content)
            raise OutcomeUnknownError("simulated: nothing was written")
        return append(content)

    driver.log.append_decision = append_decision
    open_namespace(driver, "q")
    assert lost
    assert driver.epoch == driver.folded.epoch == driver.store.pointer().epoch
