"""``SinkOptions``, which type checkers see, has the options and types of ``Options``, which is checked."""

from __future__ import annotations

import ast
import inspect
import typing

from tidegate import options
from tidegate.base.durations import Duration
from tidegate.options import Options, SinkOptions


def test_it_has_the_options_and_their_types():
    expected, typed = typing.get_type_hints(Options), typing.get_type_hints(SinkOptions)
    assert list(typed) == list(expected), "in one order, so that the two are easy to compare"
    ttl = typed.pop("ttl")
    assert typed.items() == {name: kind for name, kind in expected.items() if name != "ttl"}.items()
    assert set(typing.get_args(ttl)) == {*typing.get_args(expected["ttl"]), *typing.get_args(Duration)}
    assert not SinkOptions.__required_keys__


def test_editors_show_a_line_for_each():
    body = ast.parse(inspect.getsource(options.SinkOptions)).body[0].body
    for at, item in enumerate(body):
        if isinstance(item, ast.AnnAssign):
            line = body[at + 1]
            assert isinstance(line, ast.Expr), item.target.id
            assert "Default: " in line.value.value, item.target.id
