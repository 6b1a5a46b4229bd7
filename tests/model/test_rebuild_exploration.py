"""Every state of small scopes of repair on Redis, and each of its rules switched off in turn.

The model follows the Lua. ``tests/services/redis/repair/test_random_repairs.py`` compares the Lua with a
dictionary.
"""

import pytest

from model.exploration import Counterexample, explore
from model.rebuild import Model, Rules, Scope

SCOPES = {
    "two repairs, one loss": Scope(),
    "the log was trimmed": Scope(reach=2),
    "one repair, three versions": Scope(versions=3, repairs=1),
    "three versions, trimmed": Scope(versions=3, repairs=1, reach=3),
    "a failover": Scope(repairs=1, losses=0, failovers=1),
    "a failover and a loss": Scope(repairs=1, failovers=1),
    "a failover and a loss, trimmed": Scope(repairs=1, failovers=1, reach=2),
}
LARGER = {
    "two repairs, three versions": Scope(versions=3),
    "two losses": Scope(losses=2),
    "two repairs, a failover": Scope(failovers=1),
    "two failovers": Scope(repairs=1, failovers=2),
}
STATES_MAX = 3_000_000


def _explore(scope, states_max=STATES_MAX):
    model = Model(scope)
    explored = explore(model.start, model.steps, states_max)
    print(explored)
    return explored


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", SCOPES)
def test_no_invariant_breaks(name):
    assert _explore(SCOPES[name]).complete


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("name", LARGER)
def test_no_invariant_breaks_in_larger_scopes(name):
    """Cut where memory ends: what was reached is without a violation."""
    explored = _explore(LARGER[name], 1_000_000)
    assert explored.complete or explored.states > 1_000_000


@pytest.mark.parametrize(
    "rule, scope, broken",
    [
        ("deletes_nothing", Scope(repairs=0, reach=2), "a repair took"),
        ("ends_its_own_marks", Scope(), "I1"),
        ("keeps_what_is_lost", Scope(), "I1"),
    ],
)
def test_each_rule_is_needed(rule, scope, broken):
    without = scope._replace(rules=Rules()._replace(**{rule: False}))
    with pytest.raises(Counterexample) as found:
        _explore(without)
    print(found.value)
    assert found.value.broken.startswith(broken), found.value.broken
