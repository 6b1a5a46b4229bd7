"""The parts of a URL, and what of it may be shown."""

import random

import pytest

from support.secret_urls import URLS, pieces, secret_in, shapes
from tidegate.base.urls import (
    Address,
    addresses,
    hide,
    parts_of,
    path_of,
    redact,
    scheme_of,
    user_and_password,
)


@pytest.mark.parametrize(
    "url,shown",
    [
        ("", ""),
        ("redis://cache:6379/0", "redis://cache:6379/0"),
        ("redis://cache", "redis://cache"),
        ("redis://[::1]:6379", "redis://[::1]:6379"),
        ("redis+cluster://h1:1,h2:2", "redis+cluster://h1:1,h2:2"),
        ("rediss+sentinel://h1:1,h2:2/main/0", "rediss+sentinel://h1:1,h2:2/main/0"),
        ("cassandra://h1,h2:9042/flights", "cassandra://h1,h2:9042/flights"),
        ("kafka://h1:9092,h2:9092", "kafka://h1:9092,h2:9092"),
        ("http://127.0.0.1:9464/metrics", "http://127.0.0.1:9464/metrics"),
        ("file:///data/a:b@c", "file:///data/a:b@c"),
        ("sqlite:///data/st%20ore", "sqlite:///data/st%20ore"),
        ("memory://x", "memory://x"),
        # The login, whatever it is: a user alone may be the password.
        ("redis://user:s3cret@cache:6379/0", "redis://***@cache:6379/0"),
        ("redis://:s3cret@cache", "redis://***@cache"),
        ("redis://s3cret@cache", "redis://***@cache"),
        ("redis://user:@cache", "redis://***@cache"),
        ("redis://user:s3cret@with@ats@cache", "redis://***@cache"),
        ("redis://user:s3cret:with:colons@cache", "redis://***@cache"),
        ("redis://user:[s3cret]\nline@cache", "redis://***@cache"),
        ("redis+sentinel://u:s3cret@h1:1,h2:2/main", "redis+sentinel://***@h1:1,h2:2/main"),
        # No part that the grammar does not have.
        ("redis://user:s3cret/with/slashes@cache", "redis://***"),
        ("redis://user:s3cret?x@cache", "redis://***"),
        ("redis://user:s3cret#x@cache", "redis://***"),
        ("redis://user:s3cret", "redis://***"),
        ("redis://cache:99999/0", "redis://***"),
        ("redis://cache/s3cret", "redis://***"),
        ("redis+sentinel://user:/s3cret", "redis+sentinel://***"),
        ("cassandra://h/s3cret-1", "cassandra://***"),
        ("http://h:9464/s3cret", "http://***"),
        ("redis://cache/0?password=s3cret", "redis://***"),
        ("redis://cache/0#s3cret", "redis://***"),
        ("kafka://h?sasl.password=s3cret%26&a=b", "kafka://***"),
        ("sqlite:///data?key=s3cret", "sqlite://***"),
        ("file:///data#s3cret", "file://***"),
        ("file://u:s3cret@h/data", "file://***"),
        ("memory://u:s3cret@x", "memory://***"),
        ("mysql://u:s3cret@h/s3cret", "mysql://***"),
        # Not even a scheme.
        ("redis:u:s3cret@h", "redis:***"),
        ("redis:/u:s3cret@h", "redis:***"),
        ("sqlite:s3cret", "sqlite:***"),
        ("redis//u:s3cret@h", "***"),
        ("u:s3cret@h", "***"),
        ("://u:s3cret@h", "***"),
        ("u:s3cret://@h", "***"),
        ("/data/s3cret", "***"),
        ("s3cret", "***"),
    ],
)
def test_what_is_shown_of_a_url(url, shown):
    assert redact(url) == shown


def test_no_piece_of_a_login_is_shown_whatever_its_form_t48():
    """Random logins in every kind of URL, well formed or not."""
    rng = random.Random(48)
    for _ in range(100):
        user, password = pieces(rng), pieces(rng)
        for url in shapes(rng, user, password):
            assert not secret_in(redact(url), user, password), url


def test_the_shapes_have_every_scheme_that_there_is():
    from tidegate.sinks.open_store import OPENERS
    from tidegate.wal.open_log import SCHEMES

    assert {*OPENERS, *SCHEMES} <= {scheme_of(url) for url in URLS}


@pytest.mark.parametrize(
    "url,login,hosts,path,rest",
    [
        ("redis://h", None, ("h",), "", ""),
        ("redis://u:p@h1:1,h2/a/0", "u:p", ("h1:1", "h2"), "/a/0", ""),
        ("redis://u:p@x@h/0?a=b#c", "u:p@x", ("h",), "/0", "?a=b#c"),
        ("redis://@h", "", ("h",), "", ""),
    ],
)
def test_the_parts_of_a_url(url, login, hosts, path, rest):
    assert parts_of(url) == ("redis", login, hosts, path, rest)


def test_addresses_have_a_port_and_no_brackets():
    parts = parts_of("redis://[FE80::1]:5,Cache,:7,[::1]")
    assert addresses(parts, 6379, "") == (
        Address("fe80::1", 5),
        Address("cache", 6379),
        Address("localhost", 7),
        Address("::1", 6379),
    )


def test_a_login_is_decoded_once():
    assert user_and_password("us%40er:p%2Fw:%2525") == ("us@er", "p/w:%25")
    assert user_and_password("one") == ("one", None)
    assert user_and_password("one:") == ("one", "")
    assert user_and_password(None) == ("", None)


@pytest.mark.parametrize(
    "url,path",
    [
        ("file:///a%20b/c", "/a b/c"),
        ("file:///a[1]@b", "/a[1]@b"),
        ("file:///", "/"),
        ("file://host/a", None),
        ("file://a", None),
        ("file:///a?b", None),
        ("file:///a#b", None),
        ("file:///a%00b", None),
        ("file:/a", None),
    ],
)
def test_the_path_of_a_url_of_files(url, path):
    assert path_of(url) == path


def test_what_a_server_repeats_is_hidden():
    assert hide("no user ann with pw1 (pw1)", ["pw1", ""]) == "no user ann with *** (***)"
