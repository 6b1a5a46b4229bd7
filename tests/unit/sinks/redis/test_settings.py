"""What a Redis URL and its options say. Connects to nothing."""

import pytest

pytest.importorskip("redis")

from tidegate.base.urls import Address
from tidegate.errors import ConfigError
from tidegate.sinks.redis.client.settings import settings_of


@pytest.mark.parametrize(
    "url,kind,seeds,master,tls,db",
    [
        ("redis://cache", "one", [("cache", 6379)], "", False, None),
        ("redis://cache:7000/3", "one", [("cache", 7000)], "", False, 3),
        ("rediss://cache:7000/0", "one", [("cache", 7000)], "", True, 0),
        ("redis://[::1]:7000", "one", [("::1", 7000)], "", False, None),
        ("redis+sentinel://a,b:7/main", "sentinel", [("a", 26379), ("b", 7)], "main", False, None),
        ("rediss+sentinel://a/main/2", "sentinel", [("a", 26379)], "main", True, 2),
        ("redis+cluster://a:1,b:2", "cluster", [("a", 1), ("b", 2)], "", False, None),
    ],
)
def test_urls(url, kind, seeds, master, tls, db):
    found = settings_of(url, {})
    assert (found.kind, found.master, found.tls) == (kind, master, tls)
    assert found.seeds == tuple(Address(*seed) for seed in seeds)
    assert found.connection.get("db") == db


def test_the_login_is_decoded_and_never_shown():
    found = settings_of("redis://us%40er:p%2Fw:x@cache", {})
    assert (found.connection["username"], found.connection["password"]) == ("us@er", "p/w:x")
    assert "p/w" not in repr(found)


@pytest.mark.parametrize(
    "url,options,why",
    [
        ("redis://u:secret@a,b", {}, "several servers"),
        ("redis://u:secret@a:port", {}, "host:port"),
        ("redis+cluster://u:secret@a,b:99999", {}, r"host:port \(2 of 2\)"),
        ("redis://u:secret/x@a", {}, "%2F %3F and %23"),
        ("redis://u:secret#x@a", {}, "%2F %3F and %23"),
        ("redis:u:secret@a", {}, "write redis:// and then its servers"),
        ("redis://secret@a", {}, "which is ambiguous: write user:password@"),
        ("redis://u:secret@a/db", {}, "number of a database"),
        pytest.param("redis://u:secret@a/" + "9" * 5_000, {}, "number of a database", id="a long number"),
        ("redis+cluster://u:secret@a/1", {}, "number of a database"),
        ("redis+sentinel://u:secret@a", {}, "name of the primary"),
        ("redis://u:secret@a?db=1", {}, "store_options"),
        ("redis://u:secret@a", {"tiemout_s": 1}, "unknown option tiemout_s; there are functions, timeout_s"),
        ("redis://u:secret@a", {"sentinel_password": "x"}, "unknown option sentinel_password"),
        ("redis://u:secret@a", {"ssl_certfile": "x"}, "rediss://"),
        ("redis://u:secret@a", {"timeout_s": 0}, "timeout_s"),
        ("redis://u:secret@a", {"timeout_s": True}, "timeout_s"),
        (
            "redis://u:secret@a",
            {"socket_timeout": None},
            "socket_timeout is NoneType; it must be a number of seconds, above 0",
        ),
        ("redis://u:secret@a", {"socket_connect_timeout": "3"}, "socket_connect_timeout must be a number of"),
        ("redis://u:secret@a", {"functions": "no"}, "functions"),
    ],
)
def test_what_does_not_fit_is_refused(url, options, why):
    with pytest.raises(ConfigError, match=why) as refused:
        settings_of(url, options)
    assert "secret" not in str(refused.value)


def test_a_user_alone_has_its_password_in_the_options():
    found = settings_of("redis://us%2Fer@a", {"password": "x"})
    assert (found.connection["username"], found.connection["password"]) == ("us/er", "x")
    assert settings_of("redis://user:@a", {}).connection["username"] == "user"


def test_options_go_to_the_client_under_its_own_names(tmp_path):
    file = tmp_path / "ca.pem"
    file.touch()
    options = {"ssl_ca_certs": str(file), "sentinel_password": "s"}
    found = settings_of("rediss+sentinel://a/main", options)
    assert found.connection["ssl_ca_certs"] == found.sentinel["ssl_ca_certs"] == str(file)
    assert (found.sentinel["password"], found.sentinel["ssl"]) == ("s", True)


@pytest.mark.parametrize("name", ["ssl_ca_certs", "ssl_certfile", "ssl_keyfile"])
def test_a_file_of_tls_that_is_missing_is_named(name):
    with pytest.raises(ConfigError, match=f"{name} must be the path of a file that this user can read"):
        settings_of("rediss://a", {name: "/nowhere.pem"})
