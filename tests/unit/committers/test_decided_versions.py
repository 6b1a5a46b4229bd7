"""Facts of decided versions: in the fold, in the log, or in a summary."""

import msgspec

from support.places import opened
from tidegate.committers.steps.decided_versions import RetirementBacklog, decided_versions


def test_facts_that_only_a_summary_has_are_found_once(place):
    driver = opened(place, 4, summary_every=4)
    driver.log.trim_decisions(driver.decisions.view.summaries[-1].position)
    state = msgspec.structs.replace(driver.folded, recent=driver.folded.recent[-1:])
    assert [fact.version for fact in decided_versions(driver.log, state, 1)] == [1, 2, 3, 4]


def test_facts_that_were_trimmed_are_left_out(place):
    driver = opened(place, 3)
    state = msgspec.structs.replace(driver.folded, recent=driver.folded.recent[-1:])
    assert [fact.version for fact in decided_versions(driver.log, state, 1)] == [1, 2, 3]
    driver.log.drop()
    assert [fact.version for fact in decided_versions(driver.log, state, 1)] == [3]


def test_a_backlog_of_another_history_is_read_again(place):
    """A log that lost decisions has other attempts of the same versions later."""
    driver = opened(place, 4)
    backlog, state = RetirementBacklog(driver.log), driver.folded
    lost = tuple(
        msgspec.structs.replace(decided, attempt=f"lost-{decided.version}", digest="lost")
        for decided in state.recent[1:]
    )
    before = msgspec.structs.replace(state, recent=(state.recent[0], *lost))
    assert list(backlog.since(before, 1)) == [state.recent[0], *lost]
    assert list(backlog.since(state, 1)) == list(state.recent)


def test_a_backlog_beyond_the_logs_end_is_read_again(place):
    driver = opened(place, 4)
    backlog, state = RetirementBacklog(driver.log), driver.folded
    list(backlog.since(state, 1))
    shorter = msgspec.structs.replace(state, recent=state.recent[:2], last_version=2)
    assert list(backlog.since(shorter, 1)) == list(state.recent[:2])
