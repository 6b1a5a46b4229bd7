"""The library's name is of its text, and what a client does where it is missing."""

import pytest
from redis import exceptions

from tidegate.errors import ConfigError
from tidegate.sinks.redis.client import functions
from tidegate.sinks.redis.client.functions import library, library_name
from tidegate.sinks.redis.client.library import loading

MISSING = exceptions.ResponseError("Function not found")
NO_LOAD = exceptions.NoPermissionError("User x has no permissions to run the 'function|load' command")
NO_EVAL = exceptions.NoPermissionError("User x has no permissions to run the 'evalsha_ro' command")
NO_SCRIPT = exceptions.NoScriptError("No matching script.")
THERE = exceptions.ResponseError("Library 'tidegate2_00' already exists")


def answered(*replies):
    """How many of the commands were sent, and what came out."""
    steps, sent = loading("store redis://h", "h:6379"), []
    command = next(steps)
    for reply in replies:
        sent.append(command)
        try:
            command = steps.send(reply)
        except StopIteration as end:
            assert len(sent) == len(replies)
            return sent, end.value
    raise AssertionError(command)


def test_another_text_has_another_name(monkeypatch):
    cached = (library, library_name)
    name, text, source = library_name(), library(), functions.source()
    with monkeypatch.context() as changed:
        changed.setattr(functions, "source", lambda: f"{source}\n-- another release")
        for one in cached:
            one.cache_clear()
        assert (library_name() == name, library() == text) == (False, False)
    for one in cached:
        one.cache_clear()


def test_every_function_is_called_by_the_librarys_name():
    for name in functions.names():
        assert f"'{library_name()}_{name}'".encode() in library()


@pytest.mark.parametrize(
    "replies, uses_functions",
    [
        ((1,), True),
        ((MISSING, "tidegate2_00"), True),
        ((MISSING, THERE), True),
        ((MISSING, NO_LOAD, 1), False),
        ((MISSING, NO_LOAD, NO_SCRIPT), False),
        ((exceptions.ResponseError("unknown command 'FCALL_RO'"),), False),
    ],
)
def test_what_is_asked_until_it_is_known(replies, uses_functions):
    assert answered(*replies)[1] is uses_functions


def test_nothing_is_ever_replaced():
    assert b"REPLACE" not in answered(MISSING, "tidegate2_00")[0][1].partition(b"#!lua")[0]


def test_who_may_neither_load_nor_eval_is_sent_to_the_administrator():
    with pytest.raises(ConfigError, match="tidegate redis-functions") as refused:
        answered(MISSING, NO_LOAD, NO_EVAL)
    assert library_name() in str(refused.value)
