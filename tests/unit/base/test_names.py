"""Names, and the escape that turns them into object names: injective, pinned, fit for every store."""

import itertools
import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.base.names import ESCAPED_MAX, check_name, escape
from tidegate.errors import ConfigError

ALPHABET = string.ascii_letters + string.digits + "_.-"
NAMES = st.text(ALPHABET, min_size=1, max_size=64)
SHORT = st.text("aA9_.-", min_size=1, max_size=6)


@pytest.mark.parametrize("name", ["a", "A", "0", ".", "_-", "_", "a" * 64, "flights.Daily_top-10"])
def test_a_name_within_the_alphabet_is_taken(name):
    assert check_name("table", name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "-",
        "-a",
        "a" * 65,
        "a b",
        "a/b",
        "a\n",
        "\n",
        "ä",
        "a\0",
        "a:b",
        "{a}",
        "a'b",
        "٣",
        None,
        7,
        b"a",
        ["a"],
    ],
)
def test_any_other_name_is_refused_and_shown(name):
    with pytest.raises(ConfigError, match="table name") as caught:
        check_name("table", name)
    assert repr(name) in str(caught.value)


VECTORS = {
    "flights": "flights",
    "Daily.Top-10": "_daily_0_top_110",
    "a_b": "a__b",
    "a.b": "a_0b",
    "a-b": "a_1b",
    "aB": "a_b",
    "a_0b": "a__0b",
    "a_B": "a___b",
    "0": "0",
    "x" * 40: "x" * 40,
    "x" * 41: "xxxxxxxxxxxxxx_91f69e542a2b7279c5fee29a8",
    "X" * 20: "_x" * 20,
    "X" * 21: "_x_x_x_x_x_x_x_9561658da563244b5db3aa05b",
    "a" + "X" * 20: "a_x_x_x_x_x_x_9c39627805779d2eefa88ac5a",
}


@pytest.mark.parametrize("name", VECTORS)
def test_an_escaped_name_never_changes(name):
    """Folders, topics and tables on disk are called so."""
    assert escape(name) == VECTORS[name]


@given(NAMES)
def test_an_escaped_name_fits_every_store(name):
    assert re.fullmatch(r"[a-z0-9_]{1,40}", escape(name))
    assert len(escape(name)) <= ESCAPED_MAX


@given(SHORT | NAMES, SHORT | NAMES)
def test_two_names_never_meet(one, other):
    """T47, also where names fold case: an escaped name has no capitals."""
    assert (escape(one) == escape(other)) == (one == other)


def test_all_short_names_are_kept_apart():
    names = [
        "".join(letters) for count in (1, 2, 3, 4) for letters in itertools.product("aA09_.-", repeat=count)
    ]
    assert len({escape(name) for name in names}) == len(names)


@given(st.text(ALPHABET, min_size=20, max_size=64))
def test_a_cut_name_is_no_other_names_escape(name):
    escaped = escape(name)
    pieces = re.findall(r"_.|[a-z0-9]", escaped)
    assert "".join(pieces) == escaped
    marks = [at for at, piece in enumerate(pieces) if piece == "_9"]
    plain = sum(2 if letter in "_.-" or letter.isupper() else 1 for letter in name)
    assert len(marks) == (plain > ESCAPED_MAX)
    if marks:
        assert len(escaped) - escaped.rindex("_9") == 26
