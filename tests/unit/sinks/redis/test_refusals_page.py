"""The page's table of a server's errors is that of the code, cell by cell."""

import re
from pathlib import Path

import pytest
from redis._parsers.base import BaseParser

from support.refusals import CALL, ERRORS, REPLIES, USES_EVAL, first_cell
from tidegate.sinks.redis.client.replies import (
    PASSING,
    Call,
    Effect,
    NextAction,
    ServerState,
    answer_of,
    effect_of,
)

PAGE = Path(__file__).parents[4] / "docs" / "readers-in-production.md"
HEADING = "| a Redis server answers | a call of a gate, a connect |"
READ = Call(b"key", "read", (b"",))


def table():
    lines = PAGE.read_text().splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith(HEADING))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            return rows
        rows.append([cell.strip() for cell in line.strip("|").split(" | ")])
    raise AssertionError("the table has no end")


def error_of(reply):
    """The reply as redis-py raises it."""
    return BaseParser.parse_error(reply)


def test_each_effect_has_a_row_with_all_its_replies():
    replies = [row[0].partition(": ")[0] for row in table()]
    assert replies == [first_cell(effect) for effect in Effect]


@pytest.mark.parametrize("effect", Effect, ids=lambda effect: effect.name)
def test_each_cell_names_the_errors_of_the_table(effect):
    cells = table()[list(Effect).index(effect)][1:]
    named = [re.findall(r"\w+Error", cell) for cell in cells]
    assert named == [[error.__name__] if error else [] for error in ERRORS[effect]]


@pytest.mark.parametrize("reply, effect", REPLIES, ids=[reply for reply, _ in REPLIES])
def test_a_call_does_what_its_column_says(reply, effect):
    error = error_of(reply)
    if not reply.startswith("TG"):
        assert effect_of(error) is effect
    if effect in PASSING:
        answer = answer_of(error, READ, "a test", "server")
        expected = NextAction.LEAVE if effect is Effect.ELSEWHERE else NextAction.LOOK_AGAIN
        assert answer == (ServerState(b"replica") if reply.startswith("TG") else expected)
    elif USES_EVAL in reply:
        assert answer_of(error, READ, "a test", "server") is NextAction.EVAL
    elif (wanted := ERRORS[effect][CALL]) is not None:
        with pytest.raises(wanted):
            answer_of(error, READ, "a test", "server")
