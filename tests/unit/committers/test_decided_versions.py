"""Facts of decided versions: in the fold, in the log, or in a summary."""

import msgspec

from support.places import opened
from tidegate.committers.steps.decided_versions import decided_versions


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
